"""The layers of the library: each has an entry, which benchmarks, random nets and tests draw from.

``tests/layers/test_every_layer.py`` says what a layer lacks.
"""

from latte.tools.library import activations, arranging, losses, normalizations, pooling, products, sequences
from latte.tools.library.entries import LibraryLayer

FAMILIES = (products, pooling, activations, normalizations, arranging, sequences, losses)
LIBRARY: dict[str, LibraryLayer] = {layer.name: layer for family in FAMILIES for layer in family.LAYERS}
"""Name of the constructor → entry."""
