"""moments: a mean and the variance about it in one pass over the data."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from swirl.errors import CommandError, Refused
from swirl.ir.affine import simplify_body
from swirl.ir.buffers import Buffer
from swirl.ir.item_numbers import FORMULA, with_numbers
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, Program, clone, constant, expr, fresh, loop_of, make_nest, names_in
from swirl.ir.paths import enclosing
from swirl.ir.polynomial import Atom, number, of_atom, polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_value, changed
from swirl.transforms.arguments import LoopName, NestName
from swirl.transforms.command import Assumption, command
from swirl.transforms.rewrites.blocks import block_at, rebuilt
from swirl.transforms.rewrites.checks.checked import checked
from swirl.transforms.rewrites.checks.refusals import refuse
from swirl.transforms.rewrites.loops.iterations import Iterations
from swirl.transforms.rewrites.loops.strips import plain_loop
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at, resolve_name, taken_names
from swirl.transforms.rewrites.sums.one_pass_moments import Moments, OnePass, Parts
from swirl.transforms.rewrites.sums.sum_loops import Sum, sum_of, zeroing

NOTE = "asked for moments in one pass"
TOTAL = "sum of the data"
"""The name of the sum of the data while statements are followed; no program uses it."""


@command(assumes=Assumption("the data are finite, and so are their squared differences"))
def moments(
    program: Program,
    loop_var: LoopName,
    *,
    inner: LoopName | None = None,
    once: bool = False,
    apart: bool = False,
    nest: NestName | None = None,
) -> Program:
    """Compute a mean and the sum of squared differences from it in one pass; iterations of the loop are combined.

    rewrite:
        m = 0.0                                     base: float32 = x[0, 0]
        for n in range(N):                          inner: float32 = 0.0; squares: float32 = 0.0; seen: float32 = 0.0
            for i in range(K):                      for n in range(N):
                m += x[n, i]                            shift: float32 = x[n, 0]; s: float32 = 0.0; q: float32 = 0.0
        m = m / (N * K)                     →           for i in range(K):
        for n in range(N):                                  d: float32 = x[n, i] - shift
            for i in range(K):                              s += d; q += d * d
                v += (x[n, i] - m) * (x[n, i] - m)      … combined as Chan, Golub and LeVeque do
                                                    m = base + inner
                                                    v += squares

    rewrite (apart = True):
        m = 0.0                                     for n in range(N):
        for n in range(N):                              … shift, s and q of an iteration, as above
            for i in range(K):                          m_bases[n] = shift; m_means[n] = s / K
                m += x[n, i]                            m_squared[n] = q - s * s / K
        m = m / (N * K)                     →       base: float32 = m_bases[0]
        for n in range(N):                          for n_part in range(N):
            for i in range(K):                          … combined
                v += (x[n, i] - m) * (x[n, i] - m)  m = base + inner
                                                    v += squares

    Differences are from the first element of each iteration, so a large mean costs no digits: the relative error of
    the sum of squares is at most ``(K / p + N + 8) * (1 + z * z)`` roundings, where ``p`` is the number of partial sums
    of the loops inside, and ``z`` the distance of a first element from the mean of its iteration, in standard
    deviations of it (``z * z < K`` always). It is never negative.

    With ``inner``, differences are from the first element of each iteration of that loop, which are combined to
    those of ``loop_var``: ``K`` is what is inside of ``inner``, and the number of its iterations is added to ``N``.

    The data, and their squared differences, are assumed finite: otherwise, the mean may be NaN instead of infinite.

    Args:
        loop_var: the outermost loop of both sums. ``tile_loop`` before makes iterations of several images.
        inner: a loop of the sums inside. Nothing outside of its iterations reads the data: with ``apart``, it can be
            fused with the loop that makes them.
        once: read each element when the loops reach it, also the first one of an iteration of ``loop_var``: with
            ``apart``, the pass can be fused with whatever makes the data. Not together with ``inner``.
        apart: keep the moments of each iteration in temporaries, and combine them after the loop, which then needs no
            order; ``distribute`` and ``interchange`` bring it outermost.
        nest: only in this nest (index or label).

    Raises:
        CommandError: the sums have no loop ``inner``, or ``once`` is given with it.
        Refused: there is no such pair of sums; what is subtracted is not the mean of the data; the data or the mean
            change between; bounds are not constant.

    Source: Chan, Golub, LeVeque, *The American Statistician* 37 (1983); Lake, section 3.2 (Fig. 3.4).
    """
    if inner is not None and once:
        raise CommandError("inner and once are two ways to take first elements", way_out="give one of them")
    done: Program | None = None
    while True:
        current = done or program
        furthest: _Stopped | None = None
        after = None
        for site in find_loops(current, loop_var, nest)[::-1] if done is None else _sites(current, loop_var, nest):
            plain_loop(current.nests[site.nest], site.path, loop_at(current, site), NOTE)
            try:
                after = _Pair(current, site, inner, once, apart).rewritten()
                break
            except _Stopped as stopped:
                furthest = stopped if furthest is None or stopped.step > furthest.step else furthest
        if after is None:
            break
        done = checked(current, after)
    if done is not None:
        return done
    assert furthest is not None
    raise furthest.refusal


def _sites(program: Program, loop_var: str, nest: int | str | None) -> list[Site]:
    """The loops of that name, until there are none."""
    try:
        return find_loops(program, loop_var, nest)[::-1]
    except CommandError:
        return []


class _Stopped(Exception):
    """Why a loop is not the first one of a pair, and how far the search went."""

    def __init__(self, step: int, refusal: Refused):
        self.step, self.refusal = step, refusal


class _Pair:
    """Two sums in one block: the data, and squared differences from their mean."""

    def __init__(self, program: Program, site: Site, inner: str | None, once: bool, apart: bool):
        self.program, self.site = program, site
        self.inner, self.once, self.apart = inner, once, apart
        self.nest = program.nests[site.nest]
        self.block = block_at(self.nest, site.path)
        self.position = site.path[-1][1]
        first = sum_of(self.program, self.nest, loop_at(program, site))
        if first is None:
            raise self._stop(
                1,
                f"the loops of {self._var} do not add up one expression",
                way_out="distribute makes loops of one sum each",
            )
        self.first = first
        self.count = first.count or 0
        self.iterations = Iterations(program, self.nest, first.heads, apart)
        if not self.count:
            raise self._stop(
                1,
                f"the bounds of {self._var} or of a loop inside are not constant, or empty",
                way_out="tile_loop by a factor that divides the extent",
            )

    @property
    def _var(self) -> str:
        return loop_of(loop_at(self.program, self.site)).var

    def _stop(self, step: int, problem: str, **more: str) -> _Stopped:
        return _Stopped(step, refuse(problem, self.nest, self.site.path, NOTE, **more))

    def rewritten(self) -> Program:
        """The program with one pass instead of two.

        Raises:
            _Stopped: the loop is not the first of such a pair.
        """
        start = self._check_start()
        values = self._start()
        means: list[ast.stmt] = []
        data_names = names_in(self.first.data) - {head.var for head in self.first.heads}
        tried = False
        for statement in self.block[self.position + 1 :]:
            if isinstance(statement, ast.For):
                second = sum_of(self.program, self.nest, statement)
                if second is not None and self._same_iterations(second):
                    tried = True
                    scale = self._variance(second, values)
                    if scale is not None:
                        return self._joined(statement, second, scale, start, means)
            elif not isinstance(statement, ast.If) and self._follow(statement, values):
                means.append(statement)
            stored = set(stored_in([statement], declared=True))
            if isinstance(statement, (ast.For, ast.If)):
                _forget(values, stored)
            if stored & data_names:
                what = ", ".join(sorted(stored & data_names))
                line = unparse(statement).splitlines()[0]
                raise self._stop(4, f"{what} changes before a second sum", witness=line)
        if tried:
            raise self._stop(
                3,
                "no later sum adds squared differences from the mean of these data",
                witness=f"the mean is {unparse(self.first.target)} / {self.count}",
                way_out="the sum must be of (x - m) * (x - m), m = sum of x / number of x",
            )
        raise self._stop(
            2,
            "no later loop in this block has the same bounds",
            way_out="reorder or fuse: both sums in one body, their loops in one order",
        )

    def _start(self) -> dict[str, ast.expr]:
        """The target's value after the loop, in terms of the sum of the data."""
        total = of_atom(Atom(ast.Name(TOTAL, ast.Load()))) * number(self.first.scale)
        return {unparse(self.first.target): total.to_expr()}

    def _check_start(self) -> ast.stmt:
        """Where the target is set to 0, which it must be before the loop."""
        found = zeroing(self.block[: self.position], self.first.target)
        if found is not None:
            return found
        name = unparse(self.first.target)
        raise self._stop(
            1, f"{name} is not known to start at 0", way_out=f"{name} = 0.0 belongs before the loop, in the same block"
        )

    def _follow(self, statement: ast.stmt, values: dict[str, ast.expr]) -> bool:
        """Note what a statement does with the sum; whether it assigns a multiple of it."""
        if isinstance(statement, ast.AugAssign):
            target: ast.expr = statement.target
            value: ast.expr = ast.BinOp(as_value(target), statement.op, statement.value)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            value = statement.value
        else:
            return False
        followed = _Followed(values).visit(clone(value))
        key = unparse(target)
        _forget(values, {key.split("[")[0]})
        if TOTAL not in names_in(followed) or key.split("[")[0] in names_in(followed):
            return False
        values[key] = followed
        return self._multiple(followed) is not None

    def _multiple(self, value: ast.expr) -> Fraction | None:
        """What the mean is multiplied by to get ``value``; None if it is not a multiple of it."""
        found = set()
        for items, share in self.iterations.shares():  # a mean is one for any number of items
            known = with_numbers(value, self.program.buffers, items) if items else value
            whole = polynomial(known)
            if set(whole.terms) != {(TOTAL,)}:
                return None
            found.add(whole.terms[TOTAL,] * self.count * share)
        return found.pop() if len(found) == 1 else None

    def _same_iterations(self, second: Sum) -> bool:
        def bounds(heads: Sequence[Loop]) -> list[tuple[str, str, int]]:
            return [(unparse(head.start), unparse(head.stop), head.step) for head in heads]

        return bounds(self.first.heads) == bounds(second.heads)

    def _variance(self, second: Sum, values: dict[str, ast.expr]) -> Fraction | None:
        """What the sum of squared differences from the mean is multiplied by in the second sum, if it is one."""
        data = polynomial(self.first.renamed(second.heads))
        for key, value in values.items():
            if self._multiple(value) != 1:
                continue
            difference = data - of_atom(Atom(ast.parse(key, mode="eval").body))
            square = difference * difference
            found = {tuple(sorted(monomial)): c for monomial, c in second.whole.terms.items()}
            monomial, coefficient = next(iter(square.terms.items()))
            scale = found.get(tuple(sorted(monomial)), Fraction(0)) / coefficient
            if scale and square * number(scale) == second.whole:
                return scale
        return None

    def _joined(self, node: ast.stmt, second: Sum, scale: Fraction, start: ast.stmt, means: list[ast.stmt]) -> Program:
        program, found, one_pass = self._one_pass()
        assert found.rest is not None and found.squares is not None
        mean = of_atom(Atom(expr("base + rest", base=found.base, rest=found.rest)))
        replaced: dict[int, list[ast.stmt]] = {}
        values = self._start()
        for statement in means:  # each of them is a multiple of the mean
            self._follow(statement, values)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target  # type: ignore[attr-defined]
            multiple = self._multiple(values[unparse(target)])
            assert multiple is not None
            value = (mean * number(multiple)).to_expr()
            adds = isinstance(statement, ast.AugAssign)
            replaced[id(statement)] = [ast.Assign([target], value) if adds else changed(statement, value=value)]
        target = clone(self.first.target)
        total = ast.Assign([target], (mean * number(self.count * self.first.scale)).to_expr())
        loop = self.block[self.position]
        dead = self._dead(replaced)
        whole = "moments has counted the items of a whole batch" if self.iterations.over_items and not dead else ""
        replaced[id(loop)] = [*one_pass, *([] if dead else [total])]
        if isinstance(start, ast.Assign) and not self._read_between(start):
            replaced[id(start)] = []
        assert isinstance(second.target, (ast.Name, ast.Subscript))
        squares = of_atom(Atom(found.squares)) * number(abs(scale))
        add = ast.AugAssign(clone(second.target), ast.Add() if scale > 0 else ast.Sub(), squares.to_expr())
        replaced[id(node)] = [add]
        body = rebuilt(self.nest.body, replaced)
        made = program.with_nest(self.site.nest, make_nest(self.nest.label, body, program.buffers))
        return replace(made, fixed=self.iterations.fixed or whole)

    def _read_between(self, start: ast.stmt) -> bool:
        """Whether anything reads the target between its first value and the loop."""
        name = unparse(self.first.target).split("[")[0]
        return any(name in names_in(s) for s in self.block[self.block.index(start) + 1 : self.position])

    def _dead(self, replaced: dict[int, list[ast.stmt]]) -> bool:
        """Whether the sum itself is overwritten before anything reads it."""
        name = unparse(self.first.target).split("[")[0]
        for statement in self.block[self.position + 1 :]:
            (new,) = replaced.get(id(statement), [statement])
            if name in names_in(new):
                return (
                    isinstance(new, ast.Assign)
                    and unparse(new.targets[0]) == unparse(self.first.target)
                    and name not in names_in(new.value)
                )
        return False

    def _one_pass(self) -> tuple[Program, Moments, list[ast.stmt]]:
        """The program with temporaries, what the loops of one pass find, and these loops."""
        taken = taken_names(self.program, [self.nest] if not self.apart else None)
        base = unparse(self.first.target).split("[")[0]
        inner, program, parts = self._inner(), self.program, None
        if self.apart:
            around, shape = self._around()
            bases, means, squared = (fresh(f"{base}_{word}", taken) for word in ("bases", "means", "squared"))
            parts = Parts(bases, means, squared, around)
            for name in (bases, means, squared):
                kept = Buffer(f"{program.name}.{name}", shape, self.first.dtype, "temporary")
                program = program.with_buffers(**{name: kept})
                taken.add(name)
        heads = OnePass(self.first.heads, self.first.data, self.first.dtype, base, taken, self.iterations.size)
        found, statements = heads.loops(inner, self.once, parts)
        number = {own: b for own, b in self.iterations.program.buffers.items() if b.formula == FORMULA}
        return program.with_buffers(**number), found, simplify_body(statements)

    def _inner(self) -> int | None:
        """How many loops inside the first one are outside of the iterations that are combined separately."""
        if self.inner is None:
            return None
        names = [head.var for head in self.first.heads]
        wanted = [name for name in resolve_name(self.program, self.inner) if name in names[1:]]
        if not wanted:
            raise CommandError(
                f"{self.inner} is not a loop inside {self._var} that adds up",
                way_out=f"these are {', '.join(names[1:]) or 'none'}",
            )
        return names.index(wanted[0])

    def _around(self) -> tuple[tuple[ast.expr, ...], tuple[int, ...]]:
        """The variables of the loops around, and the extents of an array with an element for each iteration."""
        outer = [loop_of(n) for n in enclosing(self.nest.body, self.site.path) if isinstance(n, ast.For)]
        loops = [self.first.heads[0], *outer]
        moving = next((h for h in loops if constant(h.start) != 0 or h.step != 1 or h.extent is None), None)
        if moving is not None:
            raise refuse(
                f"{moving.var} does not count from 0 to a constant",
                self.nest,
                self.site.path,
                NOTE,
                way_out="leave apart=True out, or tile_loop after this command",
            )
        return tuple(expr(h.var) for h in outer), tuple(h.extent or 0 for h in loops)


def _forget(values: dict[str, ast.expr], stored: set[str]) -> None:
    """Remove what is in, or depends on, something stored to: another subscript may be the same element."""
    for key in [key for key, value in values.items() if key.split("[")[0] in stored or names_in(value) & stored]:
        del values[key]


class _Followed(Transformer):
    """Replaces references by what they stand for."""

    def __init__(self, values: dict[str, ast.expr]):
        self.values = values

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Subscript)):
            return clone(self.values.get(unparse(node), node))
        return super().generic_visit(node)
