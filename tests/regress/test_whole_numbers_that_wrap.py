"""Arithmetic on whole numbers whose ranges say that it passes 32 bits: it wrapped silently, though the same of loop
variables was refused. What fits is exact: the truth is Python's arithmetic."""

from __future__ import annotations

import ast
import itertools
import linecache
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

from latte import Ensemble, MemoryDataLayer, Net
from latte.errors import BodyError
from latte.frontend.number_ranges import ANY, Range, combined, compared, of_call
from latte.neuron import Field, Neuron, State, float32, int32
from swirl.analysis.integers import LARGEST

pytestmark = pytest.mark.usefixtures("as_lowered")

TABLE = np.array([3, -70000, 41], np.int32)
SCOPE = {"Ensemble": Ensemble, "Field": Field, "State": State, "float32": float32, "int32": int32, "TABLE": TABLE}
NUMBER = itertools.count()


def layer(body: str, below: int | None, extent: int, fields: str = "", arguments: str = "") -> tuple[Net, Any, Any]:
    """A net whose layer has ``body`` inside of loops over items and elements; ``x[n, c]`` is its data."""
    lines = "".join(f"                {line}\n" for line in body.splitlines())
    text = (
        f"class Whole(Ensemble):\n    {fields or 'pass'}\n    def forward(self, x, value{arguments}):\n"
        f"        N, C = x.shape\n        for n in range(N):\n            for c in range(C):\n{lines}"
    )
    name = f"<whole numbers {next(NUMBER)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {**SCOPE, "__name__": "whole"}
    exec(compile(text, name, "exec"), scope)
    net = Net(2)
    data = MemoryDataLayer(net, (extent,), dtype="int32", below=below)
    made = net.add_ensemble(scope["Whole"](shape=(extent,), dims=("c",)))
    net.add_connections(data, made, name="x")
    return net, data, made


DOUBLED = "k = 1\nfor j in range({}):\n    k = k * 2\nvalue[n, c] = k % 7"
COUNTED = (
    "k = 0\nfor i in range(1000):\n    for j in range(1000):\n        for m in range({}):\n            k += 1\n"
    "value[n, c] = k"
)
FIBONACCI = "a = 0\nb = 1\nfor j in range({}):\n    t = a + b\n    a = b\n    b = t\nvalue[n, c] = a"
SUM = "k = 0\nfor j in range(C):\n    k += x[n, j]\nvalue[n, c] = k"
TOTAL = {"fields": "total = Field('n', dtype='int32')", "arguments": ", total"}

