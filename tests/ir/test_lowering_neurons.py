"""Neuron bodies become loop nests: the text for small cases, and every refusal with its line."""

import inspect
import re

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.frontend.lower import lower
from latte.neuron import (
    INFINITY,
    BiasNeuron,
    Field,
    Neuron,
    Param,
    State,
    WeightedNeuron,
    eachindex,
    enumerate_dim,
    exp,
    fmax,
    rand,
    range_dim,
    stop_gradient,
)
from swirl.errors import BodyError, DeclarationError
from swirl.ir.validate import validate

SCALE = 3.0


def lowered(neuron, shape=(4,), source=(4,), mapping=None, dims=None, phase="forward", **options):
    """The program of one ensemble after a data layer; one to one unless there is a mapping."""
    net = Net(2, seed=7)
    data = MemoryDataLayer(net, source)
    ensemble = net.add_ensemble(Ensemble(neuron, shape, dims or ("k", "y", "x")[: len(shape)], name="layer"))
    if mapping is None:
        net.add_one_to_one_connections(data, ensemble)
    else:
        net.add_connections(data, ensemble, mapping, **options)
    program = lower(ensemble, phase, batch_size=2)
    if "stop_gradient" not in program.text:
        validate(program)
    return program


def body_of(program, index=-1):
    """The printed statements of a nest, inside its implicit loops."""
    lines = program.nests[index].body_text.splitlines()
    depth = next(i for i, line in enumerate(lines) if not re.match(r" *for (n|k|c|y|x) in", line))
    return [line[4 * depth :] for line in lines[depth:]]


def test_convolution() -> None:
    net = Net(2)
    conv = ConvLayer(net, MemoryDataLayer(net, (3, 5, 5)), 4, kernel=3, stride=1, pad=1)
    program = validate(lower(conv, "forward", batch_size=2))
    assert program.name == "conv1.forward"
    assert program.text == inspect.cleandoc("""
        def conv1_forward_0(value, weights, bias, inputs):
            for n in range(2):
                for k in range(4):
                    for y in range(5):
                        for x in range(5):
                            value[n, k, y, x] = bias[k, 0]
                            for c in range(3):
                                for ky in range(3):
                                    for kx in range(3):
                                        if y + ky >= 1 and y + ky < 6 and (x + kx >= 1) and (x + kx < 6):
                                            value[n, k, y, x] += weights[k, c, ky, kx] * inputs[n, c, y + ky - 1, x + kx - 1]
    """)  # noqa: E501
    assert program.aliases == {
        "_neuron_index_0": ("n",),
        "_neuron_index_1": ("k",),
        "_neuron_index_2": ("y",),
        "_neuron_index_3": ("x",),
        "__unique_loopvar0": ("c", "ky", "kx"),
    }
    assert {name: buffer.name for name, buffer in program.buffers.items()} == {
        "value": "conv1.value",
        "weights": "conv1.weights",
        "bias": "conv1.bias",
        "inputs": "data1.value",
    }


def test_without_padding_there_are_no_conditions_and_one_sided_padding_has_one() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (3, 5, 6))
    assert "if" not in lower(ConvLayer(net, data, 4, pad=0), "forward", batch_size=2).text
    # 6 + 2 columns in windows of 3 at distance 2: the last zero on the right is never read.
    text = lower(ConvLayer(net, data, 4, stride=2, pad=(0, 1)), "forward", batch_size=2).text
    assert "if x * 2 + kx >= 1:" in text


def test_batch_size_is_an_argument() -> None:
    net = Net(64)
    relu = ReLULayer(net, MemoryDataLayer(net, 5))
    program = lower(relu, "forward", batch_size=7)
    assert program.buffers["value"].shape == program.buffers["inputs"].shape == (7, 5)
    assert program.nests[0].body_text == inspect.cleandoc("""
        for n in range(7):
            for c in range(5):
                value[n, c] = max(0.0, inputs[n, c])
    """)


def test_clamped_pooling() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (3, 5, 4))
    pool = MaxPoolingLayer(net, data, kernel=2, stride=2, ceil_mode=True, clamp=True)
    program = validate(lower(pool, "forward", batch_size=2))
    assert body_of(program)[-3:] == [
        "for j in range(2):",
        "    for k in range(2):",
        "        value[n, c, y, x] = max(value[n, c, y, x], inputs[n, c, min(4, y * 2 + j), x * 2 + k])",
    ]


