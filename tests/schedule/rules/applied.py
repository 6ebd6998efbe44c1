"""What tests of rules share: programs and layers under the default schedule, or one rule, and what it has applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from latte import ConvLayer, MaxPoolingLayer, MemoryDataLayer, Net, Neuron
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from latte.neuron import Param, constant, eachindex, normal
from latte.tools.bench.own_layers import OWN
from swirl.analysis.loop_facts import facts
from swirl.ir.nest import Program
from swirl.schedule.command_log import Outcome
from swirl.schedule.pipeline import canonical_stages
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules import long_rows, threads
from swirl.schedule.rules.engine import Rule, run
from swirl.schedule.rules.order import NEST, PHASE
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS, Target
from tests.support import assert_same


def net_of(name: str, batch: int, shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    """A net of data and an own layer, with gradients of the data."""
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, shape[:2] if OWN[name].source == "sequence" else shape)
    return net, data, OWN[name].declare(net, data)


def before_schedule(net: Net, layer: Ensemble) -> dict[str, Program]:
    """The canonical program of each phase of a layer, but for inference."""
    item = next(item for item in layer_programs(net.graph, net.batch_size) if item.ensemble is layer)
    return {phase: canonical_stages(p)[-1].program for phase, p in item.programs.items() if phase != "inference"}


def scheduled(net: Net, layer: Ensemble, target: str | Target) -> Iterator[tuple[str, Program, Program, list[Outcome]]]:
    """Phase, canonical program, program after the default schedule, and its commands."""
    target = TARGETS[target] if isinstance(target, str) else target
    programs = before_schedule(net, layer)
    s = Schedule.alone(programs, target, f"{layer.name}.")
    for phase, before in programs.items():
        count = len(s.outcomes)
        run(PHASE, Trials(s, target, phase))
        yield phase, before, s.programs[phase], s.outcomes[count:]


def scalar(program: Program) -> list[str]:
    """Innermost loops without lanes that run more than once, and do not only fetch."""
    found = [f for nest in program.nests for f in facts(nest, program.buffers)]
    inner = [f for f in found if not any(o.nest is f.nest and f.contains(o) for o in found)]
    computing = [f for f in inner if any(statement.accesses for statement in f.inside)]
    return [f.var for f in computing if f.loop.kind in ("range", "parallel") and f.trips > 1]


def results_of(net: Net, data: Ensemble, layer: Ensemble) -> list[np.ndarray]:
    """The value of a layer of a compiled net, and the gradient of its data."""
    generator = np.random.default_rng(0)
    data.set_value(generator.standard_normal((net.batch_size, *data.shape)))
    net.forward()
    layer.set_grad(generator.standard_normal((net.batch_size, *layer.shape)))
    net.clear_grad()
    net.backward()
    return [layer.get_value(), data.get_grad()]


def share_from(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share loops that run so many statements, as the nests of tests do."""
    for module in (long_rows, threads):
        monkeypatch.setattr(module, "WORTH_SHARING", work)


def by_rule(
    name: str, before: Program, target: str | Target = "avx2", nest: int | None = 0, *, finite: bool = False
) -> tuple[str, list[str]]:
    """The nests of a program after one rule of the default schedule, which compute the same, and the commands that it
    has applied.

    Args:
        name: of the rule.
        before: the program, all of whose buffers belong to the layer that is scheduled.
        target: what it is made for.
        nest: the number of the nest that the rule is applied to; None for a rule of the phase.
        finite: whether data are finite, as a command assumes.
    """
    s = _after(name, before, target, nest)
    assert_same(before, s.programs["forward"], seeds=(0,), finite=finite)
    return s.programs["forward"].text, applied_texts(s.outcomes)


def chosen_by_rule(name: str, before: Program) -> list[str]:
    """The commands of a rule on AVX2 for a nest that is too large to be executed."""
    return applied_texts(_after(name, before, "avx2", 0).outcomes)


def _after(name: str, before: Program, target: str | Target, nest: int | None) -> Schedule:
    target = TARGETS[target] if isinstance(target, str) else target
    s = Schedule.alone({"forward": before}, target, "net.")
    rule = next(rule for rule in every_rule() if rule.name == name)
    rule.apply(Trials(s, target, "forward", nest=nest, work=2**20))
    return s


def every_rule() -> Iterator[Rule]:
    """The rules of the default schedule, in their order."""
    for stage in PHASE:
        yield from stage.rules
    yield from NEST


