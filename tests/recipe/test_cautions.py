"""What is said about commands that do nothing, little, or harm; and that nothing is said about others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from latte import FullyConnectedLayer, MemoryDataLayer, Net, PositionwiseLinearLayer, SiLULayer
from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.planning.plan import make_plan
from latte.runtime.report import DoubtfulCommand
from latte.tools.bench.digits import digits_net
from latte.tools.cli import main
from swirl.schedule.cautions import with_cautions
from swirl.schedule.command_log import Outcome, Recorded, Traced
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from tests.support import program

Y, X = "_neuron_index_1", "_neuron_index_2"
FAR = f"prefetch('forward', 'inputs', '{X}', 1000000)"
TILE = "vectorize('forward', 'i', 16)", "unroll_and_jam('forward', 'k', 8)", "unroll_and_jam('forward', 'n', 8)"


def silu(net: Net) -> str:
    SiLULayer(net, MemoryDataLayer(net, (64, 64)), name="l0")
    return "l0"


def product(net: Net) -> str:
    FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 256, name="l0")
    return "l0"


def after_product(net: Net) -> str:
    SiLULayer(net, FullyConnectedLayer(net, MemoryDataLayer(net, (128,)), 256), name="l0")
    return "l0"


def compiled(tmp_path: Path, make: Callable[[Net], str], *lines: str, target: str | None = None) -> Net:
    if target is not None and (missing := why_not(TARGETS[target])) is not None:
        pytest.skip(missing)
    recipe = tmp_path / "own.py"
    recipe.write_text("\n    ".join(("def forward(s, target):", *lines)) + "\n")
    net = Net(8, seed=1)
    net.use_recipe(make(net), recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulCommand)
        net.compile(target=target)
    return net


def cautions(net: Net) -> list[str]:
    """Without the places."""
    return [text.partition(": ")[2] for text in net.report.cautions]


@pytest.mark.parametrize(
    ("make", "lines", "said"),
    [
        (
            silu,
            (f's.split("forward", "{Y}", [1])', 's.parallelize("forward", "y")'),
            ["parallelize('forward', 'y'): covers 1.56% of the work of forward; most of it is in y_1"],
        ),
        (
            silu,
            (f's.tile_loop("forward", "{X}", 64)',),
            [f"tile_loop('forward', '{X}', 64): leaves x_outer one iteration"],
        ),
        (
            silu,
            (f's.reorder("forward", ["n", "{Y}", "{X}"])',),
            [f"reorder('forward', ['n', '{Y}', '{X}']): changes nothing"],
        ),
        (
            silu,
            (f's.vectorize("forward", "{X}", 16)', f"s.{FAR}"),
            [f"{FAR}: fetches what is past the end of inputs, in each iteration"],
        ),
        (
            product,
            tuple(f"s.{each}" for each in TILE),
            [f"{TILE[-1]}: 64 sums in loop i for 32 registers: some of them pass through memory"],
        ),
        (
            after_product,
            ('s.parallelize("backward", "n")',),
            ["parallelize('backward', 'n'): stands in forward(), and changes backward"],
        ),
    ],
)
def test_what_will_hardly_have_been_meant_is_said(
    tmp_path: Path, make: Callable[[Net], str], lines: tuple[str, ...], said: list[str]
) -> None:
    for _ in range(2):  # the second time the outcome is kept
        assert cautions(compiled(tmp_path, make, *lines)) == said


def test_parallel_regions_inside_of_other_loops(tmp_path: Path) -> None:
    said = cautions(compiled(tmp_path, silu, f's.parallelize("forward", "{X}")'))
    assert len(said) == 1 and "opens 512 parallel regions" in said[0] and "x inside of n, y" in said[0]


def test_an_array_in_blocks_whose_loop_is_whole(tmp_path: Path) -> None:
    lines = f's.parallelize("forward", "{Y}")', 's.tile("value", 0, 16)'
    assert cautions(compiled(tmp_path, silu, *lines)) == [
        "tile('value', 0, 16): value is in blocks of 16, and loop y of forward is not: each place takes a division; "
        "tile_loop('forward', 'y', 16) cuts it"
    ]


def test_loops_of_the_default_schedule_are_not_named(tmp_path: Path) -> None:
    """Forward has no function here: its loops over a copy of the weights are not the recipe's."""
    recipe = tmp_path / "own.py"
    recipe.write_text('def backward(s, target):\n    s.tile("weights", 0, 16)\n    s.default("backward")\n')
    net = Net(8, seed=1)
    net.force_backward = True
    net.use_recipe(PositionwiseLinearLayer(net, MemoryDataLayer(net, (64, 48)), 32), recipe)
    with Memos() as memos, KeptSchedules(memos, TARGETS["avx2"]) as kept:
        plan = make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, 8)), kept)
    (said,) = plan.cautions()
    assert "weights is in blocks of 16, and a loop over it that the schedule of forward has made is not" in said


