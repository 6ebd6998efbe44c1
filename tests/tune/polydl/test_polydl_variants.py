"""Variants around a register tile: their loops, their ranking, the search, ``latte tune --method polydl``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.tools.cli import main
from latte.tools.tune import whole
from latte.tools.tune.schemes import with_variants
from latte.tools.tune.session import Machine
from latte.tools.tune.subjects import Tunable, tunables
from swirl.cost.time import Rates
from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Subject
from swirl.tune.log import CandidateLine
from swirl.tune.polydl.caches import Hierarchy, Level, cost, served, sizes
from swirl.tune.polydl.nests import nest_of
from swirl.tune.polydl.ranker import Ranker, layer_shapes, weights_file
from swirl.tune.polydl.variants import Variant, Variants, chosen_kernel
from swirl.tune.polydl.working_sets import working_sets
from swirl.tune.problem import problem_of
from swirl.tune.replay import LoggedPool
from swirl.tune.searches import RANKED, ranked_search
from swirl.tune.spaces import Pool, SeveralRanked
from swirl.tune.ttile.microkernels import MicroKernel, fitting
from swirl.tune.ttile.schemes import Tfused, Tpar, parse_scheme
from tests.support import assert_compiles_to_same, assert_same, program, running_targets

AVX2 = TARGETS["avx2"]
CACHES = Hierarchy((Level(2**12, 1e-9, 2e11), Level(2**15, 4e-9, 1e11), Level(2**20, 2e-8, 5e10)), Level(0, 9e-8, 1e10))
TABLE = (MicroKernel(1, 2), MicroKernel(1, 3), MicroKernel(2, 3))


def product(i: int, j: int, k: int) -> Program:
    text = f"for i in range({i}):\n for j in range({j}):\n  for k in range({k}):\n   C[i, j] += A[i, k] * B[k, j]"
    return program(text, A=(i, k), B=(k, j), C=(i, j))


def variants(before: Program, table: tuple[MicroKernel, ...] = TABLE, threads: int = 1, **options: object) -> Variants:
    subject = Subject.alone(before, "forward", (), AVX2)
    return Variants(subject, (), table, threads, CACHES, **options)  # type: ignore[arg-type]


# --- the loops that a scheme stands for ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "[R_j, R_k, R_i, T_2_j, T_2_i, T_4_k, U_3_i, U_2_j, V_j]",
        "[Tpar_4_j, λ_i[(2, 3), (2, 3)], R_k, Uλ_i, V_j]",
        "[R_k, λ_i[(1, 5), (1, 7)], R_j, Uλ_i, U_2_j, V_j]",
        "[Tfused[(i, 2), (j, 4)], T_4_i, R_k, T_3_i, V_j]",
    ],
)
def test_the_nest_of_a_scheme_computes_the_contraction(text: str) -> None:
    before = product(24 if "λ" not in text else 12, 32, 8)
    problem = problem_of(before, 8)
    after = nest_of(parse_scheme(text), problem)
    assert assert_same(before, after, seeds=(0,)).buffers.keys() == before.buffers.keys()
    assert ("parallel" in after.text) == ("Tpar" in text or "Tfused" in text)


def test_a_convolutions_input_reaches_as_far_as_its_subscripts() -> None:
    text = "for k in range(8):\n for y in range(4):\n  for c in range(3):\n   for r in range(3):\n"
    text += "    O[y, k] += I[2*y + r, c] * W[r, c, k]"
    problem = problem_of(program(text, O=(4, 8), I=(9, 3), W=(3, 3, 8)), 8)
    after = nest_of(parse_scheme("[R_y, R_r, R_c, V_k]"), problem)
    assert {name: each.shape for name, each in after.buffers.items()} == {"O": (4, 8), "I": (9, 3), "W": (3, 3, 8)}


def test_atoms_with_bounds_that_vary_are_refused() -> None:
    problem = problem_of(product(24, 32, 8), 8)
    scheme = parse_scheme("[R_i, Texct_32_j, Tvar_8_j, R_k, V_j]")
    with pytest.raises(CommandError, match="has no loop of constant bounds"):
        nest_of(scheme, problem)


# --- variants -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
def test_the_size_is_that_of_the_enumeration(threads: int) -> None:
    found = variants(product(6, 32, 8), threads=threads)
    every = list(found.every())
    assert found.size() == len(every) == len(set(every))
    random = Random(1)
    assert {found.draw(random) for _ in range(200)} <= set(every)
    assert found.default in every
    for each in every:
        assert Variant.of_knobs(each.knobs) == each
        scheme = found.scheme(each)
        if scheme is not None:
            scheme.levels(found.problem.extents, found.problem.lanes)


def test_a_slot_is_in_the_first_cache_and_its_innermost_loop_is_a_sum() -> None:
    found = variants(product(48, 64, 64), tuple(fitting(16)))
    elements = CACHES.caches[0].bytes // 4
    for slot in found.slots:
        tile = {"i": 1, "j": 8, "k": 1, **found.above.inner, **dict(slot)}
        assert slot[0][0] == "k" and slot[0][1] > 1
        assert found.problem.footprint(tile) <= elements
        assert np.prod([size for _, size in slot]) >= np.prod([size for _, size in found.slots[0]]) / 2
    scheme = found.scheme(found.default)
    assert scheme is not None and str(scheme).startswith("[T_") and "_i, T_" in str(scheme)


def test_tiles_are_of_few_sizes_from_small_to_large_ones() -> None:
    found = variants(product(8, 8, 500000), (MicroKernel(1, 4),))
    sizes_ = found._choices("k", 32)
    assert sizes_[0] == 32 and len(sizes_) == 4 and sizes_[1] < 500 and sizes_[-1] > 50000
    assert all(500000 % size == 0 and size % 32 == 0 for size in sizes_)


def test_the_register_tile_loads_least() -> None:
    problem = problem_of(product(48, 64, 64), 8)
    kernel = chosen_kernel(problem, [MicroKernel(1, 6), MicroKernel(2, 6), MicroKernel(2, 2)])
    assert kernel is not None and dict(kernel.copies) == {"i": 6, "j": 2}
    pair = chosen_kernel(problem_of(product(7, 16, 64), 8), TABLE)
    assert pair is not None and pair.along == "i"


def test_variants_compute_the_same_and_their_commands_do_it_again() -> None:
    before = product(14, 32, 8)
    found = variants(before, tuple(fitting(16)), threads=2, most=30)
    random = Random(3)
    points = [*list(found.ranked())[:4], *filter(None, [found.sample(random)])]
    near = found.neighbours(points[0], random)
    for point in (*points, next(near), next(near)):
        assert_same(before, point.candidate.program, seeds=(0,))
        assert point.origin.startswith(("[Tpar", "[Tfused"))
        assert found.subject.after(point.candidate.commands).key == point.key


@pytest.mark.parametrize("name", running_targets())
def test_kernels_run(name: str) -> None:
    target = TARGETS[name]
    before = product(12, 2 * target.simd_width, 8)
    table = (MicroKernel(1, 3), MicroKernel(2, 3))
    found = Variants(Subject.alone(before, "forward", (), target), (), table, 2, CACHES, most=6)
    assert_compiles_to_same(next(found.ranked()).candidate.program, target)


def test_the_ranking_is_by_equation_1_of_the_loops() -> None:
    found = variants(product(48, 64, 64), tuple(fitting(16)), most=25)
    assert len(found.drawn) == 25 and len({each.scheme for each in found.drawn}) == 25
    assert found.drawn[0].variant == found.default
    costs = [each.cost for each in found.ranking]
    assert costs == sorted(costs) and costs[0] < costs[-1]
    each = found.ranking[0]
    statistics = served(sizes(working_sets(nest_of(each.scheme, found.problem))), CACHES)
    assert each.statistics == statistics and each.cost == cost(statistics, CACHES)


def test_small_spaces_are_ranked_whole_and_large_ones_from_their_seed() -> None:
    small = variants(product(3, 8, 8), most=50)
    assert {each.scheme for each in small.drawn} == {small.scheme(each) for each in small.every()}
    large = [variants(product(48, 64, 64), most=6, seed=seed).drawn for seed in (0, 0, 1)]
    assert large[0] == large[1] != large[2]


def test_threads_share_loops_outside_of_the_slot() -> None:
    """Also where the loop over slots comes right after that of the slot: they are not joined."""
    found = variants(product(64, 64, 64), (MicroKernel(1, 4),), threads=2)
    variant = Variant((("k", 16), ("i", 16), ("j", 8)), ("k", "j", "i"), (), "i")
    assert str(found.scheme(variant)) == "[Tpar_4_i, T_4_k, T_8_j, T_4_i, T_16_k, U_4_i, V_j]"
    whole = Variant((("k", 16), ("i", 64), ("j", 8)), ("k", "j", "i"), (), "i")
    assert found.scheme(whole) is None  # nothing is left to be shared along i
    assert found.scheme(found.default) is not None


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_shared_loops_have_iterations_for_all_threads(threads: int) -> None:
    found, random = variants(product(48, 64, 64), threads=threads), Random(1)
    schemes = [found.scheme(found.draw(random)) for _ in range(60)]
    first = [scheme.atoms[0] for scheme in schemes if scheme is not None]
    assert first
    for atom in first:
        assert isinstance(atom, (Tpar, Tfused))
        loops = dict(atom.loops) if isinstance(atom, Tfused) else {atom.dimension: atom.count}
        assert np.prod(list(loops.values())) >= threads and set(loops) <= {"i", "j"}


def test_what_has_no_variants_is_told() -> None:
    with pytest.raises(CommandError, match="no micro-kernel fits program: neighbours in memory are along j of 12"):
        variants(product(6, 12, 4))
    with pytest.raises(CommandError, match="no contraction"):
        variants(program("for i in range(8):\n y[i] = x[i]", x=(8,), y=(8,)))


def test_a_trained_ranker_orders_them() -> None:
    """This one prefers what is served by memory."""
    shapes = layer_shapes()
    weights = [np.zeros(shape, np.float32) for shape in shapes]
    weights[0][0, 3] = weights[0][1, 7] = 1  # bytes from memory, of either
    for layer in weights[1:]:
        layer[0, 0] = layer[1, 1] = 1
    weights[-1] *= 40
    ranker = Ranker(tuple(weights), tuple(np.zeros(shape[0], np.float32) for shape in shapes), {})
    tiny = Hierarchy((Level(64, 1.0, 1.0), Level(128, 1.0, 1.0), Level(2**14, 1.0, 1.0)), Level(0, 1.0, 1.0))
    subject = Subject.alone(product(48, 64, 64), "forward", (), AVX2)
    found = Variants(subject, (), TABLE, 1, tiny, ranker, most=12).ranking
    memory = [each.statistics[3] for each in found]
    assert memory[0] == max(memory) and memory[-1] == min(memory) < max(memory)


# --- the search ---------------------------------------------------------------------------------------------
def test_the_best_of_the_ranking_are_measured_first() -> None:
    found = variants(product(24, 32, 32), tuple(fitting(16)), most=20, top=11)
    pool = Pool(found, AVX2, Rates(1e11, 1e11, 5e10, 1e10), 1, 2**25)
    steps = ranked_search(pool, Random(0))
    batches = [next(steps), steps.send([1.0] * 8)]
    ranks = [draw.point.knobs["rank"] for batch in batches for draw in batch]
    assert ranks == sorted(ranks) and ranks[0] == 0 and ranks[-1] < 11
    assert len(batches[0]) == 8 and 0 < len(batches[1]) <= 3
    with pytest.raises(StopIteration):
        steps.send([None] * len(batches[1]))


def test_several_rankings_in_turn() -> None:
    spaces = [variants(product(24, 32, 32), (MicroKernel(1, n),), most=4) for n in (2, 3)]
    every = [point.knobs["rank"] for point in SeveralRanked(spaces).ranked()]
    assert every[:4] == [0, 0, 1, 1] and len(every) == 8
    assert [point.key for point in SeveralRanked(spaces, 3).ranked()] == [
        point.key for point, _ in zip(SeveralRanked(spaces).ranked(), range(3), strict=False)
    ]


def test_logs_are_replayed_in_the_order_of_their_ranking() -> None:
    lines = [CandidateLine("s", str(n), "", {"rank": n} if n else {}, [], "measured") for n in range(20)]
    pool = LoggedPool([replace_model(line) for line in reversed(lines)])
    batch = next(ranked_search(pool, Random(0)))
    assert [draw.point.key for draw in batch] == [str(n) for n in range(1, 9)]


def replace_model(line: CandidateLine) -> CandidateLine:
    model = {
        "multiply_adds": 1,
        "loads": 1,
        "stores": 1,
        "lanes": 1.0,
        "level1": 1,
        "level2": 1,
        "memory": 1,
        "shares": 1,
    }
    return CandidateLine(line.subject, line.key, line.origin, line.knobs, [], line.outcome, model=model)


# --- nets ---------------------------------------------------------------------------------------------------
@cache
def convolutions() -> dict[str, Tunable]:
    """The phases of a net of a chain and a convolution with stride, both with borders."""
    net = Net(2, seed=1)
    chain = ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (8, 4, 5)), num_filters=16, kernel=3, stride=1, pad=1))
    ConvLayer(net, chain, num_filters=16, kernel=3, stride=2, pad=1)
    found, _ = tunables(net, AVX2, 2)
    return {each.name: each for each in found}


@pytest.mark.parametrize("phase", ["conv1_relu1 forward", "conv2 backward", "conv2 update"])
def test_convolutions_of_nets_with_borders_and_strides(phase: str) -> None:
    tunable = convolutions()[phase]
    found = Variants(tunable.subject, tunable.known.commands, tuple(fitting(16)), 2, CACHES, most=4, top=2)
    point = next(found.ranked())
    assert_same(tunable.subject.program, point.candidate.scheduled, seeds=(0,))


@pytest.mark.parametrize("phase", ["conv1_relu1 forward", "conv2 update"])
def test_finished_programs_have_working_sets_too(phase: str) -> None:
    """With vectors, copies, locals and bounds that depend on the number of items."""
    found = convolutions()[phase].known.program
    reuses = working_sets(found)
    assert reuses
    most = sum(buffer.nbytes for buffer in found.buffers.values())
    for each in reuses:
        assert 0 < each.least.elements <= each.most.elements and each.most.bytes <= most


NET = """
from latte import ConvLayer, MemoryDataLayer, Net, TanhLayer


