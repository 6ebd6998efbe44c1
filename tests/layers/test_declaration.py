"""What is refused where a layer, a net or a field is declared, and what a declaration costs."""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import latte
from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    GRULayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    RNNLayer,
    SoftmaxLossLayer,
    SplitLayer,
)
from latte.ensemble import DataEnsemble, Ensemble, LossEnsemble
from latte.frontend.lower import lower
from latte.model.buffers import body_buffers
from latte.neuron import Field, Neuron, Param, State, constant, eachindex, given, ones, zeros
from swirl.errors import BodyError, DeclarationError, MappingError, UnknownName

ROOT = Path(__file__).parent.parent.parent


class Copy(Neuron):
    def forward(self):
        self.value = self.inputs[0]


def test_star_import_gives_layers_and_net_only() -> None:
    names: dict[str, object] = {}
    exec("from latte import *", names)
    names.pop("__builtins__")
    assert set(names) == set(latte.__all__)
    assert {"Net", "ConvLayer", "MemoryDataLayer", "SoftmaxLossLayer"} <= set(names)


def test_names_kinds_and_order() -> None:
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (3, 8, 8))
    conv1, conv2 = ConvLayer(net, data, 4), ConvLayerNoBias(net, data, 5, kernel=1, pad=0)
    bn = BatchNormLayer(net, conv1)
    assert [ensemble.name for ensemble in net.ensembles] == ["data1", "conv1", "conv2", "batch_norm1"]
    assert [ensemble.kind for ensemble in net.ensembles] == ["data", "conv", "conv", "batch_norm"]
    assert net.graph.order() == net.ensembles == [data, conv1, conv2, bn]
    assert [edge.sink for edge in net.graph.readers(data)] == [conv1, conv2]
    assert (conv2.shape, conv2.ndim, len(conv2)) == ((5, 8, 8), 3, 320)


def test_fields_of_layers() -> None:
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (3, 8, 6))
    conv = ConvLayer(net, data, 5, kernel=(3, 1), stride=(2, 1), pad=(1, 0))
    shapes = {name: spec.shape for name, spec in conv.fields().items()}
    assert shapes == {
        "value": (4, 5, 4, 6),
        "grad": (4, 5, 4, 6),
        "weights": (5, 3, 3, 1),
        "grad_weights": (5, 3, 3, 1),
        "bias": (5, 1),
        "grad_bias": (5, 1),
    }
    roles = [spec.role for spec in conv.fields().values()]
    assert roles == ["value", "grad", "param", "param_grad", "param", "param_grad"]
    assert conv.fields(batch_size=3)["value"].shape == (3, 5, 4, 6)
    fc = FullyConnectedLayer(net, conv, 7)
    assert fc.fields()["weights"].shape == (7, 5, 4, 6)
    assert fc.fields()["weights"].fan_in == 120
    assert fc.fields()["bias"].shape == (7, 1)
    norm = BatchNormLayer(net, conv)
    roles_of_norm = {name: spec.role for name, spec in norm.fields().items()}
    assert roles_of_norm["running_var"] == "state"
    assert roles_of_norm["mean"] == "value"
    assert norm.fields()["gamma"].shape == (5,)
    label = MemoryDataLayer(net, (1,))
    loss = SoftmaxLossLayer(net, fc, label)
    assert loss.fields()["value"].shape == (1,)
    assert loss.fields()["prob"].shape == (4, 7)
    assert body_buffers(loss)["label"].name == "data2.value"
    assert "grad_label" not in body_buffers(loss)
    assert body_buffers(loss, 3)["prob"].shape == (3, 7)


