"""Which neighbouring layers are compiled together: recipes for chains, matched phase by phase, longest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING

from latte.model.ensemble import DataEnsemble, Ensemble
from latte.planning.recipes_of import ChainFile, Reader, chain_file, choice_for
from swirl.recipe import Recipe
from swirl.recipe_files import read_recipe

if TYPE_CHECKING:
    from latte.net import Net

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


def chain_name(members: Sequence[Ensemble]) -> str:
    """``conv1_relu1``."""
    return "_".join(member.name for member in members)


def find_chains(net: Net, seeded: frozenset[str] = frozenset(),
                left: Mapping[tuple[str, str], str] | None = None, read: Reader = read_recipe) -> Chains:  # fmt: skip
    """The chains of a net. Of several that fit in a phase the longest is taken, of equals the one that starts first.

    Args:
        net: the net.
        seeded: names of ensembles whose gradient the user sets.
        left: name of a chain and phase → why its recipe leaves that phase apart.
        read: reads a recipe's file.

    Raises:
        RecipeError: a recipe file cannot be read, or declares another chain than its name.
    """
    found: list[Chain] = []
    notes: dict[str, list[str]] = {}
    taken: set[tuple[str, str]] = set()
    left = left or {}
    for members in sorted(neighbours(net), key=len, reverse=True):
        file = chain_file(net, members, read)
        if file is None:
            continue
        name, joined = chain_name(members), joined_phases(file.recipe)
        free = {phase for phase in joined if not any((phase, member.name) in taken for member in members)}
        why = {phase: left[name, phase] for phase in free if (name, phase) in left}
        reason = _apart(net, members, seeded, file)
        if reason is not None:
            for member in members:
                notes.setdefault(member.name, []).append(f"not compiled as {name}: {reason}")
            continue
        for phase, told in sorted(why.items()):
            for member in members:
                note = f"{phase} is not compiled as {name}: {told}"
                notes.setdefault(member.name, []).append(note)
        free &= joined_phases(file.recipe, why)
        if free:
            found.append(Chain(members, file.recipe, frozenset(free)))
            taken |= {(phase, member.name) for phase in free for member in members}
    return Chains(tuple(found), {ensemble: tuple(reasons) for ensemble, reasons in notes.items()})


def joined_phases(recipe: Recipe, left: Collection[str] = ()) -> set[str]:
    """The phases that a recipe for a chain schedules, without those that it has left apart. Inference follows forward
    where it has no function; the updates are there for ``fuse_layers("backward", "update")`` wherever ``backward``
    is."""
    phases = set(recipe.functions) - set(left)
    for phase, other in (("forward", "inference"), ("backward", "update")):
        phases |= {other} if phase in phases else set()
    return phases


def neighbours(net: Net) -> list[tuple[Ensemble, ...]]:
    """Every path of at least two layers along the connections, those that start first before others."""
    return [path for start in net.order() if not isinstance(start, DataEnsemble) for path in _paths(net, start)]


def _paths(net: Net, start: Ensemble) -> Iterator[tuple[Ensemble, ...]]:
    """Every path of at least two layers along the connections from ``start``."""
    pending: list[tuple[Ensemble, ...]] = [(start,)]
    while pending:
        path = pending.pop()
        if len(path) > 1:
            yield path
        if len(path) < LONGEST:
            sinks = {id(edge.sink): edge.sink for edge in net.readers(path[-1]) if not edge.is_label}
            pending += [(*path, sink) for sink in sinks.values()]


def possible_names(net: Net) -> set[str]:
    """The names that recipes for chains of this net may have: by kinds, and by the layers' own names."""
    paths = neighbours(net)
    return {"_".join(e.kind for e in path) for path in paths} | {chain_name(path) for path in paths}


def _apart(net: Net, members: Sequence[Ensemble], seeded: frozenset[str], file: ChainFile) -> str | None:
    """Why the layers are not compiled together, or None."""
    if chain_name(members) in {ensemble.name for ensemble in net.ensembles}:
        return "another layer has this name"
    for source, sink in pairwise(members):
        others = [edge.sink.name for edge in net.readers(source) if edge.sink is not sink]
        if others:
            return f"{others[0]} reads {source.name} too"
        if len(net.readers(source)) > 1:
            return f"{sink.name} reads {source.name} twice"
        if net.is_kept(source):
            return f"{source.name} is kept (net.keep)"
        if source.name in seeded:
            return f"the gradient of {source.name} is set (set_grad)"
    for member in members:
        if member.commands:
            return f"{member.name} has commands of its own"
        if choice_for(net, member) > file.choice:
            return f"{member.name} has a recipe of its own"
    return None


def chained_order(net: Net, chains: Sequence[Chain]) -> list[Ensemble]:
    """All ensembles in the order of execution, the members of each chain next to each other."""
    groups: dict[int, tuple[Ensemble, ...]] = {id(e): (e,) for e in net.ensembles}
    position = {id(e): index for index, e in enumerate(net.order())}
    for chain in chains:  # those of different phases may overlap: together they are a path again
        union = {id(e): e for member in chain.members for e in groups[id(member)]}
        merged = tuple(sorted(union.values(), key=lambda e: position[id(e)]))
        groups |= dict.fromkeys(union, merged)

    def place(group: tuple[Ensemble, ...]) -> int:
        return position[id(group[-1])]

    graph: dict[int, set[int]] = {place(group): set() for group in groups.values()}
    for edge in net.connections:
        source, sink = place(groups[id(edge.source)]), place(groups[id(edge.sink)])
        if source != sink:
            graph[sink].add(source)
    by_place = {place(group): group for group in groups.values()}
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    ready: list[int] = []
    order: list[Ensemble] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        first = ready.pop(0)
        order += by_place[first]
        sorter.done(first)
    return order
