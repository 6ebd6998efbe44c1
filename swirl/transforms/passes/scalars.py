"""scalars: what ``scalar_replace`` does to every reference that gains."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.storage.scalar_replacement import replaced


def scalar_replace(program: Program) -> Program:
    """The program with elements in locals over the loops that do not move them."""
    program = explicit(program)
    return checked(program, program.with_nests([replaced(program, nest) for nest in program.nests]))
