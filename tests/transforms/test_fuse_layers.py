"""fuse_layers, contract and inline: the nests they print, the same results, the same bits compiled, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from swirl.errors import CommandError, Refused
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program, stmts
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.rewrites.joined_programs import Part, follow, join
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, program

EXTENTS = (1, 2, 3, 5, 7, 13, 15, 16, 17)


def own(text: str, *names: str, **shapes: tuple[int, ...]) -> Program:
    """A program in which nothing else needs the buffers ``names``."""
    made = program(text, **shapes)
    return made.with_buffers(**{name: replace(made.buffers[name], role="temporary") for name in names})


def product_and_relu(extent: int) -> Program:
    return own(
        f"""
for n in range(3):
    for k in range({extent}):
        y[n, k] = bias[k]
        for c in range(4):
            y[n, k] += weights[c, k] * x[n, c]
for n in range(3):
    for c in range({extent}):
        z[n, c] = max(0.0, y[n, c])
""",
        "y",
        y=(3, extent),
        z=(3, extent),
        bias=(extent,),
        weights=(4, extent),
        x=(3, 4),
    )


def gradients(extent: int) -> Program:
    return own(
        f"""
for i in range({extent}):
    d[i] = g[i] if v[i] > 0.0 else 0.0
for i in range({extent}):
    s[0] += d[i]
    t[0] += d[i] * x[i]
for j in range({extent}):
    q[j] = d[{extent - 1} - j] + s[0]
""",
        "d",
        d=(extent,),
        g=(extent,),
        v=(extent,),
        x=(extent,),
        q=(extent,),
        s=(1,),
        t=(1,),
    )


def rows(extent: int) -> Program:
    return own(
        f"""
for n in range(4):
    for i in range({extent}):
        y[n, i] = x[n, i] * 2.0
    for i in range(1, {extent - 1}):
        z[n, i] = y[n, i - 1] + y[n, i] - y[n, i + 1]
""",
        "y",
        y=(4, extent),
        z=(4, extent),
        x=(4, extent),
    )


def tiles(extent: int) -> Program:
    return own(
        f"""
for o in range({extent}):
    for i in range(4):
        y[o * 4 + i] = x[o * 4 + i] * 3.0
    for i in range(4):
        z[o * 4 + i] = y[o * 4 + 3 - i]
""",
        "y",
        y=(4 * extent,),
        z=(4 * extent,),
        x=(4 * extent,),
    )


# --- what they print ------------------------------------------------------------------------------------
def test_layers_become_one_loop_and_the_value_between_them_a_local() -> None:
    after = COMMANDS["fuse_layers"](product_and_relu(5))
    assert [nest.body_text for nest in after.nests] == [
        """\
for n in range(3):
    for k in range(5):
        y_t: float32 = bias[k]
        for c in range(4):
            y_t += weights[c, k] * x[n, c]
        z[n, k] = max(0.0, y_t)"""
    ]
    assert "y" not in after.buffers


def test_what_is_kept_is_stored() -> None:
    after = COMMANDS["fuse_layers"](product_and_relu(5), keep=["y"])
    assert "z[n, k] = max(0.0, y[n, k])" in after.text and len(after.nests) == 1
    assert_same(product_and_relu(5), after)


def test_a_row_that_is_alive_becomes_a_local_array() -> None:
    assert (
        COMMANDS["contract"](rows(7), "y").nests[0].body_text
        == """\
for n in range(4):
    y_t: float32[7] = empty(7)
    for i in range(7):
        y_t[i] = x[n, i] * 2.0
    for i in range(1, 6):
        z[n, i] = y_t[i - 1] + y_t[i] - y_t[i + 1]"""
    )


def test_of_a_tiled_loop_one_tile_is_alive() -> None:
    after = COMMANDS["contract"](tiles(3), "y")
    assert "y_t: float32[4] = empty(4)" in after.text and "y_t[-i + 3]" in after.text.replace("3 - i", "-i + 3")


def test_elements_are_computed_where_they_are_read() -> None:
    after = COMMANDS["inline"](gradients(9), "d")
    assert [nest.body_text for nest in after.nests] == [
        """\
for i in range(9):
    d_t: float32 = g[i] if v[i] > 0.0 else 0.0
    s[0] += d_t
    t[0] += d_t * x[i]""",
        """\
for j in range(9):
    q[j] = (g[8 - j] if v[8 - j] > 0.0 else 0.0) + s[0]""",
    ]


def test_formulas_are_written_out_where_they_are_read() -> None:
    after = COMMANDS["inline"](gradients(9), "d", local=False)
    assert (
        after.nests[0].body_text
        == """\
