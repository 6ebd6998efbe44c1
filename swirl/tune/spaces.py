"""Spaces of schedules that a search draws from: each point is a sequence of commands, legal by the same checks as those
of any recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from math import inf, prod
from random import Random
from typing import Any, Protocol, runtime_checkable

from swirl.cost.time import Demand, Rates, program_demand
from swirl.errors import LatteError
from swirl.ir.buffers import Layout
from swirl.schedule.choices import Knob
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules.schedule import default_schedule
from swirl.schedule.rules.trials import Decision
from swirl.target.targets import Target
from swirl.tune.candidates import TRIES, Candidate, Subject, varied

DECIDED = "decided"
"""The origin of points that the rules of the default schedule make."""


@dataclass(frozen=True)
class Point:
    """A point of a space.

    Args:
        candidate: the schedule.
        knobs: what was chosen, by name, where the space has names for it.
        origin: what the point is: ``default``, ``varied``, ``chosen``, ``decided``, or a scheme.
    """

    candidate: Candidate
    knobs: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "varied"

    @property
    def key(self) -> str:
        """The same for two points exactly if their programs are."""
        return self.candidate.key


class Space(Protocol):
    """What a search draws from."""

    def size(self) -> float:
        """The number of its points, legal or not; infinite where nobody has counted them."""

    def sample(self, random: Random) -> Point | None:
        """A point; None where the one that was drawn is refused."""

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Points that differ little from one, in random order, without end unless the space has few."""


@runtime_checkable
class Ranked(Protocol):
    """A space that knows, before anything is measured, which of its points should be the fastest."""

    def ranked(self) -> Iterator[Point]:
        """Its points, those that should be the fastest first, made one by one."""


@runtime_checkable
class ListedSpace(Space, Protocol):
    """A space whose points are known by what was chosen, before their programs are made."""

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        """What may be chosen: knobs by name, none twice; in each the same order of names."""

    def at(self, configuration: Mapping[str, Any]) -> Point | None:
        """The point of one of them; None where it is refused."""


@runtime_checkable
class Listed(Protocol):
    """A source of draws that lists its configurations: a :class:`Pool` of a :class:`ListedSpace`, for instance."""

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        """See :class:`ListedSpace`."""

    def at(self, configuration: Mapping[str, Any]) -> Draw | None:
        """The draw of one of them; None where it is refused, or known already."""


@dataclass(frozen=True)
class Around:
    """The schedules around a known one: after one to three changes of its commands.

    Args:
        subject: that is scheduled.
        known: the commands.
    """

    subject: Subject
    known: tuple[Recorded, ...]

    def size(self) -> float:
        """Nobody has counted them."""
        return inf

    def sample(self, random: Random) -> Point | None:
        """The known schedule after changes."""
        return Point(self.subject.after(varied(self.known, self.subject, random)))

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """The point after changes."""
        while True:
            yield Point(self.subject.after(varied(point.candidate.commands, self.subject, random)))


@dataclass(frozen=True)
class Chosen:
    """The schedules that the function of a recipe makes, by its knobs (:meth:`swirl.schedule.recipe.Schedule.choose`).

    Args:
        subject: that is scheduled.
        recipe: with a function for its phase.
    """

    subject: Subject
    recipe: Recipe

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """The choices that the function asks for, by default; others may be asked for by other choices."""
        schedule = self.subject.begun.copy()
        schedule.knobs = {}
        self.recipe.functions[self.subject.phase](schedule, self.subject.target)
        return tuple(schedule.knobs.values())

    def size(self) -> float:
        """The product of the numbers of values."""
        return prod(len(knob.values) for knob in self.knobs)

    def sample(self, random: Random) -> Point | None:
        """One value of each knob."""
        return self._point({knob.name: random.choice(knob.values) for knob in self.knobs})

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Those that differ in one choice."""
        others = [(knob.name, value) for knob in self.knobs for value in knob.values]
        random.shuffle(others)
        for name, value in others:
            if point.knobs.get(name) != value:
                found = self._point({**point.knobs, name: value})
                if found is not None:
                    yield found

    def every(self) -> Iterator[Point]:
        """All points that are legal."""
        names = [knob.name for knob in self.knobs]
        for values in product(*(knob.values for knob in self.knobs)):
            found = self._point(dict(zip(names, values, strict=True)))
            if found is not None:
                yield found

    def _point(self, choices: Mapping[str, Any]) -> Point | None:
        function = self.recipe.functions[self.subject.phase]

        def chosen(s: Schedule, target: Target) -> None:
            with s.with_choices({**self.recipe.choices, **choices}):
                function(s, target)

        begun = self.subject.begun.copy()
        begun.knobs = {}
        try:
            return Point(replace(self.subject, begun=begun).by(chosen), choices, "chosen")
        except LatteError:
            return None


@dataclass(frozen=True)
class Decided:
    """What the default schedule makes of a phase, by the candidates that its rules decide among
    (:func:`swirl.schedule.rules.schedule.default_schedule`). What a choice leads to may ask for decisions that other
    choices do not: a point is found by changing one decision after the other.

    Args:
        subject: that is scheduled.
        layouts: commands that are applied before, for the layouts that the phase must have.
    """

    subject: Subject
    layouts: Sequence[Recorded] = ()

    @cached_property
    def usual(self) -> tuple[Decision, ...]:
        """The decisions where nothing is chosen; none where there is no default schedule."""
        return self._made({})[1]

    def size(self) -> float:
        """The product of the numbers of candidates, where nothing is chosen; at least that many points."""
        return prod(len(decision.candidates) for decision in self.usual)

    def sample(self, random: Random) -> Point | None:
        """Each decision that is met is another one with a probability of a half."""
        choices: dict[str, int] = {}
        point, met = None, self.usual
        while (decision := next((each for each in met if each.name not in choices), None)) is not None:
            number = decision.taken if random.random() < 0.5 else random.randrange(len(decision.candidates))
            choices[decision.name] = number
            if number != decision.taken or point is None:
                point, met = self._made({name: k for name, k in choices.items() if k})
        return point

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Those that differ in one decision; of points from elsewhere, those that differ from the default."""
        known = point.knobs if point.origin == DECIDED else {}
        others = [(each.name, number) for each in self._made(known)[1] for number in range(len(each.candidates))]
        random.shuffle(others)
        for name, number in others:
            found, _ = self._made({**known, name: number})
            if found is not None:
                yield found

    def _made(self, choices: Mapping[str, int]) -> tuple[Point | None, tuple[Decision, ...]]:
        met: list[Decision] = []

        def scheduled(s: Schedule, target: Target) -> None:
            met.extend(default_schedule(s, target, self.subject.phase, choices))

        try:
            found = Point(self.subject.by(scheduled, self.layouts), dict(choices), DECIDED)
        except LatteError:
            return None, ()
        return found, tuple(met)


