"""ctree's C nodes, made to work: the only module that imports ctree.

ctree 0.1.9 is unmaintained. Importing it needs ``np.bool8`` (gone in NumPy 2) and ``ConfigParser.readfp``
(gone in Python 3.12), reads ``.ctree.cfg`` from the home and working folders, may configure logging and
makes a temporary folder. All of that is patched around the import and undone after it. Its C nodes are
re-exported. Its printer is subclassed: ctree prints children through ``str``, puts every subscript in
parentheses and prints 0.1 as a double.
"""

from __future__ import annotations

import configparser
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def _patched(owner: Any, **new: Any) -> Iterator[None]:
    """Attributes of ``owner`` replaced for a moment; those that did not exist are removed afterwards."""
    missing = object()
    old = {name: owner.__dict__.get(name, missing) for name in new}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _read_defaults(self: configparser.ConfigParser, file: Any, filename: str | None = None) -> None:
    """``readfp`` of old; with ctree's cache declared on, it makes no temporary folder."""
    with file:
        self.read_file(file, filename)
    self.set("jit", "CACHE", "True")


def _read_nothing(self: configparser.ConfigParser, *files: Any, **options: Any) -> list[str]:
    """``read`` that ignores the user's ``.ctree.cfg``: it must not change what we print."""
    return []


with (
    warnings.catch_warnings(),
    _patched(np, bool8=np.bool_),
    _patched(configparser.ConfigParser, readfp=_read_defaults, read=_read_nothing),
    _patched(logging, basicConfig=lambda **options: None),
):
    warnings.simplefilter("ignore")  # its sources say `is not ""`
    from ctree.c.codegen import CCodeGen
    from ctree.c.nodes import (
        Assign,
        AugAssign,
        BinaryOp,
        Block,
        CNode,
        Constant,
        For,
        FunctionCall,
        If,
        Op,
        SymbolRef,
        TernaryOp,
        UnaryOp,
    )
    from ctree.util import flatten

__all__ = [
    "Assign",
    "AugAssign",
    "BinaryOp",
    "Block",
    "CNode",
    "Constant",
    "Declaration",
    "Expression",
    "For",
    "FunctionCall",
    "If",
    "Literal",
    "NamedCast",
    "Node",
    "Op",
    "Pragma",
    "SymbolRef",
    "TernaryOp",
    "UnaryOp",
    "address_of",
    "array_ref",
    "binary",
    "call",
    "constant",
    "float_text",
    "logical_and",
    "logical_not",
    "print_nodes",
    "symbol",
]

Node = Any
"""A ctree node; ctree has no type hints."""
Expression = Any
"""A ctree node that is an expression."""


# --- nodes that ctree lacks ---------------------------------------------------------------------------------
class Literal(CNode):
    """A literal whose text is ours: ctree would print 0.1 as a double, and has no infinity."""

    _fields: list[str] = []

    def __init__(self, text: str):
        self.text = text
        super().__init__()


class NamedCast(CNode):
    """``(type) value`` with the type as text: ctree's own needs a ctypes instance, and knows no
    ``__m512``."""

    _fields = ["value"]

    def __init__(self, type_name: str, value: Expression):
        self.type_name = type_name
        self.value = value
        super().__init__()


class Declaration(CNode):
    """``type name = value``, ``type a, b, c`` or ``alignas(64) type name[4][16]``."""

    _fields = ["value"]

    def __init__(
        self, type_name: str, names: str | list[str], value: Expression | None = None, shape: tuple[int, ...] = ()
    ):
        self.type_name = type_name
        self.names = [names] if isinstance(names, str) else names
        self.value = value
        self.shape = shape
        super().__init__()


class Pragma(CNode):
    """A pragma line, followed by the statement or block that it applies to (if any)."""

    _fields = ["statement"]

    def __init__(self, text: str, statement: Node | None = None):
        self.text = text
        self.statement = statement
        super().__init__()

    def _requires_semicolon(self) -> bool:
        return False


# --- building -----------------------------------------------------------------------------------------------
def symbol(name: str) -> Expression:
    """A use of a name."""
    return SymbolRef(name)


def call(function: str, *args: Expression) -> Expression:
    """``function(args)``."""
    return FunctionCall(SymbolRef(function), list(args))


_OPERATORS = {
    "+": Op.Add,
    "-": Op.Sub,
    "*": Op.Mul,
    "/": Op.Div,
    "%": Op.Mod,
    "&": Op.BitAnd,
    "|": Op.BitOr,
    "<": Op.Lt,
    "<=": Op.LtE,
    ">": Op.Gt,
    ">=": Op.GtE,
    "==": Op.Eq,
    "!=": Op.NotEq,
    "&&": Op.And,
    "||": Op.Or,
}


def binary(operator: str, left: Expression, right: Expression) -> Expression:
    """``left operator right``; the printer adds the parentheses that the tree needs."""
    return BinaryOp(left, _OPERATORS[operator](), right)


def logical_and(*parts: Expression) -> Expression:
    """``a && b && …``."""
    result = parts[0]
    for part in parts[1:]:
        result = binary("&&", result, part)
    return result


def logical_not(part: Expression) -> Expression:
    """``!part``."""
    return UnaryOp(Op.Not(), part)


