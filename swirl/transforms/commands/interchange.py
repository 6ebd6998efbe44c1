"""interchange: two loops swapped."""

from __future__ import annotations

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.transforms.arguments import LoopNames, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.ways_out import step
from swirl.transforms.rewrites.loops.permutation import loops_around, nests_with, permuted
from swirl.transforms.rewrites.sites import LeftAlone, loop_names, resolve


# --- interchange ----------------------------------------------------------------------------------------
@command()
def interchange(program: Program, loop_vars: LoopNames, *, nest: NestName | None = None) -> Program:
    """Swap two loops; an imperfect nest between them is distributed first where that is legal.

    rewrite:
        for n in range(N):                  for c in range(C):
            for c in range(C):      →           for n in range(N):
                s                                   s

    Where a bound of the inner loop moves with the outer one, the bounds in the other order follow by projection: a
    triangle ``for i in range(n): for j in range(i + 1)`` becomes ``for j in range(n): for i in range(j, n)``.

    Args:
        loop_vars: the two loops, outer first or inner first.
        nest: only in this nest (index or label).

    Raises:
        Refused: a dependence would be reversed, or no bounds of the grammar describe the other order.

    Source: Lake, *Optimized Code Generation for Deep Learning Networks using LATTE and SWIRL*, section 3.2.
    """
    if len(loop_vars) != 2 or loop_vars[0] == loop_vars[1]:
        raise CommandError(f"interchange takes two loops, not {loop_vars}")
    left, again = LeftAlone(), step("interchange", loop_vars, nest=nest)
    around = loops_around(program, loop_vars)
    for first in resolve(program, loop_vars[0]):
        for second in resolve(program, loop_vars[1]):
            for index in nests_with(program, (first, second), nest):
                program = permuted(program, index, [first, second], left, again, around, swap=True)
    result = left.with_remarks(program)
    if not left.changed:
        raise CommandError(
            f"no nest of {program.name} holds {loop_vars[0]!r} and {loop_vars[1]!r} one inside the other",
            way_out=f"the loops are {', '.join(loop_names(program))}",
        )
    return result
