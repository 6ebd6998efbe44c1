"""The pass that ends loops over items with the last one: what it prints, and which programs it leaves alone."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np
import pytest

from swirl.analysis.uniform import for_any_number
from swirl.errors import Refused
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.item_numbers import ITEMS, value_of
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.transforms import COMMANDS
from swirl.transforms.passes.items import bound_items

ITEMS_OF = ("x", "y", "z", "label")  # arrays with elements for each item


def program(text: str, *commands: str, items: int = 8, **shapes: tuple[int, ...]) -> Program:
    buffers = {}
    for name, shape in shapes.items():
        own = name in ITEMS_OF
        role = "value" if own else "temporary" if name.startswith("t") else "param_grad"
        dtype = "int32" if name == "label" else "float32"
        buffers[name] = Buffer(f"net.{name}", shape, dtype, role, items=items if own else 0)
    made = validate(parse_program(textwrap.dedent(text).strip(), {**buffers, "items": ITEMS}))
    return Program(
        made.name,
        made.nests,
        {name: b for name, b in made.buffers.items() if name != "items"}
        | ({"items": ITEMS} if "items[" in text else {}),
        commands=commands,
    )


def body(made: Program) -> str:
    assert not made.fixed, made.fixed
    return "\n".join(nest.body_text for nest in made.nests)


def results(made: Program, items: int, **given: np.ndarray) -> dict[str, np.ndarray]:
    """What a program makes of arrays whose elements of items that do not exist are NaN."""
    arrays = {name: np.zeros(b.shape, b.dtype) for name, b in made.buffers.items() if b.role != "temporary"}
    for name, values in given.items():
        arrays[name][...] = 2**30 if arrays[name].dtype.kind == "i" else np.nan
        arrays[name].reshape(8, -1)[:items] = values.reshape(8, -1)[:items]
    arrays["items"] = np.array([items], np.int32)
    execute(made, arrays, checking=True)
    return arrays


X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6) - 20


@pytest.mark.parametrize("order", ["beside", "in one loop", "a store of its own"])
def test_one_item_of_a_block_by_itself(order: str) -> None:
    """What a loop of one iteration leaves beside copies of others."""
    one = "s[c] += x[n * 4 + 3, c]" if order != "a store of its own" else "y[n * 4 + 3, c] = x[n * 4 + 3, c] * 2.0"
    copies = "for u in unrolled(3):\n    {}s[c] += x[n * 4 + u, c]"
    if order == "in one loop":
        inner = f"for c in range(6):\n    {one}\n    {copies.format('    ')}"
    else:
        inner = f"for c in range(6):\n    {one}\nfor c in range(6):\n    {copies.format('    ')}"
    text = "for n in range(2):\n" + textwrap.indent(inner, "    ")
    made = bound_items(program(text, x=(8, 6), y=(8, 6), s=(6,)))
    for items in range(1, 9):
        got = results(made, items, x=X)
        ones = [item for item in range(items) if item % 4 < 3 or order != "a store of its own"]
        assert np.array_equal(got["s"], X[ones].sum(0)), (items, made.text)


def test_a_loop_ends_with_the_last_item() -> None:
    made = bound_items(
        program(
            """
            for n in parallel(8):
                for c in range(6):
                    y[n, c] = x[n, c] * 2.0
            """,
            x=(8, 6),
            y=(8, 6),
        )
    )
    assert body(made).splitlines()[0] == "for n in parallel(min(8, items[0])):"
    assert np.array_equal(results(made, 3, x=X)["y"], np.concatenate([2 * X[:3], np.zeros((5, 6))]))


TILE = """
    for b in range(2):
        t_acc: float32[4] = empty(4)
        for u in unrolled(4):
            t_acc[u] = 0.0
        for c in range(6):
            for u in unrolled(4):
                t_acc[u] += x[b * 4 + u, c]
        for u in unrolled(4):
            z[b * 4 + u] = t_acc[u]
