"""Two loops joined to one, the second one delayed on request."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from swirl.analysis.dependences import Conflict, NotProved, find
from swirl.analysis.statements import statements
from swirl.errors import Refused
from swirl.ir.affine import ranges_at, simplify_body
from swirl.ir.names import renaming
from swirl.ir.nest import Loop, Nest, Program, clone, constant, expr, fresh, loop_of, make_nest, names_in, substitute
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import changed, declared_in, name_of
from swirl.transforms.rewrites.blocks import block_at
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.nesting import vars_below
from swirl.transforms.rewrites.sites import Site, inner_name, taken_names

NOTE = "asked to fuse"
MOST_STEPS = 16
"""The shifts that a refusal tries."""

Offer = Callable[[Callable[[], int | None]], str | None]
"""Makes a way out from a function that finds the least legal shift."""


def fuse_at(
    program: Program, site: Site, shift: int = 0, offer: Offer | None = None, *, guard: bool = False
) -> Program:
    """``program`` with the loop at ``site`` and the one that follows it joined.

    Args:
        shift: iterations that the second one is delayed by.
        guard: whether their bounds may differ.
        offer: the way out of a refusal.
    """
    nest = program.nests[site.nest]
    if len(site.path) == 1 and site.path[0][1] + 1 == len(nest.body):  # the neighbour is the next nest
        merged = [*nest.body, *_with_own_names(program.nests[site.nest + 1], nest, taken_names(program, program.nests))]
        nest = make_nest(nest.label, merged, program.buffers)
        nests = [*program.nests[: site.nest], nest, *program.nests[site.nest + 2 :]]
        merged_program = program.with_nests(nests)
    else:
        merged_program = program
    if guard:
        nest = _of_equal_bounds(nest, site.path)
        merged_program = merged_program.with_nest(site.nest, nest)
    pair = Pair.of(merged_program, nest, site.path)
    try:
        return checked(program, merged_program.with_nest(site.nest, pair.joined(merged_program, shift)))
    except Refused as refusal:
        raise refusal.offering(lambda: offer(pair.least_shift)) if offer is not None else refusal from None


@dataclass(frozen=True)
class Pair:
    """Two loops of a block that will be joined, and the assignments between them.

    Args:
        nest, path: the nest, and the place of its first loop.
        old: the nest's statements, numbered, the second loop under the first one's variable.
        other: the place of the second loop in ``old``.
    """

    nest: Nest
    path: Path
    old: list[ast.stmt]
    other: Path

    @staticmethod
    def of(program: Program, nest: Nest, path: Path) -> Pair:
        old = tagged(nest.body)
        first = at(old, path)
        position = next_position(nest, path)
        assert position is not None
        second_path = (*path[:-1], (path[-1][0], position))
        second = at(old, second_path)
        assert isinstance(first, ast.For) and isinstance(second, ast.For)
        second = rename_locals(second, first, taken_names(program, [nest]))
        head, other = loop_of(first), loop_of(second)
        if other.var != head.var:
            if head.var in vars_below(second):  # a loop inside has the name that the outer one will get
                inner = fresh(head.var, taken_names(program, [nest]))
                second = substitute(second, {head.var: ast.Name(inner, ast.Load())})
            second = substitute(second, {other.var: ast.Name(head.var, ast.Load())})
        return Pair(nest, path, replace_at(old, second_path, [second]), second_path)

    @property
    def loops(self) -> tuple[ast.For, ast.For]:
        first, second = at(self.old, self.path), at(self.old, self.other)
        assert isinstance(first, ast.For) and isinstance(second, ast.For)
        return first, second

    @property
    def between(self) -> list[ast.stmt]:
        (field, start), end = self.path[-1], self.other[-1][1]
        return [at(self.old, (*self.path[:-1], (field, i))) for i in range(start + 1, end)]

    def replaced(self, new: list[ast.stmt]) -> list[ast.stmt]:
        """The nest's statements with ``new`` instead of the loops and what is between them."""
        rest = self.old
        for i in range(self.other[-1][1], self.path[-1][1], -1):
            rest = replace_at(rest, (*self.path[:-1], (self.path[-1][0], i)), [])
        return replace_at(rest, self.path, new)

    def joined(self, program: Program, shift: int) -> Nest:
        """The nest with the loops joined, the second one delayed by ``shift`` iterations.

        Raises:
            Refused: a dependence would be reversed; the bounds differ, or are not those of a loop that can be shifted.
        """
        first, second = self.loops
        head, other = loop_of(first), loop_of(second)
        if _bounds_text(head) != _bounds_text(other):
            raise self._refused("the loops do not have the same bounds")
        kind = head.kind if head.kind == other.kind else "range"
        whole = replace(head, kind=kind)
        if not shift:
            return self._arranged([whole.node([*first.body, *second.body])])
        if head.step != 1 or kind not in ("range", "parallel"):
            what = f"a loop of step {head.step}" if head.step != 1 else f"a {kind} loop"
            raise self._refused(f"{head.var} is {what}, and cannot be shifted")
        if head.extent is not None and head.extent <= shift:
            raise self._refused(f"{head.var} has {head.extent} iterations, and a shift of {shift} leaves none to join")
        try:
            conflict = self._reversed_dependence(shift)
        except NotProved:
            raise self._refused("not proved within the time allowed") from None
        if conflict is not None:
            raise self._refused("a dependence would be reversed", conflict)
        arranged = self._arranged([first, second])
        return arranged.with_body(self._shifted(program, whole, shift, arranged))

    def _arranged(self, new: list[ast.stmt]) -> Nest:
        """The nest with ``new`` instead of the loops, and what is between them moved before or after."""
        between = self.between
        if between and not any(isinstance(statement, ast.AnnAssign) for statement in between):
            following = self.replaced([*new, *between])
            with suppress(Refused):
                check_order(self.old, following, self.nest, self.path, NOTE)
                return self.nest.with_body(following)
        front = self.replaced([*between, *new])
        check_order(self.old, front, self.nest, self.path, NOTE)
        return self.nest.with_body(front)

    def _reversed_dependence(self, shift: int) -> Conflict | None:
        """An iteration of the first loop that would run after one of the second that needs it to have run; or None."""
        known = statements(self.old)
        depth, var = len(self.path) - 1, loop_of(self.loops[0]).var
        mine, theirs = ([s for s in known if s.path[: len(path)] == path] for path in (self.path, self.other))
        for one in mine:
            same = [f"{loop.var}_a = {loop.var}_b" for loop in one.loops[: one.loop_depths.index(depth)]]
            for two in theirs:
                conflict = find(one, two, [*same, f"{var}_a > {var}_b + {shift}"], reductions=False)
                if conflict is not None:
                    return conflict
        return None

    def least_shift(self) -> int | None:
        """The least number of iterations to delay the second loop by; None if there is no small one."""
        first, second = map(loop_of, self.loops)
        if _bounds_text(first) != _bounds_text(second):
            return None
        shift = 0
        try:
            for _ in range(MOST_STEPS):
                conflict = self._reversed_dependence(shift)
                if conflict is None:
                    return shift
                shift = max(shift + 1, conflict.first_at[first.var] - conflict.second_at[first.var])
        except NotProved:
            pass
        return None

    def _shifted(self, program: Program, whole: Loop, shift: int, arranged: Nest) -> list[ast.stmt]:
        """The statements of ``arranged``, in which the loops are neighbours, with them joined."""
        first, second = self.loops
        block = block_at(arranged, self.path)
        place = next(i for i, statement in enumerate(block) if statement is first)
        path = (*self.path[:-1], (self.path[-1][0], place))
        site = Site(0, path)
        alone = Program(program.name, (arranged,), program.buffers)
        names = [inner_name(alone, site, f"{whole.var}_{part}") for part in ("before", "after")]

        def at_value(body: list[ast.stmt], value: ast.expr) -> list[ast.stmt]:
            return [substitute(statement, {whole.var: value}) for statement in body]

        start, stop = whole.start, whole.stop
        border = expr("a + k", a=start, k=shift)
        before = replace(whole, var=names[0], stop=expr("min(b, e)", b=stop, e=border))
        after = replace(whole, var=names[1], start=expr("max(a, b - k)", a=start, b=stop, k=shift))
        late = at_value(second.body, expr("v - k", v=whole.var, k=shift))
        new: list[ast.stmt] = [
            before.node(at_value(first.body, expr(names[0]))),
            replace(whole, start=border).node([*first.body, *late]),
            after.node(at_value(second.body, expr(names[1]))),
        ]
        new = simplify_body(new, ranges_at(arranged.body, path))
        body = replace_at(arranged.body, (*path[:-1], (path[-1][0], place + 1)), [])
        return replace_at(body, path, new)

    def _refused(self, problem: str, witness: Conflict | None = None) -> Refused:
        return refuse(problem, self.nest, self.path, NOTE, witness=witness)


