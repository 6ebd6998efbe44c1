"""The text of kernels and listings: names, order of buffers, work sharing, refusals."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from swirl.codegen.context import Unsupported
from swirl.codegen.emit import emit, listing
from swirl.codegen.physical import physical
from swirl.errors import LatteError
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.execute import execute
from swirl.ir.nest import parse_program
from swirl.target.targets import TARGETS

BATCH_NORM = """
def batch_norm1_forward_0(value, inputs, mean, var, gamma, beta):
    for c in parallel(8, schedule="dynamic,1"):
        total: float32[2, 16] = empty(2, 16)
        for j in unrolled(2):
            for v in vector(16):
                total[j, v] = 0.0
        for n in range(4):
            for h in range(32):
                for j in unrolled(2):
                    for v in vector(16):
                        total[j, v] += inputs[n, c, h, j * 16 + v]
        for v in vector(16):
            total[0, v] += total[1, v]
        for v in vector(8):
            total[0, v] += total[0, v + 8]
        for v in vector(4):
            total[0, v] += total[0, v + 4]
        for v in vector(2):
            total[0, v] += total[0, v + 2]
        for v in vector(1):
            total[0, v] += total[0, v + 1]
        mean[c] = total[0, 0] / 4096
        scale: float32 = gamma[c] / sqrt(var[c] + 1e-05)
        for n in range(4):
            for h in range(32):
                for j in unrolled(2):
                    for v in vector(16):
                        x_hat: float32 = inputs[n, c, h, j * 16 + v] - mean[c]
                        value[n, c, h, j * 16 + v] = x_hat * scale + beta[c]
"""
IMAGES = (4, 8, 32, 32)
BATCH_NORM_BUFFERS = {
    "value": Buffer("bn.value", IMAGES),
    "inputs": Buffer("conv.value", IMAGES),
    **{name: Buffer(f"bn.{name}", (8,)) for name in ("mean", "var", "gamma", "beta")},
}


def small(text: str, **shapes: tuple[int, ...]):
    return parse_program(text, {name: Buffer(f"x.{name}", shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_listing(target, snapshot):
    """The listing people read, as thesis Fig. 3.9."""
    program = parse_program(BATCH_NORM, BATCH_NORM_BUFFERS, "batch_norm1.forward")
    assert listing(program, TARGETS[target]) == snapshot


def test_kernel(snapshot):
    program = parse_program(BATCH_NORM, BATCH_NORM_BUFFERS, "batch_norm1.forward")
    assert emit(program, TARGETS["avx512"]).source == snapshot


def test_equal_programs_share_a_kernel():
    """Neither labels nor storage names enter; shapes, layouts and the target do."""
    target = TARGETS["avx512"]
    text = "for i in parallel(4):\n    y[i, 0] = x[i, 0] * 2.0\n"
    one = small(text, x=(4, 3), y=(4, 3))
    other = replace(
        parse_program(text, {"y": Buffer("b.y", (4, 3)), "x": Buffer("b.x", (4, 3))}, "conv7.backward"),
        commands=("x",),
    )
    assert emit(one, target) == emit(other, target)
    assert emit(one, target).buffers == emit(other, target).buffers
    assert emit(one, target).name != emit(one, TARGETS["portable"]).name
    assert emit(one, target).name != emit(small(text, x=(4, 5), y=(4, 3)), target).name
    blocked = one.with_buffers(x=one.buffers["x"].with_layout(Layout(((0, 2),))))
    assert emit(one, target).name != emit(blocked, target).name


def test_unused_helpers_are_left_out():
    source = emit(small("for i in parallel(4):\n    y[i] = x[i] * 2.0\n", x=(4,), y=(4,)), TARGETS["avx512"]).source
    assert "static inline" not in source
    assert "immintrin" not in source


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize(
    ("value", "needed"),
    [
        ("x[i] * 2.0", False),
        ("max(x[i], 0.0)", False),
        ("sqrt(x[i])", True),
        ("abs(x[i])", True),
        ("tanh(x[i])", True),
        ("max(x[i], -INFINITY)", True),
    ],
)
def test_the_mathematical_library_is_read_where_it_is_needed(value, needed, target):
    source = emit(small(f"for i in range(4):\n    y[i] = {value}\n", x=(4,), y=(4,)), TARGETS[target]).source
    assert ("#include <cmath>" in source) == needed


def test_work_sharing():
    program = small(
        """
for step in range(3):
    scale: float32 = total[0]
    for n in parallel(4, schedule="dynamic,1"):
        for c in parallel(5):
            x[n, c] *= scale
    total[0] = 0.0
    for n in range(4):
        total[0] += x[n, 0]
total[0] = 1.0
""",
        x=(4, 5),
        total=(1,),
    )
    source = emit(program, TARGETS["portable"]).source
    pragmas = [line.strip() for line in source.splitlines() if "#pragma" in line]
    assert pragmas == [
        "#pragma omp barrier",  # no thread may write `total` before all have read it
        "#pragma omp for collapse(2) schedule(dynamic,1)",
        "#pragma omp single",
        "#pragma omp single",
    ]
    shown = [line.strip() for line in listing(program, TARGETS["portable"]).splitlines() if "#pragma" in line]
    assert shown == ["#pragma omp parallel for collapse(2) schedule(dynamic,1)"]


def test_one_thread_hands_locals_to_the_others():
    program = small(
        """
for step in range(3):
    total: float32 = 0.0
    for n in range(4):
        total += x[n]
        x[n] = total
    for n in parallel(4):
        x[n] -= total
