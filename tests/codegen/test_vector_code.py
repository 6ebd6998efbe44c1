"""Compiled vector loops = the executed nest, bit for bit, on every target."""

import re
from dataclasses import replace

import numpy as np
import pytest

from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import parse_program
from swirl.ir.operations import FUNCTIONS
from swirl.target.targets import TARGETS
from tests.codegen.conftest import assert_same_bits, run_source, together

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)
PAIRS = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)


def buffer(*shape: int, dtype: str = "float32", layout: Layout | None = None) -> Buffer:
    return Buffer("storage", shape, dtype, layout=layout or Layout())


@together(lanes=[*range(1, 18), 31, 32, 33])
def test_any_number_of_lanes(check, lanes):
    check(
        f"""
for i in parallel(3):
    for v in vector({lanes}):
        t: float32 = x[i, v] * a[i]
        y[i, v] += t * t - 1.5
        if t > 0.25:
            t = t + x[i, v]
            z[v, i] = t
        else:
            y[i, v] = -t
        n[i, v] = n[i, v] * 3 + v
        m[i, v] = not m[i, v] and t < 1.0
""",
        {
            "x": buffer(3, lanes),
            "y": buffer(3, lanes),
            "a": buffer(3),
            "z": buffer(lanes, 3),
            "n": buffer(3, lanes, dtype="int32"),
            "m": buffer(3, lanes, dtype="bool"),
        },
    )


@together(extent=[1, 7, 15, 16, 17, 37])
def test_ragged_tails(check, extent):
    check(
        f"""
for i in parallel(2):
    for x_outer in range(0, {extent}, 16):
        for v in vector(min(16, {extent} - x_outer)):
            y[i, x_outer + v] = x[i, x_outer + v] / 3.0 + b[x_outer + v]
            if y[i, x_outer + v] > 0.0:
                m[i, x_outer + v] = True
""",
        {
            "x": buffer(2, extent),
            "y": buffer(2, extent),
            "b": buffer(extent),
            "m": buffer(2, extent, dtype="bool"),
        },
    )


def test_reduction_over_lanes(check):
    check(
        """
for i in parallel(3):
    lanes: float32[16] = empty(16)
    for v in vector(16):
        lanes[v] = 0.0
    for w in range(0, 64, 16):
        for v in vector(16):
            lanes[v] += x[i, w + v] * x[i, w + v]
    for v in vector(8):
        lanes[v] += lanes[v + 8]
    for v in vector(4):
        lanes[v] += lanes[v + 4]
    for v in vector(2):
        lanes[v] += lanes[v + 2]
    for v in vector(1):
        lanes[v] += lanes[v + 1]
    y[i] = lanes[0] + lanes[3]
    last: float32 = lanes[13]
    z[i] = last
""",
        {"x": buffer(3, 64), "y": buffer(3), "z": buffer(3)},
    )


def test_register_tile(check):
    check(
        """
for n in parallel(2):
    acc: float32[4, 2, 16] = empty(4, 2, 16)
    for j in unrolled(4):
        for i in unrolled(2):
            for v in vector(16):
                acc[j, i, v] = bias[16 * i + v]
    for c in range(5):
        for i in unrolled(2):
            w: float32[16] = empty(16)
            for v in vector(16):
                w[v] = weights[c, i * 16 + v]
            for j in unrolled(4):
                for v in vector(16):
                    acc[j, i, v] += w[v] * inputs[n, c, j]
    for j in unrolled(4):
        for i in unrolled(2):
            for v in vector(16):
                value[n, j, i * 16 + v] = max(0.0, acc[j, i, v])
    first[n] = acc[1, 1, 5]
""",
        {
            "bias": buffer(32),
            "weights": buffer(5, 32),
            "inputs": buffer(2, 5, 4),
            "value": buffer(2, 4, 32),
            "first": buffer(2),
        },
    )


