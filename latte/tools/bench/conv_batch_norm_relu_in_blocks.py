"""The recipe for a convolution, batch norm and a ReLU, after data in blocks of channels, a vector each."""

from latte.recipes import conv_batch_norm_relu
from latte.recipes.conv_batch_norm_relu import inference

__all__ = ["chain", "forward", "inference"]

chain = ("conv", "batch_norm", "relu")


def forward(s, target):  # type: ignore[no-untyped-def]
    for buffer in ("inputs", "grad_inputs"):
        s.tile(buffer, 0, target.simd_width)
    conv_batch_norm_relu.forward(s, target)
