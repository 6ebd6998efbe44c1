"""The types of commands' arguments, each with the check of its values and its error messages.

A command's parameter is annotated with one of them (``factor: Positive``, ``nest: NestName | None = None``): its values
have passed the check, from wherever the command is called (:meth:`swirl.transforms.command.Command.__call__`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from swirl.errors import CommandError, nearest
from swirl.ir.hints import LEVELS, is_name
from swirl.ir.nest import Program


@dataclass(frozen=True)
class Argument:
    """The check of an argument, attached to its type.

    Args:
        alone: (value, name of the parameter) → the value that the command gets, or CommandError.
        within: (program, value, all arguments), where the program and other arguments matter: CommandError or nothing.
        simple: whether the type alone is the check: a value of another one is refused.
    """

    alone: Callable[[Any, str], Any] | None = None
    within: Callable[[Program, Any, Mapping[str, Any]], None] | None = None
    simple: bool = False


_SELECTION = re.compile(r"(?P<names>[^/\[\]]+(/[^/\[\]]+)*)(\[(?P<number>-?\d+)\])?")


@dataclass(frozen=True)
class Selection:
    """Which loops a text selects: ``"x"`` all of that name, ``"y_1/x"`` those inside of a loop ``y_1`` at any depth,
    ``"x[2]"`` the third of them in order of appearance, ``"x[-1]"`` the last one.

    Args:
        name: of the loops.
        around: names of loops around them, outermost first.
        occurrence: which one; None is all.
    """

    name: str
    around: tuple[str, ...] = ()
    occurrence: int | None = None

    @classmethod
    def of(cls, text: Any) -> Selection:
        """What the text selects.

        Raises:
            CommandError: nothing.
        """
        found = _SELECTION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise CommandError(
                f"a loop is given by its name, not {text!r}",
                way_out="'x'; 'y/x' for x inside of y; 'x[1]' for the second of several",
            )
        *around, name = found["names"].split("/")
        return cls(name, tuple(around), None if found["number"] is None else int(found["number"]))


# --- checks ---------------------------------------------------------------------------------------------
def check_positive(value: object, what: str) -> int:
    """A whole number of at least 1, or a CommandError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CommandError(f"{what} must be a whole number of at least 1, not {value!r}")
    return value


def check_buffer(program: Program, buffer: object) -> None:
    """Raises CommandError where the program has no such buffer."""
    if buffer not in program.buffers:
        raise CommandError(
            f"no buffer named {buffer!r} in {program.name}",
            way_out=f"{nearest(buffer, program.buffers)}the buffers are {', '.join(program.buffers)}",
        )


def check_dimension(program: Program, buffer: str, dim: object) -> None:
    """Raises CommandError where the buffer has no such dimension, the batch not counted."""
    target = program.buffers[buffer]
    offset = target.batch_dims
    if not isinstance(dim, int) or not 0 <= dim < len(target.shape) - offset:
        last = len(target.shape) - offset - 1
        raise CommandError(
            f"{buffer} has {f'dimensions 0 to {last}' if last >= 0 else 'no dimension but the batch'}, not {dim!r}",
            way_out=f"its shape is {target.shape[offset:]}" + (" without the batch" if offset else ""),
        )


def _names(what: str, *, or_one: bool = False) -> Callable[[Any, str], Any]:
    """Several of ``what`` by their names; with ``or_one``, a single name stays a name."""

    def check(names: Any, _: str) -> Any:
        if or_one and isinstance(names, str):
            return names
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise CommandError(f"several {what} are given as a list of names, not as {names!r}")
        return list(names)

    return check


def _loop(name: Any, _: str) -> Any:
    Selection.of(name)
    return name


def _loop_names(names: Any, what: str) -> Any:
    return [_loop(name, what) for name in _names("loops")(names, what)]


def _one_or_several_loops(names: Any, what: str) -> Any:
    return _loop_names(names, what) if isinstance(names, (list, tuple)) else _loop(names, what)


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CommandError(f"{what} must be a whole number, not {value!r}")
    return value


def _tile_sizes(factors: Any, what: str) -> int | list[int]:
    if isinstance(factors, Sequence) and not isinstance(factors, str):
        if not factors:
            raise CommandError("a combination of tiles has at least one tile")
        return [check_positive(factor, "a tile") for factor in factors]
    return check_positive(factors, what)


def _lanes(value: Any, what: str) -> int:
    lanes = check_positive(value, what)
    if lanes & (lanes - 1) or lanes == 1:
        raise CommandError(f"the number of lanes must be a power of two above 1, not {lanes}")
    return lanes


def _cuts(cuts: Any, _: str) -> Any:
    if not isinstance(cuts, (list, tuple)) or not all(type(cut) is int for cut in cuts):
        raise CommandError(f"cuts are given as a list of whole numbers, not as {cuts!r}")
    return cuts


