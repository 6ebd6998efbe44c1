"""How well the cost model orders schedules: legal ones around those that layers have, measured, and beside it what the
model predicts.

    python benchmarks/ranking.py measure avx512 [--only gelu] [--compile]    # an hour; writes benchmarks/ranking
    python benchmarks/ranking.py judge                                       # minutes: what the model says of them

A *subject* is a phase of a layer: those of ``latte bench own`` and ``latte bench layer`` at small shapes, and of ten of
the nets of ``tests/frozen``. Its candidates are the schedule that the layer has, and up to twelve others
(:func:`swirl.tune.candidates.around`, with the seed in the record). All candidates of a subject are measured in two
passes, the second in reverse order; each is run a few times in a row, and the fastest run counts.

``judge`` computes the programs again from the commands in the record, and what the model of now predicts. It also says
what would be gained if the model chose the schedule. Of each two
candidates of a subject whose times differ by a factor of 1.1 to 3 in both passes, in the same direction, the model is
right about those that it orders as the measurement does. (Those that are nearer are noise, those farther easy.)
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple
from zlib import crc32

import click

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.net import Net
from latte.planning.plan import make_plan
from latte.tools.bench.cases import TRIED, Case
from latte.tools.bench.ours import declared
from latte.tools.library.entries import USUAL
from swirl.build.jit import build, load
from swirl.cost.time import Rates, program_demand
from swirl.dump.write import contents
from swirl.errors import LatteError
from swirl.ir.anonymous import anonymous
from swirl.ir.buffers import DTYPES
from swirl.ir.item_numbers import value_of
from swirl.ir.text import identity
from swirl.measure.rates import Limits
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.schedule.command_log import Recorded
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.pipeline import generate
from swirl.target.machine import cache_bytes, processor_name, resolve_target, why_not
from swirl.target.targets import TARGETS, Target
from swirl.tune.arrays import synthetic_array
from swirl.tune.candidates import Candidate, Subject, around, commands_for
from tests.frozen.specifications import specifications

RECORDS = Path(__file__).with_name("ranking")
COUNT, FROZEN, BATCH = 12, 10, 64
SHAPES = {"image": "8,32,28", "sequence": "8,64,64", "vector": "64,512,1", "words": "64,64,1"}
"""Batch, channels and extent of the layers, by what an item is."""
RUNS, SECONDS = 7, 0.15
"""Runs of a candidate in a pass, or fewer within so many seconds; at least two, of which the first does not count."""
NEAR, FAR = 1.1, 3.0


def nets() -> Iterator[tuple[str, Net]]:
    """The nets of all subjects, by name: layers without recipes, nets, and layers of the library."""
    yield from _layers("own")
    with TemporaryDirectory() as folder:
        for name in list(specifications())[:FROZEN]:
            specification = replace(specifications()[name], batch=BATCH)
            yield f"frozen {name}", specification.declared(Path(folder))[0]
    yield from _layers("layer")


def _layers(kind: str) -> Iterator[tuple[str, Net]]:
    for name, tried in TRIED[kind].items():
        usual = tried.usual_shape
        shape = SHAPES[tried.source] if usual == USUAL[tried.source] else usual
        batch, channels, extent = map(int, shape.split(","))
        channels += -channels % tried.channels
        extent += -extent % tried.extent
        yield f"{kind} {name}", declared(Case(kind, batch, channels, extent, layer=name))[0]


def subjects(net: Net, target: Target) -> Iterator[tuple[str, str, Subject, tuple[Recorded, ...]]]:
    """The phases of a net that are scheduled: the layer, the phase, its program, and the commands that it has."""
    graph = net.graph
    with Memos() as memos, KeptSchedules(memos, target) as kept:
        plan = make_plan(graph, differentiate(graph, lower_layers(graph, net.batch_size)), kept)
        for item in plan.scheduled:
            for phase, stages in item.result.stages.items():
                if phase == "inference":
                    continue
                names = [stage.name for stage in stages]
                first = stages[names.index("canonical") if "canonical" in names else 0].program
                prefixes = tuple(f"{member.name}." for member in item.unit.members)
                yield (
                    item.unit.name,
                    phase,
                    Subject.alone(first, phase, (*prefixes, f"{item.unit.name}."), target),
                    commands_for(phase, item.result.outcomes),
                )


# --- measuring ----------------------------------------------------------------------------------------------
class Timed:
    """The kernels of a subject's candidates, on data of its own.

    Args:
        found: the candidates.
        subject: of them.
        items: of a batch.
        runner: whose threads run.
    """

    def __init__(self, found: Sequence[Candidate], subject: Subject, items: int, runner: Runner):
        sources = [generate(each.program, subject.target) for each in found]
        built = build(sources, subject.target)
        values = contents(subject.program)
        self.steps = []
        for each, source, kernel in zip(found, sources, built, strict=True):
            buffers = each.program.buffers
            sizes = {name: (buffers[name].physical_shape, DTYPES[buffers[name].dtype]) for name in source.buffers}
            memory = allocate(sizes, runner)
            for name in source.buffers:
                buffer = buffers[name]
                if buffer.formula:
                    memory[name][0] = value_of(buffer.formula, items)
                else:
                    memory[name][...] = buffer.layout.pack(synthetic_array(buffer, values.get(name)))
            self.steps.append(runner.phase([(load(kernel), [memory[name] for name in source.buffers])]))

    def once(self) -> list[float]:
        """Seconds of each, in order."""
        return [_fastest(step) for step in self.steps]

    def again(self) -> list[float]:
        """The same, the last one first."""
        return [_fastest(step) for step in self.steps[::-1]][::-1]


def _fastest(step: Any) -> float:
    step.run_timed()
    runs, start = [], perf_counter()
    while not runs or (len(runs) < RUNS and perf_counter() - start < SECONDS):
        runs += step.run_timed()
    return min(runs)


def measured(target: Target, only: str, compile_only: bool) -> Iterator[dict[str, Any]]:
    """A record of the machine, then one of each subject."""
    runner = Runner()
    rates = Limits(target, runner).best(5)
    yield {
        "machine": processor_name(),
        "target": target.name,
        "threads": runner.threads,
        "level1_bytes": target.l1_bytes,
        "level2_bytes": target.l2_bytes,
        "level3_bytes": cache_bytes(level=3) or 0,
        "rates": [rates.peak, rates.level2, rates.level3, rates.memory],
    }
    seen = set[str]()
    for name, net in nets():
        if only not in name:
            continue
        for unit, phase, subject, commands in subjects(net, target):
            alike = identity(anonymous(subject.program).program)
            if alike in seen:
                continue
            seen.add(alike)
            seed = crc32(f"{name} {unit} {phase}".encode())
            try:
                found = around(subject, commands, COUNT, seed)
                timed = Timed(found, subject, net.batch_size, runner)
            except LatteError as error:
                click.echo(f"{name} {unit} {phase}: {error}", err=True)
                continue
            click.echo(f"{name} {unit} {phase}: {len(found)}", err=True)
            if compile_only:
                continue
            passes = timed.once(), timed.again()
            yield {
                "net": name,
                "unit": unit,
                "phase": phase,
                "seed": seed,
                "candidates": [
                    {
                        "commands": [[each.name, each.arguments, each.options] for each in one.commands],
                        "seconds": times,
                    }
                    for one, *times in zip(found, *passes, strict=True)
                ],
            }


# --- judging ------------------------------------------------------------------------------------------------
def pairs(candidates: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Those that differ enough, and not too much: the faster one first."""
    for (i, one), (j, other) in combinations(enumerate(candidates), 2):
        ratios = [a / b for a, b in zip(one["seconds"], other["seconds"], strict=True)]
        if all(NEAR <= ratio <= FAR for ratio in ratios):
            yield j, i
        elif all(NEAR <= 1 / ratio <= FAR for ratio in ratios):
            yield i, j


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a study."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def predictions(records: Sequence[dict[str, Any]], only: str = "") -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Each subject, and the seconds that the model predicts for its candidates."""
    head, *rest = records
    target = _with_caches(TARGETS[head["target"]], head)
    peak, level2, level3, memory = head["rates"]
    rates = Rates(peak, level2, level3, memory)
    known = {(each["net"], each["unit"], each["phase"]): each for each in rest}
    for name, net in nets():
        if only not in name or not any(key[0] == name for key in known):
            continue
        for unit, phase, subject, _ in subjects(net, target):
            record = known.get((name, unit, phase))
            if record is None:
                continue
            seconds = []
            for each in record["candidates"]:
                commands = [_recorded(*parts) for parts in each["commands"]]
                program = subject.after(commands).program
                demand = program_demand(program, target)
                seconds.append(demand.price(rates, target, head["threads"], head["level3_bytes"]))
            yield record, seconds


