"""Integers as data and as subscripts: their range, gathers, the gradients of tables; embeddings against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import EmbeddingLayer, FullyConnectedLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import BodyError, DataError, DeclarationError
from latte.neuron import Constant, Field, Neuron, Param, State, eachindex, floor, given, int32, normal
from latte.solver import SGD
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS

torch = pytest.importorskip("torch")
F = torch.nn.functional
GENERATOR = np.random.default_rng(0)


def indices(net: Net, shape: int | tuple[int, ...], below: int) -> Ensemble:
    return MemoryDataLayer(net, shape, dtype="int32", below=below)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("batch", "positions", "rows", "columns", "padding"), [(3, 7, 11, 33, None), (4, 16, 5, 64, 2), (1, 1, 1, 1, 0)]
)
def test_embedding_against_pytorch(
    batch: int, positions: int, rows: int, columns: int, padding: int | None, target: str
) -> None:
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    net = Net(batch, seed=1)
    words = indices(net, positions, rows)
    layer = EmbeddingLayer(net, words, rows, columns, padding)
    net.compile(threads=2, target=target)
    x = GENERATOR.integers(0, rows, (batch, positions))
    gradient = GENERATOR.standard_normal((batch, positions, columns)).astype(np.float32)
    words.set_value(x)
    layer.set_grad(gradient)
    if padding is not None:
        assert not layer.get_weights()[padding].any()
        layer.set_weights(np.ones((rows, columns)))
    table = torch.tensor(layer.get_weights(), dtype=torch.float64, requires_grad=True)
    value = F.embedding(torch.tensor(x), table, padding_idx=padding)
    value.backward(torch.tensor(gradient, dtype=torch.float64))
    for times in (1, 2):
        net.forward()
        net.backward()
        np.testing.assert_array_equal(layer.get_value(), value.detach().numpy())
        np.testing.assert_allclose(layer.get_grad_weights(), times * table.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_the_bits_of_a_gradient_do_not_depend_on_threads() -> None:
    rows, columns, found = 3, 64, []
    x = np.random.default_rng(1).integers(0, rows, (8, 50))
    gradient = np.random.default_rng(2).standard_normal((8, 50, columns)).astype(np.float32)
    for threads in (1, 2, 5):
        net = Net(8, seed=1)
        words = indices(net, 50, rows)
        layer = EmbeddingLayer(net, words, rows, columns)
        net.compile(threads=threads)
        words.set_value(x)
        layer.set_grad(gradient)
        net.forward()
        net.backward()
        found.append(layer.get_grad_weights())
    expected = np.zeros((rows, columns), np.float32)
    for n, t in np.ndindex(x.shape):  # in this order
        expected[x[n, t]] += gradient[n, t]
    for bits in found:
        np.testing.assert_array_equal(bits, expected)


class Gathered(Ensemble):
    """Rows of an image, picked by numbers of each item; every second one by a field, with a weight for each row."""

    order = State(shape=(4,), dtype="int32", below=5)
    weights = Param(shape=(5,), init=given(np.arange(1.0, 6.0)))

    def forward(self, inputs, inputs1, value, order, weights):
        N, T, E = value.shape
        for n in range(N):
            for t in range(T):
                row = inputs1[n, t]
                for e in range(E):
                    value[n, t, e] = weights[row] * inputs[n, row, e] + inputs[n, order[t], e] * inputs[n, order[t], e]


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_gather_of_a_source(target: str) -> None:
    """The gradient of the source is a sum of what several positions read."""
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    net = Net(3, seed=1)
    net.force_backward = True
    data, picked = MemoryDataLayer(net, (5, 19)), indices(net, 4, 5)
    layer = net.add_ensemble(Gathered(shape=(4, 19), dims=("t", "e")))
    for source in (data, picked):
        net.add_connections(source, layer, lambda *_: None)
    net.compile(threads=1, target=target)
    images, gradient = (GENERATOR.standard_normal((3, *s, 19)).astype(np.float32) for s in ((5,), (4,)))
    x, order = GENERATOR.integers(0, 5, (3, 4)), np.array([4, 0, 4, 2])
    net.set_batch(images, x)
    layer.set_order(order)
    layer.set_grad(gradient)
    net.forward()
    net.backward()
    a = torch.tensor(images, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(layer.get_weights(), dtype=torch.float64, requires_grad=True)
    n, rows = torch.arange(3)[:, None], torch.tensor(x)
    value = w[rows][..., None] * a[n, rows] + a[:, order] ** 2
    value.backward(torch.tensor(gradient, dtype=torch.float64))
    np.testing.assert_allclose(layer.get_value(), value.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.get_grad(), a.grad.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.get_grad_weights(), w.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_neurons_read_at_indices() -> None:
    """Through a window over a whole dimension, and a mapping for the others; an index of each neuron's own."""

    class Picked(Neuron):
        column = Field("n", "k", dtype="int32", below=4)

        def forward(self):
            self.column = 3
            self.value = self.inputs[self.inputs1[0], 0] + 10.0 * self.inputs[self.column, 0]

    net = Net(2, seed=1)
    data, which = MemoryDataLayer(net, (4, 3)), indices(net, 3, 4)
    layer = net.add_ensemble(Ensemble(Picked, (3,), ("k",), kind="picked"))
    net.add_connections(data, layer, lambda k: (range(4), range(k, k + 1)))
    net.add_connections(which, layer, lambda k: range(k, k + 1))
    net.compile(threads=1)
    values, x = np.arange(24.0).reshape(2, 4, 3), np.array([[0, 3, 1], [2, 2, 2]])
    net.set_batch(values, x)
    net.forward()
    expected = np.take_along_axis(values, x[:, None], 1)[:, 0] + 10 * values[:, 3]
    np.testing.assert_array_equal(layer.get_value(), expected)


