"""Fully connected: a register tile of items and outputs, lanes along the inputs."""


def _row(s, phase):
    """The loops over the source as one."""
    loops = [loop for loop in s.loops(phase) if loop not in ("n", "k")]
    return s.flatten(phase, loops)[0] if len(loops) > 1 else loops[0]


def forward(s, target):
    if s.blocked("forward"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("forward", "n")
        return
    row = _row(s, "forward")
    s.unroll_and_jam("forward", "n", 4)
    s.unroll_and_jam("forward", "k", 4)
    s.vectorize("forward", row, target.simd_width)
    s.parallelize("forward", "n")
    s.parallelize("forward", "k", optional=True)  # a rest of outputs stands beside the tiles


def backward(s, target):
    if s.blocked("backward"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("backward", "n")
        return
    if not s.loops("backward"):
        return
    row = _row(s, "backward")
    s.unroll_and_jam("backward", "n", 4)
    s.vectorize("backward", row, target.simd_width)
    s.parallelize("backward", "n")


def update(s, target):
    if s.blocked("update"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("update", "k")
        return
    row = _row(s, "update")
    s.reorder("update", [row, "n"])
    s.fuse("update", row)
    s.unroll_and_jam("update", "k", 4)
    s.vectorize("update", row, target.simd_width)
    s.parallelize("update", "k")
