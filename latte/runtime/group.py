"""The processes that train one net together: what the training loop asks of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np

from latte.model.source_location import user_location
from swirl.errors import TrainingError

JOINED = "latte.distributed"
"""The module whose ``join()`` makes a group of processes. It imports PyTorch, so that it is imported only where
somebody asks for a group."""


@runtime_checkable
class Group(Protocol):
    """Processes that run the same program; each has a rank from 0. All of them make the same calls in the same order.

    ``what`` of each call says in messages what was going on.
    """

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def together(self, what: str) -> AbstractContextManager[None]:
        """Inside, an error of one process is told to the others, which raise one that names it.

        Raises:
            TrainingError: in a process that an error of another one has stopped.
        """

    def first_alone(self, what: str) -> AbstractContextManager[None]:
        """Inside is one process after the other: of those with the same cache of kernels the first, then the others."""

    def apart(self, what: str) -> Group:
        """The same processes once more: calls of the two groups need not be in one order in all processes."""

    def share(self, value: Any, what: str) -> Any:
        """What the first process has given; what the others have given does not count."""

    def gather(self, value: Any, what: str) -> list[Any]:
        """What each process has given, by rank."""

    def broadcast(self, arrays: Sequence[np.ndarray], what: str) -> None:
        """Let arrays, the same in number, shape and type everywhere, be those of the first process."""

    def sum(self, numbers: np.ndarray, what: str) -> np.ndarray:
        """The sum of few numbers, in double precision: the same bits everywhere."""

    def start_sum(self, values: np.ndarray, what: str) -> Callable[[], None]:
        """Begin to add up numbers, float32 or float64, in their place; what is returned waits until they are there: the
        same bits everywhere."""


class Alone:
    """One process by itself."""

    rank, size = 0, 1

    def together(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def first_alone(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def apart(self, what: str) -> Group:
        return self

    def share(self, value: Any, what: str) -> Any:
        return value

    def gather(self, value: Any, what: str) -> list[Any]:
        return [value]

    def broadcast(self, arrays: Sequence[np.ndarray], what: str) -> None:
        pass

    def sum(self, numbers: np.ndarray, what: str) -> np.ndarray:
        return numbers

    def start_sum(self, values: np.ndarray, what: str) -> Callable[[], None]:
        return _nothing


def _nothing() -> None:
    pass


def group_of(distributed: bool | Group) -> Group:
    """The group that ``distributed=`` of a call asks for.

    Args:
        distributed: a group; True for the processes that torchrun has started; False for this process alone.

    Raises:
        TrainingError: it is something else, PyTorch is missing, or no other processes have been started.
    """
    if distributed is False:
        return Alone()
    if distributed is True:
        try:
            joining = importlib.import_module(JOINED)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise TrainingError(
                "distributed=True needs PyTorch, which is not installed",
                location=user_location(),
                way_out="pip install torch",
            ) from error
        group: Group = joining.join()
        return group
    if isinstance(distributed, type) or not isinstance(distributed, Group):
        raise TrainingError(
            f"distributed must be True, False or a group of processes, not {distributed!r}",
            location=user_location(),
            way_out="distributed=True under torchrun, or distributed=latte.distributed.join(timeout=60)",
        )
    return distributed


def share_of(items: int, rank: int, size: int) -> slice:
    """The part of ``items`` items of a batch that a process computes. The first ones have one more where they cannot be
    divided; where there are fewer items than processes, the last ones have none."""
    each, more = divmod(items, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))