def _with_caches(target: Target, head: dict[str, Any]) -> Target:
    return replace(target, l1_bytes=head["level1_bytes"], l2_bytes=head["level2_bytes"])


def _recorded(name: str, arguments: Sequence[Any], options: Sequence[Sequence[Any]]) -> Recorded:
    return Recorded(name, tuple(arguments), tuple((key, value) for key, value in options), None)


class Judged(NamedTuple):
    """What the model says of a subject.

    Args:
        name: of the subject.
        right: pairs that the model orders rightly.
        pairs: all.
        picked: the time of the schedule that the subject has ÷ that of the one which the model takes for the fastest.
        best: the same of the fastest one; the first pass finds it, and the second one times it.
    """

    name: str
    right: int
    pairs: int
    picked: float
    best: float


def judged(records: Sequence[dict[str, Any]], only: str = "") -> Iterator[Judged]:
    """What the model says of each subject."""
    for record, seconds in predictions(records, only):
        found = list(pairs(record["candidates"]))
        right = sum(seconds[faster] < seconds[slower] for faster, slower in found)
        first, second = zip(*(each["seconds"] for each in record["candidates"]), strict=True)
        picked, best = seconds.index(min(seconds)), first.index(min(first))
        name = f"{record['net']}, {record['unit']} {record['phase']}"
        yield Judged(name, right, len(found), second[0] / second[picked], second[0] / second[best])


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