""",
        x=(4,),
    )
    assert "#pragma omp single copyprivate(total)" in emit(program, TARGETS["avx2"]).source


def test_dead_branches_of_unrolled_copies_vanish():
    program = small(
        """
for x in parallel(8):
    for kx in unrolled(3):
        if kx >= 1 and x + kx - 1 >= 0:
            y[x] += w[kx] * z[x + kx - 1]
""",
        y=(8,),
        w=(3,),
        z=(10,),
    )
    body = emit(program, TARGETS["portable"]).source
    assert "if" not in body
    assert "w[0]" not in body
    assert "y[x] += w[1] * z[x];" in body
    assert "y[x] += w[2] * z[x + 1];" in body


def test_of_a_condition_stays_what_a_copy_leaves_open():
    program = small(
        """
for y in range(3):
    for x in unrolled(9):
        if x + y >= 1 and x + y < 9:
            v[y, x] = z[x + y - 1]
        if x >= 1 and (y > 3 or x + y == 5):
            v[y, x] = 0.0
""",
        v=(3, 9),
        z=(8,),
    )
    body = emit(program, TARGETS["portable"]).source
    assert body.count("if (y >= 1) {") == 1  # the first copy
    assert "if (y + 7 < 9) {" in body
    assert body.count("if (y + 8 < 9) {") == 1
    assert "&&" not in body
    assert "||" not in body
    assert "if (y + 4 == 5) {" in body


def test_physical_programs_run():
    buffers = {"y": Buffer("y", (2, 10, 3), layout=Layout(((1, 4),))), "x": Buffer("x", (10, 3))}
    program = parse_program(
        """
for n in parallel(2):
    for c_outer in range(3):
        for c_inner in range(min(4, 10 - c_outer * 4)):
            for i in range(3):
                y[n, c_outer * 4 + c_inner, i] += x[c_outer * 4 + c_inner, i]
    for c in range(9):
        y[n, c + 1, 0] = y[n, c, 1]
""",
        buffers,
    )
    low = physical(program)
    assert "y[n, c_outer, i, c_inner] += x[c_outer * 4 + c_inner, i]" in low.text
    assert "y[n, (c + 1) // 4, 0, (c + 1) % 4] = y[n, c // 4, 1, c % 4]" in low.text
    assert low.buffers["y"].shape == (2, 3, 3, 4)
    assert not low.buffers["y"].layout.blocks
    assert physical(low) is low
    generator = np.random.default_rng(0)
    arrays = {name: generator.normal(size=b.shape).astype(np.float32) for name, b in buffers.items()}
    packed = {name: buffers[name].layout.pack(array) for name, array in arrays.items()}
    execute(program, arrays)
    execute(low, packed)
    np.testing.assert_array_equal(buffers["y"].layout.unpack(packed["y"], (2, 10, 3)), arrays["y"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("for i in range(4):\n    y[i] = gamma(x[i])\n", r"there is no call gamma: gamma\(x\[i\]\)"),
        ("for i in range(4):\n    y[i] = x[i] // 2.0\n", "// is for integers"),
        ("for i in range(4):\n    y[i] = z[i]\n", "z is not declared here"),
        ("for i in range(4):\n    y[i] = t\n", "t is not declared"),
        ("t: float32 = 0.0\n", None),
        ("for i in range(4):\n    y[x[i]] = 0.0\n", "not an integer"),
        ("for v in vector(4):\n    y[0] += x[v]\n", r"every lane of the loop over v would write one element"),
        (
            "for i in range(1):\n    t: float32 = 0.0\n    for v in vector(4):\n        t = x[v]\n",
            "every lane",
        ),
        (
            "for v in vector(4):\n    for i in range(2):\n        y[v] = x[v]\n",
            "a vector loop holds assignments",
        ),
        ("for v in vector(1, 4):\n    y[v] = x[v]\n", "a vector loop starts at 0"),
        ("for v in vector(4):\n    y[v] = rand(v, 0, 0, 0)\n", "only the index of rand"),
        ("for i in range(4):\n    for v in vector(i + 1):\n        y[v] = x[v]\n", None),
        ("for i in range(4):\n    print(i)\n", "not a statement of the grammar"),
        (
            "for i in range(1):\n    t: float32 = 0.0\n    for n in parallel(4):\n        t = x[n]\n",
            "the parallel loop over n writes t",
        ),
    ],
)
def test_refusals_name_the_construct(text, words):
    program = small(text, x=(4,), y=(4,))
    if words is None:
        emit(program, TARGETS["avx512"])
        return
    with pytest.raises(LatteError, match=words):
        emit(program, TARGETS["avx512"])


def test_doubles_have_no_vector_registers():
    buffers = {name: Buffer(name, (8,), "float64") for name in ("x", "y")}
    vectors = parse_program("for v in vector(8):\n    y[v] = x[v] + 1.0\n", buffers)
    scalars = parse_program("for v in range(8):\n    y[v] = x[v] + 0.1\n", buffers)
    with pytest.raises(Unsupported, match="no vector loops over float64"):
        emit(vectors, TARGETS["avx512"])
    assert "x[v] + 0.1;" in emit(scalars, TARGETS["avx512"]).source
    emit(vectors, TARGETS["portable"])


def test_importing_leaves_no_trace():
    """NumPy, configparser and logging are as before the import of ctree; it makes no temporary folder."""
    code = """
import configparser, logging, tempfile
import numpy as np

def state():
    parser = dict(vars(configparser.ConfigParser))
    return parser, logging.basicConfig, hasattr(np, "bool8"), logging.root.handlers[:]

before = state()
tempfile.mkdtemp = None
import swirl.codegen.ctree_compat
assert before == state()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
