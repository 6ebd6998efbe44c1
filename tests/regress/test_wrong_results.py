"""Every wrong result that was ever found, as small as it gets."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import numpy as np
import pytest

from swirl.analysis.dependences import find, pinned
from swirl.analysis.statements import statements
from swirl.errors import LatteError, Refused
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, loop_of, make_nest, parse_program, stmts
from swirl.ir.paths import loops
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.commands.distribute import distribute
from swirl.transforms.commands.fuse import fuse
from swirl.transforms.commands.interchange import interchange
from swirl.transforms.commands.reorder import reorder
from swirl.transforms.commands.split import split
from swirl.transforms.commands.tile_loop import tile_loop
from swirl.transforms.commands.unroll import unroll
from swirl.transforms.commands.unroll_and_jam import unroll_and_jam
from swirl.transforms.commands.vectorize import vectorize
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.support import assert_compiles_to_same, assert_same, difference, floating_difference, merged, program


def test_scalar_replace_of_an_element_that_a_loop_assigns_first() -> None:
    before = program("for i in range(3):\n for j in range(2):\n  s[i] = x[j]", s=(3,), x=(2,))
    after = assert_same(before, COMMANDS["scalar_replace"](before, "s"))
    assert "s_t: float32 = 0.0" in after.text


@pytest.mark.parametrize("test", ["0 <= 0", "k < 2"])
def test_padding_beside_a_local_array_in_a_branch(test: str) -> None:
    before = program(
        f"""
for k in range(3):
    for i in range(3):
        if {test}:
            for l in range(3):
                v: float32 = x[i, l]
                y[i, l] += v
""",
        x=(3, 3),
        y=(3, 3),
    )
    after = vectorize(before, "i", 2, strided="gather")
    assert "if" in after.text and "v: float32[2]" in after.text
    assert_same(before, COMMANDS["set_padding"](after, "y", 1))


def test_scalar_replace_does_not_load_what_a_loop_without_iterations_would_have_read() -> None:
    before = program("for i in range(4):\n for j in range(0, i):\n  s[i] += x[2 * i - 2]", s=(4,), x=(5,))
    assert_same(before, scalar_replace(before))


def test_scalar_replace_stores_only_what_nothing_else_touches_whatever_the_conditions() -> None:
    # The condition never holds, so the two references never collide; the load and the store of a local do.
    before = program(
        """
for i in range(3):
    s[max(0, i - 1)] = x[i]
    for j in range(0, 8, 2):
        if j == 1:
            s[1] += x[j]
        s[2] += x[i]
""",
        s=(3,),
        x=(8,),
    )
    assert_same(before, scalar_replace(before))


def test_registers_of_one_array_are_different_elements() -> None:
    before = program(
        """
