"""Dependences between the statements of a nest, by integer sets (islpy).

Every question here has the same form: is there a pair of statement instances that touch one element, at least one
writing, and that stand in this order before and in that order after? The answer is None or a witness: the least such pair.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import islpy as isl

from swirl.errors import ValidationError
from swirl.ir.affine import Affine, affine, bounds, condition_to_isl, loop_range, simplify, to_isl
from swirl.ir.nest import Loop, Path, constant, loop_of, subscripts, substitute

MAX_OPERATIONS = 20_000_000
"""isl's work on one question, about a second; beyond it the answer is "not proved"."""


class NotProved(Exception):
    """A question about dependences took more work than is allowed."""


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The expression that a text is; not to be edited."""
    return ast.parse(text, mode="eval").body


# --- statements and accesses ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Access:
    """One reference of a statement. ``kind``: ``read``, ``write``, or the reduction ``add``, ``mul``, ``max``, ``min``."""

    name: str
    indices: tuple[ast.expr, ...]
    kind: str
    text: str

    @cached_property
    def templates(self) -> tuple[str | None, ...]:
        """The subscripts for isl, see :func:`template`."""
        return tuple(template(index) for index in self.indices)

    @cached_property
    def forms(self) -> tuple[Affine | None, ...]:
        """The subscripts in canonical form."""
        return tuple(affine(index) for index in self.indices)


@dataclass(frozen=True)
class Statement:
    """A leaf statement, or the evaluation of a condition, with what surrounds it."""

    path: Path
    node: ast.stmt
    loops: tuple[Loop, ...]
    loop_depths: tuple[int, ...]
    guards: tuple[str, ...]
    accesses: tuple[Access, ...]

    @property
    def text(self) -> str:
        return ast.unparse(self.node)

    @property
    def identity(self) -> int | None:
        """The number that :func:`tag` gave to the statement."""
        return getattr(self.node, "identity", None)

    def variables(self) -> list[str]:
        return [loop.var for loop in self.loops]

    def domain(self, suffix: str) -> list[str]:
        """Constraints on the instances, every variable renamed with ``suffix``."""
        return [constraint.replace("@", suffix) for constraint in self._domain]

    @cached_property
    def _domain(self) -> list[str]:
        constraints = []
        for loop in self.loops:
            start, stop = template(loop.start), template(loop.stop)
            if start is None or stop is None:
                raise ValidationError(f"the bounds of loop {loop.var} are not quasi-affine")
            var = loop.var + "@"
            constraints.append(f"{start} <= {var} < {stop}" if loop.step > 0 else f"{stop} < {var} <= {start}")
            if abs(loop.step) != 1:
                constraints.append(f"({var} - ({start})) mod {abs(loop.step)} = 0")
        for guard in self.guards:
            renamed = condition_to_isl(_with_at(ast.parse(guard, mode="eval").body))
            if renamed is not None:
                constraints.append(renamed.replace(_AT, "@"))
        return constraints

    @cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Least and greatest value of each loop variable, where known."""
        result: dict[str, tuple[int, int]] = {}
        for loop in self.loops:
            result |= loop_range(loop, result)
        return result

    @cached_property
    def grids(self) -> dict[str, tuple[int, int]]:
        """Where each loop variable starts, modulo its step, and the step; a step of 1 where the start is not constant."""
        result = {}
        for loop in self.loops:
            start = constant(loop.start)
            result[loop.var] = (0, 1) if start is None else (start % abs(loop.step), abs(loop.step))
        return result

    def time(self, suffix: str, length: int) -> list[str]:
        """When an instance runs: positions and loop variables alternate; a vector loop's statement counts before its lane."""
        result: list[str] = []
        lanes: list[str] = []
        by_depth = dict(zip(self.loop_depths, self.loops, strict=True))
        for depth, (name, index) in enumerate(self.path):
            result.append(str(index + 1 if name == "body" else index + 1001))  # a condition counts as 0 in its branches
            if depth in by_depth:
                loop = by_depth[depth]
                value = loop.var + suffix if loop.step > 0 else f"(-{loop.var}{suffix})"
                (lanes if loop.kind == "vector" else result).append(value)
        result += lanes
        return result + ["0"] * (length - len(result))

    @property
    def time_length(self) -> int:
        return len(self.path) + len(self.loops)


_AT = "_at_suffix"


