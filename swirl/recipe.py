"""Recipes: small files of commands, applied to the programs of one ensemble; and the record of what became of
each."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from swirl.errors import CommandError, LatteError, LayoutError, RecipeError, Refused, nearest
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program
from swirl.memo import Memo
from swirl.questions import PHASES, Questions
from swirl.target import Target
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from swirl.transforms.base import loop_names
from swirl.transforms.relayout import Reorder, reorder_step, unblocked, with_copies


@dataclass(frozen=True)
class Recorded:
    """A command as it was written: to be applied, or replayed."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    place: str | None

    @property
    def text(self) -> str:
        """``tile_loop('forward', 'c', 16, tail='peel')``."""
        shown = [repr(argument) for argument in self.arguments] + [
            f"{key}={value!r}" for key, value in self.options
        ]
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True)
class Outcome:
    """What became of a command: ``applied`` or ``skipped``, with the reason."""

    command: Recorded
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Traced:
    """The program of one phase after a command that changed it."""

    phase: str
    command: Recorded
    program: Program


class Schedule(Questions):
    """What a recipe's functions are given: its methods are the commands.

    Args:
        programs: phase → program; ``inference`` follows the commands for ``forward`` as far as they apply.
        target: what code is made for.
        owned: prefixes of the storage names whose layout is for this ensemble to choose (``"conv1."``).
        memo: where the commands' results are kept.

    Commands take the phase first (``s.parallelize("forward", "n")``); those on layouts take none
    (``s.tile("value", dim=0, factor=16)``) and act on every phase that touches the buffer.
    ``optional=True`` records a command that is refused as skipped instead of failing.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        target: Target,
        owned: Sequence[str] = ("",),
        memo: Memo | None = None,
    ):
        self.programs = dict(programs)
        self.target = target
        self.outcomes: list[Outcome] = []
        self.trace: list[Traced] = []
        self._notes: list[str] = []
        self._reorders: list[tuple[str, Reorder]] = []
        self._owned = tuple(owned)
        self._shapes = {b.name: b.shape for program in programs.values() for b in program.buffers.values()}
        self._memo = memo or Memo()

    def __getattr__(self, name: str) -> Callable[..., tuple[str, ...]]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in COMMANDS:
            raise unknown_command(name, _caller())

        def run(*arguments: Any, **options: Any) -> tuple[str, ...]:
            return self.apply(Recorded(name, arguments, tuple(options.items()), _caller()))

        return run

    def apply(self, command: Recorded) -> tuple[str, ...]:
        """Apply one command.

        Returns:
            the names of the loops that it made, to be used in later commands.

        Raises:
            CommandError, Refused: with the command and its place, unless it was given ``optional=True``.
        """
        options = dict(command.options)
        optional = options.pop("optional", False)
        before, reorders = dict(self.programs), list(self._reorders)
        self._notes = []
        try:
            made = self._run(command, options)
        except (CommandError, LayoutError) as error:
            self.programs, self._reorders = before, reorders  # nothing is half done
            located = _located(error, command)
            if not optional:
                raise located from error
            self.outcomes.append(Outcome(command, "skipped", str(error)))
            return ()
        self.outcomes.append(Outcome(command, "applied", "\n".join(self._notes)))
        changed = {phase: after for phase, after in self.programs.items() if after != before[phase]}
        self.trace += [Traced(phase, command, after) for phase, after in changed.items()]
        return made

    def finished(self) -> dict[str, Program]:
        """The programs with the copies of buffers that other layers have laid out otherwise."""
        result = dict(self.programs)
        for phase, reorder in self._reorders:
            result[phase] = with_copies(result[phase], reorder, self.target.simd_width)
        return result

    def _run(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        if command.name in LAYOUT_COMMANDS:
            return self._layout(command, options)
        arguments = list(command.arguments)
        phase = options.pop("phase") if "phase" in options else arguments.pop(0) if arguments else None
        phase = self._phase(phase)
        if phase not in self.programs:
            return ()  # nothing to compute in this phase: no parameters, or a first layer
        before = self.programs[phase]
        after = _call(self._memo, command, before, arguments, options)
        self.programs[phase] = replace(after, commands=(*after.commands, command.text))
        if phase == "forward" and "inference" in self.programs:
            try:
                self.programs["inference"] = _call(self._memo, command, self.programs["inference"], arguments, options)
            except (CommandError, LayoutError) as error:
                self.outcomes.append(Outcome(command, "skipped", f"for inference: {error}"))
        known = set(loop_names(before))
        return tuple(name for name in loop_names(after) if name not in known)

    def _layout(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        given = dict(zip(("buffer", "dim", "factor"), command.arguments, strict=False)) | options
        buffer = str(given.get("buffer"))
        allowed = options.pop("reorder", True)
        touched = False
        copied = {(phase, reorder.buffer) for phase, reorder in self._reorders}
        for phase, program in list(self.programs.items()):
            if buffer in program.buffers:
                storage = program.buffers[buffer]
                foreign = not storage.name.startswith(self._owned) and (phase, buffer) not in copied
                before = program
                if foreign and command.name == "tile":  # the owner's blocks are no obstacle to others
                    before = unblocked(program, buffer, given.get("dim"), given.get("factor"))
                after = _call(self._memo, command, before, list(command.arguments), options)
                layout = after.buffers[buffer].layout
                if foreign and layout != storage.layout:
                    if not allowed:
                        raise _not_its_own(command.name, buffer, storage)
                    self._reorders.append((phase, reorder_step(program, buffer)))
                    self._notes.append(self._reorders[-1][1].told(after))
                self._share_layout(storage.name, layout)
                laid_out = after.with_buffers(**self.programs[phase].buffers)
                self.programs[phase] = replace(laid_out, commands=(*after.commands, command.text))
                touched = True
        if not touched and not self._not_computed(buffer):
            raise self._no_buffer(buffer)
        return ()

    def _not_computed(self, buffer: str) -> bool:
        """Whether the buffer is a gradient that this net does not compute: there is nothing to lay out."""
        of = "value" if buffer == "grad" else buffer.removeprefix("grad_")
        return of != buffer and any(of in program.buffers for program in self.programs.values())

    def _share_layout(self, storage: str, layout: Layout) -> None:
        for phase, program in self.programs.items():
            same = {key: buffer for key, buffer in program.buffers.items() if buffer.name == storage}
            for key, buffer in same.items():
                if buffer.layout != layout and buffer.shape != self._shapes.get(storage, buffer.shape):
                    raise LayoutError(f"{key} is seen flattened in the {phase} phase: it is laid out already",
                                      way_out="give commands on layouts before flatten")  # fmt: skip
            changed = {key: b.with_layout(layout) for key, b in same.items()}
            self.programs[phase] = program.with_buffers(**changed)


def _call(
    memo: Memo, command: Recorded, program: Program, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Program:
    try:
        return memo.program(COMMANDS[command.name], program, *arguments, **options)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        wrong = str(error).split("() ", 1)[-1]
        raise CommandError(
            f"{wrong}", way_out=f"see help(swirl.transforms.COMMANDS[{command.name!r}])"
        ) from error


def _not_its_own(command: str, buffer: str, storage: Buffer) -> LayoutError:
    owner, name = storage.name.split(".", 1)
    return LayoutError(
        f"{buffer} is {storage.name}, whose layout {owner} chooses",
        way_out=f"{command} {name!r} in {owner}'s recipe, or leave reorder=False out: then it is copied",
    )


def unknown_command(name: str, place: str | None) -> CommandError:
    """The error for a command that does not exist, with the nearest one that does."""
    return CommandError(
        f"no command named {name!r}",
        place=place,
        way_out=f"{nearest(name, COMMANDS)}the commands are {', '.join(sorted(COMMANDS))}",
    )


def _located(error: LatteError, command: Recorded) -> LatteError:
    message = f"{command.text}: {error.message}"
    if isinstance(error, Refused):
        return Refused(
            message, place=command.place, nest=error.nest, witness=error.witness, way_out=error.way_out
        )
    return type(error)(message, place=command.place, way_out=error.way_out)


def _caller() -> str | None:
    """``file:line`` of the nearest frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    here = str(Path(__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    return None if frame is None else f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _shown(filename: str) -> str:
    """The path as people write it: relative to the current folder where it lies below."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename


# --- files ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recipe:
    """The functions of a recipe file, by phase; or commands recorded on the ensemble itself.

    Args:
        name: file name, or ``"commands of bn1"``.
        functions: phase → ``function(s, target)``.
    """

    name: str
    functions: Mapping[str, Callable[[Schedule, Target], None]]

    def apply(self, schedule: Schedule, phases: Sequence[str] = PHASES) -> None:
        """Run the functions of ``phases`` in order.

        Raises:
            RecipeError: a function raised an error of its own; the message names file and line.
            CommandError, Refused, LayoutError: a command failed.
        """
        for phase in phases:
            function = self.functions.get(phase)
            if function is None:
                continue
            try:
                function(schedule, schedule.target)
            except LatteError:
                raise
            except Exception as error:
                raise RecipeError(
                    f"{phase}() raised {type(error).__name__}: {error}",
                    place=_raised_at(error, self.name),
                    way_out="mend the recipe; the net was not compiled",
                ) from error


def read_recipe(path: str | Path) -> Recipe:
    """A recipe from a file of functions named after phases.

    Raises:
        RecipeError: the file cannot be read, is no Python, raises, or has no function of a phase.
    """
    path = Path(path)
    shown = _shown(str(path))
    try:
        code = compile(path.read_text(encoding="utf-8"), shown, "exec")
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", place=shown) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise RecipeError(f"is no Python: {error}", place=f"{shown}:{line}" if line else shown) from error
    scope: dict[str, Any] = {"__name__": f"recipe_{path.stem}", "__file__": str(path)}
    try:
        exec(code, scope)
    except Exception as error:
        raise RecipeError(
            f"raised {type(error).__name__}: {error}", place=_raised_at(error, shown)
        ) from error
    functions = {phase: scope[phase] for phase in PHASES if callable(scope.get(phase))}
    if not functions:
        raise RecipeError(
            "defines no phase", place=shown, way_out="def forward(s, target): …, or backward, or update"
        )
    return Recipe(shown, functions)


def _raised_at(error: BaseException, filename: str) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == filename]
    return f"{filename}:{frames[-1].lineno}" if frames else filename


def recorded_recipe(
    name: str, commands: Mapping[str, Sequence[Recorded]], otherwise: Recipe | None
) -> Recipe:
    """The commands that a layer recorded, phase by phase, in place of those phases of ``otherwise``.

    A command on a layout changes the loops of every phase, so then nothing of ``otherwise`` is left.
    """

    def replay(recorded: Sequence[Recorded]) -> Callable[[Schedule, Target], None]:
        def function(schedule: Schedule, target: Target) -> None:
            for command in recorded:
                schedule.apply(command)

        return function

    lays_out = any(command.name in LAYOUT_COMMANDS for recorded in commands.values() for command in recorded)
    functions = dict(otherwise.functions) if otherwise and not lays_out else {}
    functions |= {phase: replay(recorded) for phase, recorded in commands.items()}
    return Recipe(name, functions)
