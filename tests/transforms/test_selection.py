"""Which loops a name means: all of a name, those inside of others, one of several; names of parts are the same in each
part of another loop."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from docs.commands import Example, applied, examples
from swirl.errors import CommandError
from swirl.ir.nest import Program, variable_of
from swirl.ir.paths import loops
from swirl.transforms import COMMANDS
from swirl.transforms.arguments import Selection
from swirl.transforms.rewrites.sites import find_loops
from tests.support import assert_same, merged, program

PICTURE = program(
    """
for n in range(2):
    for y in range(5):
        for x in range(9):
            out[n, y, x] = 2.0 * a[n, y, x]
    for x in range(9):
        row[n, x] = a[n, 0, x]
for x in range(9):
    total[x] = row[0, x] + row[1, x]
""",
    out=(2, 5, 9),
    row=(2, 9),
    total=(9,),
    a=(2, 5, 9),
)


def heads(program: Program) -> list[str]:
    """Each loop as a path, with its kind where that is not plain."""
    found = []
    for nest in program.nests:
        for path, node in loops(nest.body):
            outer = [variable_of(n) for p, n in loops(nest.body) if len(p) < len(path) and path[: len(p)] == p]
            assert isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name)
            kind = node.iter.func.id
            found.append("/".join((*outer, variable_of(node))) + ("" if kind == "range" else f" {kind}"))
    return found


def split() -> Program:
    after = assert_same(PICTURE, COMMANDS["split"](PICTURE, "y", [1, 4]))
    return assert_same(PICTURE, COMMANDS["split"](after, "x", [1, 8]))


# --- names ------------------------------------------------------------------------------------------------
def test_parts_have_the_same_names_in_all_parts_of_another_loop() -> None:
    after = split()
    inner = [f"n/{y}/{x}" for y in ("y", "y_1", "y_2") for x in ("x", "x_1", "x_2")]
    beside = ["n/x", "n/x_1", "n/x_2", "x", "x_1", "x_2"]
    assert [head for head in heads(after) if head.count("/") == 2] == inner
    assert [head for head in heads(after) if head in beside] == beside
    copies = assert_same(PICTURE, COMMANDS["unroll"](after, "x_1", 7))
    assert sum(head.endswith("x_1/x_1_unrolled unrolled") for head in heads(copies)) == 5  # each interior


def test_parts_of_a_part_are_others() -> None:
    after = COMMANDS["split"](COMMANDS["split"](PICTURE, "x", [4], nest=1), "x", [2], nest=1)
    assert heads(assert_same(PICTURE, after))[-3:] == ["x", "x_1_1", "x_1"]
    after = COMMANDS["tile_loop"](PICTURE, "x", [4, 4, 1])
    assert heads(assert_same(PICTURE, after))[-4:] == ["x_outer", "x_outer/x_inner", "x_1_outer", "x_1_outer/x_1_inner"]


# --- paths ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("selected", "options", "changed"),
    [
        ("x", {}, ["n/y/x", "n/x", "x"]),
        ("y/x", {}, ["n/y/x"]),
        ("n/x", {}, ["n/y/x", "n/x"]),
        ("n/y/x", {}, ["n/y/x"]),
        ("x[0]", {}, ["n/y/x"]),
        ("x[-1]", {}, ["x"]),
        ("n/x[1]", {}, ["n/x"]),
        ("x", {"occurrence": 1}, ["n/x"]),
        ("n/x", {"occurrence": -1}, ["n/x"]),
        ("n/x", {"occurrence": 0, "nest": 0}, ["n/y/x"]),
    ],
)
@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [("parallelize", (), "parallel"), ("vectorize", (4,), "vector"), ("tile_loop", (3,), "range")],
)
def test_some_of_several(
    name: str, arguments: tuple[Any, ...], kind: str, selected: str, options: dict[str, Any], changed: list[str]
) -> None:
    after = assert_same(PICTURE, COMMANDS[name](PICTURE, selected, *arguments, **options))
    found = heads(after)
    for head in ("n/y/x", "n/x", "x"):
        as_before = head in found and not any(each.startswith(f"{head}/") for each in found)
        assert as_before == (head not in changed), found
    assert kind == "range" or sum(head.endswith(f" {kind}") for head in found) == len(changed)


def test_orders_inside_of_a_loop() -> None:
    before = COMMANDS["split"](PICTURE, "n", [1])
    for name in ("reorder", "interchange"):
        after = assert_same(PICTURE, COMMANDS[name](before, ["n_1/x", "y"]))
        assert "n/y/x" in heads(after) and "n_1/x/y" in heads(after) and "n_1/y/x" not in heads(after)
        after = assert_same(PICTURE, COMMANDS[name](before, ["x", "n_1/y"]))
        assert "n/y/x" in heads(after) and "n_1/x/y" in heads(after)
        after = assert_same(PICTURE, COMMANDS[name](before, ["y/x", "y"]))  # each
        assert "n/x/y" in heads(after) and "n_1/x/y" in heads(after)
        with pytest.raises(CommandError, match="no nest of"):
            COMMANDS[name](before, ["x/y", "x"])
        with pytest.raises(CommandError, match=r"a path chooses some, not 'x\[0\]'"):
            COMMANDS[name](before, ["y", "x[0]"])


def test_loops_that_follow_inside_of_a_loop() -> None:
    two = program(
        "for i in range(2):\n for j in range(3):\n  a[i, j] = 1.0\n for j in range(3):\n  b[i, j] = 2.0\n"
        "for k in range(2):\n for j in range(3):\n  c[k, j] = 1.0\n for j in range(3):\n  d[k, j] = 2.0",
        a=(2, 3),
        b=(2, 3),
        c=(2, 3),
        d=(2, 3),
    )
    assert heads(assert_same(two, COMMANDS["fuse"](two, "k/j"))) == ["i", "i/j", "i/j", "k", "k/j"]
    assert heads(assert_same(two, COMMANDS["fuse"](two, "j", "k/j"))) == ["i", "i/j", "i/j", "k", "k/j"]
    assert heads(assert_same(two, COMMANDS["fuse"](two, "i/j", "i/j"))) == ["i", "i/j", "k", "k/j", "k/j"]


def test_outermost_loops_that_are_meant_follow_past_others() -> None:
    text = "for x in range(4):\n {}[x] = {}\nfor y in range(3):\n {}[y] = 1.0\n"
    names = "abcdef"
    before = program(
        "".join(text.format(names[i], float(i), names[i + 1]) for i in (0, 2, 4)),
        **{name: (4 - number % 2,) for number, name in enumerate(names)},
    )
    after = assert_same(before, COMMANDS["fuse"](before, "x", "x[2]"))
    joined = [nest.body_text for nest in after.nests if nest.body_text.startswith("for x") and "e[x]" in nest.body_text]
    assert len(joined) == 1 and "a[x]" in joined[0] and "c[x]" not in joined[0]
    after = assert_same(before, COMMANDS["fuse"](before, "x[1]"))
    assert any("c[x]" in nest.body_text and "e[x]" in nest.body_text for nest in after.nests)


@pytest.mark.parametrize("chosen", [{"loop_var": "y[1]"}, {"loop_var": "y", "occurrence": 1}, {"loop_var": "k/y"}])
def test_some_loops_reindexed(chosen: dict[str, Any]) -> None:
    loops_ = "for {0} in range(2):\n for y in range(4):\n  for ky in range(3):\n   {1}[{0}, y + ky] += s[y]\n"
    two = program(loops_.format("n", "g") + loops_.format("k", "h"), g=(2, 6), h=(2, 6), s=(4,))
    after = assert_same(two, COMMANDS["reindex"](two, iy="y + ky", **chosen))
    assert heads(after) == ["n", "n/y", "n/y/ky", "k", "k/iy", "k/iy/ky"]


def test_one_of_the_loops_of_one_body_reindexed() -> None:
    inner = " for y in range(4):\n  for ky in range(3):\n   {}[n, y + ky] += s[y]\n"
    two = program("for n in range(2):\n" + inner.format("g") + inner.format("h"), g=(2, 6), h=(2, 6), s=(4,))
    whole = merged([two, two])
    after = COMMANDS["reindex"](whole, "y", occurrence=-1, iy="y + ky")
    assert [head for head in heads(after) if head.count("/") == 1] == ["n/y", "n/y", "n/y", "n/iy"]


def test_parts_of_one_of_several_neighbours_have_other_names() -> None:
    two = program(
        "for n in range(2):\n for x in range(9):\n  a[n, x] = 1.0\n for x in range(9):\n  b[n, x] = 2.0",
        a=(2, 9),
        b=(2, 9),
    )
    once = COMMANDS["split"](two, "x", [4], occurrence=0)
    both = COMMANDS["split"](once, "x[1]", [4])
    assert heads(assert_same(two, both)) == ["n", "n/x", "n/x_1", "n/x", "n/x_1"]
    again = COMMANDS["split"](both, "x", [2])
    assert heads(assert_same(two, again))[1:] == ["n/x", "n/x_1_1", "n/x_1", "n/x", "n/x_1_1", "n/x_1"]


def test_locals_of_some_loops() -> None:
    two = program(
        "for i in range(2):\n for j in range(3):\n  t: float32 = a[i, j]\n  b[i, j] = t * t\n"
        "for k in range(2):\n for j in range(3):\n  t: float32 = a[k, j]\n  c[k, j] = t * t",
        a=(2, 3),
        b=(2, 3),
        c=(2, 3),
    )
    for options in (
        {"loop_var": "k/j"},
        {"loop_var": "j", "occurrence": 1},
        {"loop_var": "j", "occurrence": 0, "nest": 1},
        {"loop_var": "j[-1]", "nest": 1},
    ):
        after = assert_same(two, COMMANDS["scalar_expand"](two, "t", **options))
        assert [nest.body_text.count("t[j]") for nest in after.nests] == [0, 3]


# --- what is refused --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("selected", "options", "message", "way_out"),
    [
        ("x/y", {}, "no loop 'x/y' in", "loops of that name: n/y"),
        ("z/x", {}, "no loop named 'z' in", "the loops are n, y, x"),
        (
            "n/x",
            {"occurrence": 2},
            "there are 2 loops 'n/x', counted from 0: no 2",
            "that name: n/y/x, n/x, x",
        ),
        ("x", {"occurrence": True}, "occurrence must be a whole number, not True", None),
        ("x[0]", {"occurrence": 0}, "occurrence=0 is one of the loops of a name", "loop_var=… names them"),
        ("/x", {}, "a loop is given by its name, not '/x'", "'y/x' for x inside of y"),
        ("y/", {}, "a loop is given by its name, not 'y/'", "'y/x' for x inside of y"),
        ("x[1", {}, "a loop is given by its name, not 'x[1'", "'x[1]' for the second of several"),
        ("", {}, "a loop is given by its name, not ''", "'x'"),
    ],
)
def test_selections_that_mean_nothing(
    selected: str, options: dict[str, Any], message: str, way_out: str | None
) -> None:
    with pytest.raises(CommandError) as caught:
        COMMANDS["parallelize"](PICTURE, selected, **options)
    assert message in caught.value.message
    assert way_out is None or way_out in (caught.value.way_out or "")


def test_one_loop_of_none() -> None:
    with pytest.raises(CommandError, match="occurrence=1 is one of the loops of a name"):
        COMMANDS["hoist"](PICTURE, occurrence=1)
    with pytest.raises(CommandError, match="the loop is given by its name alone here, not 'n/y'"):
        COMMANDS["flatten"](PICTURE, ["n/y", "x"])


@pytest.mark.parametrize("text", ["", "x[", "x[]", "x[1", "x[a]", "y/", "/x", "x]"])
def test_texts_that_select_nothing(text: str) -> None:
    with pytest.raises(CommandError, match="a loop is given by its name"):
        find_loops(PICTURE, text)


def test_texts() -> None:
    assert Selection.of("x") == Selection("x")
    assert Selection.of("n/y_1/größe[-2]") == Selection("größe", ("n", "y_1"), -2)


@pytest.mark.parametrize("name", sorted(name for name, each in COMMANDS.items() if each.selects))
def test_every_command_about_loops_takes_one_of_several(name: str) -> None:
    assert "occurrence" in COMMANDS[name].signature.parameters and "occurrence=None" in COMMANDS[name].usage
    assert "counted from 0 in order of appearance" in COMMANDS[name].documentation


# --- every command ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.command)
def test_of_two_equal_nests_one_is_chosen(example: Example) -> None:
    """By its number as by its nest, whatever the command does with the loop."""
    *before, last = example.recipe.splitlines()
    (call,) = (node for node in ast.walk(ast.parse(last)) if isinstance(node, ast.Call))
    command = COMMANDS[example.command]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name != example.command or not command.selects or len(example.program.nests) != 1:
        pytest.skip("no example of one nest")
    given = command.signature.bind(
        *map(ast.literal_eval, call.args[1:]),
        **{keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None},
    ).arguments
    given.pop("occurrence", None)
    program = applied(example.program, "\n".join(before)) if before else example.program
    if (
        not isinstance(given.get("loop_var"), str)
        or len(find_loops(program, given["loop_var"])) > 1
        or len(program.nests) > 1
    ):
        pytest.skip("no example of one loop")
    twins = merged([program, program])
    for number in range(2):
        own = {
            key: f"{value}_of_{number}" if isinstance(value, str) and value in program.buffers else value
            for key, value in given.items()
        }
        more = own.pop("new", {})
        chosen = command(twins, **own, **more, occurrence=number)
        assert chosen == command(twins, **own, **more, nest=number)
        after, (first, second) = [nest.body_text for nest in chosen.nests], [nest.body_text for nest in twins.nests]
        assert [first in after, second in after] == [number == 1, number == 0]
