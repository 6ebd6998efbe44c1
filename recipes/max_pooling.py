"""Max pooling: a channel of an image for each thread, lanes along the output row."""


def forward(s, target):
    if s.blocked("forward"):  # a source laid out in blocks: correct, not tuned
        s.parallelize("forward", "n")
        return
    if (s.extent("forward", "x") or 0) >= target.simd_width // 2:  # gathering shorter rows costs more than it saves
        # Clipped windows have their own extent in each lane: they stay loops.
        s.vectorize("forward", "x", target.simd_width, strided="gather", optional=True)
    s.parallelize("forward", "n")
    s.parallelize("forward", "c")


def backward(s, target):
    if s.loops("backward"):
        s.parallelize("backward", "n")
        s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel
