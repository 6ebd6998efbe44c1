"""Max pooling: a channel of an image for each thread, lanes along the output row."""


def forward(s, target):
    s.vectorize("forward", "x", target.simd_width, strided="gather")
    s.parallelize("forward", "n")
    s.parallelize("forward", "c")


def backward(s, target):
    if s.loops("backward"):
        s.parallelize("backward", "n")
        s.parallelize("backward", "c")
