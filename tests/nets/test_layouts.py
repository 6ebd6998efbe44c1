"""Nets with arrays in blocks of channels compute what the same nets compute without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from latte import (
    ConvLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    Neuron,
    ReLULayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.solver import SGD
from tests.lowered import lowered

BATCH = 3
BLOCK = 16

CONV_IN_BLOCKS = f"""
def forward(s, target):
    if s.extent("forward", "k") % {BLOCK}:
        return
    for buffer in ("value", "grad"):
        s.tile(buffer, 0, {BLOCK})
"""


class Doubled(Neuron):
    """A user's layer, which has no recipe."""

    def forward(self) -> None:
        self.value = 2.0 * self.input


def doubled(net: Net, source: Ensemble) -> Ensemble:
    made = net.add_ensemble(ActivationEnsemble(Doubled, source.shape, ("c", "y", "x")))
    net.add_one_to_one_connections(source, made)
    return made


def pool(net: Net, source: Ensemble, kernel: int, stride: int, pad: int = 0, clamp: bool = False) -> Ensemble:
    return MaxPoolingLayer(net, source, kernel, stride, pad, ceil_mode=clamp, clamp=clamp)


def poolings(net: Net) -> list[Ensemble]:
    """Many readers of one source."""
    conv = ConvLayer(net, MemoryDataLayer(net, (1, 9, 11)), 32)
    windows = [(2, 2, 0, True), (3, 2, 1, False), (3, 1, 1, False), (5, 1, 2, False)]
    return [conv, *(pool(net, conv, *window) for window in windows), FullyConnectedLayer(net, conv, 5)]


def few_windows(net: Net) -> list[Ensemble]:
    conv = ConvLayer(net, MemoryDataLayer(net, (2, 3, 2)), 16)
    top = FullyConnectedLayer(net, pool(net, conv, 2, 2), 7)
    return [conv, pool(net, conv, 3, 2, 1), pool(net, conv, 2, 1, 1), top]


def deep(net: Net) -> list[Ensemble]:
    first = ConvLayer(net, MemoryDataLayer(net, (3, 16, 16)), 16)
    pooled = pool(net, relu := ReLULayer(net, first), 2, 2)
    second = ConvLayer(net, pooled, 32)
    everything = pool(net, second, 8, 8)
    return [first, relu, pooled, second, everything, FullyConnectedLayer(net, everything, 7)]


def odd_channels(net: Net) -> list[Ensemble]:
    """17 channels have the plain layout, 16 are blocked, and both meet; a user's layer reads blocks."""
    first = ConvLayer(net, MemoryDataLayer(net, (1, 6, 6)), 17)
    second = ConvLayer(net, pool(net, ReLULayer(net, first), 3, 2, 1), 16)
    own = doubled(net, second)
    return [first, second, own, FullyConnectedLayer(net, ReLULayer(net, own), 3), FullyConnectedLayer(net, second, 4)]


NETS: dict[str, Callable[[Net], list[Ensemble]]] = {
    "poolings": poolings,
    "few windows": few_windows,
    "deep": deep,
    "odd channels": odd_channels,
}


def expected_of(make: Callable[[Net], list[Ensemble]]) -> dict[str, np.ndarray]:
    """What a net computes as it is lowered, where no layer has chosen a layout."""
    with lowered():
        found, _ = computed(make)
    assert all(np.abs(values).max() < 2**24 for values in found.values())  # so that every sum is exact
    return found


def computed(
    make: Callable[[Net], list[Ensemble]], recipe: Path | None = None, others: Path | None = None
) -> tuple[dict[str, np.ndarray], Net]:
    """Everything that a net computes on small whole numbers, for whole batches and for a smaller one; and the net."""
    net = Net(BATCH, seed=1, keep="all")
    layers = make(net)
    if recipe is not None:
        net.use_recipe("conv", recipe)
    if others is not None:
        for kind in ("relu", "max_pooling"):
            net.use_recipe(kind, others / f"{kind}.py")
    net.compile(threads=2)
    generator = np.random.default_rng(0)
    found = {}
    for layer in layers:
        for name in ("weights", "bias"):
            if name in layer.fields():
                shape = layer.fields()[name].shape
                getattr(layer, f"set_{name}")(generator.integers(-1, 2, shape))
    data = next(e for e in net.ensembles if e.kind == "data")
    # A last, smaller batch is compiled for itself.
    for count in (BATCH, BATCH - 1) if make is few_windows and recipe is None else (BATCH,):
        net.set_batch(generator.integers(-2, 3, (count, *data.shape)).astype(np.float32))
        net.forward()
        for layer in layers:
            if not net.graph.readers(layer):
                layer.set_grad(generator.integers(-1, 2, (count, *layer.shape)))
        net.clear_grad()
        net.backward()
        for layer in layers:
            names = ["value", "grad", "mask_j", "mask_k", "grad_weights", "grad_bias"]
            for name in names:
                if name in layer.fields() or name.startswith("mask") and layer.kind == "max_pooling":
                    found[f"{layer.name}.{name} of {count}"] = getattr(layer, f"get_{name}")()
    return found, net


