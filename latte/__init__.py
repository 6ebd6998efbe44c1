"""Latte: layers of deep networks as arrays of neurons, compiled by SWIRL."""

# Words of the language, for `from latte import Neuron, Param`.
from latte import layers
from latte.ensemble import Ensemble, LossEnsemble  # noqa: F401
from latte.layers import *  # noqa: F403
from latte.model.calls import answer_wrong_calls
from latte.net import Net
from latte.neuron import BiasNeuron, Constant, DataNeuron, Field, Neuron, Param, State, WeightedNeuron  # noqa: F401
from latte.version import VERSION

__version__ = VERSION

# The star import gives the layer constructors and Net, and nothing else: words of the language (Neuron,
# Param, …) and of bodies are imported by name, from latte, latte.neuron and latte.ensemble.
__all__ = ["Net"]
__all__ += layers.__all__

answer_wrong_calls(globals(), ["Net"])
