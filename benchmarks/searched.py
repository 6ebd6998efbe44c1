"""What tables of searches share: layers by themselves, candidates measured beside the schedule that a layer has, and
oneDNN in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import click

from latte import ConvLayer, MemoryDataLayer, Net
from latte.tools.tune.session import Known, Machine, results_of
from latte.tools.tune.subjects import tunables
from swirl.build.cache import cache_folder
from swirl.config import child_environment, settings
from swirl.target.machine import resolve_target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.evaluation import Evaluator
from swirl.tune.log import Log, SubjectLine, commands_to_line, read_log, subject_key, to_line
from swirl.tune.searches import BATCH
from swirl.tune.spaces import Point, Pool, Space
from swirl.tune.ttile.microkernels import MicroKernel, load_table

RUNS = 9
"""Of oneDNN."""


@dataclass(frozen=True)
class Work:
    """A layer that is measured.

    Args:
        net: that it is of; ``products`` for these.
        name: of it.
        shape: as :mod:`searched_torch` takes it.
        operations: floating-point operations.
        items: of a batch.
        subject: its forward phase.
        known: the schedule that it has.
    """

    net: str
    name: str
    shape: tuple[int, ...]
    operations: int
    items: int
    subject: Subject
    known: Candidate

    @property
    def kind(self) -> str:
        """``product`` or ``conv``."""
        return "product" if self.net == "products" else "conv"


def convolution(net_name: str, name: str, shape: tuple[int, ...], found_on: Machine) -> Work:
    """A convolution by itself.

    Args:
        net_name, name: of it.
        shape: images, channels, height, width, filters, kernel, stride, padding.
        found_on: the machine that it is for.
    """
    items, channels, height, width, filters, kernel, stride, pad = shape
    net = Net(items, seed=1)
    data = MemoryDataLayer(net, (channels, height, width))
    layer = ConvLayer(net, data, num_filters=filters, kernel=kernel, stride=stride, pad=pad)
    (tunable, *_), _ = tunables(net, found_on.target, found_on.threads, [layer.name], ["forward"])
    pixels = prod((extent + 2 * pad - kernel) // stride + 1 for extent in (height, width))
    operations = 2 * items * pixels * filters * channels * kernel * kernel
    return Work(net_name, name, shape, operations, items, tunable.subject, tunable.known)


@dataclass(frozen=True)
class Measured:
    """What has become of candidates of a layer.

    Args:
        ratios: key → its time ÷ that of the schedule that the layer has, which is among them.
        refused: how many could not be measured.
        seconds: of the schedule that the layer has.
    """

    ratios: dict[str, float]
    refused: int
    seconds: float


@dataclass(frozen=True)
class Bench:
    """What layers are measured with.

    Args:
        machine: this one.
        log: where candidates are told.
        known: what need not be measured again.
        out: folder of the log, which may have the table of micro-kernels.
    """

    machine: Machine
    log: Log
    known: Known
    out: Path

    @classmethod
    def of(cls, target: str | None, threads: int | None, out: Path, resume: bool = False) -> Bench:
        """This machine with so many threads; what the log has is not measured again where a run is resumed."""
        found_on = Machine.measured(resolve_target(target), threads or settings().threads)
        return cls(found_on, Log(out), Known.of(list(read_log(out)) if resume else [], found_on), out)

    @property
    def table(self) -> tuple[MicroKernel, ...]:
        """The micro-kernels of the machine."""
        return tuple(load_table(self.machine.target, self.machine.name, (self.out, cache_folder())).kept)

    def measured(self, work: Work, space: Space, points: Iterable[Point | None], method: str) -> Measured:
        """Points of a space, measured in turns with the schedule that a layer has.

        Args:
            work: the layer.
            space: that the points are of.
            points: None for one that was refused.
            method: for the log.
        """
        found_on, key, ratios = self.machine, subject_key(work.subject, self.machine.threads), {work.known.key: 1.0}
        pool = Pool(space, found_on.target, found_on.rates, found_on.threads, found_on.level3_bytes)
        every = list(points)
        different = {point.key: point for point in every if point is not None and point.key not in ratios}
        refused = every.count(None)
        with Evaluator(work.subject, work.known, found_on.threads, work.items, click.echo) as evaluator:
            self.log.tell(self._line(work, key))
            draws = [pool.add(point) for point in different.values()]
            for start in range(0, len(draws), BATCH):
                batch = draws[start : start + BATCH]
                found = results_of(batch, evaluator, key, self.known, self.log, method, 0)
                for draw, timed in zip(batch, found, strict=True):
                    if timed.ratio is None:
                        refused += 1
                    else:
                        ratios[draw.point.key] = timed.ratio
            return Measured(ratios, refused, evaluator.best)

    def _line(self, work: Work, key: str) -> SubjectLine:
        shapes = {name: list(buffer.shape) for name, buffer in work.subject.program.buffers.items()}
        found_on = self.machine
        return SubjectLine(
            key,
            f"{work.net}/{work.name}",
            (work.kind,),
            "forward",
            found_on.target.name,
            found_on.threads,
            found_on.name,
            found_on.compiler,
            work.items,
            shapes,
            to_line(work.subject),
            commands_to_line(work.known.commands),
        )


def onednn(kind: str, shape: Sequence[int], threads: int) -> float:
    """Seconds of oneDNN, in PyTorch; 0 where it is missing."""
    asked = {"kind": kind, "shape": list(shape), "threads": threads, "runs": RUNS}
    script = str(Path(__file__).with_name("searched_torch.py"))
    done = subprocess.run(
        [sys.executable, script, json.dumps(asked)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        click.echo(f"oneDNN: {done.stderr.strip().splitlines()[-1:]}", err=True)
        return 0.0
    return float(sorted(json.loads(done.stdout))[RUNS // 4])
