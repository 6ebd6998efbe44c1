"""The arrays of an executable: memory of their own, and memory that they share by liveness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from latte.model.source_location import user_location
from latte.planning.memory import INFERENCE, PHASES, TRAINING, MemoryPlan, Span
from swirl.errors import DoesNotFit
from swirl.ir.buffers import DTYPES, Buffer
from swirl.memory import Arena, allocate, machine_bytes
from swirl.runner import Runner


@dataclass(frozen=True)
class _Spec:
    """An array to be allocated with the others of its group; without a group, by itself."""

    buffer: Buffer
    group: str | None


class Store:
    """Arrays with memory of their own, zeroed and allocated group by group once they are needed.

    Args:
        runner: whose threads touch the memory.
    """

    def __init__(self, runner: Runner):
        self._runner = runner
        self._specs: dict[str, _Spec] = {}
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, buffers: Mapping[str, Buffer], groups: Mapping[str, str | None]) -> None:
        """Know of further arrays; those that are known stay as they are."""
        for name, buffer in buffers.items():
            self._specs.setdefault(name, _Spec(buffer, groups[name]))

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            group = self._specs[name].group
            self._allocate([name]) if group is None else self.ready([group])
        return self._arrays[name]

    def known(self, name: str) -> np.ndarray | None:
        """The array, if it has been allocated."""
        return self._arrays.get(name)

    def ready(self, groups: Iterable[str | None]) -> None:
        """Allocate these groups."""
        for group in groups:
            self._allocate([n for n, spec in self._specs.items() if spec.group == group and n not in self._arrays])

    def _allocate(self, names: Sequence[str]) -> None:
        if names:
            specs = {name: self._specs[name].buffer for name in names}
            wanted = {name: (buffer.physical_shape, DTYPES[buffer.dtype]) for name, buffer in specs.items()}
            self._arrays |= allocate(wanted, self._runner)

    def buffer(self, name: str) -> Buffer:
        """What an array holds, with its layout."""
        return self._specs[name].buffer


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
        learned: the arrays that do not depend on the batch size, for all executables of a net; those of this plan are
            added.
        lasting: which storage that is.
    """

    def __init__(self, plan: MemoryPlan, runner: Runner, learned: Store, lasting: Iterable[str]):
        self.plan = plan
        self.learned = learned
        self.pinned: set[str] = set()
        self.phase = "forward" if plan.timelines[TRAINING].uses else INFERENCE
        """The phase that ran last, whose places are shown."""
        self.version = 0
        """Changes whenever places do: pointers that were taken before are out of date."""
        self._runner = runner
        self._lasting = frozenset(lasting)
        self._own = Store(runner)
        alone = {name: plan.buffers[name] for name in plan.alone}
        learned.add({name: b for name, b in alone.items() if name in self._lasting}, plan.alone)
        self._own.add({name: b for name, b in alone.items() if name not in self._lasting}, plan.alone)
        self._own.add({place: b for place, (b, _) in plan.equal.items()}, {p: g for p, (_, g) in plan.equal.items()})
        self._region: Arena | None = None
        self._states: dict[str, np.ndarray] = {}
        self._fitting: set[str] = set()
        self._after: dict[str, tuple[dict[str, Span], set[str]]] = {}

    # --- of all storage -------------------------------------------------------------------------------------
    def __getitem__(self, storage: str) -> np.ndarray:
        if storage in self.plan.alone or storage in self.pinned:
            return self._store(storage)[storage]
        spans = self.spans(self.phase)
        if storage not in spans:
            raise KeyError(storage)
        self.ready(self.phase)
        return self._array(spans[storage])

    def __iter__(self) -> Iterator[str]:
        shown = self.spans(self.phase)
        return (name for name in self.plan.buffers if self._is_own(name) or name in shown)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, storage: object) -> bool:
        return isinstance(storage, str) and (self._is_own(storage) or storage in self.spans(self.phase))

    def known(self, storage: str) -> np.ndarray | None:
        """The array of a storage; None where it has not been allocated yet: nothing has been computed."""
        if self._is_own(storage):
            return self._store(storage).known(storage)
        return self[storage] if self._region is not None and storage in self else None

    # --- phases ---------------------------------------------------------------------------------------------
    def ready(self, phase: str) -> None:
        """Let the memory be there that a phase needs."""
        if phase not in self._fitting:
            check_fits(self.plan, PHASES[phase])
            self._fitting.add(phase)
        groups = self.plan.groups(phase)
        self.learned.ready(groups)
        self._own.ready(groups)
        line = self.plan.timelines[PHASES[phase]]
        whole = self.plan.timelines[INFERENCE].size()
        if PHASES[phase] == TRAINING:
            whole = max(whole, line.size())
        if whole and (self._region is None or self._region.total_bytes < whole):
            self._region = None  # before the larger one is made
            self._region = Arena(whole, self._runner, touched=0)
            self.version += 1
        if self._region is not None:
            needed = line.size() if phase != "forward" else line.size(["forward"])
            self._region.touch(needed)

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
            elif self._is_own(name):
                found.append(self._store(name)[name])
            else:
                found.append(self._array(timeline.at(name, number)))
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

    def overwritten(self, phase: str) -> set[str]:
        """Storage whose contents are gone when a phase has run."""
        spans, lost = self._known_after(phase)
        elsewhere = {name for name in self.plan.buffers if self.plan.shares(name) and name not in spans}
        return (lost | elsewhere) - self.pinned

    def spans(self, phase: str) -> dict[str, Span]:
        """Shared storage → where it is when a phase has run."""
        return self._known_after(phase)[0]

    def _known_after(self, phase: str) -> tuple[dict[str, Span], set[str]]:
        if phase not in self._after:
            self._after[phase] = self.plan.timelines[PHASES[phase]].after(phase)
        return self._after[phase]

    # --- memory of its own ----------------------------------------------------------------------------------
    def pin(self, storage: str, holds: bool) -> None:
        """Give a storage memory of its own from now on.

        Args:
            storage: its name.
            holds: whether its contents are there; otherwise it begins with zeros.
        """
        if self._is_own(storage):
            return
        old = self.known(storage) if holds else None
        self._own.add({storage: self.plan.buffers[storage]}, {storage: None})
        if old is not None:
            self._own[storage][...] = old
        self.pinned.add(storage)
        self.version += 1

    def snapshot(self, roles: Iterable[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Copies of all memory of such roles, shared memory whole: pairs of an array and its copy."""
        wanted = set(roles)
        arrays = [
            array
            for name, buffer in self.plan.buffers.items()
            if buffer.role in wanted and self._is_own(name) and (array := self.known(name)) is not None
        ]
        arrays += [array for place in self.plan.equal if (array := self._own.known(place)) is not None]
        if self._region is not None and wanted & {"value", "grad", "temporary"}:
            arrays.append(self._region.at(0, (self._region.touched,), np.uint8))
        return [(array, array.copy()) for array in arrays]

    def _is_own(self, storage: str) -> bool:
        return storage in self.plan.alone or storage in self.pinned

    def _store(self, storage: str) -> Store:
        return self.learned if storage in self._lasting else self._own

    def _array(self, span: Span) -> np.ndarray:
        buffer = self.plan.buffers[span.storage]
        if span.region:
            return self._own[span.region]
        assert self._region is not None
        return self._region.at(span.offset, buffer.physical_shape, DTYPES[buffer.dtype])
