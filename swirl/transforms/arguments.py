"""What commands take: checks of arguments, and what is said where one is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from swirl.errors import CommandError, nearest
from swirl.ir.nest import Program


def check_names(names: object, what: str = "loops") -> list[str]:
    """Several loops (or ``what``) by their names, or a CommandError."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise CommandError(f"several {what} are given as a list of names, not as {names!r}")
    return list(names)


def check_factor(factor: object, what: str = "factor") -> int:
    """A whole number of at least 1, or a CommandError."""
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise CommandError(f"{what} must be a whole number of at least 1, not {factor!r}")
    return factor


def check_buffer(program: Program, buffer: object) -> None:
    """Raises CommandError where the program has no such buffer."""
    if buffer not in program.buffers:
        raise CommandError(
            f"no buffer named {buffer!r} in {program.name}",
            way_out=f"{nearest(buffer, program.buffers)}the buffers are {', '.join(program.buffers)}",
        )
