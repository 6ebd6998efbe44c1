"""What is known at one point of a nest while it is translated to C++: names, types, storage and ranges."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from swirl.analysis.congruence import Congruence, congruence
from swirl.codegen.storage import Storage
from swirl.errors import LatteError
from swirl.ir.affine import affine, bounds, simplify
from swirl.ir.buffers import Buffer
from swirl.ir.nest import subscripts
from swirl.ir.operations import CALLS, COMPARISONS, LIBRARY
from swirl.ir.printing import unparse
from swirl.ir.spelling import in_ascii
from swirl.ir.trees import names_in

C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "bool": "bool"}

# Words that generated code must not use as names of variables: C++'s own, and what it calls.
_RESERVED_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
    compl const constexpr const_cast continue decltype default delete do double dynamic_cast else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new noexcept
    not not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw true
    try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    linux unix math_errhandling main std buffers
    power floor_divide floor_modulo random_uniform negate
    first_lanes lane_numbers lane shift_lanes load_bool store_bool gather scatter gather_bool
    scatter_bool load_strided store_strided store_first interleaved load_turned stream_lanes philox in_order load_again
    truncated wrapped_sum wrapped_difference wrapped_product plain_sum plain_difference
"""
FROM_CMATH = frozenset({name + end for name in LIBRARY.values() for end in ("", "f")} | {"INFINITY", "NAN"})
"""What generated code needs ``<cmath>`` for."""
_RESERVED = frozenset(
    {
        *_RESERVED_WORDS.split(),
        *FROM_CMATH,
        *(known.helper for known in CALLS.values() if known.helper),
    }
)
_OF_HEADERS = re.compile("_mm|__|_ZGV|_kn|_CMP|M_|[A-Z][A-Z0-9_]{2}")
"""How names of the compiler's headers begin: intrinsics, and macros as ``M_PI``, ``HUGE_VAL``, ``NULL``."""


class Unsupported(LatteError):
    """The construct named cannot be translated to C++ for this target."""

    def __init__(self, message: str, node: ast.AST | None = None, way_out: str | None = None):
        if node is not None:
            message = f"{message}: {unparse(node)}"
        super().__init__(message, way_out=way_out)


@dataclass(frozen=True)
class Local:
    """A local of the nest, or a loop variable, and the C++ variables that hold it.

    Attributes:
        dtype: element type.
        storage: ``scalar`` (one variable), ``elements`` (a named variable for each element of an array),
            ``registers`` (an array whose last dimension is held in vector registers), ``memory`` (a C++
            array), ``lanes`` (declared in a vector loop: one value for each lane, one register for each chunk),
            ``lane_memory`` (the same, in a C++ array).
        names: index of the element (the chunk last, for registers) → C++ name; scalars and arrays use ``()``.
        shape: extents of an array.
        depth: number of conditions around the declaration, for values of lanes.
        lane: the vector loop's variable, for ``lane_memory``.
        same_lanes: see :class:`swirl.codegen.storage.Storage`, for ``registers``.
    """

    dtype: str
    storage: str
    names: Mapping[tuple[int, ...], str]
    shape: tuple[int, ...] = ()
    depth: int = 0
    lane: str = ""
    same_lanes: bool = False

    @property
    def name(self) -> str:
        return self.names[()]