def net():
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (16, 6, 6))
    ConvLayer(net, TanhLayer(net, data), num_filters=32, kernel=3, stride=1, pad=1)
    return net
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)], catch_exceptions=False)


def test_a_ranker_in_the_folder_is_used(tmp_path: Path) -> None:
    tunable, machine = convolutions()["conv2 forward"], Machine(AVX2, 2, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
    made, why = with_variants(tunable, machine, CACHES, tmp_path, 0, 3)
    assert not why and made.searched_by == RANKED and isinstance(made.space, Variants)
    assert (made.space.ranker, made.space.top) == (None, 3)
    shapes = layer_shapes()
    zeros = Ranker(tuple(map(np.zeros, shapes)), tuple(np.zeros(shape[0]) for shape in shapes), {"by": "hand"})
    weights_file(tmp_path, "avx2").write_text(zeros.written())
    made, _ = with_variants(tunable, machine, CACHES, tmp_path, 0, 0)
    assert isinstance(made.space, Variants) and made.space.ranker is not None
    assert made.space.ranker.card == {"by": "hand"}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", running_targets()[0])
    monkeypatch.setattr(whole, "hierarchy_of", lambda machine: CACHES)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.py"
    file.write_text(NET)
    done = run(file, "--method", "polydl", "--dry-run", "--layer", "conv1", "--layer", "tanh1")
    assert "tanh1 forward has no variants" in done.output and "searched by regression" in done.output
    assert "conv1 forward has no variants" not in done.output
    done = run(file, "--top", "3")
    assert done.exit_code == 1 and "--top is for --method polydl" in done.output
