"""Parameters that several layers share: one array, the sum of the gradients, one step, once in a file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import (
    ConvLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    FullyConnectedLayerNoBias,
    MemoryDataLayer,
    Net,
    PReLULayer,
    ReLULayer,
    TanhLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import BodyError, DeclarationError, UnknownName
from latte.layers.normalization import BatchNormEnsemble
from latte.neuron import Neuron, eachindex, stop_gradient
from latte.solver import SGD
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from tests.layers.references import assert_within
from tests.lowered import lowered

torch = pytest.importorskip("torch")
F = torch.nn.functional
Tensors = Mapping[str, Any]


def autoencoder(net: Net, x: Ensemble) -> Ensemble:
    """The second layer has the first one's weights transposed, the third has them as they are."""
    first = FullyConnectedLayerNoBias(net, x, 19)
    outputs, inputs = 19, len(x)

    class Decoder(Neuron):
        table = first.weights.over()

        def forward(self):
            self.value = 0.0
            for k in eachindex(self.inputs):
                self.value += self.table[k, i] * self.inputs[k]  # noqa: F821 (the neuron's own index)

    decoder = net.add_ensemble(Ensemble(Decoder, (inputs,), ("i",), kind="decoder"))
    net.add_connections(TanhLayer(net, first), decoder, lambda i: range(outputs))
    return FullyConnectedLayerNoBias(net, decoder, 19, weights=decoder.table.over("k"))


def same_autoencoder(x: Any, own: Tensors) -> Any:
    weights = own["fully_connected1.weights"]
    return torch.tanh(x @ weights.T) @ weights @ weights.T


def convolutions(net: Net, x: Ensemble) -> Ensemble:
    """The second one has a bias of its own, the third one nothing of its own."""
    first = ConvLayer(net, x, 20)
    second = ConvLayer(net, ReLULayer(net, first), 20, weights=first.weights)
    return ConvLayer(net, ReLULayer(net, second), 20, weights=second.weights, bias=first.bias)


def same_convolutions(x: Any, own: Tensors) -> Any:
    weights, first, second = own["conv1.weights"], own["conv1.bias"][:, 0], own["conv2.bias"][:, 0]
    x = torch.relu(F.conv2d(x, weights, first, padding=1))
    return F.conv2d(torch.relu(F.conv2d(x, weights, second, padding=1)), weights, first, padding=1)


def norms(net: Net, x: Ensemble) -> Ensemble:
    first = net.add_ensemble(BatchNormEnsemble(x.shape, 1e-5, 0.1, None))
    net.add_one_to_one_connections(x, first)

    class Second(BatchNormEnsemble):
        gamma = first.gamma

    second = net.add_ensemble(Second(x.shape, 1e-5, 0.1, None))
    net.add_one_to_one_connections(TanhLayer(net, first), second)
    return ReLULayer(net, second)


def same_norms(x: Any, own: Tensors) -> Any:
    gamma, first, second = own["batch_norm1.gamma"], own["batch_norm1.beta"], own["batch_norm2.beta"]
    x = torch.tanh(F.batch_norm(x, None, None, gamma, first, training=True))
    return torch.relu(F.batch_norm(x, None, None, gamma, second, training=True))


def slopes(net: Net, x: Ensemble) -> Ensemble:
    """Layers that are compiled together."""
    first = PReLULayer(net, x)

    class Again(Neuron):
        slope = first.slope

        def forward(self):
            self.value = self.input if self.input > 0.0 else self.slope * self.input

    ensemble = net.add_ensemble(ActivationEnsemble(Again, x.shape, ("c", "y", "x"), kind="prelu"))
    net.add_one_to_one_connections(first, ensemble)
    return ensemble


def same_slopes(x: Any, own: Tensors) -> Any:
    return F.prelu(F.prelu(x, own["prelu1.slope"]), own["prelu1.slope"])


