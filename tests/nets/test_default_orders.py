"""The default schedule of layers whose loops are in an order, or have bounds, that the library's do not have."""

from __future__ import annotations

import re

import pytest

from docs.commands import nests as example
from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import INFINITY, Field, Param, exp, log, normal_fan_in, sqrt, zeros
from swirl.ir.nest import loop_of
from swirl.ir.paths import loops
from swirl.schedule.recipe import Schedule
from swirl.schedule.rules.threads import share
from swirl.schedule.rules.trials import Trials
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_texts, scheduled, share_from
from tests.support import assert_same

BOTH = pytest.mark.parametrize("target", ["avx512", "avx2"])


def declared(layer: Ensemble, *shapes: tuple[int, ...], batch: int = 2) -> tuple[Net, Ensemble]:
    """A net of data and a layer that reads them as ``first``, ``second``, …, with gradients of the data."""
    net = Net(batch, seed=1)
    net.force_backward = True
    sources = [MemoryDataLayer(net, shape) for shape in shapes]
    net.add_ensemble(layer)
    for source, name in zip(sources, ("first", "second"), strict=False):
        net.add_connections(source, layer, name=name)
    return net, layer


class NearestDistances(Ensemble):
    """The squared distance of each point to the nearest one of another set."""

    def forward(self, first, second, value):
        N, P, D = first.shape
        for n in range(N):
            for i in range(P):
                best = INFINITY
                for j in range(second.shape[1]):
                    gap = 0.0
                    for d in range(D):
                        difference = first[n, i, d] - second[n, j, d]
                        gap += difference * difference
                    best = min(best, gap)
                value[n, i] = best


@BOTH
def test_gradients_go_to_the_one_place_by_way_of_locals(target: str) -> None:
    net, layer = declared(NearestDistances(shape=(9,), dims=("o",)), (9, 3), (17, 3))
    for phase, before, after, commands in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,), finite=True)
        if phase == "backward":
            assert "locate('backward', 'j_1')" in applied_texts(commands), applied_texts(commands)


class Mixture(Ensemble):
    """The logarithm of a sum of exponentials, whose factors are parameters and are divided by what they add up to."""

    parts = Field("n", "t", shape=(3,))
    weights = Param(shape=(3,), init=normal_fan_in)

    def forward(self, first, value, parts, weights):
        N, T, M, V = first.shape
        for n in range(N):
            for t in range(T):
                for m in range(M):
                    for v in range(V):
                        parts[n, t, m] += exp(first[n, t, m, v])
                for v in range(V):
                    total = 0.0
                    for m in range(M):
                        total += weights[m] * exp(first[n, t, m, v]) / parts[n, t, m]
                    value[n, t, v] = log(1.0 + total * total)


@BOTH
def test_loops_with_a_local_between_them_are_nested_for_lanes(target: str) -> None:
    """Sums over the words were scalar: they add to an element for each part, in loops inside of them."""
    net, layer = declared(Mixture(shape=(2, 40), dims=("t", "v")), (2, 3, 40))
    for phase, before, after, commands in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        if phase == "backward":
            assert any(text.startswith("scalar_expand('backward'") for text in applied_texts(commands))
            assert "in range(40)" not in after.text, after.text


class TapsOutside(Ensemble):
    """A 3 × 3 convolution: taps outside of images, channels inside, weights that are computed before."""

    weights = Param("k", shape=(4, 3, 3), init=normal_fan_in)
    mixed = Field("k", shape=(4, 3, 3))

    def forward(self, first, value, weights, mixed):
        N, C, H, W = first.shape
        K = value.shape[1]
        for k in range(K):
            for c in range(C):
                for i in range(3):
                    for j in range(3):
                        mixed[k, c, i, j] = 2.0 * weights[k, c, i, j]
        for i in range(3):
            for j in range(3):
                for n in range(N):
                    for y in range(max(0, 1 - i), min(H, H + 1 - i)):
                        for x in range(max(0, 1 - j), min(W, W + 1 - j)):
                            for k in range(K):
                                for c in range(C):
                                    value[n, k, y, x] += mixed[k, c, i, j] * first[n, c, y + i - 1, x + j - 1]


@BOTH
def test_borders_that_bounds_clip_are_as_those_under_conditions(target: str) -> None:
    """Results are in blocks of filters, also the weights that a batch has in common; gradients are gathered, and stay
    in registers over all taps."""
    width = TARGETS[target].simd_width
    net, layer = declared(TapsOutside(shape=(width, 9, 11), dims=("k", "y", "x")), (4, 9, 11))
    for phase, before, after, commands in scheduled(net, layer, target):
        applied = applied_texts(commands)
        assert_same(before, after, seeds=(0,))
        assert not any(re.match(r"split\('\w+', '[ij]'", text) for text in applied), applied
        if phase == "forward":
            assert f"tile('mixed', 0, {width}, reorder=False)" in applied, applied
        if phase == "backward":
            assert any(re.fullmatch(r"reindex\('backward', 'x\w*', x\w*='x\w* \+ j - 1'.*\)", text) for text in applied)
            assert "scalar_replace('backward', 'grad_first')" in applied, applied


