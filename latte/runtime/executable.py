"""A net compiled for one batch size: its buffers, its kernels, and the phases that run them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.planning.plan import Plan
from latte.runtime.arranging import arranged, execution_order
from latte.runtime.data import converted
from latte.runtime.kernels import CompiledPhase, PlannedPhase
from latte.runtime.memory import Memory, Store
from latte.runtime.views import BlockedViews
from swirl.errors import DataError, TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.phases import INFERENCE
from swirl.runner import Phase, Runner

SHARED_ROLES = ("param", "param_grad", "state", "constant", "scalar")
"""Roles of buffers that do not depend on the batch size: one array serves every batch size."""


@dataclass
class Executable:
    """A net for one batch size, ready to run. Made by :func:`bind`.

    Args:
        graph: of the net.
        plan: that its kernels were made by.
        batch_size: items in a batch.
        buffers: storage → what it holds, with its layout.
        memory: storage → memory.
        compiled: the kernels.
        runner: whose threads run the phases.
        order: the kernels of ``forward``, ``inference`` and ``backward``, as they run.
        trains: whether it has all phases; otherwise the kernels of inference alone.
        has_run: those of them that have run on the current batch.
        missing: storage that has been fused away, or overwritten, in the phases that ran last.
        views: what users hold of blocked storage.
        loss_weights: by the losses' names, as they were last written to their gradients.
    """

    graph: Graph
    plan: Plan
    batch_size: int
    buffers: dict[str, Buffer]
    memory: Memory
    compiled: list[CompiledPhase]
    runner: Runner
    order: dict[str, list[CompiledPhase]]
    trains: bool = True
    has_run: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    views: BlockedViews = field(default_factory=BlockedViews)
    loss_weights: dict[str, float] = field(default_factory=dict)
    _phases: dict[tuple[str, bool], tuple[int, Phase]] = field(default_factory=dict)
    _touched: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    @property
    def arrays(self) -> Memory:
        """Storage → memory, as the phase that ran last has left it."""
        return self.memory

    def run(self, phase: str) -> None:
        """Run ``forward``, ``inference`` or ``backward`` (gradients of inputs and of parameters)."""
        with self.views.in_storage():
            self._prepared(phase).run()
        self._ran(phase)

    def _prepared(self, phase: str) -> Phase:
        """A phase that can run: what it needs is there, or is computed again."""
        if phase == "forward":
            self.memory.ready(phase)
            self.memory.remember()
        elif phase == "backward" and self._needed(phase) & self.missing:
            self._phase("forward", again=True).run()
            self._count("forward")
        return self._phase(phase)

    def _phase(self, phase: str, again: bool = False) -> Phase:
        """A phase with its pointer tables; ``again`` changes no state."""
        self.memory.ready(phase)
        version, made = self._phases.get((phase, again), (-1, None))
        if made is None or version != self.memory.version:
            made = self.runner.phase([(step.kernel, table) for step, table in self.tables(phase, again)])
            self._phases[phase, again] = self.memory.version, made
        return made

    def tables(self, phase: str, again: bool = False) -> Iterator[tuple[CompiledPhase, list[np.ndarray]]]:
        """The kernels of a phase that is ready, with the arrays of their pointer tables."""
        for position, step in enumerate(self.order[phase]):
            buffers = step.program.buffers
            storage = [buffers[name].name for name in step.source.buffers]
            yield step, self.memory.table(phase, position, storage, again)

    def _ran(self, phase: str) -> None:
        self.has_run.add(phase)
        self._count(phase)

    def _count(self, phase: str) -> None:
        """What is missing after a phase."""
        touched, away = self._storage_after(phase)
        self.memory.phase = phase
        self.missing = (self.missing - touched) | away | self.memory.overwritten(phase)

    def _storage_after(self, phase: str) -> tuple[set[str], set[str]]:
        """The storage that the kernels of a phase touch, and what is fused away when all of them have run."""
        if phase not in self._touched:
            touched, away = set[str](), set[str]()
            for step in self.order[phase]:
                touched |= step.storage
                away = (away - step.storage) | step.fused_away
            self._touched[phase] = touched, away
        return self._touched[phase]

    def run_timed(self, phase: str) -> list[tuple[str, str, float]]:
        """Run a phase; (ensemble, phase, seconds) of every kernel."""
        with self.views.in_storage():
            seconds = self._prepared(phase).run_timed()
        self._ran(phase)
        return [(c.unit.name, c.phase, s) for c, s in zip(self.order[phase], seconds, strict=True)]

    def read(self, storage: str) -> np.ndarray:
        """The logical values of a buffer, as a new array.

        Raises:
            DataError: no phase of this net computes the buffer, or it has been fused away or overwritten.
        """
        buffer = self.buffer(storage)
        if storage in self.missing:
            raise self._missing(storage)
        array = self.memory.known(storage)
        if array is None:
            return np.zeros(buffer.shape, DTYPES[buffer.dtype])
        with self.views.in_storage():
            return buffer.layout.unpack(array, buffer.shape)

    def write(self, storage: str, values: np.ndarray) -> None:
        """Set a buffer from logical values of its shape."""
        buffer = self.buffer(storage)
        packed = buffer.layout.pack(converted(np.asarray(values), DTYPES[buffer.dtype]))
        self.pin(storage)
        with self.views.in_storage():
            array = self.arrays[storage]
            if buffer.role == "state":  # of a smaller batch: the first items of a whole one's
                array = array[: len(packed)]
            array[...] = packed
        self.missing.discard(storage)

    def clear(self, storage: str) -> None:
        """Set a buffer to zero."""
        if (array := self.memory.known(storage)) is not None:
            array[...] = 0

    def take(self, other: Executable) -> None:
        """Go on where another executable of the same net and batch size is: what has memory of its own is copied; what
        backward needs of the rest is computed again then."""
        self.has_run = set(other.has_run)
        self.missing |= other.missing | {name for name in self.buffers if self.memory.plan.shares(name)}
        for name in self.buffers:
            lasts = name in self.memory.learned or self.memory.plan.shares(name)
            there = name in other.arrays and name not in other.missing and other.memory.known(name) is not None
            if there and not lasts:
                self.write(name, other.read(name))  # a recipe may have laid it out differently

    def _needed(self, phase: str) -> set[str]:
        """The storage whose contents a phase needs, as those before it have left it."""
        values = {name for name in self._storage_after(phase)[0] if name.endswith(".value")}
        return self.memory.plan.needed(phase) | {name for name in values if not self.memory.plan.shares(name)}

    def pin(self, storage: str) -> None:
        """Give a storage memory of its own, which no other overwrites, from now on."""
        self.memory.pin(storage, storage not in self.missing)

    def pin_all(self) -> None:
        """Let nothing share memory from now on: phases run by themselves again and again, and all is there to read."""
        for storage in self.buffers:
            self.pin(storage)

    def view(self, storage: str) -> np.ndarray:
        """The storage itself, without its halo and with the logical order of dimensions; or an array that stands for
        it, if it is blocked: see :class:`latte.runtime.views.BlockedViews`. It has memory of its own from now on.

        Raises:
            DataError: some phase has fused the buffer away, so that its storage would be out of date then.
        """
        buffer = self.buffer(storage)
        if any(storage in step.fused_away for step in self.compiled):
            raise self._fused_away(storage)
        self.pin(storage)
        view = buffer.layout.view(self.arrays[storage], buffer.shape)
        return self.views.view(self.arrays[storage], buffer) if view is None else view

    def shown(self) -> Mapping[str, np.ndarray]:
        """All memory by storage; what is looked at has memory of its own from now on. Integers, which kernels may use
        as subscripts without a check, are read-only."""
        return _Shown(self)

    def buffer(self, storage: str) -> Buffer:
        """The buffer with its layout.

        Raises:
            DataError: no phase of this net computes it, or it has been fused away.
        """
        if storage not in self.buffers and self.is_fused_away(storage):
            raise self._fused_away(storage)
        if storage not in self.buffers:
            name, _, field = storage.partition(".")
            owner = next(e for e in self.graph.ensembles if e.name == name)
            wanted = self.graph.settings.force_backward or not self.graph.has_gradient_reader(owner)
            way_out, of = None, "value" if field == "grad" else field.removeprefix("grad_")
            if field == "grad" and owner.fields()["value"].dtype != "float32":
                way_out = f"{owner.fields()['value'].dtype} has no gradient: float32 has"
            elif field == "grad" and not wanted:
                way_out = "net.force_backward = True before compile() asks for the gradients of data"
            elif field.startswith("grad_") and of in owner.fields() or field == "grad" and self.graph.readers(owner):
                way_out = f"nothing with a gradient is computed from {name}.{of}: the loss does not change with it"
            raise DataError(f"nothing in this net computes {storage}", location=user_location(), way_out=way_out)
        return self.buffers[storage]

    def is_fused_away(self, storage: str) -> bool:
        """Whether some phase computes it only inside of a chain's loops."""
        return any(storage in step.fused_away for step in self.compiled)

    def _missing(self, storage: str) -> DataError:
        """The error where the contents of a storage are gone."""
        if storage in self._storage_after(self.memory.phase)[1] or not self.memory.plan.shares(storage):
            return self._fused_away(storage)
        name, _, field = storage.partition(".")
        return DataError(
            f"{storage} has been overwritten: nothing in the net needs it any more, and others have its memory",
            location=user_location(),
            way_out=f'net.keep({name}) before compile() keeps it, Net(batch_size, keep="all") keeps all; a view, '
            f"{name}.get_{field}_view(), keeps it from the next run on",
        )

    def _fused_away(self, storage: str) -> DataError:
        step = next((s for s in self.compiled if storage in s.fused_away), None)
        within = f" into {step.unit.name}" if step is not None else ""
        name = storage.split(".")[0]
        return DataError(
            f"{storage} has been fused away{within}: it is never stored",
            location=user_location(),
            way_out=f'net.keep({name}) before compile() keeps it, Net(batch_size, keep="all") keeps all',
        )


