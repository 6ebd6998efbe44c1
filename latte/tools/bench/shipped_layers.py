"""The layers of the library, each as it is declared most often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import latte
from latte.ensemble import Ensemble
from latte.net import Net
from latte.tools.bench.tried import VOCABULARY, Arrays, Tried

GROUPS = 8
CLASSES = 1000

Declare = Callable[[Net, Ensemble], Ensemble]


def _layer(name: str, *arguments: Any, **options: Any) -> Declare:
    return lambda net, source: getattr(latte, name)(net, source, *arguments, **options)


def _twice(name: str) -> Declare:
    return lambda net, source: getattr(latte, name)(net, [source, source])


def _loss(name: str, *shape: int) -> Declare:
    """A loss beside labels that are zero."""

    def declare(net: Net, source: Ensemble) -> Ensemble:
        return getattr(latte, name)(net, source, latte.MemoryDataLayer(net, shape or source.shape))

    return declare


def _depthwise(net: Net, source: Ensemble) -> Ensemble:
    channels = source.shape[0]
    return latte.ConvLayer(net, source, num_filters=channels, groups=channels)


def _split(net: Net, source: Ensemble) -> Ensemble:
    first, _ = latte.SplitLayer(net, source, (source.shape[0] // 2, source.shape[0] // 2))
    return first


def _attention(net: Net, source: Ensemble) -> Ensemble:
    return latte.ScaledDotProductAttentionLayer(net, source, source, source, heads=2)


def _kept_and_dropped(source: np.ndarray, gradient: np.ndarray, results: Arrays) -> Arrays:
    """Of dropout: what is kept is twice the source, and its gradient; half is kept, within five standard errors."""
    value, back = (results[name].reshape(source.shape) for name in ("value", "gradient of the source"))
    kept = value != 0
    return {
        "factor of the value": np.where(kept, value / source, 2),
        "factor of the gradient": np.where(kept, back / gradient.reshape(source.shape), 2 + back),
        "half is kept": np.array([abs(kept.mean() - 0.5) < 2.5 / np.sqrt(kept.size)], np.float32),
    }


SHIPPED: dict[str, Tried] = {
    "conv": Tried(_layer("ConvLayer", 64)),
    "conv-grouped": Tried(_layer("ConvLayer", 64, groups=GROUPS), channels=GROUPS),
    "conv-depthwise": Tried(_depthwise),
    "conv-transposed": Tried(_layer("TransposedConvLayer", 64, 2, 2)),
    "fully-connected": Tried(_layer("FullyConnectedLayer", CLASSES), source="vector"),
    "positionwise-linear": Tried(_layer("PositionwiseLinearLayer", 64), source="sequence"),
    "max-pool": Tried(_layer("MaxPoolingLayer", 2, 2), extent=2),
    "mean-pool": Tried(_layer("MeanPoolingLayer", 2, 2), extent=2),
    "global-mean-pool": Tried(_layer("GlobalMeanPoolingLayer")),
    "relu": Tried(_layer("ReLULayer")),
    "relu6": Tried(_layer("ReLU6Layer")),
    "leaky-relu": Tried(_layer("LeakyReLULayer")),
    "prelu": Tried(_layer("PReLULayer")),
    "elu": Tried(_layer("ELULayer")),
    "gelu": Tried(_layer("GELULayer")),
    "gelu-tanh": Tried(_layer("GELULayer", "tanh")),
    "silu": Tried(_layer("SiLULayer")),
    "sigmoid": Tried(_layer("SigmoidLayer")),
    "tanh": Tried(_layer("TanhLayer")),
    "softmax": Tried(_layer("SoftmaxLayer")),
    "log-softmax": Tried(_layer("LogSoftmaxLayer")),
    "batch-norm": Tried(_layer("BatchNormLayer")),
    "layer-norm": Tried(_layer("LayerNormLayer")),
    "layer-norm-sequence": Tried(_layer("LayerNormLayer"), source="sequence"),
    "group-norm": Tried(_layer("GroupNormLayer", GROUPS), channels=GROUPS),
    "instance-norm": Tried(_layer("InstanceNormLayer")),
    "lrn": Tried(_layer("LRNLayer")),
    "dropout": Tried(_layer("DropoutLayer"), facts=_kept_and_dropped),
    "concat": Tried(_twice("ConcatLayer")),
    "split": Tried(_split, channels=2),
    "add": Tried(_twice("AddLayer")),
    "multiply": Tried(_twice("MultiplyLayer")),
    "residual": Tried(lambda net, source: latte.ResidualSumLayer(net, source, source, 0.5)),
    "nearest": Tried(_layer("InterpolationLayer", 0, 2.0, mode="nearest", centred=True)),
    "bilinear": Tried(_layer("InterpolationLayer", 0, 2.0, centred=True)),
    "padding": Tried(_layer("PaddingLayer", (0, 1, 1))),
    "flatten": Tried(_layer("FlattenLayer")),
    "reshape": Tried(lambda net, source: latte.ReshapeLayer(net, source, source.shape[::-1])),
    "permute": Tried(_layer("PermuteLayer", (1, 2, 0))),
    "embedding": Tried(_layer("EmbeddingLayer", VOCABULARY, 256), source="words"),
    "rnn": Tried(_layer("RNNLayer", 128), source="sequence", usual="32,32,128"),
    "lstm": Tried(_layer("LSTMLayer", 128), source="sequence", usual="32,32,128"),
    "gru": Tried(_layer("GRULayer", 128), source="sequence", usual="32,32,128"),
    "attention": Tried(_attention, source="sequence", extent=2),
    "softmax-loss": Tried(_loss("SoftmaxLossLayer", 1), source="vector", usual=f"256,{CLASSES},1"),
    "squared-loss": Tried(_loss("MeanSquaredErrorLayer"), source="vector", usual=f"256,{CLASSES},1"),
    "l1-loss": Tried(_loss("L1LossLayer"), source="vector", usual=f"256,{CLASSES},1"),
    "huber-loss": Tried(_loss("HuberLossLayer"), source="vector", usual=f"256,{CLASSES},1"),
    "binary-loss": Tried(_loss("BinaryCrossEntropyLayer"), source="vector", usual=f"256,{CLASSES},1"),
}
"""Name → layer."""
