"""Mappings: the function from a neuron's index to the ranges of source neurons that it reads.

A mapping is called once, with symbolic indices, while ``range``, ``min`` and ``max`` in its globals are
symbolic ones. What comes back is one :class:`Window` for each dimension of the source, exact for all neurons.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from latte.model.index import Index, NotAffine, as_index, grid, maximum, minimum, variable
from latte.model.source_location import location_of, user_location
from swirl.errors import MappingError


@dataclass(frozen=True, eq=False)
class Window:
    """The source positions ``start, start + step, …`` before ``stop``, for one dimension of the source."""

    start: Index
    stop: Index
    step: int = 1

    @property
    def length(self) -> Index:
        """Number of positions; if not constant, it may be negative, which means none."""
        if self.step == 1:
            return self.stop - self.start
        return (self.stop - self.start + (self.step - 1)) // self.step

    @property
    def extent(self) -> int | None:
        """Number of positions where it is the same for all neurons, else None."""
        length = self.length.value
        return None if length is None else max(length, 0)

    @property
    def text(self) -> str:
        step = f", {self.step}" if self.step != 1 else ""
        return f"range({self.start}, {self.stop}{step})"

    def shifted(self, distance: int) -> Window:
        """The same window, ``distance`` further on."""
        return Window(self.start + distance, self.stop + distance, self.step)

    def reach(self) -> tuple[int, int] | None:
        """Smallest and largest position over all neurons; None where no neuron reads anything."""
        last = self.start + (self.length - 1) * self.step
        simple = all(atom.exact for part in (self.start, self.length) for atom in part.terms) and (
            self.length.value is not None
        )
        if simple and len(self.start.variables) == len(self.start.terms):
            return (self.start.low, last.high) if self.length.low > 0 else None
        points = grid(self.start, self.stop)
        if points is None:  # too many to enumerate: bounds that may be too wide
            return (self.start.low, minimum(last.high, self.stop.high - 1)) if self.length.high > 0 else None
        nonempty = np.broadcast_to(
            self.length.values(points) > 0, np.broadcast_shapes(*(axis.shape for axis in points.values()))
        )
        if not nonempty.any():
            return None
        starts = np.broadcast_to(self.start.values(points), nonempty.shape)[nonempty]
        lasts = np.broadcast_to(last.values(points), nonempty.shape)[nonempty]
        return int(starts.min()), int(lasts.max())


def symbolic_range(*arguments: Any) -> Window:
    """``range`` for symbolic integers.

    Raises:
        NotAffine: if the step is not a positive constant.
    """
    if not 1 <= len(arguments) <= 3:
        raise NotAffine(f"range takes one to three arguments, not {len(arguments)}")
    start, stop = (0, arguments[0]) if len(arguments) == 1 else arguments[:2]
    step = as_index(arguments[2]).value if len(arguments) == 3 else 1
    if step is None or step <= 0:
        raise NotAffine(f"the step of a range must be a positive constant, not {arguments[2]}")
    return Window(as_index(start), as_index(stop), step)


def mapping_location(mapping: Callable[..., Any]) -> str | None:
    """``file:line`` of a mapping."""
    code = getattr(getattr(mapping, "__func__", mapping), "__code__", None)
    return location_of(code) if code is not None else None


def trace(mapping: Callable[..., Any], dims: Sequence[str], shape: Sequence[int], rank: int) -> tuple[Window, ...]:
    """Call ``mapping`` once with symbolic indices.

    Args:
        mapping: takes one argument for each dimension of the sink, returns one ``range`` for each of the
            source.
        dims: names of the sink's dimensions, which become the loops.
        shape: extents of the sink, without the batch.
        rank: number of dimensions of the source, without the batch.

    Raises:
        MappingError: wrong number of arguments or ranges, or something that is not quasi-affine.
    """
    symbolic = _with_symbolic_globals(mapping)
    location = mapping_location(mapping)
    indices = [variable(name, 0, extent - 1) for name, extent in zip(dims, shape, strict=True)]
    try:
        inspect.signature(symbolic).bind(*indices)
    except TypeError:
        raise MappingError(
            f"the mapping {_head(mapping)} must take {len(indices)} arguments, one for each dimension of its"
            f" sink (shape {tuple(shape)})",
            location=location,
            way_out="the batch is not among them",
        ) from None
    try:
        result = symbolic(*indices)
    except NotAffine as error:
        raise MappingError(
            f"the mapping {_head(mapping)} is not affine: {error}",
            location=_line_in(error, location, mapping),
            way_out="ranges may use +, -, * constant, // constant, % constant, min and max of the arguments",
        ) from None
    except Exception as error:
        raise MappingError(
            f"the mapping {_head(mapping)} failed for symbolic indices: {type(error).__name__}: {error}",
            location=_line_in(error, location, mapping),
            way_out="a mapping may only compute with its arguments: + - * // % min max range",
        ) from error
    windows = result if isinstance(result, (tuple, list)) else (result,)
    if len(windows) != rank:
        raise MappingError(
            f"the mapping {_head(mapping)} returns {len(windows)} ranges, its source has {rank} dimensions",
            location=location,
            way_out="return one range for each dimension of the source, without the batch",
        )
    return tuple(_as_window(window, position, mapping, location) for position, window in enumerate(windows))


def check_reach(
    windows: Sequence[Window],
    shape: Sequence[int],
    padding: Sequence[tuple[int, int]],
    mapping: Callable[..., Any],
) -> None:
    """Raise :class:`MappingError` where a window leaves its source (``shape``) and the padding around it.

    The windows are in coordinates of the source: position -1 is the first one of the padding.
    """
    for position, (window, extent, (before, after)) in enumerate(zip(windows, shape, padding, strict=True)):
        reach = window.reach()
        if reach is None:
            raise MappingError(
                f"the mapping {_head(mapping)} gives dimension {position} the empty range {window.text}",
                location=mapping_location(mapping),
                way_out="every neuron should read something",
            )
        if reach[0] < -before or reach[1] >= extent + after:
            padded = f", padding ({before}, {after})" if before or after else ""
            raise MappingError(
                f"the mapping {_head(mapping)} leaves its source: {window.text} reaches from {reach[0]} to"
                f" {reach[1]} in dimension {position}, which has extent {extent}{padded}",
                location=mapping_location(mapping),
                way_out="clip with max(0, …) and min(extent, …), or connect with padding=… (zeros outside) "
                "or clamp=True (nearest edge)",
            )


def _head(mapping: Callable[..., Any]) -> str:
    return getattr(mapping, "__name__", repr(mapping))


def _as_window(value: Any, position: int, mapping: Callable[..., Any], location: str | None) -> Window:
    if isinstance(value, Window):
        return value
    if isinstance(value, range) and value.step > 0:
        return Window(as_index(value.start), as_index(value.stop), value.step)
    if isinstance(value, (int, np.integer, Index)) and not isinstance(value, bool):
        return Window(as_index(value), as_index(value) + 1)
    raise MappingError(
        f"the mapping {_head(mapping)} returns {value!r} for dimension {position} of its source, not a range",
        location=location,
        way_out="range(i, i + 1) reads the one element i",
    )


def _with_symbolic_globals(mapping: Callable[..., Any]) -> Callable[..., Any]:
    """The same function over a copy of its globals; the user's module is not touched."""
    if isinstance(mapping, MethodType):
        return MethodType(_with_symbolic_globals(mapping.__func__), mapping.__self__)
    if not isinstance(mapping, FunctionType):
        raise MappingError(
            f"a mapping must be a plain function or lambda, not {mapping!r}",
            location=user_location(),
            way_out="def mapping(c, y, x): return range(c, c + 1), range(y, y + 3), range(x, x + 3)",
        )
    symbolic = {"range": symbolic_range, "min": minimum, "max": maximum}
    names = {**mapping.__globals__}
    for name, replacement in symbolic.items():
        # A user's own global with such a name keeps its meaning.
        if names.get(name, getattr(builtins, name)) is getattr(builtins, name):
            names[name] = replacement
    copy = FunctionType(mapping.__code__, names, mapping.__name__, mapping.__defaults__, mapping.__closure__)
    copy.__kwdefaults__ = mapping.__kwdefaults__
    return copy


def _line_in(error: BaseException, location: str | None, mapping: Callable[..., Any]) -> str | None:
    """The line inside the mapping where ``error`` passed, else the mapping's own location."""
    code = getattr(getattr(mapping, "__func__", mapping), "__code__", None)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is code:
            return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return location
