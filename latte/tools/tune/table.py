"""The text of a recipe of entries: its table is changed in place, so that comments and other lines there stay."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from swirl.errors import RecipeError
from swirl.schedule.entries import DIGITS, NAME
from swirl.source_text import parsed

INDENT = "    "
_COMMA = re.compile(r"(?:[^#,]|#[^\r\n]*(?:[\r\n]|\Z))*?,")
"""What follows an entry up to its comma."""
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r\n|\r|\n)")


@dataclass(frozen=True)
class TableText:
    """What the text of a recipe of entries has, and where.

    Args:
        text: of the file.
        functions: name → its lines.
        entries: name of a function → where its entry begins and ends, in characters.
        start, end: of what is between the brackets of the table.
        first: where the statement with the table begins, or the comments right above it.
    """

    text: str
    functions: Mapping[str, str]
    entries: Mapping[str, tuple[int, int]]
    start: int
    end: int
    first: int

    @classmethod
    def of(cls, text: str, path: Path) -> TableText:
        """The parts of a text.

        Raises:
            RecipeError: it is not a recipe of entries.
        """
        try:
            body = parsed(text.encode(), str(path)).body
        except (SyntaxError, ValueError) as error:
            raise RecipeError(f"is not Python: {error}", location=str(path)) from error
        tables = [node for node in body if isinstance(node, ast.Assign) and _names(node) == [NAME]]
        if not tables or not isinstance(tables[-1].value, (ast.Tuple, ast.List)):
            raise RecipeError(
                f"is a recipe without {NAME}, to which nothing is added",
                location=str(path),
                way_out="--out names another folder, or move the file",
            )
        offset, table = _offsets(text), tables[-1].value

        def place(node: ast.expr) -> tuple[int, int]:
            end = offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
            return offset(node.lineno, node.col_offset), end

        entries: dict[str, tuple[int, int]] = {}
        for element in table.elts:
            start, end = place(element)
            called = element.args[0] if isinstance(element, ast.Call) and element.args else None
            entries[called.id if isinstance(called, ast.Name) else text[start:end]] = start, end
        start, end = place(table)
        if any(start == first for first, _ in entries.values()):
            raise RecipeError(
                f"{NAME} has no brackets around it", location=f"{path}:{table.lineno}", way_out=f"{NAME} = (…)"
            )
        lines, number = lines_of(text), tables[-1].lineno - 1
        spans = {node.name: _span(node) for node in body if isinstance(node, ast.FunctionDef)}
        functions = {name: "".join(lines[first:last]) for name, (first, last) in spans.items()}
        while number and lines[number - 1].startswith("#"):
            number -= 1
        return cls(text, functions, entries, start + 1, end - 1, sum(map(len, lines[:number])))

    def entry(self, name: str) -> str:
        """The text of a function's entry."""
        start, end = self.entries[name]
        return self.text[start:end]

    def given(self, name: str) -> Mapping[str, object]:
        """The arguments of a function's entry that are numbers or words, by name."""
        node = ast.parse(self.entry(name), mode="eval").body
        keywords = node.keywords if isinstance(node, ast.Call) else []
        return {k.arg: k.value.value for k in keywords if k.arg is not None and isinstance(k.value, ast.Constant)}

    def is_edited(self, name: str) -> bool:
        """Whether the function of an entry is not as it was written there, as far as one can tell."""
        return self.given(name).get("written") != digest(self.functions.get(name, ""))

    def before_table(self, more: str) -> str:
        """The text with a function more."""
        return f"{self.text[: self.first].rstrip()}\n\n\n{more}\n\n\n{self.text[self.first :]}"

    def with_entry(self, call: str) -> str:
        """The text with an entry more at the end of the table."""
        text, end = self._with_last_comma()
        line = max(text.rfind("\n", 0, end), text.rfind("\r", 0, end)) + 1
        if line > self.start and not text[line:end].strip():
            return f"{text[:line]}{INDENT}{call},\n{text[line:]}"
        return f"{text[:end].rstrip(' ')}\n{INDENT}{call},\n{text[end:]}"

    def _with_last_comma(self) -> tuple[str, int]:
        """The text with a comma after the last entry, and where the table ends in it."""
        last = max((stop for _, stop in self.entries.values()), default=None)
        if last is None or _COMMA.match(self.text, last, self.end):
            return self.text, self.end
        return f"{self.text[:last]},{self.text[last:]}", self.end + 1

    def with_entry_for(self, name: str, call: str) -> str:
        """The text with another entry in the place of a function's."""
        start, end = self.entries[name]
        return f"{self.text[:start]}{call}{self.text[end:]}"

    def without_entry(self, name: str) -> str:
        """The text without a function's entry; comments around it stay."""
        (text, last), (start, end) = self._with_last_comma(), self.entries[name]
        comma = _COMMA.match(text, end, last)
        end = comma.end() if comma else end
        line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
        rest = _REST_OF_LINE.match(text, end)
        if rest and not text[line:start].strip():
            start, end = line, rest.end()
        return text[:start] + text[end:]


def without_functions(text: str, names: Collection[str]) -> str:
    """A text without functions, and the empty lines before them."""
    lines = lines_of(text)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            start, end = _span(node)
            while start and not lines[start - 1].strip():
                start -= 1
            del lines[start:end]
    return "".join(lines)


def digest(function: str) -> str:
    """A short text that two functions share exactly if their texts are equal but for ends of lines."""
    return sha256("\n".join(line.rstrip() for line in lines_of(function)).encode()).hexdigest()[:DIGITS]


def lines_of(text: str) -> list[str]:
    """With their ends: those that Python counts, and not, as ``str.splitlines``, form feeds."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def _span(node: ast.FunctionDef) -> tuple[int, int]:
    """The lines of a function, as a slice, with those that decorate it."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1, node.end_lineno or node.lineno


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _offsets(text: str) -> Callable[[int, int], int]:
    """Python's line, and the number of bytes before a place in it → the number of characters before the place."""
    lines = lines_of(text)
    begins = [0, *accumulate(map(len, lines))]
    return lambda line, column: begins[line - 1] + len(lines[line - 1].encode()[:column].decode())
