"""long_sums: nests printed, exactly the same results, the same bits from its C++, the precision of very long sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    GroupNormLayer,
    LayerNormLayer,
    MemoryDataLayer,
    Net,
    PositionwiseLinearLayer,
)
from latte.ensemble import Ensemble
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.long_sums import LONG, long_sums
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from tests.support import assert_compiles_to_same, assert_same, program, running_targets

shortened = partial(long_sums, long=6, part=3)
EXTENTS = (1, 2, 3, 4, 7, 8, 17, 29)


def bias(e: int) -> Program:
    """A sum over three loops, in lanes."""
    made = program(
        f"""
for k in range(2):
    for n in range(3):
        for y in range({e}):
            for x in range(9):
                b[k, 0] += g[n, k, y, x]
""",
        b=(2, 1),
        g=(3, 2, e, 9),
    )
    return tidy(COMMANDS["vectorize"](made, "x", 4))


def rows(e: int) -> Program:
    """Sums side by side, one that subtracts, one under a condition; terms use a local."""
    made = program(
        f"""
for n in range({e}):
    scale: float32 = 1.0 + w[n] * w[n]
    for f in range(11):
        b[f] += g[n, f]
        a[f] -= g[n, f] * scale
        if g[n, f] > 0.0:
            c[f] += g[n, f]
""",
        a=(11,),
        b=(11,),
        c=(11,),
        g=(e, 11),
        w=(e,),
    )
    return tidy(COMMANDS["vectorize"](made, "f", 4))


def copies(e: int) -> Program:
    """A register tile: copies and lanes of sums, from a loop that starts at 2 and counts by threes."""
    made = program(
        f"""
for k in range(6):
    for i in range({e}):
        b[k] += x[i] * w[i, k]
for i in range(2, {3 * e + 2}, 3):
    s[0] += y[i]
""",
        b=(6,),
        s=(1,),
        x=(e,),
        w=(e, 6),
        y=(3 * e + 2,),
    )
    made = COMMANDS["reorder"](COMMANDS["vectorize"](made, "k", 2), ["i", "k_lane"])
    return tidy(COMMANDS["unroll_and_jam"](made, "k", 3))


def moving(e: int) -> Program:
    """Loops whose bounds move: every third element, from the first, second and third on; a triangle; a band."""
    return program(
        f"""
for j in range(3):
    for i in range(j, {3 * e + 1}, 3):
        s[0] += x[i]
for j in range({e}):
    for i in range(j + 1):
        t[j] += x[i]
for j in range({e}):
    for i in range(max(0, j - 4), min({e}, j + 5)):
        t[j] += y[i]
""",
        s=(1,),
        t=(e,),
        x=(3 * e + 1,),
        y=(e,),
    )


CASES: dict[str, Callable[[int], Program]] = {"bias": bias, "rows": rows, "copies": copies, "moving": moving}


@pytest.mark.parametrize("name", CASES)
def test_printed(name: str, snapshot: SnapshotAssertion) -> None:
    assert shortened(CASES[name](17)).text == snapshot


@pytest.mark.parametrize("e", EXTENTS)
@pytest.mark.parametrize("name", CASES)
def test_computes_the_same(name: str, e: int, target: Target) -> None:
    before = CASES[name](e)
    after = assert_same(before, shortened(before))
    for rewrite in (scalar_replace, hoist, whole_vectors):
        after = rewrite(after)
    assert_compiles_to_same(after, target)


def test_parts_where_bounds_move(target: Target) -> None:
    before = moving(41)
    after = assert_same(before, long_sums(before, long=20, part=8))
    assert {"s_part", "t_part"} <= set().union(*(nest.names for nest in after.nests))
    assert_compiles_to_same(hoist(scalar_replace(after)), target)


def test_parts_of_whole_vectors_and_of_a_last_one_with_fewer_lanes(target: Target) -> None:
    before = program(
        """