@pytest.fixture
def in_blocks(tmp_path: Path) -> Path:
    path = tmp_path / "conv.py"
    path.write_text(CONV_IN_BLOCKS)
    return path


@pytest.mark.parametrize(
    "name",
    ["few windows", *(pytest.param(name, marks=pytest.mark.slow) for name in ("odd channels", "deep", "poolings"))],
)
def test_layouts_change_no_result(name: str, in_blocks: Path) -> None:
    """Readers of one source follow its blocks, whichever recipe has chosen them."""
    expected = expected_of(NETS[name])
    for recipe in {"poolings": [None], "odd channels": [in_blocks]}.get(name, [in_blocks, None]):
        got, _ = computed(NETS[name], recipe)
        for key in got:
            np.testing.assert_array_equal(got[key], expected[key], err_msg=f"{key}, {recipe}")
    assert got.keys() == expected.keys()


RELU_IN_OTHER_BLOCKS = """
def forward(s, target):
    for buffer in ("inputs", "grad_inputs"):
        s.tile(buffer, 0, 4)
    s.tile("value", 0, 8)
"""
POOLING_PLAINLY = """
def forward(s, target):
    for buffer in ("inputs", "grad_inputs"):
        s.untile(buffer)
"""


def test_readers_may_want_other_layouts(in_blocks: Path, tmp_path: Path) -> None:
    """Two readers of one source in blocks of 16: one wants blocks of 4, the other one no blocks; and a reader of plain
    data wants blocks."""
    for name, text in (("relu", RELU_IN_OTHER_BLOCKS), ("max_pooling", POOLING_PLAINLY)):
        (tmp_path / f"{name}.py").write_text(text)

    def readers(net: Net) -> list[Ensemble]:
        conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), 16)
        relu, pooled = ReLULayer(net, conv), pool(net, conv, 3, 1, 1)
        return [conv, relu, pooled, FullyConnectedLayer(net, relu, 3), FullyConnectedLayer(net, pooled, 4)]

    expected, (got, net) = expected_of(readers), computed(readers, in_blocks, tmp_path)
    for key in expected:
        np.testing.assert_array_equal(got[key], expected[key], err_msg=key)
    moved = 2 * 4 * BATCH * 16 * 6 * 6 / 1e6
    reason = "conv1.value is blocked by 16 in dimension 1: copied to a layout that is "
    assert f"forward: {reason}blocked by 4 in dimension 1, {moved:.1f} MB moved" in str(net.explain("relu1"))
    assert f"forward: {reason}plain, {moved:.1f} MB moved" in str(net.explain("max_pooling1"))
    assert "backward: conv1.grad is blocked by 16" in str(net.explain("max_pooling1", "backward"))


