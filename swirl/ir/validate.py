"""The grammar of the intermediate representation as a check, run after every rewrite."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from swirl.errors import ValidationError
from swirl.ir.affine import affine, literal_lanes
from swirl.ir.hints import LEVELS, prefetch_of, stored_value, streamed
from swirl.ir.nest import LOOP_KINDS, Nest, Program, clone, constant, local_type, loop_of, names_in, subscripts
from swirl.ir.operations import CALLS, COMPARISONS, OPERATORS
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, operands
from swirl.ir.types import CASTS


def validate(program: Program, nests: Iterable[Nest] | None = None) -> Program:
    """The program itself, if every nest keeps to ``docs/ir.md``; raises ValidationError naming nest and
    statement.

    Args:
        program: of the nests.
        nests: those to look at; by default all.
    """
    for nest in program.nests if nests is None else nests:
        _Validator(program, nest).block(nest.body, {})
    return program


class _Validator:
    def __init__(self, program: Program, nest: Nest):
        self.program = program
        self.nest = nest

    def fail(self, message: str, node: ast.AST) -> ValidationError:
        text = unparse(ast.fix_missing_locations(node)).splitlines()[0]
        return ValidationError(f"{message}: {text}", location=f"{self.program.name}, nest {self.nest.label}")

    def block(self, body: list[ast.stmt], scope: dict[str, str], lanes: bool = False) -> None:
        """``scope``: name → ``loop``, ``scalar`` or ``array`` of what is visible here."""
        scope = dict(scope)
        for node in body:
            if isinstance(node, ast.For):
                self.loop(node, scope, lanes)
            elif isinstance(node, ast.If):
                self.expression(node.test, scope)
                self.block(node.body, scope, lanes)
                self.block(node.orelse, scope, lanes)
            elif isinstance(node, ast.AnnAssign):
                self.declaration(node, scope)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.target(node.targets[0], scope, node)
                self.stored(node, scope)
            elif isinstance(node, ast.AugAssign):
                self.target(node.target, scope, node)
                self.expression(node.value, scope)
            elif isinstance(node, ast.Expr) and not lanes:
                self.prefetch(node, scope)
            elif not isinstance(node, ast.Pass):
                raise self.fail("not a statement of the grammar", node)

    def loop(self, node: ast.For, scope: dict[str, str], lanes: bool) -> None:
        if lanes:
            raise self.fail("a loop inside a vector loop", node)
        if node.orelse or not isinstance(node.iter, ast.Call):
            raise self.fail("not a loop of the grammar", node)
        kind = unparse(node.iter.func)
        if kind not in LOOP_KINDS or not 1 <= len(node.iter.args) <= 3:
            raise self.fail("not a loop of the grammar", node)
        self.step(node)
        loop = loop_of(node)
        if loop.var in scope or loop.var in self.program.buffers:
            raise self.fail(f"loop variable {loop.var} shadows another name", node)
        for bound in (loop.start, loop.stop):
            if constant(bound) is not None:
                continue
            within = _WithoutScalars(self.program).visit(clone(bound))
            if affine(within) is None:
                raise self.fail("a bound is not quasi-affine", node)
            self.expression(bound, scope)
            others = sorted(name for name in names_in(within) - {"min", "max", _SCALAR} if scope[name] != "loop")
            if others:
                raise self.fail(f"bounds are of loop variables, and {others[0]} is a local", node)
        if kind == "unrolled" and loop.extent is None:
            raise self.fail("an unrolled loop needs literal bounds", node)
        if kind == "vector" and (constant(loop.start) != 0 or loop.step != 1 or vector_lanes(node) is None):
            raise self.fail("a vector loop runs over vector(L) or vector(min(L, …))", node)
        self.block(node.body, {**scope, loop.var: "loop"}, kind == "vector")

    def step(self, node: ast.For) -> None:
        """The third argument of a loop: a literal with which the loop ends."""
        assert isinstance(node.iter, ast.Call)
        if not isinstance(node.target, ast.Name):
            raise self.fail("not a loop of the grammar", node)
        step = constant(node.iter.args[2]) if len(node.iter.args) == 3 else 1
        if not step:
            raise self.fail("a step is a literal other than 0", node)

    def declaration(self, node: ast.AnnAssign, scope: dict[str, str]) -> None:
        if not isinstance(node.target, ast.Name) or node.value is None:
            raise self.fail("not a declaration of the grammar", node)
        type_ = local_type(node)
        if type_.dtype not in CASTS:
            raise self.fail("unknown type", node)
        name = node.target.id
        if name in scope or name in self.program.buffers:
            raise self.fail(f"local {name} shadows another name", node)
        if type_.shape:
            if unparse(node.value) != f"empty({', '.join(map(str, type_.shape))})":
                raise self.fail("a local array starts as empty(extents)", node)
        else:
            self.expression(node.value, scope)
        scope[name] = "array" if type_.shape else "scalar"

    def target(self, node: ast.expr, scope: dict[str, str], statement: ast.stmt) -> None:
        if isinstance(node, ast.Name):
            if scope.get(node.id) != "scalar":
                raise self.fail(f"{node.id} is not a declared local", statement)
        elif isinstance(node, ast.Subscript):
            self.subscript(node, scope)
        else:
            raise self.fail("not a target of the grammar", statement)

    def stored(self, node: ast.Assign, scope: dict[str, str]) -> None:
        if streamed(node.value) is not None:
            assert isinstance(node.value, ast.Call)
            target = node.targets[0]
            in_buffer = isinstance(target, ast.Subscript) and unparse(target.value) in self.program.buffers
            if not in_buffer or len(node.value.args) != 1 or node.value.keywords:
                raise self.fail("stream(value) is for one value stored in a buffer", node)
        self.expression(stored_value(node.value), scope)

    def prefetch(self, node: ast.Expr, scope: dict[str, str]) -> None:
        found = prefetch_of(node)
        if found is None or found.level not in LEVELS:
            raise self.fail("not a statement of the grammar", node)
        shape = self.program.buffers[found.buffer].shape if found.buffer in self.program.buffers else ()
        if len(shape) != len(found.indices) or any(affine(index) is None for index in found.indices):
            raise self.fail("prefetch(buffer, (subscripts), level) is for one element of a buffer", node)
        for index in found.indices:
            self.expression(index, scope)

    def subscript(self, node: ast.Subscript, scope: dict[str, str]) -> None:
        name = unparse(node.value)
        indices = subscripts(node)
        if scope.get(name) != "array":
            if name not in self.program.buffers:
                raise self.fail(f"{name} is neither a buffer nor a local array", node)
            if len(indices) != len(self.program.buffers[name].shape):
                raise self.fail(f"{name} has {len(self.program.buffers[name].shape)} dimensions", node)
        for index in indices:
            self.expression(index, scope)

    def expression(self, node: ast.expr, scope: dict[str, str]) -> None:
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, (bool, int, float)):
                raise self.fail("not a literal of the grammar", node)
        elif isinstance(node, ast.Name):
            if node.id != "INFINITY" and scope.get(node.id) not in ("loop", "scalar"):
                raise self.fail(f"{node.id} is not declared here", node)
        elif isinstance(node, ast.Subscript):
            self.subscript(node, scope)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:  # most are
            self.expression(node.left, scope)
            self.expression(node.right, scope)
        else:
            self.operation(node)
            for part in operands(node):
                self.expression(part, scope)

    def operation(self, node: ast.expr) -> None:
        """An expression with operands, but for these."""
        if isinstance(node, ast.Call):
            name = unparse(node.func)
            if name not in CALLS or node.keywords:
                raise self.fail(f"call of {name}, which the grammar does not have", node)
            count = CALLS[name].arguments
            if len(node.args) != count if count is not None else len(node.args) < 2:
                raise self.fail(f"wrong number of arguments of {name}", node)
            return
        match node:
            case ast.BoolOp() | ast.IfExp() | ast.UnaryOp(ast.USub() | ast.Not()):
                return
            case ast.Compare(_, ops) if all(type(op) in COMPARISONS for op in ops):
                return
        raise self.fail("not an expression of the grammar", node)


_SCALAR = "a run-time scalar"


class _WithoutScalars(Transformer):
    """Run-time scalars, which no nest writes, as names, in a copy of a bound."""

    def __init__(self, program: Program):
        self.buffers = program.buffers

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        buffer = self.buffers.get(unparse(node.value))
        if buffer is None or (buffer.role, buffer.dtype) != ("scalar", "int32"):
            return node
        return ast.Name(_SCALAR, ast.Load())


def vector_lanes(node: ast.For) -> int | None:
    """``L`` of ``vector(L)`` or ``vector(min(L, …))``; None where the bound has another form."""
    return literal_lanes(loop_of(node).stop)