@together(lanes=[5, 16, 21])
def test_conditions_of_which_parts_are_decided(check, lanes):
    """By unrolled variables and by the ranges of others; the opposites, too, and what is left of three parts."""
    check(
        f"""
for i in range(4):
    for j in unrolled(3):
        for v in vector({lanes}):
            if j + i >= 1 and (v > 2 or j > 5) and i < 9:
                y[i, j, v] = x[v + j] if (j < 1 or x[v + j] > 0.0) and v >= i - 7 else 3.0
            if not (j == 2 or i > 8 or v + i < 4):
                y[i, j, v] += 5.0
            z[i, j, v] = 1.0 if 0 <= i + j - 1 < 3 or i > 4 else x[v] if (i < 0 or i > 4) and v > 1 else 2.0
""",
        {"x": buffer(24), "y": buffer(4, 3, lanes), "z": buffer(4, 3, lanes)},
    )


def test_wide_rows_in_registers(check):
    """Offsets that are multiples of the width, made of unrolled variables; a ragged row; a masked tail."""
    check(
        """
for n in parallel(2):
    acc: float32[53] = empty(53)
    for j in unrolled(3):
        for v in vector(16):
            acc[16 * j + v] = x[n, 16 * j + v] + 1.0
    for v in vector(5):
        acc[48 + v] = x[n, 48 + v]
    for v in vector(48):
        acc[v] = acc[v] + acc[v + 3]
    for v in vector(min(16, count[0])):
        acc[v] -= 0.5
    for v in vector(53):
        y[n, v] = acc[v]
""",
        {"x": buffer(2, 53), "y": buffer(2, 53), "count": buffer(1, dtype="int32")},
        {"count": np.array([11], np.int32)},
    )


RAGGED_COPIES = """
for n in parallel(2):
    best: float32[2, 16] = empty(2, 16)
    place: int32[2, 16] = empty(2, 16)
    for u in unrolled(2):
        for v in vector(min(16, {extent} - u * 16)):
            best[u, v] = x[n, 0, u * 16 + v]
            place[u, v] = 0
    for k in range(1, 4):
        better: bool[2, 16] = empty(2, 16)
        for u in unrolled(2):
            for v in vector(min(16, {extent} - u * 16)):
                better[u, v] = x[n, k, u * 16 + v] > best[u, v]
                place[u, v] = k if better[u, v] else place[u, v]
                best[u, v] = max(best[u, v], x[n, k, u * 16 + v])
                if better[u, v]:
                    z[n, u * 16 + v] = best[u, v]
    for u in unrolled(2):
        for v in vector(min(16, {extent} - u * 16)):
            y[n, u * 16 + v] = best[u, v]
            m[n, u * 16 + v] = place[u, v]
"""


@together(extent=[17, 27, 32])
def test_copies_of_a_ragged_row(check, extent):
    """What becomes of lanes that no loop has does not matter: no assignment to a register has a mask for them."""
    buffers = {
        "x": buffer(2, 4, extent),
        "y": buffer(2, extent),
        "z": buffer(2, extent),
        "m": buffer(2, extent, dtype="int32"),
    }
    check(RAGGED_COPIES.format(extent=extent), buffers)
    program = parse_program(RAGGED_COPIES.format(extent=extent), buffers)
    text = emit(program, TARGETS["avx512"]).source
    assert not re.search(r"(best|place)_1 = _mm512_mask_blend_\w+\((0x|tail)", text), text


def test_lanes_that_an_iteration_leaves_out_keep_their_values(check):
    """Loops of one text, but not always of the same lanes: every second iteration has half of them."""
    check(
        """
for n in parallel(2):
    held: float32[16] = empty(16)
    for e in range(1, 6):
        for v in vector(min(16, e % 2 * 8 + 8)):
            if e > 1:
                y[n, e, v] = held[v]
            held[v] = x[n, e, v]
""",
        {"x": buffer(2, 6, 16), "y": buffer(2, 6, 16)},
    )


@together(extent=[2, 7, 16, 37])
def test_lanes_beside_a_row_in_registers(check, extent):
    """What a condition excludes may be in a register before the first one, or after the last."""
    check(
        f"""
for n in parallel(2):
    row: float32[2, {extent}] = empty(2, {extent})
    for u in unrolled(2):
        for v in vector({extent}):
            row[u, v] = x[n, v] + u
    sums: float32[{extent}] = empty({extent})
    for v in vector({extent}):
        sums[v] = 0.0
    for v in vector({extent}):
        if v - 1 >= 0:
            sums[v] += row[0, v - 1]
        if v + 1 < {extent} and x[n, v] > 0.0:
            sums[v] -= row[1, v + 1] * 0.5
        if v - 20 >= 0:
            sums[v] += row[1, v - 20]
        if v + 33 < {extent}:
            sums[v] += row[0, v + 33]
    for v in vector({extent}):
        y[n, v] = sums[v]
""",
        {"x": buffer(2, extent), "y": buffer(2, extent)},
    )


