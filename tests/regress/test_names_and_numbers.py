"""Programs that were wrong because a name was mistaken for another one with the same text, or a number for one of
another type, or for a finite one. The truth is the nest as it is, executed in NumPy's types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from swirl.codegen.emit import emit
from swirl.errors import CommandError
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from tests.codegen.conftest import run_source
from tests.support import merged

Arrays = dict[str, np.ndarray]
DTYPES = {"n": "int32", "m": "int32", "b": "bool", "d": "float64", "e": "float64"}
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, 1.0, -2.5, 16777216.0, 0.1]


def make(text: str, **shapes: int | tuple[int, ...]) -> Program:
    """A program; buffers ``n``, ``m`` are int32, ``b`` bool, ``d``, ``e`` float64."""
    extents = {name: shape if isinstance(shape, tuple) else (shape,) for name, shape in shapes.items()}
    buffers = {name: Buffer(f"net.{name}", shape, DTYPES.get(name, "float32")) for name, shape in extents.items()}
    return validate(parse_program(text, buffers))


def contents(program: Program) -> Arrays:
    """Special numbers, in all buffers, none twice at the same place."""
    result: Arrays = {}
    for number, (name, buffer) in enumerate(program.buffers.items()):
        values = np.resize(np.roll(SPECIAL, 5 * number), buffer.shape)
        if not buffer.dtype.startswith("float"):
            values = np.resize(np.array([3, 0, -7, 2**24 + 1, 2**31 - 1, -(2**31), 1, 2])[::-1], buffer.shape)
        result[name] = values.astype(buffer.dtype)
    return result


def finished(program: Program) -> Program:
    """The program as it is before code is made for it, without a recipe."""
    for rewrite in (canonicalise, tidy, scalar_replace, hoist, whole_vectors):
        program = rewrite(program)
    return program


def assert_arrays(got: Arrays, expected: Arrays, what: str) -> None:
    """The same bits; a NaN is a NaN."""
    for name, array in expected.items():
        same = (got[name] == array) & (np.signbit(got[name]) == np.signbit(array)) | (got[name] != got[name]) & (
            array != array
        )
        assert same.all(), f"{what}: {name} is {got[name]}, should be {array}"


def assert_means_itself(
    before: Program, *rewrites: Callable[[Program], Program], given: Arrays | None = None, target: Target | None = None
) -> Program:
    """The program after rewrites and the passes computes what it does before, executed; compiled, too, for a target."""
    given = given or contents(before)
    expected = {name: array.copy() for name, array in given.items()}
    execute(before, expected)
    program = before
    for rewrite in (*rewrites, finished):
        program = validate(rewrite(program))
        got = {name: array.copy() for name, array in given.items()}
        execute(program, got, checking=True)
        assert_arrays(got, expected, program.text)
    if target is not None:
        own = {name: np.zeros(b.shape, b.dtype) for name, b in program.buffers.items() if name not in given}
        compiled = run_source(emit(program, target, contract=False), {**given, **own}, target)
        assert_arrays(compiled, expected, f"{target.name}\n{program.text}")
    return program


def assert_all_mean_themselves(
    programs: list[Program],
    target: Target,
    *rewrites: Callable[[Program], Program],
    numbers: Callable[[Program], Arrays] = contents,
) -> None:
    """The same of several programs, which are compiled as one kernel."""
    after = [assert_means_itself(program, *rewrites, given=numbers(program)) for program in programs]
    given: Arrays = {}
    expected: Arrays = {}
    for number, program in enumerate(programs):
        arrays = numbers(program)
        given |= {f"{name}_of_{number}": array.copy() for name, array in arrays.items()}
        execute(program, arrays)
        expected |= {f"{name}_of_{number}": array for name, array in arrays.items()}
    whole = merged(after)
    own = {name: np.zeros(b.shape, b.dtype) for name, b in whole.buffers.items() if name not in given}
    compiled = run_source(emit(whole, target, contract=False), {**given, **own}, target)
    assert_arrays(compiled, expected, f"{target.name}\n{whole.text}")


def lanes(loop: str = "i", width: int = 4) -> Callable[[Program], Program]:
    return lambda program: COMMANDS["vectorize"](program, loop, width, strided="gather")


# --- locals are no loop variables ---------------------------------------------------------------------------
CARRIED = [
    "for j in range(2):\n t: float32 = 0.0\n u: float32 = x[j] * 2.0\n"
    " for i in range(8):\n  if t < u:\n   t += x[i]\n y[j] = t",
    "for j in range(2):\n t: float32 = 0.0\n for i in range(8):\n  if t < 3:\n   t += x[i]\n y[j] = t",
    "for j in range(2):\n t: float32 = 2.5\n s: float32 = 0.0\n"
    " for i in range(8):\n  if i < t:\n   s += x[i]\n y[j] = s",
    "for j in range(2):\n t: float32 = 2.5\n s: float32 = 0.0\n"
    " for i in range(8):\n  if t >= i and i > 0:\n   s += x[i]\n y[j] = s",
    "for j in range(2):\n k: int32 = 3\n for i in range(8):\n  if i < k:\n   k += 1\n   y[i] = x[i]",
    "for j in range(2):\n k: int32 = m[j]\n for i in range(8):\n"
    "  if k > i - 2 and not i == 3:\n   k -= 1\n   y[i] = x[i] if k < i else 1.0",
    # the loop variable of one loop is a local in the next one
    "for j in range(2):\n for t in range(3):\n  y[t] = x[t]\n t: float32 = x[j]\n"
    " for i in range(8):\n  if t < 1:\n   t += x[i]\n y[j] = t",
]


def ones(program: Program) -> Arrays:
    return {name: np.ones_like(array) for name, array in contents(program).items()}


@pytest.mark.parametrize("numbers", [ones, contents])
def test_a_condition_on_a_local_is_no_bound_of_a_loop(numbers: Callable[[Program], Arrays], target: Target) -> None:
    assert_all_mean_themselves([make(text, x=8, y=8, m=8) for text in CARRIED], target, numbers=numbers)


# --- conditions on data are not decided ---------------------------------------------------------------------
TESTS = [
    "t != t",
    "t == t",
    "t + 1 > t",
    "t - t == 0",
    "t * 2 == t + t",
    "not t <= t",
    "t < t + 1 < t + 2",
    "0 * t == 0",
]


@pytest.mark.parametrize("form", ["select", "branch", "element"])
def test_a_test_on_nan_is_no_tautology(form: str, target: Target) -> None:
    programs = []
    for test in TESTS:
        if form == "select":
            text = f"for i in range(24):\n t: float32 = x[i] * 2.0\n y[i] = 0.0 if {test} else t"
        elif form == "branch":
            text = f"for i in range(24):\n t: float32 = x[i] * 2.0\n if {test}:\n  y[i] = t\n else:\n  y[i] = 5.0"
        else:
            text = f"for i in range(24):\n y[i] = 1.0 if {test.replace('t', 'x[i]').replace('nox[i]', 'not')} else 5.0"
        programs.append(make(text, x=24, y=24))
    for rewrites in ([], [lanes()], [lambda p: COMMANDS["split"](p, "i", [5, 9])]):
        assert_all_mean_themselves(programs, target, *rewrites)


def test_whole_numbers_wrap(target: Target) -> None:
    text = "for i in range(8):\n k: int32 = m[i]\n n[i] = k * 3 + k if {} else -k"
    programs = [make(text.format(test), m=8, n=8) for test in ("k * 3 - 2 * k > k - 1", "k + 1 > k", "k != k")]
    for rewrites in ([], [lanes()]):
        assert_all_mean_themselves(programs, target, *rewrites)


# --- types come from what is computed, not from names ---------------------------------------------------------
TYPED = [
    "for i in range(8):\n"
    " for j in range(8):\n  y[j] = float32(float64(x[i]) * 16777217.0 - float64(z[j]) * 16777216.0)",
    "for i in range(8):\n for j in range(8):\n  d[j] = d[j] + sqrt(i + 0.5) * (0.1 if j < 3 else 0.3)",
    "for i in range(8):\n for j in range(8):\n  d[j] = e[j] / 5.0 + e[i] * 0.1",
    "for i in range(8):\n k: int32 = m[i]\n for j in range(8):\n  n[j] = k * 3 + j",
    "for i in range(8):\n k: int32 = m[i]\n for j in range(8):\n  n[j] = (k * 3 + j) // 2 + (k * 5) % 7",
    "for i in range(8):\n k: int32 = m[i]\n for j in range(8):\n  y[j] = x[j] * (k * 3 + 16777216) + j * 0.3",
    "for i in range(8):\n n[i] = m[i] // (i - 2) + m[i] % (i - 2) + int32(x[i] * 1e9)",
    "for i in range(8):\n y[i] = exp(d[i] * 0.0) + float32(sqrt(abs(d[i])) + x[i])",
    "for i in range(8):\n for j in range(8):\n  d[j] = d[j] + x[i] * x[i] + float32(e[i]) * 0.1",
]


def test_each_expression_has_a_type_of_its_own(target: Target) -> None:
    assert_all_mean_themselves([make(text, x=8, y=8, z=8, m=8, n=8, d=8, e=8) for text in TYPED], target)


SIDES = [
    "x[i] and 3.0",
    "x[i] or z[i]",
    "x[i] and z[i] or 2.0",
    "m[i] and x[i]",
    "1.0 + (x[i] or m[i])",
    "not x[i] or z[i]",
    "i < 2 < x[i] and z[i]",
    "1.0 + max(x[i] > 0.0, z[i] > 0.0)",
    "min(m[i] > 2, True) or z[i]",
]


def test_and_and_or_have_the_value_of_a_side(target: Target) -> None:
    programs = [make(f"for i in range(24):\n y[i] = {value}", x=24, y=24, z=24, m=24) for value in SIDES]
    for rewrites in ([], [lanes()]):
        assert_all_mean_themselves(programs, target, *rewrites)
    for value, program in zip(SIDES, programs, strict=True):
        given = contents(program)
        names = {name: array.tolist() for name, array in given.items()}
        expected = [eval(value, {}, {**names, "i": i}) for i in range(24)]
        execute(program, given)
        np.testing.assert_allclose(given["y"], np.array(expected, np.float32), rtol=2.0**-23, err_msg=value)


# --- two locals of one name ---------------------------------------------------------------------------------
def test_what_a_halo_makes_zero_is_forgotten_with_its_local(target: Target) -> None:
    text = """
