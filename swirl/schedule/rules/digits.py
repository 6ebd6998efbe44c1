"""What keeps the digits of sums."""

from __future__ import annotations

from swirl.schedule.rules.trials import Trials
from swirl.transforms.rewrites.sums.mean_sums import centred_means


def keep_digits(own: Trials) -> None:
    """Means that data are centred by are those of differences: rows of equal numbers have deviations of zero.

    rewrite:
        m = 0.0                                 m = 0.0
        for x in range(64):               →     for x in range(64):
            m += a[x]                               m += a[x] - a[0]
        m = m / 64.0                            m = a[0] + m / 64.0

    Hardware: float32 has 24 bits; a sum of equal numbers is rounded, and its mean is not that number.
    """
    for var, occurrence in centred_means(own.program, own.nest or 0):
        which = {"occurrence": occurrence} if own.loop_names.count(var) > 1 else {}
        own.apply("equal numbers have exactly that mean", "shift_mean", var, **which)
