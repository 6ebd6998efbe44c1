"""Convolution and batch norm. In inference a pixel is normalised before it is stored. In training the statistics are
made of rows of pixels that have just been stored; normalising is the only other pass over memory."""

from math import prod

from latte.recipes.batch_norm import LARGE
from latte.recipes.conv import blocks_pay

chain = ("conv", "batch_norm")


def inference(s, target):
    s.fuse_layers("inference")
    s.recipe("conv", "forward", on="inference")


def forward(s, target):
    statistics_with_the_store(s, target)


def statistics_with_the_store(s, target):
    """Mean and variance of the rows of an image with the loop that stores them, then the images' ones combined; then
    what is left of batch norm, and a ReLU, in one pass, from the image stored last."""
    if not blocks_pay(s, target.simd_width):
        s.leave_apart("forward", "few filters: lanes run along the pixels of the convolution, sums across them")
    if s.extent("forward", "ky") * s.extent("forward", "kx") == 1:
        s.leave_apart("forward", "1 × 1: faster along the image as one row, and sums have little to hide behind")
    s.scalar_replace("forward", "conv_value", nest=0)
    for nest, _ in enumerate(s.nests("forward")[1:], start=1):  # names that the convolution's commands leave alone
        s.rename("forward", "y", "h", nest=nest)
        s.rename("forward", "x", "w", nest=nest)
    s.moments("forward", "n", inner="h", apart=True, nest=1)
    if "batch_norm_value" in s.buffers("forward"):
        s.reorder("forward", ["k", "n"], nest=2)
        for loop in ("k", "n", "h", "w"):
            s.fuse("forward", loop, nest=1)
    s.rename("forward", "h", "normalised", nest=1, occurrence=-1)
    s.rename("forward", "w", "pixel", nest=1, occurrence=-1)
    s.distribute("forward", "k", nest=1)
    s.reorder("forward", ["n", "k"])
    s.factor("forward", "normalised", keep_differences=True)
    if "batch_norm_value" in s.buffers("forward"):
        s.contract("forward", "batch_norm_value")
    for loop, other in (("n", "n"), ("k", "k"), ("y", "h"), ("k", "k"), ("k", "k")):
        s.fuse("forward", loop, other)
    s.reverse("forward", "n", occurrence=-1)
    s.recipe("conv", "forward")
    s.unroll("forward", "w", 4)
    s.unroll("forward", "pixel", 4)
    s.vectorize("forward", "k", target.simd_width)
    if s.extent("forward", "n") * prod(s.shape("value")) >= LARGE:
        s.stream("forward", "value", optional=True)

