"""Compiled scalar code = the executed nest, bit for bit."""

import numpy as np
import pytest

from swirl.ir.buffers import Buffer, Layout
from tests.codegen.conftest import together

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)


def buffer(*shape: int, dtype: str = "float32", layout: Layout | None = None) -> Buffer:
    return Buffer("storage", shape, dtype, layout=layout or Layout())


def test_convolution(check):
    check(
        """
def conv1_forward_0(value, bias, weights, inputs):
    for n in parallel(3):
        for k in range(4):
            for y in range(5):
                for x in range(7):
                    acc: float32 = bias[k, 0]
                    for c in range(3):
                        for ky in range(3):
                            for kx in range(3):
                                acc += weights[k, c, ky, kx] * inputs[n, c, y + ky, x + kx]
                    value[n, k, y, x] = acc
""",
        {
            "value": buffer(3, 4, 5, 7),
            "bias": buffer(4, 1),
            "weights": buffer(4, 3, 3, 3),
            "inputs": buffer(3, 3, 7, 9),
        },
    )


def test_literals_and_divisions(check):
    check(
        """
for i in range(9):
    y[i] = 0.1 * x[i] + 1 / (x[i] + 3) - 2
    y[i] /= 7
    z[i] = -x[i] * (1.0 / 3.0) - (x[i] - (x[i] - 0.7)) + 1e-7 * (0 - 1e10)
""",
        {"x": buffer(9), "y": buffer(9), "z": buffer(9)},
    )


@together(
    call=[
        "max(x[i], y[j])",
        "min(x[i], y[j])",
        "max(0.0, x[i])",
        "min(1, x[i], y[j])",
        "x[i] if x[i] != y[j] else 3.0",
        "1.0 if x[i] <= y[j] else 0.0",
        "1.0 if not x[i] < y[j] and y[j] > 0 or x[i] == 1 else 0.0",
        "abs(x[i]) + 0.0 * y[j]",
        "floor(x[i])",
        "sqrt(x[i]) - y[j]",
    ],
)
def test_special_values(check, call):
    check(
        f"""
for i in range(9):
    for j in range(9):
        out[i, j] = {call}
""",
        {"x": buffer(9), "y": buffer(9), "out": buffer(9, 9)},
        {"x": SPECIAL, "y": SPECIAL},
    )


def test_floor_division_of_negatives(check):
    check(
        """
for i in range(-9, 10):
    q[i + 9] = i // 4 * 100 + i % 4
    r[i + 9] = a[i + 9] // b[0] * 100 + a[i + 9] % b[0]
""",
        {
            "q": buffer(19, dtype="int32"),
            "r": buffer(19, dtype="int32"),
            "a": buffer(19, dtype="int32"),
            "b": buffer(1, dtype="int32"),
        },
        {"a": np.arange(-9, 10, dtype=np.int32), "b": np.array([-4], np.int32)},
    )


def test_steps_bounds_and_conditions(check):
    check(
        """
for i in range(20, 2, -3):
    for j in range(i // 3, min(i, 11), 2):
        if j % 4 == 1 and flag[j]:
            x[i, j] += float32(i) * y[j]
        else:
            x[i, j] = float32(int32(y[j] * 10.0))
            flag[j] = y[j] > 0.5
""",
        {"x": buffer(21, 12), "y": buffer(12), "flag": buffer(12, dtype="bool")},
    )


def test_integer_and_indirect(check):
    check(
        """
for i in range(7):
    k: int32 = index[i] * 2 + 1
    y[i] = table[index[i], i] + table[k // 3, 2] - float32(k)
    index[i] += 1
    index[i] *= i
""",
        {"index": buffer(7, dtype="int32"), "table": buffer(8, 7), "y": buffer(7)},
        {"index": np.array([0, 1, 7, 3, 5, 2, 6], np.int32)},
    )


def test_unrolled_register_arrays(check, target):
    check(
        """
for i in parallel(5):
    acc: float32[3, 2] = empty(3, 2)
    for a in unrolled(3):
        for b in unrolled(2):
            acc[a, b] = 0.0
    for c in range(11):
        for a in unrolled(3):
            t: float32 = x[i, c] * float32(a)
            for b in unrolled(2):
                acc[a, b] += t * y[c, a * 2 + b]
    for a in unrolled(3):
        for b in unrolled(1, 2):
            out[i, a] = acc[a, b] - acc[2 - a, 0]
            if a + b >= 3:
                out[i, a] += 1.0
""",
        {"x": buffer(5, 11), "y": buffer(11, 6), "out": buffer(5, 3)},
    )


