"""Nets on fewer items than their batch size, without compiling again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte.ensemble import AccuracyEnsemble, Ensemble, LossEnsemble
from latte.layers import (
    AccuracyLayer,
    AddLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    LayerNormLayer,
    MaxPoolingLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    PositionwiseLinearLayer,
    ReLULayer,
    ScaledDotProductAttentionLayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.net import Net
from latte.neuron import Field
from latte.solver import SGD
from swirl.errors import DataError
from tests.items_of import check, finished, fixed, poison
from tests.support import running_targets

BATCH = 5


# --- without kernels: programs of a whole batch beside those of fewer items -----------------------------------
def _images(net: Net) -> None:
    data, label = MemoryDataLayer(net, (2, 5, 4)), MemoryDataLayer(net, (1,))
    pooled = MaxPoolingLayer(net, ReLULayer(net, ConvLayer(net, data, 3, kernel=3, pad=1)))
    hidden = DropoutLayer(net, TanhLayer(net, FullyConnectedLayer(net, pooled, 7)))
    scores = FullyConnectedLayer(net, hidden, 4)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)


def _sequences(net: Net) -> None:
    words, labels = MemoryDataLayer(net, (3,), dtype="int32", below=6), MemoryDataLayer(net, (3,))
    given = EmbeddingLayer(net, words, 6, 4)
    parts = [PositionwiseLinearLayer(net, given, 4) for _ in range(3)]
    seen = ScaledDotProductAttentionLayer(net, *parts, heads=2)
    scores = PositionwiseLinearLayer(net, LayerNormLayer(net, AddLayer(net, [given, seen])), 4)
    SoftmaxLossLayer(net, scores, labels, label_smoothing=0.1, class_weights=[1.0, 2.0, 0.5, 1.0], ignore_label=2)


def _normalised(net: Net) -> None:
    data, label = MemoryDataLayer(net, (2, 3, 4)), MemoryDataLayer(net, (1,))
    images = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, 3, kernel=3, pad=1)))
    vectors = BatchNormLayer(net, FullyConnectedLayer(net, images, 6))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, vectors, 4), label)


def _errors(net: Net) -> None:
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (6,)), 3)
    MeanSquaredErrorLayer(net, scores, MemoryDataLayer(net, (3,)))
    FullyConnectedLayer(net, scores, 1)  # its gradient is given


DECLARED = {"images": _images, "sequences": _sequences, "normalised": _normalised, "errors": _errors}


def _declared(declare: Callable[[Net], None]) -> Callable[[int], Net]:
    def net(items: int) -> Net:
        made = Net(items, seed=1)
        declare(made)
        return made

    return net


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("images", "avx512"),
        ("images", "portable"),
        ("sequences", "avx2"),
        ("normalised", "avx512"),
        ("errors", "portable"),
    ],
)
def test_programs_on_fewer_items(name: str, target: str) -> None:
    declare = _declared(DECLARED[name])
    whole = declare(BATCH)
    steps = finished(whole, target)
    assert not fixed(steps)
    check(whole, steps, declare(1), ("inference",))
    check(whole, steps, declare(3), ("forward", "backward"))


# --- compiled -------------------------------------------------------------------------------------------------
def _compiled(declare: Callable[[Net], None], items: int = BATCH, target: str | None = None) -> Net:
    net = _declared(declare)(items)
    net.compile(target=target, threads=2)
    return net


@pytest.fixture(scope="module", params=running_targets()[:2])
def net(request: pytest.FixtureRequest) -> Net:
    return _compiled(_images, target=request.param)


def _batch(items: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    images = generator.normal(size=(items, 2, 5, 4)).astype(np.float32)
    return images, generator.integers(0, 4, (items, 1)).astype(np.float32)


def test_an_items_bits_depend_neither_on_its_place_nor_on_how_many_there_are(net: Net) -> None:
    images, _ = _batch(2 * BATCH + 3)
    kernels, whole = net.report.kernels, net.predict(images)
    assert whole.shape == (2 * BATCH + 3, 4)
    for items in range(1, BATCH + 2):
        assert np.array_equal(net.predict(images[:items]), whole[:items])
    assert np.array_equal(net.predict(images[::-1]), whole[::-1])
    assert net.report.kernels == kernels
    assert len(net.session._variants.current) == 1


@pytest.mark.parametrize("items", [1, 3, BATCH + 2])
def test_losses_and_measures_are_of_the_items_alone(net: Net, items: int) -> None:
    images, labels = _batch(items)
    found = net.evaluate(images, labels, metrics={"scores": lambda scores, given: scores})
    scores = net.predict(images)
    assert np.array_equal(found.metrics["scores"], scores)
    chances = np.exp(scores - scores.max(1, keepdims=True))
    picked = np.log(chances.sum(1)) - np.log(chances[np.arange(items), labels[:, 0].astype(int)])
    assert found.loss == pytest.approx(float(picked.mean()), rel=1e-5)
    assert found.accuracy == pytest.approx(float((scores.argmax(1) == labels[:, 0]).mean()))


def test_fewer_items_one_by_one(net: Net) -> None:
    images, labels = _batch(3)
    net.set_batch(images, labels)
    poison(net)
    net.test()
    scores = net["fully_connected2"]
    assert np.isfinite(net.loss)
    assert net["data1"].get_value().shape == (3, 2, 5, 4)
    assert scores.get_value().shape == (3, 4)
    assert scores.get_value_view().shape == (BATCH, 4)
    assert net["softmax_loss1"].get_prob().shape == (3, 4)
    with pytest.raises(DataError, match=r"the shape is \(4, 4\), but \(3, 4\) is needed"):
        scores.set_value(np.zeros((4, 4)))


@pytest.mark.parametrize("items", [1, 3])
def test_a_step_is_that_of_a_net_of_that_size(net: Net, items: int) -> None:
    exact = _compiled(_images, items, net.executable.plan.target.name)
    exact.load_state_dict(net.state_dict())
    kernels = net.report.kernels
    for each in (net, exact):
        each.set_batch(*_batch(items))
        poison(each)
        each.executable.arrays["net.step"][0] = 3
        each.forward()
        each.clear_grad()
        each.backward()
    assert net.report.kernels == kernels
    assert net.loss == pytest.approx(exact.loss, rel=1e-6)
    for layer in net.ensembles:
        for name, spec in layer.fields().items():
            if spec.role in ("grad", "param_grad") and spec.storage in net.executable.buffers:
                mine, other = (getattr(each[layer.name], f"get_{name}") for each in (net, exact))
                if spec.storage in net.executable.missing or spec.storage in exact.executable.missing:
                    continue
                scale = np.abs(other()).max(initial=1e-3)
                assert np.abs(mine() - other()).max(initial=0) < 1e-5 * scale, spec.storage


def test_the_last_batch_of_an_epoch(net: Net) -> None:
    kernels = net.report.kernels
    history = net.fit(*_batch(2 * BATCH + 2), solver=SGD(net, 0.01), epochs=2, progress=False)
    solver = net.report.kernels - kernels
    again = net.fit(*_batch(BATCH + 1), solver=SGD(net, 0.01), epochs=1, progress=False)
    assert len(history.losses) == 6 and len(again.losses) == 2
    assert net.report.kernels == kernels + solver
    assert np.isfinite(history.losses).all()
    net.prepare(1)
    assert net.report.kernels == kernels + solver


# --- what is compiled for each number of items -----------------------------------------------------------------
class LessTheFirst(Ensemble):
    """What is left of each item without the first one, in training."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] - (inputs[0, c] if self.training else 0.0)


