"""A recipe that is refused: rows of the output's gradient share rows of the input's gradient."""


def backward(s, target):
    s.parallelize("backward", "y")
