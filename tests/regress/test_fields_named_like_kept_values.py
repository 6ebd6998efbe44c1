"""Fields that had the name, and so the memory, of arrays that the compiler makes; arrays of two phases of one name."""

from __future__ import annotations

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.neuron import Field, Param, State, exp, ones, sqrt
from swirl.errors import DeclarationError
from tests.support import running_targets

N, C = 3, 9


class KeptSum(Ensemble):
    """``s`` is kept for backward; inference reads a parameter of the name that its array would have."""

    kept_s = Param("c", init=ones)

    def forward(self, inputs, value, kept_s):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                s = 0.0
                for i in range(C):
                    s += inputs[n, i] * inputs[n, i]
                for i in range(C):
                    value[n, i] = inputs[n, i] / sqrt(s + 0.01)
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * kept_s[i]


class OverwrittenField(Ensemble):
    """The same for the value that ``h`` had before it is overwritten."""

    h = Field("n", "c")
    h_before = Param("c", init=ones)

    def forward(self, inputs, value, h, h_before):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for i in range(C):
                    h[n, i] = inputs[n, i] * inputs[n, i]
            for n in range(N):
                for i in range(C):
                    h[n, i] = h[n, i] * h[n, i]
            for n in range(N):
                for i in range(C):
                    value[n, i] = h[n, i] * h[n, i]
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * h_before[i]


class Largest(Ensemble):
    """The same for the place of a maximum, which has another shape and type."""

    mask_i = Param("c", init=ones)

    def forward(self, inputs, value, mask_i):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for k in range(C):
                    value[n, k] = inputs[n, 0]
                    for i in range(C):
                        value[n, k] = max(value[n, k], inputs[n, i] * inputs[n, k])
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * mask_i[i]


class LargestOfItems(Ensemble):
    """And here the same shape and type as the places."""

    mask_i = State("n", "c", dtype="int32", init=ones)

    def forward(self, inputs, value, mask_i):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for k in range(C):
                    value[n, k] = inputs[n, 0]
                    for i in range(C):
                        value[n, k] = max(value[n, k], inputs[n, i] * inputs[n, k])
        else:
            for n in range(N):
                for i in range(C):
                    value[n, i] = inputs[n, i] * mask_i[n, i]


class WrittenBackward(Ensemble):
    """A written gradient, which gets an array of its own where another layer has started the sum."""

    own_grad_inputs = State("n", "c", init=ones)

    def forward(self, inputs, value, own_grad_inputs):
        N, C = inputs.shape
        for n in range(N):
            for i in range(C):
                value[n, i] = inputs[n, i] * own_grad_inputs[n, i]

    def backward(self, grad, grad_inputs):
        N, C = grad.shape
        for n in range(N):
            for i in range(C):
                grad_inputs[n, i] = grad[n, i] * 5.0
        for i in range(C):
            for n in range(1, N):
                grad_inputs[n, i] = grad_inputs[n, i] + grad_inputs[n - 1, C - 1 - i]


class WrittenUpdate(Ensemble):
    """An update that is written, and has a local of the name of what training keeps."""

    w = Param("c", init=ones)

    def forward(self, inputs, value, w):
        N, C = inputs.shape
        for n in range(N):
            s = 0.0
            for i in range(C):
                s += inputs[n, i] * inputs[n, i]
            for i in range(C):
                value[n, i] = inputs[n, i] / sqrt(s + 0.01) * w[i]

    def update(self, grad, grad_w, inputs):
        N, C = inputs.shape
        kept_s = 0.0
        for n in range(N):
            for i in range(C):
                kept_s += inputs[n, i]
        for n in range(N):
            for i in range(C):
                grad_w[i] += grad[n, i] * kept_s


