"""``latte bench net NAME``: a published net beside PyTorch's, a training step and inference."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from latte.tools.bench import command
from latte.tools.bench.alternate import compared
from latte.tools.bench.cases import Case, parsed
from latte.tools.bench.command import bench
from latte.tools.bench.ours import our_side
from latte.tools.bench.published import NETS, Published
from latte.tools.bench.rounding import FACTOR, LEAST, ROUNDING, WrongResult, compared_in_norm
from latte.tools.bench.whole_nets import PublishedNet
from latte.tools.bench.workers import sides
from swirl.errors import LatteError

pytestmark = pytest.mark.usefixtures("small_probes", "as_lowered")

SMALL = "small,3,33"
"""Two blocks, three images of 33 × 33."""


@pytest.fixture
def small() -> Case:
    return parsed("net", SMALL)


# --- cases ------------------------------------------------------------------------------------------------
def test_cases_by_name_and_by_batch() -> None:
    case = parsed("net", "resnet50")
    assert (case.batch, case.extent, str(case)) == (16, 224, "net resnet50,16,224")
    assert (
        parsed("net", "resnet50", batch=3, extent=65)
        == parsed("net", "resnet50,3,65")
        == Case("net", 3, extent=65, layer="resnet50")
    )
    assert case.phases == ("step", "inference")
    digits = parsed("net", "64", batch=3)
    assert (digits.batch, digits.published, digits.phases, str(digits)) == (64, None, ("step",), "net 64")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet51", r"no net named 'resnet51'; there are resnet18, .* a batch size of the digits net"),
        ("resnet50,0", "batch must be at least 1: resnet50,0,224"),
        ("resnet50,16,x", r"is not a shape for net; it takes layer\[,batch\[,extent\]\]"),
        ("resnet50,16,224,3", "is not a shape for net"),
        ("64,8", "is not a shape for net; it takes batch"),
    ],
)
def test_bad_names_and_sizes(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        parsed("net", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net", "resnet18", "--phase", "forward"), "net resnet18,16,224 is timed by step or inference, not forward"),
        (("net", "64", "--phase", "inference"), "net 64 is timed by step, not inference"),
        (("relu", "2,3,4", "--phase", "inference"), "not inference"),
        (("net", "64", "--size", "32"), "--size is of published nets"),
        (("--sweep", "--size", "32"), "--size is not used by --sweep"),
        (("net", "resnet18", "--default-schedule"), "--default-schedule is not for whole nets"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], message: str) -> None:
    ran = CliRunner().invoke(bench, arguments)
    assert ran.exit_code == 2 and message in ran.output, ran.output


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(LatteError, match=r"nowhere\.py: does not run: FileNotFoundError"):
        Published("nowhere").declared(1, 32)


# --- comparing --------------------------------------------------------------------------------------------
def test_the_bound_is_what_rounding_does() -> None:
    ours = {"scores": np.array([3.0, 4.0], np.float32)}

    def theirs(away: float, rounding: float) -> dict[str, np.ndarray]:
        return {"scores": ours["scores"] + np.float32([away, 0.0]), ROUNDING + "scores": np.float32([0.0, rounding])}

    assert compared_in_norm("a net", "peer", theirs(0.9 * FACTOR, 1.0), ours) == pytest.approx(0.45, rel=0.5)
    assert compared_in_norm("a net", "peer", theirs(4 * LEAST, 0.0), ours) == pytest.approx(0.8 * LEAST, rel=0.1)
    for away, rounding in ((1.1 * FACTOR, 1.0), (6 * LEAST, 0.0), (np.nan, 1.0), (0.1, np.nan)):
        with pytest.raises(WrongResult, match="a net: scores: differs from peer's by"):
            compared_in_norm("a net", "peer", theirs(away, rounding), ours)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_net_agrees_with_pytorch(small: Case, channels_last: bool) -> None:
    peer_nets = pytest.importorskip("latte.tools.bench.peer_nets")
    ours = our_side(small, 1, None, False)
    assert isinstance(ours, PublishedNet)
    parameters = ours.parameters()  # before a step changes them
    expected = ours.results()
    theirs = peer_nets.torch_side(small, 1, parameters, channels_last, False)
    found = theirs.results()
    assert set(found) == {*expected, *(ROUNDING + name for name in expected)}
    assert expected["scores in inference"].shape == (3, NETS["small"].classes) and np.ptp(expected["losses"]) > 0
    assert compared(small, "PyTorch", found, expected) < 1e-2
    for phase in small.phases:
        assert len(ours.seconds(phase, 2)) == len(theirs.seconds(phase, 2)) == 2
        assert ours.planned(phase) > 0 and min(ours.work(phase)) > 0
    assert np.isfinite(ours.net.loss)
    with pytest.raises(LatteError, match="measured by whole steps\n  --phase step --phase inference"):
        ours.seconds("forward", 1)
    theirs.inputs[0, 0, 0, 0] = np.nan
    with pytest.raises(LatteError, match="the loss is nan"):
        theirs.seconds("step", 1)
    for what in expected:
        wrong = expected | {what: expected[what] * np.float32(1.2)}
        with pytest.raises(WrongResult, match=f"{what}: differs"):
            compared(small, "PyTorch", found, wrong)


def without_momentum(net: PublishedNet) -> None:
    net.solver.momentum = 0.0


def with_running_statistics_of_the_start(net: PublishedNet) -> None:
    state = net.parameters()
    names = net.published.program.torchvision_names(net.net)
    right = net.net.predict

    def predict(images: np.ndarray) -> np.ndarray:
        statistics = {ours: theirs for ours, theirs in names.items() if "running" in ours}
        net.net.load_state_dict({theirs: state[theirs] for theirs in statistics.values()}, statistics, strict=False)
        return right(images)

    net.net.predict = predict  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (without_momentum, "steps of the last layer's weights"),
        (with_running_statistics_of_the_start, "scores in inference"),
    ],
)
def test_steps_are_compared(small: Case, wrong: Callable[[PublishedNet], None], what: str) -> None:
    """The second step depends on the first one's momentum, inference on what training has found."""
    peer_nets = pytest.importorskip("latte.tools.bench.peer_nets")
    ours = our_side(small, 1, None, False)
    parameters = ours.parameters()
    wrong(ours)
    found = peer_nets.torch_side(small, 1, parameters, False, False).results()
    with pytest.raises(WrongResult, match=what):
        compared(small, "PyTorch", found, ours.results())


