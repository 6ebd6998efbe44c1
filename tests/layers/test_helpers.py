"""Layers whose bodies call helper functions and read NumPy arrays, against PyTorch."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.model.body import read_function
from latte.neuron import Neuron, Param, eachindex, exp, log1p, tanh, uniform_fan_in
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.layers.references import assert_within

KERNEL = np.outer([1, 2, 1], [1, 2, 1]) / 16
ORDER = np.array([3, 0, 4, 1, 2])


def softplus(x):
    return max(x, 0.0) + log1p(exp(-abs(x)))


class MishNeuron(Neuron):
    def forward(self):
        self.value = self.input * tanh(softplus(self.input))


class Recurrent(Ensemble):
    """``h[t] = tanh(w x[t] + u h[t - 1])``, the steps in an order of its own."""

    weights = Param("t", shape=(2,), init=uniform_fan_in)

    def cell(self, x, h, t):
        gate = self.weights[t, 0] * x
        gate += self.weights[t, 1] * h
        return tanh(gate)

    def forward(self, inputs, value):
        N, T = inputs.shape
        for n in range(N):
            state = 0.0
            for t in range(T):
                state = self.cell(inputs[n, ORDER[t]], state, t)
                value[n, t] = state


class BlurNeuron(Neuron):
    def forward(self):
        for k, j, i in eachindex(self.inputs):
            self.value += KERNEL[j, i] * self.inputs[k, j, i]


def mish(net: Net, data: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(Ensemble(MishNeuron, data.shape))
    net.add_one_to_one_connections(data, ensemble)
    return ensemble


def recurrent(net: Net, data: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(Recurrent(shape=data.shape, dims=("t",)))
    net.add_one_to_one_connections(data, ensemble)
    return ensemble


def blur(net: Net, data: Ensemble) -> Ensemble:
    ensemble = net.add_ensemble(Ensemble(BlurNeuron, data.shape, dims=("c", "y", "x")))
    net.add_connections(
        data, ensemble, lambda c, y, x: (range(c, c + 1), range(y, y + 3), range(x, x + 3)), padding=(0, 1, 1)
    )
    return ensemble


def same_recurrent(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    state, states = torch.zeros(len(x), dtype=x.dtype), []
    for t, source in enumerate(ORDER):
        state = torch.tanh(weights[t, 0] * x[:, source] + weights[t, 1] * state)
        states.append(state)
    return torch.stack(states, 1)


CASES = {
    "mish": (mish, F.mish, (2, 17)),
    "recurrent": (recurrent, same_recurrent, (3, 5)),
    "blur": (blur, lambda x: F.conv2d(x, torch.tensor(KERNEL).expand(3, 1, 3, 3), padding=1, groups=3), (2, 3, 5, 7)),
}


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name: str, target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    make, same, (batch, *shape) = CASES[name]
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, tuple(shape))
    layer = make(net, data)
    net.compile(target=target, threads=2)
    generator = np.random.default_rng(0)
    x, gradient = (generator.standard_normal((batch, *shape)).astype(np.float32) for _ in range(2))
    data.set_value(x)
    net.forward()
    layer.set_grad(gradient)
    net.backward()
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    weights = [torch.tensor(layer.get_weights(), dtype=torch.float64, requires_grad=True)] if make is recurrent else []
    expected = same(tensor, *weights)
    expected.backward(torch.tensor(gradient, dtype=torch.float64))
    assert_within(layer.get_value(), expected.detach().numpy(), 1e-6, "value")
    assert_within(data.get_grad(), tensor.grad.numpy(), 1e-5, "gradient")
    for tensor in weights:
        assert_within(layer.get_grad_weights(), tensor.grad.numpy(), 1e-5, "gradient of the weights")


def test_arrays_are_constants_of_the_net(tmp_path) -> None:
    """They are copied when it is compiled, and in no checkpoint."""
    table = np.arange(4.0)

    class Scaled(Neuron):
        def forward(self):
            for i in range(4):
                self.value += table[i] * self.input

    net = Net(1, seed=0)
    data = MemoryDataLayer(net, (2,))
    layer = net.init_activation_ensemble(Scaled, data)
    net.compile(threads=1)
    table[:] = 0.0
    data.set_value([[1, 2]])
    net.test()
    np.testing.assert_array_equal(layer.get_value(), [[6, 12]])
    net.save(tmp_path / "net")
    assert net.state_dict() == {}


def test_compiling_changes_no_definition() -> None:
    """Bodies of one function share its tree."""
    functions = (softplus, MishNeuron.forward, Recurrent.cell, Recurrent.forward, BlurNeuron.forward)
    before = [ast.dump(read_function(function).tree, include_attributes=True) for function in functions]
    for declare, shape in ((mish, (3,)), (recurrent, (5,))):
        net = Net(2)
        declare(net, MemoryDataLayer(net, shape))
        net.compile()
    assert [ast.dump(read_function(function).tree, include_attributes=True) for function in functions] == before
    assert all(read_function(function).tree is read_function(function).tree for function in functions)
