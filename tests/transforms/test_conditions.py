"""Conditions that commands can use: of selects in contract and inline, around loops in unroll_and_jam and vectorize;
and the places of random numbers in flatten."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from swirl.errors import Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.storage.contraction import OWN
from tests.support import assert_compiles_to_same, assert_same, merged, program


def private(program: Program, *names: str) -> Program:
    return program.with_buffers(**{name: replace(program.buffers[name], role=OWN) for name in names})


# --- selects --------------------------------------------------------------------------------------------
CLIPPED = private(
    program(
        """
for n in range(3):
    for i in range(6):
        d[n, i] = x[n, i] * 2.0
    for i in range(6):
        y[n, i] = (d[n, i - 1] if i >= 1 else 0.0) + d[n, i] + (0.0 if i >= 5 else d[n, i + 1])
""",
        d=(3, 6),
        x=(3, 6),
        y=(3, 6),
    ),
    "d",
)


@pytest.mark.parametrize("name", ["contract", "inline"])
def test_what_a_select_does_not_evaluate_is_not_read(name: str, target: Target) -> None:
    after = assert_same(CLIPPED, COMMANDS[name](CLIPPED, "d"))
    assert "d" not in after.buffers
    lanes = assert_same(CLIPPED, COMMANDS["vectorize"](after, "i", 4))
    assert_compiles_to_same(merged([after, lanes]), target)


@pytest.mark.parametrize(
    "test", ["i >= 1 and d[i - 1] > 0.0", "not (i < 1 or d[i - 1] <= 0.0)", "0 < i < 6 and not d[i - 1] <= 0.0"]
)
@pytest.mark.parametrize("name", ["contract", "inline"])
def test_what_and_or_do_not_evaluate_is_not_read(name: str, test: str) -> None:
    text = f"for i in range(6):\n d[i] = x[i]\nfor i in range(6):\n y[i] = 1.0 if {test} else 2.0"
    before = private(program(text, d=(6,), x=(6,), y=(6,)), "d")
    if name == "contract":
        joined = program(
            f"for n in range(1):\n for i in range(6):\n  d[i] = x[i]\n for i in range(6):\n"
            f"  y[i] = 1.0 if {test} else 2.0",
            d=(6,),
            x=(6,),
            y=(6,),
        )
        before = private(joined, "d")
    after = assert_same(before, COMMANDS[name](before, "d"))
    assert "d" not in after.buffers


@pytest.mark.parametrize("test", ["i >= 0", "x[i] > 0.0", "i != 1"])
@pytest.mark.parametrize("name", ["contract", "inline"])
def test_what_a_select_may_evaluate_is_read(name: str, test: str) -> None:
    before = private(
        program(
            f"for n in range(2):\n for i in range(1, 6):\n  d[i] = x[i]\n for i in range(1, 6):\n"
            f"  y[i] = d[i - 1] if {test} else 0.0",
            d=(6,),
            x=(6,),
            y=(6,),
        ),
        "d",
    )
    if test == "i != 1":
        assert_same(before, COMMANDS[name](before, "d"))
        return
    with pytest.raises(Refused, match=r"i=1 reads d\[i - 1\], which nothing before it"):
        COMMANDS[name](before, "d")


# --- conditions around loops -----------------------------------------------------------------------------
JAMMED = {
    "on the loop": "for i in range(7):\n if i < 3:\n  for k in range(4):\n   y[i] += x[i, k]\n else:\n  y[i] = 1.0",
    "on two loops": "for i in range(7):\n for k in range(3):\n  if i + k >= 1 and i + k < 6:\n   for c in range(2):\n"
    "    y[i] += x[i + k - 1, c]",
    "on data": "for i in range(7):\n if z[i] > 0.0:\n  for k in range(4):\n   y[i] += x[i, k]\n   z[i] -= 1.0",
    "on a local, around locals": "for i in range(7):\n t: float32 = z[i]\n if t > 0.0:\n  u: float32 = w[0] * t\n"
    "  for k in range(4):\n   y[i] += x[i, k] * u\n  y[i] += u",
    "one in the other": "for i in range(7):\n s: float32 = 0.0\n for k in range(3):\n  if i + k >= 1:\n"
    "   for c in range(2):\n    if c < i:\n     s += x[i, c]\n    else:\n     for d in range(2):\n"
    "      s += x[i, d] * 2.0\n y[i] = s",
    "on data that is there only then": "for i in range(7):\n for k in range(2):\n  if i + k >= 1:\n"
    "   if z[k + i - 1] > 0.0:\n    for c in range(2):\n     y[i] += x[i, c]\n   else:\n    y[i] += 1.0",
    "on data of another loop": "for i in range(7):\n for k in range(2):\n  if i + k >= 1 and i < 6:\n"
    "   if w[0] > 0.0:\n    for c in range(2):\n     y[i] += x[i, c]\n   else:\n    y[i] += 1.0",
}


def jammed(name: str, command: str, *arguments: object, **options: object) -> Program:
    before = program(JAMMED[name], x=(7, 4), y=(7,), z=(8,), w=(1,))
    return assert_same(before, COMMANDS[command](before, "i", *arguments, **options))


@pytest.mark.parametrize("factor", [2, 4, 7])
def test_jammed_around_a_condition(factor: int, target: Target) -> None:
    after = [jammed(name, "unroll_and_jam", factor) for name in JAMMED]
    assert all("unrolled" in each.text for each in after)
    assert_compiles_to_same(merged(after), target)


def test_lanes_around_a_condition(target: Target) -> None:
    names = ("on the loop", "on two loops", "one in the other")
    assert_compiles_to_same(merged([jammed(name, "vectorize", 4, strided="gather") for name in names]), target)


def test_a_dependence_through_a_condition() -> None:
    text = "for i in range(6):\n if z[i] > 0.0:\n  for k in range(4):\n   z[i + 1] += x[i, k]"
    before = program(text, x=(6, 4), z=(7,))
    with pytest.raises(Refused, match="a dependence would be reversed"):
        COMMANDS["unroll_and_jam"](before, "i", 2)


def _random(seed: int) -> Program:
    choose, names = random.Random(seed), list[str]()

    def test() -> str:
        one = choose.choice(
            (
                "i < 3",
                "i > 1",
                "i % 2 == 0",
                "not i < 4",
                "z[i] > 0.0",
                "t > 0.5",
                "i + k < 5",
                "w[k] > 0.0",
                "i + k >= 1 and z[i + k - 1] > 0.0",
            )
        )
        return f"{one} {choose.choice(('and', 'or'))} i != 2" if choose.random() < 0.3 else one

    def body(indent: str, depth: int) -> list[str]:
        lines = []
        for _ in range(choose.randint(1, 2)):
            kind = choose.choice(("if", "for", "set", "add", "local"))
            if kind == "if" and depth < 4:
                lines += [f"{indent}if {test()}:", *body(indent + " ", depth + 1)]
                if choose.random() < 0.4:
                    lines += [f"{indent}else:", *body(indent + " ", depth + 1)]
            elif kind == "for" and depth < 4:
                lines += [f"{indent}for c{depth} in range(2):", *body(indent + " ", depth + 1)]
            elif kind == "local" and depth < 4:
                names.append(f"u{len(names)}")
                lines += [f"{indent}{names[-1]}: float32 = x[i, k] + t", f"{indent}y[i] += {names[-1]}"]
            elif kind == "set":
                lines.append(f"{indent}{choose.choice(('t', 'y[i]', 'z[i]'))} = x[i, k] - t")
            else:
                lines.append(f"{indent}{choose.choice(('t', 'y[i]', 'z[i]'))} += x[i, k]")
        return lines

    head = ["for i in range(6):", " t: float32 = w[0]", " for k in range(3):", "  if " + test() + ":", *body("   ", 2)]
    return program("\n".join([*head, " y[i] += t"]), x=(6, 3), y=(6,), z=(9,), w=(3,))


# --- between loops ----------------------------------------------------------------------------------------
BETWEEN = """
for t in range(5):
    for k in range(2):
        for j in range(3):
            if {test}:
                {before}for d in range(4):
                    {inside}y[t, d] += g[t + j - 1, k] * w[k, j, d]
