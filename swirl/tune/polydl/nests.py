"""The loop nest that a scheme stands for: what the analysis sees in place of the program with its copies and vectors,
as PolyDL sees the loops that a micro-kernel is equivalent to (section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swirl.errors import CommandError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.tune.problem import Problem, Subscript
from swirl.tune.ttile.schemes import LambdaSeq, Level, R, Scheme, T, Tfused, Tpar, U, ULambda, V, iterated

MODELLED = (R, T, U, V, Tpar, Tfused, LambdaSeq, ULambda)
"""Atoms that have loops of constant bounds."""


def nest_of(scheme: Scheme, problem: Problem) -> Program:
    """A program of one nest with the loops of a scheme. Borders are left out: a tensor has as many elements as its
    subscripts reach.

    Args:
        scheme: of the problem.
        problem: the contraction.

    Raises:
        CommandError: it is not a scheme of the problem, or has atoms that are not :data:`MODELLED`.
    """
    for atom in scheme.atoms:
        if not isinstance(atom, MODELLED):
            raise CommandError(
                f"{scheme}: {atom} has no loop of constant bounds", way_out="T, U, V, λ, Tpar and Tfused"
            )
    levels = scheme.levels(problem.extents, problem.lanes)
    known = {(dimension, level.place): level for dimension, own in levels.items() for level in own}
    text = "\n".join(_lines(scheme, problem, known, 0, {}, {dimension: [] for dimension in problem.extents}))
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in problem.tensors:
        shape = tuple(each.span(problem.extents) for each in tensor.subscripts) or (1,)
        known_shape = shapes.get(tensor.name, shape)
        shapes[tensor.name] = tuple(map(max, shape, known_shape))
    buffers = {name: Buffer(f"model.{name}", shape, per_item=False) for name, shape in shapes.items()}
    return parse_program(text, buffers, name="model")


def _lines(
    scheme: Scheme,
    problem: Problem,
    levels: Mapping[tuple[str, int], Level],
    place: int,
    parts: Mapping[str, int],
    terms: Mapping[str, list[str]],
) -> Iterator[str]:
    """What is inside of the first atoms of a scheme.

    Args:
        place: how many atoms are around.
        parts: of each combination that is around, the part.
        terms: of each dimension, what the loops around add to it.
    """
    if place == len(scheme.atoms):
        yield _statement(problem, terms)
        return
    atom = scheme.atoms[place]
    if isinstance(atom, LambdaSeq):
        level, start = levels[atom.dimension, place], 0
        for number, (times, _) in enumerate(atom.parts):
            size = level.inner[number]
            own = [*terms[atom.dimension], f"{_variable(atom.dimension, place)} * {size}", str(start)]
            inner = {**terms, atom.dimension: own}
            yield f"for {_variable(atom.dimension, place)} in range({times}):"
            for line in _lines(scheme, problem, levels, place + 1, {**parts, atom.dimension: number}, inner):
                yield f" {line}"
            start += times * size
        return
    found, depth = dict(terms), 0
    for dimension, _ in iterated(atom):
        level = levels[dimension, place]
        part = parts.get(dimension, 0)
        size = level.inner[min(part, len(level.inner) - 1)]
        count = level.size[min(part, len(level.size) - 1)] // size
        kind = "parallel" if isinstance(atom, (Tpar, Tfused)) else "range"
        yield f"{' ' * depth}for {_variable(dimension, place)} in {kind}({count}):"
        found[dimension] = [*found[dimension], f"{_variable(dimension, place)} * {size}"]
        depth += 1
    for line in _lines(scheme, problem, levels, place + 1, parts, found):
        yield f"{' ' * depth}{line}"


def _variable(dimension: str, place: int) -> str:
    return f"{dimension}_at_{place}"


def _statement(problem: Problem, terms: Mapping[str, list[str]]) -> str:
    def subscript(each: Subscript) -> str:
        parts = [f"({' + '.join(terms[d]) or '0'}) * {factor}" for d, factor in each.terms]
        whole = " + ".join(parts) or "0"
        return whole if each.divisor == 1 else f"({whole}) // {each.divisor}"

    output, *operands = [f"{t.name}[{', '.join(map(subscript, t.subscripts)) or '0'}]" for t in problem.tensors]
    return f"{output} += {' * '.join(operands)}"
