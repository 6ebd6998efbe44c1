"""Which neighbouring layers are compiled together: recipes for chains, matched phase by phase, longest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from types import NoneType

from latte.autodiff.differentiated import Differentiated
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import DataEnsemble
from latte.model.graph import Graph, first_possible
from latte.model.source_location import user_location
from latte.planning.default_chains import default_chain
from latte.planning.frozen_recipes import as_frozen
from latte.planning.recipes import ChainRecipe, Choice, Reader, chain_file, chain_keys, chain_name, choice_for, has_none
from swirl.config import settings
from swirl.errors import CommandError, nearest
from swirl.ir.spelling import normalised
from swirl.recipe import Recipe
from swirl.recipe_files import read_recipe

LONGEST = 8
"""Layers in the longest chain that is looked for."""


@dataclass(frozen=True)
class Chain:
    """Neighbouring layers, each read by the next one alone, and the recipe for them.

    Args:
        members: sources first.
        recipe: that declares the chain of their kinds.
        phases: that are compiled together; the others are each layer's own, or a shorter chain's.
    """

    members: tuple[Ensemble, ...]
    recipe: Recipe
    phases: frozenset[str]

    @property
    def name(self) -> str:
        return chain_name(self.members)


@dataclass(frozen=True)
class Chains:
    """The chains of a net, and why layers that a recipe names stay apart (ensemble → reasons)."""

    found: tuple[Chain, ...]
    notes: Mapping[str, tuple[str, ...]]


def find_chains(
    graph: Graph,
    seeded: frozenset[str] = frozenset(),
    left: Mapping[tuple[str, str], str] | None = None,
    read: Reader = read_recipe,
    frozen: Differentiated | None = None,
) -> Chains:
    """The chains of a net. If several fit in a phase, the longest is taken; among equals, the one that starts first.
    None where ``LATTE_SCHEDULE=0``.

    Args:
        graph: of the net.
        seeded: names of ensembles whose gradient the user sets.
        left: name of a chain and phase → why its recipe leaves that phase apart.
        read: reads a recipe's file.
        frozen: the programs of the net, where something is frozen.

    Raises:
        RecipeError: a recipe file cannot be read, or declares another chain than its name.
    """
    if not settings().schedule:
        return Chains((), {})
    found: list[Chain] = []
    notes: dict[str, list[str]] = {}
    taken: set[tuple[str, str]] = set()
    decided: set[str] = set()
    left = left or {}
    for members, file in _candidates(graph, left, read):
        recipe = as_frozen(file.recipe, members, frozen)
        name, joined = chain_name(members), joined_phases(recipe)
        if name in decided:  # by a file; phases that it does not name, or leaves, stay apart
            continue
        if (unused := _unused(graph, members, file)) is not None:  # as if there were no file
            for member in members:
                notes.setdefault(member.name, []).append(f"the recipe of {name} is not used: {unused}")
            continue
        decided.add(name)
        free = {phase for phase in joined if not any((phase, member.name) in taken for member in members)}
        why = {phase: left[name, phase] for phase in free if (name, phase) in left}
        reason = _apart(graph, members, seeded, file) or _forked(members, found)
        if reason is not None:
            for member in members if file.recipe.path is not None else ():
                notes.setdefault(member.name, []).append(f"not compiled as {name}: {reason}")
            continue
        for phase, told in sorted(why.items()):
            for member in members:
                note = f"{phase} is not compiled as {name}: {told}"
                notes.setdefault(member.name, []).append(note)
        free &= joined_phases(recipe, why)
        if free:
            found.append(Chain(members, recipe, frozenset(free)))
            taken |= {(phase, member.name) for phase in free for member in members}
    return Chains(tuple(found), {ensemble: tuple(reasons) for ensemble, reasons in notes.items()})


def _candidates(
    graph: Graph, left: Mapping[tuple[str, str], str], read: Reader
) -> Iterator[tuple[tuple[Ensemble, ...], ChainRecipe]]:
    """Neighbours for which there is a recipe, longest first; after those of files, those of the default schedule."""
    paths = sorted(neighbours(graph), key=len, reverse=True)
    for find in (partial(chain_file, read=read), partial(default_chain, left=left)):
        for members in paths:
            file = find(graph, members)
            if file is not None:
                yield members, file


def joined_phases(recipe: Recipe, left: Collection[str] = ()) -> set[str]:
    """The phases that a recipe for a chain schedules, without those that it has left apart. Inference follows forward
    if it has no function; wherever ``backward`` is, the updates are too, for ``fuse_layers("backward", "update")``."""
    phases = set(recipe.functions) - set(left)
    for phase, other in (("forward", "inference"), ("backward", "update")):
        phases |= {other} if phase in phases else set()
    return phases


def neighbours(graph: Graph) -> list[tuple[Ensemble, ...]]:
    """Every path of at least two layers along the connections, those that start first before others. A path ends after
    a layer that several read, with one of these readers: no chain goes further."""
    return [path for start in graph.order() if not isinstance(start, DataEnsemble) for path in _paths(graph, start)]


def _paths(graph: Graph, start: Ensemble) -> Iterator[tuple[Ensemble, ...]]:
    """The paths of at least two layers from ``start``."""
    pending: list[tuple[Ensemble, ...]] = [(start,)]
    while pending:
        path = pending.pop()
        if len(path) > 1:
            yield path
        read_once = all(len(graph.readers(member)) == 1 for member in path[:-1])
        if len(path) < LONGEST and read_once:
            sinks = {id(edge.sink): edge.sink for edge in graph.readers(path[-1]) if not edge.is_label}
            pending += [(*path, sink) for sink in sinks.values()]


def possible_names(graph: Graph) -> set[str]:
    """The names that recipes for chains of this net may have: by kinds, and by the layers' own names."""
    paths = neighbours(graph)
    return {"_".join(e.kind for e in path) for path in paths} | {chain_name(path) for path in paths}


