"""What makes a dumped stage run by itself: its text ends every dumped file. It needs NumPy only.

The meanings are those of ``swirl/ir/execute.py``; a test holds the two together.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

# A dumped file has its own BUFFERS and NESTS in place of these.
BUFFERS: dict[str, dict[str, Any]] = {}
NESTS: list[Callable[..., None]] = []

# --- loops and calls ----------------------------------------------------------------------------------------
float32, float64 = np.float32, np.float64
inf = INFINITY = np.inf


def parallel(*bounds: int, **options: object) -> range:
    """Iterations in any order, here one after the other."""
    return range(*bounds)


def vector(*bounds: int) -> range:
    """Lanes, here one after the other."""
    return range(*bounds)


def unrolled(*bounds: int) -> range:
    """Copies of the body, here one after the other."""
    return range(*bounds)


def empty(*shape: int) -> np.ndarray:
    """A local array: undefined, so NaN."""
    return np.full(shape, np.nan, np.float32)


def empty_float64(*shape: int) -> np.ndarray:
    """A local array of doubles."""
    return np.full(shape, np.nan)


def empty_int32(*shape: int) -> np.ndarray:
    """A local array of integers."""
    return np.zeros(shape, np.int32)


def empty_bool(*shape: int) -> np.ndarray:
    """A local array of truth values."""
    return np.zeros(shape, np.bool_)


def stream(x: Any) -> Any:
    """A store past the caches: the same value."""
    return x


def prefetch(*_: object) -> None:
    """An element fetched into a cache: nothing to compute."""


def int32(x: Any) -> Any:
    """Towards zero; NaN and what is out of range are the least number."""
    return np.int32(int(x) if -(2.0**31) - 1 < x < 2.0**31 else -(2**31))


def _floating(x: Any) -> Any:
    """A number as a float; doubles stay doubles."""
    return x if isinstance(x, np.floating) else float32(x)


def max(first: Any, *others: Any) -> Any:
    """A NaN is passed on."""
    for other in others:
        first = first if first > other or first != first else other
    return first


def min(first: Any, *others: Any) -> Any:
    """A NaN is passed on."""
    for other in others:
        first = first if first < other or first != first else other
    return first


def _function(compute: Callable[..., Any]) -> Callable[..., Any]:
    """On floats."""
    return lambda *args: compute(*map(_floating, args))


abs = np.abs
sqrt, exp, expm1, log, log1p, tanh = map(_function, (np.sqrt, np.exp, np.expm1, np.log, np.log1p, np.tanh))
sin, cos, atan, floor, pow = map(_function, (np.sin, np.cos, np.arctan, np.floor, np.power))
erf = _function(lambda x: type(x)(math.erf(x)))


def rand(seed: int, step: int, stream: int, index: int) -> Any:
    """Philox4x32-10 of counter (index, stream, step, 0) and key (seed, 0); the first word as a float."""
    mask = 0xFFFFFFFF
    counter = [int(index) & mask, int(stream) & mask, int(step) & mask, 0]
    key = [int(seed) & mask, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        left, right = (second >> 32) ^ counter[1] ^ key[0], (first >> 32) ^ counter[3] ^ key[1]
        counter = [left, second & mask, right, first & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return float32((counter[0] >> 8) * 2.0**-24)


# --- buffers ------------------------------------------------------------------------------------------------
def make_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """The logical contents of every buffer, the same in all stages: they depend on its storage name only."""
    arrays = {}
    for name, buffer in BUFFERS.items():
        generator = np.random.default_rng([seed, zlib.crc32(buffer["storage"].encode())])
        values, shape = buffer["values"], buffer["shape"]
        if isinstance(values, list):  # these very numbers
            made: np.ndarray = np.array(values)
        elif isinstance(values, int):  # whole numbers below it
            made = generator.integers(0, values, shape)
        else:
            made = generator.normal(size=shape)
            if values == "positive":  # it stands under a root or a logarithm
                made = np.abs(made) + 0.5
        arrays[name] = made.astype(buffer["dtype"])
    return arrays


class Padded:
    """An array with zeros around it, which are read and never written."""

    def __init__(self, array: np.ndarray, around: Any):
        self.array, self.around = array, around

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if self._inside(index):
            return self.array[index]
        shape = self.array.shape
        sides = zip(index, shape, self.around, strict=True)
        if not all(-before <= i < extent + after for i, extent, (before, after) in sides):
            raise IndexError(f"{index} is outside {shape} and the zeros around it")
        return self.array.dtype.type(0)

    def __setitem__(self, index: Any, value: Any) -> None:
        index = index if isinstance(index, tuple) else (index,)
        if not self._inside(index):
            raise IndexError(f"{index} is outside {self.array.shape}, and written")
        self.array[index] = value

    def _inside(self, index: tuple[int, ...]) -> bool:
        return all(0 <= i < extent for i, extent in zip(index, self.array.shape, strict=True))


def pack(array: np.ndarray, buffer: dict[str, Any]) -> np.ndarray:
    """Logical array → as it is stored: zeros around it; each (dimension, factor) of its blocks cut, the inner part
    last; the other dimensions in their order."""
    rank = array.ndim
    if "halo" in buffer:
        array = np.pad(array, buffer["halo"])
    for dimension, factor in buffer["blocks"]:
        padding = [(0, 0)] * array.ndim
        padding[dimension] = (0, -array.shape[dimension] % factor)
        array = np.pad(array, padding)
        shape = array.shape
        cut = (*shape[:dimension], shape[dimension] // factor, factor, *shape[dimension + 1 :])
        array = np.moveaxis(array.reshape(cut), dimension + 1, -1)
    if "order" in buffer:
        array = array.transpose(*buffer["order"], *range(rank, array.ndim))
    return np.array(array, order="C")


def unpack(array: np.ndarray, buffer: dict[str, Any]) -> np.ndarray:
    """The inverse of ``pack``."""
    rank = len(buffer["shape"])
    if "order" in buffer:
        array = array.transpose(*np.argsort(buffer["order"]), *range(rank, array.ndim))
    for dimension, factor in reversed(buffer["blocks"]):
        array = np.moveaxis(array, -1, dimension + 1)
        extent = array.shape[dimension] * factor
        array = array.reshape(*array.shape[:dimension], extent, *array.shape[dimension + 2 :])
    first = [before for before, _ in buffer.get("halo", ((0, 0),) * rank)]
    inside = (slice(low, low + extent) for low, extent in zip(first, buffer["shape"], strict=True))
    return np.array(array[tuple(inside)], order="C")


def run(arrays: dict[str, np.ndarray], how: Callable[..., None] | None = None) -> dict[str, np.ndarray]:
    """The logical arrays after all nests; those given stay as they are.

    ``how`` runs the nests on the arrays as they are stored, in place of Python.
    """
    stored = {name: pack(array, BUFFERS[name]) for name, array in arrays.items()}
    if how is not None:
        how(stored)
    else:
        seen: dict[str, Any] = dict(stored)
        seen |= {name: Padded(stored[name], b["around"]) for name, b in BUFFERS.items() if "around" in b}
        with np.errstate(all="ignore"):
            for nest in NESTS:
                code = nest.__code__
                nest(*(seen[name] for name in code.co_varnames[: code.co_argcount]))
    result = {}
    for name, array in stored.items():
        result[name] = unpack(array, BUFFERS[name])
        if array.shape != result[name].shape and _differ(array, pack(result[name], BUFFERS[name])):
            print(f"the padding of {name} is no longer zero", file=sys.stderr)
    return result


def _differ(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether an element is not equal; a NaN equals a NaN."""
    return bool(((first != second) & ((first == first) | (second == second))).any())


