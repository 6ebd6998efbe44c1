"""Attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, flag, positive, source_of
from latte.layers.rearranging import ReshapeLayer
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Field, exp, stop_gradient


class HeadsEnsemble(Ensemble):
    """What all kinds of attention have.

    Args:
        queries, keys: number of positions.
        features: of all heads together, of the values.
        heads: into how many parts features are divided.
        scale: of the products.
        causal: whether a position sees those up to its own alone.
        name: of the layer.
    """

    def __init__(
        self, queries: int, keys: int, features: int, heads: int, scale: float, causal: bool, name: str | None
    ):
        super().__init__(shape=(queries, features), dims=("t", "c"), name=name)
        self.heads, self.scale = heads, scale
        self.ahead = 0 if causal else keys
        """How many keys after its own a position may see."""
        self.add_field("weights", Field("n", shape=(heads, queries, keys)))

    def multiply(self, query, key, weights):
        """The products of queries with the keys that they see."""
        N, T, D = query.shape
        S, E = key.shape[1], D // self.heads
        for n in range(N):
            for h in range(self.heads):
                for t in range(T):
                    for s in range(min(S, t + 1 + self.ahead)):
                        for d in range(E):
                            weights[n, h, t, s] += query[n, t, h * E + d] * key[n, s, h * E + d]

    def add_up(self, weights, values, value):
        """The values of the keys, with their weights."""
        N, T, C = value.shape
        S, F = values.shape[1], C // self.heads
        for n in range(N):
            for h in range(self.heads):
                for t in range(T):
                    for s in range(min(S, t + 1 + self.ahead)):
                        for f in range(F):
                            value[n, t, h * F + f] += weights[n, h, t, s] * values[n, s, h * F + f]


class AttentionEnsemble(HeadsEnsemble):
    """Of each head: softmax over the keys of the scaled products with a query; the values' sum with these weights."""

    kind = "attention"

    def forward(self, query, key, values, value, weights):
        N, T, _ = query.shape
        S = key.shape[1]
        self.multiply(query, key, weights)
        for n in range(N):
            for h in range(self.heads):
                for t in range(T):
                    largest = weights[n, h, t, 0]
                    for s in range(1, min(S, t + 1 + self.ahead)):
                        largest = max(largest, weights[n, h, t, s])
                    shift = stop_gradient(largest)
                    total = 0.0
                    for s in range(min(S, t + 1 + self.ahead)):
                        weights[n, h, t, s] = exp(self.scale * (weights[n, h, t, s] - shift))
                        total += weights[n, h, t, s]
                    for s in range(min(S, t + 1 + self.ahead)):
                        weights[n, h, t, s] = weights[n, h, t, s] / total
        self.add_up(weights, values, value)


class MaskedAttentionEnsemble(HeadsEnsemble):
    """The same over the keys where a mask is not 0; 0 where it is 0 for all of them.

    Args:
        arguments: of :class:`HeadsEnsemble`.
        each: whether the mask has a row for each query, not one for all.
    """

    kind = "masked_attention"

    def __init__(self, *arguments: Any, each: bool):
        super().__init__(*arguments)
        self.each = int(each)

    def forward(self, query, key, values, mask, value, weights):
        N, T, _ = query.shape
        S = key.shape[1]
        self.multiply(query, key, weights)
        for n in range(N):
            for h in range(self.heads):
                for t in range(T):
                    largest = -1e38
                    for s in range(min(S, t + 1 + self.ahead)):
                        seen = weights[n, h, t, s] if mask[n, t * self.each, s] != 0.0 else -1e38
                        largest = max(largest, seen)
                    shift = stop_gradient(largest)
                    total = 0.0
                    for s in range(min(S, t + 1 + self.ahead)):
                        weights[n, h, t, s] = (
                            exp(self.scale * (weights[n, h, t, s] - shift)) if mask[n, t * self.each, s] != 0.0 else 0.0
                        )
                        total += weights[n, h, t, s]
                    whole = total if total > 0.0 else 1.0
                    for s in range(min(S, t + 1 + self.ahead)):
                        weights[n, h, t, s] = weights[n, h, t, s] / whole
        self.add_up(weights, values, value)


def ScaledDotProductAttentionLayer(
    net: Net,
    query: Ensemble,
    key: Ensemble,
    values: Ensemble,
    *,
    heads: int = 1,
    causal: bool = False,
    mask: Ensemble | None = None,
    scale: float | None = None,
    name: str | None = None,
) -> Ensemble:
    """``softmax(scale · Q Kᵀ) V`` of each head; heads are consecutive parts of the features.

    The field ``weights``, (batch, heads, queries, keys), holds the softmax: 0 where a key is not seen. It is kept for
    ``backward``: memory grows with queries × keys.

    Args:
        net: the net.
        query: shape (queries, features).
        key: shape (keys, features).
        values: shape (keys, features of the result). All three may be one layer.
        heads: divides the features of queries, keys and values.
        causal: whether position ``t`` sees the keys 0 … ``t`` alone.
        mask: numbers of shape (keys,), for all queries, or (queries, keys): a key is seen where they are not 0. A query
            that sees none has the result 0.
        scale: greater than 0; by default ``1 / √(features of a head)``.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (queries, features of the result).

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Vaswani et al., *Attention is all you need*, NeurIPS 2017, section 3.2.
    """
    layer = "ScaledDotProductAttentionLayer"
    for source in (query, key, values):
        source_of(net, source, layer, 2)
    queries, features = query.shape
    keys, results = key.shape[0], values.shape[1]
    if key.shape[1] != features or values.shape[0] != keys:
        raise DeclarationError(
            f"{layer}: queries {query!r} and keys {key!r} must have the same number of features, keys and"
            f" values {values!r} the same number of positions",
            location=user_location(),
        )
    if count("heads", heads) > 1 and (features % heads or results % heads):
        raise DeclarationError(
            f"{features} features of queries and {results} of values cannot be divided into {heads} heads",
            location=user_location(),
            way_out="heads must divide both",
        )
    factor = sqrt(heads / features) if scale is None else positive("scale", scale)
    arguments = (queries, keys, results, int(heads), factor, flag("causal", causal), name)
    if mask is None:
        ensemble = net.add_ensemble(AttentionEnsemble(*arguments))
    else:
        rows = _rows(net, mask, queries, keys)
        ensemble = net.add_ensemble(MaskedAttentionEnsemble(*arguments, each=rows.shape[0] > 1))
    net.add_connections(query, ensemble, name="query")
    net.add_connections(key, ensemble, name="key")
    net.add_connections(values, ensemble, name="values")
    if mask is not None:
        net.add_connections(rows, ensemble, name="mask")
    return ensemble


def _rows(net: Net, mask: Ensemble, queries: int, keys: int) -> Ensemble:
    """The mask as one row for all queries, or a row for each.

    Raises:
        DeclarationError: it has another shape.
    """
    layer = "ScaledDotProductAttentionLayer"
    if source_of(net, mask, layer).shape not in ((keys,), (1, keys), (queries, keys)):
        raise DeclarationError(
            f"{layer}: the mask has shape ({keys},) or ({queries}, {keys}), not {mask.shape}", location=user_location()
        )
    return ReshapeLayer(net, mask, (1, keys)) if mask.ndim == 1 else mask
