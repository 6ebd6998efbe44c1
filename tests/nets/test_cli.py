"""The command line, as a user calls it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import swirl.dump.bisect as bisect_module
from latte.tools.cli import main
from swirl.ir.nest import Program, parse_program
from swirl.schedule import pipeline

NET = """
from latte import Net, MemoryDataLayer, ReLULayer, SoftmaxLossLayer, FullyConnectedLayer
from latte.neuron import Neuron, Param, zeros
from latte.ensemble import Ensemble

class Shifted(Neuron):
    shift = Param("k", shape=(1,), init=zeros)

    def forward(self):
        self.value = self.inputs[0] + self.shift[0]

def net():
    net = Net(2, seed=1, keep="all")
    data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
    relu = ReLULayer(net, FullyConnectedLayer(net, data, 4))
    SoftmaxLossLayer(net, relu, label)
    return net

if __name__ == "__main__":
    raise SystemExit("this would train")
"""

OF_A_CHAIN = (
    NET.replace(', keep="all"', "")
    .replace("import Net,", "import Net, ConvLayer,")
    .replace("(5,)", "(2, 3, 3)")
    .replace("FullyConnectedLayer(net, data, 4))", "ConvLayer(net, data, 4, kernel=1, pad=0))")
    .replace("SoftmaxLossLayer(net, relu, label)", "SoftmaxLossLayer(net, FullyConnectedLayer(net, relu, 4), label)")
)
"""Forward and inference of the convolution and the ReLU are compiled together."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    path = tmp_path / "mine.py"
    path.write_text(NET)
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_layers_are_listed(file: Path) -> None:
    result = call("show", file)
    assert result.exit_code == 0, result.output
    assert "relu1" in result.output and "inference, forward, backward" in result.output


def test_a_stage_and_the_code_are_shown(file: Path) -> None:
    first = call("show", file, "--layer", "relu1", "--phase", "forward", "--stage", "lowered")
    assert first.exit_code == 0, first.output
    assert first.output == call("show", file, "--layer", "relu1", "--phase", "forward", "--stage", "0").output
    assert "def relu1_forward_0(value, inputs):" in first.output
    code = call("show", file, "--layer", "relu1", "--phase", "forward", "--stage", "c++")
    assert "void relu1_forward(" in code.output
    every = call("show", file, "--layer", "relu1", "--stage", "physical")
    assert "relu1.inference" in every.output and "relu1.backward" in every.output


def test_a_chain_has_the_stages_of_a_layer(tmp_path: Path) -> None:
    file = tmp_path / "chain.py"
    file.write_text(OF_A_CHAIN)
    shown = {
        stage: call("show", file, "--layer", "conv1_relu1", "--phase", "forward", "--stage", stage)
        for stage in ("0", "lowered", "1", "canonical", "nothing")
    }
    assert [each.exit_code for each in shown.values()] == [0, 0, 0, 0, 1], shown["canonical"].output
    assert shown["0"].output == shown["lowered"].output and shown["1"].output == shown["canonical"].output
    assert "def relu1_forward_0(" in shown["canonical"].output
    assert "the stages are 0 lowered, 1 canonical, 2 fuse_layers" in shown["nothing"].output
    found = call("bisect", file, "--layer", "conv1_relu1")
    assert found.exit_code == 0 and "conv1_relu1.forward" in found.output, found.output


def test_a_layer_is_explained(file: Path) -> None:
    text = call("show", file, "--layer", "relu1", "--phase", "forward").output
    assert "nests after the recipe:" in text and "compiled by:" in text
    read = json.loads(call("show", file, "--layer", "relu1", "--json").output)
    assert read["ensemble"] == "relu1" and len(read["phases"]) == 3


