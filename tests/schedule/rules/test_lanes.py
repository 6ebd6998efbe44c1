"""Which loop becomes lanes."""

from __future__ import annotations

import re

import pytest

from latte import ConvLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, Neuron
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, eachindex, exp, ones
from swirl.analysis.accesses import parsed
from swirl.analysis.statements import statements_of
from swirl.ir.nest import names_in
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.lanes import LanesRank
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_in, applied_of, by_rule, clipped_pooling, of_rows, pooling, scheduled
from tests.support import assert_same, program


def test_a_loop_of_one_iteration_hides_no_lanes() -> None:
    """A window of one position of a sequence is a loop of its own in the gradient."""
    net = Net(2, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (5, 32))

    class Projection(Neuron):
        weights = Param("k", shape=(32,), init=ones)

        def forward(self):
            self.value = 0.0
            for s, i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[s, i]

    layer = net.add_ensemble(Ensemble(Projection, (5, 48), ("t", "k")))
    net.add_connections(data, layer, lambda t, k: (range(t, t + 1), range(32)))
    backward = {phase: outcomes for phase, _, _, outcomes in scheduled(net, layer, "avx512")}["backward"]
    assert "vectorize('backward', 'i', 16)" in [o.command.text for o in backward if o.status == "applied"]


@pytest.mark.parametrize("extent", [40, 43])
def test_only_vectors_at_the_borders_have_masks(extent: int) -> None:
    """Where the target has no mask registers. (Asking a vectorised loop for its borders was an error.)"""
    net = Net(1, seed=1)
    net.force_backward = True
    layer = ConvLayer(net, MemoryDataLayer(net, (2, 3, extent)), num_filters=2)
    for phase, before, after, _ in scheduled(net, layer, "avx2"):
        assert_same(before, after, seeds=(0,))
        statements = [
            s for nest in after.nests for s in statements_of(nest) if any(a.kind == "add" for a in s.accesses)
        ]
        inner = [s for s in statements if s.loops[-1].kind == "vector" and "ky" in "".join(s.variables())]
        masked = [s for s in inner if any(s.loops[-1].var in names_in(parsed(guard)) for guard in s.guards)]
        assert masked and len(masked) < len(inner), f"{phase}\n{after.text}"


class RowSoftmax(Ensemble):
    """A softmax of rows, whose maximum has a gradient, so that its place is saved."""

    most = Field("n", "t")
    total = Field("n", "t")
    scale = Param("t", init=ones)

    def forward(self, inputs, value, most, total, scale):
        N, T, D = inputs.shape
        for n in range(N):
            for t in range(T):
                most[n, t] = inputs[n, t, 0]
                for d in range(1, D):
                    most[n, t] = max(most[n, t], inputs[n, t, d])
                for d in range(D):
                    value[n, t, d] = exp((inputs[n, t, d] - most[n, t]) * scale[t])
                    total[n, t] += value[n, t, d]
                for d in range(D):
                    value[n, t, d] = value[n, t, d] / total[n, t]


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_the_place_of_a_maximum_is_found_in_lanes(target: str) -> None:
    """All three loops of a softmax of rows run along them."""
    forward = of_rows(RowSoftmax, target)
    assert f"vectorize('forward', 'd', {TARGETS[target].simd_width})" in forward, forward
    assert not any("distribute" in text or "d_1" in text for text in forward), forward


def test_the_place_of_a_short_maximum_is_not() -> None:
    """Lanes along the three taps of a window, in the pixels at the borders, took three times as long."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (2, 56, 56))
    layer = MaxPoolingLayer(net, data, kernel=3, stride=2, pad=1, ceil_mode=True, clamp=True)
    for target in ("avx512", "avx2"):
        lanes = [text for text in applied_in("forward", net, layer, target) if text.startswith("vectorize")]
        assert lanes and all(re.match(r"vectorize\('forward', 'x", text) for text in lanes), lanes


@pytest.mark.parametrize("extent", [33, 34, 14])
def test_rows_that_borders_clip_run_in_lanes_between_them(extent: int) -> None:
    """Also if they clip one end alone, and rows shorter than a vector."""
    forward = applied_in("forward", *clipped_pooling(extent), "avx512")
    cuts = [1, (extent - 1) // 2] if extent % 2 else [1]
    assert f"split('forward', 'x', {cuts}, nest=0)" in forward or f"split('forward', 'x', {cuts})" in forward, forward
    assert any(text.startswith("vectorize('forward', 'x_1'") for text in forward), forward


def test_a_few_neighbours_come_before_many_that_are_far_apart() -> None:
    """The bias's gradient: four neighbours of each row, not eight rows."""
    net = Net(8, seed=1)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (20,)), 4)
    update = applied_in("update", net, layer, "avx512")
    assert any(re.match(r"vectorize\('update', 'k\w*', 16", text) for text in update), update
    assert not any(re.match(r"vectorize\('update', 'n\w*', 16, strided='gather'", text) for text in update), update


def test_lanes_run_along_the_loop_that_fills_most_of_a_vector() -> None:
    """Seven windows of a row, strided, before two taps that are neighbours."""
    applied = applied_of(*pooling(14))
    assert "vectorize('backward', 'x', 16, strided='gather')" in applied["backward"], applied


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for c in range(5):\n for x in range(20):\n  y[x] += w[c] * a[c, x]", ["vectorize('forward', 'x', 8)"]),
        (
            "for x in range(20):\n for c in range(5):\n  y[x] += w[c] * a[c, x]",
            ["reorder('forward', ['x', 'c'])", "vectorize('forward', 'x', 8)"],
        ),
        ("for x in range(1, 20):\n y[x] = 2.0 * y[x - 1]", []),
    ],
    ids=["innermost", "outermost", "a recurrence"],
)
def test_neighbours_in_memory_become_lanes(text: str, expected: list[str]) -> None:
    applied = by_rule("lanes", program(text, y=(20,), w=(5,), a=(5, 20)))[1]
    assert [one for one in applied if "vectorize" in one] == [one for one in expected if "vectorize" in one]


def test_the_rank_of_lanes() -> None:
    """A row before a column; a loop without sums before one with them; a long loop before a short one."""

    def best(text: str, **shapes: tuple[int, ...]) -> str:
        before = program(text, **shapes)
        own = Trials(Schedule.alone({"forward": before}, TARGETS["avx2"]), TARGETS["avx2"], "forward", nest=0)
        return min(own.loops(), key=lambda found: LanesRank.of(own, found)).var

    assert best("for i in range(9):\n for j in range(9):\n  y[j, i] = a[j, i]", y=(9, 9), a=(9, 9)) == "i"
    assert best("for i in range(9):\n for j in range(9):\n  y[i] += a[i + j]", y=(9,), a=(17,)) == "i"
    assert best("for i in range(9):\n for j in range(3):\n  y[i, j] = a[i, j]", y=(9, 3), a=(9, 3)) == "i"
