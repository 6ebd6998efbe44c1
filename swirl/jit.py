"""From C++ text to a function in this process: compile in parallel, keep on disk, load.

Entries of the cache are ``<cache>/<key>/kernel.cpp, kernel.so, command.txt``; the key covers the text, the
compiler's path and version, all flags and the target's name.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from swirl.cache import (
    cache_folder,
    cache_key,
    draft_folder,
    entry_lock,
    move_into_place,
    publish,
    read_entry,
)
from swirl.compiler import IF_CONVERTIBLE, STORES_IN_ONE_PLACE, Compiler, find_compiler
from swirl.config import available_cores
from swirl.errors import CompilerFailed, LatteError
from swirl.precompiled import Headers, headers_of, include_flag, precompile, precompiled_key
from swirl.target import Target

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int, str], None]

# IEEE arithmetic holds: neither flag below changes a value. The first only drops errno (so sqrt is one
# instruction), the second only says that nothing reads the exception flags (so selects need no branches). Never
# -ffast-math. GCC 12 takes the second for leave to make `(float) (int) x` a rounding, which is -0.0 for -0.5
# (tests/regress/test_gcc_numbers_without_fraction.py): kernels that drop fractions are compiled without it.
NO_EXCEPTION_FLAGS = "-fno-trapping-math"
BASE_FLAGS = ("-std=c++17", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", NO_EXCEPTION_FLAGS)
# GCC 12's loop distribution separates two statements that touch `y[3 - i][l]` and `y[i][l + i]`, in the wrong order
# (tests/regress/test_gcc_loop_distribution.py). Recipes have ``distribute`` instead. Its straight-line vectoriser drops
# the rounding of `(double) (float) x` where two neighbours have it (tests/regress/test_gcc_narrowed_doubles.py);
# kernels of one floating-point type keep it.
NO_STRAIGHT_LINE = "-fno-tree-slp-vectorize"
# Its loop vectoriser takes sums of whole numbers in neighbouring places, which are then added up, for one sum, and
# leaves elements out while it adds others twice (tests/regress/test_gcc_sums_of_whole_numbers.py); and it runs updates
# of neighbouring rows, `g[h][x] += s; g[h - 1][x] -= s`, out of order (tests/regress/test_gcc_neighbouring_rows.py).
# Kernels that have neither keep it.
NO_LOOP_VECTORS = "-fno-tree-loop-vectorize"
GCC_FLAGS = ("-fno-tree-loop-distribution", NO_STRAIGHT_LINE, NO_LOOP_VECTORS)
# GCC 12's loop vectoriser, where the processor has masked loads, turns `x > 0 ? g : 0` in a loop of 5 under
# another one into masked loads that all get the first mask (tests/regress/test_gcc_masked_loads.py). It makes
# masked loads out of branches only; our own vector code has no branches and needs no help.
# A kernel in which no load depends on a condition may be if-converted (swirl.compiler.IF_CONVERTIBLE): otherwise its
# selects are branches, 20 times slower in a maximum over unforeseeable data.
# Predictive commoning keeps what neighbouring iterations load in registers, and unrolls for it: a register tile that
# fills the registers then spills in every iteration (weight gradients of a convolution: 24 sums and 3 rows).
NO_IF_CONVERSION = "-fno-tree-loop-if-convert"
GCC_VECTOR_FLAGS = (NO_IF_CONVERSION, "-fno-predictive-commoning")


@dataclass(frozen=True)
class TranslationUnit:
    """One translation unit. It exports ``extern "C" void <name>(void* const* buffers)``.

    Attributes:
        name: the function's name.
        source: the C++ text.
    """

    name: str
    source: str


@dataclass(frozen=True)
class Built:
    """A compiled unit.

    Attributes:
        name: the function's name.
        path: the library; the C++ text and ``command.txt`` are beside it.
        seconds: what compiling took, when it was done.
        cached: whether it was found in the cache.
        command: the compile command, to be run in the library's folder.
        target: whose instructions it has.
    """

    name: str
    path: Path
    seconds: float
    cached: bool
    command: str
    target: str


@dataclass(frozen=True)
class Kernel:
    """A loaded function; the library stays loaded as long as this lives, and after.

    Attributes:
        name: the function's name.
        address: where it is in memory.
        library: the handle of its library.
        target: whose instructions it has.
    """

    name: str
    address: int
    library: ctypes.CDLL
    target: str


def build(
    units: Sequence[TranslationUnit],
    target: Target,
    *,
    contract: bool = True,
    optimize: str = "-O3",
    extra_flags: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Built]:
    """Compile what is not in the cache, as many at once as there are cores; results in the order of `units`.

    Units of equal text are compiled once. The target need not run on this machine.

    Args:
        contract: whether a product and a sum may become one fused multiply-add. Tests that compare bits say
            no.
        optimize: the optimisation flag.
        extra_flags: further compiler flags.
        progress: called as ``progress(done, total, name)`` from this thread: once with ``done`` 0, then after
            each compilation. Not called where everything is in the cache.

    Raises:
        CompilerMissing: there is no compiler.
        CompilerFailed: it refused a unit; the message has its words, the kept source and the command.
        LatteError: the cache folder is not usable.
    """
    compiler = find_compiler()
    contraction = "-ffp-contract=fast" if contract else "-ffp-contract=off"
    around_defects: tuple[str, ...] = ()
    if "clang" not in compiler.version:
        around_defects = (*GCC_FLAGS, *(GCC_VECTOR_FLAGS if target.isa_flags else ()))
    flags = (*BASE_FLAGS, optimize, contraction, *around_defects, *target.isa_flags, *extra_flags)
    keys = [
        cache_key(
            "kernel", unit.source, *compiler.command, compiler.version, *_arguments(unit, flags, target), target.name
        )
        for unit in units
    ]
    found: dict[str, Built] = {}
    missing: dict[str, TranslationUnit] = {}
    for key, unit in zip(keys, units, strict=True):
        if key in found or key in missing:
            continue
        built = _find(key, unit.name, target)
        if built is None:
            missing[key] = unit
        else:
            found[key] = built
    if missing:
        found |= _compile_all(missing, compiler, flags, target, progress)
    return [
        Built(unit.name, built.path, built.seconds, built.cached, built.command, target.name)
        for unit, built in ((unit, found[key]) for key, unit in zip(keys, units, strict=True))
    ]


def load(built: Built) -> Kernel:
    """Load a compiled unit into this process.

    Raises:
        LatteError: the library cannot be loaded, or lacks the function.
    """
    way_out = f"remove {built.path.parent} and compile again"
    try:
        library = ctypes.CDLL(str(built.path))
    except OSError as error:
        raise LatteError(f"{built.path} cannot be loaded: {error}", way_out=way_out) from error
    try:
        function = getattr(library, built.name)
    except AttributeError as error:
        raise LatteError(f"{built.path} has no function {built.name!r}", way_out=way_out) from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, "dlsym found the function"
    return Kernel(built.name, address, library, built.target)


def progress_console() -> Console:
    """Where progress bars are shown: on stderr, so that a program's own output stays clean in a pipe or file."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress_bar(title: str = "compiling kernels") -> Iterator[Progress]:
    """A progress bar for :func:`build`, on stderr; nothing is shown until something is compiled."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[unit]}"),
    )
    bar = RichProgress(*columns, console=progress_console())
    task = bar.add_task(title, total=None, unit="", visible=False)

    def show(done: int, total: int, name: str) -> None:
        if done == 0:
            bar.start()
        bar.update(task, completed=done, total=total, unit="" if done == total else name, visible=True)

    try:
        yield show
    finally:
        if bar.live.is_started:  # or an empty line would be printed where there is no terminal
            bar.stop()


def _find(key: str, name: str, target: Target) -> Built | None:
    facts = read_entry(key)
    if facts is None:
        return None
    path = cache_folder() / key / "kernel.so"
    return Built(name, path, facts["seconds"], cached=True, command=facts["command"], target=target.name)


def _flags_for(unit: TranslationUnit, flags: Sequence[str]) -> tuple[str, ...]:
    """The flags without those against a defect that cannot show in this unit, or with which one shows."""
    without = set()
    notes = list(takewhile(lambda line: line.startswith("//"), unit.source.splitlines()))
    if IF_CONVERTIBLE in notes:
        without.add(NO_IF_CONVERSION)
    if "(double)" not in unit.source or "(float)" not in unit.source:
        without.add(NO_STRAIGHT_LINE)
    if STORES_IN_ONE_PLACE in notes and "wrapped_" not in unit.source:
        without.add(NO_LOOP_VECTORS)
    if "truncated(" in unit.source:
        without.add(NO_EXCEPTION_FLAGS)
    return tuple(flag for flag in flags if flag not in without)


def _arguments(unit: TranslationUnit, flags: Sequence[str], target: Target, *more: str) -> tuple[str, ...]:
    return (*more, *_flags_for(unit, flags), "kernel.cpp", "-o", "kernel.so", *target.link_flags)


def _compile_all(
    missing: dict[str, TranslationUnit],
    compiler: Compiler,
    flags: Sequence[str],
    target: Target,
    progress: Progress | None,
) -> dict[str, Built]:
    found: dict[str, Built] = {}
    precompiled: dict[str, tuple[Headers, tuple[str, ...]]] = {}
    folders: dict[str, str] = {}
    for key, unit in missing.items():
        headers, unit_flags = headers_of(unit.source), _flags_for(unit, flags)
        folder = precompiled_key(headers, compiler, unit_flags)
        if folder is not None:
            precompiled[folder], folders[key] = (headers, unit_flags), folder
    # Threads only wait for the compilers' processes. A process is started by fork and exec at once, which is
    # safe after OpenMP has started threads of its own; a fork that runs on in Python is not.
    with ThreadPoolExecutor(max_workers=min(len(missing) + len(precompiled), available_cores())) as pool:
        # Kernels do not wait for a header that is being made: they find it or read the system's.
        making = [
            pool.submit(precompile, headers, folder, compiler, unit_flags)
            for folder, (headers, unit_flags) in precompiled.items()
        ]
        jobs = {}
        for key, unit in missing.items():
            ways = [_arguments(unit, flags, target)]
            if key in folders:
                ways.insert(0, _arguments(unit, flags, target, include_flag(folders[key])))
            jobs[pool.submit(_compile, key, unit, compiler, target, ways)] = key
        if progress is not None:
            progress(0, len(jobs), "")
        try:
            for job in as_completed(jobs):
                built = job.result()
                found[jobs[job]] = built
                if progress is not None:
                    progress(len(found), len(jobs), built.name)
            for made in making:
                made.result()
        finally:
            # After a failure or an interrupt, what has not started need not start.
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def _compile(
    key: str, unit: TranslationUnit, compiler: Compiler, target: Target, ways: Sequence[Sequence[str]]
) -> Built:
    """Compile a unit by the first of some commands that works (they make the same); the last one's words are told."""
    with entry_lock(key):
        built = _find(key, unit.name, target)
        if built is not None:  # another process made it while this one waited for the lock
            return built
        with draft_folder(key) as draft:
            (draft / "kernel.cpp").write_text(unit.source)
            start = time.perf_counter()
            for arguments in ways:
                # Paths are relative to the entry's folder, so that the command still works there: edit
                # kernel.cpp, run it again.
                command = shlex.join((*compiler.command, *arguments))
                result = compiler.run(arguments, draft)
                if result.returncode == 0:
                    break
            (draft / "command.txt").write_text(command + "\n")
            seconds = time.perf_counter() - start
            if result.returncode != 0:
                words = result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}, no message"
                (draft / "compiler.txt").write_text(words + "\n")
                kept = move_into_place(draft, os.path.join("failed", key))
                raise CompilerFailed(
                    f"the C++ compiler refused {unit.name}:\n{words}",
                    way_out=f"source: {kept / 'kernel.cpp'}\n  command: cd {shlex.quote(str(kept))} && {command}",
                )
            facts = {"name": unit.name, "seconds": seconds, "command": command}
            folder = publish(draft, key, facts, verified=("kernel.so",))
    return Built(unit.name, folder / "kernel.so", seconds, cached=False, command=command, target=target.name)
