"""Private copies: what is printed, that results are exactly the same and never depend on threads, what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import cleandoc

import numpy as np
import pytest

from latte import ConvLayerNoBias, MemoryDataLayer, Net
from swirl.codegen.emit import emit
from swirl.errors import CommandError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import arrays_for, run_source
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, difference, program

EXTENTS = (1, 2, 3, 7, 8, 13, 16, 17)


def sums(images: int = 7, operation: str = "dw[k, y % 2] += x[n, k, y]") -> Program:
    text = f"for n in range({images}):\n for k in range(3):\n  for y in range(5):\n   {operation}"
    return program(text, dw=(3, 2), x=(images, 3, 5))


def gradients(images: int = 5, filters: int = 4, size: int = 7) -> Program:
    """Weight gradients of a convolution, images outermost."""
    return program(
        f"""
for n in range({images}):
    for k in range({filters}):
        for c in range(3):
            for ky in range(3):
                for kx in range(3):
                    for y in range({size}):
                        for x in range({size}):
                            dw[k, c, ky, kx] += grad[n, k, y, x] * inputs[n, c, y + ky, x + kx]
""",
        dw=(filters, 3, 3, 3),
        grad=(images, filters, size, size),
        inputs=(images, 3, size + 2, size + 2),
    )


def temporary(rows: int = 4, columns: int = 9) -> Program:
    before = program(
        f"""
for i in range({rows}):
    for j in range({columns}):
        t[j] = x[i, j] * 2.0
    for j in range({columns}):
        y[i, j] = t[j] + t[{columns} - 1 - j]
