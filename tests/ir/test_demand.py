"""What loop nests ask of a processor, beside counting by hand, and beside the instructions that the compiler makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latte.tools.bench.assembly import busiest_loop, counts
from swirl.cost.time import Demand, Rates, program_demand
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.ir.separate import separate
from swirl.ir.validate import validate
from swirl.target.targets import TARGETS, Target
from tests.codegen.test_machine_code import CONVOLUTION, CONVOLUTION_BUFFERS, disassembled, target_named
from tests.fuzz.checks import random_pick
from tests.fuzz.programs import ProgramMaker
from tests.support import program

AVX512 = replace(TARGETS["avx512"], l1_bytes=4096, l2_bytes=65536)
AVX2 = replace(TARGETS["avx2"], l1_bytes=4096, l2_bytes=65536)

TILE = """
for y in parallel(6):
    sums: float32[3, 16] = empty(3, 16)
    for x in unrolled(3):
        for l in vector(16):
            sums[x, l] = 0.0
    for c in range(10):
        for x in unrolled(3):
            for l in vector(16):
                sums[x, l] += weights[c, l] * inputs[y, x, c]
    for x in unrolled(3):
        for l in vector(16):
            value[y, x, l] = sums[x, l]
"""


def asked(text: str, target: Target = AVX512, **shapes: tuple[int, ...]) -> Demand:
    return program_demand(program(text, **shapes), target)


# --- instructions ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("target", "vectors"), [(AVX512, 1), (AVX2, 2)], ids=["avx512", "avx2"])
def test_a_register_tile_loads_weights_once_for_its_pixels(target: Target, vectors: int) -> None:
    found = asked(TILE, target, weights=(10, 16), inputs=(6, 3, 10), value=(6, 3, 16))
    assert found.multiply_adds == 6 * 10 * 3 * vectors
    assert found.loads == 6 * 10 * vectors + 6 * 10 * 3  # weights, and broadcasts, which serve all vectors
    assert found.stores == 6 * 3 * vectors
    assert (found.lanes, found.shares) == (1.0, 6)
    assert found.multiply_adds_per_load == found.multiply_adds / found.loads


def test_elements_of_inner_loops_that_they_do_not_move_with_stay_in_registers() -> None:
    text = "for i in range(8):\n    for l in vector(16):\n        a[i, l] = b[l] * c[i, l]\n"
    found = asked(text, a=(8, 16), b=(16,), c=(8, 16))
    assert (found.multiply_adds, found.loads, found.stores, found.shares) == (8, 1 + 8, 8, 1)


def test_what_is_stored_in_a_loop_is_loaded_in_each_iteration() -> None:
    text = "for i in range(8):\n    for l in vector(16):\n        a[l] += c[i, l]\n"
    found = asked(text, a=(16,), c=(8, 16))
    assert (found.multiply_adds, found.loads, found.stores) == (8, 8 + 8, 8)


def test_statements_of_a_block_share_a_load() -> None:
    block = "        a[i, l] = b[i, l] + 1.0\n        c[i, l] = b[i, l] * 2.0\n"
    text = f"for i in range(8):\n    for l in vector(16):\n{block}"
    found = asked(text, a=(8, 16), b=(8, 16), c=(8, 16))
    assert (found.multiply_adds, found.loads, found.stores) == (16, 8, 16)


@pytest.mark.parametrize(("index", "loads"), [("l", 1), ("2 * l", 2), ("5 * l", 16), ("3", 1)])
def test_lanes_that_are_not_neighbours_take_several_loads(index: str, loads: int) -> None:
    found = asked(f"for l in vector(16):\n    a[l] = b[{index}]\n", a=(16,), b=(80,))
    assert (found.loads, found.stores) == (loads, 1)


def test_lanes_that_a_mask_leaves_out_are_not_used() -> None:
    text = "for i in range(4):\n    for l in vector(10):\n        a[i, l] = b[i, l] + 1.0\n"
    found = asked(text, a=(4, 10), b=(4, 10))
    assert found.multiply_adds == 4
    assert found.lanes == pytest.approx(10 / 16)


def test_scalars_use_one_lane() -> None:
    found = asked("for i in range(5):\n    a[i] = b[i] + 1.0\n", a=(5,), b=(5,))
    assert (found.multiply_adds, found.loads, found.stores) == (5, 5, 5)
    assert found.lanes == pytest.approx(1 / 16)


@pytest.mark.parametrize(
    ("value", "slots"),
    [
        ("b[l] * c[l] + 1.0", 1),
        ("b[l] * c[l] + b[l] * 2.0", 2),
        ("(b[l] + 1.0) * c[l]", 2),
        ("max(b[l], 0.0)", 1),
        ("max(b[l], c[l], 2.0, 1.0)", 3),
        ("b[l] / c[l]", 10),
        ("exp(b[l])", 11),
        ("log(b[l])", 20),
        ("b[l] if c[l] > 0.0 else 0.0", 2),
        ("b[l]", 0),
    ],
)
def test_other_operations_count_as_the_multiply_adds_of_their_time(value: str, slots: int) -> None:
    assert asked(f"for l in vector(16):\n    a[l] = {value}\n", a=(16,), b=(16,), c=(16,)).multiply_adds == slots


def test_prefetches_are_no_arithmetic() -> None:
    text = """
