"""Buffers: named arrays of known shape, and how their logical index maps to memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from swirl.errors import LayoutError

DTYPES = {"float32": np.float32, "float64": np.float64, "int32": np.int32, "bool": np.bool_}
MOST_BYTES = 2**40
"""A larger buffer is a mistake."""


@dataclass(frozen=True)
class Layout:
    """How a buffer's logical index maps to memory. The default is row-major.

    Args:
        blocks: ``(dimension, factor)``: the dimension is cut into blocks of ``factor``, and the position within the
            block becomes an innermost dimension, in the order listed. Ragged ends are padded with zeros.
        halo: ``(before, after)`` for each dimension, or nothing: elements around the buffer, which are zero. References
            may read them, at subscripts below 0 and past the extent; none writes them.
        order: the dimensions as they follow each other in memory, outermost first, before the innermost ones of blocks;
            nothing means their own order.
    """

    blocks: tuple[tuple[int, int], ...] = ()
    halo: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in memory of a buffer of logical ``shape``."""
        outer = list(self.padded_shape(shape))
        inner = []
        for dim, factor in self.blocks:
            outer[dim] = -(-outer[dim] // factor)
            inner.append(factor)
        return (*(outer[dim] for dim in self.order or range(len(shape))), *inner)

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Logical extents, the halo included."""
        halo = self.halo or ((0, 0),) * len(shape)
        return tuple(before + extent + after for extent, (before, after) in zip(shape, halo, strict=True))

    def readable(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """For each dimension, the subscripts at which the buffer may be read: the first, and the one past the last."""
        halo = self.halo or ((0, 0),) * len(shape)
        return tuple((-before, extent + after) for extent, (before, after) in zip(shape, halo, strict=True))

    def tiled(self, dim: int, factor: int) -> Layout:
        """This layout with dimension ``dim`` blocked by ``factor`` (elements)."""
        if any(d == dim for d, _ in self.blocks):
            raise LayoutError(f"dimension {dim} is blocked already: {self.blocks}")
        return replace(self, blocks=(*self.blocks, (dim, factor)))

    def padded(self, halo: tuple[tuple[int, int], ...]) -> Layout:
        """This layout with at least this halo."""
        old = self.halo or ((0, 0),) * len(halo)
        new = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(old, halo, strict=True))
        return replace(self, halo=new if any(map(any, new)) else ())

    def ordered(self, order: tuple[int, ...]) -> Layout:
        """This layout with the dimensions in another order."""
        return replace(self, order=() if order == tuple(range(len(order))) else order)

    def pack(self, logical: np.ndarray) -> np.ndarray:
        """Logical array → new array of the physical shape, padding and halo zero."""
        array = np.pad(logical, self.halo) if self.halo else logical
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
        if self.order:
            array = array.transpose(*self.order, *range(rank, array.ndim))
        return np.ascontiguousarray(array)

    def unpack(self, physical: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Physical array → new array of the logical ``shape``."""
        array = self._in_own_order(physical)
        for dim, factor in reversed(self.blocks):
            array = np.moveaxis(array, -1, dim + 1)
            merged = (*array.shape[:dim], array.shape[dim] * factor, *array.shape[dim + 2 :])
            array = array.reshape(merged)
        return np.array(self._without_halo(array, shape), order="C")

    def view(self, physical: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """The physical array seen with the logical ``shape``; None if it is blocked."""
        return None if self.blocks else self._without_halo(self._in_own_order(physical), shape)

    def _in_own_order(self, physical: np.ndarray) -> np.ndarray:
        if not self.order:
            return physical
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return physical.transpose(*back, *range(len(back), physical.ndim))

    def _without_halo(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if not self.halo and array.shape == shape:
            return array
        first = [before for before, _ in self.halo] or [0] * len(shape)
        return array[tuple(slice(low, low + extent) for low, extent in zip(first, shape, strict=True))]


@dataclass(frozen=True)
class Buffer:
    """An array that nests read or write.

    Args:
        name: storage name, unique in a net (``conv1.weights``); the name inside nests is the key in
            ``Program.buffers``.
        shape: logical extents; a scalar is ``(1,)``.
        dtype: one of ``float32``, ``float64``, ``int32``, ``bool``.
        role: ``value``, ``grad``, ``param``, ``param_grad``, ``state``, ``constant``, ``temporary`` or
            ``scalar`` (run-time setting).
        layout: see :class:`Layout`.
        per_item: whether the first dimension of values and gradients is the batch.
        items: the number of equal parts that the elements are, in the order of the dimensions: one for each item of a
            whole batch. 0 where items have no elements of their own.
        formula: of a ``scalar`` that depends on the number of items: see :func:`swirl.ir.item_numbers.value_of`.
        given: whether whoever calls the kernels brings the memory: it may end with the last item of the batch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "value"
    layout: Layout = field(default_factory=Layout)
    per_item: bool = True
    items: int = 0
    formula: str = ""
    given: bool = False

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.layout.physical_shape(self.shape)

    @property
    def batch_dims(self) -> int:
        """The number of dimensions that commands do not count: the batch of values and gradients."""
        return 1 if self.role in ("value", "grad") and self.per_item else 0

    @property
    def size(self) -> int:
        """Logical number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding included."""
        return prod(self.physical_shape) * self.itemsize

    def with_batch_first(self) -> Buffer:
        """This buffer, which has as many items as its first extent says, if that is the batch."""
        batch = self.per_item and self.role in ("value", "grad", "state")
        return replace(self, items=self.shape[0]) if batch else self

    def with_layout(self, layout: Layout) -> Buffer:
        return replace(self, layout=layout)
