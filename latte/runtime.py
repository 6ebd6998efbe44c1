"""A net compiled for one batch size: its buffers, its kernels, and the phases that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from latte.ensemble import DataEnsemble, Ensemble
from latte.phases import EnsemblePrograms, has_gradient_reader, is_loss, net_programs
from latte.place import user_place
from latte.recipes_of import recipe_of
from latte.views import BlockedViews
from swirl.codegen.emit import KernelSource
from swirl.config import settings
from swirl.dump.write import dump_kernel, dump_stages
from swirl.errors import DataError, TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.nest import Program
from swirl.jit import Built, Kernel, Progress, Unit, build, load
from swirl.memo import Memo, remembering
from swirl.memory import allocate
from swirl.pipeline import Scheduled, Stage, finish, generate, schedule
from swirl.recipe import Outcome
from swirl.runner import Phase, Runner
from swirl.target import Target

if TYPE_CHECKING:
    from latte.net import Net

SHARED_ROLES = ("param", "param_grad", "state", "scalar")
"""Roles of buffers that do not depend on the batch size: one array serves every batch size."""


@dataclass(frozen=True)
class CompiledPhase:
    """One phase of one ensemble: its stages and its kernel."""

    ensemble: Ensemble
    phase: str
    stages: tuple[Stage, ...]
    source: KernelSource
    kernel: Kernel
    built: Built

    @property
    def program(self) -> Program:
        return self.stages[-1].program

    @property
    def logical(self) -> Program:
        """The program before its layouts were made physical."""
        return self.stages[-2].program


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
    phases: dict[str, Phase]
    order: dict[str, list[CompiledPhase]]
    report: CompileReport
    has_run: set[str] = field(default_factory=set)
    views: BlockedViews = field(default_factory=BlockedViews)

    def run(self, phase: str) -> None:
        """Run ``forward``, ``inference`` or ``backward`` (gradients of inputs and of parameters)."""
        with self.views.in_storage():
            self.phases[phase].run()
        self.has_run.add(phase)

    def run_timed(self, phase: str) -> list[tuple[str, str, float]]:
        """Run a phase; (ensemble, phase, seconds) of every kernel."""
        with self.views.in_storage():
            seconds = self.phases[phase].run_timed()
        self.has_run.add(phase)
        return [(c.ensemble.name, c.phase, s) for c, s in zip(self.order[phase], seconds, strict=True)]

    def read(self, storage: str) -> np.ndarray:
        """The logical values of a buffer, as a new array.

        Raises:
            DataError: no phase of this net computes the buffer.
        """
        buffer = self.buffer(storage)
        with self.views.in_storage():
            return buffer.layout.unpack(self.arrays[storage], buffer.shape)

    def write(self, storage: str, values: np.ndarray) -> None:
        """Set a buffer from logical values of its shape."""
        buffer = self.buffer(storage)
        with self.views.in_storage():
            self.arrays[storage][...] = buffer.layout.pack(np.asarray(values, DTYPES[buffer.dtype]))

    def view(self, storage: str) -> np.ndarray:
        """The storage itself, seen without its halo and in the order of its dimensions; or an array that stands for it,
        where it lies in blocks: see :class:`latte.views.BlockedViews`."""
        buffer = self.buffer(storage)
        view = buffer.layout.view(self.arrays[storage], buffer.shape)
        return self.views.view(self.arrays[storage], buffer) if view is None else view

    def buffer(self, storage: str) -> Buffer:
        """The buffer with its layout.

        Raises:
            DataError: no phase of this net computes it.
        """
        if storage not in self.buffers:
            owner = next(e for e in self.net.ensembles if e.name == storage.split(".")[0])
            way_out = None
            if storage.endswith(".grad") and not self.net.force_backward and has_gradient_reader(self.net, owner):
                way_out = "net.force_backward = True before compile() asks for the gradients of data"
            raise DataError(f"nothing in this net computes {storage}", place=user_place(), way_out=way_out)
        return self.buffers[storage]


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
    ensembles = net_programs(net, batch_size, seeded)
    scheduled: list[tuple[EnsemblePrograms, Scheduled, Memo]] = []
    layouts: dict[str, Layout] = {}
    with ExitStack() as memos:
        for position, programs in enumerate(ensembles):
            name = programs.ensemble.name
            if on_stage is not None:
                on_stage(position, len(ensembles), name)
            current = {phase: laid_out(program, layouts) for phase, program in programs.programs.items()}
            memo = memos.enter_context(remembering(current.values()))
            owned = owned_storage(programs.ensemble, layouts)
            result = schedule(current, recipe_of(net, programs.ensemble), target, owned, memo)
            for stages in result.stages.values():
                layouts |= {buffer.name: buffer.layout for buffer in stages[-1].program.buffers.values()}
            scheduled.append((programs, result, memo))
        if on_stage is not None:
            on_stage(len(ensembles), len(ensembles), "")
        finished = [
            (programs.ensemble, phase, finish((*stages[:-1], _with_layouts(stages[-1], layouts)), memo), memo)
            for programs, result, memo in scheduled
            for phase, stages in result.stages.items()
        ]
        dump = settings().dump
        if dump is not None:  # the smaller last batch of a data set beside the first
            dump = dump if batch_size == net.batch_size else dump / f"batch-{batch_size}"
            for ensemble, phase, stages, _ in finished:
                dump_stages(dump / ensemble.name / phase, stages)
        sources = [generate(stages, target, memo=memo) for _, _, stages, memo in finished]
    generating = perf_counter() - start
    built = build([Unit(source.name, source.source) for source in sources], target, progress=progress)
    if dump is not None:
        for (ensemble, phase, _, _), source, unit in zip(finished, sources, built, strict=True):
            dump_kernel(dump / ensemble.name / phase, source, unit.command)
    compiled = [
        CompiledPhase(ensemble, phase, stages, source, load(unit), unit)
        for (ensemble, phase, stages, _), source, unit in zip(finished, sources, built, strict=True)
    ]
    buffers = _buffers(net, batch_size, compiled, layouts)
    arrays = _arrays(buffers, shared, runner)
    report = make_report((item.built for item in compiled), perf_counter() - start, generating)
    order = _order(compiled)
    phases = {name: runner.phase([(c.kernel, _table(c, arrays)) for c in steps]) for name, steps in order.items()}
    notes = {programs.ensemble.name: programs.notes for programs in ensembles}
    outcomes = {programs.ensemble.name: result.outcomes for programs, result, _ in scheduled}
    executable = Executable(net, batch_size, target, buffers, arrays, compiled, notes, outcomes, phases, order, report)
    if shared is not None:
        executable.views = shared.views
    _initialise(executable, shared is None)
    return executable


def owned_storage(ensemble: Ensemble, layouts: Mapping[str, Layout]) -> list[str]:
    """Prefixes of the storage that an ensemble's recipe lays out: its own; and data that nobody has read before it,
    as no kernel computes them and setting them packs them anyway."""
    sources = {edge.source.name for edge in ensemble.connections if isinstance(edge.source, DataEnsemble)}
    seen = {storage.split(".")[0] for storage in layouts}
    return [f"{name}." for name in (ensemble.name, *sorted(sources - seen))]


def laid_out(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program with the layouts that were chosen so far, by storage name."""
    changed = {key: b.with_layout(layouts[b.name]) for key, b in program.buffers.items() if b.name in layouts}
    return program.with_buffers(**changed)


