"""Sizes of layers whose defaults were others once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from latte.model.settings import NetSettings
from latte.model.source_location import user_stacklevel


class SizesAsInPyTorch(UserWarning):
    """By the defaults of the original Latte, layers of a net would have other sizes: given once for each net."""


def tell_of_sizes(
    settings: NetSettings,
    layer: str,
    made: tuple[tuple[int, ...], Mapping[str, bool]],
    original: tuple[tuple[int, ...], Mapping[str, bool]],
) -> None:
    """Warn, once for a net, that a layer has PyTorch's sizes.

    Args:
        settings: of the net.
        layer: its constructor.
        made: its sizes, and the arguments that ask for them.
        original: the same by the original's defaults.
    """
    if settings.told_of_sizes:
        return
    settings.told_of_sizes = True
    (now, ours), (then, theirs) = (
        (" × ".join(map(str, sizes)), ", ".join(f"{name}={value}" for name, value in arguments.items()))
        for sizes, arguments in (made, original)
    )
    warnings.warn(
        f"{layer} has {now} windows, as in PyTorch; by the defaults of the original Latte it would have {then}: "
        f"{ours} asks for PyTorch's without this warning, {theirs} for the original's, Net(…, compat=True) for all of "
        "its rules",
        SizesAsInPyTorch,
        stacklevel=user_stacklevel(),
    )
