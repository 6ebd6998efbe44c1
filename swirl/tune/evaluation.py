"""Measuring candidates: generated and compiled in batches, then checked and timed in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import sleep

from swirl.build.jit import build
from swirl.build.libraries import Built
from swirl.codegen.emit import KernelSource
from swirl.errors import CompilerFailed, LatteError
from swirl.measure.rates import lower_quartile
from swirl.schedule.pipeline import generate
from swirl.target.targets import Target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.log import LOST, MEASURED, REFUSED, WRONG, CandidateLine, commands_to_line
from swirl.tune.served import Job
from swirl.tune.spaces import Draw
from swirl.tune.worker import Lost, Worker, spec_of

BUSY, JITTER = 1.25, 5e-5
"""On a machine that does something else the known schedule takes so many times as long as at its best, and so many
seconds longer."""
PAUSE, PAUSES = 3.0, 4
"""Seconds that are waited for such a machine, and how often."""


@dataclass(frozen=True)
class Timed:
    """What has become of a candidate.

    Args:
        outcome: see :data:`swirl.tune.log.MEASURED`.
        told: why it was not measured.
        seconds: of its runs.
        beside: of the known schedule's, in the same turns.
    """

    outcome: str
    told: str = ""
    seconds: Sequence[float] = ()
    beside: Sequence[float] = ()

    @property
    def ratio(self) -> float | None:
        """Beside the known schedule, of lower quartiles; None where it was not measured."""
        return lower_quartile(self.seconds) / lower_quartile(self.beside) if self.outcome == MEASURED else None


def line_of(draw: Draw, timed: Timed, subject: str, method: str, seed: int) -> CandidateLine:
    """What the log has of a candidate."""
    return CandidateLine(
        subject,
        draw.point.key,
        draw.point.origin,
        draw.point.knobs,
        commands_to_line(draw.point.candidate.commands),
        timed.outcome,
        timed.told,
        list(timed.seconds),
        list(timed.beside),
        draw.predicted,
        asdict(draw.demand),
        method,
        seed,
    )


class Evaluator:
    """Candidates of a subject, measured beside the schedule that it has.

    Args:
        subject: that is scheduled.
        known: the schedule that it has.
        threads: that run the kernels.
        items: of a batch.
        tell: is told of what the user should know.

    Raises:
        LatteError: the known schedule cannot be compiled, or run by itself.
    """

    def __init__(
        self,
        subject: Subject,
        known: Candidate,
        threads: int,
        items: int,
        tell: Callable[[str], None] = lambda text: None,
    ):
        self._subject, self._tell = subject, tell
        spec = spec_of(subject.program, subject.target, threads, items)
        (made,) = jobs_of([known], subject.target)
        if isinstance(made, LatteError):
            raise made
        self._known = made
        self._worker = Worker(spec, made)
        try:
            (times,) = self._worker.race([made])
        except Lost as lost:
            raise LatteError(f"the schedule that the layer has cannot be timed by itself: {lost}") from lost
        self.best = lower_quartile(times)
        """Seconds of the known schedule at its best."""

    def measure(self, candidates: Sequence[Candidate], runs: int = 3) -> list[Timed]:
        """Compile, check and time candidates.

        Args:
            candidates: not the known one.
            runs: of each, in the first round of a race.
        """
        jobs: dict[int, Job] = {}
        found: dict[int, Timed] = {}
        for number, job in enumerate(jobs_of(candidates, self._subject.target)):
            if isinstance(job, LatteError):
                found[number] = Timed(REFUSED, job.message)
                continue
            try:
                checked = self._worker.check(job)
            except Lost as lost:
                found[number] = Timed(LOST, str(lost))
                continue
            if checked.wrong:
                found[number] = Timed(WRONG, checked.wrong)
                continue
            jobs[number] = job
        if jobs:
            try:
                first, *others = self._race([self._known, *jobs.values()], runs)
            except Lost as lost:
                found |= {number: Timed(LOST, str(lost)) for number in jobs}
            else:
                # One that was left out after a round has raced the known schedule's first runs alone.
                timed = zip(jobs, others, strict=True)
                found |= {number: Timed(MEASURED, "", times, first[: len(times)]) for number, times in timed}
        return [found[number] for number in range(len(candidates))]

    def _race(self, jobs: Sequence[Job], runs: int) -> list[list[float]]:
        """Times of kernels, the known one first, once the machine is as fast as it was."""
        for _ in range(PAUSES):
            times = self._worker.race(jobs, runs)
            now = lower_quartile(times[0])
            if now <= BUSY * self.best + JITTER:
                break
            self._tell(f"the machine is busy with something else ({now / self.best:.1f} × as slow): waiting")
            sleep(PAUSE)
        else:
            self.best = now  # it stays so
        self.best = min(self.best, now)
        return times

    def close(self) -> None:
        """End the process that runs kernels."""
        self._worker.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def jobs_of(candidates: Sequence[Candidate], target: Target) -> list[Job | LatteError]:
    """Each candidate's kernel, compiled together with the others; or why it has none.

    Args:
        candidates: of any subjects.
        target: what code is made for.
    """
    found: dict[int, Job | LatteError] = {}
    sources: list[tuple[int, KernelSource]] = []

    def generated() -> Iterator[KernelSource]:  # the compiler runs while later ones are made
        for number, candidate in enumerate(candidates):
            try:
                source = generate(candidate.program, target)
            except LatteError as error:
                found[number] = error
                continue
            sources.append((number, source))
            yield source

    def made(number: int, source: KernelSource, built: Built) -> Job:
        return Job(built, tuple(candidates[number].buffer(name) for name in source.buffers))

    try:
        every = build(generated(), target)
        found |= {number: made(number, source, built) for (number, source), built in zip(sources, every, strict=True)}
    except CompilerFailed:
        for number, source in sources:
            try:
                (built,) = build([source], target)
                found[number] = made(number, source, built)
            except CompilerFailed as error:
                found[number] = error
    return [found[number] for number in range(len(candidates))]
