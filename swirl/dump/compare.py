"""Comparing two stages on the same data: which buffer, and which element of it, differs first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path

from swirl.analysis.trips import most_terms
from swirl.dump.differences import TOLERANCE, Difference, differences
from swirl.dump.read import DumpedStage, compiled_stages, read_stage
from swirl.errors import LatteError
from swirl.ir.names import stored_in
from swirl.ir.nest import Program

ROUNDINGS = 10.0
"""Of float32, for each root of the number of terms that a sum has: how far sums of random numbers in two orders may be
apart. On average it is less than one (Higham, *Accuracy and Stability of Numerical Algorithms*, section 4.3)."""


@dataclass(frozen=True)
class Comparison:
    """What two stages made of the same data.

    Args:
        first, second: their files.
        differences: of every buffer that both have, in the order in which the first stage writes them.
        skipped: temporary buffers that only one of the stages writes, or that have other extents in the second one.
    """

    first: Path
    second: Path
    differences: tuple[Difference, ...]
    skipped: tuple[str, ...] = ()

    @property
    def wrong(self) -> Difference | None:
        """The first buffer that differs by more than the tolerance."""
        return next((found for found in self.differences if found.first is not None), None)

    @property
    def agree(self) -> bool:
        return self.wrong is None

    def __str__(self) -> str:
        lines = [f"{self.first.name} and {self.second.name} {'agree' if self.agree else 'differ'}"]
        if self.wrong is not None:
            lines.append(f"first in {self.wrong}")
        lines += [f"  {difference}" for difference in self.differences]
        lines += [f"  {name}: temporary, and not the same in both" for name in self.skipped]
        return "\n".join(lines)


def _functions(program: Program) -> set[str]:
    """What the nests are called, without their numbers: ``conv1_forward``."""
    return {re.sub(r"_\d+$", "", nest.function.name) for nest in program.nests}


def compare_stages(
    first: str | Path, second: str | Path, *, seed: int = 0, tolerance: float | None = None, target: str | None = None
) -> Comparison:
    """Run two dumped stages on the same data and compare every buffer that both have.

    Args:
        first, second: files that ``SWIRL_DUMP`` wrote.
        seed: of the data.
        tolerance: relative to the largest magnitude in a buffer; 0 asks for equal bits. By default 1e-5, or more where
            there are sums of more than 280 terms: :func:`usual_tolerance`.
        target: run both compiled for this target, in place of Python (which takes long for large layers).

    Raises:
        LatteError: a file is not a dumped stage, the two are not of one layer and phase, or the tolerance is invalid.
    """
    _check(tolerance)
    stages = [read_stage(first), read_stage(second)]
    if target is not None:
        _comparable(*stages)  # before compiling what takes long
        stages = compiled_stages(stages, target)
    return compared(*stages, seed=seed, tolerance=tolerance)


def usual_tolerance(*programs: Program) -> float:
    """How far results of two orders of the same sums may be apart, relative to the largest value in a buffer: random
    numbers lose as many roundings as the root of the number of terms is long."""
    return max(TOLERANCE, ROUNDINGS * 2.0**-24 * sqrt(max(map(most_terms, programs))))


def compared(first: DumpedStage, second: DumpedStage, *, seed: int, tolerance: float | None) -> Comparison:
    """Two stages that have been read, each run in its way: see :func:`compare_stages`.

    Raises:
        LatteError: the two are not of one layer and phase, or the tolerance is invalid.
    """
    _check(tolerance)
    if tolerance is None:
        tolerance = usual_tolerance(first.program, second.program)
    shared, skipped = _comparable(first, second)
    given, arrays = first.arrays(seed), second.arrays(seed)
    arrays |= {other: given[name].reshape(arrays[other].shape) for name, other in shared.items()}
    results = first.run(given), second.run(arrays)
    left = {name: results[0][name] for name in shared}
    right = {name: results[1][other].reshape(left[name].shape) for name, other in shared.items()}
    return Comparison(first.path, second.path, tuple(differences(left, right, tolerance)), tuple(skipped))


def _check(tolerance: float | None) -> None:
    if tolerance is not None and not tolerance >= 0:
        raise LatteError(f"a tolerance is a number of at least 0, not {tolerance}")


def _comparable(first: DumpedStage, second: DumpedStage) -> tuple[dict[str, str], list[str]]:
    """What :func:`_shared` finds.

    Raises:
        LatteError: the stages are of different layers or phases, or have no buffer in common, or one of another shape.
    """
    way_out = "compare stages of one ensemble and phase"
    one, other = _functions(first.program), _functions(second.program)
    if one != other and not one & other:
        words = [" and ".join(sorted(names)) or "nothing" for names in (one, other)]
        raise LatteError(f"{first.path} is a stage of {words[0]}, {second.path} one of {words[1]}", way_out=way_out)
    shared, skipped = _shared(first, second)
    if not shared:
        raise LatteError(f"{first.path} and {second.path} have no buffer in common", way_out=way_out)
    return shared, skipped


def _shared(first: DumpedStage, second: DumpedStage) -> tuple[dict[str, str], list[str]]:
    """Names of the buffers to compare, those written first, in the order of writing, with their names in the second
    stage, where a copy may have taken the name; and those left out."""
    left, right = first.namespace["BUFFERS"], second.namespace["BUFFERS"]
    written, also = _written(first.program), _written(second.program)
    names = [*written, *(name for name in left if name not in written)]

    def same(name: str) -> bool:  # flatten() changes a shape, not the order of the elements
        sizes = (prod(left[name]["shape"]), prod(right[others[name]]["shape"]))
        return sizes[0] == sizes[1] and left[name]["dtype"] == right[others[name]]["dtype"]

    stored = {buffer["storage"]: name for name, buffer in right.items()}
    others = {name: stored.get(left[name]["storage"], name) for name in names}
    both = [name for name in names if others[name] in right]
    unmatched = set()
    for name in both:
        temporary = left[name]["role"] == "temporary"
        if temporary and (not same(name) or (name in written) != (others[name] in also)):
            unmatched.add(name)
        elif not same(name):
            shapes = f"{left[name]['shape']} in {first.path} and {right[others[name]]['shape']} in {second.path}"
            raise LatteError(f"{name} is {shapes}", way_out="compare stages of one ensemble and phase")
    return {name: others[name] for name in both if name not in unmatched}, sorted(unmatched)


def _written(program: Program) -> list[str]:
    names = stored_in(statement for nest in program.nests for statement in nest.body)
    return [name for name in names if name in program.buffers]