def siamese(net: Net, x: Ensemble) -> Ensemble:
    """The second layer runs before the first one, which is compiled together with a later layer."""
    first = ConvLayer(net, x, 20)
    second = ConvLayer(net, x, 20, weights=first.weights)
    first = ReLULayer(net, first)

    class Product(Neuron):
        def forward(self):
            self.value = self.input * self.input1  # type: ignore[attr-defined]

    product = net.init_activation_ensemble(Product, first)
    net.add_one_to_one_connections(second, product)
    return product


def same_siamese(x: Any, own: Tensors) -> Any:
    first, second = (F.conv2d(x, own["conv1.weights"], own[f"conv{n}.bias"][:, 0], padding=1) for n in (1, 2))
    return torch.relu(first) * second


CASES: dict[str, tuple[Callable[[Net, Ensemble], Ensemble], Callable[[Any, Tensors], Any], tuple[int, ...]]] = {
    "autoencoder": (autoencoder, same_autoencoder, (4, 21)),
    "convolutions": (convolutions, same_convolutions, (2, 20, 5, 7)),
    "siamese": (siamese, same_siamese, (2, 20, 5, 7)),
    "slopes": (slopes, same_slopes, (2, 17, 3, 5)),
    "norms": (norms, same_norms, (5, 19, 4, 3)),
}


ON_TARGETS = [(name, ("avx512", "avx2")[number % 2]) for number, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "target"), [*ON_TARGETS, ("autoencoder", "portable")])
def test_against_pytorch(name: str, target: str) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    make, same, (batch, *shape) = CASES[name]
    net = Net(batch, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, shape)
    top = make(net, data)
    net.compile(threads=1, target=target)
    generator = np.random.default_rng(0)
    moved = {n: v + 0.1 * generator.standard_normal(v.shape) for n, v in net.state_dict().items() if "running" not in n}
    net.load_state_dict(moved, {n: n for n in moved})
    x, gradient = (generator.standard_normal((batch, *s)).astype(np.float32) for s in (shape, top.shape))
    data.set_value(x)
    top.set_grad(gradient)
    own = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in net.state_dict().items()}
    given = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = same(given, own)
    expected.backward(torch.tensor(gradient, dtype=torch.float64))
    for times in (1, 2):  # gradients add up
        net.forward()
        net.backward()
        near(top.get_value(), expected, 1, "value")
        near(data.get_grad(), given.grad, 1, "gradient of the source")
        for n in moved:
            near(net.executable.read(n.replace(".", ".grad_")), own[n].grad, times, f"gradient of {n}")
    net.clear_grad()
    net.forward()
    net.backward()
    SGD(net, learning_rate=0.125).step()
    for n in moved:
        near(net.state_dict()[n], own[n] - 0.125 * own[n].grad, 1, f"{n} after a step")


def near(ours: np.ndarray, theirs: Any, times: int, what: str) -> None:
    expected = times * theirs.detach().numpy()
    assert_within(ours, expected, 1e-4 * max(1e-6, float(np.abs(expected).max())), what)  # three layers deep


def tied(batch: int = 3) -> tuple[Net, Ensemble, Ensemble]:
    net = Net(batch, seed=1)
    first = FullyConnectedLayer(net, MemoryDataLayer(net, (5,)), 5)
    return net, first, FullyConnectedLayer(net, first, 5, weights=first.weights, bias=first.bias)


def test_one_array(tmp_path: Path) -> None:
    net, first, second = tied()
    initial = first.initial("weights")
    np.testing.assert_array_equal(second.initial("weights"), initial)
    net.compile(threads=1)
    assert sorted(net.state_dict()) == ["fully_connected1.bias", "fully_connected1.weights"]
    np.testing.assert_array_equal(second.get_weights(), initial)
    second.set_weights(2 * initial)
    np.testing.assert_array_equal(first.get_weights(), 2 * initial)
    view = second.get_weights_view()
    view[...] = 3
    assert (first.get_weights() == 3).all()
    second.set_grad(np.ones((3, 5)))
    net.forward()
    net.backward()
    first.set_grad_weights(np.full((5, 5), 7))
    assert (second.get_grad_weights() == 7).all()
    net.clear_grad()
    assert not first.get_grad_weights().any() and not second.get_grad_weights().any()
    net.save(tmp_path / "net")
    other, _, again = tied()
    other.compile(threads=1)
    other.load(tmp_path / "net")
    np.testing.assert_array_equal(again.get_weights(), first.get_weights())
    copied = copy.deepcopy(net)
    assert sorted(copied.state_dict()) == sorted(net.state_dict())
    net.set_batch(np.ones((2, 5)))  # another batch size has the same array
    net.forward()
    np.testing.assert_allclose(second.get_value(), np.full((2, 5), 3 * 15 * 5), rtol=1e-6)


