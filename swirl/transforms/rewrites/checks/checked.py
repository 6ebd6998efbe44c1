"""The checks after every rewrite: the grammar, sizes, and the marks of parallel and vector loops."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from swirl.analysis.dependences import Conflict, NotProved, carried, find, meeting, pins
from swirl.analysis.integers import LARGEST, too_large
from swirl.analysis.statements import Statement, outer_locals, statements_of
from swirl.errors import CommandError
from swirl.ir.buffers import MOST_BYTES, Buffer
from swirl.ir.nest import Nest, Program, kind_of
from swirl.ir.paths import Path, at, loops, walk
from swirl.ir.printing import unparse
from swirl.ir.validate import validate
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse


# --- after a rewrite ------------------------------------------------------------------------------------
def checked(before: Program, after: Program) -> Program:
    """``after``, if it is grammatical, no number is too large, and its marks hold: parallel loops race-free, lanes
    independent.

    A command that moves statements may break a mark that an earlier command made; this is where that is
    noticed. Nests that were in ``before`` have been checked, except for the numbers of those that users wrote: rewrites
    simplify, as if no sum wrapped.
    """
    for nest in before.nests:
        check_integers(nest)
    for name, buffer in after.buffers.items():
        if buffer is not before.buffers.get(name):
            check_size(name, buffer)
    known = {nest.text for nest in before.nests}
    new = [nest for nest in after.nests if nest.text not in known]
    validate(after, new if _dimensions(before) == _dimensions(after) else after.nests)
    for nest in new:
        check_integers(nest)
        check_marks(nest)
    return after


def _dimensions(program: Program) -> dict[str, int]:
    """What a nest's grammar depends on outside of it."""
    return {name: len(buffer.shape) for name, buffer in program.buffers.items()}


def check_size(name: str, buffer: Buffer) -> None:
    """Raises CommandError where a buffer would be larger than any memory."""
    if buffer.nbytes > MOST_BYTES:
        raise CommandError(
            f"{name} would take {buffer.nbytes:,} bytes", way_out="smaller blocks, or fewer zeros around it"
        )


@lru_cache(maxsize=1024)
def check_integers(nest: Nest) -> None:
    """Raises Refused where loops or subscripts may pass what the generated code's integers hold."""
    found = too_large(nest)
    if found is not None:
        path, what = found
        raise refuse(
            f"{what} may pass {LARGEST:,} where it is computed, and integers have 32 bits",
            nest,
            path,
            "too large",
            way_out="smaller numbers, or fewer loops in one",
        )


@lru_cache(maxsize=1024)
def check_marks(nest: Nest) -> None:
    """Raises Refused where a parallel loop of the nest has a race or a vector loop's lanes depend on each
    other."""
    for path, node in loops(nest.body):
        kind = kind_of(node)
        try:
            if kind == "parallel":
                conflict = carried(nest.body, path, reductions=True, known=statements_of(nest))
                problem, note = "the parallel loop would no longer be free of races", "runs in parallel"
            elif kind == "vector":
                conflict = lane_conflict(statements_of(nest), path)
                problem, note = "lanes would depend on each other", "a vector loop"
            else:
                continue
        except NotProved:
            raise refuse("not proved within the time allowed", nest, path, f"a {kind} loop") from None
        if conflict is not None:
            raise refuse(problem, nest, path, note, witness=conflict)
        if kind == "parallel":
            check_locals(nest, path, note)


def check_locals(nest: Nest, path: Path, note: str, way_out: WayOut = None) -> None:
    """Raises Refused where the loop at ``path`` assigns a local that is declared outside of it: each thread would have
    its own.

    Args:
        way_out: what to do.
    """
    loop = at(nest.body, path)
    assert isinstance(loop, ast.For)
    found = outer_locals(nest.body, loop)
    if found:
        declared = next(
            node for _, node in walk(nest.body) if isinstance(node, ast.AnnAssign) and unparse(node.target) == found[0]
        )
        problem = f"{found[0]} is declared outside of the loop, and one thread does not see what another one assigns"
        witness = f"declared as {unparse(declared)}"
        raise refuse(problem, nest, path, note, witness=witness, way_out=way_out)


def lane_conflict(known: Sequence[Statement], path: Path) -> Conflict | None:
    """Two lanes of one statement in the vector loop at ``path`` that touch one element, one writing; or None.

    ``known`` are the statements of the whole nest.
    """
    depth = len(path) - 1
    for statement in known:
        if statement.path[: len(path)] != path or len(statement.path) == len(path):
            continue
        level = statement.loop_depths.index(depth)
        var = statement.loops[level].var
        outer = {loop.var for loop in statement.loops[:level]}
        if all(pins(statement, statement, a, b, outer, var) for a, b in meeting(statement, statement, True)):
            continue
        same = [f"{loop.var}_a = {loop.var}_b" for loop in statement.loops[:level]]
        conflict = find(statement, statement, [*same, f"{var}_a < {var}_b"], reductions=True)
        if conflict is not None:
            return conflict
    return None
