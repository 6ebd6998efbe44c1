"""What tables of searches share: layers by themselves, candidates measured beside the schedule that a layer has, and
PyTorch in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random

import click
from sides import Asked, SideFailed, SideProcess

from latte import ConvLayer, MemoryDataLayer, Net
from latte.tools.bench.workers import HELD_TO_AVX2
from latte.tools.tune.session import Known, Machine, results_of
from latte.tools.tune.subjects import tunables
from swirl.build.cache import cache_folder
from swirl.config import child_environment, settings
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.schedule.rules.schedule import FOR_RECIPES
from swirl.target.machine import resolve_target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.evaluation import Evaluator, Timed
from swirl.tune.log import Log, SubjectLine, commands_to_line, read_log, subject_key, to_line
from swirl.tune.methods import METHODS
from swirl.tune.searches import BATCH, run_search
from swirl.tune.spaces import Around, Decided, Draw, Point, Pool, Several, Space
from swirl.tune.ttile.microkernels import MicroKernel, load_table

RUNS = 9
"""Of PyTorch."""


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
        space: that ``latte tune`` searches by default.
    """

    net: str
    name: str
    shape: tuple[int, ...]
    operations: int
    items: int
    subject: Subject
    known: Candidate
    space: Space

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
    return Work(net_name, name, shape, operations, items, tunable.subject, tunable.known, tunable.space)


def product(name: str, shape: tuple[int, int, int], found_on: Machine) -> Work:
    """A product of matrices by itself; the schedule that it has is the default one.

    Args:
        name: of it.
        shape: rows, columns, length.
        found_on: the machine that it is for.
    """
    rows, columns, length = shape
    text = f"for i in range({rows}):\n for j in range({columns}):\n  for k in range({length}):\n"
    shapes = {"C": (rows, columns), "A": (rows, length), "B": (length, columns)}
    buffers = {each: Buffer(f"product.{each}", extents, per_item=False) for each, extents in shapes.items()}
    program = parse_program(f"{text}   C[i, j] += A[i, k] * B[k, j]", buffers, name="product")
    subject = Subject.alone(program, "forward", (), found_on.target)
    known = subject.by(FOR_RECIPES.functions["forward"])
    space = Several([Around(subject, known.commands), Decided(subject, ())])
    return Work("products", name, shape, 2 * rows * columns * length, found_on.threads, subject, known, space)


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
class Searched:
    """What a search has come to.

    Args:
        best: the fastest candidate; None where none could be measured.
        tried, refused: candidates that were measured, and that could not be.
    """

    best: Candidate | None
    tried: int
    refused: int


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
        key, ratios = subject_key(work.subject, self.machine.threads), {work.known.key: 1.0}
        pool = Pool(space, *self.machine.made_for)
        every = list(points)
        different = {point.key: point for point in every if point is not None and point.key not in ratios}
        refused = every.count(None)
        with self.evaluator(work) as evaluator:
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

    def evaluator(self, work: Work) -> Evaluator:
        """What measures candidates of a layer beside the schedule that it has."""
        return Evaluator(work.subject, work.known, self.machine.threads, work.items, click.echo)

    def searched(self, work: Work, space: Space, method: str, trials: int, seed: int) -> Searched:
        """The fastest of as many candidates of a space as a search may measure.

        Args:
            work: the layer.
            space: that is searched.
            method: of :data:`swirl.tune.methods.METHODS`.
            trials: candidates.
            seed: of the search.
        """
        key = subject_key(work.subject, self.machine.threads)
        # Later phases build on the storage that the known schedule leaves; that one itself is not drawn.
        pool = Pool(space, *self.machine.made_for, work.known.layouts, {work.known.key})
        found: list[tuple[Timed, Candidate]] = []
        with self.evaluator(work) as evaluator:
            self.log.tell(self._line(work, key))

            def measured(batch: Sequence[Draw]) -> list[float | None]:
                some = batch[: trials - len(found)]
                times = results_of(some, evaluator, key, self.known, self.log, method, seed)
                found.extend((timed, draw.point.candidate) for timed, draw in zip(times, some, strict=True))
                return [timed.ratio for timed in times]

            run_search(METHODS[method](pool, Random(seed)), measured, lambda: len(found) < trials)
        ranked = [(timed.ratio, number) for number, (timed, _) in enumerate(found) if timed.ratio is not None]
        best = found[min(ranked)[1]][1] if ranked else None
        return Searched(best, len(ranked), len(found) - len(ranked))

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


def environment_of(machine: Machine) -> dict[str, str]:
    """Variables of the other systems' processes: as many threads, and no wider vectors."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "HL_NUM_THREADS", "TVM_NUM_THREADS"), str(machine.threads))
    return {**child_environment(), **threads, **({} if machine.target.name == "avx512" else HELD_TO_AVX2)}


def asked_of(work: Work, machine: Machine, trials: int = 0) -> Asked:
    """What the other systems are asked for."""
    return Asked(work.kind, work.shape, machine.threads, machine.target.name == "avx512", trials)


def by_pytorch(work: Work, machine: Machine) -> float:
    """Seconds of PyTorch; 0 where it is missing."""
    try:
        with SideProcess("searched_torch.py", asked_of(work, machine), environment_of(machine)) as side:
            return sorted(side.seconds(RUNS))[RUNS // 4]
    except SideFailed as failed:
        click.echo(f"PyTorch: {failed}", err=True)
        return 0.0