def test_layers_that_lay_it_out_in_different_ways() -> None:
    """A layer that wants other blocks than the first one copies it."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (16, 3, 5))
    first = ConvLayer(net, data, 16)
    second = ConvLayer(net, first, 16, weights=first.weights)
    for layer, factor in ((first, 8), (second, 4)):
        for name in ("weights", "grad_weights"):
            layer.tile(name, 0, factor)
    net.compile(threads=1)
    plain = Net(2, seed=1)
    source = MemoryDataLayer(plain, (16, 3, 5))
    one = ConvLayer(plain, source, 16)
    two = ConvLayer(plain, one, 16, weights=one.weights)
    with lowered():
        plain.compile(threads=1)
    x, gradient = np.random.default_rng(0).standard_normal((2, 2, 16, 3, 5)).astype(np.float32)
    for each, given, top in ((net, data, second), (plain, source, two)):
        given.set_value(x)
        top.set_grad(gradient)
        for _ in range(2):
            each.forward()
            each.backward()
    np.testing.assert_allclose(second.get_value(), two.get_value(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first.get_grad_weights(), one.get_grad_weights(), rtol=1e-4, atol=1e-4)


def test_gradients_of_ones_own_and_none() -> None:
    """An update that assigns keeps what others have added; a layer without a gradient does not start the sum."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (3,))
    first = FullyConnectedLayerNoBias(net, data, 3)

    class Written(Neuron):
        weights = first.weights

        def forward(self):
            self.value = self.inputs[0] * self.weights[0]

        def update(self):
            self.grad_weights[0] = 10.0

    class Constant(Neuron):
        weights = first.weights

        def forward(self):
            self.value = self.inputs[0] + stop_gradient(self.weights[0])

    written = net.add_ensemble(Ensemble(Written, (3,), ("k",), kind="written"))
    net.add_connections(first, written, lambda k: range(3))
    last = net.add_ensemble(Ensemble(Constant, (3,), ("k",), kind="constant"))
    net.add_connections(written, last, lambda k: range(3))
    net.compile(threads=1)
    data.set_value(np.ones((2, 3)))
    last.set_grad(np.ones((2, 3)))
    for _ in range(2):
        net.clear_grad()
        net.forward()
        net.backward()
    expected = np.zeros((3, 3))
    expected[0] = 2 * 3 * first.get_weights()[0, 0]  # of 2 items, each read by 3 neurons
    expected[:, 0] += 10
    np.testing.assert_allclose(first.get_grad_weights(), expected, rtol=1e-5)


# --- errors -----------------------------------------------------------------------------------------------
def of(declared: Any, shape: tuple[int, ...] = (5,), dims: tuple[str, ...] = ("k",)) -> Ensemble:
    class Sharing(Neuron):
        weights = declared

        def forward(self):
            self.value = self.inputs[0] * self.weights[0]

    return Ensemble(Sharing, shape, dims)


def biased(net: Net, source: Ensemble) -> Ensemble:
    return FullyConnectedLayer(net, source, 5)


def images(net: Net) -> Ensemble:
    return MemoryDataLayer(net, (3, 6, 6))


