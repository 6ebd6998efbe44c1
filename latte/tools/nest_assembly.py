"""The machine code of a compiled phase, loop nest by loop nest: what ``latte show --assembly`` prints."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latte.runtime.kernels import CompiledPhase
from latte.tools.bench.assembly import Counts, Span, counts, innermost_spans, lines_of
from swirl.build.compiler import find_compiler
from swirl.codegen.emit import lines_of_nests
from swirl.errors import CompilerFailed
from swirl.target.targets import Target

SOURCE, LIBRARY = "kernel.cpp", "kernel.so"
_FOR = re.compile(r" *for \((?:\w+ )*(\w+) = ")
_WITHOUT_LINES = "the compiler makes other code when it notes lines: this is that code"


@dataclass(frozen=True)
class AssemblyLoop:
    """An innermost loop of a kernel.

    Args:
        path: the variables of the C++ loops that it is in, outer ones first, its own last; empty where the compiler
            has made it for something else.
        line: of the kernel's text, where it begins; None where that is not known.
        code: its instructions.
    """

    path: tuple[str, ...]
    line: int | None
    code: tuple[str, ...]

    @property
    def counts(self) -> Counts:
        """What its instructions do."""
        return counts(self.code)

    def __str__(self) -> str:
        where = "" if self.line is None else f", {SOURCE}:{self.line}"
        name = "/".join(self.path) or "a loop of the compiler's own"
        return "\n".join([f"  {name}{where}: {_told(self.code)}", *(f"      {text}" for text in self.code)])


@dataclass(frozen=True)
class AssemblyNest:
    """What a loop nest has become.

    Args:
        label: of the nest.
        loops: that contain no other loop, in the order of their addresses.
        rest: the instructions outside of them.
    """

    label: str
    loops: tuple[AssemblyLoop, ...]
    rest: tuple[str, ...]

    def __str__(self) -> str:
        rest = f"  outside of {'these loops' if self.loops else 'innermost loops'}: {_told(self.rest)}"
        return "\n".join([self.label, *map(str, self.loops), rest])


@dataclass(frozen=True)
class Assembly:
    """The machine code of a phase.

    Args:
        title: layer and phase.
        symbol: of the kernel in its library, as ``perf`` and ``gdb`` show it.
        library: the file; the C++ is beside it.
        nests: in their order.
        note: what is to be known of it, or "".
    """

    title: str
    symbol: str
    library: Path
    nests: tuple[AssemblyNest, ...]
    note: str = ""

    def __str__(self) -> str:
        head = [f"{self.title}: {self.symbol}", f"in {self.library}", *([self.note] if self.note else [])]
        return "\n\n".join(["\n".join(head), *map(str, self.nests)])


def assembly_of(item: CompiledPhase, target: Target) -> Assembly:
    """The machine code of a phase. Its text is compiled once more, with line numbers, which leaves the code as it is.

    Raises:
        CommandError: objdump is not installed.
        CompilerMissing, CompilerFailed: the compiler does not run, or not on this text any more.
    """
    name, folder = item.built.name, item.built.path.parent
    source = (folder / SOURCE).read_text(encoding="utf-8")
    code = lines_of(item.built.path, name, SOURCE)  # has no lines, but tells whether there is a disassembler
    with tempfile.TemporaryDirectory() as scratch:
        with_lines = lines_of(_compiled_with_lines(item, Path(scratch)), name, SOURCE)
    note = "" if _shape(code) == _shape(with_lines) else _WITHOUT_LINES
    nests = _nests(with_lines, source, lines_of_nests(item.program, target, source))
    return Assembly(f"{item.unit.name}.{item.phase}", name, item.built.path, nests, note)


def _compiled_with_lines(item: CompiledPhase, scratch: Path) -> Path:
    """The kernel's library, made by its own command with line numbers."""
    shutil.copyfile(item.built.path.parent / SOURCE, scratch / SOURCE)
    compiler = find_compiler()
    words = shlex.split(item.built.command)[len(compiler.command) :]
    arguments = [word for word in words if not word.startswith("-I")]  # a precompiled header has no line numbers
    done = compiler.run([*arguments, "-g1"], scratch)
    if done.returncode != 0:
        raise CompilerFailed(f"the C++ compiler refused {item.built.name} with -g1:\n{done.stderr.strip()}")
    return scratch / LIBRARY


