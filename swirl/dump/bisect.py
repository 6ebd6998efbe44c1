"""Which stage is the first that computes something else: consecutive stages run on the same data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swirl.analysis.work import program_work
from swirl.dump.compare import Comparison, compared
from swirl.dump.read import STAGES, DumpedStage, compiled_stages, functions_of, read_stage
from swirl.errors import LatteError
from swirl.ir.nest import Program

LARGE = "portable"
"""The target for stages that Python would run for too long: the plainest code."""
QUICKLY = "-O2"
"""The flag for these: -O3 takes g++ four to eight times as long where loops are unrolled."""
IN_PYTHON = 3_000_000
"""Operations of a stage that Python does in a few seconds."""
STAGE = re.compile(r"(\d\d+)_\w+\.py")


@dataclass(frozen=True)
class Bisection:
    """The result for the stages of one ensemble and phase.

    Args:
        folder: where they are.
        stages: how many there are.
        wrong: the first two neighbours that differ, or None.
        compiled: for which target the stages were compiled, in place of being run by Python.
    """

    folder: Path
    stages: int
    wrong: Comparison | None
    compiled: str | None = None

    @property
    def name(self) -> str:
        """``conv1.forward``."""
        return f"{self.folder.parent.name}.{self.folder.name}"

    def __str__(self) -> str:
        if self.wrong is None:
            how = f", compiled for {self.compiled}" if self.compiled else ""
            return f"{self.name}: {self.stages} stages agree{how}"
        return f"{self.name}: {self.wrong.second.name} is the first that differs, from {self.wrong.first.name}\n  " + (
            f"first in {self.wrong.wrong}"
        )


def stage_folders(folder: Path) -> list[Path]:
    """The folders in (or below) a dump that hold stages.

    Raises:
        LatteError: there are none.
    """
    found = sorted({path.parent for path in folder.rglob("*.py") if STAGE.fullmatch(path.name)})
    if not found:
        raise _no_stages(folder)
    return found


def dumped_layers(folder: Path) -> set[str]:
    """The layer whose stages a folder holds, or the chain and its layers: their nests are labelled by them."""
    labels = [re.fullmatch(rf"(.+)_{folder.name}_\d+", name) for name in functions_of(_paths(folder)[0])]
    return {folder.parent.name, *(label[1] for label in labels if label)}


def bisect_stages(
    folder: Path,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    target: str | None = None,
    code: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bisection:
    """Compare every stage of a folder with the one before, up to the first that differs.

    Args:
        folder: of one ensemble and phase, as ``SWIRL_DUMP`` writes it; stages may have been edited.
        seed: of the data.
        tolerance: relative to the largest magnitude in a buffer; see :func:`swirl.dump.compare.compare_stages`.
        target: run the stages compiled for this target, in place of Python. By default Python runs them, or where that
            takes too long, they are compiled for the portable target with ``-O2``: ``compiled`` of the result says so.
        code: also run the last stage compiled for this target with the flags of nets, and compare it with the other run
            of it; not where ``target`` is given.
        progress: told what is done next, before it is done.

    Raises:
        LatteError: there are no stages, or one cannot be read or run.
    """
    paths = _paths(folder)
    told = progress or (lambda _: None)
    told(f"reading {len(paths)} stages")
    stages: Iterable[DumpedStage] = map(read_stage, paths)  # read when needed: one after a wrong one may be broken
    if target is not None:
        code = None
        told(f"compiling {len(paths)} stages for {target}")
        stages = _compiled(list(stages), target)
    elif _too_long(read_stage(paths[0]).program):
        target = LARGE
        told(f"compiling {len(paths)} stages for {target}")
        stages = _compiled(list(stages), target, optimize=QUICKLY)
    before: DumpedStage | None = None
    for stage in stages:
        if before is not None and _body(before.path) != _body(stage.path):  # or a pass had nothing to do
            told(f"{stage.path.name}, of {len(paths)} stages")
            found = compared(before, stage, seed=seed, tolerance=tolerance)
            if not found.agree:
                return Bisection(folder, len(paths), found, target)
        before = stage
    if code is not None and before is not None:
        told(f"the C++ for {code}")
        (translated,) = compiled_stages([before], code)
        translated = replace(translated, path=before.path.with_name(f"the C++ for {code}"))
        found = compared(before, translated, seed=seed, tolerance=tolerance)
        if not found.agree:
            return Bisection(folder, len(paths), found, target)
    return Bisection(folder, len(paths), None, target)


def _too_long(program: Program) -> bool:
    """Whether Python takes longer over a stage than g++ and the machine."""
    work = program_work(program)
    return max(work.operations, work.bytes / 4) > IN_PYTHON


def _compiled(stages: Sequence[DumpedStage], target: str, **options: str) -> list[DumpedStage]:
    """The stages, compiled; those of equal text once. ``options``: of :func:`compiled_stages`."""
    bodies = [_body(stage.path) for stage in stages]
    different = dict(zip(bodies, stages, strict=True))
    runs = dict(zip(different, compiled_stages(different.values(), target, **options), strict=True))
    return [replace(stage, compiled=runs[body].compiled) for body, stage in zip(bodies, stages, strict=True)]


def _paths(folder: Path) -> list[Path]:
    """The stages in a folder, in their order.

    Raises:
        LatteError: there are none.
    """
    found = sorted((path for path in folder.iterdir() if STAGE.fullmatch(path.name)), key=_number)
    if not found:
        raise _no_stages(folder)
    return found


def _no_stages(folder: Path) -> LatteError:
    return LatteError("holds no dumped stages", location=str(folder), way_out=STAGES)


def _number(path: Path) -> int:
    found = STAGE.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _body(path: Path) -> bytes:
    """The text of a stage without its title."""
    return path.read_bytes().partition(b"\n")[2]
