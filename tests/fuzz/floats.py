"""The second oracle: programs executed in NumPy's types, NaN, infinities, -0, denormals and huge values among the data.

The original program, executed in the types that it declares, is the truth. A command that keeps the order of arithmetic
keeps every bit (NaN equals NaN). The commands of :data:`REORDER` may take the terms of a sum, a product or an extremum
in another order, those of :data:`EXPAND` may expand products, and ``hoist`` may divide by a multiplication: after them
each element lies within the bound of :mod:`tests.fuzz.bounded`. Where a command assumes finite numbers
(:data:`ASSUME_FINITE`), there are no others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from swirl.analysis.accesses import reduction_extremum
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, references
from swirl.ir.nest import subscripts as subscripts_of
from swirl.ir.paths import walk
from swirl.ir.printing import unparse
from tests.fuzz.bounded import Undecided, bounded, outside

REORDER = frozenset(
    {
        "vectorize",
        "unroll",
        "unroll_and_jam",
        "privatize",
        "partial_sums",
        "interchange",
        "reorder",
        "reverse",
        "reindex",
        "distribute",
        "fuse",
        "fuse_layers",
        "canonicalise",
    }
)
"""Commands after which accumulations (``+=``, ``-=``, ``*=``, ``max``, ``min``) may take another order."""
EXPAND = frozenset({"factor", "moments", "shift_mean"})
"""Commands that use the laws of real numbers."""
ZEROS = " with zeros"
"""The suffix of the name of ``pack`` with this option."""
ASSUME_FINITE = EXPAND | {"set_padding", f"pack{ZEROS}", "locate"}
"""Commands whose data are finite here, as ``docs/ir.md`` says of them; ``locate`` may leave a zero's sign as it was."""

SLACK = 2.0
"""A factor on the first-order bound, for its terms of higher order."""
EXPANDED = 16.0
"""The same where products are expanded, and sums are shifted: the operands may be several times as great."""

Arrays = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator, tuple[int, ...], str], np.ndarray]


