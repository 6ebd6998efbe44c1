"""Layouts of parameters are chosen for all phases of a layer: what is tried, what is measured, what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from latte import (
    ConvLayer,
    FullyConnectedLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SigmoidLayer,
    SoftmaxLossLayer,
)
from latte.ensemble import Ensemble
from latte.neuron import Neuron, Param, eachindex, uniform_fan_in
from latte.tools.net_files import load_net
from latte.tools.synthetic_data import synthetic_batch
from latte.tools.tune import session, whole
from latte.tools.tune.accept import Comparison, check_results
from latte.tools.tune.files import tried_entry, write_entries
from latte.tools.tune.layouts import layout_choices
from latte.tools.tune.session import Found, Known, Machine
from latte.tools.tune.subjects import Tunable, tunables
from latte.tools.tune.verify import verify
from swirl.cost.time import Rates
from swirl.errors import LatteError
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS
from swirl.tune import layouts
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.evaluation import Timed
from swirl.tune.layouts import PhasesEvaluator
from swirl.tune.log import MEASURED, REFUSED, CandidateLine, Log, ResultLine, SubjectLine, read_log
from swirl.tune.worker import Worker
from tests.support import running_targets

NET = """
from latte import FullyConnectedLayer, MemoryDataLayer, Net, SigmoidLayer, SoftmaxLossLayer

def net():
    net = Net(6, seed=1)
    data, label = MemoryDataLayer(net, (21,)), MemoryDataLayer(net, (1,))
    hidden = SigmoidLayer(net, FullyConnectedLayer(net, data, 37))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, hidden, 5), label)
    return net
