"""AutoMCL's schedules for products: they compute the same, whatever the sizes, the names and the target."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.tools.tune.subjects import Tunable, tunables
from swirl.errors import CommandError
from swirl.ir.nest import Program, kind_of
from swirl.ir.paths import loops
from swirl.schedule.command_log import Recorded
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS, Target
from swirl.tune.automcl.complexity import DNMM, DNMM332, DPMM, LPMM, PRODUCTS, RPMM, RPMMV, TMM, TTMM
from swirl.tune.automcl.factors import Tiling, initial_space
from swirl.tune.automcl.loops import register_tile
from swirl.tune.automcl.products import product_recipe, product_subject
from swirl.tune.automcl.roles import product_of
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.prepared import prepared
from swirl.tune.problem import problem_of
from tests.support import assert_compiles_to_same, assert_same, merged, program, running_targets

AVX2, AVX512 = TARGETS["avx2"], TARGETS["avx512"]


def product_program(m: int, n: int, k: int, *, turned: bool = False) -> Program:
    """C = D · Wᵀ, as the paper has it; ``turned``: W[k, x]."""
    read = "W[z, x]" if turned else "W[x, z]"
    text = f"for y in range({m}):\n for x in range({n}):\n  for z in range({k}):\n   C[y, x] += D[y, z] * {read}"
    return program(text, C=(m, n), D=(m, k), W=(k, n) if turned else (n, k))


def made(schedule: str, tiling: Tiling, before: Program, target: Target = AVX2) -> Candidate:
    """What a schedule makes; it computes the same."""
    subject = Subject.alone(before, "forward", ("net.", "program."), target)
    found = subject.by(product_recipe(schedule, tiling, "forward"))
    assert_same(before, found.scheduled, seeds=(0,))
    return found


def tilings(schedule: str, m: int, n: int, k: int, threads: int, count: int) -> list[Tiling]:
    """Some of the initial space, always the same."""
    every = list(initial_space(schedule, m, k, n, threads))
    return Random(f"{schedule} {m} {n} {k}").sample(every, min(count, len(every)))


SIZES = [(13, 20, 7), (12, 32, 10), (1, 17, 9), (7, 1, 16), (5, 8, 1), (17, 33, 18)]


@pytest.mark.parametrize("schedule", PRODUCTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_schedule_computes_the_same_on_any_size(schedule: str, sizes: tuple[int, int, int]) -> None:
    odd = (PRODUCTS.index(schedule) + SIZES.index(sizes)) % 2
    (tiling,) = tilings(schedule, *sizes, 4, 1)
    made(schedule, tiling, product_program(*sizes, turned=bool(odd)), (AVX2, AVX512)[odd])


@pytest.mark.parametrize("name", running_targets())
def test_every_schedule_runs_on_every_target(name: str) -> None:
    target = TARGETS[name]
    sizes = 9, 2 * target.simd_width + 3, 11
    every = [
        made(schedule, tiling, product_program(*sizes), target).program
        for schedule in PRODUCTS
        for tiling in tilings(schedule, *sizes, 2, 1)
    ]
    assert_compiles_to_same(merged(every), target)


def structure(found: Program, nest: int = 0) -> list[str]:
    """The loops of a nest, from the outermost one inwards, along its first branch."""
    return [f"{kind_of(node)} {node.target.id}" for _, node in loops(found.nests[nest].body)]  # type: ignore[attr-defined]


def test_rpmm_has_the_loops_of_its_tiles_around_those_in_a_tile() -> None:
    found = made(RPMM, Tiling(2, 6, 1, 32, 12), product_program(24, 64, 24))
    assert structure(found.scheduled, 1)[:8] == [
        "parallel y_outer_outer",
        "parallel x_outer",
        "range y_outer_inner",
        "range z_outer",
        "range y_inner",
        "range x_inner_outer",
        "range x_inner_inner",
        "range z_inner",
    ]
    assert "W_packed[z_outer * 12 + z_inner, x_outer" not in found.program.text  # panels, not columns
    assert "W_packed[x_outer, z_outer * 12 + z_inner, " in found.program.text


def test_copies_have_vectors_but_for_that_of_rpmm() -> None:
    before = product_program(12, 32, 16)
    for schedule, copies in ((TMM, 0), (TTMM, 1), (DNMM, 0), (LPMM, 1), (RPMM, 0), (RPMMV, 1), (DPMM, 2)):
        found = made(schedule, Tiling(1, 6, 1, 16, 8), before).program
        copying = [nest for nest in found.nests if "packed" in nest.label]
        assert sum("vector(" in nest.text for nest in copying) == copies, schedule
        assert len(copying) == max(copies, schedule == RPMM)
        assert all("parallel(" in nest.text for nest in found.nests)


def test_lanes_along_the_sum_have_k_t_sums() -> None:
    found = made(DNMM332, Tiling(2, 4, 1, 8, 32), product_program(16, 16, 64)).program
    assert "_lanes_parts: float32[4, " in found.text  # four vectors of eight lanes
    assert "W[x" in found.text and "packed" not in found.text


@pytest.mark.parametrize(
    ("rows", "vectors", "registers", "wanted"),
    [(14, 2, 32, (14, 2)), (28, 2, 32, (14, 2)), (6, 2, 16, (6, 2)), (1, 64, 16, (1, 7)), (1, 1, 4, (1, 1))],
)
def test_register_tiles(rows: int, vectors: int, registers: int, wanted: tuple[int, int]) -> None:
    found = register_tile(rows, vectors, registers)
    assert found[0] * found[1] + found[1] + 1 <= registers
    assert found == wanted


def test_roles_follow_from_what_moves() -> None:
    def roles(text: str, **shapes: tuple[int, ...]) -> tuple[str, ...]:
        found = product_of(problem_of(program(text, **shapes), 8))
        return found.m, found.n, found.k, found.left, found.right, *found.outer, *found.sums

    text = "for a in range(4):\n for b in range(8):\n  for c in range(6):\n   o[a, b] += p[c, b] * q[a, c]"
    assert roles(text, o=(4, 8), p=(6, 8), q=(4, 6)) == ("a", "b", "c", "q", "p")
    batched = (
        "for g in range(2):\n for a in range(4):\n  for b in range(8):\n   for c in range(6):\n"
        "    for e in range(3):\n     o[g, a, b] += p[g, c, e, b] * q[g, a, c, e]"
    )
    shapes = {"o": (2, 4, 8), "p": (2, 6, 3, 8), "q": (2, 4, 6, 3)}
    assert roles(batched, **shapes) == ("a", "b", "c", "q", "p", "g", "e")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=str)
def test_the_recipe_that_is_shown_is_its_schedule(target: Target) -> None:
    recipe = read_recipe(Path(__file__).parents[3] / "examples/recipes/automcl/rpmmv.py")
    subject = product_subject(24, 128, 64, target)
    tiling = Tiling(2, 6, 1, 2 * target.simd_width, 64)
    assert subject.by(recipe.functions["forward"]).key == subject.by(product_recipe(RPMMV, tiling, "forward")).key


NO_COLUMNS = "for i in range(4):\n for j in range(5):\n  for k in range(3):\n   o[i, j] += p[i, k] * q[k]"
WINDOWS = "for i in range(4):\n for j in range(6):\n  for k in range(5):\n   o[j, i] += p[i + k] * q[k, j]"
OUTER = "for i in range(4):\n for j in range(5):\n  o[i, j] = p[i] * q[j]"


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (NO_COLUMNS, {"o": (4, 5), "p": (4, 3), "q": (3,)}, "no dimension of the result"),
        (WINDOWS, {"o": (6, 4), "p": (8,), "q": (5, 6)}, "read in windows"),
        (OUTER, {"o": (4, 5), "p": (4,), "q": (5,)}, "no contraction"),
    ],
)
def test_other_contractions_are_refused(text: str, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        Subject.alone(program(text, **shapes), "forward", (), AVX2).by(
            product_recipe(TMM, Tiling(1, 2, 1, 2, 2), "forward")
        )


def test_a_schedule_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CommandError, match="no schedule 'GEMM' for products"):
        product_recipe("GEMM", Tiling(1, 1, 1, 1, 1), "forward")


@cache
def fully_connected() -> dict[str, Tunable]:
    """The phases of two layers; the weights of the first one are blocked."""
    net = Net(6, seed=1)
    FullyConnectedLayer(net, FullyConnectedLayer(net, MemoryDataLayer(net, (10,)), 24), 16)
    found, _ = tunables(net, AVX2, 2)
    return {each.name.removeprefix("fully_connected"): each for each in found}


@pytest.mark.parametrize(("name", "first"), [("1 forward", 0), ("2 forward", 1), ("2 backward", 0), ("2 update", 1)])
def test_fully_connected_layers(name: str, first: int) -> None:
    """With what is around the sum, which stays there if the sum has no tiles; every second schedule."""
    tunable = fully_connected()[name]
    subject = prepared(tunable.subject, tunable.known.commands)
    m, k, n = product_of(problem_of(subject.program, 8)).extents
    for number, schedule in enumerate(PRODUCTS[first::2]):
        wanted = [t for t in initial_space(schedule, m, k, n, 2) if (t.kt == k) == bool(number % 2) and t.nt % 8 == 0]
        recipe = product_recipe(schedule, wanted[len(wanted) // 2], tunable.phase, tunable.known.commands)
        assert_same(subject.program, subject.by(recipe).scheduled, seeds=(0,))


def test_commands_of_the_known_schedule_reach_other_nests_alone() -> None:
    """The product's nest reads a copy in the end: it is not another nest for that."""
    before = program(
        "for y in range(6):\n for x in range(16):\n  for z in range(8):\n   C[y, x] += D[y, z] * W[x, z]\n"
        "for i in range(12):\n E[i] = 2.0 * E[i]",
        **{"C": (6, 16), "D": (6, 8), "W": (16, 8), "E": (12,)},
    )
    known = [Recorded("unroll", ("forward", loop, 2), (), "test") for loop in ("z", "i")]
    recipe = product_recipe(RPMM, Tiling(1, 6, 1, 16, 8), "forward", known)
    found = Subject.alone(before, "forward", ("net.", "program."), AVX2).by(recipe)
    assert "i_unrolled" in found.scheduled.text and "z_unrolled" not in found.scheduled.text
    assert_same(before, found.scheduled, seeds=(0,))
