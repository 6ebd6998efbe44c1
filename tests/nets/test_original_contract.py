"""The public interface of the original: names, signatures, fields, rules in place, functions outside of a net."""

from __future__ import annotations

import builtins
import copy
import importlib
import inspect
import pkgutil
import sys
from typing import Any

import numpy as np
import pytest

import latte
from latte import (
    ConcatLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MeanPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble, EnsembleGroup
from latte.errors import CommandError, DataError, DeclarationError
from latte.math import (
    compute_accuracy,
    compute_seg_accuracy,
    compute_seg_softmax_loss,
    compute_softmax_loss,
    seg_softmax_loss_backprop,
    softmax_loss_backprop,
)
from latte.neuron import Neuron
from latte.solvers import sgd_update

pytestmark = pytest.mark.usefixtures("as_lowered")

SIGNATURES: dict[str, str] = {
    "MemoryDataLayer": "net, shape",
    "ConvLayer": "net, input_ensemble, num_filters=0, kernel=3, stride=1, pad=1, dilation=1",
    "ConvLayerNoBias": "net, input_ensemble, num_filters=0, kernel=3, stride=1, pad=1, dilation=1",
    "FullyConnectedLayer": "net, input_ensemble, num_outputs",
    "FullyConnectedLayerNoBias": "net, input_ensemble, num_outputs",
    "MaxPoolingLayer": "net, input_ensemble, kernel=2, stride=2, pad=0",
    "MeanPoolingLayer": "net, input_ensemble, kernel=2, stride=2, pad=0",
    "ReLULayer": "net, input_ensemble",
    "TanhLayer": "net, input_ensemble",
    "DropoutLayer": "net, input_ensemble, ratio=0.5",
    "LRNLayer": "net, input_ensemble, n=5, beta=0.75, alpha=0.0001, k=1.0",
    "ConcatLayer": "net, input_ensemble",
    "InterpolationLayer": "net, input_ensemble, pad=0, resize_factor=1.0",
    "SoftmaxLossLayer": "net, bottom, label",
    "AccuracyLayer": "net, bottom, label",
}
"""Every constructor with its positional parameters; further ones have names only."""


# --- names and signatures (A1, A3) ------------------------------------------------------------------------
def test_the_star_import_has_all_names_and_shadows_none() -> None:
    names: dict[str, Any] = {}
    exec("from latte import *", names)
    given = set(names) - {"__builtins__"}
    assert {"Net", *SIGNATURES} <= given
    modules = {module.name for module in pkgutil.iter_modules(latte.__path__)}
    assert not given & ({*sys.stdlib_module_names, *dir(builtins), "np"} | modules)
    assert all(name == "Net" or name.endswith(("Layer", "LayerNoBias")) for name in given)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(latte, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    written = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in positional]
    assert ", ".join(written) == SIGNATURES[name]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters if p not in positional)


def test_modules_that_programs_import() -> None:
    wanted = {
        "math": "compute_softmax_loss softmax_loss_backprop compute_accuracy compute_seg_softmax_loss"
        " seg_softmax_loss_backprop compute_seg_accuracy",
        "solvers": "sgd_update",
        "util": "get_cpu_freq",
        "config": "SIMDWIDTH nthreads parallel_strategy vec_config codegen_strategy",
        "core": "forward_unroll_factor backward_unroll_factor",
        "ensemble": "Ensemble DataEnsemble ActivationEnsemble LossEnsemble AccuracyEnsemble EnsembleGroup",
        "neuron": "Neuron WeightedNeuron BiasNeuron DataNeuron",
    }
    for module, names in wanted.items():
        found = importlib.import_module(f"latte.{module}")
        for name in names.split():
            getattr(found, name)
    import latte.util as util

    assert 1e8 < util.get_cpu_freq() < 1e11


# --- fields (A4) ------------------------------------------------------------------------------------------
def test_fields_of_every_layer() -> None:
    net = Net(3)
    net.force_backward = True
    data = MemoryDataLayer(net, (4, 6, 6))
    conv = ConvLayer(net, data, num_filters=19)
    pool = MaxPoolingLayer(net, conv)
    mean = MeanPoolingLayer(net, conv)
    joined = ConcatLayer(net, [pool, mean, pool])
    drop = DropoutLayer(net, joined)
    full = FullyConnectedLayer(net, drop, 5)
    assert net.buffers == {} and net.fuse_pattern_cbr() is None
    for layer in net.ensembles:
        net.keep(layer)
    net.compile(threads=1)
    data.set_value(np.random.default_rng(0).normal(size=(3, 4, 6, 6)))
    net.forward()
    full.set_grad(np.ones((3, 5)))
    net.backward()
    shapes = {
        (conv, "weights"): (19, 4, 3, 3),
        (conv, "bias"): (19, 1),
        (full, "weights"): (5, *joined.shape),
        (full, "bias"): (5, 1),
    }
    for (layer, field), shape in shapes.items():
        for name in (field, f"grad_{field}"):
            array, view = getattr(layer, f"get_{name}")(), getattr(layer, f"get_{name}_view")()
            assert array.shape == view.shape == shape and array.dtype == view.dtype == np.float32
            np.testing.assert_array_equal(array, view)
    for layer in net.ensembles:
        for name in ("value", "grad"):
            array = getattr(layer, f"get_{name}")()
            assert array.shape == (3, *layer.shape) and array.dtype == np.float32
    for layer, source in ((conv, data), (pool, conv), (joined, pool), (drop, joined), (full, drop)):
        assert layer.get_inputs().shape == layer.get_grad_inputs().shape == (3, *source.shape)
    np.testing.assert_array_equal(joined.get_grad_inputs1(), mean.get_grad())
    np.testing.assert_array_equal(joined.get_grad_inputs2(), pool.get_grad())
    for mask in (pool.get_mask_j(), pool.get_mask_k()):
        assert mask.shape == (3, *pool.shape) and mask.dtype == np.int32
    for name, array in net.buffers.items():  # kernels use integers as subscripts
        assert array.flags.writeable == (name not in ("max_pooling1mask_j", "max_pooling1mask_k")), name
    assert drop.get_randval().shape == (3, *drop.shape)
    assert net.buffers["conv1weights"].size >= 19 * 4 * 9  # in blocks, if a recipe has laid it out
    conv.set_weights(np.zeros((19, 4, 3, 3)))  # float64
    assert not conv.get_weights().any()


def test_initial_values() -> None:
    net = Net(1, seed=0)
    full = FullyConnectedLayer(net, MemoryDataLayer(net, (10, 5)), 30)
    net.compile(threads=1)
    weights, bound = full.get_weights(), np.sqrt(3 / 50)
    assert -bound <= weights.min() < -0.9 * bound and 0.9 * bound < weights.max() <= bound
    assert not full.get_bias().any() and not full.get_grad_weights().any()


# --- gradients (A2, A6) -----------------------------------------------------------------------------------
def two_heads(compat: bool) -> tuple[Net, Ensemble, Ensemble, Ensemble]:
    net = Net(3, seed=0, keep="all", compat=compat)
    inner = FullyConnectedLayer(net, MemoryDataLayer(net, 4), 5)
    heads = [FullyConnectedLayer(net, inner, 2) for _ in range(2)]
    net.compile(threads=1)
    net.set_batch(np.random.default_rng(0).normal(size=(3, 4)))
    for layer in (inner, *heads):
        layer.set_grad(np.ones((3, *layer.shape)))
    net.forward()
    net.backward()
    return net, inner, heads[0], heads[1]


