"""Derived programs against central differences in float64: many ways to write a forward program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from latte.autodiff import Derived, derive
from swirl.analysis import footprints, sets
from swirl.errors import DerivativeError
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate

STEP = 1e-6
# Central differences: the truncation is STEP² times a third derivative, rounding 1e-16 / STEP: both below.
BOUND = 1e-6


def arrays_for(program: Program, known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Known arrays copied, all others filled with what a program must not read before it writes."""
    return {
        name: known[name].copy()
        if name in known
        else np.full(buffer.shape, np.nan if buffer.dtype == "float64" else 7, buffer.dtype)
        for name, buffer in program.buffers.items()
    }


def run(program: Program, known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = arrays_for(program, known)
    execute(program, arrays, arithmetic="float64")
    return {**known, **arrays}


class Case:
    """One forward program: its text, the shapes of its buffers, and which of them are differentiated."""

    def __init__(
        self,
        source: str,
        shapes: dict[str, tuple[int, ...]],
        inputs: str,
        params: str = "",
        positive: str = "",
        constant: str = "",
        add_to: str = "",
        recompute: str = "",
    ):
        self.source = source.replace("float32", "float64")
        self.shapes, self.inputs, self.params = shapes, inputs.split(), params.split()
        self.positive, self.constant, self.add_to = positive.split(), constant.split(), add_to.split()
        self.recompute = recompute.split()
        self.buffers = {
            name: Buffer(self.storage(name), shape, "float64", self.role(name)) for name, shape in shapes.items()
        }

    def storage(self, name: str) -> str:
        return f"source{self.inputs.index(name)}.value" if name in self.inputs else f"layer.{name}"

    def role(self, name: str) -> str:
        if name in self.params:
            return "param"
        if name in self.constant:
            return "state"
        return "value" if name == "value" or name in self.inputs else "temporary"

    def program(self, source: str | None = None) -> Program:
        return parse_program(self.source if source is None else source, self.buffers, name="layer.forward")

    def derive(self) -> Derived:
        return derive(
            self.program(), inputs=self.inputs, params=self.params, add_to=self.add_to, recompute=self.recompute
        )

    def start(self) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(1)
        known = {}
        for name in (*self.inputs, *self.params, *self.constant):
            values = generator.normal(size=self.shapes[name])
            known[name] = np.abs(values) + 0.5 if name in self.positive else values
        return known


BATCH_NORM = """
for c in range(3):
    mean[c] = 0.0
for n in range(2):
    for c in range(3):
        for h in range(2):
            for w in range(2):
                mean[c] += inputs[n,c,h,w]
for c in range(3):
    mean[c] = mean[c] / (2*2*2)
for c in range(3):
    var[c] = 0.0
for n in range(2):
    for c in range(3):
        for h in range(2):
            for w in range(2):
                var[c] += (inputs[n,c,h,w]-mean[c])*(inputs[n,c,h,w]-mean[c])
for c in range(3):
    var[c] = var[c] / (2*2*2)
for n in range(2):
    for c in range(3):
        for h in range(2):
            for w in range(2):
                x_hat[n,c,h,w] = (inputs[n,c,h,w]-mean[c])/sqrt(var[c]+0.001)
                value[n,c,h,w] = gamma[c]*x_hat[n,c,h,w] + beta[c]
for c in range(3):
    running[c] = 0.9*running[c] + 0.1*mean[c]
"""
BATCH_NORM_SHAPES: dict[str, tuple[int, ...]] = {
    "value": (2, 3, 2, 2),
    "inputs": (2, 3, 2, 2),
    "x_hat": (2, 3, 2, 2),
    "mean": (3,),
    "var": (3,),
    "gamma": (3,),
    "beta": (3,),
    "running": (3,),
}
LAYER_NORM = """
for n in range(3):
    mean: float32 = 0.0
    for i in range(5):
        mean += inputs[n,i]
    mean = mean / 5
    var: float32 = 0.0
    for i in range(5):
        d: float32 = inputs[n,i] - mean
        var += d*d
    rstd: float32 = 1.0 / sqrt(var/5 + 0.001)
    for i in range(5):
        value[n,i] = (inputs[n,i]-mean)*rstd*gamma[i] + beta[i]
"""

CASES = {
    "convolution with stride, dilation, padding": Case(
        """
for n in range(2):
    for k in range(3):
        for y in range(3):
            for x in range(2):
                value[n,k,y,x] = bias[k,0]
                for c in range(2):
                    for ky in range(3):
                        for kx in range(2):
                            if 0 <= 2*y + 2*ky - 1 < 6 and 0 <= 2*x + kx - 1 < 4:
                                value[n,k,y,x] += weights[k,c,ky,kx]*inputs[n,c,2*y+2*ky-1,2*x+kx-1]
""",
        {"value": (2, 3, 3, 2), "inputs": (2, 2, 6, 4), "weights": (3, 2, 3, 2), "bias": (3, 1)},
        "inputs",
        "weights bias",
    ),
    "batch norm": Case(BATCH_NORM, BATCH_NORM_SHAPES, "inputs", "gamma beta", constant="running"),
    "batch norm without x_hat": Case(
        BATCH_NORM.replace("x_hat[n,c,h,w] =", "x_hat: float32 =").replace("x_hat[n,c,h,w]", "x_hat"),
        {key: shape for key, shape in BATCH_NORM_SHAPES.items() if key != "x_hat"},
        "inputs",
        "gamma beta",
        constant="running",
    ),
    "batch norm, second reader": Case(
        BATCH_NORM, BATCH_NORM_SHAPES, "inputs", "gamma beta", constant="running", add_to="inputs"
    ),
    "layer norm": Case(
        LAYER_NORM, {"value": (3, 5), "inputs": (3, 5), "gamma": (5,), "beta": (5,)}, "inputs", "gamma beta"
    ),
    "layer norm, computed again": Case(
        LAYER_NORM,
        {"value": (3, 5), "inputs": (3, 5), "gamma": (5,), "beta": (5,)},
        "inputs",
        "gamma beta",
        recompute="mean var",
    ),
    "L2 normalisation": Case(
        """
for n in range(3):
    s: float32 = 0.0
    for i in range(5):
        s += inputs[n,i]*inputs[n,i]
    for i in range(5):
        value[n,i] = inputs[n,i] / sqrt(s + 0.01)
""",
        {"value": (3, 5), "inputs": (3, 5)},
        "inputs",
    ),
    "L2 normalisation with fields": Case(
        """
for n in range(3):
    s[n] = 0.0
    for i in range(5):
        s[n] += inputs[n,i]*inputs[n,i]
    for i in range(5):
        value[n,i] = inputs[n,i] / sqrt(s[n] + 0.01)
""",
        {"value": (3, 5), "inputs": (3, 5), "s": (3,)},
        "inputs",
    ),
    "log softmax": Case(
        """
for n in range(3):
    m[n] = -1e308
    for c in range(4):
        m[n] = max(m[n], inputs[n,c])
    s[n] = 0.0
    for c in range(4):
        s[n] += exp(inputs[n,c] - stop_gradient(m[n]))
    for c in range(4):
        prob[n,c] = exp(inputs[n,c]-stop_gradient(m[n]))/s[n]
        value[n,c] = log(prob[n,c])
""",
        {"value": (3, 4), "inputs": (3, 4), "m": (3,), "s": (3,), "prob": (3, 4)},
        "inputs",
    ),
    "softmax written over, maximum differentiated": Case(
        """
for n in range(3):
    m[n] = -1e308
    for c in range(4):
        m[n] = max(m[n], inputs[n,c])
for n in range(3):
    s[n] = 0.0
    for c in range(4):
        value[n,c] = exp(inputs[n,c] - m[n])
        s[n] += value[n,c]
for n in range(3):
    for c in range(4):
        value[n,c] = value[n,c]/s[n]
""",
        {"value": (3, 4), "inputs": (3, 4), "m": (3,), "s": (3,)},
        "inputs",
    ),
    "max pooling, clamped": Case(
        """
for n in range(2):
    for y in range(3):
        for x in range(3):
            value[n,y,x] = -1e308
            for j in range(3):
                for k in range(3):
                    value[n,y,x] = max(value[n,y,x], inputs[n,min(max(2*y-1+j,0),4),min(max(2*x-1+k,0),4)])
""",
        {"value": (2, 3, 3), "inputs": (2, 5, 5)},
        "inputs",
    ),
    "maximum of products in a local": Case(
        """
for n in range(4):
    m: float32 = bias[n]
    for j in range(1, 4):
        m = max(m, inputs[n,j]*inputs[n,j-1])
    value[n] = m*m + inputs[n,0]
""",
        {"value": (4,), "inputs": (4, 4), "bias": (4,)},
        "inputs",
        "bias",
    ),
    "mean pooling, squared": Case(
        """
for n in range(2):
    for y in range(2):
        value[n,y] = 0.0
        for j in range(2*y, min(2*y+3, 4)):
            value[n,y] += inputs[n,j]
        value[n,y] = value[n,y] / 3.0
        value[n,y] *= value[n,y]
""",
        {"value": (2, 2), "inputs": (2, 4)},
        "inputs",
    ),
    "every call": Case(
        """
for i in range(6):
    a: float32 = tanh(inputs[i])
    b: float32 = exp(a*0.5) - abs(inputs[i])
    c: float32 = log(pos[i]) * sqrt(pos[i]) + pow(pos[i], 3.0) + pow(pos[i], -0.5)
    d: float32 = b if inputs[i] > 0.1 else -c
    value[i] = d / (c*c + 2.0) + max(inputs[i], b) - min(a, c) + min(0.3, inputs[i]) - max(inputs[i]*2.0, 0.1)
""",
        {"value": (6,), "inputs": (6,), "pos": (6,)},
        "inputs pos",
        positive="pos",
    ),
    "every function of one argument": Case(
        """
for i in range(6):
    a: float32 = sin(inputs[i]) * cos(inputs[i] + 0.3) + erf(inputs[i])
    b: float32 = expm1(inputs[i]) - log1p(pos[i]) * cos(pos[i])
    c: float32 = erf(a * b) + atan(a - b)
    value[i] = expm1(c) * c + log1p(exp(b)) + sin(sin(a))
""",
        {"value": (6,), "inputs": (6,), "pos": (6,)},
        "inputs pos",
        positive="pos",
    ),
    "scan": Case(
        """
for n in range(2):
    h[n,0] = inputs[n,0]
    for t in range(1, 5):
        h[n,t] = a[0]*h[n,t-1] + inputs[n,t]*inputs[n,t]
    for t in range(5):
        value[n,t] = tanh(h[n,t])
""",
        {"value": (2, 5), "inputs": (2, 5), "h": (2, 5), "a": (1,)},
        "inputs",
        "a",
    ),
    "scan of the output": Case(
        """
for n in range(2):
    value[n,0] = inputs[n,0]
    for t in range(1, 5):
        value[n,t] = a[0]*tanh(value[n,t-1]) + inputs[n,t]
""",
        {"value": (2, 5), "inputs": (2, 5), "a": (1,)},
        "inputs",
        "a",
    ),
    "scan in a local": Case(
        """
for n in range(2):
    s: float32 = 1.0
    for t in range(5):
        s = 0.5*s + inputs[n,t]
        value[n,t] = s*2.0
""",
        {"value": (2, 5), "inputs": (2, 5)},
        "inputs",
    ),
    "prefix sums, step 2": Case(
        """
for n in range(2):
    s[n] = 0.0
    for t in range(0, 5, 2):
        s[n] += inputs[n,t]*w[t]
        value[n,t//2] = s[n]
""",
        {"value": (2, 3), "inputs": (2, 5), "s": (2,), "w": (5,)},
        "inputs",
        "w",
    ),
    "branch on data": Case(
        """
for i in range(8):
    if inputs[i] > 0.0:
        value[i] = inputs[i]*w[0]
    else:
        value[i] = inputs[i]*inputs[i]*w[1]
""",
        {"value": (8,), "inputs": (8,), "w": (2,)},
        "inputs",
        "w",
    ),
    "locals set in branches": Case(
        """
for i in range(8):
    t: float32 = inputs[i]*inputs[i]
    if t > 0.5:
        t = t*t
    if inputs[i] > 0.3:
        t += inputs[i]
    value[i] = t*w[0]
""",
        {"value": (8,), "inputs": (8,), "w": (2,)},
        "inputs",
        "w",
    ),
    "buffer written over, old value needed": Case(
        """
for i in range(4):
    v[i] = inputs[i]*inputs[i]
for i in range(4):
    y[i] = v[i]*v[i]
for i in range(4):
    v[i] = v[i]*v[i]*w[i]
for i in range(4):
    value[i] = v[i]*y[i]
""",
        {"value": (4,), "inputs": (4,), "v": (4,), "y": (4,), "w": (4,)},
        "inputs",
        "w",
    ),
    "buffer zeroed after use": Case(
        """
for i in range(4):
    v[i] = inputs[i]
    value[i] = v[i]*w[i]
for i in range(4):
    v[i] = 0.0
for i in range(4):
    value[i] += v[i]*inputs[i]
""",
        {"value": (4,), "inputs": (4,), "v": (4,), "w": (4,)},
        "inputs",
        "w",
    ),
    "select that guards a subscript": Case(
        """
for i in range(4):
    value[i] = inputs[i] + (inputs[i-1]*w[0] if i > 0 else 0.0)
""",
        {"value": (4,), "inputs": (4,), "w": (1,)},
        "inputs",
        "w",
    ),
    "local response normalisation": Case(
        """
for n in range(2):
    for c in range(5):
        s: float32 = 1.0
        for j in range(max(0, c-1), min(5, c+2)):
            s += 0.1*inputs[n,j]*inputs[n,j]
        value[n,c] = inputs[n,c]*pow(s, -0.75)
""",
        {"value": (2, 5), "inputs": (2, 5)},
        "inputs",
    ),
    "concatenation": Case(
        """
for n in range(2):
    for c in range(3):
        value[n,c] = inputs[n,c]
for n in range(2):
    for c in range(2):
        value[n,c+3] = inputs1[n,c]*2.0
""",
        {"value": (2, 5), "inputs": (2, 3), "inputs1": (2, 2)},
        "inputs inputs1",
    ),
    "one name, two locals": Case(
        """
for n in range(3):
    m: float32 = inputs[n,0]
    for c in range(1,4):
        m = max(m, inputs[n,c])
    a[n] = m*m
for n in range(3):
    m: float32 = inputs[n,0]
    t: float32 = 0.0
    for c in range(1,4):
        m = min(m, inputs[n,c])
        t += inputs[n,c]*inputs[n,c]
    t = t * t
    b[n] = m*t
for n in range(3):
    t: float32 = a[n]*b[n]
    value[n] = t*t
""",
        {"value": (3,), "inputs": (3, 4), "a": (3,), "b": (3,)},
        "inputs",
    ),
    "max pooling, padded": Case(
        """
for n in range(2):
    for y in range(3):
        for x in range(3):
            value[n,y,x] = -INFINITY
            for j in range(3):
                for k in range(3):
                    if 0 <= 2*y-1+j and 2*y-1+j < 5 and 0 <= 2*x-1+k and 2*x-1+k < 5:
                        value[n,y,x] = max(value[n,y,x], inputs[n,2*y-1+j,2*x-1+k])
""",
        {"value": (2, 3, 3), "inputs": (2, 5, 5)},
        "inputs",
    ),
    "affine branches": Case(
        """
for i in range(6):
    if i == 0:
        value[i] = inputs[i]*w[0]
    else:
        if i < 5:
            value[i] = inputs[i]*inputs[i-1]
        else:
            value[i] = inputs[i+0]*2.0
    value[i] -= inputs[0]*w[0]
""",
        {"value": (6,), "inputs": (6,), "w": (1,)},
        "inputs",
        "w",
    ),
    "sum then ReLU, second reader": Case(
        """
for n in range(2):
    for i in range(3):
        t[n,i] = inputs[n,i] + inputs1[n,i]
for n in range(2):
    for i in range(3):
        value[n,i] = max(0.0, t[n,i])
""",
        {"value": (2, 3), "inputs": (2, 3), "inputs1": (2, 3), "t": (2, 3)},
        "inputs inputs1",
        add_to="inputs1",
    ),
    "softmax loss": Case(
        """
loss[0] = 0.0
for n in range(3):
    m: float32 = -INFINITY
    for c in range(4):
        m = max(m, inputs[n,c])
    s: float32 = 0.0
    for c in range(4):
        prob[n,c] = exp(inputs[n,c] - stop_gradient(m))
        s += prob[n,c]
    for c in range(4):
        prob[n,c] = prob[n,c] / s
    for c in range(4):
        if labels[n] == c:
            loss[0] -= log(max(prob[n,c], 1e-30)) / 3
value[0] = loss[0]
""",
        {"value": (1,), "inputs": (3, 4), "prob": (3, 4), "labels": (3,), "loss": (1,)},
        "inputs",
        constant="labels",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_computes_the_same(name: str) -> None:
    forward_computes_the_same(CASES[name])


def forward_computes_the_same(case: Case) -> None:
    """What derivation adds to the forward program changes no result."""
    plain = run(case.program(case.source.replace("stop_gradient", "")), case.start())
    derived = run(validate(case.derive().forward), case.start())
    for buffer in case.shapes:
        np.testing.assert_array_equal(derived[buffer], plain[buffer])


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name: str) -> None:
    gradients_are_differences(CASES[name])


def gradients_are_differences(case: Case) -> None:
    """The derived gradients are central differences."""
    derived = case.derive()
    start = case.start()
    seed = np.random.default_rng(2).normal(size=case.shapes["value"])
    after = run(derived.forward, start)
    gradients: dict[str, np.ndarray] = {}
    # Update runs first here: it must not need what backward computes.
    for program, wanted in ((derived.update, case.params), (derived.backward, case.inputs)):
        if program is None:
            assert not wanted
            continue
        given = {**after, "grad": seed, "accumulate": np.zeros(1, np.int32)}
        given.update({f"grad_{name}": np.full(case.shapes[name], 3.0) for name in case.add_to})
        got = run(validate(program), given)
        for untouched in ("grad", *case.shapes):
            np.testing.assert_array_equal(got[untouched], given[untouched])
        gradients.update({name: got[f"grad_{name}"] for name in wanted})
    for name in (*case.inputs, *case.params):
        expected = np.zeros(case.shapes[name])
        for index in np.ndindex(*case.shapes[name]):
            values = []
            for step in (STEP, -STEP):
                moved = {**start, name: start[name].copy()}
                moved[name][index] += step
                values.append((run(derived.forward, moved)["value"] * seed).sum())
            expected[index] = (values[0] - values[1]) / (2 * STEP)
        if name in case.add_to:
            expected += 3.0
        bound = BOUND * (1 + np.abs(expected).max())
        np.testing.assert_allclose(gradients[name], expected, rtol=0, atol=bound, err_msg=name)


@pytest.fixture
def nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every question about sets of integers takes more work than is allowed."""
    answers = (sets.is_empty, sets.least, footprints._extremes)
    monkeypatch.setattr(sets, "MAX_OPERATIONS", 1)
    for answer in answers:
        answer.cache_clear()
    with pytest.raises(sets.NotProved):
        sets.is_empty("{ [i] : 0 <= i < 3 and 2 * i = 3 }")
    yield
    for answer in answers:
        answer.cache_clear()


@pytest.mark.usefixtures("nothing_is_proved")
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_or_refused_where_nothing_is_proved(name: str) -> None:
    try:
        CASES[name].derive()
    except DerivativeError:
        return
    gradients_are_differences(CASES[name])


@pytest.mark.parametrize("name", ["convolution with stride, dilation, padding", "batch norm", "scan"])
def test_parameter_gradients_accumulate(name: str) -> None:
    case = CASES[name]
    derived = case.derive()
    assert derived.update is not None
    given = {**run(derived.forward, case.start()), "grad": np.ones(case.shapes["value"])}
    first = run(derived.update, {**given, "accumulate": np.zeros(1, np.int32)})
    gradients = {f"grad_{name}": first[f"grad_{name}"] for name in case.params}
    second = run(derived.update, {**given, **gradients, "accumulate": np.ones(1, np.int32)})
    for name, value in gradients.items():
        np.testing.assert_allclose(second[name], 2 * value, rtol=1e-14, atol=1e-14)