def bind(
    graph: Graph,
    plan: Plan,
    batch_size: int,
    compiled: list[CompiledPhase],
    runner: Runner,
    shared: Executable | None = None,
    trains: bool = True,
) -> Executable:
    """A net for one batch size with its buffers, ready to run.

    Args:
        graph: of the net.
        plan: that its kernels were made by.
        batch_size: items in a batch.
        compiled: its kernels.
        runner: whose threads run the phases.
        shared: another executable of the same net, whose parameters and state are used.
        trains: whether these are the kernels of all phases.

    Raises:
        TrainingError: parameters would have another layout than those of ``shared``.
    """
    buffers = net_buffers(graph, batch_size, compiled, plan.layouts)
    order, planned = arranged(graph, plan, buffers, execution_order(compiled))
    learned = Store(runner) if shared is None else shared.memory.learned
    memory = Memory(planned, runner, learned, _lasting(buffers, learned))
    made = Executable(graph, plan, batch_size, buffers, memory, compiled, runner, order, trains)
    made.missing = set().union(*(step.fused_away for step in compiled if step.phase != INFERENCE))
    if shared is not None:
        made.views = shared.views
    _initialise(made, shared is None)
    return made


class _Shown(Mapping[str, np.ndarray]):
    """The memory of an executable, for users; see :meth:`Executable.shown`."""

    def __init__(self, executable: Executable):
        self._executable = executable

    def __getitem__(self, storage: str) -> np.ndarray:
        executable = self._executable
        if storage not in executable.buffers:
            raise KeyError(storage)
        executable.pin(storage)
        array = executable.arrays[storage].view()
        array.flags.writeable = executable.buffers[storage].role == "scalar" or array.dtype.kind not in "iu"
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._executable.buffers)

    def __len__(self) -> int:
        return len(self._executable.buffers)


