"""What searching for schedules is worth: layers tuned one by one, and searches replayed on logs.

    python benchmarks/tuning.py layers [--of own] [--seconds 60] [--json FILE]    # a row a phase: default, tuned
    python benchmarks/tuning.py record "own gelu,16,64,28" --phase forward        # a log of 1,000 random draws
    python benchmarks/tuning.py replay                                            # searches on the logs that are kept
    python benchmarks/tuning.py automcl                                           # AutoMCL's figures: see automcl.py

``layers`` searches each phase of convolutions, chains, fully connected layers and layers of one's own for so many
seconds, and prints how many times as fast the schedule that was found is as the one that the phase has, measured again
in another process, in turns. Phases above 90 % of the machine's limit are searched, too: the right answer there is
none. ``record`` adds to a file in ``benchmarks/tuning``; ``tests/tune/test_replay.py`` replays these. Nothing else
should run beside ``layers`` and ``record``.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import geometric_mean
from time import monotonic

import click
from automcl import automcl
from rich.console import Console
from rich.table import Table

from latte.tools.bench.cases import Case, parsed
from latte.tools.bench.ours import declared
from latte.tools.bench.report import machine
from latte.tools.tune.session import Known, Machine, search, subject_line
from latte.tools.tune.subjects import Tunable, tunables
from swirl.config import settings
from swirl.errors import LatteError
from swirl.target.machine import resolve_target
from swirl.tune.evaluation import Evaluator, line_of
from swirl.tune.log import CandidateLine, Log, read_log
from swirl.tune.replay import best_after
from swirl.tune.searches import BATCH, SEARCHES

LOGS = Path(__file__).with_name("tuning")
TRIALS, SEEDS = (10, 30, 100, 300), 20
GROUPS: dict[str, tuple[str, ...]] = {
    "conv": (
        "conv 64,64,64,56,3,1",
        "conv 64,128,128,28,3,1",
        "conv 64,256,256,14,3,1",
        "conv 64,512,512,7,3,1",
        "conv 64,256,64,56,1,1",
        "conv 64,64,256,56,1,1",
        "conv 64,512,1024,28,1,2",
        "conv 64,3,64,224,7,2",
        "conv 16,192,96,28,3,1",
        "conv 16,832,128,7,5,1",
    ),
    "yolo": (
        "conv 1,3,32,544,3,1",
        "conv 1,32,64,272,3,1",
        "conv 1,64,128,136,3,1",
        "conv 1,128,256,68,3,1",
        "conv 1,256,512,34,3,1",
        "conv 1,512,1024,17,3,1",
        "conv 1,1024,512,17,1,1",
    ),
    "odd": ("conv 7,33,47,29,3,1", "conv 5,17,100,31,5,2", "fc 37,1000,333", "cbr 9,24,40,27,3,1", "fc 3,4097,129"),
    "chains": ("cbr 64,64,64,56,3,1", "cbr 64,256,256,14,3,1", "cbr 16,128,128,28,3,1", "cbr 16,64,256,56,1,1"),
    "fc": ("fc 64,2048,1000", "fc 128,784,512", "fc 1,4096,4096", "fc 256,512,512"),
    "own": (
        "own gelu,16,64,28",
        "own layer-norm,16,64,28",
        "own group-norm,16,64,28",
        "own rms-norm,16,64,28",
        "own l2,16,64,28",
        "own softmax,16,64,28",
        "own squeeze,16,64,28",
        "own mean-pool,16,64,28",
        "own depthwise,16,64,28",
        "own grouped,16,64,28",
        "own transposed,16,64,28",
        "own attention,16,64,64",
    ),
}
"""What ``layers`` tunes, as ``latte bench`` takes it: batch, channels, filters, extent, kernel, stride."""


def cases(group: str, only: str) -> Iterator[tuple[str, Case]]:
    """Group and case."""
    for name, texts in GROUPS.items():
        for text in texts if group in ("", name) else ():
            if only in text:
                kind, _, shape = text.partition(" ")
                yield name, parsed(kind, shape)


def of_case(case: Case, target: str | None, threads: int) -> tuple[list[Tunable], Machine, int]:
    """The phases of a case, in a net of these layers alone."""
    net, _, members = declared(case)
    made_for = resolve_target(target)
    found, _ = tunables(net, made_for, threads)
    names = {member.name for member in members}
    own = [each for each in found if names & {member.name for member in each.unit.members}]
    return own, Machine.measured(made_for, threads), net.batch_size


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


_TARGET = click.option("--target", help="by default the best that this machine runs")
_THREADS = click.option("--threads", type=int, help="by default all cores")


@main.command()
@click.option("--of", "group", default="", help=f"only one of {', '.join(GROUPS)}")
@click.option("--only", default="", help="cases with this in their names")
@click.option("--seconds", default=60.0, show_default=True, help="of the search of a phase")
@click.option("--phase", "phases", multiple=True, help="by default all")
@click.option("--method", type=click.Choice(list(SEARCHES)), default="regression", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the rows there as well")
@_TARGET
@_THREADS
def layers(
    group: str,
    only: str,
    seconds: float,
    phases: Sequence[str],
    method: str,
    json_file: Path | None,
    target: str | None,
    threads: int | None,
) -> None:
    """Tune layers one by one."""
    count, rows = threads or settings().threads, []
    with tempfile.TemporaryDirectory() as scratch:
        log = Log(Path(scratch))
        for name, case in cases(group, only):
            own, found_on, items = of_case(case, target, count)
            for each in own:
                if phases and each.phase not in phases:
                    continue
                try:
                    found = search(each, found_on, items, seconds, method, 0, log, Known({}), click.echo)
                except LatteError as error:
                    click.echo(f"{case} {each.name}: {error}", err=True)
                    continue
                before = found.known or found.measured
                row = {
                    "group": name,
                    "case": str(case),
                    "phase": each.name,
                    "limit": found.limit / before,
                    "tuned": found.ratio,
                    "default": before / found.default if found.default else 0.0,
                    "tried": found.tried,
                    "refused": found.refused,
                }
                rows.append(row)
                click.echo(json.dumps(row), err=True)
    _print(rows, seconds, count, target)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine(), "seconds": seconds, "rows": rows}, indent=1) + "\n")


def _print(rows: Sequence[dict[str, object]], seconds: float, threads: int, target: str | None) -> None:
    console = Console()
    console.print(f"{machine()}\n{resolve_target(target).name}, {threads} threads, {seconds:.0f} s a phase")
    table = Table(box=None)
    for heading in ("case", "phase", "of limit", "default", "tuned", "tried", "refused"):
        table.add_column(heading, justify="left" if heading in ("case", "phase") else "right")
    for row in rows:
        default = f"{row['default']:.2f}" if row["default"] else ""
        counts = str(row["tried"]), str(row["refused"])
        table.add_row(
            str(row["case"]), str(row["phase"]), f"{row['limit']:.0%}", default, f"{row['tuned']:.2f}", *counts
        )
    console.print(table)
    for name, low, high in (("below 75 % of the limit", 0.0, 0.75), ("above 90 %", 0.9, 100.0), ("all", 0.0, 100.0)):
        some = [float(str(row["tuned"])) for row in rows if low <= float(str(row["limit"])) < high]
        if some:
            console.print(f"{name}: {len(some)} phases, tuned {geometric_mean(some):.3f} times as fast")


@main.command()
@click.argument("case")
@click.option("--phase", required=True)
@click.option("--draws", default=1000, show_default=True)
@_TARGET
@_THREADS
def record(case: str, phase: str, draws: int, target: str | None, threads: int | None) -> None:
    """Measure random draws of a layer's space; what the file has already is not measured again."""
    kind, _, shape = case.partition(" ")
    asked, count = parsed(kind, shape), threads or settings().threads
    own, found_on, items = of_case(asked, target, count)
    each = next(each for each in own if each.phase == phase)
    LOGS.mkdir(exist_ok=True)
    name = f"{case} {phase} {found_on.target.name}".replace(" ", "-").replace(",", "x")
    path = LOGS / f"{name}.jsonl.gz"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if path.exists():
            (folder / "log.jsonl").write_bytes(gzip.decompress(path.read_bytes()))
        known = {line.key for line in read_log(folder) if isinstance(line, CandidateLine)}
        log = Log(folder)
        pool = found_on.pool(each)
        pool.seen |= known
        random, start = Random(len(known)), monotonic()
        with Evaluator(each.subject, each.known, count, items, click.echo) as evaluator:
            if not known:
                log.tell(subject_line(each, found_on, items, found_on.limit(each) / evaluator.best))
            while len(known) < draws:
                batch = [draw for draw in (pool.draw(random) for _ in range(BATCH)) if draw is not None]
                if not batch:
                    break
                found = evaluator.measure([draw.point.candidate for draw in batch])
                for draw, timed in zip(batch, found, strict=True):
                    log.tell(line_of(draw, timed, each.key, "random", 0))
                    known.add(draw.point.key)
                click.echo(f"{len(known)} draws, {(monotonic() - start) / len(known):.2f} s each", err=True)
                path.write_bytes(gzip.compress(log.path.read_bytes(), mtime=0))


@main.command()
def replay() -> None:
    """The best time that each search has found after so many trials, beside the best of the log."""
    table = Table(box=None)
    table.add_column("log")
    table.add_column("search")
    for count in TRIALS:
        table.add_column(str(count), justify="right")
    for path in sorted(LOGS.glob("*.jsonl.gz")):
        lines = [line for line in read_log(path) if isinstance(line, CandidateLine)]
        for name, values in best_after(lines, TRIALS, SEEDS).items():
            table.add_row(path.name.partition(".")[0], name, *(f"{value:.3f}" for value in values))
    Console().print(table)


main.add_command(automcl)


if __name__ == "__main__":
    main()