"""


def test_a_tile_with_an_item_in_each_part_is_whole_another_one_goes_part_by_part() -> None:
    made = bound_items(program(TILE, x=(8, 6), z=(8,)))
    lines = [line.strip() for line in body(made).splitlines()]
    assert lines[0] == "for b in range(min(2, (items[0] + 3) // 4)):"
    assert lines[1] == "if b * 4 + 3 < items[0]:" and lines.count("for u in unrolled(4):") == 3
    rest = lines[lines.index("else:") + 1 :]
    assert rest[:2] == ["for u in range(min(4, items[0] - b * 4)):", "t_acc: float32[1] = empty(1)"]
    assert rest[-1] == "z[b * 4 + u] = t_acc[0]"
    for items in range(1, 9):
        assert np.array_equal(results(made, items, x=X)["z"][:items], X.sum(1)[:items])


def test_vectors_of_a_block_that_have_an_item_go_one_by_one() -> None:
    made = bound_items(
        program(
            """
            for k in parallel(3):
                t_acc: float32[2, 4] = empty(2, 4)
                for u in unrolled(2):
                    for l in vector(4):
                        t_acc[u, l] = 0.0
                for c in range(6):
                    for u in unrolled(2):
                        for l in vector(4):
                            t_acc[u, l] += x[u * 4 + l, c]
                for u in unrolled(2):
                    for l in vector(4):
                        y[u * 4 + l, k] = t_acc[u, l]
            """,
            x=(8, 6),
            y=(8, 3),
        )
    )
    assert "if 4 < items[0]:" in body(made) and "for u in range(min(2, (items[0] + 3) // 4)):" in body(made)
    for items in range(1, 9):
        assert np.array_equal(results(made, items, x=X)["y"][:items], np.repeat(X.sum(1)[:items, None], 3, axis=1))


@pytest.mark.parametrize(
    "replaced",
    [
        # locals of the block: an element of another copy, and a number that a copy changes for the next one
        ("t_acc[u] = 0.0", "t_acc[3 - u] = 0.0"),
        # what outlives the block is set once for all copies
        ("    for c in range(6):", "    g[b] = 1.0\n        for c in range(6):"),
    ],
)
def test_a_tile_whose_copies_have_more_in_common_stays_whole(replaced: tuple[str, str]) -> None:
    made = bound_items(program(TILE.replace(*replaced), x=(8, 6), z=(8,), g=(2,)))
    if made.fixed:
        return  # nor is it for fewer items
    assert "else:" not in body(made)
    for items in range(1, 9):
        assert np.array_equal(results(made, items, x=X)["z"][:items], X.sum(1)[:items])


def test_copies_of_several_widths_stay_whole() -> None:
    stored = "for u in unrolled(4):\n            z[b * 4 + u] = t_acc[u]"
    apart = """
        for w in unrolled(2):
            for v in unrolled(2):
                z[b * 4 + w * 2 + v] = t_acc[w * 2 + v]
    """
    text = TILE.replace(stored, apart.strip())
    made = bound_items(program(text, x=(8, 6), z=(8,)))
    assert made.fixed or "else:" not in body(made)


def test_copies_that_add_to_a_sum_over_the_batch_have_a_condition() -> None:
    made = bound_items(
        program(
            """
            for b in range(2):
                for u in unrolled(4):
                    for c in range(6):
                        g[c] += x[b * 4 + u, c]
            """,
            x=(8, 6),
            g=(6,),
        )
    )
    assert "if b * 4 + u < items[0]:" in body(made)
    for items in range(1, 9):
        assert np.array_equal(results(made, items, x=X)["g"], X[:items].sum(0))


def test_copies_that_look_something_up_have_a_condition() -> None:
    made = bound_items(
        program(
            """
            for b in range(2):
                for u in unrolled(4):
                    z[b * 4 + u] = g[label[b * 4 + u]]
            """,
            label=(8,),
            z=(8,),
            g=(6,),
        )
    )
    results(
        made, 5, label=np.arange(8, dtype=np.int32) % 6
    )  # the number of an item that does not exist is no subscript


@pytest.mark.parametrize("items", [1, 2, 5, 8])
def test_lanes_over_items(items: int) -> None:
    made = bound_items(
        program(
            """
            for k in range(1):
                t_lanes: float32[8] = empty(8)
                for v in vector(8):
                    t_lanes[v] = 0.0
                for v in vector(8):
                    t_lanes[v] += x[v, 0]
                for v in vector(4):
                    t_lanes[v] += t_lanes[v + 4]
                for v in vector(2):
                    t_lanes[v] += t_lanes[v + 2]
                g[0] += t_lanes[0] + t_lanes[1]
            """,
            x=(8, 6),
            g=(1,),
        )
    )
    assert "for v in vector(min(8, items[0])):\n        t_lanes[v] += x[v, 0]" in body(made)
    assert results(made, items, x=X)["g"][0] == X[:items, 0].sum()


def test_the_batch_and_other_dimensions_in_one_loop() -> None:
    whole = bound_items(
        program(
            """
            for e in range(0, 64, 4):
                for v in vector(4):
                    y[e + v] = x[e + v] * 2.0
            """,
            x=(64,),
            y=(64,),
        )
    )
    assert "for e in range(0, min(64, items[0] * 8), 4):\n    for v in vector(4):" in body(whole)
    ragged = bound_items(
        program(
            """
            for e in range(0, 48, 4):
                for v in vector(4):
                    y[e + v] = x[e + v] * 2.0
            """,
            x=(48,),
            y=(48,),
        )
    )
    assert "for e in range(0, min(48, items[0] * 6), 4):\n    for v in vector(4):" in body(ragged)
    assert np.array_equal(results(ragged, 3, x=X)["y"][:18], 2 * X[:3].ravel())
    added = bound_items(
        program(
            """
            for k in range(1):
                t_lanes: float32[4] = empty(4)
                for v in vector(4):
                    t_lanes[v] = 0.0
                for e in range(0, 48, 4):
                    for v in vector(4):
                        t_lanes[v] += x[e + v]
                for v in range(4):
                    g[0] += t_lanes[v]
            """,
            x=(48,),
            g=(1,),
        )
    )
    assert "for v in vector(min(4, items[0] * 6 - e)):" in body(added)
    assert results(added, 3, x=X)["g"][0] == X[:3].sum()


def test_arrays_that_other_loops_read_again() -> None:
    made = bound_items(
        program(
            """
            for n in range(8):
                t[n] = 0.0
                for c in range(6):
                    t[n] += x[n, c]
            for m in range(8):
                g[0] += t[m]
            """,
            x=(8, 6),
            t=(8,),
            g=(1,),
        )
    )
    assert "for m in range(min(8, items[0])):" in body(made)
    assert results(made, 3, x=X)["g"][0] == X[:3].sum()


def test_chunks_of_a_sum_are_those_of_a_whole_batch() -> None:
    made = bound_items(
        program(
            """
            for p in parallel(4):
                for c in range(6):
                    t[p, c] = 0.0
                for u in range(2):
                    for c in range(6):
                        t[p, c] += x[p * 2 + u, c]
            for p in range(4):
                for c in range(6):
                    g[c] += t[p, c]
            """,
            x=(8, 6),
            t=(4, 6),
            g=(6,),
        )
    )
    assert "for p in parallel(4):" in body(made)  # each chunk is set to zero
    assert "for u in range(min(2, items[0] - p * 2)):" in body(made)
    for items in range(1, 9):
        assert np.array_equal(results(made, items, x=X)["g"], X[:items].sum(0))


def test_a_loop_that_runs_backwards() -> None:
    made = bound_items(
        program(
            """
            for n in range(8):
                for c in range(6):
                    g[c] += x[7 - n, c]
            """,
            x=(8, 6),
            g=(6,),
        )
    )
    assert np.array_equal(results(made, 3, x=X)["g"], X[:3].sum(0))


FIXED = {
    "another item": ("for n in range(7):\n    z[n] = x[n + 1, 0]", "belongs|meet|items"),
    "an item by number": ("for n in range(8):\n    z[n] = x[3, 0]", "names an item"),
    "a parameter by item": ("for n in range(8):\n    z[n] = g[n]", "chosen by the item's number"),
    "looked up": ("for n in range(8):\n    z[n] = x[label[n], 0]", "depends on data|belongs"),
    "set for each item": ("for n in range(8):\n    t[n * 2] = x[n, 0]\ng[0] = t[5]", "names an item|is set"),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_is_right_for_whole_batches_alone(name: str) -> None:
    text, reason = FIXED[name]
    given = program(text, x=(8, 6), z=(8,), g=(8,), t=(16,), label=(8,))
    made = bound_items(given)
    assert made.text == given.text
    assert any(part in made.fixed for part in reason.split("|")), made.fixed
    assert bound_items(made) is made


MOMENTS = """
    for k in range(1):
        m[0] = 0.0
        for n in range(8):
            for c in range(6):
                m[0] += x[n, c]
        m[0] = m[0] / float32(many[0])
        v[0] = 0.0
        for n in range(8):
            for c in range(6):
                v[0] += (x[n, c] - m[0]) * (x[n, c] - m[0])
        v[0] = v[0] / float32(many[0])
