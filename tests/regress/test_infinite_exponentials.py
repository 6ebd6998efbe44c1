"""Gates as their formula has them: where ``exp`` is infinite, the gradient was NaN, as infinity / infinity."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.neuron import Neuron, exp, sigmoid
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS

torch = pytest.importorskip("torch")
PLACES = np.array([[-200, -100, -89, -88, -20, -1, 0, 1, 5, 20, 60, 87, 89, 100, 200]], np.float32)


class Logistic(Neuron):
    def forward(self):
        self.value = 1.0 / (1.0 + exp(-self.input))


class Product(Neuron):
    """Both sides of the quotient depend on x."""

    def forward(self):
        self.value = self.input / (exp(-self.input) + 1.0)


class Mixed(Neuron):
    def forward(self):
        share = 1.0 / (1.0 + exp(-self.input))
        self.value = share * self.input + (1.0 - share) * 0.5


class Bell(Neuron):
    """The rest of the sum depends on x, too."""

    def forward(self):
        self.value = self.input * (2.0 / (self.input * self.input + exp(self.input)))


class Word(Neuron):
    def forward(self):
        self.value = self.input * sigmoid(self.input)


EXPECTED = {
    Logistic: torch.sigmoid,
    Product: lambda x: x * torch.sigmoid(x),
    Mixed: lambda x: torch.sigmoid(x) * x + (1 - torch.sigmoid(x)) * 0.5,
    Bell: lambda x: x * 2 / (x * x + torch.exp(x)),
    Word: lambda x: x * torch.sigmoid(x),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", EXPECTED)
def test_gradients_are_finite_where_the_exponential_is_not(kind: type[Neuron], target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    net = Net(1, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, PLACES.shape[1:])
    layer = net.init_activation_ensemble(kind, data)
    net.compile(threads=1, target=target)
    net.set_batch(PLACES)
    net.forward()
    layer.set_grad(np.ones_like(PLACES))
    net.backward()
    x = torch.tensor(PLACES, dtype=torch.float64, requires_grad=True)
    value = EXPECTED[kind](x)
    value.sum().backward()
    np.testing.assert_allclose(layer.get_value(), value.detach().numpy(), rtol=1e-5, atol=1e-35)
    np.testing.assert_allclose(data.get_grad(), x.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert data.get_grad()[0, 4] == pytest.approx(float(x.grad[0, 4]), rel=1e-4)  # no digits are lost where it is small
    assert net.check_gradients()
