"""Every command on odd programs that are grammatical: it ends in a program that computes the same, or in an error that
says why; never in another exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from swirl.errors import CommandError, LatteError, ValidationError
from swirl.ir.buffers import Buffer
from swirl.ir.execute import random_arrays
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.sites import loop_names
from swirl.transforms.rewrites.storage.contraction import OWN
from tests.fuzz.commands import local_names
from tests.support import difference

BUFFERS = {
    "x": Buffer("net.x", (8, 8)),
    "y": Buffer("net.y", (8, 8)),
    "s": Buffer("net.s", (8,), role="param"),
    "m": Buffer("net.m", (8,), "int32"),
    "b": Buffer("net.b", (8,), "bool"),
    "t": Buffer("net.t", (8, 8), role=OWN),
    "v": Buffer("net.v", (8,), "float64"),
}

ODD = {
    "not, or and chains": """
for i in range(6):
    for j in range(6):
        if not i < 2 or (j > 1 and not j == 4):
            y[i, j] = x[i, j]
        elif 0 <= i < j <= 5:
            y[i, j] += 1.0
        if not (i < 2 and j < 2):
            s[i] += y[i, j]
""",
    "steps": """
for i in range(7, -1, -2):
    for j in range(1, 8, 3):
        y[i, j] += x[i, j]
for i in range(5, 1, -1):
    s[i] = s[i + 1] * 0.5
""",
    "bounds": """