for i in range(6):
    for k in range(3):
        if 0 <= i + k - 1 and i + k - 1 < 6:
            for a in range(2):
                t: float32 = x[i + k - 1] * w[k]
                y[i] += t
            for a in range(2):
                t: float32 = w[k]
                y[i] += t
"""
    program = make(text, x=6, y=6, w=3)
    program = program.with_buffers(x=Buffer("net.x", (6,), role="param"))
    given = {"x": np.arange(1, 7, dtype=np.float32), "y": np.zeros(6, np.float32), "w": np.ones(3, np.float32)}
    expected = {name: array.copy() for name, array in given.items()}
    execute(program, expected)
    after = finished(COMMANDS["set_padding"](program, "x", (1, 1)))
    got = {name: array.copy() for name, array in given.items()}
    execute(after, got, checking=True)
    assert_arrays(got, expected, after.text)


def test_contract_shifts_every_subscript_of_a_halo() -> None:
    buffers = {
        "x": Buffer("x", (3, 4)),
        "m": Buffer("m", (3, 4), "int32"),
        "y": Buffer("y", (3, 4)),
        "d": Buffer("d", (3, 4), role="temporary"),
    }
    text = """
for n in range(3):
    for i in range(4):
        d[n, i] = x[n, i] * 2.0
    for i in range(4):
        y[n, i] = d[n, i - 1] + d[n, m[n, i]] + d[n, i + 1]
