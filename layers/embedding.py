"""Embeddings: rows of a table, by number."""

from __future__ import annotations

from latte.ensemble import DataEnsemble, Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import count, own_or_shared, source_of
from latte.model.checks import is_integer
from latte.model.neuron import Initialiser
from latte.model.sharing import Shared
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Param, normal, stop_gradient


class EmbeddingEnsemble(Ensemble):
    """A row of ``weights`` for each number.

    Args:
        shape: the numbers of an item, and of a row.
        weights: the table.
        padding: the number whose row is not trained; -1 for none.
        name: unique in the net.
    """

    kind = "embedding"

    def __init__(self, shape: tuple[int, int], weights: Param, padding: int, name: str | None):
        super().__init__(shape=shape, dims=("t", "e"), name=name)
        self.add_field("weights", weights)
        self.padding = padding

    def forward(self, inputs, value, weights):
        N, T, E = value.shape
        for n in range(N):
            for t in range(T):
                for e in range(E):
                    if self.padding < 0:
                        value[n, t, e] = weights[inputs[n, t], e]
                    else:
                        value[n, t, e] = (
                            stop_gradient(weights[inputs[n, t], e])
                            if inputs[n, t] == self.padding
                            else weights[inputs[n, t], e]
                        )


def EmbeddingLayer(
    net: Net,
    input_ensemble: Ensemble,
    num_embeddings: int,
    embedding_dim: int,
    padding_index: int | None = None,
    *,
    weights: Shared | None = None,
    name: str | None = None,
) -> Ensemble:
    """``value[n, t, :] = weights[inputs[n, t], :]``.

    The field ``weights`` has shape (num_embeddings, embedding_dim) and starts normal with variance 1. Its gradient adds
    the terms of a row in the order of items and positions; threads share the elements of rows, so that their number
    changes no bit.

    Args:
        net: the net.
        input_ensemble: integers of shape (positions,), below num_embeddings: ``MemoryDataLayer(net, positions,
            dtype="int32", below=num_embeddings)``.
        num_embeddings: rows of the table.
        embedding_dim: elements of a row.
        padding_index: a number whose row starts as zeros and is not trained.
        weights: a parameter of another layer to share (``other.weights``), of this shape; by default its own.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (positions, embedding_dim).

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Bengio et al., *A neural probabilistic language model*, JMLR 3, 2003.
    """
    source = source_of(net, input_ensemble, "EmbeddingLayer", 1)
    rows, columns = count("num_embeddings", num_embeddings), count("embedding_dim", embedding_dim)
    below = source.below if isinstance(source, DataEnsemble) else None
    if below is None or below > rows:
        declared = "has no such range" if below is None else f"has numbers below {below}"
        raise DeclarationError(
            f"EmbeddingLayer reads integers below {rows}, {source!r} {declared}",
            location=user_location(),
            way_out=f"MemoryDataLayer(net, {source.shape}, dtype='int32', below={rows})",
        )
    padding = -1 if padding_index is None else padding_index
    if not is_integer(padding) or not (padding_index is None or 0 <= padding < rows):
        raise DeclarationError(
            f"padding_index must be None or an integer from 0 to {rows - 1}, not {padding_index!r}",
            location=user_location(),
        )
    table = own_or_shared("weights", weights, Param(shape=(rows, columns), init=_rows(int(padding))))
    ensemble = net.add_ensemble(EmbeddingEnsemble((source.shape[0], columns), table, int(padding), name))
    net.add_connections(source, ensemble, lambda *_: None)  # it has loops of its own
    return ensemble


def _rows(padding: int) -> Initialiser:
    """Normal with variance 1, but for the row of this number, which is zero; -1: for none."""

    def init(shape, fan_in, generator):
        values = normal(1.0)(shape, fan_in, generator)
        if padding >= 0:
            values[padding] = 0.0
        return values

    return init
