"""reorder: loops of a nest in the order given."""

from __future__ import annotations

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import LoopNames, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.ways_out import step
from swirl.transforms.rewrites.loops.permutation import loops_around, nests_with, permuted
from swirl.transforms.rewrites.sites import LeftAlone, resolve


@command()
def reorder(program: Program, order: LoopNames, *, nest: NestName | None = None) -> Program:
    """Put loops of one nest into the order given, outermost first; conditions on loop variables that are between them
    move inside.

    rewrite (order = c, n):
        for n in range(N):                  for c in range(C):
            for c in range(C):      →           for n in range(N):
                s                                   s

    Args:
        order: loop names, outermost first; loops not named keep their places.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would be reversed, or no bounds of the grammar describe the new order.

    Source: Lake, section 3.2.
    """
    names = [resolve(program, name)[0] for name in order]
    if len(set(names)) < len(names):
        raise CommandError(f"each loop has one place in an order, not {list(order)}")
    left, around = LeftAlone(), loops_around(program, order)
    for index in nests_with(program, tuple(names), nest):
        program = permuted(program, index, names, left, step("reorder", list(order), nest=nest), around)
    result = left.with_remarks(program)
    if not left.changed:
        raise CommandError(f"no nest of {program.name} holds the loops {', '.join(order)}")
    return result
