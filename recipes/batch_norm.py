"""Batch norm: a channel for each thread, two passes over its images each way; the pixels of an image are one row of
vectors, sums stay in four registers each."""

STREAMED = 28 * 28  # pixels of an image from which on results are stored past the caches


def _rows(s, phase):
    """The pixels of an image as one loop, where they lie in one row."""
    if "h" in s.loops(phase) and not s.blocked(phase) and not s.rearranged(phase):
        s.flatten(phase, ["h", "w"])


def _schedule(s, target, phase, stored=None):
    loops = s.loops(phase)
    if s.blocked(phase) or s.rearranged(phase):  # a source laid out in blocks: correct, not tuned
        s.parallelize(phase, "c")
    elif "hw" in loops:
        streamed = s.extent(phase, "hw") >= STREAMED
        s.parallelize(phase, "c", schedule="dynamic,1")
        s.vectorize(phase, "hw", target.simd_width)
        s.unroll(phase, "hw", 4)
        if stored is not None and streamed:
            s.stream(phase, stored)
    else:  # vectors: each channel has one element an item
        s.vectorize(phase, "c", target.simd_width)
        s.parallelize(phase, "c")


def forward(s, target):
    _rows(s, "forward")
    s.factor("forward", "n", keep_differences=True)
    if "hw" in s.loops("forward"):
        s.moments("forward", "n")
    _schedule(s, target, "forward", "value")


def backward(s, target):
    _rows(s, "backward")
    s.factor("backward", "n", keep_differences=True)
    for loop in ("n", "hw", "h", "w"):
        if loop in s.loops("backward"):
            s.fuse("backward", loop)
    s.factor("backward", "n", keep_differences=True)
    _schedule(s, target, "backward", "grad_inputs")


def update(s, target):
    _rows(s, "update")
    _schedule(s, target, "update")
