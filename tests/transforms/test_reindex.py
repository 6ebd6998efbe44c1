"""reindex (scatter → gather) and pack: nests printed, the same results exactly, the same bits from C++, bad
arguments."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.errors import CommandError, Refused
from swirl.ir.nest import Program
from swirl.target.targets import Target
from swirl.transforms import COMMANDS
from tests.support import assert_all_compile_to_same, assert_compiles_to_same, assert_same, program

reindex, pack = COMMANDS["reindex"], COMMANDS["pack"]


def scatter(extent: int, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> Program:
    """A one-dimensional convolution's gradient of its input, as it is derived."""
    outputs = (extent + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    assert outputs >= 1
    position = f"y * {stride} + {dilation} * k - {pad}"
    return program(
        f"""
for n in range(2):
    for i in range({extent}):
        g[n, i] = 0.0
    for y in range({outputs}):
        for k in range({kernel}):
            if {position} >= 0 and {position} < {extent}:
                g[n, {position}] += d[n, y] * w[k]
""",
        g=(2, extent),
        d=(2, outputs),
        w=(kernel,),
    )


def gathered(before: Program, stride: int, pad: int, dilation: int) -> Program:
    return reindex(before, iy=f"y * {stride} + {dilation} * k - {pad}")


SHAPES = [
    (extent, kernel, stride, pad, dilation)
    for extent in (1, 7, 15, 16, 17)
    for kernel, stride, pad, dilation in [
        (1, 1, 0, 1),
        (3, 1, 1, 1),
        (3, 2, 1, 1),
        (3, 3, 0, 1),
        (4, 2, 3, 1),
        (1, 2, 0, 1),
        (3, 1, 2, 2),
        (2, 3, 1, 2),
    ]
    if extent + 2 * pad > (kernel - 1) * dilation
]


def clipped(extent: int, kernel: int, pad: int) -> Program:
    """The same gradient of stride 1, with loops that leave out what is beyond the borders."""
    outputs = extent + 2 * pad - kernel + 1
    return program(
        f"""
for n in range(2):
    for k in range({kernel}):
        for y in range(max(0, {pad} - k), min({outputs}, {extent + pad} - k)):
            g[n, y + k - {pad}] += d[n, y] * w[k]
""",
        g=(2, extent),
        d=(2, outputs),
        w=(kernel,),
    )


@pytest.mark.parametrize(("extent", "kernel", "pad"), [(7, 3, 1), (17, 5, 2), (1, 1, 0), (16, 3, 0), (5, 4, 3)])
def test_bounds_that_are_extremes(extent: int, kernel: int, pad: int, target: Target) -> None:
    """The new loop has the iterations that the array has, and conditions are as those of loops with constant bounds."""
    before = clipped(extent, kernel, pad)
    after = assert_same(before, reindex(before, "y", iy=f"y + k - {pad}"))
    text = after.nests[0].body_text
    assert f"for iy in range({extent})" in text and "min(" not in text and "max(" not in text, text
    assert_compiles_to_same(after, target)


def test_prints(snapshot: SnapshotAssertion) -> None:
    shown = [
        gathered(scatter(9, 3, 1, 1), 1, 1, 1),
        gathered(scatter(9, 3, 2, 1), 2, 1, 1),
        reindex(scatter(9, 3, 2, 1), "k", tap="y * 2 + k"),
    ]
    assert snapshot == "\n\n".join(item.text for item in shown)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scatter_becomes_a_gather_that_computes_the_same(shape: tuple[int, int, int, int, int]) -> None:
    before = scatter(*shape)
    after = assert_same(before, gathered(before, *shape[2:]))
    assert_same(before, COMMANDS["parallelize"](after, "iy"))  # an element belongs to one iteration
    assert "g[n, iy] +=" in after.text


@pytest.mark.parametrize("stride", [2, 3])
def test_residue_classes_of_a_stride_are_decided_statically(stride: int) -> None:
    before = scatter(17, 3, stride, 1)
    after = COMMANDS["tile_loop"](gathered(before, stride, 1, 1), "iy", stride)
    after = COMMANDS["interchange"](after, ["iy_outer", "iy_inner"]) if 17 % stride == 0 else after
    after = COMMANDS["unroll"](after, "k", 3, unroll_type=1)
    assert_same(before, after)


def test_the_loop_to_be_replaced_can_be_named() -> None:
    before = scatter(9, 3, 2, 1)
    assert_same(before, reindex(before, "k", tap="y * 2 + k"))
    assert_same(before, reindex(before, "y", back="7 - y"))
    assert_same(before, reindex(before, "y", back="k - 2 * y"))


def test_an_order_that_matters_is_kept() -> None:
    before = program("for i in range(6):\n x[i + 1] = x[i] * 2.0", x=(7,))
    with pytest.raises(Refused, match="a dependence would be reversed") as caught:
        reindex(before, back="5 - i")
    assert "i=0 writes x[1], which i=1 reads" in str(caught.value)
    assert_same(before, reindex(before, later="i + 3"))


def test_conditions_between_the_loops() -> None:
    before = program(
        """
for y in range(5):
    for x in range(6):
        for i in range(3):
            if 0 <= y + i - 1 and y + i - 1 < 5:
                for j in range(3):
                    if x + j >= 1:
                        if x + j < 7:
                            g[y + i - 1, x + j - 1] += d[y, x] * w[i, j]
""",
        d=(5, 6),
        g=(5, 6),
        w=(3, 3),
    )
    across = assert_same(before, reindex(before, ix="x + j - 1"))
    assert "for ix in range(6)" in across.text and "g[y + i - 1, ix]" in across.text, across.text
    both = assert_same(before, reindex(across, iy="y + i - 1"))
    assert "g[iy, ix] +=" in both.text, both.text
    declared = program(
        """
for y in range(4):
    for x in range(6):
        for i in range(3):
            if y + i >= 1:
                for j in range(3):
                    v: float32 = d[y, x] * w[i, j]
                    g[y + i - 1, x + j] += v
""",
        d=(4, 6),
        g=(6, 8),
        w=(3, 3),
    )
    assert "g[y + i - 1, ix] += v" in assert_same(declared, reindex(declared, ix="x + j")).text
    beside = program(
        """
for x in range(6):
    for j in range(3):
        g[x + j] += d[x]
    if x == 0:
        for j in range(3):
            h[j] = 0.0
""",
        d=(6,),
        g=(8,),
        h=(3,),
    )
    assert "g[ix] +=" in assert_same(beside, reindex(beside, ix="x + j")).text
    data = program(
        """
for x in range(6):
    if f[x] > 0.0:
        for j in range(3):
            g[x + j] += d[x]
""",
        d=(6,),
        f=(6,),
        g=(8,),
    )
    with pytest.raises(Refused, match="the loops of the expression are not perfectly nested"):
        reindex(data, ix="x + j")


def test_loops_of_the_expression_are_brought_together() -> None:
    before = program(
        """
for y in range(5):
    a[y] = d[y] * 2.0
    for k in range(3):
        g[y + k] += d[y] * w[k]
""",
        a=(5,),
        d=(5,),
        g=(7,),
        w=(3,),
    )
    after = assert_same(before, reindex(before, iy="y + k"))
    assert "for iy in range(7)" in after.text and "for y in range(5)" in after.text
    needed = program(
        """
for y in range(5):
    t: float32 = d[y] * 2.0
    for k in range(3):
        g[y + k] += t * w[k]
""",
        d=(5,),
        g=(7,),
        w=(3,),
    )
    with pytest.raises(Refused, match="not perfectly nested"):
        reindex(needed, iy="y + k")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "reindex takes one new loop, not 0"),
        ((), {"iy": "y +"}, "'y +' is not an affine expression of loops"),
        ((), {"iy": "y * k"}, "is not an affine expression of loops"),
        ((), {"iy": "y + z"}, "names z, which is not a loop"),
        ((), {"iy": "4"}, "names no loop"),
        ((), {"k": "y + 1"}, "'k' cannot name the new loop"),
        ((), {"g": "y + 1"}, "'g' cannot name the new loop"),
        (("y",), {"iy": "y // 2 + k"}, "cannot be solved for y"),
        (("n",), {"iy": "y + k"}, "cannot be solved for n"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], options: dict[str, str], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        reindex(scatter(7, 3), *arguments, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [(17, 3, 1, 1, 1), (16, 3, 2, 1, 1), (15, 2, 3, 1, 2)], ids=str)