@dataclass
class Context:
    """The state of one emission. ``block`` opens a C++ block; what it adds is forgotten at its end.

    Attributes:
        buffers: name in the nests → buffer, physical.
        vector_width: lanes of a register; 0 on the portable target.
        contract: whether a product and a sum become one fused multiply-add.
        registers: how many there are for vectors; 0 on the portable target.
        ranges: least and greatest value of each loop variable; unrolled ones have a single value.
        grids: the residue of each loop variable modulo its step.
        unrolled: the values of the unrolled loops' variables, outermost first.
        locals: name in the nest → where it is held.
        taken: C++ names in use.
        storage: ``id`` of each declaration of a local array → where it is held.
        tails: number of lanes as text → the mask of that many, declared in this block.
    """

    buffers: Mapping[str, Buffer]
    vector_width: int
    contract: bool
    registers: int
    names: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    grids: dict[str, Congruence] = field(default_factory=dict)
    unrolled: dict[str, int] = field(default_factory=dict)
    locals: dict[str, Local] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    storage: dict[int, Storage] = field(default_factory=dict)
    tails: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.buffers:
            self.names[name] = self.fresh(name)

    @contextmanager
    def block(self) -> Iterator[None]:
        """A C++ block: names and locals made inside are free again afterwards."""
        with self.scope():
            taken, tails = self.taken, self.tails
            self.taken, self.tails = set(taken), dict(tails)
            yield
            self.taken, self.tails = taken, tails

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block of the nest that is not a C++ block (a copy of an unrolled body): its names stay in use."""
        saved = self.locals, self.ranges, self.grids, self.unrolled
        self.locals, self.ranges, self.unrolled = dict(self.locals), dict(self.ranges), dict(self.unrolled)
        self.grids = dict(self.grids)
        yield
        self.locals, self.ranges, self.grids, self.unrolled = saved

    def fresh(self, base: str) -> str:
        """``base`` as a C++ name that is not in use here."""
        base = in_ascii(base)
        if base in _RESERVED or _OF_HEADERS.match(base):
            base = f"{base.lstrip('_')}_"
        name, count = base, 0
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def suffix(self) -> str:
        """The suffix that distinguishes names in copies of an unrolled body: ``_3_1``."""
        return "".join(f"_{value}" if value >= 0 else f"_m{-value}" for value in self.unrolled.values())

    def index(self, node: ast.expr) -> ast.expr:
        """An integer expression with the values of unrolled variables put in, simplified."""
        return simplify(node, self.ranges, fix=True)

    def limits(self, node: ast.expr, **lanes: tuple[int, int]) -> tuple[int, int] | None:
        """Least and greatest value of an integer expression; None where unknown."""
        return bounds(node, {**self.ranges, **lanes})

    def alignment(self, node: ast.Subscript) -> int:
        """The greatest number of elements that certainly divides an element's distance from the array's start; 0
        for the start itself."""
        assert isinstance(node.value, ast.Name)
        distance, stride = Congruence(0, 0), 1
        for index, extent in zip(reversed(subscripts(node)), reversed(self.shape_of(node.value.id)), strict=True):
            distance = distance.plus(congruence(index, self.grids, self.ranges).times(stride))
            stride *= extent
        return distance.divisor

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The extents of a buffer or of a local array."""
        if name in self.locals:
            return self.locals[name].shape
        return self.buffers[name].shape

    def dtype_of(self, name: str) -> str:
        """The element type of a buffer or a local."""
        if name in self.locals:
            return self.locals[name].dtype
        return self.buffers[name].dtype

    def truth(self, node: ast.expr) -> bool | None:
        """The value of a condition on loop variables where it is known here; else None."""
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            decisive = isinstance(node.op, ast.Or)
            parts = [self.truth(part) for part in node.values]
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and self.is_loop_arithmetic(node):
            left = affine(node.left, self.ranges, fix=True)
            right = affine(node.comparators[0], self.ranges, fix=True)
            if left is not None and right is not None:
                difference = bounds(left.add(right, -1), self.ranges)
                return None if difference is None else COMPARISONS[type(node.ops[0])].decided(*difference)
        return None

    def undecided(self, node: ast.BoolOp) -> list[ast.expr]:
        """The parts of ``and``, ``or`` that are not decided here; a constant where the others decide."""
        known = self.truth(node)
        if known is not None:
            return [ast.Constant(known)]
        return [part for part in node.values if self.truth(part) is None]

    def is_loop_arithmetic(self, node: ast.expr) -> bool:
        """Whether an expression is of loop variables and constants alone."""
        names = names_in(node) - {"min", "max"}
        return names <= set(self.ranges)
