"""Data that a scheme moves into each cache: Ioopt's model, evaluated numerically (thesis, section 5.4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from swirl.cost.time import Rates
from swirl.target.targets import Target
from swirl.tune.problem import Problem
from swirl.tune.ttile.schemes import LambdaSeq, Level, Scheme, ULambda

FLOAT = 4
"""Bytes of an element."""


@dataclass(frozen=True)
class Cache:
    """A level of the memory hierarchy.

    Args:
        elements: that it holds.
        rate: elements a second that come into it.
    """

    elements: int
    rate: float


def caches_of(target: Target, rates: Rates, level3_bytes: int) -> tuple[Cache, ...]:
    """The caches of a machine, the first level first; without a level-3 cache there are two."""
    found = [Cache(target.l1_bytes // FLOAT, rates.level2 / FLOAT)]
    if not level3_bytes:
        return (*found, Cache(target.l2_bytes // FLOAT, rates.memory / FLOAT))
    found.append(Cache(target.l2_bytes // FLOAT, rates.level3 / FLOAT))
    return (*found, Cache(level3_bytes // FLOAT, rates.memory / FLOAT))


@dataclass(frozen=True)
class Suffix:
    """The inner part of a scheme, from one of its atoms on.

    Args:
        place: of the atom.
        sizes: of its tile, by dimension.
        iterations: of the loops around it. Where the scheme has combinations, as often as one of their parts runs.
    """

    place: int
    sizes: Mapping[str, int]
    iterations: float


def suffixes(scheme: Scheme, problem: Problem) -> Iterator[list[Suffix]]:
    """The suffixes of a scheme, the shortest first; for each choice of parts of its combinations.

    Raises:
        CommandError: it is not a scheme of the problem.
    """
    levels = scheme.levels(problem.extents, problem.lanes)
    parts = {
        level.atom.dimension: level.atom.parts
        for own in levels.values()
        for level in own
        if isinstance(level.atom, LambdaSeq)
    }
    for chosen in product(*(range(len(each)) for each in parts.values())):
        yield list(_suffixes(levels, parts, dict(zip(parts, chosen, strict=True)), problem))


def _suffixes(
    levels: Mapping[str, Sequence[Level]],
    parts: Mapping[str, Sequence[tuple[int, int]]],
    chosen: Mapping[str, int],
    problem: Problem,
) -> Iterator[Suffix]:
    own = [(level.place, dimension, level) for dimension, each in levels.items() for level in each]
    steps: list[tuple[int, str, int, float]] = []
    for place, dimension, level in sorted(own, key=lambda each: each[0], reverse=True):
        part = chosen.get(dimension, 0)
        size = level.size[min(part, len(level.size) - 1)]
        if isinstance(level.atom, LambdaSeq):
            times = float(parts[dimension][part][0])
        elif isinstance(level.atom, ULambda):
            times = float(parts[dimension][part][1])
        else:
            times = size / level.inner[min(part, len(level.inner) - 1)]
        steps.append((place, dimension, size, times))
    sizes = dict.fromkeys(problem.extents, 1)
    around = prod(times for *_, times in steps)
    places = sorted({place for place, *_ in steps}, reverse=True)
    for place in places:
        for other, dimension, size, times in steps:
            if other == place:
                sizes[dimension], around = size, around / times
                part = chosen.get(dimension, -1)
                if part >= 0 and isinstance(_atom(levels[dimension], place), LambdaSeq):
                    # From here on the parts are one tile: each has its share of it.
                    around *= times * _part_size(levels[dimension], part) / size
        yield Suffix(place, dict(sizes), around)


def _atom(levels: Sequence[Level], place: int) -> object:
    return next(level.atom for level in levels if level.place == place)


def _part_size(levels: Sequence[Level], part: int) -> int:
    return next(level for level in levels if isinstance(level.atom, LambdaSeq)).inner[part]


def movement(scheme: Scheme, problem: Problem, elements: int) -> float:
    """Elements that come into a cache: the footprint of the shortest suffix that overflows it, each time that it runs;
    that of all tensors, where none does.

    Args:
        scheme: of the problem.
        problem: the contraction.
        elements: that the cache holds.

    Raises:
        CommandError: it is not a scheme of the problem.
    """
    total = 0.0
    for every in suffixes(scheme, problem):
        found = next((each for each in every if problem.footprint(each.sizes) > elements), every[-1])
        total += problem.footprint(found.sizes) * found.iterations
    return total


def metric(scheme: Scheme, problem: Problem, caches: Sequence[Cache]) -> float:
    """Seconds that all movements take, one after the other: the thesis' measure for ranking schemes.

    Raises:
        CommandError: it is not a scheme of the problem.
    """
    return sum(movement(scheme, problem, cache.elements) / cache.rate for cache in caches)
