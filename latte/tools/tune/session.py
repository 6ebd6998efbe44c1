"""A search for the schedule of one phase: what is drawn, measured and written to the log, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import monotonic
from zlib import crc32

from latte.tools.tune.subjects import Tunable
from swirl.build.compiler import find_compiler
from swirl.cost.time import Rates
from swirl.measure.rates import Limits, lower_quartile
from swirl.run.runner import Runner
from swirl.target.machine import cache_bytes, processor_name
from swirl.target.targets import Target
from swirl.tune.candidates import Candidate
from swirl.tune.evaluation import Evaluator, Timed, line_of
from swirl.tune.layouts import PhasesEvaluator
from swirl.tune.log import (
    MEASURED,
    CandidateLine,
    Line,
    Log,
    ResultLine,
    SubjectLine,
    commands_to_line,
    to_line,
)
from swirl.tune.methods import METHODS
from swirl.tune.searches import run_search
from swirl.tune.spaces import Draw, ListedPool, ListedSpace, Point, Pool

Measuring = Evaluator | PhasesEvaluator
"""What measures candidates of a phase, or of phases together."""
FINALISTS = 3
"""Candidates that are measured again at the end: the luckiest of many is seldom the best."""
GAIN = 1.03
"""Times as fast as the known schedule must a candidate be, by minimum and by lower quartile."""
FINAL_RUNS = 12
ROUNDS = 5
"""Of the probes of the machine."""


@dataclass(frozen=True)
class Machine:
    """What candidates are measured with.

    Args:
        target: what code is made for.
        threads: that run the kernels.
        rates: of the machine with them.
        level3_bytes: of its level-3 cache.
        name: of its processor.
        compiler: its name and version.
    """

    target: Target
    threads: int
    rates: Rates
    level3_bytes: int
    name: str
    compiler: str

    @classmethod
    def measured(cls, target: Target, threads: int) -> Machine:
        """This machine."""
        rates = Limits(target, Runner(threads)).best(ROUNDS)
        compiler = find_compiler().version.partition("\n")[0]
        return cls(target, threads, rates, cache_bytes(level=3) or 0, processor_name(), compiler)

    def limit(self, tunable: Tunable) -> float:
        """Seconds that the machine needs at least for what a phase computes and touches, or phases together."""
        if tunable.together is not None:
            return sum(map(self.limit, tunable.together.phases))
        return max(tunable.work.operations / self.rates.peak, tunable.work.bytes / self.rates.memory)

    @property
    def made_for(self) -> tuple[Target, Rates, int, int]:
        """What pools of draws are told of the machine."""
        return self.target, self.rates, self.threads, self.level3_bytes

    def evaluator(self, tunable: Tunable, items: int, tell: Callable[[str], None]) -> Measuring:
        """What measures candidates of a phase, or of phases together.

        Raises:
            LatteError: the schedule that it has cannot be run by itself.
        """
        together = tunable.together
        if together is not None:
            phases = [(each.subject, each.known) for each in together.phases]

            def following(candidate: Candidate) -> list[Candidate]:
                return [each.known for each in together.after(candidate)[1:]]

            return PhasesEvaluator(phases, following, self.threads, items, tell)
        return Evaluator(tunable.subject, tunable.known, self.threads, items, tell)

    def pool(self, tunable: Tunable) -> Pool:
        """What a search of a phase draws from; the schedule that it has is not drawn."""
        layouts, seen = tunable.known.layouts if tunable.together is None else None, {tunable.known.key}
        if isinstance(tunable.space, ListedSpace):
            return ListedPool(tunable.space, *self.made_for, layouts, seen)
        return Pool(tunable.space, *self.made_for, layouts, seen)


@dataclass(frozen=True)
class Found:
    """What a search has come to.

    Args:
        tunable: that was searched.
        best: the point that was chosen; None where nothing gains.
        tuned, known, default: seconds, measured again at the end, in turns; default is 0 where it is the known one.
        limit: seconds that the machine needs at least.
        tried, refused: candidates that were measured, and that could not be.
        told: why there is none.
        measured: seconds of the known schedule at its best, during the search.
    """

    tunable: Tunable
    best: Point | None
    tuned: float
    known: float
    default: float
    limit: float
    tried: int
    refused: int
    told: str = ""
    measured: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times as fast as the known schedule."""
        return self.known / self.tuned if self.best is not None else 1.0


@dataclass(frozen=True)
class Known:
    """What earlier searches have measured: the lines of a log, by subject and program."""

    lines: Mapping[tuple[str, str], CandidateLine]

    @classmethod
    def of(cls, lines: Sequence[Line], machine: Machine) -> Known:
        """Those that this machine would measure again. Logs of several machines may be merged: a candidate was
        measured with what the last line of its subject says."""
        own: dict[str, bool] = {}
        kept: dict[tuple[str, str], CandidateLine] = {}
        here = machine.name, machine.compiler, machine.threads
        for line in lines:
            if isinstance(line, SubjectLine):
                own[line.subject] = (line.machine, line.compiler, line.threads) == here
            elif isinstance(line, CandidateLine) and own.get(line.subject, False):
                kept[line.subject, line.key] = line
        return cls(kept)


@dataclass
class _Progress:
    """Of one search."""

    tried: int = 0
    refused: int = 0
    best: float = 1.0