def test_compiles_to_the_same_bits(shape: tuple[int, int, int, int, int], target: Target) -> None:
    after = gathered(scatter(*shape), *shape[2:])
    made = [after, COMMANDS["unroll"](after, "k", shape[1], unroll_type=1)]
    if target.simd_width:
        inside = COMMANDS["interchange"](after, ["iy", "k"])
        made.append(COMMANDS["vectorize"](inside, "iy", target.simd_width, strided="gather"))
    assert_all_compile_to_same(made, target)


# --- pack -----------------------------------------------------------------------------------------------
def product(rows: int, columns: int) -> Program:
    return program(
        f"for i in range({rows}):\n y[i] = 0.0\n for j in range({columns}):\n  y[i] += w[i, j] * x[j]",
        w=(rows, columns),
        x=(columns,),
        y=(rows,),
    )


def test_pack_prints(snapshot: SnapshotAssertion) -> None:
    assert snapshot == COMMANDS["tile"](pack(product(5, 3), "w"), "w_packed", 0, 4).text


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 3), (16, 17), (17, 15)])
def test_packed_computes_the_same(rows: int, columns: int) -> None:
    before = product(rows, columns)
    after = assert_same(before, pack(before, "w", name="copy"))
    assert after.buffers["copy"].role == "temporary" and "w[i, j] * x" not in after.text
    blocked = COMMANDS["tile"](after, "copy", 0, 16)
    assert_same(before, blocked)


def test_packed_compiles_to_the_same_bits(target: Target) -> None:
    width = target.simd_width or 4
    for rows in (1, width - 1, width, width + 1):
        after = COMMANDS["tile"](pack(product(rows, 3), "w"), "w_packed", 0, width)
        assert_compiles_to_same(after, target)


def test_pack_refuses_what_is_written() -> None:
    with pytest.raises(Refused, match="y is written here, the copy would not be"):
        pack(product(3, 3), "y")
    with pytest.raises(CommandError, match="does not read 'v'"):
        pack(product(3, 3), "v")
    with pytest.raises(CommandError, match="'x' cannot name the copy"):
        pack(product(3, 3), "w", name="x")
