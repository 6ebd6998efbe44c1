"""Convolution in blocks of channels, with register tiles: pixels × vectors of channels.

A broadcast pixel meets vectors of weights; the sums stay in registers over the whole reduction: the shape of the
fastest known kernels (Georganas et al., *Anatomy of high-performance deep learning convolutions on SIMD
architectures*, SC 2018). Value, gradient and weights are in blocks of channels, one vector each; the inputs have their
owner's layout. Layers of few filters keep plain (batch, channel, y, x) arrays, with lanes along x.

Taps that fall outside of the image are left out statically: rows are cut at the borders. Zeros around the inputs in
their place (examples/recipes/conv_halo.py) fill the same registers with products of zeros, and take longer by as much
as there are taps outside, at every size that was measured: 1.02 times at 56 × 56, 1.1 at 14 × 14, 1.2 at 7 × 7, 1.4 at
7 × 7 with stride 2.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from latte.recipes._conv_tiles import (
    channel_loops,
    divisor,
    leave_other_blocks,
    one_tap,
    present,
    sums_of_tile,
    whole_blocks,
)
from latte.recipes._conv_update import update
from swirl.schedule.recipe import Schedule
from swirl.target import Target

__all__ = ["backward", "forward", "update"]

LARGE = 2**22  # elements, from which on an array is taken to be in memory, not in the caches
FAR_BLOCKS = 12  # of channels, from which on a single tap's are fetched ahead
FEW_PASSES = 4  # over a source, up to which its blocks are fetched ahead for several taps
FEW_IMAGES = 8  # fewer do not keep the threads busy with a part of the work each
IMAGES = 8  # whose same pixel is in a register tile: more evict each other, often a multiple of a page apart


def forward(s: Schedule, target: Target) -> None:
    width = target.simd_width
    leave_other_blocks(s, target)
    if not blocks_pay(s, width):
        _plain_forward(s, target)
        return
    lay_out(s, width, "value", "grad")
    if not one_tap(s, "forward"):
        tile_pixels(s, target, "y", "x")
        return
    s.flatten("forward", ["y", "x"])
    far = s.extent("forward", "n") * prod(s.shape("value")) >= LARGE
    if far:
        s.scalar_replace("forward", "value", optional=True)  # stored once, as it is where a ReLU follows
    tile_pixels(s, target, "yx")
    if far:
        s.stream("forward", "value", optional=True)


def lay_out(s: Schedule, width: int, *others: str) -> None:
    """Weights and others (value, gradient) in blocks of channels."""
    for buffer in ("weights", "grad_weights"):
        if s.blocks("inputs") or _fills(s.shape("inputs")[0], width):
            s.tile(buffer, 1, width)
        s.tile(buffer, 0, width)
    for buffer in others:
        s.tile(buffer, 0, width)


def tile_pixels(s: Schedule, target: Target, *pixels: str, others: int = 0) -> None:
    """Forward's register tile, once arrays are blocked; ``pixels`` are the loops over them, the last one along a row,
    ``others`` how many sums of all its pixels are made beside."""
    channels, inner = channel_loops(s, "forward")
    s.reorder("forward", [*channels, "ky", "kx", *inner])
    _register_tile(s, target, "forward", pixels, "k", "c", others)


def backward(s: Schedule, target: Target) -> None:
    width = target.simd_width
    if not s.loops("backward"):
        return
    leave_other_blocks(s, target)
    if not s.blocks("grad"):
        _plain_backward(s, target)
        return
    own = s.loops("backward", "grad_inputs")  # in a chain there are other layers' loops before them
    if "k_outer" not in own:
        s.decline("it reads a layer of its chain, whose gradient is not the chain's")
    before = own[: own.index("k_outer")]
    zeroing = before[-2:] if len(before) > 2 else ()  # none where another reader of the source has done it
    if {"ky", "kx"} & set(zeroing):
        s.decline("the kernel is as large as the image, and its taps set the gradient to zero")
    few = not s.blocks("inputs") and not _fills(s.shape("inputs")[0], width)
    if not few:
        s.pack("backward", "weights")  # vectors along the input channels
        s.tile("weights_packed", 0, width)
        s.tile("weights_packed", 1, width)
    pixels: Sequence[str] = ["y", "x"]
    _, _, iy, ix = s.subscripts("backward", "grad_inputs")
    single = s.extent("backward", "ky") * s.extent("backward", "kx") == 1
    if few and single and "-" in iy + ix:
        s.decline("few channels, whose one tap may be in the zeros around them")
    if not single:
        s.reindex("backward", iy=iy)  # each input pixel gathers, where each output pixel scattered
        if "iy" in s.loops("backward"):
            s.reindex("backward", ix=ix)
        if "ix" not in s.loops("backward"):
            s.decline("every tap falls outside of the image")
        pixels = ["iy", "ix"]
    channels, inner = ([], []) if zeroing else channel_loops(s, "backward")
    s.reorder("backward", [*channels, *inner, *pixels, "k_outer", "ky", "kx", "k_inner"])
    if not zeroing:
        pixels = s.flatten("backward", pixels) if one_tap(s, "backward") else pixels
    elif all(s.extent("backward", a) == s.extent("backward", b) for a, b in zip(zeroing, pixels, strict=True)):
        for loop, same in zip(zeroing, pixels, strict=True):
            s.fuse("backward", loop, same)
        pixels = zeroing
        if one_tap(s, "backward"):
            pixels = s.flatten("backward", zeroing)
    if few:
        _sums_of_lanes(s, target, pixels)
        return
    _register_tile(s, target, "backward", pixels, "c", "k")
    # The copy transposes a block of weights at a time, which the first cache holds.
    block = ("dim0_outer", "dim1_outer", "dim2", "dim3", "dim0_inner", "dim1_inner")
    s.reorder("backward", [f"weights_packed_{loop}" for loop in block])
    s.parallelize("backward", "weights_packed_dim0_outer")


def _sums_of_lanes(s: Schedule, target: Target, pixels: Sequence[str]) -> None:
    """Pixels × channels, each a vector of sums over the filters' lanes, added up at the end: input channels are too few
    to be lanes."""
    channels = s.shape("inputs")[0]
    _tile_row(s, "backward", pixels[-1], sums_of_tile(target) // channels)
    s.unroll_and_jam("backward", "c", channels)
    if "kx" in s.loops("backward"):  # unless every tap falls outside of the image
        s.vectorize("backward", "k_inner", target.simd_width)
        s.unroll("backward", "kx", s.extent("backward", "kx"), unroll_type=1)
    if s.extent("backward", "n") < FEW_IMAGES:  # rows, too
        s.parallelize("backward", ["n", "c", *pixels[:-1]], optional=True)
    s.parallelize("backward", "n")


def _register_tile(
    s: Schedule, target: Target, phase: str, pixels: Sequence[str], channels: str, summed: str, others: int = 0
) -> None:
    """Pixels × two vectors of channels; and so many sums of all pixels of other numbers beside them."""
    row, tile = pixels[-1], (sums_of_tile(target) - others) // 2
    images, rows = _images(s, phase, row, tile)
    held = tile if images else min(tile, s.extent(phase, row))
    if images:
        _in_passes(s, target, phase, pixels, f"{summed}_outer", images)
    if images and not rows:
        _each_pixel(s, phase, row)
    else:
        _tile_row(s, phase, row, tile, **({"unroll_type": 1} if others else {}))
    few = s.extent(phase, "n") < FEW_IMAGES
    apart = few or bool(images) and not rows  # a thread gets few images: all blocks of channels are shared, too
    blocks, ragged = whole_blocks(s, phase, channels, target.simd_width, pairs=apart)
    together = not ragged and blocks % 2 == 0
    if apart and not together and blocks + ragged > 1:
        s.distribute(phase, "n")  # costs a pass over the source
        together = True
    if images:
        s.unroll_and_jam(phase, "n", images)
    if blocks > 1:
        s.unroll_and_jam(phase, f"{channels}_outer", 2)
    s.vectorize(phase, f"{channels}_inner", target.simd_width, strided="gather")
    if "kx" in s.loops(phase):  # unless every tap falls outside of the image
        taps = s.extent(phase, "kx")
        # Where a tap has no loop of its own inside, g++ keeps its pixels for the next ones: without room, sums spill.
        room = target.registers - held * max(1, min(2, blocks))
        if f"{summed}_inner" in s.loops(phase) or held + taps <= room:
            s.unroll(phase, "kx", taps, unroll_type=1)
    _fetch_ahead(s, target, phase, f"{summed}_outer", len(pixels) == 1, -(-blocks // 2) + ragged)
    for loop in present(s, phase, "n", "n_1"):  # images in tiles of another size are separate
        shared = [loop, f"{channels}_outer"] if together else [loop]
        if images and len(shared) > 1:  # weights are many beside the pixels: a thread keeps some for all images
            shared.reverse()
            s.reorder(phase, shared)
        if few and blocks and not images:  # rows, too, unless a chain's sums are made between them and the images
            alone = present(s, phase, *(f"{channels}_outer{number}" for number in ("", "_1", "_2")))
            s.parallelize(phase, [loop, *alone, f"{channels}_inner", pixels[0]], optional=True)
        # In a chain that has joined the loops over images, those of another layer may be beside the blocks.
        s.parallelize(phase, shared if s.perfect(phase, shared) else shared[:1])


def _fetch_ahead(s: Schedule, target: Target, phase: str, summed: str, flat: bool, passes: int) -> None:
    """The rows of the next block of channels are fetched while those of one are summed up: each has pages of its own.

    A single tap on ``flat`` images is soon done with a block. With several taps, or a stride, it pays where rows come
    from memory, are not few beside those of the result, and pass by a few times, as later passes find them in the
    caches; and where a pixel of a block is a whole cache line."""
    if summed not in s.loops(phase):
        return
    read, made = ("inputs", "value") if phase == "forward" else ("grad", "inputs")
    elements, whole_lines = prod(s.shape(read)), 4 * target.simd_width >= 64
    far = s.extent(phase, "n") * elements >= LARGE and 2 * elements >= prod(s.shape(made)) and whole_lines
    if flat:
        if s.extent(phase, summed) >= FAR_BLOCKS:
            s.prefetch(phase, read, summed, 3, optional=True)
    elif far and passes <= FEW_PASSES:
        s.prefetch(phase, read, summed, 1, optional=True)


def short_rows(s: Schedule, target: Target) -> bool:
    """Whether a register tile of forward has pixels of several images."""
    return bool(_images(s, "forward", "x", sums_of_tile(target) // 2)[0])


def _images(s: Schedule, phase: str, pixels: str, tile: int) -> tuple[int | list[int], bool]:
    """How many images have a part in each register tile, where rows are too short to fill it, and whether that part is
    a row, or else a pixel."""
    row, images = s.extent(phase, pixels), s.extent(phase, "n")
    if tile // row > 1:
        return divisor(images, tile // row), True
    column = s.combination(images, min(tile, IMAGES))
    longer = images / len(column) > 1.1 * row / len(s.combination(row, tile))
    return (column, False) if longer else (0, False)


def _in_passes(
    s: Schedule, target: Target, phase: str, pixels: Sequence[str], blocks: str, images: int | list[int]
) -> None:
    """Passes over as many blocks of channels as have, in the first cache, their weights of a register tile and the rows
    of its images that the taps of a row meet; the sums are in memory in between. That costs more than it saves where
    all blocks take up to two such caches."""
    if blocks in s.loops(phase) and len(pixels) > 1:
        rows, columns = (s.extent(phase, loop) if loop in s.loops(phase) else 1 for loop in ("ky", "kx"))
        weights = rows * columns * target.simd_width * 2
        sources = rows * s.extent(phase, pixels[-1]) * (images if isinstance(images, int) else max(images))
        block, count = 4 * target.simd_width * (weights + sources), s.extent(phase, blocks)
        held = target.l1_bytes // block
        if held > 0 and block * count > 2 * target.l1_bytes:
            passes, _ = s.tile_loop(phase, blocks, divisor(count, held))
            s.reorder(phase, [passes, *pixels], optional=True)  # not where a pixel is normalised before it is stored


def _tile_row(s: Schedule, phase: str, pixels: str, tile: int, **options: Any) -> None:
    """Pixels of a row in tiles as even as possible; those at the borders separate, without the taps outside."""
    row = s.extent(phase, pixels)
    first, *middle = s.combination(row, tile)
    last = [middle.pop()] if middle else []
    parts = [part for part in ([first], middle, last) if part]
    if len(parts) > 1:
        s.split(phase, pixels, [first, row - last[0]][: len(parts) - 1])
    for number, part in enumerate(parts):
        s.unroll_and_jam(phase, f"{pixels}_{number}" if number else pixels, part, **options)


def _each_pixel(s: Schedule, phase: str, row: str) -> None:
    """Pixels one after the other; those at the borders separate, without the taps outside."""
    (low, high), extent = s.interior(phase, row), s.extent(phase, row)
    cuts = [cut for cut in (low, high) if 0 < cut < extent]
    if cuts:
        s.split(phase, row, cuts)
    loops, last = s.loops(phase), f"{row}_{len(cuts)}"  # one tap may leave nothing of them
    if low > 0 and row in loops:
        s.unroll(phase, row, low)
    if high < extent and last in loops:
        s.unroll(phase, last, extent - high)


def blocks_pay(s: Schedule, width: int) -> bool:
    """Whether the filters fill vectors, or the source is blocked already."""
    inputs = s.blocks("inputs")
    return inputs == {0: width} or (not inputs and _fills(s.shape("value")[0], width))


def _fills(channels: int, width: int) -> bool:
    """Whether more than half of a vector's lanes are used."""
    return channels * 2 > width


def _plain_forward(s: Schedule, target: Target) -> None:
    if one_tap(s, "forward") or s.blocked("forward"):
        s.default("forward")
        return
    s.reorder("forward", ["ky", "kx", "c"])
    s.unroll_and_jam("forward", "k", 8)
    s.vectorize("forward", "x", target.simd_width, strided="gather")
    s.parallelize("forward", "n")
    s.parallelize("forward", "k", optional=True)  # remaining channels are separate from the tiles


def _plain_backward(s: Schedule, target: Target) -> None:
    strided = any("*" in index for index in s.subscripts("backward", "grad_inputs"))
    if not strided or s.blocked("backward"):  # in blocks that another recipe has chosen
        s.default("backward")
        return
    s.reorder("backward", ["ky", "kx", "y", "x", "k"])
    s.unroll_and_jam("backward", "c", 8)  # that many sums that do not wait for each other
    s.vectorize("backward", "x", target.simd_width, strided="gather")
    s.parallelize("backward", "n")
    s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel
