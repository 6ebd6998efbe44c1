"""Who touches which element, and in which order: what reversal asks, answered by integer sets (islpy)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import islpy as isl

from swirl.ir.affine import condition_to_isl, to_isl
from swirl.ir.nest import Loop, Path, loop_of, names_in, references, subscripts, substitute
from swirl.ir.trees import nodes


class _NotAffine(Exception):
    """An expression that integer sets cannot hold; the question is then answered "perhaps"."""


@dataclass(frozen=True)
class Site:
    """A statement where it stands.

    Args:
        statement: an assignment, a declaration, or the ``if`` whose test reads.
        path: its place in the program's statements.
        loops: the loops around it with their depth in ``path``, outermost first.
        guards: affine or other tests that hold there (with False: that do not hold).
    """

    statement: ast.stmt
    path: Path
    loops: tuple[tuple[int, Loop], ...]
    guards: tuple[tuple[ast.expr, bool], ...]

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """See :func:`accesses`."""
        return tuple(_accesses(self))


@dataclass(frozen=True)
class Access:
    """One reference of a site: ``kind`` is ``read``, ``set`` or ``add``. A local has no subscripts."""

    name: str
    indices: tuple[ast.expr, ...]
    kind: str
    site: Site


def sites(
    body: Sequence[ast.stmt],
    prefix: Path = (),
    loops: tuple[tuple[int, Loop], ...] = (),
    guards: tuple[tuple[ast.expr, bool], ...] = (),
    field: str = "body",
) -> list[Site]:
    """Every assignment, declaration and test of ``body``, in textual order."""
    found = []
    for index, statement in enumerate(body):
        path = (*prefix, (field, index))
        if isinstance(statement, ast.For):
            found += sites(statement.body, path, (*loops, (len(path), loop_of(statement))), guards)
        elif isinstance(statement, ast.If):
            found.append(Site(statement, path, loops, guards))
            found += sites(statement.body, path, loops, (*guards, (statement.test, True)))
            found += sites(statement.orelse, path, loops, (*guards, (statement.test, False)), "orelse")
        elif not isinstance(statement, ast.Pass):
            found.append(Site(statement, path, loops, guards))
    return found


def accesses(site: Site) -> tuple[Access, ...]:
    """The references of a site: reads first, then what it writes. Plain names are included (as locals)."""
    return site.accesses


def _accesses(site: Site) -> list[Access]:
    statement = site.statement
    found: list[Access] = []
    if isinstance(statement, ast.If):
        parts, target, kind = [statement.test], None, "read"
    elif isinstance(statement, ast.Assign):
        parts, target, kind = [statement.value], statement.targets[0], "set"
    elif isinstance(statement, ast.AugAssign):
        parts, target, kind = [statement.value], statement.target, "add"
    elif isinstance(statement, ast.AnnAssign):
        assert statement.value is not None
        parts, target, kind = [statement.value], statement.target, "set"
    else:
        raise AssertionError(ast.unparse(statement))
    if isinstance(target, ast.Subscript):
        parts.append(target.slice)
    for part in parts:
        arrays = set()
        for reference in references(part):
            assert isinstance(reference.value, ast.Name)
            arrays.add(id(reference.value))
            found.append(Access(reference.value.id, tuple(subscripts(reference)), "read", site))
        for node in nodes(part):
            if isinstance(node, ast.Name) and id(node) not in arrays:
                found.append(Access(node.id, (), "read", site))
    if isinstance(target, ast.Subscript):
        assert isinstance(target.value, ast.Name)
        found.append(Access(target.value.id, tuple(subscripts(target)), kind, site))
    elif isinstance(target, ast.Name):
        found.append(Access(target.id, (), kind, site))
    return found


# --- integer sets -------------------------------------------------------------------------------------------
def _text(node: ast.expr, names: dict[str, str]) -> str:
    """An affine expression of the loop variables ``names`` in isl's notation, in which they are called otherwise."""
    return _translated(node, names, to_isl)


def _test(node: ast.expr, names: dict[str, str]) -> str:
    return _translated(node, names, condition_to_isl)


def _translated(node: ast.expr, names: dict[str, str], translate: Callable[[ast.expr], str | None]) -> str:
    if not names_in(node) <= {*names, "min", "max"}:  # a local: its value is not known
        raise _NotAffine
    text = translate(substitute(node, {name: ast.Name(other, ast.Load()) for name, other in names.items()}))
    if text is None:
        raise _NotAffine
    return text


