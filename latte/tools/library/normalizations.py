"""Normalisations, and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from latte.tools.library.entries import Arrays, Case, InRandomNets, LibraryLayer, Measured, one_source

GROUPS = 8
"""Of channels, where they are measured."""


def _batch_norm(torch: Any, x: Any, gamma: Any, beta: Any, epsilon: float = 1e-5, synchronised: bool = False) -> Any:
    """In training. The running statistics are its own; one process has the sums of all by itself."""
    mean, var = torch.zeros_like(gamma).flatten(), torch.ones_like(gamma).flatten()
    return torch.nn.functional.batch_norm(x, mean, var, gamma.flatten(), beta.flatten(), training=True, eps=epsilon)


def _group_norm(torch: Any, x: Any, gamma: Any, beta: Any, groups: int) -> Any:
    return torch.nn.functional.group_norm(x, groups, gamma, beta)


def _instance_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return torch.nn.functional.instance_norm(x, None, None, gamma, beta)


def _layer_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta)


def _lrn(torch: Any, x: Any, n: int = 5, beta: float = 0.75, alpha: float = 1e-4, k: float = 1.0) -> Any:
    return torch.nn.functional.local_response_norm(x, n, alpha, beta, k)


def _dropout(torch: Any, x: Any, ratio: float = 0.5) -> Any:
    return torch.nn.functional.dropout(x, ratio, training=True)


def _kept_and_dropped(source: np.ndarray, gradient: np.ndarray, results: Arrays) -> Arrays:
    """Of dropout: what is kept is twice the source, and its gradient; half is kept, within five standard errors."""
    value, back = (results[name].reshape(source.shape) for name in ("value", "gradient of the source"))
    kept = value != 0
    return {
        "factor of the value": np.where(kept, value / source, 2),
        "factor of the gradient": np.where(kept, back / gradient.reshape(source.shape), 2 + back),
        "half is kept": np.array([abs(kept.mean() - 0.5) < 2.5 / np.sqrt(kept.size)], np.float32),
    }


LAYERS = (
    LibraryLayer(
        "BatchNormLayer",
        _batch_norm,
        cases={
            "batch norm": Case(one_source((7, 17), (3, 17, 5, 7), (2, 33, 4, 8))),
            "batch norm by sums": Case(one_source((7, 17), (3, 17, 5, 7)), {"synchronised": True}),
        },
        measured={"batch-norm": Measured()},
        random={"batch_norm": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "LayerNormLayer",
        _layer_norm,
        cases={"layer norm": Case(one_source((3, 17), (2, 19, 32), (3, 17, 5, 7), (2, 16, 8, 8)))},
        measured={"layer-norm": Measured(), "layer-norm-sequence": Measured(source="sequence")},
        random={"layer_norm": InRandomNets(exact=False)},
    ),
    LibraryLayer(
        "GroupNormLayer",
        _group_norm,
        cases={"group norm": Case(one_source((2, 6, 5, 7), (3, 48, 8, 8)), {"groups": 3})},
        measured={"group-norm": Measured(options={"groups": GROUPS}, channels=GROUPS)},
        random={"group_norm": InRandomNets({"groups": (1, 2, 3, 4, 8)}, ranks=(3,), exact=False)},
    ),
    LibraryLayer(
        "InstanceNormLayer",
        _instance_norm,
        cases={"instance norm": Case(one_source((3, 17, 5, 7), (2, 32, 8, 8)))},
        measured={"instance-norm": Measured()},
        random={"instance_norm": InRandomNets(ranks=(3,), exact=False)},
    ),
    LibraryLayer(
        "LRNLayer",
        _lrn,
        cases={
            "lrn": Case(one_source((3, 17, 5, 7), (2, 33, 8, 16), (1, 1, 1, 1)), {"alpha": 0.5, "k": 2.0}),
            "lrn of few": Case(one_source((2, 2, 5, 7)), {"n": 3, "alpha": 0.5}),
        },
        measured={"lrn": Measured()},
        random={"lrn": InRandomNets(ranks=(3,), exact=False)},
    ),
    LibraryLayer(
        "DropoutLayer",
        _dropout,
        cases={"dropout": Case(one_source((3, 5), (2, 3, 5, 7)))},
        measured={"dropout": Measured(facts=_kept_and_dropped)},
        lacks={
            "comparison": "it draws random numbers: tests/layers/test_library.py::test_dropout_drops_what_it_says",
            "random nets": "it draws random numbers",
        },
    ),
)
