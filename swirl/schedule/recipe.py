"""Recipes: small files of commands, applied to the programs of one ensemble; and the record of each outcome."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from swirl.build.cache import cache_key
from swirl.errors import ChoiceError, CommandError, Declined, LatteError, LayoutError, RecipeError, Refused
from swirl.ir.anonymous import anonymous
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE, PHASE_ALIASES, PHASES
from swirl.ir.spelling import as_in_sources
from swirl.ir.text import identity
from swirl.schedule.choices import Knob, knob
from swirl.schedule.command_log import (
    EntryUse,
    Outcome,
    Recorded,
    Traced,
    caller,
    in_phase,
    located,
    names_command,
    run_command,
    unknown_command,
)
from swirl.schedule.command_order import accepted_before
from swirl.schedule.imports import raised_at
from swirl.schedule.layer_recipes import Building, asked_by
from swirl.schedule.memo import Memo
from swirl.schedule.plan_layouts import lay_out
from swirl.schedule.plan_state import LayoutCommand, PlanState, Region, appended, lone_region, resolve, stored
from swirl.schedule.queries import Questions, chosen_phase, find_buffer, touched_elsewhere
from swirl.target.targets import Target
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS
from swirl.transforms.rewrites.sites import loop_names
from swirl.transforms.rewrites.storage.contraction import stored_between

T = TypeVar("T")

if TYPE_CHECKING:
    from swirl.schedule.command_methods import CommandMethods
    from swirl.schedule.entries import Entry

    class _Answers(Questions, CommandMethods):
        """The type of what ``__getattr__`` returns, for editors and type checkers."""
else:
    _Answers = object

DEFAULT_SCHEDULE = "default schedule"
"""What the recipe is called that :meth:`Schedule.default` asks for."""
FOR_INFERENCE = "for inference: "
"""How the reason begins why inference could not follow a command for forward."""


class Schedule(_Answers):
    """The ``s`` of a recipe's functions: its methods are the commands, and the questions of
    :class:`swirl.schedule.queries.Questions`.

    Args:
        state: of the plan; the attribute ``state`` is that after the commands.
        region: what is scheduled: ``inference`` follows the commands for ``forward`` as far as they apply, unless the
            region says otherwise.
        target: what code is made for.
        memo: where the commands' results are kept.
        recipes: finds the recipe of a kind of layer, for :meth:`recipe`.

    Commands take the phase first (``s.parallelize("forward", "n")``); those on layouts take none
    (``s.tile("value", dim=0, factor=16)``) and act on every phase that touches the buffer.
    ``optional=True`` records a command that is refused as skipped instead of failing.
    """

    def __init__(
        self,
        state: PlanState,
        region: str,
        target: Target,
        memo: Memo | None = None,
        recipes: Callable[[str], Recipe | None] = lambda kind: None,
    ):
        self.target = target
        self.outcomes: list[Outcome] = []
        self.trace: list[Traced] = []
        self.asked: list[tuple[Recorded, str]] = []
        """The commands of the outcomes, and why they were given."""
        self.composed: list[Recipe] = []
        """The recipes of layers that the recipe of a chain has built on."""
        self._region, self._memo, self._recipes = region, memo or Memo(), recipes
        self.built_on: list[str] = []
        """The kinds of layers whose recipes these are."""
        self.unfollowed: str | None = None
        """The first command for forward that inference could not follow, and why."""
        self.applying = ""
        """The phase whose function runs."""
        self.knobs: dict[str, Knob] = {}
        """The choices that recipes have asked for."""
        self.used_entries: list[EntryUse] = []
        """The entries of tuned recipes that were met."""
        self._choices: Mapping[str, Any] = {}
        self._notes: list[str] = []
        self._building: Building = Building()
        self._set_state(state)
        self._begun = dict(self.programs)

    @classmethod
    def alone(
        cls,
        programs: Mapping[str, Program],
        target: Target,
        lays_out: str | Sequence[str] = "",
        memo: Memo | None = None,
    ) -> Schedule:
        """A schedule of programs that belong to no net.

        Args:
            programs: phase → program.
            target: what code is made for.
            lays_out: prefixes of the storage names whose layout these programs choose (``"conv1."``).
            memo: where the commands' results are kept.
        """
        return cls(*lone_region(programs, lays_out), target, memo)

    if not TYPE_CHECKING:  # for whom they are CommandMethods

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(Questions, name):
                question = getattr(Questions(self.programs, self._own, self.state, self._building.instead), name)
                return lambda *asked, **options: question(*as_in_sources(asked), **as_in_sources(options))
            if name not in COMMANDS:
                raise unknown_command(name, caller())

            def run(*arguments: Any, **options: Any) -> tuple[str, ...]:
                options = as_in_sources(options)
                of = options.pop("of", "") if name in LAYOUT_COMMANDS else ""
                given = as_in_sources(arguments), tuple(options.items())
                return self.apply(Recorded(name, *given, caller(), "s.", of))

            return run

    def recipe(self, kind: str, phase: str, *, on: str | None = None) -> None:
        """Apply the commands of the recipe for a kind of layer in a phase: a chain's recipe builds on that of a layer
        in it.

        The loops are the chain's. A layout reaches the chain's buffer and the layer's own one of that name, in every
        phase: if a convolution lays out its ``grad``, the gradients of the convolution and of the ReLU after it get the
        same layout.

        Args:
            kind: ``"conv"``.
            phase: whose commands.
            on: the phase that they are applied to, if it is another one.

        Raises:
            CommandError: there is no recipe for this kind, or it doesn't schedule this phase.
        """
        asked = chosen_phase(self._own, phase, {})
        if not isinstance(kind, str):
            raise CommandError(f"a kind of layer is given by its name, not {kind!r}", location=caller())
        found = self._recipes(kind)
        self.built_on.append(kind)
        function = found.functions.get(asked) if found is not None else None
        if function is None:
            what = f"no recipe for {kind!r} in this chain" if found is None else f"{found.name} has no function {phase}"
            way_out = f"from latte.recipes.{kind} import {phase}" if found is None else "write the commands here"
            raise CommandError(what, location=caller(), way_out=way_out)
        assert found is not None
        self.composed.append(found)
        asked_at = f"asked by {caller()}: s.recipe({kind!r}, {phase!r})"
        with self._building.on(phase, on, kind), self.with_choices(found.choices), asked_by(asked_at, found):
            function(self, self.target)

    def instead(self, recipe: Recipe, phase: str, on: str) -> None:
        """Apply the function of a recipe for a phase to the nests of another one; errors as of :meth:`Recipe.apply`."""
        with self._building.on(phase, on):
            recipe.apply(self, [phase])

    def choose(self, name: str, values: Sequence[T], default: T) -> T:
        """A choice that the recipe leaves to whoever uses it, by ``net.use_recipe(…, choices={name: value})`` or on the
        command line by ``--set name=value``; ``explain`` lists the choices. The outcome of the recipe depends on it.

        Args:
            name: an identifier; each phase that asks for it gets the same.
            values: that it may have: numbers, words, switches, or tuples of these.
            default: one of them, which it is where nobody has set it.

        Returns:
            one of the values.

        Raises:
            RecipeError: it is set to something else, or these are no values.
        """
        found = knob(name, values, default, self._choices, self.knobs.get(name))
        self.knobs[name] = found
        value: T = found.value
        return value

    @contextmanager
    def with_choices(self, choices: Mapping[str, Any]) -> Iterator[None]:
        """Inside of the context a recipe's function runs that has been given these choices."""
        outer, self._choices = self._choices, choices
        try:
            yield
        finally:
            self._choices = outer

    def default(self, phase: str) -> None:
        """Apply the default schedule to a phase, after the commands that it has had.

        Args:
            phase: that is to be scheduled.

        Raises:
            CommandError: there is no such phase, or no default schedule: the programs belong to no net.
        """
        if not self.has_default:
            raise CommandError(
                "there is no default schedule here", location=caller(), way_out="it is made for the layers of a net"
            )
        self.recipe(DEFAULT_SCHEDULE, self._building.instead.get(phase, phase))

    def copy(self) -> Schedule:
        """Another schedule after the same commands: those that are tried on it change nothing here."""
        other = copy(self)
        other._building = copy(self._building)
        other.outcomes, other.trace, other.asked = list(self.outcomes), list(self.trace), list(self.asked)
        other.used_entries = list(self.used_entries)
        return other

    def begun_again(self, region: Region, building: Building) -> Schedule:
        """Another schedule of a region in its place, with the layouts so far and no commands.

        Args:
            region: of the same name.
            building: which phases stand for others.
        """
        other = copy(self)
        other.outcomes, other.trace, other.asked, other.unfollowed, other.used_entries = [], [], [], None, []
        other._building = building
        other._set_state(self.state.with_region(region))
        return other

    def accept_phase(self, phase: str, other: Schedule) -> None:
        """Take the nests of one phase, and the commands that have led to them, from a schedule that has
        :meth:`begun_again`; what was done for that phase here does not count."""
        nests = other.state.regions[self._region].phases[phase]
        kept = [outcome for outcome in self.outcomes if not outcome.reason.startswith(FOR_INFERENCE)]
        new = [outcome for outcome in other.outcomes if outcome.command.name not in LAYOUT_COMMANDS]
        self.outcomes, self.asked = [*kept, *new], [*self.asked, *other.asked]
        self.trace = [traced for traced in self.trace if traced.phase != phase] + other.trace
        state = replace(self.state, layouts={**self.state.layouts, **other.state.layouts})
        self._set_state(state.with_nests(self._region, phase, nests))

    @property
    def has_default(self) -> bool:
        """Whether there is a default schedule: the programs belong to a net."""
        return self._recipes(DEFAULT_SCHEDULE) is not None

    def actual_phase(self, phase: str) -> str:
        """The phase whose nests commands for ``phase`` change: ``inference`` where that has the commands of forward."""
        return self._building.instead.get(phase, phase)

    def accept(self, other: Schedule) -> None:
        """Go on from where a :meth:`copy` of this has got to."""
        self.outcomes, self.trace, self.asked = list(other.outcomes), list(other.trace), list(other.asked)
        self.used_entries = list(other.used_entries)
        self.unfollowed = other.unfollowed
        self._set_state(other.state)

    def decline(self, reason: str) -> NoReturn:
        """Leave the phase whose function runs, as if this recipe did not have it: that of a chain to shorter chains or
        to the layers' own recipes, that of a layer to the default schedule. Functions that it calls may do so, too.

        Args:
            reason: that ``explain`` tells.

        Raises:
            Declined: always; what the function has done so far does not count.
        """
        raise Declined(reason, phase=self.applying, location=caller())

    def leave_apart(self, phase: str, reason: str) -> NoReturn:
        """The older spelling of :meth:`decline`."""
        warnings.warn("s.leave_apart(phase, reason) is now s.decline(reason)", DeprecationWarning, stacklevel=2)
        raise Declined(reason, phase=self._phase(phase), location=caller())

    def chosen(self, phase: str, choose: Callable[[], None]) -> None:
        """Let a function choose commands for a phase; those that it has chosen for an equal layer are applied as they
        are, which is much faster.

        Args:
            phase: that it schedules.
            choose: applies commands here; looks at nothing but the programs, their layouts and the target.
        """
        key, before = self._choice_key(phase), len(self.asked)
        known = self._memo.chosen.get(key)
        if known is None:
            choose()
            self._memo.chosen[key] = tuple(self.asked[before:])
        else:
            for command, why in known:
                self.apply(command, why)

    def _choice_key(self, phase: str) -> str:
        """All that commands for a phase may depend on, without the names of layers."""
        numbers: dict[str, int] = {}
        elsewhere = {kind: sorted(known) for kind, known in self._own.names.items()}
        parts = [phase, repr(self.target), str(self._own.follows), repr(elsewhere)]
        for name, program in self.programs.items():
            names = [buffer.name for buffer in program.buffers.values()]
            places = [
                (numbers.setdefault(each, len(numbers)), self._own.chooses(each), self._own.owns(each))
                for each in names
            ]
            parts += [name, repr(places), identity(anonymous(program).program)]
        return cache_key(*parts)

    def apply(self, command: Recorded, why: str = "") -> tuple[str, ...]:
        """Apply one command.

        Args:
            command: with its phase and options.
            why: the reason that the outcome tells.

        Returns:
            the names of the loops that it made, to be used in later commands.

        Raises:
            CommandError, Refused: with the command and its location, unless it was given ``optional=True``.
        """
        command = self._redirected(command)
        options = dict(command.options)
        optional = options.pop("optional", False)
        state, before = self.state, self.programs
        self._notes = []
        try:
            made = self._run(command, options)
        except (CommandError, LayoutError) as error:
            self._set_state(state)  # leave nothing half done
            at_location = located(error, command)
            if not optional:
                raise self._with_order(at_location, command) from error
            reason = str(in_phase(error, command, command.phase))
            self.outcomes.append(Outcome(command, "skipped", reason, function=self.applying))
            self.asked.append((command, why))
            return ()
        changed = {phase: after for phase, after in self.programs.items() if after != before[phase]}
        assumed = COMMANDS[command.name].assumes
        used = assumed is not None and (assumed.option is None or options.get(assumed.option))
        if assumed is not None and used and any(after.text != before[phase].text for phase, after in changed.items()):
            self._notes.append(f"assumes that {assumed.text}")
        reason = "\n".join(filter(None, (why, *self._notes)))
        self.outcomes.append(Outcome(command, "applied", reason, function=self.applying))
        self.asked.append((command, why))
        self.trace += [Traced(phase, command, after, self.applying) for phase, after in changed.items()]
        return made

    def _with_order(self, error: LatteError, command: Recorded) -> LatteError:
        """The error with another place for its command, where it has no other way out."""
        phase = None if command.name in LAYOUT_COMMANDS else command.phase
        phase = PHASE_ALIASES.get(phase or "", phase)
        if command.location == DEFAULT_SCHEDULE or phase not in self._begun:
            return error
        trace, begun, known = list(self.trace), self._begun, error.way_out if not isinstance(error, Refused) else None

        def way_out() -> str | None:
            found = known if known is not None else error.way_out
            if found is not None and names_command(found):
                return found
            before = accepted_before(command, phase, trace, begun, self._memo)
            return found if before is None else f"give it before {before.called_on}{before.text}, {before.location}"

        if isinstance(error, Refused):
            return error.offering(way_out)
        error.way_out = way_out()
        return error

    @property
    def region(self) -> str:
        """The name of what is scheduled, in the state."""
        return self._region

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that are scheduled together, sources first."""
        return self._own.layers

    @property
    def _own(self) -> Region:
        return self.state.regions[self._region]

    def _phase(self, phase: Any) -> str:
        return chosen_phase(self._own, phase, self._building.instead)

    def _set_state(self, state: PlanState) -> None:
        self.state = state
        self.programs = {phase: resolve(state, self._region, phase) for phase in self._own.phases}

    def _store(self, phase: str, program: Program) -> None:
        self._set_state(stored(self.state, self._region, phase, program))

    def _redirected(self, command: Recorded) -> Recorded:
        """The command with the phase that it is applied to, where :meth:`recipe` names another one; of one on a layout,
        with the kind of layer whose recipe gives it."""
        if command.name in LAYOUT_COMMANDS:
            kind = self._building.kind if self._building.kind in self._own.names else ""
            return command if command.of or not kind else replace(command, of=kind)
        if not self._building.instead:
            return command
        arguments = tuple(
            self._phase(argument) if index == 0 else argument for index, argument in enumerate(command.arguments)
        )
        options = tuple((key, self._phase(value) if key == "phase" else value) for key, value in command.options)
        return replace(command, arguments=arguments, options=options)

    def _run(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        if command.name in LAYOUT_COMMANDS:
            return self._lay_out(command, options)
        arguments = list(command.arguments)
        phase = options.pop("phase") if "phase" in options else arguments.pop(0) if arguments else None
        phase = self._phase(phase)
        if command.name == "fuse_layers" and arguments:
            for other in arguments:
                self._append(phase, self._phase(other))
            arguments = []
            options.setdefault("required", False)  # they are one program in any case
        if phase not in self.programs:
            return ()  # nothing to compute in this phase: no parameters, or a first layer
        before = self.programs[phase]
        try:
            after = run_command(self._memo, command.name, before, arguments, options)
        except Refused as refusal:
            if command.name not in ("contract", "inline") or not arguments or refusal.witness:
                raise
            reader = touched_elsewhere(self.programs, phase, str(arguments[0]))
            raise refusal.witnessed(reader) from refusal
        self._notes += after.remarks
        inference = self.programs.get(INFERENCE)
        self._store(phase, replace(after, commands=(*after.commands, command.text), remarks=()))
        if command.name == "fuse_layers":
            self._notes += stored_between(after, options.get("keep", ()))
        if phase == "forward" and inference is not None and self._own.follows:
            self._follow(command, arguments, options, before, inference)
        known = set(loop_names(before))
        return tuple(name for name in loop_names(after) if name not in known)

    def _follow(
        self,
        command: Recorded,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        before: Program,
        inference: Program,
    ) -> None:
        """Do in inference what a command has done in forward, which was ``before``."""
        if before.alike(inference):  # computing it again would give the same
            self._store(INFERENCE, self.programs["forward"].renamed(inference.name))
            return
        try:
            followed = run_command(self._memo, command.name, inference, arguments, options)
        except (CommandError, LayoutError) as error:
            reason = f"{FOR_INFERENCE}{in_phase(error, command, INFERENCE)}"
            self.outcomes.append(Outcome(command, "skipped", reason, function=self.applying))
            self.unfollowed = self.unfollowed or f"{command.text}: {error.message}"
        else:
            self._store(INFERENCE, replace(followed, commands=(*followed.commands, command.text), remarks=()))

    def _append(self, phase: str, other: str) -> None:
        """The nests of ``other`` (update) run at the end of those of ``phase`` (backward), as a part of it."""
        if (phase, other) != ("backward", "update"):
            raise CommandError(
                f"fuse_layers joins backward with update, not {phase} with {other}",
                way_out="fuse_layers('backward', 'update')",
            )
        self._set_state(appended(self.state, self._region, phase, other))

    def _lay_out(self, command: Recorded, options: dict[str, Any]) -> tuple[str, ...]:
        buffer = str(command.arguments[0] if command.arguments else options.get("buffer"))
        copies = options.pop("reorder", True)
        if not isinstance(copies, bool):
            raise CommandError(f"reorder must be True or False, not {copies!r}")
        COMMANDS[command.name].bound(command.arguments, options)
        kinds = [kind for kind in self._own.names if kind]
        if command.of and command.of not in kinds:
            there = f"there are {', '.join(kinds)}" if kinds else "only a chain has layers of several kinds"
            raise CommandError(f"no layer of the kind {command.of!r} is scheduled here", way_out=there)
        phase = self._building.phase or (self.applying if command.of else "")
        asked = LayoutCommand(command, options, buffer, copies, command.of or self._building.kind, phase)
        done = lay_out(self.state, self._region, asked, self._memo)
        if not done.found and not self._not_computed(buffer):
            find_buffer(self.state, self._own, buffer)  # says that there is none
        self._set_state(done.state)
        self._notes += done.notes
        return ()

    def _not_computed(self, buffer: str) -> bool:
        """Whether the buffer is a gradient that this net does not compute: there is nothing to lay out."""
        of = "value" if buffer == "grad" else buffer.removeprefix("grad_")
        return of != buffer and any(of in program.buffers for program in self.programs.values())


# --- files ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recipe:
    """The functions of a recipe file, by phase; or commands recorded on the ensemble itself.

    Args:
        name: file name, or ``"commands of bn1"``.
        functions: phase → ``function(s, target)``.
        chain: of a recipe for neighbouring layers, their kinds.
        path: of the file.
        identity: changes with whatever the functions' outcomes may depend on besides their arguments; None where that
            is not known.
        shares: whether the functions never look at the names of layers.
        choices: that are set, by name; see :meth:`Schedule.choose`.
        entries: of a tuned recipe; :func:`swirl.schedule.by_entries.over` makes functions of them.
        unquestioned: a folder: nothing is said about what commands in its files do, see :mod:`swirl.schedule.cautions`.
        on_mistake: told the phase of a function and its first mistake; the commands before it count, and the functions
            of other phases run. None raises it.
    """

    name: str
    functions: Mapping[str, Callable[[Schedule, Target], None]]
    chain: tuple[str, ...] = ()
    path: Path | None = None
    identity: str | None = None
    shares: bool = False
    choices: Mapping[str, Any] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    unquestioned: Path | None = None
    on_mistake: Callable[[str, LatteError], None] | None = None

    def going_on(self, on_mistake: Callable[[str, LatteError], None]) -> Recipe:
        """The recipe with functions that do not stop each other; its outcome is not kept."""
        return replace(self, on_mistake=on_mistake, identity=None)

    def choosing(self, choices: Mapping[str, Any]) -> Recipe:
        """The recipe with choices set, on which its outcome depends."""
        if not choices:
            return self
        identity = None if self.identity is None else cache_key("choices", self.identity, repr(sorted(choices.items())))
        return replace(self, choices=choices, identity=identity)

    @property
    def is_ones_own(self) -> bool:
        """Whether it is a file of somebody who uses the compiler."""
        return self.path is not None and (self.unquestioned is None or not self.path.is_relative_to(self.unquestioned))

    def is_questioned(self, command: Recorded) -> bool:
        """Whether something may be said about what a command does: it is somebody's who uses the compiler."""
        if command.location in (None, DEFAULT_SCHEDULE):
            return False
        file = Path(command.location.rpartition(":")[0]).resolve()
        return self.unquestioned is None or not file.is_relative_to(self.unquestioned)

    def apply(self, schedule: Schedule, phases: Sequence[str] = (*PHASES, INFERENCE)) -> None:
        """Run the functions of those ``phases`` that compute something, in order.

        Raises:
            RecipeError: a function raised another error; the message names file and line.
            CommandError, Refused, LayoutError: a command failed.
            Declined: a function has declined its phase.
        """
        for phase in phases:
            function = self.functions.get(phase)
            if function is None or phase not in schedule.programs:
                continue
            schedule.applying = schedule.actual_phase(phase)
            try:
                self._run(function, phase, schedule)
            except (ChoiceError, Declined):
                raise
            except LatteError as error:
                if self.on_mistake is None:
                    raise
                self.on_mistake(phase, error)

    def _run(self, function: Callable[[Schedule, Target], None], phase: str, schedule: Schedule) -> None:
        """Run the function of a phase; errors as of :meth:`apply`."""
        try:
            with schedule.with_choices(self.choices):
                function(schedule, schedule.target)
        except LatteError as error:
            if error.location is None:  # a question, not a command
                error.location = raised_at(error, self.name, self.path)
            raise
        except Exception as error:
            raise RecipeError(
                f"{phase}() raised {type(error).__name__}: {error}",
                location=raised_at(error, self.name, self.path),
                way_out="correct the recipe; the net was not compiled",
            ) from error
