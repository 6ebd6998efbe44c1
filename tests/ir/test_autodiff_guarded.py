"""Guarded assignments, ``if x > best: best = x``: derived, or refused."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.autodiff.partials import Partials
from latte.ensemble import Ensemble
from latte.neuron import INFINITY, Neuron, eachindex, range_dim
from swirl.errors import DerivativeError
from tests.ir.test_autodiff_differences import Case, forward_computes_the_same, gradients_are_differences, run

ROWS = {"value": (2,), "inputs": (2, 5)}

CASES = {
    "maximum": Case(
        """
for n in range(2):
    value[n] = -3e38
    for c in range(5):
        if inputs[n,c] > value[n]:
            value[n] = inputs[n,c]
""",
        ROWS,
        "inputs",
    ),
    "maximum from the first element on, in a local": Case(
        """
for n in range(2):
    best: float32 = inputs[n,0]
    for c in range(1, 5):
        if best < inputs[n,c]:
            best = inputs[n,c]
    value[n] = best * best
""",
        ROWS,
        "inputs",
    ),
    "maximum as a select": Case(
        """
for n in range(2):
    best: float32 = 0.2
    for c in range(5):
        best = best if best >= inputs[n,c] else inputs[n,c]
    value[n] = best
""",
        ROWS,
        "inputs",
    ),
    "loops in another order": Case(
        """
for n in range(2):
    value[n] = 0.1
for c in range(5):
    for n in range(2):
        if inputs[n,c]*inputs[n,c] > value[n]:
            value[n] = inputs[n,c]*inputs[n,c]
""",
        ROWS,
        "inputs",
    ),
    "the last element that is not much smaller": Case(
        """
for n in range(2):
    value[n] = inputs[n,0] * 0.5
    for c in range(5):
        if inputs[n,c] + 0.3 >= value[n]:
            value[n] = inputs[n,c] * inputs[n,c]
""",
        ROWS,
        "inputs",
    ),
    "the test in a local": Case(
        """
