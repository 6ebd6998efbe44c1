"""For all tests."""

import gc

_TESTS_BETWEEN = 100

# Programs are trees without cycles. Python looks for cycles after so many allocations, and so through all trees again
# and again: an eighth of the time. Instead it does after some tests, and never again at what is still used then.
gc.disable()
_finished = 0


def pytest_runtest_logfinish() -> None:
    """Free nets, which have cycles, once a test has let go of them."""
    global _finished
    _finished += 1
    if _finished % _TESTS_BETWEEN == 0:
        gc.collect()
        gc.freeze()
