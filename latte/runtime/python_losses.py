"""Losses that Python computes on whole arrays, between the kernels of forward and those of backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from latte.model.checks import masked
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import AccuracyEnsemble, LossEnsemble
from latte.runtime.executable import Executable
from swirl.errors import TrainingError


def sources_in_python(losses: Iterable[LossEnsemble]) -> list[Ensemble]:
    """The layers to which such losses send gradients."""
    trained_on = (loss for loss in losses if not isinstance(loss, AccuracyEnsemble))
    return list(dict.fromkeys(_source(loss, "inputs") for loss in trained_on))


def run_forward(losses: Iterable[LossEnsemble], executable: Executable) -> None:
    """Compute the values of losses and accuracies in Python.

    Raises:
        TrainingError: one has not returned a number.
    """
    for loss in losses:
        returned = loss.forward(*_arrays(loss, executable, "inputs", "label"))
        executable.write(f"{loss.name}.value", np.full(1, _number(loss, returned)))


def gradients(losses: Iterable[LossEnsemble], executable: Executable) -> dict[str, np.ndarray]:
    """The gradients that losses in Python send to their sources, by name; of several losses their sum. None where
    nothing depends on parameters.

    Raises:
        TrainingError: one has returned something.
    """
    found: dict[str, np.ndarray] = {}
    for loss in losses:
        source = _source(loss, "inputs")
        storage = f"{source.name}.grad"
        if isinstance(loss, AccuracyEnsemble) or storage not in executable.buffers:
            continue
        gradient = np.zeros(executable.shape(storage), np.float32)
        returned = loss.backward(gradient, *_arrays(loss, executable, "label"))
        filled = isinstance(returned, np.ndarray) and np.shares_memory(returned, gradient)
        if returned is not None and not filled:
            raise TrainingError(
                f"{type(loss).__name__}.backward has returned {type(returned).__name__}, which is not used",
                location=loss.location,
                way_out="fill the gradient that it is given: bot_grad[:] = …",
            )
        gradient *= executable.arrays[f"{loss.name}.grad"][0]
        found[source.name] = found.get(source.name, 0) + gradient
    return found


def _source(loss: LossEnsemble, name: str) -> Ensemble:
    return next(edge.source for edge in loss.connections if edge.name == name)


def _arrays(loss: LossEnsemble, executable: Executable, *names: str) -> Iterable[np.ndarray]:
    return [executable.read(f"{_source(loss, name).name}.value") for name in names]


def _number(loss: LossEnsemble, returned: Any) -> float:
    number = np.asarray(returned)
    if number.size != 1 or number.dtype.kind not in "iuf" or masked(returned) is not None:
        raise TrainingError(
            f"{type(loss).__name__}.forward has returned {returned!r}; the loss, a number, is needed",
            location=loss.location,
            way_out="return float(…): the mean over the batch",
        )
    return float(number.reshape(()))
