"""A net compiled for one batch size: its buffers, its kernels, and the phases that run them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import BatchSumEnsemble
from latte.model.graph import Graph
from latte.model.source_location import user_location
from latte.planning.plan import Plan
from latte.runtime.arranging import arranged, execution_order
from latte.runtime.data import converted
from latte.runtime.kernels import CompiledPhase, GeneratedPhase
from latte.runtime.memory import Memory
from latte.runtime.views import Views
from swirl.errors import DataError, TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.item_numbers import value_of
from swirl.ir.phases import INFERENCE
from swirl.ir.precision import held_in_double
from swirl.run.runner import Phase, Runner

SHARED_ROLES = ("param", "param_grad", "state", "constant", "scalar")
"""Roles of buffers that do not depend on the batch size, but for scalars that say it: one array serves every batch
size."""


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
        views: what users hold of storage.
        loss_weights: by the losses' names, as they were last written to their gradients.
        items: those of the current batch, at most ``batch_size``.
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
    views: Views = field(default_factory=Views)
    loss_weights: dict[str, float] = field(default_factory=dict)
    items: int = 0
    _phases: dict[tuple[str, bool, tuple[int, int] | None], Phase] = field(default_factory=dict)
    _made_for: object = None

    @property
    def arrays(self) -> Memory:
        """Storage → memory, as the phase that ran last has left it."""
        return self.memory

    def __post_init__(self) -> None:
        self.set_items(self.items or self.batch_size)

    def set_items(self, items: int) -> None:
        """Let the phases run on so many items, which must be those of a whole batch where :meth:`fixed` says so."""
        self.items = items
        for name, buffer in self.buffers.items():
            if buffer.formula:
                self.arrays[name][0] = value_of(buffer.formula, items)

    def fixed(self, trains: bool) -> Iterator[CompiledPhase]:
        """The kernels that are right for whole batches alone, of training or of inference."""
        return (step for step in self.compiled if step.fixed and (step.phase != INFERENCE) == trains)

    def takes(self, items: int, trains: bool) -> bool:
        """Whether the phases of inference, and of training if it ``trains``, run on so many items."""
        whole = items == self.batch_size
        return whole or not any(True for kind in {False, trains} for _ in self.fixed(kind))

    def shape(self, storage: str) -> tuple[int, ...]:
        """The shape of a buffer's values for the items of the current batch."""
        return self._of_items(self.buffer(storage), self.items)

    def _of_items(self, buffer: Buffer, items: int) -> tuple[int, ...]:
        return (items, *buffer.shape[1:]) if buffer.items else buffer.shape

    def run(self, phase: str) -> None:
        """Run ``forward``, ``inference`` or ``backward`` (gradients of inputs and of parameters)."""
        with self.views.in_storage():
            self._prepared(phase).run()
        self._ran(phase)

    def run_in_parts(self, phase: str, ends: Collection[int]) -> Iterator[int]:
        """Run a phase up to each of these positions of its :attr:`order`, and to its end; yields a position when all
        before it has run. What has run until then may be read and changed in memory; views are up to date at the
        end."""
        with self.views.in_storage():
            self._make_ready(phase)
            start = 0
            for end in sorted({*ends, len(self.order[phase])}):
                if end > start:
                    self._phase(phase, part=slice(start, end)).run()
                start = end
                yield end
        self._ran(phase)

    def batch_sums(self, phase: str) -> list[tuple[int, str]]:
        """Where a phase goes on from sums over the items of the batch: how many of its kernels have run then, and the
        storage of the sums. In ``backward`` it is that of their gradients."""
        found = []
        for ensemble in self.graph.ensembles:
            if not isinstance(ensemble, BatchSumEnsemble):
                continue
            storage = f"{ensemble.name}.{'value' if phase == 'forward' else 'grad'}"
            own = [i for i, step in enumerate(self.order[phase]) if ensemble in step.unit.members]
            own = [i for i in own if storage in self.order[phase][i].storage]
            if own:
                found.append((own[-1] + 1 if phase == "forward" else own[0], storage))
        return sorted(found)

    def _prepared(self, phase: str) -> Phase:
        """A phase that can run: what it needs is there, or is computed again."""
        self._make_ready(phase)
        return self._phase(phase)

    def _make_ready(self, phase: str) -> None:
        if phase == "forward":
            self.memory.ready(phase)
            self.memory.remember()
        elif phase == "backward" and not self._needed_by_backward.isdisjoint(self.missing):
            self._phase("forward", again=True).run()
            self._count("forward")

    def _phase(self, phase: str, again: bool = False, part: slice | None = None) -> Phase:
        """A phase, or a part of it, with its pointer tables; ``again`` changes no state."""
        self.memory.ready(phase)
        key = phase, again, None if part is None else (part.start, part.stop)
        version = self.memory.version
        if self._made_for != version:  # pointers of phases keep memory that is no longer used
            self._phases.clear()
            self._made_for = version
        if key not in self._phases:
            steps = [(step.kernel, table) for step, table in self.tables(phase, again)]
            self._phases[key] = self.runner.phase(steps if part is None else steps[part])
        return self._phases[key]

    def tables(self, phase: str, again: bool = False) -> Iterator[tuple[CompiledPhase, list[np.ndarray]]]:
        """The kernels of a phase that is ready, with the arrays of their pointer tables."""
        for position, step in enumerate(self.order[phase]):
            storage = [step.bound[name] for name in step.source.buffers]
            yield step, self.memory.table(phase, position, storage, again)

    def _ran(self, phase: str) -> None:
        self.has_run.add(phase)
        self._count(phase)

    def _count(self, phase: str) -> None:
        """What is missing after a phase."""
        touched, away = self._storage_after[phase]
        self.memory.phase = phase
        self.missing = (self.missing - touched) | away | self.memory.overwritten(phase)

    @cached_property
    def _needed_by_backward(self) -> set[str]:
        """The storage whose contents backward needs, as forward has left it."""
        return self.memory.plan.needed("backward")

    @cached_property
    def _storage_after(self) -> dict[str, tuple[set[str], set[str]]]:
        """By phase of the net: the storage that its kernels touch, and what is fused away when all of them have run."""
        found = {}
        for phase, steps in self.order.items():
            touched, away = set[str](), set[str]()
            for step in steps:
                touched |= step.storage
                away = (away - step.storage) | step.fused_away
            found[phase] = touched, away
        return found

    @cached_property
    def learned_memory(self) -> Hashable:
        """Equal for executables of a net whose parameters, and gradients of parameters, are the same memory."""
        return self.memory.identity(name for name, b in self.buffers.items() if b.role in ("param", "param_grad"))

    def run_timed(self, phase: str) -> list[tuple[str, str, float]]:
        """Run a phase; (ensemble, phase, seconds) of every kernel."""
        with self.views.in_storage():
            seconds = self._prepared(phase).run_timed()
        self._ran(phase)
        return [(c.unit.name, c.phase, s) for c, s in zip(self.order[phase], seconds, strict=True)]

    def read(self, storage: str) -> np.ndarray:
        """The logical values of a buffer, as a new array: those of the items of the current batch.

        Raises:
            DataError: no phase of this net computes the buffer, or it has been fused away or overwritten.
        """
        buffer = self.buffer(storage)
        if storage in self.missing:
            raise self._missing(storage)
        array = self.memory.known(storage)
        if array is None:
            return np.zeros(self.shape(storage), DTYPES[buffer.dtype])
        with self.views.in_storage():
            if self.items < self.batch_size and _items_outermost(buffer):
                array = array[: self.items]
                return buffer.layout.unpack(array, (len(array), *buffer.shape[1:]))
            values = buffer.layout.unpack(array, buffer.shape)
        return values[: self.items] if buffer.items else values

    def read_whole(self, storage: str) -> np.ndarray:
        """The same of all items of a whole batch, whatever the current one is."""
        buffer, array = self.buffer(storage), self.memory.known(storage)
        if array is None:
            return np.zeros(buffer.shape, DTYPES[buffer.dtype])
        with self.views.in_storage():
            return buffer.layout.unpack(array, buffer.shape)

    def write(self, storage: str, values: np.ndarray) -> None:
        """Set a buffer from logical values, of all its items or of the first ones. The other items of data get those of
        the last one: they are numbers that may stand there, whatever is computed with them."""
        buffer = self.buffer(storage)
        values = converted(np.asarray(values), DTYPES[buffer.dtype])
        given = len(values)
        rest = given < buffer.shape[0] and bool(buffer.items)
        if not self.memory.is_own(storage):
            self.pin(storage)
        with self.views.in_storage():
            array = self.arrays[storage]
            if not rest:
                packed = buffer.layout.pack(values)
                array[: len(packed)] = packed  # a state of a smaller batch is the first items of a whole one's
            elif _items_outermost(buffer):
                array[:given] = buffer.layout.pack(values)
                if buffer.role == "value":
                    array[given:] = array[given - 1]
            else:
                every = buffer.layout.unpack(array, buffer.shape)
                every[:given] = values
                if buffer.role == "value":
                    every[given:] = values[-1]
                array[...] = buffer.layout.pack(every)
        self.missing.discard(storage)

    def clear(self, storage: str) -> None:
        """Set a buffer to zero."""
        if (array := self.memory.known(storage)) is not None:
            array[...] = 0

    def pin(self, storage: str) -> None:
        """Give a storage memory of its own, which no other overwrites, from now on."""
        self.memory.pin(storage, storage not in self.missing)

    def pin_all(self) -> None:
        """Let nothing share memory from now on: phases run by themselves again and again, and all is there to read."""
        for storage in self.buffers:
            self.pin(storage)

    def view(self, storage: str) -> np.ndarray:
        """The storage itself, without its halo and with the logical order of dimensions; or an array that stands for
        it, if it is blocked: see :class:`latte.runtime.views.Views`. It has memory of its own from now on.

        Raises:
            DataError: some phase has fused the buffer away, so that its storage would be out of date then.
        """
        buffer = self.buffer(storage)
        if any(storage in step.fused_away for step in self.compiled):
            raise self._fused_away(storage)
        self.pin(storage)
        return self.views.view(self.arrays[storage], buffer)

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
            elif frozen := self._frozen_of(owner, of):
                way_out = f"frozen: {', '.join(frozen)}; net.unfreeze(…) counts from the next forward on"
            elif field == "grad" and not wanted:
                way_out = "net.force_backward = True before compile() asks for the gradients of data"
            elif field.startswith("grad_") and of in owner.fields() or field == "grad" and self.graph.readers(owner):
                way_out = f"nothing with a gradient is computed from {name}.{of}: the loss does not change with it"
            raise DataError(f"nothing in this net computes {storage}", location=user_location(), way_out=way_out)
        return self.buffers[storage]

    def _frozen_of(self, owner: Ensemble, field: str) -> list[str]:
        """The frozen parameters that leave a field of a layer without a gradient: itself, or those that its value
        depends on."""
        names = [f"{owner.name}.{field}"]
        if field == "value":
            layers = [owner]
            for layer in layers:
                layers += [edge.source for edge in layer.connections if edge.source not in layers]
            names = [spec.storage for layer in layers for spec in layer.fields().values()]
        return [name for name in dict.fromkeys(names) if name in self.plan.frozen.parameters]

    def is_fused_away(self, storage: str) -> bool:
        """Whether some phase computes it only inside of a chain's loops."""
        return any(storage in step.fused_away for step in self.compiled)

    def _missing(self, storage: str) -> DataError:
        """The error where the contents of a storage are gone."""
        if storage in self._storage_after[self.memory.phase][1] or not self.memory.plan.shares(storage):
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
    variants: Sequence[Executable] = (),
    trains: bool = True,
    double: bool = False,
) -> Executable:
    """A net for one batch size with its buffers, ready to run.

    Args:
        graph: of the net.
        plan: that its kernels were made by.
        batch_size: items in a batch.
        compiled: its kernels.
        runner: whose threads run the phases.
        shared: another executable of the same net, whose parameters and state are used.
        variants: of the same batch size, of which only one runs at a time: all memory that is laid out alike is shared,
            and :func:`latte.runtime.variants.go_over` carries the rest over.
        trains: whether these are the kernels of all phases.
        double: whether they compute in double precision.

    Raises:
        TrainingError: parameters would have another layout than those of ``shared``.
    """
    buffers = net_buffers(graph, batch_size, compiled, plan.layouts, double)
    order, planned = arranged(graph, plan, buffers, execution_order(compiled))
    others = [each.memory for each in ((shared,) if shared is not None else variants)]
    memory = Memory(
        planned,
        runner,
        _lasting(buffers, shared),
        learned=others[0].learned if others else None,
        own=variants[0].memory.own if variants else None,
    )
    made = Executable(graph, plan, batch_size, buffers, memory, compiled, runner, order, trains)
    made.missing = set().union(*(step.fused_away for step in compiled if step.phase != INFERENCE))
    if shared is not None:
        made.views = shared.views
    _initialise(made, shared is None and not variants)
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


