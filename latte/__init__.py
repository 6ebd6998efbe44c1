"""Latte: layers of deep networks as arrays of neurons, compiled by SWIRL."""

# Words of the language, for `from latte import Neuron, Param`.
from latte.layers.activation import ReLULayer, TanhLayer
from latte.layers.convolution import ConvLayer, ConvLayerNoBias
from latte.layers.data import MemoryDataLayer
from latte.layers.fully_connected import FullyConnectedLayer, FullyConnectedLayerNoBias
from latte.layers.loss import AccuracyLayer, SoftmaxLossLayer
from latte.layers.normalization import BatchNormLayer
from latte.layers.pooling import MaxPoolingLayer
from latte.model.ensemble import Ensemble, LossEnsemble  # noqa: F401
from latte.model.neuron import BiasNeuron, DataNeuron, Field, Neuron, Param, State, WeightedNeuron  # noqa: F401
from latte.net import Net

# The star import gives the layer constructors and Net, and nothing else: words of the language (Neuron,
# Param, …) and of bodies are imported by name, from latte, latte.model.neuron and latte.model.ensemble.
__all__ = [
    "AccuracyLayer",
    "BatchNormLayer",
    "ConvLayer",
    "ConvLayerNoBias",
    "FullyConnectedLayer",
    "FullyConnectedLayerNoBias",
    "MaxPoolingLayer",
    "MemoryDataLayer",
    "Net",
    "ReLULayer",
    "SoftmaxLossLayer",
    "TanhLayer",
]
