"""AutoMCL's schedules for convolutions: they compute the same, whatever the sizes, the names and the target."""

from __future__ import annotations

from functools import cache

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.tools.tune.subjects import Tunable, tunables
from swirl.errors import CommandError
from swirl.ir.nest import Program, kind_of
from swirl.ir.paths import loops
from swirl.target.targets import TARGETS, Target
from swirl.tune.automcl.complexity import CONV, CONVOPT
from swirl.tune.automcl.convolutions import CONVOLUTIONS, ConvTiling, conv_recipe, conv_space, conv_tile
from swirl.tune.automcl.factors import Filter
from swirl.tune.automcl.roles import Window, convolution_of
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.prepared import prepared
from swirl.tune.problem import problem_of
from tests.support import assert_compiles_to_same, assert_same, merged, program, running_targets

AVX2, AVX512 = TARGETS["avx2"], TARGETS["avx512"]


def convolution(n: int, oc: int, ic: int, oh: int, ow: int, kernel: int, stride: int = 1, dilation: int = 1) -> Program:
    names = [("b", n), ("o", oc), ("y", oh), ("x", ow), ("i", ic), ("ky", kernel), ("kx", kernel)]
    text = "".join(f"{' ' * depth}for {name} in range({size}):\n" for depth, (name, size) in enumerate(names))
    at = [f"{pixel} * {stride} + k{pixel} * {dilation}" for pixel in ("y", "x")]
    text += f"       C[b, o, y, x] += D[b, i, {at[0]}, {at[1]}] * W[o, i, ky, kx]"
    reach = [(size - 1) * stride + (kernel - 1) * dilation + 1 for size in (oh, ow)]
    return program(text, C=(n, oc, oh, ow), D=(n, ic, *reach), W=(oc, ic, kernel, kernel))


def made(schedule: str, tiling: ConvTiling, before: Program, target: Target = AVX2) -> Candidate:
    """What a schedule makes; it computes the same."""
    subject = Subject.alone(before, "forward", ("net.", "program."), target)
    found = subject.by(conv_recipe(schedule, tiling, "forward"))
    assert_same(before, found.scheduled, seeds=(0,))
    return found


CASES = [
    (convolution(2, 16, 4, 3, 6, 3), ConvTiling(3, 2, 8)),
    (convolution(1, 16, 6, 2, 5, 2, 2), ConvTiling(5, 3, 16)),
    (convolution(1, 7, 3, 2, 3, 1), ConvTiling(1, 1, 7)),
    (convolution(1, 12, 1, 3, 4, 2, 1, 2), ConvTiling(2, 1, 4)),
]


@pytest.mark.parametrize("schedule", CONVOLUTIONS)
@pytest.mark.parametrize(("before", "tiling"), CASES, ids=[str(case[1]) for case in CASES])
def test_any_size(schedule: str, before: Program, tiling: ConvTiling) -> None:
    made(schedule, tiling, before)
    if schedule == CONV:
        made(schedule, ConvTiling(tiling.owt, tiling.ict, tiling.oct, unroll_kw=True), before, AVX512)


@pytest.mark.parametrize("name", running_targets())
def test_they_run_on_every_target(name: str) -> None:
    target = TARGETS[name]
    lanes = target.simd_width
    before = convolution(1, 2 * lanes, 4, 3, 6, 3)
    every = [
        made(CONV, ConvTiling(3, 2, lanes, True), before, target),
        made(CONVOPT, ConvTiling(6, 4, 2 * lanes), before, target),
    ]
    assert_compiles_to_same(merged([each.program for each in every]), target)


def order(found: Program, nest: int) -> list[str]:
    return [node.target.id for _, node in loops(found.nests[nest].body) if kind_of(node) != "vector"]  # type: ignore[attr-defined]