class TwoPasses(Ensemble):
    """Convolutions along rows, then along columns, with loops of the same names."""

    across = Param(shape=(6, 5, 3), init=normal_fan_in)
    down = Param("k", shape=(6, 3), init=normal_fan_in)
    middle = Field("n", shape=(6, 9, 10))
    bias = Param("k", init=zeros)

    def forward(self, first, value, across, down, middle, bias):
        N, C, H, W = first.shape
        for n in range(N):
            for m in range(6):
                for c in range(C):
                    for i in range(3):
                        for y in range(H):
                            for x in range(max(0, 1 - i), min(W, W + 1 - i)):
                                middle[n, m, y, x] += across[m, c, i] * first[n, c, y, x + i - 1]
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    for k in range(value.shape[1]):
                        total = bias[k]
                        for i in range(3):
                            if 0 <= y + i - 1 < H:
                                for m in range(6):
                                    total += down[k, m, i] * middle[n, m, y + i - 1, x]
                        value[n, k, y, x] = total


@BOTH
def test_loops_of_a_name_are_gathered_apart(target: str) -> None:
    """A change of variables for one sum is not undone for another one whose loops have the same names."""
    net, layer = declared(TwoPasses(shape=(8, 9, 10), dims=("k", "y", "x")), (5, 9, 10))
    for _, before, after, commands in scheduled(net, layer, target):
        assert_same(before, after, seeds=(0,))
        assert not [text for text in applied_texts(commands) if "_to_to" in text], applied_texts(commands)


def test_a_loop_of_one_iteration_hides_no_loops_from_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that over the one vector of a dimension: lanes leave it outside."""
    share_from(1, monkeypatch)
    text = """
        for b in range(1):
            for c in range(40):
                for k in range(20):
                    for l in range(16):
                        x[b, c, l] += y[b, c, k] * z[b, k, l]
            for d in range(50):
                for l in range(16):
                    w[b, d, l] = z[b, d % 20, l] + 1.0
        """
    before = example(text, x=(1, 40, 16), y=(1, 40, 20), z=(1, 20, 16), w=(1, 50, 16))
    s = Schedule.alone({"forward": before}, TARGETS["avx512"], ("",))
    share(Trials(s, TARGETS["avx512"], "forward", nest=0, work=10**6))
    after = assert_same(before, s.programs["forward"])
    shared = {loop_of(node).var for _, node in loops(after.nests[0].body) if loop_of(node).kind == "parallel"}
    assert shared == {"c", "d"}, after.text


class DilatedLeaky(Ensemble):
    """A dilated depthwise convolution and a leaky ReLU, channels innermost."""

    weights = Param("c", shape=(3, 3), init=normal_fan_in)

    def forward(self, first, weights, value):
        N, C, H, W = first.shape
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    for c in range(C):
                        total = 0.0
                        for i in range(3):
                            row = y + 2 * i - 2
                            if 0 <= row < H:
                                for j in range(3):
                                    column = x + 2 * j - 2
                                    if column >= 0 and column < W:
                                        total += weights[c, i, j] * first[n, c, row, column]
                        value[n, c, y, x] = total if total > 0.0 else 0.1 * total


class LocalContrast(Ensemble):
    """A pixel beside the moments of the pixels of its window that exist."""

    def forward(self, first, value):
        N, C, H, W = first.shape
        for n in range(N):
            for c in range(C):
                for y in range(H):
                    for x in range(W):
                        total, squares, count = 0.0, 0.0, 0.0
                        for i in range(5):
                            for j in range(5):
                                if 0 <= y + i - 2 < H and 0 <= x + j - 2 < W:
                                    v = first[n, c, y + i - 2, x + j - 2]
                                    total += v
                                    squares += v * v
                                    count += 1.0
                        mean = total / count
                        value[n, c, y, x] = (first[n, c, y, x] - mean) / sqrt(squares / count - mean * mean + 0.01)


@BOTH
@pytest.mark.parametrize("layer", [DilatedLeaky, LocalContrast])
def test_gradients_of_windows_go_to_neighbours_by_way_of_locals(layer: type[Ensemble], target: str) -> None:
    """Each element of the gradient is a sum over the window: nothing is scattered."""
    net, made = declared(layer(shape=(3, 7, 19), dims=("c", "y", "x")), (3, 7, 19))
    for phase, before, after, commands in scheduled(net, made, target):
        assert_same(before, after, seeds=(0,), finite=True)
        texts = applied_texts(commands)
        assert "gather" not in str(texts), (phase, texts)
        if phase == "backward":
            assert "reindex('backward', 'x" in str(texts) and "reindex('backward', 'y" in str(texts), texts
        for name, buffer in before.buffers.items():
            assert not name.startswith("kept_") or buffer.shape == (2, 3, 7, 19), (name, buffer.shape)


@BOTH
def test_short_loops_with_a_condition_between_go_outside_of_lanes(target: str) -> None:
    net, made = declared(DilatedLeaky(shape=(3, 7, 19), dims=("c", "y", "x")), (3, 7, 19))
    (texts,) = (applied_texts(c) for phase, _, _, c in scheduled(net, made, target) if phase == "update")
    assert "reorder('update', ['i', 'j_1', 'x'])" in texts, texts
