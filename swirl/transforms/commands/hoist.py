"""hoist: what a loop does not change is computed before it."""

from __future__ import annotations

from swirl.errors import Refused
from swirl.ir.nest import Program, loop_of
from swirl.ir.paths import loops
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at
from swirl.transforms.rewrites.values.invariants import hoisted


@command(assumes=Assumption("no reciprocal of what is divided by overflows or loses digits", "reciprocal"))
def hoist(
    program: Program, loop_var: LoopName | None = None, *, reciprocal: bool = False, nest: NestName | None = None
) -> Program:
    """Compute what stays the same in a loop once, before it; divide by it through its reciprocal.

    rewrite:
        for h in range(H):                      var_t_sqrt: float32 = 1.0 / sqrt(var_t + 0.001)
            y[h] = (x[h] - m) / sqrt(var_t + 0.001)     →    for h in range(H):
                                                                 y[h] = (x[h] - m) * var_t_sqrt

    A parallel loop is left alone: its threads would wait for one.

    A quotient then is the product with a rounded reciprocal: rounded twice. This is only done for divisors whose
    reciprocal neither overflows nor loses digits: square roots, those and exponentials with a positive number added,
    integers, and literals from 2**-126 to 2**126. The reciprocal of a very small or very large number would be
    infinite, or have fewer digits (two bits, of an exponential above 2**126). ``reciprocal=True`` says that no divisor
    is such a number: every division by what stays the same becomes a multiplication.

    An expression that a condition or a loop without iterations may skip is moved only if its elements exist in any
    case.

    Args:
        loop_var: out of this loop; by default out of every loop.
        reciprocal: divide through the reciprocal, whatever the divisor is.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.  Refused: asked for a loop out of which nothing can be moved.

    Source: Lake, section 3.2 (the divisor of Fig. 3.4).
    """
    if loop_var is not None:
        wanted = {(site.nest, site.path) for site in find_loops(program, loop_var, nest)}
    result = program
    for index, target in enumerate(program.nests):
        if nest is not None and nest not in (index, target.label):
            continue
        paths = [path for path, _ in loops(target.body) if loop_var is None or (index, path) in wanted]
        result = result.with_nest(index, hoisted(result, target, paths, any_divisor=reciprocal))
    if loop_var is not None and result.text == program.text:
        raise _nothing(program, find_loops(program, loop_var, nest)[-1])
    return checked(program, result)


def _nothing(program: Program, site: Site) -> Refused:
    """Why nothing can be moved out of the loop at ``site``."""
    loop = loop_of(loop_at(program, site))
    problem = f"every operation in {loop.var} needs what changes in it, or may not be evaluated at all"
    if loop.kind == "parallel":
        problem = f"{loop.var} is a parallel loop: its threads would wait for one that computes"
    return refuse(problem, program.nests[site.nest], site.path, "asked to move something out of")
