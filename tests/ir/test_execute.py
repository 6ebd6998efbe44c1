"""What execution means: Python running the printed nest on NumPy's numbers, where Python has the same rules."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from swirl.errors import LatteError
from swirl.ir.arithmetic import UNDEFINED, UNINITIALISED
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.ir.operations import FUNCTIONS
from tests.fuzz.floats import EVERY_BIT, data, different, subscripts, touched
from tests.fuzz.programs import ProgramMaker

NAMES: dict[str, Any] = {name: function.floating for name, function in FUNCTIONS.items()}
NAMES |= {"abs": np.abs, "float32": np.float32, "INFINITY": np.float32(np.inf)}


def maximum(first: Any, *others: Any) -> Any:
    for other in others:
        first = first if first > other or first != first else other
    return first


def minimum(first: Any, *others: Any) -> Any:
    for other in others:
        first = first if first < other or first != first else other
    return first


def run_as_python(program: Program, arrays: dict[str, np.ndarray]) -> None:
    """The printed nests, which only need their declarations taken as conversions."""
    for nest in program.nests:
        text = re.sub(r"^( *\w+): (float32) = (.*)$", r"\1 = \2(\3)", nest.text, flags=re.MULTILINE)
        scope = {**NAMES, "max": maximum, "min": minimum}
        exec(text, scope)
        with np.errstate(all="ignore"):
            scope[nest.label](*(arrays[name] for name in nest.arguments))


def plain(program: Program) -> bool:
    """Whether there is nothing but single precision, in arithmetic that Python does one way: no integer meets a float
    but in a subscript or as a literal."""
    types = {buffer.dtype for buffer in touched(program).values()}
    words = ("int32", "bool", "float64", " and ", " or ", "float32(", "empty(")
    return types == {"float32"} and not any(word in nest.body_text for nest in program.nests for word in words)


def same(program: Program, given: dict[str, np.ndarray]) -> None:
    got, expected = ({name: array.copy() for name, array in given.items()} for _ in range(2))
    execute(program, got)
    run_as_python(program, expected)
    for name in expected:
        assert not different(got[name], expected[name]).any(), f"{name}\n{program.text}"


def test_random_programs_are_what_python_makes_of_them() -> None:
    compared = 0
    for seed in range(400):
        program = ProgramMaker(random.Random(seed).choice).program()
        limits = subscripts(program)
        if limits is None or not plain(program):
            continue
        names = {name for nest in program.nests for name in nest.arguments}
        program = Program(program.name, program.nests, {n: b for n, b in program.buffers.items() if n in names})
        same(program, data(program.buffers, seed, EVERY_BIT[seed % len(EVERY_BIT)], limits))
        compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = x[i] * 0.1 + 2 / 3",
        "y[i] = x[i] / 3",
        "y[i] = x[i] if x[i] > 0.1 else 1",
        "y[i] = i / 7 * x[i] + i // 2",
        "y[i] = max(0.0, x[i]) - min(x[i], 1)",
        "y[i] = x[i] and 3.0",
        "y[i] = not x[i]",
        "y[i] = 0.1 < x[i] < 2 or x[0]",
        "y[i] = -x[i] * x[i] - -0.0",
        "y[i] = (x[i] > 0.0) + (x[i] != x[i])",
    ],
)
def test_statements(text: str) -> None:
    buffers = {name: Buffer(name, (24,)) for name in "xy"}
    program = parse_program(f"for i in range(24):\n    {text}", buffers)
    same(program, data(buffers, 3, "special"))


def rational(text: str, **arrays: list[int]) -> list[Any]:
    given = {name: np.array(values, dtype=object) for name, values in arrays.items()}
    buffers = {name: Buffer(name, values.shape) for name, values in given.items()}
    execute(parse_program(text, buffers), given, arithmetic="rational")
    return list(given["y"])


def test_a_rational_quotient_by_zero_is_undefined_and_so_is_what_is_made_of_it() -> None:
    text = "for i in range(3):\n    t: float32 = 1.0 / x[i]\n    y[i] = sqrt(max(2.0 * t, 0.0) + t)"
    assert rational(text, x=[1, 0, 2], y=[5, 5, 5])[1] is UNDEFINED
    text = "for i in range(3):\n    t: float32 = 6 / x[i]\n    if i != 1:\n        y[i] = t"
    assert rational(text, x=[1, 0, 2], y=[5, 5, 5]) == [6, 5, 3]


def test_what_nothing_has_set_may_be_computed_with_and_stored_but_not_compared() -> None:
    text = "for i in range(3):\n    t: float32[2] = empty()\n    t[i % 2] = x[i]\n    y[i] = t[0] {} 1.0"
    assert rational(text.format("*"), x=[1, 2, 3], y=[5, 5, 5])[::2] == [1, 3]
    assert rational(text.format("/"), x=[1, 2, 3], y=[5, 5, 5])[1] is UNINITIALISED
    with pytest.raises(LatteError, match="nothing has set is compared"):
        rational(text.format("<"), x=[1, 2, 3], y=[5, 5, 5])


@pytest.mark.parametrize("value", ["1.0 if t > 0.0 else 2.0", "1.0 if t else 2.0", "1.0 if t == t else 2.0"])
def test_what_is_undefined_is_not_compared(value: str) -> None:
    with pytest.raises(ZeroDivisionError, match="a quotient by zero is compared"):
        rational(f"for i in range(3):\n    t: float32 = 1.0 / x[i]\n    y[i] = {value}", x=[1, 0, 2], y=[5, 5, 5])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("y[v + 1] = y[v]", [1, 1, 2, 3, 4]),  # not 1, 1, 1, 1, 1: all lanes have read
        ("y[v // 2] += x[v]", [1 + 2, 2 + 4, 3, 4, 5]),  # the last one of two lanes that store to an element
        ("y[v] = y[3 - v] + x[v]", [4 + 1, 3 + 2, 2 + 3, 1 + 4, 5]),
    ],
)
def test_all_lanes_read_before_one_stores(statement: str, expected: list[float]) -> None:
    buffers = {"y": Buffer("net.y", (5,)), "x": Buffer("net.x", (4,))}
    program = parse_program(f"for v in vector(4):\n    {statement}", buffers)
    for arithmetic in ("typed", "rational"):
        dtype = object if arithmetic == "rational" else np.float32
        arrays = {"y": np.arange(1, 6).astype(dtype), "x": np.arange(1, 5).astype(dtype)}
        execute(program, arrays, checking=True, arithmetic=arithmetic)
        assert arrays["y"].tolist() == expected
