"""Softmax loss: lanes along the classes; the sum over the batch is one number, so the batch stays in order."""

from swirl.recipe import Schedule
from swirl.target import Target


def _lanes(s: Schedule, target: Target, phase: str) -> None:
    if s.blocked(phase) or s.rearranged(phase):
        s.leave_apart(phase, "the scores are not in the order of the classes")
    s.vectorize(phase, "c", target.simd_width)


def forward(s: Schedule, target: Target) -> None:
    _lanes(s, target, "forward")


def backward(s: Schedule, target: Target) -> None:
    if s.loops("backward"):
        _lanes(s, target, "backward")
        s.parallelize("backward", "n")
