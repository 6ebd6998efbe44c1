"""Losses of numbers: what the net says against what was wanted, element by element."""

from __future__ import annotations

from latte.ensemble import Ensemble, LossEnsemble
from latte.errors import DeclarationError
from latte.layers.arguments import positive, source_of
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import eachindex, exp, log1p


class ElementLoss(LossEnsemble):
    """A mean over all elements of a batch.

    Args:
        elements: of an item.
        name: of the layer.
    """

    def __init__(self, elements: int, name: str | None):
        super().__init__(name=name)
        self.elements = elements


class SquaredErrorEnsemble(ElementLoss):
    """Mean of ``(x - t)²``."""

    kind = "mean_squared_error"

    def forward(self, inputs, label, value):
        for i in eachindex(inputs):
            value[0] += (inputs[i] - label[i]) * (inputs[i] - label[i])
        value[0] = value[0] / (inputs.shape[0] * self.elements)


class AbsoluteErrorEnsemble(ElementLoss):
    """Mean of ``|x - t|``."""

    kind = "l1_loss"

    def forward(self, inputs, label, value):
        for i in eachindex(inputs):
            value[0] += abs(inputs[i] - label[i])
        value[0] = value[0] / (inputs.shape[0] * self.elements)


class HuberEnsemble(ElementLoss):
    """Mean of ``0.5 d²``, or ``delta (|d| - 0.5 delta)`` beyond ``delta``."""

    kind = "huber_loss"

    def __init__(self, elements: int, name: str | None, delta: float):
        super().__init__(elements, name)
        self.delta = delta

    def forward(self, inputs, label, value):
        for i in eachindex(inputs):
            d = inputs[i] - label[i]
            value[0] += 0.5 * d * d if abs(d) <= self.delta else self.delta * (abs(d) - 0.5 * self.delta)
        value[0] = value[0] / (inputs.shape[0] * self.elements)


class BinaryCrossEntropyEnsemble(ElementLoss):
    """Mean of ``-t log σ(x) - (1 - t) log(1 - σ(x))``, as ``max(x, 0) - x t + log1p(exp(-|x|))``."""

    kind = "binary_cross_entropy"

    def forward(self, inputs, label, value):
        for i in eachindex(inputs):
            x = inputs[i]
            rest = log1p(exp(-x if x > 0.0 else x))
            value[0] += (x if x > 0.0 else 0.0) - x * label[i] + rest
        value[0] = value[0] / (inputs.shape[0] * self.elements)


def MeanSquaredErrorLayer(
    net: Net, bottom: Ensemble, target: Ensemble, *, loss_weight: float = 1.0, name: str | None = None
) -> Ensemble:
    """``value`` (shape (1,)) is the mean over items and elements of ``(bottom - target)²``.

    Args:
        net: the net.
        bottom: any shape.
        target: the same shape; it gets no gradient.
        loss_weight: of this loss in ``net.loss``, the sum of all, which is trained on.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit; so it is for the losses below.
    """
    return _loss(net, SquaredErrorEnsemble, bottom, target, "MeanSquaredErrorLayer", loss_weight, name)


def L1LossLayer(
    net: Net, bottom: Ensemble, target: Ensemble, *, loss_weight: float = 1.0, name: str | None = None
) -> Ensemble:
    """``value`` is the mean of ``|bottom - target|``; arguments as :func:`MeanSquaredErrorLayer`'s."""
    return _loss(net, AbsoluteErrorEnsemble, bottom, target, "L1LossLayer", loss_weight, name)


def HuberLossLayer(
    net: Net,
    bottom: Ensemble,
    target: Ensemble,
    delta: float = 1.0,
    *,
    loss_weight: float = 1.0,
    name: str | None = None,
) -> Ensemble:
    """``value`` is the mean of ``0.5 d²`` where ``|d| ≤ delta``, else of ``delta (|d| - 0.5 delta)``.

    ``d`` is ``bottom - target``.

    Args:
        net: the net.
        bottom, target, loss_weight, name: as :func:`MeanSquaredErrorLayer`'s.
        delta: greater than 0.

    Source: Huber, *Robust estimation of a location parameter*, Annals of Statistics 53, 1964.
    """
    width = positive("delta", delta)
    return _loss(net, HuberEnsemble, bottom, target, "HuberLossLayer", loss_weight, name, delta=width)


def BinaryCrossEntropyLayer(
    net: Net, bottom: Ensemble, target: Ensemble, *, loss_weight: float = 1.0, name: str | None = None
) -> Ensemble:
    """``value`` is the mean of ``-t log σ(x) - (1 - t) log(1 - σ(x))``, ``x`` from ``bottom`` (logits), ``t`` from
    ``target`` (0 … 1); arguments as :func:`MeanSquaredErrorLayer`'s."""
    return _loss(net, BinaryCrossEntropyEnsemble, bottom, target, "BinaryCrossEntropyLayer", loss_weight, name)


def _loss(
    net: Net,
    kind: type[ElementLoss],
    bottom: Ensemble,
    target: Ensemble,
    layer: str,
    loss_weight: float,
    name: str | None,
    **options: float,
) -> Ensemble:
    source_of(net, bottom, layer)
    source_of(net, target, layer)
    if bottom.shape != target.shape or bottom is target:
        raise DeclarationError(
            f"{layer}: {bottom!r} and its target {target!r} must be two layers of one shape",
            location=user_location(),
            way_out=f"MemoryDataLayer(net, {bottom.shape})",
        )
    made = kind(len(bottom), name, **options)
    made.loss_weight = loss_weight
    ensemble = net.add_ensemble(made)
    net.add_loss_connection(bottom, ensemble)
    net.add_loss_connection(target, ensemble)
    return ensemble
