"""From C++ text to a function in this process: compile in parallel, keep on disk, load."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swirl.build.compiler import find_compiler
from swirl.build.compiler_flags import common_flags
from swirl.build.libraries import Built, Toolchain, Units, are_enough, divided
from swirl.build.translation_unit import TranslationUnit
from swirl.config import available_cores
from swirl.errors import LatteError
from swirl.target.targets import Target

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Kernel:
    """A loaded function; the library stays loaded as long as this lives, and after.

    Attributes:
        name: the function's name.
        address: where it is in memory.
        library: the handle of its library.
        target: whose instructions it has.
        work: as the unit's.
    """

    name: str
    address: int
    library: ctypes.CDLL
    target: str
    work: int | None = None


def build(
    units: Iterable[TranslationUnit],
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
        units: may be an iterator: the compiler runs while later units are made.
        contract: whether a product and a sum may become one fused multiply-add. Tests that compare bits say
            no.
        optimize: the optimisation flag.
        extra_flags: further compiler flags.
        progress: called as ``progress(done, total, name)`` from this thread: once with ``done`` 0, then after
            each run of the compiler. Not called where everything is in the cache.

    Raises:
        CompilerMissing: there is no compiler.
        CompilerFailed: it refused a unit; the message has its words, the kept source and the command.
        LatteError: the cache folder is not usable.
    """
    compiler = find_compiler()
    toolchain = Toolchain(compiler, common_flags(compiler, target, contract, optimize, extra_flags), target)
    wanted: list[tuple[str, TranslationUnit]] = []
    found: dict[str, Built] = {}
    missing: dict[str, TranslationUnit] = {}
    with _Runs(toolchain) as runs:
        for unit in units:
            key = toolchain.key(unit)
            wanted.append((key, unit))
            if key in found or key in missing:
                continue
            built = toolchain.find(key, unit)
            if built is not None:
                found[key] = built
                continue
            missing[key] = unit
            runs.add(key, unit)
        if missing:
            found |= runs.results(len(missing), progress)
    return [replace(found[key], name=unit.name, target=target.name, work=unit.work) for key, unit in wanted]


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
    return Kernel(built.name, address, library, built.target, built.work)


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


class _Runs:
    """Runs of the compiler, which begin while more units are still being made.

    Args:
        toolchain: that compiles the units.
    """

    def __init__(self, toolchain: Toolchain):
        self._toolchain = toolchain
        self._waiting: dict[object, Units] = {}  # by what they have in common
        self._jobs: list[Future[dict[str, Built]]] = []
        # Threads only wait for the compilers' processes. A process is started by fork and exec at once, which is
        # safe after OpenMP has started threads of its own; a fork that runs on in Python is not.
        self._pool = ThreadPoolExecutor(max_workers=available_cores())

    def add(self, key: str, unit: TranslationUnit) -> None:
        """Compile a unit, once there are enough of its like for a run."""
        group = self._toolchain.alike(unit)
        units = self._waiting.setdefault(group, {})
        units[key] = unit
        if are_enough(units):
            self._start(self._waiting.pop(group))

    def _start(self, units: Units) -> None:
        self._jobs.append(self._pool.submit(self._toolchain.make, units))

    def results(self, total: int, progress: Progress | None) -> dict[str, Built]:
        """Compile what is left; all that was added, by its key.

        Args:
            total: number of units.
            progress: told of every run.
        """
        for units in divided(self._waiting.values(), available_cores()):
            self._start(units)
        if progress is not None:
            progress(0, total, "")
        found: dict[str, Built] = {}
        for job in as_completed(self._jobs):
            made = job.result()
            found |= made
            if progress is not None:
                progress(len(found), total, next(iter(made.values())).name)
        return found

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        # After a failure or an interrupt, what has not started need not start. What runs is waited for: it would go on
        # to write into the cache folder, by then perhaps another one.
        self._pool.shutdown(cancel_futures=True)
