"""Wrong values of every parameter of every constructor, from their signatures: Latte errors, with the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import latte
from latte import MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from latte.errors import LatteError

IMAGE, VECTOR, SEQUENCE = (4, 6, 6), (5,), (3, 4)
SOURCES: dict[str, list[tuple[int, ...]]] = {
    "SoftmaxLossLayer": [VECTOR, (1,)],
    "AccuracyLayer": [VECTOR, (1,)],
    "MeanSquaredErrorLayer": [VECTOR, VECTOR],
    "L1LossLayer": [VECTOR, VECTOR],
    "HuberLossLayer": [VECTOR, VECTOR],
    "BinaryCrossEntropyLayer": [VECTOR, VECTOR],
    "ResidualSumLayer": [IMAGE, IMAGE],
    "ScaledDotProductAttentionLayer": [SEQUENCE] * 3,
    "PositionwiseLinearLayer": [SEQUENCE],
    "RNNLayer": [SEQUENCE],
    "LSTMLayer": [SEQUENCE],
    "GRULayer": [SEQUENCE],
    "EmbeddingLayer": [VECTOR],
    "MemoryDataLayer": [],
}
"""Shapes of what a layer reads; an image, if nothing else is said."""
OF_LISTS = ("ConcatLayer", "AddLayer", "MultiplyLayer")
NEEDED: dict[str, dict[str, Any]] = {
    "ConvLayer": {"num_filters": 2},
    "ConvLayerNoBias": {"num_filters": 2},
    "TransposedConvLayer": {"num_filters": 2},
    "FullyConnectedLayer": {"num_outputs": 2},
    "FullyConnectedLayerNoBias": {"num_outputs": 2},
    "PositionwiseLinearLayer": {"num_outputs": 2},
    "RNNLayer": {"hidden_size": 2},
    "LSTMLayer": {"hidden_size": 2},
    "GRULayer": {"hidden_size": 2},
    "EmbeddingLayer": {"num_embeddings": 4, "embedding_dim": 2},
    "GroupNormLayer": {"groups": 2},
    "MemoryDataLayer": {"shape": (3,)},
    "SplitLayer": {"sizes": [1, 3]},
    "PaddingLayer": {"pad": (0, 1, 1)},
    "ReshapeLayer": {"shape": (2, -1)},
    "PermuteLayer": {"order": (2, 0, 1)},
}
"""Arguments without a default."""

WRONG = (
    None,
    "x",
    "",
    2.5,
    -1,
    0,
    True,
    [],
    (1, "a"),
    (0, 0, 0, 0),
    {},
    object(),
    np.nan,
    np.inf,
    10**12,
    10**30,
    10**400,
    np.ones(3),
    int,
)


def arguments(name: str, net: Net) -> dict[str, Any]:
    """Good ones, by name."""
    numbers: dict[str, Any] = {"dtype": "int32", "below": 4} if name == "EmbeddingLayer" else {}
    sources: list[Any] = [MemoryDataLayer(net, shape, **numbers) for shape in SOURCES.get(name, [IMAGE])]
    if name in OF_LISTS:
        sources = [[MemoryDataLayer(net, IMAGE), MemoryDataLayer(net, IMAGE)]]
    signature = inspect.signature(getattr(latte, name))
    return {**signature.bind_partial(net, *sources).arguments, **NEEDED.get(name, {})}


def failure(layer: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    """What a call raises."""
    try:
        layer(**given)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", latte.layers.__all__)
def test_every_parameter(name: str) -> None:
    layer: Callable[..., Ensemble] = getattr(latte, name)
    for parameter in inspect.signature(layer).parameters:
        for wrong in WRONG:
            net = Net(2, seed=0)
            given = {**arguments(name, net), parameter: wrong}
            before = list(net.ensembles)
            error = failure(layer, given)
            if error is not None:
                what = f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}"
                assert isinstance(error, LatteError) and "test_wrong_arguments.py" in str(error), what
                assert net.ensembles == before, what
    net = Net(2, seed=0)
    layer(**arguments(name, net))
    ReLULayer(net, net.ensembles[0])


@pytest.mark.parametrize("name", latte.layers.__all__)
def test_what_is_too_large_is_refused_by_the_constructor(name: str) -> None:
    layer: Callable[..., Ensemble] = getattr(latte, name)
    for parameter in inspect.signature(layer).parameters:
        for size in (2**31, 10**30, 10**400):
            for wrong in (size, -size, (0, size, 0), [size, size]):
                net = Net(2, seed=0)
                given = {**arguments(name, net), parameter: wrong}
                before = list(net.ensembles)
                error = failure(layer, given)
                if error is None:
                    net.compile(target="portable", threads=1)
                else:
                    what = f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}"
                    assert isinstance(error, LatteError) and "test_wrong_arguments.py" in str(error), what
                    assert net.ensembles == before, what
