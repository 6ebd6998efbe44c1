"""A layer's recipe edited: compiled alone, timed, errors shown, and it goes on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.tools.cli import main
from latte.tools.starting_recipe import begin_recipe, starting_recipe
from latte.tools.tune_by_hand import Bench
from latte.tools.tuning_session import scheduled_phases, seconds, tries
from swirl.errors import CommandError
from swirl.measure.rates import Limits, Times
from swirl.run.runner import Runner
from swirl.target.targets import get_target

pytestmark = pytest.mark.usefixtures("small_probes")

FILE = """
from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer

def net():
    net = Net(3, seed=1)
    ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (2, 7, 5)), num_filters=5, kernel=3, stride=1, pad=1))
    return net
"""
PLAIN = "def forward(s, target):\n    s.parallelize('forward', 'n')\n"


def declared() -> Net:
    net = Net(3, seed=1)
    data, label = MemoryDataLayer(net, (2, 7, 5)), MemoryDataLayer(net, (1,))
    layer = ConvLayer(net, data, num_filters=5, kernel=3, stride=1, pad=1)
    layer = MaxPoolingLayer(net, BatchNormLayer(net, layer))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 4), label)
    return net


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLAIN)
    return path


def bench(net: Net, layer: str, phase: str = "forward", recipe: Path | None = None) -> Bench:
    return Bench(net, layer, phase, get_target("portable"), recipe, threads=1)


@pytest.mark.parametrize(
    ("layer", "phase"),
    [
        ("conv1", "forward"),
        ("conv1", "update_internal"),
        ("batch_norm1", "backward"),
        ("max_pooling1", "backward"),
        ("batch_norm1", "inference"),
        ("softmax_loss1", "backward"),
    ],
)
def test_every_phase_is_compiled_and_timed(layer: str, phase: str, tmp_path: Path) -> None:
    """Winners and labels are whole numbers within their range, or subscripts would leave arrays."""
    own = tmp_path / "mine.py"  # for a layer without a recipe
    own.write_text("def backward(s, target):\n    s.parallelize('backward', 'n')\n")
    made = bench(declared(), layer, phase, recipe=own if layer in ("max_pooling1", "softmax_loss1") else None)
    trial = made.compile()
    measured = made.measure(trial, trial)
    assert len(measured.kernels) == 2 and all(times.median > 0 for times in measured.kernels)
    assert measured.peak > 0 and measured.bandwidth > 0
    assert trial.work.bytes > 0 and trial.stages[-1].name == "physical"


def test_saving_the_recipe_leads_to_another_kernel(recipe: Path) -> None:
    made = bench(declared(), "conv1", recipe=recipe)
    said: list[str] = []
    runs = tries(made, said.append)
    assert next(runs)
    assert "1 commands applied, 0 skipped" in said[-1] and "before" not in said[-1]
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'no_such')\n")
    assert not next(runs)
    assert f"{recipe}:2: parallelize('forward', 'no_such'): no loop named 'no_such'" in said[-1]
    recipe.write_text("def forward(s, target:\n")
    assert not next(runs) and "is not Python" in said[-1]
    recipe.write_text(PLAIN + "    s.vectorize('forward', 'k', 8, optional=True)  # weights lie otherwise\n")
    assert next(runs)
    assert "1 commands applied, 1 skipped" in said[-1] and "not contiguous" in said[-1]
    recipe.write_text("def forward(s, target):\n    s.tile('value', dim=0, factor=8)\n")
    assert next(runs)
    head, now, both, *_ = said[-1].splitlines()
    assert re.split(r" {2,}", head)[-4:] == ["minimum", "lower quartile", "median", "upper quartile"]
    assert now.startswith("now      ") and both.startswith("before, at the start  ") and both.endswith(" times as fast")
    recipe.write_text("def forward(s, target):\n    s.tile('value', dim=0, factor=4)\n")
    assert next(runs)
    assert [line.split("  ")[0] for line in said[-1].splitlines()[1:4]] == ["now", "before", "at the start"]


def test_results_are_the_same_in_any_layout(recipe: Path) -> None:
    """The first reader of data lays them out, as in a net."""
    recipe.write_text("def forward(s, target):\n    s.tile('value', 0, 4)\n    s.tile('inputs', 0, 2)\n")
    unblocked = recipe.with_name("plain.py")
    unblocked.write_text("def forward(s, target):\n    pass\n")
    arguments = (declared(), "conv1", "forward", get_target("portable"))
    blocked, plain = (Bench(*arguments, used, 1, whole_numbers=True) for used in (recipe, unblocked))
    trial = blocked.compile()
    assert [trial.buffers[name].layout.blocks for name in ("value", "inputs")] == [((1, 4),), ((1, 2),)]
    got, expected = blocked.results(trial), plain.results(plain.compile())
    assert set(got) == set(expected) >= {"value", "inputs", "weights"}
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_what_cannot_be_tuned(recipe: Path) -> None:
    with pytest.raises(CommandError, match="did you mean 'conv1'"):
        bench(declared(), "conv2")
    with pytest.raises(CommandError, match=r"no phase 'forwards'(.|\n)*did you mean 'forward'"):
        bench(declared(), "conv1", "forwards")
    with pytest.raises(CommandError, match="it computes nothing"):
        bench(declared(), "data1")
    net = declared()
    net.ensembles[2].parallelize("forward", "n")
    with pytest.raises(CommandError, match="commands of its own"):
        bench(net, "conv1")


def test_limits_and_times() -> None:
    measured = Limits(get_target("portable"), Runner(1)).measure([], seconds=0.01)
    assert measured.kernels == () and 1e8 < measured.peak < 1e13 and 1e7 < measured.bandwidth < 1e13
    times = Times((4.0, 1.0, 2.0, 3.0, 9.0))
    assert times.median == 3.0 and times.spread == (2.0, 4.0)
    assert Times((2.0,)).spread == (2.0, 2.0)
    assert [seconds(value) for value in (1.5, 0.0123, 2e-6)] == ["1.5 s", "12.3 ms", "2 µs"]


# --- the command line ---------------------------------------------------------------------------------------
def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune-by-hand", *(str(argument) for argument in arguments)])


def test_once(tmp_path: Path, recipe: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(FILE)
    options = ("--layer", "conv1", "--recipe", recipe, "--target", "portable", "--once")
    result = call(file, *options)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"conv1 for portable, recipe {recipe}\n── forward ─")
    assert "flop/s: multiply-adds in registers (" in result.output and "B/s: reading memory (" in result.output
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'c')\n")
    refused = call(file, *options)
    assert refused.exit_code == 1 and "← asked to run in parallel" in refused.output
    missing = call(file, "--layer", "conv1", "--recipe", tmp_path / "no" / "new.py", "--target", "portable", "--once")
    assert missing.exit_code == 1 and "new.py cannot be written: No such file or directory" in missing.output
    for layers in ((), ("conv1", "--layer", "conv1")):
        assert call(file, *layers, "--once").output.startswith("Error: name one layer\n")
    wrong = call(file, "--layer", "conv9", "--once")
    assert wrong.exit_code == 1 and wrong.output.startswith("Error: no ensemble named 'conv9'\n")


# --- chains -------------------------------------------------------------------------------------------------
CHAIN = 'chain = ("conv", "relu")\n\ndef forward(s, target):\n    s.fuse_layers("forward")\n'


def chained() -> Net:
    net = Net(3, seed=1)
    data, label = MemoryDataLayer(net, (2, 7, 5)), MemoryDataLayer(net, (1,))
    layer = ReLULayer(net, ConvLayer(net, data, num_filters=5, kernel=3, stride=1, pad=1))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 4), label)
    return net


def test_a_chain_takes_no_recipe_for_one_layer(recipe: Path) -> None:
    message = r"declares no chain, but is used for conv1_relu1\n  chain = \('conv', 'relu'\) at its top"
    with pytest.raises(CommandError, match=message):
        bench(chained(), "conv1_relu1", recipe=recipe).compile()
    assert bench(chained(), "conv1", recipe=recipe).compile().stages


@pytest.mark.parametrize("layer", ["conv1", "relu1", "conv1_relu1"])
def test_a_layer_is_timed_in_its_chain(layer: str, recipe: Path) -> None:
    made = bench(chained(), layer)
    trial = made.compile()
    assert [path.name for path in made.paths] == ["conv_relu.py", "conv.py", "_conv_tiles.py", "_conv_update.py"]
    assert "conv_value" not in trial.stages[-1].program.buffers and "fuse_layers" in {s.name for s in trial.stages}
    recipe.write_text(CHAIN)
    own = bench(chained(), layer, recipe=recipe)
    mine = own.compile()
    assert own.paths == (recipe,)
    assert [outcome.command.text for outcome in mine.outcomes] == ["fuse_layers('forward')"]


def test_a_layer_is_timed_alone_under_a_recipe_of_its_own(recipe: Path) -> None:
    made = bench(chained(), "conv1", recipe=recipe)
    assert "conv_value" not in made.compile().stages[0].program.buffers
    recipe.write_text(CHAIN)  # the file becomes a recipe for a chain, and one for a layer again
    assert "fuse_layers" in {stage.name for stage in made.compile().stages}
    recipe.write_text(PLAIN)
    assert "fuse_layers" not in {stage.name for stage in made.compile().stages}


def test_a_chain_that_does_not_fit(recipe: Path) -> None:
    recipe.write_text(CHAIN)
    with pytest.raises(CommandError, match="fully_connected1 is in no chain conv, relu"):
        bench(chained(), "fully_connected1", recipe=recipe).compile()
    with pytest.raises(CommandError, match=r"mine\.py does not schedule conv1\.update"):
        bench(chained(), "conv1", "update", recipe=recipe).compile()
    net = chained()
    net.keep(net.ensembles[2])
    with pytest.raises(CommandError, match=r"not compiled as conv1_relu1: conv1 is kept"):
        bench(net, "conv1", recipe=recipe).compile()


def test_a_file_that_a_chain_builds_on_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    (tmp_path / "conv.py").write_text(PLAIN)
    (tmp_path / "conv_relu.py").write_text(CHAIN + "    s.recipe('conv', 'forward')\n")
    made = bench(chained(), "conv1_relu1")
    said: list[str] = []
    runs = tries(made, said.append)
    assert next(runs) and "2 commands applied" in said[-1]
    (tmp_path / "conv.py").write_text(PLAIN + "    s.vectorize('forward', 'x', 8, strided='gather', optional=True)\n")
    assert next(runs) and "3 commands applied" in said[-1]


# --- recipes that import others -----------------------------------------------------------------------------
def test_an_imported_recipe_is_watched(tmp_path: Path, recipe: Path) -> None:
    """What it defines is read again after each save, and after a mistake in it, too."""
    helper = tmp_path / "halves.py"
    helper.write_text("def threads(s):\n    s.parallelize('forward', 'n')\n")
    recipe.write_text("from halves import threads\n\ndef forward(s, target):\n    threads(s)\n")
    made = bench(declared(), "conv1", recipe=recipe)
    said: list[str] = []
    runs = tries(made, said.append)
    assert next(runs) and made.paths == (recipe, helper)
    helper.write_text("def threads(s):\n    s.parallelize('forward', 'q')\n")  # of the same length
    assert not next(runs) and f"{helper}:2: parallelize('forward', 'q'): no loop named 'q'" in said[-1]
    helper.write_text("def threads(s):\n    raise ValueError(s)\n")
    assert not next(runs) and f"{helper}:2: forward() raised ValueError" in said[-1]
    helper.write_text("def threads(s:\n")
    assert not next(runs) and "SyntaxError" in said[-1] and "halves.py" in said[-1]
    helper.write_text("def threads(s):\n    s.parallelize('forward', ['n', 'k'])\n")
    assert next(runs) and "1 commands applied" in said[-1]


def test_what_a_refused_recipe_imports_is_watched_from_the_start(tmp_path: Path, recipe: Path) -> None:
    helper = tmp_path / "halves.py"
    helper.write_text("def threads(s):\n    s.parallelize('forward', 'q')\n")
    recipe.write_text("import halves\n\ndef forward(s, target):\n    halves.threads(s)\n")
    runs = tries(bench(declared(), "conv1", recipe=recipe), lambda text: None)
    assert not next(runs)
    helper.write_text("def threads(s):\n    s.parallelize('forward', 'n')\n")
    assert next(runs)


def test_a_recipe_that_leaves_the_phase_is_told(tmp_path: Path) -> None:
    net = Net(3, seed=1)
    ConvLayer(net, MemoryDataLayer(net, (2, 7, 5)), num_filters=8, kernel=3, stride=1, pad=1)
    path = tmp_path / "mine.py"
    path.write_text("def forward(s, target):\n    s.decline('too small')\n")
    made = bench(net, "conv1", recipe=path)
    with pytest.raises(CommandError) as caught:
        made.compile()
    assert "mine.py: leaves forward to the default schedule: too small" in str(caught.value)
    path.write_text("def forward(s, target):\n    pass\n")
    made.compile()


def test_layers_before_it_are_scheduled_again_where_their_recipe_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer follows its source's layout, whichever it is by now."""
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    net = Net(3, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (2, 7, 5)), num_filters=8, kernel=3, stride=1, pad=1)
    BatchNormLayer(net, layer)
    (tmp_path / "conv.py").write_text("def forward(s, target):\n    s.tile('value', dim=0, factor=4)\n")
    made = bench(net, "batch_norm1")
    assert made.compile().buffers["inputs"].layout.blocks == ((1, 4),)
    assert made.compile().buffers["inputs"].layout.blocks == ((1, 4),)
    (tmp_path / "conv.py").write_text("def forward(s, target):\n    s.tile('value', dim=0, factor=2)\n")
    assert made.compile().buffers["inputs"].layout.blocks == ((1, 2),)


