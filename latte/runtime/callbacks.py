"""What happens between the steps and epochs of ``fit``: callbacks, and stopping early."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from types import FunctionType
from typing import Any

from latte.model.checks import is_flag, is_integer, is_number, takes
from latte.model.ensemble_kinds import AccuracyEnsemble
from latte.model.source_location import location_of, user_location
from latte.runtime.checkpoint import save
from latte.runtime.evaluation import Evaluation
from latte.runtime.session import Session
from latte.runtime.state_dict import load_state_dict, state_dict
from swirl.errors import DeclarationError, TrainingError, misspelt, nearest


@dataclass(repr=False)
class History:
    """The course of a training run.

    Args:
        losses: of every batch.
        accuracies: of every batch; empty where the net has no accuracy layer.
        items: number of items trained on.
        seconds: of the steps, data transfer included.
        validations: after every epoch, where validation data were given.
        stopped: why training has ended before the last epoch; None if it has not.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    items: int = 0
    seconds: float = 0.0
    validations: list[Evaluation] = field(default_factory=list)
    stopped: str | None = None

    def __repr__(self) -> str:
        last = f" last_loss={self.losses[-1]:.6g}" if self.losses else ""
        stopped = f" stopped={self.stopped!r}" if self.stopped else ""
        validations = f" validations={len(self.validations)}" if self.validations else ""
        return f"<History batches={len(self.losses)} items={self.items}{last}{validations}{stopped}>"

    @property
    def items_per_second(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0


@dataclass
class Run:
    """A call of ``fit``, as callbacks see it.

    Args:
        session: of the net.
        solver: that trains it.
        history: so far.
        measures: the names of what a validation gives; none without validation data.
        epoch: number of the epoch, from 0.
        step: number of the step in this run, from 0.
        batch_loss: of the last batch.
        epoch_loss: mean over the items of the epoch so far, or over what counts of them, as ``evaluate`` has it.
        rank: of this process, of those that train together; losses, accuracies and validations are of all.
    """

    session: Session
    solver: Any
    history: History
    measures: tuple[str, ...] = ()
    epoch: int = 0
    step: int = 0
    batch_loss: float = 0.0
    epoch_loss: float = 0.0
    rank: int = 0

    @property
    def validation(self) -> Evaluation | None:
        """The last one; None without validation data, or before the end of the first epoch."""
        return self.history.validations[-1] if self.history.validations else None

    def stop(self, why: str = "a callback has stopped it") -> None:
        """End training after this step; after an epoch: before the next."""
        self.history.stopped = why

    def save(self, path: str | PathLike[str]) -> None:
        """Save net and solver, as ``net.save(path, solver)``. After an epoch, the next ``fit`` goes on from there; in
        the middle of one, with the next epoch. Of several processes, the first one saves."""
        if self.rank == 0:
            save(self.session, path, self.solver)


class Callback:
    """What is done between steps and epochs of ``fit``. Subclasses define what they need."""

    def before_training(self, run: Run) -> None:
        """Called once, before the first step."""

    def after_step(self, run: Run) -> None:
        """Called after each step of the solver."""

    def after_epoch(self, run: Run) -> None:
        """Called after each epoch, and its validation."""

    def after_training(self, run: Run) -> None:
        """Called once at the end; not where an error ends training."""


class EarlyStopping(Callback):
    """Ends training where a measure has not improved for some epochs, and takes the best parameters back (the solver
    stays as it is).

    Args:
        patience: number of epochs without improvement after which training ends.
        by: ``"loss"`` or ``"accuracy"``, or the name of a metric, or of a loss or accuracy layer: of the validation,
            and without validation data of the training epochs (``"loss"`` only).
        larger_is_better: by default for accuracies, and not for losses; to be given for a metric.
        least_change: what counts as improvement.
        restore: whether parameters and running statistics of the best epoch are taken back at the end.

    Raises:
        DeclarationError: for a wrong type or value.
    """

    def __init__(
        self,
        patience: int = 5,
        by: str = "loss",
        *,
        larger_is_better: bool | None = None,
        least_change: float = 0.0,
        restore: bool = True,
    ):
        for name, good, wanted, value in (
            ("patience", is_integer(patience) and patience >= 1, "a whole number, at least 1", patience),
            ("by", isinstance(by, str) and by, "the name of a measure", by),
            (
                "larger_is_better",
                larger_is_better is None or is_flag(larger_is_better),
                "True, False or None",
                larger_is_better,
            ),
            (
                "least_change",
                is_number(least_change) and not isinstance(least_change, bool) and 0 <= least_change < math.inf,
                "a number, at least 0",
                least_change,
            ),
            ("restore", isinstance(restore, bool), "True or False", restore),
        ):
            if not good:
                raise DeclarationError(f"{name} must be {wanted}, not {value!r}", location=user_location())
        self.patience, self.by, self.least_change, self.restore = int(patience), by, least_change, restore
        self._larger_is_better, self._sign = larger_is_better, 1.0
        self._best, self._best_epoch = -math.inf, -1
        self._learned: dict[str, Any] = {}

    @property
    def best(self) -> float:
        """The best value of the measure so far."""
        return self._sign * self._best

    @property
    def best_epoch(self) -> int:
        """The epoch that it was reached in, from 0; -1 before the first has ended."""
        return self._best_epoch

    def before_training(self, run: Run) -> None:
        self._best, self._best_epoch, self._learned = -math.inf, -1, {}
        if self.by == "accuracy" and not (run.session.has_accuracy or self.by in run.measures):
            raise TrainingError(
                "EarlyStopping by 'accuracy': the net has no accuracy layer",
                location=user_location(),
                way_out='AccuracyLayer(net, scores, labels), or by="loss", or by the name of a metric',
            )
        if self.by != "loss" and not run.measures:
            raise TrainingError(
                f"EarlyStopping by {self.by!r} needs validation data",
                location=user_location(),
                way_out="net.fit(…, validation=(images, labels))",
            )
        if self.by not in ("loss", *run.measures):
            raise TrainingError(
                f"EarlyStopping: the validation has no number {self.by!r}",
                location=user_location(),
                way_out=f"{nearest(self.by, run.measures)}it has {', '.join(run.measures)}",
            )
        self._sign = 1.0 if self._is_larger_better(run) else -1.0

    def after_epoch(self, run: Run) -> None:
        value = self._sign * self._measure(run)
        if value > self._best + (self.least_change if self._best_epoch >= 0 else 0):
            self._best, self._best_epoch = value, run.epoch
            self._learned = state_dict(run.session) if self.restore else {}
        elif run.epoch - self._best_epoch >= self.patience:
            run.stop(f"{self.by} has not improved for {self.patience} epochs, since {self.best:.6g}")

    def after_training(self, run: Run) -> None:
        if self._learned:
            load_state_dict(run.session, self._learned)

    def _is_larger_better(self, run: Run) -> bool:
        if self._larger_is_better is not None:
            return bool(self._larger_is_better)
        if self.by == "loss" or any(layer.name == self.by for layer in run.session.graph.losses()):
            return False
        layers = run.session.graph.ensembles
        if self.by == "accuracy" or any(
            layer.name == self.by and isinstance(layer, AccuracyEnsemble) for layer in layers
        ):
            return True
        raise TrainingError(
            f"EarlyStopping by {self.by!r}: is a larger one better, or a smaller one?",
            location=user_location(),
            way_out="larger_is_better=True, or False",
        )

    def _measure(self, run: Run) -> float:
        validation = run.validation
        if validation is None:
            return run.epoch_loss
        found: dict[str, Any] = {**validation.metrics, "loss": validation.loss}
        value: Any = found.get(self.by, validation.accuracy)
        if not is_number(value):
            raise TrainingError(
                f"EarlyStopping needs a number, and {self.by!r} is {value!r}",
                location=user_location(),
                way_out=f"let the metric {self.by!r} return one: float(…)",
            )
        if math.isnan(value):
            raise TrainingError(
                f"EarlyStopping: {self.by!r} is not a number in epoch {run.epoch}",
                location=user_location(),
                way_out=f"see what {self.by!r} computes, or stop by another measure",
            )
        return float(value)


class AfterEpoch(Callback):
    """A function that is called after each epoch."""

    def __init__(self, function: Callable[[Run], Any]):
        self.function = function

    def after_epoch(self, run: Run) -> None:
        self.function(run)


_MOMENTS = ("before_training", "after_step", "after_epoch", "after_training")
"""The methods of a callback."""


def as_callbacks(given: Any) -> list[Callback]:
    """Callbacks and functions, as callbacks.

    Raises:
        TrainingError: something is neither, or has methods that would not be called.
    """
    each = list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in each:
        if isinstance(callback, Callback):
            _check(callback)
        elif isinstance(callback, type) or not (callable(callback) and takes(callback, 1)):
            raise TrainingError(
                f"a callback is a function of the run or an object of latte.training.Callback, not {callback!r}",
                location=user_location(),
                way_out="callbacks=[EarlyStopping(patience=3), lambda run: print(run.epoch, run.epoch_loss)]",
            )
    return [callback if isinstance(callback, Callback) else AfterEpoch(callback) for callback in each]


def _check(callback: Callback) -> None:
    kind = type(callback)
    for name in _MOMENTS:
        if not (callable(method := getattr(callback, name)) and takes(method, 1)):
            raise TrainingError(
                f"{kind.__name__}.{name} does not take the run",
                location=user_location(),
                way_out=f"def {name}(self, run)",
            )
        if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
            raise TrainingError(
                f"{kind.__name__}.{name} would not run when it is called: it yields or awaits",
                location=user_location(),
                way_out=f"def {name}(self, run)",
            )
    own = [each for base in kind.__mro__[: kind.__mro__.index(Callback)] for each in vars(base).items()]
    methods = [(name, method) for name, method in own if isinstance(method, FunctionType)]
    called = {name for _, method in methods for name in method.__code__.co_names}
    for name, method in methods:
        if name not in _MOMENTS and name not in called and _seems_meant(name):
            alike = [moment for moment in _MOMENTS if not name.startswith("before_") or moment.startswith("before_")]
            raise TrainingError(
                f"fit never calls {kind.__name__}.{name}",
                location=location_of(method.__code__),
                way_out=f"{nearest(name, alike)}fit calls {', '.join(_MOMENTS)}",
            )


def _seems_meant(name: str) -> bool:
    """Whether who defines a method of this name expects ``fit`` to call it."""
    return name.startswith(("on_", "before_", "after_")) or misspelt(name, _MOMENTS) is not None
