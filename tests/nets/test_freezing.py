"""Frozen layers and parameters: PyTorch's with requires_grad=False (and batch norm in eval()), step by step."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import (
    AddLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    GlobalMeanPoolingLayer,
    LSTMLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import CommandError, DataError, DeclarationError, TrainingError
from latte.neuron import Field, Neuron, Param, State, ones, sqrt
from latte.runtime.report import NotTuned
from latte.solver import SGD, Adam

BATCH = 4
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((10, 3, 13, 11)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, 10)
STEM = ("conv*", "batch_norm*")
as_lowered = pytest.mark.usefixtures("as_lowered")


def residual_net(frozen: Sequence[str] = ()) -> Net:
    """A stem with a stride, a block with a sum, and a head; 17 filters, so that blocks are ragged."""
    net = Net(BATCH, seed=1)
    data, label = MemoryDataLayer(net, (3, 13, 11)), MemoryDataLayer(net, (1,))
    stem = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, num_filters=17, stride=2)))
    branch = BatchNormLayer(net, ConvLayer(net, stem, num_filters=17))
    pooled = GlobalMeanPoolingLayer(net, ReLULayer(net, AddLayer(net, [stem, branch])))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, pooled, 5, name="fc1"), label)
    if frozen:
        net.freeze(*frozen)
    net.compile(threads=2)
    return net


def small_net(frozen: Sequence[str] = (), compiled: bool = True) -> Net:
    """Two fully connected layers with batch norm and dropout between them."""
    net = Net(BATCH, seed=2)
    data, label = MemoryDataLayer(net, (6,)), MemoryDataLayer(net, (1,))
    hidden = BatchNormLayer(net, FullyConnectedLayer(net, data, 7, name="fc1"))
    FullyConnectedLayer(net, DropoutLayer(net, ReLULayer(net, hidden)), 5, name="fc2")
    SoftmaxLossLayer(net, net["fc2"], label)
    if frozen:
        net.freeze(*frozen)
    if compiled:
        net.compile(threads=1)
    return net


VECTORS = RANDOM.standard_normal((10, 6)).astype(np.float32)


def step(net: Net, solver: Any = None, start: int = 0, count: int = BATCH) -> None:
    data = IMAGES if net.ensembles[0].ndim == 3 else VECTORS
    net.set_batch(data[start : start + count], LABELS[start : start + count])
    net.forward()
    net.clear_grad()
    net.backward()
    if solver is not None:
        solver.step()


def same(net: Net, before: dict[str, np.ndarray], *names: str) -> None:
    """These, by patterns, are to the bit what they were; all others are not."""
    for name, values in net.state_dict().items():
        kept = any(fnmatch(name, pattern) for pattern in names)
        assert (values.tobytes() == before[name].tobytes()) == kept, name


# --- PyTorch ----------------------------------------------------------------------------------------------
THEIRS = {"weights": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def torchs(name: str) -> str:
    layer, field = name.split(".")
    return f"{layer}.{THEIRS.get(field, field)}"


def residual_module(torch: Any) -> Any:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for number, channels in enumerate((3, 17), start=1):
                setattr(self, f"conv{number}", torch.nn.Conv2d(channels, 17, 3, 2 if number == 1 else 1, 1))
                setattr(self, f"batch_norm{number}", torch.nn.BatchNorm2d(17))
            self.fc1 = torch.nn.Linear(17, 5)

        def forward(self, images: Any) -> Any:
            stem = torch.relu(self.batch_norm1(self.conv1(images)))
            branch = self.batch_norm2(self.conv2(stem))
            return self.fc1(torch.relu(stem + branch).mean((2, 3)))

    return Module().double()


def freeze_torch(torch: Any, module: Any, patterns: Sequence[str]) -> None:
    module.train()
    for part in module.modules():
        part.requires_grad_(True)
    layers = dict(module.named_children())
    ours = {torchs(f"{layer}.{field}"): f"{layer}.{field}" for layer in layers for field in THEIRS}
    for pattern in patterns:
        for name, parameter in module.named_parameters():
            alias = ours[name] if "batch_norm" in name else name.replace("weight", "weights")
            if "." in pattern and fnmatch(alias, pattern):
                parameter.requires_grad_(False)
        for layer, part in module.named_children():
            if fnmatch(layer, pattern):
                part.requires_grad_(False)
                part.eval()


PLAN: Sequence[Sequence[str]] = (
    ("conv1", "batch_norm1"),  # before compile
    (),
    ("conv2", "batch_norm2"),
    ("*.gamma", "fc1.bias"),
    ("batch_norm*",),
    ("*",),
    STEM,
    (),
)


def test_steps_are_pytorchs() -> None:
    """Adam: moments and the number of steps of a parameter stay as they were while it is frozen; weight decay does not
    change it. Its epsilon is greater than the rounding of gradients that are 0."""
    torch = pytest.importorskip("torch")
    net, module = residual_net(PLAN[0]), residual_module(torch)
    own = module.state_dict()
    first = {torchs(name): torch.tensor(values.astype(float)) for name, values in net.state_dict().items()}
    module.load_state_dict({name: v.reshape(own[name].shape) for name, v in first.items()}, strict=False)
    solver = Adam(net, 0.01, epsilon=1e-4, weight_decay=0.1)
    optimiser = torch.optim.Adam(module.parameters(), 0.01, eps=1e-4, weight_decay=0.1)
    for number, patterns in enumerate(PLAN):
        net.unfreeze("*")
        if patterns:
            net.freeze(*patterns)
        freeze_torch(torch, module, patterns)
        for start in (0, number // 2):
            step(net, solver, start)
            optimiser.zero_grad(set_to_none=True)
            images, labels = (torch.tensor(each[start : start + BATCH]) for each in (IMAGES, LABELS))
            loss = torch.nn.functional.cross_entropy(module(images.double()), labels)
            if any(parameter.requires_grad for parameter in module.parameters()):
                loss.backward()
                optimiser.step()
            assert net.loss == pytest.approx(float(loss.detach()), abs=1e-4)
            for name, values in net.state_dict().items():
                theirs = module.state_dict()[torchs(name)].numpy().reshape(values.shape)
                # some roundings a step, which an epsilon of 1e-4 lets grow by up to 100
                np.testing.assert_allclose(values, theirs, rtol=0, atol=2e-4, err_msg=f"{name}, {patterns}")


def test_a_frozen_stem_has_no_gradients_and_the_commands_of_inference() -> None:
    """One pass a layer, as in inference; backward ends where nothing before it trains."""
    net = residual_net(frozen=STEM)
    step(net)
    forward = [part.unit.name for part in net.executable.order["forward"]]
    assert forward[:2] == ["conv1_batch_norm1_relu1", "conv2_batch_norm2"]
    backward = {part.unit.name for part in net.executable.order["backward"]}
    assert backward == {"softmax_loss1", "fc1"}
    assert not any("conv" in name and ".grad" in name for name in net.executable.buffers)
    assert not net.report.untuned
    with pytest.raises(DataError, match=r"computes conv1.grad_weights\n  frozen: conv1.weights; net"):
        net["conv1"].get_grad_weights()
    with pytest.raises(DataError, match=r"frozen: batch_norm1.gamma, batch_norm1.beta, conv1.weights, conv1.bias; net"):
        net["relu1"].get_grad()
    assert "frozen: training runs the inference body" in str(net.explain("batch_norm1"))
    assert "frozen: weights, bias" in str(net.explain("conv1"))
    net.unfreeze("*")
    assert "frozen" not in str(net.explain("conv1"))  # with what is frozen now


def test_recipes_that_do_not_apply_leave_frozen_layers_to_the_default_schedule(tmp_path: Path) -> None:
    """For the phases that there are, they would be applied; nothing fails."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def backward(s, target):\n"
        '    s.fuse_layers("backward", "update")\n'
        '    s.rename("backward", "k", "filter", nest=1)  # of the update\n'
    )
    net = Net(BATCH, seed=1)
    first = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=3)
    norm = BatchNormLayer(net, ConvLayer(net, first, num_filters=3))
    norm.parallelize("backward", "c")
    norm.parallelize("update", "c")
    top = ReLULayer(net, norm)
    net.use_recipe("conv", path)
    net.compile(threads=1)
    assert not net.report.untuned
    net.set_batch(IMAGES[:BATCH, :, :6, :6])
    net.freeze("conv2")
    with pytest.warns(NotTuned, match=r"conv2 backward, by .*mine.py: layers are frozen, and a command does not apply"):
        net.forward()
    for frozen in (("batch_norm1.gamma",), ("batch_norm1",)):
        net.freeze(*frozen)
        net.forward()
        top.set_grad(np.ones((BATCH, 3, 6, 6)))
        net.backward()
        assert first.get_grad_weights().any()


