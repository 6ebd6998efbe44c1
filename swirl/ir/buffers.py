"""Buffers: named arrays of known shape, and how their logical index maps to memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from swirl.errors import LayoutError

DTYPES = {"float32": np.float32, "float64": np.float64, "int32": np.int32, "bool": np.bool_}


@dataclass(frozen=True)
class Layout:
    """How a buffer's logical index maps to memory.

    ``blocks`` lists ``(dimension, factor)``: the dimension is cut into blocks of ``factor``, and the
    position within the block becomes an innermost dimension, in the order listed. Ragged ends are padded
    with zeros. The default is row-major without blocks.
    """

    blocks: tuple[tuple[int, int], ...] = ()

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in memory of a buffer of logical ``shape``."""
        outer = list(shape)
        inner = []
        for dim, factor in self.blocks:
            outer[dim] = -(-outer[dim] // factor)
            inner.append(factor)
        return (*outer, *inner)

    def tiled(self, dim: int, factor: int) -> Layout:
        """This layout with dimension ``dim`` blocked by ``factor`` (elements)."""
        if any(d == dim for d, _ in self.blocks):
            raise LayoutError(f"dimension {dim} is blocked already: {self.blocks}")
        return Layout((*self.blocks, (dim, factor)))

    def pack(self, logical: np.ndarray) -> np.ndarray:
        """Logical array → new array of the physical shape, padding zero."""
        array = logical
        rank = logical.ndim
        for dim, factor in self.blocks:
            ragged = -array.shape[dim] % factor
            if ragged:
                pad = [(0, 0)] * array.ndim
                pad[dim] = (0, ragged)
                array = np.pad(array, pad)
            shape = array.shape
            split = (*shape[:dim], shape[dim] // factor, factor, *shape[dim + 1 :])
            array = np.moveaxis(array.reshape(split), dim + 1, -1)
        assert array.ndim == rank + len(self.blocks)
        return np.ascontiguousarray(array)

    def unpack(self, physical: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Physical array → new array of the logical ``shape``."""
        array = physical
        for dim, factor in reversed(self.blocks):
            array = np.moveaxis(array, -1, dim + 1)
            merged = (*array.shape[:dim], array.shape[dim] * factor, *array.shape[dim + 2 :])
            array = array.reshape(merged)
        return np.array(array[tuple(slice(0, extent) for extent in shape)], order="C")


@dataclass(frozen=True)
class Buffer:
    """An array that nests read or write.

    Args:
        name: storage name, unique in a net (``conv1.weights``); the name inside nests is the key in
            ``Program.buffers``.
        shape: logical extents; a scalar is ``(1,)``.
        dtype: one of ``float32``, ``float64``, ``int32``, ``bool``.
        role: ``value``, ``grad``, ``param``, ``param_grad``, ``state``, ``temporary`` or ``scalar`` (run-time setting).
        layout: see :class:`Layout`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "value"
    layout: Layout = field(default_factory=Layout)

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.layout.physical_shape(self.shape)

    @property
    def size(self) -> int:
        """Logical number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding included."""
        return prod(self.physical_shape) * np.dtype(DTYPES[self.dtype]).itemsize

    def with_layout(self, layout: Layout) -> Buffer:
        return replace(self, layout=layout)
