"""Commands on an ensemble: recorded when a layer is declared, replayed when the net is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from latte.model.checks import check_padding
from latte.model.place import user_place
from swirl.errors import CommandError, UnknownName, nearest
from swirl.questions import PHASE_ALIASES, PHASES
from swirl.recorded import Recorded, unknown_command
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS


class CommandRecorder:
    """Gives an ensemble every command of recipes as a method; the first argument is the phase.

    >>> bn.parallelize(phase="forward", loop_var="_neuron_index_1")          # doctest: +SKIP

    The commands replace the shipped recipe for the phases that they name; ``tile``, which changes the loops of
    every phase, replaces all of it.
    """

    commands: list[Recorded]
    compiled: bool
    shape: tuple[int, ...]
    asked_padding: tuple[tuple[int, int], ...] | None = None
    """What ``set_padding`` has asked for and no connection has taken yet."""
    _padding: tuple[tuple[int, int], ...] | None = None

    def set_padding(self, *pairs: tuple[int, int] | int) -> None:
        """Put zeros around this ensemble for the layer that is connected to it next, and for no other.

        It is the older spelling of ``net.add_connections(ensemble, sink, mapping, padding=pairs)``, called just before
        it: the mapping's position 0 is the first zero. What getters show does not change.

        Args:
            pairs: (zeros before, zeros after) for each dimension, no batch.

        Raises:
            DeclarationError: the pairs do not fit the shape.  CommandError: the net is compiled already.
        """
        place = user_place()
        self._check_open("set_padding", place)
        self._padding = self.asked_padding = check_padding(pairs, self.shape, place)

    @property
    def pad(self) -> tuple[tuple[int, int], ...]:
        """The zeros that the last ``set_padding`` asked for."""
        return self._padding or ((0, 0),) * len(self.shape)

    def _check_open(self, command: str, place: str | None) -> None:
        if self.compiled:
            raise CommandError(f"{command}: the net is compiled already", place=place,
                               way_out="give commands before net.compile()")  # fmt: skip

    def record(self, name: str, *arguments: Any, **options: Any) -> None:
        """Record a command.

        Raises:
            CommandError: the net is compiled already, or there is no such phase.
        """
        place = user_place()
        self._check_open(name, place)
        if name == "privatize" and len(arguments) == 1 and "phase" not in options:  # the older spelling has no phase
            arguments = (_writing_phase(str(arguments[0])), *arguments)
        if name == "prefetch" and ("prefetch_dict_list" in options or _is_older(arguments[1:])):
            for one in older_prefetches(*arguments, **options, place=place):
                self.record(name, *one, optional=True)
            return
        command = Recorded(name, arguments, tuple(options.items()), place)
        if name not in LAYOUT_COMMANDS and _phase_of(command) not in PHASES:
            phase = _phase_of(command)
            raise CommandError(f"{command.text}: no phase named {phase!r}", place=place,
                               way_out=f"{nearest(phase, PHASES)}the phases are {', '.join(PHASES)}")  # fmt: skip
        self.commands.append(command)

    def command(self, name: str) -> Callable[..., None]:
        """The method for a command, or CommandError with the nearest name."""
        if name not in COMMANDS:
            raise unknown_command(name, user_place())
        return lambda *arguments, **options: self.record(name, *arguments, **options)

    def commands_by_phase(self) -> dict[str, list[Recorded]]:
        """The commands of each phase, in order; one on a layout goes with the next one that names a phase."""
        result: dict[str, list[Recorded]] = {}
        waiting: list[Recorded] = []
        for command in self.commands:
            if command.name in LAYOUT_COMMANDS:
                waiting.append(command)
            else:
                result.setdefault(_phase_of(command), []).extend([*waiting, command])
                waiting = []
        if waiting:
            result.setdefault(next(reversed(result), "forward"), []).extend(waiting)
        return result

    def set_filter_padding(self, *pairs: tuple[int, int] | int) -> None:
        """Accepted from older programs, and without effect: weights of any extent fill vectors here."""
        self._check_open("set_filter_padding", user_place())

    def use_libxsmm(self, flag: object = True) -> None:
        """Accepted from older programs, and without effect: there is no other library to use."""
        self._check_open("use_libxsmm", user_place())

    @property
    def vectorize_info(self) -> dict[str, list[tuple[str, int]]]:
        """Phase → (loop, lanes) of every ``vectorize`` or ``simd`` recorded so far."""
        return self._asked(("vectorize", "simd"), "loop_var", "factor")

    @property
    def parallel_info(self) -> dict[str, list[tuple[str]]]:
        """Phase → (loop,) of every ``parallelize`` recorded so far."""
        return self._asked(("parallelize",), "loop_var")

    @property
    def unroll_info(self) -> dict[str, list[tuple[str, int, int]]]:
        """Phase → (loop, factor, unroll_type) of every ``unroll`` and its like recorded so far."""
        return self._asked(("unroll", "unroll_and_jam", "unroll_no_jam"), "loop_var", "factor", "unroll_type")

    @property
    def private_info(self) -> dict[str, list[tuple[str]]]:
        """Phase → (buffer,) of every ``privatize`` recorded so far."""
        return self._asked(("privatize",), "buffer")

    @property
    def transpose_info(self) -> dict[str, list[tuple[int, int]]]:
        """Buffer → (dimension, dimension) of every ``transpose`` recorded so far."""
        return self._asked(("transpose",), "dim1", "dim2", of="buffer")

    def _asked(self, names: tuple[str, ...], *wanted: str, of: str = "phase") -> dict[str, list[Any]]:
        """Phase or buffer → what the commands of these names were given, in order."""
        found: dict[str, list[Any]] = {}
        for command in self.commands:
            if command.name in names:
                parameters = list(inspect.signature(COMMANDS[command.name]).parameters.values())[1:]
                takes = [*(["phase"] if of == "phase" else []), *(parameter.name for parameter in parameters)]
                given = {parameter.name: parameter.default for parameter in parameters}
                given |= dict(zip(takes, command.arguments, strict=False)) | dict(command.options)
                key = _phase_of(command) if of == "phase" else given[of]
                values = tuple(given[name] for name in wanted)
                # What lacks an argument is refused by compile.
                if all(value is not inspect.Parameter.empty for value in (key, *values)):
                    found.setdefault(key, []).append(values)
        return found

    @property
    def tiling_info(self) -> dict[str, list[tuple[int, int]]]:
        """Buffer → (dimension, factor) of every ``tile`` recorded so far, as a later layer's code asks for it."""
        return self._asked(("tile",), "dim", "factor", of="buffer")