def _iterations(value: Any, what: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CommandError(f"{what} must be a whole number of iterations, not {value!r}")
    return value


def _order(order: Any, _: str) -> Any:
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise CommandError(f"an order is a list of dimensions, not {order!r}")
    return order


def _padding(pair: Any, _: str) -> tuple[int, int]:
    sides = pair if isinstance(pair, (tuple, list)) else (pair, pair)
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 0 for side in sides):
        raise CommandError(f"padding is (zeros before, zeros after), or one number for both, not {pair!r}")
    return sides[0], sides[1]


def _tail(value: Any, what: str) -> Any:
    if value not in TAILS:
        raise CommandError(f"{what} must be one of {', '.join(TAILS)}, not {value!r}")
    return value


def _level(value: Any, what: str) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value not in LEVELS:
        raise CommandError(f"{what} must be one of {', '.join(map(str, LEVELS))}, not {value!r}")
    return value


def _zero_or_one(value: Any, what: str) -> Any:
    if not isinstance(value, int) or value not in (0, 1):
        raise CommandError(f"{what} must be 0 or 1, not {value!r}")
    return value


def _gather(value: Any, what: str) -> Any:
    if value != "gather":
        raise CommandError(f"{what} must be 'gather' or left out, not {value!r}")
    return value


def _threads(value: Any, what: str) -> Any:
    if not re.fullmatch(r"static|dynamic(,[1-9][0-9]*)?|guided", value):
        raise CommandError(f"{what} must be 'static', 'dynamic', 'dynamic,4' or 'guided', not {value!r}")
    return value


def _identifier(value: Any, _: str) -> Any:
    if not is_name(value):
        raise CommandError(f"a loop is named by an identifier, not {value!r}")
    return value


def _nest(program: Program, nest: Any, _: Mapping[str, Any]) -> None:
    labels = [candidate.label for candidate in program.nests]
    if nest not in (*labels, *range(len(labels))):
        raise CommandError(
            f"no nest {nest!r} in {program.name}",
            way_out=f"{nearest(nest, labels)}the nests are "
            + ", ".join(f"{index} {label}" for index, label in enumerate(labels)),
        )


def _buffers(program: Program, names: Any, _: Mapping[str, Any]) -> None:
    for name in names:
        check_buffer(program, name)


# --- types ----------------------------------------------------------------------------------------------
LoopName = Annotated[str, Argument(_loop, simple=True)]
"""The name of loops, or a path; :class:`Selection` says which loops it means."""
LoopOccurrence = Annotated[int, Argument(_whole)]
LoopNames = Annotated[Sequence[str], Argument(_loop_names)]
LoopNameOrNames = Annotated[str | list[str] | tuple[str, ...], Argument(_one_or_several_loops)]
NewLoopName = Annotated[str, Argument(_identifier, simple=True)]
LocalNames = Annotated[str | Sequence[str], Argument(_names("locals", or_one=True))]
BufferName = Annotated[str, Argument(within=lambda program, name, _: check_buffer(program, name), simple=True)]
ReadBufferName = Annotated[str, Argument(simple=True)]
"""The name of a buffer that the program reads; the command checks it."""
BufferNames = Annotated[Sequence[str], Argument(_names("buffers"), _buffers)]
NestName = Annotated[int | str, Argument(within=_nest, simple=True)]
"""A nest's index or label."""

Positive = Annotated[int, Argument(check_positive)]
Factors = Annotated[int | Sequence[int], Argument(_tile_sizes)]
"""One factor, or one for each of consecutive tiles."""
Lanes = Annotated[int, Argument(_lanes)]
Cuts = Annotated[Sequence[int], Argument(_cuts)]
Iterations = Annotated[int, Argument(_iterations)]

Dimension = Annotated[int, Argument(within=lambda program, dim, given: check_dimension(program, given["buffer"], dim))]
"""A dimension of the argument ``buffer``; those of values and gradients are counted without the batch."""
DimensionOrder = Annotated[Sequence[int], Argument(_order)]
Padding = Annotated[tuple[int, int] | int, Argument(_padding)]
"""Zeros before and after, or one number for both sides; a command gets both."""

TAILS = ("min", "mask", "peel")
Tail = Annotated[Literal["min", "mask", "peel"], Argument(_tail, simple=True)]
CacheLevel = Annotated[Literal[0, 1, 2, 3], Argument(_level)]
ZeroOrOne = Annotated[Literal[0, 1], Argument(_zero_or_one)]
Gather = Annotated[Literal["gather"], Argument(_gather, simple=True)]
ThreadSchedule = Annotated[str, Argument(_threads, simple=True)]
