"""The kernels of a plan: their C++, generated, compiled and loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from latte.model.ensemble import Ensemble
from latte.planning.plan import Plan
from latte.planning.units import Unit
from swirl.codegen.context import Unsupported
from swirl.codegen.emit import KernelSource
from swirl.dump.write import dump_kernel, dump_stages
from swirl.ir.nest import Program
from swirl.jit import Kernel, Progress, build, load
from swirl.libraries import Built
from swirl.memo import Memo
from swirl.pipeline import Stage, generate
from swirl.target import Target


@dataclass(frozen=True)
class PlannedPhase:
    """One phase of one unit (a layer, or the layers of a chain): its stages."""

    unit: Unit
    phase: str
    stages: tuple[Stage, ...]

    @property
    def ensemble(self) -> Ensemble:
        """The layer; of a chain, the last one, whose value it computes."""
        return self.unit.members[-1]

    @property
    def program(self) -> Program:
        return self.stages[-1].program

    @cached_property
    def storage(self) -> set[str]:
        """The storage that the kernel touches."""
        return {record.name for record in self.program.buffers.values()}

    @cached_property
    def fused_away(self) -> set[str]:
        """The storage between the layers of a chain that the kernel does not need."""
        before = {record.name for record in self.stages[0].program.buffers.values()}
        return (before & set(self.unit.internal.get(self.phase, ()))) - self.storage


@dataclass(frozen=True)
class GeneratedPhase(PlannedPhase):
    """The same with its C++."""

    source: KernelSource


@dataclass(frozen=True)
class CompiledPhase(GeneratedPhase):
    """The same with its kernel, loaded."""

    kernel: Kernel
    built: Built


def planned_phases(plan: Plan) -> list[PlannedPhase]:
    """Every phase of every unit, without C++."""
    return [
        PlannedPhase(item.unit, phase, item.finished(phase, plan.state, plan.target))
        for item in plan.scheduled
        for phase in item.result.stages
    ]


def generate_kernels(
    plan: Plan, dump: Path | None = None, phases: Collection[str] | None = None
) -> Iterator[GeneratedPhase]:
    """The C++ of every phase of every unit, one after the other.

    Args:
        plan: of the net.
        dump: a folder for the stages, each a file that runs.
        phases: those that are wanted; all by default.

    Raises:
        Unsupported: there is none for this target; with the layer, the phase, and the location of the body.
    """
    for item in plan.scheduled:
        for phase in item.result.stages:
            if phases is not None and phase not in phases:
                continue
            stages = item.finished(phase, plan.state, plan.target)
            if dump is not None:
                dump_stages(dump / item.unit.name / phase, stages)
            source = _generated(item.unit, phase, stages, plan.target, item.memo)
            yield GeneratedPhase(item.unit, phase, stages, source)


def _generated(unit: Unit, phase: str, stages: tuple[Stage, ...], target: Target, memo: Memo) -> KernelSource:
    try:
        return generate(stages, target, memo=memo)
    except Unsupported as error:
        error.message, error.location = f"{unit.name}, {phase}: {error.message}", unit.location(phase)
        raise


def build_kernels(
    generated: Iterable[GeneratedPhase], target: Target, progress: Progress | None = None, dump: Path | None = None
) -> list[CompiledPhase]:
    """The phases with their kernels, compiled where the cache has none; the first while the last are generated.

    Args:
        generated: the C++.
        target: that it is for.
        progress: told of every kernel compiled (done, total, name).
        dump: the folder that the stages have been written to, for the compile commands.

    Raises:
        CompilerMissing, CompilerFailed, LatteError: see :func:`swirl.jit.build`.
    """
    items: list[GeneratedPhase] = []

    def sources() -> Iterator[KernelSource]:
        for item in generated:
            items.append(item)
            yield item.source

    built = build(sources(), target, progress=progress)
    if dump is not None:
        for item, made in zip(items, built, strict=True):
            dump_kernel(dump / item.unit.name / item.phase, item.source, made.command)
    return [
        CompiledPhase(item.unit, item.phase, item.stages, item.source, load(made), made)
        for item, made in zip(items, built, strict=True)
    ]