def unknown_attribute(ensemble: Any, name: str) -> UnknownName:
    """The error for a name that is no command, field or attribute of an ensemble, with the nearest one."""
    known = [attribute for attribute in dir(ensemble) if not attribute.startswith("_")]
    hint = nearest(name, [*COMMANDS, *known])
    return UnknownName(f"{ensemble!r} has no command or attribute {name!r}", place=user_place(),
                       way_out=f"{hint}the commands are {', '.join(sorted(COMMANDS))}")  # fmt: skip


def _writing_phase(buffer: str) -> str:
    """The phase that computes a field."""
    if not buffer.startswith("grad"):
        return "forward"
    return "backward" if buffer in ("grad", "grad_inputs") else "update"


def older_prefetches(
    phase: Any, prefetch_dict_list: Any = None, *, place: str | None
) -> list[tuple[str, str, str, int, int]]:
    """``prefetch``'s arguments for what older programs say in one dictionary, or a list of them: buffer →
    ``[1, enclosing loop, dimension, count, loop, multiplier, iterations ahead, hint]``, or ``[2, …, hint]`` with the
    loop, multiplier and iterations in the same places from the end. They are hints: one that does not apply is skipped.
    """
    result = []
    given = prefetch_dict_list if isinstance(prefetch_dict_list, (list, tuple)) else [prefetch_dict_list or {}]
    if not all(isinstance(one, Mapping) for one in given):
        raise CommandError(f"prefetch: {prefetch_dict_list!r} is no dictionary of buffers, nor a list of some",
                           place=place, way_out="prefetch(phase, buffer, loop_var, distance=1, level=1)")  # fmt: skip
    for buffer, entry in ((buffer, entry) for one in given for buffer, entry in one.items()):
        whole = isinstance(entry, (list, tuple)) and len(entry) == {1: 8, 2: 11}.get(entry[0] if entry else 0)
        if not whole or not all(type(entry[place]) is int for place in (-3, -2, -1)) or not isinstance(entry[-4], str):
            raise CommandError(f"prefetch of {buffer!r}: {entry!r} is no list of an older program", place=place,
                               way_out="prefetch(phase, buffer, loop_var, distance=1, level=1)")  # fmt: skip
        loop, multiplier, ahead, hint = entry[-4:]
        result.append((str(phase), str(buffer), loop, max(1, ahead // max(1, multiplier)), min(3, hint + 1)))
    return result


def _is_older(arguments: tuple[Any, ...]) -> bool:
    """Whether ``prefetch`` was given a dictionary, or a list of some."""
    return len(arguments) == 1 and isinstance(arguments[0], (Mapping, list, tuple))


def _phase_of(command: Recorded) -> Any:
    options = dict(command.options)
    phase: Any = options.get("phase", command.arguments[0] if command.arguments else None)
    return PHASE_ALIASES.get(phase, phase) if isinstance(phase, str) else phase