for i in range(9):
    s[0] += g[i] if v[i] > 0.0 else 0.0
    t[0] += (g[i] if v[i] > 0.0 else 0.0) * x[i]"""
    )
    assert_same(gradients(9), after)


def test_the_last_iteration_of_a_reduction_is_peeled_for_what_follows() -> None:
    """Narasimhan et al., PolyDL, Algorithm 3: split, then the next layer is fused with the last iteration."""
    before = own(
        """
for n in range(3):
    for c in range(4):
        for k in range(5):
            y[n, k] += w[k, c] * x[n, c]
for n in range(3):
    for k in range(5):
        z[n, k] = max(0.0, y[n, k])
""",
        y=(3, 5),
        z=(3, 5),
        w=(5, 4),
        x=(3, 4),
    )
    after = tidy(COMMANDS["split"](COMMANDS["fuse"](before, "n"), "c", [3]))
    after = COMMANDS["fuse"](after, "k")
    assert_same(before, after)
    assert after.nests[0].body_text.endswith("""\
    for k in range(5):
        y[n, k] += w[k, 3] * x[n, 3]
        z[n, k] = max(0.0, y[n, k])""")


# --- the same results -----------------------------------------------------------------------------------
CASES = {
    "fuse_layers": (product_and_relu, ("fuse_layers",), EXTENTS),
    "fuse_layers, tiled": (
        product_and_relu,
        ("fuse_layers", ("unroll_and_jam", "n", 2), ("vectorize", "k", 4)),
        EXTENTS,
    ),
    "inline": (gradients, (("inline", "d"),), EXTENTS),
    "inline, vectors": (gradients, (("inline", "d"), ("vectorize", "i", 4)), EXTENTS),
    "inline, blocks": (gradients, (("tile_loop", "i", 4), ("inline", "d")), EXTENTS),
    "inline, blocks of blocks": (
        gradients,
        (("tile_loop", "i", 8), ("tile_loop", "i_inner", 4), ("inline", "d")),
        EXTENTS,
    ),
    "contract rows": (rows, (("contract", "y"),), (3, 5, 15, 16, 17)),
    "contract rows, vectors": (rows, (("contract", "y"), ("vectorize", "i", 4)), (3, 5, 15, 16, 17)),
    "contract tiles": (tiles, (("contract", "y"), ("parallelize", "o")), (1, 3, 5)),
}


def made(case: str, extent: int) -> tuple[Program, Program]:
    make, commands, _ = CASES[case]
    before = after = make(extent)
    for command in commands:
        name, *arguments = (command,) if isinstance(command, str) else command
        after = COMMANDS[name](after, *arguments)
    return before, after


@pytest.mark.parametrize("case", list(CASES))
def test_computes_exactly_the_same(case: str) -> None:
    for extent in CASES[case][2]:
        before, after = made(case, extent)
        assert_same(before, after)
        assert_same(before, hoist(scalar_replace(tidy(after))))


@pytest.mark.parametrize("case", list(CASES))
def test_compiles_to_the_same_bits(case: str, target: Target) -> None:
    assert_all_compile_to_same([made(case, extent)[1] for extent in CASES[case][2][-3:]], target)


# --- joining --------------------------------------------------------------------------------------------
def test_joined_programs_share_storage_and_keep_their_own_names_apart() -> None:
    first = program("for n in range(2):\n    y[n] = x[n] + 1.0", y=(2,), x=(2,))
    second = program(
        """
for n in range(2):
    mean: float32 = x[n]
    for y in range(3):
        mean += w[n, y]
    z[n] = mean
""",
        x=(2,),
        w=(2, 3),
        z=(2,),
    )
    second = second.with_buffers(x=replace(second.buffers["x"], name="net.y"))
    names = {"net.y": "between", "net.x": "inputs", "net.w": "mean", "net.z": "value"}
    joined = join("both", [Part(first), Part(second, {"n": "k"})], names)
    assert [nest.body_text for nest in joined.nests] == [
        "for n in range(2):\n    between[n] = inputs[n] + 1.0",
        """\
