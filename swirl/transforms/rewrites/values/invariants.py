"""Loop invariants are computed before the loop; a division by one becomes a multiplication."""

from __future__ import annotations

import ast
from typing import TypeVar

from swirl.ir.affine import ranges_at
from swirl.ir.names import INDEX_CALLS, Scope, changed_in, of_declaration, of_loop, on_loops, scope_at
from swirl.ir.nest import (
    LocalType,
    Nest,
    Program,
    clone,
    declare,
    fresh,
    kind_of,
    local_type,
    names_in,
    references,
)
from swirl.ir.operations import COSTLY
from swirl.ir.paths import Path, at, edit_at, loops
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, statements_in
from swirl.ir.types import dtype_of, joint, resolved
from swirl.transforms.rewrites.references import in_bounds, runs
from swirl.transforms.rewrites.sites import taken_names
from swirl.transforms.rewrites.values.reciprocals import is_number_of_items, safe_divisor

T = TypeVar("T", bound=ast.AST)


def hoisted(program: Program, nest: Nest, paths: list[Path] | None = None, *, any_divisor: bool = False) -> Nest:
    """``nest`` with everything moved out of the loops at ``paths`` (default: all), outermost loop first; divisions by
    ``any_divisor``, not only by those for which :func:`safe_divisor` holds, are multiplications then."""
    remaining = [path for path, _ in loops(nest.body)] if paths is None else list(paths)
    while remaining:
        path = remaining.pop(0)
        node = at(nest.body, path)
        assert isinstance(node, ast.For)
        if kind_of(node) == "parallel":
            continue
        new, before = _out_of(program, nest, path, any_divisor)
        if before:
            nest = nest.with_body(edit_at(nest.body, path, lambda _, b=before, n=new: [*b, n]))  # type: ignore[misc]
            remaining = [_shifted(other, path, len(before)) for other in remaining]
    return nest


def _shifted(other: Path, path: Path, count: int) -> Path:
    """A path in the body after ``count`` statements were put before the statement at ``path``."""
    depth = len(path) - 1
    same_block = other[:depth] == path[:depth] and len(other) > depth and other[depth][0] == path[depth][0]
    if not same_block or other[depth][1] < path[depth][1]:
        return other
    return (*other[:depth], (other[depth][0], other[depth][1] + count), *other[depth + 1 :])


def _out_of(program: Program, nest: Nest, path: Path, any_divisor: bool) -> tuple[ast.For, list[ast.stmt]]:
    """The loop without its invariant expressions, and the declarations that compute them."""
    node = clone(at(nest.body, path))
    assert isinstance(node, ast.For)
    collector = _Invariants(program, nest, path, node, any_divisor)
    new = collector.visit(node)
    assert isinstance(new, ast.For)
    return new, collector.before


