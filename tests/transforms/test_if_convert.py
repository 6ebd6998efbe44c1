"""if_convert: the selects it prints, exactly the same results, the same bits compiled; what it refuses."""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from inspect import cleandoc

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.codegen.emit import emit
from swirl.errors import Refused
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import assert_same_bits, run_source
from tests.support import assert_compiles_to_same, assert_same, program

EXTENTS = (1, 2, 7, 8, 9, 17)

# E is the extent; x, w are read; m is an array of integers.
PROGRAMS = {
    "one branch": "for i in range(E):\n if x[i] > 0.0:\n  y[i] = w[i]",
    "sums": "for i in range(E):\n if x[i] > 0.0:\n  s[0] += w[i]\n  y[i] -= w[i]\n  z[i] *= w[i]",
    "largest": "for i in range(E):\n if x[i] > 0.0:\n  s[0] = max(s[0], w[i])\n else:\n  q[1] = min(w[i], q[1])",
    "joined": """
for i in range(E):
 if x[i] > w[i]:
  y[i] = x[i]
  z[i] += y[i]
 else:
  y[i] = w[i]
  z[i] += 1.0
""",
    "other targets": "for i in range(E):\n if x[i] > 0.0:\n  y[i] = w[i]\n else:\n  z[i] = w[i]\n  y[i] += 2.0",
    "reads what it writes": "for i in range(E):\n if y[i] > 0.0:\n  y[i] = -1.0\n  z[i] = w[i]",
    "nested": """
for i in range(E):
    if x[i] > 0.0:
        t: float32 = w[i] * 2.0
        if w[i] > 0.0:
            y[i] = t
            t += 1.0
        else:
            z[i] -= t
        y[i] += t
    else:
        t: float32 = x[i]
        if m[i] == 1 and t < 0.0:
            m[i] += 2
        elif m[i] == 2:
            z[i] = t
""",
    "loops inside": """
for i in range(E):
    if x[i] > 0.0:
        r: float32[2] = empty(2)
        for j in range(2):
            r[j] = w[i] + j
        for j in range(2):
            y[i] += r[j]
""",
    "guards stay": """
for i in range(E):
    if i > 0 and x[i - 1] > 0.0:
        y[i - 1] = w[i - 1]
    if i > 0:
        if x[i] > 0.0:
            z[i - 1] = x[i - 1]
    else:
        z[i] = 3.0
""",
    "guarded reads": """
for i in range(E):
 if m[i] > 0 and x[m[i] - 1] > 0.0:
  y[i] = 1.0 / x[m[i] - 1] + float32(m[i])
""",
    "division": "for i in range(E):\n if x[i] != 0.0:\n  y[i] = w[i] / x[i]",
    "truth": """
for i in range(E):
 b: bool = x[i] > 0.0
 if w[i] > 0.0:
  b = not b
 if b:
  m[i] -= 1
  m[i] *= 3
""",
    "argmax": """
for i in range(E):
    v: float32 = -INFINITY
    k: int32 = 0
    for j in range(3):
        if v < u[j, i]:
            v = u[j, i]
            k = j
    y[i] = v
    m[i] = k
""",
}

# Of the others, one needs indices that exist, one has a loop, and one an order.
LANES = [name for name in PROGRAMS if name not in ("guarded reads", "loops inside", "guards stay")]

# Pooling as people write it, windows of 3 and stride 2.
POOLING = """
for c in range(2):
    for y in range(E):
        for x in range(E):
            value[c, y, x] = -INFINITY
            row[c, y, x] = 0
            column[c, y, x] = 0
            for j in range(3):
                for k in range(3):
                    if inputs[c, y * 2 + j, x * 2 + k] > value[c, y, x]:
                        value[c, y, x] = inputs[c, y * 2 + j, x * 2 + k]
                        row[c, y, x] = j
                        column[c, y, x] = k
"""
UNPOOLING = """
for c in range(2):
    for y in range(E):
        for x in range(E):
            for j in range(3):
                for k in range(3):
                    if row[c, y, x] == j and column[c, y, x] == k:
                        grad_inputs[c, y * 2 + j, x * 2 + k] += grad[c, y, x]
"""


def make(name: str, extent: int) -> Program:
    mark = f"{sorted(PROGRAMS).index(name)}_{extent}"
    shapes = {"x": (extent,), "w": (extent,), "y": (extent,), "z": (extent,), "s": (2,), "q": (2,), "u": (3, extent)}
    buffers = {f"{key}_{mark}": Buffer(f"net.{key}_{mark}", shape) for key, shape in shapes.items()}
    buffers[f"m_{mark}"] = Buffer(f"net.m_{mark}", (extent,), "int32")
    text = PROGRAMS[name].replace("range(E)", f"range({extent})")
    text = re.sub(r"\b([xwyzsqum])\[", rf"\1_{mark}[", text)
    return validate(parse_program(text, buffers, f"p{mark}"))


