"""Choices that recipes leave open: what they get, who sets them, what is told, and what depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer, SiLULayer
from latte.errors import CommandError, RecipeError
from latte.tools.cli import main

RECIPE = """
def forward(s, target):
    size = s.choose("tile_x", [2, 4, 8], default=4)
    s.tile_loop("forward", "{loop}", size)
    if s.choose("shared", [False, True], default=True):
        s.parallelize("forward", "n")
"""
LOOP = "_neuron_index_2"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "my_silu.py"
    path.write_text(RECIPE.format(loop=LOOP))
    return path


def silu(recipe: Path | None, choices: Any = None, count: int = 1) -> Net:
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (4, 16))
    for number in range(count):
        layer = SiLULayer(net, data, name=f"l{number}")
        if recipe is not None:
            net.use_recipe(layer, recipe, choices)
    return net


def told(net: Net, layer: str = "l0") -> list[str]:
    return [note for note in net.executable.plan.notes[layer] if note.startswith("choice")]


def commands(net: Net, layer: str = "l0") -> list[str]:
    return [outcome.command.text for outcome in net.executable.plan.outcomes[layer]]


@pytest.mark.parametrize(
    ("choices", "size", "shared"),
    [(None, 4, True), ({}, 4, True), ({"tile_x": 8}, 8, True), ({"shared": False, "tile_x": 2}, 2, False)],
)
def test_a_recipe_gets_what_is_chosen(recipe: Path, choices: Any, size: int, shared: bool) -> None:
    nets = [silu(recipe, choices) for _ in range(2)]
    for net in nets:  # the second one is known
        net.compile()
        assert (f"tile_loop('forward', '{LOOP}', {size})" in commands(net)) and (
            any("parallelize" in command for command in commands(net)) == shared
        )
        default = "" if size == 4 else "; by default 4"
        assert told(net)[0] == f"choice tile_x = {size}, of 2, 4, 8{default}"
        assert "choice tile_x" in net.explain("l0").summary()
    assert nets[1].report.known == nets[1].report.units
    data = np.random.default_rng(0).normal(size=(2, 4, 16)).astype(np.float32)
    nets[0].set_batch(data)
    nets[0].forward()
    assert np.allclose(nets[0]["l0"].get_value(), data / (1 + np.exp(-data)), atol=1e-5)


def test_equal_layers_with_other_choices_are_others(recipe: Path) -> None:
    net = silu(None, count=3)
    for number, size in enumerate((2, 8, 2)):
        net.use_recipe(net[f"l{number}"], recipe, {"tile_x": size})
    net.compile()
    assert [f"tile_loop('forward', '{LOOP}', {size})" in commands(net, f"l{n}") for n, size in enumerate((2, 8, 2))]
    assert [told(net, f"l{number}")[0].split(",")[0] for number in range(3)] == [
        "choice tile_x = 2",
        "choice tile_x = 8",
        "choice tile_x = 2",
    ]


def test_of_a_kind_and_of_one_layer(recipe: Path) -> None:
    net = silu(None, count=2)
    net.use_recipe("silu", recipe, choices={"tile_x": 8})
    net.use_recipe(net["l1"], recipe, choices={"shared": False})
    net.compile()
    assert "choice tile_x = 8, of 2, 4, 8; by default 4" in told(net, "l0")
    assert "choice tile_x = 4, of 2, 4, 8" in told(net, "l1") and "choice shared = False" in told(net, "l1")[1]


def test_of_a_chain_that_builds_on_a_layer(tmp_path: Path) -> None:
    """The recipe of the layer has its own choices."""
    own, chain = tmp_path / "own.py", tmp_path / "conv_relu.py"
    own.write_text('def forward(s, target):\n    s.tile_loop("forward", "k", s.choose("size", [2, 4], default=2))\n')
    chain.write_text(
        'chain = ("conv", "relu")\n\n\ndef forward(s, target):\n    s.recipe("conv", "forward")\n'
        '    if s.choose("whole", [True, False], default=True):\n        s.parallelize("forward", "n")\n'
    )
    net = Net(2, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=8, kernel=3, pad=1)
    ReLULayer(net, conv)
    net.use_recipe("conv", own, choices={"size": 4})
    net.use_recipe("conv_relu", chain, choices={"whole": False})
    net.compile()
    notes = net.executable.plan.notes["conv1"]
    assert "choice size = 4, of 2, 4; by default 2" in notes
    assert "choice whole = False, of True, False; by default True" in notes


@pytest.mark.parametrize(
    ("choices", "message", "way_out"),
    [
        ({"tile_x": 3}, "tile_x is set to 3", "it is one of 2, 4, 8; by default 4"),
        ({"tile_x": True}, "tile_x is set to True", "it is one of 2, 4, 8"),
        ({"tile_x": 4.0}, "tile_x is set to 4.0", "it is one of 2, 4, 8"),
        ({"tile_y": 4}, "my_silu.py does not ask for the choice 'tile_y'", "did you mean 'tile_x'?"),
    ],
)
def test_wrong_choices_are_refused(recipe: Path, choices: dict[str, Any], message: str, way_out: str) -> None:
    net = silu(recipe, choices)
    with pytest.raises(RecipeError) as caught:
        net.compile()
    assert caught.value.message.endswith(message) and way_out in str(caught.value.way_out)
    if "tile_x" in choices:
        assert str(caught.value.location).endswith("my_silu.py:3")
    net.use_recipe(net["l0"], recipe)
    net.compile()  # corrected


def test_with_commands_of_the_layer_for_another_phase(recipe: Path) -> None:
    net = silu(recipe, {"tile_x": 8})
    net["l0"].parallelize("backward", "_neuron_index_0")
    net.compile()
    assert f"tile_loop('forward', '{LOOP}', 8)" in commands(net)


def test_a_choice_that_only_another_recipe_asks_for_is_refused(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text('def forward(s, target):\n    s.choose("tile_y", [1, 2], default=1)\n')
    net = silu(None, count=2)
    net.use_recipe(net["l0"], recipe, {"tile_y": 2})
    net.use_recipe(net["l1"], other)
    with pytest.raises(RecipeError, match=r"my_silu\.py does not ask for the choice 'tile_y'"):
        net.compile()


def test_asked_in_a_phase_that_is_not_computed(tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text('def backward(s, target):\n    s.choose("x", [1, 2], default=1)\n')
    silu(path, {"x": 2}).compile()  # nothing before it trains
    with pytest.raises(RecipeError, match="does not ask for the choice 'y'"):
        silu(path, {"y": 2}).compile()


CONV = 'def forward(s, target):\n    s.tile_loop("forward", "k", s.choose("size", [2, 4], default=2))\n'


def test_a_wrong_choice_where_layers_are_frozen(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(CONV)
    net = Net(2, seed=1)
    ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=8, kernel=3, name="frozen")
    net.use_recipe("conv", path, choices={"size": 3})
    net.freeze("frozen")
    with pytest.raises(RecipeError, match="size is set to 3"):
        net.compile()


def test_two_recipes_of_the_same_layers_with_other_choices(tmp_path: Path) -> None:
    own, chain = tmp_path / "own.py", tmp_path / "conv_relu.py"
    own.write_text(CONV)
    chain.write_text(
        'chain = ("conv", "relu")\n\n\ndef forward(s, target):\n    s.choose("size", [2, 4], default=2)\n'
        '    s.recipe("conv", "forward")\n'
    )
    net = Net(2, seed=1)
    ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=8, kernel=3))
    net.use_recipe("conv", own)
    net.use_recipe("conv_relu", chain, choices={"size": 4})
    with pytest.raises(RecipeError, match="size is 4 in one recipe for these layers, and 2 in another"):
        net.compile()


@pytest.mark.parametrize("choices", [3, ["tile_x"], {3: 4}, {"tile_x": [4]}, {"tile_x": None}])
def test_what_is_no_choice(recipe: Path, choices: Any) -> None:
    net = silu(None)
    with pytest.raises(RecipeError, match="choices are names with numbers or words") as caught:
        net.use_recipe(net["l0"], recipe, choices)
    assert __file__ in str(caught.value.location)
    with pytest.raises(CommandError, match="choices need a recipe, and none is given"):
        net.use_recipe(net["l0"], None, {"tile_x": 4})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('s.choose("x", [], default=1)', "the values of x are a list of numbers or words"),
        ('s.choose("x", "ab", default="a")', "the values of x are a list of numbers or words"),
        ('s.choose("x", [[1]], default=[1])', "the values of x are a list of numbers or words"),
        ('s.choose("x", [1, 2], default=3)', "the default of x is 3, which is none of 1, 2"),
        ('s.choose("x", [1, 2], default=True)', "the default of x is True"),
        ('s.choose("2x", [1], default=1)', "a choice has a name, not '2x'"),
        ('s.choose("x", [1, 2], default=1), s.choose("x", [1, 3], default=1)', "x is chosen twice, from other values"),
    ],
)
def test_wrong_questions_say_their_line(call: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text(f"def forward(s, target):\n    pass\n    {call}\n")
    with pytest.raises(RecipeError, match=message) as caught:
        silu(path).compile()
    assert str(caught.value.location).endswith("asks.py:3")


def test_asked_before_a_phase_is_declined(tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text('def forward(s, target):\n    s.choose("x", [1, 2], default=1)\n    s.decline("no")\n')
    for _ in range(2):
        with pytest.warns(UserWarning, match="no"):
            silu(path, {"x": 2}).compile()


# --- on the command line ----------------------------------------------------------------------------------
@pytest.fixture
def file(recipe: Path, tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(
        "from latte import MemoryDataLayer, Net, SiLULayer\n\nnet = Net(2, seed=1)\n"
        f"layer = SiLULayer(net, MemoryDataLayer(net, (4, 16)), name='l0')\nnet.use_recipe(layer, {str(recipe)!r})\n"
    )
    return str(path)


def test_on_the_command_line(file: str) -> None:
    ran = CliRunner().invoke(
        main, ["show", file, "--layer", "l0", "--recipe", "--set", "tile_x=8", "--set", "shared=False"]
    )
    assert ran.exit_code == 0 and f"'{LOOP}', 8)" in ran.output and "parallelize" not in ran.output
    ran = CliRunner().invoke(main, ["explain", file, "l0", "--set", "tile_x=2"])
    assert ran.exit_code == 0 and "choice tile_x = 2, of 2, 4, 8; by default 4" in ran.output
    ran = CliRunner().invoke(main, ["tune-by-hand", file, "--layer", "l0", "--once", "--set", "tile_x=2"])
    assert ran.exit_code == 0, ran.output
    for arguments, message in (
        (["--set", "tile_x"], "is not NAME=VALUE"),
        (["--set", "tile_x=3"], "it is one of 2, 4, 8"),
        (["--set", "tile_z=3"], "no recipe asks for the choice 'tile_z'"),
    ):
        ran = CliRunner().invoke(main, ["show", file, *arguments])
        assert ran.exit_code != 0 and message in ran.output.replace("\n", " ")
    ran = CliRunner().invoke(main, ["tune-by-hand", file, "--layer", "l0", "--once", "--set", "tile_z=2"])
    assert ran.exit_code != 0 and "no recipe asks for the choice 'tile_z'" in ran.output


def test_the_command_line_counts_more_than_the_file(file: str) -> None:
    path = Path(file)
    path.write_text(path.read_text().replace(".py')", ".py', {'tile_x': 2})"))
    assert "{'tile_x': 2}" in path.read_text()
    ran = CliRunner().invoke(main, ["explain", file, "l0", "--set", "tile_x=8"])
    assert ran.exit_code == 0 and "choice tile_x = 8, of 2, 4, 8; by default 4" in ran.output


def test_of_a_net_that_is_compiled_already(file: str) -> None:
    path = Path(file)
    path.write_text(path.read_text() + "net.compile()\n")
    ran = CliRunner().invoke(main, ["show", file, "--set", "tile_x=8"])
    assert ran.exit_code != 0 and "is compiled already, without these choices" in ran.output
