"""What a connection is given: the shape in which a layer sees its source, and the source's name in its bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from latte.model.checks import check_shape
from latte.model.ensemble import Ensemble
from latte.model.neuron import why_no_name
from swirl.errors import DeclarationError
from swirl.ir.spelling import as_in_sources


def checked_view(
    source: Ensemble, sink: Ensemble, reshape: Sequence[int] | None, location: str | None
) -> tuple[int, ...] | None:
    """The shape in which a sink sees its source; None for its own."""
    if reshape is None:
        return None
    view = check_shape(reshape, location)
    if sink.explicit:
        raise DeclarationError("reshape is for sinks with neurons, not for explicit loops", location=location)
    if int(np.prod(view)) != len(source):
        raise DeclarationError(f"{source!r} has {len(source)} elements and cannot be seen as {view}", location=location)
    return view if view != source.shape else None


def source_name(sink: Ensemble, name: str | None, location: str | None) -> str:
    """What a new source is called in the bodies of a sink: by the user, or ``inputs`` and a number."""
    if name is not None:
        name = as_in_sources(name)
        _check_source_name(sink, name, location)
        return name
    count = sum(re.fullmatch(r"inputs\d*", connection.name) is not None for connection in sink.connections)
    return f"inputs{count or ''}"


def _check_source_name(sink: Ensemble, name: object, location: str | None) -> None:
    if not isinstance(name, str):
        raise DeclarationError(f"the name of a source is a string, not {name!r}", location=location)
    known = [*(edge.name for edge in sink.connections), *sink.fields()]
    why = why_no_name(name, (*sink.dims, sink.batch_dim))
    if name in known or f"grad_{name}" in known:
        why = "another source or field has it"
    if name.startswith("grad_"):
        why = "it would be a gradient's"
    if why is not None:
        raise DeclarationError(
            f"{name!r} cannot name a source of {sink!r}: {why}", location=location, way_out="choose another name"
        )
