"""Recurrent layers: a cell for each step, each connected to the one before, with the parameters of one.

All steps are one program, which is scheduled and compiled once, however long the sequences are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import choice, count, flag, source_of
from latte.layers.rearranging import ReshapeLayer
from latte.layers.recurrent_cells import Cell, GRUCell, LSTMCell, ReLUCell, TanhCell
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron, Param, eachindex, uniform

STACKED = 4
"""The most sources that :class:`RowsEnsemble` reads."""


# --- what is around them ------------------------------------------------------------------------------------
class RowsEnsemble(Ensemble):
    """The first rows of up to four sources, one source after the other.

    Args:
        shape: rows, and numbers in a row.
        rows: of each source that are taken; of the last one, those that are left.
        sources: their number.
        kind, name: as an :class:`Ensemble` has them.

    Attributes:
        last: as a :class:`LastEnsemble` has it.
    """

    last: Cell | None = None

    def __init__(self, shape: tuple[int, int], rows: int, sources: int, kind: str, name: str | None):
        super().__init__(shape=shape, dims=("t", "h"), kind=kind, name=name)
        self.rows, self.sources = rows, sources

    def forward(self, value, inputs):
        N, T, H = value.shape
        R = self.rows
        for n in range(N):
            for r in range(min(R, T)):
                for h in range(H):
                    value[n, r, h] = inputs[n, r, h]
        if self.sources > 1:
            for n in range(N):
                for r in range(min(R, T - R)):
                    for h in range(H):
                        value[n, R + r, h] = self.inputs1[n, r, h]
        if self.sources > 2:
            for n in range(N):
                for r in range(min(R, T - 2 * R)):
                    for h in range(H):
                        value[n, 2 * R + r, h] = self.inputs2[n, r, h]
        if self.sources > 3:
            for n in range(N):
                for r in range(min(R, T - 3 * R)):
                    for h in range(H):
                        value[n, 3 * R + r, h] = self.inputs3[n, r, h]


class LastEnsemble(Ensemble):
    """The hidden state after the last step.

    Attributes:
        last: the cell that a recurrent layer ends with; None in one that is not a layer's value.
    """

    last: Cell | None = None

    def forward(self, value, inputs):
        N, H = value.shape
        for n in range(N):
            for h in range(H):
                value[n, h] = inputs[n, 0, h]


def RNNLayer(
    net: Net,
    input_ensemble: Ensemble,
    hidden_size: int,
    nonlinearity: str = "tanh",
    return_sequence: bool = True,
    *,
    initial: Ensemble | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> Ensemble:
    """Simple recurrence: ``h[t] = tanh(weights_ih x[t] + bias_ih + weights_hh h[t - 1] + bias_hh)``, h[-1] being 0 or
    ``initial``.

    The parameters are fields of the layer, as of ``torch.nn.RNN``: ``weights_ih`` of shape (hidden_size, features),
    ``weights_hh`` (hidden_size, hidden_size), ``bias_ih`` and ``bias_hh`` (hidden_size,), uniform in
    ±1 / sqrt(hidden_size). Steps are layers of their own, ``<name>_step0``, …; the first product is ``<name>_input``.

    Args:
        net: the net.
        input_ensemble: shape (steps, features).
        hidden_size: number of hidden units.
        nonlinearity: ``"tanh"``, or ``"relu"`` in its place.
        return_sequence: whether the value is the hidden states after all steps, or after the last one.
        initial: the state before the first step, of shape (hidden_size,); of an LSTM (2, hidden_size), h before c. A
            recurrent layer of the same kind and size stands for its state after its last step: an encoder's.
        reverse: whether it runs from the last element of the sequence to the first. Values stay in the order of the
            sequence: ``ConcatLayer(net, [forwards, backwards], axis=1)`` of two layers is a bidirectional one.
        name: of the layer, unique in the net; by default its kind and a number.

    Returns:
        An ensemble of shape (steps, hidden_size) or (hidden_size,).

    Raises:
        DeclarationError: for arguments that do not fit.

    Source: Elman, *Finding structure in time*, Cognitive Science 14, 1990.
    """
    cells = {"tanh": TanhCell, "relu": ReLUCell}
    cell = cells[choice("nonlinearity", nonlinearity, list(cells))]
    source = source_of(net, input_ensemble, "RNNLayer", 2)
    return _recurrent(net, source, hidden_size, cell, "rnn", return_sequence, initial, reverse, name)


def LSTMLayer(
    net: Net,
    input_ensemble: Ensemble,
    hidden_size: int,
    return_sequence: bool = True,
    *,
    initial: Ensemble | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> Ensemble:
    """Long short-term memory: ``i, f, g, o = weights_ih x[t] + bias_ih + weights_hh h[t - 1] + bias_hh``;
    ``c[t] = σ(f) c[t - 1] + σ(i) tanh(g)``, ``h[t] = σ(o) tanh(c[t])``; h[-1] and c[-1] are 0 or ``initial``.

    The parameters have the shapes and the order of ``torch.nn.LSTM``: ``weights_ih`` (4 hidden_size, features),
    ``weights_hh`` (4 hidden_size, hidden_size), ``bias_ih`` and ``bias_hh`` (4 hidden_size,), in each the rows of i, f,
    g and o. Arguments, result, initial values and errors as :func:`RNNLayer`'s.

    Source: Hochreiter, Schmidhuber, *Long short-term memory*, Neural Computation 9, 1997; Gers, Schmidhuber, Cummins,
    *Learning to forget*, Neural Computation 12, 2000.
    """
    source = source_of(net, input_ensemble, "LSTMLayer", 2)
    return _recurrent(net, source, hidden_size, LSTMCell, "lstm", return_sequence, initial, reverse, name)


def GRULayer(
    net: Net,
    input_ensemble: Ensemble,
    hidden_size: int,
    return_sequence: bool = True,
    *,
    initial: Ensemble | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> Ensemble:
    """Gated recurrent unit: ``r, z, a = weights_ih x[t] + bias_ih`` and ``r', z', a' = weights_hh h[t - 1] + bias_hh``;
    ``h[t] = (1 - σ(z + z')) tanh(a + σ(r + r') a') + σ(z + z') h[t - 1]``; h[-1] is 0 or ``initial``.

    The parameters have the shapes and the order of ``torch.nn.GRU``: ``weights_ih`` (3 hidden_size, features),
    ``weights_hh`` (3 hidden_size, hidden_size), ``bias_ih`` and ``bias_hh`` (3 hidden_size,), in each the rows of r, z
    and a. Arguments, result, initial values and errors as :func:`RNNLayer`'s.

    Source: Cho et al., *Learning phrase representations using RNN encoder-decoder*, EMNLP 2014, with
    ``r`` after the product, as in cuDNN.
    """
    source = source_of(net, input_ensemble, "GRULayer", 2)
    return _recurrent(net, source, hidden_size, GRUCell, "gru", return_sequence, initial, reverse, name)


def _recurrent(
    net: Net,
    source: Ensemble,
    hidden_size: int,
    cell: type[Cell],
    kind: str,
    return_sequence: bool,
    initial: Ensemble | None,
    reverse: bool,
    name: str | None,
) -> Ensemble:
    hidden, reverse = count("hidden_size", hidden_size), flag("reverse", reverse)
    flag("return_sequence", return_sequence)
    before = _state_before(net, initial, cell, hidden) if initial is not None else None
    with net.graph.all_or_nothing():
        return _declared(net, source, hidden, cell, kind, return_sequence, before, reverse, name)


def _declared(
    net: Net,
    source: Ensemble,
    hidden: int,
    cell: type[Cell],
    kind: str,
    return_sequence: bool,
    before: Ensemble | None,
    reverse: bool,
    name: str | None,
) -> Ensemble:
    """The layer with all that it consists of; ``before`` is the state before the first step."""
    steps, features = source.shape
    layer: RowsEnsemble | LastEnsemble
    if return_sequence:
        rows = _rows_of_sources(steps)
        layer = RowsEnsemble((steps, hidden), rows, -(-steps // rows), kind, name)
    else:
        layer = LastEnsemble(shape=(hidden,), dims=("h",), kind=kind, name=name)
    init, outputs = uniform(1.0 / sqrt(hidden)), cell.gates * hidden
    for field, shape in (("weights_ih", (outputs, features)), ("weights_hh", (outputs, hidden))):
        layer.add_field(field, Param(shape=shape, init=init))
    for field in ("bias_ih", "bias_hh"):
        layer.add_field(field, Param(shape=(outputs,), init=init))
    net.add_ensemble(layer)
    projected = _projected(net, source, layer, outputs)
    if before is not None and before.ndim == 1:
        before = ReshapeLayer(net, before, (1, hidden), name=f"{layer.name}_initial")
    states: list[Cell] = []
    for step in reversed(range(steps)) if reverse else range(steps):
        made = cell(layer, hidden, step, steps, before is None)
        net.add_ensemble(made)
        _read(net, made, [projected] if before is None else [projected, before])
        states.append(made)
        before = made
    if return_sequence:
        in_order = states[::-1] if reverse else states
        _read(net, layer, _stacked(net, in_order, layer))
    else:
        _read(net, layer, states[-1:])
    layer.last = states[-1]
    return layer


def _state_before(net: Net, initial: Ensemble, cell: type[Cell], hidden: int) -> Ensemble:
    """The ensemble that holds the initial states.

    Raises:
        DeclarationError: it does not fit.
    """
    state = source_of(net, initial, "initial")
    found = _last_cell(state)
    if found is not None:
        state = found
        if not isinstance(found, cell):
            raise DeclarationError(
                f"initial: {initial.name} is another kind of layer, whose state does not fit",
                location=user_location(),
                way_out="a layer of the same kind, or an ensemble of the shape of the state",
            )
    shapes = [(cell.states, hidden)] + [(hidden,)] * (cell.states == 1)
    if state.shape not in shapes:
        wanted = " or ".join(map(str, reversed(shapes)))
        raise DeclarationError(
            f"initial: the state has shape {wanted}, not {state.shape} as {state.name}", location=user_location()
        )
    return state


def _last_cell(layer: Ensemble) -> Cell | None:
    """The cell that a recurrent layer ends with; None of another layer."""
    return layer.last if isinstance(layer, (RowsEnsemble, LastEnsemble)) else None


def _projected(net: Net, source: Ensemble, layer: Ensemble, outputs: int) -> Ensemble:
    """``weights_ih x[t] + bias_ih`` for all steps at once."""
    steps, features = source.shape

    class ProjectionNeuron(Neuron):
        weights = layer.weights_ih.over("k")
        bias = layer.bias_ih.over("k")

        def forward(self) -> None:
            self.value = self.bias
            for s, i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[s, i]

    made = Ensemble(ProjectionNeuron, (steps, outputs), ("t", "k"), kind="projection", name=f"{layer.name}_input")
    net.add_ensemble(made)
    net.add_connections(source, made, lambda t, k: (range(t, t + 1), range(features)))
    return made


def _stacked(net: Net, sources: Sequence[Ensemble], layer: Ensemble) -> Sequence[Ensemble]:
    """At most four layers with the rows of all sources, in order: a tree, in which layers of a height are alike."""
    rows, height = 1, 0
    total = len(sources)
    while len(sources) > STACKED:
        height += 1
        groups = [sources[i : i + STACKED] for i in range(0, len(sources), STACKED)]
        stacked = []
        for number, group in enumerate(groups):
            start = number * STACKED * rows
            shape = min(STACKED * rows, total - start), layer.shape[-1]
            made = RowsEnsemble(shape, rows, len(group), "rows", f"{layer.name}_rows{height}_{number}")
            _read(net, net.add_ensemble(made), group)
            stacked.append(made)
        sources = stacked
        rows *= STACKED
    return sources


def _rows_of_sources(steps: int) -> int:
    """Rows of each layer but the last one that :func:`_stacked` returns."""
    rows = 1
    while -(-steps // rows) > STACKED:
        rows *= STACKED
    return rows


def _read(net: Net, sink: Ensemble, sources: Sequence[Ensemble]) -> None:
    for source in sources:
        net.add_connections(source, sink, lambda *_: None)  # the sink has loops of its own
