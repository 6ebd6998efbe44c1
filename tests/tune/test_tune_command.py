"""``latte tune`` from a net's file to recipes that another process uses, and what interrupts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latte.tools.cli import main
from latte.tools.tune import session, whole
from latte.tools.tune.accept import Comparison, compare_nets
from latte.tools.tune.command import Duration
from swirl.errors import LatteError
from swirl.schedule.files import read_recipe
from swirl.tune import searches
from swirl.tune.log import FILE, CandidateLine, ResultLine, SubjectLine, read_log

NET = """
from latte import MemoryDataLayer, Net
from latte.neuron import Neuron


class SlowNeuron(Neuron):
    def forward(self):
        self.value = 0.5 * self.input

    def backward(self):
        self.grad_input += 0.5 * self.grad


def net():
    net = Net(32, seed=1)
    net.init_activation_ensemble(SlowNeuron, MemoryDataLayer(net, (64, 64)))
    return net
"""
# Tiles of two leave a loop of two iterations in each thread's way.
SLOW = """
def forward(s, target):
    s.tile_loop("forward", "_neuron_index_2", 2)
    s.reorder("forward", ["_neuron_index_2_outer", "_neuron_index_0", "_neuron_index_1", "_neuron_index_2_inner"])
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net whose recipe can be made faster by several times."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "slow.py").write_text(SLOW)
    monkeypatch.setenv("LATTE_RECIPES", str(own))
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    monkeypatch.setattr(whole, "LEAST", 1.0)
    monkeypatch.setattr(searches, "BATCH", 3)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)], catch_exceptions=False)


def candidates(folder: Path) -> list[CandidateLine]:
    return [line for line in read_log(folder) if isinstance(line, CandidateLine)]


SEARCHED = "--layer", "slow1", "--phase", "forward", "--threads", "1"


def test_from_a_file_to_recipes_that_are_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Times decide what is kept; on a machine that does other things beside, they must not decide this test.
    monkeypatch.setattr(session, "GAIN", 0.1)
    monkeypatch.setattr(whole, "compare_nets", lambda *_: Comparison((1.0,) * 8, (2.0,) * 8, "training"))
    done = run(file, *SEARCHED, "--budget", "3s", "--out", "tuned")
    assert done.exit_code == 0, done.output
    assert "times as fast; wrote tuned/slow.py" in done.output
    path = Path("tuned/slow.py")
    (entry,) = read_recipe(path).entries
    assert (entry.phase, entry.target, entry.threads) == ("forward", "portable", 1)
    assert entry.ms["tuned"] > 0 and entry.ms["recipe"] > 0
    lines = list(read_log(Path("tuned")))
    assert sum(isinstance(line, SubjectLine) for line in lines) == 1
    assert [line.verdict for line in lines if isinstance(line, ResultLine)] == ["faster", "kept"]

    whole_text = path.read_text()
    verified = run("--verify", "tuned")
    assert verified.exit_code == 0 and "slow.py forward_1, portable: " in verified.output
    assert len(read_recipe(path).entries) == ("taken out" not in verified.output)
    path.write_text(whole_text)
    (nests,) = (entry.nests for entry in read_recipe(path).entries)
    (form,) = (entry.form for entry in read_recipe(path).entries)
    path.write_text(whole_text.replace(nests, "0" * 12).replace(form, "0" * 12))
    done = run("--verify", "tuned", "net.py")
    assert "taken out: stale: the compiler makes other nests" in done.output and read_recipe(path).entries == ()
    path.write_text(whole_text)

    text = path.read_text()
    start, end = text.index("\n", text.index("def forward_1")) + 1, text.index("entries = (")
    path.write_text(f'{text[:start]}    s.tile_loop("forward", "nobody", 2)\n\n\n{text[end:]}')
    done = run("--verify", "tuned")
    assert "taken out: tile_loop('forward', 'nobody', 2)" in done.output
    assert read_recipe(path).entries == ()
    assert "has no entries" in run("--verify", "tuned").output

    pytest.importorskip("matplotlib")
    done = run("--plot", "tuned")
    assert "1 phases drawn in tuned/tune.png" in done.output and Path("tuned/tune.png").stat().st_size > 1000


def test_dry_runs_write_nothing(file: Path) -> None:
    done = run(file, "--layer", "slow1", "--dry-run")
    assert done.exit_code == 0 and not Path("tuned").exists()


