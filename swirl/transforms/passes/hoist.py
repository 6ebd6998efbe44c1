"""hoist: what the command of that name does, out of every loop; and divisors that a block shares."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.values.invariants import hoisted
from swirl.transforms.rewrites.values.reciprocals import shared_reciprocals


def hoist(program: Program) -> Program:
    """The program with what stays the same in a loop computed once, before it; statements of a block that divide by the
    same multiply by one reciprocal."""
    program = explicit(program)
    nests = [shared_reciprocals(program, hoisted(program, nest)) for nest in program.nests]
    return checked(program, program.with_nests(nests))
