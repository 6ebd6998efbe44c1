"""The space of schemes beside enumeration, the metric beside the thesis' example, the tree search, threads."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from swirl.errors import CommandError
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Subject
from swirl.tune.problem import Problem, problem_of
from swirl.tune.ttile.metric import Cache, metric, movement, suffixes
from swirl.tune.ttile.microkernels import MicroKernel, fitting, microkernels
from swirl.tune.ttile.schemes import LambdaSeq, Scheme, T, Tfused, Tpar, parse_scheme
from swirl.tune.ttile.space import METRIC, RANDOM, REUSE, TREE, Schemes, in_parallel, reuse_order
from swirl.tune.ttile.tiles import kernels_of
from swirl.tune.ttile.tree import tree_search
from tests.support import assert_same, program

AVX2 = TARGETS["avx2"]
CACHES = (Cache(2**10, 4e9), Cache(2**13, 2e9), Cache(2**18, 1e9))
TABLE = (MicroKernel(1, 2), MicroKernel(1, 3), MicroKernel(2, 3, c=2))


def product(i: int, j: int, k: int) -> Program:
    text = f"for i in range({i}):\n for j in range({j}):\n  for k in range({k}):\n   C[i, j] += A[i, k] * B[k, j]"
    return program(text, A=(i, k), B=(k, j), C=(i, j))


def space(before: Program, table: tuple[MicroKernel, ...] = TABLE, threads: int = 1, **options: object) -> Schemes:
    return Schemes(Subject.alone(before, "forward", (), AVX2), (), table, threads, CACHES, **options)  # type: ignore[arg-type]


# --- micro-kernels ------------------------------------------------------------------------------------------
def test_the_four_constraints_give_1512_micro_kernels() -> None:
    found = list(microkernels(32))
    assert len(found) == len(set(found)) == 1512
    assert MicroKernel(2, 12) in found  # BLIS's, with AVX-512
    assert all(each.r * each.s < 25 for each in found)  # constraints 1 and 2 leave out 5 × 5 and 7 × 7


def test_with_16_registers_bounds_are_half() -> None:
    found = list(microkernels(16))
    assert MicroKernel(2, 6) in found  # BLIS's
    assert {each.sums for each in found} == set(range(7, 15))
    assert {each.sums + each.weights for each in found} == set(range(8, 19))
    assert all(each.sums + each.weights <= 16 for each in fitting(16))


@pytest.mark.parametrize("kernel", [MicroKernel(2, 6), MicroKernel(1, 1, 7, 2, 3, 3)])
def test_a_micro_kernel_has_a_name(kernel: MicroKernel) -> None:
    assert MicroKernel.named(kernel.name) == kernel


# --- the space ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("extents", [(6, 16, 8), (7, 16, 12), (5, 32, 6), (12, 16, 1)])
def test_the_size_is_that_of_the_enumeration(extents: tuple[int, int, int]) -> None:
    found = space(product(*extents))
    every = [str(scheme) for scheme in found.every()]
    assert found.size() == len(every) == len(set(every))
    for text in every:
        parse_scheme(text).levels(found.problem.extents, found.problem.lanes)


def test_every_draw_is_in_the_enumeration_and_every_scheme_is_drawn() -> None:
    found = space(product(6, 16, 4))
    every = {str(scheme) for scheme in found.every()}
    random = Random(1)
    assert {str(found.draw(random)) for _ in range(60 * len(every))} == every


def test_enumeration_by_another_way() -> None:
    """All words of tiles, by trying: 2 along i and 8 along k above a kernel of 3 × 8, j is covered."""
    found = space(product(6, 8, 8), (MicroKernel(1, 3),))
    words = ["k8 i2", "k2 i2 k4", "k4 i2 k2"]  # from the innermost one outwards, the first one along k
    texts = {
        "[" + ", ".join([*(f"T_{w[1:]}_{w[0]}" for w in reversed(word.split())), "U_3_i", "V_j"]) + "]"
        for word in words
    }
    assert {str(scheme) for scheme in found.every()} == texts


def test_a_prime_extent_is_covered_by_two_micro_kernels() -> None:
    found = space(product(7, 16, 4))
    pairs = [scheme for scheme in found.every() if any(isinstance(atom, LambdaSeq) for atom in scheme.atoms)]
    assert pairs and {atom.parts for s in pairs for atom in s.atoms if isinstance(atom, LambdaSeq)} == {
        ((1, 3), (2, 2))
    }


def test_points_are_commands_that_compute_the_same() -> None:
    before = product(14, 32, 8)
    found, random = space(before, tuple(fitting(16)), threads=2), Random(3)
    drawn = [point for point in (found.sample(random) for _ in range(6)) if point is not None]
    near = found.neighbours(drawn[0], random)
    for point in (*drawn, next(near), next(near)):
        assert_same(before, point.candidate.program, seeds=(0,))
        assert point.origin.startswith(("[Tpar", "[Tfused"))
        assert found.subject.after(point.candidate.commands).key == point.key


@pytest.mark.parametrize("way", [RANDOM, METRIC, TREE])
def test_ways_to_choose_points(way: str) -> None:
    found, random = space(product(12, 64, 64), tuple(fitting(16)), ways=(way,)), Random(3)
    points = [found.sample(random) for _ in range(3)]
    assert all(point is not None for point in points)


def test_the_metrics_choices_have_a_smaller_metric() -> None:
    found = space(product(24, 64, 64), tuple(fitting(16)))
    random = Random(5)
    drawn = sorted(found.metric(found.draw(random)) for _ in range(200))
    searched = tree_search(found.problem, found.kernels, CACHES)
    values = [found.metric(scheme) for scheme in searched]
    assert values == sorted(values)
    assert values[0] <= drawn[len(drawn) // 20]
    assert len(searched) == len(set(searched))


def test_the_tree_search_has_an_answer_for_any_cache() -> None:
    """The thesis' has none where all fits, or where the first tile is larger than a cache."""
    found = space(product(6, 16, 7))
    for sizes in ([1, 2, 3], [60, 70, 80], [10**6, 10**7, 10**8]):
        caches = [Cache(size, 1.0) for size in sizes]
        for kernel in found.kernels:
            for scheme in tree_search(found.problem, [kernel], caches, 1):
                scheme.levels(found.problem.extents, found.problem.lanes)
            assert tree_search(found.problem, [kernel], caches, 1)


