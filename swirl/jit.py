"""From C++ text to a function in this process: compile in parallel, keep on disk, load."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swirl.compiler import find_compiler
from swirl.compiler_flags import common_flags
from swirl.config import available_cores
from swirl.errors import LatteError
from swirl.libraries import Built, Toolchain
from swirl.target import Target
from swirl.translation_unit import TranslationUnit

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
            each run of the compiler. Not called where everything is in the cache.

    Raises:
        CompilerMissing: there is no compiler.
        CompilerFailed: it refused a unit; the message has its words, the kept source and the command.
        LatteError: the cache folder is not usable.
    """
    compiler = find_compiler()
    flags = common_flags(compiler, target, contract, optimize, extra_flags)
    toolchain = Toolchain(compiler, flags, target)
    keys = [toolchain.key(unit) for unit in units]
    found: dict[str, Built] = {}
    missing: dict[str, TranslationUnit] = {}
    for key, unit in zip(keys, units, strict=True):
        if key in found or key in missing:
            continue
        built = toolchain.find(key, unit)
        if built is None:
            missing[key] = unit
        else:
            found[key] = built
    if missing:
        found |= _make_all(toolchain, missing, progress)
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


def _make_all(toolchain: Toolchain, missing: dict[str, TranslationUnit], progress: Progress | None) -> dict[str, Built]:
    found: dict[str, Built] = {}
    runs = toolchain.divided(missing, available_cores())
    # Threads only wait for the compilers' processes. A process is started by fork and exec at once, which is
    # safe after OpenMP has started threads of its own; a fork that runs on in Python is not.
    with ThreadPoolExecutor(max_workers=min(len(runs), available_cores())) as pool:
        jobs = [pool.submit(toolchain.make, units) for units in runs]
        if progress is not None:
            progress(0, len(missing), "")
        try:
            for job in as_completed(jobs):
                made = job.result()
                found |= made
                if progress is not None:
                    progress(len(found), len(missing), next(iter(made.values())).name)
        finally:
            # After a failure or an interrupt, what has not started need not start.
            pool.shutdown(wait=False, cancel_futures=True)
    return found