@main.command()
@click.argument("target", type=click.Choice(list(TARGETS)))
@click.option("--only", default="", help="nets with this in their names")
@click.option("--compile", "compile_only", is_flag=True, help="fill the cache, and measure nothing")
def measure(target: str, only: str, compile_only: bool) -> None:
    """Measure all candidates; nothing should run beside it."""
    chosen = TARGETS[target]
    if (missing := why_not(chosen)) is not None:
        raise click.ClickException(missing)
    found = measured(resolve_target(target), only, compile_only)
    if compile_only or only:
        for each in found:
            click.echo(json.dumps(each))
        return
    RECORDS.mkdir(exist_ok=True)
    with gzip.open(RECORDS / f"{target}.jsonl.gz", "wt", encoding="utf-8") as file:
        for each in found:
            file.write(json.dumps(each) + "\n")


@main.command()
@click.option("--only", default="", help="nets with this in their names")
@click.option("--details", is_flag=True, help="a line for each subject")
def judge(only: str, details: bool) -> None:
    """What the model of now says of the candidates that were measured."""
    for path in sorted(RECORDS.glob("*.jsonl.gz")):
        found = list(judged(read(path), only))
        for each in found:
            if details:
                share = f"{each.right / each.pairs:4.0%} of {each.pairs:3}" if each.pairs else " " * 11
                click.echo(f"{share}  picked {each.picked:4.2f}×, best {each.best:4.2f}×  {each.name}")
        if found:
            right, every = sum(each.right for each in found), sum(each.pairs for each in found)
            picked, best = (geometric_mean(one) for one in ([e.picked for e in found], [e.best for e in found]))
            click.echo(
                f"{path.stem.partition('.')[0]}: {right} of {every} pairs, {right / max(1, every):.1%}; "
                f"the model's pick {picked:.2f}× as fast as the default schedule ({min(e.picked for e in found):.2f}× "
                f"to {max(e.picked for e in found):.2f}×), the best one {best:.2f}×"
            )


if __name__ == "__main__":
    main()