def _with_at(node: ast.expr) -> ast.expr:
    """The expression with every variable marked, for :func:`template`."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {"min", "max"}
    return substitute(node, {name: ast.Name(name + _AT, ast.Load()) for name in names})


def template(node: ast.expr) -> str | None:
    """The expression in isl's notation with ``@`` behind every variable, to be replaced by a suffix; None if not affine."""
    text = to_isl(_with_at(node))
    return None if text is None else text.replace(_AT, "@")


def tag(body: list[ast.stmt]) -> None:
    """Numbers the statements and conditions of a private copy, so that they are recognised after a rewrite."""
    count = 0
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt) and not isinstance(node, ast.For):
                setattr(node, "identity", count)  # noqa: B010
                count += 1


def statements(body: list[ast.stmt]) -> list[Statement]:
    """The leaf statements and conditions of a nest's body, in textual order."""
    return list(_collect(body, "body", (), (), (), (), {}))


def _collect(body: list[ast.stmt], field: str, prefix: Path, heads: tuple[Loop, ...], depths: tuple[int, ...],
             guards: tuple[str, ...], scope: dict[str, tuple[str, ...]]) -> Iterator[Statement]:  # fmt: skip
    scope = dict(scope)
    for index, node in enumerate(body):
        path = (*prefix, (field, index))
        if isinstance(node, ast.For):
            loop = loop_of(node)
            yield from _collect(node.body, "body", path, (*heads, loop), (*depths, len(path) - 1), guards, scope)
        elif isinstance(node, ast.If):
            test = ast.unparse(node.test)
            reads = tuple(_access(part, "read", scope) for part in _outer_references(node.test, scope))
            yield Statement(path, node, heads, depths, guards, reads)
            yield from _collect(node.body, "body", path, heads, depths, (*guards, test), scope)
            yield from _collect(node.orelse, "orelse", path, heads, depths, (*guards, f"not ({test})"), scope)
        else:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                scope[node.target.id] = tuple(loop.var for loop in heads)
            yield Statement(path, node, heads, depths, guards, tuple(_accesses(node, scope)))


def _accesses(node: ast.stmt, scope: dict[str, tuple[str, ...]]) -> Iterator[Access]:
    if isinstance(node, ast.AnnAssign):
        if not _is_empty(node.value):
            yield _access(node.target, "write", scope)
        reads: list[ast.expr] = [node.value] if node.value is not None and not _is_empty(node.value) else []
    elif isinstance(node, ast.AugAssign):
        kinds: dict[type, str] = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "mul"}
        kind = kinds.get(type(node.op))
        yield _access(node.target, kind or "write", scope)
        reads = [node.value] if kind else [node.value, node.target]
    elif isinstance(node, ast.Assign):
        extremum = reduction_extremum(node)
        yield _access(node.targets[0], extremum[0] if extremum else "write", scope)
        reads = [extremum[1]] if extremum else [node.value]
    else:
        return
    if not isinstance(node, ast.AnnAssign):
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        if isinstance(target, ast.Subscript):
            reads += subscripts(target)
    for tree in reads:
        for part in _outer_references(tree, scope):
            yield _access(part, "read", scope)


def _is_empty(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "empty"


def _outer_references(tree: ast.expr, scope: dict[str, tuple[str, ...]]) -> Iterator[ast.expr]:
    """References in an expression, those inside subscripts (index buffers) included."""
    if isinstance(tree, ast.Subscript):
        yield tree
        for index in subscripts(tree):
            yield from _outer_references(index, scope)
    elif isinstance(tree, ast.Name):
        if tree.id in scope:
            yield tree
    else:
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, ast.expr):
                yield from _outer_references(child, scope)


def _access(target: ast.expr, kind: str, scope: dict[str, tuple[str, ...]]) -> Access:
    text = ast.unparse(target)
    if isinstance(target, ast.Name):
        name, own = target.id, []
    else:
        assert isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        name, own = target.value.id, subscripts(target)
    # A local is a new variable in each iteration of the loops around its declaration.
    instance: list[ast.expr] = [ast.Name(var, ast.Load()) for var in scope.get(name, ())]
    return Access(name, (*instance, *own), kind, text)


def reduction_extremum(node: ast.Assign) -> tuple[str, ast.expr] | None:
    """``("max", e)`` for ``x = max(x, e)`` (and min), else None."""
    call = node.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("max", "min")):
        return None
    target = ast.unparse(node.targets[0])
    others = [arg for arg in call.args if ast.unparse(arg) != target]
    return (call.func.id, others[0]) if len(call.args) == 2 and len(others) == 1 else None


