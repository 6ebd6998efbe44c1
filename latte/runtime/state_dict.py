"""What a net has learned as arrays by name: for programs, and weights of other ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from latte.model.checks import check_flags
from latte.model.source_location import user_location
from latte.runtime.checkpoint import learned
from latte.runtime.data import check_array, check_fields
from latte.runtime.incompatible import IncompatibleKeys
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from swirl.errors import DataError, nearest


@one_at_a_time
def state_dict(
    session: Session, names: Mapping[str, str] | None = None, like: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Copies of the parameters and running statistics of a net by name.

    Args:
        session: of the compiled net.
        names: our name (``conv1.weights``) → name in the result; only these. All under our names by default.
        like: name in the result → array (or tensor) whose shape is taken: PyTorch's biases have one dimension.

    Raises:
        DataError: the net has no such tensor, two have one name, or one has another number of elements than ``like``.
    """
    if like is not None and not (isinstance(like, Mapping) and all(hasattr(a, "shape") for a in like.values())):
        raise DataError(
            f"like is a dictionary of arrays or tensors by name, not {like!r}",
            location=user_location(),
            way_out="like=module.state_dict()",
        )
    own = learned(session)
    result = {}
    for name, theirs in _named(own, names).items():
        wanted = None if like is None else like.get(theirs)
        shape = own[name].shape if wanted is None else tuple(wanted.shape)
        result[theirs] = _fitted(own[name], shape, theirs, name)
    return result


@one_at_a_time
def load_state_dict(
    session: Session, state: Mapping[str, Any], names: Mapping[str, str] | None = None, strict: bool = True
) -> IncompatibleKeys:
    """Set parameters and running statistics from arrays or tensors, as :func:`state_dict` gives them.

    Dimensions of one element may be missing, and those after the first one may be one: PyTorch has biases of one
    dimension, and rows of fully connected layers.

    Args:
        session: of the compiled net.
        state: name → NumPy array or tensor.
        names: our name → name in ``state``; only these are set. All, under our names, by default.
        strict: whether all of them must be there, and fit; otherwise what fits is taken.

    Returns:
        what was left out: our names of what is missing, theirs of what nothing asked for, and our names, with both
        shapes, of what has another shape.

    Raises:
        DataError: a name is missing or given twice, a shape does not fit, or a number does not fit float32 (whole
            numbers: their range). The message names it. Nothing is set then.
    """
    if not isinstance(state, Mapping):
        raise DataError(
            f"arrays are given by name, as state_dict() returns them, not {state!r}",
            location=user_location(),
            way_out='net.load_state_dict({"conv1.weights": array, …})',
        )
    check_flags(DataError, strict=strict)
    own = learned(session)
    found: dict[str, np.ndarray] = {}
    left = IncompatibleKeys([], [], [])
    wanted = _named(own, names)
    for name, theirs in wanted.items():
        if theirs not in state and not strict:
            left.missing_keys.append(name)
            continue
        if theirs not in state:
            strays = [given for given in state if given not in wanted.values()]
            hint = next((f"did you mean {theirs} by {given}? " for given in strays if nearest(given, [theirs])), "")
            every = "all names of the net are needed, or names={ours: theirs} for some; " if names is None else ""
            raise DataError(
                f"there is no {theirs!r}, for {name}",
                location=user_location(),
                way_out=f"{hint}{every}there are {', '.join(map(str, state)) or 'none'}",
            )
        values = check_array(state[theirs], None, theirs)
        if not strict and not _fits(values.shape, own[name].shape):
            left.mismatched_keys.append((name, values.shape, own[name].shape))
            continue
        found[name] = _fitted(values, own[name].shape, name, theirs)
    left.unexpected_keys.extend(str(given) for given in state if given not in wanted.values())
    check_fields(session.graph, found, wanted)
    for name, values in found.items():
        session.whole.write(name, values)
    session.forget_runs()
    return left


def _named(own: Mapping[str, np.ndarray], names: Mapping[str, str] | None) -> Mapping[str, str]:
    """Our names → theirs; DataError where the net has no such tensor, or two of them have one name."""
    if names is not None and not (isinstance(names, Mapping) and all(isinstance(n, str) for n in names.values())):
        raise DataError(
            f"names are a dictionary, our name → theirs, not {names!r}",
            location=user_location(),
            way_out='{"conv1.weights": "0.weight", …}',
        )
    first: dict[str, str] = {}
    for name, theirs in (names or {}).items():
        if name not in own:
            raise DataError(
                f"the net has no {name!r}", location=user_location(), way_out=f"it has {', '.join(sorted(own))}"
            )
        if first.setdefault(theirs, name) != name:
            raise DataError(
                f"{first[theirs]} and {name} are both called {theirs!r}",
                location=user_location(),
                way_out="give each a name of its own; load an array that both are to have in two calls",
            )
    return {name: name for name in own} if names is None else names


def _fitted(values: np.ndarray, shape: tuple[int, ...], wanted: str, given: str) -> np.ndarray:
    """The values in another shape, where only dimensions of one element differ, or those after the first are joined."""
    if not _fits(values.shape, shape):
        raise DataError(
            f"{given} of shape {values.shape} does not fit {wanted} of shape {shape}", location=user_location()
        )
    return values.reshape(shape)


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether only dimensions of one element differ, or those after the first are joined."""
    theirs, ours = ([extent for extent in of if extent != 1] for of in (given, wanted))
    rows = 2 in (len(theirs), len(ours)) and math.prod(given) == math.prod(wanted) and theirs[:1] == ours[:1]
    return theirs == ours or rows
