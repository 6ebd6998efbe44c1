"""A net compiled for one batch size: its buffers, its kernels, and the phases that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from latte.model.ensemble import Ensemble
from latte.model.place import user_place
from latte.planning.phases import has_gradient_reader, is_loss
from latte.planning.scheduling import planned
from latte.planning.units import Unit
from latte.runtime.views import BlockedViews
from swirl.codegen.context import Unsupported
from swirl.codegen.emit import KernelSource
from swirl.config import settings
from swirl.dump.write import dump_kernel, dump_stages
from swirl.errors import DataError, TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.nest import Program
from swirl.jit import Built, Kernel, Progress, build, load
from swirl.jit import Unit as TranslationUnit
from swirl.memo import Memo
from swirl.memory import allocate
from swirl.pipeline import Stage, generate, uncollected
from swirl.recorded import Outcome
from swirl.runner import Phase, Runner
from swirl.target import Target

if TYPE_CHECKING:
    from latte.net import Net

SHARED_ROLES = ("param", "param_grad", "state", "scalar")
"""Roles of buffers that do not depend on the batch size: one array serves every batch size."""


@dataclass(frozen=True)
class CompiledPhase:
    """One phase of one unit (a layer, or the layers of a chain): its stages and its kernel."""

    unit: Unit
    phase: str
    stages: tuple[Stage, ...]
    source: KernelSource
    kernel: Kernel
    built: Built

    @property
    def ensemble(self) -> Ensemble:
        """The layer; of a chain, the last one, whose value it computes."""
        return self.unit.members[-1]

    @property
    def program(self) -> Program:
        return self.stages[-1].program

    @property
    def storage(self) -> set[str]:
        """The storage that the kernel touches."""
        return {record.name for record in self.program.buffers.values()}

    @property
    def fused_away(self) -> set[str]:
        """The storage between the layers of a chain that the kernel does without."""
        before = {record.name for record in self.stages[0].program.buffers.values()}
        return (before & set(self.unit.private.get(self.phase, ()))) - self.storage


@dataclass(frozen=True)
class CompileReport:
    """What compiling took.

    Args:
        kernels: number of kernels; ``cached`` of them were found on disk.
        seconds: of this compilation, all in all; ``generating`` of it in passes and recipes.
        compiler_seconds: what the C++ compiler took for all kernels when they were compiled (kept with the cache).
        folder: of the generated code.
        built: the kernels, by their libraries.
    """

    kernels: int
    cached: int
    seconds: float
    generating: float
    compiler_seconds: float
    folder: Path
    built: Mapping[Path, Built] = field(default_factory=dict, repr=False)

    @property
    def compiled(self) -> int:
        """Number of kernels that the C++ compiler made now."""
        return self.kernels - self.cached


@dataclass
class Executable:
    """A net for one batch size, ready to run. Made by :func:`compile_net`."""

    net: Net
    batch_size: int
    target: Target
    buffers: dict[str, Buffer]
    arrays: dict[str, np.ndarray]
    compiled: list[CompiledPhase]
    notes: dict[str, tuple[str, ...]]
    outcomes: dict[str, tuple[Outcome, ...]]
    units: list[Unit]
    phases: dict[str, Phase]
    order: dict[str, list[CompiledPhase]]
    report: CompileReport
    has_run: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    views: BlockedViews = field(default_factory=BlockedViews)

    def run(self, phase: str) -> None:
        """Run ``forward``, ``inference`` or ``backward`` (gradients of inputs and of parameters)."""
        with self.views.in_storage():
            self.phases[phase].run()
        self._ran(phase)

    def _ran(self, phase: str) -> None:
        self.has_run.add(phase)
        for step in self.order[phase]:
            self.missing = (self.missing - step.storage) | step.fused_away

    def run_timed(self, phase: str) -> list[tuple[str, str, float]]:
        """Run a phase; (ensemble, phase, seconds) of every kernel."""
        with self.views.in_storage():
            seconds = self.phases[phase].run_timed()
        self._ran(phase)
        return [(c.unit.name, c.phase, s) for c, s in zip(self.order[phase], seconds, strict=True)]

    def read(self, storage: str) -> np.ndarray:
        """The logical values of a buffer, as a new array.

        Raises:
            DataError: no phase of this net computes the buffer, or it has been fused away.
        """
        buffer = self.buffer(storage)
        if storage in self.missing:
            raise self._fused_away(storage)
        with self.views.in_storage():
            return buffer.layout.unpack(self.arrays[storage], buffer.shape)

    def write(self, storage: str, values: np.ndarray) -> None:
        """Set a buffer from logical values of its shape."""
        buffer = self.buffer(storage)
        with self.views.in_storage():
            self.arrays[storage][...] = buffer.layout.pack(np.asarray(values, DTYPES[buffer.dtype]))

    def view(self, storage: str) -> np.ndarray:
        """The storage itself, seen without its halo and in the order of its dimensions; or an array that stands for it,
        where it lies in blocks: see :class:`latte.runtime.views.BlockedViews`.

        Raises:
            DataError: some phase has fused the buffer away, so that its storage would be out of date then.
        """
        buffer = self.buffer(storage)
        if any(storage in step.fused_away for step in self.compiled):
            raise self._fused_away(storage)
        view = buffer.layout.view(self.arrays[storage], buffer.shape)
        return self.views.view(self.arrays[storage], buffer) if view is None else view

    def buffer(self, storage: str) -> Buffer:
        """The buffer with its layout.

        Raises:
            DataError: no phase of this net computes it, or it has been fused away.
        """
        if storage not in self.buffers and self.is_fused_away(storage):
            raise self._fused_away(storage)
        if storage not in self.buffers:
            owner = next(e for e in self.net.ensembles if e.name == storage.split(".")[0])
            way_out = None
            if storage.endswith(".grad") and not self.net.force_backward and has_gradient_reader(self.net, owner):
                way_out = "net.force_backward = True before compile() asks for the gradients of data"
            raise DataError(f"nothing in this net computes {storage}", place=user_place(), way_out=way_out)
        return self.buffers[storage]

    def is_fused_away(self, storage: str) -> bool:
        """Whether some phase computes it only inside of a chain's loops."""
        return any(storage in step.fused_away for step in self.compiled)

    def _fused_away(self, storage: str) -> DataError:
        step = next((s for s in self.compiled if storage in s.fused_away), None)
        within = f" into {step.unit.name}" if step is not None else ""
        name = storage.split(".")[0]
        return DataError(
            f"{storage} has been fused away{within}: it is never stored",
            place=user_place(),
            way_out=f'net.keep({name}) before compile() keeps it, Net(batch_size, keep="all") keeps all',
        )


