"""scalar_replace: an element that stays the same over loops is kept in a local."""

from __future__ import annotations

import ast

from swirl.analysis.accesses import parsed
from swirl.errors import Refused
from swirl.ir.nest import Program, names_in, references, variable_of
from swirl.ir.paths import at, walk
from swirl.ir.printing import unparse
from swirl.transforms.arguments import BufferName, NestName
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.checks.ways_out import Trial, step
from swirl.transforms.rewrites.loops.single import with_numbers_of_single
from swirl.transforms.rewrites.storage.candidates import obstacle
from swirl.transforms.rewrites.storage.scalar_replacement import replaced


@command()
def scalar_replace(program: Program, buffer: BufferName | None = None, *, nest: NestName | None = None) -> Program:
    """Keep elements in locals over the loops that do not move them; read before, written back after.

    rewrite:
        for h in range(H):                  mean_t: float32 = mean[c]
            mean[c] += x[c, h]      →       for h in range(H):
                                                mean_t += x[c, h]
                                            mean[c] = mean_t

    Inside unrolled and vector loops the elements become an array of registers. A loop of one iteration moves nothing.

    Args:
        buffer: only references to this buffer; by default every reference that gains.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such buffer. Refused: no reference to the buffer can be replaced.

    Source: Lake, section 3.2; Callahan, Carr, Kennedy, PLDI 1990.
    """
    result = program
    for index, target in enumerate(program.nests):
        if nest is None or nest in (index, target.label):
            settled = target.with_body(with_numbers_of_single(target.body))
            after = replaced(result.with_nest(index, settled), settled, buffer)
            if after is not settled:
                result = result.with_nest(index, after)
    if buffer is not None and result.text == program.text:
        holders = [i for i, n in enumerate(program.nests) if buffer in n.arguments and nest in (None, i, n.label)]
        if holders:
            raise _none(program, holders, buffer)
    return checked(program, result)


def _none(program: Program, holders: list[int], buffer: str) -> Refused:
    """Why no reference to the buffer in these nests can be kept in a local."""
    note = "asked for scalars"
    for index in holders:
        nest = program.nests[index]
        found = obstacle(program, nest, buffer)
        if found is not None:
            return refuse(found.problem, nest, found.parent or (("body", 0),), note, witness=found.witness)
    nest = program.nests[holders[0]]
    leaves = ((path, node) for path, node in walk(nest.body) if not isinstance(node, (ast.For, ast.If)))
    every = ((path, ref) for path, node in leaves for ref in references(node))
    touching = ((path, unparse(ref)) for path, ref in every if unparse(ref.value) == buffer)
    path, text = next(touching, ((("body", 0),), None))
    around = [
        (path[: depth + 1], head)
        for depth in range(len(path))
        if isinstance(head := at(nest.body, path[: depth + 1]), ast.For)
    ]
    variables = [variable_of(head) for _, head in around]
    moving = [var for var in variables if text is not None and var in names_in(parsed(text))]
    problem = f"{buffer} is touched in conditions alone" if text is None else f"{text} is touched once"
    if text is not None and variables and moving[-1:] == variables[-1:]:
        problem = f"{text} moves with {variables[-1]}, and stays the same over no loop"

    def way_out() -> str | None:
        trial = Trial(program)
        replacing = step("scalar_replace", buffer)
        for other in (var for var in variables if moving and var not in moving):
            first = step("interchange", [other, moving[-1]])
            if trial.works(first, replacing):
                return f"{first.text}, then {replacing.text}"
        return None

    return refuse(problem, nest, around[-1][0] if around else path, note, way_out=way_out)
