"""The kernels of a plan: their C++, generated, compiled and loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from latte.model.ensemble import Ensemble
from latte.planning.plan import Plan, ScheduledUnit
from latte.planning.units import Unit
from swirl.codegen.context import Unsupported
from swirl.codegen.emit import KernelSource
from swirl.dump.write import dump_kernel, dump_stages
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program
from swirl.jit import Kernel, Progress, build, load
from swirl.libraries import Built
from swirl.pipeline import Stage
from swirl.target import Target


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
    """

    unit: Unit
    phase: str
    stages: Sequence[Stage]
    declared: Mapping[str, Buffer]
    source: KernelSource
    bound: Mapping[str, str]

    @property
    def program(self) -> Program:
        """The nests that the C++ is made of."""
        return self.stages[-1].program


@dataclass(frozen=True)
class CompiledPhase(GeneratedPhase):
    """The same with its kernel, loaded."""

    kernel: Kernel
    built: Built

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
            yield _generated(item, phase, plan, dump)


def _generated(item: ScheduledUnit, phase: str, plan: Plan, dump: Path | None) -> GeneratedPhase:
    stages = item.stages(phase, plan.state, plan.target)
    if dump is not None:
        dump_stages(dump / item.unit.name / phase, stages)
    try:
        kernel = item.kernel(phase, plan.state, plan.target)
    except Unsupported as error:
        error.message, error.location = f"{item.unit.name}, {phase}: {error.message}", item.unit.location(phase)
        raise
    region = plan.state.regions[item.unit.name]
    declared = {**item.result.stored[phase]}
    declared |= {r.name: r for part in item.unit.parts[phase] for r in part.program.buffers.values()}
    if not declared.keys() >= set(kernel.bound.values()):  # what is copied: another layer's
        declared |= {copy.source.name: copy.source for copy in region.phases[phase].copies}
    return GeneratedPhase(item.unit, phase, stages, declared, kernel.source, kernel.bound)


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
        CompiledPhase(**vars(item), kernel=load(made), built=made)
        for item, made in zip(items, built, strict=True)
    ]
