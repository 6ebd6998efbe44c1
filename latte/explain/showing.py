"""Explanations for people: numbers with units, and tables of loops."""

from __future__ import annotations

from collections.abc import Sequence

from latte.explain.facts import LoopFact
from swirl.ir.work import Work


def amount(number: float, unit: str) -> str:
    """``12.3 MB`` for 12345678 bytes: three digits, and a prefix of 1000."""
    for prefix in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:,.3g} T{unit}"


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
