"""The layer library."""

from latte.layers.activation import ReLULayer, TanhLayer
from latte.layers.convolution import ConvLayer, ConvLayerNoBias
from latte.layers.data import MemoryDataLayer
from latte.layers.fully_connected import FullyConnectedLayer, FullyConnectedLayerNoBias
from latte.layers.loss import AccuracyLayer, SoftmaxLossLayer
from latte.layers.normalization import BatchNormLayer
from latte.layers.pooling import MaxPoolingLayer

__all__ = [
    "AccuracyLayer",
    "BatchNormLayer",
    "ConvLayer",
    "ConvLayerNoBias",
    "FullyConnectedLayer",
    "FullyConnectedLayerNoBias",
    "MaxPoolingLayer",
    "MemoryDataLayer",
    "ReLULayer",
    "SoftmaxLossLayer",
    "TanhLayer",
]