"""
    program = parse_program(text, buffers)
    program = program.with_buffers(d=buffers["d"].with_layout(buffers["d"].layout.padded(((0, 0), (1, 1)))))
    given = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "y": np.zeros((3, 4), np.float32),
        "m": np.array([[0, 3, 1, 2], [3, 3, 0, 1], [2, 0, 1, 3]], np.int32),
    }
    expected = {name: array.copy() for name, array in given.items()}
    execute(program, expected)
    try:
        after = COMMANDS["contract"](program, "d")
    except CommandError:
        return
    execute(after, given)
    assert_arrays(given, expected, after.text)


# --- sums that lose something at each step --------------------------------------------------------------------
@pytest.mark.parametrize(
    "update",
    [
        "m[0] += x[i]",
        "m[0] -= x[i]",
        "m[0] *= x[i]",
        "m[0] = max(m[0], x[i])",
        "m[0] += d[i]",
        "x[0] += d[i]",
        "b[0] += m[i]",
        "m[0] /= 2",
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("vectorize", "i", 4),
        ("privatize", "TARGET", "i"),
        ("reverse", "i"),
        ("unroll", "i", 4),
        ("parallelize", "i"),
        ("partial_sums", "i"),
    ],
)
def test_updates_that_lose_something_stay_in_order(update: str, command: tuple[object, ...]) -> None:
    program = make(f"for i in range(1, 8):\n {update}", x=8, m=8, d=8, b=8)
    given = {"x": np.array([0.6] * 8), "m": np.arange(8), "d": np.array([0.7, 1e-9] * 4), "b": np.zeros(8)}
    given = {name: array.astype(program.buffers[name].dtype) for name, array in given.items()}
    name, *arguments = (update[0] if part == "TARGET" else part for part in command)
    try:
        after = COMMANDS[str(name)](program, *arguments)
    except CommandError:
        return
    assert_means_itself(program, lambda _: after, given=given)


@pytest.mark.parametrize("command", [("vectorize", "i", 4), ("unroll", "i", 3), ("privatize", "m", "i")])
def test_the_extremum_of_whole_numbers_in_parts(command: tuple[object, ...], target: Target) -> None:
    programs = [make(f"for i in range(9):\n m[0] = {call}(m[0], n[i])", m=1, n=9) for call in ("max", "min")]
    name, *arguments = command
    assert_all_mean_themselves(programs, target, lambda p: COMMANDS[str(name)](p, *arguments))


# --- reciprocals ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("divisor", ["w[0]", "w[0] + 0.5", "exp(w[0])", "w[0] * w[1]", "abs(w[0])", "max(w[0], w[1])"])
def test_a_divisor_that_may_be_denormal_divides(divisor: str, target: Target) -> None:
    program = make(f"for i in range(24):\n y[i] = x[i] / ({divisor})", x=24, y=24, w=2)
    given = {"x": np.resize(SPECIAL, 24), "y": np.zeros(24), "w": np.array([1e-40, 3e38])}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    for first in (1e-40, 3e38, 0.0, np.nan):
        given["w"][0] = first
        assert_means_itself(program, given=given, target=target if "exp" not in divisor else None)


@pytest.mark.parametrize("divisor", ["sqrt(w[0])", "sqrt(w[0]) + 0.001", "3.0", "sqrt(w[0] * w[0] + 0.1)"])
def test_a_safe_divisor_is_rounded_twice(divisor: str) -> None:
    program = make(f"for i in range(24):\n y[i] = x[i] / ({divisor})", x=24, y=24, w=2)
    after = finished(program)
    assert "inverse" in after.text
    for first in (1e-45, 1e-40, 3e38, 0.0, -1.0, 1.7, np.nan, np.inf):
        given = {"x": np.resize(SPECIAL, 24), "y": np.zeros(24), "w": np.array([first, 1.0])}
        given = {name: array.astype(np.float32) for name, array in given.items()}
        expected = {name: array.copy() for name, array in given.items()}
        execute(program, expected)
        execute(after, given)
        np.testing.assert_allclose(given["y"], expected["y"], rtol=2 * 2.0**-24, atol=2.0**-149)


# --- a name for several things ----------------------------------------------------------------------------------
SHARED = [
    "for j in range(1):\n v: float32 = x[0]\n if 0 <= 0:\n  t: float32 = v\n  y[0] = t\n t: float32 = v + z[0]\n"
    " y[1] = t",
    "for i in range(1):\n t: float32 = x[i]\n for l in range(1):\n  t += w[3]\n l: float32 = x[1 + i]\n y[i] = t + l",
    "for i in range(3):\n for l in range(2):\n  y[i] += x[l]\n l: int32 = m[i]\n n[i] = l * 3",
    "for i in range(3):\n for l in range(2):\n  t: float32 = x[l] * z[i]\n  y[i] += t\n t: int32 = m[i]\n n[i] = t * 3",
    "for i in range(3):\n for l in range(2):\n  t: float32[2] = empty(2)\n  t[0] = x[l]\n  y[i] += t[0]\n"
    " t: float32 = z[i]\n y[i] += t",
]
COMMANDS_TRIED = [
    ("vectorize", "i", 4, "gather"),
    ("interchange", ["i", "l"]),
    ("unroll_and_jam", "i", 2),
    ("distribute", "i"),
    ("scalar_expand", "l"),
    ("scalar_expand", "t"),
    ("parallelize", "i"),
    ("split", "i", [1]),
    ("tile_loop", "i", 2),
    ("unroll", "i", 2),
]


@pytest.mark.parametrize("text", SHARED)
@pytest.mark.parametrize("command", COMMANDS_TRIED, ids=lambda command: f"{command[0]} {command[1]}")
def test_one_name_for_several_things(text: str, command: tuple[object, ...]) -> None:
    program = make(text, x=8, y=8, z=8, w=8, m=8, n=8)
    assert_means_itself(program)
    name, *arguments = command
    options = {"strided": arguments.pop()} if "gather" in arguments else {}
    try:
        after = COMMANDS[str(name)](program, *arguments, **options)
    except CommandError:
        return
    assert_means_itself(program, lambda _: after)


def test_a_guard_that_padding_makes_needless_leaves_its_locals_apart() -> None:
    """The branch becomes part of a block in which another one declares the same name."""
    text = """
for i in range(4):
    for k in range(3):
        if 0 <= i + k - 1 and i + k - 1 < 4:
            t: float32 = x[i + k - 1] * w[k]
            y[i] += t
        for a in range(2):
            t: float32 = w[a]
            z[i] += t
"""
    program = make(text, x=4, y=4, z=4, w=3)
    program = program.with_buffers(x=Buffer("net.x", (4,), role="param"))
    given = {"x": np.arange(1, 5), "y": np.zeros(4), "z": np.zeros(4), "w": np.ones(3)}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    after = assert_means_itself(program, lambda p: COMMANDS["set_padding"](p, "x", (1, 1)), given=given)
    assert "min(" not in after.text
