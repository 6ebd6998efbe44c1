"""Calls of helper functions become what these compute, and NumPy arrays constants; every refusal with its line."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import numpy as np
import pytest

import latte.neuron
from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.frontend.lower import lower
from latte.neuron import Field, Neuron, Param, eachindex, exp, log1p, ones, rand
from swirl.errors import BodyError, LatteError
from swirl.ir.execute import execute
from swirl.ir.nest import Program
from swirl.ir.operations import FUNCTIONS
from swirl.ir.validate import validate

TAPS = np.array([0.25, 0.5, 0.25])
TABLE = np.array([[1, 2, 4], [3, 5, 7]])
ORDER = np.array([2, 0, 1], np.int64)
OFFSET = np.array(3.0)
WORDS = np.array(["a", "b"])
LONG = np.array([2**40])
x = np.ones(3)  # a dimension of the neurons below has this name


def layer(kind: type, source: tuple[int, ...] = (3, 4), mapping: Callable | None = None) -> Ensemble:
    net = Net(2, seed=7)
    data = MemoryDataLayer(net, source)
    if issubclass(kind, Neuron):
        ensemble = net.add_ensemble(Ensemble(kind, source, ("y", "x")[: len(source)], name="layer"))
        net.add_one_to_one_connections(data, ensemble)
        return ensemble
    ensemble = net.add_ensemble(kind(shape=source, dims=("a", "b")[: len(source)], name="layer"))
    net.add_connections(data, ensemble, lambda *indices: None)
    return ensemble


def lowered(kind: type, **options: object) -> Program:
    return validate(lower(layer(kind, **options), "forward", batch_size=2))


# --- helpers ------------------------------------------------------------------------------------------------
def softplus(x, beta=1.0):
    """Without overflow."""
    return max(x, 0.0) + log1p(exp(-abs(beta * x))) / beta


def greatest(inputs, n, c):
    W = inputs.shape[2]
    found = inputs[n, c, 0]
    for w in range(1, W):
        found = max(found, inputs[n, c, w])
    return found


def scaled_by(scale):
    def helper(x):
        return scale * x

    return helper


double, triple = scaled_by(2.0), scaled_by(3.0)


def square_plus(t, n):
    t = t * t
    t += n
    return t


def twice_and_thrice(t):
    u = 2.0 * t
    return u, u + t


def put(target, n, c, w, t):
    """It writes before it reads what it was given."""
    target[n, c, w] = 100.0
    target[n, c, w] = t


def weighted(t):
    total = 0.0
    for i in range(3):
        total += x[i] * t
    return total


def sum_of(block):
    total = 0.0
    for i in eachindex(block):
        total += block[i]
    return total


def shown(program: Program) -> str:
    return "\n".join(nest.body_text for nest in program.nests)


def test_an_expression_takes_the_place_of_its_call() -> None:
    class Soft(Neuron):
        def forward(self):
            self.value = self.input * softplus(self.input, beta=0.5)

    assert shown(lowered(Soft, source=(4,))) == inspect.cleandoc("""
        for n in range(2):
            for y in range(4):
                value[n, y] = inputs[n, y] * (max(0.0, inputs[n, y]) + log1p(exp(-abs(0.5 * inputs[n, y]))) / 0.5)
    """)


def test_statements_come_before_and_loops_keep_their_names() -> None:
    class Normed(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    largest = greatest(inputs, n, c)
                    for w in range(4):
                        value[n, c, w] = inputs[n, c, w] - largest

    by_hand = inspect.cleandoc("""
        for n in range(2):
            for c in range(3):
                largest: float32 = inputs[n, c, 0]
                for w in range(1, 4):
                    largest = max(largest, inputs[n, c, w])
                for w in range(4):
                    value[n, c, w] = inputs[n, c, w] - largest
    """)
    assert shown(lowered(Normed)) == by_hand


def test_a_helper_knows_its_own_surroundings() -> None:
    """Where the neuron has a dimension ``x``, the helper has an array."""

    class Weighted(Neuron):
        def forward(self):
            self.value = weighted(self.input) + x

    text = shown(lowered(Weighted))
    assert "total += x_1[i] * inputs[n, y, x]" in text and "value[n, y, x] = total + float32(x)" in text


def test_blocks_are_arguments() -> None:
    class Sum(Neuron):
        def forward(self):
            self.value = sum_of(self.inputs)

    net = Net(1)
    ensemble = net.add_ensemble(Ensemble(Sum, (2,), dims=("j",), name="layer"))
    net.add_connections(MemoryDataLayer(net, (4, 3)), ensemble, lambda j: (range(2 * j, 2 * j + 2), range(3)))
    assert shown(lower(ensemble, "forward", batch_size=1)) == inspect.cleandoc("""
        for n in range(1):
            for j in range(2):
                total: float32 = 0.0
                for i0 in range(2):
                    for i1 in range(3):
                        total += inputs[n, j * 2 + i0, i1]
                value[n, j] = total
    """)


def test_bodies_may_call_every_function() -> None:
    assert set(FUNCTIONS) - {"pow"} <= set(latte.neuron.__all__)


def test_random_arguments_are_drawn_once() -> None:
    class Noise(Neuron):
        def forward(self):
            self.value = softplus(rand())

    assert shown(lowered(Noise)).count("rand(") == 1


# --- what Python computes -----------------------------------------------------------------------------------
class Base(Ensemble):
    def forward(self, inputs, value):
        N, C, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for w in range(W):
                    value[n, c, w] = self.shift(inputs[n, c, w])

    def shift(self, t):
        return t + 1.0


class AsPython:
    """Bodies that Python runs as they are."""

    class Methods(Base):
        def forward(self, inputs, value):
            super().forward(inputs, value)
            for n in range(inputs.shape[0]):
                for w in range(4):
                    value[n, 0, w] += self.constant(w) + Base.shift(self, inputs[n, 1, w])

        def shift(self, t):
            return 2.0 * super().shift(t)

        @staticmethod
        def constant(w):
            return 2 * w + 1

    class Closures(Ensemble):
        def forward(self, inputs, value):
            scale = 5.0
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        value[n, c, w] = double(inputs[n, c, w]) + triple(scale) * double(triple(w))

    class Assigned(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        t = inputs[n, c, w]
                        value[n, c, w] = square_plus(t, n) + square_plus(t - 1.0, w) * t

    class Several(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    a = inputs[n, c, 0]
                    b = inputs[n, c, 1]
                    b, a = twice_and_thrice(a + b)
                    a, b = twice_and_thrice(a)
                    value[n, c, 0], value[n, c, 1] = twice_and_thrice(a - b)
                    value[n, c, 2] = a
                    value[n, c, 3] = b

    class Writes(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        value[n, c, w] = inputs[n, c, w]
                        put(value, n, c, w, value[n, c, w])

    class Conditions(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    for w in range(4):
                        t = inputs[n, c, w]
                        u = greatest(inputs, n, c - 1) if c > 0 else square_plus(t, 1)
                        u += greatest(inputs, n, c) if t > 0.0 else (square_plus(t, 2) if t > -1.0 else -t)
                        value[n, c, w] = u + (t and square_plus(t, 3)) + (t or square_plus(t, 4))
                        if greatest(inputs, n, c) > 1.0 and square_plus(t, w) > 2.0:
                            value[n, c, w] += square_plus(value[n, c, w], c)

    class UnderACondition(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    if inputs[n, c, 0] > 0.0:
                        value[n, c, 0] = greatest(inputs, n, c)
                    else:
                        value[n, c, 1] = greatest(inputs, n, 2 - c)

    class Nested(Ensemble):
        def forward(self, inputs, value):
            for n in range(2):
                for c in range(3):
                    value[n, c, 3] = greatest(inputs, n, c) - greatest(inputs, 1 - n, c) * square_plus(
                        greatest(inputs, n, 0), square_plus(1.0, 2)
                    )

    class Arrays(Ensemble):
        def __init__(self, **options):
            super().__init__(**options)
            self.gains = np.arange(8.0).reshape(2, 4)

        def forward(self, inputs, value):
            for n in range(TABLE.shape[0]):
                for c in range(len(ORDER.shape) + 2):
                    for w in range(4):
                        value[n, c, w] = TAPS[c] * inputs[n, c, w] + TABLE[n, c] + TABLE[1, 2] * self.gains[n, w]
                        value[n, c, w] += inputs[n, ORDER[c], w] - OFFSET


@pytest.mark.parametrize("name", [name for name in vars(AsPython) if not name.startswith("_")])
def test_bodies_compute_what_python_does(name: str) -> None:
    ensemble = layer(getattr(AsPython, name))
    program = validate(lower(ensemble, "forward", batch_size=2))
    inputs = np.random.default_rng(0).integers(-3, 4, (2, 3, 4)).astype(np.float32)
    expected = np.zeros_like(inputs)
    ensemble.forward(inputs, expected)
    arrays = {
        key: np.zeros(buffer.shape, {"int32": np.int32}.get(buffer.dtype, np.float32))
        for key, buffer in program.buffers.items()
    }
    for key, declared in ensemble.declared_fields().items():
        if declared.role == "constant" and key in arrays:
            arrays[key] = ensemble.initial(key)
    arrays["inputs"][...] = inputs
    execute(program, arrays)
    np.testing.assert_array_equal(arrays["value"], expected)


# --- refusals -----------------------------------------------------------------------------------------------
def endless(t):
    return t * endless(t - 1.0)  # here: recursion


def ping(t):
    return pong(t)


def pong(t):
    u = ping(t)  # here: ping-pong
    return u


def early(t):
    if t > 0.0:
        return t  # here: early
    return -t


def spins(t):
    while t > 1.0:  # here: while
        t = t / 2.0
    return t


def nothing(t):
    t = 2.0 * t


def undefined(t):
    return t * unknown  # noqa: F821  # here: undefined


def decorated(function):
    @wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


@decorated
def wrapped(t):
    return t


def several(*numbers):  # here: stars
    return numbers[0]


REFUSED = {
    "recursion": (lambda: endless, "endless.* calls itself .endless → endless.", "a for over a range"),
    "ping-pong": (lambda: ping, "ping calls itself .ping → pong → ping.", "a for over a range"),
    "early": (lambda: early, "early returns before its end", "return it at the end"),
    "while": (lambda: spins, r"a body cannot contain while .called in .*test_helpers.py:\d+", "an if inside"),
    "stars": (lambda: several, "several may have plain arguments only", ""),
    "undefined": (lambda: undefined, "'unknown' is not defined.*called in", "numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_helpers_name_their_line(name: str) -> None:
    get, message, way_out = REFUSED[name]
    helper = get()

    class Calls(Neuron):
        def forward(self):
            self.value = helper(self.input)

    with pytest.raises(BodyError, match=message) as caught:
        lowered(Calls)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith(f"# here: {name}"))
    assert caught.value.location == f"{__file__}:{line}"
    assert way_out in str(caught.value)


class RefusedCalls:
    class Nothing(Neuron):
        """nothing\\(self.input\\): nothing returns nothing"""

        def forward(self):
            self.value = nothing(self.input)  # here

    class Arguments(Neuron):
        """softplus\\(\\): missing a required argument: 'x'"""

        def forward(self):
            self.value = softplus()  # here

    class Keywords(Neuron):
        """got an unexpected keyword argument 'gamma'"""

        def forward(self):
            self.value = softplus(self.input, gamma=1.0)  # here

    class Stars(Neuron):
        """a body cannot contain \\*"""

        def forward(self):
            self.value = softplus(*self.input)  # here

    class Inside(Ensemble):
        """put writes elements of fields, and is called inside of an expression"""

        def forward(self, inputs, value):
            value[0, 0, 0] = 1.0 + put(value, 0, 0, 0, 1.0)  # here

    class TooFew(Neuron):
        """3 names for 2 values"""

        def forward(self):
            a, b, c = twice_and_thrice(self.input)  # here
            self.value = a + b + c

    class NoMethod(Neuron):
        """a body cannot call self.helper"""

        def forward(self):
            self.value = self.helper(self.input)  # here

    class Whole(Neuron):
        """TAPS is a whole array"""

        def forward(self):
            self.value = TAPS * self.input  # here

    class Outside(Neuron):
        """TAPS\\[3\\].* cannot be computed: index 3 is out of bounds"""

        def forward(self):
            self.value = TAPS[3] * self.input  # here

    class Written(Neuron):
        """TAPS\\[0\\] is a constant, which no phase can write"""

        def forward(self):
            self.value = self.input
            TAPS[0] = 1.0  # here

    class Subscript(Ensemble):
        """ORDER\\[w\\] is below 3, dimension . of inputs has 2 elements"""

        def forward(self, inputs, value):
            for w in range(3):
                value[0, 0, w] = inputs[ORDER[w], 0, w]  # here

    class Text(Neuron):
        """WORDS is an array of <U1"""

        def forward(self):
            for i in range(2):
                self.value += WORDS[i]  # here

    class Long(Neuron):
        """LONG holds integers of more than 32 bits"""

        def forward(self):
            for i in range(1):
                self.value += LONG[i]  # here

    class FloorOfFloats(Neuron):
        """self.input // 2.0: // and % are for integers"""

        def forward(self):
            self.value = 1.0 + self.input // 2.0  # here

    class Updated(Neuron):
        """self.count /= 2: self.count is int32"""

        count = Field(dtype="int32")

        def forward(self):
            self.count /= 2  # here
            self.value = self.count


@pytest.mark.parametrize("name", [name for name in vars(RefusedCalls) if not name.startswith("_")])
def test_refused_calls_name_their_line(name: str) -> None:
    kind = getattr(RefusedCalls, name)
    lines, first = inspect.getsourcelines(kind)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(BodyError, match=kind.__doc__) as caught:
        lowered(kind)
    assert caught.value.location == f"{__file__}:{line}"


def test_a_decorated_helper_is_refused() -> None:
    class Calls(Neuron):
        def forward(self):
            self.value = wrapped(self.input)

    with pytest.raises(BodyError, match="has a decorator"):
        lowered(Calls)


def test_an_array_with_the_name_of_a_field() -> None:
    gamma = np.ones(3)

    class Calls(Neuron):
        gamma = Param("y", init=ones)

        def forward(self):
            self.value = gamma[0] * self.input

    with pytest.raises(LatteError, match="the array gamma has the name of a field"):
        lowered(Calls)


def test_a_dimension_hides_an_array() -> None:
    class Calls(Neuron):
        def forward(self):
            self.value = self.input * x  # the loop's

    assert "inputs[n, y, x] * float32(x)" in shown(lowered(Calls))
