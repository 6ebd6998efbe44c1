"""Bodies compute what Python computes when it runs them: each is compiled, and called as a plain method."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.compiling import compile_graph
from latte.ensemble import Ensemble
from latte.neuron import INFINITY, Field, Neuron
from swirl.run.runner import Runner
from swirl.target.machine import why_not
from swirl.target.targets import Target

WIDTH = 8
"""Elements that a neuron reads."""

NEURON_COUNT = 19
"""Fills a vector, with a remainder; the first reads from element 0, the next from 1, and so on."""

# Zeros of both signs, whole numbers and halves, so that every result is exact in float32.
ROWS = np.array([[1, 2, -3, 0.5, 0, 4, -1.5, 2.5], [0, -0.0, 2, 1, 1, -2, 8, 3], [-1, 7, 3, 2, -4, 0.25, 5, -6]])
X = np.concatenate([ROWS, np.roll(ROWS, 3, axis=1), ROWS[:, ::-1], np.roll(ROWS, 1, axis=1)], axis=1)[:, :26]


# --- neurons ------------------------------------------------------------------------------------------------
class AndOr(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0] and 3.0
        self.value += 8.0 * (self.inputs[1] or 7.0)
        self.value += 64.0 * (self.inputs[2] and self.inputs[3] or self.inputs[4])
        self.value += (self.inputs[5] or self.inputs[6] or 9) / 2


class AndOrOfConstants(Neuron):
    none, three = 0.0, 3

    def forward(self) -> None:
        self.value = (0.0 or self.inputs[0]) + (2 and self.inputs[1]) + (self.three or self.inputs[3])
        self.value += (self.none and self.inputs[2]) + (self.inputs[4] and self.none) + (self.none or self.three)


class AndOrOfMixedTypes(Neuron):
    def forward(self) -> None:
        self.value = (self.inputs[0] > 0 and self.inputs[1]) + (self.inputs[2] > 0 or self.inputs[3])
        for i in range(WIDTH):
            self.value += (i and self.inputs[i]) * 2
            k = i - 3
            self.value += (k and 2) + (k or 0.5)


class NotAsValue(Neuron):
    def forward(self) -> None:
        self.value = not self.inputs[0]
        self.value += 3 * (not self.inputs[1]) - (not self.inputs[2] > 1)


class ChainsAsValues(Neuron):
    def forward(self) -> None:
        self.value = 0.0 < self.inputs[0] < 2.0
        self.value += 2 * (0.0 < self.inputs[1] < 2.0) + 4 * (self.inputs[2] >= 0 >= self.inputs[3] != -3)


class NumbersAsConditions(Neuron):
    def forward(self) -> None:
        self.value = 0.0
        if self.inputs[0]:
            self.value += 1.0
        if self.inputs[0] and not self.inputs[1]:
            self.value += 2.0
        if self.inputs[2] or self.inputs[3]:
            self.value += 4.0
        for i in range(WIDTH):
            self.value += 8.0 if i and (self.inputs[i] or i == 5) else 0.0


class TruthValuesAsNumbers(Neuron):
    def forward(self) -> None:
        self.value = -(self.inputs[0] > 0) * 2.0 + +(self.inputs[1] > 0)
        self.value += 4.0 if (self.inputs[0] > 0) + (self.inputs[1] > 0) == 2 else 0.0
        self.value += 8.0 if (self.inputs[2] > 0) == 2 else 16.0
        self.value += abs(self.inputs[3] > 0) + max(self.inputs[4] > 0, self.inputs[5] > 0) + min(True, self.inputs[6])


class TruthValueOrNumber(Neuron):
    def forward(self) -> None:
        self.value = (self.inputs[0] > 1) if self.inputs[1] > 0 else 5
        t = self.inputs[2] > 0
        if self.inputs[3] > 0:
            t = 5
        self.value += t * 8


class NestedSelects(Neuron):
    def forward(self) -> None:
        self.value = 1 if self.inputs[0] > 0 else self.inputs[1] if self.inputs[1] > 0 else 2 if self.inputs[2] else 0.5
        self.value += (3 if self.inputs[3] > 0 else self.inputs[4]) / 2 + (7 if self.inputs[5] > 0 else 9) // 2


class IntegerLocals(Neuron):
    def forward(self) -> None:
        self.value = 0.0
        for i in range(4):
            for j in range(3):
                k = i * 3 + j
                if (k * 3 + j) // 2 > 4:
                    self.value += (k * 3 + j) // 2
                self.value += (k % 5) / 2 + (k - 6) // 4


class LargeIntegers(Neuron):
    def forward(self) -> None:
        self.value = 0.0
        for i in range(WIDTH):
            k = 16777216 + i
            if k == 16777217:
                self.value += self.inputs[i] + 1.0
            if k % 2 == 1:
                self.value += 4.0
            j = i * 5000001
            self.value += (j * 3 + i) % 97


class IntegerUpdates(Neuron):
    def forward(self) -> None:
        k = 0
        for i in range(WIDTH):
            if self.inputs[i] > 0:
                k += 1
            if self.inputs[i] < 0:
                k += i
        half = 0
        for i in range(WIDTH):
            half += i * 0.5
        self.value = k // 2 + k / 2 + half


class IntegerFields(Neuron):
    count = Field("n", "z", shape=(4,), dtype="int32")

    def forward(self) -> None:
        self.value = 0.0
        for j in range(4):
            self.count[j] = 16777216 + j
        for j in range(4):
            if self.count[j] > 16777217:
                self.value += j + 1
            self.value += (self.count[j] * 2 + 1) % 7


class TruthValueFields(Neuron):
    positive = Field("n", "z", shape=(WIDTH,), dtype="bool")

    def forward(self) -> None:
        self.value = 0.0
        for j in range(WIDTH):
            self.positive[j] = self.inputs[j] > 0
        for j in range(WIDTH):
            self.value += self.positive[j] * self.inputs[j] + (self.positive[j] and 3)
            if not self.positive[j]:
                self.value += self.positive[j] - 1


class Truncated(Neuron):
    def forward(self) -> None:
        self.value = int(self.inputs[0] * 1.5) * 16 + int(-2.5) + int(self.inputs[1]) // 2 + int(self.inputs[2]) % 3


class Unpacked(Neuron):
    """Names that are unpacked from constants are not constants if they are assigned elsewhere."""

    def forward(self) -> None:
        a, b = 1.0, 2.0
        c, d = 3, 4
        total, one = 0, 1
        if self.inputs[0] > 0:
            a, b = 3.0, 4.0
        c = self.inputs[1]
        for i in range(WIDTH):
            total += self.inputs[i] * one
        self.value = a + b * 16 + c + d * 64 + total


class SiblingLocals(Neuron):
    """One name for several things, one after the other."""

    def forward(self) -> None:
        self.value = 0.0
        for i in range(WIDTH):
            t = self.inputs[i] * 2.0
            if t > 1.0:
                self.value += t
        for i in range(4):
            t = self.inputs[i + 4] + 1.0
            t = t * t
            self.value -= t
        t = 3.0
        self.value += t


class LoopThenLocal(Neuron):
    """A local has the name of a loop elsewhere."""

    def forward(self) -> None:
        self.value = 0.0
        for i in range(WIDTH):
            self.value += self.inputs[i] * i
        for j in range(2):
            i = self.inputs[j] * 0.5  # type: ignore[assignment]
            if i > 0.0:
                self.value += i


class ConditionsOnLocals(Neuron):
    def forward(self) -> None:
        total = 0.0
        bound = self.inputs[0] * 2.0
        t = 2.5
        if self.inputs[1] > 0:
            t = 3.5
        for i in range(WIDTH):
            if total < bound:
                total += self.inputs[i] * self.inputs[i]
        self.value = total
        for j in range(WIDTH):
            if j < t:
                self.value += self.inputs[j] * 64.0


class Carried(Neuron):
    def forward(self) -> None:
        seen = 0
        before = 0.0
        self.value = 0.0
        for i in range(WIDTH):
            seen = seen or self.inputs[i] < 0
            if not seen:
                self.value += self.inputs[i] + 1
            if self.inputs[i] > before and i > 0:
                self.value += 64.0
            before = self.inputs[i]


class TwoLargest(Neuron):
    def forward(self) -> None:
        a = -64.0
        b = -64.0
        for i in range(WIDTH):
            v = self.inputs[i]
            if v > a:
                b = a
                a = v
            elif v > b:
                b = v
        self.value = a * 16 + b


class NotANumber(Neuron):
    def forward(self) -> None:
        t = INFINITY * self.inputs[0]
        if self.inputs[1] > 0:
            t = t - t
        self.value = 7.0 if t != t else 9.0
        self.value += 8.0 if t + 1 > t else 16.0
        self.value += 32.0 if not t < 100.0 else 64.0
        self.value += 128.0 if t else 256.0
        self.value += 512.0 if not t else 0.0


class Powers(Neuron):
    def forward(self) -> None:
        self.value = self.inputs[0] ** 2 + (self.inputs[2] - 1.0) ** 2
        for i in range(WIDTH):
            k = i - 4
            self.value += (k**3) % 5 + (k**2) // 3


class Extremes(Neuron):
    def forward(self) -> None:
        self.value = max(1, self.inputs[0]) + min(self.inputs[1], 2, self.inputs[2]) + max(0, -1.5, self.inputs[3])
        for i in range(WIDTH):
            self.value += max(i, 3) * self.inputs[i] + min(i, 2.5) + abs(i - 4)


# --- ensembles ----------------------------------------------------------------------------------------------
class Rows(Ensemble):
    """One number for each row, in ``value[n, 0]``."""

    def __init__(self) -> None:
        super().__init__(shape=(1,), dims=("z",))


class RowAndOr(Rows):
    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(inputs.shape[0]):
            value[n, 0] = inputs[n, 0] and 3.0
            value[n, 0] += 8.0 * (inputs[n, 1] or 7)
            for c in range(WIDTH):
                value[n, 0] += (c and inputs[n, c]) + (not inputs[n, c]) + (0.0 < inputs[n, c] < 3.0) * 64


class RowLocals(Rows):
    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(inputs.shape[0]):
            total = 0.0
            bound = inputs[n, 0] * 2.0
            for c in range(WIDTH):
                if total < bound:
                    total += inputs[n, c] * inputs[n, c]
            value[n, 0] = total
        for n in range(inputs.shape[0]):
            total = inputs[n, 1]
            for k in range(4):
                j = k * 3 + 1
                if j // 2 > total:
                    total += (j * 3 + k) // 2
            value[n, 0] += total


class RowLoopThenLocal(Rows):
    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(inputs.shape[0]):
            value[n, 0] = 0.0
            for c in range(WIDTH):
                value[n, 0] += inputs[n, c] * c
        for m in range(inputs.shape[0]):
            c = inputs[m, 2] or 0.25
            n = c * 2.0
            if n > c:
                value[m, 0] += n


class RowCounts(Rows):
    positive = Field("n", dtype="int32")

    def forward(self, inputs: Any, value: Any, positive: Any) -> None:
        for n in range(inputs.shape[0]):
            positive[n] = 0
            for c in range(WIDTH):
                positive[n] += inputs[n, c] > 0
            value[n, 0] = positive[n] // 2 + (positive[n] and 0.5) + positive[n] / 4


NEURONS = [kind for kind in Neuron.__subclasses__() if kind.__module__ == __name__]
ENSEMBLES = Rows.__subclasses__()


def of_neuron(kind: type[Neuron], rows: np.ndarray) -> np.ndarray:
    """What Python computes for each neuron and row."""
    result = np.zeros((len(rows), NEURON_COUNT))
    for n, row in enumerate(rows.tolist()):
        for k in range(NEURON_COUNT):
            fields = {name: [0] * WIDTH for name, field in vars(kind).items() if isinstance(field, Field)}
            constants = {name: number for name, number in vars(kind).items() if isinstance(number, (int, float))}
            neuron: Any = SimpleNamespace(inputs=row[k : k + WIDTH], value=0.0, **fields, **constants)
            kind.forward(neuron)  # type: ignore[attr-defined]
            result[n, k] = neuron.value
    return result


def of_ensemble(kind: type[Rows], rows: np.ndarray) -> np.ndarray:
    """What Python computes for each row."""
    value = np.zeros((len(rows), 1))
    fields = [np.zeros(len(rows), np.int64) for field in vars(kind).values() if isinstance(field, Field)]
    kind.forward(SimpleNamespace(), rows, value, *fields)  # type: ignore[attr-defined]
    return value


def declared(neurons: Sequence[type[Neuron]], ensembles: Sequence[type[Rows]] = (), force: bool = False) -> Net:
    """A net of layers that read the same rows."""
    net = Net(len(X), seed=1)
    net.force_backward = force
    data = MemoryDataLayer(net, X.shape[1:])
    for neuron in neurons:
        layer = net.add_ensemble(Ensemble(neuron, (NEURON_COUNT,), ("z",), name=neuron.__name__))
        net.add_connections(data, layer, lambda z: (range(z, z + WIDTH),))
    for ensemble in ensembles:
        layer = net.add_ensemble(ensemble())
        net.add_connections(data, layer, lambda z: (range(X.shape[1]),))
    return net


def test_values(target: Target) -> None:
    net = declared(NEURONS, ENSEMBLES)
    if why_not(target):
        compile_graph(net.graph, len(X), target, Runner(1))
        return  # the fixture says so
    net.compile(target=target.name, threads=1)
    net.set_batch(X)
    expected = [of_neuron(kind, X) for kind in NEURONS] + [of_ensemble(kind, X) for kind in ENSEMBLES]
    for phase in (net.forward, net.test):
        phase()
        for layer, wanted in zip(net.ensembles[1:], expected, strict=True):
            np.testing.assert_array_equal(layer.get_value(), wanted, err_msg=repr(layer))


@pytest.mark.parametrize(
    "kind",
    [AndOr, AndOrOfConstants, AndOrOfMixedTypes, NestedSelects],
    ids=lambda kind: kind.__name__,
)
def test_gradients(kind: type[Neuron], target: Target) -> None:
    """Against differences, exact as bodies are linear between jumps; where a step meets one, nothing is compared."""
    net = declared([kind], force=True)
    if why_not(target):
        compile_graph(net.graph, len(X), target, Runner(1))
        return  # the fixture says so
    net.compile(target=target.name, threads=1)
    data, layer = net.ensembles
    rows, step = X + 0.125, 2.0**-6  # no zeros, where ``and`` and ``or`` jump
    net.set_batch(rows)
    net.forward()
    layer.set_grad(np.ones((len(X), NEURON_COUNT)))
    net.backward()
    compared = 0
    for i in range(X.shape[1]):
        offset = step * (np.arange(X.shape[1]) == i)
        before, here, after = (of_neuron(kind, rows + sign * offset) for sign in (-1, 0, 1))
        smooth = (after - here == here - before).all(axis=1)
        wanted = (after - here).sum(axis=1) / step
        np.testing.assert_array_equal(data.get_grad()[smooth, i], wanted[smooth], err_msg=f"element {i}")
        compared += int(smooth.sum())
    assert compared > X.size // 2