def test_chains_are_shown_by_their_names(file: Path) -> None:
    file.write_text(OF_A_CHAIN)
    chain = "conv1_relu1"
    layers = {line.split()[0]: line for line in call("show", file).output.splitlines()}
    assert f"forward in {chain}, backward" in layers["relu1"]
    assert f"forward in {chain}, update" in layers["conv1"]
    assert f"{chain}.forward\n   0   lowered" in call("show", file, "--layer", chain, "--list").output
    code = call("show", file, "--layer", chain, "--phase", "forward", "--stage", "c++").output
    assert code == call("show", file, "--layer", "relu1", "--phase", "forward", "--stage", "c++").output
    read = json.loads(call("show", file, "--layer", chain, "--json").output)
    assert (read["ensemble"], read["kind"], read["shape"]) == (chain, "conv_relu", [4, 3, 3])
    assert {phase["phase"] for phase in read["phases"]} == {"inference", "forward"}
    assert "did you mean 'conv1_relu1'?" in call("show", file, "--layer", "conv_relu1").output
    assert f"{chain} has no phase 'backward'" in call("show", file, "--layer", chain, "--phase", "backward").output
    of_chain, of_layer = (call("bisect", file, "--layer", name).output for name in (chain, "relu1"))
    of_all = call("bisect", file).output
    assert f"{chain}.forward: " in of_chain and "relu1.backward: " not in of_chain
    assert f"{chain}.forward: " in of_layer and "relu1.backward: " in of_layer and "update" not in of_layer
    assert of_all.count(f"{chain}.forward: ") == 1 and "conv1.update: " in of_all
    assert call("bisect", file, "--layer", "data1").output.startswith("Error: data1 computes nothing")