for y in range(41):
    for x in range(3):
        for lane in vector(4):
            s[lane] += g[y, x * 4 + lane]
    for lane in vector(3):
        s[lane] += g[y, 12 + lane]
""",
        s=(4,),
        g=(41, 15),
    )
    after = assert_same(before, long_sums(before, long=20, part=8))
    assert "s_part" in after.nests[0].names
    assert_compiles_to_same(hoist(scalar_replace(after)), target)


@pytest.mark.parametrize("name", CASES)
def test_short_sums_stay_as_they_are(name: str) -> None:
    before = CASES[name](17)
    assert long_sums(before).text == before.text


@pytest.mark.parametrize(
    "text",
    [
        "for n in range(40):\n    s[0] += x[n]\n    y[n] = s[0]",  # used meanwhile
        "for n in range(40):\n    s[0] += x[n]\n    s[0] = max(s[0], 1.0)",  # changed otherwise
        "for n in range(40):\n    s[k[n]] += x[n]",  # the element depends on data
        "for n in range(40):\n    k[0] += k[n]",  # in whole numbers
        "for n in range(3):\n    for m in range(k[n]):\n        s[n] += x[n]",  # bounds from data
        "for n in range(40):\n    y[n] += x[n]",  # not a sum
    ],
)
def test_what_is_left(text: str) -> None:
    buffers = {name: Buffer(f"net.{name}", (40,)) for name in ("s", "x", "y")}
    before = parse_program(text, {**buffers, "k": Buffer("net.k", (40,), "int32")})
    assert shortened(before).text == before.text


@pytest.mark.parametrize("count", [LONG, LONG + 1, 40_001, 8_000_003])
def test_each_term_goes_through_few_additions(count: int) -> None:
    after = long_sums(program(f"for n in range({count}):\n    s[0] += x[n]", s=(1,), x=(count,)))
    ends = [line.split("range(")[1].split(")")[0].split(", ") for line in after.text.splitlines() if "range(" in line]
    lengths = [len(range(*map(int, end))) for end in ends]
    assert max(lengths) <= LONG
    assert ("s_part" in after.text) == (count > LONG)


def conv(net: Net, source: Ensemble) -> Ensemble:
    return ConvLayer(net, source, num_filters=2, kernel=3, pad=1)


LAYERS: dict[str, tuple[Callable[[Net, Ensemble], Ensemble], int, tuple[int, ...], str]] = {
    "convolution": (conv, 3, (1, 1300, 1711), "bias"),
    "fully connected": (lambda net, source: FullyConnectedLayer(net, source, 19), 299_993, (1,), "bias"),
    "positionwise": (lambda net, source: PositionwiseLinearLayer(net, source, 5), 7, (43_001, 1), "bias"),
    "batch norm": (BatchNormLayer, 3, (1, 1300, 1711), "beta"),
    "group norm": (lambda net, source: GroupNormLayer(net, source, 1), 3, (1, 1300, 1711), "beta"),
    "layer norm": (LayerNormLayer, 5, (61_003, 5), "beta"),
}


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in LAYERS for target in running_targets(vectors=True)]
)
def test_gradients_of_layers(name: str, target: str) -> None:
    """Each term of this constant rounds in the same direction, for as long as the sum has the same exponent."""
    make, batch, shape, parameter = LAYERS[name]
    net = Net(batch, seed=1)
    source = MemoryDataLayer(net, shape)
    layer = make(net, source)
    net.compile(target=target)
    net.forward()
    given = np.full((batch, *layer.shape), 0.1, np.float32)
    layer.set_grad(given)
    net.backward()
    found = np.asarray(getattr(layer, f"get_grad_{parameter}")(), np.float64).ravel()
    axes = (0, 1) if name in ("positionwise", "layer norm") else (0, *range(2, given.ndim))
    right = given.sum(axes, np.float64)
    assert np.abs(found - right).max() <= 1e-4 * right.max()
