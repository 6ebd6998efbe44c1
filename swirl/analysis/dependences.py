"""Dependences between the statements of a nest, by integer sets (islpy).

Every question here has the same form: is there a pair of statement instances that touch one element, at
least one writing, and that run in this order before and in that order after? The answer is None or a witness: the least
such pair.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swirl.analysis.accesses import Access, template
from swirl.analysis.sets import NotProved as NotProved
from swirl.analysis.sets import is_empty, least
from swirl.analysis.statements import Statement, statements
from swirl.errors import ValidationError
from swirl.ir.affine import Affine, bounds_of_atom, simplify
from swirl.ir.nest import Loop, substitute
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import names_in


# --- conflicts ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Conflict:
    """Two statement instances that touch one element."""

    first: Statement
    second: Statement
    first_access: Access
    second_access: Access
    first_at: dict[str, int]
    second_at: dict[str, int]

    @property
    def element(self) -> str:
        """The element, subscripts written with the variables that both instances share."""
        moving = self._moving()
        parts = []
        for index in self.first_access.own:
            names = names_in(index)
            if names & moving:
                index = simplify(
                    substitute(index, {v: ast.Constant(self.first_at[v]) for v in names & set(self.first_at)})
                )
            parts.append(unparse(index))
        return f"{self.first_access.name}[{', '.join(parts)}]" if parts else self.first_access.name

    def _moving(self) -> set[str]:
        shared = set(self.first_at) & set(self.second_at)
        return {var for var in shared if self.first_at[var] != self.second_at[var]} | (
            (set(self.first_at) | set(self.second_at)) - shared
        )

    def __str__(self) -> str:
        moving = self._moving()

        def instance(values: dict[str, int]) -> str:
            return ", ".join(f"{var}={value}" for var, value in values.items() if var in moving) or "an iteration"

        verb = {"read": "reads", "write": "writes"}
        one, two = self.first_access.kind, self.second_access.kind
        if one == two:
            both = {"write": "write", "read": "read"}.get(one, "update")
            return f"{instance(self.first_at)} and {instance(self.second_at)} both {both} {self.element}"
        return (
            f"{instance(self.first_at)} {verb.get(one, 'updates')} {self.element}, "
            f"which {instance(self.second_at)} {verb.get(two, 'updates')}"
        )


def meeting(first: Statement, second: Statement, reductions: bool) -> Iterator[tuple[Access, Access]]:
    """Accesses of one element name, at least one writing; two updates of one reduction only where
    ``reductions``."""
    if first.changed.isdisjoint(second.touched) and second.changed.isdisjoint(first.touched):
        return
    for a in first.accesses:
        for b in second.accesses:
            if a.name != b.name or (a.kind == "read" and b.kind == "read"):
                continue
            if not reductions and a.kind == b.kind and a.kind not in ("read", "write"):
                continue
            yield a, b


def find(first: Statement, second: Statement, constraints: list[str], *, reductions: bool) -> Conflict | None:
    """The least pair of instances of ``first`` (variables suffixed ``_a``) and ``second`` (``_b``) that
    touch one element and satisfy ``constraints``.

    Args:
        reductions: whether two updates of one reduction (``+=`` and ``+=``) count as a conflict.
    """
    for a, b in meeting(first, second, reductions):
        conflict = _conflict(first, second, a, b, constraints)
        if conflict is not None:
            return conflict
    return None


def _pairs(first: Statement, second: Statement, a: Access, b: Access, constraints: Sequence[str]) -> str:
    """The pairs of instances that touch one element in two accesses and satisfy ``constraints``, for isl."""
    parts = touching(first, second, a, b)
    names = [var + "_a" for var in first.variables()] + [var + "_b" for var in second.variables()]
    return f"{{ [{', '.join(names)}] : {' and '.join([*parts, *constraints] or ['1 = 1'])} }}"


def touching(first: Statement, second: Statement, a: Access, b: Access) -> list[str]:
    """Constraints for isl that instances of two statements (variables suffixed ``_a`` and ``_b``) touch one element in
    two accesses.

    Raises:
        ValidationError: the bounds of a loop are not quasi-affine.
    """
    parts = first.domain.for_isl("_a") + second.domain.for_isl("_b")
    for text_a, text_b in zip(first.subscripts(a), second.subscripts(b), strict=False):
        if text_a is not None and text_b is not None:  # an indirect subscript may be any element
            parts.append(f"{text_a.replace('@', '_a')} = {text_b.replace('@', '_b')}")
    return parts


def _conflict(first: Statement, second: Statement, a: Access, b: Access, constraints: list[str]) -> Conflict | None:
    split = len(first.loops)
    point = least(_pairs(first, second, a, b, constraints), split + len(second.loops))
    if point is None:
        return None
    return Conflict(
        first,
        second,
        a,
        b,
        dict(zip(first.variables(), point[:split], strict=True)),
        dict(zip(second.variables(), point[split:], strict=True)),
    )


def outside(statement: Statement, access: Access, shape: tuple[int, ...]) -> dict[str, int] | None:
    """The least instance of a statement in which an access leaves an array of that shape, or None.

    Conditions on data are taken to hold or not; an indirect subscript may be anything.
    """
    sides = [
        "1 = 1" if index is None else f"(({index}) < 0 or ({index}) >= {extent})"
        for index, extent in zip(statement.subscripts(access)[len(access.indices) - len(shape) :], shape, strict=True)
    ]
    return instance(statement, [f"({' or '.join(sides)})"])


def instance(statement: Statement, constraints: Sequence[str]) -> dict[str, int] | None:
    """The least instance of a statement that satisfies ``constraints`` (with ``@`` after variables), or None."""
    names = statement.variables()
    parts = [part.replace("@", "_") for part in (*statement.domain.for_isl("@"), *constraints)]
    formula = "{ [" + ", ".join(f"{name}_" for name in names) + "] : " + " and ".join(parts or ["1 = 1"]) + " }"
    point = least(formula, len(names))
    return None if point is None else dict(zip(names, point, strict=True))


# --- what equal subscripts say without isl --------------------------------------------------------------
def pins(first: Statement, second: Statement, a: Access, b: Access, same: set[str], var: str) -> bool:
    """Whether a variable of both statements is among those of :func:`pinned`."""
    moved_by = any(one is not None and var in one.terms for one in a.forms)
    return var in same or moved_by and var in pinned(first, second, a, b, same, enough=var)


def pinned(
    first: Statement, second: Statement, a: Access, b: Access, same: set[str], enough: str | None = None
) -> set[str]:
    """Variables of both statements that are equal wherever the two accesses meet and the variables ``same``
    are equal.

    A subscript ``16 * v + w`` with ``w`` in 0 … 15 on both sides pins ``v``: most questions end here.

    Args:
        enough: a variable after which no others are looked for.
    """
    equal = set(same)
    shared = first.variable_set & second.variable_set
    changed = True
    while changed:
        changed = False
        for one, two in zip(a.forms, b.forms, strict=False):
            if one is None or two is None:
                continue
            for var, coefficient in one.terms.items():
                if two.terms.get(var) != coefficient or var in equal or var not in shared:
                    continue
                if _rest_is_small(first, second, one, two, var, equal):
                    equal.add(var)
                    if var == enough:
                        return equal
                    changed = True
    return equal


def disjoint(first: Statement, second: Statement, a: Access, b: Access, same: set[str]) -> bool:
    """Whether a subscript of one access is always above the other's, so that the two never meet, where the variables
    ``same`` are equal. False where it takes isl to tell."""
    equal = pinned(first, second, a, b, same)
    for one, two in zip(a.forms, b.forms, strict=False):
        limits = None if one is None or two is None else _difference(first, second, one, two, equal)
        if limits is not None and not limits[0] <= 0 <= limits[1]:
            return True
    return False


def _rest_is_small(first: Statement, second: Statement, one: Affine, two: Affine, var: str, equal: set[str]) -> bool:
    """Whether everything but ``var`` differs by less than one step of it (or by nothing that is a
    multiple)."""
    limits = _difference(first, second, one, two, equal, var)
    grids = first.domain.grids[var], second.domain.grids[var]
    distance = abs(one.terms[var]) * (grids[0][1] if grids[0] == grids[1] else 1)
    return limits is not None and -distance < limits[0] and limits[1] < distance


def _difference(
    first: Statement, second: Statement, one: Affine, two: Affine, equal: set[str], without: str | None = None
) -> tuple[int, int] | None:
    """Least and greatest difference of two subscripts where the variables ``equal`` are; None where unknown.

    Args:
        without: a variable that is not counted.
    """
    low = high = one.constant - two.constant
    for form, statement, sign in ((one, first, 1), (two, second, -1)):
        for atom, coefficient in form.terms.items():
            if atom == without:
                continue
            other = two if form is one else one
            if atom in equal and other.terms.get(atom) == coefficient:
                continue  # the same on both sides
            limits = bounds_of_atom(form.atoms[atom], statement.ranges)
            if limits is None:
                return None
            ends = sign * coefficient * limits[0], sign * coefficient * limits[1]
            low, high = low + min(ends), high + max(ends)
    return low, high


def _decisions(first: Statement, second: Statement, equal: set[str]) -> tuple[str, ...] | None:
    """What decides which of two instances runs first, in order: variables that may differ, then ``<``, ``>``
    or ``=``.

    None where the two do not align (left to isl).
    """
    length = max(first.time_length, second.time_length)
    result: list[str] = []
    for one, two in zip(first.time("", length), second.time("", length), strict=True):
        if one.isdigit() and two.isdigit():
            if one != two:
                return (*result, "<" if int(one) < int(two) else ">")
        elif one != two:
            return None
        elif one.strip("(-)") not in equal:
            result.append(one)
    return (*result, "=")


def before(
    first: Statement,
    second: Statement,
    suffixes: tuple[str, str] = ("_a", "_b"),
    places: Mapping[str, str] | None = None,
) -> str:
    """The constraint that an instance of ``first`` runs before one of ``second``, for isl.

    Args:
        places: expressions (templates) that decide the order instead of these loop variables.
    """
    length = max(first.time_length, second.time_length)
    times = []
    for statement, suffix in ((first, suffixes[0]), (second, suffixes[1])):
        values = {var + suffix: f"({text.replace('@', suffix)})" for var, text in (places or {}).items()}
        times.append([values.get(entry, entry) for entry in statement.time(suffix, length)])
    pairs = zip(*times, strict=True)
    moving = [(one, two) for one, two in pairs if not (one == two and one.isdigit())]
    if not moving:
        return "1 = 0"
    return f"{', '.join(one for one, _ in moving)} << {', '.join(two for _, two in moving)}"


# --- the questions that commands ask --------------------------------------------------------------------
def carried(
    body: list[ast.stmt], path: Path, *, reductions: bool, known: Sequence[Statement] | None = None
) -> Conflict | None:
    """A conflict between two iterations of the loop at ``path`` within one iteration of the loops around it,
    or None.

    Args:
        reductions: True asks for a race (two ``+=`` collide); False for an order that matters.
        known: the statements of ``body``, where they are at hand.
    """
    inside = [s for s in known or statements(body) if s.path[: len(path)] == path and len(s.path) > len(path)]
    depth = len(path) - 1
    for i, first in enumerate(inside):
        level = first.loop_depths.index(depth)
        outer = {loop.var for loop in first.loops[:level]}
        var = first.loops[level].var
        for second in inside[i:]:
            if all(pins(first, second, a, b, outer, var) for a, b in meeting(first, second, reductions)):
                continue
            same = [f"{loop.var}_a = {loop.var}_b" for loop in first.loops[:level]]
            for order in ("<", ">") if first is not second else ("<",):
                conflict = find(first, second, [*same, f"{var}_a {order} {var}_b"], reductions=reductions)
                if conflict is not None:
                    return conflict
    return None


def reordered(old: Sequence[Statement], new: Sequence[Statement]) -> Conflict | None:
    """A dependence of ``old`` that ``new`` reverses, or None.

    Both have the same tagged statements under loops of the same variables, in another arrangement.
    """
    originals = {s.identity: s for s in old}
    rearranged = {s.identity: s for s in new}
    if set(originals) != set(rearranged):
        raise ValidationError("a rewrite that only reorders has added or lost statements")
    ordered = list(originals.values())
    for i, first in enumerate(ordered):
        for second in ordered[i:]:
            if next(meeting(first, second, False), None) is None:
                continue
            order = _decisions(first, second, set())
            if order is not None and order == _decisions(
                rearranged[first.identity], rearranged[second.identity], set()
            ):
                continue  # whichever elements they touch
            for one, two in ((first, second), (second, first)) if first is not second else ((first, first),):
                new_one, new_two = rearranged[one.identity], rearranged[two.identity]
                if all(_same_order(one, two, new_one, new_two, a, b) for a, b in meeting(one, two, False)):
                    continue
                after = before(rearranged[two.identity], rearranged[one.identity], ("_b", "_a"))
                conflict = find(one, two, [before(one, two), after], reductions=False)
                if conflict is not None:
                    return conflict
    return None


def remapped(body: list[ast.stmt], path: Path, value: ast.expr) -> Conflict | None:
    """A dependence that is reversed when the loop at ``path`` runs in the order of ``value``, or None.

    Args:
        value: quasi-affine in the loop's variable and those of the loops around every statement in it.
    """
    inside = [s for s in statements(body) if s.path[: len(path)] == path and len(s.path) > len(path)]
    text = template(value)
    assert text is not None
    for i, first in enumerate(inside):
        places = {first.loops[first.loop_depths.index(len(path) - 1)].var: text}
        for second in inside[i:]:
            for one, two in ((first, second), (second, first)) if first is not second else ((first, first),):
                reversed_order = [before(one, two), before(two, one, ("_b", "_a"), places)]
                conflict = find(one, two, reversed_order, reductions=False)
                if conflict is not None:
                    return conflict
    return None


def _same_order(one: Statement, two: Statement, new_one: Statement, new_two: Statement, a: Access, b: Access) -> bool:
    """Whether instances that meet in the two accesses certainly keep their order."""
    equal = pinned(one, two, a, b, set())
    old, new = _decisions(one, two, equal), _decisions(new_one, new_two, equal)
    return old is not None and old == new


# --- the questions that derivation asks -----------------------------------------------------------------
def meets_later(
    first: Statement, a: Access, second: Statement, b: Access, *, carried_by: Path | None = None, itself: bool = False
) -> bool:
    """Whether an instance of ``first`` may touch in ``a`` an element that a later instance of ``second`` touches in
    ``b``; also if that takes too much work to disprove.

    Args:
        carried_by: count only what is later because of the loop at that path, which contains both.
        itself: whether an instance counts as later than itself.
    """
    if a.name != b.name:
        return False
    if carried_by is not None:
        level = first.loop_depths.index(len(carried_by) - 1)
        outer, loop = [loop.var for loop in first.loops[:level]], first.loops[level]
        if pins(first, second, a, b, set(outer), loop.var):
            return False
        later = f"{loop.var}_a {'<' if loop.step > 0 else '>'} {loop.var}_b"
        return _may_be(first, second, a, b, [*(f"{var}_a = {var}_b" for var in outer), later])
    same = itself and first.path == second.path
    decided = _decisions(first, second, pinned(first, second, a, b, set()))
    if decided == (">",) or (decided == ("=",) and not same):
        return False
    return _may_be(first, second, a, b, [before(first, second)]) or (
        same and _may_be(first, second, a, b, [f"{var}_a = {var}_b" for var in first.variables()])
    )


def touched_once(statement: Statement, access: Access, loops: Sequence[Loop]) -> bool:
    """Whether instances that differ in the variables of ``loops`` certainly touch different elements."""
    if None in statement.subscripts(access):
        return False
    fixed = pinned(statement, statement, access, access, set())
    moving = [f"{loop.var}_a != {loop.var}_b" for loop in loops if loop.var not in fixed]
    return not moving or not _may_be(statement, statement, access, access, [f"({' or '.join(moving)})"])


def _may_be(first: Statement, second: Statement, a: Access, b: Access, constraints: Sequence[str]) -> bool:
    """Whether instances may touch one element and satisfy ``constraints``; also where that takes too much work to
    say."""
    try:
        return not is_empty(_pairs(first, second, a, b, constraints))
    except NotProved:
        return True
