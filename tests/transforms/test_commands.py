"""Each command on small programs: the nests it prints, exactly the same results, and the same bits from its
C++."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import prod

import pytest
from syrupy.assertion import SnapshotAssertion

from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, loop_of, parse_program
from swirl.ir.validate import validate
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.passes.canonical import canonicalise
from swirl.transforms.passes.hoist import hoist
from swirl.transforms.passes.scalars import scalar_replace
from swirl.transforms.passes.tidy import tidy
from swirl.transforms.passes.whole_vectors import whole_vectors
from swirl.transforms.rewrites.loops.tile_sizes import combination
from swirl.transforms.rewrites.sites import find_loops, loop_at
from tests.support import assert_compiles_to_same, assert_same, changed, program, targets_in_turn
from tests.support import merged as side_by_side

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31)

# Buffers get shapes in which E is the extent; p distinguishes the buffers of several copies.
PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "map": (
        """
for j in range(3):
    for i in range(E):
        y_p[j, i] = x_p[j, i] * 2.0 + w_p[j]
""",
        {"y": "3, E", "x": "3, E", "w": "3"},
    ),
    "sum": (
        """
for j in range(3):
    for i in range(E):
        s_p[j] += x_p[j, i] * w_p[i]
""",
        {"s": "3", "x": "3, E", "w": "E"},
    ),
    "largest": (
        """
for j in range(3):
    for i in range(E):
        s_p[j] = max(s_p[j], x_p[j, i])
""",
        {"s": "3", "x": "3, E"},
    ),
    "local": (
        """
for j in range(2):
    for i in range(E):
        t: float32 = 0.0
        for k in range(4):
            t += x_p[k, i] * w_p[j, k]
        y_p[j, i] = t
""",
        {"y": "2, E", "x": "4, E", "w": "2, 4"},
    ),
    "guard": (
        """
for j in range(2):
    for i in range(E):
        if i > 0 and j < 1:
            y_p[j, i] = x_p[j, i - 1]
        else:
            y_p[j, i] = x_p[j, i] / 4.0
""",
        {"y": "2, E", "x": "2, E"},
    ),
    "start": (
        """
for j in range(2):
    for i in range(2, E + 2):
        y_p[j, i] += x_p[j, i - 2]
""",
        {"y": "2, E + 2", "x": "2, E"},
    ),
    "window": (
        """
for j in range(2):
    for i in range(E):
        for k in range(max(0, 1 - i), min(3, E + 1 - i)):
            y_p[j, i] += x_p[j, i + k - 1] * w_p[k]
""",
        {"y": "2, E", "x": "2, E", "w": "3"},
    ),
    "nest": (
        """
for j in range(2):
    m_p[j] = m_p[j] / 2.0
    for i in range(E):
        m_p[j] += x_p[j, i]
        for k in range(3):
            y_p[j, k] += x_p[j, i] * w_p[k]
    for i in range(E):
        z_p[j, i] = (x_p[j, i] - m_p[j]) / sqrt(w_p[j] * w_p[j] + 1.0)
""",
        {"m": "2", "x": "2, E", "y": "2, 3", "z": "2, E", "w": "3"},
    ),
    "pair": (
        """
for j in range(2):
    for i in range(E):
        y_p[j, i] = x_p[j, i] + 1.0
for j in range(2):
    for i in range(E):
        z_p[j, i] = y_p[j, i] * x_p[j, i]
