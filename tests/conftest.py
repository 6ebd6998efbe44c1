"""For all tests."""

import gc

# Programs are trees without cycles. Python looks for cycles after so many allocations, and so through all trees again
# and again: an eighth of the time. Instead it does after each test, and only through what the test has made.
gc.disable()


def pytest_runtest_logfinish() -> None:
    """Free nets, which have cycles, once a test has let go of them."""
    gc.collect(0)


def pytest_sessionfinish() -> None:
    """The process ends: what is left need not be looked through once more."""
    gc.freeze()
