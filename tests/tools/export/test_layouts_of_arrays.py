"""How callers' arrays are laid out in memory, and what of a net an export needs: without a compiler."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from latte.tools.export.inference import Arrays, Dimension, dimensions
from latte.tools.export.sources import quoted
from latte.tools.export.weights import BLOCK, weights_file
from swirl.ir.buffers import Buffer, Layout


def places(found: Sequence[Dimension]) -> np.ndarray:
    """Where each element is, in the order of the caller's array: as the exported program finds it."""
    at = np.zeros((), np.int64)
    for d in found:
        j = np.arange(d.extent) + d.before
        at = at[..., None] + (j // d.block * d.stride + j % d.block * d.inner if d.block else j * d.stride)
    return at.ravel()


@pytest.mark.parametrize(
    ("shape", "layout", "count"),
    [
        ((4, 3, 9, 7), Layout(), 2),
        ((4, 20, 9, 7), Layout(blocks=((1, 16),)), 3),
        ((4, 20, 5), Layout(blocks=((1, 8),), halo=((0, 0), (0, 0), (1, 2))), 3),
        ((4, 6, 5, 3), Layout(halo=((0, 0), (0, 0), (1, 1), (0, 0))), 3),
        ((4, 6, 5, 3), Layout(halo=((0, 0), (2, 0), (0, 0), (0, 0))), 2),
        ((5, 33), Layout(blocks=((0, 4), (1, 16))), 2),
        ((5, 6, 7), Layout(order=(1, 0, 2)), 3),
        ((5, 6, 7), Layout(order=(2, 1, 0), blocks=((0, 2),)), 3),
        ((3,), Layout(), 1),
    ],
)
def test_dimensions_say_where_elements_are(shape: tuple[int, ...], layout: Layout, count: int) -> None:
    buffer = Buffer("x", shape, layout=layout)
    logical = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    found = dimensions(buffer)
    assert np.array_equal(layout.pack(logical).ravel()[places(found)], logical.ravel())
    assert len(found) == count


def test_equal_weights_are_there_once_and_each_at_a_multiple_of_64() -> None:
    arrays = Arrays()
    first = arrays.weight("a", lambda: np.arange(5, dtype=np.float32))
    second = arrays.weight("b", lambda: np.arange(40, dtype=np.int32))
    assert arrays.weight("a", lambda: pytest.fail("it is known")) == first
    assert (first.offset, second.offset, arrays.weight_bytes) == (0, 64, 64 + 192)
    section = arrays.section()
    assert len(section) == arrays.weight_bytes and section[20:64] == bytes(44)
    assert np.array_equal(np.frombuffer(section, "<i4", 40, second.offset), np.arange(40))
    place = arrays.state("a", first, 20)
    assert arrays.state("a", first, 20) == place and arrays.begun == [(first, place, 20)]


def test_the_file_says_where_its_sections_are() -> None:
    sections = {"avx512": b"x" * 64, "avx2": bytes(range(256)) * 5000, "portable": b"x" * 64}
    data = weights_file(sections, bytes(range(32)))
    assert int.from_bytes(data[48:56], "little") == len(data)
    header = int.from_bytes(data[60:64], "little")
    assert zlib.crc32(data[: header - 4]) == int.from_bytes(data[header - 4 : header], "little")
    at, offsets = 64, []
    for name, section in sections.items():
        offset, size = (int.from_bytes(data[at + 16 + 8 * i : at + 24 + 8 * i], "little") for i in range(2))
        assert data[at : at + 16].rstrip(b"\0").decode() == name
        assert offset % 64 == 0 and data[offset : offset + size] == section
        offsets.append(offset)
        at += 32
    blocks = [section[i : i + BLOCK] for section in sections.values() for i in range(0, len(section), BLOCK)]
    assert len(blocks) == 4 and offsets[0] == offsets[2] and len(data) == offsets[1] + len(sections["avx2"])
    assert [int.from_bytes(data[at + 4 * i : at + 4 * i + 4], "little") for i in range(4)] == [*map(zlib.crc32, blocks)]


def test_names_are_literals_of_c() -> None:
    assert quoted('a "b"\\?') == '"a \\042b\\042\\134\\077"'
    assert quoted("größe") == '"gr\\303\\266\\303\\237e"'
