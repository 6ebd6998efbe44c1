"""Losses of numbers: what the net says against what was wanted, element by element."""

from __future__ import annotations

from latte.ensemble import Ensemble, LossEnsemble
from latte.errors import DeclarationError
from latte.layers.arguments import positive, source_of
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import exp, log1p


class SquaredErrorEnsemble(LossEnsemble):
    """Mean of ``(x - t)²``."""

    kind = "mean_squared_error"

    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[0] += (inputs[n, c] - label[n, c]) * (inputs[n, c] - label[n, c])
        value[0] = value[0] / (N * C)


class AbsoluteErrorEnsemble(LossEnsemble):
    """Mean of ``|x - t|``."""

    kind = "l1_loss"

    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[0] += abs(inputs[n, c] - label[n, c])
        value[0] = value[0] / (N * C)


class HuberEnsemble(LossEnsemble):
    """Mean of ``0.5 d²``, or ``delta (|d| - 0.5 delta)`` beyond ``delta``."""

    kind = "huber_loss"

    def __init__(self, delta: float, name: str | None):
        super().__init__(name=name)
        self.delta = delta

    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                d = inputs[n, c] - label[n, c]
                value[0] += 0.5 * d * d if abs(d) <= self.delta else self.delta * (abs(d) - 0.5 * self.delta)
        value[0] = value[0] / (N * C)


class BinaryCrossEntropyEnsemble(LossEnsemble):
    """Mean of ``-t log σ(x) - (1 - t) log(1 - σ(x))``, as ``max(x, 0) - x t + log1p(exp(-|x|))``."""

    kind = "binary_cross_entropy"

    def forward(self, inputs, label, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                x = inputs[n, c]
                rest = log1p(exp(-x if x > 0.0 else x))
                value[0] += (x if x > 0.0 else 0.0) - x * label[n, c] + rest
        value[0] = value[0] / (N * C)


def MeanSquaredErrorLayer(net: Net, bottom: Ensemble, target: Ensemble, *, name: str | None = None) -> Ensemble:
    """``value`` (shape (1,)) is the mean over items and elements of ``(bottom - target)²``.

    Args:
        net: the net.
        bottom: shape (elements,).
        target: the same shape; it gets no gradient.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit; so it is for the losses below.
    """
    return _loss(net, SquaredErrorEnsemble(name=name), bottom, target, "MeanSquaredErrorLayer")


def L1LossLayer(net: Net, bottom: Ensemble, target: Ensemble, *, name: str | None = None) -> Ensemble:
    """``value`` is the mean of ``|bottom - target|``; arguments as :func:`MeanSquaredErrorLayer`'s."""
    return _loss(net, AbsoluteErrorEnsemble(name=name), bottom, target, "L1LossLayer")


def HuberLossLayer(
    net: Net, bottom: Ensemble, target: Ensemble, delta: float = 1.0, *, name: str | None = None
) -> Ensemble:
    """``value`` is the mean of ``0.5 d²`` where ``|d| ≤ delta``, else of ``delta (|d| - 0.5 delta)``.

    ``d`` is ``bottom - target``.

    Args:
        net: the net.
        bottom, target, name: as :func:`MeanSquaredErrorLayer`'s.
        delta: greater than 0.

    Source: Huber, *Robust estimation of a location parameter*, Annals of Statistics 53, 1964.
    """
    return _loss(net, HuberEnsemble(positive("delta", delta), name), bottom, target, "HuberLossLayer")


def BinaryCrossEntropyLayer(net: Net, bottom: Ensemble, target: Ensemble, *, name: str | None = None) -> Ensemble:
    """``value`` is the mean of ``-t log σ(x) - (1 - t) log(1 - σ(x))``, ``x`` from ``bottom`` (logits), ``t`` from
    ``target`` (0 … 1); arguments as :func:`MeanSquaredErrorLayer`'s."""
    return _loss(net, BinaryCrossEntropyEnsemble(name=name), bottom, target, "BinaryCrossEntropyLayer")


def _loss(net: Net, ensemble: Ensemble, bottom: Ensemble, target: Ensemble, layer: str) -> Ensemble:
    source_of(net, bottom, layer, 1)
    source_of(net, target, layer, 1)
    if bottom.shape != target.shape or bottom is target:
        raise DeclarationError(
            f"{layer}: {bottom!r} and its target {target!r} must be two layers of one shape",
            location=user_location(),
            way_out=f"MemoryDataLayer(net, {bottom.shape})",
        )
    net.add_ensemble(ensemble)
    net.add_loss_connection(bottom, ensemble)
    net.add_loss_connection(target, ensemble)
    return ensemble