def test_clipped_windows_become_loops_with_variable_bounds() -> None:
    class Sum(Neuron):
        def forward(self):
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.inputs[i]

    program = lowered(Sum, (5,), (5,), lambda k: range(max(0, k - 1), min(5, k + 2)))
    assert body_of(program) == [
        "value[n, k] = 0.0",
        "for i in range(min(5, k + 2) - max(0, k - 1)):",
        "    value[n, k] += inputs[n, max(0, k - 1) + i]",
    ]


def test_padded_read_outside_a_product_becomes_a_select() -> None:
    class Smooth(Neuron):
        def forward(self):
            self.value = self.inputs[0] - self.inputs[1]
            self.value += exp(self.inputs[2])
            self.value += 2.0 * -self.inputs[2] / 3.0

    program = lowered(Smooth, (5,), (5,), lambda k: range(k, k + 3), padding=(1,))
    assert body_of(program) == [
        "value[n, k] = (inputs[n, k - 1] if k >= 1 else 0.0) - inputs[n, k]",
        "value[n, k] += exp(inputs[n, k + 1] if k < 4 else 0.0)",
        "if k < 4:",
        "    value[n, k] += 2.0 * -inputs[n, k + 1] / 3.0",
    ]


def test_two_sources() -> None:
    class Add(Neuron):
        def forward(self):
            self.value = self.input + SCALE * self.inputs1[0]

    net = Net(2)
    first, second = MemoryDataLayer(net, 4), MemoryDataLayer(net, 8)
    ensemble = net.add_ensemble(Ensemble(Add, 4, ("k",)))
    net.add_one_to_one_connections(first, ensemble)
    net.add_connections(second, ensemble, lambda k: range(2 * k, 2 * k + 1))
    program = validate(lower(ensemble, "forward", batch_size=2))
    assert body_of(program) == ["value[n, k] = inputs[n, k] + 3.0 * inputs1[n, k * 2]"]
    assert program.buffers["inputs1"].name == "data2.value"


def test_the_same_source_twice_is_one_buffer() -> None:
    class Gate(Neuron):
        def forward(self):
            self.value = self.input * self.input1

    net = Net(2)
    data = MemoryDataLayer(net, 4)
    ensemble = net.add_ensemble(Ensemble(Gate, 4, ("k",)))
    net.add_one_to_one_connections(data, ensemble)
    net.add_one_to_one_connections(data, ensemble)
    program = lower(ensemble, "forward", batch_size=2)
    assert body_of(program) == ["value[n, k] = inputs[n, k] * inputs[n, k]"]
    assert set(program.buffers) == {"value", "inputs"}


def test_reshape_reads_through_the_view() -> None:
    class Copy(Neuron):
        def forward(self):
            self.value = self.inputs[0]

    program = lowered(Copy, (6,), (2, 3), lambda k: range(k, k + 1), reshape=(6,))
    assert body_of(program) == ["value[n, k] = inputs[n, k // 3, k % 3]"]


def test_locals_selects_constants_and_types() -> None:
    class Busy(Neuron):
        hits = Field("n", "k", dtype="int32")
        scale = Param("k")

        def forward(self):
            slope = 0.1 * SCALE
            best = -INFINITY
            where = 0
            for i in eachindex(self.inputs):
                v = self.inputs[i] * i
                if v > best:
                    best = v
                    where = i
            self.hits = where
            self.value = best if best > 0 else slope * best + self.scale / 2
            self.value = fmax(self.value, 1) ** 2 + abs(best) ** 0.5 + best**3

    assert body_of(lowered(Busy, (4,), (4,), lambda k: range(4))) == [
        "best: float32 = -1e309",
        "where: int32 = 0",
        "for i in range(4):",
        "    v: float32 = inputs[n, i] * float32(i)",
        "    if v > best:",
        "        best = v",
        "        where = i",
        "hits[n, k] = where",
        f"value[n, k] = best if best > 0.0 else {0.1 * SCALE!r} * best + scale[k] / 2.0",
        "value[n, k] = pow(max(1.0, value[n, k]), 2.0) + sqrt(abs(best)) + pow(best, 3.0)",
    ]


def test_a_local_of_both_branches_is_declared_before_them() -> None:
    class Branches(Neuron):
        def forward(self):
            if self.input > 0.0:
                t = self.input
            else:
                t = 2.0 * self.input
            self.value = t

    assert body_of(lowered(Branches))[:2] == ["t: float32 = 0.0", "if inputs[n, k] > 0.0:"]


