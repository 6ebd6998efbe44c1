"""The layer library."""

from latte.layers.activation import (
    ELULayer,
    GELULayer,
    LeakyReLULayer,
    PReLULayer,
    ReLU6Layer,
    ReLULayer,
    SigmoidLayer,
    SiLULayer,
    TanhLayer,
)
from latte.layers.convolution import ConvLayer, ConvLayerNoBias
from latte.layers.data import MemoryDataLayer
from latte.layers.dropout import DropoutLayer
from latte.layers.fully_connected import FullyConnectedLayer, FullyConnectedLayerNoBias
from latte.layers.group_normalization import GroupNormLayer, InstanceNormLayer, LayerNormLayer, LRNLayer
from latte.layers.loss import AccuracyLayer, SoftmaxLossLayer
from latte.layers.normalization import BatchNormLayer
from latte.layers.pooling import GlobalMeanPoolingLayer, MaxPoolingLayer, MeanPoolingLayer
from latte.layers.regression import BinaryCrossEntropyLayer, HuberLossLayer, L1LossLayer, MeanSquaredErrorLayer
from latte.layers.softmax import LogSoftmaxLayer, SoftmaxLayer

__all__ = [
    "AccuracyLayer",
    "BatchNormLayer",
    "BinaryCrossEntropyLayer",
    "ConvLayer",
    "ConvLayerNoBias",
    "DropoutLayer",
    "ELULayer",
    "FullyConnectedLayer",
    "FullyConnectedLayerNoBias",
    "GELULayer",
    "GlobalMeanPoolingLayer",
    "GroupNormLayer",
    "HuberLossLayer",
    "InstanceNormLayer",
    "L1LossLayer",
    "LRNLayer",
    "LayerNormLayer",
    "LeakyReLULayer",
    "LogSoftmaxLayer",
    "MaxPoolingLayer",
    "MeanPoolingLayer",
    "MeanSquaredErrorLayer",
    "MemoryDataLayer",
    "PReLULayer",
    "ReLU6Layer",
    "ReLULayer",
    "SiLULayer",
    "SigmoidLayer",
    "SoftmaxLayer",
    "SoftmaxLossLayer",
    "TanhLayer",
]
