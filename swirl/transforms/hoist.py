"""hoist: what a loop does not change is computed before it; a division by it becomes a multiplication."""

from __future__ import annotations

import ast
from typing import TypeVar

from swirl.errors import CommandError
from swirl.ir.affine import ranges_at
from swirl.ir.nest import (
    LocalType,
    Nest,
    Path,
    Program,
    at,
    clone,
    declare,
    edit_at,
    fresh,
    local_type,
    loop_of,
    loops,
    names_in,
    references,
    walk,
)
from swirl.ir.printing import unparse
from swirl.ir.trees import statements_in
from swirl.transforms.base import checked, command, find_loops, taken_names
from swirl.transforms.candidates import in_bounds, runs

T = TypeVar("T", bound=ast.AST)

_COSTLY = ("sqrt", "exp", "log", "tanh", "pow")


@command()
def hoist(program: Program, loop_var: str | None = None, *, nest: int | str | None = None) -> Program:
    """Compute what stays the same in a loop once, before it; divide by it through its reciprocal.

    rewrite:
        for h in range(H):                      var_t_sqrt: float32 = 1.0 / sqrt(var_t + 0.001)
            y[h] = (x[h] - m) / sqrt(var_t + 0.001)     →    for h in range(H):
                                                                 y[h] = (x[h] - m) * var_t_sqrt

    A parallel loop is left alone: its threads would wait for one.

    What a condition or a loop without iterations may keep from being evaluated is moved only if its elements exist
    whatever happens.

    Args:
        loop_var: out of this loop; by default out of every loop.
        nest: only in this nest (index or label).

    Raises:
        CommandError: no such loop.

    Source: Lake, section 3.2 (the divisor of Fig. 3.4).
    """
    if loop_var is not None:
        wanted = {(site.nest, site.path) for site in find_loops(program, loop_var, nest)}
    result = program
    for index, target in enumerate(program.nests):
        if nest is not None and nest not in (index, target.label):
            continue
        paths = [path for path, _ in loops(target.body) if loop_var is None or (index, path) in wanted]
        result = result.with_nest(index, hoisted(result, target, paths))
    if loop_var is not None and not wanted:
        raise CommandError(f"no loop {loop_var!r}")
    return checked(program, result)


def hoisted(program: Program, nest: Nest, paths: list[Path] | None = None) -> Nest:
    """``nest`` with everything moved out of the loops at ``paths`` (default: all), outermost loop first."""
    remaining = [path for path, _ in loops(nest.body)] if paths is None else list(paths)
    while remaining:
        path = remaining.pop(0)
        node = at(nest.body, path)
        assert isinstance(node, ast.For)
        if loop_of(node).kind == "parallel":
            continue
        new, before = _out_of(program, nest, path)
        if before:
            nest = nest.with_body(edit_at(nest.body, path, lambda _, b=before, n=new: [*b, n]))  # type: ignore[misc]
            remaining = [_shifted(other, path, len(before)) for other in remaining]
    return nest


def _shifted(other: Path, path: Path, count: int) -> Path:
    """A path in the body after ``count`` statements were put in front of the statement at ``path``."""
    depth = len(path) - 1
    same_block = other[:depth] == path[:depth] and len(other) > depth and other[depth][0] == path[depth][0]
    if not same_block or other[depth][1] < path[depth][1]:
        return other
    return (*other[:depth], (other[depth][0], other[depth][1] + count), *other[depth + 1 :])


def _out_of(program: Program, nest: Nest, path: Path) -> tuple[ast.For, list[ast.stmt]]:
    """The loop without its invariant expressions, and the declarations that compute them."""
    node = clone(at(nest.body, path))
    assert isinstance(node, ast.For)
    collector = _Invariants(program, nest, path, node)
    new = collector.visit(node)
    assert isinstance(new, ast.For)
    return new, collector.before


