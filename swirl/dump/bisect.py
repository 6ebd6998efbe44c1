"""Which stage is the first that computes something else: consecutive stages run on the same data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from swirl.dump.compare import TOLERANCE, Comparison, compare_stages, differences
from swirl.dump.read import compile_stages, read_stage
from swirl.errors import LatteError
from swirl.ir.work import program_work

LARGE = "portable"
"""What stages are compiled for that Python would run for too long: code as plain as it gets."""
IN_PYTHON = 3_000_000
"""Operations of a stage that Python does in a few seconds."""
STAGE = re.compile(r"(\d\d+)_\w+\.py")


@dataclass(frozen=True)
class Bisection:
    """What became of the stages of one ensemble and phase.

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
        raise LatteError(
            "holds no dumped stages", place=str(folder), way_out="SWIRL_DUMP=folder at compile writes the stages"
        )
    return found


def dumped_layers(folder: Path) -> set[str]:
    """The layer whose stages a folder holds, or the chain and its layers: their nests are labelled by them."""
    first = min((path for path in folder.iterdir() if STAGE.fullmatch(path.name)), key=_number)
    labels = re.findall(rf"^def (\w+)_{folder.name}_\d+\(", first.read_text(encoding="utf-8"), re.MULTILINE)
    return {folder.parent.name, *labels}


def bisect_stages(
    folder: Path, *, seed: int = 0, tolerance: float = TOLERANCE, target: str | None = None, code: str | None = None
) -> Bisection:
    """Compare every stage of a folder with the one before, up to the first that differs.

    Args:
        folder: of one ensemble and phase, as ``SWIRL_DUMP`` writes it; stages may have been edited.
        seed: of the data.
        tolerance: relative to the largest magnitude in a buffer.
        target: run the stages compiled for this target, in place of Python. By default Python runs them, or where that
            takes too long, they are compiled for the portable target: ``compiled`` of the result says so.
        code: also run the last stage compiled for this target, and compare it with what the stages were run by; not
            where ``target`` is given.

    Raises:
        LatteError: a stage cannot be read or run.
    """
    stages = sorted((path for path in folder.iterdir() if STAGE.fullmatch(path.name)), key=_number)
    if target is None and stages and _too_long(stages[0]):
        target = LARGE
    elif target is not None:
        code = None
    if target is not None:
        compile_stages(stages, target)
    for first, second in pairwise(stages):
        if _body(first) == _body(second):
            continue  # a pass that had nothing to do
        found = compare_stages(first, second, seed=seed, tolerance=tolerance, target=target)
        if not found.agree:
            return Bisection(folder, len(stages), found, target)
    if code not in (None, target) and stages:
        found = _translated(stages[-1], code, seed, tolerance, target)
        if not found.agree:
            return Bisection(folder, len(stages), found, target)
    return Bisection(folder, len(stages), None, target)


def _too_long(path: Path) -> bool:
    """Whether Python takes longer over a stage than g++ and the machine."""
    work = program_work(read_stage(path).program)
    return max(work.operations, work.bytes / 4) > IN_PYTHON


def _number(path: Path) -> int:
    found = STAGE.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _body(path: Path) -> str:
    """The text of a stage without its title."""
    return path.read_text(encoding="utf-8").partition("\n")[2]


def _translated(path: Path, code: str, seed: int, tolerance: float, target: str | None) -> Comparison:
    """The last stage run as those before it were, and its C++."""
    stage = read_stage(path)
    executed = stage.run(stage.arrays(seed), target)
    compiled = stage.run(stage.arrays(seed), code)
    name = path.with_name(f"the C++ for {code}")
    return Comparison(path, name, tuple(differences(executed, compiled, tolerance)))