""",
        {"y": "2, E", "z": "2, E", "x": "2, E"},
    ),
}


def make(name: str, extent: int) -> Program:
    text, shapes = PROGRAMS[name]
    for old, new in (("E + 2", extent + 2), ("E + 1", extent + 1), ("E", extent), ("_p", f"_{name}{extent}")):
        text = text.replace(old, str(new))
    buffers = {}
    for key, shape in shapes.items():
        extents = tuple(eval(part, {"E": extent}) for part in shape.split(","))
        assert prod(extents) > 0
        buffers[f"{key}_{name}{extent}"] = Buffer(f"net.{key}_{name}{extent}", extents, role="state")
    return validate(parse_program(text, buffers, f"{name}{extent}"))


@dataclass(frozen=True)
class Use:
    """A command with arguments, and the programs that it is tried on."""

    label: str
    apply: Callable[[Program], Program]
    programs: tuple[str, ...]


def use(label: str, *arguments: object, on: str, name: str | None = None, **options: object) -> Use:
    command = COMMANDS[name or label]
    return Use(label, lambda program: command(program, *arguments, **options), tuple(on.split()))


def tiled(name: str, largest: int) -> Callable[[Program], Program]:
    """A command with the combination of tiles that fits the loop ``i``."""

    def apply(program: Program) -> Program:
        extent = loop_of(loop_at(program, find_loops(program, "i")[0])).extent
        assert extent is not None
        return COMMANDS[name](program, "i", combination(extent, largest))

    return apply


ALL = "map sum largest local guard start window nest pair"
USES = [
    use("tile_loop", "i", 4, on=ALL),
    use("tile_loop mask", "i", 4, name="tile_loop", tail="mask", on=ALL),
    use("tile_loop peel", "i", 4, name="tile_loop", tail="peel", on=ALL),
    Use(
        "tile_loop twice",
        lambda p: COMMANDS["tile_loop"](COMMANDS["tile_loop"](p, "i", 6), "i_outer", 2),
        tuple(ALL.split()),
    ),
    use("interchange", ["i", "j"], on="map sum largest guard start window"),
    use("reorder", ["j", "i"], on="map sum largest guard start"),
    use("distribute", "j", on="nest"),
    use("fuse", "j", on="pair"),
    use("scalar_replace", on=ALL),
    use("hoist", on=ALL),
    use("hoist reciprocals", name="hoist", reciprocal=True, on=ALL),
    use("unroll", "i", 4, on="map sum largest local guard start window nest pair"),
    use("unroll shared", "i", 4, name="unroll", unroll_type=1, on=ALL),
    use("unroll_and_jam", "i", 4, on="map sum largest local guard start pair"),
    use("unroll_and_jam j", "j", 2, name="unroll_and_jam", on="map sum largest local guard start window pair"),
    Use("tile_loop parts", tiled("tile_loop", 4), tuple(ALL.split())),
    Use("unroll parts", tiled("unroll", 4), tuple(ALL.split())),
    Use(
        "unroll_and_jam parts", tiled("unroll_and_jam", 4), ("map", "sum", "largest", "local", "guard", "start", "pair")
    ),
    use("reverse", "i", on=ALL),
    use("reverse j", "j", name="reverse", on=ALL),
    use("reverse second pass", "i", name="reverse", occurrence=-1, on="nest pair"),
    use("scalar_expand", "t", on="local"),
    use("scalar_expand j", "t", "j", name="scalar_expand", on="local"),
    Use(
        "scalar_expand, distribute",
        lambda p: COMMANDS["distribute"](COMMANDS["scalar_expand"](p, ["t"]), "i"),
        ("local",),
    ),
    use("distribute recompute", "j", name="distribute", recompute=True, on="nest"),
    use("vectorize", "i", 8, on="map sum largest local guard start pair"),
    use("vectorize gather", "j", 2, name="vectorize", strided="gather", on="map sum guard start pair local"),
    use("parallelize", "j", on=ALL),
    use("parallelize i", "i", name="parallelize", on="map local guard start pair window"),
    Use("canonicalise", canonicalise, tuple(ALL.split())),
    Use("tidy", tidy, tuple(ALL.split())),
    Use(
        "whole_vectors",
        lambda p: whole_vectors(tidy(COMMANDS["vectorize"](p, "i", 4))),
        ("map", "sum", "largest", "local", "guard", "start", "pair"),
    ),
    Use(
        "recipe",
        lambda p: hoist(scalar_replace(tidy(COMMANDS["unroll"](COMMANDS["vectorize"](p, "i", 8), "i", 4)))),
        ("map", "sum", "largest", "local", "guard", "pair"),
    ),
    Use(
        "register tile",
        lambda p: hoist(scalar_replace(tidy(COMMANDS["vectorize"](COMMANDS["unroll_and_jam"](p, "j", 2), "i", 8)))),
        ("map", "sum", "local", "guard", "pair"),
    ),
]


def split_uses(extent: int) -> list[Use]:
    """Cuts that lie inside the range."""
    return [use("split", "i", [extent // 2], on=ALL), use("split", "i", [1, extent - 1], on=ALL)] if extent > 2 else []


@pytest.mark.parametrize("use", USES, ids=lambda use: use.label)
def test_prints(use: Use, snapshot: SnapshotAssertion) -> None:
    """What it makes of the first three programs that it changes; that all mean the same is tested below."""
    made = (make(name, 7) for name in use.programs)
    texts = filter(None, (changed(before, use.apply(before)) for before in made))
    assert snapshot == "\n\n".join(islice(texts, 3))


@pytest.mark.parametrize("use", USES, ids=lambda use: use.label)
def test_computes_exactly_the_same(use: Use) -> None:
    for name in use.programs:
        for seed, extent in enumerate(EXTENTS):
            before = make(name, extent)
            assert_same(before, use.apply(before), seeds=(seed,))


@pytest.mark.parametrize("extent", EXTENTS[2:])
def test_split_computes_exactly_the_same(extent: int) -> None:
    for use in split_uses(extent):
        for name in use.programs:
            if name != "start":
                before = make(name, extent)
                assert_same(before, use.apply(before))


def test_split_prints(snapshot: SnapshotAssertion) -> None:
    assert snapshot == "\n\n".join(COMMANDS["split"](make(name, 7), "i", [1, 4]).text for name in ("guard", "window"))


def merged(programs: list[Program]) -> Program:
    """One program that does what several do, one after the other: one kernel to compile."""
    buffers = {key: buffer for program in programs for key, buffer in program.buffers.items()}
    return Program("merged", tuple(nest for program in programs for nest in program.nests), buffers)


LANES = ("vectorize", "whole_vectors", "recipe", "register tile")
IN_TURN = targets_in_turn()
COMPILED = [
    pytest.param(use, name, id=f"{name}-{use.label}")
    for use in USES
    if use.label not in ("reorder", "distribute", "hoist", "tidy")
    for name in (sorted(TARGETS) if use.label.startswith((*LANES, "unroll")) else [next(IN_TURN)])
]
"""Each use, on every target if it makes lanes or unrolls: otherwise all targets get the same C++."""


@pytest.mark.parametrize(("use", "target"), COMPILED, indirect=["target"])
def test_compiles_to_the_same_bits(use: Use, target: Target) -> None:
    extents = (1, 7, 17) if "mask" in use.label or "peel" in use.label else (1, 8, 17)
    assert_compiles_to_same(
        merged([use.apply(make(name, extent)) for name in use.programs for extent in extents]), target
    )


@pytest.mark.parametrize("extent", [16, 20])
def test_tile_strip_mines_every_nest_that_uses_the_buffer(extent: int) -> None:
    before = program(
        f"""
