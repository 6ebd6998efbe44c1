"""Functions at the ends of their range: their values are those of the rounded exact function, and so no slope is left
that something large could be multiplied by. tanh stayed 6e-8 below 1 on the targets with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from latte import (
    ELULayer,
    GELULayer,
    GRULayer,
    LSTMLayer,
    MemoryDataLayer,
    Net,
    SigmoidLayer,
    SiLULayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.neuron import Neuron, erf, exp, expm1, tanh
from swirl.codegen.emit import emit
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.ir.operations import FUNCTIONS
from swirl.target.targets import TARGETS
from tests.codegen.conftest import run_source
from tests.support import running_targets, targets_in_turn

torch = pytest.importorskip("torch")


@dataclass(frozen=True)
class Case:
    """A function of ``t``, computed exactly, and its ends; ``least`` is a value below which it is a difference of
    equal numbers."""

    exact: Callable[[np.ndarray], np.ndarray]
    ends: tuple[float, ...]
    least: float = 0.0


FORMULAS = {
    **{
        f"{name}(t)": Case(np.vectorize(known.floating), known.range)
        for name, known in FUNCTIONS.items()
        if known.saturates
    },
    "1.0 / (1.0 + exp(-t))": Case(lambda x: 1 / (1 + np.exp(-x)), (0, 1)),
    "tanh(0.5 * t)": Case(lambda x: np.tanh(x / 2), (-1, 1)),
    "1.0 - tanh(t) * tanh(t)": Case(lambda x: 1 / np.cosh(np.minimum(abs(x), 99)) ** 2, (0,), least=2.0**-25),
    "exp(-(t * t))": Case(lambda x: np.exp(-x * x), (0,)),
}
ENDS = (3.9192059, 8.6643398, 9.01091385, 17.328679, 18.0218277, 88.7228394, 103.972084, 1.0)
"""Where 1, infinity, -1, 0 or minus infinity are the nearest numbers, from these or their negatives on."""


def arguments() -> np.ndarray:
    """Numbers around the places where functions reach the ends of their ranges, and of all sizes beyond."""
    near = [np.float32(end).view(np.int32) + np.arange(-500, 500, dtype=np.int32) for end in ENDS]
    special = [0.0, 9.02, 10, 17, 19, 88, 89, 104, 105, 3.4e38, math.inf]
    x = np.concatenate([np.concatenate(near).view(np.float32), np.logspace(-45, 38.5, 1501), special])
    x = np.concatenate([x, -x]).astype(np.float32)
    return np.resize(x, -(-len(x) // 16) * 16)


@pytest.mark.parametrize("target", running_targets())
@pytest.mark.parametrize("contract", [False, True])
def test_the_ends_are_reached_where_they_are_the_nearest_number(contract: bool, target: str) -> None:
    x = arguments()
    names = [f"y{number}" for number in range(len(FORMULAS))]
    buffers = {name: Buffer(f"storage.{name}", x.shape, "float32") for name in ("x", *names)}
    lines = [f"        {name}[i + v] = {text}\n" for name, text in zip(names, FORMULAS, strict=True)]
    head = f"for i in range(0, {len(x)}, 16):\n    for v in vector(16):\n        t: float32 = x[i + v]\n"
    source = emit(parse_program(head + "".join(lines), buffers), TARGETS[target], contract=contract)
    given = {name: np.zeros_like(x) for name in names} | {"x": x}
    every = run_source(source, given, TARGETS[target], contract=contract)
    for name, (text, case) in zip(names, FORMULAS.items(), strict=True):
        found = every[name]
        with np.errstate(all="ignore"):
            exact = case.exact(x.astype(np.float64))
            rounded = np.where(abs(exact) < case.least, 0.0, exact).astype(np.float32)
            through_zero = case.exact(np.zeros(1))[0] == 0
        for end in case.ends:
            there = rounded == np.float32(end)
            wrong = there & ((found != rounded) | (np.signbit(found) != np.signbit(rounded)) & (case.least == 0))
            assert there.any() and not wrong.any(), (text, end, x[wrong][:3], found[wrong][:3])
        if through_zero:
            assert np.array_equal(np.signbit(found[x == 0]), np.signbit(x[x == 0])), text
        assert np.array_equal(np.isnan(found), np.isnan(exact)), text


# --- gradients of large numbers ----------------------------------------------------------------------------
def gelu_in_another_order(x):
    t = tanh((0.044715 * x * x + 1.0) * (x * 0.7978845608028654))
    return x * (0.5 * t + 0.5)


class OtherGELU(Neuron):
    def forward(self) -> None:
        self.value = gelu_in_another_order(self.input)


class Steep(Neuron):
    def forward(self) -> None:
        self.value = self.input * tanh(64.0 * self.input)


class ByErf(Neuron):
    def forward(self) -> None:
        self.value = self.input * (1.0 - erf(self.input)) if self.input > 0.0 else 0.0


class ByExponentials(Neuron):
    """tanh without the word."""

    def forward(self) -> None:
        twice = expm1(2.0 * self.input) if self.input < 20.0 else 1.0
        self.value = twice / (twice + 2.0) if self.input < 20.0 else 1.0


class Logistic(Neuron):
    def forward(self) -> None:
        self.value = 1000.0 / (1.0 + exp(-self.input))


def of_neuron(kind: type[Neuron]) -> Callable[[Net, Ensemble], Ensemble]:
    def layer(net: Net, source: Ensemble) -> Ensemble:
        made = net.add_ensemble(ActivationEnsemble(kind, source.shape, ("c",)))
        net.add_one_to_one_connections(source, made)
        return made

    return layer


functional = torch.nn.functional
LARGE = np.array([6, 9.02, 18.1, 20, 50, 88, 89, 100, 105, 1000, 1e5, 1e8, 1e13, 3e18, 1e20, 3e38], np.float32)
LARGE = np.concatenate([LARGE, -LARGE])[None]
OWN = LARGE[abs(LARGE) < 1e18][None]
"""Bodies of one's own may have squares, which are finite."""