def recipe_name(graph: Graph, layers: Ensemble | str | Sequence[Ensemble | str]) -> str:
    """The key under which a recipe that a user names for these layers is kept; see :meth:`latte.net.Net.use_recipe`.

    Raises:
        CommandError: there is no such ensemble, kind or chain.
    """
    asked = [layers] if isinstance(layers, (str, Ensemble)) else layers
    if not isinstance(asked, (list, tuple)) or not asked or not all(isinstance(e, (str, Ensemble)) for e in asked):
        raise CommandError(
            f"use_recipe is for a layer, a kind or a list of layers, not for {layers!r}",
            location=user_location(),
            way_out='net.use_recipe(conv1, path), or "conv"',
        )
    names = [normalised(one) if isinstance(one, str) else one.name for one in asked]
    name, known = "_".join(names), {name for e in graph.ensembles for name in (e.name, e.kind)}
    if name in known or name in possible_names(graph):
        return name
    if len(names) > 1:
        raise CommandError(
            f"{', '.join(names)} is not a chain of neighbours: each layer reads the one before it",
            location=user_location(),
            way_out="name them from the source to the reader",
        )
    way_out = f"{nearest(name, known)}there are {', '.join(sorted(known))}, and chains of neighbours"
    raise CommandError(f"no ensemble or kind named {name!r}", location=user_location(), way_out=way_out)


def use_recipe(
    graph: Graph, layers: Ensemble | str | Sequence[Ensemble | str], path: str | PathLike[str] | None
) -> None:
    """Choose a recipe file for layers, a kind or a chain; see :meth:`latte.net.Net.use_recipe`.

    Raises:
        CommandError: the net is compiled already, has no such ensemble, kind or chain, or it is not a path.
    """
    if graph.settings.compiled:
        raise CommandError(
            "use_recipe: the net is compiled already",
            location=user_location(),
            way_out="call it before net.compile()",
        )
    if not isinstance(path, (str, PathLike, NoneType)):
        raise CommandError(
            f"the path of a recipe is a string or a Path, not {path!r}",
            location=user_location(),
            way_out="None is the default schedule",
        )
    graph.recipes[recipe_name(graph, layers)] = None if path is None else Path(path)


def _apart(graph: Graph, members: Sequence[Ensemble], seeded: frozenset[str], file: ChainRecipe) -> str | None:
    """Why the layers are not compiled together, or None."""
    if chain_name(members) in {ensemble.name for ensemble in graph.ensembles}:
        return "another layer has this name"
    if any(key in graph.recipes and graph.recipes[key] is None for key in chain_keys(members)):
        return "these layers are to have no recipe together"
    for source, sink in pairwise(members):
        others = [edge.sink.name for edge in graph.readers(source) if edge.sink is not sink]
        if others:
            return f"{others[0]} reads {source.name} too"
        if len(graph.readers(source)) > 1:
            return f"{sink.name} reads {source.name} twice"
        if graph.is_kept(source):
            return f"{source.name} is kept (net.keep)"
        if source.name in seeded:
            return f"the gradient of {source.name} is set (set_grad)"
    for member in members:
        if member.commands:
            return f"{member.name} has commands of its own"
        if not has_none(graph, member) and choice_for(graph, member) > file.choice:
            return f"{member.name} has a recipe of its own"
    return None


def _unused(graph: Graph, members: Sequence[Ensemble], file: ChainRecipe) -> str | None:
    """Why a file is not for these layers, or None: one of them is to have no recipe, and nobody has named this one."""
    if file.recipe.path is None or file.choice >= Choice.NET:
        return None
    return next((f"{member.name} is to have no recipe" for member in members if has_none(graph, member)), None)


def _forked(members: Sequence[Ensemble], found: Sequence[Chain]) -> str | None:
    """Why the layers would not be a path together with those of chains that are found, or None: there is one order of
    execution, in which a layer follows one source, in whatever phases."""
    before = {sink.name: (source, chain) for chain in found for source, sink in pairwise(chain.members)}
    for source, sink in pairwise(members):
        other, chain = before.get(sink.name, (source, None))
        if chain is not None and other is not source:
            return f"{sink.name} is compiled with {other.name} in {', '.join(sorted(chain.phases))}"
    return None


def chained_order(graph: Graph, chains: Sequence[Chain]) -> list[Ensemble]:
    """All ensembles in the order of execution, the members of each chain next to each other."""
    groups: dict[int, tuple[Ensemble, ...]] = {id(e): (e,) for e in graph.ensembles}
    position = {id(e): index for index, e in enumerate(graph.order())}
    for chain in chains:  # those of different phases may overlap, and are a path together
        union = {id(e): e for member in chain.members for e in groups[id(member)]}
        merged = tuple(sorted(union.values(), key=lambda e: position[id(e)]))
        groups |= dict.fromkeys(union, merged)

    def place(group: tuple[Ensemble, ...]) -> int:
        return position[id(group[-1])]

    sources: dict[int, list[int]] = {place(group): [] for group in groups.values()}
    for edge in graph.connections:
        source, sink = place(groups[id(edge.source)]), place(groups[id(edge.sink)])
        if source != sink:
            sources[sink].append(source)
    by_place = {place(group): group for group in groups.values()}
    return [member for first in first_possible(sources) for member in by_place[first]]