"""


def between(test: str = "0 <= t + j - 1 < 5", before: str = "", inside: str = "") -> Program:
    """A sum with a condition between its loops."""
    before = f"{before}\n                " if before else ""
    text = BETWEEN.format(test=test, before=before, inside=inside)
    return program(text, y=(5, 4), g=(5, 2), w=(2, 3, 4), z=(3,))


@pytest.mark.parametrize("name", ["reorder", "interchange"])
def test_conditions_between_loops_move_inside(name: str, target: Target) -> None:
    before = between()
    order = ["t", "d", "k", "j"] if name == "reorder" else ["d", "j"]
    after = assert_same(before, COMMANDS[name](before, order))
    assert "if" not in after.nests[0].text.split("for d")[0]
    assert_compiles_to_same(after, target)


def test_statements_beside_the_loop_keep_the_condition() -> None:
    before = between(before="z[j] += g[t, k]")
    after = assert_same(before, COMMANDS["reorder"](before, ["t", "d", "k", "j"]))
    assert after.nests[0].text.count("if 0 <=") == 2


def test_conditions_in_each_other() -> None:
    text = """
for t in range(5):
    for j in range(3):
        if t + j >= 1:
            z[j] += w[j, t]
            if t + j < 6:
                for d in range(4):
                    y[t, d] += g[t + j - 1, d]