def test_lanes_in_memory(check):
    check(
        """
for n in parallel(2):
    t: float32[5, 17] = empty(5, 17)
    for i in range(5):
        for v in vector(17):
            t[i, v] = x[n, i] * y[v]
    for i in range(5):
        for v in vector(16):
            z[n, i, v] = t[4 - i, v + 1] - t[i, 16 - v]
""",
        {"x": buffer(2, 5), "y": buffer(17), "z": buffer(2, 5, 16)},
    )


@together(lanes=[5, 8, 16, 21])
def test_gathers_and_scatters(check, lanes):
    generator = np.random.default_rng(2)
    check(
        f"""
for i in range(3):
    for v in vector({lanes}):
        y[i, v] = x[2 * v + 1, i] + table[index[v], i] - x[{lanes - 1} - v, index[v] // 3]
        k: int32 = index[v] * 2 % 7
        z[v, 2 - i] = y[i, v] * float32(k)
        b[v, i] = b[v, 0] != (k > 3)
        r[v, i] = r[{lanes - 1} - v, 3] + k
""",
        {
            "x": buffer(2 * lanes + 2, 4),
            "y": buffer(3, lanes),
            "z": buffer(lanes, 3),
            "table": buffer(9, 3),
            "index": buffer(lanes, dtype="int32"),
            "b": buffer(lanes, 4, dtype="bool"),
            "r": buffer(lanes, 4, dtype="int32"),
        },
        {"index": generator.integers(0, 9, lanes).astype(np.int32)},
    )


@together(stride=[2, 3, 4, 5], lanes=[1, 5, 8, 15, 16, 17, 21])
def test_elements_of_a_row_that_stand_apart(check, stride, lanes):
    """Nothing in between is written, and nothing after the last lane is touched: there the arrays end."""
    row = stride * (lanes - 1) + 1
    check(
        f"""
for i in range(3):
    for v in vector({lanes}):
        y[i, {stride} * v] = x[i, {stride} * v] * 2.0 + y[i, {stride} * v]
        if x[i, {stride} * v] > 0.25:
            n[i, {stride} * v] = m[i, {stride} * v] + n[i, {stride} * v]
    for w in range(0, {lanes}, 16):
        for v in vector(min(16, {lanes} - w)):
            z[i, {stride} * (w + v)] = x[i, {stride} * (w + v)]
            b[i, {stride} * (w + v)] = x[i, {stride} * (w + v)] > z[0, 0]
""",
        {
            "x": buffer(3, row),
            "y": buffer(3, row),
            "z": buffer(3, row),
            "b": buffer(3, row, dtype="bool"),
            "n": buffer(3, row, dtype="int32"),
            "m": buffer(3, row, dtype="int32"),
        },
    )


@together(lanes=[1, 7, 8, 16, 19, 32])
def test_truth_values_in_registers(check, lanes):
    check(
        f"""
for i in parallel(3):
    above: bool[{lanes + 2}] = empty({lanes + 2})
    for v in vector({lanes + 2}):
        above[v] = x[i, v] > 0.5
    for j in range(2):
        for v in vector({lanes}):
            if x[i, v + j] < 0.0:
                above[v] = not above[v]
    for v in vector({lanes}):
        y[i, v] = x[i, v] if above[v] else 0.0
        m[i, v] = above[v + 1] != above[v]
        n[i, v] = int32(above[v + 2]) + 1
    n[i, 0] = int32(above[{lanes}]) + int32(above[0]) * 2
    if above[{lanes - 1}]:
        y[i, 0] = -1.0
""",
        {
            "x": buffer(3, lanes + 2),
            "y": buffer(3, lanes),
            "m": buffer(3, lanes, dtype="bool"),
            "n": buffer(3, lanes, dtype="int32"),
        },
    )


