"""Linear layers on each position of a sequence."""

from __future__ import annotations

from latte.ensemble import Ensemble
from latte.layers.arguments import count, flag, own_or_shared, source_of
from latte.model.sharing import Shared
from latte.net import Net
from latte.neuron import Neuron, Param, uniform_fan_in, zeros


def PositionwiseLinearLayer(
    net: Net,
    input_ensemble: Ensemble,
    num_outputs: int,
    bias: bool = True,
    *,
    weights: Shared | None = None,
    name: str | None = None,
) -> Ensemble:
    """``value[n, t, k] = bias[k] + Σ weights[k, d] · inputs[n, t, d]``, the same weights at each position.

    Weights have shape ``(num_outputs, features)`` and start uniform in ±sqrt(3 / fan_in); the bias has shape
    ``(num_outputs,)`` and starts at zero.

    Args:
        net: the net.
        input_ensemble: shape (positions, features).
        num_outputs: features of a position of the result.
        bias: whether it has one.
        weights: a parameter of another layer to share (``other.weights``), of this shape; by default its own.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (positions, num_outputs).

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Vaswani et al., *Attention is all you need*, 2017, section 3.3.
    """
    source = source_of(net, input_ensemble, "PositionwiseLinearLayer", 2)
    positions, features = source.shape
    outputs, biased = count("num_outputs", num_outputs), flag("bias", bias)
    w = own_or_shared("weights", weights, Param("k", shape=(features,), init=uniform_fan_in), outputs)

    class PositionwiseLinearNeuron(Neuron):
        weights = w
        bias: float  # a field where there is one

        def forward(self) -> None:
            self.value = self.bias if biased else 0.0
            for d in range(features):
                self.value += self.weights[d] * self.inputs[0, d]

    shape = (positions, outputs)
    ensemble = Ensemble(PositionwiseLinearNeuron, shape, ("t", "k"), kind="positionwise_linear", name=name)
    if biased:
        ensemble.add_field("bias", Param("k", init=zeros, fan_in=features))
    net.add_ensemble(ensemble)
    net.add_connections(source, ensemble, lambda t, k: (range(t, t + 1), range(features)))
    return ensemble
