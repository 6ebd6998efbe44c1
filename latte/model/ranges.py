"""Whole numbers with a declared range: they may be subscripts, because they are checked before a kernel reads them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latte.model.buffers import repeated_sources
from latte.model.ensemble import Connection, Ensemble
from latte.model.source_location import user_location
from swirl.errors import DataError


def ranges(ensemble: Ensemble, batch_size: int | None = None) -> Mapping[str, int]:
    """The integers with a range that a layer's bodies may name → the number that they are below."""
    found = {name: spec.below for name, spec in ensemble.fields(batch_size).items()}
    repeated = repeated_sources(ensemble)
    edges = (edge for edge in ensemble.connections if edge.name not in repeated)
    found |= {edge.name: edge.source.fields()["value"].below for edge in edges}
    return {name: below for name, below in found.items() if below is not None}


def classes_of(edge: Connection) -> int:
    """The number of classes that labels are of, which a layer with ``class_labels`` reads through ``edge``."""
    sink = edge.sink
    return sink.classes or next(len(each.source) for each in sink.connections if not each.is_label)


def check_range(values: np.ndarray, below: int | None, what: str) -> None:
    """Check what is to be kept as integers.

    Args:
        values: any real numbers.
        below: all must be 0, 1, … up to the number before; None: any whole number of 32 bits.
        what: is said to be wrong.

    Raises:
        DataError: one of them is not; the message has its place.
    """
    least, end = (-(2**31), 2**31) if below is None else (0, below)
    wrong = ~((values >= least) & (values < end) & (values == np.floor(values)))
    if wrong.any():
        place = [int(index) for index in np.argwhere(wrong)[0]]
        raise DataError(
            f"{what}: whole numbers from {least} to {end - 1} are needed; at {place} it is {values[tuple(place)]}",
            location=user_location(),
        )
