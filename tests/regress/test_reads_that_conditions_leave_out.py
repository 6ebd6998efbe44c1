"""Reads that no iteration makes were refused: under ``c > 0 and data``, and in a loop that is empty in small layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import BodyError
from swirl.analysis.accesses import parsed
from swirl.analysis.statements import necessary
from swirl.ir.printing import unparse
from swirl.target.targets import TARGETS


class Both(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                if c > 0 and inputs[n, c] > 0.0:
                    value[n, c] = inputs[n, c - 1]


class Selected(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c - 1] if inputs[n, c] > 0.0 and c > 0 else 0.0


class Otherwise(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                if c == 0 or not inputs[n, c] > 0.0:
                    value[n, c] = 0.0
                else:
                    value[n, c] = inputs[n, c - 1]


class Either(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                if c > 0 or inputs[n, c] > 0.0:
                    value[n, c] = inputs[n, c - 1]


class Backwards(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for i in range(C):
                for j in range(C - i, C):
                    value[n, i] += inputs[n, j]


def before(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, np.pad(x, ((0, 0), (1, 0)))[:, :-1], 0)


def tails(x: np.ndarray) -> np.ndarray:
    return np.stack([x[:, x.shape[1] - i :].sum(1) for i in range(x.shape[1])], axis=1)


def computed(layer: type[Ensemble], size: int, target: str) -> tuple[np.ndarray, np.ndarray]:
    net = Net(3, seed=0)
    data = MemoryDataLayer(net, (size,))
    made = net.add_ensemble(layer(shape=(size,), dims=("c",)))
    net.add_connections(data, made)
    net.compile(target=target, threads=1)
    x = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    data.set_value(x)
    net.forward()
    return made.get_value(), x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("layer", "expected", "sizes"),
    [(Both, before, (5, 17)), (Selected, before, (5, 17)), (Otherwise, before, (5, 17)), (Backwards, tails, (1, 2, 9))],
)
def test_values(
    layer: type[Ensemble], expected: Callable[[np.ndarray], np.ndarray], sizes: tuple[int, ...], target: str
) -> None:
    for size in sizes:
        value, x = computed(layer, size, target)
        np.testing.assert_allclose(value, expected(x), rtol=1e-5, atol=1e-6)


def test_either_does_not_leave_it_out() -> None:
    with pytest.raises(BodyError, match=r"c - 1 is outside of 0 … 4 for c = 0"):
        computed(Either, 5, "portable")


@pytest.mark.parametrize(
    ("test", "parts"),
    [
        ("a > 0 and b and not (c or d < 1)", ["a > 0", "b", "not c", "not d < 1"]),
        ("not (not a and b)", ["not (not a and b)"]),
        ("not not (a and b)", ["a", "b"]),
        ("a or b", ["a or b"]),
    ],
)
def test_necessary_conditions(test: str, parts: list[str]) -> None:
    assert [unparse(part) for part in necessary(parsed(test))] == parts
