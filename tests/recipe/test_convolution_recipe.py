"""Convolution's recipe: fully applied, right for every shape, register tiles without spills."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, MemoryDataLayer, Net
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from latte.tools.bench.assembly import counts, innermost_loops, instructions
from swirl.schedule.command_log import Outcome
from swirl.schedule.files import read_recipe
from swirl.schedule.pipeline import canonical_stages
from swirl.schedule.recipe import Schedule
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS, Target
from tests.codegen.test_machine_code import target_named
from tests.layers.references import Windows, both, convolve, convolve_input_gradient, convolve_weight_gradient

SHAPES = [
    # images, channels, filters, extent, kernel, stride; tests below have others
    (2, 16, 48, 15, 3, 2),
    (1, 16, 16, 13, 1, 2),
    (1, 16, 16, 10, 5, 3),
    (1, 16, 16, 3, 3, 1),
    (2, 3, 16, 9, 3, 1),
    (2, 16, 8, 9, 3, 1),
    # weights that are few beside the pixels: private sums for parts of the images
    (8, 1, 16, 16, 3, 1),
    (11, 3, 33, 17, 7, 1),
    (17, 16, 32, 16, 1, 1),
    (8, 3, 7, 16, 3, 1),
    # few input channels, whose gradients are sums of lanes
    (2, 8, 33, 9, 3, 2),
    (1, 3, 16, 11, 7, 3),
    (3, 4, 32, 7, 1, 1),
    (2, 2, 16, 8, 1, 2),
]


def with_padding(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its padding; by default, half of the kernel."""
    return shape if len(shape) == 7 else (*shape, shape[4] // 2)


def declared(shape: tuple[int, ...]) -> tuple[Net, Ensemble, Ensemble]:
    images, channels, filters, extent, kernel, stride, pad = with_padding(shape)
    net = Net(images, seed=1)
    data = MemoryDataLayer(net, (channels, extent, extent))
    conv = ConvLayer(net, data, num_filters=filters, kernel=kernel, stride=stride, pad=pad)
    net.force_backward = True
    return net, data, conv


def scheduled(
    shape: tuple[int, ...],
    target: Target | None = None,
    phases: Sequence[str] = ("forward", "backward", "update"),
) -> list[Outcome]:
    """The commands that the recipe gives phases of a layer; no code is made."""
    net, _, conv = declared(shape)
    (item,) = (item for item in layer_programs(net.graph, shape[0]) if item.ensemble is conv)
    programs = {phase: canonical_stages(item.programs[phase])[-1].program for phase in phases}
    s = Schedule.alone(programs, target or resolve_target(), f"{conv.name}.")
    read_recipe(Path(__file__).parents[2] / "recipes" / "conv.py").apply(s)
    return list(s.outcomes)


def fetching(shape: tuple[int, ...], target: Target) -> list[str]:
    """The phases whose sources are fetched ahead."""
    phases = ("forward", "backward")
    outcomes = scheduled(shape, target, phases)
    texts = [o.command.text for o in outcomes if (o.command.name, o.status) == ("prefetch", "applied")]
    return [phase for phase in phases if f"('{phase}'" in " ".join(texts)]


def has_private_sums(shape: tuple[int, ...], target: Target | None = None) -> bool:
    """Whether parts of the images have sums of their own."""
    outcomes = scheduled(shape, target, ("forward", "update"))  # forward chooses the blocks
    return any(outcome.command.name == "privatize" for outcome in outcomes)


def commands(net: Net, phase: str) -> list[str]:
    """Those that were applied to a phase of the convolution."""
    outcomes = net.executable.plan.outcomes["conv1"]
    return [o.command.text for o in outcomes if o.status == "applied" and f"('{phase}'" in o.command.text]


def assert_computes(shape: tuple[int, ...], recipe: Path | None = None) -> Net:
    """The net of a convolution, whose results are those of the definition: on small whole numbers, of which every sum
    is exact in float32, whatever its order."""
    net, data, conv = declared(shape)
    if recipe is not None:
        net.use_recipe("conv", recipe)
    net.compile()
    generator = np.random.default_rng(0)
    x, weights, bias, gradient = (
        generator.integers(-4, 5, of.shape).astype(np.float64)  # exact, and NumPy's products of integers are slow
        for of in (data.get_value(), conv.get_weights(), conv.get_bias(), conv.get_value())
    )
    data.set_value(x)
    conv.set_weights(weights)
    conv.set_bias(bias)
    conv.set_grad(gradient)
    net.forward()
    net.clear_grad()
    net.backward()
    _, _, _, extent, kernel, stride, pad = with_padding(shape)
    windows = Windows(extent, extent, both(kernel), both(stride), both(pad), both(1))
    np.testing.assert_array_equal(conv.get_value(), convolve(x, weights, bias, windows))
    np.testing.assert_array_equal(data.get_grad(), convolve_input_gradient(gradient, weights, windows))
    np.testing.assert_array_equal(conv.get_grad_weights(), convolve_weight_gradient(gradient, x, windows))
    np.testing.assert_array_equal(conv.get_grad_bias().ravel(), gradient.sum((0, 2, 3)))
    return net


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_computes_convolutions(shape: tuple[int, ...]) -> None:
    net = assert_computes(shape)
    assert not any("stream" in c.program.text for c in net.executable.compiled)  # small results stay in the caches


@pytest.mark.parametrize(
    ("target", "shape", "passes"),
    [
        ("avx2", (12, 8, 16, 14, 5, 1), False),  # two columns of pixels at each border
        ("avx2", (6, 144, 17, 13, 3, 2), True),
        ("avx512", (1, 160, 16, 7, 3, 1), True),  # a single image
    ],
    ids=str,
)
def test_short_rows_share_tiles_with_other_images(
    shape: tuple[int, ...], passes: bool, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net = assert_computes(shape)
    applied = commands(net, "forward")
    assert any(text.startswith("unroll_and_jam('forward', 'n'") for text in applied), applied
    assert any("tile_loop('forward', 'c_outer'" in text for text in applied) == passes, applied


def test_all_images_run_on_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in tiles of another size ran on one: all of them where channels leave a block ragged, as the 33 do, and
    those of a single pair of blocks, as the 16 are."""
    monkeypatch.setenv("SWIRL_TARGET", target_named("avx2", runs=True).name)
    net = assert_computes((16, 16, 33, 7, 3, 1))
    for phase in ("forward", "backward"):
        assert {"n", "n_1"} <= {loop for loops in shared_loops(net, phase) for loop in loops}, phase


@pytest.mark.parametrize("shape", [(2, 33, 41, 9, 3, 1), (1, 9, 12, 9, 3, 1), (1, 3, 12, 9, 3, 1)], ids=str)
def test_threads_share_the_rows_of_few_images(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole blocks, an odd one and a ragged one: all of them ran on one thread for a single image."""
    monkeypatch.setenv("SWIRL_TARGET", target_named("avx2", runs=True).name)
    net = assert_computes(shape)
    for phase, row in (("forward", "y"), ("backward", "i2")):
        shared = [loops for loops in shared_loops(net, phase) if not loops[0].startswith("weights_packed")]
        assert shared and all(row in loops for loops in shared), (phase, shared)


def shared_loops(net: Net, phase: str) -> list[list[str]]:
    """The loops of the convolution's phase that threads share, those of one pragma together."""
    (kernel,) = (c for c in net.executable.compiled if (c.ensemble.kind, c.phase) == ("conv", phase))
    found = re.findall(r"#pragma omp for(?: collapse\((\d)\))?.*\n((?: *for \(int \w+ = .*\n)+)", kernel.source.source)
    return [re.findall(r"for \(int (\w+) = ", loops)[: int(collapsed or 1)] for collapsed, loops in found]


@pytest.fixture
def everything_is_large(tmp_path: Path) -> Path:
    """The shipped recipe, which takes all arrays for larger than the caches."""
    shipped = (Path(__file__).parents[2] / "recipes" / "conv.py").read_text(encoding="utf-8")
    assert shipped.count("LARGE = 2**22") == 1
    (tmp_path / "any.py").write_text(shipped.replace("LARGE = 2**22", "LARGE = 1"))
    return tmp_path / "any.py"


@pytest.mark.parametrize("shape", [(2, 24, 40, 5, 1, 1), (2, 7, 9, 1, 1, 1)], ids=str)
def test_large_results_of_one_tap_are_stored_past_the_caches(shape: tuple[int, ...], everything_is_large: Path) -> None:
    net = assert_computes(shape, everything_is_large)
    (text,) = (c.program.text for c in net.executable.compiled if (c.ensemble.kind, c.phase) == ("conv", "forward"))
    assert "= stream(value_t" in text


@pytest.mark.parametrize(
    ("target", "shape", "phases"),
    [("avx512", (1, 40, 193, 9, 1, 1), ["backward"]), ("avx2", (2, 200, 24, 3, 1, 1), ["forward"])],
    ids=str,
)
def test_blocks_of_one_tap_are_fetched_ahead_where_they_are_many(
    shape: tuple[int, ...], phases: list[str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"avx512": "avx2", "avx2": "avx512"}[target]
    assert fetching(shape, TARGETS[other]) == phases
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net = assert_computes(shape)
    texts = {c.phase: c.program.text for c in net.executable.compiled if c.ensemble.kind == "conv"}
    assert [phase for phase in ("forward", "backward") if "prefetch(" in texts[phase]] == phases


@pytest.mark.parametrize(
    ("shape", "phases"),
    [
        ((50, 96, 32, 33, 3, 2), ["forward"]),  # backward's source is a quarter of its result
        ((64, 64, 64, 56, 3, 1), ["forward", "backward"]),
        ((50, 33, 65, 17, 3, 1), []),  # stays in the caches
        ((64, 192, 192, 28, 3, 1), []),  # passes by six times
        ((64, 64, 128, 56, 1, 2), ["forward", "backward"]),  # one tap, of every other pixel
    ],
    ids=str,
)
def test_blocks_are_fetched_ahead_from_memory(shape: tuple[int, ...], phases: list[str]) -> None:
    assert fetching(shape, TARGETS["avx512"]) == phases
    assert not fetching(shape, TARGETS["avx2"])  # 32 bytes of a pixel


@pytest.mark.parametrize("shape", [(2, 32, 32, 9, 3, 2), (3, 35, 20, 7, 3, 1)], ids=str)
def test_what_is_fetched_ahead_is_computed_alike(
    shape: tuple[int, ...], everything_is_large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIRL_TARGET", target_named("avx512", runs=True).name)
    net = assert_computes(shape, everything_is_large)
    texts = {c.phase: c.program.text for c in net.executable.compiled if c.ensemble.kind == "conv"}
    assert "prefetch(inputs" in texts["forward"]
    assert ("prefetch(grad" in texts["backward"]) == (shape[-1] == 1)  # a stride leaves a quarter of the result


def test_every_command_is_applied() -> None:
    outcomes = scheduled((2, 32, 32, 28, 3, 1))
    assert {outcome.status for outcome in outcomes} == {"applied"}
    assert sum(outcome.command.name == "reindex" for outcome in outcomes) == 2


@pytest.mark.parametrize("shape", [(3, 20, 33, 9, 3, 2), (1, 32, 32, 9, 5, 1)], ids=str)
def test_zeros_around_the_inputs_instead_of_taps_left_out(shape: tuple[int, ...]) -> None:
    halo = Path(__file__).parents[2] / "examples" / "recipes" / "conv_halo.py"
    net = assert_computes(shape, halo)
    programs = {c.phase: c.program for c in net.executable.compiled if c.ensemble.kind == "conv"}
    for phase in ("forward", "update"):
        assert not re.search(r" and |- y\b", programs[phase].text)  # no bound moves with a row, but for whole parts


@pytest.mark.parametrize(
    ("shape", "private"),
    [((16, 1, 16, 28, 3, 1), True), ((4, 256, 256, 28, 3, 1), False), ((1, 1, 16, 56, 3, 1), False)],
)
def test_sums_of_parts_of_the_images_where_weights_are_few(shape: tuple[int, ...], private: bool) -> None:
    assert has_private_sums(shape) == private


@pytest.mark.parametrize(
    ("target", "shape"),
    [("avx512", (16, 40, 72, 13, 1, 1)), ("avx2", (8, 50, 97, 37, 1, 2)), ("avx2", (17, 64, 64, 17, 3, 1))],
    ids=str,
)
def test_sources_pass_by_once_for_all_weights(
    shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read again for each block of weights: two and a half gigabytes for 64 × 512 → 128 of 28 × 28."""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net = assert_computes(shape)
    orders = [text for text in commands(net, "update") if text.startswith("reorder('update', ['n_outer'")]
    assert orders and orders[-1].index("'n_inner'") < orders[-1].index("'k_outer'"), orders
    (text,) = (c.program.text for c in net.executable.compiled if (c.ensemble.kind, c.phase) == ("conv", "update"))
    assert ("prefetch(inputs" in text) == (shape[4:] == (1, 1))  # of a single tap, without a stride


@pytest.mark.parametrize(
    ("shape", "kibibytes", "once"),
    [
        ((64, 128, 128, 56, 3, 2), 2048, True),
        ((64, 128, 128, 56, 3, 2), 1024, True),  # sums come from the third cache each time, which costs less
        ((64, 128, 128, 56, 3, 2), 128, False),  # that many are not supposed to be there
        ((16, 256, 256, 14, 3, 1), 8192, True),
        ((16, 256, 256, 14, 3, 1), 1024, False),  # they cost more than few images that pass again
    ],
    ids=str,
)
def test_sums_of_weights_that_leave_the_second_cache_are_counted(
    shape: tuple[int, ...], kibibytes: int, once: bool
) -> None:
    target = replace(TARGETS["avx2"], l1_bytes=16 * 1024, l2_bytes=kibibytes * 1024)
    assert has_private_sums(shape, target) == once


@pytest.mark.parametrize(
    ("shape", "shared", "pairs"),
    [
        ((50, 97, 32, 33, 3, 2), "'n_outer'", True),  # one pair of filters' blocks: one thread had all of it
        ((1, 97, 32, 33, 3, 1), "'k_outer'", False),  # each block of filters by itself
        ((4, 33, 33, 14, 3, 1), "'k_outer'", False),
        ((9, 97, 64, 33, 3, 1), "'k_outer'", True),  # two pairs; of five parts, one thread has six images
        ((16, 1000, 128, 14, 3, 1), "'k_outer'", True),  # four pairs; copies would be large
        ((1, 64, 17, 56, 3, 1), "['k_outer', 'c_outer']", False),  # blocks of channels are whole
    ],
    ids=str,
)
def test_ragged_blocks_leave_work_for_all_threads(shape: tuple[int, ...], shared: str, pairs: bool) -> None:
    """They are separate from the whole ones."""
    outcomes = scheduled(shape, TARGETS["avx512"], ("forward", "update"))
    texts = [outcome.command.text for outcome in outcomes if outcome.status == "applied"]
    assert [text for text in texts if text.startswith("parallelize('update'")] == [f"parallelize('update', {shared})"]
    assert ("unroll_and_jam('update', 'k_outer', 2)" in texts) == pairs


@pytest.mark.parametrize("shape", [(9, 20, 33, 16, 3, 1), (1, 97, 32, 9, 3, 1)], ids=str)
def test_updates_of_ragged_blocks(shape: tuple[int, ...]) -> None:
    assert_computes(shape)


@pytest.mark.parametrize("images", [3, 9])
def test_uneven_parts_of_the_images_are_not_made_where_blocks_of_weights_are_enough(images: int) -> None:
    """Threads would wait for one that has a part more."""
    assert not has_private_sums((images, 64, 64, 56, 1, 1))


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ("avx512", (5, 48, 24, 13, 1, 2, 2)),
        ("avx2", (12, 24, 33, 2, 1, 1, 1)),
        ("avx512", (5, 16, 40, 7, 1, 1, 3)),
        ("avx2", (7, 3, 17, 13, 1, 1, 1)),
        ("avx512", (9, 16, 24, 7, 2, 1, 3)),
        ("avx2", (9, 16, 24, 7, 3, 2, 3)),
    ],
    ids=str,
)
def test_zeros_around_that_no_tap_of_a_pixel_leaves(
    shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output pixels that read zeros alone. (A kernel of 1 × 1 with padding did not compile.)"""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    assert_computes(shape)


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ("avx512", (2, 32, 32, 56, 3, 1)),  # a row in first, middle and last tiles
        ("avx2", (2, 32, 32, 28, 3, 1)),
        ("avx512", (2, 32, 64, 56, 1, 1)),
        ("avx2", (2, 32, 64, 56, 1, 1)),
    ],
    ids=str,
)
def test_sums_stay_in_registers(shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net = assert_computes(shape)
    for phase in ("forward", "backward", "update"):
        (kernel,) = (c for c in net.executable.compiled if (c.ensemble.kind, c.phase) == ("conv", phase))
        code = instructions(kernel.built.path, kernel.built.name)
        least = {"avx512": 16, "avx2": 8}[target]
        assert sum("fmadd" in text for _, text in code) > (3 * least if shape[4] > 1 else least - 1), phase
        tiles = [loop for loop in innermost_loops(code) if sum("fmadd" in text for text in loop) >= 8]
        assert sum(counts(loop).multiply_adds for loop in tiles) >= least, phase
        for loop in tiles:  # nothing but multiply-adds, their loads and, now and then, an address
            assert not [text for text in loop if "[rsp" in text], (phase, loop)
            several = counts(loop).multiply_adds > TARGETS[target].registers  # iterations: a tile has fewer sums
            assert counts(loop).others <= (15 if several else 9), (phase, loop)
        if target == "avx512":
            assert not [text for _, text in code if "zmm" in text and "rsp" in text], phase
        if phase == "forward" and shape[4] > 1:  # loops around a tile are written out a few times
            written = re.findall(r"#pragma GCC unroll (\d)\n\s*for \(int ([a-z_]+)", kernel.source.source)
            assert {times for times, loop in written if loop == "c_inner"} == {"4"}
            assert {times for times, loop in written if loop != "c_inner"} <= {"1"}


@pytest.mark.parametrize(("target", "most"), [("avx512", 2), ("avx2", 0)])
def test_rows_in_pieces_keep_sums_in_registers(target: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """g++ writes out a row of four pixels, and kept what it had loaded for one of them for the next ones."""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net = assert_computes((12, 32, 64, 4, 3, 1))
    (kernel,) = (c for c in net.executable.compiled if (c.ensemble.kind, c.phase) == ("conv", "update"))
    code = instructions(kernel.built.path, kernel.built.name)
    (row,) = (loop for loop in innermost_loops(code) if counts(loop).multiply_adds >= 40)
    assert sum("[rsp" in text for text in row) <= most


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_few_channels_keep_sums_in_registers(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps were written out, and g++ kept their pixels for the next ones: the first layer of a net took twice as
    long."""
    monkeypatch.setenv("SWIRL_TARGET", target_named(target, runs=True).name)
    net, _, conv = declared((2, 3, 32, 56, 3, 1))
    net.compile()
    (kernel,) = (c for c in net.executable.compiled if c.ensemble is conv and c.phase == "forward")
    tiles = [loop for loop in innermost_loops(instructions(kernel.built.path, kernel.built.name)) if len(loop) > 20]
    assert sum(counts(loop).multiply_adds for loop in tiles) >= {"avx512": 28, "avx2": 10}[target]
    assert not [text for loop in tiles for text in loop if "[rsp" in text]
