"""Losses and measures: one number for the whole batch."""

from __future__ import annotations

from latte.ensemble import AccuracyEnsemble, Ensemble, LossEnsemble
from latte.errors import DeclarationError
from latte.layers.arguments import source_of
from latte.layers.softmax import exponentials
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Field, exp, float32, log


class SoftmaxLossEnsemble(LossEnsemble):
    """Mean over the batch of ``-log softmax(inputs)[label]``."""

    kind = "softmax_loss"
    class_labels = True

    def __init__(self, classes: int, name: str | None):
        super().__init__(name=name)
        self.add_field("prob", Field("n", shape=(classes,)))

    def forward(self, inputs, label, value, prob):
        N, C = inputs.shape
        for n in range(N):
            shift, total = exponentials(inputs, n)
            picked = 0.0
            for c in range(C):
                prob[n, c] = exp(inputs[n, c] - shift) / total
                picked += inputs[n, c] if float32(c) == label[n, 0] else 0.0
            value[0] += log(total) + (shift - picked)
        value[0] = value[0] / N


class AccuracyCount(AccuracyEnsemble):
    """Fraction of items whose largest input (the first, where several are) is that of their label."""

    kind = "accuracy"
    class_labels = True

    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            largest = inputs[n, 0]
            winner = 0
            for c in range(1, C):
                if inputs[n, c] > largest:
                    largest = inputs[n, c]
                    winner = c
            value[0] += 1.0 if float32(winner) == label[n, 0] else 0.0
        value[0] = value[0] / N


def SoftmaxLossLayer(net: Net, bottom: Ensemble, label: Ensemble, *, name: str | None = None) -> Ensemble:
    """Softmax and cross-entropy: ``value`` (shape (1,)) is the mean over the batch of ``-log
    softmax(bottom)[label]``.

    The field ``prob``, (batch, classes), holds the softmax.

    Args:
        net: the net.
        bottom: shape (classes,).
        label: shape (1,): class numbers as floats.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    _check(net, bottom, label, "SoftmaxLossLayer")
    return _connect(net, SoftmaxLossEnsemble(len(bottom), name), bottom, label)


def AccuracyLayer(net: Net, bottom: Ensemble, label: Ensemble, *, name: str | None = None) -> Ensemble:
    """``value`` (shape (1,)) is the fraction of items whose argmax (the first one) equals the label.

    Args:
        net: the net.
        bottom: shape (classes,).
        label: shape (1,): class numbers as floats.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    _check(net, bottom, label, "AccuracyLayer")
    return _connect(net, AccuracyCount(name=name), bottom, label)


def _check(net: Net, bottom: Ensemble, label: Ensemble, layer: str) -> None:
    source_of(net, bottom, layer, 1)
    source_of(net, label, layer, 1)
    if label is bottom:
        raise DeclarationError(f"{layer}: {bottom!r} cannot be its own label", location=user_location())
    if label.shape != (1,):
        raise DeclarationError(
            f"{layer}: labels have shape (1,), {label!r} has {label.shape}",
            location=user_location(),
            way_out="MemoryDataLayer(net, (1,)), class numbers as floats",
        )


def _connect(net: Net, ensemble: Ensemble, bottom: Ensemble, label: Ensemble) -> Ensemble:
    net.add_ensemble(ensemble)
    net.add_loss_connection(bottom, ensemble)
    net.add_loss_connection(label, ensemble)
    return ensemble