# --- conflicts ------------------------------------------------------------------------------------------------------
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
        for index in self.first_access.indices[len(self.first_access.indices) - self._own() :]:
            names = {node.id for node in ast.walk(index) if isinstance(node, ast.Name)}
            if names & moving:
                index = simplify(substitute(index, {v: ast.Constant(self.first_at[v]) for v in names & set(self.first_at)}))
            parts.append(ast.unparse(index))
        return f"{self.first_access.name}[{', '.join(parts)}]" if parts else self.first_access.name

    def _own(self) -> int:
        text = ast.parse(self.first_access.text, mode="eval").body
        return len(subscripts(text)) if isinstance(text, ast.Subscript) else 0

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


@lru_cache(maxsize=4096)
def _least(formula: str, count: int) -> tuple[int, ...] | None:
    """The least point of a set given as text with ``count`` dimensions, or None where it is empty."""
    context = isl.Context()
    context.set_max_operations(MAX_OPERATIONS)
    try:
        points = isl.Set.read_from_str(context, formula)
        if points.is_empty():
            return None
        try:
            point = points.lexmin().sample_point()
        except isl.Error:  # some sets with // and % are too much for isl's lexmin; any point is a witness
            point = points.sample_point()
    except isl.Error as error:
        if "max" in str(error).lower():
            raise NotProved from error
        raise ValidationError(f"isl does not take {formula}: {error}") from error
    values = [point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(count)]
    return tuple(values)


def meeting(first: Statement, second: Statement, reductions: bool) -> Iterator[tuple[Access, Access]]:
    """Accesses of one element name, at least one writing; two updates of one reduction only where ``reductions``."""
    for a in first.accesses:
        for b in second.accesses:
            if a.name != b.name or (a.kind == "read" and b.kind == "read"):
                continue
            if not reductions and a.kind == b.kind and a.kind not in ("read", "write"):
                continue
            yield a, b


def find(first: Statement, second: Statement, constraints: list[str], *, reductions: bool) -> Conflict | None:
    """The least pair of instances of ``first`` (variables suffixed ``_a``) and ``second`` (``_b``) that touch one element
    and satisfy ``constraints``.

    Args:
        reductions: whether two updates of one reduction (``+=`` and ``+=``) count as a conflict.
    """
    for a, b in meeting(first, second, reductions):
        equal = []
        for text_a, text_b in zip(a.templates, b.templates, strict=False):
            if text_a is not None and text_b is not None:  # an indirect subscript may be any element
                equal.append(f"{text_a.replace('@', '_a')} = {text_b.replace('@', '_b')}")
        conflict = _conflict(first, second, a, b, [*equal, *constraints])
        if conflict is not None:
            return conflict
    return None


def _conflict(first: Statement, second: Statement, a: Access, b: Access, constraints: list[str]) -> Conflict | None:
    names = [var + "_a" for var in first.variables()] + [var + "_b" for var in second.variables()]
    parts = first.domain("_a") + second.domain("_b") + constraints
    formula = "{ [" + ", ".join(names) + "] : " + " and ".join(parts or ["1 = 1"]) + " }"
    point = _least(formula, len(names))
    if point is None:
        return None
    split = len(first.loops)
    return Conflict(first, second, a, b, dict(zip(first.variables(), point[:split], strict=True)),
                    dict(zip(second.variables(), point[split:], strict=True)))  # fmt: skip


# --- what equal subscripts say without isl ----------------------------------------------------------------------------
def pinned(first: Statement, second: Statement, a: Access, b: Access, same: set[str]) -> set[str]:
    """Variables of both statements that are equal wherever the two accesses meet and the variables ``same`` are equal.

    A subscript ``16 * v + w`` with ``w`` in 0 … 15 on both sides pins ``v``: most questions end here.
    """
    equal = set(same)
    shared = set(first.variables()) & set(second.variables())
    changed = True
    while changed:
        changed = False
        for one, two in zip(a.forms, b.forms, strict=False):
            if one is None or two is None:
                continue
            for var in (set(one.terms) & set(two.terms) & shared) - equal:
                if one.terms[var] == two.terms[var] and _rest_is_small(first, second, one, two, var, equal):
                    equal.add(var)
                    changed = True
    return equal


