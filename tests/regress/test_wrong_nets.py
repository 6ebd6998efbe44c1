"""Nets that computed something wrong or did not compile once, as small as they get."""

from __future__ import annotations

import pytest

from tests.fuzz.net_cases import Layer, NetCase
from tests.fuzz.net_checks import assert_net

BLOCKS = """
def forward(s, target):
    for buffer in ("value", "grad"):
        s.tile(buffer, 0, 4)
"""


@pytest.mark.parametrize("way", ["avx512", "avx2"])
def test_the_loss_of_scores_in_blocks(way: str) -> None:
    scores = Layer("fully_connected", (0,), {"num_outputs": 7})
    assert_net(NetCase(batch=2, shape=(3,), layers=(scores,), classes=True, recipes={(1,): BLOCKS}), way)


@pytest.mark.parametrize("filters", [3, 15, 32])
def test_convolutions_that_add_to_the_gradient_of_their_source(filters: int) -> None:
    """Another reader of the source has set it to zero."""
    source = Layer("conv", (0,), {"num_filters": filters, "kernel": 1, "pad": 0})
    readers = [Layer("conv", (1,), {"num_filters": 32, "kernel": kernel, "pad": 1}) for kernel in (1, 3)]
    assert_net(NetCase(batch=3, shape=(2, 6, 7), layers=(source, *readers, Layer("relu", (1,)))), "avx512")


@pytest.mark.parametrize("shape", [(15,), (3, 4, 5)])
def test_a_chain_that_begins_at_data_has_no_gradient_for_it(shape: tuple[int, ...]) -> None:
    layers = (Layer("batch_norm", (0,)), Layer("relu", (1,)), Layer("fully_connected", (2,), {"num_outputs": 3}))
    assert_net(NetCase(batch=8, shape=shape, layers=layers, force=False), "avx512")


LARGE_WINDOWS = [
    Layer("conv", (0,), {"num_filters": 24, "kernel": (2, 5), "stride": (2, 1), "pad": 2}),
    Layer("max_pooling", (0,), {"kernel": 3, "stride": 3, "ceil_mode": False}),
]


@pytest.mark.parametrize("layer", LARGE_WINDOWS, ids=lambda layer: layer.kind)
def test_windows_as_high_as_the_image(layer: Layer) -> None:
    """The gradient of the source is set to zero in a loop over the window."""
    assert_net(NetCase(batch=2, shape=(20, 2, 6) if layer.kind == "conv" else (33, 3, 4), layers=(layer,)), "avx512")


@pytest.mark.parametrize(("shape", "kernel"), [((1, 1, 3), (1, 5)), ((1, 3, 1), (5, 1)), ((20, 1, 3), (1, 5))])
def test_convolutions_all_of_whose_taps_fall_outside(shape: tuple[int, int, int], kernel: tuple[int, int]) -> None:
    """By a stride that no bound shows: 2 y is never 1."""
    layer = Layer("conv", (0,), {"num_filters": 9, "kernel": kernel, "stride": 2, "pad": 1})
    assert_net(NetCase(batch=1, shape=shape, layers=(layer,)), "avx512")


@pytest.mark.parametrize(("filters", "channels", "extent", "stride"), [(9, 1, 1, 3), (17, 20, 1, 3), (16, 16, 2, 2)])
def test_convolutions_with_one_tap_that_may_fall_outside(filters: int, channels: int, extent: int, stride: int) -> None:
    layer = Layer("conv", (0,), {"num_filters": filters, "kernel": 1, "stride": stride, "pad": 1})
    assert_net(NetCase(batch=2, shape=(channels, extent, extent), layers=(layer,)), "avx512")


@pytest.mark.parametrize(
    ("way", "shape"),
    [
        ("avx512", (1, 1, 2)),
        ("avx2", (3, 1, 5)),
        ("portable", (3, 1, 5)),
        ("avx512", (16, 1, 1)),
        ("avx2", (16, 1, 1)),
        ("avx512", (3, 2, 1)),
    ],
    ids=str,
)
def test_batch_norm_of_one_image_of_one_row(shape: tuple[int, ...], way: str) -> None:
    """Loops of one iteration were shared where longer ones are not, and the recipe did not find them nested."""
    assert_net(NetCase(batch=1, shape=shape, layers=(Layer("batch_norm", (0,)),)), way)
    assert_net(NetCase(batch=2, smaller=1, shape=shape, layers=(Layer("batch_norm", (0,)),)), way)


@pytest.mark.parametrize(
    ("join", "kind", "options", "other"),
    [
        ("add", "conv", {"num_filters": 4}, "prelu"),
        ("multiply", "conv", {"num_filters": 4, "kernel": 1, "pad": 0}, "sigmoid"),
        ("residual_sum", "layer_norm", {}, "elu"),
    ],
)
def test_branches_that_are_joined(join: str, kind: str, options: dict[str, int], other: str) -> None:
    """Forward was compiled with one of them and backward with the other one: no order of the layers is right for both,
    and the join ran before its second source."""
    branches = Layer(kind, (1,), options), Layer(other, (1,))
    for order in (branches, branches[::-1]):
        layers = (Layer("sigmoid", (0,)), *order, Layer(join, (2, 3)))
        assert_net(NetCase(batch=3, shape=(4, 3, 5), layers=layers), "avx2")