def test_local_array_in_memory(check):
    check(
        """
for i in parallel(4):
    t: float32[6, 5] = empty(6, 5)
    hits: int32[6] = empty(6)
    for j in range(6):
        hits[j] = j * j
        for k in range(5):
            t[j, k] = x[i, k] * x[i, j]
    for j in range(6):
        for k in range(5):
            y[i, j] += t[j, k] * float32(hits[j])
""",
        {"x": buffer(4, 6), "y": buffer(4, 6)},
    )


def test_collapse_single_and_outer_loops(check):
    check(
        """
for step in range(4):
    total: float32 = s[0]
    for n in parallel(3, schedule="dynamic,1"):
        for c in parallel(5):
            x[n, c] += total * 0.25
    s[0] = 0.0
    for n in range(3):
        for c in range(5):
            s[0] += x[n, c]
    scale: float32 = s[0] / 15.0
    count: float32 = 0.0
    for n in range(3):
        count += scale
        t[n] = count
    if s[0] > 0:
        for n in parallel(3):
            x[n, 0] -= scale * t[n] - count
    else:
        s[0] = 1.0
for n in range(3):
    t[n] *= 0.5
""",
        {"x": buffer(3, 5), "s": buffer(1), "t": buffer(3)},
    )


def test_random_numbers(check):
    check(
        """
for i in range(40):
    y[i] = rand(seed[0], step[0], 7, i)
""",
        {"y": buffer(40), "seed": buffer(1, dtype="int32"), "step": buffer(1, dtype="int32")},
        {"seed": np.array([-123456], np.int32), "step": np.array([3], np.int32)},
    )


def test_library_calls(check):
    """The C library's single-precision functions are within 2 ULP of the exact result, NumPy's within 4."""
    check(
        """
for i in range(50):
    y[i] = exp(x[i]) + log(abs(x[i])) + tanh(x[i]) * pow(abs(x[i]), 1.5)
    z[i] = erf(abs(x[i])) + abs(sin(x[i])) + abs(cos(x[i])) + log1p(abs(x[i])) + expm1(abs(x[i]))
""",
        {"x": buffer(50), "y": buffer(50), "z": buffer(50)},
        tolerance=2e-6,
    )


def test_names_that_cpp_reserves(check):
    check(
        """
for int in range(4):
    float: float32 = new[int] * 2.0
    double_: float32[2] = empty(2)
    double_[0] = float
    maximum[int] = max(float, double_[0])
""",
        {"new": buffer(4), "maximum": buffer(4)},
    )


def test_doubles_on_the_portable_target(check, target):
    if target.name != "portable":
        pytest.skip("float64 is for the portable target")
    check(
        """
for i in parallel(5):
    for v in vector(8):
        t: float64 = x[i, v] / 3 + 0.1
        y[i, v] = max(t, 0.5) if sqrt(abs(t)) > 0.3 else -t
""",
        {"x": buffer(5, 8, dtype="float64"), "y": buffer(5, 8, dtype="float64")},
    )


def test_layouts(check):
    blocked = Layout(((1, 4),))
    check(
        """
for n in parallel(2):
    for c_outer in range(3):
        for c_inner in range(min(4, 10 - c_outer * 4)):
            for x in range(5):
                y[n, c_outer * 4 + c_inner, x] = v[n, c_outer * 4 + c_inner, x] * w[c_outer * 4 + c_inner, x]
    for c in range(1, 10):
        y[n, c, 0] += v[n, c - 1, 1]
""",
        {
            "y": buffer(2, 10, 5, layout=blocked),
            "v": buffer(2, 10, 5, layout=blocked),
            "w": buffer(10, 5, layout=Layout(((1, 2), (0, 4)))),
        },
    )


def test_large_local_arrays_are_no_stack_frames(check):
    """300 KB of storage of each thread; and a single thread's small array handed to the others."""
    check(
        """
for i in parallel(4):
    t: float32[300, 256] = empty(300, 256)
    for j in range(300):
        for k in range(256):
            t[j, k] = x[i, k % 6] * 0.5
    for j in range(300):
        y[i, j % 6] += t[j, 255 - j % 256]
for once in range(2):
    part: float32[6] = empty(6)
    for j in range(6):
        part[j] = 0.0
    for i in range(4):
        for j in range(6):
            part[j] += y[i, j]
            y[i, j] = part[j]
    for i in parallel(4):
        for j in range(6):
            y[i, j] -= part[j]
""",
        {"x": buffer(4, 6), "y": buffer(4, 6)},
    )
