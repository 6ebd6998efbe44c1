"""Convolution over plain (batch, channel, y, x) arrays: lanes along x, a register tile of channels."""


def forward(s, target):
    if s.blocked("forward"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("forward", "n")
        return
    s.reorder("forward", ["ky", "kx", "c"])
    s.unroll_and_jam("forward", "k", 8)
    s.vectorize("forward", "x", target.simd_width, strided="gather")
    s.parallelize("forward", "n")
    s.parallelize("forward", "k", optional=True)  # a rest of channels stands beside the tiles


def backward(s, target):
    if s.blocked("backward"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("backward", "n")
        return
    s.reorder("backward", ["ky", "kx", "y", "x", "k"])
    s.unroll_and_jam("backward", "c", 8)  # as many sums that do not wait for each other
    s.vectorize("backward", "x", target.simd_width, strided="gather")
    s.parallelize("backward", "n")
    s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel


def update(s, target):
    if s.blocked("update"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("update", "k")
        return
    s.reorder("update", ["c", "ky", "kx", "n", "y", "x"])
    s.unroll_and_jam("update", "c", 4)
    s.unroll_and_jam("update", "k", 4)
    s.vectorize("update", "x", target.simd_width, strided="gather")
    s.parallelize("update", "k")