def test_a_local_with_a_buffer_s_name_is_renamed() -> None:
    class Clash(Neuron):
        weights = Param("k", shape=(1,))

        def forward(self):
            weights = self.weights[0] * 2.0
            self.value = weights * self.input

    assert body_of(lowered(Clash)) == [
        "weights_1: float32 = weights[k, 0] * 2.0",
        "value[n, k] = weights_1 * inputs[n, k]",
    ]


def test_training_is_a_constant() -> None:
    class Phase(Neuron):
        def forward(self):
            if self.training:
                self.value = rand() * self.input
            else:
                self.value = stop_gradient(self.input)

    net = Net(3)
    data = MemoryDataLayer(net, (4, 5))
    ensemble = net.add_ensemble(Ensemble(Phase, (4, 5), ("k", "y")))
    net.add_one_to_one_connections(data, ensemble)
    training = validate(lower(ensemble, "forward", batch_size=3))
    assert body_of(training) == [
        "value[n, k, y] = rand(seed[0], step[0], 256, first_item[0] * 20 + (n * 20 + k * 5 + y)) * inputs[n, k, y]"
    ]
    assert (training.buffers["seed"].name, training.buffers["seed"].role) == ("net.seed", "scalar")
    inference = lower(ensemble, "forward", batch_size=3, training=False)
    assert body_of(inference) == ["value[n, k, y] = stop_gradient(inputs[n, k, y])"]


def test_what_accumulates_starts_at_zero() -> None:
    class Naive(Neuron):
        count = Field("k")
        memory = State("k")

        def forward(self):
            for i in eachindex(self.inputs):
                self.value += self.inputs[i]
            self.count += 1.0
            self.memory += self.value

    program = lowered(Naive, (4,), (4,), lambda k: range(4))
    assert program.nests[0].body_text == "for k in range(4):\n    count[k] = 0.0"
    assert body_of(program)[0] == "value[n, k] = 0.0"
    assert "memory[k] = 0.0" not in program.text


def test_one_dimension_of_the_window_at_a_time() -> None:
    class Rows(Neuron):
        def forward(self):
            self.value = 0.0
            for ky in range_dim(self.inputs, 1):
                for kx in enumerate_dim(self.inputs, 2):
                    self.value += self.inputs[0, ky, kx]

    def mapping(k, y, x):
        return range(k, k + 1), range(y, y + 2), range(x, x + 2)

    assert body_of(lowered(Rows, (2, 3, 3), (2, 4, 4), mapping))[1:3] == [
        "for ky in range(2):",
        "    for kx in range(2):",
    ]


def test_ready_made_neurons_in_an_object_array() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (6,))
    neurons = np.empty((3,), dtype="object")
    for i in range(3):
        neurons[i] = WeightedNeuron(np.full(6, i, np.float32), np.zeros(6, np.float32))
    ensemble = net.init_ensemble(neurons)
    net.add_connections(data, ensemble, lambda i: range(6))
    fields = ensemble.fields()
    assert fields["weights"].shape == fields["grad_weights"].shape == (3, 6)
    assert (ensemble.initial("weights") == np.arange(3)[:, None]).all()
    bias = net.init_activation_ensemble(
        np.array([BiasNeuron(np.zeros(1), np.zeros(1)) for _ in range(3)], dtype=object), ensemble
    )
    assert isinstance(bias, ActivationEnsemble)
    text = validate(lower(ensemble, "forward", batch_size=2)).nests[0].body_text
    assert text.replace("_neuron_index_0", "n").replace("_neuron_index_1", "k") == inspect.cleandoc("""
        for n in range(2):
            for k in range(3):
                value[n, k] = 0.0
                for i in range(6):
                    value[n, k] += inputs[n, i] * weights[k, i]
    """)
    assert (
        "inputs[_neuron_index_0, _neuron_index_1] + bias[_neuron_index_1, 0]"
        in lower(bias, "forward", batch_size=2).text
    )


def test_arrays_are_shared_where_neurons_hold_the_same_object() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (2, 3))
    neurons = np.empty((4, 5), dtype="object")
    for k in range(4):
        weights, grad = np.full((2, 3), k, np.float32), np.zeros((2, 3), np.float32)
        for x in range(5):
            neurons[k, x] = WeightedNeuron(weights, grad)
    ensemble = net.init_ensemble(neurons)
    net.add_connections(data, ensemble, lambda k, x: (range(2), range(3)))
    assert ensemble.fields()["weights"].shape == (4, 2, 3)
    shared = net.init_ensemble(_filled((3, 3), WeightedNeuron(np.ones((2, 3)), np.ones((2, 3)))))
    assert shared.fields()["weights"].shape == (2, 3)


