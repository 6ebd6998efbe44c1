"""From C++ texts to libraries in the cache: which texts one run of the compiler takes, and the entries it makes.

Starting g++, reading headers and linking take longer than most kernels do. So units with the same flags are compiled
together, each in a namespace of its own. Each still has its entry ``<cache>/<key>/kernel.cpp, kernel.so, command.txt``,
with the command that compiles it by itself; ``kernel.so`` is one file with several names then.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from swirl.build.cache import cache_folder, cache_key, draft_folder, entry_lock, move_into_place, publish, read_entry
from swirl.build.compiler import Compiler
from swirl.build.compiler_flags import flags_for, link_flags
from swirl.build.precompiled import include_flag, precompile, precompiled_key
from swirl.build.translation_unit import TranslationUnit
from swirl.errors import CompilerFailed
from swirl.target.targets import Target

_SOURCE, _LIBRARY, _COMMAND = "kernel.cpp", "kernel.so", "command.txt"
_LONGEST = 100_000
"""Characters of a text of several units: for the compiler, a fraction of a second's work up to two seconds'."""
_WHOLE = 50_000
"""Enough for a run while further units are made."""
_SHORTEST = 8_000
"""Shorter ones take less time than starting the compiler."""


@dataclass(frozen=True)
class Built:
    """A compiled unit.

    Attributes:
        name: the function's name.
        path: the library; the C++ text and ``command.txt`` are beside it.
        seconds: what compiling took, when it was done; of units compiled together, each one's share.
        cached: whether it was found in the cache.
        command: the command that compiles this unit, to be run in the library's folder.
        target: whose instructions it has.
        work: as the unit's.
    """

    name: str
    path: Path
    seconds: float
    cached: bool
    command: str
    target: str
    work: int | None = None


Units = dict[str, TranslationUnit]
"""The cache's key of a unit → the unit."""


@dataclass(frozen=True)
class Toolchain:
    """How units are compiled.

    Attributes:
        compiler: that compiles them.
        flags: of all units, before :func:`swirl.build.compiler_flags.flags_for`.
        target: what they are made for.
    """

    compiler: Compiler
    flags: tuple[str, ...]
    target: Target

    def key(self, unit: TranslationUnit) -> str:
        """The cache's key of the unit: of its text, the compiler's path and version, all flags, the target's name."""
        compiler = self.compiler
        return cache_key(
            "kernel", unit.source, *compiler.command, compiler.version, *self._arguments(unit), self.target.name
        )

    def find(self, key: str, unit: TranslationUnit) -> Built | None:
        """The unit as the cache has it."""
        facts = read_entry(key, {"seconds": float | int, "command": str}, (_LIBRARY,))
        if facts is None:
            return None
        path = cache_folder() / key / _LIBRARY
        return Built(unit.name, path, facts["seconds"], cached=True, command=facts["command"], target=self.target.name)

    def alike(self, unit: TranslationUnit) -> object:
        """Equal for units that one run of the compiler may take."""
        return flags_for(unit, self.flags) if unit.shares_library else unit

    def make(self, units: Units) -> dict[str, Built]:
        """Compile units that are :meth:`alike`, and make their entries of the cache.

        Raises:
            CompilerFailed: the compiler refused one; the message has its words, the kept source and the command.
            LatteError: the cache folder is not usable.
        """
        more = self._precompiled(units)
        with ExitStack() as locks:
            for key in sorted(units):
                locks.enter_context(entry_lock(key))
            # Another process may have made some while this one waited for the locks.
            found = {key: built for key, unit in units.items() if (built := self.find(key, unit)) is not None}
            missing = {key: unit for key, unit in units.items() if key not in found}
            return found | self._make(missing, more) if missing else found

    def _precompiled(self, units: Units) -> tuple[str, ...]:
        """The flag by which the text of these units finds its first header precompiled."""
        unit = next(iter(units.values()))
        headers, flags = _headers(units.values()), flags_for(unit, self.flags)
        key = precompiled_key(headers, self.compiler, flags)
        if key is None:
            return ()
        precompile(headers[0], key, self.compiler, flags)
        return (include_flag(key),)

    def _make(self, units: Units, more: Sequence[str]) -> dict[str, Built]:
        """Call with the locks of all units held."""
        (first, unit), *others = units.items()
        with draft_folder(first) as draft:
            (draft / _SOURCE).write_text(_together(units.values()) if others else unit.source, encoding="utf-8")
            start = time.perf_counter()
            result = self.compiler.run(self._arguments(unit, *more), draft)
            if result.returncode != 0 and more:  # it refuses the precompiled header, or our text
                more = ()
                result = self.compiler.run(self._arguments(unit), draft)
            seconds = (time.perf_counter() - start) / len(units)
            if result.returncode == 0:
                found = {}
                for key, other in others:
                    with draft_folder(key) as beside:
                        _link(draft / _LIBRARY, beside / _LIBRARY)
                        found[key] = self._publish(key, other, beside, more, seconds)
                return {first: self._publish(first, unit, draft, more, seconds), **found}
            if not others:
                raise self._refused(first, unit, draft, more, result)
        # Which of them the compiler refuses is told by a run of its own.
        return {key: built for key, some in units.items() for built in self._make({key: some}, more).values()}

    def _arguments(self, unit: TranslationUnit, *more: str) -> tuple[str, ...]:
        libraries = link_flags(self.compiler, self.target)
        return (*more, *flags_for(unit, self.flags), _SOURCE, "-o", _LIBRARY, *libraries)

    def _command(self, unit: TranslationUnit, more: Sequence[str]) -> str:
        """The command that compiles the unit by itself. Paths are relative to the entry's folder, so that it works
        there: edit ``kernel.cpp``, run it again."""
        return shlex.join((*self.compiler.command, *self._arguments(unit, *more)))

    def _publish(self, key: str, unit: TranslationUnit, draft: Path, more: Sequence[str], seconds: float) -> Built:
        """Make the draft, which has its library, the unit's entry."""
        command = self._command(unit, more)
        (draft / _SOURCE).write_text(unit.source, encoding="utf-8")
        (draft / _COMMAND).write_text(command + "\n", encoding="utf-8")
        facts = {"name": unit.name, "seconds": seconds, "command": command}
        folder = publish(draft, key, facts, verified=(_LIBRARY,))
        return Built(unit.name, folder / _LIBRARY, seconds, cached=False, command=command, target=self.target.name)

    def _refused(
        self,
        key: str,
        unit: TranslationUnit,
        draft: Path,
        more: Sequence[str],
        result: subprocess.CompletedProcess[str],
    ) -> CompilerFailed:
        command = self._command(unit, more)
        words = result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}, no message"
        (draft / _COMMAND).write_text(command + "\n", encoding="utf-8")
        (draft / "compiler.txt").write_text(words + "\n", encoding="utf-8")
        kept = move_into_place(draft, os.path.join("failed", key))
        return CompilerFailed(
            f"the C++ compiler refused {unit.name}:\n{words}",
            way_out=f"source: {kept / _SOURCE}\n  command: cd {shlex.quote(str(kept))} && {command}",
        )


