"""TVM's side of tables of searches (``pip install apache-tvm==0.27.0.post1 psutil xgboost cloudpickle tornado``), see
:mod:`sides`.

Schedules are found by MetaSchedule (Shao et al., *Tensor program optimization with probabilistic programs*, 2022) with
its own rules, evolutionary search and boosted trees, which begin with nothing. Images, weights and results have their
channels innermost, for which its rules find vector loops. Images have zeros around them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from sides import Asked, Clock, Prepared, SideFailed, serve
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.target.codegen import llvm_get_system_cpu

A_ROUND = 8
"""Trials that are compiled and measured together: the model is trained again after each round."""
TIMEOUT = 120
"""Seconds in which a candidate is compiled."""
MEASURING = ms.runner.EvaluatorConfig(number=1, repeat=5, min_repeat_ms=0, enable_cpu_cache_flush=True)


def prepare(asked: Asked, operands: Sequence[np.ndarray], clock: Clock) -> Prepared:
    """The best schedule of as many trials as may be measured."""
    logging.disable(logging.WARNING)
    target = tvm.target.Target(_target(asked))
    module = tvm.IRModule({"main": te.create_prim_func(_declared(asked))})
    start = perf_counter()
    with TemporaryDirectory() as folder:
        database = ms.tune_tir(
            module,
            target,
            folder,
            max_trials_global=max(1, asked.trials),
            num_trials_per_iter=min(A_ROUND, max(1, asked.trials)),
            builder=ms.builder.LocalBuilder(max_workers=1, timeout_sec=TIMEOUT),
            runner=ms.runner.LocalRunner(evaluator_config=MEASURING),
            num_tuning_cores=asked.threads,
            seed=1,
        )
        schedule = ms.tir_integration.compile_tir(database, module, target)
        tried = len(database.get_all_tuning_records())
    if schedule is None:
        raise SideFailed("none of its trials could be measured")
    taken = perf_counter() - start
    built = tvm.compile(schedule.mod, target=target)
    device = tvm.cpu()
    arrays = [tvm.runtime.tensor(each, device) for each in asked.innermost(operands)]
    value = tvm.runtime.tensor(np.zeros(asked.innermost_result, np.float32), device)
    main = built["main"]

    return Prepared(lambda: main(*arrays, value), lambda: asked.outermost(value.numpy()), tried, taken)


def _target(asked: Asked) -> dict[str, Any]:
    """What code is made for; search rules read the number of cores and the width of vectors from it."""
    cpu = llvm_get_system_cpu() if asked.avx512 else "core-avx2"
    return {"kind": "llvm", "mcpu": cpu, "num-cores": asked.threads}


def _declared(asked: Asked) -> list[te.Tensor]:
    """Operands and value. TVM's own operators would have the weights packed in each run, which its search leaves out of
    its times."""
    if asked.kind == "product":
        rows, columns, length = asked.shape
        a, b = te.placeholder((rows, length), name="a"), te.placeholder((length, columns), name="b")
        c, k = te.placeholder((rows, columns), name="c"), te.reduce_axis((0, length), name="k")
        sums = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="sums")
        return [a, b, c, te.compute((rows, columns), lambda i, j: c[i, j] + sums[i, j], name="value")]
    items, channels, height, width, filters, kernel, stride, pad = asked.shape
    x = te.placeholder((items, height + 2 * pad, width + 2 * pad, channels), name="x")
    weights = te.placeholder((kernel, kernel, channels, filters), name="weights")
    bias = te.placeholder((filters,), name="bias")
    extents = {"ry": kernel, "rx": kernel, "rc": channels}
    ry, rx, rc = (te.reduce_axis((0, extent), name=name) for name, extent in extents.items())
    sums = te.compute(
        asked.innermost_result,
        lambda n, y, z, f: te.sum(
            x[n, y * stride + ry, z * stride + rx, rc] * weights[ry, rx, rc, f], axis=[ry, rx, rc]
        ),
        name="sums",
    )
    return [
        x,
        weights,
        bias,
        te.compute(asked.innermost_result, lambda n, y, z, f: sums[n, y, z, f] + bias[f], name="value"),
    ]


if __name__ == "__main__":
    serve(prepare)
