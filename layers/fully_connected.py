"""Fully connected layers."""

from __future__ import annotations

from latte.ensemble import Ensemble
from latte.layers.arguments import count, own_or_shared, source_of
from latte.model.sharing import Shared
from latte.net import Net
from latte.neuron import Neuron, Param, eachindex, uniform_fan_in, zeros


def FullyConnectedLayer(
    net: Net,
    input_ensemble: Ensemble,
    num_outputs: int,
    *,
    weights: Shared | None = None,
    bias: Shared | None = None,
    name: str | None = None,
) -> Ensemble:
    """``value[n, k] = bias[k, 0] + Σ weights[k, …] · inputs[n, …]`` over all elements of the source.

    Weights have shape ``(num_outputs,) + source.shape`` and start uniform in ±sqrt(3 / fan_in); the bias has
    shape ``(num_outputs, 1)`` and starts at zero.

    Args:
        net: the net.
        input_ensemble: any shape.
        num_outputs: number of neurons.
        weights, bias: parameters of other layers to share (``other.weights``), of these shapes; by default its own.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (num_outputs,).

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "FullyConnectedLayer")
    outputs = count("num_outputs", num_outputs)
    w = own_or_shared("weights", weights, Param("k", shape=source.shape, init=uniform_fan_in), outputs)
    b = own_or_shared("bias", bias, Param("k", shape=(1,), init=zeros), outputs)

    class FullyConnectedNeuron(Neuron):
        weights = w
        bias = b

        def forward(self) -> None:
            self.value = self.bias[0]
            for i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[i]

    return _fully_connected(net, source, FullyConnectedNeuron, outputs, name)


def FullyConnectedLayerNoBias(
    net: Net,
    input_ensemble: Ensemble,
    num_outputs: int,
    *,
    weights: Shared | None = None,
    name: str | None = None,
) -> Ensemble:
    """Fully connected without bias; arguments, result and errors as :func:`FullyConnectedLayer`'s."""
    source = source_of(net, input_ensemble, "FullyConnectedLayerNoBias")
    outputs = count("num_outputs", num_outputs)
    w = own_or_shared("weights", weights, Param("k", shape=source.shape, init=uniform_fan_in), outputs)

    class FullyConnectedNeuron(Neuron):
        weights = w

        def forward(self) -> None:
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[i]

    return _fully_connected(net, source, FullyConnectedNeuron, outputs, name)


def _fully_connected(net: Net, source: Ensemble, neuron: type[Neuron], outputs: int, name: str | None) -> Ensemble:
    extents = source.shape

    def mapping(k):
        return tuple(range(extent) for extent in extents)

    ensemble = net.add_ensemble(Ensemble(neuron, (outputs,), ("k",), kind="fully_connected", name=name))
    net.add_connections(source, ensemble, mapping, padding=(0,) * source.ndim)
    return ensemble
