"""Updates outside of a net, as programs for the original Latte make them; :mod:`latte.solver` has compiled ones."""

from __future__ import annotations

import numpy as np

from latte.model.calls import answer_wrong_calls
from latte.model.checks import check_unmasked, is_finite
from latte.model.source_location import user_location
from swirl.errors import DataError


def sgd_update(
    param: np.ndarray, grad: np.ndarray, hist: np.ndarray, lr: float, mom: float, batch_size: int = 1
) -> None:
    """A step of gradient descent with momentum, in place: ``hist = mom · hist + lr · grad; param -= hist``.

    Args:
        param: parameters, as ``get_weights_view()`` gives them.
        grad: their gradients, as many.
        hist: the step before; zeros at first.
        lr: learning rate.
        mom: momentum.
        batch_size: not used; programs pass it.

    Raises:
        DataError: the arrays have different sizes, or a setting is not a number.
    """
    for name, value in (("lr", lr), ("mom", mom)):
        if not is_finite(value):
            raise DataError(f"{name} must be a number, not {value!r}", location=user_location())
    check_unmasked(param=param, grad=grad, hist=hist)
    if not np.size(param) == np.size(grad) == np.size(hist):
        raise DataError(
            f"param, grad and hist must have the same number of elements, not {np.size(param)}, {np.size(grad)} and"
            f" {np.size(hist)}",
            location=user_location(),
        )
    hist[...] = mom * hist + lr * np.reshape(grad, np.shape(hist))
    param -= np.reshape(hist, np.shape(param))


answer_wrong_calls(globals(), ["sgd_update"])