def test_compatibility_clears_every_gradient() -> None:
    net, inner, first, second = two_heads(True)
    view = inner.get_grad_view()
    assert inner.get_grad().any() and second.get_grad_weights().any()
    net.clear_grad()
    for layer in (inner, first, second):
        for name in ("grad", "grad_weights", "grad_bias"):
            assert not getattr(layer, f"get_{name}")().any(), (layer, name)
    assert not view.any()
    first.set_grad(seed := np.full((3, 2), 2.0))  # the other head, and the inner layer, have none in this step
    net.backward()
    np.testing.assert_allclose(inner.get_grad(), seed @ first.get_weights(), rtol=1e-6)
    assert first.get_grad_weights().any() and not second.get_grad_weights().any()


def test_cleared_seeds_are_zero_for_batches_of_any_size() -> None:
    net, inner, first, second = two_heads(True)
    net.set_batch(np.ones((2, 4)))
    net.clear_grad()
    net.forward()
    net.backward()  # of zeros, as the original does
    assert not inner.get_grad_weights().any()
    net.set_batch(np.ones((3, 4)))
    net.forward()
    net.backward()
    assert not first.get_grad().any() and not second.get_grad_weights().any()


def test_a_cleared_loss_starts_from_its_weight() -> None:
    gradients = []
    for seeded in (False, True):
        net = Net(3, seed=0, compat=True)
        scores = FullyConnectedLayer(net, MemoryDataLayer(net, 4), 5)
        loss = SoftmaxLossLayer(net, scores, MemoryDataLayer(net, 1))
        net.compile(threads=1)
        net.set_batch(np.ones((3, 4)), np.zeros(3))
        if seeded:
            loss.set_grad([2.0])
        net.forward()
        net.clear_grad()
        net.backward()
        gradients.append(scores.get_grad_weights())
    np.testing.assert_array_equal(gradients[0], gradients[1])


def test_a_copy_has_the_seeds() -> None:
    net, inner, _, _ = two_heads(True)
    other = copy.deepcopy(net)
    other.forward()
    other.backward()
    np.testing.assert_array_equal(other[inner.name].get_grad(), inner.get_grad())


def test_without_compatibility_seeds_stay_until_they_are_given_again() -> None:
    net, inner, first, second = two_heads(False)
    before = inner.get_grad(), second.get_grad_weights()
    net.clear_grad()
    net.backward()
    np.testing.assert_array_equal(inner.get_grad(), before[0])
    np.testing.assert_array_equal(second.get_grad_weights(), before[1])
    for layer in (inner, first):
        layer.set_grad(np.zeros((3, *layer.shape)))
    net.clear_grad()
    net.backward()
    np.testing.assert_allclose(inner.get_grad(), np.ones((3, 2)) @ second.get_weights(), rtol=1e-6)
    assert not first.get_grad_weights().any()


# --- activations that work in place (A6) ------------------------------------------------------------------
def in_place(compat: bool | None) -> tuple[Net, Ensemble, Ensemble, Ensemble, Ensemble]:
    """data → conv → relu; a pool that reads conv, after relu; fully connected on it."""
    net = Net(2, seed=0, compat=compat)
    data = MemoryDataLayer(net, (2, 4, 4))
    conv = ConvLayer(net, data, num_filters=3)
    relu = ReLULayer(net, conv)
    pool = MaxPoolingLayer(net, conv)
    full = FullyConnectedLayer(net, pool, 2)
    net.compile(threads=1)
    data.set_value(np.random.default_rng(0).normal(size=(2, 2, 4, 4)))
    full.set_grad(np.ones((2, 2)))
    net.forward()
    net.backward()
    return net, conv, relu, pool, full


def test_compatibility_shows_what_activations_have_made() -> None:
    _, conv, relu, pool, _ = in_place(True)
    assert conv.get_value().min() == 0.0
    np.testing.assert_array_equal(conv.get_value(), relu.get_value())
    np.testing.assert_array_equal(conv.get_value_view(), relu.get_value())
    np.testing.assert_array_equal(pool.get_inputs(), relu.get_value())
    grad = conv.get_grad()
    assert not grad[relu.get_value() == 0].any() and grad.any()