def _with_layouts(stage: Stage, layouts: Mapping[str, Layout]) -> Stage:
    return Stage(stage.name, laid_out(stage.program, layouts), stage.seconds)


def _table(compiled: CompiledPhase, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [arrays[compiled.program.buffers[name].name] for name in compiled.source.buffers]


def _order(compiled: list[CompiledPhase]) -> dict[str, list[CompiledPhase]]:
    """The kernels of each phase of the net in the order of execution: backward, then update, layer by layer."""
    backwards = [c for c in reversed(compiled) if c.phase in ("backward", "update")]
    names = list(dict.fromkeys(c.ensemble.name for c in backwards))
    by_layer = [
        c
        for name in names
        for phase in ("backward", "update")
        for c in backwards
        if c.ensemble.name == name and c.phase == phase
    ]
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
    for ensemble in net.ensembles:
        for spec in ensemble.fields(batch_size).values():
            if spec.role not in ("grad", "param_grad"):
                result[spec.storage] = spec.buffer
    declared = {spec.storage: spec.buffer for e in net.ensembles for spec in e.fields(batch_size).values()}
    for item in compiled:
        for buffer in item.logical.buffers.values():
            result[buffer.name] = declared.get(buffer.name, buffer)
    for ensemble in net.ensembles:
        if is_loss(ensemble):
            result[f"{ensemble.name}.grad"] = declared[f"{ensemble.name}.grad"]
    return {name: buffer.with_layout(layouts.get(name, buffer.layout)) for name, buffer in result.items()}


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
