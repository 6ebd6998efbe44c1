"""Writing what was found: recipe files of entries, to which later searches add. What people have written there
stays: in the file, or in a copy of it as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from latte.runtime.files import write_whole
from latte.tools.tune.session import Found
from latte.tools.tune.subjects import Tunable
from latte.tools.tune.table import INDENT, TableText, digest, without_functions
from swirl.errors import LatteError, RecipeError
from swirl.schedule.command_log import Recorded, given_text
from swirl.schedule.entries import NAME, form_of, key_of, sizes_of
from swirl.schedule.files import read_recipe
from swirl.tune.candidates import Candidate, Subject

EARLIER = ".before"
"""What the name of a file's copy as it was ends with; with a number after it from the second one on."""


@dataclass(frozen=True)
class NewEntry:
    """An entry to be written.

    Args:
        kinds: of the layers.
        phase, target, threads: that it is for, and was measured with.
        nests, form: see :class:`swirl.schedule.entries.Entry`.
        sizes: of the buffers.
        ms: milliseconds: tuned, and beside it.
        told: how it was found, line by line.
        commands: in order, each with what is to be said of it.
    """

    kinds: tuple[str, ...]
    phase: str
    target: str
    threads: int
    nests: str
    form: str
    sizes: Mapping[str, tuple[int, ...]]
    ms: Mapping[str, float]
    told: tuple[str, ...]
    commands: tuple[tuple[Recorded, str], ...]

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{'_'.join(self.kinds)}.py"


def new_entry(found: Found, target: str, threads: int, shipped: bool, method: str, seed: int) -> NewEntry:
    """The entry for what a search has found.

    Args:
        found: with a best point.
        target, threads: that it was measured with.
        shipped: whether the known schedule is that of a recipe, and not the default one.
        method, seed: of the search.
    """
    tunable = found.tunable
    assert found.best is not None
    best = shortest(tunable.subject, found.best.candidate)
    known = [command.text for command in tunable.known.commands]
    commands = tuple((each, "" if each.text in known else "instead of what it had") for each in best.commands)
    beside = "recipe" if shipped else "default"
    ms = {"tuned": found.tuned * 1e3, beside: found.known * 1e3}
    if found.default and shipped:
        ms["default"] = found.default * 1e3
    times = ", ".join(f"{name} {value:.4g} ms" for name, value in ms.items() if name != "tuned")
    told = [f"{ms['tuned']:.4g} ms, {found.limit / found.tuned:.0%} of the machine's limit; {times}."]
    if tunable.together is None:
        told.append(f"Found by {method}, seed {seed}: {found.tried} schedules were measured, {found.refused} refused.")
    else:
        told.append(f"Layouts of parameters: {found.tried} were measured, {found.refused} refused. Times are sums:")
        told.append(f"{', '.join(each.name for each in tunable.together.phases)}.")
    return replace(tried_entry(tunable, best, target, threads), ms=ms, told=tuple(told), commands=commands)


def tried_entry(tunable: Tunable, candidate: Candidate, target: str, threads: int) -> NewEntry:
    """An entry for a candidate of which nothing is known.

    Args:
        tunable: the phase.
        candidate: a schedule of it.
        target, threads: that it is for.
    """
    program = tunable.subject.program
    keys = key_of(program), "" if tunable.lays_out else form_of(program)
    commands = tuple((each, "") for each in candidate.commands)
    return NewEntry(tunable.kinds, tunable.phase, target, threads, *keys, sizes_of(program), {}, (), commands)


def shortest(subject: Subject, candidate: Candidate) -> Candidate:
    """The same program and layouts with as few commands as possible.

    Raises:
        LatteError: its commands, given again, make another program.
    """
    if subject.after(candidate.commands).key != candidate.key:
        raise LatteError(f"the commands found for {subject.phase}, given again, make another program")
    commands = list(candidate.commands)
    for place in range(len(commands) - 1, -1, -1):
        fewer = commands[:place] + commands[place + 1 :]
        made = subject.after(fewer)
        if made.key == candidate.key and made.layouts == candidate.layouts:
            commands = fewer
    return subject.after(commands)