@pytest.mark.usefixtures("as_lowered")
def test_training_with_tied_weights(tmp_path: Path) -> None:
    """A net that repeats words: the table of the embedding gives the scores, too."""
    from latte import SoftmaxLossLayer

    net = Net(8, seed=1)
    words, label = indices(net, 1, 8), MemoryDataLayer(net, 1)
    embedded = EmbeddingLayer(net, words, 8, 16)
    net.add_ensemble(flat := Ensemble(Copy, (16,), ("e",), kind="copy"))
    net.add_connections(embedded, flat, lambda e: (range(1), range(e, e + 1)))
    scores = FullyConnectedLayer(net, flat, 8, weights=embedded.weights)
    SoftmaxLossLayer(net, scores, label)
    net.compile(threads=1)
    x = np.arange(8)[:, None]
    history = net.fit(x, (x[:, 0] + 1) % 8, solver=SGD(net, 0.2), epochs=60, shuffle=False, progress=False)
    assert history.losses[-1] < 0.2 * history.losses[0]
    assert sorted(net.state_dict()) == ["embedding1.weights", "fully_connected1.bias"]


class Copy(Neuron):
    def forward(self):
        for i in eachindex(self.inputs):
            self.value += self.inputs[i]


# --- ranges -------------------------------------------------------------------------------------------------
def test_what_is_out_of_range_is_never_read(tmp_path: Path) -> None:
    net = Net(2, seed=1)
    words = indices(net, 3, 5)
    layer = EmbeddingLayer(net, words, 5, 4)
    gathered = net.add_ensemble(Gathered(shape=(4, 4), dims=("t", "e")))
    data = MemoryDataLayer(net, (5, 4))
    for source in (data, indices(net, 4, 5)):
        net.add_connections(source, gathered, lambda *_: None)
    net.compile(threads=1)
    good = np.array([[0, 4, 2], [1, 1, 1]])
    for wrong, told in ((5, "at [1, 2] it is 5"), (-1, "it is -1"), (0.5, "it is 0.5"), (np.nan, "it is nan")):
        values = good.astype(float)
        values[1, 2] = wrong
        for give in (
            lambda v=values: words.set_value(v),
            lambda v=values: layer.set_inputs(v),
            lambda v=values: net.set_batch(v, np.zeros((2, 5, 4)), np.zeros((2, 4))),
        ):
            with pytest.raises(DataError) as caught:
                give()
            assert "data1" in str(caught.value) or "embedding1.set_inputs" in str(caught.value)
            assert "whole numbers from 0 to 4 are needed" in str(caught.value) and told in str(caught.value)
    words.set_value(good)
    net.forward()
    with pytest.raises(DataError, match=r"gathered1.set_order: whole numbers from 0 to 4(.|\n)*at \[3\] it is 7"):
        gathered.set_order([0, 1, 2, 7])
    with pytest.raises(DataError, match=r"gathered1.order: whole numbers from 0 to 4"):
        net.load_state_dict({"gathered1.order": np.array([0, 1, 2, 7])}, {"gathered1.order": "gathered1.order"})
    for view in (words.get_value_view, layer.get_inputs_view, gathered.get_order_view):
        with pytest.raises(DataError, match="there is no view of them"):
            view()
    assert not gathered.get_order().any()
    net.save(tmp_path / "net")
    net.load(tmp_path / "net")