def test_a_net_that_does_not_gain_gets_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = Comparison((2.0, 2.0), (1.0, 1.0), "training")
    monkeypatch.setattr(whole, "compare_nets", lambda *_: slower)
    done = run(file, *SEARCHED, "--budget", "2s")
    assert "the whole net does not gain: no file is written" in done.output
    assert [path.name for path in Path("tuned").iterdir()] == [FILE]
    assert [line.verdict for line in read_log(Path("tuned")) if isinstance(line, ResultLine)][
        -1
    ] == "the net does not gain"


def test_a_net_that_cannot_be_measured_gets_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> Comparison:
        raise LatteError("the net with tuned recipes cannot be measured: no loop named 'k'")

    monkeypatch.setattr(whole, "compare_nets", failed)
    done = run(file, *SEARCHED, "--budget", "2s")
    assert done.exit_code == 0 and "no loop named 'k'" in done.output
    assert "the whole net does not gain: no file is written" in done.output
    assert [path.name for path in Path("tuned").iterdir()] == [FILE]


def test_a_small_budget_goes_to_the_phase_that_loses_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LEAST", 10.0)
    first, second = (whole.Slice(None, 0.0, 0.5, weight) for weight in (2.0, 1.0))  # type: ignore[arg-type]
    assert [each.seconds for each in whole._sliced([first, second], 8.5)] == [8.5]
    assert [each.seconds for each in whole._sliced([first, second], 60.0)] == [40.0, 20.0]


def test_choices_hold_in_every_process_and_files_may_print(file: Path) -> None:
    Path("own", "slow.py").write_text(
        'def forward(s, target):\n    s.tile_loop("forward", "_neuron_index_2", s.choose("size", [2, 4], default=2))\n'
        '    if s.choose("size", [2, 4], default=2) == 2:\n        raise ValueError("of the default")\n'
    )
    file.write_text(f"import atexit\n\natexit.register(print, 'bye')\nprint('{{}}')\n{NET}")
    same = Path("empty")
    same.mkdir()
    with pytest.raises(LatteError, match="of the default"):
        compare_nets(file, same, None, "portable", 1, 0.1)
    found = compare_nets(file, same, None, "portable", 1, 0.1, {"size": 4})
    assert len(found.tuned) == len(found.before) >= 5


def test_an_interrupt_leaves_the_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = session._results, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return own(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "_results", interrupted)
    done = run(file, *SEARCHED, "--budget", "60s")
    assert done.exit_code == 130 and "--resume goes on from tuned" in done.output
    before = candidates(Path("tuned"))
    assert before
    for line in Path("tuned", FILE).read_text().splitlines():
        json.loads(line)
    monkeypatch.setattr(session, "_results", own)
    assert run(file, *SEARCHED, "--budget", "5s", "--resume").exit_code == 0
    after = candidates(Path("tuned"))
    keys = [line.key for line in after]
    assert after[: len(before)] == before and len(keys) > len(before)
    assert len(set(keys)) == len(keys)  # nothing was measured twice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the file of a net"),
        (["net.py", "--layer", "slow2"], "no layer or chain named 'slow2'"),
        (["net.py", "--phase", "inference"], "no phase 'inference' can be tuned; inference follows forward"),
        (["net.py", "--budget", "soon"], "'soon' is not a time such as 60s, 20m or 1h"),
        (["--verify", "own"], "own has no entries"),
        (["--plot", "own"], "own has no log with candidates that were measured"),
    ],
)
def test_what_is_wrong_is_told(file: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code != 0 and message in done.output


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("20m", 1200), ("1h", 3600), ("1.5m", 90), ("7", 7)])
def test_times(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_gains_are_of_pairs() -> None:
    assert Comparison((1.0,) * 5, (1.1,) * 5, "training").gains
    assert not Comparison((1.0,) * 5, (1.1, 1.1, 1.1, 1.1, 0.9), "training").gains  # by chance in one of five cases
    assert Comparison((1.0,) * 20, (1.1,) * 15 + (0.9,) * 5, "training").gains
    assert not Comparison((1.0, 1.0, 1.0, 1.0), (1.1, 0.9, 1.1, 0.9), "training").gains
    assert not Comparison((1.0,), (0.99,), "training").gains