def words(net: Net) -> Ensemble:
    return MemoryDataLayer(net, 3, dtype="int32", below=7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda net, first: FullyConnectedLayer(net, first, 4, weights=first.weights),
            r"weights must have the shape \(4, 5\), fully_connected1.weights has \(5, 5\)\n  without weights=",
        ),
        (
            lambda net, first: FullyConnectedLayer(net, first, 5, weights=biased(net, first).bias),
            r"weights must have the shape \(5, 5\), fully_connected\d.bias has \(5, 1\)",
        ),
        (
            lambda net, first: FullyConnectedLayer(net, first, 5, bias=first.weights),
            r"bias must have the shape \(5, 1\), fully_connected1.weights has \(5, 5\)",
        ),
        (
            lambda net, first: ConvLayer(net, images(net), 3, weights=ConvLayer(net, images(net), 3, 5, pad=2).weights),
            r"weights must have the shape \(3, 3, 3, 3\), conv1.weights has \(3, 3, 5, 5\)",
        ),
        (
            lambda net, first: EmbeddingLayer(
                net, words(net), 7, 4, weights=EmbeddingLayer(net, words(net), 7, 8).weights
            ),
            r"weights must have the shape \(7, 4\), embedding1.weights has \(7, 8\)",
        ),
        (lambda net, first: net.add_ensemble(of(first.weights, dims=("c",))), r"the dimension 'k'(.|\n)*\.over\("),
        (
            lambda net, first: net.add_ensemble(of(tied()[1].weights)),
            r"is fully_connected1.weights, which is in another net",
        ),
        (lambda net, first: first.weights.over("a", "b", "c"), r"no 3 dimensions for 'a', 'b', 'c'"),
        (lambda net, first: of(tied()[1].weights).weights, r"belongs to no net yet"),
        (
            lambda net, first: FullyConnectedLayer(net, first, 5, weights=np.zeros((5, 5))),
            r"weights must be a parameter of another layer(.|\n)*set_weights",
        ),
        (lambda net, first: first.value, "no command or attribute 'value'"),
    ],
)
def test_what_cannot_be_shared(make: Callable[[Net, Ensemble], Any], message: str) -> None:
    net, first, _ = tied()
    with pytest.raises((DeclarationError, UnknownName), match=message) as caught:
        make(net, first)
    assert "test_sharing.py" in str(caught.value)
    net.compile(threads=1)


def test_a_body_that_reads_outside_of_a_shared_array() -> None:
    """A sum of loop variables is looked at, too, unless a condition keeps it inside."""
    for inside in (True, False):
        net, first, _ = tied()

        class Diagonal(Neuron):
            weights = first.weights.over()

            def forward(self):
                self.value = 0.0
                if k < 4 and self.weights[k + 1, 0] > 0.0:  # noqa: F821 (a dimension)
                    self.value += self.input
                for i in range(2 if inside else 3):  # noqa: B023
                    self.value += self.weights[0, k // 2 + i + 1] * self.input  # noqa: F821

        layer = net.add_ensemble(ActivationEnsemble(Diagonal, (5,), ("k",), kind="diagonal"))
        net.add_one_to_one_connections(first, layer)
        if inside:
            net.compile(threads=1)
            continue
        with pytest.raises(BodyError, match=r"k // 2 \+ i \+ 1 runs from 1 to 5, the extent is 5") as caught:
            net.compile(threads=1)
        assert f"test_sharing.py:{Diagonal.forward.__code__.co_firstlineno + 5}:" in str(caught.value)


def test_a_field_twice_later_and_too_late() -> None:
    net, first, _ = tied()
    third = of(first.weights)
    third.add_field("more", first.weights)
    with pytest.raises(DeclarationError, match=r"'more' of .* which is its field 'weights' already"):
        net.add_ensemble(third)
    norm = net.add_ensemble(BatchNormEnsemble((5, 1, 1), 1e-5, 0.1, None))
    with pytest.raises(UnknownName, match=r"running_mean of .* is computed, not a Param"):
        norm.running_mean  # noqa: B018 (an error)
    later, _, _ = tied()
    early = FullyConnectedLayer(later, later.ensembles[0], 5)
    early.add_field("other", FullyConnectedLayer(later, early, 5).weights)
    with pytest.raises(DeclarationError, match="belongs to a later layer"):
        later.compile()
    done, first, _ = tied()
    done.compile(threads=1)
    with pytest.raises(UnknownName, match=r"data that the compiled net holds(.|\n)*get_weights\(\)"):
        first.weights  # noqa: B018 (an error)
    assert not hasattr(first, "weights")
