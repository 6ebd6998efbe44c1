"""shift_mean: the nest it prints, exactly the same results, the same bits from its C++, its precision, its refusals."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.codegen.emit import emit
from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import run_source
from tests.support import assert_compiles_to_same, assert_same_expanded, merged, program

EXTENTS = (1, 2, 3, 7, 8, 9, 17)
shift_mean: Callable[..., Program] = COMMANDS["shift_mean"]


def images(e: int) -> Program:
    """Group norm, as its definition is canonical."""
    return program(
        f"""
for n in range(2):
    for g in range(3):
        m[n, g] = 0.0
        v[n, g] = 0.0
        for s in range(2):
            for w in range({e}):
                m[n, g] += x[n, g * 2 + s, w]
        m[n, g] = m[n, g] / {2 * e}.0
        for s in range(2):
            for w in range({e}):
                centred: float32 = x[n, g * 2 + s, w] - m[n, g]
                v[n, g] += centred * centred
        v[n, g] = v[n, g] / {2 * e}.0
        for s in range(2):
            for w in range({e}):
                y[n, g * 2 + s, w] = (x[n, g * 2 + s, w] - m[n, g]) / sqrt(v[n, g] + 0.5)
""",
        m=(2, 3),
        v=(2, 3),
        x=(2, 6, e),
        y=(2, 6, e),
    )


def other(e: int) -> Program:
    """Locals, other names, data that are an expression of a local, a mean beside the sum, a loop from 2 on."""
    return program(
        f"""
for i in range(2):
    total: float32 = 0.0
    for j in range({e}):
        for k in range(2, 5):
            t: float32 = a[i, j] * b[j, k - 2]
            total += t + 1.0
    centre: float32 = total / {3 * e}.0
    z[i] = 2.0 * centre
    for j in range({e}):
        d[i, j] = a[i, j] - centre
""",
        a=(2, e),
        b=(e, 3),
        z=(2,),
        d=(2, e),
    )


def divided(e: int) -> Program:
    """One loop, and a mean that is subtracted once."""
    return program(
        f"""
for c in range(2):
    m[c] = 0.0
    for n in range({e}):
        m[c] += x[n, c]
    m[c] = m[c] / {e}.0
    last[c] = x[{e} - 1, c] - m[c]
""",
        m=(2,),
        x=(e, 2),
        last=(2,),
    )


def quotients(e: int) -> Program:
    """Each term is divided by their number; the sum starts before another statement."""
    return program(
        f"""
for c in range(2):
    m: float32 = 0.0
    z[c] = 1.0
    for n in range({e}):
        for k in range(2):
            m += x[n, c, k] / {2 * e}.0
    for n in range({e}):
        for k in range(2):
            z[c] += abs(x[n, c, k] - m)
""",
        z=(2,),
        x=(e, 2, 2),
    )


def kept(e: int) -> Program:
    """The sum stays in an array, and is used for something else than the mean."""
    return program(
        f"""
for c in range(2):
    s[c] = 0.0
    for n in range({e}):
        s[c] += x[n, c]
    m: float32 = s[c] / {e}.0
    last[c] = (x[{e} - 1, c] - m) * s[c]
""",
        s=(2,),
        x=(e, 2),
        last=(2,),
    )


def written_out(e: int) -> Program:
    """No local for the mean."""
    return program(
        f"""
for c in range(2):
    s: float32 = 0.0
    for n in range({e}):
        s += x[n, c]
    v[c] = 0.0
    for n in range({e}):
        d: float32 = x[n, c] - s / {e}.0
        v[c] += d * d
    last[c] = x[{e} - 1, c] - s / {e}.0
""",
        v=(2,),
        x=(e, 2),
        last=(2,),
    )


def negated(e: int) -> Program:
    """Minus the sum, which is in an array, and a factor for a part of the division."""
    return program(
        f"""
