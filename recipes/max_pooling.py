"""Max pooling: a channel of an image for each thread, lanes along the output row. Behind a source in blocks of channels
the value lies in the same blocks: a block for each thread, lanes along its channels."""


def _row(s, target, phase):
    """Lanes along the row, where its windows are whole; those that the border clips stay scalar."""
    low, _ = s.interior(phase, "x")
    if s.borders(phase, "x"):
        s.split(phase, "x", s.borders(phase, "x"))
    # A row so short that every window may be clipped has an extent in each lane: it stays scalar.
    s.vectorize(phase, "x_1" if low > 0 else "x", target.simd_width, strided="gather", optional=True)


def _lanes_pay(s, target, phase):
    # A source in other blocks: correct, not tuned. Without vector instructions the compiler does better by itself.
    return not s.blocked(phase) and not s.rearranged(phase) and target.isa_flags


def _whole(s, phase):
    """Whether no window is clipped."""
    return not s.borders(phase, "y") and not s.borders(phase, "x")


def _short(s, target, phase):
    """Whether a row fills less than half a register, of windows that all have the same number of elements."""
    equal = s.extent(phase, "j") is not None and s.extent(phase, "k") is not None
    return equal and s.extent(phase, "x") < target.simd_width // 2


def _few_columns_many_channels(s, target, phase):
    """Whether lanes along the channels pay, far apart as they are: no row is worth the name."""
    columns, channels = s.extent(phase, "x"), s.extent(phase, "c")
    return columns < 4 and channels >= target.simd_width // 2 and _whole(s, phase)


def _blocks_of_channels(s, *others):
    """Whether the source and all that has the shape of the value lie in blocks of channels."""
    blocks = s.blocks("inputs")
    return set(blocks) == {0} and all(s.blocks(buffer) == blocks for buffer in ("value", *others))


def _channels(s, target, phase):
    """Lanes along the channels of a block, a window at a time."""
    s.reorder(phase, ["y", "x", "c_inner"])
    low, high = s.interior(phase, "x")
    columns = s.extent(phase, "x")
    clipped = [*range(low), *range(high, columns)]
    if columns <= 4 and s.extent(phase, "k") is None:
        clipped = [*range(columns)]
    if len(clipped) > 8:  # wide borders: the elements of a window are counted when it is read
        return
    cuts = {*clipped, *(column + 1 for column in clipped)} - {0, columns}
    if cuts:  # each column of clipped windows apart, so that the number of their elements is known
        s.split(phase, "x", sorted(cuts))
    s.unroll(phase, "k", 4, unroll_type=1)


def forward(s, target):
    if set(s.blocks("inputs")) == {0}:
        for buffer in ("value", "grad", "mask_j", "mask_k"):
            s.tile(buffer, 0, s.blocks("inputs")[0])
    if _blocks_of_channels(s):
        _channels(s, target, "forward")
        s.vectorize("forward", "c_inner", target.simd_width)
        s.parallelize("forward", ["n", "c_outer"])
        return
    if _lanes_pay(s, target, "forward"):
        if _few_columns_many_channels(s, target, "forward"):
            s.tile_loop("forward", "c", target.simd_width)
            _channels(s, target, "forward")
            s.vectorize("forward", "c_inner", target.simd_width, strided="gather")
            s.parallelize("forward", ["n", "c_outer"])
            return
        if not _whole(s, "forward") and not _short(s, target, "forward"):
            # Over whole windows the compiler's shuffles are faster than gathers.
            _row(s, target, "forward")
    s.parallelize("forward", "n")
    if not s.blocked("forward"):
        s.parallelize("forward", "c")


def backward(s, target):
    loops = s.loops("backward")
    if not loops:
        return
    if _blocks_of_channels(s, "grad_inputs"):
        zeroing = loops[loops.index("c_inner") + 1 : loops.index("y")]
        if {"j", "k"} <= set(loops) - set(zeroing):  # else those of one window are those of the zeroing
            if zeroing:
                s.reorder("backward", [*zeroing, "c_inner"])
            _channels(s, target, "backward")
        s.vectorize("backward", "c_inner", target.simd_width)
        s.parallelize("backward", ["n", "c_outer"])
        return
    windows = {"j", "k"} <= set(loops)  # else they are those of the zeroing here too
    if windows and _lanes_pay(s, target, "backward") and not _short(s, target, "backward"):
        s.reverse("backward", "k")  # an element gets its gradients in the order of the windows, as without lanes
        _row(s, target, "backward")
    s.parallelize("backward", "n")
    s.parallelize("backward", "c", optional=True)  # not beside the zeroing of a single channel