def write_entries(
    folder: Path, entries: Sequence[NewEntry], tell: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Add entries to the files of a folder; an entry for the same nests and target is replaced. Where its function was
    edited, the file as it was is kept beside it.

    Args:
        folder: made if it is not there.
        entries: to be written.
        tell: is told what was kept.

    Returns:
        the files.

    Raises:
        LatteError: a file cannot be written, or it is a recipe of another kind.
    """
    paths = []
    for name in dict.fromkeys(entry.file for entry in entries):
        path = folder / name
        own = [entry for entry in entries if entry.file == name]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LatteError(f"{folder} cannot be made: {error.strerror}", way_out="--out names a folder") from error
        before = text = text_of(path) if path.exists() else _empty(own[0])
        for entry in own:
            text = with_entry(text, entry, path)
        table = TableText.of(before, path)
        replaced = dict.fromkeys(each for entry in own for each in _same(table, entry))
        edited = [each for each in replaced if table.is_edited(each)]
        if edited:
            kept = keep_earlier(path)
            tell(f"{path}: {', '.join(edited)}, which was edited, is replaced; {kept} is the file as it was")
        write_checked(path, text)
        paths.append(path)
    return paths


def drop_entries(path: Path, names: Sequence[str]) -> Path:
    """Remove entries, and their functions, from a file.

    Args:
        path: of the file.
        names: of the functions.

    Returns:
        a copy of the file as it was.

    Raises:
        LatteError: the file cannot be read or written.
    """
    text = without_entries(text_of(path), names, path)
    kept = keep_earlier(path)
    write_checked(path, text)
    return kept


def keep_earlier(path: Path) -> Path:
    """Copy a file beside itself, to a name that is free: what is there under such a name stays.

    Raises:
        LatteError: it cannot be read, or the copy written.
    """
    names = (f"{path.name}{EARLIER}{f'.{number}' if number > 1 else ''}" for number in count(1))
    copy = next(each for each in map(path.with_name, names) if not each.exists())
    try:
        write_whole(copy, path.read_bytes())
    except OSError as error:
        raise LatteError(f"{path} cannot be copied to {copy}: {error.strerror}") from error
    return copy


def text_of(path: Path) -> str:
    """The text of a recipe, with its line ends.

    Raises:
        LatteError: it cannot be read.  RecipeError: it is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise LatteError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"is not UTF-8: {error}", location=str(path), way_out="save it as UTF-8") from error


def write_checked(path: Path, text: str) -> None:
    """Replace a recipe of entries, whole, by a text that is one.

    Raises:
        RecipeError: the text is not one; the file is as it was.  LatteError: it cannot be written.
    """
    TableText.of(text, path)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise LatteError(f"{path} cannot be written: {error.strerror}", way_out="--out names a folder") from error
    read_recipe(path)


def _empty(entry: NewEntry) -> str:
    kinds = ", ".join(entry.kinds)
    chain = f"\nchain = ({', '.join(map(_quoted, entry.kinds))})\n" if len(entry.kinds) > 1 else ""
    return (
        f'"""Schedules for {kinds}, found by ``latte tune``.\n\n'
        "A phase gets the entry for its nests, or that of the nearest sizes; without one, what it would get if this\n"
        'file were not there. Functions may be edited; ``latte tune --verify`` measures all entries again.\n"""\n\n'
        f"from swirl.schedule.entries import Entry\n{chain}\n{NAME} = ()\n"
    )


def with_entry(text: str, entry: NewEntry, path: Path) -> str:
    """The text of a file with one more entry; one for the same nests and target makes way.

    Raises:
        RecipeError: it is not a recipe of entries.
    """
    table = TableText.of(text, path)
    same = _same(table, entry)
    taken = {*table.functions, *table.entries} - {*same}
    number = next(n for n in range(1, len(taken) + 2) if f"{entry.phase}_{n}" not in taken)
    name = f"{entry.phase}_{number}"
    function = _function(name, entry)
    call = _call(name, entry, digest(function))
    for other in same[1:]:
        table = TableText.of(table.without_entry(other), path)
    text = table.with_entry_for(same[0], call) if same else table.with_entry(call)
    return TableText.of(without_functions(text, same), path).before_table(function)


def without_entries(text: str, names: Collection[str], path: Path) -> str:
    """The text of a file without the entries of these functions, and without the functions.

    Raises:
        RecipeError: it is not a recipe of entries.
    """
    table = TableText.of(text, path)
    for name in [each for each in table.entries if each in names]:
        table = TableText.of(table.without_entry(name), path)
    return without_functions(table.text, names)


def _same(table: TableText, entry: NewEntry) -> list[str]:
    """The functions of entries for the same phase, nests and target: entries are used with any number of threads."""
    wanted = entry.phase, entry.target, entry.nests
    found = ((name, table.given(name)) for name in table.entries)
    return [
        name for name, given in found if (name.partition("_")[0], given.get("target"), given.get("nests")) == wanted
    ]


def _call(name: str, entry: NewEntry, written: str) -> str:
    sizes = ", ".join(f"{_quoted(buffer)}: {shape!r}" for buffer, shape in entry.sizes.items())
    ms = ", ".join(f"{_quoted(beside)}: {value:.4g}" for beside, value in entry.ms.items())
    lines = [
        f"target={_quoted(entry.target)}, threads={entry.threads}, ms={{{ms}}},",
        f"nests={_quoted(entry.nests)}, form={_quoted(entry.form)}, written={_quoted(written)},",
        f"sizes={{{sizes}}},",
    ]
    inside = "".join(f"{2 * INDENT}{line}\n" for line in lines)
    return f"Entry(\n{2 * INDENT}{name},\n{inside}{INDENT})"


def _function(name: str, entry: NewEntry) -> str:
    lines = [f"def {name}(s, target):", *(f"{INDENT}# {line}" for line in entry.told)]
    for command, told in entry.commands:
        lines.append(f"{INDENT}s.{_written(command)}{f'  # {told}' if told else ''}")
    if not entry.commands:
        lines.append(f"{INDENT}pass")
    return "\n".join(lines)


def _written(command: Recorded) -> str:
    text = given_text(command.text, command.of)
    return text if '"' in text else text.replace("'", '"')


def _quoted(text: str) -> str:
    return f'"{text}"'
