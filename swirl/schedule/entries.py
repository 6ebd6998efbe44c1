"""Recipes of entries, as ``latte tune`` writes them: functions for phases, each for the nests and the target that it
was found for.

    def forward_1(s, target):
        s.vectorize("forward", "x", 16)

    entries = (
        Entry(forward_1, target="avx512", nests="0f3c…", form="77ab…", sizes={"value": (16, 64, 56, 56)}, threads=2),
    )

A phase gets the entry for its very nests; without one, that of the nearest sizes whose nests are the same otherwise, if
each of its commands applies; without one, what it would get if the file were not there. Where there is an entry for
these sizes, but the compiler makes other nests of the layer than it did then, or refuses a command, the entry is
*stale*: it is not used, and ``explain`` and ``net.report`` tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import log, prod

from swirl.errors import RecipeError
from swirl.ir.anonymous import anonymous
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE, PHASES
from swirl.ir.text import identity
from swirl.target.targets import TARGETS

Function = Callable[..., None]
"""Takes a schedule, and a target."""
NAME = "entries"
"""What the tuple of entries is called in a file."""
DIGITS = 12
"""Of a key: two programs that differ have the same one in one of 10¹⁴ cases."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Entry:
    """The function for a phase that was found for certain nests.

    Args:
        function: ``forward_1(s, target)``: a phase, and what tells it from others of the file.
        target: the name of the target that it was found for.
        nests: key of the phase's nests before any command; see :func:`key_of`.
        form: key of the same without sizes; see :func:`form_of`. Empty where the entry is for its very nests alone.
        sizes: of the phase's buffers, by their names there: extents, those of an item after the batch.
        threads: with which it was measured. It is used with any number: results do not depend on it.
        ms: milliseconds, and of what it was measured beside: ``{"tuned": 1.2, "shipped": 1.4}``. For readers.
        written: digest of the function's text as ``latte tune`` has written it: one that was edited is not replaced
            without a copy.
    """

    function: Function
    target: str
    nests: str
    form: str
    sizes: Mapping[str, tuple[int, ...]]
    threads: int = 0
    ms: Mapping[str, float] = field(default_factory=dict)
    written: str = ""

    @property
    def name(self) -> str:
        """Of its function."""
        return self.function.__name__

    @property
    def phase(self) -> str:
        """That its function schedules."""
        return self.name.partition("_")[0]

    @property
    def location(self) -> str:
        """``file:line`` of its function."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def distance(self, program: Program) -> float:
        """How far a program's sizes are from those of the entry: the sum of the logarithms of their ratios; infinite
        where it has other buffers."""
        sizes = sizes_of(program)
        if {name: len(shape) for name, shape in sizes.items()} != {n: len(shape) for n, shape in self.sizes.items()}:
            return float("inf")
        pairs = [pair for name, shape in sizes.items() for pair in zip(shape, self.sizes[name], strict=True)]
        return sum(abs(log(max(1, a) / max(1, b))) for a, b in pairs)


def key_of(program: Program) -> str:
    """A short text that two programs share exactly if they are equal but for the names of layers: nests, buffers,
    layouts, and what the recipe's functions for other phases have done."""
    return sha256(identity(anonymous(program).program).encode()).hexdigest()[:DIGITS]


def form_of(program: Program) -> str:
    """The same for programs that differ in numbers alone: in sizes."""
    return sha256(_NUMBER.sub("#", identity(anonymous(program).program)).encode()).hexdigest()[:DIGITS]


def sizes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """The extents of a program's buffers, the largest first; not of single numbers."""
    found = {name: tuple(buffer.shape) for name, buffer in program.buffers.items() if prod(buffer.shape) > 1}
    return dict(sorted(found.items(), key=lambda item: (-prod(item[1]), item[0])))


def checked_entries(entries: object, name: str) -> tuple[Entry, ...]:
    """What a file calls ``entries``.

    Raises:
        RecipeError: it is not a tuple of entries, or one is for no phase or target.
    """
    if not isinstance(entries, (tuple, list)) or not all(isinstance(each, Entry) for each in entries):
        raise RecipeError(
            f"{NAME} is a tuple of Entry(…), not {entries!r}",
            location=name,
            way_out="from swirl.schedule.entries import Entry",
        )
    for entry in entries:
        if not callable(entry.function) or entry.phase not in (*PHASES, INFERENCE):
            raise RecipeError(
                f"the function of an entry is called after a phase, not {getattr(entry.function, '__name__', '?')}",
                location=name,
                way_out="forward_1, backward_1, update_1, or inference_1",
            )
        if entry.target not in TARGETS:
            raise RecipeError(
                f"{entry.name} is for the target {entry.target!r}",
                location=entry.location,
                way_out=f"targets are {', '.join(TARGETS)}",
            )
    names = [entry.name for entry in entries]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise RecipeError(f"{twice} is the function of two entries", location=name, way_out="one entry for each")
    return tuple(entries)
