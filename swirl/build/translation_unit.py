"""What is given to the C++ compiler: the text of one exported function."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar

IF_CONVERTIBLE = "// no load or store depends on a condition"
"""A note of a unit without intrinsics: g++ may then make selects out of its conditions."""
STORES_IN_ONE_PLACE = "// every array that is stored to has the same subscripts everywhere"
"""A note of a unit: g++ may then use its loop vectoriser."""

_START = re.compile(r"(?:\s|//.*\n|#include <[\w.]+>)*")


@dataclass(frozen=True)
class TranslationUnit:
    """One translation unit. It exports ``extern "C" void <name>(void* const* buffers)``.

    Attributes:
        name: the function's name.
        source: the C++ text. Lines of comment before all else are notes for the choice of flags.
        work: instructions that threads can share, at the most and roughly; None where that is not known.
    """

    name: str
    source: str
    work: int | None = field(default=None, kw_only=True)

    shares_library: ClassVar[bool] = False
    """Whether the text may stand in a namespace beside others: standard headers first, then nothing global but the
    function, whose name no other text has."""

    @property
    def notes(self) -> frozenset[str]:
        """The lines of comment with which it begins."""
        return frozenset(takewhile(lambda line: line.startswith("//"), self.source.splitlines()))

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers with which it begins."""
        return tuple(re.findall(r"^#include <([\w.]+)>", self.source[: self._start], re.MULTILINE))

    @property
    def without_headers(self) -> str:
        """The text after notes and headers."""
        return self.source[self._start :]

    @property
    def _start(self) -> int:
        start = _START.match(self.source)
        assert start is not None, "it matches nothing, too"
        return start.end()
