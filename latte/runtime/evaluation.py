"""A data set in the inference phase: losses and measures over it, and what a layer says to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latte.model.checks import check_flags, takes
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import AccuracyEnsemble, DataEnsemble, LossEnsemble, is_loss
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.runtime.alike import check_alike, describe
from latte.runtime.batches import Batches
from latte.runtime.group import Group, group_of
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from swirl.errors import DataError

Metric = Callable[..., Any]
"""``metric(scores, labels)`` → a number, or anything, of a whole data set."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy over ``items`` items, in the inference phase.

    Args:
        loss: the sum of all losses.
        accuracy: of the last accuracy layer; None where there is none.
        items: number of them.
        metrics: those that were asked for; and each loss and accuracy by the name of its layer.
    """

    loss: float
    accuracy: float | None
    items: int
    metrics: Mapping[str, Any] = field(default_factory=dict)


@one_at_a_time
def evaluate(
    session: Session,
    *data: Any,
    metrics: Mapping[str, Metric] | None = None,
    stop_on_nan: bool = True,
    distributed: bool | Group = False,
) -> Evaluation:
    """Loss and accuracy over a data set, the same whatever the batch size: a layer with a field ``counted`` of shape
    ``(1,)`` gives the mean over what counts (of a loss with weights of classes: by weight), others over the items.

    Args:
        session: of a compiled net.
        data: an array for each data layer, in the order of their declaration; or a loader.
        metrics: name → function of the scores of all items and of the arrays that the scores do not depend on (the
            labels): ``{"error": lambda scores, labels: …}``. Scores are what the first loss reads.
        stop_on_nan: whether NaN and infinities in the data are refused: in arrays before anything is computed, in a
            batch of a loader before that is.
        distributed: whether the processes that torchrun has started share the items, or a group of them does: each
            makes this call on the same data, and gets the same numbers.

    Raises:
        DataError: the data do not fit, or hold NaN or infinity.
        TrainingError: another process has ended, does not answer, or evaluates something else.
    """
    check_flags(DataError, stop_on_nan=stop_on_nan)
    group = group_of(distributed)
    with group.together("net.evaluate"):
        metrics = check_metrics(session.graph, metrics)
        batches = Batches(session, data, finite=stop_on_nan, group=group)
        if group.size > 1:
            check_alike(group, describe(session) | batches.describe() | {"metrics": str([*metrics])})
        with group.first_alone("waiting for rank 0 to compile"):
            batches.prepare()
        return _evaluated(session, batches, metrics, group)


def check_metrics(graph: Graph, metrics: Any) -> dict[str, Metric]:
    """Names and functions of the scores and labels of a net.

    Raises:
        DataError: it is something else.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(isinstance(n, str) and callable(m) for n, m in metrics.items()):
        raise DataError(
            f"metrics must be a dictionary of functions by name, not {metrics!r}",
            location=user_location(),
            way_out='metrics={"error": lambda scores, labels: np.mean(scores.argmax(1) != labels[:, 0])}',
        )
    if taken := sorted({*measured(graph, {})} & set(metrics)):
        raise DataError(
            f"a metric cannot be called {taken[0]!r}: the net's own measure has this name",
            location=user_location(),
            way_out="give the metric another name",
        )
    if metrics:
        scored = outputs(graph, None)
        labels = [layer.name for layer in graph.data() if layer not in data_of(graph, scored)]
        for name, metric in metrics.items():
            if not takes(metric, 1 + len(labels)):
                raise DataError(
                    f"the metric {name!r} is called with {1 + len(labels)} arrays: scores of {scored.name}"
                    f"{''.join(f', {label}' for label in labels)}; it takes another number",
                    location=user_location(),
                    way_out=f"a function of ({', '.join(['scores', *labels])})",
                )
    return dict(metrics)


def measuring(graph: Graph) -> list[LossEnsemble]:
    """The losses and accuracies of a net."""
    return [layer for layer in graph.ensembles if isinstance(layer, LossEnsemble)]