def _less(net: Net) -> None:
    data, label = MemoryDataLayer(net, (6,)), MemoryDataLayer(net, (1,))
    hidden = FullyConnectedLayer(net, data, 5)
    less = net.add_ensemble(LessTheFirst(shape=(5,)))
    net.add_one_to_one_connections(hidden, less)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, less, 4), label)


def test_a_net_that_trains_on_whole_batches_infers_on_fewer() -> None:
    net = _compiled(_less)
    assert {each.phase for each in net.report.fixed} <= {"forward", "backward", "update"}
    assert any("less_the_first1" in str(each) for each in net.report.fixed)
    data, labels = np.random.default_rng(0).normal(size=(3, 6)), np.array([[0], [1], [3]])
    kernels = net.report.kernels
    net.set_batch(data, labels)
    net.test()
    assert net.report.kernels == kernels
    net.forward()  # of three items: it has a net of its own
    net.backward()
    assert net.report.kernels > kernels
    assert net.executable.batch_size == 3 and np.array_equal(net["data1"].get_value(), data.astype(np.float32))
    hidden = net["fully_connected1"].get_value()
    assert np.array_equal(net["less_the_first1"].get_value(), hidden - hidden[0])
    net.set_batch(np.concatenate([data, data[:2]]), np.concatenate([labels, labels[:2]]))
    net.forward()
    assert net.executable.batch_size == BATCH