@uncollected
def compile_net(
    net: Net,
    batch_size: int,
    target: Target,
    runner: Runner,
    *,
    shared: Executable | None = None,
    seeded: frozenset[str] = frozenset(),
    progress: Progress | None = None,
    on_stage: Callable[[int, int, str], None] | None = None,
) -> Executable:
    """Compile a net for one batch size.

    Args:
        net: the net.
        batch_size: items in a batch.
        target: what code is made for.
        runner: whose threads run the phases.
        shared: another batch size of the same net, whose parameters and state are used.
        seeded: names of inner ensembles whose gradient the user sets.
        progress: told of every kernel compiled (done, total, name).
        on_stage: told of every ensemble scheduled (done, total, name).

    Raises:
        LatteError: see :mod:`swirl.errors`; nothing is changed then.
    """
    start = perf_counter()
    with ExitStack() as memos:
        plan = planned(net, batch_size, target, seeded, memos, on_stage)
        chains, ensembles, units, scheduled = plan.chains, plan.programs, plan.units, plan.scheduled
        layouts = plan.layouts
        finished = [
            (item.unit, phase, item.finished(phase, layouts), item.memo)
            for item in scheduled
            for phase in item.result.stages
        ]
        dump = settings().dump
        if dump is not None:  # the smaller last batch of a data set beside the first
            dump = dump if batch_size == net.batch_size else dump / f"batch-{batch_size}"
            for unit, phase, stages, _ in finished:
                dump_stages(dump / unit.name / phase, stages)
        sources = [_generated(unit, phase, stages, target, memo) for unit, phase, stages, memo in finished]
    generating = perf_counter() - start
    built = build([TranslationUnit(source.name, source.source) for source in sources], target, progress=progress)
    if dump is not None:
        for (unit, phase, _, _), source, made in zip(finished, sources, built, strict=True):
            dump_kernel(dump / unit.name / phase, source, made.command)
    compiled = [
        CompiledPhase(unit, phase, stages, source, load(made), made)
        for (unit, phase, stages, _), source, made in zip(finished, sources, built, strict=True)
    ]
    buffers = _buffers(net, batch_size, compiled, layouts)
    arrays = _arrays(buffers, shared, runner)
    report = make_report((item.built for item in compiled), perf_counter() - start, generating)
    order = _order(compiled)
    phases = {name: runner.phase([(c.kernel, _table(c, arrays)) for c in steps]) for name, steps in order.items()}
    notes = {p.ensemble.name: (*p.notes, *chains.notes.get(p.ensemble.name, ())) for p in ensembles}
    outcomes = {item.unit.name: item.result.outcomes for item in scheduled}
    executable = Executable(
        net, batch_size, target, buffers, arrays, compiled, notes, outcomes, units, phases, order, report
    )
    executable.missing = set().union(*(step.fused_away for step in compiled if step.phase != "inference"))
    if shared is not None:
        executable.views = shared.views
    _initialise(executable, shared is None)
    return executable