def lowered(body: type[Ensemble], below: int | None = 5) -> None:
    net = Net(2)
    layer = net.add_ensemble(body(shape=(4, 3), dims=("t", "e")))
    for source in (MemoryDataLayer(net, (5, 3)), MemoryDataLayer(net, 4, dtype="int32", below=below)):
        net.add_connections(source, layer, lambda *_: None)
    net.compile()


class ByFloat(Ensemble):
    """value is float32, and subscripts are integers"""

    def forward(self, inputs, inputs1, value):
        for n, t, e in eachindex(value):
            value[n, t, e] = inputs[n, inputs[n, t, e], e]


class Read(Ensemble):
    def forward(self, inputs, inputs1, value):
        for n, t, e in eachindex(value):
            value[n, t, e] = inputs[n, inputs1[n, t], e]


class Twice(Ensemble):
    def forward(self, inputs, inputs1, value):
        for n, t, e in eachindex(value):
            value[n, t, e] = inputs[n, inputs1[n, inputs1[n, t]], e]


class Computed(Ensemble):
    place = Field("t", dtype="int32", below=5)

    def forward(self, inputs, inputs1, value, place):
        for n, t, e in eachindex(value):
            place[t] = t + 2
            value[n, t, e] = inputs[n, place[t], e]


class Queue(Ensemble):
    """The last items, in rows that are filled one after the other: a ring."""

    rows = State(shape=(7, 3))
    at = State(shape=(1,), dtype="int32", below=7)
    newest = State(shape=(1,), dtype="int32", below=7)

    def forward(self, inputs, value, rows, at, newest):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                rows[at[0], c] = inputs[n, c]
            newest[0] = at[0]
            at[0] = (at[0] + 1) % 7
        for n in range(N):
            for c in range(C):
                value[n, c] = rows[newest[0], c]


def test_a_ring() -> None:
    net = Net(3, seed=0)
    data = MemoryDataLayer(net, (3,))
    queue = net.add_ensemble(Queue(shape=(3,), dims=("c",)))
    net.add_one_to_one_connections(data, queue)
    net.compile(threads=1)
    items = np.arange(30, dtype=np.float32).reshape(10, 3)
    for start in range(0, 9, 3):
        net.set_batch(items[start : start + 3])
        net.forward()
        np.testing.assert_array_equal(queue.get_value(), np.tile(items[start + 2], (3, 1)))
    assert queue.get_at() == 2
    np.testing.assert_array_equal(queue.get_rows()[:2], items[7:9])


PIECES = 6


class Piecewise(Neuron):
    """A function of its own for each channel, linear in pieces, which go on outside of -1 to 1."""

    values = Param("c", shape=(PIECES + 1,), init=normal(0.5))
    piece = Field("n", "c", dtype="int32", below=PIECES)
    end = Field("n", "c", dtype="int32", below=PIECES + 1)

    def forward(self):
        place = (self.input + 1.0) * (0.5 * PIECES)
        self.piece = min(max(int32(floor(place)), 0), PIECES - 1)
        self.end = self.piece + 1
        share = place - self.piece
        self.value = (1.0 - share) * self.values[self.piece] + share * self.values[self.end]


