"""Where in the user's files something was asked for; error messages begin with it."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from types import CodeType, FrameType

import swirl
from swirl.errors import LatteError

_LATTE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_SWIRL = os.path.dirname(os.path.realpath(swirl.__file__))
_OWN = tuple(os.path.realpath(folder) + os.sep for folder in (_LATTE, os.path.join(_LATTE, "layers"), _SWIRL))
_PASSING_ON = tuple(map(os.path.realpath, (contextlib.__file__, copy.__file__, threading.__file__)))
_SHELL = os.path.join(_LATTE, "tools") + os.sep  # the command line


def user_location() -> str | None:
    """``file:line`` of the innermost call that does not come from Latte or its layer library; None for what was asked
    for in a shell."""
    _, frame = _user_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Located:
    """Errors of what runs in it that have no line get the one of the caller."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, LatteError) and error.location is None:
            error.location = user_location()


def user_stacklevel() -> int:
    """``stacklevel`` for a warning by the caller, so that it names the line that :func:`user_location` does."""
    depth, _ = _user_frame()
    return depth


def _user_frame() -> tuple[int, FrameType | None]:
    """The innermost frame that is not Latte's, and how many calls it is above the caller's caller."""
    depth, frame = 1, sys._getframe(2)
    while frame is not None and _is_own(frame):
        if os.path.realpath(frame.f_code.co_filename).startswith(_SHELL):
            return depth, None  # asked for in a shell
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return depth, frame


def _is_own(frame: FrameType) -> bool:
    """Whether the code is Latte's, or passes a call on: what a dataclass of Latte's has generated, ``deepcopy``, a
    context manager, a thread, PyTorch."""
    if str(frame.f_globals.get("__name__")).startswith("torch."):
        return True
    if frame.f_code.co_filename == "<string>":
        return str(frame.f_globals.get("__name__")).startswith("latte.")
    return os.path.realpath(frame.f_code.co_filename).startswith((*_OWN, *_PASSING_ON))


def location_of(code: CodeType) -> str:
    """``file:line`` of a function's first line."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def own_location(function: object) -> str | None:
    """``file:line`` of a function that the user has written; None for Latte's, and for those without Python code."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or os.path.realpath(code.co_filename).startswith(_OWN):
        return None
    return location_of(code)
