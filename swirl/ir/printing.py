"""Trees of the grammar as text, the way ``ast.unparse`` prints them, in a sixth of its time: passes compare and name
expressions by their text, thousands of times a nest."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from swirl.ir.operations import COMPARISONS, OPERATORS
from swirl.ir.trees import located

_BINARY: dict[type, tuple[str, int]] = {kind: (f" {known.symbol} ", known.level) for kind, known in OPERATORS.items()}
_COMPARE: dict[type, str] = {kind: f" {known.symbol} " for kind, known in COMPARISONS.items()}
# How tight things bind, loosest first, as in the grammar of Python: select, or, and, not, comparison, …, sum, product,
# sign.
_SELECT, _OR, _AND, _NOT, _COMPARISON, _SIGN = 1, 2, 3, 4, 5, 12


class _Unknown(Exception):
    """A node that cannot occur in a nest."""


def unparse(tree: ast.AST) -> str:
    """``ast.unparse(tree)``."""
    try:
        if isinstance(tree, ast.expr):
            return _expression(tree, 0)
        lines: list[str] = []
        _STATEMENTS[type(tree)](tree, lines, "")
        return "\n".join(lines)
    except (_Unknown, KeyError):
        return ast.unparse(located(tree))


def _expression(node: Any, level: int) -> str:
    """The text of an expression; in parentheses if it binds less tightly than ``level``."""
    kind = type(node)
    if kind is ast.Name:
        name: str = node.id
        return name
    if kind is ast.Constant:
        if type(node.value) is int or (type(node.value) is float and abs(node.value) < 1e300):
            return repr(node.value)
        raise _Unknown
    if kind is ast.Subscript:
        index = node.slice
        if type(index) is ast.Tuple:
            if len(index.elts) < 2:
                raise _Unknown
            inner = ", ".join([_expression(element, _SELECT) for element in index.elts])
        else:
            inner = _expression(index, 0)
        return f"{_expression(node.value, 99)}[{inner}]"
    if kind is ast.BinOp:
        sign, own = _BINARY[type(node.op)]
        text = f"{_expression(node.left, own)}{sign}{_expression(node.right, own + 1)}"
        return f"({text})" if own < level else text
    if kind is ast.Call and type(node.func) is ast.Name:
        parts = [_expression(argument, _SELECT) for argument in node.args]
        parts += [f"{keyword.arg}={_expression(keyword.value, _SELECT)}" for keyword in node.keywords if keyword.arg]
        return f"{node.func.id}({', '.join(parts)})"
    return _rare(node, kind, level)


def _rare(node: Any, kind: type, level: int) -> str:
    if kind is ast.UnaryOp and type(node.op) is ast.USub:
        text, own = f"-{_expression(node.operand, _SIGN)}", _SIGN
    elif kind is ast.UnaryOp and type(node.op) is ast.Not:
        text, own = f"not {_expression(node.operand, _NOT)}", _NOT
    elif kind is ast.Compare:
        text, own = _expression(node.left, _COMPARISON + 1), _COMPARISON
        for operator, side in zip(node.ops, node.comparators, strict=True):
            text += _COMPARE[type(operator)] + _expression(side, _COMPARISON + 1)
    elif kind is ast.BoolOp:
        word, own = (" and ", _AND) if type(node.op) is ast.And else (" or ", _OR)
        # ast.unparse binds each further operand tighter than the one before it.
        text = word.join([_expression(value, own + 1 + i) for i, value in enumerate(node.values)])
    elif kind is ast.IfExp:
        test, body, orelse = (
            _expression(part, at)
            for part, at in ((node.test, _SELECT + 1), (node.body, _SELECT + 1), (node.orelse, _SELECT))
        )
        text, own = f"{body} if {test} else {orelse}", _SELECT
    elif kind is ast.Constant and type(node.value) is bool:
        return repr(node.value)
    else:
        raise _Unknown
    return f"({text})" if own < level else text


# --- statements ---------------------------------------------------------------------------------------------
def _block(body: list[ast.stmt], lines: list[str], indent: str) -> None:
    for statement in body:
        _STATEMENTS[type(statement)](statement, lines, indent)


def _for(node: Any, lines: list[str], indent: str) -> None:
    if node.orelse or getattr(node, "type_comment", None):
        raise _Unknown
    lines.append(f"{indent}for {_expression(node.target, 0)} in {_expression(node.iter, 0)}:")
    _block(node.body, lines, indent + "    ")


def _if(node: Any, lines: list[str], indent: str, word: str = "if") -> None:
    lines.append(f"{indent}{word} {_expression(node.test, 0)}:")
    _block(node.body, lines, indent + "    ")
    if len(node.orelse) == 1 and type(node.orelse[0]) is ast.If:
        _if(node.orelse[0], lines, indent, "elif")
    elif node.orelse:
        lines.append(f"{indent}else:")
        _block(node.orelse, lines, indent + "    ")


def _assign(node: Any, lines: list[str], indent: str) -> None:
    (target,) = node.targets if len(node.targets) == 1 else (None,)
    if target is None or getattr(node, "type_comment", None):
        raise _Unknown
    lines.append(f"{indent}{_expression(target, 0)} = {_expression(node.value, 0)}")


def _aug_assign(node: Any, lines: list[str], indent: str) -> None:
    sign = _BINARY[type(node.op)][0].rstrip()
    lines.append(f"{indent}{_expression(node.target, 0)}{sign}= {_expression(node.value, 0)}")


def _ann_assign(node: Any, lines: list[str], indent: str) -> None:
    if not node.simple or node.value is None:
        raise _Unknown
    annotation, value = _expression(node.annotation, 0), _expression(node.value, 0)
    lines.append(f"{indent}{_expression(node.target, 0)}: {annotation} = {value}")


def _call(node: Any, lines: list[str], indent: str) -> None:
    raise _Unknown  # prefetch(x, (i, j), 1): rare


def _pass(node: Any, lines: list[str], indent: str) -> None:
    lines.append(f"{indent}pass")


def _function(node: Any, lines: list[str], indent: str) -> None:
    arguments = node.args
    if (
        node.decorator_list
        or node.returns
        or arguments.posonlyargs
        or arguments.kwonlyargs
        or arguments.defaults
        or arguments.vararg
        or arguments.kwarg
        or any(arg.annotation for arg in arguments.args)
    ):
        raise _Unknown
    lines.append(f"{indent}def {node.name}({', '.join([arg.arg for arg in arguments.args])}):")
    _block(node.body, lines, indent + "    ")


_STATEMENTS: dict[type, Callable[[Any, list[str], str], None]] = {
    ast.For: _for,
    ast.If: _if,
    ast.Assign: _assign,
    ast.AugAssign: _aug_assign,
    ast.AnnAssign: _ann_assign,
    ast.Expr: _call,
    ast.Pass: _pass,
    ast.FunctionDef: _function,
}
