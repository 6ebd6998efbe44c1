"""A quotient of a whole number that has wrapped was rounded towards zero: a sum of a loop's variable and a literal may
be positive, and negative modulo 2^32."""

from __future__ import annotations

import pytest

from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.target.targets import TARGETS
from tests.support import assert_compiles_to_same

TEXTS = (
    "for i in range(5):\n p[i] += (i + 2147483647) // 2",
    "for i in range(5):\n p[i] = (i * 3 + 2147483647) % 4",
    "for i in range(5):\n p[i] = (i * 1000000000 + 7) // 3",
    "for i in range(5):\n t: int32 = i + 2147483647\n p[i] = t // 3",
    "for i in range(5):\n for j in range(3):\n  p[i] += (i * 2000000000 + j) % 5",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("target", ["portable", "avx2", "avx512"])
def test_a_quotient_of_what_has_wrapped(text: str, target: str) -> None:
    assert_compiles_to_same(parse_program(text, {"p": Buffer("net.p", (5,), "int32")}), TARGETS[target])