def next_position(nest: Nest, path: Path) -> int | None:
    """The place of the next loop of the block, if only assignments are before it; else None."""
    block = block_at(nest, path)
    for position in range(path[-1][1] + 1, len(block)):
        if isinstance(block[position], ast.For):
            return position
        if isinstance(block[position], ast.If):
            return None
    return None


def _of_equal_bounds(nest: Nest, path: Path) -> Nest:
    """A nest whose loop at ``path`` and the next one have the iterations of both, and statements with conditions.

    Raises:
        Refused: the bounds are not constants, or a step is not 1.
    """
    position = next_position(nest, path)
    assert position is not None
    places = path, (*path[:-1], (path[-1][0], position))
    heads = [loop_of(node) for node in (at(nest.body, place) for place in places) if isinstance(node, ast.For)]
    ends = [
        (low, high)
        for head in heads
        if head.step == 1 and head.kind in ("range", "parallel")
        if (low := constant(head.start)) is not None and (high := constant(head.stop)) is not None
    ]
    if len(ends) < 2:
        raise refuse("the bounds of the loops are not constants, or their steps are not 1", nest, path, NOTE)
    whole = min(low for low, _ in ends), max(high for _, high in ends)
    body = nest.body
    for place, head, own in zip(places, heads, ends, strict=True):
        node = at(body, place)
        assert isinstance(node, ast.For)
        longer = replace(head, start=ast.Constant(whole[0]), stop=ast.Constant(whole[1]))
        body = replace_at(body, place, [longer.node(_guarded(node.body, head.var, own, whole))])
    return nest.with_body(body)


