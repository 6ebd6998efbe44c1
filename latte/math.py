"""Losses and measures outside of a net, as programs for the original Latte compute them on NumPy arrays."""

from __future__ import annotations

import numpy as np

from latte.model.calls import answer_wrong_calls
from latte.model.checks import check_unmasked
from latte.model.source_location import user_location
from swirl.errors import DataError

_TINY = np.finfo(np.float32).tiny
"""Least probability whose logarithm is taken."""


def compute_softmax_loss(output: np.ndarray, prob: np.ndarray, label: np.ndarray) -> float:
    """The mean over the batch of ``-log softmax(output)[label]``.

    Args:
        output: scores, (batch, classes).
        prob: the same shape; gets the softmax of each row.
        label: class numbers, (batch, 1).

    Raises:
        DataError: for shapes and labels that do not fit; so it is for the functions below.
    """
    classes = _classes(output, label)
    _same_shape("prob", prob, output)
    prob[...] = _softmax(output)
    return float(-np.log(np.maximum(_chosen(prob, classes), _TINY)).mean())


def softmax_loss_backprop(output_grad: np.ndarray, prob: np.ndarray, label: np.ndarray) -> None:
    """Fill ``output_grad`` with the gradient of :func:`compute_softmax_loss`: ``(prob - onehot) / batch``."""
    classes = _classes(prob, label)
    _same_shape("output_grad", output_grad, prob)
    output_grad[...] = (prob - _one_hot(prob, classes)) / len(prob)


def compute_accuracy(output: np.ndarray, label: np.ndarray) -> float:
    """The share of rows of ``output``, (batch, classes), whose largest element (the first) is at the label."""
    return float((np.argmax(output, 1) == _classes(output, label)).mean())


def compute_seg_softmax_loss(output: np.ndarray, prob: np.ndarray, label: np.ndarray, ignore_label: float) -> float:
    """The mean of ``-log softmax(output)[label]`` over the pixels that count.

    Pixels count whose label is not ``ignore_label`` and is a class number. Without any, the loss is 0.

    Args:
        output: scores, (batch, classes, height, width).
        prob: the same shape; gets the softmax over the classes.
        label: (batch, 1, height, width).
        ignore_label: of pixels that do not count.
    """
    counted = _counted(output, label, ignore_label)
    _same_shape("prob", prob, output)
    prob[...] = _softmax(output)
    picked = _chosen(prob, np.where(counted, label[:, 0], 0).astype(np.int64))[counted]
    return float(-np.log(np.maximum(picked, _TINY)).mean()) if picked.size else 0.0


def seg_softmax_loss_backprop(
    output_grad: np.ndarray, prob: np.ndarray, label: np.ndarray, ignore_label: float
) -> None:
    """Fill ``output_grad`` with the gradient of :func:`compute_seg_softmax_loss`; it is 0 at pixels that do not
    count."""
    counted = _counted(prob, label, ignore_label)
    _same_shape("output_grad", output_grad, prob)
    one_hot = _one_hot(prob, np.where(counted, label[:, 0], 0).astype(np.int64))
    output_grad[...] = (prob - one_hot) * counted[:, None] / max(1, int(counted.sum()))


def compute_seg_accuracy(output: np.ndarray, label: np.ndarray, ignore_label: float) -> float:
    """The share of an item's counted pixels whose largest score (the last) is at the label, averaged over the items
    that have any."""
    counted = _counted(output, label, ignore_label)
    predicted = output.shape[1] - 1 - np.argmax(output[:, ::-1], 1)
    right = ((predicted == label[:, 0]) & counted).sum((1, 2))
    pixels = counted.sum((1, 2))
    return float((right[pixels > 0] / pixels[pixels > 0]).mean()) if pixels.any() else 0.0


def _softmax(output: np.ndarray) -> np.ndarray:
    """Over dimension 1."""
    shifted = np.exp(output - output.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def _chosen(prob: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The element of ``prob`` at each class number."""
    return np.take_along_axis(prob, classes[:, None], 1)[:, 0]


def _one_hot(prob: np.ndarray, classes: np.ndarray) -> np.ndarray:
    result = np.zeros(prob.shape, prob.dtype)
    np.put_along_axis(result, classes[:, None], 1.0, 1)
    return result


def _classes(output: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Checked class numbers, (batch,)."""
    if np.ndim(output) != 2 or np.shape(label) not in ((len(output), 1), (len(output),)):
        raise DataError(
            f"scores of shape (batch, classes) and labels of shape (batch, 1) are needed, not {np.shape(output)} and"
            f" {np.shape(label)}",
            location=user_location(),
        )
    check_unmasked(output=output, label=label)
    classes = np.asarray(label).reshape(-1)
    if ((classes < 0) | (classes >= output.shape[1]) | (classes != np.floor(classes))).any():
        raise DataError(f"labels must be class numbers from 0 to {output.shape[1] - 1}", location=user_location())
    return classes.astype(np.int64)


def _counted(output: np.ndarray, label: np.ndarray, ignore_label: float) -> np.ndarray:
    """Which pixels count, (batch, height, width)."""
    shape = np.shape(output)
    if len(shape) != 4 or np.shape(label) != (shape[0], 1, *shape[2:]):
        raise DataError(
            "scores of shape (batch, classes, height, width) and labels of shape (batch, 1, height, width) are needed,"
            f" not {shape} and {np.shape(label)}",
            location=user_location(),
        )
    check_unmasked(output=output, label=label)
    pixels = label[:, 0]
    counted: np.ndarray = (pixels != ignore_label) & (pixels >= 0) & (pixels < shape[1])
    return counted


def _same_shape(name: str, array: np.ndarray, other: np.ndarray) -> None:
    check_unmasked(**{name: array})
    if np.shape(array) != np.shape(other):
        raise DataError(
            f"{name} has the shape {np.shape(array)}, and {np.shape(other)} is needed", location=user_location()
        )


answer_wrong_calls(
    globals(),
    (
        *("compute_softmax_loss", "softmax_loss_backprop", "compute_accuracy"),
        *("compute_seg_softmax_loss", "seg_softmax_loss_backprop", "compute_seg_accuracy"),
    ),
)
