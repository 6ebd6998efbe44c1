"""Memory shared by liveness: poisoned where it is dead, the results are those of a net in which nothing shares."""

import copy
import ctypes
import gc
import json
import re
import resource
import weakref

import numpy as np
import pytest
from resnet import resnet

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConcatLayer,
    ConvLayer,
    DropoutLayer,
    EmbeddingLayer,
    FullyConnectedLayer,
    GELULayer,
    GlobalMeanPoolingLayer,
    LayerNormLayer,
    LSTMLayer,
    MaxPoolingLayer,
    MeanPoolingLayer,
    MemoryDataLayer,
    Net,
    PositionwiseLinearLayer,
    ReLULayer,
    ResidualSumLayer,
    ScaledDotProductAttentionLayer,
    SigmoidLayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.compiling import DoesNotTrain
from latte.ensemble import Ensemble
from latte.errors import DataError, DeclarationError, DoesNotFit
from latte.neuron import State, zeros
from latte.planning.memory import Span, placed, spans_of
from latte.planning.uses import Use
from latte.runtime.executable import Executable
from latte.solver import SGD
from tests.lowered import lowered
from tests.poison import run_poisoned


# --- spans and places ---------------------------------------------------------------------------------------
def use(touched, read=(), whole=()):
    return Use("layer", "forward", frozenset(touched), frozenset(read), frozenset(whole))


def spans(storage, *uses):
    found = spans_of(uses, storage, 64, [number for number, each in enumerate(uses) if storage in each.touched])
    return None if found is None else [(span.first, span.last) for span in found]


def test_a_span_goes_from_what_sets_a_storage_to_its_last_reader():
    uses = [use("a", (), "a"), use("ab", "a", "b"), use("c", (), "c"), use("ac", "ac"), use("c", "c")]
    assert spans("a", *uses) == [(0, 3)]
    assert spans("b", *uses) == [(1, 1)]
    assert spans("c", *uses) == [(2, 4)]


def test_a_storage_that_is_set_anew_has_several_spans():
    assert spans("a", use("a", (), "a"), use("a", "a"), use("b"), use("a", (), "a"), use("a", "a")) == [(0, 1), (3, 4)]


def test_a_storage_that_is_set_in_part_lives_on():
    part = use("a")  # sets some elements
    assert spans("a", use("a", (), "a"), part, use("a", "a")) == [(0, 2)]
    assert spans("a", part, use("a", "a")) is None  # what it does not set is read as it was before
    assert spans("a", part) == [(0, 0)]


def test_what_is_read_before_anything_sets_it_does_not_share():
    assert spans("a", use("a", "a"), use("a", (), "a")) is None


@pytest.mark.parametrize("seed", range(20))
def test_storage_that_lives_at_one_time_has_no_byte_in_common(seed):
    generator = np.random.default_rng(seed)
    made = []
    for number in range(40):
        first = int(generator.integers(0, 30))
        made.append(
            Span(f"s{number}", first, first + int(generator.integers(0, 8)), 64 * int(generator.integers(1, 9)))
        )
    done = placed(made)
    assert sorted((s.storage, s.first, s.last, s.nbytes) for s in done) == sorted(
        (s.storage, s.first, s.last, s.nbytes) for s in made
    )
    for number, one in enumerate(done):
        assert one.offset % 64 == 0
        assert not any(one.meets(other) and one.overlaps(other) for other in done[number + 1 :])
    bound = max(sum(s.nbytes for s in made if s.first <= at <= s.last) for at in range(40))
    assert max(s.offset + s.nbytes for s in done) <= 1.5 * bound