def test_initial_values_come_from_the_seed() -> None:
    def build(seed: int | None) -> list[np.ndarray]:
        net = Net(2, seed=seed)
        data = MemoryDataLayer(net, (3, 8, 8))
        conv1, conv2 = ConvLayer(net, data, 4), ConvLayer(net, data, 4)
        return [conv1.initial("weights"), conv2.initial("weights"), conv1.initial("bias")]

    first, second, bias = build(3)
    again = build(3)
    assert (first == again[0]).all()
    assert (second == again[1]).all()
    assert (first != second).any()
    assert (build(4)[0] != first).any()
    bound = np.sqrt(3 / 27)
    assert np.abs(first).max() <= bound
    assert first.min() < -0.8 * bound
    assert first.max() > 0.8 * bound
    assert first.dtype == np.float32
    assert (bias == 0).all()
    np.random.seed(5)
    one = Net(2).seed
    np.random.seed(5)
    assert Net(2).seed == one


def test_declaring_a_large_layer_costs_nothing() -> None:
    tracemalloc.start()
    begin = time.perf_counter()
    net = Net(64)
    conv = ConvLayer(net, MemoryDataLayer(net, (64, 224, 224)), 64)
    program = lower(conv, "forward", batch_size=64)
    seconds = time.perf_counter() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert program.buffers["value"].size == 64 * 64 * 224 * 224
    assert peak < 2_000_000
    assert seconds < 10  # it takes milliseconds; the bound only catches work that grows with the neurons


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "3", None, True])
def test_batch_size(batch_size: object) -> None:
    with pytest.raises(DeclarationError, match="batch size must be a positive integer") as caught:
        Net(batch_size)  # type: ignore[arg-type]
    assert str(caught.value.location).startswith(__file__)


def test_seed() -> None:
    with pytest.raises(DeclarationError, match="seed"):
        Net(2, seed=-1)


WRONG_LAYERS = {
    "no filters": (lambda net, image, vector: ConvLayer(net, image), "num_filters must be a positive"),
    "negative filters": (
        lambda net, image, vector: ConvLayer(net, image, -3),
        "num_filters must be a positive",
    ),
    "float filters": (
        lambda net, image, vector: ConvLayer(net, image, 3.5),
        "num_filters must be a positive",
    ),
    "kernel": (
        lambda net, image, vector: ConvLayer(net, image, 3, kernel=9),
        "covers 9 elements in y, .* only 8",
    ),
    "dilation": (
        lambda net, image, vector: ConvLayer(net, image, 3, kernel=3, dilation=5, pad=1),
        "covers 11 elements in y",
    ),
    "stride": (
        lambda net, image, vector: ConvLayer(net, image, 3, stride=0),
        "stride must be an integer of at least 1",
    ),
    "pad": (
        lambda net, image, vector: ConvLayer(net, image, 3, pad=-1),
        "pad must be an integer of at least 0",
    ),
    "triple": (lambda net, image, vector: ConvLayer(net, image, 3, kernel=(1, 2, 3)), "kernel must be"),
    "conv of a vector": (lambda net, image, vector: ConvLayer(net, vector, 3), "reads 3 dimensions .* has 1"),
    "pool of a vector": (lambda net, image, vector: MaxPoolingLayer(net, vector), "reads 3 dimensions"),
    "pool kernel": (lambda net, image, vector: MaxPoolingLayer(net, image, 9), "covers 9 elements"),
    "pool pad": (
        lambda net, image, vector: MaxPoolingLayer(net, image, 2, 2, 2, clamp=False),
        "more than half of the kernel",
    ),
    "outputs": (
        lambda net, image, vector: FullyConnectedLayer(net, image, 0),
        "num_outputs must be a positive",
    ),
    "epsilon": (
        lambda net, image, vector: BatchNormLayer(net, image, epsilon=0),
        "epsilon must be greater than 0, not 0",
    ),
    "momentum": (
        lambda net, image, vector: BatchNormLayer(net, image, momentum=2),
        "momentum must be a number, at least 0, at most 1, not 2",
    ),
    "loss of an image": (
        lambda net, image, vector: SoftmaxLossLayer(net, image, vector),
        r"labels have shape \(6, 6\), .* has \(10,\)",
    ),
    "own label": (
        lambda net, image, vector: SoftmaxLossLayer(net, vector, vector),
        "cannot be its own label",
    ),
    "accuracy": (lambda net, image, vector: AccuracyLayer(net, vector, image), r"labels have shape \(1,\)"),
    "shape": (lambda net, image, vector: MemoryDataLayer(net, (3, 0)), "positive integers"),
    "no shape": (lambda net, image, vector: MemoryDataLayer(net, ()), "positive integers"),
    "a class for a shape": (lambda net, image, vector: Ensemble((8,), Neuron), "positive integers"),
    "not a layer": (lambda net, image, vector: ReLULayer(net, 3), "must be what a layer returned"),
    "not a net": (lambda net, image, vector: ReLULayer(image, image), "first argument must be the net"),
    "another net": (lambda net, image, vector: ReLULayer(Net(2), image), "is in another net"),
}