def default(before: Program, monkeypatch: pytest.MonkeyPatch) -> tuple[Program, list[str]]:
    """A program under the default schedule, whatever its size, and the commands that were applied."""
    share_from(1, monkeypatch)
    s = Schedule.alone({"forward": before}, TARGETS["avx2"], "net.")
    run(PHASE, Trials(s, TARGETS["avx2"], "forward"))
    return s.programs["forward"], applied_texts(s.outcomes)


def applied_texts(outcomes: list[Outcome]) -> list[str]:
    """The commands that were applied."""
    return [outcome.command.text for outcome in outcomes if outcome.status == "applied"]


def phases(net: Net, layer: Ensemble, target: str | Target = "avx512") -> Iterator[tuple[str, list[str]]]:
    """Each phase, and the commands that were applied to it; the nests still compute the same."""
    for phase, before, after, outcomes in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        yield phase, applied_texts(outcomes)


def applied_of(net: Net, layer: Ensemble, target: str | Target = "avx512") -> dict[str, list[str]]:
    """The commands that were applied, by phase."""
    return dict(phases(net, layer, target))


def applied_in(phase: str, net: Net, layer: Ensemble, target: str | Target = "avx512") -> list[str]:
    """Those of one phase, whose nests still compute the same; what comes after it is not scheduled."""
    before, after, outcomes = next(found for name, *found in scheduled(net, layer, target) if name == phase)
    assert_same(before, after, seeds=(0,))
    return applied_texts(outcomes)


def chosen_in(phase: str, net: Net, layer: Ensemble) -> list[str]:
    """The commands of one phase on AVX2, of layers that are too large to be computed exactly."""
    return applied_texts(next(found for name, *_, found in scheduled(net, layer, "avx2") if name == phase))


def strided(extent: int, taps: int, stride: int) -> tuple[Net, Ensemble]:
    """A convolution along one dimension, of a plain source."""
    net = Net(2, seed=1)
    net.force_backward = True

    class Strided(Neuron):
        weights = Param("f", shape=(4, taps), init=normal(0.5))

        def forward(self):
            self.value = 0.0
            for c, i in eachindex(self.inputs):
                self.value += self.weights[c, i] * self.inputs[c, i]

    outputs = (extent + 2 * (taps // 2) - taps) // stride + 1
    layer = net.add_ensemble(Ensemble(Strided, (16, outputs), dims=("f", "t")))
    net.add_connections(
        MemoryDataLayer(net, (4, extent)),
        layer,
        lambda f, t: (range(4), range(stride * t, stride * t + taps)),
        padding=(0, taps // 2),
    )
    return net, layer


def convolution(filters: int, extent: int, stride: int = 1) -> tuple[Net, Ensemble]:
    """A convolution by 3 × 3 of two images of five channels, with gradients of them."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, extent, extent))
    return net, ConvLayer(net, data, num_filters=filters, kernel=3, stride=stride, pad=1)


def clipped_pooling(extent: int) -> tuple[Net, Ensemble]:
    """Max pooling by 3 × 3 with stride 2, the first windows clipped, and the last ones if the extent is odd."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3, extent, extent))
    return net, MaxPoolingLayer(net, data, kernel=3, stride=2, pad=1, ceil_mode=False, clamp=False)


def pooling(extent: int, ceil_mode: bool = False) -> tuple[Net, Ensemble]:
    """Max pooling by 2 × 2 of two images of five channels."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, extent, extent))
    return net, MaxPoolingLayer(net, data, kernel=2, stride=2, ceil_mode=ceil_mode, clamp=False)


class OfPositions(Ensemble):
    """A convolution over positions, whose features are innermost."""

    def forward(self, inputs, value, w):
        N, T, D = inputs.shape
        K = w.shape[0]
        for n in range(N):
            for t in range(T):
                for k in range(K):
                    for j in range(3):
                        if 0 <= t + j - 1 < T:
                            for d in range(D):
                                value[n, t, k] += w[k, j, d] * inputs[n, t + j - 1, d]


def of_positions(batch: int, positions: int, features: int, filters: int) -> tuple[Net, Ensemble]:
    net = Net(batch, seed=1)
    net.force_backward = True
    layer = OfPositions(shape=(positions, filters), dims=("t", "k"))
    layer.add_field("w", Param("k", shape=(3, features), init=constant(0.5)))
    net.add_ensemble(layer)
    net.add_connections(MemoryDataLayer(net, (positions, features)), layer)
    return net, layer


def of_rows(kind: Callable[..., Ensemble], target: str) -> list[str]:
    """Commands of forward for 40 rows of 32."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (40, 32))
    layer = net.add_ensemble(kind(shape=data.shape, dims=("t", "d")))
    net.add_connections(data, layer)
    return applied_in("forward", net, layer, target)
