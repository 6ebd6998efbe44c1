"""A group of processes by ``torch.distributed``, with gloo."""

from __future__ import annotations

import atexit
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from latte.model.checks import is_number
from latte.model.source_location import user_location
from latte.version import VERSION
from swirl.config import settings
from swirl.errors import LatteError, TrainingError

TIMEOUT = 600.0
"""Seconds that a process waits for the others by default: they may have a net to compile."""
GRACE = 5.0
"""Seconds after a failure in which the processes that are alive say so."""
LOOK = 0.05
"""Seconds between two looks at what others have said."""
ENDED, WAITS = "has ended", "waits for others"
"""What a process says that has left by an error of its own, or as others do not answer."""


def join(timeout: float = TIMEOUT, process_group: dist.ProcessGroup | None = None) -> TorchGroup:
    """The processes that ``torchrun`` has started, of which this is one. All of them must call it.

    Args:
        timeout: seconds that a process waits for the others, before it raises an error. Where PyTorch's processes have
            been joined already, each wait has the timeout of theirs.
        process_group: of PyTorch, with gloo; by default all processes: those of ``init_process_group`` if the program
            has called it.

    Returns:
        what ``net.compile`` and ``net.fit`` take as ``distributed=``.

    Raises:
        TrainingError: this process has not been started by ``torchrun``; others do not come; the group has another
            backend; the processes have other versions of Latte.
    """
    if not is_number(timeout) or not timeout > 0:
        raise TrainingError(f"timeout must be a number of seconds, not {timeout!r}", location=user_location())
    if not dist.is_initialized():
        _initialise(float(timeout))
    chosen = dist.group.WORLD if process_group is None else process_group
    if not isinstance(chosen, dist.ProcessGroup) or "gloo" not in dist.get_backend(chosen):
        raise TrainingError(
            "the group of processes must be one of PyTorch with gloo: nets run on the processor",
            location=user_location(),
            way_out='latte.distributed.join(process_group=torch.distributed.new_group(backend="gloo"))',
        )
    group = TorchGroup(chosen, dist.distributed_c10d._get_default_store(), float(timeout))
    group.meet()
    return group


