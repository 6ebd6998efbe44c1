"""What the rules are written in: commands that are applied if they are not refused, and decisions among candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from swirl.analysis.loop_facts import LoopFacts, facts
from swirl.errors import LatteError
from swirl.ir.nest import Nest, Program, constant, fresh, loop_of, variable_of
from swirl.ir.paths import loops
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Schedule
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.loops.borders import interior
from swirl.transforms.rewrites.sites import taken_names

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Step:
    """A command to be tried.

    Args:
        why: the reason that ``explain`` and the printed recipe give.
        name: of the command.
        arguments: without the phase.
        options: of the command.
    """

    why: str
    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [*map(repr, self.arguments), *(f"{key}={value!r}" for key, value in self.options)]
        return f"{self.name}({', '.join(given)})"


def step(why: str, name: str, *arguments: Any, **options: Any) -> Step:
    """A :class:`Step`."""
    return Step(why, name, arguments, tuple(options.items()))


def one_by_one(
    candidates: Callable[[], Iterable[Candidate]], key: Callable[[Candidate], Hashable]
) -> Iterator[Candidate]:
    """What is found, looked for again after each one because commands change it; none with a key that was there.
    Commands must leave keys as they are."""
    seen = set[Hashable]()
    while (found := next((one for one in candidates() if key(one) not in seen), None)) is not None:
        seen.add(key(found))
        yield found


@dataclass(frozen=True)
class Decision:
    """A place where a rule had several candidates, any of which may be the best.

    Args:
        name: the rule and the number of the nest, ``lanes.2``; of further ones in that nest ``lanes.2.1`` and so on.
        candidates: what each of them is, the default first.
        taken: the number of the one that was applied.
    """

    name: str
    candidates: tuple[str, ...]
    taken: int


@dataclass(frozen=True)
class Trials:
    """A phase that is being scheduled.

    Args:
        s: what is scheduled.
        target: what code is made for.
        phase: of ``s``.
        nest: the number of the nest that commands are for; all by default.
        work: statements that the nest ran before its rules began; not known of a phase.
        choices: the name of a decision → the number of the candidate that is tried first; None where nobody asks for
            others than the defaults, nor which there are: only the candidates up to the first that applies are found.
        decisions: those that were made, if ``choices`` are given.
        partly: names of loops for which a command was accepted in one place and refused in another.
        refused: commands that were, each with the nests: on a copy they need not be asked again.
    """

    s: Schedule
    target: Target
    phase: str
    nest: int | None = None
    work: int = 0
    choices: Mapping[str, int] | None = None
    decisions: list[Decision] = field(default_factory=list)
    partly: set[str] = field(default_factory=set)
    refused: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def program(self) -> Program:
        """The phase as it is now."""
        return self.s.programs[self.phase]

    @property
    def nests(self) -> list[Nest]:
        """The nests that commands are for."""
        return list(self.program.nests if self.nest is None else self.program.nests[self.nest : self.nest + 1])

    def scratch(self) -> Trials:
        """The same on a copy of the schedule: what is tried there changes nothing here."""
        return replace(self, s=self.s.copy(), decisions=[*self.decisions])

    def accept(self, trial: Trials) -> None:
        """Go on from where a :meth:`scratch` of this has got to."""
        self.s.accept(trial.s)
        self.decisions[:] = trial.decisions

    def first(
        self,
        rule: str,
        candidates: Iterable[Candidate],
        applies: Callable[[Candidate], bool] = lambda candidate: True,
        text: Callable[[Candidate], str] = str,
    ) -> Candidate | None:
        """The first candidate that applies; where choices are given, a :class:`Decision`.

        Args:
            rule: the first part of the decision's name.
            candidates: in order of preference. They are found one after the other, each after those before it have
                been refused, or all of them before the first is tried: one that is refused changes nothing.
            applies: applies a candidate, or refuses it. One that was chosen comes first, then the others in order.
            text: what a candidate is.
        """
        if self.choices is None:
            return next((candidate for candidate in candidates if applies(candidate)), None)
        known, before = list(candidates), len(self.decisions)
        name = self._name_of_decision(rule)
        chosen = self.choices.get(name, 0)
        for number in sorted(range(len(known)), key=lambda number: number != chosen):
            if applies(known[number]):
                if len(known) > 1:
                    self.decisions.insert(before, Decision(name, tuple(map(text, known)), number))
                return known[number]
            del self.decisions[before:]
        return None

    def _name_of_decision(self, rule: str) -> str:
        """The name of the next decision of a rule."""
        first = f"{rule}.{self.nest or 0}"
        further = sum(one.name == first or one.name.startswith(f"{first}.") for one in self.decisions)
        return f"{first}.{further}" if further else first

    def extent(self, var: str) -> int:
        """Iterations of a loop of the nest, the fewest of those with its name; 0 where one does not begin at 0 and end
        at a constant."""
        (nest,) = self.nests
        heads = [loop for _, node in loops(nest.body) if (loop := loop_of(node)).var == var]
        stops = [constant(loop.stop) if constant(loop.start) == 0 and loop.step == 1 else None for loop in heads]
        return min((stop or 0 for stop in stops), default=0)

    def loops(self) -> list[LoopFacts]:
        """The loops of the nest as they are now, outer before inner."""
        return facts(self.nests[0], self.program.buffers)

    @property
    def loop_names(self) -> list[str]:
        """The variables of the nest's loops, in order of appearance."""
        return [variable_of(node) for _, node in loops(self.nests[0].body)]

    def borders(self, var: str, occurrence: int = 0) -> list[int]:
        """Where to ``split`` a loop of the nest so that what its borders clip is separate; none where nothing is, or it
        has no :meth:`extent`."""
        extent = self.extent(var)
        if extent < 1:
            return []
        return [cut for cut in interior(self.program, var, nest=self.nest, occurrence=occurrence) if 0 < cut < extent]

    def give_own_names(self, wanted: Collection[str] | None = None) -> None:
        """Each of the nest's loops of these names gets a name of its own; of all names by default."""
        names = self.loop_names
        for name in dict.fromkeys(name for name in names if wanted is None or name in wanted):
            for number in range(names.count(name) - 1, 0, -1):
                new = fresh(f"{name}_{number}", taken_names(self.program))
                self.apply("scheduled by itself", "rename", name, new, occurrence=number)

    def apply(self, why: str, name: str, *arguments: Any, **options: Any) -> bool:
        """Apply a command on the nests.

        Returns:
            whether it was accepted, for every loop of the name that it has, and has changed something; if not, nothing
            has changed.
        """
        return self.together([step(why, name, *arguments, **options)])

    def together(self, steps: Iterable[Step]) -> bool:
        """Apply commands, all of them or none; as :meth:`apply`."""
        trial = self.scratch()
        if not all(trial._applied(one) for one in steps):
            return False
        self.accept(trial)
        return True

    def cut_off(self, why: str, variables: Sequence[str]) -> Trials | None:
        """The last statement of the nest gets loops of its own.

        Args:
            why: the reason.
            variables: of the loops around it, outermost first, that it is not to share.

        Returns:
            the same for the nest that the statement is in; None where it cannot have loops of its own, and some of the
            loops may have been cut.
        """
        own, before = self, len(self.program.nests)
        for var in reversed(variables):
            if any(variable_of(node) == var and len(node.body) > 1 for _, node in loops(own.nests[0].body)):
                if not own.apply(why, "distribute", var):
                    return None
                own = replace(own, nest=(self.nest or 0) + len(own.program.nests) - before)
        return own

    def note_refusal(self, name: str, *arguments: Any, **options: Any) -> None:
        """Note why a command is refused that nothing takes the place of; one that was left out for another reason is
        not."""
        if not self.scratch().apply("", name, *arguments, **options):
            self.s.apply(self._recorded(step("", name, *arguments, **options, optional=True)))

    def tile(self, why: str, buffer: str, dim: int, factor: int) -> bool:
        """Block a dimension of a buffer that this layer lays out; as :meth:`apply`."""
        return self.together([step(why, "tile", buffer, dim, factor, reorder=False)])

    def _recorded(self, one: Step) -> Recorded:
        if COMMANDS[one.name].lays_out:
            return Recorded(one.name, one.arguments, one.options, DEFAULT_SCHEDULE)
        only = {} if self.nest is None or len(self.program.nests) == 1 else {"nest": self.nest}
        return Recorded(one.name, (self.phase, *one.arguments), (*one.options, *only.items()), DEFAULT_SCHEDULE)

    def _applied(self, one: Step) -> bool:
        """Apply a command; False where it was refused, has left a loop of the name as it was, or changed nothing."""
        before, layouts, command = self.program, dict(self.s.state.layouts), self._recorded(one)
        asked = (command.text, *(nest.text for nest in before.nests))
        if asked in self.refused:
            return False
        self.refused.add(asked)
        try:
            self.s.apply(command, one.why)
        except LatteError:
            return False
        if LEFT_ALONE in self.s.outcomes[-1].reason:
            self.partly.update(name for name in one.arguments if isinstance(name, str))
            return False
        if self.program.nests == before.nests and self.s.state.layouts == layouts:
            return False
        self.refused.discard(asked)
        return True


LEFT_ALONE = " stays as it is: "
"""What a command notes of a loop of the name that it was refused for."""