def test_layers_are_found_in_the_chains_of_a_dump(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(OF_A_CHAIN)
    dump = tmp_path / "dump"
    monkeypatch.setenv("SWIRL_DUMP", str(dump))
    assert call("show", file).exit_code == 0
    monkeypatch.delenv("SWIRL_DUMP")
    for layer in ("relu1", "conv1", "conv1_relu1"):
        assert call("bisect", dump, "--layer", layer).output == call("bisect", file, "--layer", layer).output
    assert "there are conv1.update" in call("bisect", dump, "--layer", "con1").output
    for place in (file, dump):
        nothing = call("bisect", place, "--layer", "conv1_relu1", "--phase", "update")
        assert nothing.exit_code == 1 and "no stages of conv1_relu1, update" in nothing.output


def test_times_are_shown(file: Path) -> None:
    result = call("time", file, "--repeat", "1", "--phase", "backward")
    assert result.exit_code == 0, result.output
    assert "fully_connected1" in result.output and "update" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", "relu"), "did you mean 'relu1'?"),
        (("--layer", "relu1", "--phase", "back"), "it has inference, forward, backward"),
        (("--layer", "relu1", "--phase", "forward", "--stage", "hoisting"), "did you mean 'hoist'?"),
        (("--layer", "relu1", "--phase", "forward", "--stage", "99"), "0 lowered, 1 canonical"),
    ],
)
def test_wrong_names_have_a_way_out(file: Path, options: tuple[str, ...], message: str) -> None:
    result = call("show", file, *options)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "--layer", "relu"),
        ("show", "--layer", "relu1", "--phase", "update"),
        ("show", "--layer", "relu1", "--phase", "nope"),
        ("show", "--layer", "relu", "--list"),
        ("explain", "nope"),
        ("time", "--phase", "nope"),
        ("time", "--repeat", "0"),
        ("profile", "--repeat", "0"),
        ("bisect", "--layer", "nope"),
        ("tune-by-hand", "--layer", "nope"),
    ],
)
def test_what_a_shell_asked_for_has_no_place(file: Path, arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    result = call(command, file, *options)
    assert result.exit_code == 1 and ".py:" not in result.output, result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no net"),
        ("net = 3", "defines no net"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = (", "SyntaxError"),
    ],
)
def test_files_without_a_net(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    result = call("show", path)
    assert result.exit_code == 1 and message in result.output


def test_a_net_at_module_level_and_own_layers(file: Path) -> None:
    """A layer declared in the file itself: its source is found."""
    text = file.read_text()
    own = """
    shifted = net.add_ensemble(Ensemble(Shifted, (4,), dims=("k",)))
    net.add_one_to_one_connections(relu, shifted)
    SoftmaxLossLayer(net, shifted, label)
"""
    file.write_text(text.replace("    SoftmaxLossLayer(net, relu, label)\n", own) + "\nnet = net()\nnet.compile()\n")
    result = call("show", file)
    assert result.exit_code == 0, result.output
    assert "shifted1" in result.output
    other = call("show", file, "--target", "avx2")
    assert other.exit_code == 1 and "compiles its net for portable" in other.output


def test_stages_are_compared(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump"
    monkeypatch.setenv("SWIRL_DUMP", str(dump))
    assert call("show", file).exit_code == 0
    stages = sorted((dump / "relu1" / "backward").glob("*.py"))
    result = call("compare", stages[0], stages[-1], "--seed", "4")
    assert result.exit_code == 0 and "00_lowered.py and" in result.output and "agree" in result.output
    assert call("compare", stages[0], stages[-1], "--compiled", "portable").exit_code == 0
    stages[-1].write_text(stages[-1].read_text().replace("> 0.0", ">= -0.5"))
    wrong = call("compare", stages[0], stages[-1])
    assert wrong.exit_code == 1 and "first in grad_inputs[" in wrong.output
    nothing = call("compare", file, stages[0])
    assert nothing.exit_code == 1 and "is not a dumped stage" in nothing.output
    (other,) = (dump / "fully_connected1" / "update").glob("00_*.py")
    unlike = call("compare", stages[0].parent.parent / "inference" / "00_lowered.py", other)
    assert unlike.exit_code == 1 and "is a stage of relu1_inference" in unlike.output and "agree" not in unlike.output
    other.write_text(other.read_text().replace("fully_connected1_update", "relu1_inference"))
    unlike = call("compare", stages[0].parent.parent / "inference" / "00_lowered.py", other)
    assert unlike.exit_code == 1 and "inputs is (2, 4) in " in unlike.output and "agree" not in unlike.output
    for tolerance in ("nan", "-1"):
        refused = call("compare", *stages[:2], "--tolerance", tolerance)
        assert refused.exit_code == 1 and "a tolerance is a number of at least 0" in refused.output
    assert "is not in the range" in call("compare", *stages[:2], "--seed", "-1").output


def test_stages_are_listed(file: Path) -> None:
    text = call("show", file, "--layer", "relu1", "--phase", "forward", "--list").output
    assert text.startswith("relu1.forward\n   0   lowered\n   1") and "flatten('forward'" in text
    assert "physical" in text and text.rstrip().endswith("c++")
    for option in (("--list",), ("--json",), ("--phase", "forward"), ("--stage", "0")):
        result = call("show", file, *option)
        assert result.exit_code == 1 and "--layer conv1" in result.output
    for option in (("--list",), ("--stage", "0")):
        result = call("show", file, "--layer", "data1", *option)
        assert result.exit_code == 1 and "data1 computes nothing" in result.output


def test_bisect_finds_nothing_where_nothing_is_wrong(file: Path) -> None:
    result = call("bisect", file)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "fully_connected1.update" in result.output and all(line.endswith("stages agree") for line in lines)
    assert call("bisect", file, "--compiled", "portable", "--layer", "relu1").exit_code == 0
    only = call("bisect", file, "--phase", "update").output
    assert call("bisect", file, "--phase", "updates").exit_code == 1
    assert only.startswith("fully_connected1.update") and only.count("\n") == 1


def test_bisect_compiles_stages_that_python_takes_too_long_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect_module, "IN_PYTHON", 10)
    options = ("--layer", "relu1", "--phase", "forward")
    assert call("bisect", file, *options).output.rstrip().endswith("stages agree, compiled for portable")
    dump = tmp_path / "dump"
    monkeypatch.setenv("SWIRL_DUMP", str(dump))
    assert call("show", file).exit_code == 0
    (edited,) = (dump / "relu1" / "forward").glob("*_scalars.py")
    edited.write_text(edited.read_text().replace("max(0.0", "max(1.0"))
    result = call("bisect", dump, *options)
    assert result.exit_code == 1 and f"{edited.name} is the first that differs" in result.output


def _broken(program: Program) -> Program:
    """A pass that forgets the last iteration of every loop over 4 elements."""
    nests = [nest.text.replace("range(4)", "range(3)") for nest in program.nests]
    return replace(program, nests=parse_program("\n".join(nests), program.buffers).nests)


LONG_SUM = """
from latte import *
from latte import Ensemble

class Total(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            value[n, 0] = 0.0
            for c in range(C):
                value[n, 0] += inputs[n, c]

def net():
    net = Net(1)
    layer = net.add_ensemble(Total(shape=(1,), dims=("k",), name="total"))
    net.add_connections(MemoryDataLayer(net, (TERMS,)), layer)
    net.use_recipe(layer, FOLDER / "parts.py")
    return net
"""


def test_bisect_knows_how_long_sums_are(tmp_path: Path) -> None:
    """In parts it loses other digits than in order, as many as the root of 8.4 million is long."""
    source = LONG_SUM.replace("TERMS", "8_400_000").replace("FOLDER", f"__import__('pathlib').Path({str(tmp_path)!r})")
    (tmp_path / "long.py").write_text(source)
    parts = "def forward(s, target):\n    s.tile_loop('forward', 'c', 4096)\n    s.partial_sums('forward', 'c_outer')\n"
    (tmp_path / "parts.py").write_text(parts)
    result = call("bisect", tmp_path / "long.py", "--layer", "total", "--phase", "forward")
    assert result.exit_code == 0 and "stages agree" in result.output, result.output
    strict = call("bisect", tmp_path / "long.py", "--layer", "total", "--phase", "forward", "--tolerance", "1e-7")
    assert strict.exit_code == 1 and "partial_sums.py is the first that differs" in strict.output, strict.output


@pytest.mark.parametrize("compiled", [(), ("--compiled", "portable")])
def test_bisect_names_a_broken_pass(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: tuple[str, ...]
) -> None:
    nothing = tmp_path / "recipes"
    nothing.mkdir()
    for kind in ("relu", "fully_connected"):
        (nothing / f"{kind}.py").write_text("def forward(s, target): pass")
    monkeypatch.setenv("LATTE_RECIPES", str(nothing))
    passes = [(name, _broken if name == "hoist" else rewrite) for name, rewrite in pipeline.AFTER_RECIPE]
    monkeypatch.setattr(pipeline, "AFTER_RECIPE", tuple(passes))
    result = call("bisect", file, "--layer", "relu1", "--phase", "forward", *compiled)
    assert result.exit_code == 1, result.output
    assert "_hoist.py is the first that differs, from 05_sums.py" in result.output
    assert "first in value[0, 3]: " in result.output


def test_bisect_of_an_edited_dump(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump"
    monkeypatch.setenv("SWIRL_DUMP", str(dump))
    assert call("show", file).exit_code == 0
    monkeypatch.delenv("SWIRL_DUMP")
    assert call("bisect", dump).exit_code == 0
    (edited,) = (dump / "relu1" / "backward").glob("*_tidy.py")
    edited.write_text(edited.read_text().replace("> 0.0", ">= -0.5"))
    result = call("bisect", dump)
    assert result.exit_code == 1
    assert f"relu1.backward: {edited.name} is the first that differs" in result.output
    assert "first in grad_inputs[" in result.output and "softmax_loss1.forward" in result.output
    last = max((dump / "relu1" / "backward").glob("*.py"))
    last.write_text(last.read_text() + "def (")  # after the wrong one, so that it does not matter yet
    again = call("bisect", dump, "--layer", "relu1", "--phase", "backward")
    assert f"{edited.name} is the first that differs" in again.output
    nothing = call("bisect", nothing_in(tmp_path))
    assert nothing.exit_code == 1 and "holds no dumped stages" in nothing.output


def nothing_in(folder: Path) -> Path:
    empty = folder / "empty"
    empty.mkdir()
    return empty


def test_the_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(folder))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kernel.so").write_text("x" * 100)
    entry, failed = folder / ("a" * 64), folder / "failed" / ("b" * 64)
    for made in (entry, failed, folder / ("c" * 64 + ".draft"), folder / "mine"):
        made.mkdir(parents=True)
        (made / "kernel.so").write_text("x" * 1_000_000)
    os.symlink(outside, folder / ("d" * 64))
    shown = call("cache")
    assert shown.exit_code == 0 and f"{folder}: 3 entries, 3.0 MB" in shown.output
    assert "3 entries removed, 3.0 MB" in call("cache", "--clear").output
    assert not entry.exists() and not failed.exists()
    assert (folder / "mine" / "kernel.so").exists() and (outside / "kernel.so").exists()
    assert "0 entries, 0.0 MB" in call("cache").output


def test_help_says_that_nothing_is_trained() -> None:
    for arguments in (("--help",), ("show", "--help")):
        assert "up to the first call that would run a net" in " ".join(call(*arguments).output.split())


def test_an_explanation_without_nests_and_code(file: Path) -> None:
    whole, brief = call("show", file, "--layer", "relu1"), call("show", file, "--layer", "relu1", "--summary")
    assert brief.exit_code == 0, brief.output
    assert "\nloops:" in brief.output and "\nrecipe" in brief.output
    assert "\nC++:" in whole.output and "\nC++:" not in brief.output and "\nfinal nests:" not in brief.output
    assert call("explain", file, "relu1").output == brief.output


def test_every_layer_is_explained_or_one_phase(file: Path) -> None:
    every = call("explain", file)
    assert every.exit_code == 0, every.output
    assert all(f"\n{name} (" in f"\n{every.output}" for name in ("data1", "fully_connected1", "relu1", "softmax_loss1"))
    one = call("explain", file, "relu1", "--phase", "backward")
    assert "── backward" in one.output and "── forward" not in one.output
    wrong = call("explain", file, "--phase", "backward")
    assert wrong.exit_code == 1 and "name it after the file" in wrong.output


@pytest.mark.parametrize(
    "options", [("--layer", "relu1"), ("--layer", "relu1", "--phase", "forward", "--stage", "c++"), ()]
)
def test_lines_are_cut(file: Path, options: tuple[str, ...]) -> None:
    wide, narrow = call("show", file, *options), call("show", file, *options, "--width", 40)
    assert narrow.exit_code == 0, narrow.output
    cut = [line if len(line) <= 40 else f"{line[:39]}…" for line in wide.output.split("\n")]
    assert narrow.output.split("\n") == cut and max(map(len, cut)) == 40


def test_bisect_tells_what_it_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent / "stages"
    monkeypatch.setenv("SWIRL_DUMP", str(folder))
    assert call("show", file).exit_code == 0
    told: list[str] = []
    bisect_module.bisect_stages(folder / "relu1" / "forward", code="portable", progress=told.append)
    assert told[0].startswith("reading ") and told[-1] == "the C++ for portable"
    assert any(step.endswith(" stages") and ".py, of " in step for step in told)


def test_show_shows_one_thing(tmp_path: Path) -> None:
    net = "net = Net(2)\nReLULayer(net, MemoryDataLayer(net, (3,)))\n"
    (file := tmp_path / "net.py").write_text(f"from latte import *\n{net}")
    found = call("show", file, "--layer", "relu1", "--list", "--recipe")
    assert found.exit_code == 1 and found.output.endswith("show different things\n  give one of them\n")
