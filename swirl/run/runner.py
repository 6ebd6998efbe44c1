"""Running a phase: one call into C++ that walks all its kernels, on as many threads as have something to do."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Any

import numpy as np

from swirl.build.jit import Kernel, build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.config import settings, short_waits, user_places_threads
from swirl.errors import DataError, LatteError, TargetError
from swirl.run.pauses import pause_seconds
from swirl.target.machine import why_hidden
from swirl.target.targets import get_target

REGION = 10
"""Kernels that are worth sharing are worth waking the threads for, from so many times the work on that one is."""


class _Step(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("buffers", ctypes.c_void_p))


class _Place(ctypes.Structure):
    _fields_ = (("entry", ctypes.c_void_p), ("base", ctypes.c_long), ("offset", ctypes.c_long))


class _Section(ctypes.Structure):
    _fields_ = (("count", ctypes.c_long), ("shared", ctypes.c_long))


class _Phase(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("sections", ctypes.c_void_p),
        ("count", ctypes.c_long),
        ("usual", ctypes.c_double),
    )


class _Seen(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("regions", "shared", "moves", "alone"))


@dataclass(frozen=True)
class Brought:
    """Memory of a kernel that comes with each run of its phase.

    Args:
        base: number of the address that it counts from.
        offset: in bytes.
    """

    base: int
    offset: int = 0


@dataclass(frozen=True)
class Seen:
    """What the threads of a runner have met so far.

    Args:
        regions: parallel regions that were run.
        shared: of these, in which two threads were on one core.
        moves: of threads to a core of their own.
        alone: phases that were run on one thread, as the machine was busy with something else.
    """

    regions: int
    shared: int
    moves: int
    alone: int


class Runner:
    """The precompiled function that runs phases, and the threads that it runs them with.

    Args:
        threads: OpenMP threads; by default those of the settings.

    Raises:
        CompilerMissing, CompilerFailed, LatteError: as :func:`swirl.build.jit.build`.
    """

    def __init__(self, threads: int | None = None):
        chosen = settings()
        self.lock = threading.Lock()
        """For callers in several threads: its team is for one at a time."""
        self.threads = threads if threads is not None else chosen.threads
        self.shared_from = chosen.shared_from
        source = (resources.files("swirl") / "codegen" / "templates" / "runner.cpp").read_text(encoding="utf-8")
        # The portable target: one runner for the kernels of all targets.
        (built,) = build([TranslationUnit("swirl_run", source)], get_target("portable"))
        with short_waits(pause_seconds):
            self._library = load(built).library
        for name, result, *arguments in _FUNCTIONS:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._team = self._library.swirl_team(self.threads, not user_places_threads())
        if self._team is None:
            raise LatteError(f"no memory for {self.threads} threads")
        weakref.finalize(self, self._library.swirl_team_ends, self._team).atexit = False  # the process ends, too
        self._run = self._library.swirl_run

    def phase(self, steps: Sequence[tuple[Kernel, Sequence[np.ndarray | Brought]]]) -> Phase:
        """Prepare the kernels with their arrays, to be run in order.

        Args:
            steps: each a kernel and its pointer table. The memory of each array is fixed from here on; the rest comes
                with each run.

        Raises:
            DataError: an array is not in C order, so a pointer to its first element is not enough.
        """
        return Phase(self, steps)

    def touch(self, address: int, size: int) -> None:
        """Make the pages of fresh, zeroed memory exist, in parallel.

        Args:
            address: of its first byte.
            size: in bytes.
        """
        self._library.swirl_touch(address, size, self.threads)

    @property
    def seen(self) -> Seen:
        """What has happened since it was made."""
        found = _Seen()
        self._library.swirl_seen(self._team, ctypes.byref(found))
        return Seen(found.regions, found.shared, found.moves, found.alone)


_FUNCTIONS: tuple[tuple[Any, ...], ...] = (
    ("swirl_team", ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    ("swirl_team_ends", None, ctypes.c_void_p),
    ("swirl_run", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    ("swirl_run_at", None, *[ctypes.c_void_p] * 3, ctypes.c_long, ctypes.c_void_p),
    ("swirl_seen", None, ctypes.c_void_p, ctypes.c_void_p),
    ("swirl_delayed", None, ctypes.c_void_p, ctypes.c_double, ctypes.c_double, ctypes.c_double),
    ("swirl_holds", ctypes.c_int, ctypes.c_void_p, ctypes.c_double),
    ("swirl_touch", None, ctypes.c_void_p, ctypes.c_long, ctypes.c_int),
)
"""Name, result and arguments."""


@dataclass(frozen=True)
class Section:
    """Steps one after the other that all threads run together, or one thread alone.

    Args:
        count: of steps.
        shared: whether all threads run them.
    """

    count: int
    shared: bool


def sections(works: Sequence[int | None], shared_from: int) -> list[Section]:
    """How a phase is cut: kernels that do little are run by one thread, without a barrier after each.

    Args:
        works: instructions of each kernel that threads can share; None where that is not known: all threads run it.
        shared_from: instructions from which on a kernel is shared, if it and its neighbours do :data:`REGION` times as
            many.
    """
    found: list[Section] = []
    little = [work is not None and work < shared_from for work in works]
    for alone, group in groupby(zip(little, works, strict=True), key=lambda each: each[0]):
        members = [work for _, work in group]
        known = [work for work in members if work is not None]
        shared = not alone and (len(known) < len(members) or sum(known) >= REGION * shared_from)
        count = len(members)
        if found and found[-1].shared == shared:
            count += found.pop().count
        found.append(Section(count, shared))
    return found


class Phase:
    """Kernels with their arrays, ready to run; keeps both alive. Made by :meth:`Runner.phase`."""

    def __init__(self, runner: Runner, steps: Sequence[tuple[Kernel, Sequence[np.ndarray | Brought]]]):
        for kernel, arrays in steps:
            for position, array in enumerate(arrays):
                if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
                    raise DataError(f"{kernel.name}: array {position} of its table is not in C order")
        self._runner = runner
        self._kept = tuple((kernel, tuple(arrays)) for kernel, arrays in steps)
        self._tables = [
            (ctypes.c_void_p * len(arrays))(*(None if isinstance(a, Brought) else a.ctypes.data for a in arrays))
            for _, arrays in self._kept
        ]
        places = [
            _Place(ctypes.addressof(table) + position * ctypes.sizeof(ctypes.c_void_p), memory.base, memory.offset)
            for (_, arrays), table in zip(self._kept, self._tables, strict=True)
            for position, memory in enumerate(arrays)
            if isinstance(memory, Brought)
        ]
        self._places = (_Place * len(places))(*places)
        self._steps = (_Step * len(self._kept))(
            *(
                _Step(kernel.address, ctypes.addressof(table))
                for (kernel, _), table in zip(self._kept, self._tables, strict=True)
            )
        )
        self.sections = sections([kernel.work for kernel, _ in self._kept], runner.shared_from)
        self._sections = (_Section * len(self.sections))(*(_Section(each.count, each.shared) for each in self.sections))
        targets = {kernel.target for kernel, _ in self._kept}
        self._hidden = next(filter(None, (why_hidden(get_target(name)) for name in sorted(targets))), None)
        self._phase = _Phase(ctypes.addressof(self._steps), ctypes.addressof(self._sections), len(self.sections), 0.0)
        self._arguments = (runner._team, ctypes.c_void_p(ctypes.addressof(self._phase)))

    def run(self) -> None:
        """Run all kernels once.

        Raises:
            TargetError: SWIRL_HIDE hid the instructions of one when the phase was prepared.
        """
        self._check()
        self._runner._run(*self._arguments, None)

    def run_at(self, bases: Sequence[int]) -> None:
        """Run all kernels once with memory that is brought. One caller at a time: the pointer tables are the phase's.

        Args:
            bases: addresses, by the numbers that :class:`Brought` has.

        Raises:
            TargetError: as :meth:`run`.
        """
        self._check()
        team, phase = self._arguments
        given = (ctypes.c_void_p * len(bases))(*bases)
        self._runner._library.swirl_run_at(team, phase, self._places, len(self._places), given)

    def run_timed(self) -> list[float]:
        """Run all kernels once; the seconds that each took, on the threads together.

        Raises:
            TargetError: as :meth:`run`.
        """
        self._check()
        seconds = (ctypes.c_double * len(self._kept))()
        self._runner._run(*self._arguments, seconds)
        return list(seconds)

    def _check(self) -> None:
        if self._hidden is not None:
            raise TargetError(f"these kernels cannot run: {self._hidden}")
