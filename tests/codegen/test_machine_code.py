"""What the compiler makes of generated code: vector instructions, one FMA for a product and a sum, no spills."""

import re
import shutil

import pytest

from latte.tools.bench.assembly import busiest_loop, counts, instructions
from swirl.build.jit import build
from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, Target
from tests.codegen.conftest import why_not_made

CONVOLUTION = """
for n in parallel(64):
    for k in range(2):
        for y in range(14):
            acc: float32[14, 2, 16] = empty(14, 2, 16)
            for j in unrolled(14):
                for i in unrolled(2):
                    for v in vector(16):
                        acc[j, i, v] = bias[k * 32 + i * 16 + v]
            for c_outer in range(4):
                for ky in range(3):
                    for kx in range(3):
                        for c_inner in range(16):
                            for j in unrolled(14):
                                for i in unrolled(2):
                                    for v in vector(16):
                                        w: float32 = weights[k, c_outer, ky, kx, c_inner, i * 16 + v]
                                        acc[j, i, v] += w * inputs[n, c_outer, y + ky, j + kx, c_inner]
            for j in unrolled(14):
                for i in unrolled(2):
                    for v in vector(16):
                        value[n, k, y, j, i * 16 + v] = acc[j, i, v]
"""
CONVOLUTION_BUFFERS = {
    "bias": Buffer("bias", (64,)),
    "weights": Buffer("weights", (2, 4, 3, 3, 16, 32)),
    "inputs": Buffer("inputs", (64, 4, 16, 16, 16)),
    "value": Buffer("value", (64, 2, 14, 14, 32)),
}


def target_named(name: str, *, runs: bool = False) -> Target:
    """The target, or a visible skip where this machine or its tools cannot show its code, or (``runs``) run it."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    reason = why_not(TARGETS[name])
    if reason is not None and not runs:
        reason = why_not_made(TARGETS[name])
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return TARGETS[name]


def disassembled(program: Program, target: Target, contract: bool = True) -> list[tuple[str, str]]:
    """``(address, instruction)`` of the kernel's library."""
    source = emit(program, target, contract=contract)
    (built,) = build([source], target, contract=contract)
    return instructions(built.path, built.name)


def test_register_tile_of_a_convolution():
    """docs/convolution.md, forward: 14 pixels × 2 vectors, two loads and 14 broadcasts for 28 FMAs."""
    target = target_named("avx512")
    code = disassembled(parse_program(CONVOLUTION, CONVOLUTION_BUFFERS), target)
    loop = busiest_loop(code)
    found = counts(loop)
    assert (found.multiply_adds, found.loads, found.broadcasts, found.spills) == (28, 2, 14, 0)
    assert sum(bool(re.match(r"vfmadd.*zmm", text)) for text in loop) == 28
    assert sum("fmadd" in text for _, text in code) == 28
    assert len(loop) <= 70


@pytest.mark.parametrize(("name", "register"), [("avx512", "zmm"), ("avx2", "ymm")])
def test_vector_instructions(name, register):
    """Every operation is done on whole registers; a masked tail uses no scalar loop."""
    target = target_named(name)
    text = """
for n in parallel(8):
    for x in range(0, 100, 16):
        for v in vector(min(16, 100 - x)):
            y[n, x + v] = max(0.0, sqrt(a[n, x + v]) / b[n] - a[n, x + v]) if a[n, x + v] > 0.5 else -1.0
"""
    buffers = {"a": Buffer("a", (8, 100)), "b": Buffer("b", (8,)), "y": Buffer("y", (8, 100))}
    code = [text for _, text in disassembled(parse_program(text, buffers), target)]
    for instruction in ("vsqrtps", "vdivps", "vsubps", "vmaxps", "vbroadcastss", "vcmp"):
        assert any(text.startswith(instruction) and register in text for text in code), instruction
    assert not [text for text in code if re.match(r"v(sqrt|div|sub|max)ss", text)]


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_elements_apart_are_loaded_without_masks_where_all_are_there(stride):
    """On AVX2; some processors take several times as long for a load with a mask."""
    buffers = {"x": Buffer("x", (8, 7 * stride + 1)), "y": Buffer("y", (8, 8))}
    text = f"for n in range(8):\n    for v in vector(8):\n        y[n, v] = x[n, {stride} * v]\n"
    code = [text for _, text in disassembled(parse_program(text, buffers), target_named("avx2"))]
    assert any(text.startswith("vpermps") for text in code)
    assert not [text for text in code if text.startswith("vmaskmov")]


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_equal_function_values_are_computed_once(name):
    """Gradients of nested functions repeat them: softplus has the exponential four times."""
    target = target_named(name)
    lanes = target.simd_width
    text = f"for i in vector({lanes}):\n y[i] = exp(x[i]) / (1.0 + exp(x[i])) if z[i] > 0.0 else 2.0 * exp(x[i])"
    buffers = {buffer: Buffer(buffer, (lanes,)) for buffer in "xyz"}
    once = {"avx512": "vscalefps", "avx2": "vmovmskps"}[name]  # what each exponential has one of
    found = [text for _, text in disassembled(parse_program(text, buffers), target) if text.startswith(once)]
    assert len(found) == 1, found


def test_no_contraction_without_permission():
    target = target_named("avx512")
    code = disassembled(parse_program(CONVOLUTION, CONVOLUTION_BUFFERS), target, contract=False)
    assert not [text for _, text in code if "fmadd" in text]


@pytest.mark.parametrize(("pixels", "stores"), [(784, 5), (192, 12)])
def test_unrolled_loops_are_not_unrolled_again(pixels, stores):
    """A pass over images of 28 × 28, four vectors at a time, is a loop of four; a few more copies are welcome."""
    target = target_named("avx512")
    whole = pixels // 64 * 64
    text = f"""
for n in range(64):
    for x in range(0, {whole}, 64):
        for part in unrolled(4):
            for v in vector(16):
                y[n, x + part * 16 + v] = a[0] * inputs[n, x + part * 16 + v]
    for x in range({whole}, {pixels}, 16):
        for v in vector(16):
            y[n, x + v] = a[0] * inputs[n, x + v]
"""
    buffers = {"a": Buffer("a", (1,)), "inputs": Buffer("inputs", (64, pixels)), "y": Buffer("y", (64, pixels))}
    code = [text for _, text in disassembled(parse_program(text, buffers), target)]
    assert sum(bool(re.match(r"vmov[au]ps (ZMMWORD PTR )?\[.*zmm", text)) for text in code) == stores
