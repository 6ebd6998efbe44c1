"""PyTorch's (oneDNN's) side of tables of searches, see :mod:`sides`.

A convolution is timed with tensors as they come and with channels innermost; the faster one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
from sides import Asked, Prepared, serve
from torch.nn import functional

TRIED = 5
"""Runs of each form of a convolution, before one is chosen."""


def prepare(asked: Asked, operands: Sequence[np.ndarray]) -> Prepared:
    """The faster form of the work."""
    torch.set_num_threads(asked.threads)
    torch.inference_mode().__enter__()  # for as long as the process lives
    given = [torch.from_numpy(each) for each in operands]
    if asked.kind == "product":
        a, b = given
        c = torch.zeros(asked.result)
        return Prepared(lambda: torch.mm(a, b, out=c), c.numpy)
    x, weights, bias = given
    *_, stride, pad = asked.shape
    inner, inner_weights = (each.to(memory_format=torch.channels_last) for each in (x, weights))
    forms: list[Callable[[], torch.Tensor]] = [
        lambda: functional.conv2d(x, weights, bias, stride, pad),
        lambda: functional.conv2d(inner, inner_weights, bias, stride, pad),
    ]
    run = min(forms, key=_least)
    return Prepared(run, lambda: run().contiguous().numpy())


def _least(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs."""
    found = []
    for _ in range(TRIED):
        start = perf_counter()
        run()
        found.append(perf_counter() - start)
    return min(found)


if __name__ == "__main__":
    serve(prepare)
