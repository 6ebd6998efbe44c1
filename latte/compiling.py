"""From a declaration to an executable: each step is a call into the package of its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

from latte.autodiff.differentiated import Differentiated, differentiate
from latte.explain.memory import MemoryReport, report_of, scratch_bytes
from latte.frontend.lowered import lower_layers
from latte.model.checks import is_integer
from latte.model.frozen import Frozen
from latte.model.graph import Graph
from latte.model.source_location import Located, user_location, user_stacklevel
from latte.planning.memory import TRAINING, MemoryPlan
from latte.planning.plan import Plan, make_plan, planning
from latte.planning.unused_recipes import unused_recipes
from latte.runtime.arranging import arranged, execution_order
from latte.runtime.calls import Calls
from latte.runtime.executable import Executable, bind, net_buffers
from latte.runtime.kernels import CompiledPhase, GeneratedPhase, compile_kernels, generated_kernels
from latte.runtime.memory import check_fits
from latte.runtime.report import CompileReport, FixedSize, Times, make_report
from latte.runtime.session import Session
from swirl.build.jit import Progress, progress_bar
from swirl.build.process_lock import alone
from swirl.config import MAX_THREADS, settings
from swirl.errors import DeclarationError, DoesNotFit, TargetError
from swirl.ir.buffers import DTYPES
from swirl.ir.phases import INFERENCE
from swirl.run.memory import machine_bytes
from swirl.run.runner import Runner
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.machine import resolve_target
from swirl.target.targets import Target

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
    frozen: Frozen | None = None,
    shared: Executable | None = None,
    variants: Sequence[Executable] = (),
    trains: bool = True,
    show_progress: bool = False,
    double: bool = False,
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
        double: whether all of the net computes in double precision, which the portable target does.

    Raises:
        LatteError: see :mod:`swirl.errors`; nothing is changed then.
    """

    def bound(plan: Plan, kernels: list[CompiledPhase]) -> Executable:
        return bind(graph, plan, batch_size, kernels, runner, shared, variants, trains, double)

    gradients = Gradients(seeded, frozen, double=double)
    return _compiled(graph, batch_size, target, gradients, bound, trains=trains, show_progress=show_progress)


@alone
def compile_calls(
    graph: Graph,
    batch_size: int,
    target: Target,
    runner: Runner,
    brought: Mapping[str, Sequence[str]],
    gradients: Gradients,
    trains: bool = True,
) -> tuple[Calls, CompileReport]:
    """A net to be called as a function, and what compiling it took.

    Args:
        graph: of the net; its setting ``given`` says how what calls bring is laid out.
        batch_size: the most items of a call.
        target: what code is made for.
        runner: whose threads run the phases.
        brought: see :class:`latte.runtime.calls.Calls`.
        gradients: that ``backward`` computes.
        trains: whether it has all phases; otherwise inference alone.

    Raises:
        LatteError: see :mod:`swirl.errors`.
    """

    def bound(plan: Plan, kernels: list[CompiledPhase]) -> Calls:
        return Calls(graph, plan, batch_size, kernels, runner, brought)

    return _compiled(graph, batch_size, target, gradients, bound, trains=trains)


@dataclass(frozen=True)
class Gradients:
    """What a net computes gradients of, and how.

    Args:
        seeded: names of inner ensembles whose gradient the user sets.
        frozen: what does not train; by default what is frozen now.
        of_data: whether gradients of data are computed; by default the net's setting says it.
        double: whether all of the net computes in double precision, which the portable target does.
    """

    seeded: frozenset[str] = frozenset()
    frozen: Frozen | None = None
    of_data: bool | None = None
    double: bool = False


def _compiled(
    graph: Graph,
    batch_size: int,
    target: Target,
    gradients: Gradients,
    bound: Callable[[Plan, list[CompiledPhase]], T],
    *,
    trains: bool,
    show_progress: bool = False,
) -> tuple[T, CompileReport]:
    """A net with its kernels, as ``bound`` makes it ready to run, and what it took."""
    start, dump, times = perf_counter(), _dump_folder(graph, batch_size), Times()
    with Memos() as memos, KeptSchedules(memos, target) as kept, _progress_bars(show_progress) as bars:
        scheduling, compiling = bars
        with times("lowering"):
            lowered = lower_layers(graph, batch_size)
        with times("differentiating"):
            known = gradients.seeded, gradients.of_data, gradients.frozen, gradients.double
            differentiated = Differentiated(graph, lowered, *known)
            differentiated.programs()
        steps = planning(graph, differentiated, kept, scheduling)
        phases = None if trains else (INFERENCE,)
        checked = partial(_check_memory, graph, batch_size, trains, gradients.double)
        check = checked if _is_large(graph, batch_size) else None
        plan, kernels = compile_kernels(steps, target, times, check=check, progress=compiling, dump=dump, phases=phases)
        with times("binding"):
            made = bound(plan, kernels)
    built, units = (kernel.built for kernel in kernels), len(plan.units)
    seconds, before = perf_counter() - start, units - min(units, kept.computed)
    fixed = [FixedSize(k.unit.name, k.phase, k.fixed) for k in kernels if k.fixed and batch_size > 1]
    about = plan.untuned, fixed, plan.cautions(), unused_recipes(graph)
    return made, make_report(built, seconds, times.seconds, units, before, *about)