def _filled(shape, neuron):
    neurons = np.empty(shape, dtype="object")
    neurons[...] = neuron
    return neurons


def test_numbers_of_instances_are_constants_unless_they_are_written() -> None:
    class Counting(Neuron):
        batch_fields = [*Neuron.batch_fields, "kept"]

        def __init__(self):
            super().__init__()
            self.slope = 0.5
            self.total = 0.0
            self.kept = 0

        def forward(self):
            self.total += self.slope
            self.value = self.total * self.input
            self.value = self.value + self.kept

    program = lowered(Counting())
    assert body_of(program) == [
        "kept[n, k] = 0",
        "total[k] += 0.5",
        "value[n, k] = total[k] * inputs[n, k]",
        "value[n, k] += float32(kept[n, k])",
    ]
    assert program.buffers["total"].shape == (4,)
    assert program.buffers["kept"].shape == (2, 4)


def test_numbers_that_differ_between_neurons_are_fields() -> None:
    class Scale(Neuron):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self):
            self.value = self.factor * self.input

    net = Net(2)
    data = MemoryDataLayer(net, 3)
    ensemble = net.init_activation_ensemble(np.array([Scale(0.5 * i) for i in range(3)], dtype=object), data)
    assert (ensemble.initial("factor") == [0, 0.5, 1]).all()
    assert "factor[_neuron_index_1] * inputs" in lower(ensemble, "forward", batch_size=2).text


def test_conditions_keep_subscripts_inside() -> None:
    class Edge(Neuron):
        weights = Param("k", shape=2)

        def forward(self):
            self.value = 0.0
            for i in range(3):
                if i < 2:
                    self.value += self.weights[i]
                self.value += self.weights[i] if i < 2 else self.input

    assert "weights[k, i] if i < 2 else inputs[n, k]" in lowered(Edge).text


def test_hand_written_backward_and_update() -> None:
    class ByHand(Neuron):
        weights = Param("k", shape=(4,))

        def forward(self):
            self.value = 0.0
            for i in eachindex(self.inputs):
                self.value += self.weights[i] * self.inputs[i]

        def backward(self):
            for i in eachindex(self.grad_inputs):
                self.grad_inputs[i] += self.grad * self.weights[i]

        def update_internal(self):
            for i in eachindex(self.inputs):
                self.grad_weights[i] += self.grad * self.inputs[i]

    mapping = lambda k: range(4)  # noqa: E731
    backward = lowered(ByHand, (3,), (4,), mapping, phase="backward")
    assert body_of(backward) == ["for i in range(4):", "    grad_inputs[n, i] += grad[n, k] * weights[k, i]"]
    assert backward.buffers["grad_inputs"].name == "data1.grad"
    update = lowered(ByHand, (3,), (4,), mapping, phase="update_internal")
    assert update.name == "layer.update"
    assert update.buffers["grad_weights"].role == "param_grad"


def test_line_numbers_are_those_of_the_file() -> None:
    class Lines(Neuron):
        def forward(self):
            self.value = 0.0
            self.value += self.input

    first = lowered(Lines).nests[0].body[0].body[0].body[0]
    assert first.lineno == Lines.forward.__code__.co_firstlineno + 1


def test_a_phase_nobody_wrote() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, 3)
    assert lower(data, "forward", batch_size=2).nests == ()
    fc = FullyConnectedLayer(net, data, 2)
    assert not fc.has_phase("backward")
    with pytest.raises(DeclarationError, match="no backward of its own"):
        lower(fc, "backward", batch_size=2)
    with pytest.raises(DeclarationError, match="unknown phase 'sideways'"):
        lower(fc, "sideways", batch_size=2)


