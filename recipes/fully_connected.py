"""Fully connected: a register tile of items and outputs, lanes along the inputs. After a source in blocks of channels
the weights have the same blocks, and lanes run along a block."""

from collections.abc import Sequence

from swirl.recipe import Schedule
from swirl.target import Target


def _row(s: Schedule, phase: str) -> Sequence[str]:
    """The loops over the source in the order of its elements, pixels as one; the last one will become lanes."""
    loops = [loop for loop in s.loops(phase) if loop not in ("n", "k")]
    if not s.blocked(phase):
        return s.flatten(phase, loops) if len(loops) > 1 else loops
    channels, lanes, *pixels = loops
    if len(pixels) > 1:
        pixels = [*s.flatten(phase, pixels)]
    s.reorder(phase, [channels, *pixels, lanes])
    return [channels, *pixels, lanes]


def _leave_others(s: Schedule, phase: str) -> None:
    """Leave a phase unless all arrays of the source's shape have the source's layout: the plain one, or blocks of
    channels."""
    blocks = s.blocks("inputs")
    alike = set(blocks) == {0} and s.blocks("weights") == {1: blocks[0]}
    if s.rearranged(phase) or (s.blocked(phase) and not alike):
        s.leave_apart(phase, "the source is laid out in another way than in blocks of channels")


def forward(s: Schedule, target: Target) -> None:
    if set(s.blocks("inputs")) == {0}:
        for buffer, dim in (("inputs", 0), ("grad_inputs", 0), ("weights", 1), ("grad_weights", 1)):
            s.tile(buffer, dim, s.blocks("inputs")[0])
    _leave_others(s, "forward")
    row = _row(s, "forward")
    s.unroll_and_jam("forward", "n", 4)
    s.unroll_and_jam("forward", "k", 4)
    s.vectorize("forward", row[-1], target.simd_width)
    s.parallelize("forward", "n")
    s.parallelize("forward", "k", optional=True)  # remaining outputs are separate from the tiles


def backward(s: Schedule, target: Target) -> None:
    if not s.loops("backward"):
        return
    _leave_others(s, "backward")
    row = _row(s, "backward")
    s.unroll_and_jam("backward", "n", 4)
    s.vectorize("backward", row[-1], target.simd_width)
    s.parallelize("backward", "n")


def update(s: Schedule, target: Target) -> None:
    _leave_others(s, "update")
    row = _row(s, "update")
    s.reorder("update", [*row, "n"])
    for loop in row if s.sets("update", "grad_weights") else ():
        s.fuse("update", loop)
    s.unroll_and_jam("update", "k", 4)
    s.vectorize("update", row[-1], target.simd_width)
    s.parallelize("update", "k")