@pytest.mark.parametrize("case", list(WRONG_LAYERS))
def test_layers_refuse_what_does_not_fit(case: str) -> None:
    make, message = WRONG_LAYERS[case]
    net = Net(2)
    image, vector = MemoryDataLayer(net, (3, 6, 6)), MemoryDataLayer(net, (10,))
    with pytest.raises(DeclarationError, match=message) as caught:
        make(net, image, vector)
    assert str(caught.value.location).startswith(__file__)
    assert len(net.ensembles) == 2
    assert not net.connections


def test_labels_are_one_number_an_item() -> None:
    net = Net(2)
    with pytest.raises(DeclarationError, match="labels have shape"):
        SoftmaxLossLayer(net, MemoryDataLayer(net, 10), MemoryDataLayer(net, 2))


def test_ensembles_and_names() -> None:
    net = Net(2)
    ensemble = net.add_ensemble(Ensemble(Copy, 4, name="mine"))
    with pytest.raises(DeclarationError, match="in this net already"):
        net.add_ensemble(ensemble)
    with pytest.raises(DeclarationError, match="in another net"):
        Net(2).add_ensemble(ensemble)
    with pytest.raises(DeclarationError, match="'mine' exists already"):
        net.add_ensemble(Ensemble(Copy, 4, name="mine"))
    with pytest.raises(DeclarationError, match="cannot name an ensemble"):
        net.add_ensemble(Ensemble(Copy, 4, name="two words"))
    with pytest.raises(DeclarationError, match="takes an Ensemble"):
        net.add_ensemble(Copy)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="needs a shape"):
        Ensemble(Copy)
    with pytest.raises(DeclarationError, match="must be a Neuron class"):
        Ensemble("Copy", 4)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="neither neurons nor a forward"):
        Ensemble(None, 4)
    with pytest.raises(DeclarationError, match="1 different names"):
        Ensemble(Copy, 4, dims=("k", "y"))
    with pytest.raises(DeclarationError, match="different names"):
        Ensemble(Copy, 4, dims=("n",))
    for name in ("value", "class", "min", "INFINITY", "a b"):
        with pytest.raises(DeclarationError, match="cannot name a dimension"):
            Ensemble(Copy, 4, dims=(name,))
    with pytest.raises(DeclarationError, match="belongs to no net"):
        Ensemble(Copy, 4).fields()
    assert Ensemble(Copy, 4).kind == "copy"


class Misspelt:
    """Each class: a method whose name is nearly that of a phase, and the docstring's words."""

    class Foward(Neuron):
        """Foward has no forward, but foward, which nothing would call"""

        def foward(self):
            self.value = self.input

    class Capital(Neuron):
        """Capital has no forward, but Forward"""

        def Forward(self):
            self.value = self.input

    class Backwards(Copy):
        """Backwards has no backward, but backwards"""

        def backwards(self):
            self.grad_inputs[0] = self.grad

    class Internal(Copy):
        """Internal has no update, but updateinternal"""

        def updateinternal(self):
            pass

    class Rows(Ensemble):
        """Rows has neither neurons nor a forward of its own"""

        def compute(self, inputs, value):
            pass

    class Loss(LossEnsemble):
        """Loss has no forward, but foward"""

        def foward(self, inputs, label, value):
            pass

    class Judge(LossEnsemble):
        """Judge has no forward, so that its value would never be computed"""


