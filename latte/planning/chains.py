"""Which neighbouring layers are compiled together: recipes for chains, matched phase by phase, longest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

from latte.autodiff.differentiated import Differentiated
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import BatchSumEnsemble, DataEnsemble
from latte.model.graph import Graph, first_possible
from latte.model.source_location import user_location
from latte.planning.default_chains import DefaultChain, default_chain
from latte.planning.frozen_recipes import as_frozen
from latte.planning.recipes import Choice, Recipes, chain_keys, chain_name
from swirl.errors import CommandError, RecipeError, nearest
from swirl.ir.spelling import normalised
from swirl.schedule.by_entries import over
from swirl.schedule.choices import check_choices
from swirl.schedule.recipe import Recipe

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
    """The chains of a net, and why layers that a recipe names are not joined (ensemble → reasons)."""

    found: tuple[Chain, ...]
    notes: Mapping[str, tuple[str, ...]]


def find_chains(
    graph: Graph,
    seeded: frozenset[str] = frozenset(),
    left: Mapping[tuple[str, str], str] | None = None,
    recipes: Recipes | None = None,
    frozen: Differentiated | None = None,
) -> Chains:
    """The chains of a net. If several fit in a phase, the longest is taken; among equals, the one that starts first.
    None where ``LATTE_SCHEDULE=0``.

    Args:
        graph: of the net.
        seeded: names of ensembles whose gradient the user sets.
        left: name of a chain and phase → why its recipe does not join that phase.
        recipes: of the net.
        frozen: the programs of the net, where something is frozen.

    Raises:
        RecipeError: a recipe file cannot be read, or declares another chain than its name.
    """
    return chosen_chains(candidates(graph, recipes or Recipes(graph, frozen), seeded), left or {}, frozen)


@dataclass(frozen=True)
class Candidate:
    """Neighbouring layers for which there is a recipe.

    Args:
        members: sources first.
        name: of the chain.
        recipe: of a file; or the default schedule of neighbours.
        unused: why the file is not used, or None.
        reason: why the layers are not compiled together, or None.
        tables: recipes of entries for them, which take precedence, the first one most.
    """

    members: tuple[Ensemble, ...]
    name: str
    recipe: Recipe | DefaultChain
    unused: str | None = None
    reason: str | None = None
    tables: Sequence[Recipe] = ()


def candidates(graph: Graph, recipes: Recipes, seeded: frozenset[str] = frozenset()) -> list[Candidate]:
    """Neighbours for which there is a recipe, longest first; after those of files, those of the default schedule.

    Args:
        graph: of the net.
        recipes: of the net.
        seeded: names of ensembles whose gradient the user sets.

    Raises:
        RecipeError: a recipe file cannot be read, or declares another chain than its name.
    """
    if not recipes.scheduled:
        return []
    paths = sorted(neighbours(graph), key=len, reverse=True)
    layers = {ensemble.name for ensemble in graph.ensembles}

    def candidate(members: tuple[Ensemble, ...], recipe: Recipe | DefaultChain, choice: Choice) -> Candidate:
        by_default = isinstance(recipe, DefaultChain)
        unused = None if by_default else _unused(recipes, members, choice)
        name = chain_name(members)
        reason = (
            "another layer has this name" if name in layers else _why_separate(graph, recipes, members, seeded, choice)
        )
        tables = recipes.tables(members) if choice < Choice.NET and unused is None else ()
        return Candidate(members, name, recipe, unused, reason, tables)

    files = [(members, recipes.of_chain(members)) for members in paths]
    found = [candidate(members, file.recipe, file.choice) for members, file in files if file is not None]
    defaults = [(members, default_chain(recipes, members)) for members in paths]
    return found + [candidate(members, each, Choice.SHIPPED) for members, each in defaults if each is not None]


def chosen_chains(
    asked: Sequence[Candidate], left: Mapping[tuple[str, str], str], frozen: Differentiated | None = None
) -> Chains:
    """Those of the candidates that are compiled together; see :func:`find_chains`."""
    found: list[Chain] = []
    notes: dict[str, list[str]] = {}
    taken: set[tuple[str, str]] = set()
    decided: set[str] = set()
    before: dict[str, tuple[str, Chain]] = {}
    for each in asked:
        if each.name in decided:  # by a file; phases that it does not name, or leaves, stay apart
            continue
        if each.unused is not None:  # as if there were no file
            _note(notes, each.members, f"the recipe of {each.name} is not used: {each.unused}")
            continue
        recipe = each.recipe.recipe(left) if isinstance(each.recipe, DefaultChain) else each.recipe
        if recipe is None:
            continue
        for table in reversed(each.tables):
            recipe = over(table, recipe)
        recipe = as_frozen(recipe, each.members, frozen)
        decided.add(each.name)
        joined = joined_phases(recipe)
        free = {phase for phase in joined if not any((phase, member.name) in taken for member in each.members)}
        reason = each.reason or _forked(each.members, before)
        if reason is not None:
            if recipe.path is not None:
                _note(notes, each.members, f"not compiled as {each.name}: {reason}")
            continue
        why = {phase: left[each.name, phase] for phase in free if (each.name, phase) in left}
        for phase, told in sorted(why.items()):
            _note(notes, each.members, f"{phase} is not compiled as {each.name}: {told}")
        free &= joined_phases(recipe, why)
        if free:
            found.append(Chain(each.members, recipe, frozenset(free)))
            before |= {sink.name: (source.name, found[-1]) for source, sink in pairwise(each.members)}
            taken |= {(phase, member.name) for phase in free for member in each.members}
    return Chains(tuple(found), {ensemble: tuple(reasons) for ensemble, reasons in notes.items()})


def _note(notes: dict[str, list[str]], members: Iterable[Ensemble], note: str) -> None:
    for member in members:
        notes.setdefault(member.name, []).append(note)


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
    graph: Graph,
    layers: Ensemble | str | Sequence[Ensemble | str],
    path: str | PathLike[str] | None,
    choices: Mapping[str, Any] | None = None,
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
    name = recipe_name(graph, layers)
    try:
        chosen = {} if choices is None else check_choices(choices)
    except RecipeError as error:
        error.location = user_location()
        raise
    if chosen and path is None:
        raise CommandError(
            "choices need a recipe, and none is given", location=user_location(), way_out="give its path"
        )
    graph.recipes[name], graph.choices[name] = None if path is None else Path(path), chosen


def _why_separate(
    graph: Graph, recipes: Recipes, members: Sequence[Ensemble], seeded: frozenset[str], choice: Choice
) -> str | None:
    """Why the layers are not compiled together, or None."""
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
        if isinstance(source, BatchSumEnsemble):
            return f"processes add {source.name} up before {sink.name} reads it"
        if source.name in seeded:
            return f"the gradient of {source.name} is set (set_grad)"
    for member in members:
        if member.commands:
            return f"{member.name} has commands of its own"
        if not recipes.has_none(member) and recipes.choice_for(member) > choice:
            return f"{member.name} has a recipe of its own"
    return None


def _unused(recipes: Recipes, members: Sequence[Ensemble], choice: Choice) -> str | None:
    """Why a file is not for these layers, or None: one of them is to have no recipe, and nobody has named this one."""
    if choice >= Choice.NET:
        return None
    return next((f"{member.name} is to have no recipe" for member in members if recipes.has_none(member)), None)


def _forked(members: Sequence[Ensemble], before: Mapping[str, tuple[str, Chain]]) -> str | None:
    """Why the layers would not be a path together with those of other chains, or None: there is one order of
    execution, in which a layer follows one source, in whatever phases.

    Args:
        members: sources first.
        before: a layer of a chain that is found → the one before it, and the chain.
    """
    for source, sink in pairwise(members):
        other, chain = before.get(sink.name, (source.name, None))
        if chain is not None and other != source.name:
            return f"{sink.name} is compiled with {other} in {', '.join(sorted(chain.phases))}"
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