def _guarded(body: list[ast.stmt], var: str, own: tuple[int, int], whole: tuple[int, int]) -> list[ast.stmt]:
    """Statements for their own iterations of a longer loop: each innermost one has the condition; all of them have one,
    where they declare locals."""
    tests = [f"{var} >= {own[0]}"] * (own[0] > whole[0]) + [f"{var} < {own[1]}"] * (own[1] < whole[1])
    if not tests:
        return body
    test = expr(" and ".join(tests))
    if any(declared_in(statement) for statement in body):
        return [ast.If(test, body, [])]

    def inside(statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, ast.For):
            return changed(statement, body=[inside(part) for part in statement.body])
        return ast.If(clone(test), [statement], [])

    return [inside(statement) for statement in body]


def _bounds_text(loop: Loop) -> tuple[str, str, int]:
    return unparse(loop.start), unparse(loop.stop), loop.step


def _with_own_names(nest: Nest, other: Nest, taken: set[str]) -> list[ast.stmt]:
    """The statements of a nest with names of their own for what ``other`` declares outside of loops."""
    declared = {name_of(s.target) for s in other.body if isinstance(s, ast.AnnAssign)}
    bound = set().union(*(declared_in(statement) | vars_below(statement) for statement in nest.body))
    mapping = renaming(sorted(declared & bound), taken)
    return [substitute(statement, mapping) for statement in nest.body]


def rename_locals(node: ast.For, other: ast.For, taken: set[str]) -> ast.For:
    """``node`` with other names for locals that ``other`` has names for, and loops that ``other`` has locals for."""
    mapping = renaming(sorted(declared_in(node) & names_in(other) | vars_below(node) & declared_in(other)), taken)
    return substitute(node, mapping) if mapping else node