def _shape(code: Sequence[tuple[tuple[str, str], int | None]]) -> list[str]:
    """The instructions without addresses, which line numbers may move."""
    return [re.sub(r"\b[0-9a-f]+ <.*>|\[rip[^\]]*\]|#.*", "", text).strip() for (_, text), _ in code]


def _nests(
    code: Sequence[tuple[tuple[str, str], int | None]], source: str, lines: Sequence[tuple[str, range]]
) -> tuple[AssemblyNest, ...]:
    """The innermost loops by the nest that most of their instructions come from; other instructions by their line."""
    paths = paths_of_loops(source)
    spans = innermost_spans([instruction for instruction, _ in code])
    found: dict[str, list[AssemblyLoop]] = {label: [] for label, _ in lines}
    rest: dict[str, list[str]] = {label: [] for label, _ in lines}
    taken: set[int] = set()
    for start, end in spans:
        label = _label([line for _, line in code[start : end + 1]], lines)
        if label is not None:
            found[label].append(_loop(code, (start, end), paths))
            taken.update(range(start, end + 1))
    for place, ((_, text), line) in enumerate(code):
        label = _label([line], lines)
        if place not in taken and label is not None:
            rest[label].append(text)
    return tuple(AssemblyNest(label, tuple(found[label]), tuple(rest[label])) for label, _ in lines)


def _label(lines: Sequence[int | None], nests: Sequence[tuple[str, range]]) -> str | None:
    """The nest that most of these lines belong to."""
    votes = Counter(label for label, own in nests for line in lines if line is not None and line in own)
    return votes.most_common(1)[0][0] if votes else None


def _loop(
    code: Sequence[tuple[tuple[str, str], int | None]], span: Span, paths: Mapping[int, tuple[tuple[str, ...], int]]
) -> AssemblyLoop:
    """A loop with the C++ loops that it is in: all that its instructions have in common."""
    start, end = span
    part = code[start : end + 1]
    last = part[-1][1]
    own = paths.get(last) if last is not None else None
    if own is None or own[1] != last:  # the jump back has another line than the loop's: most of the work tells
        inside = Counter(paths[line] for _, line in part if line is not None and line in paths)
        own = inside.most_common(1)[0][0] if inside else None
    path, line = own or ((), None)
    return AssemblyLoop(path, line, tuple(text for (_, text), _ in part))


def paths_of_loops(source: str) -> dict[int, tuple[tuple[str, ...], int]]:
    """The lines of a kernel's text that are in loops → the variables of these, outer ones first, and the line where the
    innermost one begins. The text is indented by its blocks."""
    found: dict[int, tuple[tuple[str, ...], int]] = {}
    around: list[tuple[int, str, int]] = []  # indentation, variable, line
    for number, line in enumerate(source.splitlines(), 1):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while around and indent <= around[-1][0]:
            around.pop()
        head = _FOR.match(line)
        if head is not None:
            around.append((indent, head[1], number))
        if around:
            found[number] = tuple(variable for _, variable, _ in around), around[-1][2]
    return found


def _told(code: Sequence[str]) -> str:
    """``27 instructions: 24 multiply-adds, …``."""
    found = counts(code)
    parts = {
        "multiply-adds": found.multiply_adds,
        "other arithmetic": found.arithmetic,
        "vectors loaded": found.loads,
        "broadcasts": found.broadcasts,
        "stores": found.stores,
        "spills": found.spills,
    }
    return f"{len(code)} instructions: " + ", ".join(f"{number} {name}" for name, number in parts.items())