# --- refusals -----------------------------------------------------------------------------------------------
class Refused:
    """Each class: a body whose line with the comment ``# here`` is refused with the docstring's words."""

    class Print(Neuron):
        """print in a body"""

        def forward(self):
            print(self.value)  # here

    class While(Neuron):
        """cannot contain while"""

        def forward(self):
            while self.value < 3:  # here
                self.value += 1.0

    class Try(Neuron):
        """cannot contain try"""

        def forward(self):
            self.value = 0.0
            try:  # noqa: SIM105  # here
                self.value = 1.0
            except ValueError:
                pass

    class Return(Neuron):
        """cannot contain return"""

        def forward(self):
            return self.value  # here

    class Listed(Neuron):
        """cannot contain a list"""

        def forward(self):
            self.value = [1.0, 2.0]  # here

    class Call(Neuron):
        """cannot call len_of"""

        def forward(self):
            self.value = len_of(self.input)  # noqa: F821  # here

    class Keyword(Neuron):
        """cannot call max"""

        def forward(self):
            self.value = max(self.input, 0.0, key=abs)  # here

    class Field(Neuron):
        """has no field 'wieghts'"""

        def forward(self):
            self.value = self.wieghts[0]  # here

    class Subscripts(Neuron):
        """given 2 subscripts"""

        def forward(self):
            self.value = self.inputs[0, 0]  # here

    class Outside(Neuron):
        """self.weights\\[2\\]: 2 is outside, the extent is 2"""

        weights = Param("k", shape=2)

        def forward(self):
            self.value = self.weights[2]  # here

    class OutsideLoop(Neuron):
        """runs from 0 to 2, the extent is 2"""

        weights = Param("k", shape=2)

        def forward(self):
            for i in range(3):
                self.value += self.weights[i]  # here

    class Slice(Neuron):
        """is a slice"""

        def forward(self):
            self.value = self.inputs[:]  # here

    class Data(Neuron):
        """the bound of a loop must be affine"""

        def forward(self):
            for _ in range(self.input):  # here
                self.value += 1.0

    class Local(Neuron):
        """the bound of a loop must be affine"""

        def forward(self):
            t = self.input + 1.0
            for _ in range(t):  # here
                self.value += self.input

    class Counted(Neuron):
        """the bound of a loop must be affine"""

        count = State(dtype="int32")

        def forward(self):
            for i in range(2):
                for _ in range(i, self.count):  # here
                    self.value += self.input

    class Quadratic(Neuron):
        """a subscript must be affine in loop variables"""

        weights = Param("k", shape=9)

        def forward(self):
            for i in range(3):
                self.value += self.weights[i * i]  # here

    class Shadow(Neuron):
        """'k' has the name of a dimension"""

        def forward(self):
            for k in range(3):  # here
                self.value += k

    class Hides(Neuron):
        """hides the loop around it"""

        def forward(self):
            for i in range(3):
                for i in range(2):  # here
                    self.value += i

    class Unassigned(Neuron):
        """t may be read before it is assigned"""

        def forward(self):
            if self.input > 0.0:
                t = 1.0
            self.value = t  # here

    class Undefined(Neuron):
        """'undefined' is not defined"""

        def forward(self):
            self.value = undefined  # noqa: F821  # here

    class Whole(Neuron):
        """'self.inputs is all that the neuron reads'|self.inputs"""

        def forward(self):
            self.value = self.inputs + 1.0  # here

    class Operation(Neuron):
        """only \\+=, -=, \\*= and /= are known"""

        def forward(self):
            self.value **= 2  # here

    class FloatIntoInteger(Neuron):
        """is a float where int32 is needed"""

        mask = __import__("latte.neuron").neuron.Field(dtype="int32")

        def forward(self):
            self.mask = self.input * 2.0  # here

    class DividesInteger(Neuron):
        """self.count is int32|count\\[.*\\] is int32, the result is a number of another type"""

        count = Field(dtype="int32")

        def forward(self):
            self.count = 3
            self.count /= 2  # here

    class AddsToTruthValue(Neuron):
        """is bool, the result is a number of another type"""

        mask = Field(dtype="bool")

        def forward(self):
            self.mask = self.input > 0
            self.mask += 1  # here

    class LargeInteger(Neuron):
        """3000000000 does not fit an int32"""

        def forward(self):
            self.value = int(self.input) + 3000000000  # here

    class LargeIntegerOfALocal(Neuron):
        """2147483648 does not fit an int32"""

        def forward(self):
            t = int(self.input)
            if t < 0:
                t = 2**31  # here
            self.value = t

    class HugeInteger(Neuron):
        """a whole number of 401 digits does not fit a float"""

        def forward(self):
            self.value = 10**400  # here

    class LongLoop(Neuron):
        """range\\(2 \\*\\* 31\\) passes 2,147,483,647"""

        def forward(self):
            for _ in range(2**31):  # here
                self.value += 1

    class WritesInput(Neuron):
        """self.input is the value of data1, which this layer reads and cannot write"""

        def forward(self):
            self.input = max(self.input, 0.0)  # here
            self.value = self.input

    class AddsToInputs(Neuron):
        """self.inputs\\[0\\] is the value of data1"""

        def forward(self):
            self.value = 0.0
            if self.inputs[0] > 0.0:
                self.inputs[0] += 1.0  # here

    class WritesParameter(Neuron):
        """self.weights\\[0\\] is a Param, which training adjusts"""

        weights = Param("k", shape=2)

        def forward(self):
            self.weights[0] = min(self.weights[0], 1.0)  # here
            self.value = self.weights[0] * self.input

    class WritesGradient(Neuron):
        """self.grad is a gradient, which forward cannot write"""

        def forward(self):
            self.value = self.input
            self.grad = 1.0  # here

    class WritesGradientOfInput(Neuron):
        """self.grad_input is a gradient"""

        def forward(self):
            self.value = self.input
            self.grad_input += 1.0  # here

    class ReadsGradient(Neuron):
        """self.grad is a gradient, which forward runs before"""

        def forward(self):
            self.value = self.input + self.grad  # here

    class Zero(Neuron):
        """divides by zero"""

        def forward(self):
            self.value = 1.0 / 0  # here

    class Unpacks(Neuron):
        """only constants can be unpacked"""

        def forward(self):
            a, b = self.input, 1.0  # here
            self.value = a + b

    class LoopElse(Neuron):
        """cannot have an else"""

        def forward(self):
            for i in range(3):  # here
                self.value += i
            else:
                self.value = 0.0

    class Iterates(Neuron):
        """cannot run over zip"""

        def forward(self):
            for i, j in zip(range(3), range(3)):  # noqa: B905  # here
                self.value += i * j

    class AssignsLoopVariable(Neuron):
        """loop variable i cannot be assigned"""

        def forward(self):
            for i in range(3):
                i = 2  # here
                self.value += i


