"""Many programs in one kernel: compiled results are the executed ones, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache

import numpy as np

from swirl.build.jit import build, load
from swirl.codegen.emit import KernelSource, emit
from swirl.codegen.physical import physical
from swirl.errors import LatteError
from swirl.ir.execute import execute
from swirl.ir.nest import Program
from swirl.ir.operations import FUNCTIONS
from swirl.run.runner import Runner
from swirl.target.targets import Target
from tests.codegen.conftest import aligned
from tests.fuzz.floats import EVERY_BIT, data, different
from tests.fuzz.programs import INDEX_LIMIT, INDICES
from tests.support import joined, numbered

INEXACT = tuple(f"{name}(" for name, function in FUNCTIONS.items() if not function.correctly_rounded)
"""Calls whose last bits are the library's own."""

RUNS = (2, 3, 1, 2, 5)
"""Threads of each run of a kernel with parallel loops: a race shows in one run or another. One alone is a team of its
own, outside of parallel regions."""


def comparable(program: Program) -> bool:
    """Whether compiled and executed must have the same bits."""
    return not any(call in program.text for call in INEXACT)


class Batch:
    """Programs with random contents, special values among them, and the results.

    Args:
        programs: by number.
    """

    def __init__(self, programs: Mapping[int, Program], seed: int = 0):
        self.parts = {number: numbered(program, number) for number, program in programs.items()}
        self.together = joined(self.parts.values())
        self.given = {}
        for number, part in self.parts.items():
            touched = {name for nest in part.nests for name in nest.arguments}
            limits = {name: INDEX_LIMIT for name in touched if name.startswith(f"{INDICES}_of_")}
            style = EVERY_BIT[(seed + number) % len(EVERY_BIT)]
            own = {name: buffer for name, buffer in part.buffers.items() if name in touched}
            self.given |= data(own, seed + number, style, limits)
        self.expected = {name: array.copy() for name, array in self.given.items()}
        execute(self.together, self.expected)

    def wrong(self, target: Target, optimize: str = "-O3") -> dict[int, str]:
        """Number → what is wrong, of the programs that compute something else on a target.

        A program that there is no code for is refused, not wrong: its message starts with "no code".
        """
        source, result = self._source(target)
        if source is None:
            return result
        (built,) = build([source], target, contract=False, optimize=optimize)
        runs = RUNS if any("parallel(" in nest.text for nest in self.together.nests) else RUNS[:1]
        for threads in runs:
            layouts = {name: self.together.buffers[name].layout for name in source.buffers}
            arrays = {name: aligned(layout.pack(self.given[name])) for name, layout in layouts.items()}
            _runner(threads).phase([(load(built), list(arrays.values()))]).run()
            for name, array in arrays.items():
                number = int(name.rsplit("_of_", 1)[1])
                problem = self._problem(name, array)
                if problem is not None and number not in result:
                    result[number] = f"{target.name} {optimize}, {threads} threads: {problem}"
        shutil.rmtree(built.path.parent, ignore_errors=True)  # thousands of kernels, none of them needed again
        return result

    def _source(self, target: Target) -> tuple[KernelSource | None, dict[int, str]]:
        """The kernel, and the programs that there is no code for: they are left out."""
        with suppress(LatteError):
            return emit(self.physical, target, contract=False), {}
        refused = {}
        for number, part in self.parts.items():
            try:
                emit(part, target, contract=False)
            except LatteError as error:
                refused[number] = f"no code for {target.name}: {error}"
        others = [part for number, part in self.parts.items() if number not in refused]
        return emit(joined(others), target, contract=False) if others else None, refused

    @cached_property
    def physical(self) -> Program:
        """All programs, the layouts made physical: for every target alike."""
        return physical(self.together)

    def _problem(self, name: str, physical_array: np.ndarray) -> str | None:
        """Where an array differs from the executed one, or holds something in its padding."""
        buffer, expected = self.together.buffers[name], self.expected[name]
        got = buffer.layout.unpack(physical_array, buffer.shape)
        unlike = different(got, expected)
        own = name.rsplit("_of_", 1)[0]
        if unlike.any():
            where = tuple(int(i) for i in np.argwhere(unlike)[0])
            return f"{own}{list(where)} is {got[where]!r}, executed {expected[where]!r}"
        if buffer.layout.blocks and not np.array_equal(buffer.layout.pack(got), physical_array, equal_nan=True):
            return f"the padding of {own} is not zero"
        return None


@lru_cache
def _runner(threads: int) -> Runner:
    return Runner(threads)
