"""Explanations for people: numbers with units, and tables of loops."""

from __future__ import annotations

from collections.abc import Sequence

from latte.explain.facts import LoopFact, NestFact
from swirl.analysis.work import Work


def amount(number: float, unit: str) -> str:
    """``12.3 MB`` for 12345678 bytes: three digits, and a prefix of 1000."""
    for prefix in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:,.3g} T{unit}"


def microseconds(seconds: float) -> str:
    """``1,234.5``."""
    return f"{seconds * 1e6:,.1f}"


def operations(work: Work) -> str:
    """Floating-point operations of one execution (the mean, where they differ)."""
    return f"{'' if work.exact else '≤ '}{amount(work.operations / max(1, work.executions), 'flop')}"


def memory(work: Work) -> str:
    """Bytes touched in one execution."""
    exact = all(touched.exact for touched in work.touched)
    return f"{'' if exact else '≤ '}{amount(work.bytes, 'B')}"


def parts(work: Work) -> str:
    """The bytes by buffer, most first; ``*`` marks those written."""
    most_first = sorted(work.touched, key=lambda touched: -touched.bytes)
    return ", ".join(f"{t.buffer}{'*' if t.written else ''} {amount(t.bytes, 'B')}" for t in most_first)


def trips(fact: LoopFact) -> str:
    """The number of iterations."""
    return "" if fact.trips is None else f"{'' if fact.exact else '≤ '}{fact.trips}"


def loop_lines(facts: Sequence[LoopFact]) -> list[str]:
    """One line for each loop, under the label of its nest."""
    names = ["  " * (fact.depth + 1) + fact.variable for fact in facts]
    width = max([26, *map(len, names)])
    title = "of one execution:".ljust(width + 20)
    lines = [f"{title} {'operations':>12} {'bytes':>10}   of which (* written)"] if facts else []
    nest = ""
    for fact, name in zip(facts, names, strict=True):
        if fact.nest != nest:
            nest = fact.nest
            lines.append(nest)
        kind = "" if fact.kind == "range" else fact.kind
        computed = operations(fact.work) if fact.work.operations else ""
        work = f"{computed:>12} {memory(fact.work) if fact.work.touched else '':>10}   {parts(fact.work)}"
        lines.append(f"{name:{width}} {trips(fact):>9} {kind:9} {work}".rstrip())
    return lines


MODEL = ("lanes used", "multiply-adds", "loads", "stores", "into level 1", "level 2", "memory")
"""Headings of what the model counts."""
MEASURED = ("model, µs", "measured", "of the model", "bound by")
"""Headings of what follows from a profile."""


def model_cells(facts: Sequence[NestFact]) -> list[tuple[str, ...]]:
    """A table: headings, and a row for each nest, with its label first."""
    measured = any(fact.measured is not None for fact in facts)
    return [
        ("", *MODEL, *(MEASURED if measured else ())),
        *((fact.label, *_demand_cells(fact), *(_times(fact) if measured else ())) for fact in facts),
    ]


def _demand_cells(fact: NestFact) -> tuple[str, ...]:
    asked = fact.demand
    instructions = (amount(number, "").strip() for number in (asked.multiply_adds, asked.loads, asked.stores))
    traffic = (amount(number, "B") for number in (asked.level1, asked.level2, asked.memory))
    return (f"{asked.lanes:.0%}", *instructions, *traffic)


def _times(fact: NestFact) -> tuple[str, ...]:
    if fact.measured is None or fact.predicted is None:
        return ("",) * len(MEASURED)
    share = f"{fact.predicted / fact.measured:.0%}" if fact.measured else ""
    return microseconds(fact.predicted), microseconds(fact.measured), share, fact.slowest


def model_lines(facts: Sequence[NestFact]) -> list[str]:
    """The table as lines: a column as wide as its longest cell."""
    rows = model_cells(facts)
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return (
        ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows] if facts else []
    )
