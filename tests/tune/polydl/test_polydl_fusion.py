"""Algorithm 3: batch norm with ReLU and a convolution with ReLU6, as in the paper; what is not fused, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.tools.tune.subjects import tunables
from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from swirl.tune.polydl.fusion import APART, FIRST, LAST, ONCE, ORDER, SAME, fused, fusion, fusions
from tests.support import assert_same, program

CONVOLUTION = """
def conv(O, I, W):
    for n in range(2):
        for k in range(3):
            for y in range(3):
                for c in range(2):
                    for x in range(4):
                        for ky in range(3):
                            for kx in range(2):
                                O[n, k, y, x] += I[n, c, y + ky, x + kx] * W[k, c, ky, kx]
"""
RELU6 = """
def relu6(O):
    for n in range(2):
        for c in range(3):
            for h in range(3):
                for w in range(4):
                    O[n, c, h, w] = min(max(O[n, c, h, w], 0.0), 6.0)
"""
SHAPES = {"O": (2, 3, 3, 4), "I": (2, 2, 5, 5), "W": (3, 2, 3, 2)}
BATCH_NORM = """
def bnorm(y, x, mean, var, gamma, beta):
    for n in range(2):
        for c in range(3):
            for h in range(4):
                for w in range(5):
                    scaled: float32 = (x[n, c, h, w] - mean[c]) / sqrt(var[c] * var[c] + 1.0)
                    y[n, c, h, w] = gamma[c] * scaled + beta[c]

def relu(y):
    for n in range(2):
        for w in range(5):
            for c in range(3):
                for h in range(4):
                    scaled: float32 = y[n, c, h, w]
                    y[n, c, h, w] = max(scaled, 0.0)
"""
IMAGE, CHANNELS = (2, 3, 4, 5), (3,)


def product(second: str, between: str = "", **shapes: tuple[int, ...]) -> Program:
    text = "def first(C, A, B):\n for i in range(4):\n  for j in range(3):\n   for k in range(5):\n"
    text += "    C[i, j] += A[i, k] * B[k, j]\n"
    return program(text + between + second, **{"A": (4, 5), "B": (5, 3), "C": (4, 3), **shapes})


def failed(before: Program, heavy: str = "first", element_wise: str = "second") -> dict[str, str]:
    """The conditions that do not hold, with the reasons."""
    found = fusion(before, heavy, element_wise)
    if not found.allowed:
        with pytest.raises(CommandError, match="is not fused with"):
            fused(before, heavy, element_wise)
    return {each.name: each.told for each in found.failed}


# --- the paper's figures ------------------------------------------------------------------------------------
def test_figure_20_batch_norm_with_relu() -> None:
    """There is no reduction in what batch norm does to each element, and nothing to peel; one nest writes the array."""
    before = program(BATCH_NORM, y=IMAGE, x=IMAGE, mean=CHANNELS, var=CHANNELS, gamma=CHANNELS, beta=CHANNELS)
    found = fusion(before, "bnorm", "relu")
    assert found.allowed and found.iteration == LAST and len(found.conditions) == 4
    after = assert_same(before, fused(before, "bnorm", "relu"), seeds=(0,))
    (nest,) = after.nests
    assert nest.text.count("for ") == 4 and "if " not in nest.text
    assert nest.text.splitlines()[-1].strip() == "y[n, c, h, w] = max(scaled_1, 0.0)"


@pytest.mark.parametrize("peel", [True, False])
def test_figure_21_a_convolution_with_relu6(peel: bool) -> None:
    """The reduction's loops are c, ky and kx, two of them inside of a loop over results."""
    before = program(CONVOLUTION + RELU6, **SHAPES)
    found = fusion(before, "conv", "relu6")
    assert found.allowed and found.iteration == LAST
    after = assert_same(before, fused(before, "conv", "relu6", peel=peel), seeds=(0,))
    (nest,) = after.nests
    assert ("if c == 1 and ky == 2 and (kx == 1)" in nest.text) == (not peel)
    assert peel == ("if " not in nest.text)
    assert nest.text.count("min(max(O[n, k, y, x], 0.0), 6.0)") == 1
    if peel:  # the last iterations are loops of their own
        assert "range(1, 2)" in nest.text and "range(2, 3)" in nest.text


def test_before_a_heavy_operator_into_the_first_iteration() -> None:
    bias = "def second(C, b):\n for j in range(3):\n  for i in range(4):\n   C[i, j] = b[j]\n"
    text = "def first(C, A, B):\n for i in range(4):\n  for j in range(3):\n   for k in range(5):\n"
    text += "    C[i, j] += A[i, k] * B[k, j]\n"
    before = program(bias + text, A=(4, 5), B=(5, 3), C=(4, 3), b=(3,))
    found = fusion(before, "first", "second")
    assert found.allowed and found.iteration == FIRST
    after = assert_same(before, fused(before, "first", "second"), seeds=(0,))
    assert len(after.nests) == 1 and after.text.count("C[i, j] = b[j]") == 1 and "if " not in after.text
    assert "if k == 0" in fused(before, "first", "second", peel=False).text


def test_loops_that_count_down_and_tiles_have_a_last_iteration_too() -> None:
    text = "def first(C, A):\n for io in range(2):\n  for k in range(4, -1, -2):\n   for ii in range(2):\n"
    text += "    C[io * 2 + ii] += A[io * 2 + ii, k]\ndef second(C):\n for i in range(4):\n  C[i] = sqrt(abs(C[i]))\n"
    before = program(text, A=(4, 5), C=(4,))
    after = assert_same(before, fused(before, "first", "second"), seeds=(0,))
    assert "if k == 0:" in after.text and len(after.nests) == 1  # a loop of step -2 is not split


