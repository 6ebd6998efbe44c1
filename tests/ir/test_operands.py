"""Computed operands of sums of products are stored once: where, and where not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from latte.frontend.operands import stored_operands
from swirl.ir.nest import Program
from tests.support import assert_same, program

SHAPES = {
    "x": (6, 5),
    "w": (4, 5),
    "mask": (4, 5),
    "g": (4,),
    "norm": (4,),
    "scale": (6,),
    "column": (5,),
    "value": (6, 4),
}
PARAMETERS = ("w", "mask", "g", "norm", "column")
PRODUCT = """
for n in range(6):
    for k in range(4):
        value[n, k] = 0.0
        {before}
        for d in range({terms}):
            {statement}
"""


def of(statement: str, before: str = "pass", terms: str = "5", around: str = "") -> Program:
    """A program with a sum over ``d``, for each item ``n`` and result ``k``."""
    made = program(around + PRODUCT.format(statement=statement, before=before, terms=terms), **SHAPES)
    buffers = {name: replace(b, role="param" if name in PARAMETERS else "value") for name, b in made.buffers.items()}
    return replace(made, buffers=buffers)


def as_temporary(before: Program, after: Program) -> Program:
    """A program whose new arrays need no contents."""
    own = {name: replace(b, role="temporary") for name, b in after.buffers.items() if name not in before.buffers}
    return after.with_buffers(**own)


def stored(before: Program) -> Program:
    """The program with stored operands, after a check that it computes the same."""
    after = stored_operands(before)
    assert_same(before, as_temporary(before, after), expands=True)
    return after


STORED = {
    "in front": ("value[n, k] += g[k] * w[k, d] / sqrt(norm[k]) * x[n, d]", "g[k] * w[k, d] / sqrt(norm[k])"),
    "in the order as written": ("value[n, k] += g[k] / norm[k] * w[k, d] * x[n, d]", "g[k] / norm[k] * w[k, d]"),
    "apart": ("value[n, k] += g[k] * x[n, d] * w[k, d] / norm[k]", "g[k] * w[k, d] / norm[k]"),
    "in brackets": ("value[n, k] += x[n, d] * (g[k] * w[k, d])", "g[k] * w[k, d]"),
    "subtracted": ("value[n, k] -= x[n, d] * w[k, d] * mask[k, d]", "w[k, d] * mask[k, d]"),
    "negated": ("value[n, k] += -(g[k] * w[k, d] * x[n, d])", "-g[k] * w[k, d]"),
    "a function": ("value[n, k] += exp(w[k, d]) * x[n, d]", "exp(w[k, d])"),
    "a select": (
        "value[n, k] += (w[k, d] if mask[k, d] > 0.0 else 0.0) * x[n, d]",
        "w[k, d] if mask[k, d] > 0.0 else 0.0",
    ),
    "a sum": ("value[n, k] += (w[k, d] + column[d]) * x[n, d]", "w[k, d] + column[d]"),
    "of the source": ("value[n, k] += (x[n, d] - scale[n]) * w[k, d]", "x[n, d] - scale[n]"),
    "a divisor": ("value[n, k] += x[n, d] / (1.0 + w[k, d] * w[k, d])", "1.0 + w[k, d] * w[k, d]"),
}


@pytest.mark.parametrize(("statement", "operand"), STORED.values(), ids=STORED)
def test_operands_that_results_share_are_stored(statement: str, operand: str) -> None:
    before = of(statement)
    after = stored(before)
    ((name, buffer),) = ((name, b) for name, b in after.buffers.items() if name not in before.buffers)
    assert f"] = {operand}\n" in after.nests[0].text + "\n"
    assert name in after.nests[1].text and f"= {operand}" not in after.nests[1].text
    assert buffer.shape == ((6, 5) if "scale" in operand else (4, 5))
    assert buffer.batch_dims == (1 if "scale" in operand else 0)


@pytest.mark.parametrize(
    ("dtypes", "is_stored"), [(("int32",), True), (("int32", "int32"), False), (("float64",), False)]
)
def test_types(dtypes: tuple[str, ...], is_stored: bool) -> None:
    """Of two integers the product may wrap, of doubles it has more digits."""
    before = of("value[n, k] += mask[k, d] * x[n, d] * w[k, d] * g[k]")
    typed = dict(zip(("mask", "g"), dtypes, strict=False))
    buffers = {name: replace(b, dtype=typed.get(name, "float32")) for name, b in before.buffers.items()}
    after = stored_operands(replace(before, buffers=buffers))
    assert (len(after.nests) == 2) == is_stored


@pytest.mark.parametrize("statement", ["x[n, d] * state[n, d] * w[k, d]", "state[n, d] * x[n, d] * w[k, d]"])
@pytest.mark.parametrize("items", [6, 3])
def test_whose_first_dimension_is_the_batch(statement: str, items: int) -> None:
    """Whichever array comes first; not where it is a part of the batch."""
    text = PRODUCT.format(before="pass", terms="5", statement=f"value[n, k] += {statement}")
    before = program(text.replace("range(6)", f"range({items})"), **SHAPES, state=(6, 5))
    buffers = {**before.buffers, "state": replace(before.buffers["state"], role="state")}
    after = stored(replace(before, buffers=buffers))
    (part,) = (buffer for name, buffer in after.buffers.items() if name not in before.buffers)
    assert part.batch_dims == (1 if items == 6 else 0)


def test_two_operands_of_one_product() -> None:
    before = of("value[n, k] += g[k] * w[k, d] * x[n, d] * scale[n]")
    after = stored(before)
    assert "w_part[k, d] * x_part[n, d]" in after.nests[-1].text


def test_locals_that_stay_the_same_are_part_of_an_operand() -> None:
    before = of("value[n, k] += s * w[k, d] * x[n, d]", before="s: float32 = g[k] / norm[k]")
    after = stored(before)
    assert "g[k] / norm[k] * w[k, d]" in after.nests[0].text
    assert "s: float32" not in after.text


def test_the_order_is_that_of_the_array() -> None:
    """Neighbours in memory stay neighbours, whichever loop is outside."""
    text = """
