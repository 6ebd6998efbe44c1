"""Max pooling: a channel of an image for each thread, lanes along the output row."""


def _row(s, target, phase):
    """Lanes along the row, where its windows are whole; those that the border clips stay scalar."""
    low, high = s.interior(phase, "x")
    cuts = [cut for cut in (low, high) if 0 < cut < s.extent(phase, "x")]
    if cuts:
        s.split(phase, "x", cuts)
    # A row so short that every window may be clipped has an extent in each lane: it stays scalar.
    s.vectorize(phase, "x_1" if low > 0 else "x", target.simd_width, strided="gather", optional=True)


def _lanes_pay(s, target, phase):
    # A source laid out in blocks: correct, not tuned. Without vector instructions the compiler does better by itself.
    return not s.blocked(phase) and target.isa_flags


def forward(s, target):
    if _lanes_pay(s, target, "forward"):
        _row(s, target, "forward")
    s.parallelize("forward", "n")
    if not s.blocked("forward"):
        s.parallelize("forward", "c")


def backward(s, target):
    if not s.loops("backward"):
        return
    if _lanes_pay(s, target, "backward"):
        s.reverse("backward", "k")  # an element gets its gradients in the order of the windows, as without lanes
        _row(s, target, "backward")
    s.parallelize("backward", "n")
    s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel
