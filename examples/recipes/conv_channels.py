"""Convolution of small images: lanes along the output channels, a row of eight pixels in registers."""


def forward(s, target):
    s.tile("value", dim=0, factor=target.simd_width)
    s.tile("weights", dim=0, factor=target.simd_width)
    s.reorder("forward", ["y", "c", "ky", "kx", "x", "k_inner"])
    s.vectorize("forward", "k_inner", target.simd_width)
    s.unroll("forward", "x", 8)
    s.parallelize("forward", "n")
    s.parallelize("forward", "k_outer")
