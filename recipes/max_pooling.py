"""Max pooling: lanes along the output row where windows are whole, along channels where rows are short, or the border
clips windows and the caches hold the source. After a source in blocks of channels the value has the same blocks, with
lanes along a block's channels. Otherwise the gradients of windows that overlap are added one by one, each to its place:
lanes would add zeros to all other places of the window.
"""

from collections.abc import Sequence
from math import prod

from swirl.recipe import Schedule
from swirl.target import Target

ROW = 2  # from this many whole windows on, lanes along the row are faster than lanes along the channels
ALONE = 16  # whole windows that take as long as one that is clipped, without lanes, if there are several in a row
LARGE = 2**18  # from this many elements on, the source is in no level-2 cache
MANY = 2**20  # and from this many on, one image after the other takes a third to half of the time of many at once
LONG_ROW = 96  # elements; beside clipped windows, the arithmetic of shorter rows covers the time that fetching takes
AHEAD = 4  # rows of the value whose windows are fetched then: 2 × 2 windows of 28 × 28 take 0.6 of the time


def _blocks_of_channels(s: Schedule, *others: str) -> bool:
    """Whether the source and all arrays of the value's shape are in blocks of channels."""
    blocks = s.blocks("inputs")
    return set(blocks) == {0} and all(s.blocks(buffer) == blocks for buffer in ("value", *others))


def _leave_others(s: Schedule, phase: str) -> None:
    if s.blocked(phase) or s.rearranged(phase):
        s.leave_apart(phase, "the source and the value are not laid out alike, or not in blocks of channels")


def _whole(s: Schedule, phase: str) -> tuple[int, int]:
    """The columns whose windows are whole: the first one, and the end."""
    low, high = s.interior(phase, "x")
    source = s.subscripts(phase, "inputs" if phase != "backward" else "grad_inputs")[-1]
    moving = s.extent(phase, "k") is None or "min(" in source or "max(" in source
    return (0, 0) if moving and not s.borders(phase, "x") else (low, high)  # (0, 0): every one may be clipped


def _parts(s: Schedule, phase: str) -> tuple[list[str], str | None]:
    """The row cut where windows become whole or clipped: the loops' names, and which one has the whole windows.

    Each of a few clipped columns is separate, so that the number of its elements is known."""
    low, high = _whole(s, phase)
    columns = s.extent(phase, "x")
    cuts = {*s.borders(phase, "x")}
    if low + columns - high <= 8:
        cuts |= {*range(low), *range(high, columns)}
    ordered = sorted(cuts - {0})
    names = ["x", *s.split(phase, "x", ordered)] if ordered else ["x"]
    starts = [0, *ordered]
    return names, names[starts.index(low)] if low in starts and low < high else None


def _zeroing(s: Schedule, channel: str) -> Sequence[str]:
    """The loops that clear what overlapping windows add to, inside of the channel's."""
    loops = s.loops("backward")
    return loops[loops.index(channel) + 1 : loops.index("y")]


def _adding(s: Schedule) -> bool:
    """Whether several windows add to one element of the source's gradient."""
    if s.sets("backward", "grad_inputs"):
        return bool(_zeroing(s, "c"))
    rows, columns = s.extent("backward", "j"), s.extent("backward", "k")
    return rows is None or columns is None or rows * columns * prod(s.shape("grad")) > prod(s.shape("grad_inputs"))


def _places(s: Schedule, target: Target) -> None:
    """Each gradient is added to its place; whole windows do not compute where they begin and end."""
    zeroing = _zeroing(s, "c") if s.sets("backward", "grad_inputs") else []
    if zeroing:
        s.vectorize("backward", zeroing[-1], target.simd_width)
    if "x" in s.loops("backward"):
        _parts(s, "backward")
    for loop in dict.fromkeys(s.loops("backward")):
        if loop in ("j", "k") and loop not in zeroing:
            s.locate("backward", loop)