# --- nets ---------------------------------------------------------------------------------------------------
def chain(batch_size=3, **options):
    """Convolutions, norms, dropout, pooling with padded channels and ragged sizes; gradients of data."""
    net = Net(batch_size, seed=4, **options)
    net.force_backward = True
    image, label = MemoryDataLayer(net, (3, 15, 15), name="image"), MemoryDataLayer(net, (1,), name="label")
    layer = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, image, 20, 3, 1, 1)))
    layer = DropoutLayer(net, MaxPoolingLayer(net, layer, 3, 2, 1, clamp=False), 0.3)
    layer = TanhLayer(net, ConvLayer(net, layer, 20, 3, 1, 1))
    layer = SigmoidLayer(net, ConvLayer(net, layer, 33, 1, 1, 0))
    scores = FullyConnectedLayer(net, layer, 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def block(net, source, filters):
    """A convolution, then a residual block."""
    first = ReLULayer(net, ConvLayer(net, source, filters, 3, 1, 1))
    inner = BatchNormLayer(net, ConvLayer(net, first, filters, 3, 1, 1))
    return ReLULayer(net, ResidualSumLayer(net, first, inner))


def small(batch_size=3, **options):
    """A few layers, for what holds of any net."""
    net = Net(batch_size, seed=4, **options)
    image, label = MemoryDataLayer(net, (8, 11, 11), name="image"), MemoryDataLayer(net, (1,), name="label")
    layer = MaxPoolingLayer(net, block(net, image, 32), 3, 2, 1, clamp=False)
    scores = FullyConnectedLayer(net, DropoutLayer(net, layer, 0.3), 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def branches(batch_size=3, **options):
    """A residual block, concatenation, a sum of two branches, a loss of an inner layer."""
    net = Net(batch_size, seed=4, **options)
    image, label = MemoryDataLayer(net, (8, 11, 11), name="image"), MemoryDataLayer(net, (1,), name="label")
    layer = block(net, image, 24)
    side = MeanPoolingLayer(net, layer, 3, 1, 1, clamp=False)
    layer = ConcatLayer(net, [layer, side, ConvLayer(net, layer, 16, 1, 1, 0)])
    early = FullyConnectedLayer(net, GlobalMeanPoolingLayer(net, layer), 10)
    SoftmaxLossLayer(net, early, label).loss_weight = 0.3
    layer = GELULayer(net, ConvLayer(net, layer, 17, 3, 2, 1))
    scores = FullyConnectedLayer(net, layer, 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def sequence(batch_size=3, **options):
    """A recurrent layer, attention, layer norm, embedding."""
    net = Net(batch_size, seed=4, **options)
    words = MemoryDataLayer(net, (7,), dtype="int32", below=30, name="image")
    label = MemoryDataLayer(net, (1,), name="label")
    layer = LSTMLayer(net, EmbeddingLayer(net, words, 30, 32), 40)
    heads = [PositionwiseLinearLayer(net, layer, 40) for _ in range(3)]
    layer = LayerNormLayer(net, ScaledDotProductAttentionLayer(net, *heads, heads=4))
    scores = FullyConnectedLayer(net, layer, 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net


def small_resnet(batch_size=3, **options):
    return resnet(batch_size=batch_size, size=32, classes=10, blocks=(1,), bottleneck=False, seed=4, **options)


NETS = {"chain": chain, "branches": branches, "sequence": sequence, "resnet": small_resnet}


def batch(net, seed=0, items=None):
    generator = np.random.default_rng(seed)
    image = net["image"]
    shape = (items or net.batch_size, *image.shape)
    values = generator.standard_normal(shape) if image.dtype == "float32" else generator.integers(0, 30, shape)
    return values, generator.integers(0, 10, (len(values), 1))


def train(net, steps=3):
    """Everything that some steps, inference and a smaller batch leave: bits to be compared."""
    found = {}
    solver = SGD(net, 0.1, momentum=0.9)
    for step in range(steps):
        net.set_batch(*batch(net, step))
        net.clear_grad()
        net.forward()
        found[f"loss {step}"] = net.loss
        net.backward()
        for name, buffer in net.executable.buffers.items():
            if buffer.role == "param_grad" or name == "image.grad":
                found[f"{name} {step}"] = net.executable.read(name)
        solver.step()
        net.test()
        found[f"test {step}"] = net.loss, net.accuracy
    found |= net.state_dict()
    found["predicted"] = net.predict(batch(net, 5)[0][: net.batch_size])
    return found


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize("name", NETS)
def test_dead_memory_may_hold_anything(name, monkeypatch):
    """The bits are those of a net in which nothing shares; in less memory, too."""
    apart, shared, less = NETS[name](), NETS[name](), NETS[name](memory="less")
    for net in (apart, shared, less):
        net.compile()
    apart.executable.pin_all()
    assert not apart.executable.memory.overwritten("forward")
    sizes = [net.executable.memory.plan.timelines["training"].size() for net in (shared, less)]
    assert sizes[1] <= sizes[0]
    expected = train(apart)
    monkeypatch.setattr(Executable, "run", run_poisoned)
    for net in (shared, less):
        same(train(net), expected)


def test_nothing_is_shared_where_all_is_kept():
    with lowered():
        net = branches(keep="all")
        net.compile()
    memory = net.executable.memory
    assert not any(line.spans for line in memory.plan.timelines.values())
    assert not memory.overwritten("forward") | memory.overwritten("backward") | memory.overwritten("inference")


def test_less_memory_than_all_storage():
    net = small_resnet()
    net.compile()
    plan = net.executable.memory.plan
    for line in plan.timelines.values():
        assert line.size() <= 1.02 * max(line.live(number) for number in range(len(line.uses)))
    apart = sum(plan.buffers[name].nbytes for name in plan.buffers if plan.shares(name))
    assert plan.timelines["training"].size() < 0.6 * apart
    assert plan.timelines["inference"].size() < 0.2 * apart


def overwritten(net, phase="forward"):
    """A layer whose value is gone after a phase."""
    memory = net.executable.memory
    return next(layer for layer in net.ensembles if f"{layer.name}.value" in memory.overwritten(phase))


def test_an_overwritten_value_is_missing_and_can_be_kept():
    net = small()
    net.compile()
    net.set_batch(*batch(net))
    net.forward()
    layer = overwritten(net)
    with pytest.raises(DataError, match=re.escape(f"{layer.name}.value has been overwritten")) as refused:
        layer.get_value()
    assert f"net.keep({layer.name})" in str(refused.value)
    kept = small()
    kept.keep(kept[layer.name])
    kept.compile()
    kept.set_batch(*batch(kept))
    kept.forward()
    value = kept[layer.name].get_value()
    assert np.isfinite(value).all() and value.any()
    # A view has memory of its own from then on.
    view = layer.get_value_view()
    net.forward()
    np.testing.assert_allclose(view, value, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(view, layer.get_value())
    held = np.array(view)
    net.backward()
    np.testing.assert_array_equal(view, held)


def test_outputs_losses_and_data_stay():
    net = chain()
    net.compile()
    images, labels = batch(net)
    net.set_batch(images, labels)
    net.forward()
    scores, probabilities = net["fully_connected1"].get_value(), net["softmax_loss1"].get_prob()
    net.backward()
    np.testing.assert_array_equal(net["fully_connected1"].get_value(), scores)
    np.testing.assert_array_equal(net["softmax_loss1"].get_prob(), probabilities)
    np.testing.assert_array_equal(net["image"].get_value(), images.astype(np.float32))
    assert net["image"].get_grad().any()


def test_predict_of_an_inner_layer():
    net, kept = small(), small(keep="all")
    net.compile()
    with lowered():
        kept.compile()
    images = batch(net, items=7)[0]
    for layer in ("batch_norm1", "dropout1"):
        expected = kept.predict(images, layer=layer)
        np.testing.assert_allclose(net.predict(images, layer=layer), expected, rtol=1e-3, atol=1e-4)


def test_backward_twice_computes_forward_again(small_probes):
    """What backward has overwritten is there again, states are as they were, and dropout draws the same numbers."""
    results = []
    for apart in (False, True):
        net = small()
        net.compile()
        if apart:
            net.executable.pin_all()
        net.set_batch(*batch(net))
        net.forward()
        net.backward()
        net.backward()  # gradients of parameters add up
        results.append({n: net.executable.read(n) for n, b in net.executable.buffers.items() if "param" in b.role})
        results[-1] |= net.state_dict()
        if not apart:
            net.timings("backward", repeat=2)
            net.profile(repeat=1)
        results[-1]["after"] = net.predict(batch(net)[0])
    same(*results)


def test_a_gradient_of_ones_own():
    """At an inner layer it compiles the net again; what backward needs is computed again."""
    results = []
    for apart in (False, True):
        net = small()
        net.compile()
        net.set_batch(*batch(net))
        net.forward()
        layer = net["relu2"]
        layer.set_grad(np.ones((net.batch_size, *layer.shape)))
        if apart:
            net.executable.pin_all()
            net.executable.arrays["net.step"][0] = 0  # the same random numbers
            net.forward()
        net.backward()
        results.append({n: net.executable.read(n) for n, b in net.executable.buffers.items() if b.role == "param_grad"})
    same(*results)


def test_copies_and_what_is_written_by_hand():
    net = small()
    net.compile()
    net.set_batch(*batch(net))
    net.forward()
    net.backward()
    again = copy.deepcopy(net)
    same(again.state_dict(), net.state_dict())
    np.testing.assert_array_equal(again["conv1"].get_grad_weights(), net["conv1"].get_grad_weights())
    layer = overwritten(net, "backward")
    values = np.random.default_rng(1).standard_normal((net.batch_size, *layer.shape)).astype(np.float32)
    before = net["conv1"].get_grad_weights()
    layer.set_value(values)
    np.testing.assert_array_equal(layer.get_value(), values)
    np.testing.assert_array_equal(net["conv1"].get_grad_weights(), before)


def test_all_memory_is_shown():
    """Looking at one array keeps that one."""
    net = small()
    net.compile()
    net.set_batch(*batch(net))
    layer = overwritten(net)
    shown = net.buffers[f"{layer.name}value"]
    net.forward()
    value = layer.get_value()
    assert value.any()
    np.testing.assert_array_equal(np.sort(shown, axis=None), np.sort(value, axis=None))
    assert len(net.buffers) == len(net.executable.buffers)


# --- what is allocated when ---------------------------------------------------------------------------------
def test_memory_is_allocated_when_it_is_needed():
    """Gradients at the first training step; that of training takes the place of the first arena, of inference, which
    is given back."""
    net = small()
    net.compile()
    memory = net.executable.memory
    large = [n for n, b in net.executable.buffers.items() if b.role == "param_grad" and b.nbytes >= 4096]
    assert large

    def allocated():
        return [name for name in large if memory.known(name) is not None]

    net.predict(batch(net)[0])
    net.set_batch(*batch(net))
    net.test()
    inference, training = (memory.plan.timelines[line].size() for line in ("inference", "training"))
    assert not allocated() and memory.own.region.arena.total_bytes == inference
    assert not net["conv1"].get_grad_weights().any()  # zeros, without memory
    first = weakref.ref(memory.own.region.arena._region)
    net.forward()
    gc.collect()
    assert first() is None
    assert not allocated() and memory.own.region.arena.total_bytes == training > inference
    net.backward()
    assert allocated() == large
    assert net["conv1"].get_grad_weights().any()
    net.test()
    assert memory.own.region.arena.total_bytes == training
    assert np.isfinite(net.loss)


# --- less memory --------------------------------------------------------------------------------------------
def deep(**options):
    """Some residual blocks, then layers one after the other."""
    net = Net(4, seed=1, **options)
    image, label = MemoryDataLayer(net, (16, 8, 8), name="image"), MemoryDataLayer(net, (1,), name="label")
    layer = image
    for _ in range(4):
        inner = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, layer, 16, 3, 1, 1)))
        layer = ReLULayer(net, ResidualSumLayer(net, layer, ConvLayer(net, inner, 16, 3, 1, 1)))
    for _ in range(8):
        layer = TanhLayer(net, ConvLayer(net, layer, 16, 3, 1, 1))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 10), label)
    return net