def _items_outermost(buffer: Buffer) -> bool:
    """Whether the elements of an item follow each other in memory, those of the next one after them."""
    layout = buffer.layout
    first = not layout.order or layout.order[0] == 0
    whole = not (layout.halo and any(layout.halo[0])) and all(dim for dim, _ in layout.blocks)
    return bool(buffer.items) and first and whole


def net_buffers(
    graph: Graph,
    batch_size: int,
    compiled: Sequence[GeneratedPhase],
    layouts: Mapping[str, Layout],
    double: bool = False,
) -> dict[str, Buffer]:
    """Every buffer that exists at run time: declared fields that are computed or set, and what the compiler added."""
    held = held_in_double if double else _as_declared
    result: dict[str, Buffer] = {}
    used = set().union(*(item.storage for item in compiled))
    away = set().union(*(item.fused_away for item in compiled)) - used
    for ensemble in graph.ensembles:
        for spec in ensemble.fields(batch_size).values():
            if spec.role not in ("grad", "param_grad") and spec.storage not in away:
                result[spec.storage] = held(spec.buffer)
    declared = {spec.storage: held(spec.buffer) for e in graph.ensembles for spec in e.fields(batch_size).values()}
    for item in compiled:
        for buffer in _logical(item):
            known = declared.get(buffer.name) or result.get(buffer.name, buffer)
            assert (known.shape, known.dtype) == (buffer.shape, buffer.dtype), f"{known} is {buffer} in {item.phase}"
            result[buffer.name] = known
    for ensemble in graph.losses():
        result[f"{ensemble.name}.grad"] = declared[f"{ensemble.name}.grad"]
    return {name: buffer.with_layout(layouts.get(name, buffer.layout)) for name, buffer in result.items()}


