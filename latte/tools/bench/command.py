"""``latte bench``: layers beside PyTorch, alternately in one run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from latte.explain.showing import amount
from latte.profiling.roofline import check_plot
from latte.tools.bench import plots
from latte.tools.bench.alternate import BOUND, LOSS_BOUND, ROUNDED, WITH_RELU, Row, measured, sides_but
from latte.tools.bench.breakdown import Operators, by_operator, by_optimisation, level_sides, operator_cases
from latte.tools.bench.cases import KINDS, SETS, TRIED, Case, cases, parsed
from latte.tools.bench.levels import LEVELS
from latte.tools.bench.ours import IN_BLOCKS, has_recipe
from latte.tools.bench.report import machine, report_console, spread
from latte.tools.bench.rounding import FACTOR, LEAST
from latte.tools.bench.sweep import Sweep, bases, code_digest, falls, measure
from latte.tools.bench.workers import (
    HELD_TO_AVX2,
    ON_ONE_THREAD,
    OURS,
    WITHOUT_RECIPES,
    Side,
    instruction_sets,
    sides,
)
from latte.tools.results import ResultFile, write_results
from swirl.config import available_cores
from swirl.errors import LatteError
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS

PHASES = ("forward", "backward", "update", "step", "inference")
UNUSED = {
    "sweep": ("set_name", "batch", "size", "phases", "rounds", "compiled", "scaling", "plot"),
    "breakdown": ("phases", "scaling", "kernels"),
    "": ("kernels",),
}
"""Options that are of no use beside another one, or without any."""


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.argument("named", nargs=-1, metavar="[SHAPE]...")
@click.option("--shape", "shapes", multiple=True, help="Another way to name one; repeatable.")
@click.option(
    "--set",
    "set_name",
    type=click.Choice(SETS),
    default="thesis",
    show_default=True,
    help="Shapes of published nets, or odd ones.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Items, of sets without a batch (64 by default), and of published nets (16 by default).",
)
@click.option(
    "--size", type=click.IntRange(1), help="Height and width of the images of published nets; 224 by default."
)
@click.option("--threads", type=click.IntRange(1, 4096), help="Of all sides; by default all cores.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice(PHASES),
    help="Repeatable; by default step: forward, backward, gradients of parameters; of published nets inference, too.",
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    help="By default the best that runs here. For avx2 PyTorch is held to AVX2, too.",
)
@click.option(
    "--layout",
    type=click.Choice(("plain", "blocks")),
    help="Of the source; by default as in a net: blocks for convolutions, but not of an image; plain for others.",
)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="How often the sides take turns.")
@click.option("--compiled/--no-compiled", default=True, show_default=True, help="Whether torch.compile is a peer.")
@click.option(
    "--scaling/--no-scaling", default=True, show_default=True, help="Whether ours is also timed on one thread."
)
@click.option("--json", "json_path", type=ResultFile(), help="All times, to a file.")
@click.option(
    "--sweep",
    is_flag=True,
    help="Our side alone, along lines through twenty base shapes (or those of KIND, or --shape): where the rate falls "
    "below half of a neighbour's. --json FILE remembers, and goes on from there.",
)
@click.option(
    "--kernels", default=500, show_default=True, type=click.IntRange(1), help="Of a sweep, measured in one run."
)
@click.option(
    "--breakdown",
    is_flag=True,
    help="bn: a step without commands, then with more and more of them; cbr: each operator alone, and all together.",
)
@click.option(
    "--default-schedule",
    is_flag=True,
    help="Beside ours also what it is without its recipes; sources are plain then.",
)
@click.option("--plot", type=ResultFile(), help="Ratios as bars, to a PNG file.")
def bench(
    kind: str,
    named: Sequence[str],
    shapes: Sequence[str],
    set_name: str,
    batch: int | None,
    size: int | None,
    threads: int | None,
    phases: Sequence[str],
    target: str | None,
    layout: str | None,
    rounds: int,
    compiled: bool,
    scaling: bool,
    json_path: Path | None,
    sweep: bool,
    kernels: int,
    breakdown: bool,
    default_schedule: bool,
    plot: Path | None,
) -> None:
    """Time a kind of layer beside PyTorch: as it comes, tuned, and compiled.

    The results of all sides are compared before anything is timed. Shapes: bn, bn-relu, relu N,C,H; pool
    N,C,H[,kernel[,stride]]; conv, cbr (convolution, batch norm, ReLU) N,C,K,H[,kernel[,stride]]; fc N,C,K;
    net N (the digits net, a whole training step); net NAME[,N[,H]] (a published net: a whole training step, and
    predict of a batch; NAME is resnet18, 34, 50, 101, 152 or googlenet); own LAYER,N,C,H (a layer without a recipe, as
    gelu,16,64,56); layer LAYER,N,C,H (one of the library, as layer-norm,16,64,56; of sequences, N items of C positions
    and H features).
    """
    shapes = (*named, *shapes)
    if sweep and breakdown:
        raise click.UsageError("--sweep or --breakdown")
    _check(kind, shapes, "sweep" if sweep else "breakdown" if breakdown else "", default_schedule, layout, plot)
    count = threads or available_cores()
    if sweep:
        _sweep(kind, shapes, count, target, layout, json_path, kernels)
        return
    given = {name: number for name, number in (("batch", batch), ("extent", size)) if number is not None}
    wanted = [parsed(kind, text, **given) for text in shapes] or cases(kind, set_name, batch or 64)
    _check_cases(wanted, phases, size)
    for case in wanted if default_schedule else ():
        if not has_recipe(case):
            raise click.UsageError(f"{case} has no recipe: it gets the default schedule as it is")
    console = report_console()
    about = _about(console, resolve_target(target).name, count, wanted)
    run = _Run(console, about, count, target, "plain" if default_schedule else layout, rounds, json_path)
    peers = sides(about["target"], compiled)
    title = f"{kind}, {about['target']}, {count} threads"
    if breakdown and kind == "bn":
        steps = _by_optimisation(run, wanted, peers)
        if plot is not None:
            plots.optimisations(steps, title, plot)
        return
    if breakdown:
        parts = [_operators(run, case, peers) for case in wanted]
        console.print(by_operator(parts))
        if plot is not None:
            plots.operators(parts, title, plot)
        return
    if scaling and count > 1:
        peers.insert(1, ON_ONE_THREAD)
    if default_schedule:
        peers.insert(1, WITHOUT_RECIPES)
    for case in wanted:
        usual = case.phases if case.published else case.phases[:1]
        run.measure(case, phases or usual, peers, case.comes_in_blocks)
    console.print(table(run.rows))
    if plot is not None:
        plots.ratios(run.rows, title, plot)


def _check(
    kind: str | None, shapes: Sequence[str], mode: str, default_schedule: bool, layout: str | None, plot: Path | None
) -> None:
    """Refuse options that do not go together, and a plot that cannot be drawn, before anything is measured.

    Args:
        mode: ``sweep``, ``breakdown``, or neither.
    """
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in UNUSED[mode] and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT:
            why = f"is not used by --{mode}" if mode else "is of --sweep"
            raise click.UsageError(f"{option.opts[0]} {why}")
    if plot is not None:
        try:
            check_plot(plot)
        except LatteError as error:
            raise click.ClickException(str(error)) from error
    if kind is None and (mode != "sweep" or shapes):
        raise click.UsageError(f"name a kind of layer: {', '.join(KINDS)}{'' if shapes else '; or --sweep'}")
    if shapes and context.get_parameter_source("set_name") is not ParameterSource.DEFAULT:
        raise click.UsageError("--shape or --set")
    if default_schedule and (mode or layout == "blocks" or kind == "net"):
        beside = f"--{mode}" if mode else "whole nets" if kind == "net" else "--layout blocks"
        raise click.UsageError(f"--default-schedule is not for {beside}")
    if layout == "blocks" and kind is not None and kind not in IN_BLOCKS:
        raise click.UsageError(f"{kind} has no source in blocks here: --layout plain")
    if mode == "sweep" and kind in (*TRIED, "net"):
        raise click.UsageError("--sweep is not for layers by name, or nets")
    if mode == "breakdown" and kind not in ("bn", "cbr"):
        raise click.UsageError("--breakdown is for bn and cbr")


def _check_cases(wanted: Sequence[Case], phases: Sequence[str], size: int | None) -> None:
    """Refuse phases and sizes that a case does not have."""
    for case in wanted:
        for phase in phases:
            if phase not in case.phases:
                raise click.UsageError(f"{case} is timed by {' or '.join(case.phases)}, not {phase}")
    if size is not None and not any(case.published for case in wanted):
        raise click.UsageError("--size is of published nets, as in latte bench net resnet50 --size 224")


@dataclass
class _Run:
    """Cases measured one after the other; each row is printed and kept as soon as it is there.

    Args:
        console: to print to.
        about: what the figures belong to.
        threads, target: as asked for.
        layout: of sources; by default as a case says.
        rounds: how often the sides take turns.
        path: of the JSON file, if there is to be one.
        rows: that have been measured.
    """

    console: Console
    about: dict[str, Any]
    threads: int
    target: str | None
    layout: str | None
    rounds: int
    path: Path | None
    rows: list[Row] = field(default_factory=list)

    def measure(self, case: Case, phases: Sequence[str], with_sides: Sequence[Side], in_blocks: bool) -> list[Row]:
        """Measure a case. Its source is in blocks of channels if ``in_blocks``, unless a layout was asked for; it is
        plain if this kind of layer has no recipe for blocks here."""
        blocks = case.kind in IN_BLOCKS and (self.layout == "blocks" if self.layout else in_blocks)
        with self.console.status(str(case)) as status:
            follow = status.update if self.console.is_terminal or case.published is None else _print_progress
            try:
                rows = measured(case, phases, with_sides, self.threads, self.target, blocks, self.rounds, follow)
            except LatteError as error:
                raise click.ClickException(str(error)) from error
        for row in rows:
            self.console.print(line(row), highlight=False)
        self.rows += rows
        if self.path is not None:  # after each case: an interrupted run loses nothing
            write_results(self.path, as_json(self.about, self.rows) + "\n")
        return rows


def _print_progress(progress: str) -> None:
    """What is being done, a line each to stderr: for files and pipes, where a status line is not seen."""
    click.echo(progress, err=True)


def _by_optimisation(run: _Run, wanted: Sequence[Case], peers: Sequence[Side]) -> list[Row]:
    """Steps of batch norm at each level of its recipe; printed as a table."""
    own, *others = peers
    compared = [own, *level_sides(), *others]
    steps = [run.measure(case, ["step"], compared, case.comes_in_blocks)[0] for case in wanted]
    for row in steps:
        for name in set(LEVELS) & row.missing.keys():
            raise click.ClickException(f"{row.case}: {name} was not measured: {row.missing[name]}")
    run.console.print(by_optimisation(steps))
    return steps


def _operators(run: _Run, case: Case, peers: Sequence[Side]) -> Operators:
    """A Conv-BN-ReLU, and its operators alone."""

    def measure(part: Case) -> dict[str, Row]:
        rows = run.measure(part, ["forward", "step"], peers, part.fills_blocks)
        return {row.phase: row for row in rows}

    return Operators(measure(case), {name: measure(part) for name, part in operator_cases(case).items()})


def _sweep(
    kind: str | None,
    shapes: Sequence[str],
    threads: int,
    target: str | None,
    layout: str | None,
    path: Path | None,
    kernels: int,
) -> None:
    """Measure the points of a sweep and print where the rate falls."""
    console = report_console()
    about = {"machine": machine(), "target": resolve_target(target).name, "threads": threads, "code": code_digest()}
    console.print(f"{about['machine']}\n{about['target']}, {threads} threads")
    blocks = None if layout is None else layout == "blocks"
    try:
        sweep = Sweep(bases(kind, shapes), about, blocks, path)
        with console.status("") as status:
            sweep.run(kernels, status.update, lambda point: measure(point, threads, target))
    except LatteError as error:
        raise click.ClickException(str(error)) from error
    for text in sweep.points:
        if text in sweep.found and sweep.found[text].failed:
            console.print(f"{text} FAILED: {sweep.found[text].failed}", highlight=False)
    found = falls(sweep.lines, sweep.found)
    for fall in found:
        console.print(str(fall), highlight=False)
    console.print(f"{len(found)} falls at {len(sweep.points) - len(sweep.missing)} of {len(sweep.points)} points")
    if sweep.missing:
        again = "the same command goes on" if path else "--json FILE remembers them, so that a second run can go on"
        console.print(f"{len(sweep.missing)} points are left: {again}")


def _about(console: Console, target: str, threads: int, wanted: Sequence[Case]) -> dict[str, Any]:
    """What the figures belong to; printed."""
    held = HELD_TO_AVX2 if target == "avx2" else {}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    bound = "; ".join(dict.fromkeys(map(_bound, wanted)))
    found = {
        "machine": machine(),
        "target": target,
        "threads": threads,
        "cores": cores,
        "bound": bound,
        "peers use": instruction_sets(held),
    }
    console.print(found["machine"])
    on = f"{threads} thread{'s' * (threads > 1)} on core{'s' * (len(cores) > 1)} {', '.join(map(str, cores))}"
    console.print(f"{target}, {on}; results agree within {bound}")
    console.print(f"PyTorch's libraries use {found['peers use']}")
    return found


def _bound(case: Case) -> str:
    """Within which the results of a case agree."""
    if case.published is not None:
        return f"{FACTOR:g} times what noise in every layer's values moves each result, or {LEAST:g} of its norm"
    if case.kind == "net":
        return f"{LOSS_BOUND:g} of each loss"
    found = f"{BOUND:g} of the greatest element"
    if case.kind in WITH_RELU:
        found += f" (gradients but where {ROUNDED:g} of the ReLU's values reach: rounding decides those)"
    return found


def line(row: Row) -> str:
    """A row as soon as it is measured."""
    parts = [f"{row.case} {row.phase}: {OURS} {spread(row.seconds[OURS])}, {row.share:.0%} of the limit"]
    parts += [f"{amount(row.planned, 'B')} of memory planned"] * bool(row.planned)
    parts += [f"{name} {row.ratio(name):.2f}×" for name in row.seconds if name != OURS]
    parts += [f"{name} not measured: {why}" for name, why in row.missing.items()]
    if row.noisy:
        parts.append(f"NOISY: {', '.join(row.noisy)}")
    if row.shared_core:
        parts.append(f"threads shared a core: {', '.join(row.shared_core)}")
    return "; ".join(parts)


def table(rows: Sequence[Row]) -> Table:
    """All rows: times, ratios to ours, rates, and shares of the machine's limits."""
    peers = sides_but(rows, OURS)
    made = Table(
        "case",
        "phase",
        OURS,
        "least",
        *(f"{name} / {OURS}" for name in peers),
        "tuned",
        "GFLOP/s",
        "GB/s",
        "of the limit",
        "difference",
        "",
    )
    for row in rows:
        ratios = [f"{row.ratio(name):.2f}" if name in row.seconds else "–" for name in peers]
        tuned = f"{row.ratio(row.tuned):.2f}" if row.tuned else "–"
        rates = [f"{amount / row.median() / 1e9:.1f}" for amount in (row.operations, row.bytes)]
        bound = "arithmetic" if row.operations / row.peak > row.bytes / row.bandwidth else "memory"
        made.add_row(
            str(row.case),
            row.phase,
            spread(row.seconds[OURS]),
            f"{min(row.seconds[OURS]) * 1e3:.3f} ms",
            *ratios,
            tuned,
            *rates,
            f"{row.share:.0%} ({bound})",
            f"{max(row.differences.values(), default=0.0):.1e}",
            ", ".join(["noisy"] * bool(row.noisy) + ["shared a core"] * bool(row.shared_core)),
        )
    made.add_section()
    made.add_row("geometric mean", "", "", "", *(_mean(rows, name) for name in peers), _mean(rows, ""))
    return made


def _mean(rows: Sequence[Row], name: str) -> str:
    """Of the ratios of a peer, or of the fastest one."""
    found = [row.ratio(name or row.tuned) for row in rows if (name or row.tuned) in row.seconds]
    return f"{geometric_mean(found):.2f}" if found else "–"


def as_json(about: dict[str, Any], rows: Sequence[Row]) -> str:
    """Everything that was measured."""
    derived = [
        {
            "tuned": row.tuned,
            "limit": row.limit,
            "share": row.share,
            "noisy": row.noisy,
            "shared a core": row.shared_core,
            "ratios": {name: row.ratio(name) for name in row.seconds if name != OURS},
        }
        for row in rows
    ]
    return json.dumps(
        {**about, "rows": [{**asdict(row), **more} for row, more in zip(rows, derived, strict=True)]}, indent=2
    )
