"""``latte tune`` from a net's file to recipes that another process uses, and what interrupts it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from latte import Net
from latte.tools.cli import main
from latte.tools.net_files import load_net
from latte.tools.synthetic_data import synthetic_batch
from latte.tools.tune import session, whole
from latte.tools.tune.accept import Comparison, check_results, compare_nets
from latte.tools.tune.command import Duration
from swirl.build.cache import folder_lock
from swirl.errors import LatteError
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS
from swirl.tune import searches
from swirl.tune.evaluation import Evaluator, Timed
from swirl.tune.log import FILE, MEASURED, CandidateLine, ResultLine, SubjectLine, read_log
from tests.tune.test_files import ENTRY

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
WITH_LOSS = NET.replace(
    "import MemoryDataLayer", "import DropoutLayer, MeanSquaredErrorLayer, MemoryDataLayer"
).replace(
    "    net.init_activation_ensemble(SlowNeuron, MemoryDataLayer(net, (64, 64)))\n",
    """\
    slow = net.init_activation_ensemble(SlowNeuron, MemoryDataLayer(net, (64, 64)))
    MeanSquaredErrorLayer(net, DropoutLayer(net, slow), MemoryDataLayer(net, (64, 64)))
    net.force_backward = True
""",
)
# Tiles of two leave a loop of two iterations in each thread's way.
SLOW = """
def forward(s, target):
    s.tile_loop("forward", "_neuron_index_2", 2)
    s.reorder("forward", ["_neuron_index_2_outer", "_neuron_index_0", "_neuron_index_1", "_neuron_index_2_inner"])
"""


def begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net in a folder, which becomes the current one, whose recipe can be made faster by several times."""
    own = folder / "own"
    own.mkdir()
    (own / "slow.py").write_text(SLOW)
    monkeypatch.setenv("LATTE_RECIPES", str(own))
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    monkeypatch.setattr(whole, "LEAST", 1.0)
    monkeypatch.setattr(searches, "BATCH", 3)
    monkeypatch.chdir(folder)
    path = folder / "net.py"
    path.write_text(NET)
    (folder / "loss.py").write_text(WITH_LOSS)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return begin(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder in which a search has written a recipe of one entry; and what it has said."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as monkeypatch:
        path = begin(folder, monkeypatch)
        # Times decide what is kept; on a machine that does other things beside, they must not decide these tests.
        monkeypatch.setattr(session, "GAIN", 0.1)
        monkeypatch.setattr(whole, "compare_nets", lambda *_: (GAIN,))
        return folder, run(path, *SEARCHED, "--budget", "2s", "--out", "tuned")


@pytest.fixture
def tuned(file: Path, searched: tuple[Path, Result]) -> Path:
    """The recipe that a search has written, in the current folder."""
    shutil.copytree(searched[0] / "tuned", "tuned")
    return Path("tuned/slow.py")


GAIN = Comparison((1.0,) * 8, (2.0,) * 8, "training")
LOSS = Comparison((2.0,) * 8, (1.0,) * 8, "inference")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)], catch_exceptions=False)


def candidates(folder: Path) -> list[CandidateLine]:
    return [line for line in read_log(folder) if isinstance(line, CandidateLine)]


SEARCHED = "--layer", "slow1", "--phase", "forward", "--threads", "1"


def test_from_a_file_to_recipes_that_are_used(tuned: Path, searched: tuple[Path, Result]) -> None:
    done = searched[1]
    assert done.exit_code == 0, done.output
    assert "the net has no loss: it is tuned for inference" in done.output
    assert "times as fast; wrote tuned/slow.py" in done.output
    (entry,) = read_recipe(tuned).entries
    assert (entry.phase, entry.target, entry.threads) == ("forward", "portable", 1)
    assert entry.ms["tuned"] > 0 and entry.ms["recipe"] > 0
    lines = list(read_log(Path("tuned")))
    assert sum(isinstance(line, SubjectLine) for line in lines) == 1
    assert [line.verdict for line in lines if isinstance(line, ResultLine)] == ["faster", "kept"]

    pytest.importorskip("matplotlib")
    done = run("--plot", "tuned")
    assert "1 phases drawn in tuned/tune.png" in done.output and Path("tuned/tune.png").stat().st_size > 1000