def _as_declared(buffer: Buffer) -> Buffer:
    return buffer


def _logical(item: GeneratedPhase) -> Iterable[Buffer]:
    """The buffers that are left in the end, with their first shapes: commands and layouts may change those."""
    return (item.declared[name] for name in sorted(item.storage))


def _lasting(buffers: Mapping[str, Buffer], shared: Executable | None) -> list[str]:
    """The storage that all batch sizes have in common.

    Raises:
        TrainingError: it would have another layout than that of ``shared``.
    """
    found = [name for name, buffer in buffers.items() if buffer.role in SHARED_ROLES and not buffer.formula]
    known = {} if shared is None else shared.buffers
    for name in found:
        if name in known and known[name].layout != buffers[name].layout:
            raise TrainingError(
                f"{name} would be laid out differently for another batch size",
                way_out="let the recipe's tiles of parameters not depend on the batch size",
            )
    return found


def _initialise(executable: Executable, everything: bool) -> None:
    """Parameters, state and constants from their initialisers, the gradients of losses from their weights."""
    for ensemble in executable.graph.ensembles if everything else ():
        for name, spec in ensemble.fields(executable.batch_size).items():
            if spec.role in ("param", "state", "constant") and spec.owner == ensemble.name:
                executable.write(spec.storage, ensemble.initial(name))
    write_loss_weights(executable)
    if "net.seed" in executable.arrays:
        executable.arrays["net.seed"][0] = executable.graph.settings.seed


def write_loss_weights(executable: Executable) -> None:
    """Let backward start from the weights that losses have now."""
    for loss in executable.graph.losses():
        storage = f"{loss.name}.grad"
        executable.write(storage, np.full(executable.buffers[storage].shape, loss.loss_weight))
        executable.loss_weights[loss.name] = loss.loss_weight
