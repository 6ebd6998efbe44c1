"""What vector loops need from an instruction set, and what AVX2 and AVX-512 share.

Every method takes and returns C++ expressions. float32 and int32 values are registers; bool values are masks.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from swirl.codegen.context import Unsupported
from swirl.codegen.ctree_compat import Expression, FunctionCall, NamedCast, binary, call, constant
from swirl.codegen.values import Value
from swirl.ir.operations import CALLS, OPERATORS, Operator

SUFFIXES = {"float32": "ps", "int32": "epi32"}


class Instructions(ABC):
    """One instruction set."""

    width: int
    prefix: str
    register: str
    mask_type: str
    vector_library: str  # libmvec's mangling: the instruction set's letter and the number of lanes

    def type_of(self, dtype: str) -> str:
        """The C++ type of a register, or of a mask for bool."""
        types = {"float32": self.register, "int32": self.register + "i", "bool": self.mask_type}
        if dtype not in types:
            raise Unsupported(
                f"there are no vector loops over {dtype} on this target", way_out="use the portable target"
            )
        return types[dtype]

    def op(self, name: str, dtype: str, *args: Expression) -> Expression:
        """``_mm512_name_ps(args)``."""
        self.type_of(dtype)
        return call(f"{self.prefix}_{name}_{SUFFIXES[dtype]}", *args)

    def broadcast(self, value: Expression, dtype: str) -> Expression:
        return self.op("set1", dtype, value)

    def lane_numbers(self, first: int) -> Expression:
        """The lanes' own numbers, counted from ``first``."""
        return call("lane_numbers", constant(first, "int32"))

    def binary(self, operator: Operator, left: Expression, right: Expression, dtype: str) -> Expression:
        if operator is OPERATORS[ast.Mult] and dtype == "int32":
            return self.op("mullo", dtype, left, right)
        return self.op(operator.instruction, dtype, left, right)

    def floored(self, operator: Operator, left: Expression, right: Value, broadcast: Expression) -> Expression:
        """``//`` and ``%``; shifts and masks where the right side is a literal power of two."""
        number = right.literal
        if isinstance(number, int) and number > 0 and number & (number - 1) == 0:
            if operator is OPERATORS[ast.FloorDiv]:
                return self.op("srai", "int32", left, constant(number.bit_length() - 1, "int32"))
            return self.bitwise("and", left, self.broadcast(constant(number - 1, "int32"), "int32"))
        return call(operator.helper, left, broadcast)

    @abstractmethod
    def bitwise(self, name: str, left: Expression, right: Expression) -> Expression:
        """``and``, ``or``, ``xor`` of integer registers."""

    def fused(self, name: str, a: Expression, b: Expression, c: Expression) -> Expression:
        """``fmadd`` (a*b + c), ``fmsub`` (a*b - c) or ``fnmadd`` (c - a*b), rounded once."""
        return self.op(name, "float32", a, b, c)

    def extremum(self, name: str, left: Expression, right: Expression, dtype: str, plain: bool) -> Expression:
        """``min`` or ``max``; ``plain`` where ``left`` cannot be NaN: the instruction then is exactly
        ``left > right ? left : right``, and a NaN on the right passes."""
        if dtype == "int32" or plain:
            return self.op(name, dtype, left, right)
        return call(CALLS[name].helper, left, right)

    def function(self, name: str, args: list[Expression]) -> Expression:
        """A call of the closed table on float32 registers: an instruction, a helper function, or libmvec's, which by
        glibc's manual are within 4 ULP of the exact result."""
        known = CALLS[name]
        if known.helper:
            return call(known.helper, *args)
        if known.correctly_rounded:
            return self.op(name, "float32", *args)
        return call(f"_ZGV{self.vector_library}{'v' * len(args)}_{name}f", *args)

    def negate(self, value: Expression, dtype: str) -> Expression:
        """The value with the other sign, also for zeros and NaNs."""
        if dtype == "int32":
            return self.op("sub", dtype, call(f"{self.prefix}_setzero_si{self.bits}"), value)
        return call("negate", value)

    @property
    def bits(self) -> int:
        return self.width * 32

    def element(self, register: Expression, lane: int, dtype: str) -> Expression:
        """One lane as a number."""
        if dtype == "bool":
            return binary("!=", call(f"lane<{lane}>", register), constant(0, "int32"))
        if lane == 0:
            name = "cvtss_f32" if dtype == "float32" else f"cvtsi{self.bits}_si32"
            return call(f"{self.prefix}_{name}", register)
        return call(f"lane<{lane}>", register)

    def shift_lanes(self, low: Expression, high: Expression, lanes: int) -> Expression:
        """Lane ``i`` of the result is lane ``i + lanes`` of the two registers side by side."""
        return call(f"shift_lanes<{lanes}>", low, high)

    def random(self, args: list[Expression]) -> Expression:
        """``rand(seed, step, stream, index)``: numbers, and a register of indices."""
        return call("random_uniform", *args)

    # --- conversions ----------------------------------------------------------------------------------------
    def convert(self, value: Expression, dtype: str, to: str) -> Expression:
        """Registers of one type as another; floats truncate to integers, anything but zero is true."""
        if dtype == to:
            return value
        if to == "bool":
            return self.compare("!=", value, self.broadcast(constant(0, dtype), dtype), dtype)
        if dtype == "bool":
            return self.from_mask(value, to)
        if (dtype, to) == ("int32", "float32"):
            return call(f"{self.prefix}_cvtepi32_ps", value)
        if (dtype, to) == ("float32", "int32"):
            return call(f"{self.prefix}_cvttps_epi32", value)
        raise Unsupported(f"there are no vector loops over {to} on this target", way_out="use the portable target")

    @abstractmethod
    def from_mask(self, mask: Expression, dtype: str) -> Expression:
        """1 where true, 0 elsewhere."""

    # --- memory ---------------------------------------------------------------------------------------------
    @abstractmethod
    def load(self, address: Expression, dtype: str, mask: Expression | None) -> Expression:
        """Consecutive elements; those masked out are zero and not touched."""

    @abstractmethod
    def store(self, address: Expression, value: Expression, dtype: str, mask: Expression | None) -> Expression:
        """Consecutive elements; those masked out are not touched."""

    def stream(
        self, address: Expression, value: Expression, dtype: str, mask: Expression | None, aligned: bool
    ) -> Expression:
        """The same past the caches; where whole registers are not certainly ``aligned``, that is tested at run time."""
        if not aligned:
            return call("stream_lanes", address, value, *([mask] if mask is not None else []))
        if dtype == "int32":
            return call(f"{self.prefix}_stream_si{self.bits}", pointer(f"__m{self.bits}i", address), value)
        return self.op("stream", dtype, address, value)

    strides = range(2, 5)
    """The largest distance of lanes that are loaded or stored as whole registers of a row, and shuffled."""

    def load_strided(self, address: Expression, stride: int, mask: Expression | None) -> Expression:
        """Elements ``stride`` apart. None before the first lane that is not masked out, or after the last, is touched;
        what is in between may be read, and is ignored."""
        return call(f"load_strided<{stride}>", address, *([mask] if mask is not None else []))

    def store_strided(self, address: Expression, value: Expression, stride: int, mask: Expression | None) -> Expression:
        """Elements ``stride`` apart; those masked out and those in between are not touched."""
        return call(f"store_strided<{stride}>", address, value, *([mask] if mask is not None else []))

    def interleaved(self, registers: Sequence[Expression], part: int) -> Expression:
        """A register of the row ``a[0], b[0], a[1], b[1], …`` of the elements of several registers, as many as there
        are in :attr:`strides`."""
        return call(f"interleaved<{part}>", *registers)

    @abstractmethod
    def gather(self, base: Expression, index: Expression, dtype: str, mask: Expression | None) -> Expression:
        """``base[index]`` for each lane."""

    @abstractmethod
    def scatter(
        self, base: Expression, index: Expression, value: Expression, dtype: str, mask: Expression | None
    ) -> Expression:
        """``base[index] = value`` for each lane."""

    # --- masks ----------------------------------------------------------------------------------------------
    @abstractmethod
    def constant_mask(self, lanes: Collection[int]) -> Expression:
        """These lanes."""

    @abstractmethod
    def compare(self, operator: str, left: Expression, right: Expression, dtype: str) -> Expression:
        """A mask. NaN compares as in C: unequal to everything, and neither less nor greater."""

    @abstractmethod
    def select(self, mask: Expression, then: Expression, otherwise: Expression, dtype: str) -> Expression:
        """``then`` where the mask is set."""

    def merged(self, mask: Expression, new: Expression, old: Expression, dtype: str) -> Expression:
        """``new`` where the mask is set, else the ``old`` value of the variable that it is assigned to."""
        return self.select(mask, new, old, dtype)

    def adds_product(self, new: Expression, old: Expression) -> bool:
        """Whether ``new`` is a fused product added to ``old``."""
        if not isinstance(new, FunctionCall) or new.func.name != f"{self.prefix}_fmadd_ps":
            return False
        return bool(getattr(new.args[2], "name", "") == old.name)

    @abstractmethod
    def first_lanes(self, count: Expression | int) -> Expression:
        """The mask of the lanes below ``count``, which may be negative or more than the width."""

    @abstractmethod
    def mask_op(self, operator: str, left: Expression, right: Expression) -> Expression:
        """``&`` or ``|`` of masks."""

    @abstractmethod
    def mask_not(self, mask: Expression, within: Expression | None) -> Expression:
        """The lanes (of ``within``) that ``mask`` lacks."""

    @abstractmethod
    def broadcast_mask(self, condition: Expression) -> Expression:
        """All lanes or none."""


def pointer(type_name: str, address: Expression) -> Expression:
    """``(type *) address``."""
    return NamedCast(f"{type_name} *", address)
