"""Calls that do not fit a signature, of all that users call: errors of Latte's, with the line and the nearest name.

Python's TypeError for ``ReLULayer(x)`` or ``ConvLayer(net, x, num_filter=3)`` does not know what was meant, and tools
that show Latte's errors do not show it. Each public module hands over its names once; what editors and mypy see stays
as it is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from latte.model.ensemble import Ensemble
from latte.model.neuron import Neuron
from latte.model.source_location import user_location
from swirl.errors import WrongCall, nearest

Function = TypeVar("Function", bound=Callable[..., Any])

_BODIES = frozenset({"forward", "backward", "update", "update_internal"})
"""Methods that are read, not called."""
_MARK = "answers_wrong_calls"


def answer_wrong_calls(module: dict[str, Any], names: Iterable[str]) -> None:
    """Let the functions and classes of a public module answer calls that do not fit.

    Args:
        module: its names; functions are replaced in it, and in the module that defines them.
        names: of those that users call.
    """
    for name in names:
        value = module[name]
        if isinstance(value, type):
            for base in value.__mro__:
                if base.__module__.startswith("latte."):
                    _answer_in(base)
        elif isinstance(value, FunctionType) and not hasattr(value, "of_bodies"):
            module[name] = answering(value, name)
            vars(sys.modules[value.__module__])[value.__name__] = module[name]


def _answer_in(kind: type) -> None:
    """The same for the constructor and the public methods that a class defines; of neurons, for the constructor."""
    for name, value in list(vars(kind).items()):
        is_body = name == "update" or (name in _BODIES and issubclass(kind, Ensemble))
        public = not (name.startswith("_") or is_body or issubclass(kind, Neuron))
        if name == "__init__" and isinstance(value, FunctionType):
            setattr(kind, name, answering(value, kind.__name__))
        elif public and isinstance(value, FunctionType):
            setattr(kind, name, answering(value, f"{kind.__name__}.{name}"))
        elif public and isinstance(value, classmethod):
            setattr(kind, name, classmethod(answering(value.__func__, f"{kind.__name__}.{name}")))


def answering(function: Function, name: str) -> Function:
    """The function, whose calls with arguments that it does not take are :class:`WrongCall`.

    Args:
        function: as it is called; the first parameter of a method may be called ``self`` or ``cls``.
        name: for messages.
    """
    if hasattr(function, _MARK):
        return function

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except TypeError as error:
            wrong = _wrong_call(function, name, arguments, named)
            if wrong is None:  # raised inside
                raise
            raise wrong from error

    setattr(call, _MARK, True)
    return call  # type: ignore[return-value]


def _wrong_call(
    function: Callable[..., Any], name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> WrongCall | None:
    """What is wrong with the arguments; None where they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        problem = str(error)
    else:
        return None
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    usage = _usage(name, parameters)
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
    unknown = [given for given in named if given not in known and not any_name]
    if unknown:
        left = [each for each in known if each not in named]
        message = f"{name} has no argument {unknown[0]!r}"
        return WrongCall(message, location=user_location(), way_out=f"{nearest(unknown[0], left)}{usage}")
    forgotten = known[:1] == ["net"] and arguments[:1] and isinstance(arguments[0], Ensemble)
    return WrongCall(
        f"{name}: {problem}", location=user_location(), way_out=f"{'the net comes first: ' if forgotten else ''}{usage}"
    )


def _usage(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """A call as a caller sees it: ``ConvLayer(net, input_ensemble, kernel=3)``."""
    shown = []
    by_name = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not by_name:
            shown.append("*")
        by_name = by_name or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        default = each.default.__name__ if isinstance(each.default, FunctionType) else repr(each.default)
        shown.append(f"{stars}{each.name}" if each.default is each.empty else f"{each.name}={default}")
    return f"{name}({', '.join(shown)})"
