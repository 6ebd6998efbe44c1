"""Cells of recurrent layers: one step of a sequence each."""

from __future__ import annotations

from typing import ClassVar

from latte.ensemble import Ensemble
from latte.neuron import Constant, Field, constant, tanh


class Cell(Ensemble):
    """One step. ``inputs`` is what all steps of the sequence give the gates, ``inputs1`` the states after the step
    before; ``value`` has a row for each state, the hidden one first.

    Args:
        layer: whose parameters it shares.
        hidden: number of hidden units.
        step: its place in the sequence, of
        steps: all places.
        first: whether it has no state before it.
    """

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1

    def __init__(self, layer: Ensemble, hidden: int, step: int, steps: int, first: bool):
        super().__init__(shape=(self.states, hidden), dims=("s", "h"), name=f"{layer.name}_step{step}")
        self.first = first
        self.alone = steps == 1  # its zero state times W is written, so that W has its gradient, zeros
        self.add_field("position", Constant(shape=(1,), dtype="int32", below=steps, init=constant(step)))
        self.add_field("gate", Field("n", shape=(self.gates * hidden,)))
        self.add_field("weights_hh", layer.weights_hh)
        self.add_field("bias_hh", layer.bias_hh)

    def add_up(self, inputs, gate, position, weights_hh, bias_hh):
        """``gate = x + b + W h``."""
        N, _, K = inputs.shape
        for n in range(N):
            for k in range(K):
                gate[n, k] = inputs[n, position[0], k] + bias_hh[k]
                self.add_state(gate, weights_hh, n, k)

    def add_state(self, gate, weights_hh, n, k):
        """``gate[n, k] += (W h)[n, k]``."""
        if not self.first:
            for j in range(weights_hh.shape[1]):
                gate[n, k] += weights_hh[k, j] * self.inputs1[n, 0, j]
        elif self.alone:
            gate[n, k] += 0.0 * weights_hh[k, 0]


class RNNCell(Cell):
    """``h' = self.activated(x + b + W h)``, which a class of these cells says."""

    def forward(self, inputs, value, gate, position, weights_hh, bias_hh):
        N, _, K = inputs.shape
        self.add_up(inputs, gate, position, weights_hh, bias_hh)
        for n in range(N):
            for h in range(K):
                value[n, 0, h] = self.activated(gate[n, h])


class TanhCell(RNNCell):
    """``h' = tanh(x + b + W h)``."""

    kind = "rnn_cell"

    def activated(self, x):
        return tanh(x)


class ReLUCell(RNNCell):
    """``h' = max(0, x + b + W h)``."""

    kind = "relu_rnn_cell"

    def activated(self, x):
        return max(0.0, x)


class LSTMCell(Cell):
    """``c' = σ(f) c + σ(i) tanh(g)``, ``h' = σ(o) tanh(c')``, the gates ``i, f, g, o = x + b + W h``;
    ``σ(x) = (1 + tanh(x / 2)) / 2``."""

    kind = "lstm_cell"
    gates = 4
    states = 2

    def forward(self, inputs, value, gate, position, weights_hh, bias_hh):
        N, _, K = inputs.shape
        H = K // 4
        self.add_up(inputs, gate, position, weights_hh, bias_hh)
        for n in range(N):
            for h in range(H):
                new = (0.5 + 0.5 * tanh(0.5 * gate[n, h])) * tanh(gate[n, 2 * H + h])
                if not self.first:
                    new += (0.5 + 0.5 * tanh(0.5 * gate[n, H + h])) * self.inputs1[n, 1, h]
                value[n, 1, h] = new
                value[n, 0, h] = (0.5 + 0.5 * tanh(0.5 * gate[n, 3 * H + h])) * tanh(new)


class GRUCell(Cell):
    """``h' = (1 - z) n + z h``, ``r, z = σ(x + b + W h)``, ``n = tanh(x + r (b + W h))``; ``gate`` is ``b + W h``."""

    kind = "gru_cell"
    gates = 3

    def forward(self, inputs, value, gate, position, weights_hh, bias_hh):
        N, _, K = inputs.shape
        H = K // 3
        for n in range(N):
            for k in range(K):
                gate[n, k] = bias_hh[k]
                self.add_state(gate, weights_hh, n, k)
        for n in range(N):
            for h in range(H):
                reset = 0.5 + 0.5 * tanh(0.5 * (inputs[n, position[0], h] + gate[n, h]))
                update = 0.5 + 0.5 * tanh(0.5 * (inputs[n, position[0], H + h] + gate[n, H + h]))
                new = tanh(inputs[n, position[0], 2 * H + h] + reset * gate[n, 2 * H + h])
                if self.first:
                    value[n, 0, h] = (1.0 - update) * new
                else:
                    value[n, 0, h] = (1.0 - update) * new + update * self.inputs1[n, 0, h]
