"""Loading: batches of a data set made on a thread while the net trains, shuffled and augmented by a seed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from latte.model.checks import check_flags, is_integer, takes
from latte.model.source_location import Located, user_location
from latte.runtime.batches import Batch
from latte.runtime.data import UNREADABLE, as_array
from latte.runtime.group import share_of
from swirl.errors import DataError

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""``transform(images, generator)`` → the images that are trained on; random numbers come from the generator alone."""


class DataLoader:
    """Batches of a data set: ``net.fit(DataLoader(images, labels, batch_size=64, transforms=[Flip()]), …)``.

    The order of an epoch and each batch's random numbers depend on the seed, the epoch and the batch alone, whatever
    the thread does. In ``fit``, the net's seed takes the place of the loader's, and a saved net goes on with them; in
    your own loops, :meth:`state` and :meth:`load_state` do, from any batch.

    Args:
        data: an array (items, …) for each data layer, in the order of their declaration; or one data set with
            ``len(data)`` and ``data[i]``, a tuple of one item's arrays: a list of tuples is one.
        batch_size: items in a batch; the last one of an epoch may be smaller.
        shuffle: whether each epoch has another order.
        transforms: functions of the first array of a batch and a random generator, applied in turn;
            see :mod:`latte.data`.
        seed: of the order and the random numbers, at least 0.
        prefetch: number of batches that are made ahead on a thread; 0: none, and no thread.
        drop_last: whether a smaller last batch is left out.

    Raises:
        DataError: for wrong types or values, or arrays of different lengths.
    """

    def __init__(
        self,
        *data: Any,
        batch_size: int,
        shuffle: bool = True,
        transforms: Sequence[Transform] = (),
        seed: int = 0,
        prefetch: int = 2,
        drop_last: bool = False,
    ):
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("prefetch", prefetch, 0)):
            if not is_integer(value) or value < least:
                raise DataError(
                    f"{name} must be a whole number, at least {least}, not {value!r}", location=user_location()
                )
        check_flags(DataError, shuffle=shuffle, drop_last=drop_last)
        if not isinstance(transforms, (list, tuple)) or not all(callable(t) for t in transforms):
            raise DataError(
                f"transforms must be a list of functions, not {transforms!r}",
                location=user_location(),
                way_out="transforms=[Flip(), Crop(32, pad=4)], or functions of (images, generator)",
            )
        for transform in transforms:
            if not takes(transform, 2):
                raise DataError(
                    f"a transform is a function of images and a random generator, not {transform!r}",
                    location=user_location(),
                    way_out="transforms=[lambda images, random: …]",
                )
        self._data = _checked(data)
        self._length = len(self._data[0] if isinstance(self._data, tuple) else self._data)
        self.batch_size, self.shuffle, self.seed = int(batch_size), shuffle, int(seed)
        self.transforms, self.prefetch, self.drop_last = list(transforms), int(prefetch), drop_last
        if len(self) == 0:
            raise DataError(
                f"{self._length} items make no batch of {batch_size}",
                location=user_location(),
                way_out="a smaller batch_size",
            )
        self._epoch = self._batch = 0

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._length // self.batch_size if self.drop_last else -(-self._length // self.batch_size)

    @property
    def items(self) -> int:
        """Number of items in an epoch."""
        return min(self._length, len(self) * self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        """The batches of the current epoch, from where it is; then the next epoch begins."""
        epoch = self._epoch
        for number, (_, arrays) in enumerate(self._made([self.seed, epoch], self.shuffle, self._batch), self._batch):
            self._epoch, self._batch = (epoch, number + 1) if number + 1 < len(self) else (epoch + 1, 0)
            yield arrays

    # --- going on -------------------------------------------------------------------------------------------
    def state(self) -> dict[str, int]:
        """Where a loop over it is, as JSON has it: after the batch that it has given last."""
        place = {"seed": self.seed, "epoch": self._epoch, "batch": self._batch}
        return {**place, "batch_size": self.batch_size, "items": self._length}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on from a state: the next loop begins with the batch after it.

        Raises:
            DataError: it is not a state of a loader with batches as large, of as many items.
        """
        if (
            not isinstance(state, dict)
            or state.keys() != self.state().keys()
            or not all(map(is_integer, state.values()))
        ):
            raise DataError(f"a loader's state is what state() has returned, not {state!r}", location=user_location())
        own = self.state()
        for name, what in (("batch_size", "batches of {} items"), ("items", "{} items")):
            if state[name] != own[name]:
                raise DataError(
                    f"the state is of a loader of {what.format(state[name])}, and this one has {own[name]}",
                    location=user_location(),
                )
        if min(state.values()) < 0 or state["batch"] >= len(self):
            raise DataError(
                f"the state is at batch {state['batch']}, and an epoch has {len(self)}", location=user_location()
            )
        self.seed, self._epoch, self._batch = (int(state[name]) for name in ("seed", "epoch", "batch"))

    # --- batches --------------------------------------------------------------------------------------------
    def epoch_batches(self, seed: int | None, shuffle: bool) -> Iterator[Batch]:
        """The batches of an epoch with the items' numbers.

        Args:
            seed: of its order and random numbers; the loader's own for None.
            shuffle: whether it may be shuffled.
        """
        return self._made([self.seed if seed is None else seed], shuffle and self.shuffle, 0)

    def share(self, rank: int, size: int) -> DataLoader:
        """The loader of one of ``size`` processes, which makes its items of each batch alone: a batch of all of them
        together has ``size`` times ``batch_size`` items. The order is the same in all; random numbers of transforms are
        each process's own.

        Raises:
            DataError: the items make no such batch.
        """
        return _Share(self, rank, size)

    def _made(self, key: list[int], shuffle: bool, first: int) -> Iterator[Batch]:
        order = np.arange(self._length)
        if shuffle:
            order = np.random.default_rng([*key, 0]).permutation(self._length)
        make = lambda number: self._batch_of(order, key, number)  # noqa: E731
        numbers = range(first, len(self))
        with Located():  # the thread does not know who wants the batches
            yield from _made_ahead(make, numbers, self.prefetch) if self.prefetch else map(make, numbers)

    def _batch_of(self, order: np.ndarray, key: list[int], number: int) -> Batch:
        return self._arrays_of(order[number * self.batch_size : (number + 1) * self.batch_size], [*key, 1, number])

    def _arrays_of(self, chosen: np.ndarray, key: list[int]) -> Batch:
        """The arrays of chosen items, transformed with random numbers of this key."""
        if not len(chosen):
            return chosen, ()
        if isinstance(self._data, tuple):
            arrays = [array[chosen] for array in self._data]
        else:
            items = [self._data[int(index)] for index in chosen]
            arrays = _stacked(items, chosen)
        generator = np.random.default_rng(key)
        for transform in self.transforms:
            given = arrays[0]
            arrays[0] = _read(transform(given, generator), f"{transform!r} has made an array that is not one")
            if arrays[0].ndim == 0:
                raise DataError(f"{transform!r} has made {arrays[0].item()!r} of a batch, not an array (items, …)")
            if len(arrays[0]) != len(given):
                raise DataError(f"{transform!r} has made {len(arrays[0])} items of {len(given)}")
        return chosen, tuple(arrays)


class _Share(DataLoader):
    """What :meth:`DataLoader.share` returns."""

    def __init__(self, whole: DataLoader, rank: int, size: int):
        self.__dict__.update(whole.__dict__)
        self._rank, self._size = rank, size
        if len(self) == 0:
            raise DataError(
                f"{self._length} items make no batch of {self._together}: {size} times {self.batch_size}",
                location=user_location(),
                way_out="a smaller batch_size, or drop_last=False",
            )

    @property
    def _together(self) -> int:
        """Items in a batch of all processes."""
        return self.batch_size * self._size

    def __len__(self) -> int:
        return self._length // self._together if self.drop_last else -(-self._length // self._together)

    @property
    def items(self) -> int:
        return min(self._length, len(self) * self._together)

    def _batch_of(self, order: np.ndarray, key: list[int], number: int) -> Batch:
        batch = order[number * self._together : (number + 1) * self._together]
        own = batch[share_of(len(batch), self._rank, self._size)]
        return self._arrays_of(own, [*key, 1, number, self._rank])


def _stacked(items: Sequence[Any], numbers: np.ndarray) -> list[np.ndarray]:
    """The arrays of a batch, from the items of a data set.

    Args:
        items: of a batch: tuples, or single arrays.
        numbers: of them in their data set.

    Raises:
        DataError: they have different shapes.
    """
    rows = [
        [_read(part, f"item {number} of a data set") for part in (item if isinstance(item, tuple) else (item,))]
        for number, item in zip(numbers, items, strict=True)
    ]
    shapes = [[part.shape for part in row] for row in rows]
    for number, found in zip(numbers, shapes, strict=True):
        if found != shapes[0]:
            first, other = (", ".join(map(str, each)) for each in (shapes[0], found))
            raise DataError(
                f"the items of a data set have arrays of the same shapes: item {numbers[0]} has {first},"
                f" item {number} has {other}",
                way_out="cut or pad them in data[i]",
            )
    return [np.stack(parts) for parts in zip(*rows, strict=True)]


def _read(values: Any, what: str) -> np.ndarray:
    """An array; DataError where it is not one."""
    try:
        return as_array(values)
    except UNREADABLE as error:
        raise DataError(f"{what}: {error}") from error


def _checked(data: Sequence[Any]) -> Any:
    """A tuple of arrays of one length; or the one data set, which may be a list of tuples."""
    if not data:
        raise DataError(
            "a loader needs data", location=user_location(), way_out="DataLoader(images, labels, batch_size=64)"
        )
    (first, *others) = data
    if not others and isinstance(first, list) and first and all(isinstance(item, tuple) for item in first):
        return first
    if not others and not isinstance(first, (np.ndarray, list, tuple)):
        if hasattr(first, "__len__") and hasattr(first, "__getitem__") and not isinstance(first, (str, bytes, dict)):
            return first
        raise DataError(
            f"a loader needs arrays, or a data set with len(data) and data[i], not {first!r}", location=user_location()
        )
    try:
        arrays = [each if type(each) in (np.ndarray, np.memmap) else as_array(each) for each in data]
    except UNREADABLE as error:
        raise DataError(f"a loader needs arrays: {error}", location=user_location()) from error
    if any(array.ndim == 0 for array in arrays):
        raise DataError("a loader needs arrays (items, …)", location=user_location())
    counts = [len(array) for array in arrays]
    if len(set(counts)) > 1:
        raise DataError(f"the arrays have different numbers of items: {counts}", location=user_location())
    return tuple(arrays)


def _made_ahead(make: Callable[[int], Batch], numbers: Sequence[int], count: int) -> Iterator[Batch]:
    """``make(number)`` of all numbers, up to ``count`` made ahead on a thread, which ends with the iteration."""
    made: queue.Queue[tuple[Batch | None, BaseException | None]] = queue.Queue(count)
    ended = threading.Event()

    def put(item: tuple[Batch | None, BaseException | None]) -> None:
        while not ended.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        for number in numbers:
            if ended.is_set():
                return
            try:
                item = make(number)
            except BaseException as error:  # raised where the batch is wanted
                put((None, error))
                return
            put((item, None))

    thread = threading.Thread(target=work, name="latte loader", daemon=True)
    thread.start()
    try:
        for _ in numbers:
            batch, error = made.get()
            if error is not None:
                raise error
            assert batch is not None
            yield batch
    finally:
        ended.set()
        thread.join()
