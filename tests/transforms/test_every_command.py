"""What each command comes with: an example in the documentation, a test of what it refuses, makers of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.commands import examples
from swirl.transforms import COMMANDS
from tests.fuzz.commands import COMMAND_MAKERS
from tests.recipe.test_bad_arguments import GOOD
from tests.transforms.test_odd_programs import MAKERS

NAMES = sorted({command.name for command in COMMANDS.values()})
TESTS = Path(__file__).parent
ERRORS = {"Refused", "CommandError", "LayoutError"}


def missing(name: str) -> list[str]:
    """What is missing for a command, and where to add it."""
    kinds = {
        f"no example: an Example({name!r}, …) in the module of docs/commands that it belongs to, then "
        "`python docs/refresh.py recipes command_methods`": name in {example.command for example in examples()},
        f"no test of a refusal: a test in tests/transforms (test_{name}.py) that calls it under `with pytest.raises("
        "Refused)`, or one of REFUSALS in test_refusals.py": name in refusals_tested() or raises_nothing(name),
        "no maker for random programs: a line in COMMAND_MAKERS of tests/fuzz/commands.py": name in COMMAND_MAKERS,
        "no maker for odd programs: a line in MAKERS of tests/transforms/test_odd_programs.py": name in MAKERS,
        **{
            f"no good value of {argument}: one in GOOD of tests/recipe/test_bad_arguments.py": argument in GOOD
            for argument in required(name)
        },
    }
    return [text for text, there in kinds.items() if not there]


def required(name: str) -> list[str]:
    """The arguments that a command must be given."""
    parameters = COMMANDS[name].signature.parameters.values() if name in COMMANDS else ()
    named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [p.name for p in named if p.default is p.empty]


def raises_nothing(name: str) -> bool:
    """Whether a command says so of itself."""
    return name in COMMANDS and "Raises:\n    Nothing:" in COMMANDS[name].documentation


@cache
def refusals_tested() -> frozenset[str]:
    """The commands that tests expect to be refused: those called where an error is expected, there or by a helper, and
    those listed in the tables that such a test is given."""
    return frozenset().union(*(called(tree) for path in TESTS.glob("test_*.py") for tree in refused_in(path)))


def refused_in(path: Path) -> Iterator[ast.AST]:
    """What a file of tests runs where it expects an error."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    helpers = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    tables = {
        target.id: node.value
        for node in module.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and node.value is not None
    }
    expecting = {
        name: [node for node in ast.walk(function) if isinstance(node, ast.With) and expects_error(node)]
        for name, function in helpers.items()
    }
    for name, function in helpers.items():
        for node in ast.walk(function):  # refused("contract", …)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and expecting.get(node.func.id):
                yield node
        for block in expecting[name]:
            yield from block.body
            yield from (helpers[other] for statement in block.body for other in called(statement) & set(helpers))
        for tree in function.decorator_list if expecting[name] else ():
            yield tree
            yield from (tables[node.id] for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in tables)


def expects_error(node: ast.With) -> bool:
    """``with pytest.raises(Refused, …)``, or another one of a command's errors."""
    return any(
        isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func) == "pytest.raises"
        and {name.id for name in ast.walk(item.context_expr) if isinstance(name, ast.Name)} & ERRORS
        for item in node.items
    )


def called(tree: ast.AST) -> set[str]:
    """Names of what a tree calls: ``COMMANDS["split"](…)``, ``command("split", …)``, ``s.split(…)``, ``split(…)``; or
    lists to be called, ``("split", …)`` and ``["split", …]``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if isinstance(node, ast.Call):
            found |= {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}
            texts = node.args[:1]
        elif isinstance(node, ast.Subscript):
            texts = [node.slice]
        elif isinstance(node, (ast.Tuple, ast.List)):
            texts = node.elts[:1] if isinstance(node, ast.Tuple) else node.elts
        found |= {text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_complete(name: str) -> None:
    found = missing(name)
    assert not found, "\n".join([f"{name} is not complete", *found])  # whole: pytest abbreviates a list


def test_what_is_missing_is_told() -> None:
    assert len(missing("nothing_that_there_is")) == 4