@pytest.mark.parametrize("kind", [kind for kind in vars(Misspelt).values() if isinstance(kind, type)])
def test_phases_that_are_missing_or_misspelt(kind: type) -> None:
    def declare() -> Ensemble:
        if issubclass(kind, LossEnsemble):
            return kind()
        return kind(shape=4) if issubclass(kind, Ensemble) else Ensemble(kind, 4)

    with pytest.raises(DeclarationError, match=kind.__doc__) as caught:
        declare()
    assert caught.value.way_out and str(caught.value.location).startswith(f"{__file__}:")
    methods = [value for name, value in vars(kind).items() if not name.startswith("__")]
    if "but" in str(kind.__doc__):
        assert str(caught.value.location) == f"{__file__}:{methods[0].__code__.co_firstlineno}"
        assert "did you mean '" in caught.value.way_out


def test_a_neuron_without_forward() -> None:
    class Empty(Neuron):
        weights = Param("k")

        def helper(self):
            """Its name is not a phase's, and is not like one."""

    for neurons in (Empty, Empty(), Neuron):
        with pytest.raises(DeclarationError, match="has no forward, so that its value would never be computed"):
            Ensemble(neurons, 4)

    class Both(Copy):
        def forward_old(self):
            self.value = 0.0

    assert Ensemble(Both, 4).has_phase("forward")


def test_object_arrays() -> None:
    with pytest.raises(DeclarationError, match="holds NoneType objects"):
        Ensemble(np.empty((2, 2), dtype=object))
    mixed = np.array([Copy(), Neuron()], dtype=object)
    with pytest.raises(DeclarationError, match="mixes the classes Copy, Neuron"):
        Ensemble(mixed)
    with pytest.raises(DeclarationError, match="is not the shape"):
        Ensemble(np.array([Copy(), Copy()], dtype=object), shape=3)


def test_fields_that_do_not_fit() -> None:
    class UnknownDimension(Neuron):
        weights = Param("channel")

        def forward(self):
            self.value = self.weights

    class Reserved(Neuron):
        grad = Param("k")

        def forward(self):
            self.value = self.grad

    net = Net(2)
    with pytest.raises(DeclarationError, match="names the dimension 'channel'") as caught:
        net.add_ensemble(Ensemble(UnknownDimension, 4, ("k",)))
    assert "'n', 'k'" in str(caught.value.way_out)
    with pytest.raises(DeclarationError, match="'grad' cannot name a field"):
        net.add_ensemble(Ensemble(Reserved, 4, ("k",)))
    assert net.ensembles == []
    with pytest.raises(DeclarationError, match="positive integers"):
        Param("k", shape=(3, 0))
    with pytest.raises(DeclarationError, match="unknown dtype 'float16'"):
        State("k", dtype="float16")
    with pytest.raises(DeclarationError, match="given by name"):
        Param(3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="init must be a function"):
        Param("k", init=0.0)  # type: ignore[arg-type]


def test_initialisers() -> None:
    class Own(Neuron):
        a = Param("k", shape=2, init=constant(0.5))
        b = Param("k", init=given(np.arange(4)))
        c = Param("k", init=given(np.arange(3)))

        def forward(self):
            self.value = self.b

    net = Net(2, seed=1)
    ensemble = net.add_ensemble(Ensemble(Own, 4, ("k",)))
    assert (ensemble.initial("a") == np.full((4, 2), 0.5, np.float32)).all()
    assert (ensemble.initial("b") == np.arange(4)).all()
    with pytest.raises(DeclarationError, match=r"shape \(3,\) was given for a field of shape \(4,\)"):
        ensemble.initial("c")


