"""Halide's side of tables of searches (``pip install halide==21.0.0``), see :mod:`sides`.

Schedules are those of the automatic scheduler of Adams et al. (*Learning to optimize Halide with tree search and random
programs*, 2019): the one that its cost model takes for the best, and others from beams of one that drop choices at
random, each timed, as the paper's autotuning does, but that the model is not trained again. Images and results have
their channels innermost, as in Halide's own example of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import halide as hl
import numpy as np
from sides import Asked, Prepared, SideFailed, serve

PLUGIN = Path(hl.__file__).parent / "lib64" / "libautoschedule_adams2019.so"
DROPOUT = "75"
"""Percent of a random beam's choices that are kept, less what its length implies; Halide's own script takes 1 to
100."""
RUNS = 3
"""Of each schedule, while one is chosen."""


def prepare(asked: Asked, operands: Sequence[np.ndarray]) -> Prepared:
    """The fastest of as many schedules as may be measured."""
    hl.load_plugin(str(PLUGIN))
    target = hl.get_host_target()
    if not asked.avx512:
        for feature in (f for name, f in hl.TargetFeature.__members__.items() if name.startswith("AVX512")):
            target = target.without_feature(feature)
    start, best, least, tried, refused = perf_counter(), None, float("inf"), 0, ""
    arrays = _inner(asked, operands)
    for seed in range(max(1, asked.trials)):
        try:
            made = _scheduled(asked, arrays, target, seed)
            made.run()
            seconds = min(_seconds(made) for _ in range(RUNS))
        except hl.HalideError as error:
            refused = str(error).strip().splitlines()[-1]
            continue
        tried += 1
        if seconds < least:
            best, least = made, seconds
    if best is None:
        raise SideFailed(f"no schedule works: {refused}")
    return Prepared(best.run, best.value, tried, perf_counter() - start)


def _inner(asked: Asked, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The operands as the pipeline reads them."""
    if asked.kind == "product":
        return list(operands)
    x, weights, bias = operands
    pad = asked.shape[-1]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))  # as Halide's example: a layer before has left room
    return [np.ascontiguousarray(each) for each in (padded.transpose(0, 2, 3, 1), weights.transpose(2, 3, 1, 0), bias)]


def _scheduled(asked: Asked, arrays: Sequence[np.ndarray], target: Any, seed: int) -> Prepared:
    """A pipeline with the schedule of its model (seed 0), or with one of a random beam."""
    inputs = [hl.ImageParam(hl.Float(32), each.ndim, f"input{n}") for n, each in enumerate(arrays)]
    for parameter, array in zip(inputs, arrays, strict=True):
        for dim, extent in enumerate(reversed(array.shape)):
            parameter.dim(dim).set_bounds(0, extent)
            parameter.dim(dim).set_estimate(0, extent)
    shape: tuple[int, ...]
    if asked.kind == "product":
        rows, columns, length = asked.shape
        i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, length)], "k")
        total, out = hl.Func("total"), hl.Func("out")
        a, b = inputs
        total[j, i] = 0.0
        total[j, i] += a[k.x, i] * b[j, k.x]
        out[j, i] = total[j, i]
        shape = rows, columns
    else:
        items, channels, _, _, filters, kernel, stride, _ = asked.shape
        c, x, y, n = (hl.Var(name) for name in "cxyn")
        r = hl.RDom([(0, channels), (0, kernel), (0, kernel)], "r")
        total, out = hl.Func("total"), hl.Func("out")
        images, weights, bias = inputs
        total[c, x, y, n] = bias[c]
        total[c, x, y, n] += weights[c, r.x, r.y, r.z] * images[r.x, stride * x + r.y, stride * y + r.z, n]
        out[c, x, y, n] = total[c, x, y, n]
        _, _, height, width = asked.result
        shape = items, height, width, filters
    out.set_estimates([(0, extent) for extent in reversed(shape)])
    pipeline = hl.Pipeline(out)
    chosen = {"parallelism": str(asked.threads)}
    if seed:
        chosen |= {"beam_size": "1", "random_dropout": DROPOUT, "random_dropout_seed": str(seed)}
    pipeline.apply_autoscheduler(target, hl.AutoschedulerParams("Adams2019", chosen))
    pipeline.compile_jit(target)
    value = np.zeros(shape, np.float32)
    buffers = [hl.Buffer(array) for array in arrays]
    for parameter, buffer in zip(inputs, buffers, strict=True):
        parameter.set(buffer)
    written = hl.Buffer(value)

    def run(held: object = buffers) -> None:  # the pipeline does not keep the arrays' memory
        pipeline.realize(written, target)

    return Prepared(run, lambda: value if asked.kind == "product" else value.transpose(0, 3, 1, 2))


def _seconds(made: Prepared) -> float:
    start = perf_counter()
    made.run()
    return perf_counter() - start


if __name__ == "__main__":
    serve(prepare)
