"""reindex: a change of variables, after which a subscript is a loop (scatter → gather)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swirl.analysis.dependences import NotProved, remapped
from swirl.analysis.isl_notation import condition_to_isl
from swirl.errors import CommandError
from swirl.ir.affine import Affine, affine, bounds, loop_range, ranges_at, simplify, simplify_body
from swirl.ir.hints import is_name
from swirl.ir.nest import Loop, Nest, Program, clone, expr, for_loop, loop_of, names_in, substitute, variable_of
from swirl.ir.paths import Path, at, enclosing, replace_at
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer
from swirl.transforms.arguments import LoopName, NestName, Selection
from swirl.transforms.command import command
from swirl.transforms.rewrites.checks.dependence_order import check_order, tagged
from swirl.transforms.rewrites.checks.refusals import WayOut, refuse
from swirl.transforms.rewrites.checks.ways_out import step
from swirl.transforms.rewrites.loops.bounds import conjunction, conjuncts, restricted
from swirl.transforms.rewrites.loops.decided_guards import drop_decided_guards
from swirl.transforms.rewrites.loops.nesting import chain_to, conditions_inside, isolate, vars_below
from swirl.transforms.rewrites.loops.permutation import way_to_nest
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.sites import (
    LeftAlone,
    Site,
    find_loops,
    loop_at,
    loop_names,
    rewrite_each,
    taken_names,
)

NOTE = "asked to be reindexed"


@command()
def reindex(program: Program, loop_var: LoopName | None = None, *, nest: NestName | None = None, **new: str) -> Program:
    """Replace a loop by one over an affine expression of it and other loops: a scatter becomes a gather.

    rewrite (iy = 'y + ky - 1'):
        for y in range(56):                         for iy in range(56):
            for ky in range(3):             →           for ky in range(3):
                if y + ky >= 1 and y + ky < 57:             if iy - ky + 1 >= 0 and iy - ky + 1 <= 55:
                    g[y + ky - 1] += s[y]                       g[iy] += s[iy - ky + 1]

    Where the coefficient of the loop is not ±1 (a stride), a condition on the remainder is added; it is decided
    statically once the loops in it are unrolled or split into residue classes. Loops inside that the expression names
    are first nested directly with the loop, where that is legal: by distribution, and conditions between go inside.

    Args:
        loop_var: the loop to be replaced; by default the outermost of those in the expression.
        nest: only in this nest (index or label).
        new: one keyword, the new loop's name = the expression.

    Raises:
        CommandError: the expression is not affine, or names no loop or a loop that does not exist.
        Refused: a dependence would be reversed, or other bounds move with the loop.

    Source: Lake, *Optimized Code Generation for Deep Learning Networks using LATTE and SWIRL*, section 3.2 (the
    backward phase of convolution); Kelly, Pugh, *A unifying framework for iteration reordering transformations*, 1995.
    """
    if len(new) != 1:
        raise CommandError(
            f"reindex takes one new loop, not {len(new)}", way_out="reindex(phase, iy='y + ky'), one command for each"
        )
    ((name, text),) = new.items()
    form, replaced = _parsed(program, name, text, loop_var)
    selected = loop_var or replaced
    others = _variables(form) - {replaced}
    found: dict[int, list[Site]] = {}
    for site in find_loops(program, selected, nest)[::-1]:
        if others <= _in_scope(program.nests[site.nest], site.path):
            found.setdefault(site.nest, []).append(site)
    if not found:
        raise CommandError(
            f"no nest of {program.name} holds the loops {', '.join(sorted(others | {selected}))} one inside the other"
        )

    def rewrite(before: Program, site: Site) -> Program:
        if not others <= _in_scope(before.nests[site.nest], site.path):
            return before
        return before.with_nest(site.nest, _reindexed(before, site, name, form))

    left = LeftAlone()
    for number, sites in found.items():
        with left.noting(program, sites[0]):
            program, left.changed = rewrite_each(program, _in_nest(program, selected, sites), number, rewrite), True
    return left.with_remarks(program)


def _parsed(program: Program, name: str, text: str, loop_var: str | None) -> tuple[Affine, str]:
    """The new loop's expression, and the loop that it replaces."""
    form = None
    loop_var = loop_var and Selection.of(loop_var).name
    if isinstance(text, str):
        try:
            form = affine(ast.parse(text, mode="eval").body)
        except SyntaxError:
            form = None
    if form is None:
        raise CommandError(f"{text!r} is not an affine expression of loops")
    known = loop_names(program)
    unknown = sorted(_variables(form) - set(known))
    if unknown or not _variables(form):
        missing = f"names {', '.join(unknown)}, which is not a loop" if unknown else "names no loop"
        raise CommandError(f"{text!r} {missing} of {program.name}", way_out=f"the loops are {', '.join(known)}")
    if not is_name(name) or name in taken_names(program):
        raise CommandError(f"{name!r} cannot name the new loop: it is not a name, or is used already")
    loop_var = loop_var or next(var for var in known if var in _variables(form))
    hidden = any(loop_var in names_in(form.atoms[key]) for key in form.terms if key != loop_var)
    if loop_var not in form.terms or hidden:
        raise CommandError(
            f"{text!r} cannot be solved for {loop_var}", way_out="an expression like 'y * 2 + ky', linear in the loop"
        )
    return form, loop_var