# body, range of the data, elements; which of its lines, what may be too large
REFUSED: dict[str, tuple[str, int | None, int, str, dict[str, str]]] = {
    "a product": ("value[n, c] = float32((x[n, c] * 1103515245 + 12345) % 65521)", 12, 3, "x[n, c] * 1103515245", {}),
    "in a local": ("k = x[n, c] * 1103515245\nvalue[n, c] = float32(k % 65521)", 12, 3, "x[n, c] * 1103515245", {}),
    "a square": ("value[n, c] = float32(x[n, c] * x[n, c])", 46342, 3, "x[n, c] * x[n, c]", {}),
    "a power": ("value[n, c] = x[n, c] ** 3", 1300, 3, "x[n, c] ** 3", {}),
    "a sum": ("value[n, c] = x[n, c] + 2147483647", 2, 3, "x[n, c] + 2147483647", {}),
    "a difference": ("value[n, c] = -2147483000 - x[n, c]", 1000, 3, "-2147483000 - x[n, c]", {}),
    "a negative product": ("value[n, c] = abs(x[n, c] * -65521)", 65521, 3, "x[n, c] * -65521", {}),
    "before a division": ("value[n, c] = (x[n, c] * 100000) // 100000", 10**6, 3, "x[n, c] * 100000", {}),
    "before a remainder": ("k = x[n, c]\nvalue[n, c] = (k * k) % 10", 10**5, 3, "k * k", {}),
    "of a remainder": ("value[n, c] = (x[n, c] % 65521) * 65521", None, 3, "x[n, c] % 65521 * 65521", {}),
    "in a condition": ("value[n, c] = 1.0 if x[n, c] * 3000 > 7 else 0.0", 10**6, 3, "x[n, c] * 3000", {}),
    "in a branch": (
        "if x[n, c] > 5:\n    value[n, c] = x[n, c] * 3000\nelse:\n    value[n, c] = 0.0", 10**6, 3,
        "x[n, c] * 3000", {},
    ),
    "of two": ("value[n, c] = x[n, 0] * x[n, 1] * x[n, 2]", 2000, 3, "x[n, 0] * x[n, 1] * x[n, 2]", {}),
    "of a loop": ("for j in range(3000):\n    value[n, c] = x[n, c] * j", 10**6, 3, "x[n, c] * j", {}),
    "of loops": ("value[n, c] = c * 1103515245 % 7", 2, 3, "c * 1103515245", {}),
    "of an array of numbers": ("value[n, c] = TABLE[c] * x[n, c]", 40000, 3, "TABLE[c] * x[n, c]", {}),
    "of truth values": (
        "value[n, c] = (x[n, c] > 3) * 2000000000 + (x[n, c] < 9) * 2000000000", 99, 3, "+", {},
    ),
    "a sum over a loop": (SUM, 10**6, 2148, "k + x[n, j]", {}),
    "a count": (COUNTED.format(2148), 2, 1, "k + 1", {}),
    "a growing number": (DOUBLED.format(31), 2, 1, "k * 2", {}),
    "a recurrence": (FIBONACCI.format(48), 2, 1, "a + b", {}),
    "a hash": ("h = 5381\nfor j in range(C):\n    h = h * 33 + x[n, j]\nvalue[n, c] = h % 1000", 256, 5, "h * 33", {}),
    "a field": ("total[n] += x[n, c]\nvalue[n, c] = 1.0", 10**6, 2148, "total[n] + x[n, c]", TOTAL),
    "a field's product": ("total[n] = x[n, c]\nvalue[n, c] = total[n] * 3000", 10**6, 3, "total[n] * 3000", TOTAL),
    "a field with a range": (
        "total[n] = x[n, c]\nvalue[n, c] = total[n] * total[n]", 50000, 3, "total[n] * total[n]",
        {"fields": "total = Field('n', dtype='int32', below=50000)", "arguments": ", total"},
    ),
    "a state with a range": (
        "value[n, c] = x[n, c] * seen[c]", 50000, 3, "x[n, c] * seen[c]",
        {"fields": "seen = State('c', dtype='int32', below=50000)", "arguments": ", seen"},
    ),
    "counting down": ("k = 0\nfor j in range(C):\n    k -= x[n, j]\nvalue[n, c] = k", 10**6, 2149, "k - x[n, j]", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_passes_32_bits_is_refused(case: str) -> None:
    body, below, extent, part, more = REFUSED[case]
    net, _, _ = layer(body, below, extent, **more)
    with pytest.raises(BodyError, match=r"passes -?2,147,483,64[78], and whole numbers have 32 bits") as caught:
        net.compile(target="portable", threads=1)
    message = str(caught.value)
    assert part in message and "float32(…)" in message
    name, line = str(caught.value.location).rsplit(":", 1)
    text = linecache.getline(name, int(line))
    words = part.replace("(", "").split()
    assert not text.strip() or all(word.strip("()") in text.replace("=", " ") for word in words if word.isalnum())


# body, range of the data, elements, what it computes of x and an element's number
FITS: dict[str, tuple[str, int | None, int, Callable[[list[int], int], Any], dict[str, str]]] = {
    "just a product": ("value[n, c] = (x[n, c] * 46341) % 1000", 46341, 3, lambda x, c: x[c] * 46341 % 1000, {}),
    "just a sum": (SUM, 10**6, 2147, lambda x, c: sum(x), {}),
    "just a count": (COUNTED.format(100), 2, 1, lambda x, c: 10**8, {}),
    "just doubled": (DOUBLED.format(30), 2, 1, lambda x, c: 2**30 % 7, {}),
    "just a recurrence": (FIBONACCI.format(45), 2, 1, lambda x, c: 1134903170, {}),
    "a hash with a remainder": (
        "h = 5381\nfor j in range(C):\n    h = (h * 33 + x[n, j]) % 65521\nvalue[n, c] = h", 256, 50,
        lambda x, c: reduce(lambda h, each: (h * 33 + each) % 65521, x, 5381), {},
    ),
    "what a condition keeps small": (
        "if x[n, c] < 1000:\n    value[n, c] = x[n, c] * x[n, c] * 1000 % 7\nelse:\n    value[n, c] = 0", 10**9, 9,
        lambda x, c: x[c] * x[c] * 1000 % 7 if x[c] < 1000 else 0, {},
    ),
    "what conditions keep small": (
        "if not (x[n, c] > 1000 or x[n, c] == 7):\n    value[n, c] = x[n, c] ** 3 % 9\nelse:\n    value[n, c] = 0",
        10**9, 9, lambda x, c: x[c] ** 3 % 9 if not (x[c] > 1000 or x[c] == 7) else 0, {},
    ),
    "what a choice keeps small": (
        "value[n, c] = x[n, c] * 1000000 % 11 if 5 <= x[n, c] < 2000 else -1", 10**9, 9,
        lambda x, c: x[c] * 1000000 % 11 if 5 <= x[c] < 2000 else -1, {},
    ),
    "what min keeps small": (
        "value[n, c] = min(x[n, c], 46340) ** 2 % 13", 10**9, 9, lambda x, c: min(x[c], 46340) ** 2 % 13, {},
    ),
    "what stops growing": (
        "k = 0\nfor i in range(3000):\n    k = min(k + 1000000, 5000000)\nvalue[n, c] = k", 2, 1,
        lambda x, c: 5000000, {},
    ),
    "what a condition stops": (
        "k = 0\nfor i in range(3000):\n    if k < 100:\n        k += 1000000\nvalue[n, c] = k", 2, 1,
        lambda x, c: 1000000, {},
    ),
    "what begins anew": (
        "for i in range(3000):\n    k = 0\n    for j in range(C):\n        k += x[n, j]\n    value[n, c] = k",
        10**6, 50, lambda x, c: sum(x), {},
    ),
    "elements of their own": (
        "total[n, c] += x[n, c]\nvalue[n, c] = total[n, c]", 10**6, 3000, lambda x, c: x[c],
        {"fields": "total = Field('n', 'c', dtype='int32')", "arguments": ", total"},
    ),
    "in floating point": (
        "value[n, c] = float32(x[n, c]) * 3000.0", 10**6, 5, lambda x, c: np.float32(x[c]) * 3000, {},
    ),
    "with a float": ("value[n, c] = x[n, c] * 3000.0", 10**6, 5, lambda x, c: np.float32(x[c]) * 3000, {}),
    "quotients": (
        "value[n, c] = x[n, c] // 3 * 3 - x[n, c] % 7 * 1000", 10**6, 5,
        lambda x, c: x[c] // 3 * 3 - x[c] % 7 * 1000, {},
    ),
    "without a range it wraps, as NumPy's do": (
        "value[n, c] = (x[n, c] * 1103515245) % 65521", None, 5,
        lambda x, c: int((np.array(x[c], np.int32) * np.array(1103515245, np.int32)) % np.int32(65521)), {},
    ),
    "a state without a range": (
        "seen[c] = seen[c] * 3 + x[n, c]\nvalue[n, c] = x[n, c]", 99, 3, lambda x, c: x[c],
        {"fields": "seen = State('c', dtype='int32')", "arguments": ", seen"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FITS)
def test_what_fits_is_exact(case: str) -> None:
    body, below, extent, means, more = FITS[case]
    net, data, made = layer(body, below, extent, **more)
    net.compile(target="portable", threads=1)
    x = np.random.default_rng(1).integers(0, below or 10**6, (2, extent))
    x[0, : min(extent, 7)] %= 2001
    x[1] = (below or 10**6) - 1
    data.set_value(x)
    net.forward()
    with np.errstate(over="ignore"):
        expected = [[np.float32(means(row, c)) for c in range(extent)] for row in x.tolist()]
    np.testing.assert_array_equal(made.get_value(), expected)


def squared(number):
    return number * number


class Squares(Neuron):
    def forward(self) -> None:
        part = squared(self.input)
        self.value = part % 5


def test_helpers_are_named() -> None:
    net = Net(1)
    net.init_activation_ensemble(Squares, MemoryDataLayer(net, (3,), dtype="int32", below=50000))
    with pytest.raises(BodyError, match=r"2,499,900,001.*called in .*test_whole_numbers") as caught:
        net.compile(target="portable", threads=1)
    assert (
        linecache.getline(__file__, int(str(caught.value.location).rsplit(":", 1)[1])).strip()
        == "return number * number"
    )


def test_ranges_hold_what_they_are_of() -> None:
    """Every operation on every pair of numbers of small ranges stays in the range that is computed."""
    operations = {
        ast.Add(): operator.add, ast.Sub(): operator.sub, ast.Mult(): operator.mul, ast.FloorDiv(): operator.floordiv,
        ast.Mod(): operator.mod,
    }  # fmt: skip
    ends = [-4, -1, 0, 1, 3]
    ranges = [(low, high) for low in ends for high in ends if low <= high]
    for (a, b), (c, d) in itertools.product(ranges, ranges):
        for operation, function in operations.items():
            found = combined(operation, Range(a, b), Range(c, d))
            divides = isinstance(operation, ast.FloorDiv | ast.Mod)
            made = [function(x, y) for x in range(a, b + 1) for y in range(c, d + 1) if y or not divides]
            assert all(found.low <= each <= found.high for each in made)
        for comparison, function in (
            (ast.Lt(), operator.lt), (ast.LtE(), operator.le), (ast.Gt(), operator.gt), (ast.GtE(), operator.ge),
            (ast.Eq(), operator.eq), (ast.NotEq(), operator.ne),
        ):  # fmt: skip
            for holds, turned in itertools.product((True, False), repeat=2):
                found = compared(comparison, holds, Range(c, d), swapped=turned)
                for x, y in itertools.product(range(a, b + 1), range(c, d + 1)):
                    if (function(y, x) if turned else function(x, y)) == holds:
                        assert found.low <= x <= found.high
    assert of_call("abs", [Range(-5, 3)]) == Range(0, 5) and of_call("abs", [Range(-5, -2)]) == Range(2, 5)
    assert of_call("abs", [Range(2, 5)]) == Range(2, 5) and of_call("abs", [ANY]) == Range(0) and ANY.fits
    assert Range(-LARGEST - 1, LARGEST).fits and not Range(0, LARGEST + 1).fits and not Range(-LARGEST - 2).fits
    assert str(Range(-(10**20), 5)) == "-10**20 to 5" and str(Range(1)) == "1 to …"
