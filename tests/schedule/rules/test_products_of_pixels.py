"""A product over channels at each pixel, declared as a layer of one's own: each pass has the order and blocks that a
convolution's recipe would give it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Neuron, Param, eachindex, normal_fan_in
from swirl.analysis.statements import Statement, statements_of
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_of, applied_texts, scheduled
from tests.support import assert_same, running_targets


def mixing(batch: int, channels: int, filters: int, extent: int) -> tuple[Net, Ensemble]:
    class MixNeuron(Neuron):
        weights = Param("k", shape=(channels, 1, 1), init=normal_fan_in)

        def forward(self) -> None:
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[i]

    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (channels, extent, extent))
    layer = net.add_ensemble(Ensemble(MixNeuron, (filters, extent, extent), dims=("k", "y", "x")))
    net.add_connections(data, layer, lambda k, y, x: (range(channels), range(y, y + 1), range(x, x + 1)))
    return net, layer


def test_each_pass_reads_memory_once() -> None:
    """Backward has panels of the gradient: the weights that pass by are small, though their terms are far apart. In the
    update, parts of the pixels pass by once for all weights, whose loops of one iteration are cut like the others."""
    updates = scheduled(*mixing(16, 64, 96, 56), "avx512")
    applied = {phase: applied_texts(outcomes) for phase, _, _, outcomes in updates}
    assert "pack('forward', 'inputs', at='yx_outer')" in applied["forward"]
    assert "pack('backward', 'grad', at='k_outer')" in applied["backward"]
    assert "reorder('update', ['n', 'yx_outer', 'k', 'i0_1', 'yx_inner'], nest=1)" in applied["update"]
    assert "distribute('update', 'i2')" in applied["update"]


def test_the_whole_panels_of_a_ragged_row_are_copied() -> None:
    """A panel is 64 pixels wide: 192 of 196 are in panels, inside of the loop over items."""
    phases = scheduled(*mixing(16, 512, 512, 14), "avx512")
    applied = next(applied_texts(outcomes) for phase, _, _, outcomes in phases if phase == "backward")
    assert "split('backward', 'yx_1', [192], nest=1)" in applied
    assert "pack('backward', 'grad', at='yx_1_outer', order=[0, 1])" in applied


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("size", [(16, 512, 512, 14), (16, 256, 128, 28), (3, 33, 65, 20)])
def test_registers_hold_all_sums(target: str, size: tuple[int, int, int, int]) -> None:
    """A loop around two products has copies for the first of them alone: of both, there would be too many."""
    for _, _, after, _ in scheduled(*mixing(*size), target):
        for statement in (s for nest in after.nests for s in statements_of(nest)):
            assert sums_of(statement) < TARGETS[target].registers


def sums_of(statement: Statement) -> int:
    """Copies of what a statement adds to."""
    added = {name for a in statement.accesses if a.kind == "add" for names in a.names for name in names}
    copied = (loop for loop in statement.loops if loop.kind == "unrolled" and loop.var in added)
    return prod(loop.extent or 1 for loop in copied)


def test_few_pixels_pass_by_as_they_are() -> None:
    """All that is read again stays in the caches."""
    applied = applied_of(*mixing(2, 16, 8, 6), TARGETS["avx512"])
    assert not [text for texts in applied.values() for text in texts if "pack" in text or "_outer" in text]


@pytest.mark.parametrize("target", TARGETS)
def test_the_results_are_the_same(target: str) -> None:
    small = replace(TARGETS[target], l1_bytes=2**9, l2_bytes=2**12)
    net, layer = mixing(2, 5, 7, 8)
    for _, before, after, _ in scheduled(net, layer, small):
        assert_same(before, after, seeds=(0,))


@pytest.mark.parametrize("target", running_targets())
def test_results_beside_numpy(target: str) -> None:
    net, layer = mixing(3, 33, 65, 20)
    net.compile(target=target)
    random = np.random.default_rng(0)
    x = random.standard_normal((3, 33, 20, 20)).astype(np.float32)
    gradient = random.standard_normal((3, 65, 20, 20)).astype(np.float32)
    net.set_batch(x)
    layer.set_grad(gradient)
    net.forward()
    net.clear_grad()
    net.backward()
    weights = layer.get_weights().reshape(65, 33)
    np.testing.assert_allclose(layer.get_value(), np.einsum("kc,ncyx->nkyx", weights, x), rtol=1e-4, atol=1e-4)
    expected = np.einsum("kc,nkyx->ncyx", weights, gradient)
    np.testing.assert_allclose(net["data1"].get_grad(), expected, rtol=1e-4, atol=1e-4)
    expected = np.einsum("nkyx,ncyx->kc", gradient, x)
    np.testing.assert_allclose(layer.get_grad_weights().reshape(65, 33), expected, rtol=1e-4, atol=1e-3)
