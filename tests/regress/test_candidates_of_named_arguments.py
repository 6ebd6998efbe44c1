"""Commands whose loops, sizes and orders are given by name: the search around a schedule looked for them by place,
and ended with an IndexError."""

from __future__ import annotations

import pytest

from swirl.schedule.command_log import Recorded
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Subject, around
from tests.support import assert_same, program

TEXT = "for n in range(8):\n for k in range(16):\n  for c in range(17):\n   y[n, k] += x[n, c] * w[k, c]"
BY_NAME = {
    "reorder": {"phase": "forward", "order": ["k", "n"]},
    "tile_loop": {"phase": "forward", "loop_var": "k", "factor": 4},
    "vectorize": {"phase": "forward", "loop_var": "k", "factor": 16, "strided": "gather"},
    "parallelize": {"phase": "forward", "loop_var": "n", "optional": True},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_candidates_are_found_around_commands_with_named_arguments(name: str) -> None:
    before = program(TEXT, x=(8, 17), y=(8, 16), w=(16, 17))
    command = Recorded(name, (), tuple(BY_NAME[name].items()), None)
    found = around(Subject.alone(before, "forward", (), TARGETS["avx512"]), [command], 3, seed=1)
    assert [each.name for each in found[0].commands] == [name]
    assert len(found) > 1
    for each in found:
        assert_same(before, each.program)