"""
    before = program(text, y=(5, 4), g=(5, 4), w=(3, 5), z=(3,))
    after = assert_same(before, COMMANDS["reorder"](before, ["d", "t", "j"]))
    assert len(after.nests[0].text.split("if ")) == 4


@pytest.mark.parametrize(
    ("test", "before"),
    [
        ("g[t, k] > 0.0", ""),
        ("0 <= t + j - 1 < 5", "s: float32 = w[k, j, 0]"),
    ],
    ids=["on data", "around a local"],
)
def test_other_conditions_stay(test: str, before: str) -> None:
    with pytest.raises(Refused, match="not perfectly nested"):
        COMMANDS["reorder"](between(test, before), ["t", "d", "k", "j"])


def test_random_conditions() -> None:
    done = 0
    for seed in range(120):
        try:
            before = _random(seed)
            after = COMMANDS["unroll_and_jam"](before, "i", random.Random(seed).choice((2, 4)))
        except Refused:
            continue
        assert_same(before, after)
        done += 1
    assert done > 60


# --- random numbers ---------------------------------------------------------------------------------------
def dropout(index: str) -> Program:
    """Masks of random numbers at these positions."""
    return program(
        f"for n in range(3):\n for y in range(4):\n  for x in range(5):\n   v[n, y, x] = u[n, y, x] if "
        f"rand(seed[0], step[0], 3, {index}) < 0.5 else 0.0",
        v=(3, 4, 5),
        u=(3, 4, 5),
        seed=(1,),
        step=(1,),
    )


@pytest.mark.parametrize(
    ("index", "loops", "expected"),
    [
        ("n * 20 + y * 5 + x", ["y", "x"], "n * 20 + yx"),
        ("(n * 4 + y) * 5 + x", ["n", "y"], "x + ny * 5"),
        ("n * 20 + y * 5 + x", ["n", "y", "x"], "nyx"),
        ("2 * (n * 20 + y * 5 + x) + 7", ["n", "y", "x"], "nyx * 2 + 7"),
    ],
)
def test_flattened_beside_random_numbers(index: str, loops: list[str], expected: str) -> None:
    before = dropout(index)
    assert f"3, {expected})" in assert_same(before, COMMANDS["flatten"](before, loops)).text


@pytest.mark.parametrize("index", ["n * 20 + x * 4 + y", "n * 20 + y * 6 + x", "y * 5 + x + x // 2", "x"])
def test_other_positions_are_refused(index: str) -> None:
    with pytest.raises(Refused, match="does not count y, x as neighbouring dimensions"):
        COMMANDS["flatten"](dropout(index), ["y", "x"])


# --- loops of other bounds -------------------------------------------------------------
GUARDED = {
    "a part of the first": (
        "for i in range(7):\n y[i] = x[i]\nfor i in range(2, 5):\n y[i] += x[i + 1]",
        ["i >= 2 and i < 5"],
    ),
    "a part of the second": (
        "for i in range(3, 5):\n y[i] = x[i]\nfor i in range(7):\n y[i] += 1.0",
        ["i >= 3 and i < 5"],
    ),
    "neither a part of the other": (
        "for i in range(0, 5):\n y[i] = x[i]\nfor k in range(2, 7):\n z[k] = x[k] + 1.0",
        ["i < 5", "i >= 2"],
    ),
    "apart": ("for i in range(0, 2):\n y[i] = x[i]\nfor i in range(5, 7):\n z[i] = x[i]", ["i < 2", "i >= 5"]),
    "loops inside": (
        "for i in range(7):\n y[i] = x[i]\nfor i in range(1, 7):\n for j in range(3):\n  y[i] += x[j]",
        ["i >= 1"],
    ),
    "locals": (
        "for i in range(7):\n y[i] = x[i]\nfor i in range(6):\n t: float32 = x[i + 1]\n y[i] += t * t",
        ["i < 6"],
    ),
    "equal": ("for i in range(7):\n y[i] = x[i]\nfor i in range(7):\n y[i] += 1.0", []),
}


@pytest.mark.parametrize("name", GUARDED)
def test_fuse_over_the_iterations_of_both(name: str, target: Target) -> None:
    text, conditions = GUARDED[name]
    before = program(text, x=(7,), y=(7,), z=(7,))
    second = "k" if "for k" in text else None
    after = assert_same(before, COMMANDS["fuse"](before, "i", second, guard=True))
    assert [line.strip() for line in after.text.splitlines() if line.strip().startswith("if ")] == [
        f"if {condition}:" for condition in conditions
    ]
    (nest,) = after.nests
    assert len(nest.body) == 1
    assert_compiles_to_same(after, target)
