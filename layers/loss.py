"""Losses of classes: one number for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latte.ensemble import Ensemble, LossEnsemble
from latte.layers.labels import ClassOptions, classes_of, judged
from latte.layers.softmax import largest_of
from latte.net import Net
from latte.neuron import Constant, Field, exp, float32, given, log, stop_gradient


def exponentials(inputs, n):
    """The largest element of an item, without a gradient, and the sum of ``exp(x - largest)``."""
    shift = largest_of(inputs, n)
    total = 0.0
    for c in range(inputs.shape[1]):
        total += exp(inputs[n, c] - shift)
    return shift, total


class SoftmaxLossEnsemble(LossEnsemble):
    """Mean over the batch of ``-log softmax(inputs)[label]``."""

    kind = "softmax_loss"
    class_labels = True

    def __init__(self, classes: int, name: str | None):
        super().__init__(name=name)
        self.add_field("prob", Field("n", shape=(classes,)))

    @property
    def prob(self) -> Any:
        """The softmax of the last batch, (batch, classes)."""
        return self.get_prob()

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


class WeightedSoftmaxLossEnsemble(LossEnsemble):
    """``-log softmax(inputs)[label]`` of vectors: with weights of classes, label smoothing, ignored labels.

    Args:
        classes: how many.
        options: of the loss.
        in_channel: whether labels of images have a dimension for a channel.
        name: of the layer.
    """

    kind = "weighted_softmax_loss"
    class_labels = True
    counted = Field(shape=(1,))

    def __init__(self, classes: int, options: ClassOptions, in_channel: bool, name: str | None):
        super().__init__(name=name)
        self.in_channel = in_channel
        self.classes, self.ignored_label = classes, options.ignored
        self.hard, self.smooth = 1.0 - options.smoothing, options.smoothing / classes
        self.ignored = options.ignored_number
        weights = options.weights or (1.0,) * classes
        self.add_field("class_weights", Constant(shape=(classes,), init=given(weights)))

    def forward(self, inputs, label, value, counted, class_weights):
        N, C = inputs.shape
        for n in range(N):
            largest = inputs[n, 0]
            for c in range(1, C):
                largest = max(largest, inputs[n, c])
            shift = stop_gradient(largest)
            total = 0.0
            for c in range(C):
                total += exp(inputs[n, c] - shift)
            whole = log(total) + shift
            picked = 0.0
            weight = 0.0
            spread = 0.0
            for c in range(C):
                picked += inputs[n, c] if float32(c) == label[n, 0] else 0.0
                weight += class_weights[c] if float32(c) == label[n, 0] else 0.0
                if self.smooth > 0.0:  # otherwise 0 · ∞ where a class is out of the question
                    spread += class_weights[c] * (whole - inputs[n, c])
            if label[n, 0] != self.ignored:
                value[0] += self.hard * weight * (whole - picked) + self.smooth * spread
                counted[0] += weight
        value[0] = value[0] / (counted[0] if counted[0] > 0.0 else 1.0)


class SequenceSoftmaxLossEnsemble(WeightedSoftmaxLossEnsemble):
    """The same of each position of a sequence, (positions, classes)."""

    kind = "sequence_softmax_loss"

    def forward(self, inputs, label, value, counted, class_weights):
        N, T, C = inputs.shape
        for n in range(N):
            for t in range(T):
                largest = inputs[n, t, 0]
                for c in range(1, C):
                    largest = max(largest, inputs[n, t, c])
                shift = stop_gradient(largest)
                total = 0.0
                for c in range(C):
                    total += exp(inputs[n, t, c] - shift)
                whole = log(total) + shift
                picked = 0.0
                weight = 0.0
                spread = 0.0
                for c in range(C):
                    picked += inputs[n, t, c] if float32(c) == label[n, t] else 0.0
                    weight += class_weights[c] if float32(c) == label[n, t] else 0.0
                    if self.smooth > 0.0:  # otherwise 0 · ∞ where a class is out of the question
                        spread += class_weights[c] * (whole - inputs[n, t, c])
                if label[n, t] != self.ignored:
                    value[0] += self.hard * weight * (whole - picked) + self.smooth * spread
                    counted[0] += weight
        value[0] = value[0] / (counted[0] if counted[0] > 0.0 else 1.0)


class PixelSoftmaxLossEnsemble(WeightedSoftmaxLossEnsemble):
    """The same of each pixel of an image, (classes, height, width)."""

    kind = "pixel_softmax_loss"

    def forward(self, inputs, label, value, counted, class_weights):
        N, C, H, W = inputs.shape
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    wanted = label[n, 0, y, x] if self.in_channel else label[n, y, x]
                    largest = inputs[n, 0, y, x]
                    for c in range(1, C):
                        largest = max(largest, inputs[n, c, y, x])
                    shift = stop_gradient(largest)
                    total = 0.0
                    for c in range(C):
                        total += exp(inputs[n, c, y, x] - shift)
                    whole = log(total) + shift
                    picked = 0.0
                    weight = 0.0
                    spread = 0.0
                    for c in range(C):
                        picked += inputs[n, c, y, x] if float32(c) == wanted else 0.0
                        weight += class_weights[c] if float32(c) == wanted else 0.0
                        if self.smooth > 0.0:  # otherwise 0 · ∞ where a class is out of the question
                            spread += class_weights[c] * (whole - inputs[n, c, y, x])
                    if wanted != self.ignored:
                        value[0] += self.hard * weight * (whole - picked) + self.smooth * spread
                        counted[0] += weight
        value[0] = value[0] / (counted[0] if counted[0] > 0.0 else 1.0)


def SoftmaxLossLayer(
    net: Net,
    bottom: Ensemble,
    label: Ensemble,
    *,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    ignore_label: int | None = None,
    loss_weight: float = 1.0,
    name: str | None = None,
) -> Ensemble:
    """Softmax and cross-entropy: ``value`` (shape (1,)) is the mean of ``-log softmax(bottom)[label]``.

    As PyTorch's ``cross_entropy``, it is the mean over the batch and the positions or pixels of an item, weighted by
    the classes' weights and without what is ignored; 0 where all is. With label smoothing ``ε`` the label counts ``1 -
    ε``, and all classes together ``ε``. Of vectors without these three, the field ``prob``, (batch, classes), has the
    softmax.

    Args:
        net: the net.
        bottom: scores, shape (classes,), (positions, classes) or (classes, height, width).
        label: class numbers as floats, shape (1,), (positions,) or (height, width); for images also (1, height, width).
        class_weights: a number for each class, none negative.
        label_smoothing: 0 … 1.
        ignore_label: the label of what does not count; it need not be a class number.
        loss_weight: of this loss in ``net.loss``, the sum of all, which is trained on.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: label smoothing: Szegedy et al., *Rethinking the Inception architecture*, CVPR 2016, section 7.
    """
    classes = classes_of(net, bottom, label, "SoftmaxLossLayer")
    options = ClassOptions.of(classes, class_weights, label_smoothing, ignore_label)
    made: LossEnsemble
    if bottom.ndim == 1 and options.plain:
        made = SoftmaxLossEnsemble(classes, name)
    else:
        kinds = (WeightedSoftmaxLossEnsemble, SequenceSoftmaxLossEnsemble, PixelSoftmaxLossEnsemble)
        made = kinds[bottom.ndim - 1](classes, options, label.ndim == 3, name)
    made.loss_weight = loss_weight
    return judged(net, made, bottom, label)