for i in range(8):
    prefetch(b, (i + 4, 0), 1)
    for l in vector(16):
        a[i, l] = b[i, l] + 1.0
"""
    found = asked(text, a=(8, 16), b=(8, 16))
    assert (found.multiply_adds, found.loads, found.stores) == (8, 8, 8)


def test_taps_outside_are_not_counted() -> None:
    text = """
for y in range(10):
    for ky in range(3):
        if y + ky >= 1 and y + ky < 11:
            for l in vector(16):
                a[y, l] += b[y + ky - 1, l]
"""
    assert asked(text, a=(10, 16), b=(10, 16)).multiply_adds == 3 * 10 - 2


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_counts_are_those_of_the_compiled_register_tile(name: str) -> None:
    """A tile of 14 pixels × 32 channels for AVX-512, one of 6 × 16 for AVX2."""
    target = target_named(name)
    text, buffers = CONVOLUTION, CONVOLUTION_BUFFERS
    if name == "avx2":
        text = text.replace("unrolled(14)", "unrolled(6)").replace("[14, 2, 16]", "[6, 2, 8]")
        text = (
            text.replace("empty(14, 2, 16)", "empty(6, 2, 8)")
            .replace("vector(16)", "vector(8)")
            .replace("i * 16", "i * 8")
        )
    tile = parse_program(text, buffers)
    compiled = counts(busiest_loop(disassembled(tile, target)))
    found = program_demand(tile, target)
    inside = found.multiply_adds / found.loads
    assert compiled.multiply_adds / (compiled.loads + compiled.broadcasts) == pytest.approx(inside, rel=0.02)


# --- what instructions wait for -------------------------------------------------------------------------------
SUMS = """
for i in range(10):
    s: float32[{copies}, 16] = empty({copies}, 16)
    for u in unrolled({copies}):
        for l in vector(16):
            s[u, l] = 0.0
    for j in range(0, 60, {step}):
        for u in unrolled({copies}):
            for v in unrolled({step}):
                for l in vector(16):
                    s[u, l] += a[i, j + v, l]
    for u in unrolled({copies}):
        for l in vector(16):
            b[i, l] += s[u, l]
