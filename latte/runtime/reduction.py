"""Gradients of the processes that share a batch, added up while ``backward`` still runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from latte.runtime.executable import Executable
from latte.runtime.group import Group
from latte.runtime.session import AddUp, Session
from swirl.ir.buffers import Buffer

BUCKET_BYTES = 2**23
"""Small gradients are added up together, copied into so many bytes: each call takes some time by itself."""
LARGE_BYTES = 2**20
"""A gradient of so many is added up where it lies: copying it takes longer than a call."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are added up together.

    Args:
        names: of their storage.
        logical: whether they are sent element by element, as they are laid out differently by different processes.
    """

    names: Sequence[str]
    logical: bool


class Reduction:
    """The gradients of a net, added up over processes.

    Buckets are filled in the order in which the first process computes them, and sent in this order by all.

    Args:
        group: the processes.
        session: of the net, in this one.
    """

    def __init__(self, group: Group, session: Session):
        self._group, self._session = group, session
        self._buckets: dict[frozenset[str], Sequence[Bucket]] = {}

    def names(self) -> frozenset[str]:
        """Storage of the gradients of what trains now."""
        return _gradients(self._session.executable)

    def backward(self, shares: Mapping[str, float], last: bool, add_up: AddUp, what: str) -> None:
        """The backward phase; with the ``last`` batch of a step, the gradients of all processes are added up: what one
        is ready with goes to the others while it computes the rest.

        Args:
            shares: see :meth:`latte.runtime.session.Session.backward_in_parts`.
            last: whether a step of the solver follows.
            add_up: see :meth:`latte.runtime.session.Session.forward`.
            what: is going on.
        """
        buckets, executable = self._agreed(what) if last else (), self._session.executable
        ends, sums = _ends(executable, buckets), executable.batch_sums("backward")
        waiting: list[Callable[[], None]] = []
        for end in self._session.backward_in_parts(shares, {*ends, *(place for place, _ in sums)}):
            for storage in (name for place, name in sums if place == end):
                add_up(executable, storage)
            while len(waiting) < len(buckets) and ends[len(waiting)] <= end:
                waiting.append(self._start(buckets[len(waiting)], what))
            if end == len(executable.order["backward"]):  # before views are brought up to date
                for wait in waiting:
                    wait()

    def reduce(self, what: str) -> None:
        """Add up gradients that are there."""
        with self._session.executable.views.in_storage():
            for wait in [self._start(bucket, what) for bucket in self._agreed(what)]:
                wait()

    # --- buckets --------------------------------------------------------------------------------------------
    def _agreed(self, what: str) -> Sequence[Bucket]:
        """The buckets for what trains now, the same in all processes."""
        names = self.names()
        if names not in self._buckets:
            executable = self._session.executable
            laid_out = {n: (executable.buffers[n].layout, executable.buffers[n].physical_shape) for n in names}
            of_all = self._group.gather((_in_order(executable, names), laid_out), what)
            alike = {name for name in names if all(found.get(name) == laid_out[name] for _, found in of_all)}
            ordered = [executable.buffers[name] for name in of_all[0][0]]
            self._buckets[names] = tuple(_filled(ordered, alike))
        return self._buckets[names]

    def _start(self, bucket: Bucket, what: str) -> Callable[[], None]:
        """Begin to add up a bucket; what is returned waits, and sets the gradients."""
        executable = self._session.executable
        arrays = [_values(executable, name, bucket.logical) for name in bucket.names]
        alone = len(arrays) == 1 and not bucket.logical
        flat = arrays[0].reshape(-1) if alone else np.concatenate([array.reshape(-1) for array in arrays])
        finish = self._group.start_sum(flat, what)

        def wait() -> None:
            finish()
            if alone:
                return
            start = 0
            for name, array in zip(bucket.names, arrays, strict=True):
                values = flat[start : start + array.size].reshape(array.shape)
                memory, layout = executable.arrays[name], executable.buffers[name].layout
                memory[...] = layout.pack(values) if bucket.logical else values
                start += array.size

        return wait


def planned(executable: Executable) -> list[tuple[int, int]]:
    """What would be sent where all processes lay gradients out alike, in order: how many kernels of backward have run
    then, and bytes."""
    names = _gradients(executable)
    buckets = tuple(_filled([executable.buffers[name] for name in _in_order(executable, names)], names))
    sizes = (sum(executable.buffers[name].nbytes for name in bucket.names) for bucket in buckets)
    return list(zip(_ends(executable, buckets), sizes, strict=True))


def _gradients(executable: Executable) -> frozenset[str]:
    """Storage of the gradients of parameters."""
    return frozenset(name for name, buffer in executable.buffers.items() if buffer.role == "param_grad")


def _in_order(executable: Executable, names: frozenset[str]) -> list[str]:
    """Gradients in the order in which backward has them."""
    return [name for name, _ in sorted(_ready(executable, names).items(), key=lambda each: (each[1], each[0]))]


def _values(executable: Executable, name: str, logical: bool) -> np.ndarray:
    """A gradient in memory, or its elements in logical order."""
    buffer, memory = executable.buffers[name], executable.arrays[name]
    assert memory.flags.c_contiguous, name
    return buffer.layout.unpack(memory, buffer.shape) if logical else memory


def _ready(executable: Executable, names: frozenset[str]) -> dict[str, int]:
    """How many kernels of backward have run when each gradient is there."""
    last = dict.fromkeys(names, 0)
    for number, step in enumerate(executable.order["backward"], 1):
        last.update(dict.fromkeys(names & step.storage, number))
    return last


def _filled(gradients: Sequence[Buffer], alike: Collection[str]) -> Iterator[Bucket]:
    """Buckets of gradients in this order: a large one by itself, small ones of a few bytes more than
    :data:`BUCKET_BYTES` together; of one type, and of what is laid out alike, or is not."""
    for (_, is_alike), same in groupby(gradients, key=lambda each: (each.dtype, each.name in alike)):
        names: list[str] = []
        held = 0
        for gradient in same:
            if gradient.nbytes >= LARGE_BYTES:
                yield Bucket([gradient.name], not is_alike)
                continue
            if held >= BUCKET_BYTES:
                yield Bucket(names, not is_alike)
                names, held = [], 0
            names.append(gradient.name)
            held += gradient.nbytes
        if names:
            yield Bucket(names, not is_alike)


def _ends(executable: Executable, buckets: Sequence[Bucket]) -> list[int]:
    """How many kernels of backward have run when each bucket can be sent: none before the one ahead of it."""
    ready = _ready(executable, frozenset(name for bucket in buckets for name in bucket.names))
    ends: list[int] = []
    for bucket in buckets:
        ends.append(max([*ends[-1:], *(ready[name] for name in bucket.names)]))
    return ends
