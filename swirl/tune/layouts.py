"""Layouts of a layer's parameters: one choice, for all of its phases. A candidate is the first phase by the default
schedule after commands on layouts; it is measured together with what becomes of the others then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from random import Random

import numpy as np

from swirl.errors import LatteError
from swirl.ir.buffers import Buffer
from swirl.schedule.command_log import Recorded
from swirl.schedule.rules.schedule import FOR_RECIPES
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.evaluation import Evaluator, Timed
from swirl.tune.log import MEASURED, REFUSED
from swirl.tune.spaces import Point

Layouts = tuple[Recorded, ...]
"""Commands on layouts."""
ORIGIN = "layouts"
"""Of the points."""
RANKS = 0, 0.25, 0.5, 0.75, 1
"""Of the runs of each phase, those that are added up: the fastest ones, the lower quartiles, and so on."""


@dataclass(frozen=True)
class LayoutSpace:
    """The layouts of a layer's parameters.

    Args:
        subject: the layer's first phase.
    """

    subject: Subject

    @cached_property
    def every(self) -> Sequence[Layouts]:
        """The commands of each."""
        return tuple(alternatives(self.subject))

    def size(self) -> float:
        """How many there are."""
        return len(self.every)

    def sample(self, random: Random) -> Point | None:
        """One of them; None where it is refused."""
        return self._point(random.choice(self.every)) if self.every else None

    def neighbours(self, point: Point, random: Random) -> Iterator[Point]:
        """All of them, in random order."""
        points = map(self._point, random.sample(self.every, len(self.every)))
        yield from (each for each in points if each is not None)

    def ranked(self) -> Iterator[Point]:
        """All of them, those of all parameters before those of one."""
        yield from (point for each in self.every if (point := self._point(each)) is not None)

    def _point(self, layouts: Layouts) -> Point | None:
        try:
            found = self.subject.by(FOR_RECIPES.functions[self.subject.phase], layouts)
        except LatteError:
            return None
        applied = {each.text for each in found.commands}
        texts = [each.text for each in layouts]
        return Point(found, {ORIGIN: texts}, ORIGIN) if applied.issuperset(texts) else None


def alternatives(subject: Subject) -> Iterator[Layouts]:
    """Other layouts of the parameters whose layout a layer chooses: all of them alike, then each by itself. A
    parameter and its gradient always have the same.

    Args:
        subject: the layer's first phase; the commands belong to it.
    """
    parameters = _parameters(subject)
    ways = {name: list(_ways(buffers, subject.target.simd_width)) for name, buffers in parameters.items()}
    if len(parameters) > 1:
        for number in range(max(map(len, ways.values()))):
            yield tuple(each for way in ways.values() for each in (way[number] if number < len(way) else ()))
    for way in ways.values():
        yield from way


def _parameters(subject: Subject) -> Mapping[str, Mapping[str, Buffer]]:
    """Storage of a parameter → the local names of it and of its gradient, with their buffers; the largest first."""
    region = subject.begun.state.regions[subject.begun.region]
    names = [*region.names.get("", {}).items(), *((name, buffer) for _, name, buffer in region.bindings())]
    local = {buffer.name: (name, buffer) for name, buffer in names if region.parameters.get(buffer.name)}
    found: dict[str, dict[str, Buffer]] = {}
    for storage, (_, buffer) in sorted(local.items(), key=lambda each: -each[1][1].nbytes):
        if buffer.role == "param" and sum(extent > 1 for extent in buffer.shape) > 1:
            layer, _, field = storage.partition(".")
            both = (local.get(each) for each in (storage, f"{layer}.grad_{field}"))
            found[storage] = dict(each for each in both if each is not None)
    return found


def _ways(buffers: Mapping[str, Buffer], width: int) -> Iterator[Layouts]:
    """Another dimension innermost; blocks of one dimension, as long as a vector; of two, one in the other."""
    shape = next(iter(buffers.values())).shape
    dims = [dim for dim, extent in enumerate(shape) if extent > 1]
    for inner in dims[:-1]:
        order = (*(dim for dim in range(len(shape)) if dim != inner), inner)
        yield tuple(_command("transpose", name, order=order) for name in buffers)
    wide = [dim for dim in dims if shape[dim] >= width]
    for blocked in (*((dim,) for dim in wide), *permutations(wide, 2)):
        yield tuple(_command("tile", name, dim=dim, factor=width) for name in buffers for dim in blocked)


def _command(name: str, buffer: str, **options: object) -> Recorded:
    return Recorded(name, (buffer,), tuple(options.items()), None, "s.")


class PhasesEvaluator:
    """Candidates of a layer's first phase, each measured together with what becomes of the other phases.

    Args:
        phases: each phase, with the schedule that it has; first the one that candidates are of.
        following: a candidate → the other phases as they are then, in order. It may raise :class:`LatteError`.
        threads, items, tell: as of :class:`swirl.tune.evaluation.Evaluator`.

    Raises:
        LatteError: as there.
    """

    def __init__(
        self,
        phases: Sequence[tuple[Subject, Candidate]],
        following: Callable[[Candidate], Sequence[Candidate]],
        threads: int,
        items: int,
        tell: Callable[[str], None] = lambda text: None,
    ):
        self._phases, self._following = phases, following
        with ExitStack() as stack:
            self._own = [stack.enter_context(Evaluator(*phase, threads, items, tell)) for phase in phases]
            self._stack = stack.pop_all()

    @property
    def best(self) -> float:
        """Seconds of all phases, by the schedules that they have, at their best."""
        return sum(each.best for each in self._own)

    def measure(self, candidates: Sequence[Candidate], runs: int = 3) -> list[Timed]:
        """Compile, check and time candidates, and what follows from them; seconds are of all phases.

        Args:
            candidates: of the first phase.
            runs: of each kernel, in the first round of a race.
        """
        found: dict[int, Timed] = {}
        made: dict[int, Sequence[Candidate]] = {}
        for number, candidate in enumerate(candidates):
            try:
                made[number] = (candidate, *self._following(candidate))
            except LatteError as error:
                found[number] = Timed(REFUSED, error.message)
        parts = [
            self._of_phase(place, {number: every[place] for number, every in made.items()}, runs)
            for place in range(len(self._phases))
        ]
        found |= {number: _added([part[number] for part in parts]) for number in made}
        return [found[number] for number in range(len(candidates))]

    def _of_phase(self, place: int, own: Mapping[int, Candidate], runs: int) -> Mapping[int, Timed]:
        """What has become of one phase of each; equal programs are measured once."""
        (_, known), evaluator = self._phases[place], self._own[place]
        each_once = {candidate.key: candidate for candidate in own.values() if candidate.key != known.key}
        timed = dict(zip(each_once, evaluator.measure(list(each_once.values()), runs), strict=True))
        timed[known.key] = Timed(MEASURED, "", (evaluator.best,), (evaluator.best,))
        return {number: timed[candidate.key] for number, candidate in own.items()}

    def __enter__(self) -> PhasesEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _added(parts: Sequence[Timed]) -> Timed:
    """What has become of all phases."""
    failed = next((part for part in parts if part.outcome != MEASURED), None)
    if failed is not None:
        return failed
    seconds, beside = (
        tuple(float(sum(run)) for run in zip(*(np.quantile(times, RANKS) for times in every), strict=True))
        for every in ([part.seconds for part in parts], [part.beside for part in parts])
    )
    return Timed(MEASURED, "", seconds, beside)