def _domain(site: Site, prefix: str) -> tuple[dict[str, str], list[str]]:
    """Names for the loop variables around a site, and the constraints on them."""
    names: dict[str, str] = {}
    constraints = []
    for depth, loop in site.loops:
        variable = f"{prefix}{depth}"
        start, stop, step = _text(loop.start, names), _text(loop.stop, names), loop.step
        names[loop.var] = variable
        if step > 0:
            constraints.append(f"{start} <= {variable} and {variable} < {stop}")
        else:
            constraints.append(f"{stop} < {variable} and {variable} <= {start}")
        if abs(step) != 1:
            constraints.append(f"({variable} - ({start})) mod {abs(step)} = 0")
    for test, holds in site.guards:
        try:
            text = _test(test, names)
        except _NotAffine:
            continue
        constraints.append(text if holds else f"not ({text})")
    return names, constraints


def shared_loops(a: Site, b: Site) -> list[tuple[int, Loop]]:
    """The loops around both sites."""
    common = 0
    while common < min(len(a.path), len(b.path)) and a.path[common] == b.path[common]:
        common += 1
    return [(depth, loop) for depth, loop in a.loops if depth <= common and depth <= len(b.path)]


def meets_later(first: Access, second: Access, *, carried_at: int | None = None, own: bool = False) -> bool:
    """Whether an instance of ``first`` may touch an element that a later instance of ``second`` touches.

    Args:
        carried_at: only pairs whose order comes from the loop at that depth.
        own: count the same instance of the same statement as later.
    """
    if first.name != second.name:
        return False
    together = shared_loops(first.site, second.site)
    try:
        names_a, domain_a = _domain(first.site, "a")
        names_b, domain_b = _domain(second.site, "b")
    except _NotAffine:
        return True
    constraints = domain_a + domain_b
    for index_a, index_b in zip(first.indices, second.indices, strict=False):
        try:
            constraints.append(f"{_text(index_a, names_a)} = {_text(index_b, names_b)}")
        except _NotAffine:
            continue
    orders = []
    equal: list[str] = []
    for depth, loop in together:
        if carried_at in (None, depth):
            orders.append([*equal, f"a{depth} {'<' if loop.step > 0 else '>'} b{depth}"])
        equal.append(f"a{depth} = b{depth}")
    if carried_at is None and (
        first.site.path < second.site.path or (own and first.site.path == second.site.path)
    ):
        orders.append(equal or ["1 = 1"])
    variables = [*names_a.values(), *names_b.values()]
    for order in orders:
        if not _is_empty(f"{{ [{', '.join(variables)}] : {' and '.join([*constraints, *order])} }}"):
            return True
    return False


@lru_cache(maxsize=4096)
def _is_empty(text: str) -> bool:
    """Backward and update ask the same questions."""
    return bool(isl.Set(text).is_empty())


def variable_ranges(site: Site) -> list[tuple[int, int]] | None:
    """The least and the greatest value of each loop variable around a site; None where a bound is not affine."""
    try:
        names, constraints = _domain(site, "a")
    except _NotAffine:
        return None
    where = f" : {' and '.join(constraints)}" if constraints else ""
    domain = isl.Set(f"{{ [{', '.join(names.values())}]{where} }}")
    if domain.is_empty():
        return [(0, 0)] * len(site.loops)
    if not domain.is_bounded():
        return None
    return [
        (domain.dim_min_val(axis).to_python(), domain.dim_max_val(axis).to_python())
        for axis in range(len(site.loops))
    ]


def covers_once(site: Site, indices: Sequence[ast.expr], shape: Sequence[int]) -> bool:
    """Whether the site, unguarded, touches every element of an array of ``shape`` exactly once (proved)."""
    if site.guards:
        return False
    return injective(site, indices) and _covers(site, indices, shape)


def injective(site: Site, indices: Sequence[ast.expr]) -> bool:
    """Whether different iterations around the site touch different elements (proved)."""
    try:
        return bool(_map(site, indices).is_injective())
    except _NotAffine:
        return False


def _covers(site: Site, indices: Sequence[ast.expr], shape: Sequence[int]) -> bool:
    axes = [f"i{axis}" for axis in range(len(shape))]
    bounds = " and ".join(f"0 <= {axis} < {extent}" for axis, extent in zip(axes, shape, strict=True))
    box = isl.Set(f"{{ [{', '.join(axes)}] : {bounds} }}")
    return bool(box.is_subset(_map(site, indices).range()))


def _map(site: Site, indices: Sequence[ast.expr]) -> isl.Map:
    names, constraints = _domain(site, "a")
    image = ", ".join(_text(index, names) for index in indices)
    where = f" : {' and '.join(constraints)}" if constraints else ""
    return isl.Map(f"{{ [{', '.join(names.values())}] -> [{image}]{where} }}")