"""


@pytest.mark.parametrize(("copies", "step"), [(1, 1), (4, 1), (1, 3), (4, 3)])
def test_a_sum_waits_for_itself_however_many_are_beside_it(copies: int, step: int) -> None:
    found = asked(SUMS.format(copies=copies, step=step), a=(10, 60, 16), b=(10, 16))
    assert found.waits == 10 * 60  # copies beside it do not wait for it; those after it do
    assert found.multiply_adds == 10 * 60 * copies + 10 * copies


def test_a_sum_in_memory_waits_for_its_store() -> None:
    text = "for i in range(8):\n    for j in range(16):\n        a[i] += b[i, j]\n"
    kept = "for i in range(8):\n    t: float32 = a[i]\n    for j in range(16):\n        t += b[i, j]\n    a[i] = t\n"
    stored, held = (asked(each, a=(8,), b=(8, 16)).waits for each in (text, kept))
    assert stored == 3 * held == 3 * 8 * 16


def test_elements_of_a_loop_wait_for_nothing() -> None:
    text = "for i in range(8):\n    for l in vector(16):\n        a[i, l] += b[i, l]\n"
    assert asked(text, a=(8, 16), b=(8, 16)).waits == 0


@pytest.mark.parametrize(
    ("copies", "target", "spilled"), [(31, AVX512, 0), (32, AVX512, 1), (40, AVX512, 9), (8, AVX2, 1)]
)
def test_sums_without_a_register_are_stored_and_loaded(copies: int, target: Target, spilled: int) -> None:
    found = asked(SUMS.format(copies=copies, step=1), target, a=(10, 60, 16), b=(10, 16))
    assert found.spills == 2 * 600 * spilled


@pytest.mark.parametrize(("index", "single"), [("l", 0), ("2 * l", 0), ("5 * l", 16), ("3", 0)])
def test_lanes_that_are_loaded_or_stored_one_by_one(index: str, single: int) -> None:
    assert asked(f"for l in vector(16):\n    a[l] = b[{index}]\n", a=(16,), b=(80,)).gathered == single
    assert asked(f"for l in vector(16):\n    b[{index}] += a[l]\n", a=(16,), b=(80,)).gathered == 2 * single


def test_parallel_loops_inside_of_others_begin_again() -> None:
    text = (
        "for i in range(8):\n    for j in parallel(5):\n        for k in parallel(3):\n            a[i, j, k] = 0.0\n"
    )
    assert asked(text, a=(8, 5, 3)).regions == 8
    assert asked(text.replace("range(8)", "parallel(8)").replace("parallel(5)", "range(5)"), a=(8, 5, 3)).regions == 1


def test_iterations_are_those_of_loops_that_run() -> None:
    text = "for i in range(8):\n    for j in range(5):\n        for u in unrolled(3):\n            a[i, j, u] = 0.0\n"
    assert asked(text, a=(8, 5, 3)).iterations == 8 + 8 * 5


# --- bytes ----------------------------------------------------------------------------------------------------
PRODUCT = """
for i in range(64):
    for j in range(64):
        for k in range(64):
            a[i, j] += b[i, k] * c[k, j]
"""


def test_a_matrix_that_a_cache_does_not_hold_comes_in_for_each_row() -> None:
    found = asked(PRODUCT, a=(64, 64), b=(64, 64), c=(64, 64))
    row, matrix = 4 * 64, 4 * 64 * 64
    assert found.level1 == 64 * (2 * row + row + matrix)  # a goes out again, b stays, c passes by
    assert found.level2 == found.memory == 4 * matrix


def test_a_larger_cache_needs_less() -> None:
    sizes = [
        program_demand(program(PRODUCT, a=(64, 64), b=(64, 64), c=(64, 64)), replace(AVX512, l1_bytes=size)).level1
        for size in (256, 4096, 17000, 50000)
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 4 * 4 * 64 * 64


def test_what_is_written_counts_twice_unless_it_passes_the_caches() -> None:
    text = "for i in range(4096):\n    for l in vector(16):\n        a[i, l] = {}\n"
    whole = 4 * 4096 * 16
    plain, past = (asked(text.format(v), a=(4096, 16), b=(4096, 16)) for v in ("b[i, l]", "stream(b[i, l])"))
    assert plain.level1 == plain.level2 == plain.memory == 3 * whole
    assert past.level1 == past.level2 == past.memory == 2 * whole


def test_loops_beside_each_other_touch_different_parts() -> None:
    text = """
for n in range(10):
    for i in range(800):
        s[0] += a[i]
    for j in range(800):
        s[1] += a[j + 800]
