"""TVM's side of tables of searches (``pip install apache-tvm==0.27.0.post1 psutil xgboost cloudpickle tornado``), see
:mod:`sides`.

Schedules are found by MetaSchedule (Shao et al., *Tensor program optimization with probabilistic programs*, 2022) with
its own rules, evolutionary search and boosted trees. Images and results have their channels innermost, for which its
rules find vector loops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from sides import Asked, Prepared, SideFailed, serve
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms
from tvm.target.codegen import llvm_get_system_cpu

A_ROUND = 8
"""Trials that are compiled and measured together: the model is trained again after each round."""
TIMEOUT = 120
"""Seconds in which a candidate is compiled."""


def prepare(asked: Asked, operands: Sequence[np.ndarray]) -> Prepared:
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
            num_tuning_cores=1,
            seed=1,
        )
        schedule = ms.tir_integration.compile_tir(database, module, target)
        tried = len(database.get_all_tuning_records())
    if schedule is None:
        raise SideFailed("none of its trials could be measured")
    taken = perf_counter() - start
    built = tvm.compile(schedule.mod, target=target)
    device = tvm.cpu()
    arrays = [tvm.runtime.tensor(each, device) for each in _inner(asked, operands)]
    value = tvm.runtime.tensor(np.zeros(_shape(asked), np.float32), device)
    main = built["main"]

    def found() -> np.ndarray:
        return value.numpy() if asked.kind == "product" else value.numpy().transpose(0, 3, 1, 2)

    return Prepared(lambda: main(*arrays, value), found, tried, taken)


def _target(asked: Asked) -> dict[str, Any]:
    """What code is made for; search rules read the number of cores and the width of vectors from it."""
    cpu = llvm_get_system_cpu() if asked.avx512 else "core-avx2"
    return {"kind": "llvm", "mcpu": cpu, "num-cores": asked.threads}


def _shape(asked: Asked) -> tuple[int, ...]:
    if asked.kind == "product":
        return asked.result
    items, filters, height, width = asked.result
    return items, height, width, filters


def _inner(asked: Asked, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    if asked.kind == "product":
        return list(operands)
    x, weights, bias = operands
    return [np.ascontiguousarray(each) for each in (x.transpose(0, 2, 3, 1), weights.transpose(2, 3, 1, 0), bias)]


def _declared(asked: Asked) -> list[te.Tensor]:
    """Operands and value."""
    if asked.kind == "product":
        rows, columns, length = asked.shape
        a, b = te.placeholder((rows, length), name="a"), te.placeholder((length, columns), name="b")
        return [a, b, topi.matmul(a, b)]
    items, channels, height, width, filters, kernel, stride, pad = asked.shape
    x = te.placeholder((items, height, width, channels), name="x")
    weights = te.placeholder((kernel, kernel, channels, filters), name="weights")
    bias = te.placeholder((filters,), name="bias")
    sums = topi.nn.conv2d_nhwc(x, weights, stride, pad, 1)
    return [x, weights, bias, topi.add(sums, bias)]


if __name__ == "__main__":
    serve(prepare)
