"""AVX2 with FMA: eight lanes, masks are integer registers with all bits of a lane set or clear."""

from __future__ import annotations

from collections.abc import Collection

from swirl.codegen.ctree_compat import (
    Constant,
    Expression,
    FunctionCall,
    NamedCast,
    Op,
    UnaryOp,
    call,
    constant,
    symbol,
)
from swirl.codegen.intrinsics import Instructions, pointer

_PREDICATES = {"<": "LT_OQ", "<=": "LE_OQ", ">": "GT_OQ", ">=": "GE_OQ", "==": "EQ_OQ", "!=": "NEQ_UQ"}


def _to_float(register: Expression) -> Expression:
    return call("_mm256_castsi256_ps", register)


def _zero_outside(value: Expression, mask: Expression) -> Expression:
    """Lanes of which those that a mask lacks are 0.0."""
    return value if _is_zero_outside(value, mask) else call("_mm256_and_ps", value, _to_float(mask))


def _minus_zero_outside(value: Expression, mask: Expression) -> Expression:
    """Lanes of which those that a mask lacks are -0.0."""
    signs = call("_mm256_set1_ps", constant(-0.0, "float32"))
    return call("_mm256_or_ps", _zero_outside(value, mask), call("_mm256_andnot_ps", _to_float(mask), signs))


def _is_zero_outside(value: Expression, mask: Expression) -> bool:
    return isinstance(value, FunctionCall) and value.func.name == "_mm256_maskload_ps" and value.args[1] is mask


def _constant_first(mask: Expression) -> int | None:
    """How many lanes a mask has, if those are the first ones, and their number is constant."""
    if isinstance(mask, FunctionCall) and mask.func.name == "first_lanes" and isinstance(mask.args[0], Constant):
        return int(mask.args[0].value)
    return None


class Avx2(Instructions):
    """Scatters and everything about bool arrays go through small functions: the instructions are missing."""

    width = 8
    prefix = "_mm256"
    register = "__m256"
    mask_type = "__m256i"
    vector_library = "dN8"

    def bitwise(self, name: str, left: Expression, right: Expression) -> Expression:
        return call(f"_mm256_{name}_si256", left, right)

    def from_mask(self, mask: Expression, dtype: str) -> Expression:
        one = self.broadcast(constant(1, dtype), dtype)
        if dtype == "int32":
            return self.bitwise("and", mask, one)
        return call("_mm256_and_ps", _to_float(mask), one)

    def load(self, address: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("load_bool", address, *([mask] if mask is not None else []))
        if mask is not None:
            return self.op("maskload", dtype, address, mask)
        if dtype == "int32":
            return call("_mm256_loadu_si256", pointer("const __m256i", address))
        return self.op("loadu", dtype, address)

    def store(self, address: Expression, value: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("store_bool", address, value, *([mask] if mask is not None else []))
        if mask is not None:
            first = _constant_first(mask)
            if first is not None:  # some processors take ten times as long for a store with a mask
                return call(f"store_first<{first}>", address, value)
            return self.op("maskstore", dtype, address, mask, value)
        if dtype == "int32":
            return call("_mm256_storeu_si256", pointer("__m256i", address), value)
        return self.op("storeu", dtype, address, value)

    def gather(self, base: Expression, index: Expression, dtype: str, mask: Expression | None) -> Expression:
        if dtype == "bool":
            return call("gather_bool", base, index, *([mask] if mask is not None else []))
        if mask is None:
            return self.op("i32gather", dtype, base, index, constant(4, "int32"))
        zero = self.broadcast(constant(0, dtype), dtype)
        lanes = _to_float(mask) if dtype == "float32" else mask
        return self.op("mask_i32gather", dtype, zero, base, index, lanes, constant(4, "int32"))

    def scatter(
        self, base: Expression, index: Expression, value: Expression, dtype: str, mask: Expression | None
    ) -> Expression:
        name = "scatter_bool" if dtype == "bool" else "scatter"
        return call(name, base, index, value, *([mask] if mask is not None else []))

    def compare(self, operator: str, left: Expression, right: Expression, dtype: str) -> Expression:
        if dtype == "float32":
            mask = call("_mm256_cmp_ps", left, right, symbol(f"_CMP_{_PREDICATES[operator]}"))
            return call("_mm256_castps_si256", mask)
        if operator in ("==", "!="):
            mask = call("_mm256_cmpeq_epi32", left, right)
        elif operator in (">", "<="):
            mask = call("_mm256_cmpgt_epi32", left, right)
        else:
            mask = call("_mm256_cmpgt_epi32", right, left)
        return self.mask_not(mask, None) if operator in ("!=", "<=", ">=") else mask

    def select(self, mask: Expression, then: Expression, otherwise: Expression, dtype: str) -> Expression:
        if dtype == "float32":
            return call("_mm256_blendv_ps", otherwise, then, _to_float(mask))
        return call("_mm256_blendv_epi8", otherwise, then, mask)

    def merged(self, mask: Expression, new: Expression, old: Expression, dtype: str) -> Expression:
        """As above; a sum adds -0.0 to the lanes that the mask lacks, which changes no number: a blend waits for it."""
        if isinstance(new, FunctionCall):
            name, args = new.func.name, new.args
            if self.adds_product(new, old):
                return call(name, _zero_outside(args[0], mask), _minus_zero_outside(args[1], mask), old)
            if name == "_mm256_add_ps" and getattr(args[0], "name", "") == old.name:
                return call(name, old, _minus_zero_outside(args[1], mask))
        return self.select(mask, new, old, dtype)

    def constant_mask(self, lanes: Collection[int]) -> Expression:
        return call("_mm256_setr_epi32", *(constant(-(lane in lanes), "int32") for lane in range(self.width)))

    def first_lanes(self, count: Expression | int) -> Expression:
        return call("first_lanes", constant(count, "int32") if isinstance(count, int) else count)

    def mask_op(self, operator: str, left: Expression, right: Expression) -> Expression:
        return self.bitwise("and" if operator == "&" else "or", left, right)

    def mask_not(self, mask: Expression, within: Expression | None) -> Expression:
        everything = call("_mm256_set1_epi32", constant(-1, "int32"))
        return call("_mm256_andnot_si256", mask, everything if within is None else within)

    def broadcast_mask(self, condition: Expression) -> Expression:
        return call("_mm256_set1_epi32", UnaryOp(Op.SubUnary(), NamedCast("int", condition)))
