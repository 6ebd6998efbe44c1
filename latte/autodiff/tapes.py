"""Values that are overwritten when backward needs them: the forward program keeps one element for each iteration.

Where ``values`` would refuse, reversal is repeated on another program. This keeps the values that a statement reads and
a later statement or iteration overwrites, right before the statement (or before the loops around it that do not change
them)::

    for i in range(8):                     for i in range(8):
        s = s * x[i] + c[i]        ->          kept_s[i] = s
                                               s = s * x[i] + c[i]

Backward runs the loops the other way and reads ``kept_s[i]`` where the statement read ``s``. This works for every
statement in any nest of loops and branches, and costs memory for each iteration of the loops around the statement.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latte.autodiff.adjoint_terms import same
from latte.autodiff.prepare import (
    Body,
    assign,
    line_of,
    origin,
    plain_updates,
    rebuild,
    unique_locals,
    versions,
    with_origin,
)
from latte.autodiff.uses import use_of
from latte.autodiff.values import Choices, Values
from swirl.analysis.footprints import extremes
from swirl.analysis.sets import NotProved
from swirl.analysis.statements import Statement
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.names import changed_in
from swirl.ir.nest import (
    LocalType,
    Loop,
    Program,
    clone,
    declare,
    expr,
    fresh,
    local_type,
    make_nest,
    names_in,
    nested,
    reference,
)
from swirl.ir.paths import Path
from swirl.ir.printing import unparse
from swirl.ir.trees import as_value, condition_of, guarded, name_of


@dataclass
class Tape:
    """The value that ``value`` has right before the statement number ``number``, kept in the buffer ``name``.

    ``loops`` are around the store if it is put before a loop; one of the tests ``conditions`` must hold.
    """

    name: str
    value: ast.expr
    dtype: str
    buffer: Buffer
    indices: list[ast.expr]
    loops: tuple[Loop, ...]
    conditions: list[ast.expr]
    number: int
    path: Path
    statement: ast.stmt

    @property
    def element(self) -> ast.expr:
        """What backward reads instead of the value."""
        element: ast.expr = reference(self.name, self.indices)
        return expr("e != 0", e=element) if self.dtype == "bool" else element

    def store(self) -> Body:
        """The statement that keeps the value, for the forward program."""
        value = expr("1 if v else 0", v=self.value) if self.dtype == "bool" else clone(self.value)
        store = where_one_holds(self.conditions, assign(reference(self.name, self.indices), value))
        return nested((loop.plain for loop in self.loops), [store])


@dataclass(frozen=True)
class Point:
    """Where a value is kept: right before the statement at ``path``, one for each iteration of ``around``.

    ``inside`` are those of ``around`` that begin at the statement or inside of it: the store needs them around it.
    """

    path: Path
    statement: ast.stmt
    around: tuple[Loop, ...]
    inside: tuple[Loop, ...]


class Tapes:
    """What one forward program keeps, for backward and update alike.

    Args:
        program: the forward program, its statements with their numbers (see ``argmax.save_argmax``).
        originals: number → the statement as the forward program executes it.
        taken: names in use; grows.
    """

    def __init__(self, program: Program, originals: Mapping[int, ast.stmt], taken: set[str]):
        self.program, self.originals, self.taken = program, originals, taken
        self.tapes: list[Tape] = []

    def keep(self, node: ast.expr, dtype: str, site: Statement, values: Values) -> ast.expr:
        """An expression for the value that ``node`` has when the statement at ``site`` begins.

        Raises:
            DerivativeError: a loop around it has bounds that are not known.
        """
        number = getattr(site.node, "number", None)
        if number is None:
            raise self._refused(site, f"the value of {unparse(node)} is gone, and cannot be kept")
        conditions = conditions_of(self.originals[number], unparse(node))
        point = _point(node, site, bool(conditions), values)
        found = self._existing_tape(node, point, conditions, values)
        if found is None:
            found = self._new(node, dtype, site, conditions, point)
            self.tapes.append(found)
        return found.element

    def _existing_tape(self, node: ast.expr, point: Point, conditions: list[ast.expr], values: Values) -> Tape | None:
        """A tape that has the value already, or can get it."""
        for tape in self.tapes:
            if not same(tape.value, node) or tape.loops != point.inside:
                continue
            if tape.path == point.path:
                return tape
            if conditions or tape.conditions or not _same_block(tape.path, point.path):
                continue
            first, last = sorted((point.path[-1][1], tape.path[-1][1]))
            block = values.block_at(point.path)
            if not names_in(node) & changed_in(*block[first:last]):
                if point.path < tape.path:
                    tape.path, tape.statement = point.path, point.statement
                    tape.number = getattr(point.statement, "number", tape.number)
                return tape
        return None

    def _new(self, node: ast.expr, dtype: str, site: Statement, conditions: list[ast.expr], point: Point) -> Tape:
        try:
            shape, indices = element_of(site, [loop for loop in site.loops if loop in point.around])
        except NotProved:
            raise self._refused(
                site, f"it needs the values of {unparse(node)}, and loops around it have no known bounds"
            ) from None
        name = fresh(f"kept_{name_of(node)}", self.taken)
        self.taken.add(name)
        stored = "int32" if dtype == "bool" else dtype
        field = self.program.buffers.get(name_of(node))  # none of a local
        storage = f"{self.program.name.split('.')[0]}.{name}"
        buffer = Buffer(storage, shape, stored, "value", per_item=field is None or field.per_item)
        number = getattr(point.statement, "number")  # noqa: B009
        return Tape(
            name,
            clone(node),
            dtype,
            buffer,
            indices,
            point.inside,
            conditions,
            number,
            point.path,
            point.statement,
        )

    def _refused(self, site: Statement, why: str) -> DerivativeError:
        return DerivativeError(
            f"`{origin(site.node)}` cannot be differentiated: {why}",
            location=self.program.name,
            way_out="define backward and update by hand",
            line=line_of(site.node),
        )

    def saving(self, *programs: Program | None) -> tuple[Program, list[str]]:
        """The forward program that keeps what ``programs`` read, and a note on each buffer."""
        read = {name for program in programs if program for nest in program.nests for name in nest.names}
        used = [tape for tape in self.tapes if tape.name in read]
        buffers = {**self.program.buffers, **{tape.name: tape.buffer for tape in used}}
        stores: dict[int, Body] = {}
        for tape in used:
            stores.setdefault(tape.number, []).extend(tape.store())

        def with_stores(statement: ast.stmt) -> Body:
            return [*stores.get(getattr(statement, "number", -1), []), statement]

        nests = [make_nest(nest.label, rebuild(nest.body, with_stores), buffers) for nest in self.program.nests]
        notes = [
            f"the value of {unparse(tape.value)} before `{origin(tape.statement)}` is kept as {tape.name}: "
            f"{tape.buffer.nbytes} bytes"
            for tape in used
        ]
        return Program(self.program.name, tuple(nests), buffers, self.program.aliases, self.program.commands), notes


class TapedValues(Values):
    """Values that are never refused: the forward program keeps what is overwritten.

    Locals that are written once are computed again where they are read.
    """

    carries_arrays = True

    def __init__(self, nests: list[Body], buffers: Mapping[str, Buffer], choices: Choices, tapes: Tapes):
        super().__init__(nests, buffers, choices)
        self.tapes = tapes
        writes = [write.name for write in self.writes]
        self.once = {
            name
            for name, home in self.declared.items()
            if writes.count(name) == 1 and not local_type(home.node).shape  # type: ignore[arg-type]
        }

    def check(self, trees: Body, site: Statement, locals_too: bool = True) -> Body:
        return [_Available(self, site).visit(clone(tree)) for tree in trees]

    def again(self, body: Body, result: Body) -> Body:
        needed = set().union(*(names_in(statement) for statement in result), set())
        again: Body = []
        for statement in reversed(body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            name = statement.target.id
            if name not in self.once or name not in needed:
                continue
            assert statement.value is not None
            value = self.value(statement.value, self.sites[id(statement)])
            again.insert(0, declare(name, LocalType(self.dtype(name)), value))
            needed |= names_in(value)
        return [*again, *result]

    def result_at_hand(self, statement: ast.stmt, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            return target.id in self.once and target.id in self.needed
        return name_of(target) in self.buffers and super().result_at_hand(statement, target)


class _Available(ast.NodeTransformer):
    """References whose values are overwritten become reads of what the forward program has kept."""

    def __init__(self, values: TapedValues, site: Statement):
        self.values, self.site = values, site

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        values, name = self.values, name_of(node)
        read = isinstance(node.ctx, ast.Load)
        if read and (name in values.declared or name in values.buffers):
            use = use_of(node, "read", self.site)
            if name in values.declared or values.later_write(use, itself=True) is not None:
                return self._kept(node, name)
        node.slice = self.visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.values.declared or not isinstance(node.ctx, ast.Load):
            return node
        if node.id in self.values.once:
            self.values.needed.add(node.id)
            return node
        return self._kept(node, node.id)

    def _kept(self, node: ast.expr, name: str) -> ast.expr:
        values = self.values
        return values.tapes.keep(node, values.dtype(name), self.site, values)


def _point(node: ast.expr, site: Statement, conditional: bool, values: Values) -> Point:
    """Where ``node`` is kept for ``site``: one value for all iterations of loops that neither move nor change it."""
    names = names_in(node)
    written = [write.site.path for write in values.writes if write.name in names]
    outermost, free = _unwritten_loops(site, written)
    moving = [loop for loop in free if loop.var in names]
    dropped = [loop for loop in free if loop.var not in names]
    around = tuple(loop for loop in site.loops if loop not in dropped)
    here = Point(site.path, site.node, around, ())
    if not dropped:
        return here
    between = [values.statement_at(site.path[:depth]) for depth in range(outermost, len(site.path))]
    # Before the loops the element must exist even if they have no iteration.
    runs = isinstance(node, ast.Name) or all(loop.extent for loop in dropped)
    conditional = conditional or any(isinstance(statement, ast.If) for statement in between)
    bounds = {name for loop in moving for end in (loop.start, loop.stop) for name in names_in(end)}
    if conditional or not runs or bounds & {loop.var for loop in dropped}:
        return here
    return Point(site.path[:outermost], between[0], around, tuple(moving))


def _unwritten_loops(site: Statement, written: list[Path]) -> tuple[int, list[Loop]]:
    """The loops around ``site`` that contain none of the paths ``written``, and the length of the first one's path."""
    found = [
        (depth + 1, loop)
        for depth, loop in zip(site.loop_depths, site.loops, strict=True)
        if not any(path[: depth + 1] == site.path[: depth + 1] for path in written)
    ]
    return (found[0][0] if found else 0), [loop for _, loop in found]