class Periodic(Neuron):
    values = Param("c", shape=(PIECES,), init=normal(0.5))
    piece = Field("n", "c", dtype="int32", below=PIECES)

    def forward(self):
        self.piece = int32(floor(self.input * 3.0)) % PIECES
        self.value = self.values[self.piece] * self.input


def computed(kind: type[Neuron], images: np.ndarray, target: str) -> tuple[Net, Ensemble, Ensemble]:
    """A net of such neurons that has seen the images."""
    if reason := why_not(TARGETS[target]):
        pytest.skip(reason)
    net = Net(len(images), seed=0)
    net.force_backward = True
    data = MemoryDataLayer(net, images.shape[1:])
    layer = net.add_ensemble(Ensemble(kind, images.shape[1:], dims=("c",)))
    net.add_one_to_one_connections(data, layer)
    net.compile(threads=2, target=target)
    net.set_batch(images, finite=False)
    net.forward()
    return net, data, layer


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [Piecewise, Periodic])
def test_subscripts_computed_from_data(kind: type[Neuron], target: str) -> None:
    generator = np.random.default_rng(3)
    images = generator.uniform(-1.6, 1.6, (5, 17)).astype(np.float32)
    images[0, :3] = -1, 1, 0
    net, data, layer = computed(kind, images, target)
    x = torch.tensor(images, requires_grad=True)
    values = torch.tensor(layer.get_values(), requires_grad=True)
    channels = torch.arange(17).expand(5, 17)
    if kind is Piecewise:
        place = (x + 1) * (0.5 * PIECES)
        piece = place.floor().long().clamp(0, PIECES - 1)
        expected = torch.lerp(values[channels, piece], values[channels, piece + 1], place - piece)
    else:
        expected = values[channels, (x * 3).floor().long() % PIECES] * x
    gradient = generator.normal(size=images.shape).astype(np.float32)
    layer.set_grad(gradient)
    net.backward()
    expected.backward(torch.tensor(gradient))
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    close(layer.get_value(), expected.detach().numpy())
    close(data.get_grad(), x.grad)
    close(layer.get_grad_values(), values.grad)


@pytest.mark.parametrize("target", TARGETS)
def test_what_no_integer_is_stays_in_range(target: str) -> None:
    strange = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-40]], np.float32)
    for kind, expected in ((Piecewise, [0, 0, 0, 0, 0, 3, 3, 3]), (Periodic, [4, 4, 4, 4, 4, 0, 0, 0])):
        _, _, layer = computed(kind, strange, target)
        np.testing.assert_array_equal(layer.get_piece()[0], expected)  # what is out of range is -2**31


class Leaving(Ensemble):
    at = State(shape=(1,), dtype="int32", below=7)

    def forward(self, inputs, inputs1, value, at):
        for n, t, e in eachindex(value):
            value[n, t, e] = inputs[n, t, e]
        at[0] = (at[0] + 1) % 8


class Clamped(Ensemble):
    place = Field("t", dtype="int32", below=5)

    def forward(self, inputs, inputs1, value, place):
        for n, t, e in eachindex(value):
            place[t] = min(max(int32(inputs[0, t, 0]), 0), 5)
            value[n, t, e] = inputs[n, place[t], e]


class HalfClamped(Ensemble):
    """A product that wraps may be less than zero."""

    place = Field("t", dtype="int32", below=5)

    def forward(self, inputs, inputs1, value, place):
        for n, t, e in eachindex(value):
            place[t] = min(inputs1[0, t] * 2000000000, 4)
            value[n, t, e] = inputs[n, place[t], e]


class Added(Ensemble):
    place = Field("t", dtype="int32", below=5)

    def forward(self, inputs, inputs1, value, place):
        for n, t, e in eachindex(value):
            place[t] += 1
            value[n, t, e] = inputs[n, place[t], e]


class After(Ensemble):
    """After its loop, a local is a number as any other."""

    def forward(self, inputs, inputs1, value):
        for n in range(2):
            for t in range(4):
                row = inputs1[n, t]
                for e in range(3):
                    value[n, t, e] = inputs[n, row, e]
            value[n, 0, 0] = inputs[n, row, 0]


