"""What the layer constructors share: checks of arguments, and adding a layer that reads its source one to one."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.model.checks import check_number, is_flag, is_integer, is_size, size_limit
from latte.model.sharing import Shared
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Param


def pair(name: str, value: int | Sequence[int], least: int) -> tuple[int, int]:
    """``value`` as (y, x).

    Raises:
        DeclarationError: unless it is one integer or two, each at least ``least``.
    """
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(is_size(part, least) for part in both):
        raise DeclarationError(
            f"{name} must be an integer of at least {least}{size_limit(*both)}, or two of them (y, x), not {value!r}",
            location=user_location(),
        )
    return int(both[0]), int(both[1])


def count(name: str, value: int) -> int:
    """``value``, a positive integer that an array can have as an extent.

    Raises:
        DeclarationError: if it is something else.
    """
    if not is_size(value):
        raise DeclarationError(
            f"{name} must be a positive integer{size_limit(value)}, not {value!r}", location=user_location()
        )
    return int(value)


def check_net(net: Net, layer: str) -> None:
    """Check that ``net`` is one.

    Raises:
        DeclarationError: it is not.
    """
    if not isinstance(net, Net):
        raise DeclarationError(f"{layer}: the first argument must be the net, not {net!r}", location=user_location())


def flag(name: str, value: bool) -> bool:
    """``value``, True or False.

    Raises:
        DeclarationError: it is something else.
    """
    if not is_flag(value):
        raise DeclarationError(f"{name} must be True or False, not {value!r}", location=user_location())
    return bool(value)


def source_of(net: Net, ensemble: Ensemble, layer: str, rank: int | tuple[int, ...] | None = None) -> Ensemble:
    """``ensemble``, which a layer reads.

    Raises:
        DeclarationError: unless it is one of ``net``, and has ``rank`` dimensions without the batch.
    """
    check_net(net, layer)
    if not isinstance(ensemble, Ensemble):
        raise DeclarationError(
            f"{layer}: the input must be what a layer returned, not {ensemble!r}", location=user_location()
        )
    if ensemble not in net.graph:
        raise DeclarationError(f"{layer}: {ensemble!r} is in another net", location=user_location())
    ranks = (rank,) if isinstance(rank, int) else rank
    if ranks is not None and ensemble.ndim not in ranks:
        raise DeclarationError(
            f"{layer} reads {' or '.join(map(str, ranks))} dimensions without the batch, {ensemble!r} has"
            f" {ensemble.ndim}",
            location=user_location(),
        )
    return ensemble


def check_axis(source: Ensemble, axis: int) -> None:
    """Check that ``axis`` is a dimension of ``source``, counted without the batch.

    Raises:
        DeclarationError: it is not.
    """
    if not is_integer(axis) or not 0 <= axis < source.ndim:
        raise DeclarationError(
            f"axis must be an integer from 0 to {source.ndim - 1}, not {axis!r}", location=user_location()
        )


def names_of_dimensions(rank: int) -> tuple[str, ...] | None:
    """Loop names of an element-wise layer."""
    return {1: ("c",), 2: ("y", "x"), 3: ("c", "y", "x")}.get(rank)


def positive(name: str, value: float) -> float:
    """``value``, a finite number greater than 0, as float32 too.

    Raises:
        DeclarationError: if it is not.
    """
    found = check_number(name, value, least=0.0)
    if found <= 2.0**-150:  # 0 as float32
        raise DeclarationError(f"{name} must be greater than 0, not {value!r}", location=user_location())
    return found


def choice(name: str, value: str, words: Sequence[str]) -> str:
    """``value``, one of ``words``.

    Raises:
        DeclarationError: if it is not.
    """
    if not isinstance(value, str) or value not in words:
        known = " or ".join(map(repr, words))
        raise DeclarationError(f"{name} must be {known}, not {value!r}", location=user_location())
    return value


def one_to_one(net: Net, source: Ensemble, ensemble: Ensemble) -> Ensemble:
    """``ensemble``, added to the net; each element reads the one of ``source`` at its own index."""
    net.add_ensemble(ensemble)
    net.add_one_to_one_connections(source, ensemble)
    return ensemble


def own_or_shared(name: str, given: Shared | None, own: Param, *extents: int) -> Param:
    """The declaration of a parameter: the layer's own, or what was given in its place.

    Args:
        name: of the parameter.
        given: another layer's (``conv1.weights``), which then has the dimensions of ``own``; None for its own.
        own: its own.
        extents: of the dimensions of ``own``.

    Raises:
        DeclarationError: it is not another layer's parameter, or has another shape than its own.
    """
    if given is None:
        return own
    if not isinstance(given, Shared):
        raise DeclarationError(
            f"{name} must be a parameter of another layer, not {given!r}",
            location=user_location(),
            way_out=f"{name}=other.{name}; values are set by set_{name}(array) after net.compile()",
        )
    shape = (*extents, *own.shape)
    if given.extents != shape:
        raise DeclarationError(
            f"{name} must have the shape {shape}, {given.of} has {given.extents}",
            location=user_location(),
            way_out=f"without {name}= the layer has its own",
        )
    return given.over(*own.dims)