def test_a_fixed_order_and_copies() -> None:
    found = space(product(12, 32, 8), permutation=REUSE)
    every = list(found.every())
    assert found.size() == len(every)
    order = reuse_order(found.problem, found.kernels[0])
    assert order[0] == "k"
    packed = space(product(12, 32, 8), packing=True)
    assert packed.size() == 4 * space(product(12, 32, 8)).size()
    random = Random(2)
    texts = [str(packed.draw(random)) for _ in range(20)]
    assert any("Pack_A" in text for text in texts) and any("Pack_B" in text for text in texts)


def test_no_space_is_told() -> None:
    with pytest.raises(CommandError, match="no micro-kernel fits program: neighbours in memory are along j of 12"):
        space(product(6, 12, 4))
    with pytest.raises(CommandError, match="no contraction"):
        space(program("for i in range(8):\n y[i] = x[i]", x=(8,), y=(8,)))


def test_kernels_of_a_convolution_unroll_taps_and_both_directions_of_pixels() -> None:
    found = {kernel.copies for kernel in kernels_of(convolution(4, 4, 8, 8, 3), [MicroKernel(1, 4, 2, 2, 1, 3)])}
    assert (("c", 2), ("s", 3), ("h", 4), ("w", 2)) in found
    assert (("c", 2), ("r", 3), ("h", 2), ("w", 4)) in found


# --- the metric ---------------------------------------------------------------------------------------------
def convolution(h: int, w: int, k: int, c: int, taps: int, lanes: int = 8) -> Problem:
    names = [("h", h), ("w", w), ("k", k), ("c", c), ("r", taps), ("s", taps)]
    text = "".join(f"{' ' * depth}for {name} in range({size}):\n" for depth, (name, size) in enumerate(names))
    text += "      O[h, w, k] += I[h + s, w + r, c] * K[r, s, c, k]"
    shapes = {"O": (h, w, k), "I": (h + taps - 1, w + taps - 1, c), "K": (taps, taps, c, k)}
    return problem_of(program(text, **shapes), lanes)


