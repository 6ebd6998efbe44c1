"""hoist: what the command of that name does, out of every loop, and for lanes; divisors that a block shares."""

from __future__ import annotations

from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.values.invariants import hoisted
from swirl.transforms.rewrites.values.lane_invariants import hoisted_from_lanes
from swirl.transforms.rewrites.values.reciprocals import shared_reciprocals


def hoist(program: Program) -> Program:
    """The program with what stays the same in a loop computed once, before it, or once for each lane; statements of a
    block that divide by the same multiply by one reciprocal."""
    program = explicit(program)
    nests = [hoisted_from_lanes(program, hoisted(program, nest)) for nest in program.nests]
    nests = [shared_reciprocals(program, nest) for nest in nests]
    return checked(program, program.with_nests(nests))
