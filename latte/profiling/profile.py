"""A profile as people read it: a table, a page in a notebook, a plot, JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import jinja2
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from latte.explain.explanation import Explanation
from latte.explain.facts import NestFact
from latte.explain.showing import amount, microseconds
from latte.profiling import rows as shown
from latte.profiling.roofline import Roofs, draw
from latte.profiling.rows import Row
from swirl.errors import DataError

WIDTH = 120
"""Columns of the table where it is not written to a terminal."""

NARROW = 100
"""A terminal of fewer columns gets fewer of them."""

COLUMNS: Mapping[str, Callable[[Row, bool], str]] = {
    "µs": lambda row, narrow: "" if row.nest and not narrow else microseconds(row.seconds),
    "spread": lambda row, narrow: shown.spread(row),
    "apart": lambda row, narrow: microseconds(row.seconds if row.nest else row.separately),
    "share": lambda row, narrow: f"{row.share:.1%}",
    "Gflop/s": lambda row, narrow: shown.arithmetic_rate(row),
    "GB/s": lambda row, narrow: shown.rate(row.gb_per_second),
    "of limit": lambda row, narrow: shown.of_limit(row),
}
"""Heading → the cell of a row, in the whole or in the narrow table."""

APART = "apart: the loop nests of the row as kernels of their own, one after the other; below it, each of them"
NESTS = "the times of loop nests are those of kernels of their own, one after the other"
CACHED = "* more than memory can give: the data of this row fit in a cache"
AT_MOST = "≤ at most: what this row computes or touches depends on data, or is not known exactly"


@dataclass(frozen=True)
class Profile:
    """Where the time of a training step goes, and how far each part is from what the machine can do. ``print`` shows a
    table, a notebook a page, ``plot`` draws the roofline, ``to_json`` is for programs.

    Args:
        machine: its processor.
        target: what the code is made for.
        threads: of OpenMP.
        batch_size: items in the batch.
        repeat: number of rounds; times are medians.
        peak: floating-point operations a second of multiply-adds in registers, the best round.
        bandwidth: bytes a second of reading memory, the best round.
        rows: layer by layer and phase by phase, in the order in which they run.
        level2, level3: bytes a second of reading what these caches hold, likewise.
        whole: items of a whole batch, for which operations and bytes are counted.
    """

    machine: str
    target: str
    threads: int
    batch_size: int
    repeat: int
    peak: float
    bandwidth: float
    rows: tuple[Row, ...]
    level2: float = 0.0
    level3: float = 0.0
    whole: int = 0

    @property
    def seconds(self) -> float:
        """Of a training step without its solver: forward, backward and update of all layers."""
        return sum(row.seconds for row in self.rows)

    @property
    def title(self) -> str:
        """What was measured."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        counted = f" (operations and bytes of {self.whole})" if self.whole > self.batch_size else ""
        return f"training step, batch size {self.batch_size}{counted}, {self.target}, {threads} of {self.machine}"

    @property
    def limits(self) -> str:
        """What the machine can do at the best, and how all this was measured."""
        rounds = "1 round" if self.repeat == 1 else f"median of {self.repeat} rounds"
        return (
            f"limits: {amount(self.peak, 'flop/s')} multiply-adds in registers, "
            f"{amount(self.bandwidth, 'B/s')} reading memory; {rounds}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the signs in the table mean."""
        every = [*self.rows, *(nest for row in self.rows for nest in row.nests)]
        others = ((CACHED, any(map(shown.is_cached, every))), (AT_MOST, not all(row.exact for row in every)))
        return (APART, *(note for note, wanted in others if wanted))

    @property
    def total(self) -> Row:
        """All rows as one; the time that the limits allow is the sum of theirs."""
        limit = sum(row.limit for row in self.rows)
        compute = sum(row.limit for row in self.rows if row.bound == shown.COMPUTE)
        return Row(
            ensemble="all",
            phase="",
            nest="",
            writes=(),
            seconds=self.seconds,
            spread=(sum(row.spread[0] for row in self.rows), sum(row.spread[1] for row in self.rows)),
            share=sum(row.share for row in self.rows),
            operations=sum(row.operations for row in self.rows),
            bytes=sum(row.bytes for row in self.rows),
            exact=all(row.exact for row in self.rows),
            limit=limit,
            bound=shown.COMPUTE if compute > limit / 2 else shown.MEMORY,
            nests=tuple(nest for row in self.rows for nest in row.nests),
        )

    def table(self, narrow: bool = False) -> Table:
        """The rows as a table of ``rich``, nests below their layer where it has several.

        Args:
            narrow: without the spread, and without what nests take apart: for a terminal of 80 columns.
        """
        left_out = ("spread", "apart") if narrow else ()
        headings = [heading for heading in COLUMNS if heading not in left_out]
        table = Table(box=None, pad_edge=False)
        table.add_column("layer, loop nest")  # what gives way on a narrow terminal
        table.add_column("phase", no_wrap=True)
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)

        def add(row: Row, style: str | None = None) -> None:
            indent = 2 if row.nest else 0
            cells = [COLUMNS[heading](row, narrow) for heading in headings]
            named = Padding(Text(shown.name(row)), (0, 0, 0, indent))
            table.add_row(named, "" if row.nest else row.phase, *cells, style=style)

        for row in self.rows:
            add(row)
            for nest in row.nests if len(row.nests) > 1 else ():
                add(nest, "dim")
        table.add_row()
        add(self.total)
        return table

    def print(self, console: Console | None = None) -> None:
        """Show the table on the terminal; in a file it is as wide as it has to be."""
        console = console or Console()
        if console.is_terminal:
            self._show(console)
        else:
            console.print(str(self), highlight=False, markup=False, soft_wrap=True)

    def _show(self, console: Console) -> None:
        for line in (self.title, self.limits, ""):
            console.print(line, highlight=False, markup=False)
        narrow = console.width < NARROW
        console.print(self.table(narrow))
        for line in ("", *((NESTS, *self.notes[1:]) if narrow else self.notes)):
            console.print(line, highlight=False, markup=False)

    def __str__(self) -> str:
        text = io.StringIO()
        self._show(Console(file=text, width=WIDTH))
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(_page().render(p=self, show=shown, microseconds=microseconds))

    def to_json(self) -> str:
        """The same as a JSON object, with rates and shares; :meth:`from_json` reads it."""
        facts = {**vars(self), "seconds": self.seconds, "rows": [row.facts() for row in self.rows]}
        return json.dumps(facts, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The profile that :meth:`to_json` wrote: to be shown, plotted or compared later.

        Raises:
            DataError: it is not the JSON of a profile.
        """
        try:
            facts = json.loads(text)
            del facts["seconds"]
            return cls(**{**facts, "rows": tuple(map(Row.of_facts, facts["rows"]))})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError("this is not the JSON of a profile", way_out="Profile.to_json() writes it") from error

    def beside(self, explanation: Explanation) -> Explanation:
        """An explanation of the same net (``net.explain("conv1")``) with the measured time of each loop nest beside the
        one that the model predicts. Phases that no training step runs have neither.

        Raises:
            DataError: the profile is of other loop nests: of another net, batch size, target or recipe.
        """
        measured = {(row.phase, nest.nest): nest for row in self.rows for nest in row.nests}

        def timed(phase: str, fact: NestFact) -> NestFact:
            row = measured.get((phase, fact.label))
            if row is None or row.demand is None:
                return fact
            if row.demand != fact.demand:
                raise DataError(
                    f"this profile is of another net: its nest {fact.label} differs from the one that is explained",
                    way_out="profile the net that is explained, compiled for the same batch size and target",
                )
            return replace(fact, predicted=row.predicted, slowest=row.slowest, measured=row.seconds)

        phases = [replace(p, nests=tuple(timed(p.phase, nest) for nest in p.nests)) for p in explanation.phases]
        return replace(explanation, phases=tuple(phases))

    def plot(self, path: str | Path) -> None:
        """Draw the roofline: operations a byte against Gflop/s, a point for each layer and phase below the roofs that
        multiply-adds and memory set.

        Args:
            path: of the PNG file; matplotlib's other formats (``.svg``, ``.pdf``) go by their suffix.

        Raises:
            CommandError: matplotlib is missing, it knows no such format, or the file cannot be written.
        """
        draw(self.rows, Roofs(self.peak, self.bandwidth), self.title, path)


@lru_cache(maxsize=1)
def _page() -> jinja2.Template:
    loader = jinja2.PackageLoader("latte.profiling", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("profile.html.j2")
