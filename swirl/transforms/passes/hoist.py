"""hoist: what the command of that name does, out of every loop."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checked import checked
from swirl.transforms.rewrites.invariants import hoisted


def hoist(program: Program) -> Program:
    """The program with what stays the same in a loop computed once, before it."""
    program = explicit(program)
    return checked(program, program.with_nests([hoisted(program, nest) for nest in program.nests]))