def _initialise(timeout: float) -> None:
    """Let PyTorch know the processes that torchrun has started."""
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except ValueError as error:
        raise TrainingError(
            f"this process has not been started by torchrun: {error}",
            location=user_location(),
            way_out="torchrun --nproc-per-node 2 train.py",
        ) from error
    except RuntimeError as error:
        raise TrainingError(
            f"the process of rank 0 cannot be reached within {timeout:g} s: {_first_line(error)}",
            location=user_location(),
            way_out="torchrun on every machine with the same --rdzv-endpoint, whose port is open",
        ) from error
    try:
        store = _of_this_start(store, rank, size, timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
        atexit.register(_leave)
    except RuntimeError as error:
        raise _not_all(rank, size, timeout, _first_line(error)) from error


def _not_all(rank: int, size: int, timeout: float, why: str) -> TrainingError:
    return TrainingError(
        f"rank {rank} of {size}: not all processes have come within {timeout:g} s: {why}",
        location=user_location(),
        way_out="start torchrun on all machines, and look at what each has printed",
    )


def _leave() -> None:
    """End PyTorch's threads before Python ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _of_this_start(store: dist.Store, rank: int, size: int, timeout: float) -> dist.Store:
    """A part of the store that has only what the processes of this start write. When torchrun starts processes again,
    the store may have the addresses of those before, whose number of starts differs from machine to machine.

    The first process draws a name for the part. Each other one draws a name for itself, and the first one answers it.

    Raises:
        TrainingError: not all of them come.
    """
    meeting, end, name = dist.PrefixStore("latte/meeting", store), monotonic() + timeout, uuid4().hex
    others = set(range(1, size)) if rank == 0 else {0}
    if rank != 0:
        meeting.set(f"asks/{rank}", name)
    while others:
        if monotonic() > end:
            missing = ", ".join(f"rank {other}" for other in sorted(others))
            raise _not_all(rank, size, timeout, f"{missing} missing")
        if rank != 0:
            if meeting.check([f"answer/{name}"]):
                name, others = meeting.get(f"answer/{name}").decode(), set()
                meeting.set(f"here/{name}/{rank}", "")
                continue
        else:
            for other in others:
                if meeting.check([f"asks/{other}"]):  # of a start before, it may be: nobody reads the answer then
                    meeting.set(f"answer/{meeting.get(f'asks/{other}').decode()}", name)
            others = {other for other in others if not meeting.check([f"here/{name}/{other}"])}
        sleep(LOOK)
    return dist.PrefixStore(name, store)


@dataclass(frozen=True)
class _Host:
    """Where a process runs."""

    version: str
    name: str
    cache: str


class TorchGroup:
    """Processes of ``torch.distributed``; made by :func:`join`. See :class:`latte.runtime.group.Group`.

    Where a call fails, as another process has ended or does not answer, each of the others writes so into the store of
    PyTorch's group, with its reason: whoever is missing there is the one that the message names.

    Args:
        group: of PyTorch.
        store: of all processes.
        timeout: seconds that a process waits for others outside of PyTorch's calls.
    """

    def __init__(self, group: dist.ProcessGroup, store: dist.Store, timeout: float):
        self._group, self._timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._first = dist.get_global_rank(group, 0)
        members = ",".join(map(str, dist.get_process_group_ranks(group)))
        number = store.add(f"latte/joined/{members}/{self.rank}", 1)  # the same in all: they join in one order
        self._store = dist.PrefixStore(f"latte/{members}/{number}", store)
        self._turns = 0
        self._leads = [0] * self.size
        """Rank → the first one with the same cache of kernels."""

    def __repr__(self) -> str:
        return f"<TorchGroup rank {self.rank} of {self.size}>"

    def meet(self) -> None:
        """Find out where the others run.

        Raises:
            TrainingError: they have another version of Latte.
        """
        with self.together("latte.distributed.join"):
            host = _Host(VERSION, socket.gethostname(), str(settings().cache_dir.absolute()))
            hosts = self.gather(host, "meeting the other processes")
        others = [
            f"rank {rank} has {each.version}" for rank, each in enumerate(hosts) if each.version != hosts[0].version
        ]
        if others:
            raise TrainingError(
                f"rank {self.rank} of {self.size}: the processes have other versions of Latte: rank 0 has "
                f"{hosts[0].version}, {', '.join(others)}",
                location=user_location(),
                way_out="install the same version on all machines",
            )
        caches = [(each.name, each.cache) for each in hosts]
        self._leads = [caches.index(cache) for cache in caches]

    # --- one after the other --------------------------------------------------------------------------------
    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, ProcessLost):
                self._say(f"{ENDED}: {type(error).__name__}: {_first_line(error)}")
            raise

    @contextmanager
    def first_alone(self, what: str) -> Iterator[None]:
        self._turns += 1
        lead, turn = self._leads[self.rank], f"turn/{self._turns}"
        if lead != self.rank:
            self._wait_for(f"{turn}/{lead}", lead, what)
            yield
            return
        with self.together(what):
            yield
            self._store.set(f"{turn}/{lead}", "done")

    def _wait_for(self, key: str, rank: int, what: str) -> None:
        """Wait until another process has set a key."""
        end = monotonic() + self._timeout
        with self._answering(what):
            while not self._known(key):
                if (said := self._said(rank)) or monotonic() > end:
                    raise self.lost(what, said or f"nothing heard of rank {rank} for {self._timeout:g} s")
                sleep(LOOK)

    def apart(self, what: str) -> TorchGroup:
        made = copy(self)
        with self._answering(what):
            ranks, timeout = dist.get_process_group_ranks(self._group), timedelta(seconds=self._timeout)
            made._group = dist.new_group(ranks, timeout, "gloo", use_local_synchronization=True)
        return made

    # --- what processes give each other ---------------------------------------------------------------------
    def share(self, value: Any, what: str) -> Any:
        given = [value if self.rank == 0 else None]
        with self._answering(what):
            dist.broadcast_object_list(given, src=self._first, group=self._group)
        return given[0]

    def gather(self, value: Any, what: str) -> list[Any]:
        given: list[Any] = [None] * self.size
        with self._answering(what):
            dist.all_gather_object(given, value, group=self._group)
        return given

    def broadcast(self, arrays: Sequence[np.ndarray], what: str) -> None:
        with self._answering(what):
            for array in arrays:
                dist.broadcast(torch.from_numpy(array), src=self._first, group=self._group)

    def sum(self, numbers: np.ndarray, what: str) -> np.ndarray:
        found = np.array(numbers, np.float64)
        with self._answering(what):
            dist.all_reduce(torch.from_numpy(found), group=self._group)
        return found

    def start_sum(self, values: np.ndarray, what: str) -> Callable[[], None]:
        with self._answering(what):
            work = dist.all_reduce(torch.from_numpy(values), group=self._group, async_op=True)

        def wait() -> None:
            with self._answering(what):
                work.wait()

        return wait

    # --- faults ---------------------------------------------------------------------------------------------
    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Errors of PyTorch inside mean that another process is gone, or does not answer."""
        try:
            yield
        except RuntimeError as error:
            raise self.lost(what, _first_line(error)) from error

    def _say(self, text: str) -> None:
        """Tell the others that this process has left, and why; not where nobody is there to hear."""
        try:
            self._store.set(f"said/{self.rank}", text)
        except RuntimeError:
            return

    def _known(self, key: str) -> bool:
        return self._store.check([key])

    def _said(self, rank: int) -> str:
        """What a process has said when it left; nothing if it has not."""
        key = f"said/{rank}"
        return self._store.get(key).decode() if self._known(key) else ""

    def lost(self, what: str, reason: str) -> ProcessLost:
        """The error where others do not answer."""
        self._say(f"{WAITS}, {what}")
        told = self._who_is_missing()
        self._leave()
        return ProcessLost(
            f"rank {self.rank} of {self.size}, {what}: {told} ({reason})",
            location=user_location(),
            way_out="look at what that process has printed last; torchrun --max-restarts 3 starts all of them again, "
            "and net.load goes on from what run.save has written",
        )

    def _who_is_missing(self) -> str:
        """What the others have said until now, or soon after; of those that say nothing, that they do not answer."""
        others, end = [rank for rank in range(self.size) if rank != self.rank], monotonic() + min(GRACE, self._timeout)
        try:
            while not all(map(self._said, others)) and monotonic() < end:
                sleep(LOOK)
            said = {rank: self._said(rank) for rank in others}
        except RuntimeError:
            return "the process that holds what all tell each other has ended: rank 0, or its torchrun"
        failed = [f"rank {rank} {text}" for rank, text in said.items() if text.startswith(ENDED)]
        silent = [f"rank {rank}" for rank, text in said.items() if not text]
        if failed:
            return "; ".join(failed)
        if silent:
            return f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer: ended, or busy for too long"
        return "the connection is lost"

    def _leave(self) -> None:
        """Nothing more is read of the others. The first process waits for them: without torchrun, the store ends with
        it."""
        others, end = range(1, self.size), monotonic() + min(GRACE, self._timeout)
        try:
            self._store.set(f"left/{self.rank}", "")
            while self.rank == 0 and monotonic() < end:
                if all(self._known(f"left/{rank}") or not self._said(rank).startswith(WAITS) for rank in others):
                    return
                sleep(LOOK)
        except RuntimeError:
            return


class ProcessLost(TrainingError):
    """Another process has left, or does not answer."""


def _first_line(error: BaseException) -> str:
    """What an error says, in a line: without the place in PyTorch's sources, and its guesses."""
    text = error.message if isinstance(error, LatteError) else str(error)
    first = (text.strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S+:\d+\] ", "", first).split(". This is typically")[0]
