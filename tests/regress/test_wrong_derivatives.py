"""Gradients that were wrong once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.test_autodiff_differences import Case, forward_computes_the_same, gradients_are_differences, run

ROWS = {"value": (2,), "inputs": (2, 5)}
WEIGHTED = {**ROWS, "w": (5,)}
RUNNING = {"value": (2, 5), "inputs": (2, 5), "w": (5,)}

CASES = {
    # Each loop had its own winner, and both got the gradient.
    "two loops for one maximum": Case(
        """
for n in range(2):
    m: float32 = -3e38
    for c in range(5):
        m = max(m, inputs[n,c])
    for c in range(5):
        m = max(m, 0.5*inputs[n,c]+0.9)
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    # The other local of that name was taken for the one that the reduction starts from: an index outside of its loop.
    "a maximum in a local, after another of its name in a loop": Case(
        """
for n in range(2):
    for c in range(1, 5):
        m: float32[5] = empty(5)
        for k in range(5):
            m[k] = 2.0
    m: float32 = 1.0
    for c in range(5):
        m = max(m, inputs[n,c])
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    # The local was computed again from the last value of the recurrence, not from that of its iteration.
    "recurrence, its step in a local": Case(
        """
for n in range(2):
    m: float32 = 0.1
    for c in range(5):
        d: float32 = inputs[n,c] - m
        m = 0.9*m + 0.1*d*d
    value[n] = m
""",
        ROWS,
        "inputs",
    ),
    "recurrence and a sum of its steps": Case(
        """
for n in range(2):
    m: float32 = 0.1
    s: float32 = 0.0
    for c in range(5):
        d: float32 = inputs[n,c] - m
        s += d*d
        m = 0.9*m + 0.1*inputs[n,c]
    value[n] = s + m
""",
        ROWS,
        "inputs",
    ),
    # The sum kept its gradient where an element of the window had won.
    "maximum after a sum": Case(
        """
for n in range(2):
    value[n] = 0.0
    for i in range(5):
        value[n] += w[i]*inputs[n,i]
    for i in range(5):
        value[n] = max(value[n], inputs[n,i])
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "half a sum, then a maximum and a minimum, in a local": Case(
        """
for n in range(2):
    t: float32 = 0.0
    for i in range(5):
        t += w[i]*inputs[n,i]
    t = 0.5*t
    for i in range(5):
        t = max(t, inputs[n,i])
    for i in range(5):
        t = min(t, 3.0*inputs[n,i]*inputs[n,i])
    t = t*0.3
    value[n] = t
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "guard after a sum": Case(
        """
for n in range(2):
    t: float32 = 0.0
    for i in range(5):
        t += w[i]*inputs[n,i]
    for i in range(5):
        if inputs[n,i] > t:
            t = inputs[n,i]
    value[n] = t
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "maximum after half a sum": Case(
        """
for n in range(2):
    value[n] = 0.0
    for i in range(5):
        value[n] += w[i]*inputs[n,i]
    value[n] = 0.5*value[n]
    for i in range(5):
        value[n] = max(value[n], inputs[n,i])
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "maxima after a sum, in another order of loops": Case(
        """
for n in range(2):
    value[n] = 0.0
for i in range(5):
    for n in range(2):
        value[n] += w[i]*inputs[n,i]
for i in range(5):
    for n in range(2):
        if inputs[n,i] > value[n]:
            value[n] = inputs[n,i]
for i in range(5):
    for m in range(2):
        value[m] = max(value[m], w[i])
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    # The iterations 0, -1, -2, … of a loop that counts down were mistaken for the marks "no winner", "another winner".
    "minimum of one element, counted down": Case(
        """
for n in range(3):
    value[n] = 2.0*inputs[n]
    for i in range(3, -1, -1):
        value[n] = min(value[n], inputs[1])
""",
        {"value": (3,), "inputs": (3,)},
        "inputs",
    ),
    # A statement before the maximum meets elements after it, in the next iterations of a loop around both.
    "factors of elements whose maximum is known": Case(
        """
for n in range(3):
    value[n] = 0.1
for n in range(3):
    value[max(n-1, 0)] *= w[n]
    for i in range(4):
        value[n] = max(value[n], inputs[n,i])
""",
        {"value": (3,), "inputs": (3, 4), "w": (3,)},
        "inputs",
        "w",
    ),
    # The gradient of a value that was read before the maximum went to the winner.
    "read before the maximum": Case(
        """
for n in range(2):
    a: float32 = tanh(inputs[n,0])
    value[n] = 2.0*a
    for i in range(1, 5):
        if inputs[n,i] > a:
            a = inputs[n,i]*inputs[n,i]
    value[n] += a
""",
        ROWS,
        "inputs",
    ),
    # Of two maxima in one loop that start from sums, the first one's sum kept its gradient where an element had won.
    "maximum and minimum in one loop after sums": Case(
        """
for n in range(2):
    a: float32 = 0.0
    b: float32 = 0.0
    for i in range(5):
        a += w[i]*inputs[n,i]
        b -= w[i]*inputs[n,i]
    a = 0.2*a
    b = 0.2*b
    for i in range(5):
        a = max(a, inputs[n,i])
        b = min(b, 2.0*w[i])
    value[n] = a*b
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "maximum and minimum of fields in one loop": Case(
        """
for i in range(4):
    u[i] = w[i]*w[0]
for n in range(3):
    value[n] = 0.1
for n in range(3):
    for i in range(1, 4):
        u[n + 1] = min(u[n + 1], sqrt(1.5))
        value[n] = max(value[n], abs(inputs[n,i]))
for n in range(3):
    value[n] *= u[n + 1]
""",
        {"value": (3,), "inputs": (3, 4), "u": (4,), "w": (4,)},
        "inputs",
        "w",
    ),
    "guards of two targets in one loop": Case(
        """
for n in range(2):
    value[n,0] = 0.5*inputs[n,0]
    value[n,1] = 0.2*w[1]
    value[n,1] += value[n,0]
    for i in range(5):
        if inputs[n,i] > value[n,0]:
            value[n,0] = inputs[n,i]*w[i]
        if w[i] > value[n,1]:
            value[n,1] = w[i]*w[i]
    for i in range(2, 5):
        value[n,i] = value[n,0]*value[n,1]
""",
        RUNNING,
        "inputs",
        "w",
    ),
    # First values that are read, by later first values or in a later iteration, have gradients that no winner takes.
    "maxima of a recurrence": Case(
        """
for n in range(2):
    u[n,0] = w[0]*inputs[n,0]
    for j in range(1, 5):
        u[n,j] = 0.5*u[n,j - 1] + w[j]
    for j in range(5):
        for i in range(5):
            u[n,j] = max(u[n,j], inputs[n,i])
    for j in range(5):
        value[n,j] = u[n,j]
""",
        {**RUNNING, "u": (2, 5)},
        "inputs",
        "w",
    ),
    "maximum of one element of a recurrence": Case(
        """
for n in range(3):
    for j in range(4):
        u[n,j] = 0.5
for n in range(3):
    for j in range(1, 4):
        u[min(n + 1, 2),j] = u[min(n + 1, 2),j - 1] + w[j]
    for i in range(4):
        u[n,max(n - 1, 0)] = max(u[n,max(n - 1, 0)], 0.8)
for n in range(3):
    for j in range(4):
        value[n,j] = u[n,j]*inputs[n,j]
""",
        {"value": (3, 4), "inputs": (3, 4), "u": (3, 4), "w": (4,)},
        "inputs",
        "w",
    ),
    "maximum of what an iteration before has set, read before": Case(
        """
for n in range(5):
    if n >= 1:
        value[n] = u[n - 1]*u[n - 1]
    else:
        value[n] = 0.0
    u[n] = w[n]*w[n]*0.5
    if n >= 1:
        for i in range(5):
            u[n - 1] = max(u[n - 1], inputs[i])
for n in range(5):
    value[n] += u[n]
""",
        {"value": (5,), "inputs": (5,), "u": (5,), "w": (5,)},
        "inputs",
        "w",
    ),
    "two maxima of an element, read between them": Case(
        """
for n in range(5):
    if n >= 1:
        value[n] = u[n - 1]*u[n - 1]
    else:
        value[n] = 0.0
    u[n] = w[n]*w[n]*0.5
    for i in range(5):
        u[n] = max(u[n], inputs[i])
    if n >= 1:
        for i in range(5):
            u[n - 1] = max(u[n - 1], inputs[i]*inputs[i])
for n in range(5):
    value[n] += u[n]
""",
        {"value": (5,), "inputs": (5,), "u": (5,), "w": (5,)},
        "inputs",
        "w",
    ),
    # A statement that read an element before it was set and another one after that read both from before.
    "elements before and after they are set": Case(
        """
for i in range(5):
    u[i] = inputs[i]*inputs[i]
for i in range(5):
    u[i] = 0.5*u[i] + w[i]
    if i < 4:
        value[i] = u[i]*u[i + 1]
    else:
        value[i] = u[i]
""",
        {"value": (5,), "inputs": (5,), "u": (5,), "w": (5,)},
        "inputs",
        "w",
    ),
    "elements before and after they are set, backwards": Case(
        """
for i in range(5):
    u[i] = inputs[i]*inputs[i]
for j in range(4, -1, -1):
    u[j] += w[j]
    value[j] = u[j]*(u[j - 1] if j > 0 else w[0]) + u[min(j, 3)]
""",
        {"value": (5,), "inputs": (5,), "u": (5,), "w": (5,)},
        "inputs",
        "w",
    ),
    # The last iteration, whose value earlier ones had made, got all of the gradient.
    "maximum of what was chosen before": Case(
        """
for n in range(2):
    value[n] = inputs[n,0]
    for i in range(5):
        value[n] = max(value[n], 0.9*value[n] + 0.1*inputs[n,i])
""",
        ROWS,
        "inputs",
    ),
    # An assertion failed.
    "maximum in a local array": Case(
        """
for n in range(2):
    m: float32[2] = empty(2)
    for i in range(2):
        m[i] = inputs[n,i]
    for i in range(2, 5):
        m[0] = max(m[0], inputs[n,i])
    value[n] = m[0]*m[1]
""",
        ROWS,
        "inputs",
    ),
    # Were refused: values that an iteration overwrites are kept now, one for each iteration.
    "Horner's scheme": Case(
        """
for n in range(2):
    t: float32 = 0.0
    for i in range(5):
        t = t*inputs[n,0] + w[i]
    value[n] = t
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "sum cut off at zero": Case(
        """
for n in range(2):
    a: float32 = 0.0
    for i in range(5):
        a = max(a + inputs[n,i]*w[i], 0.0)
    value[n] = a*a
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "sum cut off at zero, in a field": Case(
        """
for n in range(2):
    value[n] = 0.0
    for i in range(5):
        value[n] += inputs[n,i]*w[i]
        value[n] = max(value[n], 0.0)
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "the two largest": Case(
        """
for n in range(2):
    first: float32 = -3e38
    second: float32 = -3e38
    for i in range(5):
        if inputs[n,i]*w[i] > first:
            second = first
            first = inputs[n,i]*w[i]
        else:
            if inputs[n,i]*w[i] > second:
                second = inputs[n,i]*w[i]
    value[n] = first*2.0 + second*second
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "running normalisation": Case(
        """
for n in range(2):
    m: float32 = 0.0
    v: float32 = 1.0
    for i in range(5):
        m = 0.9*m + 0.1*inputs[n,i]
        v = 0.9*v + 0.1*(inputs[n,i]-m)*(inputs[n,i]-m)
        value[n,i] = (inputs[n,i]-m)/sqrt(v)*w[i]
""",
        RUNNING,
        "inputs",
        "w",
    ),
    "running maximum": Case(
        """
for n in range(2):
    m: float32 = inputs[n,0]
    for i in range(5):
        m = max(m, inputs[n,i])
        value[n,i] = m*w[i]
""",
        RUNNING,
        "inputs",
        "w",
    ),
    "recurrence in a field that is used again": Case(
        """
for n in range(2):
    h[0] = tanh(inputs[n,0])
    for i in range(1,5):
        h[i] = tanh(w[0]*h[i-1] + inputs[n,i])
    for i in range(5):
        value[n,i] = h[i]*h[i]
""",
        {**RUNNING, "h": (5,)},
        "inputs",
        "w",
    ),
    "local array": Case(
        """
for n in range(2):
    t: float32[5] = empty(5)
    for i in range(5):
        t[i] = inputs[n,i]*w[i]
    for i in range(1,5):
        t[i] = t[i]*t[i-1]
    value[n] = 0.0
    for i in range(5):
        value[n] += t[i]*t[4-i]
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "recurrence in two loops under a condition": Case(
        """
for n in range(2):
    s: float32 = 1.0
    for i in range(5):
        u: float32 = w[i]
        for j in range(i, 5):
            u = u*s + inputs[n,j]
            if u > 0.5:
                s = s*0.5 + tanh(u)
        s = s + u
    value[n] = s
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
    "two locals that feed each other, backwards": Case(
        """
for n in range(2):
    a: float32 = 1.0
    b: float32 = 1.0
    for i in range(4,-1,-1):
        c: float32 = a
        a = tanh(a*b) + inputs[n,i]
        b = c*w[i]
    value[n] = a*b
""",
        WEIGHTED,
        "inputs",
        "w",
    ),
}


FOUND_BEFORE = {
    "a reader of another element than an earlier maximum's": """
for n in range(3):
    for i in range(4):
        h[n,i] = inputs[n,i]
for n in range(3):
    for i in range(4):
        value[n,i] = 0.5
for n in range(3):
    for i in range(4):
        if LIMIT < h[min(n+1,2),n]:
            h[min(n+1,2),n] = LIMIT
    for i in range(n+1):
        value[n//2,i] *= h[0,n]
for i in range(4):
    for j in range(4):
        h[0,2] = max(h[0,2], 2.5)
""",
    "a reader between the iterations of two maxima": """
for n in range(3):
    for i in range(4):
        h[n,i] = inputs[n,i]
        value[n,i] = 0.5
for i in range(4):
    for k in range(i,4):
        value[2,3-k] = h[0,k]
    for j in range(4):
        for k in range(4):
            if 0.25 > h[2,i]:
                h[2,i] = 0.25
            if 3.5 > h[0,i]:
                h[0,i] = 3.5
""",
    "a reader before the second of two regions": """
for n in range(3):
    for i in range(4):
        h[n,i] = inputs[n,i]
for i in range(4):
    for j in range(4):
        h[0,i] = max(h[0,i], inputs[1,j])
for n in range(3):
    for i in range(4):
        value[n,i] = h[2,i]*h[0,i]
for i in range(4):
    for j in range(4):
        h[2,i] = max(h[2,i], inputs[1,j]+5.0)
for i in range(4):
    value[0,i] += h[2,i]
""",
    "readers on both sides of each region": """
for n in range(3):
    for i in range(4):
        h[n,i] = inputs[n,i]
for i in range(4):
    value[0,i] = h[1,i]
    for j in range(4):
        h[0,i] = min(h[0,i], inputs[2,j]-LIMIT)
for i in range(4):
    value[1,i] = h[0,i]*h[1,i]
    for j in range(4):
        h[1,i] = max(h[1,i], inputs[2,j]+LIMIT)
for i in range(4):
    value[2,i] = h[0,i]*h[1,i]
""",
    "one row read before it is limited, in one loop": """
for n in range(3):
    for i in range(4):
        h[n,i] = inputs[n,i]
for n in range(3):
    for i in range(4):
        value[n,i] = h[2-n,i]*h[2-n,i]
    for i in range(4):
        for j in range(4):
            h[n,i] = max(h[n,i], LIMIT)
""",
}
"""Maxima of one array: what a reader has found before one of them is not what its winner gives."""


@pytest.mark.parametrize("limit", [0.25, 1.5])
@pytest.mark.parametrize("name", FOUND_BEFORE)
def test_a_gradient_of_what_a_maximum_has_found(name: str, limit: float) -> None:
    shape = (3, 4)
    source = FOUND_BEFORE[name].replace("LIMIT", str(limit))
    case = Case(source, {"inputs": shape, "h": shape, "value": shape}, "inputs")
    forward_computes_the_same(case)
    gradients_are_differences(case)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    forward_computes_the_same(CASES[name])
    gradients_are_differences(CASES[name])


def gradient_at(source: str, inputs: np.ndarray, **constant: np.ndarray) -> np.ndarray:
    """The gradient of the sum of ``value`` at ``inputs``."""
    shapes = {"inputs": inputs.shape, "value": inputs.shape, **{name: array.shape for name, array in constant.items()}}
    derived = Case(source, shapes, "inputs", constant=" ".join(constant)).derive()
    after = run(derived.forward, {"inputs": inputs, **constant})
    assert derived.backward is not None
    return run(derived.backward, {**after, "grad": np.ones(inputs.shape)})["grad_inputs"]


POWERS = """
for i in range(4):
    value[i] = 0.0
    for k in range(4):
        value[i] += pow(inputs[i], EXPONENT)
"""


@pytest.mark.parametrize("exponent", ["k", "float32(k)", "powers[k]", "1.0 * powers[k]"])
def test_powers_at_zero(exponent: str) -> None:
    """0 * pow(0, -1) was NaN: the derivative of x**0 is zero, of x**1 one, everywhere."""
    x = np.array([0.0, -0.0, 2.0, -1.5])
    got = gradient_at(POWERS.replace("EXPONENT", exponent), x, powers=np.arange(4.0))
    np.testing.assert_allclose(got, 1 + 2 * x + 3 * x * x, rtol=1e-15)


@pytest.mark.parametrize(("exponent", "at_zero"), [("0.0", 0), ("1.0", 1), ("2.0", 0), ("3.0", 0), ("-0.0", 0)])
def test_literal_powers_at_zero(exponent: str, at_zero: float) -> None:
    got = gradient_at(f"for i in range(2):\n    value[i] = pow(inputs[i], {exponent})", np.array([0.0, 1.0]))
    np.testing.assert_array_equal(got, [at_zero, float(exponent)])


def test_equal_elements_of_a_running_maximum() -> None:
    """The first of them has the gradient of all values of the maximum, as where only the last value is used."""
    source = """
m: float32 = inputs[0]
for i in range(4):
    m = max(m, inputs[i])
    value[i] = m
"""
    source = "def layer_forward_0(value, inputs):\n" + "\n".join("    " + line for line in source.splitlines())
    np.testing.assert_array_equal(gradient_at(source, np.array([1.0, 2.0, 2.0, 2.0])), [1, 3, 0, 0])


def test_power_by_its_exponent() -> None:
    """As in PyTorch: zero for a base of zero and an exponent that is not negative."""
    source = "for i in range(4):\n    value[i] = pow(base[i], inputs[i])"
    got = gradient_at(source, np.array([0.0, 2.0, 3.0, -1.0]), base=np.array([0.0, 0.0, 2.0, 4.0]))
    np.testing.assert_allclose(got, [0, 0, 8 * np.log(2), np.log(4) / 4], rtol=1e-15)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sqrt(x) if x > 0.0 else 0.0", [0, 0.25, 0]),
        ("1.0 / x if x != 0.0 else 2.0 * x", [2, -1 / 16, -1]),
        ("0.0 if x <= 0.0 else log(x) * x", [0, 1 + np.log(4), 0]),
        ("abs(x)", [0, 1, -1]),
        ("max(x, 0.0)", [0, 1, 0]),
        ("x and 3.0 * x", [1, 3, 3]),
        ("x or 3.0 * x", [3, 1, 1]),
        ("x * x / x if x > 0.0 else pow(x, 2.0)", [0, 1, -2]),
    ],
)
def test_special_points(value: str, expected: list[float]) -> None:
    """What is not computed adds nothing to the gradient, even if its own is infinite or NaN."""
    source = f"for i in range(3):\n    value[i] = {value.replace('x', 'inputs[i]').replace('mainputs[i]', 'max')}"
    np.testing.assert_allclose(gradient_at(source, np.array([0.0, 4.0, -1.0])), expected, rtol=1e-15)