def net_buffers(
    graph: Graph, batch_size: int, compiled: Sequence[PlannedPhase], layouts: Mapping[str, Layout]
) -> dict[str, Buffer]:
    """Every buffer that exists at run time: declared fields that are computed or set, and what the compiler added."""
    result: dict[str, Buffer] = {}
    used = set().union(*(item.storage for item in compiled))
    away = set().union(*(item.fused_away for item in compiled)) - used
    for ensemble in graph.ensembles:
        for spec in ensemble.fields(batch_size).values():
            if spec.role not in ("grad", "param_grad") and spec.storage not in away:
                result[spec.storage] = spec.buffer
    declared = {spec.storage: spec.buffer for e in graph.ensembles for spec in e.fields(batch_size).values()}
    for item in compiled:
        for buffer in _logical(item):
            known = declared.get(buffer.name) or result.get(buffer.name, buffer)
            assert (known.shape, known.dtype) == (buffer.shape, buffer.dtype), f"{known} is {buffer} in {item.phase}"
            result[buffer.name] = known
    for ensemble in graph.losses():
        result[f"{ensemble.name}.grad"] = declared[f"{ensemble.name}.grad"]
    return {name: buffer.with_layout(layouts.get(name, buffer.layout)) for name, buffer in result.items()}


def _logical(item: PlannedPhase) -> Iterable[Buffer]:
    """The buffers that are left in the end, with their first shapes: commands and layouts may change those."""
    found: dict[str, Buffer] = {}
    for stage in item.stages:
        for record in stage.program.buffers.values():
            if record.name in item.storage:
                found.setdefault(record.name, record)
    return found.values()


def _lasting(buffers: Mapping[str, Buffer], learned: Store) -> list[str]:
    """The storage that all batch sizes have in common.

    Raises:
        TrainingError: it would have another layout than before.
    """
    found = []
    for name, buffer in buffers.items():
        if buffer.role in SHARED_ROLES:
            if name in learned and learned.buffer(name).layout != buffer.layout:
                raise TrainingError(
                    f"{name} would be laid out differently for another batch size",
                    way_out="let the recipe's tiles of parameters not depend on the batch size",
                )
            found.append(name)
    return found


def _initialise(executable: Executable, everything: bool) -> None:
    """Parameters, state and constants from their initialisers, the gradients of losses from their weights."""
    for ensemble in executable.graph.ensembles if everything else ():
        for name, spec in ensemble.fields(executable.batch_size).items():
            if spec.role in ("param", "state", "constant") and spec.owner == ensemble.name:
                executable.write(spec.storage, ensemble.initial(name))
    write_loss_weights(executable)
    if everything and "net.seed" in executable.arrays:
        executable.arrays["net.seed"][0] = executable.graph.settings.seed


def write_loss_weights(executable: Executable) -> None:
    """Let backward start from the weights that losses have now."""
    for loss in executable.graph.losses():
        storage = f"{loss.name}.grad"
        executable.write(storage, np.full(executable.buffers[storage].shape, loss.loss_weight))
        executable.loss_weights[loss.name] = loss.loss_weight
