"""Files in the user's folders of recipes whose names are nobody's: a recipe that is there, and that no layer gets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TypeVar

from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.model.graph import Graph
from latte.model.instances import kind_of
from latte.model.library_kinds import LIBRARY_KINDS
from latte.model.neuron import Neuron
from latte.planning.chains import chain_keys, neighbours
from latte.planning.recipes import files_of, folders, short_name
from swirl.config import settings
from swirl.ir.phases import INFERENCE, PHASES
from swirl.ir.spelling import as_in_sources
from swirl.schedule.entries import NAME
from swirl.schedule.imports import recipe_sources
from swirl.source_text import parsed

T = TypeVar("T")

NEAREST = 3
"""Names that a message offers."""


@dataclass(frozen=True)
class UnusedRecipe:
    """A file that no layer gets, by its name.

    Args:
        path: of the file.
        reason: why.
        way_out: what it could be called.
    """

    path: Path
    reason: str
    way_out: str

    def __str__(self) -> str:
        return f"{short_name(self.path)}: {self.reason}; {self.way_out}"


def unused_recipes(graph: Graph) -> tuple[UnusedRecipe, ...]:
    """The recipes of the net's folder, and of ``LATTE_RECIPES``, whose names are nobody's.

    A folder serves many nets, so a file may be for others: for a kind of the library, for one of a class that the
    process has, or for a chain of such kinds. What other recipes of the folder import, files whose names begin with
    ``_``, and files without a function of a phase are not recipes by themselves. A file that declares a chain has the
    kinds' names, joined.

    Args:
        graph: of the net, which is complete.
    """
    chosen = settings()
    if not chosen.schedule:
        return ()
    return tuple(each for folder in folders(graph, chosen) for each in _unused_in(folder, graph))


def _unused_in(folder: Path, graph: Graph) -> Iterator[UnusedRecipe]:
    files = files_of(folder)
    kinds = {ensemble.kind for ensemble in graph.ensembles if not isinstance(ensemble, DataEnsemble)}
    chains = {chain_keys(members)[1]: tuple(member.kind for member in members) for members in neighbours(graph)}
    names = kinds | set(chains)
    imported = {other for path in files.values() for other in recipe_sources(path)[1:]}
    for name, path in files.items():
        declared = None if name.startswith("_") or path.absolute() in imported else _declared(path)
        if declared is None or name in kinds:
            continue
        if declared and "_".join(declared) != name:
            reason = f"it declares the chain {', '.join(declared)}, whose recipe has another name"
            yield UnusedRecipe(path, reason, f"call it {'_'.join(declared)}.py")
        elif not declared and name in chains:
            reason = "it has the name of a chain, and declares none"
            yield UnusedRecipe(path, reason, f"chain = {chains[name]!r} at its top")
        elif not declared and not _joins(name, kinds | LIBRARY_KINDS | _kinds_of_classes()):
            yield UnusedRecipe(path, *_advice(graph, name, kinds, names))


def _advice(graph: Graph, name: str, kinds: Collection[str], names: Collection[str]) -> tuple[str, str]:
    """What is wrong with a name, and what to do."""
    layer = next((ensemble for ensemble in graph.ensembles if ensemble.name == name), None)
    if layer is not None:
        return "files are named after kinds, not layers", f"{layer.kind}.py, or net.use_recipe({name!r}, path)"
    near = get_close_matches(name, sorted(names), NEAREST)
    if near:
        way_out = f"did you mean {' or '.join(f'{each}.py' for each in near)}?"
    else:
        way_out = f"layers of this net are of the kinds {', '.join(sorted(kinds))}"
    return f"no kind of layer, and no chain of this net, is called {name!r}", way_out


def _declared(path: Path) -> tuple[str, ...] | None:
    """The chain that a recipe's text declares, () if none; None of a file that is not a recipe, or cannot be read:
    whoever uses it tells."""
    with suppress(OSError, SyntaxError, ValueError):
        body = parsed(path.read_bytes(), str(path)).body
        if _defined(body).isdisjoint((*PHASES, INFERENCE, NAME)):
            return None
        chains = [node.value for node in body if isinstance(node, ast.Assign) and _defined([node]) == {"chain"}]
        kinds = ast.literal_eval(chains[-1]) if chains else ()
        if isinstance(kinds, (tuple, list)) and all(isinstance(kind, str) for kind in kinds):
            return as_in_sources(tuple(kinds))
    return None


def _defined(body: list[ast.stmt]) -> set[str]:
    """The names that statements of a module define."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _joins(name: str, kinds: Collection[str]) -> bool:
    """Whether a name is a kind, or several joined by ``_``."""

    @cache
    def ends(rest: str) -> bool:
        return rest in kinds or any(rest.startswith(f"{kind}_") and ends(rest[len(kind) + 1 :]) for kind in kinds)

    return ends(name)


def _kinds_of_classes() -> set[str]:
    """The kinds of layers that the process has classes for."""
    ensembles = {each.kind or kind_of(each, Neuron) for each in _below(Ensemble)}
    return ensembles | {kind_of(Ensemble, each) for each in _below(Neuron)}


def _below(base: type[T]) -> Iterator[type[T]]:
    for each in base.__subclasses__():
        yield each
        yield from _below(each)
