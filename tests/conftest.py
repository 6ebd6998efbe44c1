"""For all tests."""

import gc
import os
from collections import Counter

import pytest

from latte.runtime.executable import Executable
from tests.poison import run_poisoned

# Programs are trees without cycles. Python looks for cycles after so many allocations, and so through all trees again
# and again: an eighth of the time. Instead it does after each test, and only through what the test has made.
gc.disable()

# All threads run every kernel, however little it does: what tests compute is little.
os.environ["SWIRL_SHARED_FROM"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every", type=int, default=1, metavar="N", help="of each test's cases the first, and each Nth after"
    )

    parser.addoption("--poison", action="store_true", help="fill dead memory with NaN between the kernels of every net")


def pytest_configure(config: pytest.Config) -> None:
    """What ``--poison`` asks for."""
    if config.getoption("--poison"):
        Executable.run = run_poisoned  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)  # of those that -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``--every`` leaves out."""
    every: int = config.getoption("--every")
    seen: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left_out if seen[name] % every else kept).append(item)
        seen[name] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_runtest_logfinish() -> None:
    """Free nets, which have cycles, once a test has let go of them."""
    gc.collect(0)


def pytest_sessionfinish() -> None:
    """The process ends: what is left need not be looked through once more."""
    gc.freeze()


@pytest.fixture
def as_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets of this test, and of processes that it starts, have no schedule, which does not matter for what it tests."""
    monkeypatch.setenv("LATTE_SCHEDULE", "0")  # by what the test may change, too: undone in the right order