def ratio_of(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Candidates take so many times as long as what they are measured beside."""
    made = Timed(MEASURED, "", [ratio], [1.0])
    monkeypatch.setattr(Evaluator, "measure", lambda self, candidates, runs=3: [made for _ in candidates])


def edited(path: Path, body: str) -> None:
    """Another body in the place of that of the first entry."""
    text = path.read_text()
    start, end = text.index("\n", text.index("def forward_1")) + 1, text.index("entries = (")
    path.write_text(f"{text[:start]}    {body}\n\n\n{text[end:]}")


def test_verifying_changes_nothing(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tuned.read_text()
    ratio_of(monkeypatch, 0.5)
    done = run("--verify", "tuned")
    assert done.exit_code == 0 and "slow.py forward_1, portable: holds: 2.00 times as fast" in done.output
    ratio_of(monkeypatch, 1.25)
    done = run("--verify", "tuned")
    assert done.exit_code == 1 and "slow.py forward_1, portable: fails: 0.80 times as fast" in done.output
    assert "nothing is removed: edit tuned/slow.py, or --verify tuned --drop" in done.output
    assert tuned.read_text() == text and sorted(each.name for each in Path("tuned").iterdir()) == [FILE, "slow.py"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('s.tile_loop("forward", "nobody", 2)', "tuned/slow.py:11: tile_loop('forward', 'nobody', 2): "),
        ('s.tile_loop("forward", undefined, 2)', "tuned/slow.py:11: forward() raised NameError"),
        ("pass", "times as fast as without it"),
    ],
)
def test_what_was_edited_is_removed_if_it_is_asked_for_and_kept_beside(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    ratio_of(monkeypatch, 1.25)
    edited(tuned, body)
    text = tuned.read_text()
    done = run("--verify", "tuned")
    assert done.exit_code == 1 and told in done.output and tuned.read_text() == text
    done = run("--verify", "tuned", "--drop")
    assert done.exit_code == 0, done.output
    assert "removed from tuned/slow.py: forward_1; tuned/slow.py.before is the file as it was" in done.output
    assert read_recipe(tuned).entries == () and "def " not in tuned.read_text()
    assert Path("tuned/slow.py.before").read_text() == text
    assert "has no entries" in run("--verify", "tuned").output
    tuned.write_text(text)
    run("--verify", "tuned", "--drop")
    assert {each.name for each in Path("tuned").iterdir()} >= {"slow.py.before", "slow.py.before.2"}


def test_stale_entries_and_files_that_are_not_python_fail(tuned: Path) -> None:
    text = tuned.read_text()
    (found,) = read_recipe(tuned).entries
    tuned.write_text(text.replace(found.nests, "0" * 12).replace(found.form, "0" * 12))
    Path("tuned/broken.py").write_text("def forward(s:\n")
    done = run("--verify", "tuned", "net.py")
    assert done.exit_code == 1 and "fails: stale: the compiler makes other nests" in done.output
    assert "broken.py: fails: tuned/broken.py:1: is not Python" in done.output
    assert len(read_recipe(tuned).entries) == 1


def test_without_a_line_of_the_log_nothing_is_verified_nor_removed(tuned: Path) -> None:
    Path("tuned", FILE).unlink()
    done = run("--verify", "tuned", "--drop")
    assert (
        done.exit_code == 1 and "forward_1, portable: not verified: log.jsonl has no line for its nests" in done.output
    )
    assert len(read_recipe(tuned).entries) == 1


def test_commands_of_a_target_that_does_not_run_here_are_tried(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latte.tools.tune.verify.why_not", lambda target: "no such instructions")
    done = run("--verify", "tuned")
    assert done.exit_code == 0 and "legal: not measured: no such instructions" in done.output
    edited(tuned, 's.tile_loop("forward", "nobody", 2)')
    done = run("--verify", "tuned")
    assert done.exit_code == 1 and "fails: tuned/slow.py:11: tile_loop('forward', 'nobody', 2)" in done.output


def test_one_search_at_a_time_writes_to_a_folder(file: Path, tmp_path: Path) -> None:
    arguments = [
        [file, *SEARCHED, "--budget", "1s"],
        ["--micro-kernels"],
        ["--verify", "own", "--drop", "--out", "own"],
    ]
    for given in arguments:
        folder = Path(given[1]) if "--verify" in given else Path("tuned")
        with folder_lock(tmp_path / folder, "test", ""):
            done = run(*given)
        assert done.exit_code == 1 and f"another latte tune writes to {folder}" in done.output
    assert not Path("tuned").exists()
    with folder_lock(tmp_path / "other", "test", ""):
        assert run(file, *SEARCHED, "--dry-run").exit_code == 0


def test_dry_runs_write_nothing(file: Path) -> None:
    done = run(file, "--layer", "slow1", "--dry-run")
    assert done.exit_code == 0 and not Path("tuned").exists()


def test_a_net_that_does_not_gain_gets_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "compare_nets", lambda *_: (LOSS,))
    done = run(file, *SEARCHED, "--budget", "1s")
    assert "the whole net does not gain: no file is written" in done.output
    assert [path.name for path in Path("tuned").iterdir()] == [FILE]
    assert [line.verdict for line in read_log(Path("tuned")) if isinstance(line, ResultLine)][
        -1
    ] == "the net does not gain"


def test_a_net_that_cannot_be_measured_gets_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> tuple[Comparison, ...]:
        raise LatteError("the net with tuned recipes cannot be measured: no loop named 'k'")

    monkeypatch.setattr(whole, "compare_nets", failed)
    done = run(file, *SEARCHED, "--budget", "1s")
    assert done.exit_code == 0 and "no loop named 'k'" in done.output
    assert "the whole net does not gain: no file is written" in done.output
    assert [path.name for path in Path("tuned").iterdir()] == [FILE]


def test_a_small_budget_goes_to_the_phase_that_loses_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LEAST", 10.0)
    first, second = (whole.Slice(None, 0.0, 0.5, weight) for weight in (2.0, 1.0))  # type: ignore[arg-type]
    assert [each.seconds for each in whole._sliced([first, second], 8.5)] == [8.5]
    assert [each.seconds for each in whole._sliced([first, second], 60.0)] == [40.0, 20.0]


def test_what_the_budget_does_not_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that has begun is brought to its end; the next ones do not begin."""
    slices = [
        whole.Slice(SimpleNamespace(name=f"conv{number} forward", together=None), 10.0, 0.5, 1.0)  # type: ignore[arg-type]
        for number in (1, 2, 3)
    ]
    clock, told = iter([0.0, 0.0, 31.0]), list[str]()
    monkeypatch.setattr(whole, "monotonic", lambda: next(clock))
    monkeypatch.setattr(whole, "search", lambda tunable, *_: tunable.name)
    options = SimpleNamespace(method="random", seed=0)
    nothing = [None] * 4
    found = list(whole.searched(slices, options, *nothing, told.append, lambda *_: None))  # type: ignore[arg-type]
    assert found == ["conv1 forward"]  # type: ignore[comparison-overlap]
    assert told == ["the budget is over: 2 of 3 searches were not begun"]


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
    (found,) = compare_nets(file, same, None, "portable", 1, 0.1, {"size": 4})
    assert len(found.tuned) == len(found.before) >= 5 and found.step == "inference"


def test_an_interrupt_leaves_the_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = session.results_of, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return own(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "results_of", interrupted)
    done = run(file, *SEARCHED, "--budget", "60s")
    assert done.exit_code == 130 and "--resume goes on from tuned" in done.output
    before = candidates(Path("tuned"))
    assert before
    for line in Path("tuned", FILE).read_text().splitlines():
        json.loads(line)
    monkeypatch.setattr(session, "results_of", own)
    assert run(file, *SEARCHED, "--budget", "10s", "--resume").exit_code == 0
    after = candidates(Path("tuned"))
    keys = [line.key for line in after]
    assert after[: len(before)] == before and len(keys) > len(before)
    assert len(set(keys)) == len(keys)  # nothing was measured twice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the file of a net"),
        (["net.py", "--layer", "slow2"], "no layer or chain named 'slow2'"),
        (["loss.py", "--phase", "inference"], "no phase 'inference' can be tuned; inference follows forward"),
        (["net.py", "--budget", "soon"], "'soon' is not a time such as 60s, 20m or 1h"),
        (["--verify", "own"], "own has no entries"),
        (["net.py", "--drop"], "--drop is for --verify"),
        (["net.py", "--phase", "backward"], "the net has no loss, from which backward would start"),
        (["--plot", "own"], "own has no log with candidates that were measured"),
    ],
)
def test_what_is_wrong_is_told(file: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code != 0 and message in done.output


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("20m", 1200), ("1h", 3600), ("1.5m", 90), ("7", 7)])
def test_times(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_a_net_without_a_loss_is_tuned_for_inference(file: Path) -> None:
    file.write_text(NET.replace("    return net\n", "    net.force_backward = True\n    return net\n"))
    done = run(file, "--dry-run", "--budget", "30s", "--threads", "1", "--layer", "slow1")
    assert done.exit_code == 0 and "the net has no loss: it is tuned for inference" in done.output
    assert "slow1 forward" in done.output and "backward" not in done.output
    done = run("loss.py", "--dry-run", "--budget", "30s", "--threads", "1", "--layer", "slow1")
    assert "no loss" not in done.output and "slow1 backward" in done.output


def test_training_and_inference_are_compared_and_timed(file: Path) -> None:
    same = Path("empty")
    same.mkdir()
    steps = compare_nets(Path("loss.py"), same, None, "portable", 1, 0.1)
    assert [each.step for each in steps] == ["training", "inference"]
    assert all(len(each.tuned) == len(each.before) >= 5 for each in steps)


def test_other_results_are_told(file: Path) -> None:
    def compiled(name: str, old: str = "", new: str = "") -> Net:
        path = Path(name)
        path.write_text(WITH_LOSS.replace(old, new))
        found = load_net(path)
        found.compile(target="portable", threads=1)
        return found

    nets = [compiled(name) for name in ("first.py", "second.py", "third.py")]
    first, second, third = nets
    backward = compiled("backward.py", "0.5 * self.grad", "0.25 * self.grad")
    forward = compiled("forward.py", "0.5 * self.input", "0.6 * self.input")
    batch = synthetic_batch(first)
    for net in (*nets, backward, forward):
        net.set_batch(*batch)
    check_results(first, second, trains=True)
    with pytest.raises(LatteError, match=r"the gradient .*grad differs by"):
        check_results(third, backward, trains=True)
    check_results(third, backward, trains=False)
    with pytest.raises(LatteError, match="in inference differs by"):
        check_results(third, forward, trains=False)


def test_a_result_that_slows_inference_is_not_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept: list[list[str]] = []
    told: list[str] = []

    def compared(file: Path, folder: Path, *_: object) -> tuple[Comparison, ...]:
        phases = [entry.phase for entry in read_recipe(folder / "conv_relu.py").entries]
        kept.append(phases)
        return (GAIN, LOSS if "forward" in phases else GAIN)

    monkeypatch.setattr(whole, "compare_nets", compared)
    options = whole.Options(Path("net.py"), (), (), 10.0, "random", 0, tmp_path, False, None, None)
    machine = SimpleNamespace(target=TARGETS["avx2"], threads=2)
    entries = [replace(ENTRY, phase=phase) for phase in ("forward", "backward", "update")]
    found, measured = whole.accepted([[each] for each in entries], options, machine, told.append)  # type: ignore[arg-type]
    assert kept == [["forward", "backward", "update"], ["backward", "update"]]
    assert [each.phase for each in found] == ["backward", "update"] and measured == (GAIN, GAIN)
    assert told == [
        "with 3 of the schedules found a step of training is 2.000 times as fast, "
        "a step of inference is 0.500 times as fast"
    ]
    assert whole.accepted([entries[:1]], options, machine, told.append) == ([], ())  # type: ignore[arg-type]


def test_gains_are_of_pairs() -> None:
    assert Comparison((1.0,) * 5, (1.1,) * 5, "training").gains
    assert not Comparison((1.0,) * 5, (1.1, 1.1, 1.1, 1.1, 0.9), "training").gains  # by chance in one of five cases
    assert Comparison((1.0,) * 20, (1.1,) * 15 + (0.9,) * 5, "training").gains
    assert not Comparison((1.0, 1.0, 1.0, 1.0), (1.1, 0.9, 1.1, 0.9), "training").gains
    assert not Comparison((1.0,), (0.99,), "training").gains
    assert Comparison((1.1,) * 5, (1.0,) * 5, "inference").loses
    assert not Comparison((1.1, 1.1, 1.1, 1.1, 0.9), (1.0,) * 5, "inference").loses
