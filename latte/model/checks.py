"""Checks of numbers, phases, shapes and names of dimensions."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from latte.model.source_location import user_location
from swirl.errors import CommandError, DataError, DeclarationError, LatteError
from swirl.ir.hints import is_name
from swirl.ir.spelling import normalised

Method = TypeVar("Method", bound=Callable[..., Any])
FLOAT32_LIMIT = float(np.finfo(np.float32).max)
LIMITED = "for float32, which goes up to 3.4e38"
"""Said of a number that does not fit."""

# Each phase with the methods that may spell it, in order of preference.
PHASES = {"forward": ("forward",), "backward": ("backward",), "update": ("update", "update_internal")}


def is_integer(value: object) -> bool:
    """Whether ``value`` is a whole number, Python's or NumPy's, and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_size(value: object, least: int = 1) -> bool:
    """Whether ``value`` is a whole number, at least ``least``, that an extent, a stride or a count may be: generated
    code counts in 32 bits."""
    return is_integer(value) and least <= value < 2**31  # type: ignore[operator]


def size_limit(*values: object) -> str:
    """``" below 2**31"``, where one of these numbers is not: for messages about sizes."""
    return " below 2**31" if any(is_integer(value) and value >= 2**31 for value in values) else ""  # type: ignore[operator]


def is_number(value: object) -> bool:
    """Whether ``value`` is a plain real number (or bool), Python's or NumPy's."""
    return isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_))


def is_finite(value: object) -> bool:
    """Whether ``value`` is a plain real number that float32 has, neither NaN nor infinite."""
    return is_number(value) and -FLOAT32_LIMIT <= _comparable(value) <= FLOAT32_LIMIT


def _comparable(number: Any) -> float:
    """A number as Python's: NumPy would take what it is compared with for one of its own type, as infinite as a half
    float. Integers stay as they are: a float may not hold them."""
    return int(number) if is_integer(number) else float(number)


def check_number(
    name: str, value: Any, least: float | None = None, most: float | None = None, below: float | None = None
) -> float:
    """``value``, a finite number that float32 has.

    Args:
        name: of the parameter.
        value: as it was given.
        least, most: the least and the greatest value that fit.
        below: it must be less.

    Raises:
        DeclarationError: it does not fit.
    """
    number = _comparable(value) if is_number(value) else math.nan
    fits = -math.inf < number < math.inf
    limit = f" {LIMITED}" if fits and abs(number) > FLOAT32_LIMIT else ""
    inside = fits and (least is None or number >= least) and (most is None or number <= most)
    if not inside or limit or (below is not None and number >= below):
        words = (("at least", least), ("at most", most), ("below", below))
        bounds = [f", {word} {bound:g}" for word, bound in words if bound is not None]
        raise DeclarationError(
            f"{name} must be a number{limit}{''.join(bounds)}, not {value!r}", location=user_location()
        )
    return float(number)


def misfit(
    values: np.ndarray, dtype: str, below: int | None = None, place_of: Callable[[tuple[int, ...]], str] | None = None
) -> str | None:
    """What is wrong with an array that is to be kept as ``dtype``; None: no element changes, apart from rounding.

    Args:
        values: real numbers.
        dtype: of :data:`swirl.ir.buffers.DTYPES`.
        below: integers must be 0, 1, … up to the number before; None: any that 32 bits have.
        place_of: what the place of an element is called; its subscripts by default.
    """
    if dtype == "float64":
        return None
    if dtype == "float32":
        if values.dtype.kind != "f" or values.dtype.itemsize <= 4:
            return None
        needed = f"numbers {LIMITED},"
        wrong = (np.abs(values) > FLOAT32_LIMIT) & np.isfinite(values)
    elif dtype == "bool":
        needed, wrong = "True and False (or 1 and 0)", (values != 0) & (values != 1)
    else:
        least, end = (-(2**31), 2**31) if below is None else (0, below)
        needed = f"whole numbers from {least} to {end - 1}"
        wrong = ~((values >= least) & (values < end) & (values == np.floor(values)))
    if not wrong.any():
        return None
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    if place_of is not None:
        return f"{needed} are needed; {place_of(place)} is {values[place]}"
    at = f"at {list(place)} it is" if place else "it is"
    return f"{needed} are needed; {at} {values[place]}"


