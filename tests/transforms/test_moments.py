"""moments: the nest it prints, exactly the same results, the same bits from its C++, its precision, its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.build.jit import build
from swirl.codegen.emit import KernelSource, emit
from swirl.errors import CommandError, Refused
from swirl.ir.execute import execute
from swirl.ir.nest import Program, make_nest
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import run_source
from tests.support import assert_compiles_to_same, assert_same_expanded, merged, program, targets_in_turn

EXTENTS = (1, 2, 3, 7, 8, 9, 17)
moments: Callable[..., Program] = COMMANDS["moments"]


def images(e: int) -> Program:
    """The definition, as batch norm writes it."""
    return program(
        f"""
for c in range(2):
    m[c] = 0.0
    for n in range(3):
        for w in range({e}):
            m[c] += x[n, c, w]
    m[c] = m[c] / {3 * e}.0
    v[c] = 1.0
    for n in range(3):
        for w in range({e}):
            v[c] += (x[n, c, w] - m[c]) * (x[n, c, w] - m[c])
    v[c] = v[c] / {3 * e}.0
    for n in range(3):
        for w in range({e}):
            y[n, c, w] = (x[n, c, w] - m[c]) / sqrt(v[c] + 0.5)
""",
        m=(2,),
        v=(2,),
        x=(3, 2, e),
        y=(3, 2, e),
    )


def other(e: int) -> Program:
    """Locals, other names and places, data that are an expression, a factor before the squares, the sum read again."""
    return program(
        f"""
for i in range(2):
    total: float32 = 0.0
    for j in range({e}):
        for k in range(2, 5):
            t: float32 = a[i, j] * b[j, k - 2]
            total += t + 1.0
    centre: float32 = total / {3 * e}.0
    q[i] = total
    z[i] = 2.0 * centre
    for j in range({e}):
        d[i, j] = a[i, j] - centre
    for l in range({e}):
        for k in range(2, 5):
            diff: float32 = centre - 1.0 - a[i, l] * b[l, k - 2]
            s[i] -= 0.5 * diff * diff
""",
        a=(2, e),
        b=(e, 3),
        q=(2,),
        z=(2,),
        d=(2, e),
        s=(2,),
    )


def single(e: int) -> Program:
    """One loop: each iteration is one element. The mean is a sum of quotients."""
    return program(
        f"""
for c in range(2):
    m[c] = 0.0
    for n in range({e}):
        m[c] += x[n, c] / {e}.0
    for n in range({e}):
        v[c] += m[c] * m[c] - 2.0 * m[c] * x[n, c] + x[n, c] * x[n, c]
""",
        m=(2,),
        v=(2,),
        x=(e, 2),
    )


PROGRAMS: dict[str, tuple[Callable[[int], Program], str, dict[str, bool]]] = {
    "images": (images, "n", {}),
    "other": (other, "j", {}),
    "single": (single, "n", {}),
    "images once": (images, "n", {"once": True}),
    "other once": (other, "j", {"once": True, "apart": True}),
    "single once": (single, "n", {"once": True}),
}


def in_one_pass(name: str, extent: int) -> Program:
    make, loop, options = PROGRAMS[name]
    before = make(extent)
    return assert_same_expanded(before, moments(before, loop, **options))


@pytest.mark.parametrize("name", PROGRAMS)
def test_prints(name: str, snapshot: SnapshotAssertion) -> None:
    assert snapshot == in_one_pass(name, 7).text


@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_exactly_the_same(name: str) -> None:
    for extent in EXTENTS:
        assert_same_expanded(PROGRAMS[name][0](extent), hoist(scalar_replace(tidy(in_one_pass(name, extent)))))


def test_tiles_of_several_iterations() -> None:
    before = images(4)
    program_ = moments(COMMANDS["tile_loop"](before, "w", 2), "n")
    assert_same_expanded(before, program_)
    assert_same_expanded(before, moments(COMMANDS["tile_loop"](before, "n", 3), "n_outer"))


IN_TURN = targets_in_turn()


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, t) for name in PROGRAMS for t in (sorted(TARGETS) if name == "images" else [next(IN_TURN)])],
    indirect=["target"],
)
def test_compiles_to_the_same_bits(name: str, target: Target) -> None:
    """On every target where there are lanes: otherwise all targets get the same C++."""
    make, loop, options = PROGRAMS[name]
    made = []
    for extent in (1, 7, 8, 9, 17):
        after = moments(make(extent), loop, **options)
        made.append(after)
        if name == "images":
            made.append(COMMANDS["unroll"](COMMANDS["vectorize"](after, "w", 8), "w", 2))
    assert_compiles_to_same(merged([hoist(scalar_replace(tidy(p))) for p in made]), target)


def test_once_is_fused_with_what_makes_the_data() -> None:
    before = program(
        """
for n in range(3):
    for i in range(5):
        for j in range(4):
            x[n, i, j] = a[n, i] * b[j]
m[0] = 0.0
for n in range(3):
    for i in range(5):
        for j in range(4):
            m[0] += x[n, i, j]
