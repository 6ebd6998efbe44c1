"""Dropout."""

from __future__ import annotations

from latte.ensemble import ActivationEnsemble, Ensemble
from latte.layers.arguments import names_of_dimensions, one_to_one, source_of
from latte.model.checks import check_number
from latte.net import Net
from latte.neuron import Field, Neuron, rand


def DropoutLayer(net: Net, input_ensemble: Ensemble, ratio: float = 0.5, *, name: str | None = None) -> Ensemble:
    """Each element is 0 with the probability ``ratio``, else multiplied by ``1 / (1 - ratio)``; in inference it passes.

    The field ``randval`` has the numbers that the last forward phase drew: an element is kept where its number is
    at least ``ratio``. They depend on the net's seed, the step and the element.

    Args:
        net: the net.
        input_ensemble: any shape.
        ratio: at least 0, below 1.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Srivastava et al., *Dropout*, JMLR 15, 2014, in the scaled form of section 10.
    """
    source = source_of(net, input_ensemble, "DropoutLayer")
    dropped = check_number("ratio", ratio, least=0.0, below=1.0)
    factor = 1.0 / (1.0 - dropped)
    dims = names_of_dimensions(source.ndim) or tuple(f"d{dim}" for dim in range(source.ndim))

    class DropoutNeuron(Neuron):
        randval = Field("n", *dims)

        def forward(self) -> None:
            if self.training:
                self.randval = rand()
                self.value = self.input * factor if self.randval >= dropped else 0.0
            else:
                self.value = self.input

    ensemble = ActivationEnsemble(DropoutNeuron, source.shape, dims, kind="dropout", name=name)
    return one_to_one(net, source, ensemble)
