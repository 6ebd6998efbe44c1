"""Halide's side of tables of searches (``pip install halide==21.0.0``), see :mod:`sides`.

Schedules are those of the automatic scheduler of Adams et al. (*Learning to optimize Halide with tree search and random
programs*, 2019), whose cost model comes trained: the one that it takes for the best, then others of greedy searches
that drop choices at random, as its autotuning does. Each different one is compiled, checked and timed; the model is not
trained again. Images and results have their channels innermost, and images zeros around them, as in Halide's own
example of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import halide as hl
import numpy as np
from sides import Asked, Clock, Prepared, SideFailed, check, expected, serve

PLUGIN = Path(hl.__file__).parent / "lib64" / "libautoschedule_adams2019.so"
DROPOUT = "1"
"""Percent of the searches that drop nothing, as in Halide's script for autotuning."""
RUNS = 5
"""Of each schedule, while one is chosen."""
TRIES = 8
"""Searches for each different schedule, before there count as no more."""


def prepare(asked: Asked, operands: Sequence[np.ndarray], clock: Clock) -> Prepared:
    """The fastest of as many different schedules as may be measured."""
    hl.load_plugin(str(PLUGIN))
    target = hl.get_host_target()
    if not asked.avx512:
        for feature in (f for name, f in hl.TargetFeature.__members__.items() if name.startswith("AVX512")):
            target = target.without_feature(feature)
    start, best, least, refused = perf_counter(), None, float("inf"), ""
    arrays, wanted = asked.innermost(operands), expected(asked, operands)
    met: set[str] = set()
    tried = 0
    for seed in range(TRIES * max(1, asked.trials)):
        if tried == max(1, asked.trials):
            break
        try:
            made = _scheduled(asked, arrays, target, seed, met)
            if made is None:
                continue
            tried += 1
            made.run()
            check(wanted, made.value())
            seconds = clock.quartile(made.run, RUNS)
        except (hl.HalideError, SideFailed) as error:
            refused = str(error).strip().splitlines()[-1]
            continue
        if seconds < least:
            best, least = made, seconds
    if best is None:
        raise SideFailed(f"no schedule works: {refused}")
    return Prepared(best.run, best.value, tried, perf_counter() - start)


def _scheduled(asked: Asked, arrays: Sequence[np.ndarray], target: Any, seed: int, met: set[str]) -> Prepared | None:
    """A pipeline with the schedule that the model takes for the best (seed 0), or with one of a random search; None
    where its schedule is among those that were met, to which it is added."""
    inputs = [hl.ImageParam(hl.Float(32), each.ndim, f"input{n}") for n, each in enumerate(arrays)]
    for parameter, array in zip(inputs, arrays, strict=True):
        for dim, extent in enumerate(reversed(array.shape)):
            parameter.dim(dim).set_bounds(0, extent)
            parameter.dim(dim).set_estimate(0, extent)
    total, out = hl.Func(f"total{seed}"), hl.Func(f"out{seed}")
    if asked.kind == "product":
        i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, asked.shape[2])], f"k{seed}")
        a, b, c = inputs
        total[j, i] = c[j, i]
        total[j, i] += a[k.x, i] * b[j, k.x]
        out[j, i] = total[j, i]
    else:
        _, channels, *_, kernel, stride, _ = asked.shape
        f, x, y, n = (hl.Var(name) for name in "fxyn")
        r = hl.RDom([(0, channels), (0, kernel), (0, kernel)], f"r{seed}")
        images, weights, bias = inputs
        total[f, x, y, n] = bias[f]
        total[f, x, y, n] += weights[f, r.x, r.y, r.z] * images[r.x, stride * x + r.y, stride * y + r.z, n]
        out[f, x, y, n] = total[f, x, y, n]
    shape = asked.innermost_result
    out.set_estimates([(0, extent) for extent in reversed(shape)])
    pipeline = hl.Pipeline(out)
    chosen = {"parallelism": str(asked.threads)}
    if seed:
        chosen |= {"beam_size": "1", "random_dropout": DROPOUT, "random_dropout_seed": str(seed)}
    found = pipeline.apply_autoscheduler(target, hl.AutoschedulerParams("Adams2019", chosen))
    text = _without(str(seed), found.schedule_source)
    if text in met:
        return None
    met.add(text)
    pipeline.compile_jit(target)
    value = np.zeros(shape, np.float32)
    buffers = [hl.Buffer(array) for array in arrays]
    for parameter, buffer in zip(inputs, buffers, strict=True):
        parameter.set(buffer)
    written = hl.Buffer(value)

    def run(held: object = buffers) -> None:  # the pipeline does not keep the arrays' memory
        pipeline.realize(written, target)

    return Prepared(run, lambda: asked.outermost(value))


def _without(seed: str, schedule: str) -> str:
    """A schedule, the same for pipelines of other seeds."""
    for name in ("total", "out", "k", "r"):
        schedule = schedule.replace(f"{name}{seed}", name)
    return schedule


if __name__ == "__main__":
    serve(prepare)