@pytest.mark.parametrize(
    ("body", "below", "message"),
    [
        (ByFloat, 5, "inputs\\[n, t, e\\] is float32, and subscripts are integers"),
        (Read, None, r"inputs1\[n, t\] has no declared range, dimension 1 of inputs has 5 elements\n  below=5 where"),
        (Read, 6, r"inputs1\[n, t\] is below 6, dimension 1 of inputs has 5 elements"),
        (Twice, 4, "cannot be a subscript: it is itself read at such a subscript"),
        (Computed, 5, r"place\[t\] = t \+ 2: the numbers of place are below 5, these may not be"),
        (
            Leaving,
            5,
            r"at\[0\] = \(at\[0\] \+ 1\) % 8: the numbers of at are below 7(.|\n)*% 7, or min\(max\(…, 0\), 6\)",
        ),
        (Clamped, 5, r"place\[t\] = min\(max\(int32\(.*\), 0\), 5\): the numbers of place are below 5"),
        (HalfClamped, 5, r"place\[t\] = min\(.* \* 2000000000, 4\): the numbers of place are below 5"),
        (Added, 5, "might leave the range of place"),
        (After, 5, "row cannot be a subscript here"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_subscripts_that_may_be_outside(body: type[Ensemble], below: int | None, message: str) -> None:
    with pytest.raises(BodyError, match=message) as caught:
        lowered(body, below)
    assert "test_embedding.py" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: MemoryDataLayer(net, 3, dtype="int64"), "must be 'float32' or 'int32', not 'int64'"),
        (lambda net: MemoryDataLayer(net, 3, below=4), "below is for integers, not for float32"),
        (lambda net: MemoryDataLayer(net, 3, dtype="int32", below=0), "below must be an integer, at least 1, not 0"),
        (lambda net: MemoryDataLayer(net, 3, dtype="int32", below="4"), "below must be an integer"),
        (lambda net: State("c", below=4), "State: below is for integers"),
        (
            lambda net: EmbeddingLayer(net, MemoryDataLayer(net, 3), 5, 2),
            r"<DataEnsemble data1 \(3,\)> has no such range",
        ),
        (lambda net: EmbeddingLayer(net, indices(net, 3, 6), 5, 2), "has numbers below 6"),
        (lambda net: EmbeddingLayer(net, indices(net, 3, 5), 5, 2, 5), "padding_index must be None or an integer"),
        (lambda net: EmbeddingLayer(net, indices(net, (3, 2), 5), 5, 2), "reads 1 dimensions without the batch"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        make(Net(2))


def test_constants_out_of_range() -> None:
    net = Net(2)

    class Beyond(Neuron):
        place = Constant(shape=(1,), dtype="int32", below=3, init=given(np.array([3])))

        def forward(self):
            self.value = self.inputs[self.place[0]]

    layer = net.add_ensemble(Ensemble(Beyond, (2,), ("k",)))
    net.add_connections(MemoryDataLayer(net, 3), layer, lambda k: range(3))
    with pytest.raises(
        DeclarationError, match=r"init returned, whole numbers from 0 to 2 are needed; at \[0\] it is 3"
    ):
        net.compile()


def test_integers_have_no_gradient() -> None:
    net = Net(2, seed=1)
    net.force_backward = True
    numbers = MemoryDataLayer(net, (3,), dtype=np.int32, name="numbers")
    scores = FullyConnectedLayer(net, numbers, 2)
    net.compile(threads=1)
    numbers.set_value([[1, -2, 3], [4, 5, 2**31 - 1]])
    assert numbers.name == "numbers" and numbers.get_value().dtype == np.int32
    scores.set_grad(np.ones((2, 2)))
    net.forward()
    net.backward()
    np.testing.assert_allclose(scores.get_grad_weights(), [[5, 3, 2**31 + 2]] * 2, rtol=1e-6)
    with pytest.raises(DataError, match=r"nothing in this net computes numbers\.grad\n  int32 has no gradient"):
        numbers.get_grad()
    with pytest.raises(DataError, match="whole numbers from -2147483648 to 2147483647"):
        numbers.set_value(np.full((2, 3), 2.0**31))
