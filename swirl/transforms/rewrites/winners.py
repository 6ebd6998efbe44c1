"""The greatest or least candidate of a loop, and the iteration that it is of, in lanes: each keeps the best one of its
own iterations; the lanes are compared after the loop, all spelled out as statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swirl.ir.nest import (
    LocalType,
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
    variable_of,
    with_inner,
)
from swirl.ir.paths import Path, at, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_target, as_value, name_of, nodes, targets_in
from swirl.transforms.rewrites.reductions import declared_type
from swirl.transforms.rewrites.sites import Site, taken_names

ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


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
        value: the best candidate so far; one element for all iterations, as are the others.
        place: its iteration.
        others: what else is kept of it, and does not change in the loop.
    """

    better: str
    order: ast.cmpop
    with_nan: bool
    value: ast.expr
    place: ast.expr
    others: Sequence[ast.Assign]

    @property
    def targets(self) -> list[ast.expr]:
        return [self.value, self.place, *(each.targets[0] for each in self.others)]

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
    conditions = [s for s in node.body if isinstance(s, ast.AnnAssign) and s.value is not None]
    return [found for condition in conditions if (found := _winner(node, condition)) is not None]


def _winner(node: ast.For, condition: ast.AnnAssign) -> Winner | None:
    better, own = name_of(condition.target), variable_of(node)
    choices = list(_choices(node.body, better))
    changing = {own, *(name_of(target) for target in targets_in([node], declared=True))}
    places = [one for one in choices if unparse(_chosen(one)) == own]
    tests = [(one, test) for one in choices if (test := _test(condition.value, one)) is not None]
    if len(places) != 1 or len(tests) != 1 or places[0] is tests[0][0]:
        return None
    (place,), ((value, (order, with_nan)),) = places, tests
    others = [one for one in choices if one is not place and one is not value]
    if any(
        names_in(_chosen(one)) & changing or not isinstance(_chosen(one), (ast.Name, ast.Constant)) for one in others
    ):
        return None
    found = Winner(better, order, with_nan, value.targets[0], place.targets[0], others)
    uses = [part.id for part in nodes(node) if isinstance(part, ast.Name)]
    alone = uses.count(better) == 1 + len(choices) and all(
        not names_in(target) & (changing - {name_of(target)})
        and uses.count(name_of(target)) == (3 if target is found.value else 2)
        for target in found.targets
    )
    return found if alone else None


def _choices(body: Sequence[ast.stmt], better: str) -> Iterator[ast.Assign]:
    """The statements ``target = e if better else target``."""
    for statement in body:
        match statement:
            case ast.Assign([target], ast.IfExp(ast.Name(name), _, kept)) if name == better:
                if unparse(kept) == unparse(target):
                    yield statement


def _chosen(choice: ast.Assign) -> ast.expr:
    """What a choice takes where its condition holds."""
    assert isinstance(choice.value, ast.IfExp)
    return choice.value.body


def _test(test: ast.expr | None, choice: ast.Assign) -> tuple[ast.cmpop, bool] | None:
    """How a condition compares what a choice takes with what it has; and whether it holds for what is not a number."""
    candidate, kept = unparse(_chosen(choice)), unparse(choice.targets[0])
    nan = f"{candidate} != {candidate}"
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    match parts:
        case [ast.Compare(left, [order], [right]), *rest] if isinstance(order, ORDERS):
            known = [unparse(part) for part in rest if part is not None]
            if unparse(left) == candidate and unparse(right) == kept and known in ([], [nan]):
                return order, bool(known)
    return None


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
        variable_of(inside),
        fresh(f"{name_of(found.value)}_lanes", taken),
        fresh(f"{name_of(found.place)}_lanes", taken),
        declared_type(nest.body, outer, name_of(found.value)).dtype,
        count,
        start - 1,
    )
    dropped = {unparse(other) for other in found.others}
    kept = [lanes.visit(clone(s)) for s in inside.body if unparse(s) not in dropped]
    body = replace_at(nest.body, site.path, [with_inner(inside, kept)])
    before, after = lanes.before(), lanes.after(taken)
    body = replace_at(body, outer, [*before, at(body, outer), *after])
    (block, position), depth = outer[-1], len(outer) - 1
    moved = (*outer[:depth], (block, position + len(before)), *site.path[depth + 1 :])
    return program.with_nest(site.nest, nest.with_body(body)), Site(site.nest, moved)


