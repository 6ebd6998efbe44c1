"""Layers that hold data from outside."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import DataEnsemble, Ensemble
from latte.layers.arguments import check_net
from latte.net import Net


def MemoryDataLayer(
    net: Net,
    shape: int | Sequence[int],
    *,
    dtype: str | type = "float32",
    below: int | None = None,
    name: str | None = None,
) -> Ensemble:
    """Data that the user sets: ``value`` of shape ``(batch,) + shape``.

    Args:
        net: the net.
        shape: without the batch: ``(channels, height, width)``, ``(features,)``, or ``(1,)`` for labels.
        dtype: ``"float32"``, or ``"int32"`` for whole numbers, which have no gradient; or NumPy's types of these names.
        below: of whole numbers: all data are 0, 1, … up to the number before, which is checked when they are set. So
            they may be subscripts: the words of a vocabulary of ``below`` words.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for an invalid shape, type or range.
    """
    check_net(net, "MemoryDataLayer")
    type_name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    return net.add_ensemble(DataEnsemble(shape, type_name, below, name=name))
