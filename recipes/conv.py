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

from swirl.recipe import Schedule
from swirl.target import Target

COPIES = 8  # of the gradient of the weights: parts of the images, each summed separately
LARGE = 2**22  # elements from which on the result of a 1 × 1 convolution is stored past the caches
LONG = 256  # least number of pixels that an element of a copy sums, as the copies are added up then
EVEN = 0.85  # images beside COPIES times the longest part, at the least: otherwise threads wait for one
FAR_BLOCKS = 12  # of channels, from which on a single tap's are fetched ahead: each has a page of its own
FASTER = 12  # times that the third cache is taken to be as fast as memory
HELD = 4  # level-2 caches that sums of weights fill at the most, to be in the third one meanwhile
IMAGES = 8  # whose same pixel is in a register tile: more evict each other, often a multiple of a page apart


def forward(s: Schedule, target: Target) -> None:
    width = target.simd_width
    _leave_other_blocks(s, target, "forward")
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
    s.reorder("forward", _present(s, "forward", "c", "c_outer", "ky", "kx", "c_inner"))
    _register_tile(s, target, "forward", pixels, "k", "c", others)


def backward(s: Schedule, target: Target) -> None:
    width = target.simd_width
    loops = s.loops("backward")
    if not loops:
        return
    _leave_other_blocks(s, target, "backward")
    if not s.blocks("grad"):
        _plain_backward(s, target)
        return
    before = loops[: loops.index("k_outer")]
    zeroing = before[-2:] if len(before) > 2 else ()  # none where another reader of the source has done it
    if {"ky", "kx"} & set(zeroing):
        s.leave_apart("backward", "the kernel is as large as the image, and its taps set the gradient to zero")
    few = not s.blocks("inputs") and not _fills(s.shape("inputs")[0], width)
    if not few:
        s.pack("backward", "weights")  # vectors along the input channels
        s.tile("weights_packed", 0, width)
        s.tile("weights_packed", 1, width)
    pixels: Sequence[str] = ["y", "x"]
    _, _, iy, ix = s.subscripts("backward", "grad_inputs")
    single = s.extent("backward", "ky") * s.extent("backward", "kx") == 1
    if few and single and "-" in iy + ix:
        s.leave_apart("backward", "few channels, whose one tap may be in the zeros around them")
    if not single:
        s.reindex("backward", iy=iy)  # each input pixel gathers, where each output pixel scattered
        s.reindex("backward", ix=ix)
        pixels = ["iy", "ix"]
    around = () if zeroing else _present(s, "backward", "c", "c_outer", "c_inner")
    s.reorder("backward", [*around, *pixels, "k_outer", "ky", "kx", "k_inner"])
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
    _tile_row(s, "backward", pixels[-1], _sums(target) // channels)
    s.unroll_and_jam("backward", "c", channels)
    if "kx" in s.loops("backward"):  # unless every tap falls outside of the image
        s.vectorize("backward", "k_inner", target.simd_width)
        s.unroll("backward", "kx", s.extent("backward", "kx"), unroll_type=1)
    s.parallelize("backward", "n")


def update(s: Schedule, target: Target) -> None:
    width = target.simd_width
    _leave_other_blocks(s, target, "update")
    if not s.blocks("grad_weights"):
        _plain_update(s, target)
        return
    pixels, flat = ["y", "x"], one_tap(s, "update")
    if flat:
        pixels = [*s.flatten("update", pixels)]
    in_blocks = "c_outer" in s.loops("update")
    blocks, channels = s.shape("value")[0] // width, -(-s.shape("inputs")[0] // width)
    pairs = max(1, -(-blocks // 2))
    once = in_blocks and _passes_save(s, target, pairs, channels)
    parts = _parts(s, pixels, 1 if once else pairs * channels if in_blocks else pairs)
    once = once and bool(parts)
    # Two vectors share what they load, unless only one thread had work then; three, where two would leave registers.
    vectors = 2 if blocks > 1 and (parts or pairs > 1 or in_blocks) else 1
    if once and blocks > 2 and flat:
        vectors = 3
    tile, rows, taps = _tile_of_weights(s, _sums(target) // vectors, width if in_blocks else 0)
    # Pixels that are read again for other taps and weights: a block of inputs and those of gradients that share a tile;
    # where rows are one and taps do not read inputs again, the next block, too, which is fetched meanwhile.
    ahead = once and flat
    inner, outer = _near(s, [*(parts[1:] or ["n"]), *pixels], _pixels_held(target, 2 + vectors if ahead else 3))
    weights = ["k_outer", "c", "c_outer"]
    sums = [*parts[:1], *(outer + weights if once else weights + outer), "ky", "c_inner", "kx", "k_inner", *inner]
    s.reorder("update", _present(s, "update", *sums))
    s.reorder("update", _present(s, "update", "k_outer", "c_outer", "k_inner"))  # of the zeroing
    for loop in ("x", "y") if rows > 1 else ("x",):
        cuts = s.borders("update", loop) if loop in inner else []
        if cuts:
            s.split("update", loop, cuts)  # the taps that fall outside are left out statically
    _, ragged = _whole_blocks(s, "update", "k", width)
    if in_blocks:
        ragged |= _whole_blocks(s, "update", "c", width)[1]
    s.unroll_and_jam("update", "c_inner" if in_blocks else "c", tile)
    if rows > 1:
        s.unroll_and_jam("update", "ky", rows, unroll_type=1)
    s.unroll_and_jam("update", "kx", taps, unroll_type=1)
    if vectors > 1:  # last: an element of the source meets both at once, and needs one register
        s.unroll_and_jam("update", "k_outer", s.combination(blocks, vectors) if once else vectors)
    if parts:
        _private_sums(s, parts[0], width)
    s.vectorize("update", "k_inner", width)
    if ahead:
        s.prefetch("update", "inputs", "c_outer", 1, optional=True)
    shared = ["k_outer", "c_outer"] if in_blocks and not ragged else "k_outer"
    s.parallelize("update", parts[0] if parts else shared)


def _passes_save(s: Schedule, target: Target, pairs: int, channels: int) -> bool:
    """Whether inputs and gradients are to pass by once, a few pixels at a time for all weights; they would for each
    pair of blocks of filters, and for each block of channels. Each part of the images has a copy of the weights' sums;
    the parts, which the threads share, are about as long as each other."""
    images, sums = s.extent("update", "n"), 4 * prod(s.shape("grad_weights"))
    source, results = (4 * images * prod(s.shape(name)) for name in ("inputs", "grad"))
    passed = source + results + 3 * COPIES * sums  # copies are zeroed, summed, and added up
    if sums > target.l2_bytes // 2:  # then from the third cache and back, about so many times
        times = images * -(-prod(s.shape("value")[1:]) // _pixels_held(target, 3))
        passed += times * 2 * sums // FASTER
    even = images >= EVEN * COPIES * -(-images // COPIES)
    return even and sums <= HELD * target.l2_bytes and pairs * source + channels * results > 2 * passed


def _pixels_held(target: Target, blocks: int) -> int:
    """Pixels of so many blocks of channels in a third of the first cache."""
    return max(1, target.l1_bytes // 3 // (blocks * 4 * target.simd_width))


def _parts(s: Schedule, pixels: Sequence[str], blocks: int) -> list[str]:
    """The loops over parts of the images and inside a part, where there are too few blocks of weights for the threads;
    the sums must be long beside the copies that are added up."""
    images = s.extent("update", "n")
    long = images * prod(s.extent("update", loop) for loop in pixels) >= COPIES * LONG
    if not long or 2 * blocks > min(COPIES, images):
        return []
    outer, inner = s.tile_loop("update", "n", -(-images // COPIES))
    s.reorder("update", [outer, *_present(s, "update", "k", "k_outer", "k_inner"), inner])  # those of the bias, too
    return [outer, inner]


def _tile_of_weights(s: Schedule, sums: int, block: int) -> tuple[int, int, int]:
    """Channels, rows of taps, and taps of a row, whose sums fill the registers; more taps where channels are few."""
    channels, rows, taps = s.shape("inputs")[0], s.extent("update", "ky"), s.extent("update", "kx")
    if block:
        taps = min(3, taps)
        return _divisor(block, sums // taps), 1, taps
    if channels * min(3, taps) * 2 > sums:
        return sums // min(3, taps), 1, min(3, taps)
    taps = min(taps, sums // channels)
    return channels, min(rows, sums // (channels * taps)), taps


def _near(s: Schedule, loops: Sequence[str], near: int) -> tuple[list[str], list[str]]:
    """Loops over so many pixels and images, summed before the next taps are taken; and the others. Rows stay whole: the
    borders of their parts would be conditions on each pixel."""
    inner: list[str] = []
    outer: list[str] = []
    for loop in reversed(loops):
        extent = s.extent("update", loop)
        if extent is None or near <= 1:
            outer.insert(0, loop)
            continue
        if near < extent and loop != "x":
            s.tile_loop("update", loop, near)
            outer.insert(0, f"{loop}_outer")
            loop += "_inner"
        inner.insert(0, loop)
        near //= extent
    return inner, outer


def _private_sums(s: Schedule, parts: str, width: int = 1) -> None:
    """A copy of the sums for each part, zeroed by its thread, and added up in the order of the parts."""
    for buffer in ("grad_weights", "grad_bias"):
        if buffer in s.buffers("update"):
            s.privatize("update", buffer, parts, copies=COPIES)
            for loop in (f"{buffer}_private_zero0", f"{buffer}_private_dim0") if width > 1 else ():
                s.tile_loop("update", loop, width)
                s.vectorize("update", f"{loop}_inner", width, strided="gather")


def _register_tile(
    s: Schedule, target: Target, phase: str, pixels: Sequence[str], channels: str, summed: str, others: int = 0
) -> None:
    """Pixels × two vectors of channels; and so many sums of all pixels of other numbers beside them."""
    row, tile = pixels[-1], (_sums(target) - others) // 2
    images, rows = _images(s, phase, row, tile)
    inside = s.interior(phase, row)
    if images:
        _in_passes(s, target, phase, pixels, f"{summed}_outer")
    if images and not rows:
        _each_pixel(s, phase, row, inside)
    else:
        _tile_row(s, phase, row, tile, **({"unroll_type": 1} if others else {}))
    if images:
        s.unroll_and_jam(phase, "n", images)
    blocks, ragged = _whole_blocks(s, phase, channels, target.simd_width)
    if blocks > 1:
        s.unroll_and_jam(phase, f"{channels}_outer", 2)
    s.vectorize(phase, f"{channels}_inner", target.simd_width, strided="gather")
    if "kx" in s.loops(phase):  # unless every tap falls outside of the image
        s.unroll(phase, "kx", s.extent(phase, "kx"), unroll_type=1)
    passed = f"{summed}_outer"
    if len(pixels) == 1 and passed in s.loops(phase) and s.extent(phase, passed) >= FAR_BLOCKS:
        s.prefetch(phase, "inputs" if phase == "forward" else "grad", passed, 3, optional=True)
    shared = ["n", f"{channels}_outer"]
    # An odd block is separate from the pairs, a ragged one from the whole ones.
    together = not ragged and blocks % 2 == 0
    if images and together:  # weights are many beside the pixels: a thread keeps some for all images
        shared.reverse()
        s.reorder(phase, shared)
    s.parallelize(phase, shared if together else "n")


def short_rows(s: Schedule, target: Target) -> bool:
    """Whether a register tile of forward has pixels of several images."""
    return bool(_images(s, "forward", "x", _sums(target) // 2)[0])


def _images(s: Schedule, phase: str, pixels: str, tile: int) -> tuple[int | list[int], bool]:
    """How many images have a part in each register tile, where rows are too short to fill it, and whether that part is
    a row, or else a pixel."""
    row, images = s.extent(phase, pixels), s.extent(phase, "n")
    if tile // row > 1:
        return _divisor(images, tile // row), True
    column = s.combination(images, min(tile, IMAGES))
    longer = images / len(column) > 1.1 * row / len(s.combination(row, tile))
    return (column, False) if longer else (0, False)


def _in_passes(s: Schedule, target: Target, phase: str, pixels: Sequence[str], blocks: str) -> None:
    """Passes over as many blocks of channels as have their weights of a register tile in the first cache; the sums are
    in memory in between."""
    if blocks in s.loops(phase) and len(pixels) > 1:
        taps = prod(s.extent(phase, loop) for loop in _present(s, phase, "ky", "kx"))
        held = target.l1_bytes * 4 // 5 // (2 * 4 * target.simd_width**2 * taps)
        if 0 < held < s.extent(phase, blocks):
            passes, _ = s.tile_loop(phase, blocks, _divisor(s.extent(phase, blocks), held))
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


def _each_pixel(s: Schedule, phase: str, row: str, inside: tuple[int, int]) -> None:
    """Pixels one after the other; those at the borders separate, without the taps outside."""
    (low, high), extent = inside, s.extent(phase, row)
    cuts = [cut for cut in inside if 0 < cut < extent]
    if cuts:
        s.split(phase, row, cuts)
    loops, last = s.loops(phase), f"{row}_{len(cuts)}"  # one tap may leave nothing of them
    if low > 0 and row in loops:
        s.unroll(phase, row, low)
    if high < extent and last in loops:
        s.unroll(phase, last, extent - high)


def _whole_blocks(s: Schedule, phase: str, channels: str, width: int) -> tuple[int, bool]:
    """The number of whole blocks of channels, and whether there is a separate ragged one."""
    whole, rest = divmod(s.shape("value" if channels == "k" else "inputs")[0], width)
    if whole and rest:
        s.split(phase, f"{channels}_outer", [whole])
    return whole, rest > 0


def _sums(target: Target) -> int:
    """Sums of a register tile; the other registers hold weights and a pixel."""
    return target.registers - 4


def blocks_pay(s: Schedule, width: int) -> bool:
    """Whether the filters fill vectors, or the source is blocked already."""
    inputs = s.blocks("inputs")
    return inputs == {0: width} or (not inputs and _fills(s.shape("value")[0], width))


def _fills(channels: int, width: int) -> bool:
    """Whether more than half of a vector's lanes are used."""
    return channels * 2 > width


def one_tap(s: Schedule, phase: str) -> bool:
    """Whether each output pixel meets one input pixel, in the same place, and an image is one row in memory."""
    same = s.shape("inputs")[1:] == s.shape("value")[1:] and s.extent(phase, "ky") == s.extent(phase, "kx") == 1
    where = s.subscripts(phase, "grad_inputs" if phase == "backward" else "inputs")[-2:]
    moved = any(sign in index for index in where for sign in "*-")  # by a stride, or by zeros around the source
    return same and not moved and not s.rearranged(phase)


def _divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit."""
    return max(divisor for divisor in range(1, limit + 1) if number % divisor == 0)


def _present(s: Schedule, phase: str, *names: str) -> list[str]:
    return [name for name in names if name in s.loops(phase)]


def _leave_other_blocks(s: Schedule, target: Target, phase: str) -> None:
    if s.blocks("inputs") not in ({}, {0: target.simd_width}):
        s.leave_apart(phase, f"the source is in other blocks than {target.simd_width} channels")


def _plain_forward(s: Schedule, target: Target) -> None:
    s.reorder("forward", ["ky", "kx", "c"])
    s.unroll_and_jam("forward", "k", 8)
    s.vectorize("forward", "x", target.simd_width, strided="gather")
    s.parallelize("forward", "n")
    s.parallelize("forward", "k", optional=True)  # remaining channels are separate from the tiles


def _plain_backward(s: Schedule, target: Target) -> None:
    s.reorder("backward", ["ky", "kx", "y", "x", "k"])
    s.unroll_and_jam("backward", "c", 8)  # that many sums that do not wait for each other
    s.vectorize("backward", "x", target.simd_width, strided="gather")
    s.parallelize("backward", "n")
    s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel


def _plain_update(s: Schedule, target: Target) -> None:
    parts = _parts(s, ["y", "x"], -(-s.extent("update", "k") // 4))
    s.reorder("update", [*parts[:1], "k", "c", "ky", "kx", *(parts[1:] or ["n"]), "y", "x"])
    s.unroll_and_jam("update", "c", 4)
    s.unroll_and_jam("update", "k", 4)
    if parts:
        _private_sums(s, parts[0])
    s.vectorize("update", "x", target.simd_width, strided="gather")
    s.parallelize("update", parts[0] if parts else "k")
