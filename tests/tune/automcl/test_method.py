"""``latte tune --method automcl``: which phases have the space, the schedule that is chosen, the search."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from latte.tools.cli import main
from latte.tools.net_files import load_net
from latte.tools.tune.automcl import with_configurations
from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Tunable, tunables
from swirl.cost.time import Rates
from swirl.target.targets import TARGETS
from swirl.tune.automcl.choice import ScheduleChoice, choice_file
from swirl.tune.automcl.complexity import CONVOPT, LPMM, RPMMV
from swirl.tune.automcl.space import CHOSEN_AMONG, Configurations
from swirl.tune.automcl.trees import Trees
from swirl.tune.methods import METHODS
from swirl.tune.spaces import ListedPool
from tests.support import running_targets

TARGET = running_targets(vectors=True)[0]
NET = """
from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, TanhLayer


def net():
    net = Net(4, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (16, 6, 6)), num_filters=16, kernel=3, stride=1, pad=1)
    FullyConnectedLayer(net, conv, 32)
    TanhLayer(net, MemoryDataLayer(net, (8,)))
    return net
"""
MACHINE = Machine(TARGETS[TARGET], 2, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "here", "")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_TARGET", TARGET)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


def forward(file: Path, layer: str) -> Tunable:
    found, _ = tunables(load_net(file), MACHINE.target, 2, [layer], ["forward"])
    return found[0]


def schedules(tunable: Tunable) -> set[str]:
    assert isinstance(tunable.space, Configurations)
    return {each["schedule"] for each in tunable.space.configurations()}


def test_phases_without_a_product_are_told(file: Path) -> None:
    arguments = ["tune", str(file), "--method", "automcl", "--dry-run", "--layer", "conv1", "--layer", "tanh1"]
    told = " ".join(CliRunner().invoke(main, arguments, catch_exceptions=False).output.split())
    assert "tanh1 forward has no schedules of AutoMCL" in told and "searched by regression" in told
    assert "conv1 forward has no" not in told


def test_a_phase_is_searched_by_algorithm_2(file: Path, tmp_path: Path) -> None:
    tunable, why = with_configurations(forward(file, "fully_connected1"), MACHINE, tmp_path)
    assert not why and schedules(tunable) == set(CHOSEN_AMONG)
    pool = MACHINE.pool(tunable)
    assert isinstance(pool, ListedPool)
    steps = METHODS[tunable.searched_by](pool, Random(1))
    first = next(steps)
    second = steps.send([1e-3 * (1 + draw.point.knobs["K_t"]) for draw in first])
    assert len({draw.point.key for draw in (*first, *second)}) == len(first) + len(second) == 16
    for draw in (first[0], second[0]):
        assert tunable.subject.after(draw.point.candidate.commands).key == draw.point.key


def test_convolutions_have_conv_opt(file: Path, tmp_path: Path) -> None:
    tunable, why = with_configurations(forward(file, "conv1"), MACHINE, tmp_path)
    assert not why and schedules(tunable) == {CONVOPT}


def test_the_trained_choice_says_the_schedule(file: Path, tmp_path: Path) -> None:
    scores = {LPMM: Trees(1.0, ()), RPMMV: Trees(0.0, ())}
    path = choice_file(tmp_path, TARGET)
    path.write_text(ScheduleChoice(TARGET, "here", 2, scores).written())
    layer = forward(file, "fully_connected1")
    assert schedules(with_configurations(layer, MACHINE, tmp_path)[0]) == {LPMM}
    path.write_text(ScheduleChoice(TARGET, "another machine", 2, scores).written())
    assert schedules(with_configurations(layer, MACHINE, tmp_path)[0]) == set(CHOSEN_AMONG)
