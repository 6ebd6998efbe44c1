"""What keeps the digits of sums."""

from __future__ import annotations

from dataclasses import replace

from swirl.schedule.rules.trials import Trials
from swirl.transforms.rewrites.sums.mean_sums import centred_means


def keep_digits(trials: Trials) -> None:
    """Means that data are centred by are those of differences: rows of equal numbers have deviations of zero."""
    for number in range(len(trials.program.nests)):
        own = replace(trials, nest=number)
        for var, occurrence in centred_means(own.program, number):
            which = {"occurrence": occurrence} if own.loop_names.count(var) > 1 else {}
            own.apply("equal numbers have exactly that mean", "shift_mean", var, **which)
