"""The commands of recipes, by name, and the automatic passes."""

from swirl.transforms import (
    algebra,
    contract,
    expand,
    flatten,
    fusion,
    hoist,
    if_convert,
    inline,
    layers,
    layout,
    memory,
    moments,
    order,
    pack,
    parallel,
    partial_sums,
    prefetch,
    privatize,
    reindex,
    scalars,
    split,
    unroll,
    vectorize,
)
from swirl.transforms.base import COMMANDS

LAYOUT_COMMANDS = frozenset({"tile", "untile", "transpose", "set_padding"})
"""Commands on buffers: they take no phase."""

__all__ = [
    "COMMANDS",
    "LAYOUT_COMMANDS",
    "algebra",
    "contract",
    "expand",
    "flatten",
    "fusion",
    "hoist",
    "if_convert",
    "inline",
    "layers",
    "layout",
    "memory",
    "moments",
    "order",
    "pack",
    "parallel",
    "partial_sums",
    "prefetch",
    "privatize",
    "reindex",
    "scalars",
    "split",
    "unroll",
    "vectorize",
]
