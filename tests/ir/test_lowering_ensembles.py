"""Ensemble bodies (explicit loops over whole arrays) become one nest for each statement."""

import inspect

import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.frontend.lower import lower
from latte.neuron import Field, Param, State, eachindex, float32, ones, rand, sqrt
from swirl.errors import BodyError, DeclarationError
from swirl.ir.validate import validate

WEIGHT = 0.25


def lowered(kind, source=(3, 4), phase="forward", training=True):
    """The program of an ensemble-level class after a data layer of the same shape."""
    net = Net(2, seed=7)
    data = MemoryDataLayer(net, source)
    ensemble = net.add_ensemble(kind(shape=source, dims=("a", "b")[: len(source)], name="layer"))
    net.add_connections(data, ensemble, lambda *indices: None)
    return validate(lower(ensemble, phase, batch_size=2, training=training))


def test_nests_zeroing_and_aliases() -> None:
    class Center(Ensemble):
        total = Field("a")

        def forward(self, inputs, value, total):
            N, C, W = inputs.shape
            for c in range(C):
                for n in range(N):
                    for w in range(W):
                        total[c] += inputs[n, c, w]
            for batch in range(N):
                for c in range(C):
                    for w in range(W):
                        value[batch, c, w] = inputs[batch, c, w] - total[c] / (N * W)

    program = lowered(Center)
    assert program.text == inspect.cleandoc("""
        def layer_forward_0(total):
            for c in range(3):
                total[c] = 0.0

        def layer_forward_1(total, inputs):
            for c in range(3):
                for n in range(2):
                    for w in range(4):
                        total[c] += inputs[n, c, w]

        def layer_forward_2(value, total, inputs, of_items):
            for batch in range(2):
                for c in range(3):
                    for w in range(4):
                        value[batch, c, w] = inputs[batch, c, w] - total[c] / float32(of_items[0])
    """)
    assert program.buffers["of_items"].formula == "(items * 4)"
    assert program.aliases == {
        "_neuron_index_0": ("n", "batch"),
        "_neuron_index_1": ("c",),
        "_neuron_index_2": ("w",),
    }


def test_locals_across_statements_are_temporary_buffers() -> None:
    class Norm(Ensemble):
        def forward(self, inputs, value):
            total = 0.0
            count = 0
            for n, c, w in eachindex(inputs):
                square = inputs[n, c, w] ** 2
                total += square
                count += 1
            scale = 1.0 / sqrt(total / float32(count))
            for n, c, w in eachindex(inputs):
                square = inputs[n, c, w] * scale
                value[n, c, w] = square

    program = lowered(Norm)
    assert [nest.body_text for nest in program.nests] == [
        "total[0] = 0.0",
        "count[0] = 0",
        inspect.cleandoc("""
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        square: float32 = inputs[n, c, w] * inputs[n, c, w]
                        total[0] += square
                        count[0] += 1
        """),
        "scale[0] = 1.0 / sqrt(total[0] / float32(count[0]))",
        inspect.cleandoc("""
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        square: float32 = inputs[n, c, w] * scale[0]
                        value[n, c, w] = square
        """),
    ]
    assert program.buffers["total"].name == "layer.total"
    assert program.buffers["total"].role == "temporary"
    assert program.buffers["count"].dtype == "int32"
    assert program.aliases["__unique_loopvar0"] == ("n", "c", "w")


def test_training_and_inference() -> None:
    class Average(Ensemble):
        mean = State("a")
        weight = Param("a", init=ones)

        def forward(self, inputs, value, mean):
            if self.training:
                for n, c, w in eachindex(inputs):
                    mean[c] = (1.0 - WEIGHT) * mean[c] + WEIGHT * inputs[n, c, w]
            for n, c, w in eachindex(inputs):
                value[n, c, w] = inputs[n, c, w] - mean[c] * self.weight[c]

    assert len(lowered(Average).nests) == 2
    inference = lowered(Average, training=False)
    assert len(inference.nests) == 1
    assert "value[n, c, w] = inputs[n, c, w] - mean[c] * weight[c]" in inference.text
    assert inference.buffers["mean"].role == "state"


