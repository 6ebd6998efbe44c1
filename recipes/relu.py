"""ReLU: every array is one long row; threads share its pieces. After a blocked source the value has the same blocks,
and lanes run along a block."""

from math import prod

from swirl.recipe import Schedule
from swirl.target import Target


def _stream(s: Schedule, target: Target, phase: str) -> None:
    loops = s.loops(phase)
    while prod(s.extent(phase, loop) for loop in loops) >= 2**31:  # more than an int counts
        loops = loops[1:]
    if len(loops) > 1:
        (row,) = s.flatten(phase, loops)
    else:
        (row,) = loops
    s.tile_loop(phase, row, 256 * target.simd_width)
    s.parallelize(phase, f"{row}_outer")
    s.vectorize(phase, f"{row}_inner", target.simd_width)


def _blocks(s: Schedule, target: Target, phase: str) -> None:
    inner = [loop for loop in s.loops(phase) if loop.endswith("_inner")]
    outer = [loop for loop in s.loops(phase) if loop not in inner]
    s.reorder(phase, [*outer, *inner])  # in the order of the elements in memory
    s.vectorize(phase, inner[-1], target.simd_width)
    last = max(position for position, loop in enumerate(outer) if loop.endswith("_outer"))
    pixels, shared = outer[last + 1 :], outer[: last + 1]
    if pixels:
        row = s.flatten(phase, pixels)[0] if len(pixels) > 1 else pixels[0]
        count = s.extent(phase, row)
        pieces = [size for size in range(64, 513) if count % size == 0]
        if pieces:  # shared too: a few images may have fewer blocks than there are threads
            s.tile_loop(phase, row, pieces[-1])
            shared.append(f"{row}_outer")
            row = f"{row}_inner"
        s.unroll(phase, row, 4)
    s.parallelize(phase, shared)


def _elements(s: Schedule, target: Target, phase: str) -> None:
    arrays = [name for name in ("inputs", "value", "grad", "grad_inputs") if name in s.buffers(phase)]
    if s.rearranged(phase) or any(s.blocks(name) != s.blocks(arrays[0]) for name in arrays):
        s.leave_apart(phase, "the arrays are not laid out alike, or have dimensions in another order")
    if s.blocked(phase):
        _blocks(s, target, phase)
    else:
        _stream(s, target, phase)


def forward(s: Schedule, target: Target) -> None:
    for dim, factor in s.blocks("inputs").items():
        s.tile("value", dim, factor)
        s.tile("grad", dim, factor)
    _elements(s, target, "forward")


def backward(s: Schedule, target: Target) -> None:
    if s.loops("backward"):
        _elements(s, target, "backward")