def test_added_fields() -> None:
    net = Net(2)
    ensemble = Ensemble(Copy, 4, ("k",))
    ensemble.add_field("scale", Param("k", init=ones))
    with pytest.raises(DeclarationError, match="has a field 'scale' already"):
        ensemble.add_field("scale", Param("k"))
    net.add_ensemble(ensemble)
    assert set(ensemble.fields()) == {"value", "grad", "scale", "grad_scale"}
    assert Field(shape=3).shape == (3,)
    assert State("k", init=zeros).role == "state"


def test_connections_that_do_not_fit() -> None:
    net, other = Net(2), Net(2)
    data, foreign = MemoryDataLayer(net, (4, 4)), MemoryDataLayer(other, (4, 4))
    ensemble = net.add_ensemble(Ensemble(Copy, (4, 4), ("k", "y")))

    def same(k, y):
        return range(k, k + 1), range(y, y + 1)

    with pytest.raises(DeclarationError, match="is in another net"):
        net.add_connections(foreign, ensemble, same)
    with pytest.raises(DeclarationError, match="is in no net"):
        net.add_connections(Ensemble(Copy, 4), ensemble, same)
    with pytest.raises(DeclarationError, match="is not an ensemble"):
        net.add_connections(None, ensemble, same)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="data layer: it reads nothing"):
        net.add_connections(ensemble, data, same)
    with pytest.raises(MappingError, match="must be a function"):
        net.add_connections(data, ensemble, range(3))  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="does not fit a source of shape"):
        net.add_connections(data, ensemble, same, padding=((1, 1),))
    with pytest.raises(DeclarationError, match="does not fit a source of shape"):
        net.add_connections(data, ensemble, same, padding=((1, 1), (-1, 0)))
    for padding in (1, "ab", None, (1,), ((1, 1, 1), 0), (0.5, 0)):
        if padding is not None:
            with pytest.raises(DeclarationError, match="does not fit a source of shape"):
                net.add_connections(data, ensemble, same, padding=padding)  # type: ignore[arg-type]
            with pytest.raises(DeclarationError, match="does not fit a source of shape"):
                data.set_padding(*padding if isinstance(padding, tuple) else (padding,))  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="exclude each other"):
        net.add_connections(data, ensemble, same, clamp=True, padding=(1, 1))
    with pytest.raises(DeclarationError, match="cannot be seen as"):
        net.add_connections(data, ensemble, same, reshape=(3, 5))
    with pytest.raises(MappingError, match="leaves its source"):
        net.add_connections(data, ensemble, lambda k, y: (range(k, k + 1), range(y, y + 2)))
    vector = MemoryDataLayer(net, 16)
    with pytest.raises(DeclarationError, match="different shapes"):
        net.add_one_to_one_connections(vector, ensemble)
    with pytest.raises(DeclarationError, match="needs explicit loops"):
        net.add_loss_connection(data, ensemble)
    assert not net.connections


def test_cycles() -> None:
    net = Net(2)
    first, second, third = (net.add_ensemble(Ensemble(Copy, 4, ("k",), name=name)) for name in "abc")
    net.add_one_to_one_connections(first, second)
    net.add_one_to_one_connections(second, third)
    with pytest.raises(DeclarationError, match=r"cycle: (a → b → c → a|b → c → a → b|c → a → b → c)") as caught:
        net.add_one_to_one_connections(third, first)
    assert str(caught.value.location).startswith(__file__)
    with pytest.raises(DeclarationError, match="closes a cycle: c → c"):
        net.add_one_to_one_connections(third, third)
    assert len(net.connections) == 2