# --- what is frozen ---------------------------------------------------------------------------------------
@as_lowered
def test_all_is_frozen() -> None:
    net = small_net()
    solver, before = SGD(net, 0.1, momentum=0.9, weight_decay=0.1), net.state_dict()
    net.freeze("*")
    step(net, solver)
    same(net, before, "*")
    assert not net.executable.order["backward"]
    with pytest.raises(TrainingError, match=r"all parameters are frozen\n  net.unfreeze"):
        net.fit(VECTORS, LABELS, solver=solver, progress=False)
    net.unfreeze("*.bias")  # of layers that are frozen as a whole
    step(net, solver)
    same(net, before, "*.weights", "batch_norm1.*")
    assert not net["fc1"].trainable
    all_frozen = small_net(("*",))
    Adam(all_frozen)  # frozen before it is compiled, too
    step(all_frozen)


@as_lowered
def test_layers_by_name_pattern_and_attribute() -> None:
    net = small_net(compiled=False)
    net["fc1"].trainable = False
    net.compile(threads=1)
    solver, before = SGD(net, 0.1), net.state_dict()
    step(net, solver)
    same(net, before, "fc1.*")
    net["fc1"].trainable = True
    net.freeze(net["fc2"], "batch_norm*")
    assert [layer.name for layer in net.ensembles if not layer.trainable] == ["batch_norm1", "fc2"]
    before = net.state_dict()
    step(net, solver)
    same(net, before, "fc2.*", "batch_norm1.*")  # running statistics, too
    net.unfreeze("fc2", "batch_norm1")
    net.freeze("fc?.weights")
    assert all(layer.trainable for layer in net.ensembles)
    before = net.state_dict()
    step(net, solver)
    same(net, before, "fc?.weights")
    net.unfreeze("fc1")  # with all its parameters
    before = net.state_dict()
    step(net, solver)
    same(net, before, "fc2.weights")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("conv1",), r"freeze: no layer is called 'conv1'\n  the layers are data1, data2, fc1"),
        (("fc3",), r"no layer is called 'fc3'\n  did you mean 'fc2'"),
        (("fc1.weight",), r"no parameter is called 'fc1.weight'\n  did you mean 'fc1.weights'.* fc1.weights, fc1.bias"),
        (("fc1", "*.gain"), r"no parameter is called '\*.gain'"),
        (("fc1.grad",), "no parameter is called 'fc1.grad'"),
        ((["fc1", "fc2"],), r"for layers, their names, or patterns, not for \['fc1', 'fc2'\]"),
        ((None,), "not for None"),
        ((), r"freeze is for layers, and none is given\n  net.freeze\(\"\*\"\): all"),
    ],
)
def test_what_cannot_be_frozen(keys: tuple[Any, ...], message: str) -> None:
    net = small_net(compiled=False)
    for act in (net.freeze, net.unfreeze):
        with pytest.raises(CommandError, match=message.replace("freeze", act.__name__)) as told:
            act(*keys)
        assert __file__ in str(told.value.location)
    assert all(layer.trainable for layer in net.ensembles) and not net.summary().frozen
    with pytest.raises(CommandError, match="not in this net"):
        net.freeze(small_net(compiled=False)["fc1"])
    for wrong in (0, "no", None):
        with pytest.raises(DeclarationError, match=f"trainable must be True or False, not {wrong!r}"):
            net["fc1"].trainable = wrong  # type: ignore[assignment]


