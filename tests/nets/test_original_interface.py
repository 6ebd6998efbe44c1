"""What programs for the original rely on beside the layers: tasks, views, clearing, properties."""

from __future__ import annotations

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from latte.errors import CommandError, TrainingError
from latte.neuron import BiasNeuron, Neuron, WeightedNeuron, eachindex
from tests.lowered import lowered

X = np.random.default_rng(0).normal(size=(3, 2, 7, 7))


def small_net() -> tuple[Net, Ensemble, Ensemble, Ensemble]:
    """data (2, 7, 7) → conv (5) → relu → pool → fully connected (4); no loss."""
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (2, 7, 7))
    conv = ConvLayer(net, data, num_filters=5)
    top = FullyConnectedLayer(net, MaxPoolingLayer(net, ReLULayer(net, conv)), 4)
    return net, data, conv, top


@pytest.mark.usefixtures("as_lowered")
def test_tasks_are_the_phases() -> None:
    net, data, _, top = small_net()
    assert net.forward_tasks == [] and net.backward_tasks == []
    net.compile(threads=1)
    data.set_value(X)
    net.forward()
    expected = top.get_value()
    assert (len(net.forward_tasks), len(net.backward_tasks)) == (2, 1)
    net.clear_values()
    assert not top.get_value().any() and not data.get_value().any()
    top.set_grad(np.ones((3, 4)))
    with pytest.raises(TrainingError, match="forward phase of this batch"):  # its values are gone
        net.backward()
    data.set_value(X)
    for task in net.forward_tasks:
        task()
    np.testing.assert_array_equal(top.get_value(), expected)
    net.backward()
    gradient = top.get_grad_weights()
    net.clear_grad()
    net.backward_tasks[0]()
    np.testing.assert_array_equal(top.get_grad_weights(), gradient)


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("parameters", [True, False])
def test_the_backward_task_needs_no_seed(parameters: bool) -> None:
    """Benchmarks time it in nets without a loss, and without parameters."""
    net = Net(3, seed=1)
    layer = MemoryDataLayer(net, (2, 7, 7))
    if parameters:
        layer = ConvLayer(net, layer, num_filters=5)
    ReLULayer(net, layer)
    net.compile(threads=1)
    for task in (*net.forward_tasks, *net.backward_tasks):
        task()


def test_training_through_views() -> None:
    """A step as the original's ``sgd_update`` does it, in place, on views taken once."""
    net, data, conv, top = small_net()
    net.compile(threads=1)
    parameters = [(layer.get_weights_view(), layer.get_grad_weights_view()) for layer in (conv, top)] + [
        (layer.get_bias_view(), layer.get_grad_bias_view()) for layer in (conv, top)
    ]
    histories = [np.zeros_like(view) for view, _ in parameters]
    output = np.random.default_rng(1).normal(size=(3, 4))
    for _ in range(3):
        before = [view.copy() for view, _ in parameters]
        data.set_value(X)
        net.forward()
        top.set_grad(output)
        net.backward()
        for (view, gradient), history in zip(parameters, histories, strict=True):
            change = 0.9 * history + 0.01 * gradient
            view -= change
            history[...] = change
        assert all((view != old).any() for (view, _), old in zip(parameters, before, strict=True))
        np.testing.assert_array_equal(conv.get_weights(), parameters[0][0])
        np.testing.assert_array_equal(top.get_grad_bias(), output.sum(0, dtype=np.float32)[:, None])
        net.clear_values()
        net.clear_grad()
        assert not any(gradient.any() for _, gradient in parameters)


def test_properties() -> None:
    net, data, conv, _ = small_net()
    assert (conv.shape, conv.ndim, len(conv), conv.pad) == ((5, 7, 7), 3, 245, ((0, 0),) * 3)
    assert (net.loss, net.accuracy, net.nowait, net.force_backward) == (0.0, 0.0, False, False)
    conv.set_padding((0, 3), (1, 1), (1, 1))  # asks for a halo; changes nothing that a getter shows
    assert conv.pad == ((0, 3), (1, 1), (1, 1))
    net.keep(conv)
    net.compile(threads=1)
    assert conv.get_value().shape == (3, 5, 7, 7)
    with pytest.raises(CommandError, match="set_padding: the net is compiled already"):
        data.set_padding(0, 1, 1)