@dataclass(frozen=True)
class Several:
    """Spaces side by side: each is drawn from equally often.

    Args:
        spaces: at least one.
    """

    spaces: Sequence[Space]

    def size(self) -> float:
        """The sum of theirs."""
        return sum(space.size() for space in self.spaces)

    def sample(self, random: Random) -> Point | None:
        """A point of one of them."""
        return random.choice(self.spaces).sample(random)

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """Those in each of them, in turn."""
        pending = [space.neighbours(point, random) for space in self.spaces]
        while pending:
            for each in list(pending):
                found = next(each, None)
                if found is None:
                    pending.remove(each)
                else:
                    yield found


@dataclass(frozen=True)
class SeveralRanked(Several):
    """Spaces side by side that each have a ranking.

    Args:
        spaces: at least one; all of them are :class:`Ranked`.
        top: how many points the ranking has at the most; 0 for all.
    """

    top: int = 0

    def ranked(self) -> Iterator[Point]:
        """The best of each, then the second ones, and so on."""
        yield from islice(self._in_turn(), self.top or None)

    def _in_turn(self) -> Iterator[Point]:
        pending = [space.ranked() for space in self.spaces if isinstance(space, Ranked)]
        while pending:
            for each in list(pending):
                found = next(each, None)
                if found is None:
                    pending.remove(each)
                else:
                    yield found


@dataclass
class Pool:
    """What a search knows of a space: the points that it has drawn, none twice, with what the model says of them.

    Args:
        space: that is drawn from.
        target: what code is made for.
        rates: of the machine.
        threads: that run the kernels.
        level3_bytes: of the machine's level-3 cache.
        layouts: that points must leave storage with, as later phases build on them; None where all are allowed.
        seen: keys of the points that were drawn.
        texts: their programs before the passes: of one that was met the passes need not run.
        ranking: what is left of the space's ranking; nothing where it has none.
    """

    space: Space
    target: Target
    rates: Rates
    threads: int
    level3_bytes: int
    layouts: Mapping[str, Layout] | None = None
    seen: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    ranking: Iterator[Point] = field(init=False)

    def __post_init__(self) -> None:
        self.ranking = self.space.ranked() if isinstance(self.space, Ranked) else iter(())

    def following(self) -> Draw | None:
        """The next point of the ranking that is new; None at its end."""
        point = next((each for each in self.ranking if self._is_new(each)), None)
        return None if point is None else self.add(point)

    def draw(self, random: Random) -> Draw | None:
        """A new point; None where none was found in many tries."""
        for _ in range(TRIES):
            point = self.space.sample(random)
            if point is not None and self._is_new(point):
                return self.add(point)
        return None

    def neighbour(self, of: Draw, random: Random) -> Draw | None:
        """A new point near one; None where none was found in many tries."""
        for _, point in zip(range(TRIES), self.space.neighbours(of.point, random), strict=False):
            if self._is_new(point):
                return self.add(point)
        return None

    def _is_new(self, point: Point) -> bool:
        text = point.candidate.scheduled.text
        if text in self.texts or self.layouts not in (None, point.candidate.layouts):
            return False
        self.texts.add(text)
        return point.key not in self.seen

    def add(self, point: Point) -> Draw:
        """A point as one that was drawn."""
        self.seen.add(point.key)
        demand = program_demand(point.candidate.program, self.target)
        return Draw(point, demand, demand.price(self.rates, self.target, self.threads, self.level3_bytes))


@dataclass
class ListedPool(Pool):
    """The same of a space that lists its configurations."""

    space: ListedSpace

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        """See :class:`ListedSpace`."""
        return self.space.configurations()

    def at(self, configuration: Mapping[str, Any]) -> Draw | None:
        """See :class:`Listed`."""
        point = self.space.at(configuration)
        return self.add(point) if point is not None and self._is_new(point) else None


@dataclass(frozen=True)
class Draw:
    """A point that was drawn.

    Args:
        point: of the space.
        demand: what its program asks of a processor.
        predicted: seconds, by the cost model.
    """

    point: Point
    demand: Demand
    predicted: float