class Never(Ensemble):
    trainable = False  # type: ignore[assignment]

    def forward(self, inputs: Any, value: Any) -> None:
        for n in range(inputs.shape[0]):
            for c in range(inputs.shape[1]):
                value[n, c] = inputs[n, c]


def test_a_class_attribute_would_hide_what_is_frozen() -> None:
    net = Net(2)
    MemoryDataLayer(net, (3,))
    with pytest.raises(DeclarationError, match=r"Never.trainable is a class attribute(.|\n)*in __init__"):
        net.add_ensemble(Never(shape=(3,)))


class Scaled(Ensemble):
    """Divided by a running mean of absolute values; its backward is for training, where that is a constant 1."""

    gain = Param("c", init=ones)
    size = State("c", init=ones)
    now = Field("c")

    def __init__(self, count: int) -> None:
        super().__init__(shape=(count,), dims=("c",))
        self.trainable = False

    def forward(self, inputs: Any, value: Any, gain: Any, size: Any, now: Any) -> None:
        N, C = inputs.shape
        if self.training:
            for n in range(N):
                for c in range(C):
                    now[c] += sqrt(inputs[n, c] * inputs[n, c]) / N
            for c in range(C):
                size[c] = 0.5 * size[c] + 0.5 * now[c]
            for n in range(N):
                for c in range(C):
                    value[n, c] = gain[c] * inputs[n, c]
        else:
            for n in range(N):
                for c in range(C):
                    value[n, c] = gain[c] * inputs[n, c] / size[c]

    def backward(self, grad: Any, grad_inputs: Any, gain: Any) -> None:
        N, C = grad.shape
        for n in range(N):
            for c in range(C):
                grad_inputs[n, c] = gain[c] * grad[n, c]