for n in range(2):
    m: float32 = 0.1
    for c in range(5):
        d: float32 = inputs[n,c]*inputs[n,c] - m
        if d > 0.0:
            m = inputs[n,c]*inputs[n,c]
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    "one guard inside another": Case(
        """
for n in range(2):
    value[n] = 0.0
    for c in range(5):
        if inputs[n,c] < 1.0:
            if inputs[n,c] > value[n]:
                value[n] = inputs[n,c]
""",
        ROWS,
        "inputs",
    ),
    "what stands beside the winner": Case(
        """
for n in range(2):
    best: float32 = -3e38
    value[n] = 0.0
    for c in range(5):
        if inputs[n,c] > best:
            best = inputs[n,c]
            where[n] = c
            value[n] = weights[c] * inputs[n,c]
""",
        {**ROWS, "weights": (5,), "where": (2,)},
        "inputs",
        "weights",
    ),
    "a test of other things": Case(
        """
for n in range(2):
    value[n] = 0.0
    for c in range(5):
        if weights[c] > 0.0:
            value[n] = weights[c] * inputs[n,c]
""",
        {**ROWS, "weights": (5,)},
        "inputs",
        "weights",
    ),
    "a chain of choices": Case(
        """
for n in range(2):
    m: float32 = inputs[n,0]
    for c in range(5):
        if inputs[n,c] > m:
            m = m * inputs[n,c]
    for c in range(5):
        value[n] = m
""",
        ROWS,
        "inputs",
    ),
    "a maximum and a guard for one target, from a value": Case(
        """
for n in range(2):
    value[n] = 0.7 * inputs[n,4]
    for c in range(3):
        value[n] = max(value[n], inputs[n,c])
    for d in range(5):
        if weights[d] > value[n]:
            value[n] = weights[d]
""",
        {**ROWS, "weights": (5,)},
        "inputs",
        "weights",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    forward_computes_the_same(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    gradients_are_differences(CASES[name])


@pytest.mark.parametrize(("sign", "wins"), [(">", 1), (">=", 3)])
def test_equal_elements(sign: str, wins: int) -> None:
    """With ``>`` the first of the largest gets the gradient, as with ``max``; with ``>=`` the last."""
    case = Case(CASES["maximum"].source.replace(" > ", f" {sign} "), ROWS, "inputs")
    derived = case.derive()
    after = run(derived.forward, {"inputs": np.array([[0, 2, 1, 2, 1], [-1, 5, 5, 5, 0.0]])})
    assert derived.backward is not None
    got = run(derived.backward, {**after, "grad": np.array([3.0, 4.0])})
    expected = np.zeros((2, 5))
    expected[0, wins], expected[1, wins] = 3, 4
    np.testing.assert_array_equal(got["grad_inputs"], expected)


def test_nobody_wins() -> None:
    """A test that never holds, as one of NaN, leaves the first value: no gradient."""
    derived = CASES["maximum"].derive()
    after = run(derived.forward, {"inputs": np.full((2, 5), np.nan)})
    assert derived.backward is not None
    got = run(derived.backward, {**after, "grad": np.ones(2)})
    np.testing.assert_array_equal(got["grad_inputs"], np.zeros((2, 5)))


# --- layers -------------------------------------------------------------------------------------------------
class GuardedMaximum(Neuron):
    """A maximum in the original's spelling."""

    def forward(self) -> None:
        self.value = -INFINITY
        for i, j, k in eachindex(self.inputs):
            if self.inputs[i, j, k] > self.value:
                self.value = self.inputs[i, j, k]


class GuardedLocal(Neuron):
    """The same in a local."""

    def forward(self) -> None:
        best = -INFINITY
        for j in range_dim(self.inputs, 1):
            for k in range_dim(self.inputs, 2):
                if self.inputs[0, j, k] > best:
                    best = self.inputs[0, j, k]
        self.value = best


def pooled(
    neuron: type[Neuron], shape: tuple[int, int, int], kernel: int, stride: int, pad: int
) -> tuple[Net, Ensemble, Ensemble]:
    channels, height, width = shape
    net = Net(3, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, shape)
    sizes = [(extent + 2 * pad - kernel) // stride + 1 for extent in (height, width)]
    ensemble = Ensemble(neuron, (channels, *sizes), ("c", "y", "x"), kind="guarded")
    net.add_ensemble(ensemble)

    def mapping(c, y, x):
        return (
            range(c, c + 1),
            range(y * stride, y * stride + kernel),
            range(x * stride, x * stride + kernel),
        )

    net.add_connections(data, ensemble, mapping, padding=((0, 0), (pad, pad), (pad, pad)))
    return net, data, ensemble


@pytest.mark.parametrize("neuron", [GuardedMaximum, GuardedLocal])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pad"),
    [((2, 5, 7), 3, 2, 1), ((1, 6, 17), 2, 2, 0), ((3, 4, 4), 3, 1, 1), ((1, 1, 1), 1, 1, 0)],
)
def test_like_pytorch(neuron: type[Neuron], shape: tuple[int, int, int], kernel: int, stride: int, pad: int) -> None:
    torch = pytest.importorskip("torch")
    net, data, ensemble = pooled(neuron, shape, kernel, stride, pad)
    net.compile()
    # Whole numbers, so that many are equal: the first one wins, here and there.
    images = np.random.default_rng(5).integers(-3, 4, (3, *shape)).astype(np.float32)
    given = np.random.default_rng(6).normal(size=(3, *ensemble.shape)).astype(np.float32)
    data.set_value(images)
    net.forward()
    ensemble.set_grad(given)
    net.backward()
    source = torch.tensor(images, requires_grad=True)
    # Zeros of the padding take part.
    value = torch.nn.functional.max_pool2d(torch.nn.functional.pad(source, (pad,) * 4), kernel, stride)
    value.backward(torch.tensor(given))
    np.testing.assert_array_equal(ensemble.get_value(), value.detach().numpy())
    # At most kernel² gradients of a few roundings each meet in one element, added in another order.
    bound = kernel**2 * 2**-23 * kernel**2 * np.abs(given).max()
    np.testing.assert_allclose(data.get_grad(), source.grad.numpy(), rtol=0, atol=bound)


class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.inputs[0, 0, 0]


def test_refusal_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partials, "walk", no_derivative)
    net, _, _ = pooled(Doubled, (2, 5, 7), 3, 2, 1)
    with pytest.raises(DerivativeError, match="no derivative of") as refused:
        net.compile()
    lines = Path(__file__).read_text().splitlines()
    place, line = str(refused.value).split(": ")[0].rsplit(":", 1)
    assert place == __file__
    assert "2.0 * self.inputs" in lines[int(line) - 1]


def no_derivative(self: Partials, node: ast.expr, *_: object) -> None:
    raise DerivativeError(f"no derivative of `{ast.unparse(node)}`")
