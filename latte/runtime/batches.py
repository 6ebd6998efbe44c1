"""Where the batches of ``fit``, ``evaluate`` and ``predict`` come from: arrays, or a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from latte.model.ensemble_kinds import DataEnsemble
from latte.model.source_location import user_location
from latte.runtime.data import check_data, check_finite
from latte.runtime.group import Alone, Group, share_of
from latte.runtime.session import Session
from swirl.errors import DataError

SAMPLED = 256
"""Items of a data set that are compared between processes."""
Batch = tuple[np.ndarray, tuple[Any, ...]]
"""The items' numbers, and their values: an array for each data layer."""


@runtime_checkable
class Loader(Protocol):
    """Makes batches; see :class:`latte.data.DataLoader`."""

    batch_size: int

    def __len__(self) -> int:
        """Number of batches in an epoch."""

    @property
    def items(self) -> int:
        """Number of items in an epoch."""

    def epoch_batches(self, seed: int | None, shuffle: bool) -> Iterator[Batch]:
        """The batches of an epoch, by a seed (for None, by its own), shuffled if it does so at all."""


@runtime_checkable
class Shared(Protocol):
    """A loader that several processes may share."""

    def share(self, rank: int, size: int) -> Loader:
        """What makes the items of each batch that one of ``size`` processes computes: a batch of all of them together
        has ``size`` times as many items, divided by :func:`latte.runtime.group.share_of`; a part may have none.
        ``items`` counts those of all."""


class Batches:
    """The batches of a data set, or the share that one of several processes has of each.

    Args:
        session: of the net.
        data: arrays for the data layers, or one loader.
        layers: that are given; all data layers by default.
        finite: whether NaN and infinities are refused.
        trains: whether it is trained on them; otherwise they are for inference.
        group: the processes that share each batch: they have as many times the items of one process.

    Attributes:
        items: of the data set.
        size: the most items of a batch in this process.
        finite: whether a batch is still to be checked for them, when a loader has made it.

    Raises:
        DataError: the data do not fit, or there are none.
    """

    def __init__(
        self,
        session: Session,
        data: Sequence[Any],
        layers: Sequence[DataEnsemble] | None = None,
        *,
        finite: bool,
        trains: bool = False,
        group: Group | None = None,
    ):
        self._group = Alone() if group is None else group
        self._session, self.finite, self._trains = session, finite, trains
        self.layers = session.graph.data() if layers is None else list(layers)
        self._loader: Loader | None = None
        self._arrays: dict[str, np.ndarray] = {}
        if len(data) == 1 and isinstance(data[0], Loader) and not isinstance(data[0], type):
            self._loader = self._shared(data[0])
            self.items, self.size = self._loader.items, self._loader.batch_size
            if self.size > session.batch_size:
                raise DataError(
                    f"the loader makes batches of {self.size} items, the net takes {session.batch_size} at most",
                    location=user_location(),
                )
        else:
            _check_no_loader(data)
            self._arrays = check_data(session.graph, data, self.layers)
            self.items, self.size = len(next(iter(self._arrays.values()))), session.batch_size
        if self.items == 0:
            raise DataError("there are no items", location=user_location(), way_out="at least one is needed")

    def _shared(self, loader: Loader) -> Loader:
        if self._group.size == 1:
            return loader
        if not isinstance(loader, Shared):
            raise DataError(
                f"{type(loader).__name__} cannot be shared by {self._group.size} processes",
                location=user_location(),
                way_out="latte.data.DataLoader can; one's own needs share(rank, size): a loader of that share",
            )
        return loader.share(self._group.rank, self._group.size)

    def __len__(self) -> int:
        return -(-self.items // self._together)

    @property
    def _together(self) -> int:
        """Items in a batch of all processes."""
        return self.size * self._group.size

    def first(self, number: int) -> int:
        """The place of this process's first item in a batch of all processes.

        Args:
            number: of the batch in its epoch.
        """
        return self._share(min(self._together, self.items - number * self._together)).start

    def _share(self, items: int) -> slice:
        return share_of(items, self._group.rank, self._group.size)

    def describe(self) -> dict[str, str]:
        """What all processes must have in common; a few items stand for all."""
        if self._loader is not None:
            return {"the data": f"{self.items} items in batches of {self.size} by {type(self._loader).__name__}"}
        chosen = np.unique(np.linspace(0, self.items - 1, SAMPLED).astype(int))
        found = {}
        for name, array in self._arrays.items():
            found[f"the data of {name}"] = f"{len(array)} items of {array.dtype} {array.shape[1:]}"
            bits = crc32(np.ascontiguousarray(array[chosen]).tobytes())
            found[f"the data of {name}, as some items show"] = f"{bits:08x}"
        return found

    def prepare(self) -> None:
        """Check whole arrays, and compile for the sizes of the batches, before anything runs (or is timed).

        Raises:
            DataError: NaN or infinity in an array, if these are refused.
        """
        if self.finite and self._loader is None:
            check_finite(self._arrays)
            self.finite = False
        shares = (self._share(items) for items in (min(self._together, self.items), self.items % self._together))
        for size in {share.stop - share.start for share in shares} - {0, self._session.batch_size}:
            self._session.prepare(size, self._trains)

    def epoch(self, shuffle: bool) -> Iterator[Batch]:
        """The batches of an epoch of training: each is another one, in a sequence that the net's seed fixes."""
        if self._loader is not None:
            return self._loader.epoch_batches(self._session.draw_seed(), shuffle)
        return self._of_arrays(self._session.permutation(self.items) if shuffle else np.arange(self.items))

    def in_order(self) -> Iterator[Batch]:
        """The batches in the order of the items."""
        if self._loader is not None:
            return self._loader.epoch_batches(None, shuffle=False)
        return self._of_arrays(np.arange(self.items))

    def _of_arrays(self, order: np.ndarray) -> Iterator[Batch]:
        for start in range(0, self.items, self._together):
            batch = order[start : start + self._together]
            chosen = batch[self._share(len(batch))]
            yield chosen, tuple(array[chosen] for array in self._arrays.values())


def _check_no_loader(data: Sequence[Any]) -> None:
    """DataError where one of several data is a loader, or the only one is PyTorch's."""
    for given in data:
        if isinstance(given, Loader) and not isinstance(given, type):
            raise DataError(
                "a loader makes the batches of all data layers: it is given alone", location=user_location()
            )
        if hasattr(given, "batch_sampler"):
            raise DataError(
                f"a loader of PyTorch is not taken: {type(given).__module__}.{type(given).__name__}",
                location=user_location(),
                way_out="latte.data.DataLoader(given.dataset, batch_size=…) reads the same data set",
            )
