"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from latte.model.checks import check_flags, is_integer, takes
from latte.model.frozen import parameters_of
from latte.model.source_location import user_location
from latte.runtime.alike import begin_alike, check_alike, describe, keep_alike
from latte.runtime.batches import Batch, Batches
from latte.runtime.callbacks import Callback, History, Run, as_callbacks
from latte.runtime.evaluation import Mean, Metric, check_metrics, evaluate, measured, whole_batches_after
from latte.runtime.group import Group, group_of
from latte.runtime.locking import one_at_a_time
from latte.runtime.not_finite import where_not_finite
from latte.runtime.session import Session
from latte.runtime.sharing import SharedBatches
from swirl.build.jit import progress_console
from swirl.errors import DataError, TrainingError, about


@one_at_a_time
def fit(
    session: Session,
    *data: Any,
    solver: Any,
    epochs: int = 1,
    shuffle: bool = True,
    validation: Any = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Any = (),
    accumulate: int = 1,
    stop_on_nan: bool = True,
    progress: bool = True,
    after_epoch: Callable[[int, History], None] | None = None,
    distributed: bool | Group = False,
) -> History:
    """Train a net on a data set. The last, smaller batch of an epoch is trained on as such.

    Args:
        session: of a compiled net with a loss.
        data: an array (items, …) for each data layer, in the order of their declaration; or one loader of batches.
            Class numbers may be (items,) or (items, 1).
        solver: its ``step()`` changes the parameters.
        epochs: how often to go through the data.
        shuffle: whether each epoch has another order; a sequence of orders that the net's seed fixes and the next call
            of ``fit`` continues. A loader makes its order and its random numbers from the same sequence.
        validation: arrays as ``data``, in a tuple, or a loader: evaluated after each epoch.
        metrics: of the validation; see :func:`latte.runtime.evaluation.evaluate`.
        callbacks: objects of :class:`latte.training.Callback`, and functions, called with the
            :class:`latte.training.Run` after each epoch.
        accumulate: number of batches whose mean gradient makes one step of the solver; what is left at the end of an
            epoch makes a step, too.
        stop_on_nan: raise an error when data are NaN or infinite (arrays are checked before the first step, the
            batches of a loader before they are trained on), and when the loss is NaN; otherwise training goes on (a
            warning is given once).
        progress: whether to show a progress bar, on stderr.
        after_epoch: called with the epoch's number (from 0) and the history so far.
        distributed: whether the processes that torchrun has started train the net together, or a group of them, from
            ``latte.distributed.join()``: each makes this call, on the same data. See docs/distributed.md.

    Raises:
        DataError: the data do not fit, or hold NaN or infinity. For arrays, the net is as it was then.
        TrainingError: NaN in the loss, or no loss; all parameters are frozen; a solver or a callback that is none;
            metrics without validation; another process has ended, does not answer, or trains something else.
    """
    group = group_of(distributed)
    with group.together("net.fit"):
        batches = Batches(session, data, finite=stop_on_nan, trains=True, group=group)
        _check_training(session, solver, epochs, accumulate)
        check_flags(TrainingError, shuffle=shuffle, stop_on_nan=stop_on_nan, progress=progress)
        told, asked = as_callbacks(callbacks), check_metrics(session.graph, metrics)
        if asked and validation is None:
            raise TrainingError(
                f"metrics ({', '.join(asked)}) are of the validation, and there are no validation data",
                location=user_location(),
                way_out="net.fit(…, validation=(images, labels), metrics=…)",
            )
        held = tuple(validation) if isinstance(validation, (tuple, list)) else (validation,)
        checked = None if validation is None else _validation(session, held, stop_on_nan, group)
        _check_after_epoch(after_epoch)
        asked_for = {"the solver": type(solver).__name__, "epochs": epochs, "accumulate": accumulate}
        asked_for |= {"shuffle": shuffle, "metrics": [*asked]}
        _begin_together(group, session, batches, checked, asked_for)
        begin_alike(group, session, solver)
        names = () if checked is None else measured(session.graph, asked)
        run = Run(session, solver, History(), names, rank=group.rank)
        shared = SharedBatches(group, session)
        with (
            session.no_warning(of_nan=stop_on_nan),
            _progress_bar(shown=progress and group.rank == 0) as bar,
            whole_batches_after(session),
        ):
            _tell(told, "before_training", run)
            task = bar.add_task("training", total=epochs * len(batches), measures="")
            for run.epoch in range(epochs):
                if run.history.stopped is not None:
                    break
                loop = _Epoch(run, told, accumulate, stop_on_nan, batches.finite, shared)
                for number, batch in enumerate(batches.epoch(shuffle)):
                    session.place(batches.first(number))
                    loop.take(batch)
                    measures = f"epoch {run.epoch + 1}/{epochs}  loss {run.batch_loss:.4f}"
                    bar.update(task, advance=1, measures=measures)
                    if run.history.stopped is not None:
                        keep_alike(group, session)
                        break
                else:
                    loop.end()
                    keep_alike(group, session)
                    if checked is not None:
                        with about("validation"):
                            found = evaluate(session, *held, metrics=asked, stop_on_nan=stop_on_nan, distributed=group)
                        run.history.validations.append(found)
                    if after_epoch is not None:
                        after_epoch(run.epoch, run.history)
                    _tell(told, "after_epoch", run)
                    shared.stop_together(run.history, f"epoch {run.epoch}")
            _tell(told, "after_training", run)
            group.sum(np.zeros(1), "waiting for the others at the end")  # what the first one has saved is there
        return run.history