def test_less_memory_than_half():
    with lowered():
        whole, less = deep().memory()["training"], deep(memory="less").memory()["training"]
    assert less.shared < 0.5 * whole.shared


def test_a_state_that_values_depend_on_is_not_computed_again():
    """Who reads it does not run again; backward after backward takes it as it was before forward."""

    def declare(**options):
        net = Net(4, seed=1, **options)
        image, label = MemoryDataLayer(net, (16, 8, 8), name="image"), MemoryDataLayer(net, (1,), name="label")
        layer = ReLULayer(net, ConvLayer(net, image, 16, 3, 1, 1))
        layer = net.add_ensemble(MovingAverage(layer.shape))
        net.add_one_to_one_connections(net["relu1"], layer)
        for _ in range(3):
            layer = TanhLayer(net, ConvLayer(net, layer, 16, 3, 1, 1))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 10), label)
        return net

    results = []
    for options in ({}, {"memory": "less"}, {"keep": "all"}):
        net = declare(**options)
        net.compile()
        for step in range(3):
            net.set_batch(*batch(net, step))
            net.clear_grad()
            net.forward()
            net.backward()
            net.backward()
        found = {n: net.executable.read(n) for n, b in net.executable.buffers.items() if b.role == "param_grad"}
        results.append({**found, "average": net["moving_average1"].get_average()})
    same(results[0], results[1])
    for name, values in results[2].items():  # other chains, other rounding
        np.testing.assert_allclose(results[0][name], values, rtol=1e-3, atol=1e-5)