def test_borders_do_not_hide_the_last_iteration() -> None:
    text = "def first(y, x, w):\n for i in range(5):\n  y[i] = 0.0\n  for t in range(3):\n"
    text += "   if i + t >= 1 and i + t < 6:\n    y[i] += x[i + t - 1] * w[t]\n"
    text += "def second(y):\n for i in range(5):\n  y[i] = max(y[i], 0.0)\n"
    before = program(text, x=(5,), w=(3,), y=(5,))
    assert_same(before, fused(before, "first", "second"), seeds=(0,))


def test_loops_of_one_name() -> None:
    text = "def first(m, x, y):\n for c in range(3):\n  for n in range(4):\n   y[n, c] = x[n, c]\n"
    text += "  for n in range(4):\n   for t in range(2):\n    y[n, c] += x[n, t]\n"
    before = program(
        text + "def second(y):\n for n in range(4):\n  for c in range(3):\n   y[n, c] = y[n, c] * 2.0\n",
        x=(4, 3),
        y=(4, 3),
        m=(3,),
    )
    after = assert_same(before, fused(before, "first", "second"), seeds=(0,))
    assert len(after.nests) == 1


# --- what is not fused --------------------------------------------------------------------------------------
def test_other_elements() -> None:
    assert (
        failed(
            product("def second(C, D):\n for i in range(4):\n  for j in range(3):\n   D[i, j] = C[i, j]\n", D=(4, 3))
        )[SAME]
        == "first writes C, second D"
    )
    told = failed(
        product("def second(C):\n for i in range(4):\n  for j in range(2):\n   C[i, j] = max(C[i, j], 0.0)\n")
    )
    assert told == {SAME: "not all elements of C that one writes, the other one does"}


def test_a_reduction_is_not_element_wise() -> None:
    text = "def second(C):\n for i in range(4):\n  for j in range(3):\n   for t in range(2):\n"
    text += "    C[i, j] = C[i, j] * 2.0\n"
    assert failed(product(text)) == {ONCE: "second has 24 iterations, and writes 12 elements"}
    text = "def second(C, s):\n for i in range(4):\n  s[0] = 1.0\n  for j in range(3):\n   C[i, j] = C[i, j] * s[0]\n"
    assert ONCE in failed(product(text, s=(1,)))


def test_code_between_uses_the_elements() -> None:
    second = "def second(C):\n for i in range(4):\n  for j in range(3):\n   C[i, j] = max(C[i, j], 0.0)\n"
    reads = "def third(C, s):\n for i in range(4):\n  s[0] += C[i, 0]\n"
    assert failed(product(second, reads, s=(1,))) == {APART: "third uses elements of C"}
    assert not failed(product(second, "def third(s):\n for i in range(4):\n  s[0] += 1.0\n", s=(1,)))


def test_the_heavy_operator_uses_what_was_changed() -> None:
    """The paper's three conditions hold; its algorithm would change what the recurrence reads."""
    text = "def first(C, A):\n for i in range(1, 5):\n  for k in range(3):\n   C[i] += C[i - 1] * A[k]\n"
    text += "def second(C):\n for i in range(1, 5):\n  C[i] = max(C[i], 0.0)\n"
    before = program(text, A=(3,), C=(5,))
    found = fusion(before, "first", "second")
    assert [each.holds for each in found.conditions] == [True, True, True, False]
    assert ORDER in failed(before)


def test_code_between_changes_what_is_read() -> None:
    second = "def second(C, s):\n for i in range(4):\n  for j in range(3):\n   C[i, j] = C[i, j] * s[0]\n"
    between = "def third(s):\n for i in range(1):\n  s[0] = 2.0\n"
    assert failed(product(second, between, s=(1,))) == {ORDER: "third, between the two, changes s"}


def test_iterations_that_depend_on_each_other() -> None:
    second = "def second(C):\n for i in range(4):\n  for j in range(3):\n   C[i, j] = C[i, j] + C[0, 0]\n"
    assert ORDER in failed(product(second))


def test_names_that_do_not_exist() -> None:
    before = program(CONVOLUTION + RELU6, **SHAPES)
    with pytest.raises(CommandError, match="there is no nest 'relu'"):
        fusion(before, "conv", "relu")
    with pytest.raises(CommandError, match="cannot be fused with itself"):
        fusion(before, "conv", "conv")


def test_all_neighbours_in_both_roles() -> None:
    before = program(CONVOLUTION + RELU6, **SHAPES)
    found = {(each.heavy, each.element_wise): each.allowed for each in fusions(before)}
    assert found == {("conv", "relu6"): True, ("relu6", "conv"): False}


# --- chains of ours -----------------------------------------------------------------------------------------
def chains() -> Iterator[tuple[str, Program]]:
    """Kinds and phase of each chain of a net, and its program before any command."""
    net = Net(16, seed=1)
    data = MemoryDataLayer(net, (16, 8, 8))
    ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, num_filters=16, kernel=1, stride=1, pad=0)))
    for each in tunables(net, TARGETS["avx512"], 2)[0]:
        if len(each.kinds) > 1:
            yield f"{'_'.join(each.kinds)} {each.phase}", each.subject.program


def test_what_chains_relax_as_documented() -> None:
    """As docs/tuning.md says: the operators write arrays of their own, and batch norm is a reduction, too."""
    found = {}
    for name, before in chains():
        pairs = fusions(before)
        best = [min(pairs[n : n + 2], key=lambda each: len(each.failed)) for n in range(0, len(pairs), 2)]
        found[name] = [(each.iteration, [condition.name for condition in each.failed]) for each in best]
    assert found == {
        "batch_norm_relu backward": [(FIRST, [SAME])],
        "conv_batch_norm_relu forward": [(LAST, [SAME, ONCE]), (LAST, [SAME])],
    }
