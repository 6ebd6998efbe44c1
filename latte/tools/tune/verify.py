"""``latte tune --verify``: whether the entries of a folder are still legal, right and faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.planning.plan import make_plan
from latte.tools.net_files import load_net
from latte.tools.tune.files import drop_entries
from latte.tools.tune.session import FINAL_RUNS
from swirl.errors import CommandError, LatteError, RecipeError
from swirl.schedule.command_log import EntryUse, shown
from swirl.schedule.entries import Entry, key_of
from swirl.schedule.files import read_recipe
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.machine import resolve_target, why_not
from swirl.target.targets import TARGETS, Target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.evaluation import Evaluator
from swirl.tune.layouts import PhasesEvaluator
from swirl.tune.log import (
    FILE,
    MEASURED,
    CandidateLine,
    Line,
    ResultLine,
    SubjectLine,
    commands_of,
    read_log,
    subject_of,
)

HOLDS, FAILS, LEGAL, UNKNOWN = "holds", "fails", "legal", "not verified"
"""Verdicts: it is legal, right and faster; it is not; its commands apply, but this machine does not run its target; the
log has nothing that it could be measured beside."""


@dataclass(frozen=True)
class Verdict:
    """What an entry is.

    Args:
        name: of it: :data:`HOLDS` and its like.
        told: why.
    """

    name: str
    told: str

    def __str__(self) -> str:
        return f"{self.name}: {self.told}"


def verify(folder: Path, file: Path | None, target: str | None, drop: bool, tell: Callable[[str], None]) -> bool:
    """Measure the entries of a folder again, beside the schedules that they were found beside. Nothing is changed,
    unless it is asked for: what fails may be what somebody has just edited.

    Args:
        folder: of recipes of entries, with their log.
        file: of a net: entries that are stale for it fail, too.
        target: only entries for it; by default all.
        drop: whether entries that fail are removed, with their functions; of a file, the text as it was is kept.
        tell: is told of each entry, and of what is removed.

    Returns:
        whether nothing is left that fails, or cannot be verified.

    Raises:
        CommandError: there are no entries.  LatteError: a file cannot be read or written.
    """
    found, unread = _entries(folder, target)
    if not found and not unread:
        raise CommandError(f"{folder} has no entries{f' for {target}' if target else ''}")
    for path, error in unread.items():
        tell(f"{path.name}: {FAILS}: {error}")
    stale = {_place(use): use for use in _stale(file, folder, target)} if file is not None else {}
    lines = list(read_log(folder))
    verdicts: list[Verdict] = []
    failing: dict[Path, list[str]] = {}
    for path, entry in found:
        use = stale.get(_place(entry))
        verdict = Verdict(FAILS, f"stale: {use.told}") if use is not None else _verdict(path, entry, lines)
        tell(f"{path.name} {entry.name}, {entry.target}: {verdict}")
        verdicts.append(verdict)
        if verdict.name == FAILS:
            failing.setdefault(path, []).append(entry.name)
    counts = {name: sum(verdict.name == name for verdict in verdicts) for name in (HOLDS, LEGAL, FAILS, UNKNOWN)}
    tell(", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing was verified")
    if drop:
        for path, names in failing.items():
            kept = drop_entries(path, names)
            tell(f"removed from {path}: {', '.join(names)}; {kept} is the file as it was")
    elif failing:
        files = " and ".join(map(str, failing))
        tell(f"nothing is removed: edit {files}, or --verify {folder} --drop removes what fails")
    return not unread and not counts[UNKNOWN] and (drop or not failing)


def _entries(folder: Path, target: str | None) -> tuple[list[tuple[Path, Entry]], dict[Path, RecipeError]]:
    """The entries of a folder's recipes; and files that cannot be read."""
    found: list[tuple[Path, Entry]] = []
    unread: dict[Path, RecipeError] = {}
    for path in sorted(folder.glob("*.py")):
        try:
            found += [(path, entry) for entry in read_recipe(path).entries if target in (None, entry.target)]
        except RecipeError as error:
            unread[path] = error
    return found, unread


def _stale(file: Path, folder: Path, target: str | None) -> Iterator[EntryUse]:
    net = load_net(file)
    net.graph.settings.recipes = (folder, *net.graph.settings.recipes)
    with Memos() as memos, KeptSchedules(memos, resolve_target(target)) as kept:
        plan = make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, net.batch_size)), kept)
        yield from (use for _, use in plan.stale_entries())


def _place(of: Entry | EntryUse) -> tuple[Path, str]:
    """The file of an entry, and its name there."""
    return Path(of.location.rpartition(":")[0]).absolute(), of.name