def summary(name: str, before: np.ndarray, after: np.ndarray) -> str:
    """One line: the buffer, whether it changed, a few measures and a checksum of its bits."""
    changed = "  " if before.tobytes() == after.tobytes() else "* "
    values = after.astype(np.float64)
    bits = zlib.crc32(after.tobytes())
    shape = "×".join(map(str, after.shape))
    with np.errstate(all="ignore"):
        measures = f"mean {values.mean(): .6e}  min {values.min(): .6e}  max {values.max(): .6e}"
    return f"{changed}{name:20} {after.dtype.name:8} {shape:16} {measures}  crc {bits:08x}"


# --- command line -------------------------------------------------------------------------------------------
def main(file: str) -> None:
    """Run the stage and print one line for each buffer; ``*`` marks those that it changed."""
    parser = argparse.ArgumentParser(description="Run this stage on arrays made from a seed.")
    parser.add_argument("--seed", type=int, default=0, help="of the contents of the buffers")
    parser.add_argument("--load", metavar="FILE.npz", help="contents by storage name; those missing are made")
    parser.add_argument("--save", metavar="FILE.npz", help="keep all buffers, by storage name")
    parser.add_argument("--check", action="store_true", help="run in checking mode: races, lanes, subscripts")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="portable",
        metavar="TARGET",
        help="also compile (portable, avx2 or avx512), and compare",
    )
    options = parser.parse_args()
    before = make_arrays(options.seed)
    if options.load:
        with np.load(options.load) as loaded:
            for name, buffer in BUFFERS.items():
                if buffer["storage"] in loaded:
                    before[name] = loaded[buffer["storage"]].astype(buffer["dtype"]).reshape(buffer["shape"])
    if options.check:
        from swirl.dump.read import checked_run

        after = run(before, checked_run(file, options.seed))
    else:
        after = run(before)
    for name in BUFFERS:
        print(summary(name, before[name], after[name]))
    if options.save:
        kept: Any = {BUFFERS[name]["storage"]: array for name, array in after.items()}
        np.savez(options.save, **kept)
    if options.compile:
        from swirl.dump.compare import differences
        from swirl.dump.read import compiled_run

        print(f"compiled for {options.compile}, contraction off:")
        for difference in differences(after, run(before, compiled_run(file, options.compile))):
            print(f"  {difference}")


if __name__ == "__main__":
    main(__file__)
