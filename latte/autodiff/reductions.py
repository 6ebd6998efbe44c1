"""Reductions that choose one iteration: finding them, and what belongs together."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from latte.autodiff.order import Site
from latte.autodiff.prepare import Body, all_sites, line_of, load, origin, target_of
from latte.autodiff.terms import name_of, same
from swirl.errors import DerivativeError
from swirl.ir.nest import Loop, Path, names_in


@dataclass(frozen=True)
class Reduction:
    """``target = candidate if test else target`` at ``site``, over ``loops``; ``starts`` set the target first.

    ``test`` is None for ``max`` and ``min``, whose ``sign`` says which candidates are better.
    """

    site: Site
    target: ast.expr
    candidate: ast.expr
    sign: str
    test: ast.expr | None
    loops: tuple[Loop, ...]
    home: tuple[Loop, ...]
    starts: tuple[Site, ...]


def reductions(place: str, nests: list[Body]) -> list[Reduction]:
    """Every ``t = max(t, x)`` and ``t = x if test else t`` under a loop that does not move ``t``."""
    every = all_sites(nests)
    found = []
    for site in every:
        statement = site.statement
        choice = _choice(statement)
        if choice is None:
            continue
        target, candidate, sign, test = choice
        scope = _scope(site, target, every)
        starts = [s for s in every if s is not site and s.path[: len(scope)] == scope and _sets(s.statement, target)]
        home = _home(site, target, starts)
        loops = tuple(loop for _, loop in site.loops if loop not in home)
        if not loops:
            continue
        if not starts:
            raise DerivativeError(
                f"`{origin(statement)}` starts from nothing",
                place=place,
                way_out="set the target before the loops",
                line=line_of(statement),
            )
        found.append(Reduction(site, load(target), candidate, sign, test, loops, home, tuple(starts)))
    return found


def _choice(statement: ast.stmt) -> tuple[ast.expr, ast.expr, str, ast.expr | None] | None:
    """Target, candidate, and by which sign or test the candidate is chosen; None for any other statement."""
    if not isinstance(statement, ast.Assign):
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("max", "min"):
        others = [arg for arg in value.args if not same(arg, target)]
        if len(value.args) == 2 and len(others) == 1:
            return target, others[0], ">" if value.func.id == "max" else "<", None
    if isinstance(value, ast.IfExp) and not same(value.body, value.orelse):
        test, candidate, kept = value.test, value.body, value.orelse
        if same(candidate, target):
            test, candidate, kept = ast.UnaryOp(ast.Not(), test), kept, candidate
        # Where the test does not depend on what was chosen so far, reversal can just ask it again.
        if same(kept, target) and name_of(target) not in names_in(candidate) and _reads_choice(statement, test, target):
            return target, candidate, "", test
    return None


def _reads_choice(statement: ast.stmt, test: ast.expr, target: ast.expr) -> bool:
    return getattr(statement, "was_guarded", False) or name_of(target) in names_in(test)


def seen_in_between(found: Reduction, every: list[Reduction], nests: list[Body], active: set[str]) -> bool:
    """Whether a gradient flows through a value of the target that is not yet the last: a running maximum."""
    outermost = next(depth for depth, loop in found.site.loops if loop in found.loops)
    prefix = found.site.path[:outermost]
    own = {id(other.site.statement) for other in every if name_of(other.target) == name_of(found.target)}
    for site in all_sites(nests):
        statement = site.statement
        if site.path[:outermost] != prefix or id(statement) in own or isinstance(statement, ast.If):
            continue
        value = statement.value  # type: ignore[attr-defined]
        if name_of(target_of(statement)) in active and name_of(found.target) in names_in(value):
            return True
    return False


def by_target(every: list[Reduction]) -> list[list[Reduction]]:
    """The reductions of each target: a later one that wins takes the place from an earlier one."""
    groups: dict[tuple[object, ...], list[Reduction]] = {}
    for found in every:
        key = (name_of(found.target), *(() if isinstance(found.target, ast.Subscript) else found.starts[0].path[:-1]))
        groups.setdefault(key, []).append(found)
    return list(groups.values())


def _scope(site: Site, target: ast.expr, every: list[Site]) -> Path:
    """The path of the block in which a local target is declared; a buffer is seen everywhere."""
    if isinstance(target, ast.Subscript):
        return ()
    blocks = [s.path[:-1] for s in every if isinstance(s.statement, ast.AnnAssign) and same(s.statement.target, target)]
    return max((block for block in blocks if site.path[: len(block)] == block), key=len, default=())


def _sets(statement: ast.stmt, target: ast.expr) -> bool:
    if isinstance(statement, ast.Assign):
        other = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        other = statement.target
    else:
        return False
    if isinstance(target, ast.Subscript) and isinstance(other, ast.Subscript):
        return same(other.value, target.value) and start_value(statement) is not None
    return isinstance(target, ast.Name) and same(other, target) and start_value(statement) is not None


def start_value(statement: ast.stmt) -> ast.expr | None:
    value = statement.value  # type: ignore[attr-defined]
    assert isinstance(statement, (ast.Assign, ast.AnnAssign))
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(value, ast.Call) and any(same(arg, target) for arg in value.args):
        return None
    if isinstance(value, ast.IfExp) and (same(value.body, target) or same(value.orelse, target)):
        return None
    return value


def _home(site: Site, target: ast.expr, starts: list[Site]) -> tuple[Loop, ...]:
    """The loops that move the target: by its subscripts, or those around a local's declaration."""
    if isinstance(target, ast.Subscript):
        moving = names_in(target.slice)
        return tuple(loop for _, loop in site.loops if loop.var in moving)
    declaration = next((s for s in starts if isinstance(s.statement, ast.AnnAssign)), None)
    return tuple(loop for _, loop in (declaration.loops if declaration else ()))
