"""Whole numbers with a declared range: they may be subscripts, because they are checked before a kernel reads them."""

from __future__ import annotations

from collections.abc import Mapping

from latte.model.buffers import repeated_sources
from latte.model.ensemble import Connection, Ensemble


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
