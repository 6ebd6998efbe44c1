"""What processes that share batches do together in a step of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import numpy as np

from latte.model.ensemble_kinds import BatchSumEnsemble, is_loss
from latte.model.source_location import user_location
from latte.runtime.callbacks import History
from latte.runtime.evaluation import Mean, measuring
from latte.runtime.executable import Executable
from latte.runtime.group import Group
from latte.runtime.reduction import Reduction
from latte.runtime.session import Session
from swirl.errors import TrainingError


@dataclass(frozen=True)
class Measured:
    """What all processes have found of a batch.

    Args:
        parts: of each loss of the net: its sum over the batch, and how much counts; see
            :meth:`latte.runtime.evaluation.Mean.of_batch`.
        shares: by a loss's name, the part of its mean that this process has computed.
        items: of the batch.
        own: those of this process.
    """

    parts: Sequence[tuple[float, float]]
    shares: dict[str, float]
    items: int
    own: int


class SharedBatches:
    """Steps on batches of which each process of a group computes a share. By one process alone, nothing is shared.

    The loss of a batch is the mean over the items of all, or over what counts of them: the gradient of each process
    begins with its share of this mean, so that the sum over processes is the gradient of the whole.

    Args:
        group: the processes.
        session: of the net, in this one.
    """

    def __init__(self, group: Group, session: Session):
        self._group, self._session = group, session
        self._reduction = Reduction(group, session)
        # Some of its calls are between the parts of backward, some buckets of gradients are, too: in any order.
        sums = any(isinstance(each, BatchSumEnsemble) for each in session.graph.ensembles)
        self._of_sums = group.apart("meeting the other processes") if sums else group

    def forward(self, items: int, what: str) -> None:
        """The forward phase of this process's items, if it has any.

        Args:
            items: of this process.
            what: is going on.
        """
        session = self._session
        if self._group.size == 1:
            session.forward()
        elif items:
            session.forward(partial(self._add_up, what))
        else:
            session.settle()
            self._add_nothing("forward", what)

    def _add_up(self, what: str, executable: Executable, storage: str) -> None:
        """Let sums over items be those over the items of all processes."""
        layout, memory = executable.buffers[storage].layout, executable.arrays[storage]
        shape = executable.buffers[storage].shape
        found = self._of_sums.sum(layout.unpack(memory, shape).reshape(-1), what)
        memory[...] = layout.pack(found.reshape(shape).astype(memory.dtype))

    def _add_nothing(self, phase: str, what: str) -> None:
        """Take part in such sums without items."""
        executable = self._session.executable
        for _, storage in executable.batch_sums(phase):
            self._of_sums.sum(np.zeros(executable.buffers[storage].shape).reshape(-1), what)

    def measure(self, means: Sequence[Mean], items: int, what: str) -> Measured:
        """Losses and accuracy of the batch that has run, over all processes: the session says them from now on.

        Args:
            means: of the losses of the net.
            items: of this process.
            what: is going on.

        Raises:
            TrainingError: the processes have gone apart.
        """
        session = self._session
        if self._group.size == 1:
            return Measured([mean.of_batch(session, items) for mean in means], {}, items, items)
        all_means = {layer.name: Mean(layer) for layer in measuring(session.graph)}
        own = {name: mean.of_batch(session, items) if items else (0.0, 0.0) for name, mean in all_means.items()}
        mark = self._mark(what)
        sent = np.array([*(number for part in own.values() for number in part), items, mark, mark * mark])
        *numbers, total, marks, squares = self._group.sum(sent, what).tolist()
        if (marks, squares) != (mark * self._group.size, mark * mark * self._group.size):
            raise TrainingError(
                f"rank {self._group.rank} of {self._group.size}, {what}: the processes have gone apart: they do not "
                "train the same parameters in the same step",
                location=user_location(),
                way_out="callbacks do the same in all processes; run.rank says which one it is",
            )
        found = dict(zip(own, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
        shares = {name: (own[name][1] or 1) / (weight or 1) for name, (_, weight) in found.items()}
        values = {name: part[0] / (part[1] or 1) for name, part in found.items()}
        losses = [mean.layer for mean in all_means.values() if is_loss(mean.layer)]
        session.loss = sum(loss.loss_weight * values[loss.name] for loss in losses)
        accuracies = [name for name, mean in all_means.items() if not is_loss(mean.layer)]
        session.accuracy = values[accuracies[-1]] if accuracies else 0.0
        return Measured([found[mean.layer.name] for mean in means], shares, round(total), items)

    def _mark(self, what: str) -> float:
        """A whole number of 20 bits, equal where processes train the same parameters in the same step: its square is
        exact."""
        return float(crc32(f"{what} {sorted(self._reduction.names())}".encode()) >> 12)

    def backward(self, found: Measured, last: bool, what: str) -> None:
        """The gradients of this process's items; those of all if this is the ``last`` batch of a step."""
        session, alone = self._session, self._group.size == 1
        if alone:
            session.backward()
        elif found.own:
            self._reduction.backward(found.shares, last, partial(self._add_up, what), what)
        else:
            session.skip()
            self._add_nothing("backward", what)
            if last:
                self._reduction.reduce(what)

    def reduce(self, what: str) -> None:
        """The gradients of all processes, for a step that was not known to come."""
        if self._group.size > 1:
            self._reduction.reduce(what)

    def stop_together(self, history: History, where: str) -> None:
        """Let all processes stop where a callback has stopped one of them."""
        if self._group.size == 1:
            return
        what = f"{where}, asking whether to go on"
        if self._group.sum(np.array([history.stopped is not None]), what)[0]:
            of_all = self._group.gather(history.stopped, what)
            history.stopped = next(reason for reason in of_all if reason is not None)
