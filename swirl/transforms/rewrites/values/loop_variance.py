"""What changes in a loop: its names, the values of its locals, expressions as polynomials."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from swirl.ir.nest import Loop, Nest, local_type, loop_of, names_in, substitute, variable_of
from swirl.ir.paths import Path, at, walk
from swirl.ir.polynomial import Monomial, Polynomial, polynomial
from swirl.ir.printing import unparse
from swirl.ir.trees import children, name_of, nodes, targets_in
from swirl.ir.types import is_float


def arithmetic(tree: ast.expr) -> Iterator[ast.expr]:
    """The operations of an expression, without those in subscripts."""
    if isinstance(tree, ast.Subscript):
        return
    if isinstance(tree, (ast.BinOp, ast.UnaryOp)):
        yield tree
    for child in children(tree):
        if isinstance(child, ast.expr):
            yield from arithmetic(child)


class Moving:
    """What changes in a loop, and the values of its locals.

    Args:
        node: the loop.
        keep_differences: whether ``x[i] - m`` stays one atom.
    """

    def __init__(self, node: ast.For, keep_differences: bool = False):
        self.keep_differences = keep_differences
        stored = [name_of(target) for target in targets_in([node], declared=True)]
        self.stored = set(stored)
        self.names = self.stored | {variable_of(n) for n in nodes(node) if isinstance(n, ast.For)}
        self.locals: set[str] = set()
        self.definitions: dict[str, ast.expr] = {}
        for _, statement in walk(node.body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            name, type_, value = statement.target.id, local_type(statement), statement.value
            self.locals.add(name)
            once = stored.count(name) == 1
            if type_.shape or not is_float(type_.dtype) or not once or value is None:
                continue
            value = substitute(value, self.definitions)
            changed = {
                name for name in names_in(value) & self.stored if stored.count(name) > 1 or name not in self.locals
            }
            # The local of a call stays: if written out, every use would call.
            plain = isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Subscript))
            if (plain or not self.moves(value)) and not changed:
                self.definitions[name] = value

    def moves(self, node: ast.AST) -> bool:
        """Whether the expression may have another value in another iteration."""
        return bool(names_in(node) & self.names)

    def written_out(self, node: ast.expr) -> ast.expr:
        """The expression with locals replaced by what they stand for."""
        return substitute(node, self.definitions)

    def polynomial(self, node: ast.expr) -> Polynomial:
        """The expression, locals written out, as a polynomial."""
        return polynomial(self.written_out(node), self._difference if self.keep_differences else lambda _: False)

    def parts(self, whole: Polynomial) -> dict[Monomial, Polynomial]:
        """A polynomial as one in the atoms that move, with coefficients that don't."""
        return whole.split(lambda atom: self.moves(atom.node))

    def cost(self, *expressions: ast.expr) -> int:
        """How many different operations have operands that move."""
        return len({unparse(n) for e in expressions for n in arithmetic(e) if self.moves(n)})

    def _difference(self, node: ast.expr) -> bool:
        """Whether the expression is an element that moves, plus or minus something that does not."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))):
            return False
        element, other = (node.left, node.right) if self.moves(node.left) else (node.right, node.left)
        return isinstance(element, (ast.Name, ast.Subscript)) and self.moves(element) and not self.moves(other)


@dataclass(frozen=True)
class Chain:
    """A loop, the loops inside on the way to a block of statements, and whether that block runs in every iteration."""

    heads: tuple[Loop, ...]
    sure: bool

    @property
    def count(self) -> int | None:
        """Iterations, where all bounds are constant."""
        total = 1
        for head in self.heads:
            if head.extent is None:
                return None
            total *= head.extent
        return total

    def bounds(self) -> tuple[tuple[str, str, int], ...]:
        """The bounds as text, loop variables numbered: equal for equal iterations."""
        names = {head.var: ast.Name(f"loop_{i}", ast.Load()) for i, head in enumerate(self.heads)}
        return tuple(
            (unparse(substitute(head.start, names)), unparse(substitute(head.stop, names)), head.step)
            for head in self.heads
        )


def chain(nest: Nest, outer: Path, inner: Path) -> Chain:
    """The loops from the one at ``outer`` to the one right around (or at) ``inner``."""
    found = [at(nest.body, inner[:depth]) for depth in range(len(outer), len(inner) + 1)]
    heads = tuple(loop_of(node) for node in found if isinstance(node, ast.For))
    guarded = any(isinstance(node, ast.If) for node in found)
    return Chain(heads, not guarded and all(head.extent for head in heads))


# --- statements as polynomials ---------------------------------------------------------------------------
Key = tuple[Path, str, Monomial]
"""A sum: the block of its statements, its type, and what is summed."""


@dataclass(frozen=True)
class Summand:
    """A statement of the loop, and the polynomial that it adds or assigns."""

    path: Path
    node: ast.Assign | ast.AugAssign
    around: Chain
    parts: dict[Monomial, Polynomial]
    dtype: str
    cost: int

    @property
    def trivial(self) -> bool:
        """Whether there is nothing to take out: every coefficient is 1 or -1."""
        return all(part and _is_unit(c) for part, c in self.parts.items())

    def key(self, part: Monomial) -> Key:
        return self.path[:-1], self.dtype, tuple(sorted(part))


def _is_unit(coefficient: Polynomial) -> bool:
    return set(coefficient.terms) == {()} and abs(coefficient.terms[()]) == 1


def is_number(coefficient: Polynomial) -> bool:
    return set(coefficient.terms) == {()}


def plain_atom(coefficient: Polynomial) -> ast.expr | None:
    """The reference or local that a coefficient is, or None."""
    ((monomial, factor_),) = coefficient.terms.items() if len(coefficient.terms) == 1 else (((), None),)
    if factor_ != 1 or len(monomial) != 1:
        return None
    atom = coefficient.atoms[monomial[0]]
    return atom.node if not atom.inverse and isinstance(atom.node, (ast.Name, ast.Subscript)) else None