# --- a file to begin from -----------------------------------------------------------------------------------
def test_a_new_recipe_begins_with_what_the_layer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what ``latte show --recipe`` prints, of a layer that is in no chain; and it is never written over."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.py"
    file.write_text(OWN)
    options = ("--target", "portable", "--once")
    first = call(file, "shift1", *options)
    assert first.exit_code == 0, first.output
    assert first.output.splitlines()[0].startswith("wrote shift1_recipe.py: the commands that shift1 has by itself")
    text = (tmp_path / "shift1_recipe.py").read_text()
    printed = CliRunner().invoke(main, ["show", str(file), "--layer", "shift1", "--recipe", "--target", "portable"])
    assert text == printed.output and "def backward(s, target):\n    # " in text
    assert [line.split()[1] for line in first.output.splitlines() if line.startswith("── ")] == ["forward", "backward"]
    second = call(file, "shift1", *options)
    assert second.exit_code == 1 and "shift1_recipe.py exists, and is not written over\n  --recipe" in second.output
    assert (tmp_path / "shift1_recipe.py").read_text() == text
    again = call(file, "shift1", "--recipe", "shift1_recipe.py", "--phase", "forward", *options)
    assert again.exit_code == 0 and "wrote" not in again.output and "── backward" not in again.output


OWN = """
from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron

class ShiftNeuron(Neuron):
    def forward(self):
        self.value = 0.5 * self.inputs[0, 0] * self.inputs[0, 1]

def net():
    net = Net(3, seed=1)
    net.force_backward = True
    shift = net.add_ensemble(Ensemble(ShiftNeuron, (4, 18), dims=("c", "x")))
    net.add_connections(MemoryDataLayer(net, (4, 19)), shift, lambda c, x: (range(c, c + 1), range(x, x + 2)))
    return net
"""


