"""Layers that hold data from outside."""

from __future__ import annotations

from collections.abc import Sequence

from latte.ensemble import DataEnsemble, Ensemble
from latte.layers.arguments import check_net
from latte.net import Net


def MemoryDataLayer(net: Net, shape: int | Sequence[int], *, name: str | None = None) -> Ensemble:
    """Data that the user sets: ``value`` of shape ``(batch,) + shape``.

    Args:
        net: the net.
        shape: without the batch: ``(channels, height, width)``, ``(features,)``, or ``(1,)`` for labels.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for an invalid shape.
    """
    check_net(net, "MemoryDataLayer")
    return net.add_ensemble(DataEnsemble(shape, name=name))