def _rest_is_small(first: Statement, second: Statement, one: Affine, two: Affine, var: str, equal: set[str]) -> bool:
    """Whether everything but ``var`` differs by less than one step of it (or by nothing that is a multiple)."""
    low = high = one.constant - two.constant
    for form, statement, sign in ((one, first, 1), (two, second, -1)):
        for atom, coefficient in form.terms.items():
            if atom == var:
                continue
            other = two if form is one else one
            if atom in equal and other.terms.get(atom) == coefficient:
                continue  # the same on both sides
            limits = bounds(Affine({atom: sign * coefficient}, 0, form.atoms), statement.ranges)
            if limits is None:
                return False
            low, high = low + limits[0], high + limits[1]
    grids = first.grids[var], second.grids[var]
    distance = abs(one.terms[var]) * (grids[0][1] if grids[0] == grids[1] else 1)
    return -distance < low and high < distance


def _decisions(first: Statement, second: Statement, equal: set[str]) -> tuple[str, ...] | None:
    """What decides which of two instances runs first, in order: variables that may differ, then ``<``, ``>`` or ``=``.

    None where the two do not align (left to isl).
    """
    length = max(first.time_length, second.time_length)
    result = []
    for one, two in zip(first.time("", length), second.time("", length), strict=True):
        if one.isdigit() and two.isdigit():
            if one != two:
                return (*result, "<" if int(one) < int(two) else ">")
        elif one != two:
            return None
        elif one.strip("(-)") not in equal:
            result.append(one)
    return (*result, "=")


def before(first: Statement, second: Statement, suffixes: tuple[str, str] = ("_a", "_b")) -> str:
    """The constraint that an instance of ``first`` runs before one of ``second``, for isl."""
    length = max(first.time_length, second.time_length)
    pairs = zip(first.time(suffixes[0], length), second.time(suffixes[1], length), strict=True)
    moving = [(one, two) for one, two in pairs if not (one == two and one.isdigit())]
    if not moving:
        return "1 = 0"
    return f"{', '.join(one for one, _ in moving)} << {', '.join(two for _, two in moving)}"


# --- the questions that commands ask --------------------------------------------------------------------------------
def carried(body: list[ast.stmt], path: Path, *, reductions: bool,
            known: list[Statement] | None = None) -> Conflict | None:  # fmt: skip
    """A conflict between two iterations of the loop at ``path`` within one iteration of the loops around it, or None.

    Args:
        reductions: True asks for a race (two ``+=`` collide); False for an order that matters.
        known: the statements of ``body``, where they are at hand.
    """
    inside = [s for s in known or statements(body) if s.path[: len(path)] == path and len(s.path) > len(path)]
    depth = len(path) - 1
    for i, first in enumerate(inside):
        for second in inside[i:]:
            level = first.loop_depths.index(depth)
            outer = {loop.var for loop in first.loops[:level]}
            same = [f"{loop.var}_a = {loop.var}_b" for loop in first.loops[:level]]
            var = first.loops[level].var
            if all(var in pinned(first, second, a, b, outer) for a, b in meeting(first, second, reductions)):
                continue
            for order in ("<", ">") if first is not second else ("<",):
                conflict = find(first, second, [*same, f"{var}_a {order} {var}_b"], reductions=reductions)
                if conflict is not None:
                    return conflict
    return None


def reordered(old: list[ast.stmt], new: list[ast.stmt]) -> Conflict | None:
    """A dependence of ``old`` that ``new`` turns round, or None.

    Both bodies hold the same tagged statements under loops of the same variables, in another arrangement.
    """
    originals = {s.identity: s for s in statements(old)}
    moved = {s.identity: s for s in statements(new)}
    if set(originals) != set(moved):
        raise ValidationError("a rewrite that only reorders has added or lost statements")
    ordered = list(originals.values())
    for i, first in enumerate(ordered):
        for second in ordered[i:]:
            for one, two in ((first, second), (second, first)) if first is not second else ((first, first),):
                new_one, new_two = moved[one.identity], moved[two.identity]
                if all(_same_order(one, two, new_one, new_two, a, b) for a, b in meeting(one, two, False)):
                    continue
                after = before(moved[two.identity], moved[one.identity], ("_b", "_a"))
                conflict = find(one, two, [before(one, two), after], reductions=False)
                if conflict is not None:
                    return conflict
    return None


def _same_order(one: Statement, two: Statement, new_one: Statement, new_two: Statement, a: Access, b: Access) -> bool:
    """Whether instances that meet in the two accesses certainly keep their order."""
    equal = pinned(one, two, a, b, set())
    old, new = _decisions(one, two, equal), _decisions(new_one, new_two, equal)
    return old is not None and old == new