def test_a_recipe_begins_for_a_layer_in_a_chain(tmp_path: Path) -> None:
    """With the commands that the layer has by itself: of its own recipe, or the default schedule."""
    net, target, file = chained(), get_target("portable"), tmp_path / "new.py"
    before = dict(net.graph.recipes)
    assert "s.parallelize('forward', ['n'])" in starting_recipe(net, "conv1", target)
    begin_recipe(net, "relu1", target, file)
    assert file.read_text().startswith('"""relu1, shape (5, 7, 5), batch size 3, for portable."""')
    assert net.graph.recipes == before
    made = bench(net, "relu1", "forward", file)
    assert made.compile().unit == "relu1"
    with pytest.raises(CommandError, match=r"new\.py exists, and is not written over"):
        begin_recipe(net, "conv1", target, file)
    assert "chain = ('conv', 'relu')" in starting_recipe(net, "conv1_relu1", target)
    with pytest.raises(CommandError, match="data1 computes nothing"):
        starting_recipe(net, "data1", target)


# --- several phases, two recipes ----------------------------------------------------------------------------
PHASES = """
def forward(s, target):
    s.parallelize("forward", "n")


def update(s, target):
    s.parallelize("update", "k")
"""


def test_other_phases_go_on_after_a_mistake(recipe: Path) -> None:
    recipe.write_text(PHASES)
    made = bench(declared(), "conv1", recipe=recipe)
    said: list[str] = []
    runs = tries(made, said.append, lambda: scheduled_phases(made))
    assert next(runs)
    assert [text.split()[1] for text in said] == ["forward", "update"] and made.watched == (recipe,)
    said.clear()
    recipe.write_text(PHASES.replace('"k"', '"q"'))
    assert not next(runs)
    forward, update = said
    assert (
        "1 commands applied, 0 skipped" in forward
        and "before, at the start  " in forward
        and "the same kernel" in forward
    )
    assert f"without the commands of update from its mistake on ({recipe}:7)" in forward
    assert f"{recipe}:7: parallelize('update', 'q'): no loop named 'q' in conv1.update" in update
    said.clear()
    recipe.write_text(PHASES.replace('    s.parallelize("forward", "n")', '    s.tile("value", 0, 8)\n    len(3)'))
    assert not next(runs)
    forward, update = said
    assert f"{recipe}:4: forward() raised TypeError" in forward
    assert "2 commands applied" in update and f"of forward from its mistake on ({recipe}:4)" in update
    said.clear()
    backward = PHASES.replace("def forward", "def backward").replace('"forward"', '"backward"')
    recipe.write_text(backward.replace('"k"', '["c"]'))
    assert next(runs), said
    assert [text.split()[1] for text in said] == ["update"]  # data get no gradient
    recipe.write_text("def backward(s, target):\n    pass\n")
    assert not next(runs) and "schedules no phase that conv1 has" in said[-1]


