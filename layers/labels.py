"""What losses and measures of classes share: checks of labels and of options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import source_of
from latte.model.checks import check_number, is_finite, is_integer
from latte.model.source_location import user_location
from latte.net import Net


@dataclass(frozen=True)
class ClassOptions:
    """How classes and labels count.

    Args:
        weights: of the classes; None for ones.
        smoothing: what all classes together count, beside the label.
        ignored: the label of what does not count; None if all count.
    """

    weights: tuple[float, ...] | None
    smoothing: float
    ignored: int | None

    @staticmethod
    def of(
        classes: int, class_weights: Sequence[float] | None, label_smoothing: float, ignore_label: int | None
    ) -> ClassOptions:
        """Checked options.

        Raises:
            DeclarationError: for options that do not fit.
        """
        smoothing = check_number("label_smoothing", label_smoothing, least=0.0, most=1.0)
        # As floats, so that labels equal it exactly.
        if ignore_label is not None and not (is_integer(ignore_label) and abs(ignore_label) <= 2**24):
            raise DeclarationError(
                f"ignore_label must be an integer of at most 2**24, not {ignore_label!r}", location=user_location()
            )
        weights = None if class_weights is None else _weights(classes, class_weights)
        return ClassOptions(weights, smoothing, None if ignore_label is None else int(ignore_label))

    @property
    def plain(self) -> bool:
        """Whether there is none."""
        return self.weights is None and self.smoothing == 0.0 and self.ignored is None

    @property
    def ignored_number(self) -> float:
        """The ignored label; a number that is not a label where there is none."""
        return -1.0 if self.ignored is None else float(self.ignored)


def _weights(classes: int, given: Sequence[float]) -> tuple[float, ...]:
    weights = tuple(given.tolist() if hasattr(given, "tolist") else given) if isinstance(given, Iterable) else ()
    if len(weights) != classes or not all(is_finite(w) and w >= 0 for w in weights):
        raise DeclarationError(
            f"class_weights must be {classes} numbers, none of them negative, not {given!r}", location=user_location()
        )
    return tuple(map(float, weights))


def classes_of(net: Net, bottom: Ensemble, label: Ensemble, layer: str) -> int:
    """The number of classes that ``bottom`` scores.

    Raises:
        DeclarationError: the labels do not fit.
    """
    source_of(net, bottom, layer, (1, 2, 3))
    source_of(net, label, layer)
    if label is bottom:
        raise DeclarationError(f"{layer}: {bottom!r} cannot be its own label", location=user_location())
    needed: tuple[int, ...] = {1: (1,), 2: bottom.shape[:1], 3: bottom.shape[1:]}[bottom.ndim]
    if label.shape != needed and not (bottom.ndim == 3 and label.shape == (1, *needed)):
        raise DeclarationError(
            f"{layer}: labels have shape {needed}, {label!r} has {label.shape}",
            location=user_location(),
            way_out=f"MemoryDataLayer(net, {needed}), class numbers as floats",
        )
    return bottom.shape[1] if bottom.ndim == 2 else bottom.shape[0]


def judged(net: Net, ensemble: Ensemble, bottom: Ensemble, label: Ensemble) -> Ensemble:
    """``ensemble``, added to the net; it reads scores and labels."""
    net.add_ensemble(ensemble)
    net.add_loss_connection(bottom, ensemble)
    net.add_loss_connection(label, ensemble)
    return ensemble