LAYERS = {
    "tanh": (TanhLayer, torch.tanh, LARGE),
    "sigmoid": (SigmoidLayer, torch.sigmoid, LARGE),
    "silu": (SiLULayer, functional.silu, LARGE),
    "elu": (ELULayer, functional.elu, LARGE),
    "gelu": (GELULayer, functional.gelu, LARGE),
    "gelu of tanh": (lambda n, s: GELULayer(n, s, "tanh"), lambda x: functional.gelu(x, approximate="tanh"), LARGE),
    "gelu in another order": (of_neuron(OtherGELU), lambda x: functional.gelu(x, approximate="tanh"), OWN),
    "a steep tanh": (of_neuron(Steep), lambda x: x * torch.tanh(64 * x), OWN),
    "by erf": (of_neuron(ByErf), lambda x: torch.where(x > 0, x * torch.special.erfc(x), 0.0), OWN),
    "by exponentials": (of_neuron(ByExponentials), torch.tanh, OWN),
    "a large logistic": (of_neuron(Logistic), lambda x: 1000 * torch.sigmoid(x), OWN),
}


@pytest.mark.parametrize(("layer", "target"), list(zip(LAYERS, targets_in_turn(vectors=True), strict=False)))
def test_gradients_of_large_numbers(layer: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", target)
    make, definition, given = LAYERS[layer]
    net = Net(1, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, given.shape[1:])
    top = make(net, data)
    net.compile()
    data.set_value(given)
    net.forward()
    top.set_grad(np.ones_like(given))
    net.backward()
    x = torch.tensor(given, dtype=torch.float64, requires_grad=True)
    value = definition(x)
    value.sum().backward()
    np.testing.assert_allclose(top.get_value(), value.detach().numpy(), rtol=1e-5, atol=1e-4)
    # 1 - t * t has steps of 1.2e-7, which 1000 multiplies; nothing is left of it where t is 1.
    bound = np.where(abs(given) < 88, 2e-4, 1e-6)
    assert (abs(data.get_grad() - x.grad.numpy()) <= bound).all()


@pytest.mark.parametrize(("kind", "target"), list(zip(["gru", "lstm", "gru"], targets_in_turn(), strict=False)))
def test_recurrences_of_large_numbers(kind: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gate is saturated: the gradient of what is 1e6 times too large is zero, with large weights, too."""
    monkeypatch.setenv("SWIRL_TARGET", target)
    steps, features, hidden = 3, 5, 17
    net = Net(2, seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, (steps, features))
    layer = {"gru": GRULayer, "lstm": LSTMLayer}[kind](net, data, hidden)
    net.compile()
    data.set_value(1e6 * np.random.default_rng(0).uniform(0.5, 1.5, (2, steps, features)))
    net.forward()
    layer.set_grad(np.full((2, steps, hidden), 1e6))
    net.backward()
    assert not data.get_grad().any()