for i in range(6):
    for j in range(max(0, i - 2), min(6, i * 2 + 1)):
        y[i, j] = x[j, i] + 1.0
    for j in range(i // 2, (i + 7) // 2):
        s[i] += y[i, j]
    for k in range(i % 3):
        s[k] = 1.0
""",
    "subscripts": """
for i in range(6):
    for j in range(5):
        y[max(i, j), min(i, j)] = x[(i + j) // 2, (i * 2 + j) % 7]
        s[max(0, i - j)] += x[7 - i, 6 - j]
""",
    "selects": """
for i in range(6):
    for j in range(6):
        t[i, j] = x[i, j] if i > j or not j == 3 else -x[j, i]
        y[i, j] = (t[i, j] if t[i, j] > 0.0 and i != j else 0.0) + (t[i, j - 1] if j >= 1 else 0.0)
""",
    "empty": """
for i in range(4):
    for j in range(3, 3):
        y[i, j] = 1.0
    for j in range(i, i):
        s[j] = 2.0
    if i > 9:
        s[i] = 3.0
    if i >= 0:
        pass
for i in range(0):
    y[i, 0] = 5.0
""",
    "once": """
for i in range(1):
    for j in range(2, 3):
        for k in range(5):
            y[i, k] += x[j, k] * s[0]
    s[i] = y[i, 4]
""",
    "locals": """
for i in range(5):
    n: int32 = i * 3 + 1
    c: bool = x[i, 0] > 0.0
    a: float32[4] = empty(4)
    for j in range(4):
        a[j] = x[i, j] * 2.0
    for j in range(4):
        if c and n > 4:
            y[i, j] = a[3 - j]
        n = n - 1
    d: float64 = v[i]
    for j in range(3):
        d += v[j] * d
    v[i] = d
    m[i] = n
    b[i] = not c
""",
    "names used again": """
for i in range(4):
    q: float32 = 0.0
    for j in range(5):
        q += x[i, j]
    s[i] = q
    for j in range(5):
        r: float32 = x[i, j] - q
        y[i, j] = r * r
for i in range(4):
    q: float32 = s[i]
    y[i, 0] += q
""",
    "indirect": """
for i in range(6):
    for j in range(4):
        y[m[i], j] += x[i, m[j]]
    s[m[i]] = 1.0
""",
    "places": """
for i in range(6):
    for j in range(max(0, i - 2), 5):
        y[i, j] += x[i, j] if m[i] == j else 0.0
        if i == j:
            s[j] -= x[j, i]
    for j in range(5):
        y[i, 0] = x[i, j] if j == m[i] % 5 and b[j] else y[i, 0]
    for j in range(3):
        for k in range(4):
            if m[i] == j and m[k] == k:
                y[j, k] *= 2.0
""",
    "recurrences": """
for i in range(6):
    for j in range(6):
        y[i + 1, j] = y[i, j + 1] * 0.5
        s[0] = max(s[0], y[i, j])
    s[1] = s[1] * 0.5 + x[i, 0]
""",
    "marked": """
for i in parallel(4):
    for j in range(3):
        for k in vector(8):
            y[i, k] += x[j, k]
    for j in unrolled(4):
        s[i] += x[i, j]
""",
    "straight": """
s[0] = 1.0
for i in range(4):
    s[i] = s[0] + x[i, i]
if s[0] > 0.0:
    for i in range(3):
        y[i, 0] = s[i]
""",
}


def odd(name: str) -> Program:
    return validate(parse_program(ODD[name], BUFFERS))


class Arguments:
    """Arguments of a command that mostly make sense."""

    def __init__(self, program: Program, seed: int):
        self.choose = random.Random(seed)
        self.program = program
        self.names = loop_names(program)

    def pick(self, *values: Any) -> Any:
        return self.choose.choice(values)

    def loop(self) -> str:
        return self.pick(*self.names, "nowhere")

    def some(self) -> list[str]:
        return self.choose.sample(self.names, min(len(self.names), self.pick(1, 2, 2, 3)))

    def buffer(self) -> str:
        return self.pick(*BUFFERS)

    def local(self) -> str:
        return self.pick(*local_names(self.program), "nothing")

    def number(self) -> int:
        return self.pick(1, 2, 3, 4, 8, 16)

    def cuts(self) -> list[int]:
        return sorted(self.choose.sample(range(-1, 8), self.pick(1, 2)))

    def formula(self) -> str:
        form = self.pick("{a} + {b}", "{a} + 1", "5 - {a}", "2 * {a} + {b}", "{a} - {b} * 2", "-{a}", "{a} // 2")
        return form.format(a=self.loop(), b=self.loop())


MAKERS: dict[str, Callable[[Arguments], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "contract": lambda a: (("t",), {}),
    "distribute": lambda a: ((a.loop(),), {"recompute": a.pick(False, True)}),
    "factor": lambda a: ((a.loop(),), {}),
    "flatten": lambda a: ((a.some(),), {}),
    "fuse": lambda a: ((a.loop(), a.loop()), {"shift": a.pick(0, 0, 1, 2)}),
    "fuse_layers": lambda a: ((), {"required": a.pick(True, False)}),
    "hoist": lambda a: ((a.loop(),), {}),
    "if_convert": lambda a: ((), {}),
    "inline": lambda a: (("t",), {"local": a.pick(True, False)}),
    "interchange": lambda a: ((a.some(),), {}),
    "locate": lambda a: ((a.loop(),), {}),
    "moments": lambda a: ((a.loop(),), {"once": a.pick(True, False)}),
    "pack": lambda a: ((a.buffer(),), {"at": a.loop()}),
    "parallelize": lambda a: ((a.loop(),), {}),
    "partial_sums": lambda a: ((a.loop(),), {}),
    "prefetch": lambda a: ((a.buffer(), a.loop(), a.number()), {}),
    "privatize": lambda a: ((a.buffer(), a.loop()), {"copies": a.number()}),
    "reindex": lambda a: ((a.pick(None, a.loop()),), {"r": a.formula()}),
    "rename": lambda a: ((a.loop(), a.pick("r", "i", "x")), {}),
    "reorder": lambda a: ((a.some(),), {}),
    "reset_prefetch": lambda a: ((), {}),
    "reverse": lambda a: ((a.loop(),), {}),
    "scalar_expand": lambda a: ((a.local(), a.pick(None, a.loop())), {}),
    "scalar_replace": lambda a: ((a.pick(None, a.buffer()),), {}),
    "set_padding": lambda a: ((a.buffer(), a.pick((1, 1), 1), a.pick((0, 2), 2)), {}),
    "shift_mean": lambda a: ((a.loop(),), {}),
    "split": lambda a: ((a.loop(), a.cuts()), {}),
    "store_local": lambda a: ((a.local(),), {}),
    "stream": lambda a: ((a.buffer(),), {}),
    "tile": lambda a: ((a.buffer(), a.pick(0, 1), a.number()), {}),
    "tile_loop": lambda a: ((a.loop(), a.number()), {"tail": a.pick("min", "mask", "peel")}),
    "transpose": lambda a: ((a.buffer(), 0, 1), {}),
    "unroll": lambda a: ((a.loop(), a.number()), {"unroll_type": a.pick(0, 1)}),
    "unroll_and_jam": lambda a: ((a.loop(), a.number()), {}),
    "untile": lambda a: ((a.buffer(),), {}),
    "vectorize": lambda a: ((a.loop(), a.pick(2, 4, 8)), {"strided": a.pick(None, "gather")}),
}
"""What makes the arguments of each command."""


def test_every_command_is_tried() -> None:
    assert set(MAKERS) == {command.name for command in COMMANDS.values()}


def attempt(name: str, command: str, seed: int) -> tuple[Program | None, str]:
    """The program after one command, or None where it is refused; and the command as text.

    Raises:
        AssertionError: it ends in something that is not an error of Latte's, or computes something else.
    """
    before = odd(name)
    arguments, options = MAKERS[command](Arguments(before, seed))
    text = f"{command}(*{arguments}, **{options}) on {name}"
    try:
        after = COMMANDS[command](before, *arguments, **options)
    except ValidationError as error:
        raise AssertionError(f"{text}: {error}\n{before.text}") from error
    except LatteError as error:
        return None, str(error)  # the ways out are tried, too
    except Exception as error:
        raise AssertionError(f"{text}: {error!r}\n{before.text}") from error
    given = random_arrays(before, seed, "rational")
    if "m" in given:
        given["m"] = np.array([random.Random(seed).randrange(8) for _ in range(8)], dtype=object)
    found = difference(before, after, seed, given)
    assert found is None, f"{text}: {found}\n{before.text}\n\nbecame\n\n{after.text}"
    return after, text


@pytest.mark.parametrize("command", MAKERS)
def test_odd_programs(command: str) -> None:
    for number, name in enumerate(ODD):
        for seed in range(4):
            attempt(name, command, 100 * number + seed)


@pytest.mark.parametrize("first", [True, False], ids=["the first", "the last"])
def test_of_several_loops_the_one_that_the_checks_refuse_stays(first: bool) -> None:
    """They are rewritten first and checked together; then one by one, as that fails."""
    fits, too_long = "for i in range(8):\n    b[i] = 1.0\n", "for i in range(2147483640):\n    c[0] = 2.0 + c[i % 8]\n"
    buffers = {name: Buffer(f"l.{name}", (8,)) for name in "bc"}
    before = parse_program(too_long + fits if first else fits + too_long, buffers)
    after = COMMANDS["tile_loop"](before, "i", 16)
    (remark,) = after.remarks
    assert "stays as it is" in remark and "may pass 2,147,483,647" in remark
    assert "for i in range(2147483640)" in after.text and "i_outer" in after.text


def test_what_a_prefetch_alone_names_has_no_way_out() -> None:
    body = "        prefetch(n, ((i + 1) // 2, i), 1)\n        b[i, j] = 1.0\n"
    text = f"for i in range(1, 8):\n    for j in range(8):\n{body}"
    program = parse_program(text, {"b": Buffer("l.b", (8, 8)), "n": Buffer("l.n", (16, 16))})
    with pytest.raises(CommandError) as caught:
        COMMANDS["scalar_replace"](program, "n")
    assert str(caught.value)