@pytest.mark.parametrize("name", [name for name in vars(Refused) if not name.startswith("_")])
def test_refused_bodies_name_their_line(name: str) -> None:
    neuron = getattr(Refused, name)
    lines, first = inspect.getsourcelines(neuron)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(BodyError, match=neuron.__doc__) as caught:
        lowered(neuron, (4,), (4,), None if name != "Whole" else lambda k: range(4))
    assert caught.value.location == f"{__file__}:{line}"


class WrittenBackward:
    """Each class: a hand-written phase whose line with the comment ``# here`` is refused with the docstring's words."""

    class Inputs(Neuron):
        """self.input is the value of data1, which this layer reads and cannot write"""

        def forward(self):
            self.value = self.input

        def backward(self):
            self.input = 0.0  # here

    class Parameter(Neuron):
        """self.weights\\[0\\] is a Param, which training adjusts: no phase can write it"""

        weights = Param("k", shape=2)

        def forward(self):
            self.value = self.input * self.weights[0]

        def update(self):
            self.weights[0] -= 0.1 * self.grad * self.input  # here


@pytest.mark.parametrize("name", [name for name in vars(WrittenBackward) if not name.startswith("_")])
def test_refused_phases_name_their_line(name: str) -> None:
    neuron = getattr(WrittenBackward, name)
    lines, first = inspect.getsourcelines(neuron)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(BodyError, match=neuron.__doc__) as caught:
        lowered(neuron, phase="update" if hasattr(neuron, "update") else "backward")
    assert caught.value.location == f"{__file__}:{line}" and caught.value.way_out


def test_no_source() -> None:
    namespace = {"Neuron": Neuron}
    exec("class Bare(Neuron):\n    def forward(self):\n        self.value = self.input\n", namespace)
    with pytest.raises(BodyError, match=r"source of Bare\.forward is not available") as caught:
        lowered(namespace["Bare"])
    assert "in a file" in str(caught.value.way_out)


def test_decorated_and_odd_methods() -> None:
    def same(function):
        return function

    class Decorated(Neuron):
        @same
        def forward(self):
            self.value = 0.0

    class Default(Neuron):
        def forward(self, scale=2.0):
            self.value = scale

    with pytest.raises(BodyError, match="has a decorator"):
        lowered(Decorated)
    with pytest.raises(DeclarationError, match="takes scale, but of a neuron it takes only self"):
        lowered(Default)


def test_rand_needs_constant_loops() -> None:
    class Random(Neuron):
        def forward(self):
            self.value = 0.0
            for _ in eachindex(self.inputs):
                self.value += rand()

    with pytest.raises(BodyError, match="whose length is not constant"):
        lowered(Random, (5,), (5,), lambda k: range(max(0, k - 1), min(5, k + 2)))