@pytest.mark.parametrize("name", list(NETS))
def test_both_sides_have_the_same_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    published = pytest.importorskip("latte.tools.bench.peer_nets").published
    with torch.device("meta"):
        theirs = {n: t.numel() for n, t in published(NETS[name]).state_dict().items() if not n.endswith("_tracked")}
    net = NETS[name].declared(1, 64)
    sizes = {f"{e.name}.{f}": int(np.prod(spec.shape)) for e in net.ensembles for f, spec in e.fields().items()}
    assert {to: sizes[ours] for ours, to in NETS[name].program.torchvision_names(net).items()} == theirs


# --- a run ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_run_with_a_process_for_each_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(command, "instruction_sets", lambda environment: "")
    monkeypatch.setattr(command, "sides", lambda *about: sides(*about)[:3:2])  # ours, and PyTorch tuned
    monkeypatch.setenv("COLUMNS", "400")
    once = ["--rounds", "1", "--threads", "2", "--json", str(tmp_path / "rows.json")]
    ran = CliRunner().invoke(bench, ["net", "small", "--batch", "3", "--size", "33", *once])
    assert ran.exit_code == 0, ran.output
    for phase in ("step", "inference"):
        sides_of_it = r"[\d.]+ MB of memory planned; one thread [\d.]+×; PyTorch tuned [\d.]+×"
        assert re.search(rf"net {SMALL} {phase}: Latte .* of the limit; {sides_of_it}", ran.output), ran.output
    assert f"net {SMALL}: Latte compiles (minutes" in ran.output and "geometric mean" in ran.output
    rows: list[dict[str, Any]] = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["case"]["layer"], row["phase"]) for row in rows] == [("small", "step"), ("small", "inference")]
    assert all(set(row["seconds"]) == {"Latte", "one thread", "PyTorch tuned"} for row in rows)
    assert all(0 < row["differences"]["PyTorch tuned"] < 1e-2 for row in rows)