def test_a_seed_below_an_activation_in_place() -> None:
    net, conv, relu, _, full = in_place(True)
    before = conv.get_grad()
    conv.set_grad(np.ones((2, 3, 4, 4)))
    net.forward()
    net.backward()
    np.testing.assert_allclose(conv.get_grad(), before + (relu.get_value() > 0), rtol=1e-6, atol=1e-6)
    assert full.get_value().shape == (2, 2)


def test_without_compatibility_each_layer_has_its_own_value(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(2, seed=0, keep="all")
    data = MemoryDataLayer(net, (2, 4, 4))
    conv = ConvLayer(net, data, num_filters=3)
    ReLULayer(net, conv)
    pool = MaxPoolingLayer(net, conv)
    net.compile(threads=1)
    data.set_value(np.random.default_rng(0).normal(size=(2, 2, 4, 4)))
    net.forward()
    assert conv.get_value().min() < 0
    np.testing.assert_array_equal(pool.get_inputs(), conv.get_value())
    monkeypatch.setenv("LATTE_COMPAT", "1")
    _, conv, relu, _, _ = in_place(None)
    np.testing.assert_array_equal(conv.get_value(), relu.get_value())
    with pytest.raises(DeclarationError, match="compat must be True or False, not 'yes'"):
        Net(2, compat="yes")  # type: ignore[arg-type]


def test_dropout_in_place_on_data_and_activations_in_a_row() -> None:
    net = Net(2, seed=0, compat=True)
    data = MemoryDataLayer(net, 50)
    drop = DropoutLayer(net, data, 0.5)
    full = FullyConnectedLayer(net, data, 4)
    tanh = TanhLayer(net, full)
    relu = ReLULayer(net, full)
    top = FullyConnectedLayer(net, full, 2)
    net.compile(threads=1)
    data.set_value(np.ones((2, 50)))
    net.forward()
    np.testing.assert_array_equal(full.get_inputs(), drop.get_value())
    np.testing.assert_array_equal(relu.get_value(), np.maximum(relu.get_inputs(), 0))  # of what tanh has left
    np.testing.assert_array_equal(relu.get_value(), tanh.get_value())
    assert -1 < relu.get_inputs().min() < 0
    np.testing.assert_array_equal(top.get_inputs(), full.get_value())
    assert full.get_value().min() == 0.0


def test_an_activation_that_reads_its_source_twice() -> None:
    class Doubled(Neuron):
        def forward(self) -> None:
            self.value = self.input + 2.0 * self.input1

    net = Net(2, seed=0, compat=True)
    data, other = MemoryDataLayer(net, 3), MemoryDataLayer(net, 3)
    made = net.add_ensemble(ActivationEnsemble(Doubled, (3,)))
    net.add_one_to_one_connections(data, made)
    net.add_one_to_one_connections(data, made)
    mixed = net.add_ensemble(ActivationEnsemble(Doubled, (3,)))
    net.add_one_to_one_connections(data, mixed)
    net.add_one_to_one_connections(other, mixed)
    relu = ReLULayer(net, other)
    net.compile(threads=1)
    net.set_batch(np.ones((2, 3)), np.full((2, 3), 5.0))
    net.forward()
    np.testing.assert_array_equal(mixed.get_value(), 13.0)  # data, which the first has made 3, and twice 5
    np.testing.assert_array_equal(relu.get_value(), 5.0)  # only the first source is worked on in place


def test_commands_that_do_not_apply_are_skipped_in_compatibility(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATTE_SCHEDULE")

    def declare(compat: bool) -> Net:
        net = Net(2, seed=0, compat=compat)
        relu = ReLULayer(net, MemoryDataLayer(net, (2, 4)))
        relu.unroll("forward", "no_such_loop", 4)
        net.compile(threads=1)
        return net

    declare(True)
    with pytest.raises(CommandError, match="no_such_loop"):
        declare(False)


def test_a_group_stands_for_its_last_member() -> None:
    net = Net(2)
    first = MemoryDataLayer(net, (3, 4))
    group = EnsembleGroup(first, ReLULayer(net, first))
    group.tile("value", 0, 2)
    assert (group.shape, group.ndim, len(group), group.pad) == ((3, 4), 2, 12, ((0, 0),) * 2)
    assert group.tiling_info == {"value": [(0, 2)]} and group.ensembles[0] is first
    assert not hasattr(group, "name")
    with pytest.raises(DeclarationError, match="a group needs ensembles"):
        EnsembleGroup(3)  # type: ignore[arg-type]


# --- functions outside of a net (A8) ----------------------------------------------------------------------
def test_softmax_loss_outside_of_a_net() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    output, label = generator.normal(size=(5, 7)).astype(np.float32), generator.integers(0, 7, (5, 1)).astype(float)
    prob, gradient = np.zeros_like(output), np.empty_like(output)
    loss = compute_softmax_loss(output, prob, label)
    softmax_loss_backprop(gradient, prob, label)
    x = torch.tensor(output, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(x, torch.tensor(label[:, 0]).long())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=1e-7)
    np.testing.assert_allclose(prob.sum(1), 1, rtol=1e-6)
    right = np.argmax(output, 1)
    assert compute_accuracy(output, right[:, None]) == 1.0
    assert compute_accuracy(np.zeros((2, 3)), [[0], [1]]) == 0.5  # the first of equal ones


def test_softmax_loss_of_pixels_outside_of_a_net() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    output = generator.normal(size=(2, 4, 3, 5)).astype(np.float32)
    label = generator.integers(0, 4, (2, 1, 3, 5)).astype(np.float32)
    label[0, 0, 0, :3] = 255
    prob, gradient, before = np.zeros_like(output), np.empty_like(output), output.copy()
    loss = compute_seg_softmax_loss(output, prob, label, 255)
    seg_softmax_loss_backprop(gradient, prob, label, 255)
    np.testing.assert_array_equal(output, before)
    x = torch.tensor(output, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(x, torch.tensor(label[:, 0]).long(), ignore_index=255)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=1e-7)
    assert compute_seg_accuracy(output, np.argmax(output, 1)[:, None], 255) == 1.0
    equal = np.zeros((2, 3, 1, 2))
    assert compute_seg_accuracy(equal, np.array([[[[2, 0]]], [[[255, 255]]]]), 255) == 0.5
    assert compute_seg_softmax_loss(equal, np.zeros_like(equal), np.full((2, 1, 1, 2), 255), 255) == 0.0


def test_steps_outside_of_a_net() -> None:
    param, grad, hist = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32), np.ones((2, 3), np.float32)
    sgd_update(param, grad, hist, 0.1, 0.9, 50)
    np.testing.assert_allclose(hist, 1.1, rtol=1e-6)
    np.testing.assert_allclose(param, -0.1, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compute_accuracy(np.zeros((2, 3)), np.zeros((3, 1))), r"not \(2, 3\) and \(3, 1\)"),
        (lambda: compute_accuracy(np.zeros((2, 3)), [[0], [3]]), "class numbers from 0 to 2"),
        (lambda: compute_softmax_loss(np.zeros((2, 3)), np.zeros((2, 2)), [[0], [1]]), r"prob has the shape \(2, 2\)"),
        (
            lambda: compute_seg_accuracy(np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4)), 255),
            r"not \(2, 3, 4, 4\) and \(2, 4, 4\)",
        ),
        (
            lambda: sgd_update(np.zeros(3), np.zeros(2), np.zeros(3), 0.1, 0.9),
            "the same number of elements, not 3, 2 and 3",
        ),
    ],
)
def test_arrays_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        call()
    assert "test_original_contract.py" in str(caught.value)