def are_enough(units: Units) -> bool:
    """Whether units are worth a run while further ones are made."""
    return _length(units) >= _WHOLE or not all(unit.shares_library for unit in units.values())


def divided(groups: Collection[Units], cores: int) -> list[Units]:
    """What to compile together, the longest first: a few runs for each core, so that they end at about one time.

    Args:
        groups: of units that are :meth:`Toolchain.alike`.
        cores: that compilers run on.
    """
    longest = min(max(sum(map(_length, groups)) // (2 * cores), _SHORTEST), _LONGEST)
    parts = [part for group in groups for part in _parts(group, ceil(_length(group) / longest))]
    return sorted(parts, key=_length, reverse=True)


def _headers(units: Collection[TranslationUnit]) -> list[str]:
    """The headers of a text of these units, the one that takes longest to read first."""
    return sorted({header for unit in units for header in unit.headers}, reverse=True)


def _together(units: Collection[TranslationUnit]) -> str:
    """One text of units that share a library."""
    includes = (f"#include <{header}>\n" for header in _headers(units))
    bodies = (f"namespace of_{unit.name} {{\n{unit.without_headers}}}\n" for unit in units)
    return "".join([*includes, *bodies])


def _length(units: Units) -> int:
    return sum(len(unit.source) for unit in units.values())


def _parts(units: Units, count: int) -> list[Units]:
    """As many parts, of about one length: from the longest on, each unit goes into the shortest part."""
    parts: list[Units] = [{} for _ in range(count)]
    for key, unit in sorted(units.items(), key=lambda item: len(item[1].source), reverse=True):
        min(parts, key=_length)[key] = unit
    return [part for part in parts if part]


def _link(library: Path, name: Path) -> None:
    """Another name of the file, or a copy where the file system has one name for each."""
    try:
        os.link(library, name)
    except OSError:
        shutil.copyfile(library, name)
