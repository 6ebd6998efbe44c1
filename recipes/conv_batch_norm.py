"""Convolution and batch norm. In inference a pixel is normalised before it is stored. In training the statistics are
made of rows of pixels that have just been stored, of a 1 × 1 convolution's while they are in registers; normalising is
the only other pass over memory. Images of short rows have a pass for their statistics, too."""

from collections.abc import Sequence
from math import prod

from latte.recipes._conv_tiles import one_tap
from latte.recipes.conv import LARGE, blocks_pay, lay_out, short_rows, tile_pixels
from swirl.schedule.recipe import Schedule
from swirl.target import Target

FEWEST = 32  # pixels of an image whose sums are made in registers

chain = ("conv", "batch_norm")


def inference(s: Schedule, target: Target) -> None:
    s.fuse_layers("inference")
    s.recipe("conv", "forward", on="inference")


def forward(s: Schedule, target: Target) -> None:
    statistics_with_the_store(s, target)


def statistics_with_the_store(s: Schedule, target: Target) -> None:
    """Mean and variance of images, of long rows with the loop that stores one, then combined; then what is left of
    batch norm, and a ReLU, in one pass, from the image stored last."""
    width = target.simd_width
    if not blocks_pay(s, width):
        s.decline("few filters: lanes run along the pixels of the convolution, sums across them")
    if s.extent("forward", "ky") * s.extent("forward", "kx") > 1:
        short = short_rows(s, target)
        _of_rows(s, short)
        s.recipe("conv", "forward")
        if short:
            s.vectorize("forward", "channel_inner", width)
            s.parallelize("forward", ["image", "channel_outer"])
        s.unroll("forward", "w", 4)
        s.vectorize("forward", "channel" if short else "k", width)
    elif not one_tap(s, "forward"):
        s.decline("1 × 1 with a stride, or of a source with zeros around: the image is not one row")
    elif s.shape("value")[0] % width:
        s.decline("1 × 1 with a ragged block of filters: statistics need loops of constant bounds")
    elif prod(s.shape("value")[1:]) < FEWEST:
        s.decline(f"1 × 1 of images below {FEWEST} pixels: too few for tiles")
    else:
        _of_pixels(s, width)
        tile_pixels(s, target, "yx", others=2)
    s.unroll("forward", "pixel", 4)
    if s.extent("forward", "n") * prod(s.shape("value")) >= LARGE:
        s.stream("forward", "value", optional=True)
        s.stream("forward", "conv_value", optional=True)


def _of_rows(s: Schedule, short: bool) -> None:
    """Statistics of rows that have just been stored, combined to those of their image; of short ones, which share tiles
    with other images, in a pass of their own: tiles of statistics would need more registers than there are."""
    if not short:
        s.scalar_replace("forward", "conv_value", nest=0)
    for nest, _ in enumerate(s.nests("forward")[1:], start=1):  # names that the convolution's commands leave alone
        s.rename("forward", "y", "h", nest=nest)
        s.rename("forward", "x", "w", nest=nest)
    s.moments("forward", "n", inner="h", apart=True, nest=1)
    _normalise(s, ["k"], ["h", "w"], None if short else "y")
    s.fuse("forward", "k")
    s.fuse("forward", "k")
    for loop, name in (("n", "image"), ("k", "channel")) if short else ():
        s.rename("forward", loop, name)
        s.rename("forward", name, loop, nest=0)


def _of_pixels(s: Schedule, width: int) -> None:
    """Statistics of pixels that are still in registers: sums over an image, which is one row."""
    lay_out(s, width, "conv_value", "conv_grad", "value")
    if "batch_norm_value" in s.buffers("forward"):
        s.tile("batch_norm_value", 0, width)
    s.flatten("forward", ["y", "x"])
    for nest, _ in enumerate(s.nests("forward")[1:], start=1):
        s.rename("forward", "yx", "hw", nest=nest)
    s.moments("forward", "n", once=True, apart=True, nest=1)
    _normalise(s, ["k_outer", "k_inner"], ["hw"], "yx")
    s.scalar_replace("forward", "conv_value", nest=0)


def _normalise(s: Schedule, channels: Sequence[str], pixels: Sequence[str], stored: str | None) -> None:
    """The rest of batch norm, and a ReLU, in one pass; the statistics with the loop over what is stored, if any."""
    if "batch_norm_value" in s.buffers("forward"):
        s.reorder("forward", [*channels, "n"], nest=2)
        for loop in (*channels, "n", *pixels):
            s.fuse("forward", loop, nest=1)
    for loop, name in zip(reversed(pixels), ("pixel", "normalised"), strict=False):
        s.rename("forward", loop, name, nest=1, occurrence=-1)
    for loop in reversed(channels):
        s.distribute("forward", loop, nest=1)
    s.reorder("forward", ["n", *channels])
    s.factor("forward", "normalised" if len(pixels) > 1 else "pixel", keep_differences=True)
    if "batch_norm_value" in s.buffers("forward"):
        s.contract("forward", "batch_norm_value")
    if stored is not None:
        for loop in ("n", *channels):
            s.fuse("forward", loop)
        s.fuse("forward", stored, pixels[0])
    s.reverse("forward", "n", occurrence=-1)
