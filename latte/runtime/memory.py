"""The arrays of an executable: memory of their own, and memory that they share by liveness."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from latte.model.source_location import user_location
from latte.planning.memory import INFERENCE, PHASES, TRAINING, MemoryPlan, Span
from swirl.errors import DoesNotFit
from swirl.ir.buffers import DTYPES, Buffer
from swirl.run.memory import Arena, allocate, machine_bytes
from swirl.run.runner import Runner


class Store:
    """Arrays that several executables of a net may hold: those of the same name and layout are the same memory. An
    array is there as long as somebody holds it.

    Args:
        runner: whose threads touch the memory.
    """

    def __init__(self, runner: Runner):
        self._runner = runner
        self._arrays: WeakValueDictionary[Hashable, np.ndarray] = WeakValueDictionary()

    def known(self, buffer: Buffer) -> np.ndarray | None:
        """The array, if it has been allocated."""
        return self._arrays.get(place(buffer))

    def of(self, buffers: Iterable[Buffer]) -> dict[str, np.ndarray]:
        """The arrays by name. Those that are not known are allocated together, and zero."""
        found, new = {}, {}
        for buffer in buffers:
            if (array := self.known(buffer)) is not None:
                found[buffer.name] = array
            else:
                new[buffer.name] = buffer
        if new:
            wanted = {name: (buffer.physical_shape, DTYPES[buffer.dtype]) for name, buffer in new.items()}
            made = allocate(wanted, self._runner)
            self._arrays.update({place(new[name]): array for name, array in made.items()})
            found |= made
        return found


def place(buffer: Buffer) -> Hashable:
    """Equal for buffers that can be one array. A state of a smaller batch is the first items of a whole one's."""
    return buffer.name, buffer.layout, buffer.dtype, None if buffer.role == "state" else buffer.shape


class Region:
    """The memory that arrays share by liveness: once there, it only grows, and loses what it holds then.

    Args:
        runner: whose threads touch it.
    """

    def __init__(self, runner: Runner):
        self._runner = runner
        self.arena: Arena | None = None
        self.version = 0
        """Changes whenever the memory does."""

    def ready(self, whole: int, needed: int) -> None:
        """Let there be memory.

        Args:
            whole: bytes.
            needed: those of them, from the beginning, that must be touched.
        """
        if whole and (self.arena is None or self.arena.total_bytes < whole):
            self.arena = None  # before the larger one is made
            self.arena = Arena(whole, self._runner, touched=0)
            self.version += 1
        if self.arena is not None:
            self.arena.touch(needed)

    def bytes(self) -> np.ndarray:
        """All of it that has been touched."""
        return np.empty(0, np.uint8) if self.arena is None else self.arena.at(0, (self.arena.touched,), np.uint8)


@dataclass(frozen=True)
class Own:
    """What executables for one batch size hold, of which one runs at a time: arrays of their own, and shared memory."""

    store: Store
    region: Region


