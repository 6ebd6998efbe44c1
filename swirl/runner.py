"""Running a phase: one call into C++ that walks all its kernels inside one OpenMP parallel region."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import resources

import numpy as np

from swirl.config import settings, short_waits
from swirl.errors import DataError, TargetError
from swirl.jit import Kernel, build, load
from swirl.target import get_target, why_hidden
from swirl.translation_unit import TranslationUnit


class _Step(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("buffers", ctypes.c_void_p))


class Runner:
    """The precompiled function that runs phases.

    Args:
        threads: OpenMP threads; by default those of the settings.

    Raises:
        CompilerMissing, CompilerFailed, LatteError: as :func:`swirl.jit.build`.
    """

    def __init__(self, threads: int | None = None):
        self.threads = threads if threads is not None else settings().threads
        source = (resources.files("swirl") / "codegen" / "templates" / "runner.cpp").read_text(encoding="utf-8")
        # The portable target: one runner for the kernels of all targets.
        (built,) = build([TranslationUnit("swirl_run", source)], get_target("portable"))
        with short_waits():
            library = load(built).library
        self._run = library.swirl_run
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_void_p)
        self._run.restype = None
        self._touch = library.swirl_touch
        self._touch.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
        self._touch.restype = None

    def phase(self, steps: Sequence[tuple[Kernel, Sequence[np.ndarray]]]) -> Phase:
        """Prepare the kernels with their arrays, to be run in order.

        Args:
            steps: each a kernel and the arrays of its pointer table. The memory of each array is fixed from
                here on.

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
        self._touch(address, size, self.threads)


class Phase:
    """Kernels with their arrays, ready to run; keeps both alive. Made by :meth:`Runner.phase`."""

    def __init__(self, runner: Runner, steps: Sequence[tuple[Kernel, Sequence[np.ndarray]]]):
        for kernel, arrays in steps:
            for position, array in enumerate(arrays):
                if not array.flags.c_contiguous:
                    raise DataError(f"{kernel.name}: array {position} of its table is not in C order")
        self._runner = runner
        self._kept = tuple((kernel, tuple(arrays)) for kernel, arrays in steps)
        self._tables = [
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)) for _, arrays in self._kept
        ]
        self._steps = (_Step * len(self._kept))(
            *(
                _Step(kernel.address, ctypes.addressof(table))
                for (kernel, _), table in zip(self._kept, self._tables, strict=True)
            )
        )
        targets = {kernel.target for kernel, _ in self._kept}
        self._hidden = next(filter(None, (why_hidden(get_target(name)) for name in sorted(targets))), None)
        self._arguments = (ctypes.c_void_p(ctypes.addressof(self._steps)), len(self._kept), runner.threads)

    def run(self) -> None:
        """Run all kernels once.

        Raises:
            TargetError: SWIRL_HIDE hid the instructions of one when the phase was prepared.
        """
        self._check()
        self._runner._run(*self._arguments, None)

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
