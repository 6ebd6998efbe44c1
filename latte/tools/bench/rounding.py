"""How far rounding moves the results of a deep net, and whether two sides are as near as that.

Rounding decides on which side of 0 a value near it is, for a ReLU, and which of two near values is a maximum. A
share p of such decisions moves a gradient, a sum over thousands of places with terms of both signs, by about √p of its
norm: two layouts of PyTorch give gradients of a ResNet-50's first convolution that are 5 % of their greatest element
apart. So the bound is measured, by noise.
"""

from __future__ import annotations

import numpy as np

from latte.tools.library.entries import Arrays
from swirl.errors import LatteError

ROUNDING = "rounding of "
"""Before the name of a result: its change if every layer's values have noise."""
FACTOR = 4.0
"""How many times as far as noise moves a result two sides may be apart, in its norm."""
LEAST = 1e-3
"""Of a result's norm: where noise moves it less."""


class WrongResult(LatteError):
    """A side computes something else than ours: nothing is timed."""


def compared_in_norm(subject: str, name: str, found: Arrays, expected: Arrays) -> float:
    """The greatest difference, as a share of the norm of its result.

    Args:
        subject: what has been computed.
        name: of the side.
        found, expected: its results and ours; one of them says how far rounding moves each.

    Raises:
        WrongResult: it is beyond the bound.
    """
    worst = 0.0
    for what, ours in expected.items():
        if what.startswith(ROUNDING):
            continue
        theirs = found[what].reshape(ours.shape).astype(np.float64)
        norm = max(_norm(theirs), 1e-30)
        moved = [
            np.linalg.norm(side[ROUNDING + what].astype(np.float64))
            for side in (found, expected)
            if ROUNDING + what in side
        ]
        bound = max(LEAST, FACTOR * float(max(moved, default=0.0)) / norm)
        difference = _norm(ours - theirs) / norm
        if not difference <= bound:  # NaN is beyond it
            raise WrongResult(
                f"{subject}: {what}: differs from {name}'s by {difference:.2g} of its norm, {norm:.4g}; rounding may "
                f"move it by {bound:.2g}",
                way_out="nothing was timed: mend the layer, or report it with this line",
            )
        worst = max(worst, difference)
    return worst


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))