class _Lanes(Transformer):
    """The winners of lanes: what begins and compares them; statements get them in place of the winner.

    Args:
        found: the winner.
        lane: the variable of the vector loop.
        value, place: the names of the arrays.
        dtype: of candidates.
        count: of lanes.
        nobody: a place that no iteration has.
    """

    def __init__(self, found: Winner, lane: str, value: str, place: str, dtype: str, count: int, nobody: int):
        self.found, self.lane, self.dtype, self.count, self.nobody = found, lane, dtype, count, nobody
        self.value, self.place = value, place
        self._arrays = {unparse(found.value): value, unparse(found.place): place}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        array = self._arrays.get(node.id)
        if array is None:
            return node
        return reference(array, [ast.Name(self.lane, ast.Load())], isinstance(node.ctx, ast.Store))

    def before(self) -> list[ast.stmt]:
        """All lanes have the best value from before the loop, which is of none of its iterations."""
        lane = ast.Name(self.lane, ast.Load())
        return [
            declare(self.value, LocalType(self.dtype, (self.count,))),
            self._over(self.count, ast.Assign([reference(self.value, [lane], True)], as_value(self.found.value))),
            declare(self.place, LocalType("int32", (self.count,))),
            self._over(self.count, ast.Assign([reference(self.place, [lane], True)], expr(self.nobody))),
        ]

    def after(self, taken: set[str]) -> list[ast.stmt]:
        """One lane after the other is compared with another one; what wins is kept, if a candidate did."""
        result: list[ast.stmt] = []
        half = self.count // 2
        while half:
            result.append(self._compared(half, taken))
            half //= 2
        won = expr("place[0] != nobody", place=self.place, nobody=self.nobody)
        first = reference(self.place, [ast.Constant(0)])
        result += [_choice(other.targets[0], won, _chosen(other)) for other in self.found.others]
        result.append(_choice(self.found.place, won, first))
        result.append(ast.Assign([as_target(self.found.value)], reference(self.value, [ast.Constant(0)])))
        return result

    def _compared(self, half: int, taken: set[str]) -> ast.stmt:
        """The winner of a lane and of the one ``half`` further. Of equal candidates the first or the last one wins, as
        in the loop; of those that are not numbers the last one."""
        own, other = (expr("v[l]", v=self.value, l=self.lane), expr("v[l + h]", v=self.value, l=self.lane, h=half))
        places: dict[str, ast.expr | str | int] = {"p": self.place, "l": self.lane, "h": half}
        a, b, later, wins = (fresh(name, taken) for name in ("own", "other", "later", "wins"))
        strict = isinstance(self.found.order, (ast.Gt, ast.Lt))
        greater = isinstance(self.found.order, (ast.Gt, ast.GtE))
        test = f"b {'>' if greater else '<'} a or (b == a and {'not later' if strict else 'later'})"
        if self.found.with_nan:
            test += " or (b != b and (a == a or later))"
        return self._over(
            half,
            declare(a, LocalType(self.dtype), own),
            declare(b, LocalType(self.dtype), other),
            declare(later, LocalType("bool"), expr("p[l + h] > p[l]", **places)),
            declare(wins, LocalType("bool"), expr(test, a=a, b=b, later=later)),
            _choice(expr("p[l]", **places), expr(wins), expr("p[l + h]", **places)),
            ast.Assign([as_target(own)], expr("b if wins else a", a=a, b=b, wins=wins)),
        )

    def _over(self, count: int, *statements: ast.stmt) -> ast.stmt:
        return for_loop(self.lane, count, list(statements), kind="vector")


def _choice(target: ast.expr, test: ast.expr, value: ast.expr) -> ast.Assign:
    return ast.Assign([as_target(target)], ast.IfExp(clone(test), clone(value), as_value(target)))