def search(
    tunable: Tunable,
    machine: Machine,
    items: int,
    seconds: float,
    method: str,
    seed: int,
    log: Log,
    known: Known,
    tell: Callable[[str], None],
    show: Callable[[int, int, float], None] = lambda tried, refused, share: None,
) -> Found:
    """Search for a faster schedule of a phase.

    Args:
        tunable: the phase.
        machine: that it is for.
        items: of a batch.
        seconds: that the search may take; a batch that has begun is measured to its end.
        method: a name of :data:`swirl.tune.methods.METHODS`, or any other one where the phase names a search.
        seed: of its draws: the same log, or the same times, give the same search.
        log: what is found is told there.
        known: what need not be measured again.
        tell: is told of what the user should know.
        show: is told how many were tried and refused, and the best time so far as a share of the limit.

    Raises:
        LatteError: the schedule that the phase has cannot be run by itself.
    """
    start, random = monotonic(), Random(crc32(f"{tunable.key} {seed}".encode()))
    limit = machine.limit(tunable)
    pool = machine.pool(tunable)
    with machine.evaluator(tunable, items, tell) as evaluator:
        log.tell(subject_line(tunable, machine, items, limit / evaluator.best))
        measured: list[tuple[float, Draw]] = []
        state = _Progress()

        def times(batch: Sequence[Draw]) -> list[float | None]:
            found = results_of(batch, evaluator, tunable.key, known, log, method, seed)
            for draw, timed in zip(batch, found, strict=True):
                ratio = timed.ratio
                if ratio is None:
                    state.refused += 1
                    continue
                state.tried += 1
                state.best = min(state.best, ratio)
                measured.append((ratio, draw))
            show(state.tried, state.refused, limit / (state.best * evaluator.best))
            return [timed.ratio for timed in found]

        if tunable.default is not None and tunable.default.key not in pool.seen:
            times([pool.add(tunable.default)])
        steps = METHODS[tunable.searched_by or method](pool, random)
        run_search(steps, times, lambda: monotonic() - start < seconds)
    found = _confirmed(tunable, machine, items, measured, tell)
    found = replace(found, limit=limit, tried=state.tried, refused=state.refused, measured=evaluator.best)
    key = found.best.key if found.best is not None else ""
    after: list[str] = []
    if tunable.together is not None and found.best is not None:  # what --verify measures
        others = tunable.together.after(found.best.candidate)
        after = [each.key for each in others]
        for each in (*tunable.together.phases[1:], *others[1:]):
            log.tell(subject_line(each, machine, items, 0.0))
    log.tell(ResultLine(tunable.key, key, found.ratio, found.told or "faster", state.tried, state.refused, after))
    return found


def results_of(
    batch: Sequence[Draw],
    evaluator: Measuring,
    key: str,
    known: Known,
    log: Log,
    method: str,
    seed: int,
) -> list[Timed]:
    """What has become of a batch; only what is not known is measured, and told."""
    lines = [known.lines.get((key, draw.point.key)) for draw in batch]
    new = [draw for draw, line in zip(batch, lines, strict=True) if line is None]
    made = iter(evaluator.measure([draw.point.candidate for draw in new]) if new else ())
    found = []
    for draw, line in zip(batch, lines, strict=True):
        if line is not None:
            found.append(Timed(line.outcome, line.told, line.seconds, line.beside))
            continue
        found.append(next(made))
        log.tell(line_of(draw, found[-1], key, method, seed))
    return found


def _confirmed(
    tunable: Tunable, machine: Machine, items: int, measured: list[tuple[float, Draw]], tell: Callable[[str], None]
) -> Found:
    """The fastest candidates once more, in another process, beside the known schedule and the default one."""
    nothing = Found(tunable, None, 0.0, 0.0, 0.0, 0.0, 0, 0, "nothing that was tried is faster")
    finalists = [draw for ratio, draw in sorted(measured, key=lambda pair: pair[0]) if ratio < 1][:FINALISTS]
    if not finalists:
        return nothing
    points = [draw.point for draw in finalists]
    default = tunable.default
    beside = [default] if default is not None else []
    with machine.evaluator(tunable, items, tell) as evaluator:
        first = evaluator.measure([each.candidate for each in points], FINAL_RUNS)
        ranked = [(timed.ratio, number) for number, timed in enumerate(first) if timed.ratio is not None]
        if not ranked:
            return nothing
        point = points[min(ranked)[1]]
        # What it was chosen by is the luckiest of several measurements: another one counts.
        timed, *others = evaluator.measure([each.candidate for each in (point, *beside)], FINAL_RUNS)
    if timed.outcome != MEASURED:
        return nothing
    gains = [lower_quartile(timed.beside) / lower_quartile(timed.seconds), min(timed.beside) / min(timed.seconds)]
    seconds = lower_quartile(timed.seconds), lower_quartile(timed.beside)
    by_default = [each for each in others if each.outcome == MEASURED]
    usual = seconds[0] if point is default else lower_quartile(by_default[0].seconds) if by_default else 0.0
    if min(gains) < GAIN:
        told = f"the best one is {min(gains):.2f} times as fast when it is measured again"
        return replace(nothing, known=seconds[1], default=usual, told=told)
    return Found(tunable, point, *seconds, usual, 0.0, 0, 0)


def subject_line(tunable: Tunable, machine: Machine, items: int, share: float) -> SubjectLine:
    """What the log has of a phase.

    Args:
        tunable: the phase.
        machine: that it is searched on.
        items: of a batch.
        share: of the machine's limit that it reaches now.
    """
    size = tunable.space.size()
    shapes = {name: list(buffer.shape) for name, buffer in tunable.subject.program.buffers.items()}
    return SubjectLine(
        tunable.key,
        tunable.unit.name,
        tunable.kinds,
        tunable.phase,
        machine.target.name,
        machine.threads,
        machine.name,
        machine.compiler,
        items,
        shapes,
        to_line(tunable.subject),
        commands_to_line(tunable.known.commands),
        share,
        None if size == float("inf") else size,
        [each.key for each in tunable.together.phases] if tunable.together is not None else [],
    )