def masked(values: Any) -> str | None:
    """What is wrong with values of which some are masked (``np.ma``), or with a list that holds such: a net would
    compute with what is under the mask. None where nothing is masked."""
    if isinstance(values, np.ma.MaskedArray):
        count = int(np.ma.count_masked(values))
        what = f"{count} of {values.size} elements are masked, and a net would compute with what is under the mask"
        return f"{what}; array.filled(…) gives them values" if count else None
    if isinstance(values, (list, tuple)):
        parts = (each for each in values if isinstance(each, (list, tuple, np.ma.MaskedArray)))
        return next((found for each in parts if (found := masked(each)) is not None), None)
    return None


def check_unmasked(**arrays: Any) -> None:
    """Raise :class:`DataError` where one of these arrays, by name, has masked elements."""
    for name, values in arrays.items():
        if (wrong := masked(values)) is not None:
            raise DataError(f"{name}: {wrong}", location=user_location())


def is_flag(value: object) -> bool:
    """Whether ``value`` is True or False, Python's or NumPy's."""
    return isinstance(value, (bool, np.bool_))


def check_flags(error: type[LatteError], **flags: object) -> None:
    """Raise ``error`` if one of these arguments, by name, is neither True nor False."""
    for name, value in flags.items():
        if not is_flag(value):
            raise error(f"{name} must be True or False, not {value!r}", location=user_location())


