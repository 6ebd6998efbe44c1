"""From a declaration to an executable: each step is a call into the package of its name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.model.checks import is_integer
from latte.model.frozen import Frozen
from latte.model.graph import Graph
from latte.model.source_location import Located, user_location, user_stacklevel
from latte.planning.plan import planning
from latte.runtime.executable import Executable, bind
from latte.runtime.kernels import compile_kernels
from latte.runtime.report import CompileReport, FixedSize, Times, make_report
from latte.runtime.session import Session
from swirl.alone import alone
from swirl.config import MAX_THREADS, settings
from swirl.errors import DeclarationError, TargetError
from swirl.jit import Progress, progress_bar
from swirl.kept_schedules import KeptSchedules
from swirl.memo import Memos
from swirl.phases import INFERENCE
from swirl.runner import Runner
from swirl.target import Target, resolve_target


@alone
def compile_graph(
    graph: Graph,
    batch_size: int,
    target: Target,
    runner: Runner,
    *,
    seeded: frozenset[str] = frozenset(),
    frozen: Frozen | None = None,
    shared: Executable | None = None,
    variants: Sequence[Executable] = (),
    trains: bool = True,
    show_progress: bool = False,
) -> tuple[Executable, CompileReport]:
    """The executable of a net for one batch size, and what it took.

    Args:
        graph: of the net.
        batch_size: items in a batch.
        target: what code is made for; it need not run here.
        runner: whose threads run the phases.
        seeded: names of inner ensembles whose gradient the user sets.
        frozen: what does not train; by default what is frozen now.
        shared: another executable of the net, whose parameters and state are used.
        variants: of the same batch size, of which only one runs at a time: what is laid out alike is shared.
        trains: whether it has all phases; otherwise inference alone.
        show_progress: whether to show progress bars.

    Raises:
        LatteError: see :mod:`swirl.errors`; nothing is changed then.
    """
    start, dump, times = perf_counter(), _dump_folder(graph, batch_size), Times()
    with Memos() as memos, KeptSchedules(memos, target) as kept, _progress_bars(show_progress) as bars:
        scheduling, compiling = bars
        with times("lowering"):
            lowered = lower_layers(graph, batch_size)
        with times("differentiating"):
            differentiated = differentiate(graph, lowered, seeded, frozen)
            differentiated.programs()
        steps = planning(graph, differentiated, kept, scheduling)
        phases = None if trains else (INFERENCE,)
        plan, kernels = compile_kernels(steps, target, times, progress=compiling, dump=dump, phases=phases)
        with times("binding"):
            executable = bind(graph, plan, batch_size, kernels, runner, shared, variants, trains)
    built, units = (kernel.built for kernel in kernels), len(plan.units)
    seconds, known = perf_counter() - start, units - min(units, kept.computed)
    fixed = [FixedSize(k.unit.name, k.phase, k.fixed) for k in kernels if k.fixed and batch_size > 1]
    return executable, make_report(built, seconds, times.seconds, units, known, plan.untuned, fixed)


def new_session(graph: Graph, target: str | None, threads: int | None, progress: bool) -> Session:
    """A net compiled for its batch size, to be run; see :meth:`latte.net.Net.compile`.

    Raises:
        DeclarationError: for a wrong number of threads.  LatteError: see :func:`compile_graph`.
    """
    if threads is not None and not (is_integer(threads) and 1 <= threads <= MAX_THREADS):
        raise DeclarationError(
            f"the number of threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}",
            location=user_location(),
        )
    if not graph.settings.compiled:
        for ensemble in graph.ensembles:
            ensemble.phase_methods.forget()
    with Located():
        runner = Runner(None if threads is None else int(threads))
        made_by = partial(compile_graph, graph, target=resolve_target(target), runner=runner, show_progress=progress)
        return Session(graph, made_by, runner)


def session_elsewhere(graph: Graph, target: str | None, threads: int | None) -> Session:
    """The same of a net that was compiled in another process. Where this machine does not run the target that was asked
    for, its best one takes the place, with a warning."""
    try:
        return new_session(graph, target, threads, progress=False)
    except TargetError as error:
        warnings.warn(f"{error}; the best target of this machine takes its place", stacklevel=user_stacklevel())
        return new_session(graph, None, threads, progress=False)


def _dump_folder(graph: Graph, batch_size: int) -> Path | None:
    """Where ``SWIRL_DUMP`` wants the stages: those of the smaller last batch of a data set beside the first."""
    dump = settings().dump
    return dump if dump is None or batch_size == graph.settings.batch_size else dump / f"batch-{batch_size}"


@contextmanager
def _progress_bars(shown: bool) -> Iterator[tuple[Progress | None, Progress | None]]:
    """Bars for scheduling and for compiling."""
    if not shown:
        yield None, None
        return
    with progress_bar("scheduling layers") as scheduling, progress_bar() as compiling:
        yield scheduling, compiling
