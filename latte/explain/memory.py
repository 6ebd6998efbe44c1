"""The memory of a net: by layer and phase, before it has any."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from latte.explain.showing import amount
from latte.model.graph import Graph
from latte.planning.memory import INFERENCE, PHASES, TRAINING, MemoryPlan, rounded
from latte.runtime.executable import Executable
from latte.runtime.kernels import GeneratedPhase
from swirl.codegen.scratch import thread_bytes
from swirl.run.memory import machine_bytes
from swirl.target.targets import Target

WIDTH = 120
GRADIENTS = ("grad", "param_grad")
"""Roles of what the first training step allocates."""

COLUMNS = ("kept", "gradients", "forward", "backward", "inference")


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer.

    Args:
        name: of the layer; of what belongs to no layer alone ``""``.
        kept: of arrays that nothing overwrites: parameters, statistics, data, outputs, what is smaller than a page.
        gradients: of such arrays, those of gradients.
        forward, backward, inference: of arrays that this phase sets, and that others overwrite later.
    """

    name: str
    kept: int
    gradients: int
    forward: int
    backward: int
    inference: int


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes of inference, or of a training step.

    Args:
        name: ``inference`` or ``training``.
        kept: of arrays that nothing overwrites, gradients too.
        shared: of the memory that arrays share.
        scratch: what kernels keep on all threads.
        apart: what the arrays that share would take if each had memory of its own.
        fullest: the layer or chain and the phase of the kernel during which most bytes are in use.
    """

    name: str
    kept: int
    shared: int
    scratch: int
    apart: int
    fullest: str

    @property
    def peak(self) -> int:
        """Bytes in all."""
        return self.kept + self.shared + self.scratch


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a net. ``print`` shows it, ``to_json`` gives it to programs. Not in it: the arrays of a solver (SGD
    with momentum keeps one of the size of the parameters, Adam two), batches that wait, and Python.

    Args:
        batch_size: that it is for.
        layers: in the order of their declaration; the last row is what belongs to no layer alone.
        phases: of inference and of a training step; where both run, they use the same shared memory.
        peak: bytes when all phases have run.
        machine: bytes that the machine, or the container, has.
    """

    batch_size: int
    layers: tuple[LayerMemory, ...]
    phases: tuple[PhaseMemory, ...]
    peak: int
    machine: int

    def __getitem__(self, name: str) -> PhaseMemory:
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def fits(self) -> bool:
        """Whether the machine has so much."""
        return self.peak <= self.machine

    def __str__(self) -> str:
        cells = ((row.name or "others", [getattr(row, column) for column in COLUMNS]) for row in self.layers)
        rows = [(name, *map(_bytes, numbers)) for name, numbers in cells if any(numbers)]
        phases = [
            (each.name, *map(_bytes, (each.kept, each.shared, each.scratch, each.peak, each.apart)), each.fullest)
            for each in self.phases
        ]
        title = f"batch size {self.batch_size}: {_bytes(self.peak)} in all, of {_bytes(self.machine)} that there are"
        return "\n\n".join(
            (
                title,
                _table(("layer", *COLUMNS), rows),
                _table(("phase", "kept", "shared", "scratch", "peak", "shared, if apart", "fullest during"), phases),
            )
        )

    def to_json(self) -> str:
        """The same as a JSON object."""
        phases = [{**asdict(each), "peak": each.peak} for each in self.phases]
        return json.dumps({**asdict(self), "phases": phases}, indent=2)


def _bytes(count: int) -> str:
    return amount(count, "B") if count else ""


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 or heading.startswith("fullest") else "right")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(table, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def memory_report(executable: Executable) -> MemoryReport:
    """The memory of a net that is compiled."""
    scratch = scratch_bytes(executable.order, executable.plan.target, executable.runner.threads)
    return report_of(executable.graph, executable.memory.plan, executable.batch_size, scratch)


def scratch_bytes(order: Mapping[str, Sequence[GeneratedPhase]], target: Target, threads: int) -> dict[str, int]:
    """Phase of the net → bytes that its kernels keep on all threads; what two phases share is the first one's."""
    found, seen = {}, set[object]()
    width = 0 if target.name == "portable" else target.simd_width
    for phase in PHASES:
        found[phase] = 0
        for step in order.get(phase, ()):
            key = tuple(nest.body_text for nest in step.program.nests)
            if key not in seen:
                seen.add(key)
                found[phase] += threads * thread_bytes(step.program, width)
    return found


def report_of(graph: Graph, plan: MemoryPlan, batch_size: int, scratch: dict[str, int]) -> MemoryReport:
    """The report of a plan.

    Args:
        graph: of the net.
        plan: of its memory.
        batch_size: that it is for.
        scratch: phase → bytes that its kernels keep on all threads.
    """
    names = [ensemble.name for ensemble in graph.ensembles]
    rows: dict[str, dict[str, int]] = {name: dict.fromkeys(COLUMNS, 0) for name in (*names, "")}
    for storage, group in plan.alone.items():
        buffer = plan.buffers[storage]
        if group is not None:
            row = rows.get(storage.partition(".")[0], rows[""])
            row["gradients" if buffer.role in GRADIENTS else "kept"] += rounded(buffer.nbytes)
    for line in plan.timelines.values():
        for phase, numbers in line.phases.items():
            for storage in {span.storage for span in line.spans if span.first in numbers}:
                rows.get(storage.partition(".")[0], rows[""])[phase] += rounded(plan.buffers[storage].nbytes)
    phases = []
    for name, line in plan.timelines.items():
        if line.uses:
            own = [phase for phase in PHASES if PHASES[phase] == name]
            fullest = line.uses[max(range(len(line.uses)), key=line.live)]
            phases.append(
                PhaseMemory(
                    name,
                    plan.bytes_alone(*own),
                    line.size(),
                    sum(scratch[phase] for phase in own),
                    sum(rounded(plan.buffers[storage].nbytes) for storage in line.of),
                    f"{fullest.unit}, {fullest.phase}",
                )
            )
    peak = plan.peak() + sum(scratch.values())
    order = {INFERENCE: 0, TRAINING: 1}
    layers = tuple(LayerMemory(name, **row) for name, row in rows.items())
    return MemoryReport(
        batch_size, layers, tuple(sorted(phases, key=lambda each: order[each.name])), peak, machine_bytes()
    )
