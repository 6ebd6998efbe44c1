"""The bytes that come into a cache while a nest runs.

The cache holds what an iteration touches of the outermost loop whose iterations fit; of everything that all iterations
of that loop touch, each byte comes in once: the footprints of TTiLE, and section II-D of Georganas et al., *Anatomy of
high-performance deep learning convolutions on SIMD architectures*, SC 2018. Cache lines and associativity are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from swirl.analysis.footprints import Footprint
from swirl.analysis.loop_tree import facts, loop_tree
from swirl.ir.buffers import Buffer
from swirl.ir.hints import streamed
from swirl.ir.names import stored_in
from swirl.ir.nest import Nest
from swirl.ir.paths import Path, walk


def streamed_buffers(nest: Nest) -> set[str]:
    """The buffers that a nest stores past the caches."""
    stores = [s for _, s in walk(nest.body) if isinstance(s, ast.Assign) and streamed(s.value) is not None]
    return set(stored_in(stores))


def traffic_bytes(touched: Iterable[Footprint], bypassing: set[str]) -> int:
    """Bytes that come in, and go out again: what is written is read before, unless it passes the caches."""
    return sum(each.bytes * (2 if each.written and each.name not in bypassing else 1) for each in touched)


def bytes_into_cache(nest: Nest, buffers: Mapping[str, Buffer], bypassing: set[str], size: int) -> int:
    """Bytes that come into a cache of that size, which does not hold all that a nest touches; a name has one meaning in
    the nest (:func:`swirl.ir.names.with_distinct_names`)."""
    tree, loops = loop_tree(nest), {loop.path: loop for loop in facts(nest, buffers)}

    def bytes_of_loop(path: Path) -> int:
        loop, inner = loops[path], tree.directly_inside(path)
        if not inner or sum(each.bytes for each in loop.in_one_iteration) <= size:
            return loop.executions * traffic_bytes(loop.in_all_iterations, bypassing)
        inside = {each.name for p in inner for each in loops[p].in_all_iterations}
        outside = [each for each in loop.in_all_iterations if each.name not in inside]
        return loop.executions * traffic_bytes(outside, bypassing) + sum(map(bytes_of_loop, inner))

    return sum(map(bytes_of_loop, tree.directly_inside()))
