"""Gradients that were wrong once."""

from __future__ import annotations

import pytest

from tests.ir.test_autodiff_differences import Case, forward_computes_the_same, gradients_are_differences

ROWS = {"value": (2,), "inputs": (2, 5)}
WEIGHTED = {**ROWS, "w": (5,)}
RUNNING = {"value": (2, 5), "inputs": (2, 5), "w": (5,)}

CASES = {
    # Each loop had a winner of its own, and both got the gradient.
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
    # Were refused: values that an iteration writes over are kept now, one an iteration.
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


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    forward_computes_the_same(CASES[name])
    gradients_are_differences(CASES[name])
