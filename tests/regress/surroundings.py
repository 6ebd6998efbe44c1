"""Helper functions, whose names mean something else in ``test_helpers_surroundings.py``."""

import math as m

pi = 1.0


class Config:
    RATE = 3.0


def area(x):
    return x * m.pi


def rate(x):
    return x * Config.RATE


def shifted(x):
    return x + pi


def undefined(x):
    return x * only_the_caller_knows  # noqa: F821