def _verdict(path: Path, entry: Entry, lines: Sequence[Line]) -> Verdict:
    target = TARGETS[entry.target]
    missing = why_not(target)
    made_for = target if missing is not None else resolve_target(entry.target)
    found = list(_measured_beside(entry, lines, made_for))
    if not found:
        return Verdict(UNKNOWN, f"{FILE} has no line for its nests, which says what to measure it beside")
    subject = found[0][1]
    try:
        candidate = _candidate(path, entry, subject)
    except LatteError as error:
        return Verdict(FAILS, str(error))
    subjects = {line.subject: line for line in lines if isinstance(line, SubjectLine)}
    chosen = _layouts_chosen(candidate, found, lines, subjects)
    line, known, after = chosen or (*_alone(found), ())
    if candidate.key == known.key:
        return Verdict(FAILS, "it is the schedule that there is without it")
    if candidate.layouts != known.layouts and chosen is None:
        return Verdict(UNKNOWN, f"it chooses layouts that {FILE} does not know, and phases are not measured together")
    if missing is not None:
        return Verdict(LEGAL, f"not measured: {missing}")
    threads = entry.threads or line.threads
    with (
        Evaluator(subject, known, threads, line.items)
        if chosen is None
        else _together(subject, known, line, after, subjects, threads)
    ) as evaluator:
        (timed,) = evaluator.measure([candidate], FINAL_RUNS)
    if timed.outcome != MEASURED or timed.ratio is None:
        return Verdict(FAILS, f"{timed.outcome}: {timed.told}")
    what = "" if chosen is None else ", with the phases that have its layouts"
    return Verdict(HOLDS if timed.ratio < 1 else FAILS, f"{1 / timed.ratio:.2f} times as fast as without it{what}")


def _measured_beside(entry: Entry, lines: Sequence[Line], target: Target) -> Iterator[tuple[SubjectLine, Subject]]:
    """The lines of the log with the nests of an entry, and these, the last ones first."""
    for line in reversed(lines):
        if isinstance(line, SubjectLine) and (line.target, line.phase) == (entry.target, entry.phase):
            subject = subject_of(line, target)
            if key_of(subject.program) == entry.nests:
                yield line, subject


def _alone(found: Sequence[tuple[SubjectLine, Subject]]) -> tuple[SubjectLine, Candidate]:
    """The last line of a phase by itself, with the schedule that it had."""
    line, subject = next((each for each in found if not each[0].together), found[0])
    return line, subject.after(commands_of(line.known))


def _layouts_chosen(
    candidate: Candidate,
    found: Sequence[tuple[SubjectLine, Subject]],
    lines: Sequence[Line],
    subjects: Mapping[str, SubjectLine],
) -> tuple[SubjectLine, Candidate, Sequence[str]] | None:
    """The last line of a search that has chosen the layouts of a candidate, where these are not those that the phase
    had; with the schedule that it had, and the subjects of the phases with these layouts."""
    commands = {(each.subject, each.key): each.commands for each in lines if isinstance(each, CandidateLine)}
    ends = {
        each.subject: each
        for each in lines
        if isinstance(each, ResultLine) and each.after and subjects.keys() >= {*each.after[1:]}
    }
    for line, subject in found:
        end = ends.get(line.subject)
        made = commands.get((end.subject, end.key)) if end is not None else None
        if end is not None and made is not None and line.together and subjects.keys() >= {*line.together[1:]}:
            known = subject.after(commands_of(line.known))
            if subject.after(commands_of(made)).layouts == candidate.layouts != known.layouts:
                return line, known, end.after
    return None


def _together(
    subject: Subject,
    known: Candidate,
    line: SubjectLine,
    after: Sequence[str],
    subjects: Mapping[str, SubjectLine],
    threads: int,
) -> PhasesEvaluator:
    """What measures a candidate with the other phases as they are with its layouts, beside these without."""

    def phases(keys: Sequence[str]) -> list[tuple[Subject, Candidate]]:
        own = [(subject_of(subjects[key], subject.target), commands_of(subjects[key].known)) for key in keys[1:]]
        return [(each, each.after(commands)) for each, commands in own]

    others = [made for _, made in phases(after)]
    return PhasesEvaluator([(subject, known), *phases(line.together)], lambda _: others, threads, line.items)


def _candidate(path: Path, entry: Entry, subject: Subject) -> Candidate:
    """What the function of an entry makes of its nests.

    Raises:
        LatteError: a command is refused, or the function raises something.
    """
    recipe = Recipe(shown(str(path)), {entry.phase: entry.function}, path=path)

    def applied(s: Schedule, _: Target) -> None:
        recipe.apply(s, [entry.phase])

    return subject.by(applied)
