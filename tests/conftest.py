"""For all tests."""

import gc

import pytest

_TESTS_BETWEEN = 20

# Programs are trees without cycles. Python looks for cycles by what is allocated, and so through all trees again and
# again: an eighth of the time. Instead, after some tests, what is still used then is not looked at again.
gc.disable()
_finished = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Free nets, which have cycles."""
    global _finished
    _finished += 1
    if _finished % _TESTS_BETWEEN == 0:
        gc.collect()
        gc.freeze()
