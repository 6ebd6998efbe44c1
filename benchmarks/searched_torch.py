"""PyTorch's side of tables of searches, see :mod:`sides`: convolutions by oneDNN, products by MKL.

A convolution is timed with tensors as they come and with channels innermost; the faster one counts. Weights lie as
PyTorch has them: it packs them in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sides import Asked, Clock, Prepared, serve
from torch.nn import functional

TRIED = 5
"""Runs of each form of a convolution, before one is chosen."""


def prepare(asked: Asked, operands: Sequence[np.ndarray], clock: Clock) -> Prepared:
    """The faster form of the work."""
    torch.set_num_threads(asked.threads)
    torch.inference_mode().__enter__()  # for as long as the process lives
    given = [torch.from_numpy(each) for each in operands]
    if asked.kind == "product":
        a, b = given
        c = torch.zeros(asked.result)
        return Prepared(lambda: c.addmm_(a, b), c.numpy)
    x, weights, bias = given
    *_, stride, pad = asked.shape
    inner, inner_weights = (each.to(memory_format=torch.channels_last) for each in (x, weights))
    forms: list[Callable[[], torch.Tensor]] = [
        lambda: functional.conv2d(x, weights, bias, stride, pad),
        lambda: functional.conv2d(inner, inner_weights, bias, stride, pad),
    ]
    run = min(forms, key=lambda form: clock.quartile(form, TRIED))
    return Prepared(run, lambda: run().contiguous().numpy())


if __name__ == "__main__":
    serve(prepare)
