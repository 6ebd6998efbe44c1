"""moments: a mean and the variance about it in one pass over the data."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from swirl.errors import CommandError, Refused
from swirl.ir.affine import simplify_body
from swirl.ir.nest import Loop, Program, clone, expr, fresh, loop_of, names_in, stmts, substitute
from swirl.ir.polynomial import Atom, Polynomial, number, of_atom, polynomial
from swirl.transforms.base import Site, checked, command, find_loops, loop_at, refuse, taken_names
from swirl.transforms.blocks import block_at, dtype_of, rebuilt
from swirl.transforms.moving import Moving, stored_names
from swirl.transforms.split import plain_loop

NOTE = "asked for moments in one pass"
TOTAL = "sum of the data"
"""What the sum of the data is called while statements are followed; no name of a program."""


@command()
def moments(program: Program, loop_var: str, *, nest: int | str | None = None) -> Program:
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

    Differences are from the first element of each iteration, so a large mean costs no digits: the relative error of
    the sum of squares is at most ``(K / p + N + 8) * (1 + z * z)`` roundings, where ``p`` is the number of partial sums
    of the loops inside, and ``z`` the distance of a first element from the mean of its iteration, in standard
    deviations of it (``z * z < K`` always). It is never negative.

    Args:
        loop_var: the outermost loop of both sums. ``tile_loop`` before makes iterations of several images.
        nest: only in this nest (index or label).

    Raises:
        Refused: there is no such pair of sums; what is subtracted is not the mean of the data; the data or the mean
            change between; bounds are not constant.

    Source: Chan, Golub, LeVeque, *The American Statistician* 37 (1983); Lake, section 3.2 (Fig. 3.4).
    """
    done: Program | None = None
    while True:
        current = done or program
        furthest: _Stopped | None = None
        after = None
        for site in find_loops(current, loop_var, nest)[::-1] if done is None else _sites(current, loop_var, nest):
            plain_loop(current.nests[site.nest], site.path, loop_at(current, site), NOTE)
            try:
                after = _Pair(current, site).rewritten()
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
    """The loops called so, as long as there are any."""
    try:
        return find_loops(program, loop_var, nest)[::-1]
    except CommandError:
        return []


class _Stopped(Exception):
    """Why a loop is not the first one of a pair, and how far the search came."""

    def __init__(self, step: int, refusal: Refused):
        self.step, self.refusal = step, refusal


@dataclass(frozen=True)
class _Sum:
    """A perfect nest of loops that adds up one expression: ``target += scale * data``, which is ``target += whole``."""

    heads: tuple[Loop, ...]
    moving: Moving
    target: ast.expr
    data: ast.expr
    scale: Fraction
    whole: Polynomial
    dtype: str

    @property
    def count(self) -> int | None:
        """The iterations, where all bounds are constant."""
        return prod(head.extent or 0 for head in self.heads) if all(h.extent is not None for h in self.heads) else None

    def renamed(self, heads: Sequence[Loop]) -> ast.expr:
        """The data with the loop variables of another sum."""
        pairs = zip(self.heads, heads, strict=True)
        return substitute(self.data, {old.var: ast.Name(new.var, ast.Load()) for old, new in pairs})