def planned_memory(graph: Graph, target: str | None = None) -> MemoryReport:
    """The memory that a net will need for its batch size. Everything is planned; nothing is compiled or allocated.

    Args:
        graph: of the net.
        target: what code would be made for; by default the best that the machine runs.

    Raises:
        LatteError: see :func:`compile_graph`.
    """
    made_for, batch_size = resolve_target(target), graph.settings.batch_size
    with Located(), Memos() as memos, KeptSchedules(memos, made_for) as kept:
        plan = make_plan(graph, differentiate(graph, lower_layers(graph, batch_size)), kept)
        order, memory = _arranged(graph, plan, generated_kernels(plan), batch_size)
        return report_of(graph, memory, batch_size, scratch_bytes(order, made_for, settings().threads))


@alone
def planned_inference(
    graph: Graph, batch_size: int, target: Target, on_stage: Progress | None = None
) -> tuple[Plan, list[GeneratedPhase]]:
    """The plan of a net, as :func:`compile_graph` makes it, and the C++ of inference. Nothing is compiled or allocated.

    Args:
        graph: of the net.
        batch_size: items in a batch.
        target: what code is made for; it need not run here.
        on_stage: told of every unit scheduled (done, total, name).

    Raises:
        LatteError: see :func:`compile_graph`.
    """
    forget_names(graph)
    with Memos() as memos, KeptSchedules(memos, target) as kept:
        plan = make_plan(graph, differentiate(graph, lower_layers(graph, batch_size)), kept, on_stage)
        return plan, generated_kernels(plan, (INFERENCE,))


def forget_names(graph: Graph) -> None:
    """Ask again what names in bodies stand for, now that a net is completely declared; not in one that is compiled."""
    if not graph.settings.compiled:
        for ensemble in graph.ensembles:
            ensemble.phase_methods.forget()


def _arranged(
    graph: Graph, plan: Plan, phases: Sequence[GeneratedPhase], batch_size: int, double: bool = False
) -> tuple[dict[str, list[GeneratedPhase]], MemoryPlan]:
    """The kernels of a plan in the order in which they would run, and their memory."""
    buffers = net_buffers(graph, batch_size, phases, plan.layouts, double)
    return arranged(graph, plan, buffers, execution_order(phases))


def _is_large(graph: Graph, batch_size: int) -> bool:
    """Whether there is a doubt that a net fits into the machine."""
    fields = [spec for ensemble in graph.ensembles for spec in ensemble.fields(batch_size).values()]
    declared = sum(prod(spec.shape) * np.dtype(DTYPES[spec.dtype]).itemsize for spec in fields)
    return PADDED * declared > machine_bytes()


def _check_memory(
    graph: Graph, batch_size: int, trains: bool, double: bool, plan: Plan, phases: Sequence[GeneratedPhase]
) -> None:
    """Refuse a net whose inference does not fit into the machine, before it is compiled; warn of one that cannot be
    trained there.

    Raises:
        DoesNotFit: with its numbers.
    """
    memory = _arranged(graph, plan, phases, batch_size, double)[1]
    check_fits(memory, INFERENCE)
    try:
        check_fits(memory, TRAINING)
    except DoesNotFit as error:
        if trains:
            warnings.warn(f"{error}; inference fits", DoesNotTrain, stacklevel=user_stacklevel())


class DoesNotTrain(UserWarning):
    """A training step of a net would not fit into the machine's memory: it is refused when it is asked for."""


def new_session(graph: Graph, target: str | None, threads: int | None, progress: bool, double: bool = False) -> Session:
    """A net compiled for its batch size, to be run; see :meth:`latte.net.Net.compile`.

    Args:
        graph: of the net.
        target, threads, progress: see there.
        double: see :func:`compile_graph`: for comparisons that roundings must not decide.

    Raises:
        DeclarationError: for a wrong number of threads.  LatteError: see :func:`compile_graph`.
    """
    if threads is not None and not (is_integer(threads) and 1 <= threads <= MAX_THREADS):
        raise DeclarationError(
            f"the number of threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}",
            location=user_location(),
        )
    forget_names(graph)
    with Located():
        runner = Runner(None if threads is None else int(threads))
        compiled_for = resolve_target(target)
        made_by = partial(
            compile_graph, graph, target=compiled_for, runner=runner, show_progress=progress, double=double
        )
        return Session(graph, made_by, runner)


def session_elsewhere(graph: Graph, target: str | None, threads: int | None) -> Session:
    """The same of a net that was compiled in another process. Where this machine does not run the target that was asked
    for, its best one takes the place, with a warning."""
    try:
        return new_session(graph, target, threads, progress=False)
    except TargetError as error:
        warnings.warn(f"{error}; compiled for the best target of this machine instead", stacklevel=user_stacklevel())
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