def array_ref(base: str | Expression, indices: list[Expression]) -> Expression:
    """``base[i][j]``."""
    result = symbol(base) if isinstance(base, str) else base
    for index in indices:
        result = BinaryOp(result, Op.ArrayRef(), index)
    return result


def address_of(reference: Expression) -> Expression:
    """``&reference``."""
    return UnaryOp(Op.Ref(), reference)


def float_text(value: float, dtype: str) -> str:
    """The shortest literal that C++ reads back as exactly this value of the given type."""
    if math.isnan(value):
        return "NAN" if dtype == "float32" else "(double) NAN"
    rounded = np.float32(value) if dtype == "float32" else np.float64(value)
    if np.isinf(rounded):
        return "-INFINITY" if rounded < 0 else "INFINITY"
    text = repr(float(rounded)) if dtype == "float64" else str(rounded)
    if not any(character in text for character in ".e"):
        text += ".0"
    return text + ("f" if dtype == "float32" else "")


def constant(value: float | int | bool, dtype: str) -> Expression:
    """A literal of the given type."""
    if dtype == "bool":
        return Literal("true" if value else "false")
    if dtype == "int32":
        return Constant(int(value)) if value != -(2**31) else Literal("(-2147483647 - 1)")
    with np.errstate(over="ignore"):
        return Literal(float_text(value, dtype))


# --- printing -----------------------------------------------------------------------------------------------
class _Printer(CCodeGen):
    """ctree's printer with our nodes; children are visited here and not through ``str``."""

    def _genblock(self, forest: Any, insert_curly_brackets: bool = True, increase_indent: bool = True) -> str:
        self._indent += increase_indent
        lines = []
        for tree in flatten(forest):
            text = self.visit(tree)
            if text:
                semicolon = ";" if tree._requires_semicolon() and not isinstance(tree, (For, If)) else ""
                lines.append(self._tab() + text + semicolon + "\n")
        self._indent -= increase_indent
        body = "".join(lines)
        return f"{{\n{body}{self._tab()}}}" if insert_curly_brackets else body

    def _parenthesize(self, parent: Node, child: Node) -> str:
        text = self.visit(child)
        return f"({text})" if self._requires_parentheses(parent, child) else text

    def _requires_parentheses(self, parent: Node, node: Node) -> bool:
        if isinstance(parent, NamedCast):
            return isinstance(node, (BinaryOp, TernaryOp)) and not _is_subscript(node)
        if isinstance(node, NamedCast):  # binds like a unary operator
            return _is_subscript(parent)
        return bool(super()._requires_parentheses(parent, node))

    def visit_UnaryOp(self, node: Node) -> str:
        operator = str(node.op)
        operand = self._parenthesize(node, node.arg)
        if isinstance(node.op, (Op.PostInc, Op.PostDec)):
            return operand + operator
        return f"{operator}({operand})" if operand.startswith(operator) else operator + operand

    def visit_BinaryOp(self, node: Node) -> str:
        if _is_subscript(node):
            return f"{self._parenthesize(node, node.left)}[{self.visit(node.right)}]"
        left = self._parenthesize(node, node.left)
        right = self._parenthesize(node, node.right)
        # As gcc's -Wparentheses asks: few remember that && binds before ||.
        if isinstance(node.op, Op.Or):
            left = f"({left})" if _is_and(node.left) else left
            right = f"({right})" if _is_and(node.right) else right
        return f"{left} {node.op} {right}"

    def visit_AugAssign(self, node: Node) -> str:
        return f"{self.visit(node.target)} {node.op}= {self.visit(node.value)}"

    def visit_NamedCast(self, node: Node) -> str:
        return f"({node.type_name}) {self._parenthesize(node, node.value)}"

    def visit_Literal(self, node: Node) -> str:
        return str(node.text)

    def visit_FunctionCall(self, node: Node) -> str:
        return f"{self.visit(node.func)}({', '.join(map(self.visit, node.args))})"

    def visit_Declaration(self, node: Node) -> str:
        extents = "".join(f"[{extent}]" for extent in node.shape)
        text = f"{node.type_name} {', '.join(name + extents for name in node.names)}"
        return text if node.value is None else f"{text} = {self.visit(node.value)}"

    def visit_Pragma(self, node: Node) -> str:
        text = f"#pragma {node.text}"
        if node.statement is None:
            return text
        return f"{text}\n{self._tab()}{self.visit(node.statement)}"

    def visit_If(self, node: Node) -> str:
        text = f"if ({self.visit(node.cond)}) {self._genblock(node.then)}"
        return f"{text} else {self._genblock(node.elze)}" if node.elze else text

    def visit_For(self, node: Node) -> str:
        head = "; ".join(map(self.visit, (node.init, node.test, node.incr)))
        pragma = f"#pragma {node.pragma}\n{self._tab()}" if node.pragma else ""
        return f"{pragma}for ({head}) {self._genblock(node.body)}"


def _is_subscript(node: Node) -> bool:
    return isinstance(node, BinaryOp) and isinstance(node.op, Op.ArrayRef)


def _is_and(node: Node) -> bool:
    return isinstance(node, BinaryOp) and isinstance(node.op, Op.And)


def print_nodes(nodes: list[Node], indent: int = 0) -> str:
    """Statements as C++ text, one to a line, indented by ``indent`` levels of four spaces."""
    return str(_Printer(indent)._genblock(nodes, insert_curly_brackets=False, increase_indent=False))
