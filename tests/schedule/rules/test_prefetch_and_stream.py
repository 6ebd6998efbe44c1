"""What is fetched before it is needed, and stored past the caches."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, SoftmaxLayer
from swirl.schedule.rules import prefetch_and_stream
from swirl.target.targets import TARGETS
from tests.schedule.rules.applied import applied_in, applied_texts, pooling, scheduled


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