def test_phases_with_what_a_recipe_lays_out_are_timed(tmp_path: Path) -> None:
    net = Net(3, seed=1)
    net.force_backward = True
    FullyConnectedLayer(net, MemoryDataLayer(net, (24,)), 16)
    recipe = tmp_path / "mine.py"
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    made = bench(net, "fully_connected1", recipe=recipe)
    said: list[str] = []
    runs = tries(made, said.append, lambda: scheduled_phases(made), laid_out=True)
    assert next(runs) and len(said) == 1
    recipe.write_text("def forward(s, target):\n    s.tile('weights', 0, 8)\n    s.parallelize('forward', 'n')\n")
    assert next(runs)
    titles = [text.splitlines()[0].strip("─ ") for text in said[1:]]
    assert titles == ["forward", "backward, with the layouts of mine.py"]  # update does not touch the weights
    assert all("runs" in text for text in said)


def test_inference_stops_at_a_mistake_in_forward(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'q')\n")
    with pytest.raises(CommandError, match="no loop named 'q'"):
        bench(declared(), "conv1", "inference", recipe).compile()


def test_two_recipes_beside_each_other(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "net.py", tmp_path / "other.py"
    file.write_text(FILE)
    other.write_text("def forward(s, target):\n    s.tile('value', 0, 4)\n")
    options = ("conv1", "--recipe", recipe, "--beside", other, "--target", "portable", "--once")
    found = call(file, *options)
    assert found.exit_code == 0, found.output
    assert found.output.startswith(f"conv1 for portable, recipe {recipe}, beside {other}\n")
    rows = found.output.splitlines()
    assert rows[3].startswith("now       ") and rows[4].startswith("other.py  ") and rows[4].endswith(" times as fast")
    other.write_text("def forward(s, target):\n    s.tile('values', 0, 4)\n")
    wrong = call(file, *options)
    assert wrong.exit_code == 1 and f"not measured beside other.py: {other}:2: tile('values', 0, 4)" in wrong.output
    assert "B/s: reading memory" in wrong.output
    other.write_text(CHAIN)
    chain = call(file, *options)
    assert chain.exit_code == 1 and "it schedules conv1_relu1, and mine.py schedules conv1" in chain.output
    other.write_text("def forward(s, target):\n    s.tile('value', 0, 4)\n")
    results = Bench.results
    monkeypatch.setattr(
        Bench,
        "results",
        lambda self, trial: {
            name: array + self.paths[0].stem.count("o") for name, array in results(self, trial).items()
        },
    )
    differs = call(file, *options)
    assert differs.exit_code == 1
    assert f"not measured beside other.py: {other}: it computes something else: value[0, 0, 0, 0]: " in differs.output


def test_the_other_recipe_is_watched(tmp_path: Path, recipe: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(PLAIN)
    said: list[str] = []
    runs = tries(bench(declared(), "conv1", recipe=recipe), said.append, beside=other)
    assert next(runs) and "other.py  " in said[-1] and "the same kernel" in said[-1]
    other.write_text("def forward(s, target):\n    s.tile('value', 0, 8)\n")
    assert next(runs) and "times as fast" in said[-1]
