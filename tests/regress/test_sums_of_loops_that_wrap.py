"""Arithmetic on loops that 32 bits do not hold is refused before it is simplified: what came out did not wrap."""

from __future__ import annotations

import pytest

from swirl.errors import Refused
from swirl.transforms import COMMANDS
from tests.support import program


def test_a_command_that_would_simplify_it() -> None:
    before = program("for k in range(7):\n    z[0] += (k + 2147483647) // 2\n", z=(1,))
    with pytest.raises(Refused, match=r"\(k \+ 2147483647\) // 2 may pass 2,147,483,647 where it is computed"):
        COMMANDS["tile_loop"](before, "k", [4, 3])