def _distributed(s: Schedule, phase: str, loop: str, count: int) -> list[str]:
    """A loop around a number of others split into one around each: their names."""
    if count > 1:
        s.distribute(phase, loop)
    names = [loop, *(f"{loop}_{number}" for number in range(1, count))]
    for name in reversed(names[1:]):
        s.rename(phase, loop, name, occurrence=-1)
    return names


def _channels(s: Schedule, phase: str, channel: str) -> None:
    """Lanes along channels, a window at a time."""
    s.reorder(phase, ["y", "x", channel])
    _parts(s, phase)
    s.unroll(phase, "k", 4, unroll_type=1, optional=True)  # not windows that are clipped on both sides


def _lanes(s: Schedule, target: Target, phase: str) -> None:
    """The lanes of arrays with the plain layout."""
    width = target.simd_width
    low, high = _whole(s, phase)
    columns = s.extent(phase, "x")
    few, clipped = s.extent(phase, "c") * 2 < width, columns - (high - low)
    # One channel's rows one after the other; lanes along channels touch as many images at once.
    by_rows = phase == "backward" or high - low >= ALONE * (clipped - 1) or _elements(s, phase) >= MANY
    if few or (high - low >= ROW and by_rows):
        _, whole = _parts(s, phase)  # clipped windows stay scalar
        if whole is not None:
            s.vectorize(phase, whole, width, strided="gather", optional=True)
        waits = not clipped or s.shape("inputs")[-1] >= LONG_ROW
        if phase == "forward" and waits and _elements(s, phase) >= LARGE:
            s.prefetch(phase, "inputs", "y", AHEAD, optional=True)  # not rows of less than a cache line
        return
    channel = "c"
    if not few:
        s.tile_loop(phase, "c", width)
        channel = "c_inner"
    if high - low < ROW:
        _channels(s, phase, channel)
        s.vectorize(phase, channel, width, strided="gather")
        return
    s.reorder(phase, ["y", channel, "x"])
    parts, whole = _parts(s, phase)
    for part, around in zip(parts, _distributed(s, phase, channel, len(parts)), strict=True):
        if part == whole:
            s.vectorize(phase, part, width, strided="gather", optional=True)
        elif not few:
            s.interchange(phase, [around, part])
            s.vectorize(phase, around, width, strided="gather")


def _elements(s: Schedule, phase: str) -> int:
    return (s.extent(phase, "n") or 0) * prod(s.shape("inputs"))


def _parallel(s: Schedule, phase: str) -> None:
    if "c_outer" in s.loops(phase):
        s.parallelize(phase, ["n", "c_outer"])
        return
    s.parallelize(phase, "n")
    if not s.blocked(phase):
        s.parallelize(phase, "c", optional=True)  # not beside the zeroing of a single channel


def forward(s: Schedule, target: Target) -> None:
    if set(s.blocks("inputs")) == {0}:
        for buffer in ("value", "grad", "mask_j", "mask_k"):
            s.tile(buffer, 0, s.blocks("inputs")[0])
    if _blocks_of_channels(s):
        _channels(s, "forward", "c_inner")
        s.vectorize("forward", "c_inner", target.simd_width)
    else:
        _leave_others(s, "forward")
        if target.isa_flags:
            _lanes(s, target, "forward")
    _parallel(s, "forward")


def backward(s: Schedule, target: Target) -> None:
    loops = s.loops("backward")
    if not loops:
        return
    if _blocks_of_channels(s, "grad_inputs"):
        zeroing = _zeroing(s, "c_inner")
        if {"j", "k"} <= set(loops) - set(zeroing):  # else the loops of one window are those of the zeroing
            if zeroing:
                s.reorder("backward", [*zeroing, "c_inner"])
            _channels(s, "backward", "c_inner")
        s.vectorize("backward", "c_inner", target.simd_width)
    else:
        _leave_others(s, "backward")
        if _adding(s):
            _places(s, target)
        elif {"j", "k"} <= set(loops) and target.isa_flags:
            _lanes(s, target, "backward")
    _parallel(s, "backward")
