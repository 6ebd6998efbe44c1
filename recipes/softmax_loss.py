"""Softmax loss: lanes along the classes; the sum over the batch is one number, so the batch stays in order."""

from swirl.recipe import Schedule
from swirl.target import Target


def _lanes(s: Schedule, target: Target, phase: str) -> None:
    # Blocked scores, laid out by commands of their own layer: correct, not tuned.
    if not s.blocked(phase) and not s.rearranged(phase):
        s.vectorize(phase, "c", target.simd_width)


def forward(s: Schedule, target: Target) -> None:
    _lanes(s, target, "forward")


def backward(s: Schedule, target: Target) -> None:
    if s.loops("backward"):
        _lanes(s, target, "backward")
        s.parallelize("backward", "n")
