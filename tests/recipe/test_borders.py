"""What a recipe asks about borders, and that a split there leaves nothing to clip."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError
from swirl.schedule.recipe import Schedule
from swirl.target.targets import get_target
from tests.support import assert_same, program


def window(extent: int, kernel: int, stride: int, pad: int) -> Schedule:
    """Sums over windows that the borders clip, in their bounds along y and in their subscripts along x."""
    size = (extent + 2 * pad - kernel) // stride + 1
    text = f"""
for y in range({size}):
    for j in range(max(0, {pad} - y * {stride}), min({kernel}, {extent + pad} - y * {stride})):
        a[y] += u[y * {stride} + j - {pad}]
for x in range({size}):
    for k in range({kernel}):
        b[x] += u[max(0, min({extent - 1}, x * {stride} + k - {pad}))]
for z in range({size}):
    for k in range({kernel}):
        if 0 <= z * {stride} + k - {pad} and z * {stride} + k - {pad} < {extent}:
            c[z] += u[z * {stride} + k - {pad}]
"""
    shapes = {"a": (size,), "b": (size,), "c": (size,), "u": (extent,)}
    return Schedule.alone({"forward": program(text, **shapes)}, get_target("avx512"))


@pytest.mark.parametrize("loop", ["x", "y", "z"])
@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "pad", "expected"),
    [
        (56, 3, 1, 1, (1, 55)),
        (57, 3, 2, 1, (1, 28)),
        (28, 5, 1, 2, (2, 26)),
        (28, 2, 2, 0, (0, 14)),
        (17, 7, 2, 3, (2, 7)),
        (200, 41, 1, 20, (20, 180)),
        (200, 27, 1, 13, (13, 187)),
        (401, 77, 3, 38, (13, 121)),
    ],
)
def test_interior(loop: str, extent: int, kernel: int, stride: int, pad: int, expected: tuple[int, int]) -> None:
    s = window(extent, kernel, stride, pad)
    assert s.interior("forward", loop) == expected
    before = s.programs["forward"]
    low, _ = expected
    cuts = [cut for cut in expected if 0 < cut < (s.extent("forward", loop) or 0)]
    if not cuts:
        return
    s.split("forward", loop, cuts)
    part = f"{loop}_1" if low > 0 else loop
    lines = s.programs["forward"].text.splitlines()
    start = next(i for i, line in enumerate(lines) if f"for {part} in" in line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    body = []
    for line in lines[start + 1 :]:
        if len(line) - len(line.lstrip()) <= indent:
            break
        body.append(line)
    assert body and not any(word in line for line in body for word in ("min(", "max(", "if "))
    assert_same(before, s.programs["forward"])


@pytest.mark.parametrize(("low", "high"), [(3, 101), (4, 101), (17, 91), (40, 100), (3, 60), (29, 78)])
def test_borders_of_any_width(low: int, high: int) -> None:
    """A loop that does not begin at 0."""
    clipped = program(f"for i in range(3, 101):\n  y[max(i, {low})] += x[min(i, {high - 1})]", y=(101,), x=(101,))
    s = Schedule.alone({"forward": clipped}, get_target("avx512"))
    assert s.interior("forward", "i") == (low, high)


def test_the_whole_range_where_nothing_is_gained() -> None:
    even = program("for i in range(8):\n if i % 2 == 0:\n  y[i] = 1.0", y=(8,))
    triangle = program("for i in range(8):\n for j in range(0, i + 1):\n  y[i] = 1.0", y=(8,))
    one = program("for i in range(1):\n for j in range(max(0, i - 1), 3):\n  y[i] = 1.0", y=(1,))
    for before, extent in ((even, 8), (triangle, 8), (one, 1)):
        assert Schedule.alone({"forward": before}, get_target("avx512")).interior("forward", "i") == (0, extent)


def test_several_loops_of_one_name() -> None:
    """``split`` divides them alike: that nothing clips in the first one says nothing of the other. A gradient that is
    set to zero first left its sums with conditions on every pixel."""
    before = program(
        "for i in range(9):\n y[i] = 0.0\nfor i in range(9):\n for k in range(max(0, 1 - i), min(3, 10 - i)):\n"
        "  y[i] += x[i + k - 1] * w[k]",
        y=(9,),
        x=(9,),
        w=(3,),
    )
    s = Schedule.alone({"forward": before}, get_target("avx2"))
    assert s.interior("forward", "i") == (1, 8)
    assert s.borders("forward", "i") == [1, 8]
    s.split("forward", "i", [1, 8])
    assert_same(before, s.programs["forward"])


def test_several_loops_that_have_no_interior_in_common() -> None:
    apart = "for i in range(4):\n y[i] = 0.0\nfor i in range(8, 12):\n y[i] = 1.0"
    assert Schedule.alone({"forward": program(apart, y=(12,))}, get_target("avx2")).interior("forward", "i") == (0, 4)


def test_bounds_that_are_not_constant() -> None:
    triangle = program("for i in range(4):\n for j in range(i + 1):\n  y[j] = 1.0", y=(4,))
    s = Schedule.alone({"forward": triangle}, get_target("avx2"))
    with pytest.raises(CommandError, match="the bounds of j are not constant"):
        s.interior("forward", "j")