def pooling(text: str, extent: int) -> Program:
    small, large = (2, extent, extent), (2, 2 * extent + 1, 2 * extent + 1)
    shapes = {"value": small, "inputs": large, "grad": small, "grad_inputs": large}
    buffers = {f"{name}{extent}": Buffer(f"net.{name}{extent}", shape) for name, shape in shapes.items()}
    buffers |= {f"{name}{extent}": Buffer(f"net.{name}{extent}", small, "int32") for name in ("row", "column")}
    text = re.sub(r"\b(value|inputs|grad|grad_inputs|row|column)\[", rf"\g<1>{extent}[", text)
    return validate(parse_program(text.replace("(E)", f"({extent})"), buffers, f"pool{extent}"))


def converted(before: Program) -> Program:
    return COMMANDS["if_convert"](before)


def in_lanes(before: Program, loop: str) -> Program:
    lanes = COMMANDS["vectorize"](converted(before), loop, 8, strided="gather")
    return hoist(scalar_replace(tidy(lanes)))


def branches_on_data(after: Program) -> list[str]:
    tests = [node.test for nest in after.nests for node in ast.walk(nest.function) if isinstance(node, ast.If)]
    return [ast.unparse(test) for test in tests if "[" in ast.unparse(test)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_prints(name: str, snapshot: SnapshotAssertion) -> None:
    assert converted(make(name, 7)).text == snapshot


@pytest.mark.parametrize("text", [POOLING, UNPOOLING], ids=["forward", "backward"])
def test_pooling_prints(text: str, snapshot: SnapshotAssertion) -> None:
    assert in_lanes(pooling(text, 9), "x").text == snapshot


def small_integers(before: Program) -> dict[str, np.ndarray]:
    """Contents with zeros, both signs and indices that exist."""
    generator = np.random.default_rng(3)
    result = {}
    for name, buffer in before.buffers.items():
        values = generator.integers(0 if buffer.dtype == "int32" else -2, 2, buffer.shape)
        integer = buffer.dtype == "int32"
        result[name] = values.astype(np.int32) if integer else np.vectorize(Fraction, otypes=[object])(values)
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_exactly_the_same(name: str) -> None:
    for extent in EXTENTS:
        before = make(name, extent)
        after = converted(before)
        assert not branches_on_data(after)
        expected, got = small_integers(before), small_integers(before)
        execute(before, expected, arithmetic="rational")
        execute(after, got, checking=True, arithmetic="rational")
        for key in expected:
            assert np.array_equal(got[key], expected[key]), after.text


@pytest.mark.parametrize("name", LANES)
def test_selects_become_lanes(name: str) -> None:
    for extent in EXTENTS:
        before = make(name, extent)
        assert_same(before, in_lanes(before, "i"))


@pytest.mark.parametrize("text", [POOLING, UNPOOLING], ids=["forward", "backward"])
def test_pooling_computes_exactly_the_same(text: str) -> None:
    for extent in (1, 3, 9):
        before = pooling(text, extent)
        assert_same(before, converted(before))
        assert_same(before, in_lanes(before, "x"))
        assert_same(before, in_lanes(before, "c"))


def merged(programs: list[Program]) -> Program:
    buffers = {key: buffer for one in programs for key, buffer in one.buffers.items()}
    return Program("merged", tuple(nest for one in programs for nest in one.nests), buffers)


def test_compiles_to_the_same_bits(target: Target) -> None:
    names = [name for name in PROGRAMS if name != "guarded reads"]
    assert_compiles_to_same(merged([converted(make(name, extent)) for name in names for extent in (1, 7, 17)]), target)


def test_guarded_reads_compiled(target: Target) -> None:
    """Subscripts that exist only where the condition holds are not read elsewhere, by lanes either."""
    for lanes in (False, True):
        for extent in (7, 17):
            before = make("guarded reads", extent)
            after = in_lanes(before, "i") if lanes else converted(before)
            index = next(name for name in before.buffers if name.startswith("m"))
            given = {name: np.ones(b.shape, np.float32) for name, b in before.buffers.items()}
            given[index] = np.where(np.arange(extent) % 2, np.arange(extent) + 1, -(10**8)).astype(np.int32)
            compiled_like_executed(after, given, target)


def compiled_like_executed(after: Program, given: dict[str, np.ndarray], target: Target) -> None:
    given = {name: array for name, array in given.items() if any(name in nest.arguments for nest in after.nests)}
    expected = {name: array.copy() for name, array in given.items()}
    execute(after, expected)
    got = run_source(emit(after, target, contract=False), given, target)
    for name in given:
        assert_same_bits(got[name], expected[name], name)


def test_compiles_to_the_same_bits_in_lanes(target: Target) -> None:
    pools = [in_lanes(pooling(text, extent), "x") for text, extent in ((POOLING, 9), (UNPOOLING, 7))]
    lanes = [in_lanes(make(name, extent), "i") for name in LANES for extent in (7, 17)]
    assert_compiles_to_same(merged([*lanes, *pools]), target)


def test_zeros_keep_their_sign() -> None:
    before = program("for i in range(4):\n if x[i] > 0.0:\n  y[i] += 1.0\n  z[i] -= 1.0", x=(4,), y=(4,), z=(4,))
    for after in (before, converted(before)):
        arrays = {
            "x": np.array([-1, 0, -0.0, 1], np.float32),
            "y": np.array([0.0, -0.0, -0.0, -0.0], np.float32),
            "z": np.array([0.0, -0.0, 0.0, -0.0], np.float32),
        }
        execute(after, arrays)
        assert np.signbit(arrays["y"]).tolist() == [False, True, True, False]
        assert np.signbit(arrays["z"]).tolist() == [False, True, False, True]


def test_only_in_the_loop_named() -> None:
    before = program(
        "for i in range(3):\n if x[i] > 0.0:\n  y[i] = 1.0\nfor j in range(3):\n if x[j] > 0.0:\n  z[j] = 1.0",
        x=(3,),
        y=(3,),
        z=(3,),
    )
    assert branches_on_data(COMMANDS["if_convert"](before, "j")) == ["x[i] > 0.0"]
    assert branches_on_data(COMMANDS["if_convert"](before, nest=0)) == ["x[j] > 0.0"]


def test_conditions_on_loop_variables_and_programs_without_branches_are_left_alone() -> None:
    before = program("for i in range(3):\n if i > 0 and i % 2 == 0:\n  y[i - 1] = x[i]", x=(3,), y=(3,))
    assert converted(before).text == before.text


REFUSALS = {
    "a subscript that only the condition keeps inside": (
        "for i in range(4):\n for j in range(3):\n  if x[i] > 0.0:\n   y[i - 1, j] = x[i]",
        """
        y[i - 1, j] would be stored whatever the data are, and may not exist then
            for i in range(4):
                for j in range(3):
                    if x[i] > 0.0:
                        y[i - 1, j] = x[i]    ← asked to become selects
          i=0, j=0 would store to y[-1, 0], y has the shape (4, 3)
          a condition on loop variables around this one is left as it is: keep the subscript inside by one""",
    ),
    "a mixed condition with two branches": (
        "for i in range(4):\n if i < 3 and x[i] > 0.0:\n  y[i + 1, 0] = x[i]\n else:\n  z[i] = 1.0",
        """
        y[i + 1, 0] would be stored whatever the data are, and may not exist then
            for i in range(4):
                if i < 3 and x[i] > 0.0:
                    y[i + 1, 0] = x[i]    ← asked to become selects
                else:
                    z[i] = 1.0
          i=3 would store to y[4, 0], y has the shape (4, 3)""",
    ),
    "a local array": (
        "for i in range(4):\n r: float32[2] = empty(2)\n if x[i] > 0.0:\n  r[i] = x[i]\n  y[i, 0] = r[i]",
        """
        r[i] would be stored whatever the data are, and may not exist then
            for i in range(4):
                r: float32[2] = empty(2)
                if x[i] > 0.0:
                    r[i] = x[i]    ← asked to become selects
                    y[i, 0] = r[i]
          i=2 would store to r[2], r has the shape (2,)""",
    ),
    "an index from data": (
        "for i in range(4):\n if m[i] >= 0:\n  z[m[i]] = x[i]",
        """
        z[m[i]] would be stored whatever the data are, and may not exist then
            for i in range(4):
                if m[i] >= 0:
                    z[m[i]] = x[i]    ← asked to become selects
          nothing is known about where z[m[i]] is
          leave the branch as it is: vectorize masks it""",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    text, message = REFUSALS[name]
    buffers = {name: Buffer(name, shape) for name, shape in (("x", (4,)), ("y", (4, 3)), ("z", (4,)))}
    buffers["m"] = Buffer("m", (4,), "int32")
    before = validate(parse_program(text, buffers))
    with pytest.raises(Refused) as caught:
        converted(before)
    assert str(caught.value).startswith(cleandoc(message))
    witness = re.fullmatch(r"(.*) would store to (\w+)\[(.*)\], \w+ has the shape (.*)", str(caught.value.witness))
    if witness is not None:  # the instance, executed, does leave the array
        values = {var: int(value) for var, value in re.findall(r"(\w+)=(\d+)", witness[1])}
        target = ast.parse(str(caught.value).split(" would", 1)[0], mode="eval").body
        assert isinstance(target, ast.Subscript)
        where = eval(f"({ast.unparse(target.slice)},)", dict(values))
        where = where[0] if isinstance(where[0], tuple) else where
        assert where == eval(f"({witness[3]},)")
        assert not all(0 <= i < extent for i, extent in zip(where, eval(witness[4]), strict=True))
