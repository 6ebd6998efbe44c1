"""A failing case reduced: fewer commands, fewer statements, simpler expressions, smaller extents, smaller arrays."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from swirl.errors import LatteError
from swirl.ir.execute import execute
from swirl.ir.nest import Program, clone, constant, expr, loop_of, make_nest, substitute
from swirl.ir.paths import Path, at, replace_at, walk
from swirl.ir.validate import validate
from tests.fuzz.checks import PASSES, contents
from tests.fuzz.commands import Command
from tests.fuzz.floats import ASSUME_FINITE, EXPAND

Failing = Callable[[Program, Sequence[Command]], str | None]
"""What is wrong with a program under commands, or None."""


def shrink(
    program: Program, commands: Sequence[Command], fails: Failing, seconds: float = 60
) -> tuple[Program, list[Command]]:
    """The smallest program and the fewest commands found that still fail in the same way.

    Args:
        fails: what is wrong; its first word tells the kind.
        seconds: to look for smaller ones.
    """
    end = time.monotonic() + seconds
    way = way_of(fails(program, commands))
    best = list(commands)

    def still(smaller: Program, fewer: Sequence[Command]) -> bool:
        try:
            return _runs(smaller) and way_of(fails(smaller, fewer)) == way
        except Exception:
            return False

    changed = way is not None
    while changed and time.monotonic() < end:
        changed = False
        for index in reversed(range(len(best))):
            fewer = best[:index] + best[index + 1 :]
            if still(program, fewer):
                best, changed = fewer, True
        for smaller in _smaller(program):
            if time.monotonic() > end:
                break
            if still(smaller, best):
                program, changed = smaller, True
                break
    return program, best


def way_of(problem: str | None) -> str | None:
    """The kind of a failure: the first word of what is wrong."""
    return None if problem is None else problem.split()[0].rstrip(":")


def _runs(program: Program) -> bool:
    """Whether a program means something: it is grammatical and stays inside its arrays."""
    try:
        execute(validate(program), contents(program), checking=True, arithmetic="rational")
    except (LatteError, ArithmeticError, TypeError, NameError):
        return False
    return True


def _smaller(program: Program) -> Iterator[Program]:
    for index in range(len(program.nests)):
        if len(program.nests) > 1:
            yield program.with_nest(index)
    for index, nest in enumerate(program.nests):
        for body in _smaller_bodies(nest.body):
            if body:
                yield program.with_nest(index, make_nest(nest.label, body, program.buffers))
    for name, buffer in program.buffers.items():
        if not any(name in nest.arguments for nest in program.nests):
            yield replace(program, buffers={other: b for other, b in program.buffers.items() if other != name})
            continue
        for dim, extent in enumerate(buffer.shape):
            for less in sorted({1, extent // 2, extent - 1} - {0, extent}):
                shape = (*buffer.shape[:dim], less, *buffer.shape[dim + 1 :])
                yield program.with_buffers(**{name: replace(buffer, shape=shape)})


def _smaller_bodies(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    for path, node in walk(body):
        yield _without(body, path)
        if isinstance(node, ast.For):
            loop = loop_of(node)
            yield replace_at(body, path, [substitute(s, {loop.var: loop.start}) for s in node.body])
            extent = constant(loop.stop)
            if extent is not None and constant(loop.start) == 0:
                for less in sorted({1, 2, extent // 2, extent - 1} - {0, extent}):
                    if less < extent:
                        yield replace_at(body, path, [replace(loop, stop=expr(less)).node(node.body)])
        elif isinstance(node, ast.If):
            yield replace_at(body, path, node.body)
            if node.orelse:
                yield replace_at(body, path, node.orelse)
                yield replace_at(body, path, [ast.If(node.test, node.body, [])])
        for simpler in _simpler_statements(node):
            yield replace_at(body, path, [simpler])


def _without(body: list[ast.stmt], path: Path) -> list[ast.stmt]:
    """The body without a statement, and without what would be empty then."""
    if len(path) > 1:
        parent = at(body, path[:-1])
        siblings = getattr(parent, path[-1][0])
        if len(siblings) == 1 and path[-1][0] == "body":
            return _without(body, path[:-1])
    return replace_at(body, path, [])


def _simpler_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """The statement with one of its expressions replaced by a part of it."""
    if isinstance(node, ast.For):
        return
    if isinstance(node, ast.If):
        for test in _simpler(node.test):
            yield ast.If(test, node.body, node.orelse)
        return
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        for value in _simpler(node.value):
            new = clone(node)
            new.value = value
            yield new
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in _simpler(targets[0]):
            if isinstance(target, ast.Subscript):
                new = clone(node)
                if isinstance(new, ast.Assign):
                    new.targets = [_stored(target)]
                else:
                    assert isinstance(new, ast.AugAssign)
                    new.target = _stored(target)  # type: ignore[assignment]
                yield new


def _stored(target: ast.Subscript) -> ast.Subscript:
    return ast.Subscript(target.value, target.slice, ast.Store())


def _simpler(node: ast.expr) -> Iterator[ast.expr]:
    """Parts instead of the whole, then the whole with a simpler part."""
    parts: list[tuple[str, int | None, ast.expr]] = []
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            parts.append((name, None, value))
        elif isinstance(value, list):
            parts += [(name, place, item) for place, item in enumerate(value) if isinstance(item, ast.expr)]
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.BoolOp)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ):
        yield from (part for name, _, part in parts if name not in ("func", "test"))
    for name, place, part in parts:
        if isinstance(node, ast.Call) and name == "func" or isinstance(node, ast.Subscript) and name == "value":
            continue
        for simpler in _simpler(part):
            new: Any = clone(node)
            if place is None:
                setattr(new, name, simpler)
            else:
                getattr(new, name)[place] = simpler
            yield new


# --- as a test ----------------------------------------------------------------------------------------------
def regression_test(program: Program, commands: Sequence[Command], problem: str, name: str, seed: int = 0) -> str:
    """The text of a test that fails as long as the case does.

    Args:
        seed: of the data in floating point.
    """
    shapes = ", ".join(f"{key}={buffer.shape}" for key, buffer in program.buffers.items())
    others = [
        f'    before = before.with_buffers({key}=Buffer("net.{key}", {b.shape}, "{b.dtype}", "{b.role}"))'
        for key, b in program.buffers.items()
        if b.dtype != "float32" or b.role != "value"
    ]
    steps = [f"    {line}" for line in map(_step, commands)]
    target = problem.split()[0]
    if target in TARGET_NAMES:
        compiled = [f'    assert_compiles_to_same(after, TARGETS["{target}"], seed={seed})']
    else:
        compiled = []
    return "\n".join(
        [
            f"def test_{name}() -> None:",
            f"    # {problem.splitlines()[0]}",
            '    before = program("""',
            "\n".join(nest.body_text for nest in program.nests),
            f'""", {shapes})',
            *others,
            "    after = before",
            *steps,
            f"    assert_same(before, after{_how(problem, commands, seed)})",
            *compiled,
        ]
    )


TARGET_NAMES = ("portable", "avx2", "avx512")


def _how(problem: str, commands: Sequence[Command], seed: int) -> str:
    """The arguments that tell how the programs are compared in floating point."""
    if not problem.startswith("floats: "):
        return ""
    expands = any(name in EXPAND for name, _, _ in commands)
    finite = any(name in ASSUME_FINITE or options.get("zeros") for name, _, options in commands)
    how = ", expands=True" if expands else ", finite=True" if finite else ""
    how = ", keeps_bits=True" if " between " in problem else how
    return f"{how}, seeds=[{seed}]"


def _step(command: Command) -> str:
    name, arguments, options = command
    if name in PASSES:
        return f"after = {name}(after)"
    parts = [repr(argument) for argument in arguments] + [f"{key}={value!r}" for key, value in options.items()]
    return f'after = COMMANDS["{name}"]({", ".join(["after", *parts])})'