def test_max_pooling_with_winners(check):
    text = """
for n in parallel(2):
    for y in range(3):
        for v in vector(13):
            best: float32 = x[n, 2 * y, 2 * v]
            at: int32 = 0
            for_row: float32 = x[n, 2 * y, 2 * v + 1]
            if for_row > best:
                best = for_row
                at = 1
            if x[n, 2 * y + 1, 2 * v] > best:
                best = x[n, 2 * y + 1, 2 * v]
                at = 2
            out[n, y, v] = best
            winner[n, y, v] = at
for n in parallel(2):
    for y in range(3):
        for j in unrolled(3):
            for v in vector(13):
                grad[n, y, j, v] = out[n, y, v] if winner[n, y, v] == j else 0.0
"""
    check(
        text,
        {
            "x": buffer(2, 6, 26),
            "out": buffer(2, 3, 13),
            "winner": buffer(2, 3, 13, dtype="int32"),
            "grad": buffer(2, 3, 3, 13),
        },
    )


@together(
    call=[
        "max(a[v], b[v])",
        "min(a[v], b[v])",
        "max(0.0, a[v])",
        "max(a[v], 0)",
        "min(1.0, a[v], b[v])",
        "-a[v]",
        "abs(a[v]) - b[v]",
        "floor(a[v])",
        "sqrt(a[v]) * b[v]",
        "a[v] if a[v] != b[v] else 3.0",
        "1.0 if a[v] <= b[v] else 0.0",
        "1.0 if not a[v] < b[v] and b[v] > 0 or a[v] == 1 else 0.0",
        "2.0 if -1 < a[v] < b[v] else c[0]",
        "float32(a[v] >= b[v])",
        "1.0 if bool(a[v]) else -1.0",
        "a[v] if c[0] > 0 else b[v]",
        "float32(v) + a[v]",
    ],
)
def test_special_values(check, call):
    check(
        f"""
for v in vector(81):
    out[v] = {call}
""",
        {"a": buffer(81), "b": buffer(81), "c": buffer(1), "out": buffer(81)},
        {"a": PAIRS[:, 0].copy(), "b": PAIRS[:, 1].copy()},
    )


@together(
    call=[
        "a[v] // 4",
        "a[v] % 4",
        "a[v] // 3",
        "a[v] % 3",
        "a[v] // b[v]",
        "a[v] % b[v]",
        "max(a[v], b[v])",
        "min(3, a[v])",
        "abs(a[v])",
        "-a[v]",
        "a[v] * b[v] - v",
        "int32(x[v] * 10.0)",
        "int32(a[v] < b[v])",
        "a[v] if a[v] >= b[v] else 7",
        "a[v] if a[v] != b[v] or a[v] <= 0 else v",
    ],
)
def test_integers(check, call):
    generator = np.random.default_rng(3)
    divisors = generator.integers(1, 6, 19) * generator.choice([-1, 1], 19)
    check(
        f"""
for v in vector(19):
    out[v] = {call}
""",
        {
            "a": buffer(19, dtype="int32"),
            "b": buffer(19, dtype="int32"),
            "out": buffer(19, dtype="int32"),
            "x": buffer(19),
        },
        {"a": np.arange(-9, 10, dtype=np.int32), "b": divisors.astype(np.int32)},
    )


def test_selects_guard_what_they_read(check):
    """A lane whose condition is false touches nothing: neither outside the array, nor through a wild
    index."""
    check(
        """
for i in range(4):
    for v in vector(16):
        y[i, v] = x[i, v - 3] if v >= 3 and x[i, v - 3] > -1.0 else 0.5
        if index[v] >= 0:
            z[v] = x[i, index[v]]
        elif v < 12:
            z[v] += 1.0
""",
        {"x": buffer(4, 16), "y": buffer(4, 16), "z": buffer(16), "index": buffer(16, dtype="int32")},
        {"index": np.where(np.arange(16) % 3, np.arange(16), -(2**30)).astype(np.int32)},
    )


def test_guards_of_padding(check):
    """The part of a guard that all lanes share is a branch: the row above the first one is not read."""
    check(
        """
for y in parallel(5):
    for ky in range(3):
        for kx in unrolled(3):
            for v in vector(18):
                if y + ky >= 1 and v + kx >= 1 and y + ky < 6 and v + kx < 19:
                    z[y, v] += w[ky, kx] * x[y + ky - 1, v + kx - 1] * r[y + ky - 1]
                else:
                    z[y, v] -= 0.125
                z[y, v] += x[y + ky - 1, v] if y + ky >= 1 and y + ky < 6 and v != 3 else 0.5
""",
        {"x": buffer(5, 18), "z": buffer(5, 18), "w": buffer(3, 3), "r": buffer(5)},
    )