for k in range(2):
    mean_1: float32 = between[k]
    for y in range(3):
        mean_1 += mean[k, y]
    value[k] = mean_1""",
    ]
    assert set(joined.buffers) == {"between", "inputs", "mean", "value"}


def test_a_program_behind_another() -> None:
    first = program("for n in range(2):\n    y[n] = x[n]", y=(2,), x=(2,))
    second = program("for n in range(2):\n    z[n] = y[n] * x[n]", y=(2,), x=(2,), z=(2,))
    both = follow(first, second)
    assert [nest.body_text for nest in both.nests] == [nest.body_text for nest in (*first.nests, *second.nests)]
    assert set(both.buffers) == {"x", "y", "z"}


# --- refusals -------------------------------------------------------------------------------------------
def refused(command: str, before: Program, *arguments: object) -> str:
    with pytest.raises(Refused) as caught:
        COMMANDS[command](before, *arguments)
    return str(caught.value)


def test_a_buffer_that_others_read_stays() -> None:
    text = refused("contract", rows(5), "z")
    assert text.startswith("z (net.z) is not this program's alone")
    assert "the buffers that may be removed are y" in text
    assert refused("inline", gradients(5), "s").startswith("s (net.s) is not this program's alone")


@pytest.mark.parametrize("name", ["contract", "inline"])
def test_an_unknown_buffer(name: str) -> None:
    with pytest.raises(CommandError, match=r"no buffer named 'why'(.|\n)*the buffers are"):
        COMMANDS[name](rows(5), "why")


def test_layers_that_are_not_fused_yet() -> None:
    text = refused("contract", product_and_relu(5), "y")
    assert "y is touched by another nest too: z[n, c] = max(0.0, y[n, c]) in program_1 reads it" in text
    assert "← asked to contract y" in text and "fuse('n', nest=0), then contract('y')" in text


def test_layers_that_are_fused() -> None:
    fused = COMMANDS["fuse_layers"](product_and_relu(5))
    assert COMMANDS["fuse_layers"](fused).text == fused.text


def test_a_value_of_another_iteration() -> None:
    before = own(
        """
for i in range(1, 9):
    y[i] = x[i]
    z[i] = y[i - 1] + y[i]
""",
        "y",
        y=(9,),
        x=(9,),
        z=(9,),
    )
    text = refused("contract", before, "y")
    assert "i=1 reads y[i - 1], which nothing before it in the same iteration certainly sets" in text
    # The witness, executed: iteration 1 reads y[0], which iteration 1 does not write.
    given = random_arrays(before, 0)
    y0 = given["y"][0]
    execute(before, given)
    assert given["z"][1] == np.float32(y0 + given["x"][1]) and given["y"][0] == y0


def test_a_write_that_depends_on_data() -> None:
    before = own(
        """
for i in range(9):
    if x[i] > 0.0:
        y[i] = x[i]
    z[i] = y[i]
""",
        "y",
        y=(9,),
        x=(9,),
        z=(9,),
    )
    assert "certainly sets" in refused("contract", before, "y")
    assert "certainly sets" in refused("inline", before, "y")


def test_threads_would_share() -> None:
    before = COMMANDS["parallelize"](rows(5), "i")
    text = refused("contract", before, "y")
    assert "the threads of i would share y" in text and "give this command before parallelize" in text


def test_more_than_a_stack_holds() -> None:
    before = own(
        """
for n in range(2):
    for i in range(300):
        for j in range(300):
            y[n, i, j] = x[n, i, j]
    for i in range(300):
        for j in range(300):
            z[n, i, j] = y[n, j, i]
""",
        "y",
        y=(2, 300, 300),
        z=(2, 300, 300),
        x=(2, 300, 300),
    )
    assert "360000 bytes of y are alive at a time" in refused("contract", before, "y")


def test_an_operand_changes_in_between() -> None:
    before = own(
        """
for i in range(5):
    y[i] = x[i] * 2.0
for i in range(5):
    x[i] += 1.0
for i in range(5):
    z[i] = y[i]
""",
        "y",
        y=(5,),
        x=(5,),
        z=(5,),
    )
    text = refused("inline", before, "y")
    assert "x[i] += 1.0 changes x before z[i] = y[i] reads y[i]" in text
    assert "y[i] = x[i] * 2.0    ← asked to inline y" in text


def test_an_operand_that_changes_elsewhere_or_later_is_no_obstacle() -> None:
    before = own(
        """
for i in range(5):
    y[i] = x[i] * 2.0
for i in range(5):
    x[i + 5] += 1.0
for i in range(5):
    z[i] = y[i]
for i in range(5):
    x[i] = 0.0
""",
        "y",
        y=(5,),
        x=(10,),
        z=(5,),
    )
    assert_same(before, COMMANDS["inline"](before, "y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for i in range(5):\n    y[i] = x[i]\n    y[i] = y[i] + 1.0\n    z[i] = y[i]", "y is set in 2 places"),
        ("for i in range(5):\n    y[i] += x[i]\n    z[i] = y[i]", "y is accumulated, not set once"),
        ("for i in range(5):\n    y[2 * i] = x[i]\n    z[i] = y[2 * i]", "do not determine the loops' variables"),
        ("for i in range(5):\n    t: float32 = x[i]\n    y[i] = t\n    z[i] = y[i]", "y is computed from t"),
        ("for i in range(5):\n    y[i] = y[i] + x[i]\n    z[i] = y[i]", "y is computed from itself"),
        ("for i in range(5):\n    z[i] = y[i] + x[i]", "y is read, but nothing here sets it"),
    ],
)
def test_no_formula(text: str, message: str) -> None:
    assert message in refused("inline", own(text, "y", y=(10,), x=(5,), z=(5,)), "y")


def test_loops_that_cannot_be_joined() -> None:
    before = program(
        """
