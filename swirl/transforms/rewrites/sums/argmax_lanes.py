"""The greatest or least candidate of a loop, and the iteration that it is of, in lanes: each keeps the best one of its
own iterations; the lanes are compared after the loop, all spelled out as statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    constant,
    declare,
    expr,
    for_loop,
    fresh,
    loop_of,
    names_in,
    reference,
    substitute,
    variable_of,
    with_inner,
)
from swirl.ir.operations import COMPARISONS, ORDERS
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_target, as_value, name_of, nodes, targets_in
from swirl.transforms.rewrites.sites import Site, taken_names
from swirl.transforms.rewrites.sums.reductions import declared_type


@dataclass(frozen=True)
class Winner:
    """What a loop keeps of the iteration whose candidate is better than all before::

        better: bool = candidate > value or candidate != candidate
        place = k if better else place
        value = candidate if better else value

    Args:
        better: the name of the condition.
        order: the comparison of a candidate with the best one so far.
        with_nan: whether a candidate that is not a number is better than all.
        value: the best candidate so far; one element for all iterations, as are other targets.
        others: what else is kept of that iteration: sums and the like of its number and of what is the same in all.
    """

    better: str
    order: type[ast.cmpop]
    with_nan: bool
    value: ast.expr
    others: Sequence[ast.Assign]

    @property
    def targets(self) -> list[ast.expr]:
        return [self.value, *(each.targets[0] for each in self.others)]

    @property
    def of_locals(self) -> bool:
        """Whether no target is an element of an array."""
        return all(isinstance(target, ast.Name) for target in self.targets)


def winners_over(body: list[ast.stmt], path: Path) -> list[Winner]:
    """The winners that the loop at ``path`` finds, and does nothing else with."""
    node = at(body, path)
    assert isinstance(node, ast.For)
    if constant(loop_of(node).start) is None:
        return []
    return [found for place in range(len(node.body)) if (found := _winner(node, place)) is not None]


def _winner(node: ast.For, place: int) -> Winner | None:
    """The winner of the condition that a statement of the loop declares."""
    condition, own = node.body[place], variable_of(node)
    if not isinstance(condition, ast.AnnAssign) or condition.value is None:
        return None
    better = name_of(condition.target)
    choices = [one for one in node.body if isinstance(one, ast.Assign) and _is_choice(one, better)]
    tests = [(one, test) for one in choices if (test := _test(condition.value, one)) is not None]
    if len(tests) != 1:
        return None
    ((value, (order, with_nan)),) = tests
    others = [one for one in choices if one is not value]
    changing = {name_of(target) for target in targets_in([node], declared=True)}
    found = Winner(better, order, with_nan, value.targets[0], others)
    between = targets_in([one for one in node.body[place + 1 : node.body.index(value)] if one not in choices])
    uses = [part.id for part in nodes(node) if isinstance(part, ast.Name)]
    alone = (
        uses.count(better) == 1 + len(choices)
        and not {name_of(target) for target in between} & names_in(_chosen(value))
        and all(_is_known(_chosen(one), changing) for one in others)
        and all(
            not names_in(target) & ({own, *changing} - {name_of(target)})
            and uses.count(name_of(target)) == (3 if target is found.value else 2)
            for target in found.targets
        )
    )
    return found if alone else None


def _is_choice(statement: ast.Assign, better: str) -> bool:
    """Whether it is ``target = e if better else target``."""
    value = statement.value
    return (
        isinstance(value, ast.IfExp)
        and isinstance(value.test, ast.Name)
        and value.test.id == better
        and unparse(value.orelse) == unparse(statement.targets[0])
    )


def _chosen(choice: ast.Assign) -> ast.expr:
    """What a choice takes where its condition holds."""
    assert isinstance(choice.value, ast.IfExp)
    return choice.value.body


def _is_known(value: ast.expr, changing: set[str]) -> bool:
    """Whether a value follows from the number of the iteration."""
    known = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    parts = [part for part in nodes(value) if not isinstance(part, known)]
    converted = all(isinstance(part, ast.Call) and unparse(part.func) in ("int32", "float32") for part in parts)
    return converted and not names_in(value) & changing


def _test(test: ast.expr, choice: ast.Assign) -> tuple[type[ast.cmpop], bool] | None:
    """How a condition compares what a choice takes with what it has; and whether it holds for what is not a number."""
    candidate, kept = unparse(_chosen(choice)), unparse(choice.targets[0])
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    compared = [part for part in parts if unparse(part) != f"{candidate} != {candidate}"]
    if len(parts) - len(compared) > 1:
        return None
    match compared:
        case [ast.Compare(left, [order], [right])] if type(order) in ORDERS:
            sides, mirrored = (unparse(left), unparse(right)), COMPARISONS[type(order)].mirrored
            for found, wanted in ((type(order), (candidate, kept)), (mirrored, (kept, candidate))):
                if sides == wanted:
                    return found, len(parts) > 1
    return None


def with_named_conditions(nest: Nest, path: Path, taken: set[str]) -> Nest:
    """Where the loop at ``path`` finds winners by ``if candidate > value: …``, the conditions have names."""
    loop = at(nest.body, path)
    assert isinstance(loop, ast.For)
    for statement in loop.body:
        if isinstance(statement, ast.If) and not statement.orelse:
            nest = _with_named_condition(nest, path, statement, fresh("better", {*taken, *nest.names}))
    return nest


def _with_named_condition(nest: Nest, path: Path, statement: ast.If, better: str) -> Nest:
    """The nest in which a condition is called ``better``; as it was where that finds no winner."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    choices = [_choice(s.targets[0], expr(better), s.value) for s in statement.body if isinstance(s, ast.Assign)]
    named = [declare(better, LocalType("bool"), clone(statement.test)), *choices]
    replaced = [n for s in node.body for n in (named if s is statement else [s])]
    body = replace_at(nest.body, path, [with_inner(node, replaced)])
    finds = len(choices) == len(statement.body) and any(w.better == better for w in winners_over(body, path))
    return nest.with_body(body) if finds else nest