def _same_block(a: Path, b: Path) -> bool:
    return a[:-1] == b[:-1] and a[-1][0] == b[-1][0]


def element_of(site: Statement, around: Sequence[Loop]) -> tuple[tuple[int, ...], list[ast.expr]]:
    """The shape of an array with an element for each iteration of some of the loops around a statement, and the
    subscripts of that element.

    Raises:
        NotProved: the bounds of a loop took more work than is allowed.
    """
    shape: list[int] = []
    indices: list[ast.expr] = []
    for loop in around:
        low, high = extremes(site, f"{loop.var}@") or (0, 0)
        variable = ast.Name(loop.var, ast.Load())
        shape.append(high - low + 1)
        indices.append(variable if low == 0 else expr("v - s", v=variable, s=low))
    return tuple(shape) or (1,), indices or [expr(0)]


def where_one_holds(conditions: list[ast.expr], statement: ast.stmt) -> ast.stmt:
    """A statement that runs where one of the tests holds; always without any."""
    if not conditions:
        return statement
    test = conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.Or(), conditions)
    return ast.If(clone(test), [statement], [])


def conditions_of(statement: ast.stmt, text: str) -> list[ast.expr]:
    """Tests one of which must hold where ``statement`` reads ``text``; none where it always does."""
    if isinstance(statement, ast.If):
        parts = [statement.test]
    else:
        assert isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value
        parts = [statement.value]
    found = [tests for part in parts for tests in _paths_to(part, text, [])]
    if not found or not all(found):
        return []
    joined = [tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests) for tests in found]
    return list({unparse(test): test for test in joined}.values())


