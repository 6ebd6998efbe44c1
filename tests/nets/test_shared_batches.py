"""What a net does with its part of a batch that processes share: random numbers, phases in parts, sums over items."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.compiling import new_session
from latte.ensemble import ActivationEnsemble, BatchSumEnsemble, Ensemble
from latte.neuron import Neuron, rand
from latte.runtime import reduction
from latte.runtime.executable import Executable
from latte.runtime.group import Alone
from latte.solver import SGD
from swirl.errors import DeclarationError

ITEMS = 7
generator = np.random.default_rng(0)
images = generator.normal(2.0, 1.0, (ITEMS, 3, 6, 5)).astype(np.float32)
labels = generator.integers(0, 4, ITEMS)


class ItemsInside(Ensemble):
    """Random numbers in a loop over items that is not the outermost."""

    def forward(self, inputs, value):
        N, C, H, W = inputs.shape
        for c in range(C):
            for h in range(H):
                for n in range(N):
                    for w in range(W):
                        value[n, c, h, w] = inputs[n, c, h, w] * rand()


def items_inside(net: Net, source: Ensemble) -> Ensemble:
    layer = net.add_ensemble(ItemsInside(shape=source.shape))
    net.add_one_to_one_connections(source, layer)
    return layer


def declared(layer: Callable[[Net, Ensemble], Ensemble], items: int = ITEMS, **options: object) -> Net:
    """A net with a layer after a convolution."""
    net = Net(batch_size=items, seed=2, **options)
    data, label = MemoryDataLayer(net, (3, 6, 5)), MemoryDataLayer(net, (1,))
    inner = ReLULayer(net, layer(net, ConvLayer(net, data, num_filters=9)))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, inner, 4), label)
    return net


def compiled(layer: Callable[[Net, Ensemble], Ensemble], target: str, items: int = ITEMS) -> Net:
    net = declared(layer, items, keep="all")
    net.compile(target=target)
    return net


@pytest.mark.parametrize("layer", [DropoutLayer, items_inside])
def test_random_numbers_are_those_of_the_place_in_the_whole_batch(
    layer: Callable[[Net, Ensemble], Ensemble], target: str
) -> None:
    whole, part = compiled(layer, target), compiled(layer, target, items=3)
    name = whole.ensembles[3].name
    whole.set_batch(images, labels)
    whole.forward()
    expected = whole[name].get_value()
    for first, last in ((0, 3), (3, 6), (6, 7)):
        part.session.place(first)
        part.set_batch(images[first:last], labels[first:last])
        part.executable.arrays["net.step"][0] = 0
        part.forward()
        np.testing.assert_array_equal(part[name].get_value(), expected[first:last])


def test_a_batch_is_by_itself_after_an_evaluation() -> None:
    net = declared(DropoutLayer)
    net.compile()
    net.session.place(5)
    net.evaluate(images, labels)
    assert net.executable.arrays["net.first_item"][0] == 0


def test_a_phase_in_parts_has_the_same_bits(target: str) -> None:
    found = []
    for parts in (False, True):
        net = declared(BatchNormLayer)
        net.compile(target=target)
        net.set_batch(images, labels)
        net.clear_grad()
        if parts:
            session, executable = net.session, net.executable
            session.forward(lambda executable, storage: None)
            count = len(executable.order["backward"])
            assert list(session.backward_in_parts({}, {1, count - 1})) == sorted({1, count - 1, count})
        else:
            net.forward()
            net.backward()
        found.append(net.session.gradients())
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name], err_msg=name)


def test_losses_in_double_precision() -> None:
    """They are near those of single precision, and other numbers."""
    losses = []
    for double in (False, True):
        net = Net(batch_size=ITEMS, seed=2)
        data, label = MemoryDataLayer(net, (3, 6, 5)), MemoryDataLayer(net, (1,))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, DropoutLayer(net, data), 4), label)
        net._session, net.graph.settings.compiled = new_session(net.graph, "portable", None, False, double), True
        losses.append(net.fit(images, labels, solver=SGD(net, 0.1, momentum=0.9), epochs=5, progress=False).losses)
        kept = {b.dtype for b in net.executable.buffers.values() if b.role in ("param", "param_grad")}
        assert kept == {"float64" if double else "float32"}
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0] != losses[1]


# --- gradients --------------------------------------------------------------------------------------------
class Twin(Alone):
    """Two processes that compute the same.

    Args:
        started: called when gradients begin to be added up.
        unlike: whether the other one lays gradients out in another way.
    """

    size = 2

    def __init__(self, started: Callable[[], None], unlike: bool):
        self._started, self._unlike = started, unlike

    def gather(self, value: Any, what: str) -> list[Any]:
        order, laid_out = value
        return [value, (order, dict.fromkeys(laid_out) if self._unlike else laid_out)]

    def start_sum(self, values: np.ndarray, what: str) -> Callable[[], None]:
        self._started()
        values *= 2
        return lambda: None


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("together", [1, 2**23])
def test_gradients_are_added_up_while_backward_runs(
    unlike: bool, together: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "BUCKET_BYTES", together)
    net = declared(BatchNormLayer)
    net.compile(target=target)
    net.set_batch(images, labels)
    net.forward()
    net.clear_grad()
    net.backward()
    expected = net.session.gradients()
    ready: list[set[str]] = []

    def started() -> None:
        there = {name: net.executable.read(name) for name in expected}
        ready.append({name for name, values in there.items() if not np.isnan(values).any()})

    shared = reduction.Reduction(Twin(started, unlike), net.session)
    net.clear_grad()
    for name, values in expected.items():
        net.executable.write(name, np.full(values.shape, np.nan))
    shared.backward({}, True, lambda executable, storage: None, "a test")
    for name, values in net.session.gradients().items():
        np.testing.assert_array_equal(values, 2 * expected[name], err_msg=name)
    if together == 1:
        assert len(ready) == len(expected)
        assert "fully_connected1.grad_weights" in ready[0]
        assert "conv1.grad_weights" not in ready[0]
        assert all(before <= after for before, after in pairwise(ready))
    assert ready[-1] == set(expected)


# --- sums over items --------------------------------------------------------------------------------------
def synchronised(net: Net, source: Ensemble) -> Ensemble:
    return BatchNormLayer(net, source, synchronised=True)


@pytest.mark.parametrize("memory", ["default", "less"])
def test_what_is_added_up_comes_before_what_reads_it(memory: str) -> None:
    """A half of the items in each of two processes that do the same: the sums are twice those of one."""
    twice = declared(synchronised, 2 * ITEMS)
    options = {} if memory == "default" else {"memory": memory}
    alone = declared(synchronised, **options)
    for net in (alone, twice):
        net.compile()
    alone.load_state_dict(twice.state_dict())

    def doubled(executable: Executable, storage: str) -> None:
        added.append(storage)
        executable.arrays[storage][...] *= 2

    added: list[str] = []
    alone.set_batch(images, labels)
    alone.clear_grad()
    alone.session.forward(doubled)
    sums = alone.executable.batch_sums("backward")
    for end in alone.session.backward_in_parts({"softmax_loss1": 0.5}, {place for place, _ in sums}):
        for place, storage in sums:
            if place == end:
                doubled(alone.executable, storage)
    twice.set_batch(np.concatenate([images, images]), np.concatenate([labels, labels]))
    twice.clear_grad()
    twice.forward()
    twice.backward()
    name = "synchronised_batch_norm1"
    assert added == [f"{name}_sums.value", f"{name}_squares.value", f"{name}_squares.grad", f"{name}_sums.grad"]
    np.testing.assert_allclose(alone.loss, twice.loss, rtol=1e-6)
    expected = twice.session.gradients()
    for storage, values in alone.session.gradients().items():
        close = 1e-5 * max(1.0, float(np.abs(expected[storage]).max()))  # a sum of half as many terms
        assert float(np.abs(2 * values - expected[storage]).max()) <= close, storage


def test_frozen_batch_norm_infers() -> None:
    """By running statistics, as that of one process does."""
    found: list[tuple[object, ...]] = []
    state: dict[str, np.ndarray] = {}
    for layer in (BatchNormLayer, synchronised):
        net = declared(layer)
        net.compile()
        if found:
            net.load_state_dict(dict(zip(net.state_dict(), state.values(), strict=True)))
        state = net.state_dict()
        net.freeze("*batch_norm1")
        net.set_batch(images, labels)
        net.clear_grad()
        net.forward()
        net.backward()
        found.append((net.loss, *net.session.gradients().values()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


class Counted(BatchSumEnsemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[c] += inputs[n, c]


def test_neurons_do_not_read_sums() -> None:
    class Copy(Neuron):
        def forward(self):
            self.value = self.input

    net = Net(batch_size=2)
    data = MemoryDataLayer(net, (3,))
    sums = net.add_ensemble(Counted(3))
    net.add_connections(data, sums)
    copy = net.add_ensemble(ActivationEnsemble(Copy, (3,)))
    with pytest.raises(DeclarationError, match="one value for the whole batch, which no layer can read"):
        net.add_one_to_one_connections(sums, copy)
