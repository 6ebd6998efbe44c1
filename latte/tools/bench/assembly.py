"""What the C++ compiler made of a kernel: its loops, with the lines that they come from, and what they do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swirl.build.compiler import run_program
from swirl.errors import CommandError

Instruction = tuple[str, str]
"""Address and text."""
Span = tuple[int, int]
"""The places of the first and the last instruction of a loop."""


def instructions(library: Path, function: str) -> list[Instruction]:
    """The instructions of a function of a compiled library, in Intel's syntax.

    Raises:
        CommandError: objdump is not installed, or does not read the library.
    """
    return [instruction for instruction, _ in _disassembled(library, function)]


def lines_of(library: Path, function: str, source: str) -> list[tuple[Instruction, int | None]]:
    """The same with the line of the source that each comes from; None where that is not known.

    Args:
        library: compiled with line numbers (``-g1``).
        function: of the library.
        source: name of the file. What is inlined has the line of the outermost call.

    Raises:
        CommandError: as :func:`instructions`.
    """
    place = re.compile(rf"(?:inlined by )?(?:.*/)?{re.escape(source)}:(\d+)\b")
    found, line = [], None
    for instruction, before in _disassembled(library, function, "--line-numbers", "--inlines"):
        for match in filter(None, map(place.match, before)):
            line = int(match[1])
        found.append((instruction, line))
    return found


def _disassembled(library: Path, function: str, *options: str) -> Iterator[tuple[Instruction, list[str]]]:
    """Instructions, each after the other lines that are printed before it."""
    if shutil.which("objdump") is None:
        raise CommandError(
            "objdump is not installed", way_out="it is a part of binutils (Debian: apt install binutils)"
        )
    shown = (f"--disassemble={function}", "--no-show-raw-insn", "-M", "intel", *options)
    done = run_program(["objdump", *shown, str(library)])
    if done.returncode != 0:
        raise CommandError(f"objdump cannot show {library}: {done.stderr.strip()}")
    before: list[str] = []
    for line in done.stdout.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\t(.*)", line)
        if match is None:
            before.append(line)
        else:
            yield (match.group(1), " ".join(match.group(2).split())), before
            before = []


def busiest_loop(code: Sequence[Instruction]) -> list[str]:
    """The loop with the most multiply-adds of those that contain no other one; empty if nothing jumps back."""
    return max(innermost_loops(code), key=lambda loop: sum("fmadd" in text for text in loop), default=[])


def innermost_loops(code: Sequence[Instruction]) -> list[list[str]]:
    """The loops that contain no other one."""
    return [[text for _, text in code[start : end + 1]] for start, end in innermost_spans(code)]


def innermost_spans(code: Sequence[Instruction]) -> list[Span]:
    """Where the loops are that contain no other one."""
    places = {address: position for position, (address, _) in enumerate(code)}
    jumps = {position: places.get(_target(text)) for position, (_, text) in enumerate(code) if text.startswith("j")}
    # What is after an end of the function, and jumps back, has been moved there: out of a loop, or of none.
    ends = [
        position
        for position, (_, text) in enumerate(code)
        if text == "ret" or (text.startswith("jmp") and jumps[position] is None)
    ]
    spans = [
        (start, end)
        for end, start in jumps.items()
        if start is not None and start <= end and not any(start <= place < end for place in ends)
    ]
    return [
        (start, end)
        for start, end in spans
        if not any(start <= low and high <= end and (low, high) != (start, end) for low, high in spans)
    ]


def _target(jump: str) -> str:
    """The address that a jump names: ``jne 1370 <kernel+0x240>``."""
    return jump.split()[1] if "<" in jump else jump.split()[-1]


@dataclass(frozen=True)
class Counts:
    """Instructions of a loop by what they do.

    Args:
        multiply_adds: of whole vectors.
        loads: of a vector from memory, those that multiply-adds make themselves among them.
        broadcasts: of one element to all lanes, likewise.
        spills: vectors that go to the stack or come from there.
        others: addresses, counting, jumping, and what vectors in registers do besides.
        stores: of a vector to memory.
        arithmetic: additions, products, quotients, roots, minima and maxima of floating-point numbers that are not
            multiply-adds; they are among the loads or others, too.
    """

    multiply_adds: int
    loads: int
    broadcasts: int
    spills: int
    others: int
    stores: int = 0
    arithmetic: int = 0

    def __str__(self) -> str:
        return (
            f"{self.multiply_adds} multiply-adds, {self.loads} vectors and {self.broadcasts} broadcasts loaded, "
            f"{self.spills} spills, {self.others} other instructions"
        )


def counts(loop: Sequence[str]) -> Counts:
    """What a loop's instructions do."""
    vector = [text for text in loop if re.search(r"\b[xyz]mm\d", text)]
    multiply = [text for text in vector if "fmadd" in text]
    spills = [text for text in vector if re.search(r"\[r[sb]p\b", text)]
    memory = [text for text in vector if "[" in text and text not in spills]
    broadcasts = [text for text in memory if "broadcast" in text or "{1to" in text]
    loads = [text for text in memory if text not in broadcasts and not _stores(text)]
    known = {*multiply, *spills, *memory}
    others = [text for text in loop if text not in known]
    stores = sum(map(_stores, memory))
    arithmetic = sum(_ARITHMETIC.match(text) is not None for text in vector if "fmadd" not in text)
    return Counts(len(multiply), len(loads), len(broadcasts), len(spills), len(others), stores, arithmetic)


_ARITHMETIC = re.compile(r"v?(?:add|sub|mul|div|sqrt|min|max|fn?m(?:add|sub))\w*[sp][sd]\b")


def _stores(text: str) -> bool:
    """Whether the first operand is memory."""
    return "[" in text.split(",")[0]
