"""The layers of the library, each as it is declared most often."""

from __future__ import annotations

from typing import Any

from latte import MemoryDataLayer
from latte.ensemble import Ensemble
from latte.net import Net
from latte.tools.bench.tried import Tried
from latte.tools.library import LIBRARY
from latte.tools.library.entries import LibraryLayer, Measured, applied


def _tried(layer: LibraryLayer, measured: Measured) -> Tried:
    def declare(net: Net, source: Ensemble) -> Ensemble:
        sources = [source] * measured.times
        if measured.beside:
            sources.append(MemoryDataLayer(net, (1,) if measured.beside == "classes" else source.shape))
        return layer.declare_one(net, *sources, options=measured.options)

    def computed(torch: Any, x: Any, **parameters: Any) -> Any:
        sources = [x] * measured.times
        if measured.beside == "classes":
            sources.append(torch.zeros(len(x), 1, dtype=torch.int64))
        elif measured.beside == "numbers":
            sources.append(torch.zeros_like(x))
        if measured.lines is not None:
            return applied(measured.lines, torch, sources, measured.options, parameters)
        return layer.computed(torch, *sources, options=measured.options, **parameters)

    return Tried(declare=declare, computed=computed, **vars(measured))


SHIPPED: dict[str, Tried] = {
    name: _tried(layer, measured) for layer in LIBRARY.values() for name, measured in layer.measured.items()
}
"""Name → layer."""
