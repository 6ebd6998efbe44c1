"""What is fetched before it is needed, and stored past the caches."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, SoftmaxLayer
from swirl.schedule.rules import prefetch_and_stream
from swirl.target.targets import TARGETS, Target
from tests.schedule.rules.applied import applied_in, applied_texts, by_rule, pooling, scheduled
from tests.support import program


def test_rows_of_a_strided_source_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the loop that moves by a cache line: a tile of pixels takes less of each row."""
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = ConvLayer(net, MemoryDataLayer(net, (4, 64, 64)), num_filters=64, kernel=3, stride=2, pad=1)
    outcomes = next(found for phase, *_, found in scheduled(net, layer, "avx512") if phase == "forward")
    (fetched,) = (text for text in applied_texts(outcomes) if text.startswith("prefetch"))
    assert fetched.startswith("prefetch('forward', 'inputs', 'y")


@pytest.mark.parametrize(("page", "ahead"), [(256, {"inputs", "value"}), (512, set())])
def test_pieces_of_rows_are_fetched_ahead(page: int, ahead: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax over channels: an iteration has a piece of the row of each channel, 288 bytes from one to the next."""
    monkeypatch.setattr(prefetch_and_stream, "PAGE", page)
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = SoftmaxLayer(net, MemoryDataLayer(net, (5, 8, 9)))
    fetched = r"prefetch\('forward', '(\w+)', 'yx', 1, 2\)"
    forward = applied_in("forward", net, layer, "avx2")
    assert set(re.findall(fetched, " ".join(forward))) == ahead, forward


def test_no_pieces_are_fetched_that_the_cache_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a transposed convolution's weights fetched all images, for each block of channels."""
    monkeypatch.setattr(prefetch_and_stream, "PAGE", 256)
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    net = Net(2, seed=1)
    layer = SoftmaxLayer(net, MemoryDataLayer(net, (5, 8, 9)))
    forward = applied_in("forward", net, layer, replace(TARGETS["avx2"], l2_bytes=256))
    assert not any("prefetch" in text for text in forward), forward


@pytest.mark.parametrize("cache", [512, 2**20])
def test_rows_of_which_lanes_take_some_elements_are_fetched_ahead(cache: int) -> None:
    forward = applied_in("forward", *pooling(12), replace(TARGETS["avx2"], l2_bytes=cache))
    ahead = [text for text in forward if text.startswith("prefetch(")]
    assert ahead == (["prefetch('forward', 'inputs', 'y', 4, 1)"] if cache == 512 else []), forward


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> Target:
    """Rows of 256 bytes are a page, and no cache has an array when it is read next."""
    monkeypatch.setattr(prefetch_and_stream, "PAGE", 256)
    monkeypatch.setattr(prefetch_and_stream, "FAR", 1)
    return replace(TARGETS["avx2"], l1_bytes=2**10, l2_bytes=2**12)


@pytest.mark.parametrize(("row", "passes", "ahead"), [(80, 2, True), (48, 2, False), (80, 1, False)])
def test_the_next_pieces_of_rows_that_are_passed_by_again_are_fetched(
    row: int, passes: int, ahead: bool, small_pages: Target
) -> None:
    """In one pass, no load waits for anything: fetching the rows of a matrix that multiplies one vector took twice as
    long."""
    loops = """
    for c in range(4):
        for l in vector(16):
            s[16 * x + l] += a[c, 16 * x + l]
"""
    text = f"for x in range({row // 16}):{loops * passes}"
    _, applied = by_rule("fetch_rows", program(text, s=(row,), a=(4, row)), small_pages)
    assert applied == (["prefetch('forward', 'a', 'x', 1, 2)"] if ahead else [])


@pytest.mark.parametrize(("row", "ahead"), [(80, True), (48, False)])
def test_pieces_that_are_added_to_are_fetched(row: int, ahead: bool, small_pages: Target) -> None:
    text = f"""
for x in range({row // 8}):
    for k in range(12):
        for j in range(8):
            g[k, x * 8 + j] += a[k] * b[x * 8 + j]
"""
    _, applied = by_rule("fetch_results", program(text, g=(12, row), a=(12,), b=(row,)), small_pages)
    assert applied == (["prefetch('forward', 'g', 'k', 2, 2)"] if ahead else [])


@pytest.mark.parametrize(("stride", "ahead"), [(2, True), (1, False)])
def test_rows_of_which_lanes_take_a_part_are_fetched(stride: int, ahead: bool, small_pages: Target) -> None:
    text = f"for y in range(6):\n for x in vector(8):\n  b[y, x] = a[2 * y, {stride} * x]"
    _, applied = by_rule("fetch_strided", program(text, b=(6, 8), a=(12, 16)), replace(small_pages, l2_bytes=64))
    assert applied == (["prefetch('forward', 'a', 'y', 4, 1)"] if ahead else [])


@pytest.mark.parametrize(("after", "streamed"), [("", True), ("\n  b[x + l] = y[x + l]", False)])
def test_results_that_nothing_reads_again_are_stored_past_the_caches(
    after: str, streamed: bool, small_pages: Target
) -> None:
    text = f"for x in range(0, 64, 8):\n for l in vector(8):\n  y[x + l] = 2.0 * a[x + l]{after}"
    _, applied = by_rule("stream", program(text, y=(64,), a=(64,), b=(64,)), small_pages)
    assert ("stream('forward', 'y')" in applied) == streamed
