"""Embeddings, recurrences and attention."""

from __future__ import annotations

from typing import Any

from latte.tools.library.entries import (
    VOCABULARY,
    Case,
    Definition,
    LibraryLayer,
    Measured,
    Need,
    below,
    one_source,
    several_sources,
)

NOT_RANDOM: dict[Need, str] = {"random nets": "it reads sequences; random nets have vectors and images"}


def _embedding(
    torch: Any, x: Any, weights: Any, num_embeddings: int, embedding_dim: int, padding_index: int | None = None
) -> Any:
    return torch.nn.functional.embedding(x, weights, padding_index)


def _recurrent(name: str, states: int = 1) -> Definition:
    """``torch.<name>`` of one layer that starts from zeros."""

    def definition(
        torch: Any,
        x: Any,
        weights_ih: Any,
        weights_hh: Any,
        bias_ih: Any,
        bias_hh: Any,
        hidden_size: int,
        return_sequence: bool = True,
        nonlinearity: str = "",
    ) -> Any:
        state = x.new_zeros(1, len(x), hidden_size)
        start = (state,) * states if states > 1 else state
        parameters = [weights_ih, weights_hh, bias_ih, bias_hh]
        run = getattr(torch, f"{name}_{nonlinearity or 'tanh'}" if name == "rnn" else name)
        steps = run(x, start, parameters, True, 1, 0.0, True, False, True)[0]
        return steps if return_sequence else steps[:, -1]

    return definition


def _attention(
    torch: Any, query: Any, key: Any, values: Any, heads: int = 1, causal: bool = False, scale: float | None = None
) -> Any:
    query, key, values = [x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (query, key, values)]
    found = torch.nn.functional.scaled_dot_product_attention(query, key, values, is_causal=causal, scale=scale)
    return found.transpose(1, 2).flatten(2)


LAYERS = (
    LibraryLayer(
        "EmbeddingLayer",
        _embedding,
        cases={
            "embedding": Case(
                one_source((3, 7), (1, 1)), {"num_embeddings": 11, "embedding_dim": 33}, data={0: below(11)}
            )
        },
        measured={"embedding": Measured(options={"num_embeddings": VOCABULARY, "embedding_dim": 256}, source="words")},
        lacks={"random nets": "it reads integers; random nets have floats"},
    ),
    LibraryLayer(
        "RNNLayer",
        _recurrent("rnn"),
        cases={
            "rnn": Case(one_source((3, 4, 7), (2, 1, 5)), {"hidden_size": 17}),
            "relu rnn": Case(
                one_source((2, 3, 5)), {"hidden_size": 9, "nonlinearity": "relu", "return_sequence": False}
            ),
        },
        measured={"rnn": Measured(options={"hidden_size": 128}, source="sequence", usual="32,32,128")},
        lacks=NOT_RANDOM,
    ),
    LibraryLayer(
        "LSTMLayer",
        _recurrent("lstm", states=2),
        cases={
            "lstm": Case(one_source((3, 4, 7)), {"hidden_size": 17}),
            "lstm in blocks": Case(one_source((5, 5, 16)), {"hidden_size": 16}),
        },
        measured={"lstm": Measured(options={"hidden_size": 128}, source="sequence", usual="32,32,128")},
        lacks=NOT_RANDOM,
    ),
    LibraryLayer(
        "GRULayer",
        _recurrent("gru"),
        cases={
            "gru": Case(one_source((3, 4, 7)), {"hidden_size": 17}),
            "gru's last step": Case(one_source((2, 3, 5)), {"hidden_size": 9, "return_sequence": False}),
        },
        measured={"gru": Measured(options={"hidden_size": 128}, source="sequence", usual="32,32,128")},
        lacks=NOT_RANDOM,
    ),
    LibraryLayer(
        "ScaledDotProductAttentionLayer",
        _attention,
        cases={
            "heads": Case(several_sources(((5, 12), (4, 12), (4, 51)), batch=2), {"heads": 3}),
            "causal": Case(several_sources(((17, 16), (9, 16), (9, 16)), batch=2), {"heads": 2, "causal": True}),
            "self": Case(one_source((2, 7, 32)), {"heads": 2, "causal": True}, reads=(0, 0, 0)),
            "one position": Case(several_sources(((1, 1),) * 3, batch=2), {"scale": 0.7}),
        },
        measured={"attention": Measured(options={"heads": 2}, times=3, source="sequence", extent=2)},
        lacks=NOT_RANDOM,
    ),
)