def finds_winners(nest: Nest, path: Path) -> bool:
    """Whether lanes along the loop at ``path`` would be compared after it."""
    return bool(winners_over(with_named_conditions(nest, path, set()).body, path))


# --- in lanes ---------------------------------------------------------------------------------------------------
def with_lane_winners(program: Program, site: Site, found: Winner, count: int) -> tuple[Program, Site]:
    """Each of ``count`` lanes keeps a winner of its own.

    Args:
        site: of the vector loop, inside of the one that counts vectors.
        found: of the loop as it was; its targets are locals.

    Returns:
        the program, and where the vector loop is now.
    """
    nest, outer = program.nests[site.nest], site.path[:-1]
    inside, counting = at(nest.body, site.path), at(nest.body, outer)
    assert isinstance(inside, ast.For) and isinstance(counting, ast.For)
    start = constant(loop_of(counting).start)
    assert start is not None
    taken = taken_names(program, [nest])
    lanes = _Lanes(
        found,
        loop_of(counting).var,
        variable_of(inside),
        fresh(f"{name_of(found.value)}_lanes", taken),
        fresh(f"{loop_of(counting).var}_lanes", taken),
        declared_type(nest.body, outer, name_of(found.value)).dtype,
        count,
        start - 1,
    )
    kept = [new for s in inside.body for new in lanes.in_lanes(s)]
    body = replace_at(nest.body, site.path, [with_inner(inside, kept)])
    before, after = lanes.before(), lanes.after(taken)
    body = replace_at(body, outer, [*before, at(body, outer), *after])
    (block, position), depth = outer[-1], len(outer) - 1
    new_path = (*outer[:depth], (block, position + len(before)), *site.path[depth + 1 :])
    return program.with_nest(site.nest, nest.with_body(body)), Site(site.nest, new_path)