def test_order_puts_sources_first() -> None:
    net = Net(2)
    late = net.add_ensemble(Ensemble(Copy, 4, ("k",), name="late"))
    data = MemoryDataLayer(net, 4)
    other = MemoryDataLayer(net, 4)
    net.add_one_to_one_connections(data, late)
    assert net.graph.order() == [data, late, other]


def test_losses() -> None:
    class Half(LossEnsemble):
        def forward(self, inputs, label, value):
            for n, i in eachindex(inputs):
                value[0] += (inputs[n, i] - label[n, i]) ** 2

    net = Net(2)
    data, label = MemoryDataLayer(net, 3), MemoryDataLayer(net, 3)
    loss = net.add_ensemble(Half())
    net.add_loss_connection(data, loss)
    with pytest.raises(DeclarationError, match="its own label"):
        net.add_loss_connection(data, loss)
    net.add_loss_connection(label, loss)
    with pytest.raises(DeclarationError, match="has its label already"):
        net.add_loss_connection(MemoryDataLayer(net, 3), loss)
    with pytest.raises(DeclarationError, match="one value for the whole batch"):
        ReLULayer(net, loss)
    assert [(edge.name, edge.is_label) for edge in loss.connections] == [("inputs", False), ("label", True)]
    assert isinstance(data, DataEnsemble)


def test_padding_is_counted_in_the_mapping_s_coordinates() -> None:
    class Window(Neuron):
        def forward(self):
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.inputs[i]

    net = Net(2)
    data = MemoryDataLayer(net, 6)
    first = net.add_ensemble(Ensemble(Window, 6, ("k",)))
    second = net.add_ensemble(Ensemble(Window, 8, ("k",)))
    # Two readers pad one source differently.
    net.add_connections(data, first, lambda k: range(k, k + 3), padding=((1, 1),))
    net.add_connections(data, second, lambda k: range(k, k + 3), padding=((4, 0),))
    assert "inputs[n, k + i - 1]" in lower(first, "forward", batch_size=2).text
    text = lower(second, "forward", batch_size=2).text
    assert "inputs[n, k + i - 4]" in text
    assert "if k + i >= 4:" in text


def test_set_padding_is_for_the_next_connection() -> None:
    class Window(Neuron):
        def forward(self):
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.inputs[i]

    def reader(net: Net, source: Ensemble, extent: int, **options: object) -> str:
        ensemble = net.add_ensemble(Ensemble(Window, extent, ("k",)))
        net.add_connections(source, ensemble, lambda k: range(k, k + 3), **options)  # type: ignore[arg-type]
        return lower(ensemble, "forward", batch_size=2).text

    net = Net(2)
    data = MemoryDataLayer(net, 6)
    assert data.pad == ((0, 0),)
    data.set_padding((1, 1))
    assert data.pad == ((1, 1),)
    assert "inputs[n, min(5, k + i)]" in reader(net, data, 6, clamp=True)  # counts from the source itself
    assert "inputs[n, k + i - 1]" in reader(net, data, 6)
    assert "inputs[n, k + i]" in reader(net, data, 4)  # padded for the layer before only
    data.set_padding(1)
    data.set_padding((4, 0))
    assert "inputs[n, k + i - 4]" in reader(net, data, 8)
    data.set_padding((4, 0))
    assert "inputs[n, k + i - 1]" in reader(net, data, 6, padding=((1, 1),))  # which names it itself
    assert "inputs[n, k + i]" in reader(net, data, 4)
    data.set_padding((1, 1))
    explicit = net.add_ensemble(Explicit(shape=(6,), dims=("k",)))
    with pytest.raises(DeclarationError, match="has explicit loops, which read positions as they are written"):
        net.add_connections(data, explicit, lambda k: range(k, k + 3))


class Explicit(Ensemble):
    def forward(self, inputs, value):
        N, K = inputs.shape
        for n in range(N):
            for k in range(K):
                value[n, k] = inputs[n, k]


