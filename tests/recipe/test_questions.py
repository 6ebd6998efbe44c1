"""What a recipe asks about strides, dependences and footprints."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError
from swirl.schedule.recipe import Schedule
from swirl.target.targets import get_target
from tests.support import program

CONVOLUTION = """
for n in range(4):
    for k in range(20):
        for y in range(9):
            for c in range(12):
                for ky in range(3):
                    value[n, k, y] += inputs[n, c, 2 * y + ky] * weights[k, c, ky]
"""
SHAPES = {"value": (4, 20, 9), "inputs": (4, 12, 19), "weights": (20, 12, 3)}


def convolution() -> Schedule:
    return Schedule.alone({"forward": program(CONVOLUTION, **SHAPES)}, get_target("avx512"))


@pytest.mark.parametrize(
    ("loop", "value", "inputs", "weights"),
    [("n", 180, 228, 0), ("k", 9, 0, 36), ("y", 1, 2, 0), ("c", 0, 19, 3), ("ky", 0, 1, 1)],
)
def test_strides(loop: str, value: int, inputs: int, weights: int) -> None:
    assert convolution().strides("forward", loop) == {
        "value[n, k, y]": value,
        "inputs[n, c, 2 * y + ky]": inputs,
        "weights[k, c, ky]": weights,
    }


def test_strides_under_the_layouts_as_they_are() -> None:
    s = convolution()
    s.tile("weights", 0, 4)  # its dimension 1: the first one counts as the batch
    found = s.strides("forward", "c_inner"), s.strides("forward", "ky")
    assert [strides["weights[k, c_outer * 4 + c_inner, ky]"] for strides in found] == [1, 4]


def test_a_stride_that_is_not_constant() -> None:
    text = "for i in range(6):\n    y[i] = x[i * i]\n"
    s = Schedule.alone({"forward": program(text, y=(6,), x=(36,))}, get_target("avx512"))
    assert s.strides("forward", "i") == {"y[i]": 1, "x[i * i]": None}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("y[i] = x[i] * 2.0", "parallel"),
        ("y[0] += x[i]", "reduction"),
        ("y[0] = max(y[0], x[i])", "reduction"),
        ("y[i + 1] = y[i] * x[i]", "recurrence"),
        ("y[0] = y[0] * 0.5 + x[i]", "recurrence"),
    ],
)
def test_dependence(body: str, answer: str) -> None:
    s = Schedule.alone({"forward": program(f"for i in range(6):\n    {body}\n", y=(7,), x=(6,))}, get_target("avx512"))
    assert s.dependence("forward", "i") == answer


@pytest.mark.parametrize(
    ("loop", "elements"),
    [
        ("ky", 3),
        ("c", 1 + 3 + 3),
        ("y", 1 + 12 * 3 + 12 * 3),
        ("k", 9 + 12 * 19 + 12 * 3),
        ("n", 20 * 9 + 12 * 19 + 20 * 12 * 3),
    ],
)
def test_footprint_of_an_iteration(loop: str, elements: int) -> None:
    assert convolution().footprint("forward", loop) == 4 * elements


def test_what_the_next_iteration_brings() -> None:
    """Of three rows, the next iteration reads two others; weights stay."""
    s = convolution()
    one, two = (s.touched("forward", "y", "elements", number) for number in (1, 2))
    assert {name: two[name] - one[name] for name in one} == {"value": 1, "inputs": 24, "weights": 0}
    assert s.touched("forward", "y") == {name: 4 * count for name, count in one.items()}
    assert s.touched("forward", "y", "elements", None) == {"value": 9, "inputs": 12 * 19, "weights": 12 * 3}
    assert s.touched("forward", "c", "lines", None)["weights"] == 4  # 36 elements, which begin anywhere in a line


@pytest.mark.parametrize(("unit", "iterations"), [("pages", 1), ("bytes", 3)])
def test_what_is_not_counted(unit: str, iterations: int) -> None:
    with pytest.raises(CommandError, match=r'units are "elements", "bytes" and "lines"'):
        convolution().touched("forward", "y", unit, iterations)


def test_the_first_of_several_loops_of_a_name() -> None:
    text = "for i in range(6):\n    y[0] += x[i]\nfor i in range(7):\n    z[i] = 1.0\n"
    s = Schedule.alone({"forward": program(text, y=(1,), x=(6,), z=(7,))}, get_target("avx512"))
    assert s.strides("forward", "i") == {"y[0]": 0, "x[i]": 1}
    assert s.dependence("forward", "i") == "reduction"
    assert s.footprint("forward", "i") == 8


@pytest.mark.parametrize("question", ["strides", "dependence", "footprint", "touched"])
def test_an_unknown_loop(question: str) -> None:
    with pytest.raises(CommandError, match=r"(?s)no loop .*'z'"):
        getattr(convolution(), question)("forward", "z")


def test_locals_of_a_loop() -> None:
    text = """
for n in range(4):
    t: float32 = x[n]
    lanes: float32[8] = empty(8)
    for i in range(8):
        u: float32 = t * 2.0
        lanes[i] = u
    y[n] = lanes[3] + t
for n in range(4):
    v: float32 = y[n]
    t: float32 = v * v
    y[n] = v + t
"""
    s = Schedule.alone({"forward": program(text, x=(4,), y=(4,))}, get_target("avx512"))
    assert s.locals("forward", "n") == ("t", "lanes", "v")
    assert s.locals("forward", "i") == ("u",)
    assert s.locals("forward", "z") == s.locals("backward", "n") == ()