for c in range(2):
    s[c] = 0.0
    for n in range({4 * e}):
        s[c] -= x[n, c]
    for n in range({4 * e}):
        y[n, c] = s[c] * 0.25 / {e}.0 + x[n, c]
""",
        s=(2,),
        x=(4 * e, 2),
        y=(4 * e, 2),
    )


PROGRAMS: dict[str, tuple[Callable[[int], Program], str]] = {
    "images": (images, "s"),
    "other": (other, "j"),
    "divided": (divided, "n"),
    "quotients": (quotients, "n"),
    "kept": (kept, "n"),
    "written out": (written_out, "n"),
    "negated": (negated, "n"),
}


def shifted(name: str, extent: int) -> Program:
    make, loop = PROGRAMS[name]
    return shift_mean(make(extent), loop, occurrence=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_prints(name: str, snapshot: SnapshotAssertion) -> None:
    assert snapshot == shifted(name, 7).text


@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_exactly_the_same(name: str) -> None:
    for extent in EXTENTS:
        before = PROGRAMS[name][0](extent)
        assert_same_expanded(before, shifted(name, extent))
        assert_same_expanded(before, hoist(scalar_replace(tidy(shifted(name, extent)))))


def test_other_loops_of_the_name_stay() -> None:
    """The sum of squares is divided by their number, too, but nothing is centred by it."""
    before = images(5)
    after = assert_same_expanded(before, shift_mean(before, "s"))
    assert after.text == shifted("images", 5).text
    assert len(after.remarks) == 2


def test_an_update_divides() -> None:
    text = "for c in range(2):\n m[c] = 0.0\n for n in range(5):\n  m[c] += x[n, c]\n {}\n last[c] = x[4, c] - m[c]"
    shapes = {"m": (2,), "x": (5, 2), "last": (2,)}
    update, plain = (program(text.format(line), **shapes) for line in ("m[c] /= 5.0", "m[c] = m[c] / 5.0"))
    assert shift_mean(update, "n").text == shift_mean(plain, "n").text


def test_a_rounded_reciprocal_divides() -> None:
    """As a factor, in float64 or in float32."""
    lines = "m[c] = 0.0", "for n in range(5):", " m[c] += x[n, c]", "t: float32 = m[c] * {}", "y[c] = x[4, c] - t"
    text = "for c in range(2):\n " + "\n ".join(lines)
    for factor in (1 / 5, float(np.float32(1 / 5))):
        after = shift_mean(program(text.format(factor), m=(2,), x=(5, 2), y=(2,)), "n")
        assert "t: float32 = m_first + " in after.text


def test_lanes_of_means_and_of_data() -> None:
    columns, rows = divided(9), images(9)
    assert_same_expanded(columns, COMMANDS["vectorize"](shift_mean(columns, "n"), "c", 2))
    lanes = COMMANDS["unroll"](COMMANDS["vectorize"](shifted("images", 9), "w", 4), "w", 2)
    assert_same_expanded(rows, COMMANDS["parallelize"](lanes, ["n", "g"]))


def test_compiles_to_the_same_bits(target: Target) -> None:
    made = [shifted(name, extent) for name in PROGRAMS for extent in (1, 7, 9, 17)]
    made += [COMMANDS["unroll"](COMMANDS["vectorize"](shifted("images", e), "w", 8), "w", 2) for e in (7, 8, 33)]
    assert_compiles_to_same(merged([hoist(scalar_replace(tidy(p))) for p in made]), target)


@pytest.mark.parametrize("near", [0.0, 1e-3])
def test_a_mean_keeps_the_digits_of_deviations(near: float, target: Target) -> None:
    """Of ``e`` numbers near 7777.77, a mean in order is wrong by roundings of that number.

    Shifted, each of at most ``e / 8 + 8`` additions loses a rounding of the sum of distances from the first element,
    which is divided by ``e``; the mean is rounded once.
    """
    e = 4095
    x = (7777.77 + near * np.random.default_rng(0).normal(size=(2, 6, e))).astype(np.float32)
    after = COMMANDS["vectorize"](shift_mean(images(e), "s", occurrence=0), "w", 8)
    arrays = {"x": x, "y": np.zeros_like(x), "m": np.zeros((2, 3), "f"), "v": np.zeros((2, 3), "f")}
    found = run_source(emit(hoist(scalar_replace(tidy(after))), target), arrays, target)["m"]
    groups = x.reshape(2, 3, 2 * e).astype(np.float64)
    distances = np.abs(groups - groups[:, :, :1]).mean(2)
    bound = np.spacing(np.float32(7777.77)) / 2 + (2 * e / 8 + 8) * 2.0**-24 * distances
    assert (np.abs(found - groups.mean(2)) <= bound).all()


def body(after: str, before: str = "s[0] = 0.0", inside: str = "s[0] += x[n]", stop: str = "4") -> str:
    lines = f"{before}\nfor n in range({stop}):\n    {inside}\n{cleandoc(after)}"
    return "for c in range(1):\n" + "\n".join(f"    {line}" for line in lines.splitlines())


CENTRED = "s[0] = s[0] / 4.0\ny[0] = x[1] - s[0]"
REFUSALS: dict[str, tuple[str, str]] = {
    "not a sum": (
        body(CENTRED, inside="y[n] = x[n]"),
        "the loops of n do not add up one expression",
    ),
    "a difference": (body(CENTRED, inside="s[0] -= x[n]"), "nothing later in this block adds s[0]"),
    "not from zero": (body(CENTRED, before="s[0] = 1.0"), "s[0] is not known to start at 0"),
    "no start": (body(CENTRED, before="y[0] = 0.0"), "s[0] is not known to start at 0"),
    "another number": (
        body("s[0] = s[0] / 5.0\ny[0] = x[1] - s[0]"),
        "s[0] is not divided by 4, the number of its terms, in this block",
    ),
    "used before": (body(f"y[1] = s[0]\n{CENTRED}"), "s[0] is not divided by 4"),
    "changed before": (body("y[0] = x[1] - s[0] / 4.0\ns[0] = y[0]"), "s[0] is not divided by 4"),
    "another reciprocal": (body("y[0] = x[1] - s[0] * 0.2500001"), "s[0] is not divided by 4"),
    "data change": (body(f"x[0] = 1.0\n{CENTRED}"), "x changes before s[0] is divided by the number of terms"),
    "not centred": (body("s[0] = s[0] / 4.0\ny[0] = s[0] - x[1]"), "nothing later in this block subtracts s[0]"),
    "bounds": (body(CENTRED, stop="c + 3"), "the bounds of n or of a loop inside are not constant, or empty"),
    "a marked loop": (body(CENTRED).replace("range(4)", "unrolled(4)"), "n is a unrolled loop"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    text, message = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        shift_mean(program(text, s=(1,), x=(4,), y=(4,)), "n")
    assert caught.value.message.startswith(message), caught.value
    assert "asked to add up differences" in str(caught.value)


def test_a_way_out_that_is_named_works() -> None:
    """``distribute makes loops of one sum each``."""
    before = program(
        """
for c in range(2):
    s[c] = 0.0
    q[c] = 0.0
    for n in range(5):
        q[c] += x[c, n] * x[c, n]
        s[c] += x[c, n]
    s[c] = s[c] / 5.0
    y[c] = x[c, 0] - s[c]
""",
        s=(2,),
        q=(2,),
        x=(2, 5),
        y=(2,),
    )
    with pytest.raises(Refused, match="distribute makes loops of one sum each"):
        shift_mean(before, "n")
    assert_same_expanded(before, shift_mean(COMMANDS["distribute"](before, "n"), "n"))


def test_no_such_loop() -> None:
    with pytest.raises(CommandError, match="no loop named 'k'"):
        shift_mean(images(3), "k")
