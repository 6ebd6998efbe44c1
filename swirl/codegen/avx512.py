"""AVX-512 (F, BW, DQ, VL): sixteen lanes, masks with one bit for each lane."""

from __future__ import annotations

from collections.abc import Collection

from swirl.codegen.ctree_compat import (
    Expression,
    FunctionCall,
    Literal,
    TernaryOp,
    binary,
    call,
    constant,
    symbol,
)
from swirl.codegen.intrinsics import SUFFIXES, Instructions

_PREDICATES = {"<": "LT_OQ", "<=": "LE_OQ", ">": "GT_OQ", ">=": "GE_OQ", "==": "EQ_OQ", "!=": "NEQ_UQ"}
_INTEGER_PREDICATES = {
    "<": "cmplt",
    "<=": "cmple",
    ">": "cmpgt",
    ">=": "cmpge",
    "==": "cmpeq",
    "!=": "cmpneq",
}


class Avx512(Instructions):
    """Masked forms of every load and store; conditions live in mask registers."""

    width = 16
    prefix = "_mm512"
    register = "__m512"
    mask_type = "__mmask16"
    vector_library = "eN16"

    def bitwise(self, name: str, left: Expression, right: Expression) -> Expression:
        return self.op(name, "int32", left, right)

    def from_mask(self, mask: Expression, dtype: str) -> Expression:
        if dtype == "int32":
            return call("_mm512_maskz_set1_epi32", mask, constant(1, dtype))
        return call("_mm512_maskz_mov_ps", mask, self.broadcast(constant(1, dtype), dtype))

    def load(self, address: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("load_bool", address, *([mask] if mask is not None else []))
        if mask is None:
            return self.op("loadu", dtype, address)
        return self.op("maskz_loadu", dtype, mask, address)

    def store(self, address: Expression, value: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("store_bool", address, value, *([mask] if mask is not None else []))
        if mask is None:
            return self.op("storeu", dtype, address, value)
        return self.op("mask_storeu", dtype, address, mask, value)

    def gather(self, base: Expression, index: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("gather_bool", base, index, *([mask] if mask is not None else []))
        if mask is None:
            return self.op("i32gather", dtype, index, base, constant(4, "int32"))
        zero = self.broadcast(constant(0, dtype), dtype)
        return self.op("mask_i32gather", dtype, zero, mask, index, base, constant(4, "int32"))

    def scatter(
        self, base: Expression, index: Expression, value: Expression, dtype: str, mask: Expression | None
    ) -> Expression:
        if dtype == "bool":
            return call("scatter_bool", base, index, value, *([mask] if mask is not None else []))
        if mask is None:
            return self.op("i32scatter", dtype, base, index, value, constant(4, "int32"))
        return self.op("mask_i32scatter", dtype, base, mask, index, value, constant(4, "int32"))

    def compare(self, operator: str, left: Expression, right: Expression, dtype: str) -> Expression:
        if dtype == "int32":
            return call(f"_mm512_{_INTEGER_PREDICATES[operator]}_epi32_mask", left, right)
        return call("_mm512_cmp_ps_mask", left, right, symbol(f"_CMP_{_PREDICATES[operator]}"))

    def select(self, mask: Expression, then: Expression, otherwise: Expression, dtype: str) -> Expression:
        if dtype == "bool":
            return binary("|", binary("&", mask, then), call("_kandn_mask16", mask, otherwise))
        return call(f"_mm512_mask_blend_{SUFFIXES[dtype]}", mask, otherwise, then)

    def merged(self, mask: Expression, new: Expression, old: Expression, dtype: str) -> Expression:
        """As above; the masked form of the instruction itself, which gcc does not find for ``fmadd``."""
        if isinstance(new, FunctionCall):
            suffix = SUFFIXES.get(dtype)
            name, args = new.func.name, new.args
            if self.adds_product(new, old):
                return call("_mm512_mask3_fmadd_ps", *args, mask)
            if name in {f"_mm512_{operation}_{suffix}" for operation in ("add", "sub", "mul", "div")}:
                operation = name.removeprefix("_mm512_")
                return call(f"_mm512_mask_{operation}", old, mask, *args)
        return self.select(mask, new, old, dtype)

    def constant_mask(self, lanes: Collection[int]) -> Expression:
        return Literal(f"0x{sum(1 << lane for lane in lanes):04x}")

    def first_lanes(self, count: Expression | int) -> Expression:
        if isinstance(count, int):
            return self.constant_mask(range(min(count, 16)))
        return call("first_lanes", count)

    def mask_op(self, operator: str, left: Expression, right: Expression) -> Expression:
        return binary(operator, left, right)

    def mask_not(self, mask: Expression, within: Expression | None) -> Expression:
        return call("_knot_mask16", mask) if within is None else call("_kandn_mask16", mask, within)

    def broadcast_mask(self, condition: Expression) -> Expression:
        return TernaryOp(condition, Literal("0xffff"), Literal("0x0000"))
