"""Element-wise activations; each has its own value (the source's stays unchanged)."""

from __future__ import annotations

from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import choice, names_of_dimensions, one_to_one, positive, source_of
from latte.model.checks import check_number
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron, Param, constant, erf, exp, expm1, log1p, sigmoid, tanh


class ReLUNeuron(Neuron):
    """``max(0, x)``."""

    def forward(self) -> None:
        self.value = max(0.0, self.input)


class ReLU6Neuron(Neuron):
    """``min(max(0, x), 6)``."""

    def forward(self) -> None:
        self.value = min(max(0.0, self.input), 6.0)


class TanhNeuron(Neuron):
    """``tanh(x)``."""

    def forward(self) -> None:
        self.value = tanh(self.input)


class SigmoidNeuron(Neuron):
    """``1 / (1 + exp(-x))``."""

    def forward(self) -> None:
        self.value = sigmoid(self.input)


class SiLUNeuron(Neuron):
    """``x / (1 + exp(-x))``."""

    def forward(self) -> None:
        self.value = self.input * sigmoid(self.input)


class GELUNeuron(Neuron):
    """``0.5 x (1 + erf(x / √2))``."""

    def forward(self) -> None:
        self.value = 0.5 * self.input * (1.0 + erf(0.7071067811865476 * self.input))


class TanhGELUNeuron(Neuron):
    """``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))``."""

    def forward(self) -> None:
        inner = 0.7978845608028654 * (self.input + 0.044715 * self.input * self.input * self.input)
        self.value = 0.5 * self.input * (1.0 + tanh(inner))


def ReLULayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``max(0, x)`` for each element; the gradient passes where x > 0.

    Args:
        net: the net.
        input_ensemble: any shape; so it is for the layers below.
        name: of the layer, unique in the net; by default its kind and a number (``relu1``).

    Raises:
        DeclarationError: for arguments that do not fit, here and below.
    """
    return _activation(net, source_of(net, input_ensemble, "ReLULayer"), ReLUNeuron, "relu", name)


def ReLU6Layer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``min(max(0, x), 6)`` for each element; the gradient passes where 0 < x < 6.

    Source: Howard et al., *MobileNets*, 2017.
    """
    return _activation(net, source_of(net, input_ensemble, "ReLU6Layer"), ReLU6Neuron, "relu6", name)


def LeakyReLULayer(
    net: Net, input_ensemble: Ensemble, negative_slope: float = 0.01, *, name: str | None = None
) -> Ensemble:
    """``x`` where x > 0, else ``negative_slope · x``.

    Args:
        net: the net.
        input_ensemble: any shape.
        negative_slope: any number.
        name: of the layer.

    Source: Maas, Hannun, Ng, *Rectifier nonlinearities improve neural network acoustic models*, ICML 2013.
    """
    source = source_of(net, input_ensemble, "LeakyReLULayer")
    slope = check_number("negative_slope", negative_slope)

    class LeakyReLUNeuron(Neuron):
        def forward(self) -> None:
            self.value = self.input if self.input > 0.0 else slope * self.input

    return _activation(net, source, LeakyReLUNeuron, "leaky_relu", name)


def PReLULayer(net: Net, input_ensemble: Ensemble, init: float = 0.25, *, name: str | None = None) -> Ensemble:
    """``x`` where x > 0, else ``slope[c] · x``: a slope for each channel is learned.

    Args:
        net: the net.
        input_ensemble: shape (channels,), (channels, width) or (channels, height, width).
        init: where the field ``slope``, of shape (channels,), starts.
        name: of the layer.

    Source: He et al., *Delving deep into rectifiers*, ICCV 2015.
    """
    source = source_of(net, input_ensemble, "PReLULayer")
    if source.ndim > 3:
        raise DeclarationError(
            f"PReLULayer reads at most 3 dimensions without the batch, {source!r} has {source.ndim}",
            location=user_location(),
        )
    channel = (names_of_dimensions(source.ndim) or ("c",))[0]
    start = check_number("init", init)

    class PReLUNeuron(Neuron):
        slope = Param(channel, init=constant(start))

        def forward(self) -> None:
            self.value = self.input if self.input > 0.0 else self.slope * self.input

    return _activation(net, source, PReLUNeuron, "prelu", name)


