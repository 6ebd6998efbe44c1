"""A tree search for tiles above a micro-kernel, cache by cache (thesis, section 5.4.4, figures 5.9 and 5.10).

From a kernel outwards, one tensor *grows* until it fills half of a cache: only dimensions that move it are tiled. Then
loops along the other dimensions *reuse* it, until the tile overflows the cache. There nodes are compared by what they
move into this cache, and the best ones go on to the next one. The thesis' search has no answer where a tensor is
smaller than half of a cache, or all of a problem fits: here, growing ends where nothing is left that fits, and the turn
of a cache ends where nothing is left to be reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swirl.tune.problem import Problem
from swirl.tune.ttile.metric import Cache, metric
from swirl.tune.ttile.schemes import Scheme
from swirl.tune.ttile.tiles import Above, Kernel, scheme_of

BRANCHES = 8
"""Nodes that go on from a cache to the next one."""
WIDTH = 100
"""Nodes of one depth that are expanded for a cache, at the most: those that would move least into one of their size.
The thesis expands all of them; above a convolution there are millions."""


@dataclass(frozen=True)
class _Node:
    """The inner part of a scheme.

    Args:
        kernel: of it.
        tiles: dimension and size of each, from the innermost one outwards.
        sizes: of what is inside, by dimension that is left to be tiled.
    """

    kernel: Kernel
    tiles: tuple[tuple[str, int], ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class _Context:
    """What has been done for a cache.

    Args:
        grows: whether a tensor grows.
        dimensions: that were tiled in this phase.
        used: that were tiled for this cache.
    """

    grows: bool = True
    dimensions: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


def tree_search(
    problem: Problem, kernels: Sequence[Kernel], caches: Sequence[Cache], branches: int = BRANCHES
) -> list[Scheme]:
    """Schemes, those with the least metric first, none twice.

    Args:
        problem: the contraction.
        kernels: above which tiles are searched; each has branches of its own.
        caches: of the machine, the first level first.
        branches: nodes of each kernel that go on from a cache to the next one.
    """
    found: dict[Scheme, float] = {}
    for kernel in kernels:
        above = Above.of(problem, kernel)
        nodes = [_Node(kernel, (), above.begun())]
        for cache in caches:
            reached = {each.tiles: each for node in nodes for each in _expanded(problem, above, node, cache.elements)}
            nodes = sorted(reached.values(), key=lambda node: _moved(problem, above, node))[:branches]
        for node in nodes:
            scheme = scheme_of(problem, kernel, _completed(above, node))
            found[scheme] = metric(scheme, problem, caches)
    return sorted(found, key=lambda scheme: (found[scheme], str(scheme)))


def _footprint(problem: Problem, above: Above, sizes: Mapping[str, int]) -> int:
    return problem.footprint({**above.inner, **{d: max(1, size) for d, size in sizes.items()}})


def _moved(problem: Problem, above: Above, node: _Node) -> float:
    """Elements that come into a cache that a node overflows."""
    around = 1.0
    for dimension, size in node.sizes.items():
        around *= above.outer[dimension] / (size or above.inner[dimension])
    return _footprint(problem, above, node.sizes) * around


def _expanded(problem: Problem, above: Above, root: _Node, elements: int) -> Iterator[_Node]:
    """The nodes at which the tile overflows a cache, or where nothing is left to be done for it (``expand_rec``), depth
    by depth."""
    depth = [(root, _Context())]
    while depth:
        below: list[tuple[_Node, _Context]] = []
        for node, context in depth:
            if not context.grows and _footprint(problem, above, node.sizes) > elements:
                yield node
                continue
            children = list(_children(problem, above, node, context, elements))
            if not children and context.grows:
                context = replace(context, grows=False)
                children = list(_children(problem, above, node, context, elements))
            if not children:
                yield node
            below += children
        depth = below if len(below) <= WIDTH else sorted(below, key=lambda e: _moved(problem, above, e[0]))[:WIDTH]


def _children(
    problem: Problem, above: Above, node: _Node, context: _Context, elements: int
) -> Iterator[tuple[_Node, _Context]]:
    """A node with one more tile: along a dimension that moves a tensor which all tiles of this phase moved, as long
    as all fits the cache; or, once it has grown, along one that does not move it."""
    grown = [each for each in problem.tensors if context.dimensions <= each.dimensions]
    moving = frozenset(dimension for each in grown for dimension in each.dimensions)
    last = node.tiles[-1][0] if node.tiles else ""
    for dimension, size in above.choices(node.sizes, last):
        if dimension in context.used or (dimension in moving) != context.grows:
            continue
        after = _Node(node.kernel, (*node.tiles, (dimension, size)), {**node.sizes, dimension: size})
        footprint = _footprint(problem, above, after.sizes)
        if not context.grows:
            yield after, replace(context, used=context.used | {dimension})
        elif footprint <= elements:
            grows = footprint <= elements // 2
            yield after, _Context(grows, context.dimensions | {dimension}, context.used | {dimension})


def _completed(above: Above, node: _Node) -> tuple[tuple[str, int], ...]:
    """The tiles of a node, and those that are left, each as large as it can be."""
    tiles, sizes = list(node.tiles), dict(node.sizes)
    last = tiles[-1][0] if tiles else ""
    while choices := above.choices(sizes, last):
        last, size = max(choices, key=lambda each: (each[1] == above.outer[each[0]], -list(above.outer).index(each[0])))
        sizes[last] = size
        tiles.append((last, size))
    return tuple(tiles)
