"""``latte bench``: layers beside PyTorch, alternately in one run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from latte.tools.bench.alternate import BEYOND, BOUND, LOSS_BOUND, Row, measured
from latte.tools.bench.cases import KINDS, SETS, cases, parsed
from latte.tools.bench.report import machine, report_console, spread
from latte.tools.bench.workers import HELD_TO_AVX2, OURS, instruction_sets, sides
from swirl.config import available_cores
from swirl.errors import LatteError
from swirl.target import TARGETS, resolve_target

PHASES = ("forward", "backward", "update", "step")


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--shape", "shapes", multiple=True, help="Numbers with commas between them, batch first; repeatable.")
@click.option(
    "--set",
    "set_name",
    type=click.Choice(SETS),
    default="thesis",
    show_default=True,
    help="Shapes of published nets, or odd ones.",
)
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1), help="Items, of sets without a batch.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Of all sides; by default all cores.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice(PHASES),
    default=("step",),
    show_default=True,
    help="Repeatable; a step is forward, backward and the parameters' gradients.",
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    help="By default the best that runs here. For avx2 PyTorch is held to AVX2, too.",
)
@click.option(
    "--layout",
    type=click.Choice(("plain", "blocks")),
    help="Of the source; by default blocks for convolutions, as in a net, and plain for others.",
)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="How often the sides take turns.")
@click.option("--compiled/--no-compiled", default=True, show_default=True, help="Whether torch.compile is a peer.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="All times, to a file.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Ratios as bars, to a PNG file.")
def bench(
    kind: str,
    shapes: Sequence[str],
    set_name: str,
    batch: int,
    threads: int | None,
    phases: Sequence[str],
    target: str | None,
    layout: str | None,
    rounds: int,
    compiled: bool,
    json_path: Path | None,
    plot: Path | None,
) -> None:
    """Time a kind of layer beside PyTorch: as it comes, tuned, and compiled.

    The results of all sides are compared before anything is timed. Shapes: bn, bn-relu, relu N,C,H; pool
    N,C,H[,kernel[,stride]]; conv, cbr (convolution, batch norm, ReLU) N,C,K,H[,kernel[,stride]]; fc N,inputs,outputs;
    net N (the digits net, a whole training step); own LAYER,N,C,H (a layer without a recipe, as gelu,16,64,56).
    """
    wanted = [parsed(kind, text) for text in shapes] or cases(kind, set_name, batch)
    count = threads or available_cores()
    blocks = layout == "blocks" if layout else kind in ("conv", "cbr")
    console = report_console()
    about = _about(console, resolve_target(target).name, count, kind)
    found: list[Row] = []
    for case in wanted:
        with console.status(str(case)) as status:
            try:
                rows = measured(
                    case, phases, sides(about["target"], compiled), count, target, blocks, rounds, status.update
                )
            except LatteError as error:
                raise click.ClickException(str(error)) from error
        for row in rows:
            console.print(line(row), highlight=False)
        found += rows
        if json_path is not None:  # after each case: an interrupted run loses nothing
            json_path.write_text(as_json(about, found) + "\n")
    console.print(table(found))
    if plot is not None:
        draw(found, about, plot)


def _about(console: Console, target: str, threads: int, kind: str) -> dict[str, Any]:
    """What the figures belong to; printed."""
    held = HELD_TO_AVX2 if target == "avx2" else {}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    bound = f"{LOSS_BOUND:g} of each loss" if kind == "net" else f"{BOUND:g} of the greatest element"
    if kind in BEYOND:
        bound += f" (but for {BEYOND[kind]:g} of the source's gradient, where rounding decides a ReLU)"
    found = {
        "machine": machine(),
        "target": target,
        "threads": threads,
        "cores": cores,
        "bound": bound,
        "peers use": instruction_sets(held),
    }
    console.print(found["machine"])
    console.print(f"{target}, {threads} threads on cores {', '.join(map(str, cores))}; results agree within {bound}")
    console.print(f"PyTorch's libraries use {found['peers use']}")
    return found


def line(row: Row) -> str:
    """A row as soon as it is measured."""
    parts = [f"{row.case} {row.phase}: {OURS} {spread(row.seconds[OURS])}, {row.share:.0%} of the limit"]
    parts += [f"{name} {row.ratio(name):.2f}×" for name in row.seconds if name != OURS]
    parts += [f"{name} not measured: {why}" for name, why in row.missing.items()]
    if row.noisy:
        parts.append(f"NOISY: {', '.join(row.noisy)}")
    return "; ".join(parts)


def table(rows: Sequence[Row]) -> Table:
    """All rows: times, ratios to ours, rates, and shares of the machine's limits."""
    peers = list(dict.fromkeys(name for row in rows for name in row.seconds if name != OURS))
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
            "noisy" if row.noisy else "",
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
            "ratios": {name: row.ratio(name) for name in row.seconds if name != OURS},
        }
        for row in rows
    ]
    return json.dumps(
        {**about, "rows": [{**asdict(row), **more} for row, more in zip(rows, derived, strict=True)]}, indent=2
    )


def draw(rows: Sequence[Row], about: dict[str, Any], path: Path) -> None:
    """How many times as fast as each peer, a group of bars for each row.

    Raises:
        click.ClickException: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException("--plot needs matplotlib: pip install 'latte[examples]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    peers = list(dict.fromkeys(name for row in rows for name in row.seconds if name != OURS))
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.2 * len(rows)), 4.5))
    figure.set_layout_engine("constrained")
    width = 0.8 / max(1, len(peers))
    for number, name in enumerate(peers):
        places = [at + number * width for at, row in enumerate(rows) if name in row.seconds]
        axes.bar(places, [row.ratio(name) for row in rows if name in row.seconds], width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(
        [at + 0.4 - width / 2 for at in range(len(rows))],
        [f"{row.case.shape}\n{row.phase}" for row in rows],
        rotation=45,
        ha="right",
    )
    axes.set_ylabel(f"time / {OURS}'s time")
    axes.set_title(f"{rows[0].case.kind}, {about['target']}, {about['threads']} threads", fontsize=10)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