for n in range(6):
    for d in range(5):
        for k in range(4):
            value[n, k] += exp(w[k, d]) * x[n, d]
"""
    before = program(text, x=(6, 5), w=(4, 5), value=(6, 4))
    after = stored(before)
    assert "for k in range(4):\n        for d in range(5):\n            w_part[k, d]" in after.nests[0].text


def test_borders_read_every_element() -> None:
    text = """
for n in range(6):
    for t in range(8):
        for j in range(3):
            if 0 <= t + j - 1 < 8:
                value[n, t] += g[j] * w[j] * x[n, t + j - 1]
"""
    before = program(text, x=(6, 8), w=(3,), g=(3,), value=(6, 8))
    after = stored(before)
    assert "w_part" in after.text or "g_part" in after.text


def test_it_is_stored_after_what_it_is_computed_of() -> None:
    text = """
for k in range(4):
    norm[k] = 0.0
    for d in range(5):
        norm[k] += w[k, d] * w[k, d]
    for n in range(6):
        for d in range(5):
            value[n, k] += w[k, d] / norm[k] * x[n, d]
"""
    before = program(text, x=(6, 5), w=(4, 5), norm=(4,), value=(6, 4))
    after = stored(before)
    assert len(after.nests) == 1
    assert after.text.index("norm[k] +=") < after.text.index("w_part[k, d] =") < after.text.index("for n in")


LEFT = {
    "a load": of("value[n, k] += w[k, d] * x[n, d]"),
    "a sign": of("value[n, k] += -w[k, d] * x[n, d]"),
    "a literal": of("value[n, k] += 0.5 * w[k, d] * x[n, d]"),
    "it moves with everything": of("value[n, k] += exp(w[k, d] - x[n, d]) * x[n, d]"),
    "divisors, whose product may underflow": of("value[n, k] += x[n, d] / w[k, d] / g[k]"),
    "it is outside of the sum": of("value[n, k] += exp(g[k]) * x[n, d]"),
    "nothing else is in the sum": of("value[n, k] += exp(w[k, d]) * g[k]"),
    "larger than what it is computed of": of("value[n, k] += exp(g[k] - column[d]) * x[n, d]"),
    "data decide": of("value[n, k] += w[k, d] / norm[k] * x[n, d] if norm[k] > 0.0 else 0.0"),
    "data decide, in a branch": of("if norm[k] > 0.0: value[n, k] += w[k, d] / norm[k] * x[n, d]"),
    "some are not read": of("value[n, k] += w[k, d] / norm[k] * x[n, d]", terms="n"),
    "a local that changes": of("s += 1.0; value[n, k] += s * w[k, d] * x[n, d]", before="s: float32 = norm[k]"),
}


@pytest.mark.parametrize("before", LEFT.values(), ids=LEFT)
def test_others_are_left(before: Program) -> None:
    assert stored_operands(before) == before


def test_what_the_loops_change_is_left() -> None:
    text = """
for n in range(6):
    for k in range(4):
        for d in range(5):
            value[n, k] += w[k, d] * g[k] * x[n, d]
        g[k] = value[n, k]
"""
    before = program(text, x=(6, 5), w=(4, 5), g=(4,), value=(6, 4))
    assert stored_operands(before) == before


def test_few_results_are_left() -> None:
    text = """
for k in range(3):
    for d in range(5):
        value[k] += exp(x[d]) * w[k, d]
"""
    before = program(text, x=(5,), w=(3, 5), value=(3,))
    shared = {name: replace(buffer, role="param") for name, buffer in before.buffers.items()}
    before = replace(before, buffers=shared)
    assert stored_operands(before) == before


FACTORS = (
    "x[n, d]",
    "w[k, d]",
    "mask[k, d]",
    "g[k]",
    "norm[k]",
    "scale[n]",
    "column[d]",
    "exp(w[k, d])",
    "2.0",
    "s",
    "u",
)
TESTS = ("", "if n + d >= 1: ", "if d < 4: ", "if g[k] > 0.0: ", "if k + d < 7: ")


@pytest.mark.parametrize("seed", range(60))
def test_random_products(seed: int) -> None:
    """Whatever is stored, the program computes the same."""
    pick = random.Random(seed)
    text = pick.choice(FACTORS)
    for _ in range(pick.randint(1, 5)):
        other = pick.choice(FACTORS)
        if pick.random() < 0.2:
            other = f"({other} {pick.choice('+-*')} {pick.choice(FACTORS)})"
        text = f"{text} {pick.choice('***/')} {other}"
    local, around = pick.choice(("g[k] / norm[k]", "w[k, 0] + scale[n]")), pick.choice(("", "g[k] += 1.0", "s += 1.0"))
    statement = f"{pick.choice(TESTS)}value[n, k] {pick.choice('+-')}= {text}"
    loops = [("n", 6), ("k", 4), ("d", pick.choice(("5", "k + 2")))]
    if loops[2][1] == "5":
        pick.shuffle(loops)
    body = "".join(f"{' ' * depth}for {var} in range({end}):\n" for depth, (var, end) in enumerate(loops))
    lines = [f"s: float32 = {local}", f"u: float32 = s * column[{pick.choice('0d')}]", around, statement]
    before = program(body + "".join(f"   {line}\n" for line in lines if line), **SHAPES)
    assert_same(before, as_temporary(before, stored_operands(before)), expands=True)