def test_a_body_in_a_command_line_has_no_source() -> None:
    program = (
        "from latte import *\n"
        "from latte import Neuron, Ensemble\n"
        "class Copy(Neuron):\n"
        "    def forward(self):\n"
        "        self.value = self.input\n"
        "from latte.frontend.lower import lower\n"
        "net = Net(2)\n"
        "data = MemoryDataLayer(net, 3)\n"
        "copy = net.init_activation_ensemble(Copy, data)\n"
        "lower(copy, 'forward', batch_size=2)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "BodyError: <string>:4: the source of Copy.forward is not available" in result.stderr
    assert "write the layer in a file" in result.stderr


def test_editors_complete_what_works_on_a_layer() -> None:
    """Commands and questions about them, getters, setters and views."""
    net = Net(2)
    conv = ConvLayer(net, MemoryDataLayer(net, (3, 4, 4)), num_filters=4)
    offered = set(dir(conv))
    assert {"tile", "parallelize", "tiling_info", "shape", "get_value", "set_weights", "get_bias_view"} <= offered
    net.compile(threads=1)
    for name in dir(conv):
        if not name.startswith("_") and name != "training":  # declared for bodies
            assert getattr(conv, name) is not NotImplemented


def test_initial_values_of_an_unknown_field() -> None:
    layer = FullyConnectedLayer(net := Net(2, seed=1), MemoryDataLayer(net, (3,)), 2)
    with pytest.raises(UnknownName, match="has no field 'weight'") as error:
        layer.initial("weight")
    assert "did you mean 'weights'?" in str(error.value)


@pytest.mark.parametrize(
    ("taken", "declare"),
    [
        ("part_1", lambda net, data: SplitLayer(net, data, [1, 2], name="part")),
        ("cell_step1", lambda net, data: RNNLayer(net, data, 4, name="cell")),
        ("cell_rows1_1", lambda net, data: GRULayer(net, data, 4, name="cell", reverse=True)),
    ],
)
def test_a_layer_of_several_ensembles_is_declared_as_a_whole(
    taken: str, declare: Callable[[Net, Ensemble], object]
) -> None:
    """It left those of its ensembles in the net that came before the one that is refused."""
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, (3, 5) if "cell" not in taken else (7, 5))
    ReLULayer(net, data, name=taken)
    before = list(net.ensembles), list(net.connections)
    with pytest.raises(DeclarationError, match=f"an ensemble named '{taken}' exists already"):
        declare(net, data)
    assert (net.ensembles, net.connections) == before
    SplitLayer(net, data, [1, data.shape[0] - 1])  # numbers are not used up
    assert [ensemble.name for ensemble in net.ensembles[2:]] == ["split1", "split2"]
    net.force_backward = True
    net.compile(target="portable")


class Unpacked(Ensemble):
    """Two shapes give N; they agree."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        N, D = value.shape
        for n in range(N):
            for d in range(D):
                value[n, d] = inputs[n, d % C]


def test_two_shapes_may_give_a_number() -> None:
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, (3,))
    layer = net.add_ensemble(Unpacked(shape=(5,), dims=("d",)))
    net.add_connections(data, layer)
    net.compile(threads=1)
    net.set_batch([[1, 2, 3], [4, 5, 6]])
    net.forward()
    assert layer.get_value().tolist() == [[1, 2, 3, 1, 2], [4, 5, 6, 4, 5]]


def test_two_shapes_that_differ_make_no_constant() -> None:
    net = Net(2, seed=0)

    class Differs(Ensemble):
        def forward(self, inputs, value):
            N, C = inputs.shape
            N, C = value.shape
            for n in range(N):
                for c in range(C):
                    value[n, c] = inputs[n, 0]

    layer = net.add_ensemble(Differs(shape=(5,), dims=("c",)))
    net.add_connections(MemoryDataLayer(net, (3,)), layer)
    with pytest.raises(BodyError, match="C is a variable, assigned in several places"):
        net.compile()