def measured(graph: Graph, metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """The names of the numbers that an evaluation with these metrics gives."""
    layers = measuring(graph)
    accuracy = ("accuracy",) if any(isinstance(layer, AccuracyEnsemble) for layer in layers) else ()
    return tuple(dict.fromkeys(("loss", *accuracy, *(layer.name for layer in layers), *metrics)))


def _evaluated(session: Session, batches: Batches, metrics: Mapping[str, Metric], group: Group) -> Evaluation:
    """What :func:`evaluate` says, for batches that are prepared."""
    graph = session.graph
    means = [Mean(layer) for layer in measuring(graph)]
    scored = outputs(graph, None) if metrics else None
    inputs = data_of(graph, scored) if scored is not None else []
    collected: list[list[np.ndarray]] = []  # of each batch: what the processes share, which may be nothing
    with whole_batches_after(session):
        for number, (numbers, arrays) in enumerate(batches.in_order()):
            if not len(numbers):
                collected.append([])
                continue
            session.place(batches.first(number))
            session.set_batch(*arrays, numbers=numbers, finite=batches.finite, trains=False)
            session.test()
            for mean in means:
                mean.add(session, len(numbers))
            if scored is not None:
                given = zip(batches.layers, arrays, strict=True)
                labels = [np.reshape(array, (-1, *layer.shape)) for layer, array in given if layer not in inputs]
                collected.append([session.executable.read(f"{scored.name}.value"), *labels])
    totals = group.sum(np.array([[mean.total, mean.weight] for mean in means]), "adding up what an evaluation finds")
    for mean, (total, weight) in zip(means, totals.tolist(), strict=True):
        mean.total, mean.weight = total, weight
    found: dict[str, Any] = {mean.layer.name: mean.result for mean in means}
    loss = sum((mean.layer.loss_weight * mean.result for mean in means if is_loss(mean.layer)), 0.0)
    accuracy = next((mean.result for mean in reversed(means) if isinstance(mean.layer, AccuracyEnsemble)), None)
    if scored is not None:
        of_all = group.gather(collected, "collecting scores for metrics")
        in_order = [parts for batch in zip(*of_all, strict=True) for parts in batch if parts]
        scores, *others = (np.concatenate(parts) for parts in zip(*in_order, strict=True))
        found |= {name: metric(scores, *others) for name, metric in metrics.items()}
    return Evaluation(loss, accuracy, batches.items, found)


class Mean:
    """What a loss or an accuracy says of a data set.

    Args:
        layer: whose value for a batch is a mean over its items, or over what its field ``counted`` says; where that is
            0, it is the sum: label smoothing has terms of items whose class has no weight.
    """

    def __init__(self, layer: LossEnsemble):
        self.layer = layer
        self.total = self.weight = 0.0
        own = layer.fields().get("counted")
        self.counted = own.storage if own is not None and own.shape == (1,) else None

    def add(self, session: Session, items: int) -> None:
        """Count the batch that has run."""
        total, weight = self.of_batch(session, items)
        self.count(total, weight)

    def count(self, total: float, weight: float) -> None:
        """Count a batch of which :meth:`of_batch` has said this; or the sum of what it has said of its parts."""
        self.total += total
        self.weight += weight

    def of_batch(self, session: Session, items: int) -> tuple[float, float]:
        """The batch that has run: its sum, and how much counts."""
        executable = session.executable
        weight = items if self.counted is None else float(executable.read(self.counted)[0])
        return (weight or 1) * float(executable.arrays[f"{self.layer.name}.value"][0]), weight

    @property
    def result(self) -> float:
        """Their mean; the sum where nothing counts."""
        return self.total / (self.weight or 1)


@one_at_a_time
def predict(session: Session, *data: Any, layer: Ensemble | str | None = None, stop_on_nan: bool = True) -> np.ndarray:
    """What a layer says to every item of a data set, in the inference phase; labels are not needed.

    Args:
        session: of a compiled net.
        data: an array for each data layer that the layer depends on, in the order of their declaration; or a loader of
            such arrays.
        layer: or its name; by default what the first loss reads, or the only layer that no other reads.
        stop_on_nan: whether NaN and infinities in the data are refused: in arrays before anything is computed, in a
            batch of a loader before that is.

    Returns:
        (items, …): the values of the layer.

    Raises:
        DataError: the data do not fit, or hold NaN or infinity; there is no such layer; or its values are fused away.
    """
    check_flags(DataError, stop_on_nan=stop_on_nan)
    chosen = outputs(session.graph, layer)
    if not chosen.batched:
        raise DataError(
            f"{chosen.name} has one value for a whole batch",
            location=user_location(),
            way_out="net.evaluate(…).metrics",
        )
    layers = data_of(session.graph, chosen)
    batches = Batches(session, data, layers, finite=stop_on_nan)
    batches.prepare()
    collected = []
    loss, accuracy = session.loss, session.accuracy
    with whole_batches_after(session):
        for numbers, arrays in batches.in_order():
            session.set_batch(*arrays, numbers=numbers, finite=batches.finite, layers=layers, trains=False)
            session.executable.pin(f"{chosen.name}.value")
            session.infer()
            collected.append(session.executable.read(f"{chosen.name}.value"))
    session.loss, session.accuracy = loss, accuracy  # without labels, those of these batches mean nothing
    return np.concatenate(collected)


@contextmanager
def whole_batches_after(session: Session) -> Iterator[None]:
    """The net takes and shows whole batches again afterwards, whatever the last batch was, and by itself."""
    try:
        yield
    finally:
        session.use(session.batch_size)
        session.place(0)


def outputs(graph: Graph, layer: Ensemble | str | None) -> Ensemble:
    """The layer that predicts.

    Raises:
        DataError: there is no such layer, or several could be meant.
    """
    if layer is not None:
        return graph.find(layer)
    losses = [edge for loss in graph.losses() for edge in loss.connections if not edge.is_label]
    if losses:
        return losses[0].source
    inner = [e for e in graph.ensembles if not isinstance(e, (DataEnsemble, AccuracyEnsemble))]
    tops = [e for e in inner if all(isinstance(edge.sink, AccuracyEnsemble) for edge in graph.readers(e))]
    if len(tops) != 1:
        raise DataError(
            f"which layer predicts is not clear: {', '.join(e.name for e in tops) or 'the net has none'}",
            location=user_location(),
            way_out="net.predict(images, layer=scores)",
        )
    return tops[0]


def data_of(graph: Graph, layer: Ensemble) -> list[DataEnsemble]:
    """The data layers that a layer depends on, in the order of their declaration."""
    needed: set[int] = set()
    ahead: Sequence[Ensemble] = [layer]
    while ahead:
        needed |= {id(e) for e in ahead}
        ahead = [edge.source for e in ahead for edge in e.connections if id(edge.source) not in needed]
    return [e for e in graph.data() if id(e) in needed]
