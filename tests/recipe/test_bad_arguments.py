"""Wrong arguments: an error that names the line and the command, never one of Python's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swirl.analysis.integers import too_large
from swirl.errors import CommandError, LatteError, LayoutError, Refused
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS, LAYOUT_COMMANDS

TEXT = """
for n in range(2):
    for c in range(20):
        for x in range(17):
            t: float32 = inputs[n, c, x] * 2.0
            value[n, c, x] = t * weights[c]
    for c in range(20):
        for x in range(17):
            value[n, c, x] += 1.0
"""
BUFFERS = {
    "value": Buffer("scale1.value", (2, 20, 17)),
    "inputs": Buffer("data1.value", (2, 20, 17)),
    "weights": Buffer("scale1.weights", (20,), role="param"),
}
GOOD: dict[str, Any] = {
    "loop_var": "x",
    "loop_vars": ["c", "x"],
    "order": ["x", "c"],
    "first": "c",
    "buffer": "weights",
    "dim": 0,
    "factor": 4,
    "at": [3],
    "name": "other",
    "scalar_vars": "t",
}
BAD = [
    None,
    True,
    -1,
    1.5,
    2**70,
    "",
    "nope",
    "lambda",
    "é",
    [],
    ["c"],
    [None],
    [["c"]],
    {},
    {"c": 1},
    object(),
    "min",
    [10**9],
    np.array([1, 2]),
]


def new() -> Schedule:
    return Schedule.alone({"forward": parse_program(TEXT, BUFFERS, "scale1.forward")}, TARGETS["portable"], "scale1.")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_any_argument_may_be_wrong(name: str) -> None:
    parameters = list(COMMANDS[name].signature.parameters.values())
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    given = {p.name: GOOD[p.name] for p in plain if p.default is p.empty}
    if name not in LAYOUT_COMMANDS:
        given = {"phase": "forward", **given}
    more = {"reindex": ["iy"], "tile": ["reorder"]}.get(name, [])
    errors = 0
    for key in [*dict.fromkeys([*given, *(p.name for p in plain)]), *more]:
        for bad in BAD:
            error = refused(name, {**given, key: bad})
            if error is not None:
                errors += 1
                assert name in error.message
                assert error.location is not None and "test_bad_arguments.py:" in error.location
                s = new()
                before = dict(s.programs)
                getattr(s, name)(**{**given, key: bad}, optional=True)
                assert s.programs == before and s.outcomes[-1].status == "skipped"
    assert errors


@pytest.mark.parametrize("phase", [None, ["forward"], np.array(["forward"]), "foreward"])
def test_phases_that_are_none(phase: Any) -> None:
    for name in sorted(COMMANDS.keys() - LAYOUT_COMMANDS):
        assert "no phase named" in str(refused(name, {"phase": phase}))


def refused(name: str, given: dict[str, Any]) -> LatteError | None:
    """The error for a command, if it is one of ours."""
    try:
        getattr(new(), name)(**given)
    except (CommandError, LayoutError) as error:
        return error
    return None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.stream("forward", ["value"]), "buffer must be a string, not ['value']"),
        (lambda s: s.parallelize("forward", "n", schedule=4), "schedule must be a string or None, not 4"),
        (
            lambda s: s.fuse_layers("forward", keep="value"),
            "several buffers are given as a list of names, not as 'value'",
        ),
        (lambda s: s.scalar_expand("forward", None), "several locals are given as a list of names, not as None"),
        (lambda s: s.tile("value", 0, 4, reorder=3), "reorder must be True or False, not 3"),
        (lambda s: s.vectorize("forward", "x", nest=True), "nest must be a whole number or a string or None, not True"),
        (lambda s: s.hoist("forward", nest=7), "no nest 7 in scale1.forward\n  the nests are 0 scale1_forward_0"),
        (lambda s: s.hoist("forward", nest="scale1_forwards_0"), "did you mean 'scale1_forward_0'?"),
        (lambda s: s.reset_prefetch("forward", nest=-1), "no nest -1"),
        (lambda s: s.rename("forward", "x", "class"), "a loop is named by an identifier, not 'class'"),
        (lambda s: s.pack("forward", "weights", name="None"), "'None' cannot name the copy"),
        (lambda s: s.reindex("forward", "x", float32="x + 1"), "'float32' cannot name the new loop"),
        (lambda s: s.reindex("forward", y="min"), "'min' names no loop"),
        (lambda s: s.combination(5, []), "no tiles to choose from"),
        (lambda s: s.combination(5, 2.5), "the largest tile must be a whole number of at least 1, not 2.5"),
        (lambda s: s.combination(5, [2, None]), "a tile must be a whole number of at least 1, not None"),
        (lambda s: s.loops(["forward"]), "no phase named ['forward']"),
        (lambda s: s.loops("forward", "valu"), "did you mean 'value'?"),
        (lambda s: s.perfect("forward", "x"), "several loops are given as a list of names, not as 'x'"),
        (lambda s: s.perfect("forward", ["n", "nobody"]), "no loop named 'nobody'"),
        (lambda s: s.extent("forward", ["x"]), "a loop is given by its name, not ['x']"),
        (lambda s: s.blocks(["value"]), "no buffer named ['value']"),
        (lambda s: s.recipe([], "forward"), "a kind of layer is given by its name, not []"),
    ],
)
def test_what_is_said(call: Any, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        call(new())
    assert message in str(caught.value)


# --- numbers that 32 bits do not hold -------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "x + 2147483646",
        "x - 3000000000",
        "x + 10000000000",
        "x + n * 2147483647",
        "x * 2147483647",
        "x - c * 200000000",
    ],
)
def test_loops_that_pass_32_bits_are_refused(text: str) -> None:
    s = new()
    with pytest.raises(Refused, match="may pass 2,147,483,647 where it is computed") as caught:
        s.reindex("forward", "x", z=text)
    assert "z may pass" in caught.value.message and "← too large" in caught.value.nest
    s.reindex("forward", "x", z="x + 1000000000")  # and what fits is not
    assert s.extent("forward", "z") == 17


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("value[0, 0, 400 * (y * 300 + x) * 1000]", "400 * (y * 300 + x) * 1000"),
        ("value[0, 0, 400 * (y * 300 + x) * 100]", None),
        ("value[0, 0, (y * 60000 + x * 60000) // 60000]", None),
        ("value[0, 0, (y * 60000000 + x) // 60000000]", "(y * 60000000 + x) // 60000000"),
        ("value[0, 0, y * 40000000 - x * 40000000]", "y * 40000000 - x * 40000000"),
        ("value[0, 0, min(y * 3000000000, x)]", "min(y * 3000000000, x)"),
        ("value[0, 0, x if y * 3000000000 < x else y]", "y * 3000000000"),
        ("value[0, 0, x]", None),
    ],
)
def test_subscripts_and_comparisons_that_pass_32_bits_are_found(statement: str, what: str | None) -> None:
    text = f"for y in range(50):\n    for x in range(300):\n        {statement} = 3000000000.0"
    found = too_large(parse_program(text, BUFFERS).nests[0])
    assert (found and found[1]) == what


def test_a_subscript_that_passes_32_bits_beside_a_number_that_no_float_holds() -> None:
    buffers = {"b": Buffer("l.b", (8,)), "p": Buffer("l.p", (8,), "int32")}
    text = f"for i in range(4):\n    b[i] += 1{'0' * 310} * b[p[3000000000]]"
    found = too_large(parse_program(text, buffers).nests[0])
    assert found and found[1] == "3000000000"


def test_buffers_that_no_memory_holds_are_refused() -> None:
    for call in (lambda s: s.set_padding("value", 10**9, 10**9), lambda s: s.tile("value", 0, 10**12)):
        with pytest.raises(CommandError, match=r"value would take [\d,]+ bytes\n  smaller blocks"):
            call(new())
