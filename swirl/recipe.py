"""Recipes: small files of commands, applied to the programs of one ensemble; and the record of what became of
each."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from swirl.errors import CommandError, LatteError, LayoutError, LeftApart, RecipeError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program
from swirl.memo import Memo
from swirl.questions import INFERENCE, PHASES, Questions, touched_elsewhere
from swirl.recipe_imports import recipe_sources
from swirl.recorded import Outcome, Recorded, Traced, caller, located, shown, unknown_command
from swirl.target import Target
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from swirl.transforms.relayout import Reorder, reorder_step, unblocked, with_copies
from swirl.transforms.rewrites.contraction import OWN, stored_between
from swirl.transforms.rewrites.joined_programs import follow
from swirl.transforms.rewrites.sites import loop_names

if TYPE_CHECKING:
    from swirl.command_methods import CommandMethods
else:
    CommandMethods = object


@dataclass(frozen=True)
class Chained:
    """What a schedule knows of the layers whose programs have been joined.

    Args:
        private: phase → storage that no program but these needs.
        recipes: finds the recipe of a kind of layer, for :meth:`Schedule.recipe`.
        apart: the layers' programs that are not joined, by their names: layouts reach them.
        fields: a layer's kind → its own names for buffers → buffer; for ``""`` the names in the joined programs.
    """

    private: Mapping[str, frozenset[str]] = field(default_factory=dict)
    recipes: Callable[[str], Recipe | None] = lambda kind: None
    apart: Mapping[str, Program] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)


class Schedule(Questions, CommandMethods):
    """What a recipe's functions are given: its methods are the commands.

    Args:
        programs: phase → program; ``inference`` follows the commands for ``forward`` as far as they apply.
        target: what code is made for.
        owned: prefixes of the storage names whose layout is for this ensemble to choose (``"conv1."``).
        memo: where the commands' results are kept.
        chained: of the programs of a chain.
        elsewhere: of a layer, other phases of which a chain has joined: the buffers of those.
        reorders: phase and what is copied there: what a chain's recipe has laid out otherwise than its owner.
        separate: whether ``inference`` has commands of its own, and doesn't follow those for ``forward``.

    Commands take the phase first (``s.parallelize("forward", "n")``); those on layouts take none
    (``s.tile("value", dim=0, factor=16)``) and act on every phase that touches the buffer.
    ``optional=True`` records a command that is refused as skipped instead of failing.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        target: Target,
        owned: str | Sequence[str] = "",
        memo: Memo | None = None,
        *,
        chained: Chained | None = None,
        elsewhere: Mapping[str, Buffer] | None = None,
        reorders: Sequence[tuple[str, Reorder]] = (),
        separate: bool = False,
    ):
        self.programs = dict(programs)
        self.target = target
        self.outcomes: list[Outcome] = []
        self.trace: list[Traced] = []
        self._notes: list[str] = []
        self.reorders: list[tuple[str, Reorder]] = list(reorders)
        """Phase, or name of a program that stays apart, and what is copied there."""
        self._owned = (owned,) if isinstance(owned, str) else tuple(owned)
        self._shapes = {b.name: b.shape for program in programs.values() for b in program.buffers.values()}
        self._memo = memo or Memo()
        self._chained = chained or Chained()
        self.apart = dict(self._chained.apart)
        self.untouched: dict[str, Buffer] = {}
        """Storage that has been laid out, but that no program touches any more."""
        self._elsewhere = dict(elsewhere or {})
        self._separate = separate
        self._kind = self._of = ""
        """The kind of layer and the phase whose recipe is being applied."""
        self._roles: dict[str, str] = {}
        self._instead: dict[str, str] = {}
        self.composed: list[Recipe] = []
        """The recipes of layers that the recipe of a chain has built on."""
        self._mark_private()

    if not TYPE_CHECKING:  # for whom they are CommandMethods

        def __getattr__(self, name: str) -> Callable[..., tuple[str, ...]]:
            if name.startswith("_"):
                raise AttributeError(name)
            if name not in COMMANDS:
                raise unknown_command(name, caller())

            def run(*arguments: Any, **options: Any) -> tuple[str, ...]:
                return self.apply(Recorded(name, arguments, tuple(options.items()), caller()))

            return run

    def recipe(self, kind: str, phase: str, *, on: str | None = None) -> None:
        """Apply what the recipe for a kind of layer does in a phase: a chain's recipe builds on that of a layer in it.

        The loops are the chain's. A layout reaches the chain's buffer and the layer's own one of that name, in every
        phase: where a convolution lays out its ``grad``, the convolution's and the ReLU's behind it lie alike.

        Args:
            kind: ``"conv"``.
            phase: whose commands.
            on: the phase that they are applied to, where it is another one.

        Raises:
            CommandError: there is no recipe for this kind, or it doesn't schedule this phase.
        """
        asked = self._phase(phase)
        if not isinstance(kind, str):
            raise CommandError(f"a kind of layer is given by its name, not {kind!r}", place=caller())
        found = self._chained.recipes(kind)
        function = found.functions.get(asked) if found is not None else None
        if function is None:
            what = f"no recipe for {kind!r} in this chain" if found is None else f"{found.name} has no function {phase}"
            way_out = f"from latte.recipes.{kind} import {phase}" if found is None else "write the commands here"
            raise CommandError(what, place=caller(), way_out=way_out)
        assert found is not None
        self.composed.append(found)
        outer = self._instead, self._kind, self._of
        self._instead, self._kind, self._of = {phase: on} if on is not None else {}, kind, phase
        try:
            function(self, self.target)
        finally:
            self._instead, self._kind, self._of = outer

    def leave_apart(self, phase: str, reason: str) -> NoReturn:
        """Leave a phase of a chain to shorter chains, or to the layers' own recipes, as if this recipe did not have it.

        Args:
            phase: of this recipe.
            reason: that ``explain`` tells.

        Raises:
            LeftApart: always; the chain's scheduling begins again without the phase.
        """
        raise LeftApart(reason, phase=self._phase(phase), place=caller())

    def apply(self, command: Recorded) -> tuple[str, ...]:
        """Apply one command.

        Returns:
            the names of the loops that it made, to be used in later commands.

        Raises:
            CommandError, Refused: with the command and its place, unless it was given ``optional=True``.
        """
        command = self._redirected(command)
        options = dict(command.options)
        optional = options.pop("optional", False)
        before, apart, reorders = dict(self.programs), dict(self.apart), list(self.reorders)
        self._notes = []
        try:
            made = self._run(command, options)
        except (CommandError, LayoutError) as error:
            self.programs, self.apart, self.reorders = before, apart, reorders  # nothing is half done
            at_place = located(error, command)
            if not optional:
                raise at_place from error
            self.outcomes.append(Outcome(command, "skipped", str(error)))
            return ()
        changed = {phase: after for phase, after in self.programs.items() if after != before[phase]}
        assumed = COMMANDS[command.name].assumes
        used = assumed is not None and (assumed.option is None or options.get(assumed.option))
        if assumed is not None and used and any(after.text != before[phase].text for phase, after in changed.items()):
            self._notes.append(f"assumes that {assumed.text}")
        self.outcomes.append(Outcome(command, "applied", "\n".join(self._notes)))
        self.trace += [Traced(phase, command, after) for phase, after in changed.items()]
        return made

    def finished(self) -> dict[str, Program]:
        """The programs with the copies of buffers that other layers have laid out otherwise."""
        result = dict(self.programs)
        for phase, reorder in self.reorders:
            if phase in result:
                result[phase] = with_copies(result[phase], reorder, self.target.simd_width)
        return result

    def _redirected(self, command: Recorded) -> Recorded:
        """The command with the phase that it is applied to, where :meth:`recipe` names another one."""
        if command.name in LAYOUT_COMMANDS or not self._instead:
            return command
        arguments = tuple(self._phase(argument) if index == 0 else argument for index, argument in
                          enumerate(command.arguments))  # fmt: skip
        options = tuple((key, self._phase(value) if key == "phase" else value) for key, value in command.options)
        return replace(command, arguments=arguments, options=options)

    def _run(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        if command.name in LAYOUT_COMMANDS:
            return self._layout(command, options)
        arguments = list(command.arguments)
        phase = options.pop("phase") if "phase" in options else arguments.pop(0) if arguments else None
        phase = self._phase(phase)
        if command.name == "fuse_layers" and arguments:
            self._append(phase, [self._phase(other) for other in arguments])
            if phase not in self.programs:
                return ()
            arguments = []
            options.setdefault("required", False)  # one program they are in any case
        if phase not in self.programs:
            return ()  # nothing to compute in this phase: no parameters, or a first layer
        before = self.programs[phase]
        try:
            after = _call(self._memo, command, before, arguments, options)
        except Refused as refusal:
            if command.name not in ("contract", "inline") or not arguments or refusal.witness:
                raise
            reader = touched_elsewhere(self.programs, phase, str(arguments[0]))
            raise Refused(refusal.message, nest=refusal.nest, witness=reader, way_out=refusal.way_out) from refusal
        self._notes += after.remarks
        self.programs[phase] = replace(after, commands=(*after.commands, command.text), remarks=())
        if command.name == "fuse_layers":
            self._notes += stored_between(after, options.get("keep", ()))
        if phase == "forward" and INFERENCE in self.programs and not self._separate:
            inference = self.programs[INFERENCE]
            try:
                if before.alike(inference):  # computing it again would lead to the same
                    self.programs[INFERENCE] = self.programs[phase].renamed(inference.name)
                else:
                    followed = _call(self._memo, command, inference, arguments, options)
                    commands = (*followed.commands, command.text)
                    self.programs[INFERENCE] = replace(followed, commands=commands, remarks=())
            except (CommandError, LayoutError) as error:
                self.outcomes.append(Outcome(command, "skipped", f"for inference: {error}"))
        known = set(loop_names(before))
        return tuple(name for name in loop_names(after) if name not in known)

    def _append(self, phase: str, others: Sequence[str]) -> None:
        """The programs of ``others`` (update) run at the end of that of ``phase`` (backward), as parts of it."""
        for other in others:
            if (phase, other) != ("backward", "update"):
                raise CommandError(f"fuse_layers joins backward with update, not {phase} with {other}",
                                   way_out="fuse_layers('backward', 'update')")  # fmt: skip
            if phase in self.programs and other in self.programs:
                self.programs[phase] = follow(self.programs[phase], self.programs.pop(other))
        self._mark_private()

    def _mark_private(self) -> None:
        """Storage that one program alone needs gets the role that says so."""
        training = [program for phase, program in self.programs.items() if phase != INFERENCE]
        touched = Counter(record.name for program in training for record in program.buffers.values())
        for phase, program in self.programs.items():
            private = self._chained.private.get(phase, ())
            own = {
                key: replace(record, role=OWN)
                for key, record in program.buffers.items()
                if record.name in private and (phase == INFERENCE or touched[record.name] == 1)
            }
            self._roles |= {b.name: program.buffers[key].role for key, b in own.items() if b.name not in self._roles}
            self.programs[phase] = program.with_buffers(**own) if own else program

    def _layout(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        buffer = str(command.arguments[0] if command.arguments else options.get("buffer"))
        allowed = options.pop("reorder", True)
        if not isinstance(allowed, bool):
            raise CommandError(f"reorder must be True or False, not {allowed!r}")
        COMMANDS[command.name].bound(command.arguments, options)
        touched = False
        places = [program.buffers for program in self.programs.values()]
        places += [self._chained.fields.get(kind, {}) for kind in ("", self._kind)]
        meant = {known[buffer].name: known[buffer] for known in places if buffer in known}
        names = set(meant)
        for programs in (self.programs, self.apart):
            for phase, program in list(programs.items()):
                if programs is self.apart and f"{phase.split('.')[0]}.{self._of}" in self.apart:
                    continue  # the layer's own recipe will say this itself
                for key in [key for key, record in program.buffers.items() if record.name in names]:
                    meant.pop(program.buffers[key].name, None)
                    self._lay_out(programs, phase, program.buffers[key], _renamed(command, key, options), allowed)
                    programs[phase] = replace(programs[phase], commands=(*programs[phase].commands, command.text))
                    touched = True
        for name, record in meant.items():
            if name.startswith(self._owned):
                gone = Program(name, (), {buffer: self.untouched.get(name, record)})
                same = _renamed(command, buffer, options)
                self.untouched[name] = _call(self._memo, same, gone, same.arguments, dict(same.options)).buffers[buffer]
        if not touched and not self._not_computed(buffer):
            self._buffer(buffer)  # says that there is none
        return ()

    def _lay_out(self, programs: dict[str, Program], phase: str, storage: Buffer, command: Recorded,
                 allowed: bool) -> None:  # fmt: skip
        """Apply a command on a layout to one program, where the buffer lies as ``storage`` so far."""
        given = dict(zip(("buffer", "dim", "factor"), command.arguments, strict=False)) | dict(command.options)
        buffer = str(given["buffer"])
        role = self._roles.get(storage.name, storage.role)  # it says whether the first dimension is the batch
        program = programs[phase].with_buffers(**{buffer: replace(storage, role=role)})
        copied = {(where, reorder.buffer) for where, reorder in self.reorders}
        foreign = not storage.name.startswith(self._owned) and (phase, buffer) not in copied
        before = program
        if foreign and command.name == "tile":  # the owner's blocks are no obstacle to others
            before = unblocked(program, buffer, given.get("dim"), given.get("factor"))
        after = _call(self._memo, command, before, command.arguments, dict(command.options))
        layout = after.buffers[buffer].layout
        if foreign and layout != storage.layout:
            if not allowed:
                raise _not_its_own(command.name, buffer, storage)
            self.reorders.append((phase, reorder_step(program, buffer)))
            self._notes.append(self.reorders[-1][1].told(after))
        self._share_layout(storage.name, layout)
        programs[phase] = after.with_buffers(**programs[phase].buffers)

    def _not_computed(self, buffer: str) -> bool:
        """Whether the buffer is a gradient that this net does not compute: there is nothing to lay out."""
        of = "value" if buffer == "grad" else buffer.removeprefix("grad_")
        return of != buffer and any(of in program.buffers for program in self.programs.values())

    def _share_layout(self, storage: str, layout: Layout) -> None:
        for programs in (self.programs, self.apart):
            for phase, program in programs.items():
                same = {key: buffer for key, buffer in program.buffers.items() if buffer.name == storage}
                for key, buffer in same.items():
                    if buffer.layout != layout and buffer.shape != self._shapes.get(storage, buffer.shape):
                        raise LayoutError(f"{key} is seen flattened in the {phase} phase: it is laid out already",
                                          way_out="give commands on layouts before flatten")  # fmt: skip
                changed = {key: b.with_layout(layout) for key, b in same.items()}
                programs[phase] = program.with_buffers(**changed)


def _renamed(command: Recorded, buffer: str, options: Mapping[str, Any]) -> Recorded:
    """A command on a layout, applied to a buffer that is called otherwise."""
    arguments = (buffer, *command.arguments[1:]) if command.arguments else ()
    named = {} if arguments else {"buffer": buffer}
    return replace(command, arguments=arguments, options=tuple({**options, **named}.items()))


def _call(
    memo: Memo, command: Recorded, program: Program, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Program:
    COMMANDS[command.name].bound(arguments, options)
    return memo.program(COMMANDS[command.name], program, *arguments, **options)


def _not_its_own(command: str, buffer: str, storage: Buffer) -> LayoutError:
    owner, name = storage.name.split(".", 1)
    return LayoutError(
        f"{buffer} is {storage.name}, whose layout {owner} chooses",
        way_out=f"{command} {name!r} in {owner}'s recipe, or leave reorder=False out: then it is copied",
    )


# --- files ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recipe:
    """The functions of a recipe file, by phase; or commands recorded on the ensemble itself.

    Args:
        name: file name, or ``"commands of bn1"``.
        functions: phase → ``function(s, target)``.
        chain: of a recipe for neighbouring layers, their kinds.
        path: of the file.
    """

    name: str
    functions: Mapping[str, Callable[[Schedule, Target], None]]
    chain: tuple[str, ...] = ()
    path: Path | None = None

    def apply(self, schedule: Schedule, phases: Sequence[str] = (*PHASES, INFERENCE)) -> None:
        """Run the functions of ``phases`` in order, as far as there is something to compute in them.

        Raises:
            RecipeError: a function raised an error of its own; the message names file and line.
            CommandError, Refused, LayoutError: a command failed.
        """
        for phase in phases:
            function = self.functions.get(phase)
            if function is None or phase not in schedule.programs:
                continue
            try:
                function(schedule, schedule.target)
            except LatteError as error:
                if error.place is None:  # a question, not a command
                    error.place = raised_at(error, self.name, self.path)
                raise
            except Exception as error:
                raise RecipeError(
                    f"{phase}() raised {type(error).__name__}: {error}",
                    place=raised_at(error, self.name, self.path),
                    way_out="mend the recipe; the net was not compiled",
                ) from error


def raised_at(error: BaseException, filename: str, path: Path | None) -> str:
    """``file:line`` of the innermost frame in a recipe, or in one that it imports."""
    sources = {str(source) for source in recipe_sources(path)} if path is not None else set()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == filename or f.filename in sources]
    place = f"{shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else filename
    if isinstance(error, SyntaxError) and error.filename in sources:
        place = f"{shown(error.filename)}:{error.lineno}"
    return place
