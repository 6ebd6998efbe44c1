"""Searches without a clock: what a log has measured is drawn from again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from random import Random
from typing import Any

from swirl.cost.time import Demand
from swirl.tune.log import CandidateLine
from swirl.tune.searches import SEARCHES, Search, Source, run_search
from swirl.tune.spaces import Draw

NEIGHBOURS = 8
"""Of a candidate: those whose commands are most like its own."""


@dataclass(frozen=True)
class Logged:
    """A candidate of a log, in the place of a :class:`swirl.tune.spaces.Point`."""

    line: CandidateLine

    @property
    def key(self) -> str:
        """The same for two candidates exactly if their programs are."""
        return self.line.key

    @property
    def knobs(self) -> Mapping[str, Any]:
        """What was chosen."""
        return self.line.knobs

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Its commands."""
        return tuple(map(repr, self.line.commands))


class LoggedPool:
    """Candidates of one subject, to be drawn each once.

    Args:
        lines: of a log; of those with one key the last one counts.
    """

    def __init__(self, lines: Sequence[CandidateLine]):
        self._rest = {line.key: Logged(line) for line in lines}
        self._by_knobs = {repr(found.line.knobs): key for key, found in self._rest.items()}
        self._count = len(self._rest)

    def draw(self, random: Random) -> Draw | None:
        """One of those that are left."""
        return self._taken(random.choice(sorted(self._rest))) if self._rest else None

    def neighbour(self, of: Draw, random: Random) -> Draw | None:
        """One of those that are left and most like another one."""
        own = of.point.texts  # type: ignore[attr-defined]
        matcher = SequenceMatcher(autojunk=False)
        matcher.set_seq2(own)

        def unlike(key: str) -> tuple[float, str]:
            matcher.set_seq1(self._rest[key].texts)
            return -matcher.ratio(), key

        near = sorted(self._rest, key=unlike)[:NEIGHBOURS]
        return self._taken(random.choice(near)) if near else None

    def following(self) -> Draw | None:
        """The one that is left whose rank was the first; None where no ranking has chosen what is left."""
        ranks = {key: found.line.knobs["rank"] for key, found in self._rest.items() if "rank" in found.line.knobs}
        return self._taken(min(ranks, key=lambda key: (ranks[key], key))) if ranks else None

    def configurations(self) -> Sequence[Mapping[str, Any]]:
        """What was chosen for those that are left; nothing where two candidates of the log were chosen alike."""
        return [found.line.knobs for found in self._rest.values()] if len(self._by_knobs) == self._count else ()

    def at(self, configuration: Mapping[str, Any]) -> Draw | None:
        """The candidate of a configuration, if it is left."""
        key = self._by_knobs.get(repr(configuration))
        return self._taken(key) if key in self._rest else None

    def _taken(self, key: str) -> Draw:
        found = self._rest.pop(key)
        return Draw(found, Demand(**found.line.model), found.line.predicted)  # type: ignore[arg-type]


def replayed(
    method: Callable[[Source, Random], Search],
    lines: Sequence[CandidateLine],
    seed: int,
    trials: int | None = None,
    enough: float = 0.0,
) -> list[float]:
    """The times, beside the known schedule's, of the candidates that a search measures, in its order; infinite where
    one was refused, wrong or lost.

    Args:
        method: of :data:`swirl.tune.searches.SEARCHES`.
        lines: of one subject.
        seed: of the search's draws.
        trials: after which it ends; None for all candidates.
        enough: it ends as well with the batch that has come to this time.
    """
    found: list[float] = []

    def measured(batch: Sequence[Draw]) -> list[float | None]:
        times = [draw.point.line.ratio for draw in batch]  # type: ignore[attr-defined]
        found.extend(float("inf") if each is None else each for each in times)
        return times

    def more() -> bool:
        return (trials is None or len(found) < trials) and min(found) > enough

    run_search(method(LoggedPool(lines), Random(seed)), measured, more)
    return found[:trials]


def best_after(
    lines: Sequence[CandidateLine],
    trials: Sequence[int],
    seeds: int,
    searches: Mapping[str, Callable[[Source, Random], Search]] = SEARCHES,
) -> dict[str, list[float]]:
    """Search → the mean over seeds of the best time after so many trials, beside the best of all (1 is that one).

    Args:
        lines: of one subject.
        trials: numbers of trials.
        seeds: of each search.
        searches: by name.
    """
    best = min(line.ratio for line in lines if line.ratio is not None)
    found = {}
    for name, method in searches.items():
        runs = [replayed(method, lines, seed, max(trials)) for seed in range(seeds)]
        found[name] = [sum(best / min(run[:count]) for run in runs) / seeds for count in trials]
    return found