def test_a_layer_in_the_original_style() -> None:
    """Object arrays of neurons that share arrays, ``set_padding``, a mapping in padded coordinates, a bias in place."""
    filters, pad = 3, 1
    weights = np.random.default_rng(2).normal(size=(filters, 2, 3, 3)).astype(np.float32)
    grad_weights = np.zeros_like(weights)
    bias, grad_bias = np.ones((filters, 1), np.float32), np.zeros((filters, 1), np.float32)
    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (2, 7, 7))
    neurons = np.empty((filters, 7, 7), dtype="object")
    biases = np.empty((filters, 7, 7), dtype="object")
    for k in range(filters):
        neurons[k, :, :] = WeightedNeuron(weights[k], grad_weights[k])
        biases[k, :, :] = BiasNeuron(bias[k], grad_bias[k])

    def mapping(c, y, x):
        return range(2), range(y, y + 3), range(x, x + 3)

    ensemble = net.init_ensemble(neurons)
    data.set_padding((0, 14), (pad, pad), (pad, pad))
    net.add_connections(data, ensemble, mapping)
    biased = net.init_activation_ensemble(biases, ensemble)
    same = ConvLayer(net, data, num_filters=filters, kernel=3, pad=pad)
    net.compile(threads=1)
    data.set_value(X)
    same.set_weights(weights)
    same.set_bias(bias)
    net.forward()
    # 18 products and the bias, summed in two orders.
    np.testing.assert_allclose(biased.get_value(), same.get_value(), rtol=0, atol=20 * 2**-24 * 30)
    gradient = np.random.default_rng(3).normal(size=(3, filters, 7, 7))
    biased.set_grad(gradient)
    same.set_grad(gradient)
    net.backward()
    np.testing.assert_allclose(ensemble.get_grad_weights(), same.get_grad_weights(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(biased.get_grad_bias(), same.get_grad_bias(), rtol=1e-4, atol=1e-4)


def test_one_shared_neuron() -> None:
    class Sum(Neuron):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = []
            self.grad_inputs = []

        def forward(self) -> None:
            for i in eachindex(self.inputs):
                self.value += self.inputs[i]

    net = Net(3, seed=1)
    data = MemoryDataLayer(net, (5,))
    neurons = np.empty((5,), dtype="object")
    neurons[:] = Sum()
    ensemble = net.init_ensemble(neurons)
    net.add_one_to_one_connections(data, ensemble)
    net.compile(threads=1)
    data.set_value(np.arange(15).reshape(3, 5))
    net.forward()
    net.forward()  # idempotent, though the body only adds
    np.testing.assert_array_equal(ensemble.get_value(), np.arange(15).reshape(3, 5))


# --- commands as older programs give them ------------------------------------------------------------------
def test_older_spellings_of_commands() -> None:
    """Argument orders included; what was asked for can be asked for."""
    net, _, conv, top = small_net()
    net.keep(conv)
    conv.set_filter_padding((0, 0), (0, 0), (1, 1), (1, 1))
    conv.use_libxsmm(1)
    conv.transpose("weights", 0, 1)
    conv.swap_loops("forward", ("_neuron_index_2", "_neuron_index_3"))
    conv.unroll_no_jam("forward", "__unique_loopvar0", 3, 1)
    conv.unroll_and_jam("forward", "_neuron_index_2", 2, 0)
    conv.parallelize("forward", "_neuron_index_0")
    conv.if_convert("forward")
    conv.prefetch("forward", {"weights": [1, "__unique_loopvar0", -4, 2, "_neuron_index_1", 1, 1, 0]})
    conv.prefetch(
        "forward",
        prefetch_dict_list=[{"inputs": [2, "k", -3, 1, 64, "k", "_neuron_index_2", "_neuron_index_0", 1, 2, 1]}],
    )
    conv.reset_prefetch("forward")
    conv.privatize("grad_bias")
    conv.reverse("update_internal", "_neuron_index_0")
    assert conv.parallel_info == {"forward": [("_neuron_index_0",)]}
    assert conv.unroll_info == {"forward": [("__unique_loopvar0", 3, 1), ("_neuron_index_2", 2, 0)]}
    assert conv.transpose_info == {"weights": [(0, 1)]} and conv.private_info == {"update": [("grad_bias",)]}
    assert conv.vectorize_info == conv.tiling_info == {}
    asked = [command.text for command in conv.commands if command.name == "prefetch"]
    assert asked == [
        "prefetch('forward', 'weights', '_neuron_index_1', 1, 1, optional=True)",
        "prefetch('forward', 'inputs', '_neuron_index_0', 2, 2, optional=True)",
    ]
    net.compile(threads=1)
    net.ensembles[0].set_value(X)
    net.forward()
    plain, data, _, plain_top = small_net()
    with lowered():
        plain.compile(threads=1)
    data.set_value(X)
    plain.forward()
    np.testing.assert_allclose(top.get_value(), plain_top.get_value(), rtol=1e-5, atol=1e-6)


def test_older_prefetches_that_are_none() -> None:
    _, _, conv, _ = small_net()
    for entry in ([1, 2], [3, "k", 1, 1, "k", 1, 1, 0], [1, "k", 1, 1, 0, 1, 1, 0], "weights"):
        with pytest.raises(CommandError, match=r"is not a list of an older program\n  prefetch\(phase, "):
            conv.prefetch("forward", {"weights": entry})


@pytest.mark.parametrize("target", [None, "portable"], ids=["best", "portable"])
def test_a_loop_that_is_tiled_by_now_is_named_by_its_parts(target: str | None) -> None:
    net = Net(2, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (16, 5, 5)), num_filters=16)
    conv.unroll("update_internal", "_neuron_index_1", 4)  # forward, the shipped recipe's, has tiled it
    with pytest.raises(CommandError, match="it is tiled: _neuron_index_1_outer and _neuron_index_1_inner"):
        net.compile(target=target)
