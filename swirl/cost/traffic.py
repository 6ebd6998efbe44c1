"""The bytes that come into a cache while a nest runs.

The cache holds what an iteration touches of the outermost loop whose iterations fit; of everything that all iterations
of that loop touch, each byte comes in once: the footprints of TTiLE, and section II-D of Georganas et al., *Anatomy of
high-performance deep learning convolutions on SIMD architectures*, SC 2018. Cache lines and associativity are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swirl.analysis.work import Touched, Work, iterations_touch, loop_works
from swirl.ir.buffers import Buffer
from swirl.ir.hints import streamed
from swirl.ir.names import stored_in
from swirl.ir.nest import Nest
from swirl.ir.paths import Path, loops, walk


def streamed_buffers(nest: Nest) -> set[str]:
    """The buffers that a nest stores past the caches."""
    stores = [s for _, s in walk(nest.body) if isinstance(s, ast.Assign) and streamed(s.value) is not None]
    return set(stored_in(stores))


def traffic_bytes(touched: Sequence[Touched], bypassing: set[str]) -> int:
    """Bytes that come in, and go out again: what is written is read before, unless it passes the caches."""
    return sum(each.bytes * (2 if each.written and each.buffer not in bypassing else 1) for each in touched)


@dataclass(frozen=True)
class LoopFootprint:
    """A loop: what it does, and what one iteration touches."""

    work: Work
    iteration: Sequence[Touched]


def loop_footprints(nest: Nest, buffers: Mapping[str, Buffer]) -> dict[Path, LoopFootprint]:
    """The loops of a nest."""
    paths = [path for path, _ in loops(nest.body)]
    every = zip(paths, loop_works(nest, buffers), iterations_touch(nest, buffers), strict=True)
    return {path: LoopFootprint(work, iteration) for path, work, iteration in every}


def bytes_into_cache(footprints: Mapping[Path, LoopFootprint], bypassing: set[str], size: int) -> int:
    """Bytes that come into a cache of that size, which does not hold all that a nest touches."""

    def inner_loops(path: Path) -> list[Path]:
        """The loops in the loop at a path with none between."""
        inside = [p for p in footprints if p[: len(path)] == path and p != path]
        return [p for p in inside if not any(p[: len(q)] == q and p != q for q in inside)]

    def bytes_of_loop(path: Path) -> int:
        work, inner = footprints[path].work, inner_loops(path)
        if not inner or sum(touched.bytes for touched in footprints[path].iteration) <= size:
            return work.executions * traffic_bytes(work.touched, bypassing)
        inside = {touched.buffer for p in inner for touched in footprints[p].work.touched}
        outside = [touched for touched in work.touched if touched.buffer not in inside]
        return work.executions * traffic_bytes(outside, bypassing) + sum(map(bytes_of_loop, inner))

    return sum(map(bytes_of_loop, inner_loops(())))