for c in range({extent}):
    for n in range(3):
        s[c] += x[n, c]
for c in range({extent}):
    t[c] = 2.0 * s[c]
for n in range(3):
    for c in range({extent}):
        y[n, c] = x[n, c] - t[c]
""",
        s=(extent,),
        t=(extent,),
        x=(3, extent),
        y=(3, extent),
    )
    after = assert_same(before, COMMANDS["tile"](before, "x", 0, 16))
    assert ["c_inner" in nest.body_text for nest in after.nests] == [True, False, True]


def test_a_loop_that_runs_once_becomes_one_lane(target: Target) -> None:
    """With a batch of one image, or images of one pixel: what it writes need not differ from lane to lane."""
    made = []
    for body in ("  t = x[i]", "  t = t * x[i] + 1.0", "  if j == 2:\n   t = 3.0"):
        text = f"for j in range(3):\n t: float32 = 0.0\n for i in range(1):\n{body}\n z[j] = t"
        before = program(text, x=(1,), z=(3,))
        made.append(assert_same(before, COMMANDS["vectorize"](before, "i", 4)))
    before = program("for j in range(3):\n for i in range(1):\n  z[j] = x[j]", x=(3,), z=(3,))
    made.append(assert_same(before, COMMANDS["vectorize"](before, "i", 4)))
    assert_compiles_to_same(side_by_side(made), target)