def test_the_metric_of_the_thesis_example() -> None:
    """Section 5.4.3, with T8,k in place of T16,k: 1,400,832 elements, 96 times."""
    problem = convolution(192, 192, 256, 512, 3, lanes=16)
    scheme = parse_scheme("[T_4_w, T_3_r, T_4_h, T_2_c, T_4_w, T_8_k, T_3_s, T_48_h, T_256_c, U_12_w, U_2_k, V_k]")
    (every,) = suffixes(scheme, problem)
    assert [problem.footprint(each.sizes) for each in every][:4] == [33, 65, 428, 11648]
    assert movement(scheme, problem, 2**20) == 1_400_832 * 96
    assert movement(scheme, problem, 2**40) == problem.footprint(problem.extents)


def test_a_larger_cache_gets_less() -> None:
    problem = convolution(12, 12, 32, 16, 3)
    scheme = parse_scheme("[T_2_w, R_r, T_3_h, T_2_c, T_2_k, R_s, T_4_h, T_8_c, U_6_w, U_2_k, V_k]")
    found = [movement(scheme, problem, 2**n) for n in range(6, 16)]
    assert found == sorted(found, reverse=True)
    assert metric(scheme, problem, [Cache(2**10, 2.0)]) == movement(scheme, problem, 2**10) / 2


def test_parts_of_a_combination_count_by_what_they_cover() -> None:
    """Two equal parts are a plain tile; outside of the combination there is one tile."""
    problem = problem_of(product(24, 16, 8), 8)
    plain = parse_scheme("[T_2_j, T_6_i, T_8_k, U_4_i, V_j]")
    parts = parse_scheme("[T_2_j, λ_i[(2, 4), (4, 4)], T_8_k, Uλ_i, V_j]")
    for elements in (1, 30, 100, 200, 400, 10**6):
        assert movement(parts, problem, elements) == pytest.approx(movement(plain, problem, elements))


# --- threads ------------------------------------------------------------------------------------------------
def test_outer_tiles_of_results_are_parallel_as_far_as_threads_need() -> None:
    problem = problem_of(product(48, 64, 64), 8)
    scheme = parse_scheme("[T_2_k, T_2_i, T_4_j, T_4_i, T_32_k, U_6_i, U_2_j, V_j]")
    assert str(in_parallel(scheme, problem, 2, 2000)).startswith("[Tpar_2_i, T_4_j, T_2_k, T_4_i")
    assert str(in_parallel(scheme, problem, 8, 2000)).startswith("[Tfused[(i, 2), (j, 4)], T_2_k, T_4_i")
    assert in_parallel(scheme, problem, 1, 2000) == scheme


def test_where_all_is_in_the_cache_a_tile_is_split_off() -> None:
    problem = problem_of(product(48, 64, 64), 8)
    scheme = parse_scheme("[T_2_k, T_4_j, T_8_i, T_32_k, U_6_i, U_2_j, V_j]")
    assert str(in_parallel(scheme, problem, 4, 10**9)) == "[Tpar_4_i, T_2_k, T_4_j, T_2_i, T_32_k, U_6_i, U_2_j, V_j]"
    assert in_parallel(scheme, problem, 7, 10**9) is None


def test_parallel_loops_have_an_iteration_for_each_thread() -> None:
    found, random = space(product(48, 64, 64), tuple(fitting(16))), Random(1)
    for threads in (2, 3, 8):
        for _ in range(50):
            scheme = in_parallel(found.draw(random), found.problem, threads, 4000)
            if scheme is not None:
                scheme.levels(found.problem.extents, found.problem.lanes)
                assert threads <= _shared(scheme) < inf


def _shared(scheme: Scheme) -> float:
    first = scheme.atoms[0]
    assert isinstance(first, (Tpar, Tfused)) and not isinstance(first, T)
    if isinstance(first, Tpar):
        return first.count
    number = 1
    for _, count in first.loops:
        number *= count
    return number