"""


def small() -> Net:
    net = Net(6, seed=1)
    data, label = MemoryDataLayer(net, (21,)), MemoryDataLayer(net, (1,))
    hidden = SigmoidLayer(net, FullyConnectedLayer(net, data, 37))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, hidden, 5), label)
    return net


def machine(target: str) -> Machine:
    return Machine(TARGETS[target], 1, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "some processor", "some compiler")


def choices(target: str, declared: object = small) -> list[Tunable]:
    net = declared()  # type: ignore[operator]
    found, _ = tunables(net, TARGETS[target], 1)
    return list(layout_choices(found, declared, machine(target)))  # type: ignore[arg-type]


def texts(choice: Tunable) -> list[str]:
    points = choice.space.ranked()  # type: ignore[attr-defined]
    return [" ".join(text for text in point.knobs["layouts"] if "grad" not in text) for point in points]


def test_what_is_tried() -> None:
    first, second = choices("avx2")
    assert first.together is not None and second.together is not None
    # Backward and update of the first layer are compiled with its sigmoid, forward is not: they have weights in common.
    assert {each.phase for each in first.together.phases} == {"forward", "update"}
    assert [each.phase for each in second.together.phases] == ["forward", "backward", "update"]
    assert texts(first) == [
        "transpose('weights', order=(1, 0))",
        "tile('weights', dim=0, factor=8)",
        "tile('weights', dim=1, factor=8)",
        "tile('weights', dim=0, factor=8) tile('weights', dim=1, factor=8)",
        "tile('weights', dim=1, factor=8) tile('weights', dim=0, factor=8)",
    ]
    assert texts(second) == [  # five rows are less than a vector
        "transpose('weights', order=(1, 0))",
        "tile('weights', dim=1, factor=8)",
    ]
    for choice in (first, second):
        for point in choice.space.ranked():  # type: ignore[attr-defined]
            own = {name: layout for name, layout in point.candidate.layouts.items() if "weights" in name}
            assert len(own) == 2 and len(set(own.values())) == 1, "a parameter and its gradient"


def test_parameters_are_laid_out_alike_and_each_by_itself() -> None:
    class GatedNeuron(Neuron):
        weights = Param("k", shape=(21,), init=uniform_fan_in)
        gate = Param("k", shape=(21,), init=uniform_fan_in)

        def forward(self) -> None:
            self.value = 0.0
            opened = 0.0
            for i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[i]
                opened += self.gate[i] * self.inputs[i]
            self.value *= opened

    def gated() -> Net:
        net = Net(6, seed=1)
        data, label = MemoryDataLayer(net, (21,)), MemoryDataLayer(net, (37,))
        layer = net.add_ensemble(Ensemble(GatedNeuron, (37,), ("k",)))
        net.add_connections(data, layer, lambda k: (range(21),), padding=(0,))
        MeanSquaredErrorLayer(net, layer, label)
        return net

    (choice,) = choices("avx2", gated)
    ways = ["transpose('{}', order=(1, 0))", "tile('{}', dim=0, factor=8)", "tile('{}', dim=1, factor=8)"]
    ways += [f"{ways[1]} {ways[2]}", f"{ways[2]} {ways[1]}"]
    both = [f"{way.replace('{}', 'weights')} {way.replace('{}', 'gate')}" for way in ways]
    alone = [way.replace("{}", name) for name in ("weights", "gate") for way in ways]
    assert texts(choice) == [*both, *alone]


def test_layers_with_recipes_choose_their_layouts_themselves() -> None:
    def images() -> Net:
        net = Net(2, seed=1)
        data, label = MemoryDataLayer(net, (3, 8, 8)), MemoryDataLayer(net, (1,))
        hidden = ReLULayer(net, ConvLayer(net, data, num_filters=16, kernel=3, pad=1))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, hidden, 5), label)
        return net

    assert [choice.kinds[0] for choice in choices("avx2", images)] == ["fully_connected"]


@pytest.mark.parametrize("name", running_targets())
def test_every_layout_computes_the_same(tmp_path: Path, name: str) -> None:
    """Of a whole net, whose phases are compiled in several units."""
    choice = choices(name)[0]
    before = small()
    before.compile(target=name, threads=1)
    before.set_batch(*synthetic_batch(before))
    for number, point in enumerate(choice.space.ranked()):  # type: ignore[attr-defined]
        folder = tmp_path / str(number)
        write_entries(folder, [tried_entry(choice, point.candidate, name, 1)])
        after = small()
        after.graph.settings.recipes = (folder,)
        after.compile(target=name, threads=1)
        after.load_state_dict(before.state_dict())
        after.set_batch(*synthetic_batch(before))
        check_results(before, after, trains=True)
        assert not after.report.cautions


# --- what is measured ----------------------------------------------------------------------------------------
def test_times_of_phases_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal programs are measured once; what cannot be made is refused with its reason."""
    choice = choices("avx2")[1]
    assert choice.together is not None
    phases = [(each.subject, each.known) for each in choice.together.phases]
    points = list(choice.space.ranked())  # type: ignore[attr-defined]
    measured: list[list[str]] = []

    class Alone:
        best = 2.0

        def __init__(self, subject: Subject, *_: object):
            self.phase = subject.phase

        def measure(self, candidates: Sequence[Candidate], runs: int) -> list[Timed]:
            measured.append([f"{self.phase} {each.key}" for each in candidates])
            seconds = {"forward": 1.0, "backward": 4.0, "update": 8.0}[self.phase]
            return [Timed(MEASURED, "", (seconds, 2 * seconds, seconds), (2.0, 2.0, 3.0)) for _ in candidates]

        def __enter__(self) -> Alone:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def following(candidate: Candidate) -> list[Candidate]:
        if candidate is points[1].candidate:
            raise LatteError("with other layouts there is no update")
        return [phases[1][1], phases[2][1]]  # backward and update are what they were

    monkeypatch.setattr(layouts, "Evaluator", Alone)
    with PhasesEvaluator(phases, following, 1, 6) as evaluator:
        assert evaluator.best == 6.0
        found = evaluator.measure([points[0].candidate, points[1].candidate, points[0].candidate], 3)
    assert [each.outcome for each in found] == [MEASURED, REFUSED, MEASURED]
    assert found[1].told == "with other layouts there is no update"
    assert measured == [[f"forward {points[0].key}"], [], []]
    assert found[0].seconds == (5.0, 5.0, 5.0, 5.5, 6.0) and found[0].ratio == pytest.approx(5 / 6)