def sums_of_some_lanes(updates, begin, condition):
    """Sums of their own for each of the updates, in the lanes for which a condition holds."""
    text = f"for i in range({begin}):\n"
    for number, update in enumerate(updates):
        text += f"""
    sums_{number}: float32[81] = empty(81)
    for v in vector(81):
        sums_{number}[v] = begin[i]
    for v in vector(81):
        if {condition}:
            sums_{number}[v] {update.replace("sums", f"sums_{number}")}
    for v in vector(81):
        out[i, {number}, v] = sums_{number}[v]
"""
    shapes = {"a": (81,), "b": (81,), "c": (1,), "begin": (begin,), "out": (begin, len(updates), 81)}
    return text, {name: buffer(*shape) for name, shape in shapes.items()}


@together(condition=["v % 6 > i", "v + i >= 9"])
def test_sums_of_some_lanes_leave_the_others_alone(check, condition):
    """Their signs of zero, infinities and NaN, whatever the terms that are left out."""
    terms = ["a[v]", "a[v] * b[v]", "c[0] * a[v]", "-(a[v] * b[v])"]
    updates = [f"{operator}= {term}" for operator in "+-" for term in terms]
    given = {"a": PAIRS[:, 0].copy(), "b": PAIRS[:, 1].copy(), "begin": SPECIAL[:6].copy()}
    check(*sums_of_some_lanes(updates, 6, condition), given)


def test_fused_sums_of_some_lanes_leave_the_others_alone(target):
    """As above, as one instruction, which production code has."""
    updates = ["+= a[v] * b[v]", "+= c[0] * a[v]", "+= a[v] * c[0]", "+= sums[v] * a[v]"]
    text, buffers = sums_of_some_lanes(updates, 9, "v % 2 == 1")
    source = emit(parse_program(text, buffers), target, contract=True)
    assert "fmadd_ps(" in source.source or "-mfma" not in target.isa_flags
    arrays = {"a": PAIRS[:, 0].copy(), "b": PAIRS[:, 1].copy(), "c": np.full(1, np.inf, np.float32), "begin": SPECIAL}
    arrays["out"] = np.zeros((9, 4, 81), np.float32)
    out = run_source(source, {name: arrays[name] for name in source.buffers}, target, contract=True)["out"]
    assert_same_bits(out[..., ::2], np.broadcast_to(SPECIAL[:, None, None], (9, 4, 41)).copy(), "out")


def test_random_numbers(check):
    check(
        """
for i in parallel(3):
    for v in vector(21):
        y[i, v] = rand(seed[0], step[0], 7, i * 21 + v)
""",
        {"y": buffer(3, 21), "seed": buffer(1, dtype="int32"), "step": buffer(1, dtype="int32")},
        {"seed": np.array([-123456], np.int32), "step": np.array([3], np.int32)},
    )


def test_library_calls(check):
    """4 ULP for each call; the terms do not cancel."""
    check(
        """
for v in vector(21):
    y[v] = exp(x[v]) + log(2.0 + abs(x[v])) + abs(tanh(x[v])) + pow(abs(x[v]), 1.5)
    z[v] = erf(abs(x[v])) + abs(sin(x[v])) + abs(cos(x[v])) + log1p(abs(x[v])) + expm1(abs(x[v]))
""",
        {"x": buffer(21), "y": buffer(21), "z": buffer(21)},
        tolerance=2e-6,
    )


SINGLE = [name for name, function in FUNCTIONS.items() if function.arguments == 1]
ARGUMENTS = np.array([*SPECIAL, 1e-7, -1e-7, 1e-3, -1e-3, 0.3, -0.7, 2.5, -9.0, 40.0, 117.81, -1e5, 0.1], np.float32)