class MovingAverage(Ensemble):
    """The difference from the mean of all batches so far."""

    kind = "moving_average"
    average = State("c", init=zeros)

    def __init__(self, shape):
        super().__init__(shape=shape, dims=("c", "h", "w"))

    def forward(self, inputs, value, average):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        value[n, c, h, w] = inputs[n, c, h, w] - average[c]
        for c in range(C):
            average[c] = 0.9 * average[c] + 0.1 * inputs[0, c, 0, 0]


@pytest.mark.parametrize("options", [{"keep": "all"}, {"compat": True}])
def test_less_memory_does_not_go_with_all_values(options):
    with pytest.raises(DeclarationError, match="exclude each other"):
        Net(4, memory="less", **options)
    with pytest.raises(DeclarationError, match="memory must be 'less'"):
        Net(4, memory=3)


# --- the report, and what does not fit ----------------------------------------------------------------------
def test_the_report_is_the_same_before_and_after_compiling(monkeypatch):
    net = small()
    with monkeypatch.context() as without:
        without.setattr("swirl.build.jit.compile_unit", None, raising=False)
        without.setattr("latte.runtime.kernels.build", None)
        without.setattr("swirl.run.memory.Arena", None)
        before = net.memory()
    net.compile()
    after = net.memory()
    assert before == after
    training, inference = after["training"], after["inference"]
    assert training.peak == training.kept + training.shared + training.scratch > inference.peak
    assert after.peak >= training.peak and after.fits
    rows = {row.name: row for row in after.layers}
    weights, bias = 32 * 32 * 9 * 4, 32 * 4
    assert rows["conv2"].kept == rows["conv2"].gradients == weights + bias
    assert sum(row.kept + row.gradients for row in after.layers) == training.kept
    text = str(after)
    assert "conv2" in text and "fullest during" in text and "batch size 3" in text
    assert json.loads(after.to_json())["phases"][0]["peak"] == inference.peak