def test_what_depends_on_layouts_is_kept_or_left_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = choices("avx2")
    options = whole.Options(Path("net.py"), (), (), 10.0, "random", 0, tmp_path, False, None, None)

    def found(tunable: Tunable, gain: float) -> Found:
        space = (first if tunable.unit is first.unit else second).space
        point = (
            next(iter(space.ranked()))
            if tunable.together
            else replace(next(iter(space.ranked())), candidate=tunable.known)
        )  # type: ignore[attr-defined]
        return Found(tunable, point, 1.0, 1.0 + gain, 0.0, 0.5, 1, 0)

    assert second.together is not None
    forward, backward, update = second.together.phases
    told: list[str] = []
    groups = whole.entries_of(
        [found(second, 0.1), found(forward, 0.2), found(update, 0.1), replace(found(backward, 1), best=None)],
        options,
        machine("avx2"),
        told.append,
    )
    assert [[entry.phase for entry in group] for group in groups] == [["forward", "update"]] and not told
    apart = whole.entries_of([found(forward, 0.1), found(update, 0.2)], options, machine("avx2"), told.append)
    assert [[entry.phase for entry in group] for group in apart] == [["update"], ["forward"]]

    slower = Comparison((2.0,) * 8, (1.0,) * 8, "inference")
    faster = Comparison((1.0,) * 8, (2.0,) * 8, "training")
    monkeypatch.setattr(whole, "compare_nets", lambda *_: (faster, slower))
    assert whole.accepted(groups, options, machine("avx2"), told.append)[0] == []


# --- from a file to recipes that are used ---------------------------------------------------------------------
def test_from_a_file_to_layouts_that_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Times decide what is kept: they must not decide this test. Candidates still run, and are compared.
    monkeypatch.setattr(Worker, "race", lambda self, jobs, runs=3: [[1.0]] * len(jobs))
    added = layouts._added
    monkeypatch.setattr(layouts, "_added", lambda parts: replace(added(parts), seconds=(1.0,), beside=(2.0,)))
    Path("net.py").write_text(NET)
    out = Path("tuned")
    options = whole.Options(Path("net.py"), ["fully_connected2"], (), 1.0, "random", 0, out, False, "portable", 1)
    on, told = machine("portable"), list[str]()

    slices, _ = whole.planned(load_net(options.file), options, on)
    assert [each.tunable.name for each in slices] == [
        f"fully_connected2 {what}" for what in ("layouts", "forward", "backward", "update")
    ]
    assert sum(each.seconds for each in slices) == pytest.approx(0.85)
    only = replace(options, phases=["update"])
    assert len(whole.planned(load_net(options.file), only, on)[0]) == 1, "layouts are of all phases, or of none"

    log = Log(out)
    show = lambda *_: None  # noqa: E731
    (found,) = whole.searched(slices[:1], options, on, 6, log, Known({}), told.append, show)
    assert found.best is not None and found.tried == 2 and not told
    lines = list(read_log(out))
    chosen = next(each for each in lines if isinstance(each, SubjectLine) and each.together)
    (result,) = (each for each in lines if isinstance(each, ResultLine))
    assert len(chosen.together) == len(result.after) == 3 and set(chosen.together) != set(result.after)

    # A search that goes on measures no layouts again; phases begin with the layouts that were chosen.
    monkeypatch.setattr(session, "FINALISTS", 0)
    resumed = whole.searched(slices[:1], options, on, 6, log, Known.of(lines, on), told.append, show)
    assert next(iter(resumed)).tried == 2
    measured = [each for each in read_log(out) if isinstance(each, CandidateLine)]
    assert len(measured) == 2 and {each.origin for each in measured} == {"layouts"}
    rest = whole._after([found], slices, options, on, told.append)
    assert [each.tunable.key for each in rest[1:]] == result.after

    (group,) = whole.entries_of([found], options, on, told.append)
    (path,) = write_entries(out, group)
    text = path.read_text()
    assert [each.form for each in read_recipe(path).entries] == [""], "layouts are for these sizes alone"
    assert "# fully_connected2 forward, fully_connected2 backward, fully_connected2 update." in text
    net = load_net(options.file)
    net.graph.settings.recipes = (out,)
    net.compile(target="portable", threads=1)
    assert not net.report.cautions

    assert verify(out, None, None, False, told.append)
    assert "holds: 2.00 times as fast as without it, with the phases that have its layouts" in told[0]
    body = text[text.index("def forward_1") : text.index("entries = (")]
    path.write_text(text.replace(body, 'def forward_1(s, target):\n    s.tile("bias", dim=0, factor=2)\n\n\n'))
    assert not verify(out, None, None, False, told.append)
    assert "not verified: it chooses layouts that log.jsonl does not know" in told[-2]