REARRANGED = {
    "zeros around": "s.set_padding(buffer, (0, 0), (1, 1), (1, 1))",
    "another order": "s.transpose(buffer, 0, 2)",
}


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("filters", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_convolutions_of_a_rearranged_source(filters: int, kernel: int, tmp_path: Path) -> None:
    def readers(net: Net) -> list[Ensemble]:
        conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 7)), 20)
        net.use_recipe(conv, recipe)
        return [conv, ConvLayer(net, conv, filters, kernel=kernel, pad=kernel // 2)]

    recipe = None
    expected = expected_of(readers)
    for how, command in REARRANGED.items():
        recipe = tmp_path / f"{how}.py"
        recipe.write_text(f"def forward(s, target):\n    for buffer in ('value', 'grad'):\n        {command}\n")
        got, _ = computed(readers)
        for key in expected:
            np.testing.assert_array_equal(got[key], expected[key], err_msg=f"{key}, {how}")


@pytest.mark.slow
def test_blocks_may_be_ragged(tmp_path: Path) -> None:
    """Channels that do not fill their last block, in a net of all readers."""
    (tmp_path / "conv.py").write_text(CONV_IN_BLOCKS.replace(f"% {BLOCK}", "< 0"))

    def make(net: Net) -> list[Ensemble]:
        conv = ConvLayer(net, MemoryDataLayer(net, (2, 7, 6)), 19)
        pooled = pool(net, relu := ReLULayer(net, conv), 3, 2, 1)
        return [conv, relu, pooled, FullyConnectedLayer(net, pooled, 5), pool(net, relu, 2, 2, clamp=True)]

    expected, (got, _) = expected_of(make), computed(make, tmp_path / "conv.py")
    for key in expected:
        np.testing.assert_array_equal(got[key], expected[key], err_msg=key)


def blocks(net: Net, storage: str) -> tuple[tuple[int, int], ...]:
    return net.executable.buffers[storage].layout.blocks


def test_readers_follow_their_source(in_blocks: Path) -> None:
    net = Net(BATCH, seed=1)
    deep(net)
    net.use_recipe("conv", in_blocks)
    net.compile()
    for name in ("relu1.value", "relu1.grad", "max_pooling1.value", "max_pooling2.grad", "max_pooling1.mask_j"):
        assert blocks(net, name) == ((1, BLOCK),), name
    assert blocks(net, "fully_connected1.weights") == ((1, BLOCK),)
    assert blocks(net, "fully_connected1.value") == () == blocks(net, "data1.value")
    outcomes = [o for e in net.ensembles for o in net.executable.plan.outcomes.get(e.name, ())]
    skipped = {o.command.text for o in outcomes if o.status != "applied" and o.command.location != "default schedule"}
    assert not skipped


def test_hyperbolic_tangents_follow(in_blocks: Path) -> None:
    def values(recipe: Path) -> tuple[np.ndarray, np.ndarray, tuple[tuple[int, int], ...]]:
        net = Net(2, seed=0)
        conv = ConvLayer(net, MemoryDataLayer(net, (2, 5, 5)), 16)
        tanh = TanhLayer(net, conv)
        net.use_recipe("conv", recipe)
        net.compile()
        generator = np.random.default_rng(0)
        net.set_batch(generator.normal(size=(2, 2, 5, 5)))
        tanh.set_grad(generator.normal(size=(2, 16, 5, 5)))
        net.forward()
        net.backward()
        return tanh.get_value(), conv.get_grad(), blocks(net, "tanh1.value")

    with lowered():
        plain = values(in_blocks)
    blocked = values(in_blocks)
    assert blocked[2] == ((1, BLOCK),) and plain[2] == ()
    for expected, got in zip(plain[:2], blocked[:2], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)  # sums of 18 products in another order


IN_BLOCKS = """
def forward(s, target):
    for buffer in ("weights", "grad_weights", "value", "grad"):
        s.tile(buffer, 0, 4)
    s.tile("weights", 1, 2)
"""


def trained(folder: Path | None) -> list[tuple[list[float], np.ndarray]]:
    """Losses and weights after steps of a solver and steps by hand, for whole batches and smaller ones: without views
    of the weights, and with."""
    net = Net(BATCH, seed=1)
    data, labels = MemoryDataLayer(net, (3, 4, 4)), MemoryDataLayer(net, 1)
    conv = ConvLayer(net, data, 6)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, conv, 5), labels)
    if folder is not None:
        (folder / "own.py").write_text(IN_BLOCKS)
        net.use_recipe(conv, folder / "own.py")
    net.compile(threads=1, target="portable")
    if folder is not None:
        assert blocks(net, "conv1.weights") and blocks(net, "conv1.value")
    generator = np.random.default_rng(0)
    images, numbers = generator.normal(size=(BATCH, 3, 4, 4)), [0, 4, 2]
    initial, found = net.state_dict(), []
    for views in (False, True):
        net.load_state_dict(initial)
        solver, losses = SGD(net, 0.1, momentum=0.9), []
        weights, gradient = conv.get_weights_view(), conv.get_grad_weights_view()
        for count in (BATCH, BATCH - 1, BATCH):
            net.set_batch(images[:count], numbers[:count])
            net.forward()
            net.clear_grad()
            net.backward()
            solver.step()
            if views:
                weights -= 0.5 * gradient
                weights[1, :, 0] *= 0.5
            else:
                changed = conv.get_weights() - np.float32(0.5) * conv.get_grad_weights()
                changed[1, :, 0] *= 0.5
                conv.set_weights(changed)
            np.testing.assert_array_equal(conv.get_weights(), weights)
            np.testing.assert_array_equal(conv.get_grad_weights(), gradient)
            losses.append(net.loss)
        net.clear_grad()
        assert not gradient.any()  # at once, because a view is held
        found.append((losses, conv.get_weights()))
    return found


def test_views_of_buffers_in_blocks_train_alike(tmp_path: Path) -> None:
    with lowered():
        expected, plain_views = trained(None)
    for losses, weights in (plain_views, *trained(tmp_path)):
        # The fully connected layer sums its 96 products in the order of its source: some roundings of numbers near 1.
        np.testing.assert_allclose(losses, expected[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(weights, expected[1], rtol=0, atol=1e-5)


def test_views_of_values_in_blocks(tmp_path: Path) -> None:
    net = Net(2, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (2, 3, 3)), 5)
    (tmp_path / "own.py").write_text(IN_BLOCKS)
    net.use_recipe(conv, tmp_path / "own.py")
    net.compile(threads=1, target="portable")
    value, same = conv.get_value_view(), conv.get_value_view()
    assert value is same and not value.any() and not conv.get_value().any()
    net.set_batch(np.ones((2, 2, 3, 3)))
    net.forward()
    assert value.any()
    np.testing.assert_array_equal(value, conv.get_value())
    conv.set_value(np.full(value.shape, 3.0))
    assert (value == 3.0).all()
    part = value[0]
    del value, same
    part[...] = 7.0  # of a view that only its part keeps alive
    assert (conv.get_value()[0] == 7.0).all() and (conv.get_value()[1] == 3.0).all()
    conv.set_weights(np.zeros((5, 2, 3, 3)))
    assert not conv.get_weights().any() and not conv.get_weights_view().any()
