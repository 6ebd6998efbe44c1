"""What a loop nest asks of a processor, by a simple model: the instructions that it issues, the bytes that come into
each cache, and how long a machine of known rates needs for that.

Instructions are counted in the finished nest, whose tiles and vectors are spelled out. Each multiply-add is one, also
where lanes are masked; another operation is as many as could be issued in its time. A load is counted once for the
statements of a block, and outside of the loops that its subscripts do not move with: registers keep it.

A cache holds what an iteration touches of the outermost loop whose iterations fit; of everything that all iterations of
that loop touch, each byte comes into the cache once. The model of Georganas et al. (*Anatomy of high-performance deep
learning convolutions on SIMD architectures*, SC 2018, sections II-B and II-D) and of TTiLE's *footprints* in short: no
associativity, no lines, no prefetches, no latencies; the caches of several cores count as one, and conditions on data
as true. What it leaves out is what a measurement beside it shows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from swirl.ir.affine import ranges_at
from swirl.ir.buffers import Buffer
from swirl.ir.hints import streamed
from swirl.ir.names import apart, stored_in
from swirl.ir.nest import Loop, Nest, Program, loop_of, names_in, subscripts
from swirl.ir.paths import Path, at, loops, walk
from swirl.ir.points import Domain
from swirl.ir.printing import unparse
from swirl.ir.trees import children, nodes
from swirl.ir.work import (
    NO_ARITHMETIC,
    Leaf,
    Touched,
    Work,
    floats_of,
    is_float,
    iterations_touch,
    leaves_of,
    loop_works,
    operations_of,
    program_work,
)
from swirl.loop_facts import NEAR
from swirl.target import Target
from swirl.transforms.rewrites.strides import memory_stride

SLOTS: Mapping[str, int] = {
    "sqrt": 10,
    "exp": 11,
    "expm1": 13,
    "tanh": 14,
    "erf": 16,
    "floor": 1,
    "max": 1,
    "min": 1,
    "abs": 1,
}
"""Multiply-adds that could be issued in the time of a function of a whole vector, as measured on Zen 5."""
DIVISION, OTHER = 10, 20
"""The same of a division, and of any other function: a call of libmvec."""


@dataclass(frozen=True)
class Rates:
    """What a machine can do at the best, all threads together; see :class:`swirl.measure.Limits`.

    Args:
        peak: floating-point operations a second, multiply-adds counting two.
        level2, level3, memory: bytes a second that are read from the level-2 caches, from the level-3 cache, and from
            memory.
    """

    peak: float
    level2: float
    level3: float
    memory: float


@dataclass(frozen=True)
class Demand:
    """What one run of a loop nest asks for.

    Args:
        multiply_adds: of whole vectors, or operations that take as long.
        loads, stores: vectors and broadcasts that are loaded, vectors that are stored.
        lanes: share of the vectors' lanes whose operations are wanted; where there are none, whose elements are.
        level1, level2: bytes that come into these caches, as if all threads had one: what several of them read comes
            into each, and counts once.
        memory: bytes that are touched, each counted once; what is written counts twice, unless it passes the caches.
        shares: iterations that threads share; 1 where one thread does all, 0 where their number is not known.
    """

    multiply_adds: int
    loads: int
    stores: int
    lanes: float
    level1: int
    level2: int
    memory: int
    shares: int

    @property
    def products_a_load(self) -> float:
        """Multiply-adds for each load."""
        return self.multiply_adds / self.loads if self.loads else 0.0

    def parts(self, rates: Rates, target: Target, threads: int, held: int) -> dict[str, float]:
        """Seconds that each part takes alone.

        Args:
            rates: of the machine with that many threads.
            target: what the nest is made for: two vectors are multiplied and added, or loaded, in the time that one is
                stored.
            threads: that run it.
            held: bytes of the level-3 cache: what is not larger comes from there, not from memory.
        """
        uneven = (
            threads if self.shares == 1 else -(-self.shares // threads) * threads / self.shares if self.shares else 1
        )
        issued = rates.peak / (2 * target.simd_width)
        from_memory = self.memory if self.memory > held else 0
        again = max(0, self.level2 - self.memory) if from_memory else self.level2
        seconds = {
            "multiply-adds": self.multiply_adds / issued,
            "loads": self.loads / issued,
            "stores": 2 * self.stores / issued,
            "level 2": self.level1 / rates.level2,
            "memory" if from_memory else "level 3": from_memory / rates.memory + again / rates.level3,
        }
        own = ("multiply-adds", "loads", "stores", "level 2")  # the others are of all cores together
        return {part: time * (uneven if part in own else 1) for part, time in seconds.items()}


def demand(program: Program, target: Target) -> Demand:
    """What a finished program asks for: of one that :func:`swirl.ir.separate.separate` has taken apart, a loop nest."""
    nests = [apart(nest) for nest in program.nests]
    found = [_issued(nest, program.buffers, _lanes_of(nest, program.buffers, target)) for nest in nests]
    whole = program_work(program)
    past = {name for nest in nests for name in _streamed(nest)}
    inside = [_loop_bytes(nest, program.buffers) for nest in nests]
    least = _bytes(whole.touched, past)

    def into(size: int) -> int:
        return least if whole.bytes <= size else max(least, sum(_into(each, past, size) for each in inside))

    return Demand(
        multiply_adds=sum(each.multiply_adds for each in found),
        loads=sum(each.loads for each in found),
        stores=sum(each.stores for each in found),
        lanes=_share([each.computed for each in found]) or _share([each.stored for each in found]) or 1.0,
        level1=into(target.l1_bytes),
        level2=into(target.l2_bytes),
        memory=least,
        shares=_shares(nests),
    )


# --- instructions ---------------------------------------------------------------------------------------------
_Lanes = tuple[int, int]
"""Lanes whose results are wanted, and all those of the vectors."""


def _share(found: Sequence[_Lanes]) -> float:
    """That of the wanted ones; 0 where there are no vectors."""
    wanted, every = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
    return wanted / every if every else 0.0


@dataclass(frozen=True)
class _Issued:
    """Instructions of a nest; the lanes of its operations, and those of its stores."""

    multiply_adds: int
    loads: int
    stores: int
    computed: _Lanes
    stored: _Lanes


def _lanes_of(nest: Nest, buffers: Mapping[str, Buffer], target: Target) -> int:
    """Elements of a vector: half as many where some are of double precision."""
    double = "float64" in nest.text or any(buffers[name].dtype == "float64" for name in nest.arguments)
    return target.simd_width // 2 if double else target.simd_width


def _issued(nest: Nest, buffers: Mapping[str, Buffer], lanes: int) -> _Issued:
    floats = floats_of(nest, buffers)
    products = stores = 0
    computed, stored = (0, 0), (0, 0)
    loads: dict[_Block, int] = {}
    for leaf in leaves_of(nest):
        place = _Place(nest, buffers, leaf, lanes)
        products += _slots(leaf.node, floats) * place.executions
        computed = place.with_lanes(computed, operations_of(leaf.node, floats))
        for reference, kind in _references(leaf.node, buffers):
            if kind != "load":
                stores += place.iterations * place.vectors_of(reference)
                stored = place.with_lanes(stored, 1)
            if kind != "store":
                block, times = place.loaded(reference)
                loads[block] = times * place.vectors_of(reference)
    return _Issued(products, sum(loads.values()), stores, computed, stored)


def _slots(node: ast.AST, floats: set[str]) -> int:
    """The multiply-adds that could be issued in the time of a statement's arithmetic."""
    inside = sum(_slots(child, floats) for child in children(node))
    match node:
        case ast.Subscript() | ast.Expr():
            return 0  # addresses are computed beside; a prefetch is no arithmetic
        case ast.AugAssign(target, op, value) if is_float(target, floats):
            return inside + _sum(op, [value])
        case ast.BinOp(left, op, right) if is_float(node, floats):
            return inside + _sum(op, [left, right])
        case ast.Call(ast.Name(name), arguments) if name not in NO_ARITHMETIC:
            return inside + SLOTS.get(name, OTHER) * max(1, len(arguments) - 1)
        case ast.Compare(left, _, others) if any(is_float(side, floats) for side in (left, *others)):
            return inside + 1
        case ast.IfExp() if is_float(node, floats):
            return inside + 1
    return inside


