"""The kernels of a plan: their C++, generated, compiled and loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from time import perf_counter

from latte.model.ensemble import Ensemble
from latte.planning.plan import Plan, ScheduledUnit
from latte.planning.units import Unit
from latte.runtime.report import Times
from swirl.build.jit import Kernel, Progress, build, load
from swirl.build.libraries import Built
from swirl.codegen.context import Unsupported
from swirl.codegen.emit import KernelSource
from swirl.dump.write import dump_kernel, dump_stages
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.schedule.kept_schedules import BoundKernel
from swirl.schedule.pipeline import Stage
from swirl.schedule.plan_state import PlanState
from swirl.target.targets import Target


@dataclass(frozen=True)
class GeneratedPhase:
    """One phase of one unit (a layer, or the layers of a chain): its stages and its C++.

    Args:
        unit: the layer, or the layers.
        phase: of it.
        stages: of the compiler, made when somebody looks.
        declared: storage → buffer as it was first, with its logical shape.
        source: the C++.
        bound: name of a buffer in it → storage.
        fixed: why it is right for whole batches alone, or "".
    """

    unit: Unit
    phase: str
    stages: Sequence[Stage]
    declared: Mapping[str, Buffer]
    source: KernelSource
    bound: Mapping[str, str]
    fixed: str

    @property
    def program(self) -> Program:
        """The nests that the C++ is made of."""
        return self.stages[-1].program

    @property
    def ensemble(self) -> Ensemble:
        """The layer; of a chain, the last one, whose value it computes."""
        return self.unit.members[-1]

    @cached_property
    def storage(self) -> set[str]:
        """The storage that the kernel touches."""
        return set(self.bound.values())

    @cached_property
    def fused_away(self) -> set[str]:
        """The storage between the layers of a chain that the kernel does not need."""
        before = {record.name for part in self.unit.parts[self.phase] for record in part.program.buffers.values()}
        return (before & set(self.unit.region.internal.get(self.phase, ()))) - self.storage


@dataclass(frozen=True)
class CompiledPhase(GeneratedPhase):
    """The same with its kernel, loaded."""

    kernel: Kernel
    built: Built


def generated_kernels(plan: Plan, phases: Collection[str] | None = None) -> list[GeneratedPhase]:
    """The phases of a plan, all by default, with their C++, not compiled."""
    return [_generated(item, phase, plan, None) for item in plan.scheduled for phase in _wanted(item, phases)]


def compile_kernels(
    steps: Generator[tuple[ScheduledUnit, PlanState], None, Plan],
    target: Target,
    times: Times,
    *,
    check: Callable[[Plan, Sequence[GeneratedPhase]], None] | None = None,
    progress: Progress | None = None,
    dump: Path | None = None,
    phases: Collection[str] | None = None,
) -> tuple[Plan, list[CompiledPhase]]:
    """A plan, and its phases with their kernels, compiled where the cache has none: the first ones while later units
    are planned.

    Args:
        steps: of planning; see :func:`latte.planning.plan.planning`.
        target: what code is made for.
        times: what planning, generating and compiling take is added to it.
        check: of the plan with its C++, before anything is compiled: it raises if it refuses the plan.
        progress: told of every kernel compiled (done, total, name).
        dump: a folder for the stages, each a file that runs.
        phases: those that are wanted; all by default.

    Raises:
        Unsupported: there is no C++ for this target; with the layer, the phase, and the location of the body.
        CompilerMissing, CompilerFailed, LatteError: see :func:`swirl.build.jit.build`; as planning does.
    """
    plans: list[Plan] = []
    generated: list[GeneratedPhase] = []

    def sources() -> Iterator[KernelSource]:
        for unit, state in _settled(steps, times, plans):
            for phase in _wanted(unit, phases) if check is None else ():
                with times("generating"):
                    kernel = _kernel(unit, phase, state, target)
                yield kernel.source  # a chain that declines afterwards may leave it unused
        (plan,) = plans
        for item in plan.scheduled:
            for phase in _wanted(item, phases):
                with times("generating"):
                    generated.append(_generated(item, phase, plan, dump))
                if check is None:
                    yield generated[-1].source
        if check is not None:
            check(plan, generated)
            yield from (each.source for each in generated)

    started, before = perf_counter(), times.total
    every = build(sources(), target, progress=progress)
    built = every[len(every) - len(generated) :]
    times.add("compiling", perf_counter() - started - (times.total - before))
    if dump is not None:
        for each, made in zip(generated, built, strict=True):
            dump_kernel(dump / each.unit.name / each.phase, each.source, made.command)
    parts = [part.name for part in fields(GeneratedPhase)]
    kernels = [
        CompiledPhase(**{name: getattr(each, name) for name in parts}, kernel=load(made), built=made)
        for each, made in zip(generated, built, strict=True)
    ]
    return plans[0], kernels


def _settled(
    steps: Generator[tuple[ScheduledUnit, PlanState], None, Plan], times: Times, plans: list[Plan]
) -> Iterator[tuple[ScheduledUnit, PlanState]]:
    """What planning yields; what it returns is added to ``plans``."""
    while True:
        try:
            with times("scheduling"):
                item = next(steps)
        except StopIteration as end:
            plans.append(end.value)
            return
        yield item


def _wanted(item: ScheduledUnit, phases: Collection[str] | None) -> list[str]:
    return [phase for phase in item.result.stages if phases is None or phase in phases]


def _kernel(item: ScheduledUnit, phase: str, state: PlanState, target: Target) -> BoundKernel:
    try:
        return item.kernel(phase, state, target)
    except Unsupported as error:
        error.message, error.location = f"{item.unit.name}, {phase}: {error.message}", item.unit.location(phase)
        raise


def _generated(item: ScheduledUnit, phase: str, plan: Plan, dump: Path | None) -> GeneratedPhase:
    stages = item.stages(phase, plan.state, plan.target)
    if dump is not None:
        dump_stages(dump / item.unit.name / phase, stages)
    kernel = _kernel(item, phase, plan.state, plan.target)
    region = plan.state.regions[item.unit.name]
    declared = {**item.result.stored[phase], **kernel.added}
    declared |= {r.name: r for part in item.unit.parts[phase] for r in part.program.buffers.values()}
    if not declared.keys() >= set(kernel.bound.values()):  # what is copied: another layer's
        declared |= {copy.source.name: copy.source for copy in region.phases[phase].copies}
    return GeneratedPhase(item.unit, phase, stages, declared, kernel.source, kernel.bound, kernel.fixed)
