"""Commands on an ensemble: recorded when a layer is declared, replayed when the net is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from latte.model.older_spellings import spelled_anew
from swirl.errors import CommandError, nearest
from swirl.ir.phases import PHASE_ALIASES, PHASES
from swirl.ir.spelling import as_in_sources
from swirl.schedule.command_log import Recorded
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS


def recorded(name: str, arguments: tuple[Any, ...], options: dict[str, Any], location: str | None) -> list[Recorded]:
    """A command as it will be replayed; an older spelling may stand for several.

    Raises:
        CommandError: there is no such phase.
    """
    found = [
        Recorded(name, args, tuple(opts.items()), location)
        for name, args, opts in spelled_anew(name, as_in_sources(arguments), as_in_sources(options), location)
    ]
    for command in found:
        if command.name not in LAYOUT_COMMANDS and _phase_of(command) not in PHASES:
            phase = _phase_of(command)
            raise CommandError(
                f"{command.text}: no phase named {phase!r}",
                location=location,
                way_out=f"{nearest(phase, PHASES)}the phases are {', '.join(PHASES)}",
            )
    return found


def by_phase(commands: Sequence[Recorded]) -> dict[str, list[Recorded]]:
    """The commands of each phase, in order; one on a layout goes with the next one that names a phase."""
    result: dict[str, list[Recorded]] = {}
    waiting: list[Recorded] = []
    for command in commands:
        if command.name in LAYOUT_COMMANDS:
            waiting.append(command)
        else:
            result.setdefault(_phase_of(command), []).extend([*waiting, command])
            waiting = []
    if waiting:
        result.setdefault(next(reversed(result), "forward"), []).extend(waiting)
    return result


INFOS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "vectorize_info": (("vectorize", "simd"), ("loop_var", "factor"), "phase"),
    "parallel_info": (("parallelize",), ("loop_var",), "phase"),
    "unroll_info": (("unroll", "unroll_and_jam", "unroll_no_jam"), ("loop_var", "factor", "unroll_type"), "phase"),
    "private_info": (("privatize",), ("buffer",), "phase"),
    "transpose_info": (("transpose",), ("dim1", "dim2"), "buffer"),
    "tiling_info": (("tile",), ("dim", "factor"), "buffer"),
}
"""What a later layer's code may ask an ensemble: which commands were given, which of their arguments, sorted by
what."""


def asked(commands: Iterable[Recorded], info: str) -> dict[str, list[Any]]:
    """Phase or buffer → what the commands of an :data:`INFOS` were given, in order."""
    names, wanted, of = INFOS[info]
    found: dict[str, list[Any]] = {}
    for command in commands:
        if command.name in names:
            parameters = list(COMMANDS[command.name].signature.parameters.values())
            takes = [*(["phase"] if of == "phase" else []), *(parameter.name for parameter in parameters)]
            given = {parameter.name: parameter.default for parameter in parameters}
            given |= dict(zip(takes, command.arguments, strict=False)) | dict(command.options)
            key = _phase_of(command) if of == "phase" else given[of]
            values = tuple(given[name] for name in wanted)
            # A missing argument is refused by compile.
            if all(value is not inspect.Parameter.empty for value in (key, *values)):
                found.setdefault(key, []).append(values)
    return found


def _phase_of(command: Recorded) -> Any:
    options = dict(command.options)
    phase: Any = options.get("phase", command.arguments[0] if command.arguments else None)
    return PHASE_ALIASES.get(phase, phase) if isinstance(phase, str) else phase
