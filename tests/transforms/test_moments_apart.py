"""moments of rows, kept apart and combined afterwards: joined with the loop that makes the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.codegen.emit import emit
from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from tests.codegen.conftest import run_source
from tests.support import assert_compiles_to_same, assert_same_expanded, merged, program

EXTENTS = (1, 2, 3, 7, 8, 9, 17)
VARIANTS: tuple[dict[str, Any], ...] = (
    {"inner": "h"},
    {"inner": "w"},
    {"apart": True},
    {"inner": "h", "apart": True},
    {"inner": "w", "apart": True},
)
moments: Callable[..., Program] = COMMANDS["moments"]


def made(n: int, c: int, h: int, w: int) -> Program:
    """A nest that makes data, and the definition of their statistics for batch norm."""
    return program(
        f"""
for n in range({n}):
    for c in range({c}):
        for y in range({h}):
            for x in range({w}):
                z[n, y, x, c] = a[n, y, x, c] + bias[c]
for c in range({c}):
    m[c] = 0.0
    for n in range({n}):
        for h in range({h}):
            for w in range({w}):
                m[c] += z[n, h, w, c]
    m[c] = m[c] / {n * h * w}.0
    v[c] = 0.0
    for n in range({n}):
        for h in range({h}):
            for w in range({w}):
                v[c] += (z[n, h, w, c] - m[c]) * (z[n, h, w, c] - m[c])
    v[c] = v[c] / {n * h * w}.0
""",
        m=(c,),
        v=(c,),
        a=(n, h, w, c),
        z=(n, h, w, c),
        bias=(c,),
    )


def joined(before: Program) -> Program:
    """The moments of a row after the row that is made."""
    run = COMMANDS
    after = run["distribute"](moments(before, "n", inner="h", apart=True), "c", nest=1)
    after = run["reorder"](after, ["n", "c"])
    for first, second in (("n", "n"), ("c", "c"), ("y", "h")):
        after = run["fuse"](after, first, second)
    return after


def vectors(after: Program, lanes: int) -> Program:
    after = COMMANDS["vectorize"](after, "c", lanes)
    return COMMANDS["unroll"](after, "w", 4)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_prints(options: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert snapshot == moments(made(3, 2, 5, 7), "n", **options).text


def test_prints_with_the_store(snapshot: SnapshotAssertion) -> None:
    assert snapshot == joined(made(3, 2, 5, 7)).text


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_computes_exactly_the_same(options: dict[str, Any]) -> None:
    for extent in EXTENTS:
        for shape in ((2, 2, 3, extent), (2, 2, extent, 2)):
            before = made(*shape)
            assert_same_expanded(before, moments(before, "n", **options))


def test_computes_exactly_the_same_with_the_store() -> None:
    for extent in EXTENTS:
        before = made(3, extent, 2, 3)
        after = assert_same_expanded(before, joined(before))
        assert_same_expanded(before, COMMANDS["parallelize"](vectors(after, 8), "n", nest=0))


def test_compiles_to_the_same_bits(target: Target) -> None:
    found = [moments(made(3, 2, 5, 7), "n", **options) for options in VARIANTS]
    found += [vectors(joined(made(2, channels, 3, 5)), 8) for channels in (1, 7, 8, 9, 17)]
    found += [vectors(joined(made(2, 9, 3, row)), 8) for row in (1, 4, 13)]
    assert_compiles_to_same(merged([hoist(scalar_replace(tidy(p))) for p in found]), target)


# --- precision --------------------------------------------------------------------------------------------
ROUNDING = 2.0**-24


@pytest.mark.parametrize(
    ("shape", "mean", "deviation"),
    [
        ((64, 3, 28, 28), 1e4, 1.0),
        ((64, 2, 56, 56), 0.5, 1.0),
        ((5, 17, 7, 7), -3e5, 1.0),
        ((3, 2, 5, 1), 1e4, 1e-2),
        ((2, 1, 1, 300), 1e4, 1.0),
    ],
)
def test_a_large_mean_costs_no_digits(
    shape: tuple[int, int, int, int], mean: float, deviation: float, target: Target
) -> None:
    """The bound that the command states, for rows made in the loop that stores them."""
    n, c, h, w = shape
    a = np.random.default_rng(3).normal(mean, deviation, (n, h, w, c)).astype(np.float32)
    arrays = {"a": a, "z": np.zeros_like(a)} | {name: np.zeros(c, np.float32) for name in ("m", "v", "bias")}
    after = vectors(joined(made(*shape)), target.simd_width)
    parts = {name: np.zeros(b.shape, np.float32) for name, b in after.buffers.items() if name not in arrays}
    got = run_source(emit(hoist(scalar_replace(tidy(after))), target), arrays | parts, target, contract=True)
    exact = a.astype(np.float64)
    expected = exact.var((0, 1, 2))
    first, inside = exact[:, :, :1], exact.var(2, keepdims=True)
    z2 = ((first - exact.mean(2, keepdims=True)) ** 2 / np.where(inside > 0, inside, 1.0)).max((0, 1, 2))
    terms = w / 4 + n + h + 8
    assert (abs(got["v"] - expected) <= terms * (1 + z2) * ROUNDING * expected).all()
    spread = abs(exact - first).mean((0, 1, 2)) + abs(first - first[:1, :1]).mean((0, 1, 2))
    mean_of = exact.mean((0, 1, 2))
    assert (abs(got["m"] - mean_of) <= abs(mean_of) * ROUNDING + terms * ROUNDING * spread).all()


# --- refusals ---------------------------------------------------------------------------------------------
def test_no_such_loop_inside() -> None:
    with pytest.raises(CommandError, match=r"x is not a loop inside n that adds up\n +these are h, w"):
        moments(made(3, 2, 5, 7), "n", inner="x", nest=1)


def test_an_array_for_each_iteration_needs_its_number() -> None:
    tiled = COMMANDS["tile_loop"](made(3, 5, 2, 2), "c", 2, nest=1)
    with pytest.raises(Refused) as caught:
        moments(tiled, "n", apart=True, nest=1)
    assert caught.value.message == "c_inner does not count from 0 to a constant"
    assert caught.value.way_out == "leave apart=True out, or tile_loop after this command"
