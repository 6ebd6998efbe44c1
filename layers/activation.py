"""Element-wise activations; each has its own value (the source's stays unchanged)."""

from __future__ import annotations

from latte.ensemble import ActivationEnsemble, Ensemble
from latte.layers.arguments import names_of_dimensions, source_of
from latte.net import Net
from latte.neuron import Neuron, tanh


class ReLUNeuron(Neuron):
    """``max(0, x)``."""

    def forward(self) -> None:
        self.value = max(0.0, self.input)


class TanhNeuron(Neuron):
    """``tanh(x)``."""

    def forward(self) -> None:
        self.value = tanh(self.input)


def ReLULayer(net: Net, input_ensemble: Ensemble) -> Ensemble:
    """``max(0, x)`` for each element; the gradient passes where x > 0.

    Raises:
        DeclarationError: if the input is not an ensemble of this net.
    """
    return _activation(net, source_of(net, input_ensemble, "ReLULayer"), ReLUNeuron, "relu")


def TanhLayer(net: Net, input_ensemble: Ensemble) -> Ensemble:
    """``tanh(x)`` for each element.

    Raises:
        DeclarationError: if the input is not an ensemble of this net.
    """
    return _activation(net, source_of(net, input_ensemble, "TanhLayer"), TanhNeuron, "tanh")


def _activation(net: Net, source: Ensemble, neuron: type[Neuron], kind: str) -> Ensemble:
    ensemble = ActivationEnsemble(neuron, source.shape, names_of_dimensions(source.ndim), kind=kind)
    net.add_ensemble(ensemble)
    net.add_one_to_one_connections(source, ensemble)
    return ensemble
