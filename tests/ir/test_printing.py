"""Printing and walking as Python's own library does."""

from __future__ import annotations

import ast

import pytest

from swirl.ir.nest import Program
from swirl.ir.printing import unparse
from swirl.ir.trees import Transformer, as_target, as_value, changed, children, clone, located, nodes
from tests.fuzz.checks import make_case, random_pick

EXPRESSIONS = """
a and b or c | (a or b) and c | a and (b and c) | (a and b) and c | a or b or c or d | a < 1 and b < 2 and c < 3
a < 1 and b + 1 and c * 2 and d - 1 and -e and f and g and h | not (a and b) | not a == b | (not a) == b | not not a
a and (not b) | (a and b) < c | a < b < c | (a < b) < c | a < (b < c) | -(a + b) | -a * b | (-a)[0] | -x[1] | - -a
a - (b - c) | a - b - c | a * (b + c) * d | a // b % c | a // (b % c) | a - -1 | 2 * -a | -(-1) | -1
a if b else c if d else e | (a if b else c) if d else e | a if (b if c else d) else e | (a if b else c) + 1
x[a if b else c] | x[i] | x[i, j + 1] | x[(i,)] | x[i, (j, k)] | f((a if b else c), -1) | max(0.0, x[i]) | f()
parallel(3, schedule='static')
1e-30 | 1.0 | 1e400 | True | None | 'text' | a ** b | a @ b | f(*a) | x.y | a[1:2]
(a, b)
""".replace("\n", "|").split("|")

STATEMENTS = [
    "for i in range(1, n, 2):\n    x[i] += 1\n    x[i] //= 2",
    "for i in vector(min(8, n - i)):\n    pass",
    "if a:\n    b = 1\nelif c:\n    b = 2\nelse:\n    b = 3",
    "if a:\n    b = 1\nelse:\n    if c:\n        b = 2\n    d = 1",
    "t: float32[14, 2] = empty(14, 2)",
    "t: int",
    "a = b = c",
    "prefetch(x, (i, j + 1), 1)",
    "def f(x, y):\n    for i in range(3):\n        x[i] = y[i]",
    "def f(x: int=1) -> int:\n    return x",
    "while a:\n    a = a - 1",
]


@pytest.mark.parametrize("text", [text.strip() for text in EXPRESSIONS if text.strip()])
def test_expression(text: str) -> None:
    node = ast.parse(text, mode="eval").body
    assert unparse(node) == ast.unparse(node)


@pytest.mark.parametrize("text", STATEMENTS)
def test_statement(text: str) -> None:
    (node,) = ast.parse(text).body
    assert unparse(node) == ast.unparse(node)


def programs() -> list[Program]:
    cases = [make_case(random_pick(seed), commands=5, finish=True) for seed in range(30)]
    return [program for case in cases for program in (case.program, case.result) if program is not None]


def test_random_programs() -> None:
    for program in programs():
        for nest in program.nests:
            assert nest.text == ast.unparse(located(nest.function))
            for node in ast.walk(nest.function):
                if isinstance(node, ast.expr):
                    assert unparse(node) == ast.unparse(node)


def test_nodes_in_the_order_of_walk() -> None:
    skipped = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    for program in programs():
        for nest in program.nests:
            expected = [node for node in ast.walk(nest.function) if not isinstance(node, skipped)]
            assert list(nodes(nest.function)) == expected


def test_children_in_the_order_of_the_standard_library() -> None:
    skipped = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    for program in programs():
        for nest in program.nests:
            for node in nodes(nest.function):
                assert children(node) == [c for c in ast.iter_child_nodes(node) if not isinstance(c, skipped)]


class Changes:
    """Replaces names and numbers, takes statements out, and makes two of one."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(f"{node.id}_2", node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return node if node.value != 1 else ast.BinOp(node, ast.Add(), ast.Constant(0))

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        return [node, node]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        return None


class Ours(Changes, Transformer):
    pass


class Theirs(Changes, ast.NodeTransformer):
    pass


def test_transformers_do_what_the_standard_library_s_do() -> None:
    for program in programs():
        for nest in program.nests:
            ours, theirs = (made().visit(clone(nest.function)) for made in (Ours, Theirs))
            assert ast.dump(ours) == ast.dump(theirs)
    leaves = ast.parse("x[i] = -y if a < 1 else b").body[0]
    assert ast.dump(Ours().visit(clone(leaves))) == ast.dump(Theirs().visit(clone(leaves)))


def test_clone_shares_only_names_and_constants() -> None:
    tree = ast.parse("for i in range(3):\n    x[i] = a < b if not c else -d\n    t: float32 = 1.0").body[0]
    tree.mark = "kept"  # type: ignore[attr-defined]
    copy = clone(tree)
    assert ast.dump(copy) == ast.dump(tree) and copy.mark == "kept"  # type: ignore[attr-defined]
    shared = [node for node in nodes(copy) if id(node) in set(map(id, nodes(tree)))]
    assert {type(node) for node in shared} == {ast.Name, ast.Constant}
    (one,), (two,) = ([n for n in ast.walk(t) if isinstance(n, ast.Compare)] for t in (tree, copy))
    assert one.ops is not two.ops


@pytest.mark.parametrize("text", ["x", "x[i, j + 1]"])
def test_targets_and_values(text: str) -> None:
    """A copy in the other context; the element itself stays as it is."""
    (value,) = (node.value for node in ast.parse(text).body if isinstance(node, ast.Expr))
    target = as_target(value)
    assert unparse(target) == unparse(as_value(target)) == text
    contexts = [type(element.ctx) for element in (as_value(value), target, as_value(target))]
    assert contexts == [ast.Load, ast.Store, ast.Load]
    assert isinstance(value, (ast.Name, ast.Subscript)) and type(value.ctx) is ast.Load


def test_changed_shares_the_other_parts() -> None:
    loop = ast.parse("for i in range(3):\n    x[i] = 1").body[0]
    assert isinstance(loop, ast.For)
    loop.mark = "kept"  # type: ignore[attr-defined]
    other = changed(loop, body=[ast.Pass()])
    assert unparse(other) == "for i in range(3):\n    pass" and other.mark == "kept"  # type: ignore[attr-defined]
    assert other.iter is loop.iter and unparse(loop) == "for i in range(3):\n    x[i] = 1"


def test_located_compiles() -> None:
    function = ast.Module([located(ast.Assign([ast.Name("x", ast.Store())], ast.Constant(1)))], [])
    compile(function, "test", "exec")