def test_a_loop_that_others_have_made_is_not_named() -> None:
    before = program("for n in range(8):\n for k in range(32):\n  y[n, k] = x[n, k]", x=(8, 32), y=(8, 32))
    laid = COMMANDS["tile"](before, "x", 0, 16)
    tile = Recorded("tile", ("x", 0, 16), (), "mine.py:2")
    copied = Recorded("rename", ("backward", "k_outer", "q"), (), "default schedule")
    whole = replace(
        program("for n in range(8):\n for q in range(32):\n  y[n, q] = x[n, q]", x=(8, 32), y=(8, 32)),
        buffers=laid.buffers,
    )
    said = with_cautions(
        [Outcome(tile, "applied")],
        [Traced("backward", tile, laid), Traced("backward", copied, whole)],
        {"backward": before},
        TARGETS["avx2"],
        lambda command: command is tile,
    )
    (text,) = said[0].cautions
    assert "a loop over it that the schedule of backward has made is not" in text and "loop q" not in text


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (silu, (f's.vectorize("forward", "{X}", 16)', 's.parallelize("forward", "n")')),
        (silu, (f's.split("forward", "{Y}", [1])', 's.parallelize("forward", "y", nest=0)')),  # it says which
        (silu, (f's.split("forward", "{Y}", [1])', 's.parallelize("forward", "y")', 's.parallelize("forward", "y_1")')),
        (silu, (f's.vectorize("forward", "{X}", 16)', f's.prefetch("forward", "inputs", "{X}", 4)')),
        (silu, ('s.tile("value", 1, 16)', 's.vectorize("forward", "x_inner", 16)')),
        (product, ('s.vectorize("forward", "i", 16)', 's.unroll_and_jam("forward", "k", 4)')),
        (product, ('s.unroll_and_jam("forward", "n", 8)',)),  # one iteration is what it says
        (after_product, ("s.default('forward')",)),
    ],
)
def test_nothing_is_said_about_others(tmp_path: Path, make: Callable[[Net], str], lines: tuple[str, ...]) -> None:
    assert cautions(compiled(tmp_path, make, *lines)) == []


def test_sums_are_counted_for_the_registers_of_the_target(tmp_path: Path) -> None:
    lines = 's.vectorize("forward", "i", target.simd_width)', 's.unroll_and_jam("forward", "k", 4)'
    lines += ('s.unroll_and_jam("forward", "n", 4)',)
    assert cautions(compiled(tmp_path, product, *lines, target="avx512")) == []
    said = cautions(compiled(tmp_path, product, *lines, target="avx2"))
    assert len(said) == 1 and "16 sums in loop i for 16 registers" in said[0]


def test_who_runs_the_net_is_warned_once_and_explain_says_it_all(tmp_path: Path) -> None:
    recipe = tmp_path / "own.py"
    lines = "def forward(s, target):", f's.tile_loop("forward", "{X}", 64)', 's.reorder("forward", ["n"])'
    recipe.write_text("\n    ".join(lines))
    program = tmp_path / "net.py"
    program.write_text(
        "from latte import *\nnet = Net(8, seed=1)\nSiLULayer(net, MemoryDataLayer(net, (64, 64)), name='l0')\n"
        f"net.use_recipe('l0', {str(recipe)!r})\n"
    )
    net = Net(8, seed=1)
    net.use_recipe(silu(net), recipe)
    with pytest.warns(DoubtfulCommand, match=r"own.py:2: tile_loop.*and 1 more, in net.report.cautions") as told:
        net.compile()
    assert len(told) == 1 and told[0].filename == __file__
    shown = CliRunner().invoke(main, ["explain", str(program), "l0"], catch_exceptions=False).output
    assert "caution: leaves x_outer one iteration" in shown and "caution: changes nothing" in shown


def test_commands_recorded_on_a_layer_are_questioned_too() -> None:
    net = Net(8, seed=1)
    layer = SiLULayer(net, MemoryDataLayer(net, (64, 64)), name="l0")
    layer.tile_loop("forward", X, 64)
    with pytest.warns(DoubtfulCommand, match="leaves x_outer one iteration"):
        net.compile()


def test_what_ships_is_not_questioned() -> None:
    net = digits_net(64)
    net.compile()
    assert not net.report.cautions