def _variables(form: Affine) -> set[str]:
    return {name for key in form.terms for name in names_in(form.atoms[key])} - {"min", "max"}


def _in_nest(program: Program, selected: str, sites: Sequence[Site]) -> str:
    """What selects in one nest alone the loops that are selected in the program: one of several has its number
    there."""
    every, numbered, _ = selected.partition("[")
    if not numbered:
        return selected
    (site,) = sites
    return f"{every}[{find_loops(program, every, site.nest)[::-1].index(site)}]"


def _in_scope(nest: Nest, path: Path) -> set[str]:
    """The loops around the loop at ``path``, and those inside."""
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    around = (at(nest.body, path[:depth]) for depth in range(1, len(path)))
    return vars_below(node) | {variable_of(outer) for outer in around if isinstance(outer, ast.For)}


def _reindexed(program: Program, site: Site, name: str, form: Affine) -> Nest:
    nest, path = program.nests[site.nest], site.path
    loop = plain_loop(nest, path, loop_at(program, site), NOTE)
    inner = _variables(form) & (vars_below(loop_at(program, site)) - {loop.var})
    again = step("reindex", loop.var, **{name: unparse(form.to_expr())})
    nest, path = _perfect(nest, path, {loop.var} | inner, way_to_nest(program, site, again))
    end = _innermost(nest, path)  # conditions stay inside, where they hinder no later command
    chain = [
        loop_of(node)
        for depth in range(len(path), len(end) + 1)
        if isinstance(node := at(nest.body, end[:depth]), ast.For)
    ]
    bounding = chain[1 : 1 + max((i for i, other in enumerate(chain) if other.var in inner), default=0)]
    moving = [other.var for other in bounding if loop.var in names_in(other.start) | names_in(other.stop)]
    if moving:
        raise refuse(
            f"the bounds of {', '.join(moving)} move with {loop.var}",
            nest,
            path,
            NOTE,
            way_out="reindex before the bounds are made to move",
        )
    try:
        conflict = remapped(nest.body, path, form.to_expr())
    except NotProved:
        raise refuse("not proved within the time allowed", nest, path, NOTE) from None
    if conflict is not None:
        raise refuse("a dependence would be reversed", nest, path, NOTE, witness=conflict)

    leaf = at(nest.body, end)
    assert isinstance(leaf, ast.For)
    solution = _Solution.of(loop.var, name, form)
    body = [solution.visit(clone(statement)) for statement in leaf.body]
    conditions = solution.conditions(loop)
    first = True
    while len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse:
        if not first and condition_to_isl(body[0].test) is None:
            break  # with a test of data, what the loops say could not be told any more
        conditions += conjuncts(body[0].test)
        body, first = body[0].body, False
    ranges = {**ranges_at(nest.body, end), **loop_range(chain[-1], ranges_at(nest.body, end))}
    limits = bounds(form, ranges)
    if limits is None:
        raise refuse(f"the range of {unparse(form.to_expr())} is not known", nest, path, NOTE)
    head, undecided = _bounded(loop_of(for_loop(name, limits[1] + 1, [], start=limits[0])), conditions)
    if undecided:
        body = [ast.If(conjunction(undecided), body, [])]
    for other in reversed(chain[1:]):
        start, stop = (solution.visit(clone(bound)) for bound in (other.start, other.stop))
        body = [Loop(other.var, other.kind, start, stop, other.step, other.options).node(body)]
    around = ranges_at(nest.body, path)
    new = drop_decided_guards(simplify_body([head.node(body)], around), around, nest.names)
    return nest.with_body(replace_at(nest.body, path, new or [ast.Pass()]))  # where no condition held at all


def _bounded(head: Loop, conditions: list[ast.expr]) -> tuple[Loop, list[ast.expr]]:
    """The loop with conditions on its variable alone as bounds, and the conditions that are left."""
    left = []
    for condition in conditions:
        own = isinstance(condition, ast.Compare) and names_in(condition) == {head.var}
        tighter = restricted(head, condition) if own else None
        if tighter is None:
            left.append(condition)
        else:
            head = tighter
    return head, left