class _Invariants(ast.NodeTransformer):
    """Replaces the largest invariant expressions in a loop by locals declared before it."""

    def __init__(self, program: Program, nest: Nest, path: Path, node: ast.For):
        self.program = program
        self.moving = {loop_of(n).var for n in statements_in(node) if isinstance(n, ast.For)}
        self.innermost = not any(isinstance(n, ast.For) for s in node.body for n in statements_in(s))
        self.stored: set[str] = set()
        for inner in statements_in(node):
            if isinstance(inner, ast.AnnAssign):
                self.moving.add(unparse(inner.target))
            elif isinstance(inner, (ast.Assign, ast.AugAssign)):
                target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
                name = target.value if isinstance(target, ast.Subscript) else target
                self.stored.add(unparse(name))
        declared = [(unparse(s.target), local_type(s)) for _, s in walk(nest.body) if isinstance(s, ast.AnnAssign)]
        self.types = dict(declared)
        self.shapes = {name: {kind.shape for other, kind in declared if other == name} for name in self.types}
        self.integers = {node.target.id for _, node in loops(nest.body) if isinstance(node.target, ast.Name)}
        self.taken = taken_names(program, [nest])
        self.before: list[ast.stmt] = []
        self.known: dict[str, str] = {}
        self.ranges = ranges_at(nest.body, path)
        self.certain = runs(node)
        """Whether what is being looked at is evaluated, whatever the data and the bounds are."""

    # Subscripts and loop bounds are integers: left alone.
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        node.body = self._visited(node.body, runs(node))
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        node.body, node.orelse = self._visited(node.body, False), self._visited(node.orelse, False)
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
        if isinstance(node.op, ast.Div) and self._invariant_operand(node.right):
            reciprocal = ast.BinOp(ast.Constant(1.0), ast.Div(), node.right)
            return ast.BinOp(self.visit(node.left), ast.Mult(), self._local(reciprocal))
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = self.visit(node.operand)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if unparse(node.func) in _COSTLY and self._invariant(node):
            return self._local(node)
        node.args = [self.visit(arg) for arg in node.args]
        return node

    def _integer(self, node: ast.expr) -> bool:
        return names_in(node) <= self.integers | {"min", "max"} and not any(True for _ in references(node))

    def _invariant(self, node: ast.expr) -> bool:
        names = names_in(node)
        if names & (self.moving | self.stored) or self._integer(node) or "rand" in names:
            return False
        return self.certain or all(self._exists(ref) for ref in references(node))

    def _exists(self, ref: ast.Subscript) -> bool:
        """Whether the element exists in every iteration of the loops around."""
        name = unparse(ref.value)
        if name in self.program.buffers:
            return in_bounds(self.program.buffers[name].shape, ref, self.ranges)
        shapes = self.shapes[name]  # several, where locals of different shapes share a name
        return len(shapes) == 1 and in_bounds(min(shapes), ref, self.ranges)

    def _invariant_operand(self, node: ast.expr) -> bool:
        """Whether to divide by ``node`` through a reciprocal: an invariant, and a literal where every
        iteration divides."""
        if isinstance(node, ast.Constant):
            return self.innermost
        return self._invariant(node)

    def _local(self, node: ast.expr) -> ast.expr:
        text = unparse(node)
        if text not in self.known:
            name = fresh(self._name(node), self.taken)
            self.taken.add(name)
            self.known[text] = name
            self.before.append(declare(name, LocalType(self._dtype(node)), node))
        return ast.Name(self.known[text], ast.Load())

    def _name(self, node: ast.expr) -> str:
        """A name that says what it is: the first operand's, and the operation's."""
        words = {ast.Add: "plus", ast.Sub: "minus", ast.Mult: "times", ast.Div: "over"}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and unparse(node.left) == "1.0":
            return "inverse"
        names = [n for n in sorted(names_in(node)) if n in self.types or n in self.program.buffers]
        base = (names[0] if names else "value").removesuffix("_t")
        if isinstance(node, ast.Call):
            return f"{base}_{unparse(node.func)}"
        return f"{base}_{words.get(type(node.op), 'scaled')}" if isinstance(node, ast.BinOp) else base

    def _dtype(self, node: ast.expr) -> str:
        for name in names_in(node):
            if name in self.types and self.types[name].dtype.startswith("float"):
                return self.types[name].dtype
            if name in self.program.buffers and self.program.buffers[name].dtype.startswith("float"):
                return self.program.buffers[name].dtype
        return "float32"