"""
    found = asked(text, a=(1600,), s=(2,))  # of 6400 bytes, 4096 are held: they come in for each n
    assert found.level1 == 10 * (2 * 3200 + 2 * 2 * 4)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    made = validate(ProgramMaker(random_pick(seed)).program())
    for part in (made, *(each for _, each in separate(made))):
        found = program_demand(part, AVX512)
        assert 0 < found.lanes <= 1 and found.level1 >= found.level2 >= found.memory >= 0


def test_conditions_that_are_whole_numbers() -> None:
    found = asked("for i in range(5):\n    y[i] = x[i] if i else 0.0\n", x=(5,), y=(5,))
    assert found.memory == 4 * (4 + 2 * 5)  # x[0] is not read


def test_vectors_of_double_precision_have_half_as_many_lanes() -> None:
    buffers = {name: Buffer(name, (16,), "float64") for name in "ab"}
    made = parse_program("for l in vector(16):\n    a[l] = b[l] + 1.0\n", buffers)
    found = program_demand(made, AVX512)
    assert (found.multiply_adds, found.loads, found.stores, found.lanes) == (2, 2, 2, 1.0)


# --- time -----------------------------------------------------------------------------------------------------
RATES = Rates(peak=2 * 16 * 1e9, level2=200e9, level3=100e9, memory=20e9)  # a thousand million vectors a second


def nest(**changes: int) -> Demand:
    nothing = Demand(multiply_adds=0, loads=0, stores=0, lanes=1.0, level1=0, level2=0, memory=0, shares=2)
    return replace(nothing, **changes)


@pytest.mark.parametrize(
    ("changes", "part", "seconds"),
    [
        ({"multiply_adds": 10**9}, "multiply-adds", 1.0),
        ({"loads": 10**9}, "loads", 1.0),
        ({"stores": 10**9}, "stores", 2.0),
        ({"loads": 10**9, "gathered": 10**9}, "loads", 3.0),
        ({"stores": 10**8, "spills": 10**9}, "stores", 1.2),
        ({"waits": 10**9}, "sums", 4.0),
        ({"iterations": 10**9}, "issue", 0.2),
        ({"level1": 200 * 10**9}, "level 2", 1.0),
        ({"level2": 10**9, "memory": 10**6}, "level 3", 0.01),  # the third cache holds what is touched
        ({"level2": 11 * 10**9, "memory": 10**9}, "memory", 0.05 + 0.1),
    ],
)
def test_the_slowest_part_is_predicted(changes: dict[str, int], part: str, seconds: float) -> None:
    found = nest(**changes).resource_times(RATES, AVX512, threads=2, level3_bytes=10**7)
    assert max(found, key=lambda name: found[name]) == part
    assert found[part] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("shares", "threads", "longer"),
    [(1, 2, 2), (2, 2, 1), (3, 2, 4 / 3), (64, 2, 1), (0, 2, 1), (1, 1, 1), (5, 4, 8 / 5)],
)
def test_a_thread_without_work_makes_it_longer(shares: int, threads: int, longer: float) -> None:
    found = nest(multiply_adds=10**9, shares=shares).resource_times(RATES, AVX512, threads, level3_bytes=0)
    assert found["multiply-adds"] == pytest.approx(longer)


def test_threads_that_begin_take_time_besides() -> None:
    demand = nest(multiply_adds=10**6, regions=1000)
    assert demand.seconds(RATES, AVX512, threads=2, level3_bytes=0) == (pytest.approx(1e-3 + 1e-3), "multiply-adds")
    assert demand.seconds(RATES, AVX512, threads=1, level3_bytes=0) == (pytest.approx(1e-3), "multiply-adds")
    assert nest(regions=1000).seconds(RATES, AVX512, threads=2, level3_bytes=0) == (pytest.approx(1e-3), "threads")


def test_a_price_is_between_the_longest_part_and_all_of_them() -> None:
    demand = nest(multiply_adds=3 * 10**9, loads=4 * 10**9)
    parts = demand.resource_times(RATES, AVX512, threads=2, level3_bytes=0)
    price = demand.price(RATES, AVX512, threads=2, level3_bytes=0)
    assert max(parts.values()) < price < sum(parts.values())
    assert price == pytest.approx(sum(part**2 for part in parts.values()) ** 0.5)
    begun = replace(demand, regions=1000).price(RATES, AVX512, threads=2, level3_bytes=0)
    assert begun == pytest.approx(price + 1e-3)


def test_cores_that_begin_two_multiply_adds_in_a_cycle_wait_for_twice_as_many() -> None:
    fast = replace(RATES, peak=2 * 16 * 16e9)  # 8e9 vectors a second for each of two threads: 4 GHz
    parts = nest(waits=10**9).resource_times(fast, AVX512, threads=2, level3_bytes=0)
    assert parts["sums"] == pytest.approx(10**9 * 4 / 8e9)


def test_loops_that_threads_share_together_are_one() -> None:
    text = (
        "for n in parallel(3):\n    for k in parallel(5):\n        for l in vector(16):\n            a[n, k, l] = 0.0\n"
    )
    assert asked(text, a=(3, 5, 16)).shares == 15
    assert isinstance(program(text, a=(3, 5, 16)), Program)