def _sum(op: ast.operator, operands: Sequence[ast.expr]) -> int:
    """An operation whose operands have been counted: a sum with a product is one multiply-add with it."""
    if isinstance(op, ast.Div):
        return DIVISION
    joined = isinstance(op, (ast.Add, ast.Sub)) and any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in operands
    )
    return 0 if joined else 1


def _references(node: ast.AST, buffers: Mapping[str, Buffer]) -> Iterator[tuple[ast.Subscript, str]]:
    """The elements of buffers that a statement uses, each with ``load``, ``store`` or, where it adds, ``both``."""
    for part in nodes(node):
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id in buffers:
            stored = "both" if isinstance(node, ast.AugAssign) else "store"
            yield part, stored if isinstance(part.ctx, ast.Store) else "load"


_Block = tuple[Path, str]
"""The statements for which an element is loaded once, and the element."""


@dataclass(frozen=True)
class _Place:
    """A statement in its loops."""

    nest: Nest
    buffers: Mapping[str, Buffer]
    leaf: Leaf
    lanes: int

    @cached_property
    def around(self) -> list[tuple[int, Loop]]:
        """The loops without those over lanes, each with the length of its path; outermost first."""
        found = [(depth, at(self.nest.body, self.leaf.path[:depth])) for depth in range(1, len(self.leaf.path))]
        every = [(depth, loop_of(node)) for depth, node in found if isinstance(node, ast.For)]
        return [(depth, loop) for depth, loop in every if loop.kind != "vector"]

    @cached_property
    def vectors(self) -> list[Loop]:
        """The loops over lanes."""
        return [loop for loop in self.leaf.domain.loops if loop.kind == "vector"]

    @cached_property
    def iterations(self) -> int:
        """Of all loops but those over lanes."""
        return self._times([loop for _, loop in self.around])

    @cached_property
    def executions(self) -> int:
        """How often the statement is issued: once for each vector."""
        return self.iterations * prod(-(-(loop.extent or self.lanes) // self.lanes) for loop in self.vectors)

    def with_lanes(self, found: _Lanes, results: int) -> _Lanes:
        """Lanes, and those of so many results of the statement."""
        wanted, every = found
        return wanted + results * self.leaf.domain.count[0], every + results * self.executions * self.lanes

    def vectors_of(self, reference: ast.Subscript) -> int:
        """Instructions for an element in all lanes: one where it is the same in all, or where they are neighbours; a
        few where they are near each other; otherwise one for each lane."""
        return prod(self._pieces(reference, loop) for loop in self.vectors if loop.var in _used(reference))

    def _pieces(self, reference: ast.Subscript, loop: Loop) -> int:
        assert isinstance(reference.value, ast.Name)
        ranges = ranges_at(self.nest.body, self.leaf.path)
        stride = memory_stride(self.buffers[reference.value.id], subscripts(reference), loop.var, ranges)
        extent = loop.extent or self.lanes
        return extent if stride is None or abs(stride) > NEAR else max(1, abs(stride)) * -(-extent // self.lanes)

    def loaded(self, reference: ast.Subscript) -> tuple[_Block, int]:
        """The block in which an element is loaded, and how often: not for each copy and each iteration of inner loops
        that it does not move with, unless its buffer is stored there."""
        assert isinstance(reference.value, ast.Name)
        used, buffer = _used(reference), reference.value.id
        kept = [(depth, loop) for depth, loop in self.around if loop.kind != "unrolled" or loop.var in used]
        while kept and kept[-1][1].kind == "range" and kept[-1][1].var not in used:
            if buffer in stored_in([at(self.nest.body, self.leaf.path[: kept[-1][0]])]):
                break
            kept.pop()
        depth = max((depth for depth, loop in kept if loop.kind != "unrolled"), default=0)
        return (self.leaf.path[:depth], unparse(reference)), self._times([loop for _, loop in kept])

    def _times(self, loops: Sequence[Loop]) -> int:
        """Iterations of some of the loops; of all of them, where the bounds of these depend on the others."""
        some = Domain(tuple(loops), self.leaf.domain.conditions)
        return (some if some.boxes is not None else self.leaf.domain).count[0]


def _used(reference: ast.Subscript) -> set[str]:
    return {name for index in subscripts(reference) for name in names_in(index)}


def _shares(nests: Sequence[Nest]) -> int:
    """Iterations that the threads share in the nest that has fewest."""
    return min((_shared(nest.body) for nest in nests), default=1)


def _shared(body: Sequence[ast.stmt]) -> int:
    """Those of the parallel loops that are directly in each other; 1 without such loops, 0 where the number is not
    constant."""
    found = next((node for _, node in loops(list(body)) if loop_of(node).kind == "parallel"), None)
    if found is None:
        return 1
    extent = loop_of(found).extent or 0
    directly = len(found.body) == 1 and isinstance(found.body[0], ast.For) and loop_of(found.body[0]).kind == "parallel"
    return extent * _shared(found.body) if directly else extent


# --- bytes ----------------------------------------------------------------------------------------------------
def _streamed(nest: Nest) -> set[str]:
    """The buffers that a nest stores past the caches."""
    stores = [s for _, s in walk(nest.body) if isinstance(s, ast.Assign) and streamed(s.value) is not None]
    return set(stored_in(stores))


def _bytes(touched: Sequence[Touched], past: set[str]) -> int:
    """Bytes that come in, and go out again: what is written is read before, unless it passes the caches."""
    return sum(each.bytes * (2 if each.written and each.buffer not in past else 1) for each in touched)


@dataclass(frozen=True)
class _LoopBytes:
    """A loop: what it does, and what one iteration touches."""

    work: Work
    iteration: Sequence[Touched]


def _loop_bytes(nest: Nest, buffers: Mapping[str, Buffer]) -> dict[Path, _LoopBytes]:
    """The loops of a nest."""
    paths = [path for path, _ in loops(nest.body)]
    every = zip(paths, loop_works(nest, buffers), iterations_touch(nest, buffers), strict=True)
    return {path: _LoopBytes(work, iteration) for path, work, iteration in every}


def _into(found: Mapping[Path, _LoopBytes], past: set[str], size: int) -> int:
    """Bytes that come into a cache of that size, which does not hold all that a nest touches."""

    def below(path: Path) -> list[Path]:
        """The loops in the loop at a path with none between."""
        inside = [p for p in found if p[: len(path)] == path and p != path]
        return [p for p in inside if not any(p[: len(q)] == q and p != q for q in inside)]

    def of(path: Path) -> int:
        work, inner = found[path].work, below(path)
        if not inner or sum(touched.bytes for touched in found[path].iteration) <= size:
            return work.executions * _bytes(work.touched, past)
        inside = {touched.buffer for p in inner for touched in found[p].work.touched}
        alone = [touched for touched in work.touched if touched.buffer not in inside]
        return work.executions * _bytes(alone, past) + sum(map(of, inner))

    return sum(map(of, below(())))