def ELULayer(net: Net, input_ensemble: Ensemble, alpha: float = 1.0, *, name: str | None = None) -> Ensemble:
    """``x`` where x > 0, else ``alpha · (exp(x) - 1)``.

    Args:
        net: the net.
        input_ensemble: any shape.
        alpha: at least 0.
        name: of the layer.

    Source: Clevert, Unterthiner, Hochreiter, *Fast and accurate deep network learning by exponential linear units*,
    ICLR 2016.
    """
    source = source_of(net, input_ensemble, "ELULayer")
    scale = check_number("alpha", alpha, least=0.0)

    class ELUNeuron(Neuron):
        def forward(self) -> None:
            self.value = self.input if self.input > 0.0 else scale * expm1(self.input)

    return _activation(net, source, ELUNeuron, "elu", name)


def GELULayer(net: Net, input_ensemble: Ensemble, approximate: str = "none", *, name: str | None = None) -> Ensemble:
    """``0.5 x (1 + erf(x / √2))`` for each element.

    Args:
        net: the net.
        input_ensemble: any shape.
        approximate: ``"none"``, or ``"tanh"`` for ``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))``, which is within
            0.0005 of it; PyTorch's argument.
        name: of the layer.

    Source: Hendrycks, Gimpel, *Gaussian error linear units*, 2016.
    """
    source = source_of(net, input_ensemble, "GELULayer")
    form = choice("approximate", approximate, ("none", "tanh"))
    return _activation(net, source, {"none": GELUNeuron, "tanh": TanhGELUNeuron}[form], "gelu", name)


def SoftplusLayer(net: Net, input_ensemble: Ensemble, beta: float = 1.0, *, name: str | None = None) -> Ensemble:
    """``log(1 + exp(beta · x)) / beta`` for each element: a ReLU without a kink.

    Args:
        net: the net.
        input_ensemble: any shape.
        beta: how sharp the bend is, above 0.
        name: of the layer.

    Source: Dugas et al., *Incorporating second-order functional knowledge for better option pricing*, NIPS 2000.
    """
    source = source_of(net, input_ensemble, "SoftplusLayer")
    sharpness = positive("beta", beta)

    class SoftplusNeuron(Neuron):
        def forward(self) -> None:
            scaled = sharpness * self.input
            small = exp(-scaled if scaled > 0.0 else scaled)  # at most 1; abs(scaled) would have no slope at 0
            self.value = (max(0.0, scaled) + log1p(small)) / sharpness

    return _activation(net, source, SoftplusNeuron, "softplus", name)


def SiLULayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``x · sigmoid(x)`` for each element, also called swish.

    Source: Elfwing, Uchibe, Doya, *Sigmoid-weighted linear units*, Neural Networks 107, 2018.
    """
    return _activation(net, source_of(net, input_ensemble, "SiLULayer"), SiLUNeuron, "silu", name)


def SigmoidLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``1 / (1 + exp(-x))`` for each element."""
    return _activation(net, source_of(net, input_ensemble, "SigmoidLayer"), SigmoidNeuron, "sigmoid", name)


def TanhLayer(net: Net, input_ensemble: Ensemble, *, name: str | None = None) -> Ensemble:
    """``tanh(x)`` for each element."""
    return _activation(net, source_of(net, input_ensemble, "TanhLayer"), TanhNeuron, "tanh", name)


def _activation(net: Net, source: Ensemble, neuron: type[Neuron], kind: str, name: str | None) -> Ensemble:
    ensemble = ActivationEnsemble(neuron, source.shape, names_of_dimensions(source.ndim), kind=kind, name=name)
    return one_to_one(net, source, ensemble)
