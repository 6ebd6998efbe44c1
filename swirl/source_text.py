"""Files that people write in Python, read as Python reads them: in UTF-8, with a byte-order mark or without, or in the
encoding that one of the first two lines names."""

from __future__ import annotations

import ast
import codecs
import re

SAVE_AS = "save it as UTF-8, or name its encoding in its first line: # -*- coding: latin-1 -*-"
"""The way out of an :class:`EncodingError`."""

_NAMED = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


class EncodingError(SyntaxError):
    """A file is not text in the encoding that it has or names; ``lineno`` is of the first wrong byte."""


def parsed(data: bytes, filename: str) -> ast.Module:
    """The content of a Python file as a tree.

    Args:
        data: as the file has it.
        filename: for errors.

    Raises:
        EncodingError: it names an encoding that does not exist, or has bytes that its encoding does not have.
        SyntaxError, ValueError: it is not Python.
    """
    try:
        return ast.parse(data, filename)
    except (SyntaxError, ValueError) as error:
        problem = _encoding_problem(data)
        if problem is None:
            raise
        message, line = problem
        raise EncodingError(message, (filename, line, None, None)) from error


def _encoding_problem(data: bytes) -> tuple[str, int] | None:
    """Why bytes are not text, and in which line; None if they are."""
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()
    encoding, named_in = "UTF-8", 1
    for number, line in enumerate(lines[:2], 1):
        if (found := _NAMED.match(line)) is not None:
            encoding, named_in = found[1].decode(), number
            break
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return f"{data[error.start : error.start + 1]!r} is not {encoding}", len(data[: error.start + 1].splitlines())
    except (LookupError, UnicodeError) as error:
        return str(error), named_in
    if data.startswith(codecs.BOM_UTF8) and codecs.lookup(encoding).name != "utf-8":
        return f"it begins with the byte-order mark of UTF-8, and names {encoding}", named_in
    return None
