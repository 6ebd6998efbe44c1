"""A net at a glance: its layers with shapes, parameters, memory and operations."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from math import prod

import jinja2
from rich.console import Console
from rich.table import Table

from latte.explain.showing import amount
from latte.frontend.lowered import lower_layers
from latte.model.frozen import frozen_now
from latte.model.graph import Graph
from latte.runtime.executable import Executable
from swirl.analysis.work import program_work
from swirl.ir.buffers import DTYPES

WIDTH = 120


@dataclass(frozen=True)
class LayerRow:
    """One layer.

    Args:
        name, kind, shape: of the layer; the shape without the batch.
        sources: names of the layers that it reads.
        parameters: number of elements of its own parameters.
        memory: bytes of its values, gradients, parameters and other arrays, for a batch.
        operations: floating-point operations of forward, for a batch; of a fused multiply-add two.
        exact: whether it is exactly that number of operations, not at most that.
        shared: parameters of other layers that it reads (``conv1.weights``): they count in the rows of these.
        frozen: number of elements of its own parameters that do not train.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    parameters: int
    memory: int
    operations: int
    exact: bool
    shared: tuple[str, ...] = ()
    frozen: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows of it."""
        parameters = [f"{self.parameters:,}"] if self.parameters else []
        if self.frozen:
            parameters[0] += " frozen" if self.frozen == self.parameters else f" ({self.frozen:,} frozen)"
        operations = f"{'' if self.exact else '≤ '}{amount(self.operations, 'flop')}" if self.operations else ""
        return (
            self.name,
            self.kind,
            " × ".join(map(str, self.shape)),
            ", ".join(self.sources),
            " + ".join([*parameters, "shared"] if self.shared else parameters),
            amount(self.memory, "B") if self.memory else "",
            operations,
        )


HEADINGS = ("layer", "kind", "shape", "reads", "parameters", "memory", "forward")
NUMBERS = HEADINGS[4:]


@dataclass(frozen=True)
class Summary:
    """A net at a glance. ``print`` shows it, a notebook shows it as a page, ``to_json`` gives it to programs.

    Args:
        batch_size: that memory and operations are for.
        compiled: whether memory is what the compiled net has: arrays that are fused away are not in it, and arrays that
            the compiler has added are.
        layers: in the order of their declaration.
        others: bytes of arrays that belong to no layer alone.
    """

    batch_size: int
    compiled: bool
    layers: tuple[LayerRow, ...]
    others: int

    @property
    def parameters(self) -> int:
        """Number of elements of parameters."""
        return sum(row.parameters for row in self.layers)

    @property
    def frozen(self) -> int:
        """Number of those that do not train."""
        return sum(row.frozen for row in self.layers)

    @property
    def memory(self) -> int:
        """Bytes of all arrays, each by itself (``net.memory()`` tells what they take together); without a solver's."""
        return self.others + sum(row.memory for row in self.layers)

    @property
    def operations(self) -> int:
        """Floating-point operations of forward, for a batch."""
        return sum(row.operations for row in self.layers)

    @property
    def title(self) -> str:
        """What the numbers are for."""
        declared = "" if self.compiled else ", as declared: compiling may fuse arrays away, and add others"
        return f"{len(self.layers)} layers, batch size {self.batch_size}{declared}"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of all layers, and of all together."""
        exact = all(row.exact for row in self.layers)
        total = LayerRow("all", "", (), (), self.parameters, self.memory, self.operations, exact, frozen=self.frozen)
        return [*(row.cells for row in self.layers), total.cells]

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False)
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading in NUMBERS else "left")
        for number, row in enumerate(self.rows):
            if number == len(self.layers):
                table.add_row()
            table.add_row(*row)
        text = io.StringIO()
        console = Console(file=text, width=WIDTH)
        console.print(self.title, highlight=False, markup=False)
        console.print()
        console.print(table, highlight=False, markup=False)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        loader = jinja2.PackageLoader("latte.explain", "templates")
        environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
        page = environment.get_template("summary.html.j2")
        return page.render(s=self, headings=HEADINGS, numbers=NUMBERS)

    def to_json(self) -> str:
        """The same as a JSON object."""
        sums = {name: getattr(self, name) for name in ("parameters", "frozen", "memory", "operations")}
        return json.dumps({**asdict(self), **sums}, indent=2)


def summary(graph: Graph, executable: Executable | None = None) -> Summary:
    """A net at a glance, compiled or not.

    Args:
        graph: of the net.
        executable: of the batch size that memory and operations are for; by default the net's whole batch.

    Raises:
        BodyError, DeclarationError: a layer cannot be lowered.
    """
    now = frozen_now(graph)
    frozen = now.parameters
    batch_size = graph.settings.batch_size if executable is None else executable.items
    lowered = lower_layers(graph, batch_size)
    works = {
        name: program_work(layer.inference if name in now.inferring else layer.forward)
        for name, layer in lowered.items()
    }
    if executable is None:
        bytes_of = {
            spec.storage: prod(spec.shape) * DTYPES[spec.dtype](0).nbytes
            for ensemble in graph.ensembles
            for spec in ensemble.fields(batch_size).values()
        }
        for spec in (spec for e in graph.ensembles for spec in e.fields().values() if spec.storage in frozen):
            bytes_of.pop(spec.gradient.storage, None)
    else:
        bytes_of = {name: buffer.nbytes for name, buffer in executable.buffers.items()}
    rows = []
    for ensemble in graph.ensembles:
        own = [spec for spec in ensemble.fields(batch_size).values() if spec.role == "param"]
        shared = [spec.storage for spec in own if spec.storage.split(".")[0] != ensemble.name]
        work = works.get(ensemble.name)
        rows.append(
            LayerRow(
                ensemble.name,
                ensemble.kind,
                ensemble.shape,
                tuple(dict.fromkeys(edge.source.name for edge in ensemble.connections)),
                sum(prod(spec.shape) for spec in own if spec.storage not in shared),
                sum(size for name, size in bytes_of.items() if name.split(".")[0] == ensemble.name),
                work.operations if work is not None else 0,
                work is None or work.exact,
                tuple(shared),
                sum(prod(spec.shape) for spec in own if spec.storage in frozen.difference(shared)),
            )
        )
    return Summary(
        batch_size, executable is not None, tuple(rows), sum(bytes_of.values()) - sum(row.memory for row in rows)
    )
