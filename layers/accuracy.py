"""Measures of classes: shares of what is right, for the whole batch."""

from __future__ import annotations

from latte.ensemble import AccuracyEnsemble, Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count
from latte.layers.labels import ClassOptions, classes_of, judged
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Field, float32


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


class TopEnsemble(AccuracyEnsemble):
    """Share of vectors whose label is among the ``top`` largest inputs (the first, where several are equal).

    Args:
        classes: how many.
        top: how many inputs a label may be among.
        options: which label is ignored.
        in_channel: whether labels of images have a dimension for a channel.
        name: of the layer.
    """

    kind = "accuracy"
    class_labels = True
    counted = Field(shape=(1,))

    def __init__(self, classes: int, top: int, options: ClassOptions, in_channel: bool, name: str | None):
        super().__init__(name=name)
        self.in_channel = in_channel
        self.classes, self.ignored_label = classes, options.ignored
        self.top, self.ignored = top, options.ignored_number

    def forward(self, inputs, label, value, counted):
        N, C = inputs.shape
        for n in range(N):
            picked = 0.0
            for c in range(C):
                picked += inputs[n, c] if float32(c) == label[n, 0] else 0.0
            before = 0
            for c in range(C):
                first = inputs[n, c] == picked and float32(c) < label[n, 0]
                before += 1 if inputs[n, c] > picked or first else 0
            counts = label[n, 0] != self.ignored
            value[0] += 1.0 if counts and before < self.top and picked == picked else 0.0
            counted[0] += 1.0 if counts else 0.0
        value[0] = value[0] / max(1.0, counted[0])


class SequenceTopEnsemble(TopEnsemble):
    """The same of each position of a sequence, (positions, classes)."""

    def forward(self, inputs, label, value, counted):
        N, T, C = inputs.shape
        for n in range(N):
            for t in range(T):
                picked = 0.0
                for c in range(C):
                    picked += inputs[n, t, c] if float32(c) == label[n, t] else 0.0
                before = 0
                for c in range(C):
                    first = inputs[n, t, c] == picked and float32(c) < label[n, t]
                    before += 1 if inputs[n, t, c] > picked or first else 0
                counts = label[n, t] != self.ignored
                value[0] += 1.0 if counts and before < self.top and picked == picked else 0.0
                counted[0] += 1.0 if counts else 0.0
        value[0] = value[0] / max(1.0, counted[0])


class PixelTopEnsemble(TopEnsemble):
    """The same of each pixel of an image, (classes, height, width)."""

    def forward(self, inputs, label, value, counted):
        N, C, H, W = inputs.shape
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    wanted = label[n, 0, y, x] if self.in_channel else label[n, y, x]
                    picked = 0.0
                    for c in range(C):
                        picked += inputs[n, c, y, x] if float32(c) == wanted else 0.0
                    before = 0
                    for c in range(C):
                        first = inputs[n, c, y, x] == picked and float32(c) < wanted
                        before += 1 if inputs[n, c, y, x] > picked or first else 0
                    counts = wanted != self.ignored
                    value[0] += 1.0 if counts and before < self.top and picked == picked else 0.0
                    counted[0] += 1.0 if counts else 0.0
        value[0] = value[0] / max(1.0, counted[0])


def AccuracyLayer(
    net: Net,
    bottom: Ensemble,
    label: Ensemble,
    *,
    top: int = 1,
    ignore_label: int | None = None,
    name: str | None = None,
) -> Ensemble:
    """``value`` (shape (1,)) is the share of items (positions, pixels) whose label is among the ``top`` largest scores.

    Of equal scores the first class is the largest.

    Args:
        net: the net.
        bottom: scores, shape (classes,), (positions, classes) or (classes, height, width).
        label: class numbers as floats, shape (1,), (positions,) or (height, width); for images also (1, height, width).
        top: from 1 to the number of classes.
        ignore_label: the label of what does not count.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    classes = classes_of(net, bottom, label, "AccuracyLayer")
    if count("top", top) > classes:
        raise DeclarationError(f"top must be from 1 to {classes}, not {top}", location=user_location())
    options = ClassOptions.of(classes, None, 0.0, ignore_label)
    if bottom.ndim == 1 and options.plain and top == 1:
        return judged(net, AccuracyCount(name=name), bottom, label)
    kind = (TopEnsemble, SequenceTopEnsemble, PixelTopEnsemble)[bottom.ndim - 1]
    return judged(net, kind(classes, int(top), options, label.ndim == 3, name), bottom, label)
