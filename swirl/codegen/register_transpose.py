"""Lanes that are rows apart in memory, in copies whose elements are neighbours: whole rows are loaded, and turned in
registers. A gather reads one element of each row, and each row again for each copy.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from swirl.codegen.context import Local
from swirl.codegen.ctree_compat import Declaration, Node, call, constant, symbol
from swirl.codegen.intrinsics import Instructions
from swirl.codegen.lane_values import LaneValues
from swirl.codegen.to_c import Statements
from swirl.ir.addresses import element_address
from swirl.ir.names import stored_in
from swirl.ir.nest import Loop, loop_of, names_in, reference, subscripts
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, clone, name_of

LEAST_COPIES = 3
"""Copies from which on turning rows costs less than gathers do."""


def transposed_loads(
    statements: Statements, instructions: Instructions, copies: Loop, values: Sequence[int], body: Sequence[ast.stmt]
) -> tuple[list[Node], Sequence[ast.stmt]]:
    """The loads of rows before the copies of an unrolled body, and the body in which copies take their lanes from what
    was loaded; nothing, and the body as it is, where no lanes of it are so in memory.

    Args:
        statements: of the enclosing block; its locals get the registers.
        instructions: of the target.
        copies: the unrolled loop.
        values: of its variable.
        body: of the loop.
    """
    if copies.step != 1 or not LEAST_COPIES <= len(values) <= instructions.width:
        return [], body
    found = _TransposedLoads(statements, instructions, copies, values, body)
    new = [found.of_statement(statement) for statement in body]
    return found.loads, new if found.loads else body


class _TransposedLoads(Transformer):
    """Puts rows of registers in the place of strided lanes."""

    def __init__(
        self,
        statements: Statements,
        instructions: Instructions,
        copies: Loop,
        values: Sequence[int],
        body: Sequence[ast.stmt],
    ):
        self.statements, self.context, self.instructions = statements, statements.context, instructions
        self.copies, self.values = copies, values
        self.stored = {*stored_in(body, declared=True)}
        self.loads: list[Node] = []
        self.names: dict[str, str] = {}  # reference → the name of its registers
        self.lane: Loop
        self.active: ast.expr | None  # number of lanes, if that is less than a register has

    def of_statement(self, statement: ast.stmt) -> ast.stmt:
        """A statement of the body, with registers in the place of what lanes of one register certainly read."""
        if not isinstance(statement, ast.For) or (loop := loop_of(statement)).kind != "vector":
            return statement
        count, self.active = self.statements.lanes_of(loop)
        limits = (count, count) if self.active is None else self.context.limits(self.active)
        if count > self.instructions.width or limits is None or limits[0] < 1:
            return statement
        if {self.copies.var, *self.stored} & names_in(loop.stop):
            return statement
        if self.active is None and count < self.instructions.width:
            self.active = ast.Constant(count)
        self.lane, self.names = loop, {}
        return loop.node([self.visit(clone(inner)) for inner in statement.body])

    def visit_If(self, node: ast.If) -> ast.If:
        """What is read under a condition may not exist."""
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """The registers of what is read."""
        if not isinstance(node.ctx, ast.Load):
            return node
        distance = self._distance(node)
        if distance is None:
            return node
        text = unparse(node)
        if text not in self.names:
            self.names[text] = self._load(node, distance)
        copy = ast.BinOp(ast.Name(self.copies.var, ast.Load()), ast.Sub(), ast.Constant(self.values[0]))
        return reference(self.names[text], [copy, ast.Name(self.lane.var, ast.Load())])

    def _distance(self, node: ast.Subscript) -> int | None:
        """Elements between neighbouring lanes, whose rows the copies read in turn, before anything is stored there;
        else None."""
        array, own = name_of(node), {self.copies.var, self.lane.var}
        local = self.context.locals.get(array)
        if array in self.stored or self.stored & names_in(node) or local is not None and local.storage != "memory":
            return None
        if self.context.dtype_of(array) not in ("float32", "int32"):
            return None
        form = element_address(self.context.shape_of(array), subscripts(node), self.context.ranges, fix=True)
        if form is None or form.coefficient(self.copies.var) != 1 or not form.plain(own):
            return None
        distance = form.coefficient(self.lane.var)
        return distance if abs(distance) > max(1, *self.instructions.strides) else None

    def _load(self, node: ast.Subscript, distance: int) -> str:
        """Loads the rows; the name of the registers."""
        array, width = name_of(node), self.instructions.width
        dtype = self.context.dtype_of(array)
        name = self.context.fresh(f"{array}_turned{self.context.suffix()}")
        with self.statements.copy(self.copies, self.values[0]):
            memory = LaneValues(self.instructions, self.statements, self.lane.var).memory
            first = memory.pointer(node, subscripts(node), 0)
        row_distance = constant(distance, "int32")
        self.loads.append(Declaration(self.instructions.type_of(dtype), name, shape=(len(self.values),)))
        rows = [] if self.active is None else [self.statements.expressions.integer(self.active)]
        self.loads.append(call(f"load_turned<{len(self.values)}>", symbol(name), first, row_distance, *rows))
        registers: dict[tuple[int, ...], str] = {(copy, 0): f"{name}[{copy}]" for copy in range(len(self.values))}
        self.context.locals[name] = Local(dtype, "registers", registers, (len(self.values), width))
        return name