def _generated(unit: Unit, phase: str, stages: tuple[Stage, ...], target: Target, memo: Memo) -> KernelSource:
    """The C++ of a phase.

    Raises:
        Unsupported: there is none for this target; with the layer, the phase, and where the body stands.
    """
    try:
        return generate(stages, target, memo=memo)
    except Unsupported as error:
        error.message, error.place = f"{unit.name}, {phase}: {error.message}", unit.place(phase)
        raise


def _table(compiled: CompiledPhase, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [arrays[compiled.program.buffers[name].name] for name in compiled.source.buffers]


def _order(compiled: list[CompiledPhase]) -> dict[str, list[CompiledPhase]]:
    """The kernels of each phase of the net in the order of execution: backward, then update, layer by layer (chain by
    chain)."""
    backwards = [c for c in reversed(compiled) if c.phase in ("backward", "update")]
    chain_of = {member.name: c.unit.name for c in backwards if c.unit.joined for member in c.unit.members}
    groups: dict[str, list[CompiledPhase]] = {}
    for c in backwards:
        groups.setdefault(chain_of.get(c.unit.members[0].name, c.unit.name), []).append(c)
    by_layer = [c for group in groups.values() for phase in ("backward", "update") for c in group if c.phase == phase]
    return {
        "forward": [c for c in compiled if c.phase == "forward"],
        "inference": [c for c in compiled if c.phase == "inference"],
        "backward": by_layer,
    }


def _buffers(
    net: Net, batch_size: int, compiled: list[CompiledPhase], layouts: Mapping[str, Layout]
) -> dict[str, Buffer]:
    """Every buffer that exists at run time: declared fields that are computed or set, and what the compiler added."""
    result: dict[str, Buffer] = {}
    used = set().union(*(item.storage for item in compiled))
    away = set().union(*(item.fused_away for item in compiled)) - used
    for ensemble in net.ensembles:
        for spec in ensemble.fields(batch_size).values():
            if spec.role not in ("grad", "param_grad") and spec.storage not in away:
                result[spec.storage] = spec.buffer
    declared = {spec.storage: spec.buffer for e in net.ensembles for spec in e.fields(batch_size).values()}
    for item in compiled:
        for buffer in _logical(item):
            result[buffer.name] = declared.get(buffer.name, buffer)
    for ensemble in net.ensembles:
        if is_loss(ensemble):
            result[f"{ensemble.name}.grad"] = declared[f"{ensemble.name}.grad"]
    return {name: buffer.with_layout(layouts.get(name, buffer.layout)) for name, buffer in result.items()}


def _logical(item: CompiledPhase) -> Iterable[Buffer]:
    """What is left in the end, with the shapes that it had first: commands and layouts may change them."""
    found: dict[str, Buffer] = {}
    for stage in item.stages:
        for record in stage.program.buffers.values():
            if record.name in item.storage:
                found.setdefault(record.name, record)
    return found.values()


def _arrays(buffers: Mapping[str, Buffer], shared: Executable | None, runner: Runner) -> dict[str, np.ndarray]:
    reused = {}
    if shared is not None:
        for name, buffer in buffers.items():
            if buffer.role in SHARED_ROLES and name in shared.arrays:
                if shared.buffers[name].layout != buffer.layout:
                    raise TrainingError(
                        f"{name} would be laid out differently for another batch size",
                        way_out="let the recipe's tiles of parameters not depend on the batch size",
                    )
                reused[name] = shared.arrays[name]
    new = {name: (b.physical_shape, DTYPES[b.dtype]) for name, b in buffers.items() if name not in reused}
    return {**allocate(new, runner), **reused}


def _initialise(executable: Executable, everything: bool) -> None:
    """Parameters and state from their initialisers, the gradient of losses 1."""
    for ensemble in executable.net.ensembles:
        for name, spec in ensemble.fields(executable.batch_size).items():
            if everything and spec.role in ("param", "state"):
                executable.write(spec.storage, ensemble.initial(name))
        if is_loss(ensemble):
            storage = f"{ensemble.name}.grad"
            executable.write(storage, np.ones(executable.buffers[storage].shape))
    if everything and "net.seed" in executable.arrays:
        executable.arrays["net.seed"][0] = executable.net.seed


def make_report(built: Iterable[Built], seconds: float, generating: float) -> CompileReport:
    """What compiling ``built`` took; a kernel that is there twice counts once."""
    unique: dict[Path, Built] = {}
    for item in built:
        unique.setdefault(item.path, item)
    folder = next(iter(unique)).parent.parent if unique else Path()
    cached = sum(item.cached for item in unique.values())
    compiler_seconds = sum(item.seconds for item in unique.values())
    return CompileReport(len(unique), cached, seconds, generating, compiler_seconds, folder, unique)


def sum_of_reports(reports: Sequence[CompileReport]) -> CompileReport:
    """Several compilations as one; a kernel that one made and later ones found counts as made."""
    built = (item for report in reports for item in report.built.values())
    return make_report(built, sum(r.seconds for r in reports), sum(r.generating for r in reports))
