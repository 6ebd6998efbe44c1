"""What a random program has: counted, so that one sees what the cases are about."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise

from swirl.analysis.accesses import reduction_extremum
from swirl.ir.nest import Program, local_type, loop_of, names_in, references, subscripts
from swirl.ir.operations import FUNCTIONS
from swirl.ir.paths import walk
from swirl.ir.printing import unparse

FEATURES = (
    "a local's name used again",
    "a local's name that is a loop's elsewhere",
    "a local that decides a condition",
    "a local carried over iterations",
    "a local that decides what changes it",
    "and, or, not",
    "a chained comparison",
    "and, or as values",
    "a test on NaN",
    "a select",
    "a condition on data",
    "float64",
    "int32",
    "bool",
    "a cast",
    "types mixed without a cast",
    "an int32 accumulator with other terms",
    "int32 beyond 2**24",
    "// or % of data",
    "a triangular bound",
    "an indirect subscript",
    "max or min of int32",
    "a rare call",
)


def features(program: Program) -> set[str]:
    """Which of :data:`FEATURES` a program has."""
    found: set[str] = set()
    for nest in program.nests:
        types = {name: program.buffers[name].dtype for name in nest.arguments}
        locals_, loops = Counter[str](), set[str]()
        for _, node in walk(nest.body):
            if isinstance(node, ast.AnnAssign):
                locals_[unparse(node.target)] += 1
                types[unparse(node.target)] = local_type(node).dtype
            elif isinstance(node, ast.For):
                loops.add(loop_of(node).var)
        tests = {
            "a local's name used again": any(count > 1 for count in locals_.values()),
            "a local's name that is a loop's elsewhere": bool(loops & set(locals_)),
        }
        found |= {name for name, holds in tests.items() if holds} | ({"float64", "int32", "bool"} & set(types.values()))
        _statements(nest.body, set(locals_), types, found)
        for statement in nest.body:
            for node in ast.walk(statement):
                _expression(node, types, found)
    return found


def _statements(body: list[ast.stmt], locals_: set[str], types: dict[str, str], found: set[str]) -> None:
    for _, node in walk(body):
        if isinstance(node, ast.If):
            here = names_in(node.test)
            deciding = here & locals_
            changed = {_name(target) for inner in ast.walk(node) for target in _targets(inner)}
            marks = {
                "a local that decides a condition": deciding,
                "a local that decides what changes it": deciding & changed,
                "a condition on data": here & set(types),
            }
            found |= {name for name, holds in marks.items() if holds}
        elif isinstance(node, ast.For):
            loop = loop_of(node)
            if (names_in(loop.start) | names_in(loop.stop)) - {"min", "max"}:
                found.add("a triangular bound")
            declared = {unparse(n.target) for n in ast.walk(node) if isinstance(n, ast.AnnAssign)}
            changed = {_name(target) for inner in ast.walk(node) for target in _targets(inner)}
            if (changed & locals_) - declared:
                found.add("a local carried over iterations")
        for target in _targets(node):
            value = getattr(node, "value", None)
            updates = isinstance(node, ast.AugAssign) or isinstance(node, ast.Assign) and reduction_extremum(node)
            if updates and types.get(_name(target)) == "int32" and value is not None:
                terms = {types[name] for name in names_in(value) if name in types}
                found |= {"an int32 accumulator with other terms"} if terms - {"int32"} else set()


def _expression(node: ast.AST, types: dict[str, str], found: set[str]) -> None:
    if isinstance(node, (ast.BoolOp, ast.IfExp)) or isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.add("a select" if isinstance(node, ast.IfExp) else "and, or, not")
    if isinstance(node, ast.Compare):
        found |= {"a chained comparison"} if len(node.ops) > 1 else set()
        sides = [unparse(side) for side in (node.left, *node.comparators)]
        if any(one == two or one.startswith(f"{two} +") for one, two in pairwise(sides)):
            found.add("a test on NaN")
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        value = node.value
        kinds = {types[name] for name in _operands(value) if name in types}
        if any(isinstance(part, ast.BoolOp) for part in ast.walk(value)):
            found.add("and, or as values")
        casts = {"float32", "float64", "int32"} & names_in(value)
        if len(kinds) > 1:
            found.add("a cast" if casts else "types mixed without a cast")
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) >= 2**24 - 1:
        found.add("int32 beyond 2**24")
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)) and names_in(node) & set(types):
        found.add("// or % of data")
    if isinstance(node, ast.Subscript) and any(list(references(index)) for index in subscripts(node)):
        found.add("an indirect subscript")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in {*FUNCTIONS, "abs"} - {"sqrt", "exp"}:
            found.add("a rare call")
        kinds = {types.get(_name(argument), "") for argument in node.args}
        if node.func.id in ("max", "min") and "int32" in kinds:
            found.add("max or min of int32")


def _operands(node: ast.expr) -> set[str]:
    """The names outside of subscripts."""
    if isinstance(node, ast.Subscript):
        return {_name(node)}
    if isinstance(node, ast.Name):
        return {node.id}
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    return {name for part in parts for name in _operands(part)}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign) else []


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.id if isinstance(node, ast.Name) else ""
