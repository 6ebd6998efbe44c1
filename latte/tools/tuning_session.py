"""``latte tune-by-hand``: the phases of a layer are compiled and timed after each save of its recipe, beside the
version before, the first one, and another recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latte.explain.showing import amount
from latte.tools.tune_by_hand import Bench, Trial
from swirl.dump.compare import differences, usual_tolerance
from swirl.errors import CommandError, LatteError
from swirl.ir.phases import INFERENCE, PHASES
from swirl.measure.rates import Measured, Times
from swirl.schedule.files import read_recipe
from swirl.schedule.imports import recipe_sources
from swirl.schedule.recipe import DEFAULT_SCHEDULE

POLL_SECONDS = 0.1
NOW, BEFORE, FIRST = "now", "before", "at the start"


@dataclass
class _Earlier:
    """The versions of a phase that have run: without data, which take memory."""

    first: Trial | None = None
    before: Trial | None = None


def tries(
    bench: Bench,
    say: Callable[[str], None],
    phases: Callable[[], Sequence[str]] | None = None,
    beside: Path | None = None,
    laid_out: bool = False,
) -> Iterator[bool]:
    """Compile and time, again after each save of a file; errors in it are shown, and watching goes on.

    Args:
        bench: of the layer.
        say: shows a text.
        phases: asked before each round; by default that of ``bench``.
        beside: another recipe, which takes turns with this one.
        laid_out: whether phases that the recipe does not schedule follow, if it has changed the layout of what they
            touch.

    Yields:
        whether all phases ran, after their reports.
    """
    earlier: dict[str, _Earlier] = {}
    while True:
        recipes = [bench.paths[0], *([beside] if beside is not None else [])]
        seen = {path: _saved(path) for file in recipes for path in (file, *recipe_sources(file)[1:])}
        seen |= {path: _saved(path) for path in bench.paths}
        well = True
        try:
            wanted = [bench.phase] if phases is None else list(phases())
        except LatteError as error:
            say(str(error))
            wanted, well = [], False
        scheduled = list(wanted)
        for phase in wanted:
            own = bench if phase == bench.phase else bench.of(phase)
            other = None if beside is None else own.of(recipe=beside)
            named = phase if phase in scheduled else f"{phase}, with the layouts of {own.paths[0].name}"
            title = f"── {named} " + "─" * max(0, 60 - len(named))
            try:
                text, follow = _tried(own, other, earlier.setdefault(phase, _Earlier()))
            except LatteError as error:
                text, follow, well = str(error), (), False
            wanted += [each for each in follow if laid_out and each not in wanted]
            say(text if phases is None else f"{title}\n{text}")
            for path in (*own.paths, *(other.paths if other is not None else ())):
                seen.setdefault(path, _saved(path))  # it may build on other files now
        bench.watched = tuple({path.absolute(): path for path in reversed(seen)}.values())[::-1]
        yield well
        while all(_saved(path) in (seen[path], None) for path in seen):  # None: an editor is just replacing it
            time.sleep(POLL_SECONDS)


def scheduled_phases(bench: Bench) -> tuple[str, ...]:
    """The phases of a layer that its recipe schedules.

    Raises:
        LatteError: the file cannot be read, or schedules none of them.
    """
    if bench.recipe is None:
        return tuple(phase for phase in PHASES if phase in bench.phases and bench.file_for(phase) is not None)
    functions = read_recipe(bench.paths[0]).functions
    found = tuple(phase for phase in (*PHASES, INFERENCE) if phase in functions and phase in bench.phases)
    if not found:
        raise CommandError(
            f"schedules no phase that {bench.layer} has",
            location=str(bench.paths[0]),
            way_out=f"it has {', '.join(bench.phases)}",
        )
    return found


def _tried(bench: Bench, other: Bench | None, earlier: _Earlier) -> tuple[str, Sequence[str]]:
    """Compile a phase and measure it beside what there is to compare it with; the report, and the phases with what the
    recipe has laid out.

    Raises:
        LatteError: the recipe or the other one was refused, or they compute different things.
    """
    trial = bench.compile()
    rivals: dict[str, Trial] = {}
    if earlier.before is not None and earlier.first is not None:
        if earlier.first.kernel.name == earlier.before.kernel.name:
            rivals[f"{BEFORE}, {FIRST}"] = earlier.before
        else:
            rivals |= {BEFORE: earlier.before, FIRST: earlier.first}
    note = ""
    if other is not None:
        try:
            rival = other.compile()
            _check_same(bench, trial, other, rival)
        except LatteError as error:
            note = f"\nnot measured beside {other.paths[0].name}: {error}"
        else:
            rivals[other.paths[0].name] = rival
    kernels = {trial.kernel.name: trial}
    for each in rivals.values():
        kernels.setdefault(each.kernel.name, each)
    data = [bench.with_data(each) for each in kernels.values()]
    measured = bench.measure(*data)
    times = dict(zip(kernels, measured.kernels, strict=True))
    text = report(bench, trial, measured, {name: (each, times[each.kernel.name]) for name, each in rivals.items()})
    earlier.before = replace(trial, arrays=[])
    earlier.first = earlier.first or earlier.before
    if note:
        raise CommandError(f"{text}{note}")
    return text, trial.laid_out


def _check_same(bench: Bench, trial: Trial, other: Bench, rival: Trial) -> None:
    """Refuse to time two recipes that compute different things."""
    file = other.paths[0]
    if rival.unit != trial.unit:
        raise CommandError(
            f"it schedules {rival.unit}, and {bench.paths[0].name} schedules {trial.unit}",
            way_out="compare recipes for one layer, or for one chain",
        )
    lowered = trial.stages[0].program, rival.stages[0].program
    found, expected = bench.results(trial), other.results(rival)
    shared = [name for name in found if name in expected and lowered[0].buffers[name].role != "temporary"]
    tolerance = usual_tolerance(*lowered)
    for name in shared:
        (difference,) = differences({name: found[name]}, {name: expected[name]}, tolerance)
        if difference.first is not None:
            raise CommandError(
                f"it computes something else: {difference}",
                location=str(file),
                way_out="latte bisect finds the first stage that is wrong",
            )


# --- words --------------------------------------------------------------------------------------------------
def report(bench: Bench, trial: Trial, measured: Measured, rivals: dict[str, tuple[Trial, Times]]) -> str:
    """The result of one save of the recipe, for one phase.

    Args:
        bench: of the phase.
        trial: what the recipe has made.
        measured: it first, beside the limits.
        rivals: what it is compared with, by its name.
    """
    now = measured.kernels[0]
    runs = "1 run" if len(now.runs) == 1 else f"{len(now.runs)} runs"
    threads = "1 thread" if bench.runner.threads == 1 else f"{bench.runner.threads} threads"
    rows = [("", "minimum", "lower quartile", "median", "upper quartile", ""), _row(NOW, now, f"{runs}, {threads}")]
    for name, (rival, times) in rivals.items():
        if rival.kernel.name == trial.kernel.name:
            rows.append((name, "", "", "", "", "the same kernel"))
        else:
            rows.append(_row(name, times, f"now {times.median / now.median:.2f} times as fast"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(
            (row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:5], widths[1:], strict=True)))
        )
        + (f"   {row[5]}" if row[5] else "")
        for row in rows
    ]
    work = trial.work
    if work.operations:
        total = _at_most(work.exact) + amount(work.operations, "flop")
        what = f"multiply-adds in registers ({total})"
        lines.append(_rate(work.operations / now.median, measured.peak, "flop/s", what))
    total = _at_most(all(touched.exact for touched in work.touched)) + amount(work.bytes, "B")
    what = f"reading memory ({total}, each element once)"
    lines.append(_rate(work.bytes / now.median, measured.bandwidth, "B/s", what))
    own = [outcome for outcome in trial.outcomes if outcome.command.location != DEFAULT_SCHEDULE]
    applied = sum(outcome.status == "applied" for outcome in own)
    skipped = [outcome for outcome in own if outcome.status == "skipped"]
    compiler = f"{trial.compiling:.1f} s in the C++ compiler" if trial.compiling else "the kernel was in the cache"
    lines.append(
        f"{applied} commands applied, {len(skipped)} skipped; scheduled in {trial.scheduling:.1f} s, {compiler}"
    )
    for outcome in own:
        lines += [f"  caution  {outcome.command.location}: {outcome.command.text}: {text}" for text in outcome.cautions]
    for outcome in skipped:
        location = f"{outcome.command.location}: " if outcome.command.location else ""
        lines += [
            f"  skipped  {location}{outcome.command.text}",
            *(f"    {line}" for line in outcome.reason.splitlines()),
        ]
    for phase, error in trial.mistakes.items():
        lines.append(f"without the commands of {phase} from its mistake on ({error.location})")
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str, times: Times, note: str) -> tuple[str, str, str, str, str, str]:
    low, high = times.spread
    return name, seconds(times.minimum), seconds(low), seconds(times.median), seconds(high), note


def seconds(value: float) -> str:
    """``3.21 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError


def _rate(rate: float, limit: float, unit: str, what: str) -> str:
    return f"{amount(rate, unit)}, {rate / limit:.0%} of {amount(limit, unit)}: {what}"


def _at_most(exact: bool) -> str:
    return "" if exact else "at most "


def _saved(path: Path) -> tuple[int, int] | None:
    """What changes when the file is saved; None where it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
