"""The layer library."""

from latte.layers.accuracy import AccuracyLayer
from latte.layers.activation import (
    ELULayer,
    GELULayer,
    LeakyReLULayer,
    PReLULayer,
    ReLU6Layer,
    ReLULayer,
    SigmoidLayer,
    SiLULayer,
    SoftplusLayer,
    TanhLayer,
)
from latte.layers.attention import ScaledDotProductAttentionLayer
from latte.layers.combining import AddLayer, ConcatLayer, MultiplyLayer, ResidualSumLayer
from latte.layers.convolution import ConvLayer, ConvLayerNoBias
from latte.layers.data import MemoryDataLayer
from latte.layers.dropout import DropoutLayer
from latte.layers.embedding import EmbeddingLayer
from latte.layers.fully_connected import FullyConnectedLayer, FullyConnectedLayerNoBias
from latte.layers.group_normalization import GroupNormLayer, InstanceNormLayer, LayerNormLayer, LRNLayer
from latte.layers.interpolation import InterpolationLayer
from latte.layers.loss import SoftmaxLossLayer
from latte.layers.normalization import BatchNormLayer
from latte.layers.pooling import GlobalMeanPoolingLayer, MaxPoolingLayer, MeanPoolingLayer
from latte.layers.positionwise import PositionwiseLinearLayer
from latte.layers.rearranging import FlattenLayer, PaddingLayer, PermuteLayer, ReshapeLayer, SplitLayer
from latte.layers.recurrent import GRULayer, LSTMLayer, RNNLayer
from latte.layers.regression import BinaryCrossEntropyLayer, HuberLossLayer, L1LossLayer, MeanSquaredErrorLayer
from latte.layers.softmax import LogSoftmaxLayer, SoftmaxLayer
from latte.layers.transposed_convolution import TransposedConvLayer
from latte.model.calls import answer_wrong_calls

__all__ = [
    "AccuracyLayer",
    "AddLayer",
    "BatchNormLayer",
    "BinaryCrossEntropyLayer",
    "ConcatLayer",
    "ConvLayer",
    "ConvLayerNoBias",
    "DropoutLayer",
    "ELULayer",
    "EmbeddingLayer",
    "FlattenLayer",
    "FullyConnectedLayer",
    "FullyConnectedLayerNoBias",
    "GELULayer",
    "GRULayer",
    "GlobalMeanPoolingLayer",
    "GroupNormLayer",
    "HuberLossLayer",
    "InstanceNormLayer",
    "InterpolationLayer",
    "L1LossLayer",
    "LRNLayer",
    "LSTMLayer",
    "LayerNormLayer",
    "LeakyReLULayer",
    "LogSoftmaxLayer",
    "MaxPoolingLayer",
    "MeanPoolingLayer",
    "MeanSquaredErrorLayer",
    "MemoryDataLayer",
    "MultiplyLayer",
    "PReLULayer",
    "PaddingLayer",
    "PermuteLayer",
    "PositionwiseLinearLayer",
    "RNNLayer",
    "ReLU6Layer",
    "ReLULayer",
    "ReshapeLayer",
    "ResidualSumLayer",
    "ScaledDotProductAttentionLayer",
    "SiLULayer",
    "SigmoidLayer",
    "SoftmaxLayer",
    "SoftmaxLossLayer",
    "SoftplusLayer",
    "SplitLayer",
    "TanhLayer",
    "TransposedConvLayer",
]

answer_wrong_calls(globals(), __all__)