class _Epoch:
    """The batches of one epoch.

    Args:
        run: that they belong to.
        told: the callbacks.
        accumulate: batches in a step.
        stop_on_nan: see :func:`fit`.
        finite: whether each batch is checked for NaN and infinities.
        shared: what processes that share the batches do together.
    """

    def __init__(
        self,
        run: Run,
        told: list[Callback],
        accumulate: int,
        stop_on_nan: bool,
        finite: bool,
        shared: SharedBatches,
    ):
        self.run, self.told, self.accumulate, self.shared = run, told, accumulate, shared
        self.stop_on_nan, self.finite = stop_on_nan, finite
        self.stops = any(type(each).after_step is not Callback.after_step for each in told)
        """Whether training may be stopped after a step."""
        self.waiting = 0  # batches whose gradients have been added up
        self.means = [Mean(loss) for loss in run.session.graph.losses()]

    def take(self, batch: Batch) -> None:
        """Train on a batch."""
        run, session, history = self.run, self.run.session, self.run.history
        numbers, arrays = batch
        start = perf_counter()
        if len(numbers):
            session.set_batch(*arrays, numbers=numbers, finite=self.finite)
        self.shared.forward(len(numbers), f"{self._where()}, adding up sums over items")
        found = self.shared.measure(self.means, len(numbers), f"{self._where()}, adding up losses")
        if self.stop_on_nan and np.isnan(session.loss):
            origin = where_not_finite(session.graph, session.executable) if len(numbers) else ""
            raise TrainingError(
                f"the loss is NaN in epoch {run.epoch}, step {len(history.losses)}{origin and f': {origin}'}",
                location=user_location(),
                way_out="a smaller learning rate may help; stop_on_nan=False goes on",
            )
        if self.waiting == 0:
            session.clear_grad()
        self.waiting += 1
        stepped = self.waiting == self.accumulate
        self.shared.backward(found, last=stepped, what=f"{self._where()}, adding up gradients")
        for mean, part in zip(self.means, found.parts, strict=True):
            mean.count(*part)
        run.batch_loss, run.epoch_loss = session.loss, sum(mean.layer.loss_weight * mean.result for mean in self.means)
        history.losses.append(session.loss)
        if session.has_accuracy:
            history.accuracies.append(session.accuracy)
        history.items += found.items
        if stepped:
            self.step()
        history.seconds += perf_counter() - start
        if stepped:
            self.after_step()

    def end(self) -> None:
        """A step for the batches that are left."""
        if self.waiting:
            self.shared.reduce(f"{self._where()}, adding up gradients")
            self.step()
            self.after_step()

    def step(self) -> None:
        """The solver's."""
        if self.waiting == 1:
            self.run.solver.step()
        else:
            self.run.solver.step(batches=self.waiting)
        self.waiting = 0

    def after_step(self) -> None:
        """Tell the callbacks."""
        _tell(self.told, "after_step", self.run)
        if self.stops:
            self.shared.stop_together(self.run.history, self._where())
        self.run.step += 1

    def _where(self) -> str:
        return f"epoch {self.run.epoch}, step {self.run.step}"


