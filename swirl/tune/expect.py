"""How good the best of so many random draws is (N. Tollenaere, *Decoupling tile sizes and microkernels*, thesis,
section 5.4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

TAUS = (0.5, 0.7, 0.9)
"""Probabilities that the thesis plots."""


def expect(performances: Sequence[float], draws: int, tau: float) -> float:
    """The performance that the best of so many draws reaches with a probability of at least ``tau``, if candidates are
    distributed as those that were measured: :math:`π^{-1}(1 - (1 - τ)^{1/n})`, where :math:`π(p)` is the share of
    candidates with a performance of ``p`` or more.

    Args:
        performances: of the candidates that were drawn at random, for instance as shares of the peak.
        draws: ``n``, at least 1.
        tau: between 0 and 1, without both.

    Raises:
        ValueError: there are no performances, or the numbers are others.
    """
    if not performances or draws < 1 or not 0 < tau < 1:
        raise ValueError(f"expect of {len(performances)} performances, {draws} draws, probability {tau}")
    ordered = sorted(performances, reverse=True)
    wanted = 1 - (1 - tau) ** (1 / draws)
    # The best p whose share is at least the wanted one: that of the k-th best is k / count, or more where several are
    # equal.
    place = max(1, ceil(wanted * len(ordered) - 1e-9))
    return ordered[place - 1]


def best_so_far(performances: Sequence[float]) -> list[float]:
    """The best of the first one, of the first two, and so on."""
    found: list[float] = []
    for each in performances:
        found.append(max(found[-1], each) if found else each)
    return found