class Numbered(Ensemble):
    """Adds the item's number to each element."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] + n + 1


class Halved(Ensemble):
    """Has another body where there are many items."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * 0.5 if N > 3 else inputs[n, c]


class Shifted(Ensemble):
    """Each item is the sum of it and the one before."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] + (inputs[n - 1, c] if n > 0 else 0.0)


class Counted(Ensemble):
    """Divides by how many items are positive, and by how many there are."""

    many = Field(shape=(1,))

    def forward(self, inputs, value, many):
        N, C = inputs.shape
        for n in range(N):
            many[0] += 1.0 if inputs[n, 0] > 0.0 else 0.0
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] / (many[0] + 1.0) + 0.25 / max(N - 1, 1)


def _own(kind: type[Ensemble]) -> Callable[[Net], None]:
    def declare(net: Net) -> None:
        data = MemoryDataLayer(net, (3,))
        net.add_one_to_one_connections(data, net.add_ensemble(kind(shape=(3,))))

    return declare


@pytest.mark.parametrize(
    ("kind", "reason"), [(Numbered, "the item's number n"), (Halved, "N > 3"), (Shifted, "n"), (Counted, "")]
)
def test_own_bodies(kind: type[Ensemble], reason: str, as_lowered: None) -> None:
    net = _compiled(_own(kind), 5, "portable")
    assert bool(net.report.fixed) == bool(reason) and all(reason in str(each) for each in net.report.fixed)
    data = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for items in (1, 3, 5):
        given = data[:items]
        expected = {
            Numbered: given + np.arange(1, items + 1)[:, None],
            Halved: given * (0.5 if items > 3 else 1.0),
            Shifted: given + np.concatenate([np.zeros((1, 3)), given[:-1]]),
            Counted: given / ((given[:, 0] > 0).sum() + 1.0) + 0.25 / max(items - 1, 1),
        }[kind]
        assert net.predict(given) == pytest.approx(expected, rel=1e-6, abs=1e-6)
        net.set_batch(given)
        net.forward()
        assert net.ensembles[-1].get_value() == pytest.approx(expected, rel=1e-6, abs=1e-6)


class RowsInPython(LossEnsemble):
    """Half the mean square of the rows that it is given."""

    def forward(self, bottom, label):
        self.bottom = bottom
        return float(0.5 * (bottom**2).sum() / len(bottom))

    def backward(self, bot_grad, label):
        assert bot_grad.shape == self.bottom.shape
        bot_grad[:] = self.bottom / len(self.bottom)


class CountInPython(AccuracyEnsemble):
    def forward(self, bottom, label):
        return float(len(label))


def test_losses_in_python_and_given_gradients_are_of_the_items(as_lowered: None) -> None:
    net = Net(5, seed=1)
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    scores = FullyConnectedLayer(net, data, 2)
    for loss in (RowsInPython(), CountInPython()):
        net.add_loss_connection(scores, net.add_ensemble(loss))
        net.add_loss_connection(label, loss)
    top = FullyConnectedLayer(net, data, 4)
    net.compile(target="portable")
    given = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    net.set_batch(given, np.zeros((2, 1)))
    net.forward()
    rows = scores.get_value()
    assert net.loss == pytest.approx(0.5 * (rows**2).sum() / 2, rel=1e-6) and net.accuracy == 2
    with pytest.raises(DataError, match=r"\(2, 4\) is needed"):
        top.set_grad(np.ones((5, 4)))
    top.set_grad(np.ones((2, 4)))
    net.backward()
    assert scores.get_grad() == pytest.approx(rows / 2, rel=1e-6)
    assert scores.get_grad_weights() == pytest.approx((rows / 2).T @ given, rel=1e-5, abs=1e-6)
    assert top.get_grad_weights() == pytest.approx(np.ones((4, 2)) @ given, rel=1e-5, abs=1e-6)