def test_conv_opt_copies_a_block_of_weights_at_a_time() -> None:
    """The difference of the two (remark 1): where the loop over a kernel's rows is."""
    before = convolution(1, 16, 8, 2, 6, 3)
    copies = [order(made(schedule, ConvTiling(3, 4, 8), before).scheduled, 0)[:4] for schedule in CONVOLUTIONS]
    names = {
        f"W_packed_dim{number}": short for number, short in (("0_outer", "o"), ("1_outer", "i"), (2, "ky"), (3, "kx"))
    }
    assert [[names[name] for name in own] for own in copies] == [["o", "ky", "i", "kx"], ["o", "i", "ky", "kx"]]


def test_taps_are_copies_where_conv_is_asked_for_it() -> None:
    before = convolution(1, 16, 8, 2, 6, 3)
    assert "kx_unrolled" in made(CONV, ConvTiling(3, 4, 8, unroll_kw=True), before).scheduled.text
    assert "kx_unrolled" not in made(CONVOPT, ConvTiling(3, 4, 8, unroll_kw=True), before).scheduled.text


def test_roles_and_tiles() -> None:
    own = convolution_of(problem_of(convolution(2, 16, 4, 3, 6, 3, 2), 8))
    assert (own.oc, own.ic, own.ow, own.data, own.weights, own.outer) == ("o", "i", "x", "D", "W", ("b",))
    assert own.windows == (Window("y", "ky", 2, 1), Window("x", "kx", 2, 1))
    tile = conv_tile(own, ConvTiling(3, 2, 8))
    assert (tile.b, tile.ic, tile.oc, tile.dh, tile.dw, tile.oh, tile.ow) == (2, 4, 16, 7, 13, 3, 6)
    every = list(conv_space(CONV, own, None))
    assert len(every) == 2 * 4 * 3 * 5 and len(list(conv_space(CONVOPT, own, None))) == len(every) // 2
    kept = list(conv_space(CONVOPT, own, Filter(8, 10**9)))
    assert {each.oct for each in kept} == {8, 16}


def test_products_are_refused() -> None:
    text = "for y in range(4):\n for x in range(8):\n  for z in range(3):\n   C[y, x] += D[y, z] * W[z, x]"
    before = program(text, C=(4, 8), D=(4, 3), W=(3, 8))
    with pytest.raises(CommandError, match="is not a convolution: no operand is read in windows"):
        Subject.alone(before, "forward", (), AVX2).by(conv_recipe(CONV, ConvTiling(1, 1, 8), "forward"))
    with pytest.raises(CommandError, match="no schedule 'Winograd' for convolutions"):
        conv_recipe("Winograd", ConvTiling(1, 1, 8), "forward")


@cache
def convolutions() -> dict[str, Tunable]:
    """The phases of a net of a chain and a convolution with stride, both with borders; arrays are blocked."""
    net = Net(2, seed=1)
    chain = ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (8, 4, 5)), num_filters=16, kernel=3, stride=1, pad=1))
    ConvLayer(net, chain, num_filters=16, kernel=3, stride=2, pad=1)
    found, _ = tunables(net, AVX2, 2)
    return {each.name: each for each in found}


@pytest.mark.parametrize(
    ("name", "schedule", "tiling"),
    [
        ("conv1_relu1 forward", CONVOPT, ConvTiling(5, 8, 8)),
        ("conv2 forward", CONV, ConvTiling(3, 8, 16, True)),
        ("conv2 forward", CONVOPT, ConvTiling(1, 4, 8)),
        ("conv2 backward", CONVOPT, ConvTiling(1, 8, 8)),
        ("conv2 update", CONVOPT, ConvTiling(3, 1, 8)),
    ],
)
def test_convolutions_of_nets(name: str, schedule: str, tiling: ConvTiling) -> None:
    tunable = convolutions()[name]
    subject = prepared(tunable.subject, [each for each in tunable.known.commands if each.name != "pack"])
    found = subject.by(conv_recipe(schedule, tiling, tunable.phase, tunable.known.commands))
    assert_same(subject.program, found.scheduled, seeds=(0,))
    sums = [nest for nest in found.program.nests if "+=" in nest.text and "packed" not in nest.label]
    assert all("vector(" in nest.text and "parallel(" in nest.text for nest in sums)