for i in range(2):
    for j in range(4):
        for k in range(3):
            y[j // 2] += x[i, j] * x[j // 2, k]
""",
        y=(2,),
        x=(2, 4),
    )
    assert_same(before, scalar_replace(unroll(before, "j", 4)))


def test_vector_statements_run_one_after_the_other() -> None:
    # Sequentially, t[i] is made of the old x[i + 1].
    before = program("for i in range(8):\n x[i] = y[i]\n t[i] = x[i + 1]", x=(9,), y=(8,), t=(8,))
    with pytest.raises(Refused, match="would be reversed"):
        vectorize(before, "i", 4)


def test_vector_branches_run_one_after_the_other() -> None:
    before = program(
        """
for i in range(4):
    if i > 0:
        y[i] = z[0]
    else:
        z[0] = x[i]
""",
        x=(4,),
        y=(4,),
        z=(1,),
    )
    with pytest.raises(Refused):
        vectorize(before, "i", 4)


BRANCHES_THAT_LANES_FEED = {
    "a test reads what an earlier lane's branch writes": """
    if p[i] < z[i]:
        p[i + 1] = 2.0""",
    "the branch not taken": """
    if p[i] < z[i]:
        y[i] = 1.0
    else:
        p[i + 1] = 2.0""",
    "two statements of one branch": """
    if 0.0 < z[i]:
        y[i] = p[i]
        p[i + 1] = 2.0""",
    "a test in a branch": """
    if 0.0 < z[i]:
        if p[i] < z[i]:
            y[i] = 1.0
        p[i + 1] = 2.0""",
    "a branch in a branch": """
    if 0.0 < z[i]:
        y[i] = p[i]
        if z[i] < 1.0:
            p[i + 1] = 2.0""",
    "a statement before a branch": """
    y[i] = p[i]
    if 0.0 < z[i]:
        p[i + 1] = 2.0""",
    "a statement after a branch": """
    if 0.0 < z[i]:
        y[i] = p[i]
    p[i + 1] = 2.0""",
}


@pytest.mark.parametrize("body", BRANCHES_THAT_LANES_FEED.values(), ids=BRANCHES_THAT_LANES_FEED)
@pytest.mark.parametrize("width", [2, 8, 16])
def test_a_branch_of_a_lane_feeds_the_next_lane(body: str, width: int) -> None:
    # From the second lane on, a test was assumed to run after the statements in its branches.
    before = program(f"for i in range(20):{body}", p=(21,), z=(20,), y=(20,))
    with pytest.raises(Refused, match="would be reversed"):
        vectorize(before, "i", width)
    try:
        selects = COMMANDS["if_convert"](before, "i")
    except Refused:
        return
    with pytest.raises(Refused):
        vectorize(selects, "i", width)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_branch_of_a_lane_that_feeds_itself_or_earlier_lanes(target: str) -> None:
    programs = []
    for body in BRANCHES_THAT_LANES_FEED.values():
        backwards = body.replace("p[i + 1]", "q").replace("p[i]", "p[i + 1]").replace("q", "p[i]")
        before = program(f"for i in range(20):{backwards}", p=(21,), z=(20,), y=(20,))
        programs.append(assert_same(before, vectorize(before, "i", 8)))
    assert_compiles_to_same(merged(programs), TARGETS[target])


def test_a_condition_is_evaluated_where_it_stands() -> None:
    # The second copy's condition reads what the first one's branch wrote.
    before = program(
        """
for i in range(2):
    if x[0] > 0.0:
        for j in range(3):
            x[0] = y[i, j] - 9.0
""",
        x=(1,),
        y=(2, 3),
    )
    with pytest.raises(Refused):
        unroll_and_jam(before, "i", 2)


def test_a_prefix_sum_has_no_partial_results() -> None:
    before = program("for i in range(8):\n s[0] += x[i]\n y[i] = s[0]", s=(1,), x=(8,), y=(8,))
    assert_same(before, unroll(before, "i", 4))
    with pytest.raises(Refused):
        vectorize(before, "i", 4)


def test_two_kinds_of_accumulation_have_no_partial_results() -> None:
    before = program("for i in range(8):\n s[0] += x[i]\n s[0] *= 2.0", s=(1,), x=(8,))
    assert_same(before, unroll(before, "i", 4))
    with pytest.raises(Refused):
        vectorize(before, "i", 4)


def test_substitution_in_an_expression_that_stands_in_two_places() -> None:
    before = program("for i in range(7):\n for j in range(5):\n  y[6 - i, 0] += x[j]", y=(7, 1), x=(5,))
    assert_same(before, unroll(scalar_replace(before), "i", 4))


def test_locals_of_one_name_in_two_loops_are_two_arrays() -> None:
    before = program(
        """
for i in range(4):
    for j in range(3):
        t: float32 = x[i, j]
        t += 1.0
        y[i, j] = t
    for j in range(2):
        t: float32 = x[i, j + 1]
        t *= 2.0
        z[i, j] = t
""",
        x=(4, 3),
        y=(4, 3),
        z=(4, 2),
    )
    assert_same(before, unroll_and_jam(before, "i", 2))
    assert_same(before, vectorize(before, "i", 4, strided="gather"))


def test_distributing_leaves_locals_with_their_users() -> None:
    before = COMMANDS["scalar_replace"](
        program("for i in range(4):\n z[0] += x[i]\n y[i] = x[i]", x=(4,), y=(4,), z=(1,)), "z"
    )
    after = assert_same(before, distribute(before, "i"))
    assert len(after.nests) == 1
    hoisted = hoist(program("for i in range(4):\n z[i] = x[i] / y[0]\n u[i] = x[i]", x=(4,), y=(1,), z=(4,), u=(4,)))
    assert_same(hoisted, distribute(hoisted, "i"))


def test_distributed_nests_have_names_of_their_own() -> None:
    before = program(
        "for i in range(4):\n x[i] = 1.0\n y[i] = 2.0\nfor i in range(4):\n z[i] = 3.0\n u[i] = 1.0",
        x=(4,),
        y=(4,),
        z=(4,),
        u=(4,),
    )
    labels = [nest.label for nest in distribute(before, "i").nests]
    assert len(set(labels)) == 4


def test_a_vector_loop_stays_innermost() -> None:
    before = program("for i in range(4):\n for j in range(3):\n  y[j, i] += x[j, i]", y=(3, 4), x=(3, 4))
    vector = vectorize(before, "i", 4)
    with pytest.raises(Refused, match="stays innermost"):
        reorder(vector, ["i_lane", "j"])


def test_reordering_a_loop_with_itself() -> None:
    before = program("for i in range(4):\n for j in range(3):\n  y[j, i] = 1.0", y=(3, 4))
    for name in ("reorder", "interchange"):
        with pytest.raises(Exception, match="not \\['i', 'i'\\]"):
            COMMANDS[name](before, ["i", "i"])


def test_reordering_three_loops_of_which_two_nests_have_two() -> None:
    before = program(
        """
for i in range(2):
    for j in range(3):
        x[i, j] = 1.0
for j in range(3):
    for i in range(2):
        for k in range(2):
            y[i, j] += x[i, j]
""",
        x=(2, 3),
        y=(2, 3),
    )
    assert_same(before, reorder(before, ["k", "i", "j"]))
    assert_same(before, interchange(before, ["i", "j"]))


def test_splitting_two_loops_of_one_name() -> None:
    before = program(
        "for i in range(4):\n x[i] = 1.0 if i < 2 else 2.0\nfor i in range(4):\n y[i] = x[i]", x=(4,), y=(4,)
    )
    assert_same(before, split(before, "i", [2]))


def test_partials_of_a_reduction_under_a_window_that_moves() -> None:
    before = program(
        """
for y in range(5):
    for k in range(max(0, 1 - y), min(3, 6 - y)):
        for i in range(8):
            for j in range(7):
                s[0] += x[i, y + k - 1] * x[j, k]
""",
        s=(1,),
        x=(8, 6),
    )
    assert_same(before, vectorize(before, "i", 4, strided="gather"))
    assert_same(before, tidy(unroll(before, "i", 3)))


def test_partials_of_locals_that_share_a_name_with_others() -> None:
    before = program(
        """
for i in range(3):
    for j in range(4):
        for k in range(2):
            s[i] += x[i, j] * x[k, j]
""",
        s=(3,),
        x=(3, 4),
    )
    parts = split(scalar_replace(before), "i", [1])
    vector = vectorize(parts, "i", 2, strided="gather")
    assert_same(before, tidy(unroll(vector, "j", 2)))


def test_branches_that_tile_loop_empties() -> None:
    before = program(
        """
for i in range(1):
    for j in range(3):
        for k in range(5):
            if 1 <= i and j < 3:
                y[k] = x[j]
    z[i] = 1.0
""",
        x=(3,),
        y=(5,),
        z=(1,),
    )
    assert_same(before, tidy(tile_loop(before, "k", 2, tail="mask")))


def test_interchange_across_a_condition_keeps_it() -> None:
    before = tile_loop(
        program("for i in range(9):\n for j in range(4):\n  y[i, j] = 1.0", y=(9, 4)), "i", 2, tail="mask"
    )
    assert_same(before, reorder(before, ["j", "i_outer"]))


def test_a_loop_that_holds_lanes_does_not_become_lanes() -> None:
    before = program("for l in range(9):\n for k in range(1):\n  y[l, k] -= u[l, k] + w[0]", y=(9, 1), u=(9, 1), w=(1,))
    with pytest.raises(Refused, match="holds the vector loop k_lane"):
        vectorize(unroll_and_jam(vectorize(before, "k", 2), "l", 1), "l", 2, strided="gather")


def test_strides_that_do_not_start_together_may_meet() -> None:
    # 4 * i + w pins i only where both loops take the same steps from the same start.
    before = program(
        """
for i in range(0, 8, 4):
    for j in range(3):
        x[i + j] = y[j]
for i in range(0, 8, 1):
    for j in range(3):
        z[i, j] = x[i + j]
""",
        x=(10,),
        y=(3,),
        z=(8, 3),
    )
    with pytest.raises(Refused):
        fuse(before, "i")
    body = before.nests[0].body + before.nests[1].body
    first, second = (s for s in statements(body))
    assert find(first, second, ["i_a != i_b"], reductions=True) is not None
    assert pinned(first, second, first.accesses[0], second.accesses[1], set()) == set()


def test_fusing_into_a_loop_whose_inner_loop_has_the_name() -> None:
    before = program(
        "for i in range(3):\n x[i] = 1.0\nfor j in range(3):\n for i in range(2):\n  y[j, i] = x[j]",
        x=(3,),
        y=(3, 2),
    )
    assert_same(before, fuse(before, "i", "j"))


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_lanes_of_a_loop_are_fewer_than_those_of_its_register(lanes: int, target: Target) -> None:
    # The mask of the first strip was that of all remaining lanes.
    before = program("for i in range(9):\n s[i] += x[i]\n y[i] = s[i] * s[i]", s=(9,), x=(9,), y=(9,))
    assert_compiles_to_same(vectorize(before, "i", lanes), target)


@pytest.mark.parametrize(
    "body",
    [
        "y[i, j] = x[i - 1] * 2.0 if i > 0 else 0.0",
        "if i > 0:\n   y[i, j] = x[i - 1] * 2.0",
        "y[i, j] = 1.0 if i > 0 and x[i - 1] * 2.0 > 1.0 else 0.0",
        "for k in range(0, i):\n   y[i, j] += x[i - 1] * 2.0",
    ],
)
def test_hoist_reads_nothing_that_a_condition_keeps_inside(body: str) -> None:
    before = program(f"for i in range(4):\n for j in range(3):\n  {body}", x=(3,), y=(4, 3))
    assert_same(before, hoist(before))


def test_hoist_out_of_a_loop_that_may_not_run() -> None:
    before = program("for i in range(4):\n for j in range(0, i):\n  y[i, j] = x[i - 1] * 2.0", x=(3,), y=(4, 3))
    assert_same(before, hoist(before))


def test_a_condition_on_a_local_says_nothing_about_iterations() -> None:
    before = program("for i in range(4):\n t: int32 = i % 2\n if t == 1:\n  y[0] += x[i]", x=(4,), y=(1,))
    with pytest.raises(Refused, match="two iterations would update the same element"):
        COMMANDS["parallelize"](before, "i")
    assert_same(before, COMMANDS["unroll"](before, "i", 2))


def test_a_scalar_that_a_vector_loop_of_one_lane_updates(target: Target) -> None:
    before = program(
        """
for l in range(4):
    for j in vector(1):
        s[0] -= u[0, 0] * x[0, 0]
        y[0, l] *= w[j + 2]
""",
        s=(3,),
        u=(1, 1),
        x=(1, 1),
        y=(1, 4),
        w=(4,),
    )
    after = scalar_replace(before)
    assert "    s_t -= " in after.text
    assert_same(before, after)
    assert_compiles_to_same(after, target)


def test_reindex_of_statements_that_never_run() -> None:
    before = program("for i in range(3):\n for k in range(1):\n  if k == 1:\n   y[i] += x[i]", y=(3,), x=(3,))
    assert_same(before, COMMANDS["reindex"](before, r="3 - i"))


def test_conditions_inside_conditions_run_lane_by_lane() -> None:
    before = program(
        """
for i in range(7):
    if i % 3 == 0:
        if x[i] > 0.0:
            y[i] = x[i]
        else:
            y[i] = w[i]
""",
        y=(7,),
        x=(7,),
        w=(7,),
    )
    assert_same(before, vectorize(before, "i", 4))


def test_if_convert_of_local_arrays_that_share_a_name() -> None:
    before = program(
        """
for k in range(0, 6, 3):
    t: float32[3] = empty(3)
    for j in unrolled(3):
        t[j] = x[k + j]
        if w[0] > 0.0:
            t[j] -= 1.0
        y[k + j] = t[j]
for k in range(6, 8, 2):
    t: float32[2] = empty(2)
    for j in unrolled(2):
        t[j] = x[k + j]
        if w[0] > 0.0:
            t[j] -= 1.0
        y[k + j] = t[j]
""",
        x=(8,),
        y=(8,),
        w=(1,),
    )
    one = Program("one", (make_nest("one", [s for n in before.nests for s in n.body], before.buffers),), before.buffers)
    assert_same(one, COMMANDS["if_convert"](one))


def test_hoist_of_a_local_that_shares_its_name_with_one_of_another_shape() -> None:
    before = program(
        """
for j in range(3):
    t: float32[2] = empty(2)
    t[0] = x[j]
    for k in range(j):
        y[k] += t[0] * x[j]
for i in range(2):
    t: float32 = x[i]
    y[i] += t
""",
        x=(3,),
        y=(3,),
    )
    one = before.with_nests([make_nest("one", [s for nest in before.nests for s in nest.body], before.buffers)])
    assert_same(one, hoist(one))


def test_reindex_leaves_no_loop_without_a_body() -> None:
    text = "for j in range(1):\n for k in range(8):\n  for l in range(j + 1):\n   if l > 0:\n    s[j] += x[k]"
    before = program(text, s=(1,), x=(8,))
    after = assert_same(before, COMMANDS["reindex"](before, r="3 * l - k"))
    assert all(node.body for _, node in loops(after.nests[0].body))


def test_a_subscript_that_a_local_holds_may_be_any_element() -> None:
    before = program("for i in range(2):\n for j in range(2):\n  y[m[i], j] += x[i, j]", x=(2, 2), y=(2, 2), m=(2,))
    before = before.with_buffers(m=Buffer("net.m", (2,), "int32"))
    before = before.with_nest(
        0,
        parse_program(
            """
for i in range(2):
    for j in range(2):
        place: int32 = m[i]
        y[place % 2, j] += x[i, j]
""",
            before.buffers,
        ).nests[0],
    )
    assert_same(before, canonicalise(before))
    with pytest.raises(Refused):
        COMMANDS["parallelize"](before, "i")


@pytest.mark.parametrize("command", [unroll, unroll_and_jam])
def test_unroll_of_a_loop_without_iterations(command: Callable[..., Program]) -> None:
    before = program("for k in range(3):\n    y[k] = 1.0\nfor k in range(3, 3):\n    y[k] = 2.0", y=(4,))
    after = assert_same(before, command(before, "k", 4))
    assert "unrolled(3)" in after.text and "range(3, 3)" in after.text


def test_locals_of_one_name_beside_parallel_loops_of_two_nests(target: Target) -> None:
    """The threads run both nests in one block of C++."""
    buffers = program("pass", x=(5,), y=(2, 5)).buffers
    nest = "scale: float32 = x[{0}]\nfor i in parallel(5):\n    y[{0}, i] = x[i] * scale"
    nests = [make_nest(f"row_{row}", stmts(nest.format(row)), buffers) for row in range(2)]
    assert_compiles_to_same(Program("rows", tuple(nests), buffers), target)


def test_the_neutral_element_of_a_minimum_is_greater_than_large_products() -> None:
    before = program(
        """
for j in range(20):
    for k in range(4):
        s[k] = s[k] * 30.0 + 1000.0
for i in range(2):
    for k in range(4):
        s[k] = min(s[k], x[i, k] * x[i, k] * 1e30)
""",
        s=(4,),
        x=(2, 4),
    )
    assert_same(before, COMMANDS["privatize"](before, "s", "i"))


@pytest.mark.parametrize(
    "body", ["if l >= 1:\n    u[l - 1] += x[l, i]", "for j in range(min(1, l)):\n    u[l - 1] += x[l, i]"]
)
def test_privatize_touches_nothing_that_a_condition_keeps_away(body: str) -> None:
    text = "for l in range(3):\n    for i in range(4):\n" + indent(body, " " * 8)
    before = program(text, x=(3, 4), u=(2,))
    assert_same(before, COMMANDS["privatize"](before, "u", "i", copies=2))


@pytest.mark.parametrize(
    ("statement", "problem"), [("t[i // 2] += x[i]", "share local"), ("t[i - 1] = x[i]", "outside")]
)
def test_checking_sees_local_arrays(statement: str, problem: str) -> None:
    buffers = program("pass", x=(4,), y=(4,)).buffers
    text = "t: float32[4] = empty(4)\nfor i in range(4):\n    t[i] = 0.0\nfor i in parallel(4):\n    {0}\ny[0] = t[0]"
    nest = make_nest("sums", stmts(text.format(statement)), buffers)
    wrong = Program("wrong", (nest,), buffers)
    with pytest.raises(LatteError, match=problem):
        difference(wrong, wrong)


def test_a_loop_of_which_simplification_leaves_nothing_is_passed_over() -> None:
    text = "for l in range(3):\n    if 0 == 1:\n        z[l] += 1.0\nfor l in range(3):\n    z[l] = 0.0"
    buffers = program("pass", z=(5,)).buffers
    before = Program("zeros", (make_nest("zeros", stmts(text), buffers),), buffers)
    after = assert_same(before, COMMANDS["split"](before, "l", [2]))
    assert "if" not in after.text


def test_contract_takes_the_prefetches_of_the_buffer_out() -> None:
    before = program("for i in range(1):\n    d[i, 0] = w[0]\n    y[i] = d[i, 0]", w=(1,), y=(1,), d=(1, 16))
    before = before.with_buffers(d=Buffer("net.d", (1, 16), "float32", "temporary"))
    after = COMMANDS["contract"](COMMANDS["prefetch"](before, "d", "i", 2, 0), "d")
    assert "prefetch" not in after.text
    assert_same(before, after)


def test_inline_takes_the_prefetches_of_the_buffer_out() -> None:
    before = program("d[0, 0] = w[0]\nfor i in range(1):\n    y[i] = d[i, i]", w=(1,), y=(1,), d=(1, 15))
    before = before.with_buffers(d=Buffer("net.d", (1, 15), "float32", "temporary"))
    after = COMMANDS["inline"](COMMANDS["prefetch"](before, "d", "i", 2, 1), "d")
    assert "prefetch" not in after.text
    assert_same(before, after)


@pytest.mark.parametrize("value", ["f[i, j]", "f[i, j] + w[1]", "f[i, j] if w[0] > 0.5 else w[1]"])
@pytest.mark.parametrize("fused", [False, True], ids=["inline", "contract"])
@pytest.mark.parametrize("local", [False, True], ids=["", "local"])
def test_what_was_stored_past_the_caches_is_computed_where_it_is_read(value: str, fused: bool, local: bool) -> None:
    head = "for i in range(3):\n for j in range(8):\n  "
    read = "y[i, j] = d[i, j] / w[1] + d[i, j]"
    before = program(f"{head}d[i, j] = {value}\n{head}{read}", f=(3, 8), w=(2,), y=(3, 8), d=(3, 8))
    before = before.with_buffers(d=Buffer("net.d", (3, 8), "float32", "temporary"))
    stored = COMMANDS["stream"](tidy(vectorize(before, "j", 8)), "d")
    assert "stream" in stored.text
    if fused:
        after = COMMANDS["contract"](COMMANDS["fuse"](stored, "i"), "d")
    else:
        after = COMMANDS["inline"](stored, "d", local=local)
    assert "stream" not in after.text
    assert_same(before, after)


@pytest.mark.parametrize(
    ("index", "shape", "flat"), [("m[h, i]", (3, 4), False), ("m[n, h]", (2, 3), True), ("m[h]", (3,), False)]
)
def test_flatten_joins_the_subscripts_of_subscripts(index: str, shape: tuple[int, ...], flat: bool) -> None:
    text = f"for n in range(2):\n for h in range(3):\n  for i in range(4):\n   y[n, h, i] = x[n, h, {index}]"
    before = program(text, y=(2, 3, 4), x=(2, 3, 4), m=shape)
    before = before.with_buffers(m=Buffer("net.m", shape, "int32"))
    if not flat:
        with pytest.raises(Refused, match=r"does not run over n, h as neighbouring subscripts|outside of plain"):
            COMMANDS["flatten"](before, ["n", "h"])
        return
    after = COMMANDS["flatten"](before, ["n", "h"])
    assert "x[nh, m[nh]]" in after.text
    assert floating_difference(before, after, 0, keeps_bits=True) is None


def test_a_lane_before_a_row_in_registers_that_a_condition_keeps_away(target: Target) -> None:
    before = program(
        """
for i in range(8):
    for j in range(2):
        d[i, j] = w[j]
for j in range(2):
    for i in range(8):
        if j - 1 >= 0:
            e[i, j] += d[i, j - 1]
""",
        w=(2,),
        d=(8, 7),
        e=(8, 7),
    )
    before = before.with_buffers(d=Buffer("net.d", (8, 7), "float32", "temporary"))
    after = tidy(COMMANDS["vectorize"](COMMANDS["fuse_layers"](before), "j", 8))
    assert "d_t[j_lane - 1]" in after.text
    assert_compiles_to_same(assert_same(before, after), target)


def test_loops_that_pass_32_bits(target: Target) -> None:
    """The C++ has no others: they wrapped, and elements outside of arrays were written."""
    before = program("for n in range(2):\n for y in range(5):\n  v[n, y] = w[y] + 1.0", v=(2, 5), w=(5,))
    reindex = COMMANDS["reindex"]
    for text in ("y + 2147483646", "y - 3000000000", "y + n * 2147483647", "y + 10000000000"):
        with pytest.raises(Refused, match="may pass 2,147,483,647"):
            reindex(before, "y", z=text)
    for text in ("y + 1000000000", "y - 1000000000"):
        assert_compiles_to_same(assert_same(before, reindex(before, "y", z=text)), target)


def temporary(before: Program, *names: str) -> Program:
    """The program with buffers that nothing else needs."""
    shapes = {name: before.buffers[name].shape for name in names}
    return before.with_buffers(
        **{name: Buffer(f"net.{name}", shape, "float32", "temporary") for name, shape in shapes.items()}
    )


@pytest.mark.parametrize("compared", ["t > u", "t > 0.0", "not t > u", "t > u and i < 7"])
def test_a_write_that_locals_decide_about_is_not_certain(compared: str) -> None:
    """The condition was left out, as if the write happened in every iteration."""
    before = temporary(
        program(
            f"""
for i in range(8):
    t: float32 = x[i]
    u: float32 = w[i]
    if i < 1:
        d[0] = 5.0
    if {compared}:
        d[0] = 2.0
    y[i] = d[0]
""",
            x=(8,),
            w=(8,),
            d=(1,),
            y=(8,),
        ),
        "d",
    )
    with pytest.raises(Refused, match="a read of d sees what another iteration, or nothing, has written") as caught:
        COMMANDS["contract"](before, "d")
    assert "i=1 reads d[0]" in str(caught.value)


@pytest.mark.parametrize("between", ["m += 1", "m = k[7 - i]", "pass"])
def test_a_local_in_a_subscript_may_have_changed_before_the_read(between: str) -> None:
    """The subscripts look alike; and isl was asked about the local where they do not."""
    before = temporary(
        program(
            f"""
for i in range(8):
    m: int32 = k[i]
    d[m] = 1.0
    {between}
    y[i] = d[m]
    z[i] = d[m + 1]
""",
            k=(8,),
            d=(9,),
            y=(8,),
            z=(8,),
        ),
        "d",
    )
    before = before.with_buffers(k=Buffer("net.k", (8,), "int32", "value"))
    for command in ("contract", "inline"):
        with pytest.raises(Refused, match=r"not proved that each read of d|do not determine the loops' variables"):
            COMMANDS[command](before, "d")


def test_a_private_copy_that_is_added_to_where_data_say() -> None:
    before = program("for j in range(2):\n y[m[0], j] += x[0, j]", x=(1, 2), y=(1, 2), m=(1,))
    before = before.with_buffers(m=Buffer("net.m", (1,), "int32", "value"))
    after = COMMANDS["scalar_replace"](COMMANDS["privatize"](before, "y", "j", copies=3))
    assert "y_private[j, m_t, j] += x[0, j]" in after.text
    joined = COMMANDS["fuse_layers"](after, required=False)  # isl was asked about m_t
    assert "y_private" in joined.buffers


def test_zeros_around_what_a_local_and_a_border_select() -> None:
    before = program(
        """
for i in range(8):
    t: float32 = x[i]
    u: float32 = w[i]
    y[i] = z[i - 1] if i >= 1 and t > u else 0.0
""",
        x=(8,),
        w=(8,),
        z=(8,),
        y=(8,),
    )
    before = before.with_buffers(z=Buffer("net.z", (8,), "float32", "param"))
    after = COMMANDS["set_padding"](before, "z", (1, 0))  # isl was asked about t and u
    assert "z[i - 1] if t > u else 0.0" in after.text
    assert_same(before, after)


def test_a_set_of_one_point_of_which_isl_finds_no_least() -> None:
    """i + 1 = 2 k, l = j ≤ i, k ≤ l: only i = j = k = l = 1."""
    before = program(
        """
for i in range(2):
    for l in range(i + 1):
        for j in range(2):
            for k in range(l + 1):
                y[2 * k, l] = 0.0
                z[3] += y[i + 1, j]
""",
        y=(3, 2),
        z=(4,),
    )
    after = assert_same(before, scalar_replace(before))
    assert "z_t += y[i + 1, j]" in after.text  # which y[2 * k, l] may be: it is no local


def test_contract_keeps_no_elements_that_a_condition_keeps_away() -> None:
    """A halo would make the condition needless, and elements that are never set would be read."""
    before = program(
        """
for j in range(17):
    d[0, j] = w[j]
for r in range(-15, 3):
    for k in range(2):
        if k - r + 1 >= 0 and k - r + 1 <= 16:
            d[0, k - r + 1] += f[0, k, k - r + 1]
for j in range(17):
    y[j] = d[0, j]
""",
        w=(17,),
        f=(1, 2, 17),
        d=(1, 17),
        y=(17,),
    )
    before = before.with_buffers(
        d=Buffer("net.d", (1, 17), "float32", "temporary"), f=Buffer("net.f", (1, 2, 17), "float32", "param")
    )
    nest = make_nest("whole", [s for nest in before.nests for s in nest.body], before.buffers)
    before = Program("whole", (nest,), before.buffers)
    after = COMMANDS["contract"](before, "d")
    assert "d_t: float32[17]" in after.text
    assert_same(before, COMMANDS["set_padding"](after, "f", (2, 0), 0, (0, 2)))


def test_local_arrays_of_two_types_are_not_taken_for_one() -> None:
    before = program(
        """
for i in parallel(0, 3, 2):
    t: float32[2] = empty(2)
    for l in vector(min(2, 3 - i)):
        t[l] = x[i + l]
    v: float32[2] = empty(2)
    for l in vector(min(2, 3 - i)):
        v[l] = t[l] * 2.0
    k: int32[2] = empty(2)
    for l in vector(min(2, 3 - i)):
        k[l] = i + l
    for l in vector(min(2, 3 - i)):
        y[i + l] = v[l] + k[l]
""",
        x=(3,),
        y=(3,),
    )
    assert_same(before, before)  # no race


def test_a_quotient_moved_out_of_its_condition_is_no_difference() -> None:
    """Where nothing needs it, the divisor may be zero: fractions had no value for that."""
    before = program(
        """
for i in range(3):
    for j in range(i + 1):
        if i == 0:
            y[j] = w[0] / x[i]
""",
        x=(3,),
        y=(3,),
        w=(1,),
    )
    after = assert_same(before, hoist(before))
    assert "w_over: float32 = w[0] / x[i]" in after.text
    given = {"x": [3, 0, 0], "y": [1, 1, 1], "w": [6]}
    assert difference(before, after, given={name: np.array(data, object) for name, data in given.items()}) is None


LOOPS_NAMED_AS_LOCALS = {
    "a loop inside": """
for i in range(7):
    t: float32 = x[i]
    y[i] = t
for i in range(7):
    for t in range(2):
        y[i] += w[i] * t
""",
    "the loop itself": """
for i in range(3):
    t: float32 = x[i]
    y[i] = t
for t in range(3):
    y[t] += w[t]
""",
    "a loop inside, and a local after it": """
for t in range(7):
    for i in range(2):
        y[t] += w[t] * i
for i in range(7):
    t: float32 = x[i]
    y[i] += t * t
""",
    "outside of the loops": """
def first(x, y):
    t: float32 = x[0]
    for i in range(3):
        y[i] = t
def second(y, w):
    for i in range(3):
        for t in range(2):
            y[i] += w[i] * t
    t: float32 = y[1]
    y[2] = t
""",
}


@pytest.mark.parametrize("text", LOOPS_NAMED_AS_LOCALS.values(), ids=LOOPS_NAMED_AS_LOCALS)
def test_a_loop_has_the_name_of_a_local_in_the_loop_that_it_is_joined_with(text: str) -> None:
    before = program(text, x=(7,), y=(7,), w=(7,))
    assert_same(before, canonicalise(before))
    assert_same(before, COMMANDS["fuse_layers"](before, required=False))
    first = next(loop_of(node).var for _, node in loops(before.nests[0].body))
    second = next(loop_of(node).var for _, node in loops(before.nests[1].body))
    fused = assert_same(before, fuse(before, first, second))
    assert len(fused.nests) == 1


def test_a_condition_that_nothing_needs_on_a_local_that_nothing_has_set() -> None:
    # scalar_expand makes an array of the local, if_convert loads from it before the condition it stands under.
    before = program(
        """
for j in range(2):
    if w[0] <= w[3]:
        t1: float32 = g[j, j]
        t1 += t1
        z[j] = t1
""",
        w=(4,),
        g=(2, 2),
        z=(2,),
    )
    expanded = assert_same(before, COMMANDS["scalar_expand"](before, "t1"))
    selects = assert_same(before, COMMANDS["if_convert"](expanded, "j"))
    assert "if condition else" in selects.text


@pytest.mark.parametrize("divisor", ["4.0", "sqrt(w[0])", "float32(n[0])", "w[0]"])
@pytest.mark.parametrize(
    "dividend",
    [
        "f[0] + 1.0 - x[i]",
        "x[i] * (f[0] * f[1])",
        "sqrt(f[0]) + x[i]",
        "(f[0] - 3.0 + x[i]) / 8.0",
        "float64(f[0] + f[1]) - x[i]",
        "f[0] + 1.0",
    ],
)
def test_a_quotient_whose_dividend_has_invariants(dividend: str, divisor: str) -> None:
    """A dividend was asked for its type when a part of it was a local already, declared in front of the loop."""
    before = program(f"for i in range(5):\n y[i] += ({dividend}) / {divisor}", y=(5,), x=(5,), f=(2,), w=(1,), n=(1,))
    before = before.with_buffers(n=Buffer("net.n", (1,), "int32"))
    after = assert_same(before, hoist(before))
    assert after.text != before.text
    assert_same(before, hoist(tidy(before)))