@as_lowered
def test_a_written_backward_is_for_the_body_that_it_was_written_for() -> None:
    """Set in __init__, the layer is frozen from the beginning; its inference body has another gradient."""
    net = Net(2, seed=1)
    below = FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 3)
    layer = net.add_ensemble(Scaled(3))
    net.add_connections(below, layer)
    net.compile(threads=1)
    layer.set_size([2, 4, 8])
    net.set_batch(np.ones((2, 4)))
    for trainable, divisor in ((False, np.array([2, 4, 8])), (True, 1), (False, None)):
        layer.trainable = trainable
        sizes = layer.get_size()
        net.forward()
        layer.set_grad(np.ones((2, 3)))
        net.backward()
        np.testing.assert_allclose(below.get_grad(), np.ones((2, 3)) / (sizes if divisor is None else divisor))
        np.testing.assert_allclose(layer.get_value(), below.get_value() / (sizes if divisor is None else divisor))
        assert (layer.get_size() == sizes).all() == (not trainable)


# --- shared and recurrent ---------------------------------------------------------------------------------
@as_lowered
def test_a_shared_parameter_is_frozen_with_its_owner() -> None:
    net = Net(BATCH, seed=1)
    data = MemoryDataLayer(net, (6,))
    first = FullyConnectedLayer(net, data, 6)
    second = FullyConnectedLayer(net, first, 6, weights=first.weights)
    net.compile(threads=1)
    solver = SGD(net, 0.1)

    def run() -> dict[str, np.ndarray]:
        before = net.state_dict()
        net.set_batch(VECTORS[:BATCH])
        net.forward()
        second.set_grad(np.ones((BATCH, 6)))
        net.clear_grad()
        net.backward()
        solver.step()
        return before

    names = ("fully_connected1.weights", "fully_connected1.bias", "fully_connected2.bias")
    first.trainable = False
    same(net, run(), *names[:2])
    with pytest.raises(DataError, match=r"frozen: fully_connected1\.weights; net"):
        second.get_grad_weights()
    first.trainable, second.trainable = True, False
    before = run()
    same(net, before, names[2])
    # The gradient that comes through the layer that is frozen, and shares it, counts.
    grad, inputs = np.ones((BATCH, 6)), first.get_value()
    through = grad @ before[names[0]]
    wanted = grad.T @ inputs + through.T @ VECTORS[:BATCH]
    np.testing.assert_allclose(first.get_grad_weights(), wanted, rtol=1e-4, atol=1e-5)


@as_lowered
def test_recurrent_layers() -> None:
    """All steps have the parameters of the layer, and are frozen with it; what is before it trains through it."""
    net = Net(2, seed=1)
    words, label = MemoryDataLayer(net, (5,), dtype="int32", below=9), MemoryDataLayer(net, (1,))
    rows = EmbeddingLayer(net, words, 9, 4)
    top = LSTMLayer(net, LSTMLayer(net, rows, 3, name="inner"), 3, False, name="last")
    SoftmaxLossLayer(net, FullyConnectedLayer(net, top, 3), label)
    net.compile(threads=1)
    solver = SGD(net, 0.5)
    for frozen in (("inner",), ("embedding1", "inner"), ("embedding1",), ("last",)):
        net.unfreeze("*")
        net.freeze(*frozen)
        before = net.state_dict()
        net.set_batch([[1, 2, 3, 4, 5], [8, 7, 6, 5, 4]], [0, 2])
        net.forward()
        net.clear_grad()
        net.backward()
        solver.step()
        same(net, before, *(f"{name}.*" for name in frozen))