class _Invariants(Transformer):
    """Replaces the largest invariant expressions in a loop by locals declared before it."""

    def __init__(self, program: Program, nest: Nest, path: Path, node: ast.For, any_divisor: bool):
        self.nest, self.any_divisor = nest, any_divisor
        self.scope = scope_at(nest.body, path, program.buffers)
        """What names mean before the loop."""
        self.inside: Scope = {**self.scope, **of_loop(node)}
        """What names mean where the visitor is."""
        self.loops = {name for name, known in self.scope.items() if known.kind == "loop"}
        self.changing = changed_in(node)
        self.innermost = not any(isinstance(n, ast.For) for s in node.body for n in statements_in(s))
        self.taken = taken_names(program, [nest])
        self.before: list[ast.stmt] = []
        self.known: dict[tuple[str, str], str] = {}
        self.ranges = ranges_at(nest.body, path)
        self.certain = runs(node)
        """Whether the visited expression is evaluated, whatever the data and the bounds are."""

    # Subscripts and loop bounds are integers: left alone.
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        outer, self.inside = self.inside, {**self.inside, **of_loop(node)}
        node.body = self._visited(node.body, runs(node))
        self.inside = outer
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        outer = self.inside
        node.body = self._visited(node.body, False)
        self.inside = outer
        node.orelse = self._visited(node.orelse, False)
        self.inside = outer
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        node.test = self.visit(node.test)
        node.body, node.orelse = self._visited([node.body, node.orelse], False)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        node.values = [self.visit(node.values[0]), *self._visited(node.values[1:], False)]
        return node

    def _visited(self, trees: list[T], certain: bool) -> list[T]:
        outer, self.certain = self.certain, self.certain and certain
        result = [self.visit(tree) for tree in trees]
        self.certain = outer
        return result

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if not local_type(node).shape and node.value is not None:
            node.value = self.visit(node.value)
        self.inside = {**self.inside, **of_declaration(node)}
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = self.visit(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign:
        node.value = self.visit(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return node if self._integer(node) else self.generic_visit(node)  # type: ignore[return-value]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if self._invariant(node):
            return self._local(node)
        if (
            isinstance(node.op, ast.Div)
            and self._invariant_operand(node.right)
            and (self.any_divisor or safe_divisor(node.right, self.scope, self.nest.body))
        ):
            dtype = self._quotient(node)  # before the dividend has locals that are declared in front of the loop
            reciprocal = ast.BinOp(ast.Constant(1.0), ast.Div(), node.right)
            return ast.BinOp(self.visit(node.left), ast.Mult(), self._local(reciprocal, dtype))
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = self.visit(node.operand)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if unparse(node.func) in COSTLY and self._invariant(node):
            return self._local(node)
        node.args = [self.visit(arg) for arg in node.args]
        return node

    def _integer(self, node: ast.expr) -> bool:
        return on_loops(node, self.loops)

    def _invariant(self, node: ast.expr) -> bool:
        names = names_in(node)
        if names & self.changing or not names - INDEX_CALLS or self._integer(node) or "rand" in names:
            return False
        return self.certain or all(self._exists(ref) for ref in references(node))

    def _exists(self, ref: ast.Subscript) -> bool:
        """Whether the element exists in every iteration of the loops around."""
        return in_bounds(self.scope[unparse(ref.value)].shape, ref, self.ranges)

    def _invariant_operand(self, node: ast.expr) -> bool:
        """Whether to divide by ``node`` through a reciprocal: an invariant, and a literal, or a number of items, where
        every iteration divides."""
        if isinstance(node, ast.Constant) or is_number_of_items(node, self.scope, self.nest.body):
            return self.innermost
        return self._invariant(node)

    def _quotient(self, node: ast.BinOp) -> str:
        """The type of a quotient whose divisor is known before the loop."""
        return joint(dtype_of(node.left, self.inside), dtype_of(node.right, self.scope))

    def _local(self, node: ast.expr, dtype: str | None = None) -> ast.expr:
        dtype = resolved(dtype_of(node, self.scope) if dtype is None else dtype, None)
        key = (unparse(node), dtype)
        if key not in self.known:
            name = fresh(self._name(node), self.taken)
            self.taken.add(name)
            self.known[key] = name
            self.before.append(declare(name, LocalType(dtype), node))
        return ast.Name(self.known[key], ast.Load())

    def _name(self, node: ast.expr) -> str:
        """A descriptive name: the first operand's, and the operation's."""
        words = {ast.Add: "plus", ast.Sub: "minus", ast.Mult: "times", ast.Div: "over"}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and unparse(node.left) == "1.0":
            return "inverse"
        names = [n for n in sorted(names_in(node)) if n in self.scope and n not in self.loops]
        base = (names[0] if names else "value").removesuffix("_t")
        if isinstance(node, ast.Call):
            return f"{base}_{unparse(node.func)}"
        return f"{base}_{words.get(type(node.op), 'scaled')}" if isinstance(node, ast.BinOp) else base
