"""The log of a search: a line of JSON for each subject, candidate and result. A line that was cut off by the end of the
process is skipped; two logs, one after the other, are one log."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swirl.build.cache import cache_key
from swirl.errors import LatteError
from swirl.measure.rates import lower_quartile
from swirl.schedule.command_log import Recorded
from swirl.schedule.entries import key_of
from swirl.schedule.memo import Memo
from swirl.schedule.plan_state import PlanState, Region
from swirl.schedule.recipe import Schedule
from swirl.schedule.values import NotAValue, from_value, to_value
from swirl.target.targets import Target
from swirl.tune.candidates import Subject

FILE = "log.jsonl"
MEASURED, REFUSED, WRONG, LOST = "measured", "refused", "wrong", "lost"
"""Outcomes of a candidate: ``lost`` is one that crashed or hung."""
KEY_DIGITS = 16
"""Of the key of a subject."""


@dataclass(frozen=True)
class SubjectLine:
    """What was searched.

    Args:
        subject: its key.
        layer: name of what is compiled together.
        kinds: of its layers.
        phase: that is scheduled.
        target, threads, machine, compiler: what it was measured with.
        items: of a batch.
        shapes: buffer → extents.
        state: the subject itself, for :func:`subject_of`.
        known: the commands of the schedule that it has.
        limit: share of the machine's limit that the known schedule has reached.
        size: of the space; None where it is infinite.
        together: where layouts were chosen: the subjects of the phases whose times are added up.
    """

    subject: str
    layer: str
    kinds: tuple[str, ...]
    phase: str
    target: str
    threads: int
    machine: str
    compiler: str
    items: int
    shapes: Mapping[str, Sequence[int]]
    state: Any
    known: Sequence[Any] = ()
    limit: float = 0.0
    size: float | None = None
    together: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CandidateLine:
    """What has become of a candidate.

    Args:
        subject: key of what was scheduled.
        key: of the program.
        origin: of the point; with ``knobs``, what was chosen.
        commands: that were applied.
        outcome: see :data:`MEASURED`.
        told: why it was not measured.
        seconds: of its runs.
        beside: of the known schedule's, in the same race.
        predicted: seconds, by the model.
        model: the model's terms.
        method, seed: of the search.
    """

    subject: str
    key: str
    origin: str
    knobs: Mapping[str, Any]
    commands: Sequence[Any]
    outcome: str
    told: str = ""
    seconds: Sequence[float] = ()
    beside: Sequence[float] = ()
    predicted: float = 0.0
    model: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    seed: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it has the times that it says it has."""
        times = [self.seconds, self.beside]
        if not all(isinstance(each, (list, tuple)) for each in times):
            return False
        numbers = all(isinstance(time, (int, float)) for each in times for time in each)
        return numbers and (self.outcome != MEASURED or all(times))

    @property
    def ratio(self) -> float | None:
        """Its time beside the known schedule's: of lower quartiles; None where it was not measured."""
        if self.outcome != MEASURED or not self.seconds or not self.beside:
            return None
        return lower_quartile(self.seconds) / lower_quartile(self.beside)


@dataclass(frozen=True)
class ResultLine:
    """How a search ended.

    Args:
        subject: key of what was scheduled.
        key: of the best program; "" where none is better than the known one.
        ratio: its time beside that of the known schedule, measured again in another process.
        verdict: what was done with it, and why.
        tried, refused: candidates.
        after: where layouts were chosen: the subjects of all phases with them.
    """

    subject: str
    key: str
    ratio: float
    verdict: str
    tried: int = 0
    refused: int = 0
    after: list[str] = field(default_factory=list)


Line = SubjectLine | CandidateLine | ResultLine
KINDS: Mapping[str, type[Any]] = {"subject": SubjectLine, "candidate": CandidateLine, "result": ResultLine}


class Log:
    """The log of a folder; what is told is in the file when the call returns.

    Args:
        folder: made if it is not there.

    Raises:
        LatteError: it cannot be written.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
            self._file = self.path.open("ab", buffering=0)  # a line is one write: those of two processes do not mix
        except OSError as error:
            raise LatteError(
                f"{self.path} cannot be written: {error.strerror}", way_out="--out names another folder"
            ) from error
        if not whole:  # the process that wrote it was killed
            self._file.write(b"\n")

    def tell(self, line: Line) -> None:
        """Add a line.

        Raises:
            LatteError: it cannot be written, for a full disk.
        """
        kind = next(name for name, each in KINDS.items() if isinstance(line, each))
        text = json.dumps({"kind": kind, **asdict(line)}, default=repr) + "\n"
        try:
            self._file.write(text.encode())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LatteError(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Nothing more is told."""
        self._file.close()


def read_log(path: Path) -> Iterator[Line]:
    """The lines of a log, also of a compressed one (``.gz``), or of a folder with one; none where there is no such
    file. Lines that are damaged, or of another version, are left out."""
    path = path / FILE if path.is_dir() else path
    if not path.exists():
        return
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                values = json.loads(text)
                line = KINDS[values.pop("kind")](**values)
                if isinstance(line, CandidateLine) and not line.is_whole:
                    continue
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
            yield line


# --- subjects and commands as JSON --------------------------------------------------------------------------
def to_line(subject: Subject) -> Any:
    """A subject as a value of JSON."""
    begun = subject.begun
    region = begun.state.regions[begun.region]
    values = {
        "layouts": begun.state.layouts,
        "shapes": begun.state.shapes,
        "joined": begun.state.joined,
        "region": {name: getattr(region, name) for name in _REGION},
        "phases": dict(region.phases),
        "behind": list(subject.behind),
    }
    try:
        return to_value(values)
    except NotAValue as error:
        raise LatteError(f"{region.name} {subject.phase} cannot be written to a log") from error


_REGION = ("name", "layers", "internal", "lays_out", "parameters", "names", "follows", "keeps_layouts", "given")


def subject_of(line: SubjectLine, target: Target) -> Subject:
    """The subject of a line.

    Raises:
        LatteError: it is damaged.
    """
    try:
        values = from_value(line.state)
        region = Region(phases=values["phases"], **values["region"])
        state = PlanState(values["layouts"], values["shapes"], values["joined"], {region.name: region})
        begun = Schedule(state, region.name, target, Memo())
    except (AttributeError, IndexError, KeyError, SyntaxError, TypeError, ValueError) as error:
        raise LatteError(f"the log's line for {line.layer} {line.phase} is damaged: {error}") from error
    begun.applying = line.phase
    return Subject(begun, line.phase, tuple(values["behind"]))


def commands_to_line(commands: Sequence[Recorded]) -> list[Any]:
    """Commands as values of JSON."""
    return [to_value([each.name, each.arguments, each.options, each.of]) for each in commands]


def commands_of(values: Sequence[Any]) -> tuple[Recorded, ...]:
    """The commands that :func:`commands_to_line` was given."""
    found = (from_value(each) for each in values)
    return tuple(Recorded(name, arguments, options, None, of=of) for name, arguments, options, of in found)


def subject_key(subject: Subject, threads: int) -> str:
    """The same for two subjects exactly if searches of them may share what they have found."""
    layouts = [f"{each.name}{each.arguments}{each.options}" for each in subject.behind]
    return cache_key(key_of(subject.program), subject.phase, subject.target.name, str(threads), *layouts)[:KEY_DIGITS]
