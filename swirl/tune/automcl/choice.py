"""Which schedule a product gets by its size: boosted trees, trained on measurements (AutoMCL, section 3, "Learning to
choose schedules"). They are read and evaluated here; ``latte/tools/tune/choice.py`` trains them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from swirl.errors import LatteError
from swirl.target.targets import Target
from swirl.tune.automcl.complexity import DNMM332, PRODUCTS, RPMMV
from swirl.tune.automcl.trees import Trees
from swirl.tune.stored import stored

FEW_ROWS = 16
"""Rows of a product up to which TVM takes DNMM, and :func:`opt_schedule` its better form."""


def opt_schedule(m: int) -> str:
    """The paper's OptSchedule: TVM's choice by M alone, with the better forms of its two schedules."""
    return DNMM332 if m <= FEW_ROWS else RPMMV


@dataclass(frozen=True)
class ScheduleChoice:
    """A trained choice: of several schedules the one whose trees give most.

    Args:
        target: that it was measured for.
        machine: its processor.
        threads: that the products were measured with.
        scores: schedule → trees on (M, K, N).
        card: what it was trained on, and how good it is.
    """

    target: str
    machine: str
    threads: int
    scores: Mapping[str, Trees]
    card: Mapping[str, Any] = field(default_factory=dict)

    def choose(self, m: int, k: int, n: int) -> str:
        """The schedule for a product of that size."""
        row = np.array([[m, k, n]], dtype=float)
        return max(self.scores, key=lambda schedule: float(self.scores[schedule].predict(row)[0]))

    def written(self) -> str:
        """As JSON."""
        values = {
            "target": self.target,
            "machine": self.machine,
            "threads": self.threads,
            "card": dict(self.card),
            "scores": {schedule: trees.written() for schedule, trees in self.scores.items()},
        }
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def read(cls, text: str, location: str) -> ScheduleChoice:
        """A choice from JSON.

        Raises:
            LatteError: it is damaged.
        """
        try:
            values = json.loads(text)
            scores = {name: Trees.read(trees) for name, trees in values["scores"].items()}
            if not scores or not set(scores) <= set(PRODUCTS):
                raise ValueError(f"its schedules are {', '.join(scores) or 'none'}")
            fields = str(values["target"]), str(values["machine"]), int(values["threads"])
            return cls(*fields, scores, dict(values.get("card", {})))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LatteError(
                f"the trained choice of schedules is damaged: {error}",
                location=location,
                way_out="remove it, and train again",
            ) from error


def choice_file(folder: Path, target: str) -> Path:
    """Where a folder has the choice for a target."""
    return folder / f"automcl_{target}.json"


def load_choice(target: Target, machine: str, threads: int, folders: Sequence[Path]) -> ScheduleChoice | None:
    """The choice for a target that was trained on this machine with as many threads; None where no folder has one: that
    of another machine is worth nothing.

    Args:
        target: what code is made for.
        machine: name of its processor.
        threads: that run it.
        folders: that may have it, the first one first.

    Raises:
        LatteError: one is damaged.
    """
    paths = (choice_file(folder, target.name) for folder in folders)
    found = (ScheduleChoice.read(*each) for each in stored(paths))
    return next((each for each in found if (each.machine, each.threads) == (machine, threads)), None)
