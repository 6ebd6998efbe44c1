"""Writing what was found: recipe files of entries, to which later searches add. What people have written there
stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latte.runtime.files import write_whole
from latte.tools.tune.session import Found
from swirl.errors import LatteError, RecipeError
from swirl.schedule.command_log import Recorded, given_text
from swirl.schedule.entries import NAME, Entry, form_of, key_of, sizes_of
from swirl.schedule.files import read_recipe
from swirl.source_text import parsed
from swirl.tune.candidates import Candidate, Subject

INDENT = "    "
WIDTH = 116


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
    subject, program = tunable.subject, tunable.subject.program
    best = shortest(subject, found.best.candidate)
    known = [command.text for command in tunable.known.commands]
    commands = tuple((each, "" if each.text in known else "instead of what it had") for each in best.commands)
    beside = "recipe" if shipped else "default"
    ms = {"tuned": found.tuned * 1e3, beside: found.known * 1e3}
    if found.default and shipped:
        ms["default"] = found.default * 1e3
    times = ", ".join(f"{name} {value:.4g} ms" for name, value in ms.items() if name != "tuned")
    told = (
        f"{ms['tuned']:.4g} ms, {found.limit / found.tuned:.0%} of the machine's limit; {times}.",
        f"Found by {method}, seed {seed}: {found.tried} schedules were measured, {found.refused} refused.",
    )
    return NewEntry(
        tunable.kinds,
        tunable.phase,
        target,
        threads,
        key_of(program),
        form_of(program),
        sizes_of(program),
        ms,
        told,
        commands,
    )


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


def write_entries(folder: Path, entries: Sequence[NewEntry]) -> list[Path]:
    """Add entries to the files of a folder; an entry for the same nests and target is replaced.

    Args:
        folder: made if it is not there.
        entries: to be written.

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
        text = text_of(path) if path.exists() else _empty(own[0])
        for entry in own:
            text = with_entry(text, entry, path)
        write_checked(path, text)
        paths.append(path)
    return paths


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
    _parts(text, path)
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
    """The text of a file with one more entry.

    Raises:
        RecipeError: it is not a recipe of entries.
    """
    functions, calls, start, end = _parts(text, path)
    same = (name for name, call in calls.items() if _is_same(call, entry))
    names = {name for name in same if name.partition("_")[0] == entry.phase}
    text = text[:start] + _table([*(call for name, call in calls.items() if name not in names)]) + text[end:]
    text = _without(text, names)
    taken = {*functions} - names
    number = next(n for n in range(1, len(taken) + 2) if f"{entry.phase}_{n}" not in taken)
    name = f"{entry.phase}_{number}"
    _, calls, start, end = _parts(text, path)
    table = _table([*calls.values(), _call(name, entry)])
    return text[:start].rstrip() + "\n\n\n" + _function(name, entry) + "\n\n\n" + table + text[end:]


def without_entries(text: str, names: Sequence[str], path: Path) -> str:
    """The text of a file without the entries of these functions."""
    _, calls, start, end = _parts(text, path)
    kept = [call for name, call in calls.items() if name not in names]
    return _without(text[:start] + _table(kept) + text[end:], set(names))


def _parts(text: str, path: Path) -> tuple[list[str], dict[str, str], int, int]:
    """The names of a file's functions; function → the text of its entry; where the table begins and ends."""
    try:
        body = parsed(text.encode(), str(path)).body
    except (SyntaxError, ValueError) as error:
        raise RecipeError(f"is not Python: {error}", location=str(path)) from error
    tables = [node for node in body if isinstance(node, ast.Assign) and _names(node) == [NAME]]
    if not tables or not isinstance(tables[-1].value, (ast.Tuple, ast.List)):
        raise RecipeError(
            f"is a recipe without {NAME}, to which nothing is added",
            location=str(path),
            way_out="--out names another folder, or move the file",
        )
    table = tables[-1]
    calls: dict[str, str] = {}
    for element in table.value.elts:  # type: ignore[attr-defined]
        segment = ast.get_source_segment(text, element) or ""
        first = element.args[0] if isinstance(element, ast.Call) and element.args else None
        calls[first.id if isinstance(first, ast.Name) else segment] = segment
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return functions, calls, _offset(text, table.lineno), _offset(text, (table.end_lineno or table.lineno) + 1)


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _offset(text: str, line: int) -> int:
    return sum(map(len, _lines(text)[: line - 1]))


def _lines(text: str) -> list[str]:
    """With their ends: those that Python counts, and not, as ``str.splitlines``, form feeds."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def _without(text: str, names: set[str]) -> str:
    """A text without functions, and the empty lines before them."""
    lines = _lines(text)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            while start and not lines[start - 1].strip():
                start -= 1
            del lines[start : node.end_lineno]
    return "".join(lines)


def _is_same(call: str, entry: NewEntry) -> bool:
    """Whether an entry of a file is for the same nests and target: entries are used with any number of threads."""
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call):
        return False
    given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    return (given.get("target"), given.get("nests")) == (entry.target, entry.nests)


def _table(calls: Sequence[str]) -> str:
    rows = "".join(f"{INDENT}{call},\n" for call in calls)
    return f"{NAME} = (\n{rows})\n" if rows else f"{NAME} = ()\n"


def _call(name: str, entry: NewEntry) -> str:
    sizes = ", ".join(f"{_quoted(buffer)}: {shape!r}" for buffer, shape in entry.sizes.items())
    ms = ", ".join(f"{_quoted(beside)}: {value:.4g}" for beside, value in entry.ms.items())
    lines = [
        f"target={_quoted(entry.target)}, threads={entry.threads}, ms={{{ms}}},",
        f"nests={_quoted(entry.nests)}, form={_quoted(entry.form)},",
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


def entries_of(folder: Path) -> Iterator[tuple[Path, Entry]]:
    """The entries of a folder's recipes.

    Raises:
        RecipeError: a file cannot be read.
    """
    for path in sorted(folder.glob("*.py")):
        for entry in read_recipe(path).entries:
            yield path, entry