class _Lanes(Transformer):
    """The winners of lanes: what begins and compares them; statements get them in place of the winner.

    Args:
        found: the winner.
        var: the loop, which counts vectors.
        lane: the variable of the vector loop.
        value, place: the names of the arrays: best candidates, and their iterations.
        dtype: of candidates.
        count: of lanes.
        nobody: a place that no iteration has.
    """

    def __init__(self, found: Winner, var: str, lane: str, value: str, place: str, dtype: str, count: int, nobody: int):
        self.found, self.var, self.lane, self.dtype, self.count, self.nobody = found, var, lane, dtype, count, nobody
        self.value, self.place = value, place

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id != name_of(self.found.value):
            return node
        return self._of_lane(self.value, store=isinstance(node.ctx, ast.Store))

    def in_lanes(self, statement: ast.stmt) -> list[ast.stmt]:
        """A statement of the loop: choices are of candidates and their places alone."""
        if not isinstance(statement, ast.Assign) or not _is_choice(statement, self.found.better):
            return [self.visit(clone(statement))]
        if unparse(statement.targets[0]) != unparse(self.found.value):
            return []
        now = expr("k + l", k=self.var, l=self.lane)
        return [_choice(self._of_lane(self.place), expr(self.found.better), now), self.visit(clone(statement))]

    def before(self) -> list[ast.stmt]:
        """All lanes have the best value from before the loop, which is of none of its iterations."""
        best, nobody = as_value(self.found.value), expr(self.nobody)
        return [
            declare(self.value, LocalType(self.dtype, (self.count,))),
            self._over(self.count, ast.Assign([self._of_lane(self.value, store=True)], best)),
            declare(self.place, LocalType("int32", (self.count,))),
            self._over(self.count, ast.Assign([self._of_lane(self.place, store=True)], nobody)),
        ]

    def after(self, taken: set[str]) -> list[ast.stmt]:
        """One half of the lanes is compared with the other one, until one is left; what it has is kept, if a candidate
        has won."""
        result: list[ast.stmt] = []
        half = self.count // 2
        while half:
            result.append(self._compared(half, taken))
            half //= 2
        place = reference(self.place, [ast.Constant(0)])
        won = expr("place != nobody", place=place, nobody=self.nobody)
        for other in self.found.others:
            assert isinstance(other.value, ast.IfExp)
            result.append(_choice(other.targets[0], won, substitute(other.value.body, {self.var: place})))
        return [*result, ast.Assign([as_target(self.found.value)], reference(self.value, [ast.Constant(0)]))]

    def _compared(self, half: int, taken: set[str]) -> ast.stmt:
        """The winner of a lane and of the one ``half`` further. Of equal candidates the first or the last one wins, as
        in the loop; of those that are not numbers the last one."""
        values, places = ([self._of_lane(name), self._of_lane(name, half)] for name in (self.value, self.place))
        names = {name: fresh(name, taken) for name in ("own", "other", "later", "wins")}
        greater, strict = self.found.order in (ast.Gt, ast.GtE), self.found.order in (ast.Gt, ast.Lt)
        test = f"other {'>' if greater else '<'} own or (other == own and {'not later' if strict else 'later'})"
        if self.found.with_nan:
            test += " or (other != other and (own == own or later))"
        return self._over(
            half,
            declare(names["own"], LocalType(self.dtype), values[0]),
            declare(names["other"], LocalType(self.dtype), values[1]),
            declare(names["later"], LocalType("bool"), ast.Compare(places[1], [ast.Gt()], [places[0]])),
            declare(names["wins"], LocalType("bool"), expr(test, **names)),
            _choice(places[0], expr(names["wins"]), places[1]),
            ast.Assign([as_target(values[0])], expr("other if wins else own", **names)),
        )

    def _of_lane(self, array: str, further: int = 0, *, store: bool = False) -> ast.Subscript:
        """The element of an array that a lane has, or one so many lanes further."""
        lane = expr("l + d", l=self.lane, d=further) if further else ast.Name(self.lane, ast.Load())
        return reference(array, [lane], store)

    def _over(self, count: int, *statements: ast.stmt) -> ast.stmt:
        return for_loop(self.lane, count, list(statements), kind="vector")


def _choice(target: ast.expr, test: ast.expr, value: ast.expr) -> ast.Assign:
    return ast.Assign([as_target(target)], ast.IfExp(clone(test), clone(value), as_value(target)))
