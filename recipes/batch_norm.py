"""Batch norm: a channel for each thread; the pixels of an image are one row of vectors."""


def _channel(s, target, phase):
    loops = s.loops(phase)
    if "h" not in loops and not s.blocked(phase):  # vectors: each channel has one element an item
        s.vectorize(phase, "c", target.simd_width)
        s.parallelize(phase, "c")
        return
    s.parallelize(phase, "c")
    if s.blocked(phase):  # a source laid out in blocks: correct, not tuned
        return
    (row,) = s.flatten(phase, ["h", "w"])
    s.vectorize(phase, row, target.simd_width)
    s.unroll(phase, row, 4)


def forward(s, target):
    _channel(s, target, "forward")


def backward(s, target):
    if s.loops("backward"):
        _channel(s, target, "backward")


def update(s, target):
    _channel(s, target, "update")
