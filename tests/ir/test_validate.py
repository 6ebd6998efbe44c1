"""Programs outside of the grammar: the message names nest and statement."""

from __future__ import annotations

import pytest

from swirl.errors import ValidationError
from tests.support import program


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n: int32 = 3\nfor i in range(n):\n x[i] = 1.0", "bounds are of loop variables, and n is a local"),
        (
            "for i in range(4):\n n: int32 = i\n for j in range(0, min(4, n + 1)):\n  x[j] = 1.0",
            "bounds are of loop variables, and n is a local: for j in range(0, min(4, n + 1)):",
        ),
        (
            "for i in range(4):\n n: int32 = i\n for j in range(n, 4):\n  x[j] = 1.0",
            "bounds are of loop variables, and n is a local",
        ),
        ("for i in range(m[0]):\n x[i] = 1.0", "a bound is not quasi-affine"),
        ("for i in range(k):\n x[i] = 1.0", "k is not declared here"),
        ("for i in range(i):\n x[i] = 1.0", "i is not declared here"),
        ("for i in range(0, 4, 0):\n x[i] = 1.0", "a step is a literal other than 0"),
        ("for i in range(4):\n for j in range(0, 4, i):\n  x[j] = 1.0", "a step is a literal other than 0"),
    ],
)
def test_bounds(text: str, message: str) -> None:
    whole = "def one(x, m):\n" + "\n".join(f"    {line}" for line in text.splitlines())
    with pytest.raises(ValidationError) as caught:
        program(whole, x=(4,), m=(4,))
    assert message in caught.value.message and caught.value.location == "program, nest one"


def test_bounds_of_loop_variables() -> None:
    program("for i in range(4):\n for j in range(max(0, i // 2), 4 - i % 2):\n  x[j] = 1.0", x=(4,))
    program("for i in range(3, -1, -1):\n for j in range(3, i, -2):\n  x[j] = 1.0", x=(4,))
