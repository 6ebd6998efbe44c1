"""Helper functions found modules and classes by what the caller calls so: each has names of its own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.frontend.lower import lower
from latte.solver import Setting, Solver
from swirl.errors import BodyError
from swirl.ir.execute import execute
from tests.regress.surroundings import area, rate, shifted, undefined

m = SimpleNamespace(pi=100.0)
only_the_caller_knows = 7.0


class Config:
    RATE = 100.0


def with_local(x):
    pi = 10.0 * x
    pi += 1.0
    return pi


class Values(Ensemble):
    def forward(self, inputs, value):
        for n in range(2):
            value[n, 0] = area(inputs[n, 0])
            value[n, 1] = rate(inputs[n, 1]) + Config.RATE
            value[n, 2] = shifted(inputs[n, 2]) + with_local(inputs[n, 0]) + area(inputs[n, 1])


class Undefined(Ensemble):
    def forward(self, inputs, value):
        for n in range(2):
            value[n, 0] = undefined(inputs[n, 0])


class Stepped(Solver):
    step_size = Setting(2.0)

    def update(self):
        self.parameter -= rate(self.gradient) + Config.RATE + area(self.step_size)


def of(kind: type[Ensemble]) -> Ensemble:
    net = Net(2)
    data = MemoryDataLayer(net, (3,))
    layer = net.add_ensemble(kind(shape=(3,), dims=("c",)))
    net.add_connections(data, layer, lambda *_: None)
    return layer


def test_a_helper_has_modules_and_classes_of_its_own() -> None:
    layer = of(Values)
    program = lower(layer, "forward", batch_size=2)
    inputs = np.array([[1, 2, 3], [-4, 0.5, 6]], np.float32)
    arrays = {name: np.zeros(buffer.shape, np.float32) for name, buffer in program.buffers.items()}
    arrays["inputs"][...] = inputs
    execute(program, arrays)
    expected = np.zeros((2, 3))
    layer.forward(inputs, expected)
    np.testing.assert_allclose(arrays["value"], expected, rtol=1e-6)


def test_a_helper_knows_no_names_of_its_caller() -> None:
    with pytest.raises(BodyError, match=r"surroundings.py.*\n?.*'only_the_caller_knows' is not defined"):
        lower(of(Undefined), "forward", batch_size=2)


def test_helpers_of_a_solver() -> None:
    net = Net(2, seed=0)
    layer = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2)
    net.compile(threads=1, target="portable")
    before = layer.get_weights()
    solver = Stepped(net)
    net.set_batch(np.zeros((2, 3)))
    net.forward()
    layer.set_grad(np.zeros((2, 2)))
    net.backward()
    layer.set_grad_weights(np.full(before.shape, 2.0))
    solver.step()
    np.testing.assert_allclose(layer.get_weights(), before - 106.0 - 2.0 * np.pi, rtol=1e-6)
