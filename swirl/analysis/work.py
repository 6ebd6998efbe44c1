"""What a nest does: floating-point operations and bytes touched, of the whole and of each of its loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from swirl.analysis.enumeration import Domain, Values, evaluate, grid, grouped, image, satisfied, variables
from swirl.ir.affine import affine
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import whole_batch
from swirl.ir.names import Scope, whole_scope, with_distinct_names
from swirl.ir.nest import Loop, Nest, Program, loop_of, subscripts
from swirl.ir.operations import CALLS, OPERATORS
from swirl.ir.paths import Path, loops, walk
from swirl.ir.printing import unparse
from swirl.ir.trees import condition_of, fold, guarded
from swirl.ir.types import dtype_of, is_float


@dataclass(frozen=True)
class Touched:
    """Memory that a loop touches.

    Args:
        buffer: its name in the nest.
        bytes: of the different elements that are read or written, each counted once.
        exact: whether it is exactly that number, not at most that.
        written: whether some element is written.
    """

    buffer: str
    bytes: int
    exact: bool
    written: bool


@dataclass(frozen=True)
class Work:
    """What a loop does. Locals and local arrays count as registers.

    Args:
        executions: how often the loop is entered.
        operations: floating-point operations of all these executions: each ``+ - * /`` and each call (``sqrt``,
            ``max``, …) is one, so a fused multiply-add counts two. Of a conditional expression, the longer branch.
        exact: whether these numbers are exact, not upper bounds (a condition on data counts as true).
        touched: in *one* execution; where that depends on the loops around it, at most that.
    """

    executions: int
    operations: int
    exact: bool
    touched: tuple[Touched, ...]

    @property
    def bytes(self) -> int:
        return sum(touched.bytes for touched in self.touched)


@dataclass(frozen=True)
class Leaf:
    """A statement (or a condition) with the loops and conditions around it: ``domain`` has its iterations."""

    path: Path
    node: ast.AST
    domain: Domain


def loop_works(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Work]:
    """The work of each loop of a nest, in the order of :func:`swirl.ir.nest.loops`."""
    nest = with_distinct_names(nest)
    leaves, scope = list(leaves_of(nest)), whole_scope(nest, buffers)
    return [_work(nest, buffers, path, leaves, scope) for path, _ in loops(nest.body)]


def iterations_touch(nest: Nest, buffers: Mapping[str, Buffer]) -> list[tuple[Touched, ...]]:
    """What *one iteration* of each loop touches, at the most, in the order of :func:`loop_works`."""
    nest = with_distinct_names(nest)
    leaves, found = list(leaves_of(nest)), []
    for path, _ in loops(nest.body):
        inside = [leaf for leaf in leaves if leaf.path[: len(path)] == path]
        found.append(_touched(inside, _domain(nest, (*path, ("body", 0))), buffers))
    return found


def program_work(program: Program) -> Work:
    """The work of all nests, for a whole batch; a buffer that several of them touch counts once."""
    program = whole_batch(program)
    nests = [with_distinct_names(nest) for nest in program.nests]
    counted = []
    leaves: list[Leaf] = []
    for nest in nests:
        inside = list(leaves_of(nest))
        counted.append(_counted(inside, whole_scope(nest, program.buffers)))
        leaves += inside
    operations, exact = sum(count for count, _ in counted), all(sure for _, sure in counted)
    return Work(1, operations, exact, _touched(leaves, Domain(()), program.buffers))


def _work(nest: Nest, buffers: Mapping[str, Buffer], path: Path, leaves: Sequence[Leaf], scope: Scope) -> Work:
    inside = [leaf for leaf in leaves if leaf.path[: len(path)] == path]
    around = _domain(nest, path)
    executions, _ = around.count
    return Work(executions, *_counted(inside, scope), _touched(inside, around, buffers))


def _counted(leaves: Sequence[Leaf], scope: Scope) -> tuple[int, bool]:
    """The operations of statements in all their iterations, and whether their number is exact."""
    operations, exact = 0, True
    for leaf in leaves:
        each = operations_of(leaf.node, scope)
        if each:
            count, sure = leaf.domain.count
            operations, exact = operations + each * count, exact and sure
    return operations, exact


def leaves_of(nest: Nest) -> Iterator[Leaf]:
    """The statements and conditions of a nest in which a name has one meaning
    (:func:`swirl.ir.names.with_distinct_names`)."""
    domains: dict[tuple[object, ...], Domain] = {}  # one for all statements of a body: what it finds out, it keeps
    for path, statement in walk(nest.body):
        around = (*path[:-1], path[-1][:1])
        domain = domains.get(around)
        if domain is None:
            domain = domains[around] = _domain(nest, path)
        if isinstance(statement, ast.If):
            yield Leaf(path, statement.test, domain)
        elif not isinstance(statement, ast.For):
            yield Leaf(path, statement, domain)


def _domain(nest: Nest, path: Path) -> Domain:
    around: list[Loop] = []
    conditions: list[ast.expr] = []
    statement: ast.AST = ast.Module(nest.body, [])
    for name, index in path:
        if isinstance(statement, ast.If):
            test = statement.test
            conditions.append(test if name == "body" else ast.UnaryOp(ast.Not(), test))
        if isinstance(statement, ast.For):
            around.append(loop_of(statement))
        statement = getattr(statement, name)[index]
    return Domain(tuple(around), tuple(conditions))


# --- operations ---------------------------------------------------------------------------------------------
def operations_of(node: ast.AST, scope: Scope) -> int:
    """The floating-point operations of one execution of a statement or an expression, as :class:`Work` counts them."""

    def floating(part: ast.expr) -> bool:
        return is_float(dtype_of(part, scope))

    def counted(part: ast.AST, inside: list[int]) -> int:
        match part:
            case ast.Expr():
                return 0  # a prefetch
            case ast.IfExp():
                test, *branches = inside
                return test + max(branches)
            case ast.AugAssign(target) if floating(target):
                return sum(inside) + 1
            case ast.BinOp(_, op, _) if not OPERATORS[type(op)].of_integers and floating(part):
                return sum(inside) + 1
            case ast.Call(ast.Name(name), arguments) if name in CALLS and floating(part):
                return sum(inside) + CALLS[name].operations(len(arguments))
        return sum(inside)

    return fold(node, counted)


# --- bytes --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Reference:
    """A reference: its subscripts, the domain of its statement, and the domain around, whose variables are fixed."""

    indices: tuple[ast.expr, ...]
    domain: Domain
    around: Domain

    @property
    def still(self) -> set[str]:
        return {loop.var for loop in self.around.loops}

    @property
    def moving(self) -> set[str]:
        return {loop.var for loop in self.domain.loops[len(self.around.loops) :]}


def _evaluated(node: ast.AST, domain: Domain) -> Iterator[tuple[ast.Subscript, Domain]]:
    """The references in a statement, and for which iterations they are evaluated: for those that a select, or the
    like, chooses, where that does not depend on data (lanes load all values then)."""
    if isinstance(node, ast.Subscript):
        yield node, domain
    for part, guards in guarded(node):
        chosen, conditions = domain, tuple(map(condition_of, guards))
        if guards and not Domain(domain.loops, conditions).on_data:
            chosen = Domain(domain.loops, (*domain.conditions, *conditions))
            if chosen.count == (0, True):
                continue
        yield from _evaluated(part, chosen)


def _touched(leaves: list[Leaf], around: Domain, buffers: Mapping[str, Buffer]) -> tuple[Touched, ...]:
    found: dict[str, list[_Reference]] = {}
    written: set[str] = set()
    for leaf in leaves:
        if leaf.domain.count == (0, True):
            continue
        for node, domain in _evaluated(leaf.node, leaf.domain):
            assert isinstance(node.value, ast.Name)
            name = node.value.id
            if name in buffers:
                found.setdefault(name, []).append(_Reference(tuple(subscripts(node)), domain, around))
                if isinstance(node.ctx, ast.Store):
                    written.add(name)
    result = []
    for name, uses in found.items():
        count, exact = _elements(uses, buffers[name].shape)
        size = np.dtype(DTYPES[buffers[name].dtype]).itemsize
        result.append(Touched(name, count * size, exact, name in written))
    return tuple(result)


Piece = tuple[Values, ...]
"""A product of sets, one for each group of dimensions of a buffer."""


def _elements(uses: list[_Reference], shape: tuple[int, ...]) -> tuple[int, bool]:
    """Number of different elements of a buffer of ``shape`` that references touch, and whether it is exact."""
    groups = _groups(uses, len(shape))
    sure: dict[tuple[str, ...], list[Piece]] = {}
    every: dict[tuple[str, ...], list[Piece]] = {}
    for use in uses:
        found = [_group_values(use, group, shape) for group in groups]
        piece = tuple(values for values, _ in found)
        if not all(values.count for values in piece):
            continue
        place = tuple(_fixed_part(index, use) for index in use.indices)
        every[place] = _merged([*every.get(place, []), piece])
        if all(exact for _, exact in found):
            sure[place] = _merged([*sure.get(place, []), piece])
    most = min(_size(every), prod(shape))
    # The relative places of pieces are known only if the same fixed variables move them all.
    known = len(sure) == 1 and _disjoint(*sure.values())
    return most, most == (_size(sure) if known else 0)


def _size(pieces: Mapping[tuple[str, ...], list[Piece]]) -> int:
    return sum(prod(values.count for values in piece) for several in pieces.values() for piece in several)


def _disjoint(pieces: list[Piece]) -> bool:
    return all(
        any(not a.meets(b) for a, b in zip(one, two, strict=True))
        for place, one in enumerate(pieces)
        for two in pieces[:place]
    )


def _fixed_part(index: ast.expr, use: _Reference) -> str:
    """What fixed variables add to a subscript, as text."""
    form = affine(index)
    if form is None or _divided(index, use.still):
        return unparse(index)
    return " ".join(
        f"{factor}*{atom}" for atom, factor in sorted(form.terms.items()) if variables(form.atoms[atom]) & use.still
    )


def _groups(uses: list[_Reference], rank: int) -> list[list[int]]:
    """The dimensions, grouped if one moving variable occurs in their subscripts."""
    together: list[list[str]] = []
    for use in uses:
        inside = [names for names, _ in use.domain.constraints(use.around)]
        for linked in grouped(use.moving, inside):
            together.append([str(d) for d, index in enumerate(use.indices) if variables(index) & set(linked)])
    return [sorted(map(int, group)) for group in grouped(map(str, range(rank)), together)]


def _group_values(use: _Reference, group: list[int], shape: tuple[int, ...]) -> tuple[Values, bool]:
    """The values that the subscripts of a group of dimensions take together, several dimensions as one number.

    Fixed variables count as 0: they move all values alike.
    """
    indices, extents = [use.indices[d] for d in group], [shape[d] for d in group]
    most = Values(0, 1, prod(extents))
    boxes = use.domain.boxes
    if boxes is None or any(affine(index) is None for index in indices):
        return most, False  # a bound or an index that is data
    moving = {var: box for var, box in boxes.items() if var in use.moving}
    used = set().union(*map(variables, indices)) & set(moving)
    if any(_divided(index, use.still) for index in indices):
        return Values(0, 1, min(most.count, prod(moving[var].count for var in used))), False
    constraints = use.domain.constraints(use.around)
    # Conditions between moving and fixed variables are ignored: there are at most that many.
    within = [(names, condition) for names, condition in constraints if not names & use.still]
    exact = not use.domain.on_data and len(within) == len(constraints)
    linked = grouped(moving, [names for names, _ in within])
    own = {var: moving[var] for several in linked if set(several) & used for var in several}
    conditions = [condition for names, condition in within if names & own.keys()]
    shifted = any(variables(index) & use.still for index in indices)
    single = image(indices[0], moving) if len(group) == 1 else None
    if single is not None and not conditions:
        return (single if shifted else single.within(extents[0])), exact
    found = _listed(indices, own, conditions, extents, shifted)
    if found is not None:
        return found, exact
    return (most if single is None else single.within(extents[0])), False


def _listed(
    indices: Sequence[ast.expr],
    boxes: Mapping[str, Values],
    conditions: Sequence[ast.expr],
    extents: Sequence[int],
    shifted: bool,
) -> Values | None:
    """The values of subscripts, as one number, at the points of ``boxes`` that satisfy ``conditions``; None if
    there are too many. Other variables count as 0; unless ``shifted``, only what is inside of the extents."""
    points, mask = grid(boxes), satisfied(boxes, conditions)
    if points is None or mask is None:
        return None
    points |= dict.fromkeys(set().union(*map(variables, indices)) - set(boxes), np.zeros((), int))
    number = np.zeros((), int)
    for index, extent in zip(indices, extents, strict=True):
        at = np.asarray(evaluate(index, points))
        if not shifted:
            mask = mask & (at >= 0) & (at < extent)
        number = number * (4 * extent) + at + extent if len(indices) > 1 else at
    return Values.of(np.broadcast_to(number, mask.shape)[mask])


def _divided(index: ast.expr, still: set[str]) -> bool:
    """Whether a fixed variable is divided, or in a minimum: the number of values then depends on it."""
    form = affine(index)
    return form is not None and any(
        not isinstance(form.atoms[atom], ast.Name) and variables(form.atoms[atom]) & still for atom in form.terms
    )


def _merged(pieces: list[Piece]) -> list[Piece]:
    """The same union, with pieces that differ in one factor only made one."""
    *result, new = pieces
    for place, old in enumerate(result):
        different = [d for d, (a, b) in enumerate(zip(old, new, strict=True)) if not a.same(b)]
        if not different:
            return result
        if len(different) == 1:
            d = different[0]
            joined = (*old[:d], old[d].union(new[d]), *old[d + 1 :])
            return _merged([*result[:place], *result[place + 1 :], joined])
    return [*result, new]