for i in range(5):
    y[i] = x[i]
for i in range(6):
    z[i] = y[0]
""",
        y=(5,),
        x=(5,),
        z=(6,),
    )
    assert "the loops do not have the same bounds" in refused("fuse_layers", before)
    before = program(
        """
for i in range(5):
    y[0] += x[i]
for i in range(5):
    z[i] = y[0]
""",
        y=(1,),
        x=(5,),
        z=(5,),
    )
    assert "a dependence would be reversed" in refused("fuse_layers", before)
    assert len(COMMANDS["fuse_layers"](before, required=False).nests) == 2


def test_keep_names_a_buffer() -> None:
    with pytest.raises(CommandError, match="no buffer named 'why'"):
        COMMANDS["fuse_layers"](product_and_relu(3), keep=["why"])


# --- fuse past nests ------------------------------------------------------------------------------------
def past(middle: str, extent: int = 5) -> Program:
    text = f"for i in range({extent}):\n    y[i] = x[i] * 2.0\n{middle}\nfor i in range({extent}):\n    s[0] += y[i]"
    return program(text, x=(extent,), y=(extent,), s=(1,), z=(2,))


def order(changed: Program) -> list[str]:
    return [nest.body_text.splitlines()[0] for nest in changed.nests]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        ("for j in range(1):\n    s[j] = 0.0", ["for j in range(1):", "for i in range(5):"]),  # needed after
        ("for j in range(2):\n    z[j] = y[j]", ["for i in range(5):", "for j in range(2):"]),  # needed before
    ],
)
def test_nests_between_make_room(middle: str, expected: list[str]) -> None:
    before = past(middle)
    after = assert_same(before, COMMANDS["fuse"](before, "i"))
    assert order(after) == expected
    assert [nest.label for nest in after.nests if "j in" in nest.body_text] == [before.nests[1].label]


@pytest.mark.parametrize("extent", EXTENTS)
def test_past_a_nest_the_same_bits(target: Target, extent: int) -> None:
    before = past("for j in range(1):\n    s[j] = 0.0", extent)
    assert_compiles_to_same(COMMANDS["fuse"](before, "i"), target)


def test_a_nest_that_is_needed_between() -> None:
    before = past("for j in range(2):\n    z[j] = y[j]\nfor j in range(2):\n    y[j] = z[1 - j]")
    with pytest.raises(Refused) as caught:
        COMMANDS["fuse"](before, "i")
    assert (
        str(caught.value)
        == """a dependence would be reversed
    for i in range(5):    ← asked to fuse
        y[i] = x[i] * 2.0
  j=0 writes y[0], which i=0 reads
  what is between it and program_3 is needed there"""
    )


def test_nests_go_each_its_way() -> None:
    before = past("for j in range(1):\n    s[j] = 0.0\nfor j in range(2):\n    z[j] = y[j]")
    after = assert_same(before, COMMANDS["fuse"](before, "i"))
    assert order(after) == ["for j in range(1):", "for i in range(5):", "for j in range(2):"]


def test_locals_of_one_name_are_not_one() -> None:
    before = past("for j in range(1):\n    a: float32 = 0.0\n    s[j] = a")
    first, middle, second = before.nests
    made = first.with_body(stmts("for i in range(5):\n    a: float32 = x[i] * 2.0\n    y[i] = a"))
    summed = second.with_body(stmts("for i in range(5):\n    a: float32 = y[i]\n    s[0] += a"))
    before = before.with_nests([made, middle, summed])
    assert len(assert_same(before, COMMANDS["fuse"](before, "i")).nests) == 2


def test_contract_where_another_nest_only_prefetches() -> None:
    before = own("for n in range(3):\n    d[n, 0] = x[n]\n    y[n] = d[n, 0] * 2.0", "d", x=(3,), y=(3,), d=(3, 16))
    after = COMMANDS["distribute"](COMMANDS["prefetch"](before, "d", "n", 1, 0), "n")
    after = COMMANDS["fuse"](after, "n", nest=1)
    assert_same(before, COMMANDS["contract"](after, "d"))