def test_bounds_steps_triangles_and_indirect_subscripts() -> None:
    class Odd(Ensemble):
        order = State("a", dtype="int32", below=3)

        def forward(self, inputs, value, order):
            N, C, W = inputs.shape
            for n in range(N):
                for c in range(1, C, 2):
                    for w in range(min(c, W)):
                        value[n, c, w + c // 2] = inputs[n, order[c], w]

    assert lowered(Odd).nests[-1].body_text == inspect.cleandoc("""
        for n in range(2):
            for c in range(1, 3, 2):
                for w in range(c):
                    value[n, c, w + c // 2] = inputs[n, order[c], w]
    """)


def test_hand_written_backward_clears_its_own_fields_only() -> None:
    class ByHand(Ensemble):
        total = Field("a")
        slope = Field("a")

        def forward(self, inputs, value, total):
            for n, c, w in eachindex(inputs):
                total[c] += inputs[n, c, w]
                value[n, c, w] = inputs[n, c, w]

        def backward(self, grad, grad_inputs, total, slope):
            for n, c, w in eachindex(grad):
                slope[c] += grad[n, c, w] * total[c]
                grad_inputs[n, c, w] += slope[c]

    program = lowered(ByHand, phase="backward")
    assert [nest.arguments for nest in program.nests] == [
        ("slope",),
        ("grad", "total", "slope", "grad_inputs"),
    ]


# --- refusals -----------------------------------------------------------------------------------------------
class Refused:
    """Each class: a body whose line with the comment ``# here`` is refused with the docstring's words."""

    class Slice(Ensemble):
        """is a slice"""

        def forward(self, inputs, value):
            for n in range(2):
                value[n, :] = inputs[n, :]  # here

    class Whole(Ensemble):
        """inputs is a whole array"""

        def forward(self, inputs, value):
            for n, c, w in eachindex(value):
                value[n, c, w] = inputs * 2.0  # here

    class Unknown(Ensemble):
        """the argument 'mean' of .* is not a field"""

        def forward(self, inputs, value, mean):  # here
            pass

    class NotAnArgument(Ensemble):
        """total is not an argument"""

        total = Field("a")

        def forward(self, inputs, value):
            for n, c, w in eachindex(value):
                value[n, c, w] = total[c]  # noqa: F821  # here

    class Rank(Ensemble):
        """inputs has 3 dimensions \\(2, 3, 4\\) and is given 2 subscripts"""

        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    value[n, c, 0] = inputs[n, c]  # here

    class Extent(Ensemble):
        """value\\[n, c, w\\]: c runs from 0 to 3, the extent is 3"""

        def forward(self, inputs, value):
            for n in range(2):
                for c in range(4):
                    for w in range(3):
                        value[n, c, w] = 0.0  # here

    class Negative(Ensemble):
        """value\\[n, 0, -1\\]: -1 is outside, the extent is 4"""

        def forward(self, inputs, value):
            for n in range(2):
                value[n, 0, -1] = inputs[n, 0, 0]  # here

    class Data(Ensemble):
        """is float32, and subscripts are integers"""

        def forward(self, inputs, value):
            for n, c, w in eachindex(value):
                value[n, c, w] = inputs[n, c, inputs[n, c, 0]]  # here

    class Local(Ensemble):
        """the bound of a loop must be affine"""

        def forward(self, inputs, value):
            t = 3
            for n in range(2):
                t += 1
                for w in range(t):  # here
                    value[n, 0, w] = inputs[n, 0, w]

    class Shadow(Ensemble):
        """'value' has the name of a field"""

        def forward(self, inputs, value):
            value = 3.0  # here
            for n in range(2):
                inputs[n, 0, 0] = value

    class WritesInputs(Ensemble):
        """inputs\\[n, 0, 0\\] is the value of data1, which this layer reads and cannot write"""

        def forward(self, inputs, value):
            for n in range(2):
                inputs[n, 0, 0] += 1.0  # here
                value[n, 0, 0] = inputs[n, 0, 0]

    class WritesGradients(Ensemble):
        """grad_inputs\\[n, 0, 0\\] is a gradient, which forward cannot write"""

        def forward(self, inputs, value, grad_inputs):
            for n in range(2):
                value[n, 0, 0] = inputs[n, 0, 0]
                grad_inputs[n, 0, 0] = 0.0  # here

    class WritesTheSeed(Ensemble):
        """seed\\[0\\] is the net's own"""

        def forward(self, inputs, value, seed):
            seed[0] = 1  # here

    class Unpack(Ensemble):
        """4 names for 3 values"""

        def forward(self, inputs, value):
            N, C, H, W = inputs.shape  # noqa: RUF059  # here

    class BeforeAssigned(Ensemble):
        """total may be read before it is assigned"""

        def forward(self, inputs, value):
            for n in range(2):  # here
                total += inputs[n, 0, 0]  # noqa: F821, F841

    class Appends(Ensemble):
        """a body cannot contain 'value.append\\(1.0\\)'"""

        def forward(self, inputs, value):
            value.append(1.0)  # here

    class Numpy(Ensemble):
        """a body cannot call inputs.sum"""

        def forward(self, inputs, value):
            value[0, 0, 0] = inputs.sum()  # here


@pytest.mark.parametrize("name", [name for name in vars(Refused) if not name.startswith("_")])
def test_refused_bodies_name_their_line(name: str) -> None:
    kind = getattr(Refused, name)
    lines, first = inspect.getsourcelines(kind)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(BodyError, match=kind.__doc__) as caught:
        lowered(kind)
    assert caught.value.location == f"{__file__}:{line}"


def test_padding_is_for_neurons() -> None:
    class Plain(Ensemble):
        def forward(self, inputs, value):
            pass

    net = Net(2)
    data = MemoryDataLayer(net, 4)
    ensemble = net.add_ensemble(Plain(shape=4))
    with pytest.raises(DeclarationError, match="explicit loops"):
        net.add_connections(data, ensemble, lambda i: range(i), padding=(1,))


def test_random_numbers_count_items_first() -> None:
    class Noise(Ensemble):
        def forward(self, inputs, value):
            N, A, B = inputs.shape
            for a in range(A):
                for n in range(N):
                    for b in range(B):
                        value[n, a, b] = rand() * inputs[n, a, b]

    assert "rand(seed[0], step[0], 256, first_item[0] * 12 + (n * 12 + a * 4 + b))" in lowered(Noise).text


def test_random_numbers_of_no_item_are_the_same_in_all_processes() -> None:
    class Noise(Ensemble):
        noise = Field("a")

        def forward(self, inputs, value, noise):
            N, A, B = inputs.shape
            for a in range(A):
                noise[a] = rand()
            for n in range(N):
                for a in range(A):
                    for b in range(B):
                        value[n, a, b] = noise[a] * inputs[n, a, b]

    program = lowered(Noise)
    assert "rand(seed[0], step[0], 256, a)" in program.text
    assert "net.first_item" not in {buffer.name for buffer in program.buffers.values()}
