"""Refusals that show the nest as it is, with the loop marked."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from swirl.analysis.dependences import Conflict
from swirl.errors import Refused
from swirl.ir.nest import Loop, Nest, constant
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import changed


# --- refusing -------------------------------------------------------------------------------------------
def marked(nest: Nest, path: Path, note: str) -> str:
    """The nest's statements as text, the line of the statement at ``path`` pointed out."""
    lines: list[tuple[str, bool]] = []

    def show(body: list[ast.stmt], field: str, prefix: Path, indent: str) -> None:
        for index, node in enumerate(body):
            here = (*prefix, (field, index))
            if isinstance(node, (ast.For, ast.If)):
                head = changed(node, body=[ast.Pass()], orelse=[])
                lines.append((indent + unparse(ast.fix_missing_locations(head)).splitlines()[0], here == path))
                show(node.body, "body", here, indent + "    ")
                if node.orelse:
                    lines.append((indent + "else:", False))
                    show(node.orelse, "orelse", here, indent + "    ")
            else:
                lines.append((indent + unparse(node), here == path))

    show(nest.body, "body", (), "")
    width = max((len(text) for text, hit in lines if hit), default=0)
    return "\n".join(f"{text.ljust(width)}    ← {note}" if hit else text for text, hit in lines)


WayOut = str | Callable[[], str | None] | None
"""What to do, or a function that finds it when a refusal is read: :mod:`swirl.transforms.rewrites.checks.ways_out`."""


def refuse(
    problem: str, nest: Nest, path: Path, note: str, *, witness: Conflict | str | None = None, way_out: WayOut = None
) -> Refused:
    """A refusal that shows the current nest with the loop at ``path`` marked."""
    return Refused(
        problem,
        nest=marked(nest, path, note),
        witness=None if witness is None else str(witness),
        way_out=way_out,
    )


def in_current(
    refusal: Refused, nest: Nest, path: Path, note: str, inner: str, loop: Loop, way_out: WayOut = None
) -> Refused:
    """A refusal from the middle of a rewrite, in terms of the nest as it is.

    Args:
        refusal: the one that was raised.
        nest, path, note: the nest before the rewrite, the loop in question, and what was asked.
        inner: the name that the loop's iterations had by then, counted from 0 where ``loop`` starts.
        loop: the loop in question.
        way_out: by default that of the refusal.
    """
    witness = refusal.witness
    start = constant(loop.start)
    if witness is not None and start is not None and f"{loop.var}=" not in re.sub(rf"\b{inner}=", "", witness):
        witness = re.sub(rf"\b{inner}=(\d+)", lambda m: f"{loop.var}={start + int(m[1]) * loop.step}", witness)
    way_out = (lambda: refusal.way_out) if way_out is None else way_out
    return refuse(refusal.message, nest, path, note, witness=witness, way_out=way_out)