def test_planned_bytes_are_what_is_allocated():
    """All arenas together, page by page, after inference and a step."""
    net = Net(200, seed=4)
    layer = MemoryDataLayer(net, (8, 32, 32), name="image")
    for _ in range(3):
        layer = TanhLayer(net, MeanPoolingLayer(net, layer, 3, 1, 1, clamp=False))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 50), MemoryDataLayer(net, (1,)))
    with lowered():
        net.compile()
    data = batch(net)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what compiling has freed would be taken again
    before = resident()
    net.set_batch(*data)
    net.test()
    net.forward()
    net.backward()
    grown = resident() - before
    assert abs(grown - net.memory().peak) <= 0.05 * net.memory().peak + 4 * 2**20  # a huge page for each arena


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def nothing_compiled(units, *args, **kwargs):
    """In the place of the compiler: fails if it is given anything."""
    raise AssertionError(f"{next(units)} is compiled")


def test_what_does_not_fit_is_refused_with_its_numbers(monkeypatch):
    report = small().memory()
    inference, training = report["inference"].peak, report["training"].peak
    for module in ("latte.compiling", "latte.runtime.memory", "latte.explain.memory"):
        monkeypatch.setattr(f"{module}.machine_bytes", lambda: inference - 1)
    monkeypatch.setattr("latte.runtime.kernels.build", nothing_compiled)
    with pytest.raises(DoesNotFit, match=r"inference needs \d+\.\d\d GB: .* kept, .* shared; the machine has"):
        small().compile()
    assert not small().memory().fits
    monkeypatch.undo()
    for module in ("latte.compiling", "latte.runtime.memory", "latte.explain.memory"):
        monkeypatch.setattr(f"{module}.machine_bytes", lambda: training - 1)
    net = small()
    with pytest.warns(DoesNotTrain, match="a training step needs"):
        net.compile()
    net.set_batch(*batch(net))
    net.test()
    allocated = net.executable.memory.own.region.arena.total_bytes
    with pytest.raises(DoesNotFit, match="memory='less'"):
        net.forward()
    assert net.executable.memory.own.region.arena.total_bytes == allocated
    net.test()
