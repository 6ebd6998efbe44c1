"""The source of a function as it was imported: a file may be edited while the program runs.

What Python found in a file is its code object; what gets compiled is the file's text. So the text is compiled by Python
again, by itself, and must give the same code object; a function that has only moved is looked for in the file. Times of
files do not tell: they change with the rest of the file, and tools restore them.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import os
import time
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CellType, CodeType, FunctionType

from swirl.errors import BodyError

Definition = ast.FunctionDef | ast.AsyncFunctionDef

LAMBDA = "<lambda>"
"""The name of the code of a function without a name."""

_STARTED = time.time()
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_KIND = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


@dataclass(frozen=True)
class Source:
    """A function's text.

    Args:
        lines: from its first decorator on.
        first: the number of the first line in the file.
        definition: what they say; line numbers are those of the file. Nothing changes it.
    """

    lines: tuple[str, ...]
    first: int
    definition: ast.stmt


class SourceMissing(Exception):
    """There is no source of a function."""


def source_of(code: CodeType, qualname: str) -> Source:
    """The source of a function as it was imported, read when it is first asked for: batches of another size are
    compiled later, perhaps from a file that is edited by then.

    Args:
        code: of the function.
        qualname: its name, with those of the classes and functions around it.

    Raises:
        SourceMissing: the source is not available.
        BodyError: the file says something else than what was imported.
    """
    return _first_read(code, code.co_filename, getattr(code, "co_qualname", qualname))


@cache
def _first_read(code: CodeType, _: str, qualname: str) -> Source:
    """Code of two files may be equal, where their texts differ in what Python does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python has said them as it read the file
        warnings.simplefilter("ignore", DeprecationWarning)
        return _imported(code, qualname)


def _imported(code: CodeType, qualname: str) -> Source:
    if code.co_name == LAMBDA:  # which is not a body, nor a helper
        raise SourceMissing
    lines = _lines(code)
    here = _block(lines, code.co_firstlineno)
    if here is not None and _compiles_to(here, code, qualname):
        return here
    for first, last in _definitions("".join(lines), code.co_name, code.co_firstlineno):
        found = _parsed(lines[first - 1 : last], first)
        if found is not None and _compiles_to(found, code, qualname):
            return found
    if here is not None and not _touched(code.co_filename):
        return here  # a tool has changed the code as it was imported, such as one that inserts checks
    raise BodyError(
        f"the source of {qualname} has changed since it was imported, and a body's source is what gets compiled",
        location=f"{code.co_filename}:{code.co_firstlineno}",
        way_out="run the program again, or importlib.reload(module) and declare the net anew",
    )


def _lines(code: CodeType) -> list[str]:
    """All lines of the file.

    Raises:
        SourceMissing: they are not available.
    """
    for asked in (code, code.replace(co_firstlineno=1)):  # a file may have fewer lines than it had
        try:
            return inspect.findsource(asked)[0]
        except (OSError, TypeError):
            continue
    raise SourceMissing


def _block(lines: Sequence[str], first: int) -> Source | None:
    """The definition that begins at a line; None where there is none."""
    rest = lines[first - 1 :]
    if not rest:
        return None
    try:
        return _parsed(inspect.getblock(rest), first)
    except (SyntaxError, tokenize.TokenError):
        return None


def _parsed(lines: Sequence[str], first: int) -> Source | None:
    # Parsed inside a block, so that the indentation of the class body is right.
    indented = lines[0][:1].isspace()
    try:
        module = ast.parse("if True:\n" + "".join(lines) if indented else "".join(lines))
    except (SyntaxError, ValueError):
        return None
    outer = module.body[0] if module.body else None
    definition = outer.body[0] if indented and isinstance(outer, ast.If) else outer
    if definition is None:
        return None
    ast.increment_lineno(module, max(first, 1) - (2 if indented else 1))
    return Source(tuple(lines), first, definition)


def _definitions(text: str, name: str, line: int) -> list[tuple[int, int]]:
    """The first and last lines of the functions of a name, the one nearest to a line first."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.name == name
            and node.end_lineno is not None
        ):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append((first, node.end_lineno))
    return sorted(found, key=lambda lines: abs(lines[0] - line))


# --- comparing ----------------------------------------------------------------------------------------------
def _compiles_to(source: Source, code: CodeType, qualname: str) -> bool:
    """Whether Python makes this code of a text."""
    if not isinstance(source.definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    wanted = _essence(code)
    for definition in _alternatives(source.definition, code):
        module = _surrounded(definition, qualname, code.co_freevars)
        try:
            made = compile(module, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        if any(each.co_name == code.co_name and _essence(each) == wanted for each in _codes(made)):
            return True
    return False


def _alternatives(definition: Definition, code: CodeType) -> Iterator[Definition]:
    """The definition; with the documentation that was imported, which does not matter here."""
    yield definition
    cells = tuple(CellType() for _ in code.co_freevars)
    imported, written = FunctionType(code, {}, None, None, cells).__doc__, ast.get_docstring(definition, clean=False)
    if imported != written:
        other = copy.copy(definition)
        rest = definition.body[written is not None :]
        text = [] if imported is None else [ast.Expr(ast.Constant(imported))]
        other.body = [*text, *rest] or [ast.Pass()]
        yield ast.fix_missing_locations(other)


def _surrounded(definition: Definition, qualname: str, free: Sequence[str]) -> ast.Module:
    """A module in which a function has the surroundings that Python compiles it by: whose variables its free names
    are, and the class whose private names it has."""
    *around, _ = qualname.split(".")
    body: list[ast.stmt] = [definition]
    missing, in_class = [name for name in free if name != "__class__"], False
    while around:
        name = around.pop()
        if name == "<locals>" and around:
            body, missing = [_function(around.pop(), missing, body)], []
        else:
            body, in_class = [ast.ClassDef(name, [], [], body, [])], True
    if "__class__" in free and not in_class:
        body = [ast.ClassDef("_", [], [], body, [])]
    if missing:
        body = [_function("_", missing, body)]
    return ast.fix_missing_locations(ast.Module(body, []))


def _function(name: str, variables: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    assigned: list[ast.stmt] = [ast.Assign([ast.Name(each, ast.Store())], ast.Constant(None)) for each in variables]
    return ast.FunctionDef(name, ast.arguments([], [], None, [], [], None, []), [*assigned, *body], [])


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _essence(code: CodeType) -> CodeType:
    """A code object without the place where it was written."""
    inner = tuple(_essence(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    named = {"co_qualname": ""} if hasattr(code, "co_qualname") else {}
    return code.replace(
        co_filename="",
        co_firstlineno=1,
        co_linetable=b"",
        co_flags=code.co_flags & _KIND,
        co_consts=inner,
        **named,  # type: ignore[arg-type]
    )


def _touched(filename: str) -> bool:
    """Whether a file may have changed since Latte was imported, which a file of layers does before they are made. The
    time of the change is the system's own, which no tool restores."""
    try:
        facts = os.stat(filename)
    except OSError:
        return True
    return max(facts.st_mtime, facts.st_ctime) >= _STARTED
