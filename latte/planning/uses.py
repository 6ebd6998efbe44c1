"""What kernels do with storage: what they need of it, what they set whole, what they change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from latte.autodiff.differentiated import LayerPrograms
from swirl.analysis.needs import Needs, needs
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE


@dataclass(frozen=True)
class Use:
    """One kernel in the order of execution.

    Args:
        unit: name of the layer or chain.
        phase: of the kernel.
        touched: the storage of its pointer table.
        read: of this, whose earlier contents may matter to it.
        whole: of this, which it sets whole, whatever was there before.
        changed: of this, which it may change.
        again: whether it computes again what it has computed before, and must not change states.
    """

    unit: str
    phase: str
    touched: frozenset[str]
    read: frozenset[str]
    whole: frozenset[str]
    changed: frozenset[str] = frozenset()
    again: bool = False


class Uses:
    """What the kernels of a net do with its storage.

    Args:
        programs: of all layers, as they are lowered and derived.
    """

    def __init__(self, programs: Sequence[LayerPrograms]):
        self._programs = {(item.ensemble.name, phase): p for item in programs for phase, p in item.programs.items()}
        self._declared = {b.name for p in self._programs.values() for b in p.buffers.values()}
        self._known: dict[object, Needs] = {}

    def of(self, unit: str, layers: Sequence[str], phase: str, touched: Collection[str], alone: bool) -> Use:
        """What one kernel does.

        Storage of its own, which the schedule has added, starts anew in each kernel; of storage that other layers
        declare and its own programs do not mention, nothing is known, and it counts as read.

        Args:
            unit: its name.
            layers: names of its layers, sources first.
            phase: of the kernel.
            touched: the storage of its pointer table.
            alone: whether its layers' updates are kernels of their own; otherwise they are at the end of backward.
        """
        ordered = layers if phase in ("forward", INFERENCE) else layers[::-1]
        phases = (phase,) if alone or phase != "backward" else (phase, "update")
        own = [self._programs[name, each] for each in phases for name in ordered if (name, each) in self._programs]
        read, whole, changed, mentioned = set[str](), set[str](), set[str](), set[str]()
        for program in own:
            found = self._needs(program)
            storage = {local: buffer.name for local, buffer in program.buffers.items()}
            mentioned |= set(storage.values())
            read |= {storage[local] for local in found.read} - whole
            whole |= {storage[local] for local in found.whole} - read
            changed |= {storage[local] for local in found.computed_from}
        every = frozenset(touched)
        read |= (every & self._declared) - mentioned
        whole |= every - self._declared
        changed |= every - self._declared
        return Use(unit, phase, every, every & read, every & whole, every & changed)

    def remembered(self, states: Collection[str]) -> set[str]:
        """States that values of forward depend on: to compute a value again takes what they were before."""
        found = set[str]()
        for (_, phase), program in self._programs.items():
            if phase == "forward":
                storage = {local: buffer.name for local, buffer in program.buffers.items()}
                for local, sources in self._needs(program).computed_from.items():
                    if storage[local] not in states:
                        found |= {storage[source] for source in sources} & set(states)
        return found

    def _needs(self, program: Program) -> Needs:
        """Of a program; equal layers have equal ones."""
        key = (
            tuple(nest.body_text for nest in program.nests),
            tuple((local, buffer.shape, buffer.dtype) for local, buffer in program.buffers.items()),
        )
        if key not in self._known:
            self._known[key] = needs(program)
        return self._known[key]
