"""Where in the user's files something was asked for: what error messages begin with."""

from __future__ import annotations

import os
import sys
from types import CodeType

_OWN = tuple(
    os.path.realpath(os.path.join(os.path.dirname(__file__), folder)) + os.sep for folder in (".", "layers")
)


def user_place() -> str | None:
    """``file:line`` of the innermost call that does not come from Latte or its layer library."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not os.path.realpath(filename).startswith(_OWN):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def place_of(code: CodeType) -> str:
    """``file:line`` of a function's first line."""
    return f"{code.co_filename}:{code.co_firstlineno}"