"""


@pytest.mark.parametrize("images", [1, 2, 4])
def test_moments_of_the_items_that_there_are(images: int) -> None:
    made = program(MOMENTS, x=(8, 6), m=(1,), v=(1,), many=(1,))
    many = replace(ITEMS, name="net.many", formula="(items * 6)")
    made = replace(made, buffers={**made.buffers, "many": many})
    if images > 1:
        made = COMMANDS["tile_loop"](made, "n", images)
    made = COMMANDS["moments"](made, "n_outer" if images > 1 else "n")
    made = bound_items(made)
    assert not made.fixed, made.fixed
    name = next(own for own, buffer in made.buffers.items() if buffer.formula == "items")
    for items in range(1, 9):
        arrays = {"x": X.copy(), "m": np.zeros(1, np.float32), "v": np.zeros(1, np.float32)}
        arrays["x"][items:] = np.nan
        arrays |= {"many": np.array([6 * items], np.int32), name: np.array([items], np.int32)}
        execute(made, arrays, checking=True)
        assert arrays["m"][0] == pytest.approx(X[:items].mean(), rel=1e-5, abs=1e-5)
        assert arrays["v"][0] == pytest.approx(X[:items].var(), rel=1e-5)


def test_a_mean_of_another_number_of_elements_is_no_mean() -> None:
    text = MOMENTS.replace("float32(many[0])", "48.0")  # of a whole batch
    with pytest.raises(Refused, match="no later sum adds squared differences"):
        COMMANDS["moments"](program(text, x=(8, 6), m=(1,), v=(1,)), "n")


def test_factors_of_sums_over_items() -> None:
    text = "for n in range(8):\n    for c in range(6):\n        g[0] += a[0] * (x[n, c] - a[0]) * a[0]"
    made = COMMANDS["factor"](program(text, x=(8, 6), a=(1,), g=(1,)), "n")
    assert "has counted" in made.fixed
    made = COMMANDS["factor"](program(text, x=(8, 6), a=(1,), g=(1,)), "n", keep_differences=True)
    assert not bound_items(made).fixed


@pytest.mark.parametrize(
    ("formula", "value"), [("items", 3.0), ("(items * 4)", 12.0), ("((0.5 * items) / max((items - 1), 1))", 0.75)]
)
def test_formulas(formula: str, value: float) -> None:
    assert value_of(formula, 3) == value


LOWERED = {
    "a sum": ("for n in range(8):\n    g[0] += x[n, 0]", ""),
    "the number of the item": ("for n in range(8):\n    z[n] = x[n, 0] + n", "the item's number"),
    "as many iterations": ("for k in range(8):\n    g[0] = g[0] * 0.5", "as many iterations"),
    "the same for each item": ("for n in range(8):\n    z[n] = x[n, 0]\n    g[0] += 1.0", "the same for each item"),
    "by a condition": ("for n in range(8):\n    if x[n, 0] > 0.0:\n        g[0] += 1.0", ""),
    "a part of the batch": ("for n in range(4):\n    z[n] = x[n, 0]", "not over all items"),
    "items by items": ("for n in range(8):\n    for m in range(8):\n        g[0] += x[n, 0] * x[m, 0]", "item"),
}


@pytest.mark.parametrize("name", LOWERED)
def test_what_is_known_of_a_body(name: str) -> None:
    text, reason = LOWERED[name]
    made = for_any_number(program(text, x=(8, 6), z=(8,), g=(1,)), 8)
    assert bool(made.fixed) == bool(reason) and reason in made.fixed