def _paths_to(node: ast.expr, text: str, tests: list[ast.expr]) -> list[list[ast.expr]]:
    """The tests on the way to each place where ``node`` reads ``text``."""
    if isinstance(node, (ast.Name, ast.Subscript, ast.Call)) and unparse(node) == text:
        return [tests]
    return [
        path for part, guards in guarded(node) for path in _paths_to(part, text, [*tests, *map(condition_of, guards)])
    ]


# --- the form of the program -------------------------------------------------------------------------------
def first_wins(statement: ast.stmt) -> list[ast.stmt]:
    """``t = max(t, x)`` → ``t = x if x > t or x != x else t``: among equal elements the first one gets the gradient."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return [statement]
    target, call = as_value(statement.targets[0]), statement.value
    others = [arg for arg in call.args if not same(arg, target)]
    if unparse(call.func) not in ("max", "min") or len(call.args) != 2 or len(others) != 1:
        return [statement]
    test = expr("x > t or x != x" if unparse(call.func) == "max" else "x < t or x != x", x=others[0], t=target)
    return [with_origin(assign(target, ast.IfExp(test, others[0], target)), statement)]


def normalised(program: Program, taken: set[str]) -> Program:
    """The program with plain updates, and a name for each version of a local: the same bits."""
    nests = [rebuild(list(nest.body), plain_updates) for nest in program.nests]
    seen: set[str] = set()
    nests = [versions(unique_locals(nest, seen, taken, {}), taken) for nest in nests]
    made = [make_nest(old.label, body, program.buffers) for old, body in zip(program.nests, nests, strict=True)]
    return program.with_nests(made)