class _Pair:
    """Two sums in one block: the data, and squared differences from their mean."""

    def __init__(self, program: Program, site: Site):
        self.program, self.site = program, site
        self.nest = program.nests[site.nest]
        self.block = block_at(self.nest, site.path)
        self.position = site.path[-1][1]
        first = self._sum(loop_at(program, site))
        if first is None:
            raise self._stop(1, f"the loops of {self._var} do not add up one expression",
                             way_out="distribute makes loops of one sum each")  # fmt: skip
        self.first = first
        self.count = first.count or 0
        if not self.count:
            raise self._stop(1, f"the bounds of {self._var} or of a loop inside are not constant, or empty",
                             way_out="tile_loop by a factor that divides the extent")  # fmt: skip

    @property
    def _var(self) -> str:
        return loop_of(loop_at(self.program, self.site)).var

    def _stop(self, step: int, problem: str, **more: str) -> _Stopped:
        return _Stopped(step, refuse(problem, self.nest, self.site.path, NOTE, **more))

    def _sum(self, node: ast.stmt) -> _Sum | None:
        """The sum that a loop is; None where it is something else."""
        heads: list[Loop] = []
        outer = node
        while isinstance(node, ast.For):
            heads.append(loop_of(node))
            if heads[-1].kind != "range":
                return None
            if len(node.body) == 1 and isinstance(node.body[0], ast.For):
                node = node.body[0]
                continue
            break
        if not isinstance(node, ast.For) or not isinstance(outer, ast.For):
            return None
        *locals_, last = node.body
        add = isinstance(last, ast.AugAssign) and isinstance(last.op, (ast.Add, ast.Sub))
        if not add or not all(isinstance(statement, ast.AnnAssign) for statement in locals_):
            return None
        assert isinstance(last, ast.AugAssign)
        moving = Moving(outer)
        if any(ast.unparse(s.target) not in moving.definitions for s in locals_ if isinstance(s, ast.AnnAssign)):
            return None
        if names_in(last.target) & {head.var for head in heads} or names_in(last.value) & moving.stored - moving.locals:
            return None
        data, scale = moving.written_out(last.value), Fraction(1)
        whole = polynomial(data)
        if isinstance(last.op, ast.Sub):
            data, whole = ast.UnaryOp(ast.USub(), data), -whole
        if len(whole.terms) == 1:  # a number in front belongs to the sum, not to the data
            ((monomial, scale),) = whole.terms.items()
            data = Polynomial({monomial: Fraction(1)}, whole.atoms).to_expr()
        return _Sum(
            tuple(heads), moving, last.target, data, scale, whole, dtype_of(self.program, self.nest, last.target)
        )

    def rewritten(self) -> Program:
        """The program with one pass in place of two.

        Raises:
            _Stopped: the loop is not the first of such a pair.
        """
        self._check_start()
        values = self._start()
        means: list[ast.stmt] = []
        data_names = names_in(self.first.data) - {head.var for head in self.first.heads}
        tried = False
        for statement in self.block[self.position + 1 :]:
            if isinstance(statement, ast.For):
                second = self._sum(statement)
                if second is not None and self._same_iterations(second):
                    tried = True
                    scale = self._variance(second, values)
                    if scale is not None:
                        return self._joined(statement, second, scale, values, means)
            elif not isinstance(statement, ast.If) and self._follow(statement, values):
                means.append(statement)
            stored = set(stored_names([statement]))
            if isinstance(statement, (ast.For, ast.If)):
                _forget(values, stored)
            if stored & data_names:
                what = ", ".join(sorted(stored & data_names))
                line = ast.unparse(statement).splitlines()[0]
                raise self._stop(4, f"{what} changes before a second sum", witness=line)
        if tried:
            raise self._stop(3, "no later sum adds squared differences from the mean of these data",
                             witness=f"the mean is {ast.unparse(self.first.target)} / {self.count}",
                             way_out="the sum must be of (x - m) * (x - m), m = sum of x / number of x")  # fmt: skip
        raise self._stop(2, "no later loop in this block has the same bounds",
                         way_out="reorder or fuse: both sums in one body, their loops in one order")  # fmt: skip

    def _start(self) -> dict[str, ast.expr]:
        """What the target is behind the loop, by the sum of the data."""
        total = of_atom(Atom(ast.Name(TOTAL, ast.Load()))) * number(self.first.scale)
        return {ast.unparse(self.first.target): total.to_expr()}

    def _check_start(self) -> None:
        """The target must be 0 in front of the loop."""
        name = ast.unparse(self.first.target)
        for statement in reversed(self.block[: self.position]):
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                if ast.unparse(target) == name:
                    if polynomial(statement.value) == number(0):
                        return
                    break
            if name.split("[")[0] in stored_names([statement]):
                break
        raise self._stop(1, f"{name} is not known to start at 0",
                         way_out=f"{name} = 0.0 belongs in front of the loop, in the same block")  # fmt: skip

    def _follow(self, statement: ast.stmt, values: dict[str, ast.expr]) -> bool:
        """Note what a statement makes of the sum; whether it assigns a multiple of it."""
        if isinstance(statement, ast.AugAssign):
            target: ast.expr = statement.target
            value: ast.expr = ast.BinOp(load(target), statement.op, statement.value)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            value = statement.value
        else:
            return False
        followed = _Followed(values).visit(clone(value))
        key = ast.unparse(target)
        _forget(values, {key.split("[")[0]})
        if TOTAL not in names_in(followed) or key.split("[")[0] in names_in(followed):
            return False
        values[key] = followed
        return self._multiple(followed) is not None

    def _multiple(self, value: ast.expr) -> Fraction | None:
        """What the mean is multiplied by to get ``value``; None where it is no multiple of it."""
        whole = polynomial(value)
        return whole.terms[TOTAL,] * self.count if set(whole.terms) == {(TOTAL,)} else None

    def _same_iterations(self, second: _Sum) -> bool:
        def bounds(heads: Sequence[Loop]) -> list[tuple[str, str, int]]:
            return [(ast.unparse(head.start), ast.unparse(head.stop), head.step) for head in heads]

        return bounds(self.first.heads) == bounds(second.heads)

    def _variance(self, second: _Sum, values: dict[str, ast.expr]) -> Fraction | None:
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

    def _joined(self, node: ast.stmt, second: _Sum, scale: Fraction, values: dict[str, ast.expr],
                means: list[ast.stmt]) -> Program:  # fmt: skip
        names, one_pass = self._one_pass()
        mean = of_atom(Atom(expr(f"{names['base']} + {names['inner']}")))
        replaced: dict[int, list[ast.stmt]] = {}
        values = self._start()
        for statement in means:  # each of them is a multiple of the mean
            self._follow(statement, values)
            new = copy.copy(statement)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target  # type: ignore[attr-defined]
            multiple = self._multiple(values[ast.unparse(target)])
            assert multiple is not None
            value = (mean * number(multiple)).to_expr()
            if isinstance(statement, ast.AugAssign):
                new = ast.Assign([statement.target], value)
            else:
                new.value = value  # type: ignore[attr-defined]
            replaced[id(statement)] = [new]
        target = clone(self.first.target)
        total = ast.Assign([target], (mean * number(self.count * self.first.scale)).to_expr())
        loop = self.block[self.position]
        replaced[id(loop)] = [*one_pass, *([] if self._dead(replaced) else [total])]
        assert isinstance(second.target, (ast.Name, ast.Subscript))
        squares = of_atom(Atom(ast.Name(names["squares"], ast.Load()))) * number(abs(scale))
        add = ast.AugAssign(clone(second.target), ast.Add() if scale > 0 else ast.Sub(), squares.to_expr())
        replaced[id(node)] = [add]
        return self.program.with_nest(self.site.nest, self.nest.with_body(rebuilt(self.nest.body, replaced)))

    def _dead(self, replaced: dict[int, list[ast.stmt]]) -> bool:
        """Whether the sum itself is overwritten before anything reads it."""
        name = ast.unparse(self.first.target).split("[")[0]
        for statement in self.block[self.position + 1 :]:
            (new,) = replaced.get(id(statement), [statement])
            if name in names_in(new):
                return isinstance(new, ast.Assign) and ast.unparse(new.targets[0]) == ast.unparse(self.first.target) \
                    and name not in names_in(new.value)  # fmt: skip
        return False

    def _one_pass(self) -> tuple[dict[str, str], list[ast.stmt]]:
        """The loops that compute mean and sum of squared differences, and the names of what they compute."""
        taken = taken_names(self.program, [self.nest])
        base = ast.unparse(self.first.target).split("[")[0]
        words = ("base", "inner", "squares", "seen", "shift", "sum", "square_sum", "difference", "delta", "share")
        names = {word: fresh(f"{base}_{word}", taken) for word in words}
        head, *inner = self.first.heads
        start = {h.var: h.start for h in inner}
        size = float(prod(h.extent or 0 for h in inner))
        parts: dict[str, ast.expr | str | int] = {word: ast.Name(name, ast.Load()) for word, name in names.items()}
        parts |= {
            "data": self.first.data,
            "first": substitute(self.first.data, start),
            "very_first": substitute(self.first.data, {**start, head.var: head.start}),
            "size": ast.Constant(size),
        }
        kind = self.first.dtype
        before = stmts(
            f"base: {kind} = very_first\ninner: {kind} = 0.0\nsquares: {kind} = 0.0\nseen: {kind} = 0.0", **parts
        )
        opening = stmts(f"shift: {kind} = first\nsum: {kind} = 0.0\nsquare_sum: {kind} = 0.0", **parts)
        adding = stmts(
            f"difference: {kind} = data - shift\nsum += difference\nsquare_sum += difference * difference", **parts
        )
        for h in reversed(inner):
            adding = [h.node(adding)]
        closing = stmts(f"""
delta: {kind} = shift - base + sum / size - inner
share: {kind} = size / (seen + size)
squares += max(0.0, square_sum - sum * (sum / size)) + delta * delta * (seen * share)
inner += delta * share
seen += size
""", **parts)  # fmt: skip
        if not inner:  # an iteration has one element, which is its own mean
            opening, adding = stmts(f"shift: {kind} = first", **parts), []
            closing = stmts(f"""
delta: {kind} = shift - base - inner
share: {kind} = 1.0 / (seen + 1.0)
squares += delta * delta * (seen * share)
inner += delta * share
seen += 1.0
""", **parts)  # fmt: skip
        return names, simplify_body([*before, head.node([*opening, *adding, *closing])])


def _forget(values: dict[str, ast.expr], stored: set[str]) -> None:
    """Remove what lies in or depends on something stored to: another subscript may be the same element."""
    for key in [key for key, value in values.items() if key.split("[")[0] in stored or names_in(value) & stored]:
        del values[key]


class _Followed(ast.NodeTransformer):
    """Puts in what references stand for."""

    def __init__(self, values: dict[str, ast.expr]):
        self.values = values

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Subscript)):
            return clone(self.values.get(ast.unparse(node), node))
        return super().generic_visit(node)


def load(target: ast.expr) -> ast.expr:
    """A target as an operand."""
    return ast.parse(ast.unparse(target), mode="eval").body
