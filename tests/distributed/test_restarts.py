"""Training goes on to the last bit after torchrun has started it again.

``python -m tests.distributed.restarts`` does so at 50 moments.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import restarts


@pytest.mark.slow
@pytest.mark.usefixtures("as_lowered")
def test_a_kill(tmp_path: Path) -> None:
    assert restarts.check(tmp_path, kills=1, seed=4) > 0
