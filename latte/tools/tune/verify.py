"""``latte tune --verify``: whether the entries of a folder are still legal, right and faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.planning.plan import make_plan
from latte.tools.net_files import load_net
from latte.tools.tune.files import entries_of, text_of, without_entries, write_checked
from latte.tools.tune.session import FINAL_RUNS
from swirl.errors import CommandError, LatteError
from swirl.schedule.command_log import EntryUse
from swirl.schedule.entries import Entry, key_of
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.machine import resolve_target, why_not
from swirl.target.targets import TARGETS
from swirl.tune.evaluation import Evaluator
from swirl.tune.log import MEASURED, SubjectLine, commands_of, read_log, subject_of


@dataclass(frozen=True)
class Verdict:
    """What is to become of an entry.

    Args:
        keep: whether it stays.
        told: why.
    """

    keep: bool
    told: str


def verify(folder: Path, file: Path | None, target: str | None, tell: Callable[[str], None]) -> None:
    """Measure the entries of a folder again, beside the schedules that they were found beside, and take out those that
    are refused, compute something else, or are not faster.

    Args:
        folder: of recipes of entries, with their log.
        file: of a net: entries that are stale for it are taken out, too.
        target: only entries for it; by default all that this machine runs.
        tell: is told of each entry.

    Raises:
        CommandError: there are no entries.  LatteError: a file cannot be read or written.
    """
    found = [(path, entry) for path, entry in entries_of(folder) if target in (None, entry.target)]
    if not found:
        raise CommandError(f"{folder} has no entries{f' for {target}' if target else ''}")
    stale = {_place(use): use for use in _stale(file, folder, target)} if file is not None else {}
    lines = [line for line in read_log(folder) if isinstance(line, SubjectLine)]
    for path, entry in found:
        use = stale.get(_place(entry))
        verdict = Verdict(False, f"stale: {use.told}") if use is not None else _verdict(entry, lines)
        tell(f"{path.name} {entry.name}, {entry.target}: {'' if verdict.keep else 'taken out: '}{verdict.told}")
        if not verdict.keep:
            write_checked(path, without_entries(text_of(path), [entry.name], path))


def _stale(file: Path, folder: Path, target: str | None) -> Iterator[EntryUse]:
    net = load_net(file)
    net.graph.settings.recipes = (folder, *net.graph.settings.recipes)
    with Memos() as memos, KeptSchedules(memos, resolve_target(target)) as kept:
        plan = make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, net.batch_size)), kept)
        yield from (use for _, use in plan.stale_entries())


def _place(of: Entry | EntryUse) -> tuple[Path, str]:
    """The file of an entry, and its name there."""
    return Path(of.location.rpartition(":")[0]).absolute(), of.name


def _verdict(entry: Entry, lines: list[SubjectLine]) -> Verdict:
    target = TARGETS[entry.target]
    missing = why_not(target)
    if missing is not None:
        return Verdict(True, f"not measured: {missing}")
    made_for = resolve_target(entry.target)
    for line in reversed(lines):
        if (line.target, line.phase) != (entry.target, entry.phase):
            continue
        subject = subject_of(line, made_for)
        if key_of(subject.program) != entry.nests:
            continue
        known = subject.after(commands_of(line.known))
        try:
            candidate = subject.by(entry.function)
        except LatteError as error:
            return Verdict(False, error.message)
        if candidate.key == known.key:
            return Verdict(False, "it is the schedule that there is without it")
        with Evaluator(subject, known, entry.threads or line.threads, line.items) as evaluator:
            (timed,) = evaluator.measure([candidate], FINAL_RUNS)
        if timed.outcome != MEASURED or timed.ratio is None:
            return Verdict(False, timed.told)
        return Verdict(timed.ratio < 1, f"{1 / timed.ratio:.2f} times as fast as without it")
    return Verdict(True, "not measured: the log has no line for it")