m[0] = m[0] / 60.0
v[0] = 0.0
for n in range(3):
    for i in range(5):
        for j in range(4):
            v[0] += (x[n, i, j] - m[0]) * (x[n, i, j] - m[0])
""",
        a=(3, 5),
        b=(4,),
        x=(3, 5, 4),
        m=(1,),
        v=(1,),
    )
    nest = make_nest("one", [s for n in before.nests for s in n.body], before.buffers)
    after = moments(before.with_nests([nest]), "n", once=True, apart=True)
    for loop in ("n", "i", "j"):
        after = COMMANDS["fuse"](after, loop)
    after = COMMANDS["scalar_replace"](assert_same_expanded(before, after), "x")
    assert after.text.count("x[") == 1, after.text  # the store: the data just made are still available
    assert_same_expanded(before, COMMANDS["unroll_and_jam"](after, "i", 3, unroll_type=1))


def test_lanes_of_means() -> None:
    """Each lane has its own mean."""
    before = single(9)
    assert_same_expanded(before, COMMANDS["vectorize"](moments(before, "n"), "c", 2))


# --- precision --------------------------------------------------------------------------------------------
ROUNDING = 2.0**-24


def one_pass(shape: tuple[int, ...], target: Target, **options: bool) -> KernelSource:
    """A kernel for the mean and the variance of ``x[n, c, i]`` over n and i, in one pass: 4 partial sums, each of
    vectors unless the first element is one among others."""
    n, c, e = shape
    before = program(
        f"""
for c in range({c}):
    m[c] = 0.0
    for n in range({n}):
        for i in range({e}):
            m[c] += x[n, c, i]
    m[c] = m[c] / {n * e}.0
    v[c] = 0.0
    for n in range({n}):
        for i in range({e}):
            v[c] += (x[n, c, i] - m[c]) * (x[n, c, i] - m[c])
    v[c] = v[c] / {n * e}.0
""",
        m=(c,),
        v=(c,),
        x=shape,
    )
    after = moments(before, "n", **options)
    if not options.get("once"):
        after = COMMANDS["vectorize"](after, "i", target.simd_width)
    after = COMMANDS["unroll"](after, "i", 4)
    return emit(hoist(scalar_replace(tidy(after))), target)


def statistics(x: np.ndarray, target: Target, **options: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance, as the kernel has them."""
    arrays = {"x": x, "m": np.zeros(x.shape[1], np.float32), "v": np.zeros(x.shape[1], np.float32)}
    got = run_source(one_pass(x.shape, target, **options), arrays, target, contract=True)
    return got["m"], got["v"]


@pytest.mark.parametrize("once", [False, True])
def test_a_large_mean_costs_no_digits(once: bool, target: Target) -> None:
    cases = [
        ((64, 1, 49_729), 0.5, 1.0),  # 3.2 million
        ((64, 1, 49_729), 1e4, 1.0),
        ((8, 3, 3136), 1e4, 1.0),
        ((8, 3, 3137), -3e5, 1.0),
        ((5, 2, 17), 1e4, 1e-2),
        ((3, 2, 1), 1e4, 1.0),
    ]
    build([one_pass(shape, target, once=once) for shape, _, _ in cases], target)  # together
    for case in cases:
        assert_digits(*case, once, target)


def assert_digits(shape: tuple[int, ...], mean: float, deviation: float, once: bool, target: Target) -> None:
    """The bounds that the command states."""
    x = np.random.default_rng(3).normal(mean, deviation, shape).astype(np.float32)
    found_mean, found_var = statistics(x, target, once=once)
    exact = x.astype(np.float64)
    expected_mean, expected_var = exact.mean((0, 2)), exact.var((0, 2))
    first = exact[:, :, :1]
    inside = exact.var(2, keepdims=True)
    z2 = ((first - exact.mean(2, keepdims=True)) ** 2 / np.where(inside > 0, inside, 1.0)).max((0, 2))
    terms = shape[2] / (4 if once else 4 * target.simd_width) + shape[0] + 8
    assert (abs(found_var - expected_var) <= terms * (1 + z2) * ROUNDING * expected_var).all()
    spread = abs(exact - first).mean((0, 2)) + abs(first - first[:1]).mean((0, 2))
    assert (abs(found_mean - expected_mean) <= abs(expected_mean) * ROUNDING + terms * ROUNDING * spread).all()


def test_first_elements_far_from_the_others(target: Target) -> None:
    """As ``z * z < K``, the bound holds with K: here every image begins with 0, and the rest is 1e4."""
    x = np.random.default_rng(3).normal(1e4, 1.0, (4, 1, 3136)).astype(np.float32)
    x[:, :, 0] = 0
    _, found = statistics(x, target)
    assert abs(found - x.astype(np.float64).var()) <= (3136 / (4 * target.simd_width) + 12) * 3137 * ROUNDING * found


def test_equal_data_have_no_variance(target: Target) -> None:
    mean, var = statistics(np.full((3, 2, 100), 0.1, np.float32), target)
    assert (mean == np.float32(0.1)).all() and (var == 0).all()


