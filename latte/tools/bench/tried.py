"""A layer that ``latte bench`` tries by its name, beside the same lines in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from latte.ensemble import Ensemble
from latte.net import Net

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Tried:
    """A layer.

    Args:
        declare: adds it to a net, after a source.
        channels, extent: what these must be multiples of.
        source: what an item is: an image (channels, extent, extent), a sequence (channels positions, extent features),
            a vector of channels · extent² elements, or as many words.
        usual: batch, channels, extent, if not those of its form.
        facts: of a layer that draws random numbers, what is compared instead of its results: a function of (source,
            gradient of the value, results).
    """

    declare: Callable[[Net, Ensemble], Ensemble]
    channels: int = 1
    extent: int = 1
    source: Literal["image", "sequence", "vector", "words"] = "image"
    usual: str = ""
    facts: Callable[[np.ndarray, np.ndarray, Arrays], Arrays] | None = None

    @property
    def usual_shape(self) -> str:
        """Batch, channels and extent that it is measured at by default."""
        return self.usual or USUAL[self.source]

    def item(self, channels: int, extent: int) -> tuple[int, ...]:
        """The shape of an item of the source."""
        match self.source:
            case "image":
                return channels, extent, extent
            case "sequence":
                return channels, extent
        return (channels * extent * extent,)


USUAL = {"image": "16,64,56", "sequence": "16,256,64", "vector": "64,2048,1", "words": "64,128,1"}
"""Batch, channels and extent by what an item is."""
VOCABULARY = 10_000
"""Words are 0 … this, without it."""
