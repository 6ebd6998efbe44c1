"""Softmax loss: lanes along the classes; the sum over the batch is one number, so the batch stays in order."""


def _lanes(s, target, phase):
    # Scores in blocks, laid out by commands of their own layer: correct, not tuned.
    if not s.blocked(phase) and not s.rearranged(phase):
        s.vectorize(phase, "c", target.simd_width)


def forward(s, target):
    _lanes(s, target, "forward")


def backward(s, target):
    if s.loops("backward"):
        _lanes(s, target, "backward")
        s.parallelize("backward", "n")
