"""Convolution's update, the gradients of its weights: register tiles of channels × taps × vectors of filters, with sums
over the pixels.
"""

from collections.abc import Sequence
from math import prod

from latte.recipes._conv_tiles import divisor, leave_other_blocks, one_tap, present, sums_of_tile, whole_blocks
from swirl.schedule.recipe import Schedule
from swirl.target import Target

COPIES = 8  # of the gradient of the weights: parts of the images, each summed separately
LONG = 256  # least number of pixels that an element of a copy sums, as the copies are added up then
EVEN = 0.85  # images beside twice those of one of two threads, at the least: otherwise one waits for the other
FASTER = 12  # times that the third cache is taken to be as fast as memory
HELD = 4  # level-2 caches that sums of weights fill at the most, to be in the third one meanwhile


def update(s: Schedule, target: Target) -> None:
    width = target.simd_width
    if "grad_weights" not in s.buffers("update"):  # the weights are frozen: a sum for each filter
        s.default("update")
        return
    leave_other_blocks(s, target)
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
    # A ragged block of channels is separate from the whole ones: threads share the filters alone then.
    whole = in_blocks and s.shape("inputs")[0] % width == 0
    parts = _parts(s, target, pixels, 1 if once else pairs * channels if whole else pairs)
    once = once and bool(parts)
    # Two vectors share what they load, unless only one thread had work then; three, where two would leave registers.
    vectors = 2 if blocks > 1 and (parts or pairs > 1 or whole) else 1
    if once and blocks > 2 and flat:
        vectors = 3
    tile, rows, taps = _tile_of_weights(s, sums_of_tile(target) // vectors, width if in_blocks else 0)
    # Pixels that are read again for other taps and weights: a block of inputs and those of gradients that share a tile;
    # where rows are one and taps do not read inputs again, the next block, too, which is fetched meanwhile.
    ahead = once and flat
    inner, outer = _near(s, [*(parts[1:] or ["n"]), *pixels], _pixels_held(target, 2 + vectors if ahead else 3))
    weights = ["k_outer", "c", "c_outer"]
    sums = [*parts[:1], *(outer + weights if once else weights + outer), "ky", "c_inner", "kx", "k_inner", *inner]
    s.reorder("update", present(s, "update", *sums))
    s.reorder("update", present(s, "update", "k_outer", "c_outer", "k_inner"))  # of the zeroing
    for loop in ("x", "y") if rows > 1 else ("x",):
        cuts = s.borders("update", loop) if loop in inner else []
        if cuts:
            s.split("update", loop, cuts)  # the taps that fall outside are left out statically
    whole_blocks(s, "update", "k", width)
    if in_blocks:
        whole_blocks(s, "update", "c", width)
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
    shared = ["k_outer", "c_outer"] if whole else "k_outer"
    s.parallelize("update", parts[0] if parts else shared)


def _passes_save(s: Schedule, target: Target, pairs: int, channels: int) -> bool:
    """Whether inputs and gradients are to pass by once, a few pixels at a time for all weights; they would for each
    pair of blocks of filters, and for each block of channels. Each part of the images has a copy of the weights' sums,
    and threads share the parts."""
    images, sums = s.extent("update", "n"), _bytes_of_sums(s)
    source, results = (4 * images * prod(s.shape(name)) for name in ("inputs", "grad"))
    passed = source + results + 3 * COPIES * sums  # copies are zeroed, summed, and added up
    if sums > target.l2_bytes // 2:  # then from the third cache and back, about so many times
        times = images * -(-prod(s.shape("value")[1:]) // _pixels_held(target, 3))
        passed += times * 2 * sums // FASTER
    return _copies_pay(s, target) and pairs * source + channels * results > 2 * passed


def _bytes_of_sums(s: Schedule) -> int:
    return 4 * prod(s.shape("grad_weights"))


def _copies_pay(s: Schedule, target: Target) -> bool:
    """Whether threads have about as many images each, and a copy of the sums is not too large for the caches."""
    images = s.extent("update", "n")
    part = -(-images // COPIES)
    longer = -(-images // (2 * part)) * part  # images of the thread that has more parts
    return images >= EVEN * 2 * longer and _bytes_of_sums(s) <= HELD * target.l2_bytes


def _pixels_held(target: Target, blocks: int) -> int:
    """Pixels of so many blocks of channels in a third of the first cache."""
    return max(1, target.l1_bytes // 3 // (blocks * 4 * target.simd_width))


def _parts(s: Schedule, target: Target, pixels: Sequence[str], blocks: int) -> list[str]:
    """The loops over parts of the images and inside a part, where there are too few blocks of weights for the threads;
    the sums must be long beside the copies that are added up."""
    images = s.extent("update", "n")
    long = images * prod(s.extent("update", loop) for loop in pixels) >= COPIES * LONG
    if not long or 2 * blocks > min(COPIES, images) or (blocks > 1 and not _copies_pay(s, target)):
        return []
    outer, inner = s.tile_loop("update", "n", -(-images // COPIES))
    s.reorder("update", [outer, *present(s, "update", "k", "k_outer", "k_inner"), inner])  # those of the bias, too
    return [outer, inner]


def _tile_of_weights(s: Schedule, sums: int, block: int) -> tuple[int, int, int]:
    """Channels, rows of taps, and taps of a row, whose sums fill the registers; more taps where channels are few."""
    channels, rows, taps = s.shape("inputs")[0], s.extent("update", "ky"), s.extent("update", "kx")
    if block:
        taps = min(3, taps)
        return divisor(block, sums // taps), 1, taps
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


def _plain_update(s: Schedule, target: Target) -> None:
    if s.blocked("update"):
        s.default("update")
        return
    parts = _parts(s, target, ["y", "x"], -(-s.extent("update", "k") // 4))
    s.reorder("update", [*parts[:1], "k", "c", "ky", "kx", *(parts[1:] or ["n"]), "y", "x"])
    s.unroll_and_jam("update", "c", 4)
    s.unroll_and_jam("update", "k", 4)
    if parts:
        _private_sums(s, parts[0])
    s.vectorize("update", "x", target.simd_width, strided="gather")
    s.parallelize("update", parts[0] if parts else "k")
