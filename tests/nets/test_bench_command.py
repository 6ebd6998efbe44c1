"""``latte bench``: wrong results are never timed; a line a row; everything in the JSON file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from latte.explain.facts import CommandFact
from latte.tools.bench import alternate, command, convolution, layers, plots, steps, targets
from latte.tools.bench.alternate import BOUND, Row, WrongResult, compared, write_data
from latte.tools.bench.breakdown import level_shares
from latte.tools.bench.cases import KINDS, SETS, Case, cases, parsed
from latte.tools.bench.command import as_json, bench, line, table
from latte.tools.bench.levels import LEVELS, up_to
from latte.tools.bench.ours import Layers, our_side
from latte.tools.bench.workers import ON_ONE_THREAD, OURS, Side, Worker, Workers, sides
from swirl.errors import LatteError
from swirl.ir.phases import PHASES
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("small_probes")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, [*arguments, "--rounds", "1", "--no-compiled"])


# --- cases ------------------------------------------------------------------------------------------------
def test_every_set_has_every_kind() -> None:
    for kind in KINDS:
        for name in SETS:
            found = cases(kind, name)
            assert found and all(parsed(kind, case.shape) == case for case in found)


@pytest.mark.parametrize(("kind", "text"), [("bn", "64,56"), ("bn", "64,56,7,1"), ("conv", "1,2,x,4"), ("net", "")])
def test_bad_shapes_say_what_is_taken(kind: str, text: str) -> None:
    with pytest.raises(click.BadParameter, match=rf"is not a shape for {kind}; it takes batch"):
        parsed(kind, text)
    with pytest.raises(click.BadParameter, match="kernel must be at least 1"):
        parsed("conv", "1,2,3,4,0")


# --- comparing --------------------------------------------------------------------------------------------
def test_one_wrong_element_is_found() -> None:
    case, right = parsed("conv", "1,2,3,40"), np.ones((3, 40, 40), np.float32)
    near = compared(case, "peer", {"value": right * (1 + BOUND / 2)}, {"value": right})
    assert near == pytest.approx(BOUND / 2, 1e-2)
    for wrong in (1 + 2 * BOUND, np.nan, np.inf):
        other = right.copy()
        other[2, 39, 39] = wrong
        with pytest.raises(WrongResult, match=r"value: 1 of 4800 elements .* peer's .*\[2, 39, 39\] is 1, and"):
            compared(case, "peer", {"value": other}, {"value": right})


def rounded(*sides: float) -> list[dict[str, np.ndarray]]:
    """Results of 16 images of 4 channels, 160 × 160, for each side; one value of channel 1 is what it is rounded to."""
    found = []
    for value in sides:
        one = {"value": np.ones((16, 4, 160, 160), np.float32)}
        one["value"][3, 1, 0, 5] = value
        for what, shape in (
            ("gradient of the source", (16, 2, 160, 160)),
            ("gradient of weights", (4, 2, 3, 3)),
            ("gradient of gamma", (4,)),
        ):
            one[what] = np.ones(shape, np.float32)
        found.append(one)
    return found


CHAIN = parsed("cbr", "16,2,4,160,3,1")


@pytest.mark.parametrize(
    ("what", "at"),
    [
        ("gradient of the source", (3, 1, 1, 6)),
        ("gradient of the source", (3, 0, 0, 4)),
        ("gradient of weights", (1, 0, 2, 2)),
        ("gradient of gamma", (1,)),
    ],
)
def test_rounding_may_decide_what_a_value_of_a_relu_reaches(what: str, at: tuple[int, ...]) -> None:
    """One in a million of the values: its window in the source, its filter's weights, its channel's parameters."""
    ours, theirs = rounded(1e-6, 0.0)
    theirs[what][at] = 0.9
    assert compared(CHAIN, "peer", theirs, ours) == pytest.approx(0.1)
    theirs[what][at] = 0.4 if what == "gradient of the source" else 0.7  # more than a term
    with pytest.raises(WrongResult):
        compared(CHAIN, "peer", theirs, ours)
    ours, theirs = rounded(1e-6, 1e-6)  # the same side of 0
    theirs[what][at] = 0.9
    with pytest.raises(WrongResult):
        compared(CHAIN, "peer", theirs, ours)


@pytest.mark.parametrize(
    ("what", "at"),
    [
        ("gradient of the source", (3, 1, 2, 6)),
        ("gradient of the source", (3, 0, 0, 7)),
        ("gradient of the source", (2, 1, 1, 6)),
        ("gradient of weights", (0, 0, 2, 2)),
        ("gradient of gamma", (2,)),
    ],
)
def test_rounding_decides_nothing_elsewhere(what: str, at: tuple[int, ...]) -> None:
    ours, theirs = rounded(1e-6, 0.0)
    for wrong in (0.9, np.nan):
        theirs[what][at] = wrong
        with pytest.raises(WrongResult, match=f"{what}: 1 of"):
            compared(CHAIN, "peer", theirs, ours)


def test_rounding_decides_few_values() -> None:
    ours, theirs = rounded(1e-6, 0.0)
    ours["value"][0, 0, 0, :8], theirs["value"][0, 0, 0, :8] = 0.0, 1e-6
    theirs["gradient of gamma"][1] = 0.9
    with pytest.raises(WrongResult):
        compared(CHAIN, "peer", theirs, ours)


def test_wrong_results_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    right = Worker.results

    def wrong(worker: Worker, data: Path) -> Any:
        found = right(worker, data)
        return {name: values * 1.01 for name, values in found.items()} if worker.side.peer else found

    def timed(worker: Worker, phase: str, runs: int, **more: Any) -> Any:
        raise AssertionError("timed")

    monkeypatch.setattr(command, "sides", lambda *about: sides(*about)[:2])  # ours and one peer
    monkeypatch.setattr(command, "instruction_sets", lambda environment: "")
    monkeypatch.setattr(Worker, "results", wrong)
    monkeypatch.setattr(Worker, "turn", timed)
    ran = run("relu", "--shape", "2,3,4")
    assert ran.exit_code == 1 and "differ from PyTorch's" in ran.output and "nothing was timed" in ran.output


# --- runs -------------------------------------------------------------------------------------------------
KINDS_AND_SHAPES = [
    ("bn", "3,5,4"),
    ("bn-relu", "3,5,4"),
    ("relu", "2,3,5"),
    ("pool", "2,3,7,3,2"),
    ("conv", "2,17,16,6,3,2"),
    ("cbr", "3,16,17,6"),
    ("fc", "3,30,11"),
    ("net", "8"),
    *(("layer", f"{name},3,2,4") for name in ("lstm", "attention", "embedding", "dropout", "softmax-loss", "split")),
]


def differences(case: Case, level: int | None = None, ours: Any = None) -> dict[str, float]:
    """Between our side and PyTorch in one process, by settings of the latter."""
    peer = pytest.importorskip("latte.tools.bench.peer_nets")
    ours = ours or our_side(case, 1, None, case.kind in ("conv", "cbr"), level)
    parameters = ours.parameters()  # before a step changes them
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        write_data(case, ours.value_shape if isinstance(ours, Layers) else (), path)
        with np.load(path) as given:
            data = given["inputs"], given["gradient"]
    ours.load(*data)
    expected, found = ours.results(), {}
    for channels_last in (False, True):
        theirs = peer.torch_side(case, 1, parameters, channels_last, False)
        theirs.load(*data)
        found[f"channels_last={channels_last}"] = compared(case, "PyTorch", theirs.results(), expected)
    return found


@pytest.mark.parametrize(("kind", "shape"), KINDS_AND_SHAPES)
def test_every_kind_agrees_with_pytorch(kind: str, shape: str) -> None:
    assert all(worst < BOUND for worst in differences(parsed(kind, shape)).values()) or kind == "net"


@pytest.mark.slow
def test_a_run_with_a_process_for_each_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that differs from all others is left out: ``torch.compile`` may be wrong where PyTorch and we agree."""
    pytest.importorskip("torch")
    right = Worker.results

    def wrong(worker: Worker, data: Path) -> Any:
        found = right(worker, data)
        return {name: values * (1.01 if worker.side.name == "PyTorch tuned" else 1) for name, values in found.items()}

    monkeypatch.setattr(Worker, "results", wrong)
    ran = run("bn-relu", "--shape", "3,5,4", "--threads", "2", "--json", str(tmp_path / "rows.json"))
    assert ran.exit_code == 0, ran.output
    assert re.search(
        r"bn-relu [\d,]+ step: Latte [\d.]+ ms .* of the limit; one thread [\d.]+×; PyTorch [\d.]+×", ran.output
    )
    (found,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert set(found["seconds"]) == {"Latte", "one thread", "PyTorch"} and all(found["seconds"].values())
    assert "its results differ from PyTorch's, too" in found["missing"]["PyTorch tuned"]
    assert found["operations"] > 0


@pytest.mark.slow
def test_compiled_peers_do_not_share_code_between_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` took loops over vectors of 16 from its cache for AVX2: half of the results were wrong."""
    pytest.importorskip("torch")
    if reason := why_not(TARGETS["avx512"]):
        pytest.skip(reason)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for one kernel
    case = parsed("relu", "2,8,6")
    for target in ("avx512", "avx2"):
        ours, *_, compiled = sides(target)
        with Workers(case, 1, target, False) as workers:
            first, data = workers.start(ours), workers.path("data.npz")
            write_data(case, first.about["value"], data)
            compared(case, target, workers.start(compiled).results(data), first.results(data))


def test_phases_that_are_parts_of_others() -> None:
    side = our_side(parsed("relu", "2,3,4"), 1, "portable", blocks=False)
    with pytest.raises(LatteError, match=r"update is a part of another phase here, or empty\n  --phase step"):
        side.seconds("update", 1)
    with pytest.raises(LatteError, match="relu has no source in blocks here"):
        our_side(parsed("relu", "2,3,4"), 1, "portable", blocks=True)


@pytest.mark.parametrize(
    ("kind", "shape", "blocks"),
    [("cbr", "2,16,8,5,3,1", True), ("conv", "2,3,8,5,3,1", False), ("bn", "2,16,5", False)],
)
def test_sources_have_the_layout_that_they_have_in_a_net(kind: str, shape: str, blocks: bool) -> None:
    assert parsed(kind, shape).comes_in_blocks == blocks


def test_peers_that_fail_are_left_out_and_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    broken = Side("broken", environment=(("PYTHONPATH", "/nowhere"), ("PYTHONHOME", "/nowhere")))
    without = Side("PyTorch", environment=(("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT)))),))
    three = [sides("portable")[0], broken, without]
    (found,) = alternate.measured(
        parsed("relu", "2,3,4"), ["forward"], three, 1, "portable", False, 1, lambda text: None
    )
    assert list(found.seconds) == [OURS] and found.tuned == ""
    assert "has failed" in found.missing["broken"]
    assert found.missing["PyTorch"].endswith("No module named 'torch'; pip install torch")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (steps.main, ["--shape", "2", "8", "16", "8", "--threads", "0"]),
        (steps.main, ["--shape", "0", "8", "16", "8"]),
        (convolution.main, ["--rounds", "0"]),
        (layers.main, ["--repeat", "0"]),
        (targets.main, ["--batch", "0"]),
    ],
)
def test_numbers_below_one_are_refused(command: click.Command, arguments: list[str]) -> None:
    found = CliRunner().invoke(command, arguments)
    assert found.exit_code == 2 and "is not in the range x>=1" in found.output


def test_a_refused_recipe_is_told_without_a_traceback(tmp_path: Path) -> None:
    (recipe := tmp_path / "mine.py").write_text("def forward(s, target):\n    s.tile_lop('forward', 'x', 8)\n")
    found = CliRunner().invoke(
        steps.main, ["--recipe", str(recipe), "--shape", "1", "8", "8", "4", "--phase", "forward"]
    )
    assert found.exit_code == 1 and "mine.py:2" in found.output and "Traceback" not in found.output


def test_workers_end_with_their_case() -> None:
    """Until then they are asked; turns have pauses, and say what threads met."""
    with Workers(parsed("relu", "2,3,4"), 1, "portable", False) as workers:
        worker = workers.start(sides("portable")[0])
        about = {"target": "portable", "value": [2, 3, 4, 4], "phases": ["forward", "backward"], "untuned": []}
        assert worker.about == about
        turn = worker.turn("forward", runs=3, warm=2, pause=0.02)
        assert len(turn.seconds) == 3 and min(turn.seconds) > 0
        assert turn.regions == turn.shared == 0  # of one thread
    assert worker.process.returncode == 0


# --- tables -----------------------------------------------------------------------------------------------
def row(**others: Any) -> Row:
    seconds = {OURS: [2e-3] * 5, "PyTorch": [8e-3] * 5, "PyTorch tuned": [4e-3, 4e-3, 4e-3, 9e-3, 9e-3]}
    return Row(
        **{
            **{
                "case": Case("bn", 2, 3, 4),
                "phase": "step",
                "target": "avx2",
                "threads": 2,
                "layout": "plain",
                "seconds": seconds,
                "differences": {"PyTorch": 1e-7},
                "operations": 10**6,
                "bytes": 10**7,
                "peak": 1e9,
                "bandwidth": 1e10,
            },
            **others,
        }
    )


def test_rows_say_ratios_limits_and_noise() -> None:
    made = row()
    assert made.ratio("PyTorch") == pytest.approx(4) and made.tuned == "PyTorch tuned"
    assert made.limit == pytest.approx(1e-3) and made.share == pytest.approx(0.5)
    assert made.noisy == ["PyTorch tuned"]
    assert row(seconds={OURS: [1.0]}).tuned == ""
    assert json.loads(as_json({"target": "avx2"}, [made]))["rows"][0]["ratios"]["PyTorch"] == pytest.approx(4)
    assert table([made]).row_count == 2  # and the mean


def test_rows_say_whether_threads_shared_a_core() -> None:
    made = row(shared={OURS: (3, 70), "default schedule": (0, 9)})
    assert "threads shared a core: Latte in 3 of 70 regions" in line(made)
    assert "shared a core" not in line(row(shared={OURS: (0, 70)}))
    assert json.loads(as_json({}, [made]))["rows"][0]["shared"] == {OURS: [3, 70], "default schedule": [0, 9]}


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots.ratios([row(), row(case=Case("bn", 2, 3, 5))], "avx2, 2 threads", tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


# --- breakdown --------------------------------------------------------------------------------------------
def test_levels_add_up_to_the_whole_recipe() -> None:
    """Each level's commands are among the next one's; the shares of speed add up to 1."""
    side = our_side(parsed("bn", "3,16,8"), 1, "portable", blocks=False)
    texts = [up_to(side.net.explain(side.members[0]), level) for level in range(len(LEVELS))]
    commands = [[line.strip() for line in text.splitlines() if "s." in line] for text in texts]
    assert commands[0] == [] and 0 < len(commands[1]) < len(commands[2])
    assert set(commands[1]) <= set(commands[2])
    assert not any("vectorize" in line for line in commands[1]) and any("vectorize" in line for line in commands[2])
    assert not any("parallelize" in line for line in commands[2])
    assert all(f"def {phase}(s, target):" in text for text in texts for phase in PHASES)  # none is left to defaults
    fact = CommandFact(
        "stream('forward', 'value', optional=True)", "forward", "applied", "", None, side.members[0].name
    )
    whole = replace(side.net.explain(side.members[0]), commands=(fact,))
    assert up_to(whole, 2).count("optional=True") == 1
    taken = dict(zip((*LEVELS, OURS), (8.0, 4.0, 2.0, 1.0), strict=True))
    shares = level_shares(row(seconds={name: [seconds] for name, seconds in taken.items()}))
    assert shares == pytest.approx([0.125, 0.125, 0.25, 0.5])


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_every_level_computes_the_same(level: int) -> None:
    assert all(worst < BOUND for worst in differences(parsed("bn", "3,17,6"), level).values())


@pytest.mark.parametrize(("kind", "shape"), [("cbr", "3,16,17,6"), ("pool", "2,3,7,3,2")])
def test_recipes_are_taken_away(kind: str, shape: str) -> None:
    side = our_side(parsed(kind, shape), 1, None, blocks=False, recipes=False)
    recipes = [side.net.explain(name).recipe for name in (m.name for m in side.members)]
    assert all(recipe.startswith("default schedule") and "recipes/" not in recipe for recipe in recipes), recipes
    assert all(worst < BOUND for worst in differences(parsed(kind, shape), ours=side).values())


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to measure, or to ask PyTorch for its instructions."""
    monkeypatch.setattr(command, "measured", measured)
    monkeypatch.setattr(command, "instruction_sets", lambda environment: "")


@pytest.mark.usefixtures("made_up")
def test_beside_ours_what_it_is_without_recipes() -> None:
    ran = run("conv", "--shape", "3,16,16,6", "--default-schedule")
    assert ran.exit_code == 0 and "default schedule 50.00×" in ran.output, ran.output


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("arguments", "scaling"),
    [(["--threads", "3"], True), (["--threads", "3", "--no-scaling"], False), (["--threads", "1"], False)],
)
def test_ours_is_also_timed_on_one_thread(arguments: list[str], scaling: bool) -> None:
    assert ON_ONE_THREAD.threads == 1
    ran = run("relu", "--shape", "2,3,4", *arguments)
    assert ran.exit_code == 0 and ("one thread 50.00×" in ran.output) == scaling, ran.output


def measured(case: Case, phases: Sequence[str], with_sides: Sequence[Side], *rest: Any) -> list[Row]:
    """Rows as if they had been measured: the later a side, the faster, but for ours, which is the fastest."""
    seconds = {side.name: [1.0 / number] * 3 for number, side in enumerate(with_sides, start=1)}
    return [row(case=case, phase=phase, seconds={**seconds, OURS: [0.01] * 3}) for phase in phases]


@pytest.mark.usefixtures("made_up")
def test_batch_norm_by_optimisations(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    ran = run("bn", "--shape", "3,5,4", "--shape", "2,3,4", "--breakdown", *files)
    assert ran.exit_code == 0, ran.output
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [set(each["seconds"]) for each in rows] == [{OURS, *LEVELS, "PyTorch", "PyTorch tuned"}] * 2
    assert re.search(r"500.00 ms *\(2%\) .* 250.00 ms *\(1%\) .*10.00 ms *\(96%\)", ran.output)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("made_up")
def test_a_chain_by_operators(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    ran = run("cbr", "--shape", "3,16,16,6,3,2", "--breakdown", *files)
    assert ran.exit_code == 0, ran.output
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    kinds = [(each["case"]["kind"], each["phase"]) for each in rows]
    assert kinds == [(kind, phase) for kind in ("cbr", "conv", "bn", "relu") for phase in ("forward", "step")]
    assert {each["case"]["extent"] for each in rows[4:]} == {3}
    assert "images/s" in ran.output and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_options_that_do_not_go_together() -> None:
    for arguments, message in (
        (("conv", "--breakdown"), "--breakdown is for bn and cbr"),
        ((), "name a kind of layer"),
        (("net", "--sweep"), "--sweep is not for layers by name, or nets"),
        (("--sweep", "--plot", "x.png"), "--plot is not used by --sweep"),
        (("--sweep", "--rounds", "3"), "--rounds is not used by --sweep"),
        (("--sweep", "--breakdown"), "--sweep or --breakdown"),
        (("bn", "--breakdown", "--phase", "forward"), "--phase is not used by --breakdown"),
        (("bn", "--kernels", "3"), "--kernels is of --sweep"),
        (("bn", "--set", "odd", "--shape", "1,2,3"), "--shape or --set"),
        (("--sweep", "--shape", "1,2,3"), "name a kind of layer"),
        (("relu", "--layout", "blocks"), "relu has no source in blocks here"),
        (("conv", "--default-schedule", "--sweep"), "--default-schedule is not for --sweep"),
        (("cbr", "--default-schedule", "--breakdown"), "--default-schedule is not for --breakdown"),
        (("bn", "--default-schedule", "--layout", "blocks"), "--default-schedule is not for --layout blocks"),
        (("net", "--default-schedule"), "--default-schedule is not for whole nets"),
        (("own", "--default-schedule", "--shape", "gelu,4,8,8"), "own gelu,4,8,8 has no recipe"),
    ):
        ran = CliRunner().invoke(bench, arguments)
        assert ran.exit_code == 2 and message in ran.output, arguments


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_folder_that_is_missing_is_found_before_anything_is_measured(option: str) -> None:
    done = CliRunner().invoke(bench, ["bn", "--shape", "2,3,5", option, "/nonexistent/x.png"])
    assert done.exit_code == 2 and "there is no folder /nonexistent" in done.output
    assert "threads on" not in done.output