def check_fits(plan: MemoryPlan, line: str) -> None:
    """Refuse what the machine cannot hold, before anything is allocated.

    Args:
        plan: of the memory.
        line: ``training`` or ``inference``.

    Raises:
        DoesNotFit: with the bytes of what is kept, of what is shared and of the machine.
    """
    needed, there = plan.peak(line), machine_bytes()
    if needed > there:
        phases = [phase for phase, of in PHASES.items() if of == line]
        own = plan.bytes_alone(*phases)
        raise DoesNotFit(
            f"{'a training step' if line == TRAINING else 'inference'} needs {_gigabytes(needed)}: "
            f"{_gigabytes(own)} kept, {_gigabytes(needed - own)} shared; the machine has {_gigabytes(there)}",
            location=user_location(),
            way_out="a smaller batch needs less, and so does Net(batch_size, memory='less'); net.memory() tells more",
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


class Memory(Mapping[str, np.ndarray]):
    """Storage → array, as the phase that ran last has left it.

    Nothing is allocated before it is needed: what inference needs at the first inference, what forward needs at the
    first forward, gradients at the first backward. Training and inference use the same shared memory.

    Args:
        plan: where storage is.
        runner: whose threads touch the memory.
        lasting: storage that does not depend on the batch size.
        learned: the arrays of such storage in other executables of the net; by default there are none.
        own: what other executables for the same batch size hold, if only one of them runs at a time.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        runner: Runner,
        lasting: Iterable[str],
        learned: Store | None = None,
        own: Own | None = None,
    ):
        self.plan = plan
        self.learned = Store(runner) if learned is None else learned
        self.own = Own(Store(runner), Region(runner)) if own is None else own
        self.pinned: set[str] = set()
        self.phase = "forward" if plan.timelines[TRAINING].uses else INFERENCE
        """The phase that ran last, whose places are shown."""
        self._lasting = frozenset(lasting)
        self._arrays: dict[str, np.ndarray] = {}
        self._states: dict[str, np.ndarray] = {}
        self._fitting: set[str] = set()
        self._ready: set[tuple[str, Hashable]] = set()
        self._after: dict[str, tuple[dict[str, Span], set[str]]] = {}

    @property
    def version(self) -> Hashable:
        """Changes whenever places do: pointers that were taken before are out of date."""
        return self.own.region.version, len(self.pinned)

    def identity(self, storage: Iterable[str]) -> Hashable:
        """Equal for executables of a net in which such storage, that lasts, is the same memory."""
        return self.learned, frozenset(place(self.plan.buffers[name]) for name in storage)

    # --- of all storage -------------------------------------------------------------------------------------
    def __getitem__(self, storage: str) -> np.ndarray:
        if self.is_own(storage):
            return self._array(storage)
        spans = self.spans(self.phase)
        if storage not in spans:
            raise KeyError(storage)
        self.ready(self.phase)
        return self._shared(spans[storage])

    def __iter__(self) -> Iterator[str]:
        shown = self.spans(self.phase)
        return (name for name in self.plan.buffers if self.is_own(name) or name in shown)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, storage: object) -> bool:
        return isinstance(storage, str) and (self.is_own(storage) or storage in self.spans(self.phase))

    def known(self, storage: str) -> np.ndarray | None:
        """The array of a storage; None where it has not been allocated yet: nothing has been computed."""
        if self.is_own(storage):
            return self._own_array(self.plan.buffers[storage])
        span = self.spans(self.phase).get(storage)
        if span is None:
            return None
        if span.region:  # among equals, which need no arena
            return self._own_array(self.plan.equal[span.region][0])
        return None if self.own.region.arena is None else self._shared(span)

    # --- phases ---------------------------------------------------------------------------------------------
    def ready(self, phase: str) -> None:
        """Let the memory be there that a phase needs."""
        if phase not in self._fitting:
            check_fits(self.plan, PHASES[phase])
            self._fitting.add(phase)
        if (phase, self.version) in self._ready:
            return
        groups = self.plan.groups(phase)
        self._allocate(name for name, group in self.plan.alone.items() if group in groups)
        self._allocate(name for name, (_, group) in self.plan.equal.items() if group in groups)
        line = self.plan.timelines[PHASES[phase]]
        whole = self.plan.timelines[INFERENCE].size()
        if PHASES[phase] == TRAINING:
            whole = max(whole, line.size())
        self.own.region.ready(whole, line.size() if phase != "forward" else line.size(["forward"]))
        self._ready.add((phase, self.version))

    def table(self, phase: str, position: int, storage: Sequence[str], again: bool = False) -> list[np.ndarray]:
        """The arrays of a kernel's pointer table, once its phase is ready.

        Args:
            phase: of the net.
            position: of the kernel in it.
            storage: that the table names.
            again: whether states are to stay as they are.
        """
        timeline = self.plan.timelines[PHASES[phase]]
        number = timeline.phases[phase].start + position
        again = again or timeline.uses[number].again
        found = []
        for name in storage:
            if again and (self.plan.buffers[name].role == "state" or name in self.plan.remembered):
                found.append(self.before(name))
            elif self.is_own(name):
                found.append(self._array(name))
            else:
                found.append(self._shared(timeline.at(name, number)))
        return found

    def before(self, state: str) -> np.ndarray:
        """An array like a state, which kernels change in its place when they compute something again."""
        if state not in self._states:
            like = self[state]
            self._states |= allocate({state: (like.shape, like.dtype)})
        return self._states[state]

    def remember(self) -> None:
        """Keep what values of forward depend on as it is now, for computing them again."""
        for state in self.plan.remembered:
            self.before(state)[...] = self[state]

    def recall(self, other: Memory) -> None:
        """Let what values of forward depend on be what another executable, of the same net, remembers."""
        for state in self.plan.remembered & other._states.keys():
            mine, theirs = self.plan.buffers[state], other.plan.buffers[state]
            self.before(state)[...] = mine.layout.pack(theirs.layout.unpack(other.before(state), theirs.shape))

    def overwritten(self, phase: str) -> set[str]:
        """Storage whose contents are gone when a phase has run."""
        return self._known_after(phase)[1] - self.pinned

    def spans(self, phase: str) -> dict[str, Span]:
        """Shared storage → where it is when a phase has run."""
        return self._known_after(phase)[0]

    def _known_after(self, phase: str) -> tuple[dict[str, Span], set[str]]:
        if phase not in self._after:
            spans, lost = self.plan.timelines[PHASES[phase]].after(phase)
            elsewhere = {name for name in self.plan.buffers if self.plan.shares(name) and name not in spans}
            self._after[phase] = spans, lost | elsewhere
        return self._after[phase]

    # --- memory of its own ----------------------------------------------------------------------------------
    def pin(self, storage: str, holds: bool) -> None:
        """Give a storage memory of its own from now on.

        Args:
            storage: its name.
            holds: whether its contents are there; otherwise it begins with zeros.
        """
        if storage in self.pinned:
            return
        old = self.known(storage) if holds and not self.is_own(storage) else None
        self.pinned.add(storage)
        if old is not None:
            self._array(storage)[...] = old

    def snapshot(self, roles: Iterable[str]) -> Callable[[], None]:
        """Copy all memory of such roles, shared memory whole; what is returned sets it again."""
        wanted, region = set(roles), self.own.region
        held = (name for name, buffer in self.plan.buffers.items() if buffer.role in wanted and self.is_own(name))
        arrays = [array for name in held if (array := self.known(name)) is not None]
        arrays += [array for buffer, _ in self.plan.equal.values() if (array := self._own_array(buffer)) is not None]
        copies = [(array, array.copy()) for array in arrays]
        shares = region.arena is not None and bool(wanted & {"value", "grad", "temporary"})
        shared = region.bytes().copy() if shares else np.empty(0, np.uint8)

        def restore() -> None:
            for array, copy in copies:
                array[...] = copy
            if shares:  # the memory may be larger now
                region.bytes()[: len(shared)] = shared

        return restore

    def is_own(self, storage: str) -> bool:
        """Whether a storage has memory of its own."""
        return storage in self.plan.alone or storage in self.pinned

    def _store(self, buffer: Buffer) -> Store:
        return self.learned if buffer.name in self._lasting else self.own.store

    def _own_array(self, buffer: Buffer) -> np.ndarray | None:
        """An array of its own; None where nobody has allocated it yet."""
        if buffer.name not in self._arrays:
            known = self._store(buffer).known(buffer)
            if known is None:
                return None
            self._arrays[buffer.name] = known
        return self._arrays[buffer.name]

    def _array(self, name: str) -> np.ndarray:
        """A storage of its own, or a place among equals, allocated with all others that are needed when it is."""
        if name not in self._arrays:
            group = self.plan.alone.get(name)
            self._allocate([name] if group is None else [n for n, g in self.plan.alone.items() if g == group])
        return self._arrays[name]

    def _allocate(self, names: Iterable[str]) -> None:
        wanted = [self._buffer(name) for name in names if name not in self._arrays]
        for store in (self.learned, self.own.store):
            self._arrays |= store.of(buffer for buffer in wanted if self._store(buffer) is store)

    def _buffer(self, name: str) -> Buffer:
        return self.plan.equal[name][0] if name in self.plan.equal else self.plan.buffers[name]

    def _shared(self, span: Span) -> np.ndarray:
        if span.region:
            return self._array(span.region)
        buffer, arena = self.plan.buffers[span.storage], self.own.region.arena
        assert arena is not None
        return arena.at(span.offset, buffer.physical_shape, DTYPES[buffer.dtype])
