"""Losses that Python computes on whole arrays: ``forward(bottom, label)``, ``backward(bot_grad, label)``."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest

from latte.ensemble import AccuracyEnsemble, Ensemble, LossEnsemble
from latte.layers import (
    AccuracyLayer,
    FullyConnectedLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.math import compute_softmax_loss, softmax_loss_backprop
from latte.net import Net
from latte.solver import SGD
from swirl.errors import DataError, DeclarationError, LatteError, TrainingError

pytestmark = pytest.mark.usefixtures("as_lowered")


class SoftmaxInPython(LossEnsemble):
    def forward(self, bottom, label):
        self.seen = np.zeros_like(bottom)
        return compute_softmax_loss(bottom, self.seen, label)

    def backward(self, bot_grad, label):
        softmax_loss_backprop(bot_grad, self.seen, label)


class ShareOfFirst(AccuracyEnsemble):
    def forward(self, bottom, label):
        return np.mean(bottom.argmax(1) == label[:, 0])


def classifier(loss: type[LossEnsemble] | None, measures: bool = False, batch: int = 6) -> tuple[Net, Ensemble]:
    net = Net(batch, seed=3)
    data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
    hidden = TanhLayer(net, FullyConnectedLayer(net, data, 7))
    scores = FullyConnectedLayer(net, hidden, 4)
    if loss is None:
        SoftmaxLossLayer(net, scores, label)
        AccuracyLayer(net, scores, label)
    else:
        for kind in (loss, ShareOfFirst)[: 2 if measures else 1]:
            connect(net, kind(), scores, label)
    return net, scores


def connect(net: Net, loss: LossEnsemble, scores: Ensemble, label: Ensemble) -> LossEnsemble:
    net.add_ensemble(loss)
    net.add_loss_connection(scores, loss)
    net.add_loss_connection(label, loss)
    return loss


def items(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.standard_normal((count, 5)).astype(np.float32), generator.integers(0, 4, (count, 1))


def test_trains_as_the_shipped_loss_does() -> None:
    found = []
    for loss in (None, SoftmaxInPython):
        net, _ = classifier(loss, measures=True)
        net.compile()
        history = net.fit(*items(20), solver=SGD(net, 0.3, momentum=0.9), epochs=4, shuffle=False, progress=False)
        result = net.evaluate(*items(20))
        found.append((history.losses, result.loss, result.accuracy, net.predict(items(20)[0])))
    shipped, own = found
    np.testing.assert_allclose(own[0], shipped[0], rtol=1e-5)
    assert own[1] == pytest.approx(shipped[1], rel=1e-5)
    assert own[2] == pytest.approx(shipped[2])
    np.testing.assert_allclose(own[3], shipped[3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("read_too", [False, True], ids=["alone", "beside other readers"])
@pytest.mark.parametrize("seeded", [False, True])
def test_gradient_reaches_the_source(read_too: bool, seeded: bool) -> None:
    class Half(LossEnsemble):
        def forward(self, bottom, label):
            self.difference = bottom - label
            return 0.5 * (self.difference**2).sum()

        def backward(self, bot_grad, label):
            assert not bot_grad.any()
            bot_grad[:] = self.difference

    net = Net(4, seed=1)
    data, wanted = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (2,))
    scores = FullyConnectedLayer(net, data, 2)
    losses = [connect(net, Half(), scores, wanted) for _ in range(2)]
    if read_too:
        MeanSquaredErrorLayer(net, scores, wanted)
    net.compile()
    generator = np.random.default_rng(0)
    x, y, seed = generator.standard_normal((4, 3)), generator.standard_normal((4, 2)), np.full((4, 2), 0.25)
    net.set_batch(x, y)
    if seeded:
        scores.set_grad(seed)
    for _ in range(2):
        net.clear_grad()
        net.forward()
        net.backward()
        difference = scores.get_value() - y
        expected = 2 * difference + seeded * seed + read_too * 2 * difference / difference.size
        np.testing.assert_allclose(scores.get_grad(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scores.get_grad_weights(), expected.T @ x, rtol=1e-4, atol=1e-5)
    assert net.loss == pytest.approx(losses[0].get_value()[0] * 2 + read_too * (difference**2).mean(), rel=1e-5)


def test_smaller_batch_saved_and_copied(tmp_path: Path) -> None:
    net, _ = classifier(SoftmaxInPython)
    net.compile()
    net.fit(*items(10), solver=SGD(net, 0.1), epochs=1, progress=False)  # six, then four
    net.save(tmp_path / "net.safetensors")
    other = copy.deepcopy(net)
    assert other.evaluate(*items(10)).loss == net.evaluate(*items(10)).loss
    again, _ = classifier(SoftmaxInPython)
    again.compile()
    again.load(tmp_path / "net.safetensors")
    assert again.evaluate(*items(10)).loss == net.evaluate(*items(10)).loss
    assert "softmax_in_python1" in str(net.summary())
    assert "softmax_in_python1" in str(net.explain("softmax_in_python1"))


def test_net_without_parameters() -> None:
    net = Net(2)
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    connect(net, SoftmaxInPython(), data, label)
    net.compile()
    net.set_batch(np.eye(2, 3), [[0], [1]])
    net.forward()
    net.backward()
    assert net.loss == pytest.approx(-np.log(np.e / (np.e + 2)), rel=1e-5)


class Nothing(SoftmaxInPython):
    """Nothing.forward has returned None; the loss, a number, is needed"""

    def forward(self, bottom, label):
        super().forward(bottom, label)


class Several(SoftmaxInPython):
    """Several.forward has returned array"""

    def forward(self, bottom, label):
        return bottom[0]


@pytest.mark.parametrize("kind", [Nothing, Several])
def test_forward_that_returns_no_number(kind: type[LossEnsemble]) -> None:
    net, _ = classifier(kind)
    net.compile()
    net.set_batch(*items(6))
    assert kind.__doc__ is not None
    with pytest.raises(TrainingError, match=re.escape(kind.__doc__)) as error:
        net.forward()
    assert "return float" in str(error.value)


def test_backward_is_missing_or_takes_other_arguments() -> None:
    class Forward(LossEnsemble):
        def forward(self, bottom, label):
            return 0.0

    class Backward(Forward):
        def backward(self, grad_inputs):
            pass

    for kind in (Forward, Backward):
        with pytest.raises(DeclarationError, match=r"has no backward\(bot_grad, label\)"):
            kind()


def test_label_is_missing() -> None:
    net = Net(2)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2)
    loss = net.add_ensemble(SoftmaxInPython())
    net.add_loss_connection(scores, loss)
    with pytest.raises(DeclarationError, match=r"takes \(bottom, label\)"):
        net.compile()


def test_gradient_check_says_what_it_cannot_look_at() -> None:
    net, _ = classifier(SoftmaxInPython)
    net.check_gradients()  # of all other layers
    with pytest.raises(DataError, match=r"softmax_in_python1 .*Python"):
        net.check_gradients("softmax_in_python1")


def test_errors_in_it_are_the_users() -> None:
    class Broken(SoftmaxInPython):
        def forward(self, bottom, label):
            raise KeyError("mine")

    net, _ = classifier(Broken)
    net.compile()
    net.set_batch(*items(6))
    with pytest.raises(KeyError, match="mine"):
        net.forward()
    with pytest.raises(LatteError):
        net.backward()


def test_prob_of_the_shipped_loss() -> None:
    net, scores = classifier(None)
    loss = net["softmax_loss1"]
    net.compile()
    net.set_batch(*items(6))
    net.forward()
    prob = np.exp(scores.get_value())
    np.testing.assert_allclose(loss.prob, prob / prob.sum(1, keepdims=True), rtol=1e-5)


def test_only_losses_run_in_python() -> None:
    class NoLoss(Ensemble):
        def forward(self, bottom, label):
            pass

    with pytest.raises(
        DeclarationError, match=r"NoLoss.forward takes \(bottom, label\), which only a LossEnsemble may"
    ):
        NoLoss(shape=4)


class Returning(SoftmaxInPython):
    """Trained nothing, without a word."""

    def backward(self, bot_grad, label):
        return np.ones_like(bot_grad)


class Filling(SoftmaxInPython):
    def backward(self, bot_grad, label):
        super().backward(bot_grad, label)
        return bot_grad


def test_backward_fills_what_it_is_given() -> None:
    net, _ = classifier(Returning)
    net.compile(threads=1)
    with pytest.raises(TrainingError, match=r"Returning.backward has returned ndarray(.|\n)*bot_grad\[:\] = …"):
        net.fit(*items(6), solver=SGD(net), progress=False)
    found = []
    for loss in (Filling, SoftmaxInPython):
        net, scores = classifier(loss)
        net.compile(threads=1)
        net.set_batch(*items(6))
        net.forward()
        net.backward()
        found.append(scores.get_grad_weights())
    np.testing.assert_array_equal(*found)
