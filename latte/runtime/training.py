"""Training and evaluation loops over whole data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from latte.model.checks import is_integer
from latte.model.source_location import user_location
from latte.runtime.session import Session
from swirl.errors import DataError, TrainingError
from swirl.jit import progress_console


@dataclass
class History:
    """The course of a training run.

    Args:
        losses: of every step.
        accuracies: of every step (0 where the net has no accuracy layer).
        items: number of items trained on.
        seconds: of the steps, data transfer included.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    items: int = 0
    seconds: float = 0.0

    @property
    def items_per_second(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy over ``items`` items, in the inference phase."""

    loss: float
    accuracy: float
    items: int


def fit(
    session: Session,
    images: Any,
    labels: Any,
    *,
    solver: Any,
    epochs: int,
    shuffle: bool = True,
    stop_on_nan: bool = True,
    progress: bool = True,
    after_epoch: Callable[[int, History], None] | None = None,
) -> History:
    """Train a net on a data set. The last, smaller batch of an epoch is trained on as such.

    Args:
        session: of a compiled net with two data layers, images then labels, and a loss.
        images: (items, …).
        labels: (items,) or (items, 1), class numbers; or what another loss compares with, (items, …).
        solver: its ``step()`` changes the parameters.
        epochs: how often to go through the data.
        shuffle: whether each epoch has another order; a sequence of orders that the net's seed fixes and the next call
            of ``fit`` continues.
        stop_on_nan: raise TrainingError when the loss is NaN; otherwise training goes on (a warning is given once).
        progress: whether to show a progress bar, on stderr.
        after_epoch: called with the epoch's number (from 0) and the history so far.

    Raises:
        DataError: the data do not fit.  TrainingError: NaN in the loss, or no loss.
    """
    images, labels = _check(session, images, labels)
    _check_training(session, solver, epochs)
    history = History()
    _prepare_rest(session, len(images))
    with session.no_warning(of_nan=stop_on_nan), _progress_bar(shown=progress) as bar:
        steps = -(-len(images) // session.batch_size)
        task = bar.add_task("training", total=epochs * steps, measures="")
        for epoch in range(epochs):
            order = session.permutation(len(images)) if shuffle else np.arange(len(images))
            for chosen in _batches(order, session.batch_size):
                start = perf_counter()
                session.set_batch(images[chosen], labels[chosen])
                session.forward()
                if stop_on_nan and np.isnan(session.loss):
                    raise TrainingError(
                        f"the loss is NaN in epoch {epoch}, step {len(history.losses)}",
                        location=user_location(),
                        way_out="a smaller learning rate may help; stop_on_nan=False goes on",
                    )
                session.clear_grad()
                session.backward()
                solver.step()
                history.seconds += perf_counter() - start
                history.items += len(chosen)
                history.losses.append(session.loss)
                history.accuracies.append(session.accuracy)
                bar.update(task, advance=1, measures=f"epoch {epoch + 1}/{epochs}  loss {session.loss:.4f}")
            if after_epoch is not None:
                after_epoch(epoch, history)
    return history


def _check_training(session: Session, solver: Any, epochs: int) -> None:
    location = user_location()
    if not session.has_loss:
        raise TrainingError(
            "the net has no loss to train by", location=location, way_out="SoftmaxLossLayer(net, scores, labels)"
        )
    if isinstance(solver, type) or not callable(getattr(solver, "step", None)):
        raise TrainingError(
            f"fit needs a solver, not {solver!r}", location=location, way_out="latte.solver.SGD(net, learning_rate)"
        )
    if not is_integer(epochs) or epochs < 0:
        raise DataError(f"the number of epochs must be a whole number, at least 0, not {epochs!r}", location=location)


def _progress_bar(*, shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[measures]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=progress_console(), disable=not shown)


def evaluate(session: Session, images: Any, labels: Any) -> Evaluation:
    """Loss and accuracy over a data set, each item counted once whatever the batch size.

    Raises:
        DataError: the data do not fit.
    """
    images, labels = _check(session, images, labels)
    _prepare_rest(session, len(images))
    loss = accuracy = 0.0
    for chosen in _batches(np.arange(len(images)), session.batch_size):
        session.set_batch(images[chosen], labels[chosen])
        session.test()
        loss += session.loss * len(chosen)
        accuracy += session.accuracy * len(chosen)
    return Evaluation(loss / len(images), accuracy / len(images), len(images))


def _check(session: Session, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    images, labels = session.check_data(images, labels).values()
    if len(images) == 0:
        raise DataError("there are no items", location=user_location(), way_out="at least one is needed")
    return images, labels


def _prepare_rest(session: Session, items: int) -> None:
    """The size of the last, smaller batch is compiled before anything runs (or is timed)."""
    rest = items % session.batch_size
    if rest:
        session.prepare(rest)


def _batches(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(order), size):
        yield order[start : start + size]
