"""The command line, as a user calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latte.cli import main

NET = """
from latte import Net, MemoryDataLayer, ReLULayer, SoftmaxLossLayer, FullyConnectedLayer
from latte.neuron import Neuron, Param, zeros
from latte.ensemble import Ensemble

class Shifted(Neuron):
    shift = Param("k", shape=(1,), init=zeros)

    def forward(self):
        self.value = self.inputs[0] + self.shift[0]

def net():
    net = Net(2, seed=1)
    data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
    relu = ReLULayer(net, FullyConnectedLayer(net, data, 4))
    SoftmaxLossLayer(net, relu, label)
    return net

if __name__ == "__main__":
    raise SystemExit("this would train")
"""


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


def test_a_layer_is_explained(file: Path) -> None:
    text = call("show", file, "--layer", "relu1", "--phase", "forward").output
    assert "nests after the recipe:" in text and "compiled by:" in text
    read = json.loads(call("show", file, "--layer", "relu1", "--json").output)
    assert read["ensemble"] == "relu1" and len(read["phases"]) == 3


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
    file.write_text(
        text.replace("    SoftmaxLossLayer(net, relu, label)\n", own) + "\nnet = net()\nnet.compile()\n"
    )
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
    assert nothing.exit_code == 1 and "is no dumped stage" in nothing.output


def test_the_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(folder))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kernel.so").write_text("x" * 100)
    entry, failed = folder / ("a" * 64), folder / "failed" / ("b" * 64)
    for made in (entry, failed, folder / ("c" * 64 + ".draft-xyz"), folder / "mine"):
        made.mkdir(parents=True)
        (made / "kernel.so").write_text("x" * 1_000_000)
    os.symlink(outside, folder / ("d" * 64))
    shown = call("cache")
    assert shown.exit_code == 0 and f"{folder}: 3 entries, 3.0 MB" in shown.output
    assert "3 entries removed, 3.0 MB" in call("cache", "--clear").output
    assert not entry.exists() and not failed.exists()
    assert (folder / "mine" / "kernel.so").exists() and (outside / "kernel.so").exists()
    assert "0 entries, 0.0 MB" in call("cache").output


def test_help_says_how_to_guard_training() -> None:
    assert "__main__" in call("show", "--help").output
