"""From a declaration to an executable: each step is a call into the package of its name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

from latte.autodiff.differentiated import differentiate
from latte.explain.memory import MemoryReport, report_of, scratch_bytes
from latte.frontend.lowered import lower_layers
from latte.model.checks import is_integer
from latte.model.graph import Graph
from latte.model.source_location import Located, user_location, user_stacklevel
from latte.planning.memory import TRAINING, MemoryPlan
from latte.planning.plan import Plan, make_plan
from latte.runtime.arranging import arranged, execution_order
from latte.runtime.executable import Executable, bind, net_buffers
from latte.runtime.kernels import PlannedPhase, build_kernels, generate_kernels, planned_phases
from latte.runtime.memory import check_fits
from latte.runtime.report import CompileReport, make_report
from latte.runtime.session import Session
from swirl.alone import alone
from swirl.config import MAX_THREADS, settings
from swirl.errors import DeclarationError, DoesNotFit, TargetError
from swirl.ir.buffers import DTYPES
from swirl.jit import Progress, progress_bar
from swirl.memo import Memos
from swirl.memory import machine_bytes
from swirl.phases import INFERENCE
from swirl.runner import Runner
from swirl.target import Target, resolve_target

T = TypeVar("T")

PADDED = 2
"""How many times what is declared all arrays take at the most: with padding, copies, and what the compiler adds."""


@alone
def compile_graph(
    graph: Graph,
    batch_size: int,
    target: Target,
    runner: Runner,
    *,
    seeded: frozenset[str] = frozenset(),
    shared: Executable | None = None,
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
        shared: another executable of the net, whose parameters and state are used.
        trains: whether it has all phases; otherwise inference alone.
        show_progress: whether to show progress bars.

    Raises:
        LatteError: see :mod:`swirl.errors`; nothing is changed then.
    """
    start, dump = perf_counter(), _dump_folder(graph, batch_size)
    with Memos() as memos, _progress_bars(show_progress) as (scheduling, compiling):
        lowered = lower_layers(graph, batch_size)
        differentiated = differentiate(graph, lowered, seeded)
        plan = make_plan(graph, differentiated, target, memos, scheduling)
        _check_memory(graph, plan, batch_size, trains)
        planned = perf_counter() - start
        generated = _Timed(generate_kernels(plan, dump, None if trains else (INFERENCE,)))
        kernels = build_kernels(generated, target, compiling, dump)
        executable = bind(graph, plan, batch_size, kernels, runner, shared, trains)
    built = (kernel.built for kernel in kernels)
    return executable, make_report(built, perf_counter() - start, planned + generated.seconds, plan.untuned)


def planned_memory(graph: Graph, target: str | None = None) -> MemoryReport:
    """The memory that a net will need for its batch size. Everything is planned; nothing is compiled or allocated.

    Args:
        graph: of the net.
        target: what code would be made for; by default the best that the machine runs.

    Raises:
        LatteError: see :func:`compile_graph`.
    """
    with Located(), Memos() as memos:
        batch_size = graph.settings.batch_size
        plan = make_plan(graph, differentiate(graph, lower_layers(graph, batch_size)), resolve_target(target), memos)
        order, memory = _arranged(graph, plan, batch_size)
        scratch = scratch_bytes(order, plan.target, settings().threads)
        return report_of(graph, memory, batch_size, scratch)


def _arranged(graph: Graph, plan: Plan, batch_size: int) -> tuple[dict[str, list[PlannedPhase]], MemoryPlan]:
    """The kernels of a plan in the order in which they would run, and their memory."""
    phases = planned_phases(plan)
    buffers = net_buffers(graph, batch_size, phases, plan.layouts)
    return arranged(graph, plan, buffers, execution_order(phases))


def _check_memory(graph: Graph, plan: Plan, batch_size: int, trains: bool) -> None:
    """Refuse a net whose inference does not fit into the machine, before it is compiled; warn of one that cannot be
    trained there.

    Raises:
        DoesNotFit: with its numbers.
    """
    fields = [spec for ensemble in graph.ensembles for spec in ensemble.fields(batch_size).values()]
    declared = sum(prod(spec.shape) * np.dtype(DTYPES[spec.dtype]).itemsize for spec in fields)
    if PADDED * declared <= machine_bytes():  # of most nets there is no doubt
        return
    memory = _arranged(graph, plan, batch_size)[1]
    check_fits(memory, INFERENCE)
    try:
        check_fits(memory, TRAINING)
    except DoesNotFit as error:
        if trains:
            warnings.warn(f"{error}; inference fits", DoesNotTrain, stacklevel=user_stacklevel())


class DoesNotTrain(UserWarning):
    """A training step of a net would not fit into the machine's memory: it is refused when it is asked for."""


class _Timed(Iterator[T]):
    """Items that are made one after the other, and the seconds that making them has taken."""

    def __init__(self, items: Iterator[T]):
        self._items = items
        self.seconds = 0.0

    def __next__(self) -> T:
        start = perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += perf_counter() - start


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