def _perfect(nest: Nest, path: Path, names: set[str], way_out: WayOut) -> tuple[Nest, Path]:
    """The nest with the loops ``names``, at and below ``path``, nested directly; and where they start now."""
    if chain_to(nest.body, path, names) is not None:
        return nest, path
    node = at(nest.body, path)
    assert isinstance(node, ast.For)
    around = {variable_of(outer) for outer in enclosing(nest.body, path) if isinstance(outer, ast.For)}
    inside = replace_at(nest.body, path, [conditions_inside(node, names, around)])
    if chain_to(inside, path, names) is not None:
        return nest.with_body(inside), path
    for body in (nest.body, inside):  # what distribution alone can do does not need its conditions moved
        old = tagged(body)
        node = at(old, path)
        assert isinstance(node, ast.For)
        pieces = isolate(node, names)
        if pieces is None:
            continue
        position = next(i for i, piece in enumerate(pieces) if names <= vars_below(piece))
        start = (*path[:-1], (path[-1][0], path[-1][1] + position))
        new = replace_at(old, path, list(pieces))
        if chain_to(new, start, names) is not None:
            check_order(old, new, nest, path, NOTE)
            return nest.with_body(new), start
    raise refuse("the loops of the expression are not perfectly nested", nest, path, NOTE, way_out=way_out)


def _innermost(nest: Nest, path: Path) -> Path:
    """The path of the innermost of the perfectly nested loops that start at ``path``."""
    while True:
        node = at(nest.body, path)
        assert isinstance(node, ast.For)
        if len(node.body) != 1 or not isinstance(node.body[0], ast.For):
            return path
        path = (*path, ("body", 0))


def _ends(name: str, bound: ast.expr) -> list[ast.expr]:
    """The numbers of which a bound is the greatest or the least one."""
    extreme = isinstance(bound, ast.Call) and isinstance(bound.func, ast.Name) and bound.func.id == name
    return list(bound.args) if isinstance(bound, ast.Call) and extreme else [bound]


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
    """A comparison; without the loops that are the same on both sides, if one is left."""
    difference = affine(ast.BinOp(left, ast.Sub(), right))
    if difference is None or len(difference.terms) > 1:
        return ast.Compare(left, [operator], [right])
    return ast.Compare(difference.to_expr(), [operator], [ast.Constant(0)])


@dataclass(frozen=True)
class _Solution(Transformer):
    """``step * var = numerator``: ``var`` in terms of the new loop and the others."""

    var: str
    step: int
    numerator: Affine

    @staticmethod
    def of(var: str, name: str, form: Affine) -> _Solution:
        """From ``name = form``, which is linear in ``var``."""
        step = form.coefficient(var)
        own = Affine({var: 1}, 0, {var: form.atoms[var]})
        new = Affine({name: 1}, 0, {name: ast.Name(name, ast.Load())})
        return _Solution(var, step, new.add(form.add(own, -step), -1))

    @property
    def value(self) -> ast.expr:
        """``var``, where there is one."""
        positive = self.numerator.scale(1 if self.step > 0 else -1)
        return simplify(expr("numerator // step", numerator=positive.to_expr(), step=abs(self.step)))

    def conditions(self, loop: Loop) -> list[ast.expr]:
        """The condition on the new variables for the old loop to have such an iteration."""
        numerator, size = self.numerator.scale(1 if self.step > 0 else -1).to_expr(), abs(self.step)
        result = [] if size == 1 else [expr("numerator % size == 0", numerator=numerator, size=size)]
        for start in _ends("max", loop.start):
            result.append(_compared(numerator, ast.GtE(), expr("size * start", size=size, start=start)))
        for stop in _ends("min", loop.stop):
            result.append(_compared(numerator, ast.LtE(), expr("size * (stop - 1)", size=size, stop=stop)))
        return result

    def visit(self, node: Any) -> Any:
        if not isinstance(node, ast.expr):
            return self.generic_visit(node)
        form = affine(node)
        if form is None:
            return self.generic_visit(node)
        if self.var not in names_in(node):
            return node
        result = Affine(constant=form.constant)
        for key, coefficient in form.terms.items():
            if key == self.var and coefficient % self.step == 0:
                result = result.add(self.numerator, coefficient // self.step)
                continue
            part = affine(substitute(form.atoms[key], {self.var: self.value}))
            assert part is not None
            result = result.add(part, coefficient)
        return result.to_expr()
