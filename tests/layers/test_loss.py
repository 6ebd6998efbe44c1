"""Softmax loss and accuracy, compiled, against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from latte import AccuracyLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import Ensemble, LossEnsemble
from tests.layers.references import ROUNDING, assert_within, softmax, softmax_loss

SHAPES = [(1, 1), (3, 2), (8, 10), (5, 19), (2, 1000)]
Losses = tuple[Net, Ensemble, Ensemble, np.ndarray, np.ndarray]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def losses(request: pytest.FixtureRequest) -> Losses:
    """(net, scores, loss, the scores' numbers, labels), after forward and backward."""
    batch, classes = request.param
    net = Net(batch, seed=1)
    net.force_backward = True
    scores, labels = MemoryDataLayer(net, (classes,)), MemoryDataLayer(net, (1,))
    loss = SoftmaxLossLayer(net, scores, labels)
    AccuracyLayer(net, scores, labels)
    net.compile(threads=1)
    generator = np.random.default_rng(2)
    x = (3 * generator.normal(size=(batch, classes))).astype(np.float32)
    numbers = generator.integers(0, classes, batch)
    net.set_batch(x, numbers)
    net.forward()
    net.backward()
    return net, scores, loss, x, numbers


def test_loss_and_gradient(losses: Losses) -> None:
    net, scores, loss, x, labels = losses
    expected, gradient = softmax_loss(x, labels)
    terms = x.shape[1]
    # exp of a difference that is off by a rounding of up to 16, its 4 units, a sum of `terms`.
    bound = (terms + 32) * ROUNDING
    assert_within(loss.get_prob(), softmax(x), bound * softmax(x) + 1e-37, "prob")
    assert abs(net.loss - expected) <= bound * max(1.0, abs(x).max())
    assert loss.get_value().shape == (1,) and loss.get_value()[0] == np.float32(net.loss)
    assert_within(scores.get_grad(), gradient, 2 * bound / len(x), "gradient")


def test_loss_against_pytorch(losses: Losses) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    net, scores, _, x, labels = losses
    value = torch.tensor(x, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(value, torch.tensor(labels))
    loss.backward()
    bound = 2 * (x.shape[1] + 32) * ROUNDING
    assert abs(net.loss - loss.item()) <= bound * max(1.0, abs(x).max())
    assert_within(scores.get_grad(), value.grad.numpy(), 2 * bound / len(x), "gradient")


def test_accuracy(losses: Losses) -> None:
    net, _, _, x, labels = losses
    assert net.accuracy == np.float32((x.argmax(1) == labels).mean())


def test_measures_of_inference_are_the_same(losses: Losses) -> None:
    net = losses[0]
    before = net.loss, net.accuracy
    net.loss = net.accuracy = 0.0  # users set them to zero between iterations
    net.test()
    assert (net.loss, net.accuracy) == before
    net.forward()
    assert (net.loss, net.accuracy) == before


def test_large_scores_do_not_overflow(losses: Losses) -> None:
    net, scores, _, x, labels = losses
    shifted = (x + np.float32(4096.0)).astype(np.float32)
    net.set_batch(shifted, labels)
    net.forward()
    net.backward()
    expected, gradient = softmax_loss(shifted, labels)
    assert abs(net.loss - expected) <= (x.shape[1] + 64) * ROUNDING * 4096
    assert_within(scores.get_grad(), gradient, 2 * (x.shape[1] + 32) * ROUNDING / len(x), "gradient")
    net.set_batch(x, labels)
    net.forward()
    net.backward()


def test_two_losses_add_up_and_can_be_weighted() -> None:
    """As in GoogLeNet's heads: a loss's own gradient, 1, may be set."""
    net = Net(3, seed=1)
    data, labels = MemoryDataLayer(net, (4,)), MemoryDataLayer(net, (1,))
    first, second = FullyConnectedLayer(net, data, 5), FullyConnectedLayer(net, data, 5)
    losses = [SoftmaxLossLayer(net, scores, labels) for scores in (first, second)]
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    net.set_batch(generator.normal(size=(3, 4)), [0, 4, 2])
    net.forward()
    values = [float(loss.get_value()[0]) for loss in losses]
    assert net.loss == pytest.approx(sum(values), rel=2 * ROUNDING)
    net.backward()
    gradient = second.get_grad()
    losses[1].set_grad([0.5])  # exact in binary, so that the gradient is exactly half
    net.backward()
    np.testing.assert_array_equal(second.get_grad(), gradient / 2)
    _, expected = softmax_loss(first.get_value(), np.array([0, 4, 2]))
    assert_within(first.get_grad(), expected, 32 * ROUNDING, "first head")
    # The weight stays for a smaller batch.
    net.set_batch(generator.normal(size=(2, 4)), [1, 3])
    net.forward()
    net.backward()
    _, expected = softmax_loss(second.get_value(), np.array([1, 3]))
    assert_within(second.get_grad(), expected / 2, 32 * ROUNDING, "second head, smaller batch")


class SquaredError(LossEnsemble):
    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                difference = inputs[n, c] - label[n, c]
                value[0] += difference * difference
        value[0] = value[0] / (N * C)


def test_labels_of_an_own_loss_are_any_numbers() -> None:
    net = Net(3, seed=1)
    net.force_backward = True
    scores, labels = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (5,))
    loss = net.add_ensemble(SquaredError())
    net.add_loss_connection(scores, loss)
    net.add_loss_connection(labels, loss)
    net.compile(threads=1)
    x, y = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    for batch in (3, 2):
        net.set_batch(x[:batch], y[:batch])
        net.forward()
        net.backward()
        difference = (x[:batch] - y[:batch]).astype(np.float64)
        assert_within(np.array(net.loss), np.mean(difference**2), 20 * ROUNDING * np.mean(difference**2))
        assert_within(scores.get_grad(), 2 * difference / difference.size, 8 * ROUNDING)
    assert net.evaluate(x, y).items == 3
    labels.set_value(-y)
