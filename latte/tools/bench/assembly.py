"""What the C++ compiler made of a kernel: its innermost loop, and its share of arithmetic."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Instruction = tuple[str, str]
"""Address and text."""


def instructions(library: Path, function: str) -> list[Instruction]:
    """The instructions of a function of a compiled library, in Intel's syntax."""
    command = ["objdump", f"--disassemble={function}", "--no-show-raw-insn", "-M", "intel", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    matches = (re.match(r"\s*([0-9a-f]+):\t(.*)", line) for line in text.splitlines())
    return [(match.group(1), " ".join(match.group(2).split())) for match in matches if match]


def busiest_loop(code: Sequence[Instruction]) -> list[str]:
    """The loop with the most multiply-adds of those that contain no other one; empty if nothing jumps back."""
    return max(innermost_loops(code), key=lambda loop: sum("fmadd" in text for text in loop), default=[])


def innermost_loops(code: Sequence[Instruction]) -> list[list[str]]:
    """The loops that contain no other one."""
    places = {address: position for position, (address, _) in enumerate(code)}
    spans = [
        (places[target], position)
        for position, (_, text) in enumerate(code)
        if text.startswith("j")
        and (target := text.split()[-1] if "<" not in text else text.split()[1]) in places
        and places[target] <= position
    ]
    innermost = [
        (start, end)
        for start, end in spans
        if not any(start <= low and high <= end and (low, high) != (start, end) for low, high in spans)
    ]
    return [[text for _, text in code[start : end + 1]] for start, end in innermost]


@dataclass(frozen=True)
class Counts:
    """Instructions of a loop by what they do.

    Args:
        multiply_adds: of whole vectors.
        loads: of a vector from memory, those that multiply-adds make themselves among them.
        broadcasts: of one element to all lanes, likewise.
        spills: vectors that go to the stack or come from there.
        others: addresses, counting, jumping.
    """

    multiply_adds: int
    loads: int
    broadcasts: int
    spills: int
    others: int

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
    return Counts(len(multiply), len(loads), len(broadcasts), len(spills), sum(text not in known for text in loop))


def _stores(text: str) -> bool:
    """Whether the first operand is memory."""
    return "[" in text.split(",")[0]