""",
        t=(columns,),
        x=(rows, columns),
        y=(rows, columns),
    )
    return before.with_buffers(t=dataclasses.replace(before.buffers["t"], role="temporary"))


def private(before: Program, *arguments: str, **options: object) -> Program:
    return COMMANDS["privatize"](before, *arguments, **options)


def text_of(after: Program) -> str:
    return "\n".join(nest.body_text for nest in after.nests)


# --- printed --------------------------------------------------------------------------------------------
def test_prints_parts() -> None:
    assert text_of(COMMANDS["parallelize"](private(sums(), "dw", "n", copies=3), "n")) == cleandoc("""
        for n in parallel(0, 7, 3):
            for dw_private_zero0 in range(3):
                for dw_private_zero1 in range(2):
                    dw_private[n // 3, dw_private_zero0, dw_private_zero1] = 0.0
            for n_inner in range(min(3, 7 - n)):
                for k in range(3):
                    for y in range(5):
                        dw_private[n // 3, k, y % 2] += x[n + n_inner, k, y]
        for dw_private_dim0 in range(3):
            for dw_private_dim1 in range(2):
                for n_copy in range(3):
                    dw[dw_private_dim0, dw_private_dim1] += dw_private[n_copy, dw_private_dim0, dw_private_dim1]""")


def test_prints_a_copy_an_iteration_without_the_dimensions_that_stay() -> None:
    after = private(sums(), "dw", "y")
    assert after.buffers["dw_private"].shape == (5, 2)
    assert text_of(after) == cleandoc("""
        for n in range(7):
            for k in range(3):
                for y in range(5):
                    for dw_private_zero0 in range(2):
                        dw_private[y, dw_private_zero0] = 0.0
                    dw_private[y, y % 2] += x[n, k, y]
                for dw_private_dim0 in range(2):
                    for y_copy in range(5):
                        dw[k, dw_private_dim0] += dw_private[y_copy, dw_private_dim0]""")


def test_prints_a_local_array() -> None:
    assert text_of(COMMANDS["parallelize"](private(temporary(), "t", "i"), "i")) == cleandoc("""
        for i in parallel(4):
            t_private: float32[9] = empty(9)
            for j in range(9):
                t_private[j] = x[i, j] * 2.0
            for j in range(9):
                y[i, j] = t_private[j] + t_private[9 - 1 - j]""")


def test_the_work_space_is_a_buffer_of_the_program_laid_out_as_the_original() -> None:
    before = sums()
    before = before.with_buffers(dw=before.buffers["dw"].with_layout(Layout(((0, 2),))))
    copies = private(before, "dw", "n", copies=2).buffers["dw_private"]
    assert (copies.shape, copies.role, copies.layout.blocks) == ((2, 3, 2), "temporary", ((1, 2),))


# --- the same -------------------------------------------------------------------------------------------
OPERATIONS = [
    "dw[k, y % 2] += x[n, k, y]",
    "dw[k, y % 2] -= x[n, k, y]",
    "dw[k, y % 2] *= x[n, k, y]",
    "dw[k, y % 2] = max(dw[k, y % 2], x[n, k, y])",
    "dw[k, 0] = min(dw[k, 0], x[n, k, y])",
    "dw[1, 0] += x[n, k, y]",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("var", ["n", "k", "y"])
def test_computes_exactly_the_same(operation: str, var: str) -> None:
    before = sums(7, operation)
    for copies in (1, 2, 3, 8):
        after = assert_same(before, private(before, "dw", var, copies=copies))
        if var == "n":
            assert_same(before, COMMANDS["parallelize"](after, "n"))


@pytest.mark.parametrize("images", EXTENTS)
def test_any_number_of_iterations(images: int) -> None:
    before = sums(images)
    for copies in (1, 4, 8, 100):
        after = private(before, "dw", "n", copies=copies)
        assert after.buffers["dw_private"].shape[0] <= min(copies, images)
        assert_same(before, COMMANDS["parallelize"](after, "n"))


def test_loops_that_start_elsewhere() -> None:
    before = program("for n in range(2, 9):\n for k in range(3):\n  s[k] += x[n, k]", s=(3,), x=(9, 3))
    for copies in (2, 3, 7):
        assert_same(before, COMMANDS["parallelize"](private(before, "s", "n", copies=copies), "n"))


@pytest.mark.parametrize("columns", [1, 8, 9])
def test_temporaries(columns: int, target: Target) -> None:
    after = assert_same_without(temporary(4, columns), private(temporary(4, columns), "t", "i"))
    after = COMMANDS["parallelize"](after, "i")
    assert_same_without(temporary(4, columns), after)
    assert_compiles_to_same(after, target)


def test_a_temporary_that_is_read_where_it_is_filled() -> None:
    before = as_temporary(
        program(
            "for i in range(4):\n for j in range(3):\n  t[j] = x[i, j]\n  y[i, j] = t[j] * t[j]",
            t=(3,),
            x=(4, 3),
            y=(4, 3),
        )
    )
    assert_same_without(before, COMMANDS["parallelize"](private(before, "t", "i"), "i"))


def assert_same_without(before: Program, after: Program) -> Program:
    """The final contents of a temporary do not count."""

    found = difference(before, validate(after))
    assert found is None or found.startswith("t["), found
    return after


def tuned(before: Program, copies: int = 3) -> Program:
    after = COMMANDS["unroll_and_jam"](private(before, "dw", "n", copies=copies), "k", 2)
    after = COMMANDS["vectorize"](after, "x", 8)
    return hoist(scalar_replace(tidy(COMMANDS["parallelize"](after, "n"))))


@pytest.mark.parametrize("images", [1, 5, 6])
def test_weight_gradients(images: int) -> None:
    before = gradients(images)
    assert_same(before, tuned(before))


def test_weight_gradients_compile_to_the_same_bits(target: Target) -> None:
    assert_all_compile_to_same([tuned(gradients(images)) for images in (1, 5, 6)], target)


def test_results_do_not_depend_on_the_number_of_threads(target: Target) -> None:
    after = tuned(gradients(7), copies=4)
    arrays = arrays_for(after.buffers)
    source = emit(after, target)
    results = [run_source(source, arrays, target, contract=True, threads=threads)["dw"] for threads in (1, 2, 3, 4)]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_compiles_to_the_same_bits(target: Target) -> None:
    made = [private(sums(7, operation), "dw", "n", copies=3) for operation in OPERATIONS]
    assert_all_compile_to_same([COMMANDS["parallelize"](after, "n") for after in made], target)


def test_several_loops_become_one_parallel_range(target: Target) -> None:
    before = program(
        "for n in range(5):\n for k in range(3):\n  for i in range(4):\n   y[n, k] += x[n, k, i]", y=(5, 3), x=(5, 3, 4)
    )
    after = assert_same(before, COMMANDS["parallelize"](before, ["n", "k"], schedule="dynamic,1"))
    assert "collapse(2) schedule(dynamic,1)" in emit(after, target).source
    assert_compiles_to_same(after, target)


def test_the_outermost_loop_that_shares_elements_by_default() -> None:
    before = sums()
    assert text_of(private(before, "dw")) == text_of(private(before, "dw", "n"))
    text = "for k in range(3):\n for n in range(4):\n  s[k] += x[n, k]\nfor m in range(5):\n s[0] += x[0, m % 3]"
    two = program(text, s=(3,), x=(4, 3))
    after = assert_same(two, private(two, "s", copies=2))
    assert "for n in range(0, 4, 2)" in after.text and "for m in range(0, 5, 3)" in after.text
    with pytest.raises(CommandError, match="no loop accumulates into x"):
        private(before, "x")


def test_the_older_spelling_without_a_phase() -> None:
    results = []
    for asked in (False, True):
        net = Net(5, seed=1)
        conv = ConvLayerNoBias(net, MemoryDataLayer(net, (2, 4, 4)), num_filters=3, kernel=3, stride=1, pad=1)
        if asked:
            conv.privatize("grad_weights")
        net.compile()
        net.ensembles[0].set_value(np.random.default_rng(0).integers(-3, 4, (5, 2, 4, 4)))
        conv.set_grad(np.random.default_rng(1).integers(-3, 4, (5, 3, 4, 4)))
        net.forward()
        net.backward()
        results.append(conv.get_grad_weights())
    np.testing.assert_array_equal(*results)
    assert "applied  privatize('update', 'grad_weights')" in str(net.explain(conv))


# --- refusals -------------------------------------------------------------------------------------------
REFUSALS: dict[str, tuple[Callable[[], Program], str, str]] = {
    "the sum is read": (
        lambda: program("for n in range(4):\n s[0] += x[n]\n y[n] = s[0]", s=(1,), x=(4,), y=(4,)),
        "s n",
        """
        s is read in the loop that accumulates into it
            for n in range(4):
                s[0] += x[n]
                y[n] = s[0]    ← reads the sum so far
          distribute the loop first, or reindex so that each element belongs to one iteration""",
    ),
    "values that must remain": (
        lambda: program("for n in range(4):\n s[0] = x[n]\n y[n] = s[0]", s=(1,), x=(4,), y=(4,)),
        "s n",
        """
        s is assigned, and read by others: the last iteration's values must remain
            for n in range(4):    ← asked for private copies
                s[0] = x[n]
                y[n] = s[0]
          only a reduction or a temporary can be private""",
    ),
    "bounds": (
        lambda: program("for i in range(4):\n for n in range(i, 4):\n  s[0] += x[n]", s=(1,), x=(4,)),
        "s n",
        """
        the bounds of n are not constant
            for i in range(4):
                for n in range(i, 4):    ← asked for private copies
                    s[0] += x[n]
          privatize at a loop outside""",
    ),
    "inside a parallel loop": (
        lambda: COMMANDS["parallelize"](
            program("for i in range(4):\n for n in range(3):\n  s[i] += x[n]", s=(4,), x=(3,)), "i"
        ),
        "s n",
        """
        n is inside the parallel loop i, whose iterations would share the copies
            for i in parallel(4):
                for n in range(3):    ← asked for private copies
                    s[i] += x[n]
          privatize before parallelize""",
    ),
    "a temporary that is read first": (
        lambda: as_temporary(program("for i in range(4):\n y[i] = t[0]\n t[0] = x[i]", t=(1,), x=(4,), y=(4,))),
        "t i",
        """
        not proved that each iteration of i writes t before it reads it
            for i in range(4):
                y[i] = t[0]    ← touches t first
                t[0] = x[i]
          fill the temporary over its whole extent first""",
    ),
    "a temporary that is filled in part": (
        lambda: as_temporary(
            program("for i in range(4):\n for j in range(3):\n  t[j] = x[i]\n y[i] = t[i]", t=(4,), x=(4,), y=(4,))
        ),
        "t i",
        """
        not proved that each iteration of i writes t before it reads it
            for i in range(4):
                for j in range(3):
                    t[j] = x[i]    ← touches t first
                y[i] = t[i]
          fill the temporary over its whole extent first""",
    ),
    "a temporary that is read while it is filled": (
        lambda: as_temporary(
            program(
                "for i in range(4):\n for j in range(3):\n  t[j] = x[i]\n  y[i] += t[2 - j]", t=(3,), x=(4,), y=(4,)
            )
        ),
        "t i",
        """
        not proved that each iteration of i writes t before it reads it
            for i in range(4):
                for j in range(3):
                    t[j] = x[i]    ← touches t first
                    y[i] += t[2 - j]
          fill the temporary over its whole extent first""",
    ),
    "a temporary that others read": (
        lambda: as_temporary(
            program(
                "for i in range(4):\n t[0] = x[i]\n y[i] = t[0]\nfor k in range(1):\n z[k] = t[k]",
                t=(1,),
                x=(4,),
                y=(4,),
                z=(1,),
            )
        ),
        "t i",
        """
        t is used outside of the loop too
            for k in range(1):
                z[k] = t[k]    ← uses t
          fuse so that one loop holds all uses""",
    ),
}


def as_temporary(before: Program) -> Program:
    return before.with_buffers(t=dataclasses.replace(before.buffers["t"], role="temporary"))


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    make, arguments, expected = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        private(make(), *arguments.split())
    assert str(caught.value) == cleandoc(expected)


@pytest.mark.parametrize("update", ["m[0] = max(m[0], x[i])", "m[0] = min(m[0], x[i])", "m[0] += x[i]", "m[0] *= x[i]"])
def test_whole_numbers(update: str) -> None:
    buffers = {"m": Buffer("m", (1,), "int32"), "x": Buffer("x", (4,), "int32")}
    before = parse_program(f"for i in range(4):\n {update}", buffers)
    assert_same(before, private(before, "m", "i"))


def test_a_race_on_a_reduction_names_it() -> None:
    with pytest.raises(Refused) as caught:
        COMMANDS["parallelize"](sums(), "n")
    assert caught.value.way_out == (
        "parallelize('k'); privatize('dw', 'n') gives each part of the loop a copy to add to"
    )


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (lambda p: private(p, "w", "n"), "no buffer named 'w'"),
        (lambda p: private(p, "x", "n"), "the loop n does not write x"),
        (lambda p: private(p, "dw", "i"), "no loop named 'i'"),
        (lambda p: private(p, "dw", "n", copies=0), "copies must be a whole number of at least 1, not 0"),
        (lambda p: COMMANDS["parallelize"](p, ["n", 3]), "several loops are given as a list of names"),
    ],
)
def test_bad_arguments(rewrite: Callable[[Program], Program], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        rewrite(sums())