def _tell(callbacks: list[Callback], what: str, run: Run) -> None:
    for callback in callbacks:
        getattr(callback, what)(run)


def _begin_together(
    group: Group, session: Session, batches: Batches, held_out: Batches | None, asked_for: Mapping[str, Any]
) -> None:
    """Check data and what else the processes must have in common, and compile for the sizes of the batches.

    Args:
        group: the processes.
        session: of the net.
        batches: to train on.
        held_out: the validation, if there is one.
        asked_for: arguments of :func:`fit`, by name.

    Raises:
        DataError: NaN or infinity in the data.
        TrainingError: the processes differ.
    """
    if group.size > 1:
        own = describe(session) | batches.describe() | {what: str(value) for what, value in asked_for.items()}
        if held_out is not None:
            own |= {f"of the validation, {what}": text for what, text in held_out.describe().items()}
        check_alike(group, own)
    with group.first_alone("waiting for rank 0 to compile"):
        batches.prepare()
        if held_out is not None:
            with about("validation"):
                held_out.prepare()


def _validation(session: Session, held: tuple[Any, ...], finite: bool, group: Group) -> Batches:
    """The data of ``validation``, checked before training begins."""
    with about("validation"):
        return Batches(session, held, finite=finite, group=group)


def _check_after_epoch(given: Any) -> None:
    if given is not None and not (callable(given) and takes(given, 2)):
        raise TrainingError(
            f"after_epoch is a function of the epoch's number and the history, not {given!r}",
            location=user_location(),
        )


def _check_training(session: Session, solver: Any, epochs: int, accumulate: int) -> None:
    location = user_location()
    if not session.has_loss:
        raise TrainingError(
            "the net has no loss to train by", location=location, way_out="SoftmaxLossLayer(net, scores, labels)"
        )
    parameters = parameters_of(session.graph)
    if parameters and all(name in session.graph.settings.freezing for name in parameters):
        raise TrainingError(
            "nothing trains: all parameters are frozen",
            location=location,
            way_out='net.unfreeze("*"), or the layers that are to be trained',
        )
    if isinstance(solver, type) or not callable(getattr(solver, "step", None)):
        raise TrainingError(
            f"fit needs a solver, not {solver!r}", location=location, way_out="latte.solver.SGD(net, learning_rate)"
        )
    if hasattr(solver, "param_groups"):
        raise TrainingError(
            f"{type(solver).__module__}.{type(solver).__name__} steps PyTorch's parameters, not this net's",
            location=location,
            way_out="latte.solver has SGD, Adam, AdamW and RMSProp",
        )
    if getattr(solver, "session", session) is not session:
        raise TrainingError("the solver trains another net", location=location, way_out="give the one of this net")
    if not is_integer(epochs) or epochs < 0:
        raise DataError(f"the number of epochs must be a whole number, at least 0, not {epochs!r}", location=location)
    if not is_integer(accumulate) or accumulate < 1:
        raise DataError(
            f"accumulate must be a whole number of batches, at least 1, not {accumulate!r}", location=location
        )
    if accumulate > 1 and not takes(solver.step, 0, "batches"):
        raise TrainingError(
            f"accumulate={accumulate}: {type(solver).__name__}.step does not take batches=",
            location=location,
            way_out="def step(self, batches=1): …, with the mean of as many gradients; or accumulate=1",
        )


def _progress_bar(*, shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[measures]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=progress_console(), disable=not shown)
