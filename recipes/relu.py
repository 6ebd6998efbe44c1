"""ReLU: every array is one long row; threads share its pieces."""

from math import prod


def _stream(s, target, phase):
    loops = s.loops(phase)
    if s.blocked(phase):  # a source laid out in blocks: correct, not tuned
        s.parallelize(phase, loops[0])
        return
    while prod(s.extent(phase, loop) for loop in loops) >= 2**31:  # more than an int counts
        loops = loops[1:]
    if len(loops) > 1:
        (row,) = s.flatten(phase, loops)
    else:
        (row,) = loops
    s.tile_loop(phase, row, 256 * target.simd_width)
    s.parallelize(phase, f"{row}_outer")
    s.vectorize(phase, f"{row}_inner", target.simd_width)


def forward(s, target):
    _stream(s, target, "forward")


def backward(s, target):
    if s.loops("backward"):
        _stream(s, target, "backward")