# --- back and forth ---------------------------------------------------------------------------------------
def test_going_back_and_forth_compiles_nothing_and_loses_nothing() -> None:
    """The net that is frozen and thawed is to the bit one that has never been: data, seeds, views, moments."""
    net, other = residual_net(), residual_net()
    solver, its_solver = Adam(net, 0.01), Adam(other, 0.01)
    for each, own in ((net, solver), (other, its_solver)):
        step(each, own)
    weights, images = net["conv2"].get_weights_view(), net["data1"].get_value_view()
    compiled = 0
    for round_ in range(2):
        net.freeze("conv*")
        net.test()
        net.freeze("*")
        net.forward()
        net.unfreeze("*")
        net.forward()
        assert round_ == 0 or len(net.session._reports) == compiled
        compiled = len(net.session._reports)
    net.load_state_dict(other.state_dict())  # running statistics have seen more batches
    for start in (1, 2):
        step(net, solver, start)
        step(other, its_solver, start)
    for name, values in {**other.state_dict(), **its_solver.state().arrays}.items():
        assert {**net.state_dict(), **solver.state().arrays}[name].tobytes() == values.tobytes(), name
    np.testing.assert_array_equal(weights, other["conv2"].get_weights())
    np.testing.assert_array_equal(images, IMAGES[2:6])
    images[...] = IMAGES[:BATCH]
    weights *= 2
    net.freeze("conv*")
    net.forward()
    np.testing.assert_array_equal(net["data1"].get_value(), IMAGES[:BATCH])
    np.testing.assert_array_equal(net["conv2"].get_weights(), weights)


BLOCKED = """
def forward(s, target):
    if s.loops("update"):  # where the weights train
        s.tile("weights", 0, 4)
        s.tile("grad_weights", 0, 4)
    s.default("forward")
"""


@pytest.mark.parametrize("first", ["thawed", "frozen"])
def test_parameters_may_be_laid_out_differently(first: str, tmp_path: Path) -> None:
    """Values, views of both kinds, what a solver keeps, and elements of a state for each item."""
    (tmp_path / "mine.py").write_text(BLOCKED)

    def declared(recipe: bool) -> Net:
        net = small_net(compiled=False)
        if recipe:
            net.use_recipe("fully_connected", tmp_path / "mine.py")
            if first == "frozen":
                net.freeze("fc1")
        net.compile(threads=1)
        return net

    net, other = declared(True), declared(False)
    solver, its_solver = Adam(net, 0.01, epsilon=1e-4), Adam(other, 0.01, epsilon=1e-4)
    view, part = net["fc1"].get_weights_view(), net["fc2"].get_weights_view()[1:]
    layouts = set()
    for number, frozen in enumerate((first == "frozen", first != "frozen", True, False, False)):
        for each, own in ((net, solver), (other, its_solver)):
            (each.freeze if frozen else each.unfreeze)("fc1")
            step(each, own, number)
        layouts.add(net.executable.buffers["fc1.weights"].layout)
        np.testing.assert_allclose(view, other["fc1"].get_weights(), rtol=0, atol=1e-4)
        np.testing.assert_array_equal(view, net["fc1"].get_weights())
        np.testing.assert_array_equal(part, net["fc2"].get_weights()[1:])
        view *= 0.5  # counts from the next run on
        other["fc1"].set_weights(other["fc1"].get_weights() * 0.5)
        part += 0.125
        other["fc2"].set_weights(other["fc2"].get_weights() + np.array([[0], *[[0.125]] * 4]))
    assert len(layouts) == 2
    for name, values in {**other.state_dict(), **its_solver.state().arrays}.items():
        ours = {**net.state_dict(), **solver.state().arrays}[name]
        # Roundings of a gradient that is 0, of a bias before a norm, are divided by an epsilon of 1e-4.
        np.testing.assert_allclose(ours, values, rtol=0, atol=1e-4, err_msg=name)


class LeakyNeuron(Neuron):
    """A state for each item."""

    h = State("n", "c")

    def forward(self) -> None:
        self.h = 0.5 * self.h + self.input
        self.value = self.h