def takes(function: Callable[..., Any], arguments: int, *names: str) -> bool:
    """Whether ``function`` can be called with so many arguments, and others by name, as far as Python knows its
    parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of those that are written in C
        return True
    try:
        signature.bind(*[None] * arguments, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def of_an_instance(way_out: str) -> Callable[[Method], Method]:
    """A method whose call on the class itself, as ``Net.load(path)``, is a :class:`CommandError` with a way out."""

    def decorated(method: Method) -> Method:
        owner = method.__qualname__.rpartition(".")[0]

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            if not any(base.__qualname__ == owner for each in arguments[:1] for base in type(each).__mro__):
                raise CommandError(f"{method.__qualname__} needs a net", location=user_location(), way_out=way_out)
            return method(*arguments, **named)

        return call  # type: ignore[return-value]

    return decorated


def check_phase(phase: str) -> str:
    """The phase, aliases resolved.

    Raises:
        DeclarationError: for an unknown one.
    """
    for canonical, names in PHASES.items():
        if isinstance(phase, str) and phase in names:
            return canonical
    raise DeclarationError(f"unknown phase {phase!r}", location=user_location(), way_out=f"one of {', '.join(PHASES)}")


def check_shape(shape: int | Sequence[int], location: str | None = None) -> tuple[int, ...]:
    """A shape as a tuple of positive integers.

    Raises:
        DeclarationError: if it is not a shape.
    """
    extents: tuple[Any, ...] = (shape,) if is_integer(shape) else ()
    of_bytes = isinstance(shape, (bytes, bytearray, memoryview))  # which are sequences of integers
    if (isinstance(shape, Sequence) and not of_bytes) or (isinstance(shape, np.ndarray) and shape.ndim == 1):
        extents = tuple(shape)
    if not extents or not all(map(is_size, extents)):
        raise DeclarationError(
            f"the shape {shape!r} must be one or more positive integers{size_limit(*extents)}, without the batch",
            location=location or user_location(),
        )
    return tuple(map(int, extents))


def check_padding(padding: object, shape: tuple[int, ...], location: str | None = None) -> tuple[tuple[int, int], ...]:
    """(before, after) for each dimension of ``shape``; None is no padding, a number stands for both sides.

    Raises:
        DeclarationError: if it does not fit the shape.
    """
    if padding is None:
        return ((0, 0),) * len(shape)
    sides = padding if isinstance(padding, (tuple, list)) else ()
    pairs = [side if isinstance(side, (tuple, list)) else (side, side) for side in sides]
    good = all(len(pair) == 2 and all(is_integer(pad) and pad >= 0 for pad in pair) for pair in pairs)
    if not good or len(pairs) != len(shape):
        raise DeclarationError(
            f"padding {padding!r} does not fit a source of shape {shape}",
            location=location or user_location(),
            way_out="one (before, after) for each dimension, no batch: ((0, 0), (1, 1), (1, 1))",
        )
    if not all(is_size(extent + sum(map(int, pair))) for extent, pair in zip(shape, pairs, strict=True)):
        raise DeclarationError(
            f"with padding {padding!r}, a source of shape {shape} has an extent that is not below 2**31",
            location=location or user_location(),
        )
    return tuple((int(before), int(after)) for before, after in pairs)


def check_ensemble_name(name: object, location: str | None) -> str:
    """The name that a user gives an ensemble; empty if it is to be numbered.

    Raises:
        DeclarationError: it is not a string.
    """
    if name is not None and not isinstance(name, str):
        raise DeclarationError(f"the name of a layer is a string, not {name!r}", location=location)
    return normalised(name or "")


def check_kind(kind: object, location: str | None) -> str:
    """The kind that a user gives an ensemble.

    Raises:
        DeclarationError: it is not a string, or cannot be the name of a recipe's file.
    """
    if not isinstance(kind, str) or not kind.isprintable() or "/" in kind or "\\" in kind:
        raise DeclarationError(
            f"the kind of a layer is the name of its recipe, not {kind!r}", location=location, way_out="kind='my_kind'"
        )
    return normalised(kind)


def check_dims(
    dims: Sequence[str] | None, shape: tuple[int, ...], reserved: Collection[str], location: str | None = None
) -> tuple[tuple[str, ...], str]:
    """The names of the dimensions of a shape, and of the batch: as the original calls them, where none are given.

    Raises:
        DeclarationError: they are too few or too many, not different, or reserved.
    """
    if dims is None:
        return tuple(f"_neuron_index_{dim + 1}" for dim in range(len(shape))), "_neuron_index_0"
    if isinstance(dims, str) or not all(isinstance(name, str) for name in dims):
        raise DeclarationError(
            f"dims must be a name for each dimension, not {dims!r}", location=location, way_out="dims=('c', 'y', 'x')"
        )
    names = tuple(map(normalised, dims))
    if len(names) != len(shape) or len({*names, "n"}) != len(names) + 1:
        raise DeclarationError(
            f"dims {names} must be {len(shape)} different names, as many as {shape} has",
            location=location,
            way_out="the batch, n, is not among them",
        )
    for name in names:
        if not is_name(name) or name in reserved:
            raise DeclarationError(f"{name!r} cannot name a dimension", location=location)
    return names, "n"


def check_below(below: int | None, dtype: str, what: str, location: str | None = None) -> None:
    """Raise :class:`DeclarationError` unless numbers of a type can have this range."""
    if below is None:
        return
    if dtype != "int32":
        raise DeclarationError(
            f"{what}: below is for integers, not for {dtype}", location=location, way_out="dtype='int32'"
        )
    if not is_size(below):
        raise DeclarationError(
            f"{what}: below must be an integer, at least 1{size_limit(below)}, not {below!r}", location=location
        )


def check_field_names(whys: Mapping[str, str | None], layer: str, location: str | None) -> None:
    """Raise :class:`DeclarationError` where there is a reason why a name cannot be that of a field of a layer.

    Args:
        whys: name → the reason, if there is one.
        layer: as messages name it.
        location: where it is declared.
    """
    for name, why in whys.items():
        if why is not None:
            message = f"{name!r} cannot name a field of {layer}: {why}"
            raise DeclarationError(message, location=location, way_out="give the field another name")
