"""Schemes as programs: the figures of the thesis, convolutions of nets, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.tools.tune.subjects import Tunable, tunables
from swirl.cost.instruction_counts import count_instructions
from swirl.errors import CommandError, Refused
from swirl.ir.names import with_distinct_names
from swirl.ir.nest import Program, kind_of, loop_of
from swirl.ir.paths import loops
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS, Target
from swirl.tune.candidates import Candidate, Subject
from swirl.tune.prepared import prepared
from swirl.tune.ttile.schemes import parse_scheme
from swirl.tune.ttile.translation import translated
from tests.support import assert_compiles_to_same, assert_same, program, running_targets

AVX2, AVX512 = TARGETS["avx2"], TARGETS["avx512"]


def product(i: int, j: int, k: int, *, turned: bool = False) -> Program:
    """C += A · B; ``turned`` is B[j, k]."""
    read = "B[j, k]" if turned else "B[k, j]"
    text = f"for i in range({i}):\n for j in range({j}):\n  for k in range({k}):\n   C[i, j] += A[i, k] * {read}"
    return program(text, A=(i, k), B=(j, k) if turned else (k, j), C=(i, j))


def made(text: str, before: Program, target: Target = AVX2) -> Candidate:
    """What a scheme makes; it computes the same."""
    found = translated(Subject.alone(before, "forward", (), target), parse_scheme(text))
    assert_same(before, found.scheduled, seeds=(0,))
    return found


def structure(program_: Program) -> list[str]:
    """The loops as ``kind name start:stop:step``, indented by their depth; lanes and copies by their number."""
    lines = []
    for nest in program_.nests:
        for path, node in loops(nest.body):
            loop = loop_of(node)
            lines.append("  " * (len(path) - 1) + f"{kind_of(node)} {loop.extent} by {loop.step}")
    return lines


def nested(*parts: str, depth: int = 0) -> list[str]:
    """A chain of loops."""
    return ["  " * (depth + number) + part for number, part in enumerate(parts)]


def test_figure_3_1_plain_loops() -> None:
    assert structure(made("[R_k, R_j, R_i]", product(3, 4, 5)).scheduled) == nested(
        "range 5 by 1", "range 4 by 1", "range 3 by 1"
    )


def test_figure_3_2_lanes() -> None:
    found = made("[R_k, R_j, R_i, V_j]", product(3, 16, 5))
    assert structure(found.scheduled)[:3] == nested("range 5 by 1", "range 2 by 1", "range 3 by 1")
    assert found.program.text.count("vector(8)") == 2  # B is loaded once for all i


def test_figure_3_3_copies_of_a_sum() -> None:
    found = made("[R_k, R_j, R_i, U_2_k]", product(3, 4, 6))
    assert structure(found.program) == nested("range 3 by 1", "range 4 by 1", "range 3 by 1", "unrolled 2 by 1")
    assert "C_t: float32 = C[i, j]" in found.program.text  # loaded once for both


def test_figure_3_4_tiles() -> None:
    found = made("[R_k, R_j, R_i, T_32_k]", product(2, 3, 64))
    assert structure(found.scheduled) == nested("range 2 by 1", "range 3 by 1", "range 2 by 1", "range 32 by 1")


def test_figure_3_5_a_copy() -> None:
    found = made("[R_k, R_i, Pack_B, T_16_k, R_j]", product(2, 16, 32))
    assert structure(found.scheduled) == [
        *nested("range 2 by 1", "range 2 by 1"),
        *nested("range 16 by 1", "range 2 by 8", "vector 8 by 1", depth=2),
        *nested("range 16 by 1", "range 16 by 1", depth=2),
    ]
    assert "C[i, j] += A[i, k_outer * 16 + k_inner] * B_packed[k_inner, j]" in found.scheduled.text


def test_figure_3_6_registers() -> None:
    found = made("[R_k, R_j, R_i, ScalP[k], T_32_k, U_2_i]", product(4, 3, 64))
    assert structure(found.scheduled) == [
        *nested("range 2 by 1", "range 3 by 1", "range 2 by 1"),
        *nested("unrolled 2 by 1", depth=3),
        *nested("range 1 by 2", "range 32 by 1", "unrolled 2 by 1", depth=3),
        *nested("unrolled 2 by 1", depth=3),
    ]


def test_figure_3_7_kernels_of_two_sizes() -> None:
    found = made("[R_j, λ_i[(12, 6), (8, 7)], T_2_k, Uλ_i, U_2_j, V_j]", product(128, 32, 2))
    assert "[6] * 12 + [7] * 8" in " ".join(command.text for command in found.commands)
    assert structure(found.scheduled) == [
        "range 2 by 1",
        *_figure_3_7_part(12, 6),
        *_figure_3_7_part(8, 7),
    ]


def _figure_3_7_part(times: int, copies: int) -> list[str]:
    around = [f"range {times} by {copies}", "range 1 by 2", "range 1 by 8", "range 2 by 1"]
    return nested(*around, f"unrolled {copies} by 1", "unrolled 2 by 1", "vector None by 1", depth=1)


def test_figure_3_13_a_first_combination() -> None:
    found = made("[λ_i[(2, 11), (3, 7)], R_j, T_32_k, Uλ_i]", product(43, 1, 32))
    assert structure(found.scheduled) == [
        *nested("range 2 by 11", "range 1 by 1", "range 32 by 1", "unrolled 11 by 1"),
        *nested("range 3 by 7", "range 1 by 1", "range 32 by 1", "unrolled 7 by 1"),
    ]


def test_figure_3_14_combinations_of_two_dimensions() -> None:
    found = made("[λ_i[(7, 4), (3, 5)], λ_j[(14, 8), (12, 6)], R_k, Uλ_i, Uλ_j]", product(43, 184, 1))
    blocks = [
        nested("range 1 by 1", f"unrolled {i} by 1", f"unrolled {j} by 1", depth=2) for i in (4, 5) for j in (8, 6)
    ]
    assert structure(found.scheduled) == [
        "range 7 by 4",
        "  range 14 by 8",
        *blocks[0],
        "  range 12 by 6",
        *blocks[1],
        "range 3 by 5",
        "  range 14 by 8",
        *blocks[2],
        "  range 12 by 6",
        *blocks[3],
    ]


def test_a_combination_with_tiles_inside() -> None:
    found = made("[λ_i[(2, 2), (1, 3)], λ_j[(1, 2), (2, 1)], T_2_i, R_k, T_2_j, Uλ_i, Uλ_j]", product(14, 8, 2))
    tiles = [command.text for command in found.commands if command.name == "split"]
    assert tiles == ["split('forward', 'i', [8])", "split('forward', 'j', [4])"]


def test_figure_3_15_a_partial_tile() -> None:
    found = made("[Texct_120_i, T_4_j, Tvar_32_i, T_2_k]", product(120, 4, 2))
    assert structure(found.scheduled) == nested("range 4 by 1", "range 4 by 1", "range None by 1", "range 2 by 1")
    assert "range(min(32, 120 - i_outer * 32))" in found.scheduled.text


def test_figure_3_16_a_partial_tile_in_a_partial_tile() -> None:
    found = made("[Texct_260_i, T_3_j, Texctg_120_i, Tvar_32_i, T_2_k]", product(260, 3, 2))
    kinds = ["range 3 by 1", "range 3 by 1", "range None by 1", "range None by 1", "range 2 by 1"]
    assert structure(found.scheduled) == nested(*kinds)


def test_a_partial_tile_of_whole_kernels() -> None:
    found = made("[Texct_48_i, R_j, Tvar_18_i, R_k, T_2_i, U_3_i]", product(48, 3, 2))
    kinds = ["range 3 by 1", "range 3 by 1", "range None by 1", "range 2 by 1", "range 2 by 1", "unrolled 3 by 1"]
    assert [line for line in structure(found.program) if "unrolled" in line or "range" in line][:6] == nested(*kinds)


def test_figure_3_17_a_copy_of_rows() -> None:
    found = made("[T_2_j, T_8_i, Pack_A, T_16_k, U_4_i, U_2_j, V_j]", product(32, 64, 16), AVX512)
    assert structure(found.program)[:5] == [
        *nested("range 2 by 1", "range 8 by 1"),
        *nested("range 4 by 1", "vector 16 by 1", depth=2),
        "    unrolled 4 by 1",
    ]
    assert "A_packed: float32[4, 16]" in found.program.text


def test_figure_3_18_a_transposed_copy() -> None:
    text = "[T_2_k, T_2_j, T_2_i, PackT_B[k, j], T_16_k, U_4_i, U_2_j, V_j]"
    found = made(text, product(8, 64, 32, turned=True), AVX512)
    assert "B_packed: float32[16, 32]" in found.program.text
    assert "unroll_and_jam('forward', 'B_packed_dim1', 16)" in [command.text for command in found.commands]
    with pytest.raises(CommandError, match="not every tensor that has j"):
        made(text.replace("PackT_B[k, j], ", ""), product(8, 64, 32, turned=True), AVX512)


def test_calls_of_a_kernel_cover_the_rest() -> None:
    found = made("[R_j, Texct_43_i, T_2_k, ExternalCall_12_i[i12_j2]]", product(43, 32, 2))
    assert "unroll_and_jam('forward', 'i', [12, 12, 12, 7])" in [command.text for command in found.commands]
    whole = made("[R_j, R_i, T_2_k, ExternalCall_6_i[i12_j2]]", product(12, 32, 2))
    assert [line.strip() for line in structure(whole.program)].count("unrolled 6 by 1") == 3


def test_blis_has_its_kernel() -> None:
    """Section 3.2: a register tile of 6 × 16, two loads of B and six of A for twelve multiply-adds."""
    before = product(24, 64, 128)
    scheme = "[R_j, R_k, R_i, T_2_j, T_2_i, T_64_k, U_6_i, U_2_j, V_j]"
    found = translated(Subject.alone(before, "forward", (), AVX2), parse_scheme(scheme))
    nest = with_distinct_names(found.program.nests[0])
    counts = count_instructions(nest, found.program.buffers, AVX2.simd_width, AVX2.registers)
    kernels = 24 * 64 * 128 // (6 * 16)
    tiles = kernels // 64
    assert counts.multiply_adds == 12 * kernels
    assert counts.loads == (6 + 2) * kernels + 12 * tiles
    assert counts.stores == 12 * tiles
    assert counts.spills == counts.gathered == 0


@pytest.mark.parametrize("name", running_targets(vectors=True))
def test_the_kernel_runs(name: str) -> None:
    target = TARGETS[name]
    before = product(13, 4 * target.simd_width, 6)
    scheme = "[Tfused[(j, 2)], λ_i[(2, 4), (1, 5)], R_k, Uλ_i, U_2_j, V_j]"
    found = translated(Subject.alone(before, "forward", (), target), parse_scheme(scheme))
    assert_compiles_to_same(found.program, target)


def test_several_dimensions_in_parallel() -> None:
    found = made("[Tfused[(i, 4), (j, 2)], R_k, T_2_j, U_2_i, V_j]", product(8, 32, 3))
    assert structure(found.scheduled)[:2] == nested("parallel 4 by 1", "parallel 2 by 1")
    found = made("[Tpar_4_i, R_j, R_k, U_2_i]", product(8, 2, 3))
    assert structure(found.scheduled)[0] == "parallel 4 by 1"


def test_what_the_compiler_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(Refused, match="C is written"):
        made("[R_i, Pack_C, R_j, R_k]", product(2, 3, 4))
    with pytest.raises(CommandError, match="there is no tensor 'Q'"):
        made("[R_i, Pack_Q, R_j, R_k]", product(2, 3, 4))
    with pytest.raises(CommandError, match="has no contraction"):
        made("[R_i]", program("for i in range(4):\n y[i] = x[i]", x=(4,), y=(4,)))


# --- convolutions -------------------------------------------------------------------------------------------
@cache
def convolutions(target: str) -> dict[str, Tunable]:
    """The phases of a net of a chain and a convolution with stride, both with borders."""
    net = Net(2, seed=1)
    chain = ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (8, 4, 5)), num_filters=16, kernel=3, stride=1, pad=1))
    ConvLayer(net, chain, num_filters=16, kernel=3, stride=2, pad=1)
    found, _ = tunables(net, TARGETS[target], 2)
    return {each.name: each for each in found}


CONVOLUTIONS = [
    ("conv1_relu1 forward", "[Tpar_2_n, Tpar_2_k, T_2_y, T_2_y, T_4_c, R_ky, R_kx, T_2_c, U_5_x, V_k]"),
    ("conv1_relu1 forward", "[Tpar_2_n, R_y, λ_x[(1, 3), (1, 2)], R_c, R_ky, R_kx, Uλ_x, U_2_k, V_k]"),
    ("conv2 forward", "[Tfused[(n, 2), (k, 2)], T_2_c, R_y, R_ky, R_kx, T_8_c, U_3_x, V_k]"),
    ("conv2 forward", "[R_k, R_n, R_c, R_x, R_y, T_3_ky, U_3_kx, V_k]"),
    ("conv2 backward", "[Tfused[(n, 2), (c, 2)], R_iy, R_k, R_ky, R_kx, U_5_ix, V_c]"),
    ("conv1 update", "[Tpar_2_k, R_ky, R_kx, R_n, R_y, R_x, U_8_c, V_k]"),  # c has a single block
    ("conv2 update", "[Tpar_4_c, T_3_ky, R_n, R_y, R_x, U_3_kx, U_4_c, U_2_k, V_k]"),
]


@pytest.mark.parametrize(("phase", "text"), CONVOLUTIONS)
def test_convolutions_of_nets_with_borders_and_strides(phase: str, text: str) -> None:
    tunable = convolutions("avx2")[phase]
    subject = prepared(tunable.subject, tunable.known.commands)
    found = translated(subject, parse_scheme(text), tunable.known.commands)
    assert_same(subject.program, found.scheduled, seeds=(0,))
    _lanes_and_threads(found.program.nests, threads="Tpar" in text or "Tfused" in text)


def _lanes_and_threads(nests: Sequence[object], threads: bool) -> None:
    for nest in nests:
        kinds = {kind_of(node) for _, node in loops(nest.body)}  # type: ignore[attr-defined]
        assert "vector" in kinds or "packed" in nest.label, nest  # type: ignore[attr-defined]
        assert not threads or "parallel" in kinds, nest


def test_a_chains_sums_stay_in_the_loops_that_they_share() -> None:
    tunable = convolutions("avx2")["conv1_relu1 forward"]
    subject = prepared(tunable.subject, tunable.known.commands)
    with pytest.raises(Refused, match="perfectly nested"):
        translated(subject, parse_scheme("[R_n, T_2_c, R_k, R_y, R_x, R_ky, R_kx, T_4_c, V_k]"))


@pytest.mark.parametrize(
    ("name", "text", "extents"),
    [
        ("blis", "[R_j, R_k, R_i, T_2_j, T_2_i, T_64_k, U_6_i, U_2_j, V_j]", (24, 64, 128)),
        ("combination", "[R_j, λ_i[(12, 6), (8, 7)], R_k, Uλ_i, U_2_j, V_j]", (128, 32, 3)),
    ],
)
def test_recipes_that_are_shown_are_their_schemes(name: str, text: str, extents: tuple[int, int, int]) -> None:
    path = Path(__file__).parents[2] / f"examples/recipes/ttile/{name}.py"
    assert f"``{text}``" in path.read_text()
    recipe = read_recipe(path)
    subject = Subject.alone(product(*extents), "forward", (), AVX2)
    assert subject.by(recipe.functions["forward"]).key == translated(subject, parse_scheme(text)).key