@pytest.mark.parametrize("library", ["this glibc", "an older glibc"])
def test_every_function_within_its_bound(target, library):
    """4 ULP, also near 0 and of numbers that are none; what an older libmvec lacks is computed lane by lane."""
    lines = "".join(f"    {name}_[v] = {name}(x[v])\n" for name in SINGLE)
    count = len(ARGUMENTS)
    buffers = {name: buffer(count) for name in ("x", *(f"{name}_" for name in SINGLE))}
    source = emit(parse_program(f"for v in vector({count}):\n{lines}", buffers), target, contract=False)
    if library == "an older glibc":
        text = source.source.replace("__GLIBC__ * 1000", "0")
        if text == source.source:
            pytest.skip(f"{target.name} calls the C library")
        source = replace(source, source=text)
    given = {name: np.zeros(count, np.float32) for name in buffers} | {"x": ARGUMENTS}
    got = run_source(source, given, target)
    for name in SINGLE:
        with np.errstate(all="ignore"):
            exact = np.array([FUNCTIONS[name].floating(x) for x in ARGUMENTS.astype(np.float64)])
            rounded = exact.astype(np.float32)
            bound = np.where(np.isfinite(rounded), 4 * np.spacing(abs(rounded)), 0)
            found = got[f"{name}_"].astype(np.float64)
            within = (found == rounded) | (abs(found - exact) <= bound) | (np.isnan(exact) & np.isnan(found))
        assert within.all(), (name, ARGUMENTS[~within], found[~within], exact[~within])


@pytest.mark.parametrize("contract", [False, True])
@pytest.mark.parametrize("name", [name for name, known in FUNCTIONS.items() if known.helper])
def test_functions_with_code_of_their_own_at_numbers_of_all_sizes(name, contract, target):
    """4 ULP, from the least numbers to NaNs of all contents; signs of zeros and the ends of the range are kept."""
    x = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    worst = np.float32([0.062243, 0.106154568, 2.43405])  # of all numbers: tanh, erf, tanh
    x = np.concatenate(
        [
            x,
            worst,
            -worst,
            np.linspace(-110, 110, 50_001, dtype=np.float32),
            np.linspace(-4, 4, 50_001, dtype=np.float32),
        ]
    )
    buffers = {"x": buffer(len(x)), "y": buffer(len(x))}
    vectors = f"for i in range(0, {len(x)}, 16):\n    for v in vector(min(16, {len(x)} - i)):\n"
    source = emit(parse_program(f"{vectors}        y[i + v] = {name}(x[i + v])\n", buffers), target, contract=contract)
    assert target.name == "portable" or FUNCTIONS[name].helper in source.source
    found = run_source(source, {"x": x, "y": np.zeros_like(x)}, target, contract=contract)["y"]
    with np.errstate(all="ignore"):
        exact = np.vectorize(FUNCTIONS[name].floating)(x.astype(np.float64))
        rounded = exact.astype(np.float32)
        error = abs(found - exact) / np.spacing(abs(rounded))
    plain = np.isfinite(rounded)
    assert np.array_equal(found[~plain], rounded[~plain], equal_nan=True)
    assert error[plain].max() <= 4, (x[plain][error[plain].argmax()], error[plain].max())
    assert (np.signbit(found) == np.signbit(rounded))[plain].all()
    assert (np.nanmin(found), np.nanmax(found)) == FUNCTIONS[name].range


def test_blocked_layout(check):
    blocked = Layout(((1, 16),))
    check(
        """
for n in parallel(2):
    for c_outer in range(3):
        for x in range(4):
            for c_inner in vector(min(16, 40 - c_outer * 16)):
                y[n, c_outer * 16 + c_inner, x] = v[n, c_outer * 16 + c_inner, x] * w[c_outer * 16 + c_inner,
                0] + b[n]
""",
        {
            "y": buffer(2, 40, 4, layout=blocked),
            "v": buffer(2, 40, 4, layout=blocked),
            "b": buffer(2),
            "w": buffer(40, 1),
        },
    )


def test_vectors_outside_of_parallel_loops(check):
    check(
        """
for i in range(3):
    total: float32[16] = empty(16)
    for v in vector(16):
        total[v] = 0.0
    for n in range(4):
        for v in vector(16):
            total[v] += x[n, v]
    for n in parallel(4):
        for v in vector(16):
            x[n, v] -= total[v] * 0.25
    for n in range(4):
        for v in vector(16):
            y[v] += x[n, v]
            total[v] = y[v]
    for n in parallel(4):
        for v in vector(16):
            x[n, v] += total[v]
""",
        {"x": buffer(4, 16), "y": buffer(16)},
    )