@as_lowered
def test_a_state_with_elements_for_each_item() -> None:
    """Of all items, also where the batch before was a smaller one."""
    net = Net(BATCH, seed=1)
    below = FullyConnectedLayer(net, MemoryDataLayer(net, (6,)), 3)
    layer = net.add_ensemble(ActivationEnsemble(LeakyNeuron, (3,), ("c",)))
    net.add_one_to_one_connections(below, layer)
    net.compile(threads=1)
    layer.set_h(np.arange(12).reshape(4, 3))
    net.set_batch(VECTORS[:2])
    net.freeze(below)
    net.forward()
    wanted = np.arange(12).reshape(4, 3) * 1.0
    wanted[:2] = 0.5 * wanted[:2] + below.get_value()
    net.set_batch(VECTORS[:BATCH])
    np.testing.assert_allclose(layer.get_h(), wanted, rtol=1e-6)


@as_lowered
def test_memory_is_shared_by_what_is_frozen_at_different_times() -> None:
    net = small_net()
    step(net)
    arrays = dict(net.executable.arrays)
    for frozen in (("fc1",), ("fc2",), ("*",)):
        net.unfreeze("*")
        net.freeze(*frozen)
        step(net)
        assert all(arrays[name] is array for name, array in net.executable.arrays.items() if name in arrays)


@as_lowered
def test_a_change_counts_from_the_next_run() -> None:
    """Backward belongs to the forward before; a solver leaves alone what is frozen by then."""
    net = small_net()
    solver, before = SGD(net, 0.1), net.state_dict()
    net.set_batch(VECTORS[:BATCH], LABELS[:BATCH])
    net.forward()
    net.freeze("fc1")
    net.backward()
    assert net["fc1"].get_grad_weights().any()
    solver.step()
    assert (net.state_dict()["fc1.weights"] == before["fc1.weights"]).all()
    net.set_batch(VECTORS[:BATCH], LABELS[:BATCH])
    net.forward()
    net.unfreeze("fc1")
    net.backward()
    solver.step()  # its gradient has not been computed
    assert (net.state_dict()["fc1.weights"] == before["fc1.weights"]).all()
    step(net, solver)
    assert (net.state_dict()["fc1.weights"] != before["fc1.weights"]).any()


@as_lowered
def test_gradients_of_several_batches() -> None:
    """What is thawed among them has only those that came after; what was kept before is not added to."""
    net, other = small_net(), small_net()
    step(net)
    net.freeze("fc1")
    step(net)
    net.unfreeze("fc1")
    net.load_state_dict(other.state_dict())
    for each in (net, other):
        each.set_batch(VECTORS[4:8], LABELS[4:8])
        each.session.executable.arrays["net.step"][0] = 7  # the same random numbers
        each.forward()
        each.backward()
    np.testing.assert_array_equal(net["fc1"].get_grad_weights(), other["fc1"].get_grad_weights())


@as_lowered
def test_smaller_batches() -> None:
    net = small_net()
    solver = SGD(net, 0.1)
    step(net, solver, count=3)
    net.freeze("fc1")  # the last batch was a smaller one
    before = net.state_dict()
    net.forward()
    assert net["fc1"].get_value().shape == (3, 7)
    step(net, solver, count=BATCH)
    step(net, solver, count=3)
    net.unfreeze("fc1")
    net.predict(VECTORS)
    assert (net.state_dict()["fc1.weights"] == before["fc1.weights"]).all()
    step(net, solver, count=3)
    assert (net.state_dict()["fc1.weights"] != before["fc1.weights"]).any()


@as_lowered
def test_gradients_that_the_user_gives() -> None:
    """At a layer before which nothing trains they wait."""
    net = small_net()
    hidden, top = net["relu1"], net["fc2"]
    net.set_batch(VECTORS[:BATCH], LABELS[:BATCH])
    net.forward()
    hidden.set_grad(np.full((BATCH, 7), 3.0))
    net.backward()
    first = net["fc1"].get_grad_weights()
    net.freeze("fc1", "batch_norm1")
    step(net)
    assert top.get_grad_weights().any()
    with pytest.raises(DataError, match=r"nothing in this net computes relu1.grad\n  frozen: batch_norm1.gamma"):
        hidden.set_grad(np.ones((BATCH, 7)))
    net.unfreeze("*")
    net["batch_norm1"].set_running_mean(np.zeros(7))
    net.session.executable.arrays["net.step"][0] = 0
    step(net)
    np.testing.assert_allclose(net["fc1"].get_grad_weights(), first, rtol=0, atol=1e-4)


