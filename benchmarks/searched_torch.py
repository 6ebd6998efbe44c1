"""PyTorch's (oneDNN's) side of tables of searches, in a process of its own: seconds of a convolution or a product.

    python benchmarks/searched_torch.py '{"kind": "conv", "shape": [...], "threads": 2, "runs": 9}'

The shape of a convolution is batch, channels, height, width, filters, kernel, stride, padding; that of a product rows,
columns, length. Between short runs something else is read, as between those of our side: caches do not hold the
operands. A convolution is timed with tensors as they come and with channels innermost; the faster one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch.nn import functional

FLUSHED = 1 << 25
"""Numbers that are read between runs: 128 MiB."""
LONG = 0.02
"""Seconds of a run from which on what is left in the caches does not matter."""


def operations(kind: str, shape: list[int]) -> Iterator[Callable[[], object]]:
    """What is timed."""
    if kind == "product":
        rows, columns, length = shape
        a, b, c = torch.randn(rows, length), torch.randn(length, columns), torch.zeros(rows, columns)
        yield lambda: c.addmm_(a, b)
        return
    batch, channels, height, width, filters, kernel, stride, pad = shape
    x, w = torch.randn(batch, channels, height, width), torch.randn(filters, channels, kernel, kernel)
    bias = torch.randn(filters)
    yield lambda: functional.conv2d(x, w, bias, stride, pad)
    inner, inner_w = (each.to(memory_format=torch.channels_last) for each in (x, w))
    yield lambda: functional.conv2d(inner, inner_w, bias, stride, pad)


def timed(operation: Callable[[], object], runs: int, other: torch.Tensor) -> list[float]:
    """Seconds of each run."""
    found = []
    for _ in range(runs + 2):  # two warm up
        if not found or found[-1] < LONG:
            other.sum()
        start = perf_counter()
        operation()
        found.append(perf_counter() - start)
    return found[2:]


def main() -> None:
    """Print the seconds of the faster form."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    torch.manual_seed(0)
    other = torch.ones(FLUSHED)
    with torch.inference_mode():
        times = [timed(each, asked["runs"], other) for each in operations(asked["kind"], asked["shape"])]
    print(json.dumps(min(times, key=min)))


if __name__ == "__main__":
    main()
