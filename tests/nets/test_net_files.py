"""Scripts that train, given to the command line: they run up to the first call that would run a net."""

from __future__ import annotations

import sys
from inspect import getattr_static
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latte.net import Net
from latte.tools.cli import main
from latte.tools.net_files import RUNS, load_net
from swirl.errors import LatteError

pytestmark = pytest.mark.usefixtures("as_lowered")

DECLARED = """
import numpy as np
from latte import *
from latte.solver import SGD

def declared(width):
    model = Net(2, seed=1)
    data, label = MemoryDataLayer(model, (5,)), MemoryDataLayer(model, (1,))
    SoftmaxLossLayer(model, FullyConnectedLayer(model, data, width, name=f"wide{width}"), label)
    return model

def train(model):
    model.compile()
    model.fit(np.eye(4, 5), [0, 1, 2, 0], solver=SGD(model), epochs=1, progress=False)
    open("trained", "w").close()

"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "script",
    [
        "net = declared(3)\ntrain(net)\nnet.save('trained')",
        "model = declared(3)\ntrain(model)",
        "model = declared(3)\nother = declared(4)\ntrain(model)\ntrain(other)",
        "net = declared(3)\nother = declared(4)\ntrain(other)",
        "def net():\n    train(declared(3))",
        "def net():\n    return declared(3)\nother = declared(4)\ntrain(other)",
        "for model in declared(3), declared(4):\n    train(model)",
        "net = declared(3)\nnet.compile()\nnet.backward_tasks[0]()\ntrain(declared(4))",
        "net = declared(3)\nnet.compile()\nnp.savez('trained', **net.state_dict())\ntrain(declared(4))",
        "try:\n    train(declared(3))\nexcept:\n    pass\nfinally:\n    declared(4).save('trained')",
    ],
)
def test_a_script_stops_where_it_would_train(file: Path, script: str) -> None:
    file.write_text(DECLARED + script)
    result = call("show", file)
    assert result.exit_code == 0, result.output
    assert "wide3" in result.output and "wide4" not in result.output
    assert not Path("trained").exists()


@pytest.mark.parametrize("command", [("time", "--repeat", 1), ("explain",), ("bisect", "--layer", "wide3")])
def test_of_every_command(file: Path, command: tuple[object, ...]) -> None:
    file.write_text(DECLARED + "model = declared(3)\ntrain(model)")
    result = call(command[0], file, *command[1:])
    assert result.exit_code == 0, result.output
    assert "wide3" in result.output and not Path("trained").exists()


def test_a_profile_has_the_batch_that_the_script_has_set(file: Path) -> None:
    file.write_text(
        DECLARED + "model = declared(3)\nmodel.compile()\nmodel.set_batch(np.ones((1, 5)), [2])\ntrain(1 / 0)"
    )
    assert "ZeroDivisionError" in call("profile", file).output
    file.write_text(file.read_text().replace("train(1 / 0)", "model.forward()"))
    result = call("profile", file, "--repeat", 1)
    assert result.exit_code == 0 and "batch size 1" in result.output, result.output


@pytest.mark.parametrize("name", RUNS)
def test_every_call_that_runs_a_net(file: Path, name: str) -> None:
    before = [getattr_static(Net, each) for each in RUNS]
    file.write_text(DECLARED + f"model = declared(3)\nmodel.compile()\nmodel.{name}()\n1 / 0")
    assert load_net(file)["wide3"].shape == (3,)
    file.write_text(DECLARED + "1 / 0")
    with pytest.raises(LatteError, match="ZeroDivisionError"):
        load_net(file)
    assert before == [getattr_static(Net, each) for each in RUNS]


def test_nets_that_nothing_chooses_are_named(file: Path) -> None:
    file.write_text(DECLARED + "first = same = declared(3)\nsecond = declared(4)")
    result = call("show", file)
    assert (
        result.exit_code == 1
        and "defines several nets: first, second\n  call the one that is wanted net: net = first" in result.output
    )


def test_what_a_script_prints_is_not_in_the_listing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(DECLARED + "print('compiling')\nmodel = declared(3)\ntrain(model)")
    main(["show", str(file)], standalone_mode=False)
    out, err = capfd.readouterr()
    assert "wide3" in out and "compiling" not in out and "compiling" in err


def test_a_script_gets_no_arguments_of_the_command(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", arguments := ["latte", "show", str(file)])
    parser = "from argparse import ArgumentParser\nparser = ArgumentParser()\n"
    wide = "parser.add_argument('--wide', type=int, default=3)\nmodel = declared(parser.parse_args().wide)\n"
    file.write_text(DECLARED + parser + wide)
    assert load_net(file)["wide3"].shape == (3,) and sys.argv is arguments
    file.write_text("raise SystemExit('no data')")
    assert "mine.py: does not run: SystemExit: no data" in call("show", file).output


def test_a_script_may_end_by_itself(file: Path) -> None:
    """It was an error: "does not run: SystemExit: 0"."""
    file.write_text(DECLARED + "model = declared(3)\nraise SystemExit(0)")
    assert load_net(file)["wide3"].shape == (3,)