@as_lowered
def test_freezing_between_calls_of_fit_and_in_a_callback() -> None:
    net = small_net()
    solver, before = SGD(net, 0.1, momentum=0.9), net.state_dict()
    net.freeze("fc1", "batch_norm1")
    net.fit(VECTORS, LABELS, solver=solver, epochs=2, progress=False, validation=(VECTORS, LABELS))
    same(net, before, "fc1.*", "batch_norm1.*")

    def thaw(run: Any) -> None:
        if run.epoch == 0:
            net.unfreeze("*")

    net.fit(VECTORS, LABELS, solver=solver, epochs=1, progress=False, callbacks=thaw)
    same(net, before, "fc1.*", "batch_norm1.*")  # thawed after its end
    net.fit(VECTORS, LABELS, solver=solver, epochs=1, progress=False)
    same(net, before)


@as_lowered
def test_gradients_of_data_pass_what_is_frozen() -> None:
    net = small_net(("*",), compiled=False)
    net.force_backward = True
    net.compile(threads=1)
    step(net)
    assert net["data1"].get_grad().any()
    assert not any(buffer.role == "param_grad" for buffer in net.executable.buffers.values())
    assert net.check_gradients(directions=1).gradients  # of what is frozen, too


def test_a_net_that_cannot_be_compiled_again_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    step(net)
    net.freeze("fc1")
    with monkeypatch.context() as patched:
        patched.setattr("latte.compiling.planning", lambda *_: (_ for _ in ()).throw(TrainingError("no plan")))
        with pytest.raises(TrainingError, match="with what is frozen now: no plan"):
            net.forward()
    net.unfreeze("fc1")
    step(net)
    assert net["fc1"].get_grad_weights().any()


# --- kept -------------------------------------------------------------------------------------------------
def _deep_copied(net: Net, _: Path) -> Net:
    return copy.deepcopy(net)


def _pickled(net: Net, _: Path) -> Net:
    return pickle.loads(pickle.dumps(net))


def _saved(net: Net, folder: Path) -> Net:
    net.save(folder / "net")
    other = small_net()
    other.load(folder / "net")
    return other


@as_lowered
@pytest.mark.parametrize("keep", [_deep_copied, _pickled, _saved])
def test_what_is_frozen_is_kept(keep: Callable[[Net, Path], Net], tmp_path: Path) -> None:
    net = small_net()
    step(net)
    net.freeze("fc1", "batch_norm1", "fc2.bias")
    net.unfreeze("fc1.bias")
    other = keep(net, tmp_path)  # also where nothing has run since
    assert not other["fc1"].trainable and other["fc2"].trainable
    solver, before = SGD(other, 0.1), other.state_dict()
    step(other, solver)
    same(other, before, "fc1.weights", "batch_norm1.*", "fc2.bias")
    other.unfreeze("*")
    assert not net["fc1"].trainable


@as_lowered
def test_a_solver_goes_on_with_what_has_been_frozen(tmp_path: Path) -> None:
    """Nothing is saved of what has never been trained; what is thawed goes on with its moments, to the last bit."""
    net = small_net(("fc1",))
    solver = Adam(net, 0.01)
    step(net, solver)
    assert not any("fc1" in name for name in solver.state().arrays)
    net.unfreeze("fc1")
    net.freeze("fc2")
    step(net, solver)
    net.save(tmp_path / "net", solver)
    other = small_net()
    its_solver = Adam(other)
    step(other, its_solver)
    other.load(tmp_path / "net", its_solver)
    for each, own in ((net, solver), (other, its_solver)):
        each.unfreeze("*")
        step(each, own, 4)
    for name, values in {**net.state_dict(), **solver.state().arrays}.items():
        assert {**other.state_dict(), **its_solver.state().arrays}[name].tobytes() == values.tobytes(), name
    assert its_solver.state().settings["skipped"] == {"fc1.weights": 1, "fc1.bias": 1, "fc2.weights": 1, "fc2.bias": 1}


@as_lowered
def test_summary_tells_what_is_frozen() -> None:
    net = small_net(("fc1", "batch_norm1.gamma"), compiled=False)
    for found in (net.summary(), (net.compile(threads=1), net.summary())[1]):
        assert found.frozen == 7 * 6 + 7 + 7
        rows = {row.name: row.cells[4] for row in found.layers}
        assert rows["fc1"] == "49 frozen" and rows["batch_norm1"] == "14 (7 frozen)" and rows["fc2"] == "40"
        assert "103 (56 frozen)" in str(found) and json.loads(found.to_json())["frozen"] == 56