# --- refusals ---------------------------------------------------------------------------------------------
def changed(old: str, new: str) -> Program:
    """``images`` with one line changed."""
    before = images(4)
    text = "\n".join(nest.body_text for nest in before.nests)
    assert text.count(old) == 1, text
    return program(text.replace(old, new), **{name: buffer.shape for name, buffer in before.buffers.items()})


SUM = "            m[c] += x[n, c, w]"
REFUSALS: dict[str, tuple[Program, str, str, str]] = {
    "not the mean": (
        changed("m[c] = m[c] / 12.0", "m[c] = m[c] / 13.0"),
        "no later sum adds squared differences from the mean of these data",
        "the mean is m[c] / 12",
        "the sum must be of (x - m) * (x - m), m = sum of x / number of x",
    ),
    "not a square": (
        changed("(x[n, c, w] - m[c]) * (x[n, c, w] - m[c])", "(x[n, c, w] - m[c]) * x[n, c, w]"),
        "no later sum adds squared differences from the mean of these data",
        "the mean is m[c] / 12",
        "the sum must be of (x - m) * (x - m), m = sum of x / number of x",
    ),
    "other data": (
        changed("m[c] = m[c] / 12.0", "m[c] = m[c] / 12.0\n    x[0, c, 0] = 1.0"),
        "x changes before a second sum",
        "x[0, c, 0] = 1.0",
        "None",
    ),
    "another start": (
        changed("m[c] = 0.0", "m[c] = 2.0"),
        "m[c] is not known to start at 0",
        "None",
        "m[c] = 0.0 belongs before the loop, in the same block",
    ),
    "two statements": (
        changed(SUM, f"{SUM}\n            y[n, c, w] = 0.0"),
        "the loops of n do not add up one expression",
        "None",
        "distribute makes loops of one sum each",
    ),
    "other iterations": (
        changed("v[c] = 1.0\n    for n in range(3)", "v[c] = 1.0\n    for n in range(2)"),
        "no later loop in this block has the same bounds",
        "None",
        "reorder or fuse: both sums in one body, their loops in one order",
    ),
    "bounds that move": (
        changed(
            f"    for n in range(3):\n        for w in range(4):\n{SUM}",
            f"    for n in range(3):\n        for w in range(n + 1):\n{SUM}",
        ),
        "the bounds of n or of a loop inside are not constant, or empty",
        "None",
        "tile_loop by a factor that divides the extent",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    before, message, witness, way_out = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        moments(before, "n")
    assert (caught.value.message, str(caught.value.witness), str(caught.value.way_out)) == (message, witness, way_out)
    assert re.search(r"for n in range\(\d\): +← asked for moments in one pass", str(caught.value.nest))


def test_what_changes_between_is_no_mean() -> None:
    """Symbolically ``u`` is the mean; but ``w`` has changed by then."""
    before = program(
        """
s[0] = 0.0
for n in range(4):
    s[0] += x[n]
t[0] = s[0] / 4.0 + s[0] * w[0]
w[0] = 2.0 * w[0]
t[0] = t[0] - s[0] * w[0]
for n in range(4):
    v[0] += (x[n] - t[0]) * (x[n] - t[0])
""",
        s=(1,),
        x=(4,),
        t=(1,),
        w=(1,),
        v=(1,),
    )
    one = Program("one", (make_nest("one", [s for n in before.nests for s in n.body], before.buffers),), before.buffers)
    with pytest.raises(Refused, match="no later sum adds squared differences"):
        moments(one, "n")


def test_a_refusal_in_full() -> None:
    with pytest.raises(Refused) as caught:
        moments(
            program("for i in range(2):\n s[i] = 0.0\n for j in range(3):\n  s[i] += x[i, j]", s=(2,), x=(2, 3)), "j"
        )
    assert (
        str(caught.value)
        == cleandoc("""
        no later loop in this block has the same bounds
            for i in range(2):
                s[i] = 0.0
                for j in range(3):    ← asked for moments in one pass
                    s[i] += x[i, j]
          reorder or fuse: both sums in one body, their loops in one order
        """).rstrip()
    )


def test_what_is_subtracted_shows() -> None:
    """The witness of a refusal: what is summed is not the variance of the data."""
    before = REFUSALS["not the mean"][0]
    arrays = {name: np.ones(buffer.shape, np.float32) for name, buffer in before.buffers.items()}
    execute(before, arrays)
    assert arrays["m"][0] != 1.0  # the mean of ones


def test_once_is_not_for_lanes_along_the_data() -> None:
    after = assert_same_expanded(images(9), COMMANDS["vectorize"](moments(images(9), "n", once=True), "w", 8))
    assert ["m_shift is one element for all lanes" in remark for remark in after.remarks] == [True]
    assert_same_expanded(images(9), COMMANDS["vectorize"](moments(images(9), "n", once=True), "c", 2, strided="gather"))


def test_once_or_inner() -> None:
    with pytest.raises(CommandError) as caught:
        moments(images(3), "n", inner="w", once=True)
    assert str(caught.value) == "inner and once are two ways to take first elements\n  give one of them"


def test_an_unknown_loop() -> None:
    with pytest.raises(CommandError, match="no loop named 'q'"):
        moments(images(3), "q")