class OperandOfInference(Ensemble):
    """Training keeps a local of the name that an operand of inference has."""

    kept_w = Param("c", shape=(C,), init=ones)

    def forward(self, inputs, value, kept_w):
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                w_part = 0.0
                for i in range(C):
                    w_part += inputs[n, i] * inputs[n, i]
                for i in range(C):
                    value[n, i] = inputs[n, i] / sqrt(w_part + 0.01)
        else:
            for n in range(N):
                for k in range(C):
                    for i in range(C):
                        value[n, k] += exp(kept_w[k, i]) * inputs[n, i]


@pytest.mark.parametrize(
    ("kind", "field"),
    [(KeptSum, "kept_s"), (OverwrittenField, "h_before"), (Largest, "mask_i"), (LargestOfItems, "mask_i")],
)
@pytest.mark.parametrize("target", running_targets())
def test_a_field_keeps_its_array(kind: type[Ensemble], field: str, target: str) -> None:
    net, data, (layer,) = of(kind)
    x = compiled(net, data, target)
    run(net, layer)
    array = getattr(layer, f"get_{field}")()
    np.testing.assert_array_equal(array, np.ones_like(array))
    net.test()
    np.testing.assert_array_equal(layer.get_value(), x)
    net.forward()
    assert net.check_gradients(layer)


@pytest.mark.parametrize("target", running_targets())
def test_a_field_keeps_its_array_where_a_written_gradient_is_added(target: str) -> None:
    net, data, layers = of(KeptSum, WrittenBackward)
    x = compiled(net, data, target)
    run(net, *layers)
    np.testing.assert_array_equal(layers[1].get_own_grad_inputs(), np.ones((N, C), np.float32))
    net.forward()
    np.testing.assert_array_equal(layers[1].get_value(), x)


@pytest.mark.parametrize("kind", [WrittenUpdate, OperandOfInference])
@pytest.mark.parametrize("target", running_targets())
def test_arrays_of_phases_are_apart(kind: type[Ensemble], target: str) -> None:
    net, data, (layer,) = of(kind)
    x = compiled(net, data, target)
    run(net, layer)
    np.testing.assert_allclose(layer.get_value(), x / np.sqrt((x * x).sum(1, keepdims=True) + 0.01), rtol=1e-5)
    if kind is WrittenUpdate:
        np.testing.assert_allclose(layer.get_grad_w().ravel(), np.full(C, N * x.sum()), rtol=1e-5)
    else:
        net.test()
        np.testing.assert_allclose(layer.get_value(), np.repeat(np.e * x.sum(1, keepdims=True), C, 1), rtol=1e-5)


def test_the_name_of_a_gradient_is_refused() -> None:
    """Its memory was the gradient's."""

    class Named(OverwrittenField):
        grad_h = Param("c", init=ones)

    with pytest.raises(DeclarationError, match=r"'grad_h' cannot name a field of .*: the gradient of h has it"):
        of(Named)
    layer = OverwrittenField(shape=(C,), dims=("c",))
    with pytest.raises(DeclarationError, match="'grad_h' cannot name a field"):
        layer.add_field("grad_h", Param("c", init=ones))


def of(*kinds: type[Ensemble]) -> tuple[Net, Ensemble, list[Ensemble]]:
    """A net of data that layers read, and these."""
    net = Net(N, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (C,))
    layers = [net.add_ensemble(kind(shape=(C,), dims=("c",), name=f"layer{i}")) for i, kind in enumerate(kinds)]
    for layer in layers:
        net.add_connections(data, layer)
    return net, data, layers


def compiled(net: Net, data: Ensemble, target: str) -> np.ndarray:
    """The source's values, once the net is compiled."""
    net.compile(target=target, threads=1)
    x = np.random.default_rng(0).uniform(0.5, 1.5, (N, C)).astype(np.float32)
    data.set_value(x)
    return x


def run(net: Net, *layers: Ensemble) -> None:
    """Forward and backward, from gradients of 1."""
    net.forward()
    for layer in layers:
        layer.set_grad(np.ones((N, C)))
    net.backward()