# --- data -----------------------------------------------------------------------------------------------
def _plain(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Full mantissas."""
    return generator.normal(size=shape)


def _whole(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small numbers whose sums are exact."""
    return generator.integers(-12, 13, shape) / 4


def _specials(dtype: str, infinite: bool) -> list[float]:
    form = np.finfo(dtype)
    least, normal, greatest = map(float, (form.smallest_subnormal, form.tiny, form.max))
    ends = [least, -5 * least, normal / 3, greatest, -greatest, greatest**0.5, 2.0**24 + 2]
    finite = [0.0, -0.0, -0.0, 1.0, -1.0, *ends]
    return [*finite, np.nan, np.nan, np.nan, np.inf, -np.inf] if infinite else finite


def _among(draw: Draw, share: float, infinite: bool = True) -> Draw:
    """A share of the elements are special values."""

    def drawn(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        values = draw(generator, shape, dtype)
        chosen = generator.choice(np.array(_specials(dtype, infinite)), shape)
        return np.where(generator.random(shape) < share, chosen, values)

    return drawn


def _infinities(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small numbers, a few NaN, infinities and zeros: nothing overflows, so that no order matters."""
    values = _whole(generator, shape, dtype)
    chosen = generator.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]), shape)
    return np.where(generator.random(shape) < 0.04, chosen, values)


def _zeros(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros of both signs, and numbers that make a difference beside them."""
    return generator.choice(np.array([0.0, -0.0, 0.0, -0.0, 1.0, np.nan, np.inf]), shape)


STYLES: dict[str, Draw] = {
    "zeros": _zeros,
    "special": _among(_plain, 0.25),
    "few special": _among(_plain, 0.03),
    "infinities": _infinities,
    "huge": _among(_plain, 0.1, infinite=False),
    "plain": _plain,
    "whole": _whole,
}
EVERY_BIT = ("special", "few special", "zeros", "special", "infinities", "huge")
"""The styles of data where every bit is compared."""
ANY_ORDER = ("infinities", "plain", "whole", "few special", "infinities")
"""The first style of data where the order is free; other data where these leave a condition open."""
FINITE = ("whole", "plain")

INTEGERS = (0, 1, -1, 2, 3, -7, 2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**25 + 3, 2**31 - 1, -(2**31), 715827883)
"""Values of int32, around the ends of a float's mantissa and of their own."""


def data(buffers: Mapping[str, Buffer], seed: int, style: str, subscripts: Mapping[str, int] = {}) -> Arrays:
    """Contents of buffers.

    Args:
        style: one of :data:`STYLES`.
        subscripts: arrays of subscripts, and the bound below which they stay.
    """
    generator = np.random.default_rng(seed)
    result = {}
    for name, buffer in sorted(buffers.items()):
        if name in subscripts:
            values = generator.integers(0, subscripts[name], buffer.shape)
        elif buffer.dtype == "bool":
            values = generator.random(buffer.shape) < 0.5
        elif buffer.dtype == "int32":
            values = generator.integers(-20, 21, buffer.shape)
            if style not in FINITE:
                chosen = generator.choice(np.array(INTEGERS), buffer.shape)
                values = np.where(generator.random(buffer.shape) < 0.4, chosen, values)
        else:
            values = STYLES[style](generator, buffer.shape, buffer.dtype)
        with np.errstate(all="ignore"):
            result[name] = values.astype(DTYPES[buffer.dtype])
    return result


# --- which commands keep every bit ----------------------------------------------------------------------
def accumulates(program: Program) -> bool:
    """Whether something is accumulated in floating point, or may be."""
    nodes = [node for nest in program.nests for _, node in walk(nest.body)]
    return any(
        isinstance(node, ast.AugAssign) or isinstance(node, ast.Assign) and reduction_extremum(node) is not None
        for node in nodes
    )


def reciprocals(program: Program) -> int:
    """How often 1 is divided by something."""
    return len(re.findall(r"\b1\.0 / ", program.text))


def keeps_bits(name: str, before: Program, after: Program) -> bool:
    """Whether a command that made ``after`` of ``before`` must have kept every bit."""
    if name in ASSUME_FINITE or reciprocals(after) > reciprocals(before):
        return False
    return name not in REORDER or not (accumulates(before) or accumulates(after))


# --- comparing ------------------------------------------------------------------------------------------
State = tuple[str, Program]
"""A command's name ("" before the first) and the program after it."""


def floating_problem(states: Sequence[State], seed: int = 0) -> tuple[str | None, str]:
    """What is wrong in floating point with a program under commands, and how it was found out.

    Args:
        states: the program as it was made, and after each command.
        seed: of the data.

    Returns:
        where two of them differ, or None; and ``every bit``, ``any order`` (the last program keeps within the bound),
        ``undecided`` (data that decide all conditions were not found; each command that keeps bits was compared), or
        ``none`` (an array of subscripts that cannot be filled).
    """
    before, after = states[0][1], states[-1][1]
    limits = subscripts(before)
    if limits is None:
        return None, "none"
    given = data(touched(before), seed, EVERY_BIT[seed % len(EVERY_BIT)], limits)
    runs = keeping_bits(states)
    checked = executed(after, given, checking=True, seed=seed)
    for first, last in runs:
        result = checked if last[1] is after else executed(last[1], given)
        problem = bits(result, executed(first[1], given), before) if first[1] is not last[1] else None
        if problem is not None:
            return f"between {first[0] or 'the start'} and {last[0]}, {problem}", "every bit"
    if len(runs) == 1:
        return None, "every bit"
    names = {name for name, _ in states}
    return in_any_order(before, after, seed, expands=bool(names & EXPAND), finite=bool(names & ASSUME_FINITE))


def in_any_order(
    before: Program, after: Program, seed: int, expands: bool = False, finite: bool = False
) -> tuple[str | None, str]:
    """Where a program that may add in another order is not within the bound; ``any order`` or ``undecided``.

    Args:
        expands: products may have been expanded; then data are finite, too.
        finite: data are finite, and nothing is claimed of elements that are not.
    """
    limits = subscripts(before) or {}
    styles = FINITE if expands or finite else ANY_ORDER
    for turn in range(3):
        given = data(touched(before), seed, styles[(seed + turn) % len(styles)], limits)
        with suppress(Undecided):
            bound = bounded(before, given)
            got = executed(after, given, checking=True, seed=seed)
            return within(got, bound, before, expands, finite or expands), "any order"
    return None, "undecided"


def touched(program: Program) -> dict[str, Buffer]:
    """The buffers that the nests name."""
    names = {name for nest in program.nests for name in nest.arguments}
    return {name: buffer for name, buffer in program.buffers.items() if name in names}


def keeping_bits(states: Sequence[State]) -> list[tuple[State, State]]:
    """First and last states of the longest runs of commands that must keep every bit."""
    runs = [(states[0], states[0])]
    for state in states[1:]:
        first, last = runs[-1]
        if keeps_bits(state[0], last[1], state[1]):
            runs[-1] = first, state
        else:
            runs.append((state, state))
    return runs


def subscripts(program: Program) -> dict[str, int] | None:
    """Arrays whose elements are subscripts, and the bound below which they must stay; None where they are used in
    arithmetic, or for a local array."""
    limits: dict[str, int] = {}
    for reference in (r for nest in program.nests for s in nest.body for r in references(s)):
        shape = program.buffers[name].shape if (name := unparse(reference.value)) in program.buffers else ()
        for dim, index in enumerate(subscripts_of(reference)):
            inner = [unparse(r.value) for r in references(index)]
            if inner and not (shape and isinstance(index, ast.Subscript)):
                return None
            for other in inner[:1]:
                limits[other] = min(limits.get(other, shape[dim]), shape[dim])
    return limits


def executed(program: Program, given: Arrays, **options: Any) -> Arrays:
    """The results of a program on copies of arrays."""
    copies = {name: array.copy() for name, array in given.items()}
    # flatten lets a program see the same memory with another shape
    views = {
        name: copy.reshape(program.buffers[name].shape) if name in program.buffers else copy
        for name, copy in copies.items()
    }
    execute(program, views, arithmetic="typed", **options)
    return copies


def different(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Which elements differ in a bit; all NaN are alike."""
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    integers = {4: np.uint32, 8: np.uint64, 1: np.uint8}[got.dtype.itemsize]
    return (got.view(integers) != expected.view(integers)) & ~((got != got) & (expected != expected))


def seen(program: Program) -> list[str]:
    """The buffers whose contents count."""
    return [name for name, buffer in program.buffers.items() if buffer.role != "temporary"]


def bits(got: Arrays, expected: Arrays, before: Program) -> str | None:
    """Where arrays differ in a bit."""
    for name in seen(before):
        unlike = different(got[name], expected[name]) if name in expected else np.zeros(1, bool)
        if unlike.any():
            where = tuple(int(i) for i in np.argwhere(unlike)[0])
            return f"{name}{list(where)} is {got[name][where]!r}, was {expected[name][where]!r}"
    return None


def within(
    got: Arrays, bound: Mapping[str, np.ndarray], before: Program, expands: bool = False, finite: bool = False
) -> str | None:
    """Where arrays have a value that no order of the arithmetic leads to."""
    slack = EXPANDED if expands else SLACK
    for name in seen(before):
        where = outside(got[name], bound[name], slack, expands, finite) if name in bound else None
        if where is not None:
            return f"{name}{list(where)} is {got[name][where]!r}, in any order {bound[name][where]!r}"
    return None
