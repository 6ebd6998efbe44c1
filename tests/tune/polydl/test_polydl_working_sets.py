"""Working sets beside enumeration, and beside the paper's closed forms."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from latte import ConvLayer, MemoryDataLayer, Net, ReLULayer
from latte.tools.tune.subjects import Tunable, tunables
from swirl.ir.nest import Program
from swirl.target.targets import TARGETS
from swirl.tune.polydl.working_sets import Reuse, working_sets
from tests.support import program
from tests.tune.polydl.enumerated import Found, reuses


def product(i: int, j: int, k: int, parallel: str = "") -> Program:
    kinds = {loop: "parallel" if loop == parallel else "range" for loop in "ijk"}
    text = (
        f"for i in {kinds['i']}({i}):\n for j in {kinds['j']}({j}):\n  for k in {kinds['k']}({k}):\n"
        "   C[i, j] += A[i, k] * B[k, j]"
    )
    return program(text, A=(i, k), B=(k, j), C=(i, j))


def of(found: list[Reuse], source: str, loop: str) -> Reuse:
    (one,) = [each for each in found if each.source == source and each.loop == loop]
    return one


def assert_as_enumerated(before: Program) -> list[Reuse]:
    """Each reuse is that of the enumeration, and all of these are found."""
    found, wanted = working_sets(before), reuses(before)

    def sizes(each: Reuse) -> tuple[object, ...]:
        return each.loop, each.parallel, each.least.elements, each.most.elements, each.several

    for each in found:
        own = each.source, each.target, *sizes(each)
        alike = [one for one in wanted if (one.source, one.target, *_sizes(one)) == own]
        assert any(one.kinds <= set(each.kinds) for one in alike), each
        assert each.least.exact and each.most.exact and each.least.bytes == 4 * each.least.elements
    # Relations that are written alike count once: their sizes are there.
    assert set(map(sizes, found)) == set(map(_sizes, wanted))
    return found


def _sizes(each: Found) -> tuple[object, ...]:
    return each.loop, each.parallel, each.least, each.most, each.several


@pytest.mark.parametrize(("i", "j", "k"), [(3, 4, 5), (2, 7, 1), (4, 2, 6)])
def test_the_papers_example(i: int, j: int, k: int) -> None:
    """Section 4.1: of A along j, 2K + 3 elements to the next use, and N·K + N + 1 to the last one."""
    found = assert_as_enumerated(product(i, j, k))
    along = of(found, "A[i, k]", "j")
    assert along.kinds == ("RAR",)
    assert along.least.elements == 2 * k + 3
    if j > 2:
        assert along.most.elements == j * k + j + 1 and along.several
    if k > 1:
        sums = of(found, "C[i, j]", "k")
        assert sums.kinds == ("RAR", "RAW", "WAR", "WAW")  # one relation, counted once
        assert (sums.least.elements, sums.most.elements) == (5, 2 * k + 1)


def test_closed_forms_at_real_sizes() -> None:
    m, n, k = 4096, 4096, 4096
    along = of(working_sets(product(m, n, k)), "A[i, k]", "j")
    assert (along.least.elements, along.most.elements) == (2 * k + 3, n * k + n + 1)
    assert along.most.bytes == 4 * along.most.elements and along.most.exact


@pytest.mark.parametrize("parallel", ["i", "j", "k"])
def test_across_parallel_loops_all_iterations_count(parallel: str) -> None:
    found = assert_as_enumerated(product(3, 4, 5, parallel))
    (wide,) = [each for each in found if each.parallel]
    assert wide.loop == parallel and wide.least == wide.most and wide.sizes == (wide.least,)
    inside = {"i": 3 * 5 + 5 * 4 + 3 * 4, "j": 5 + 5 * 4 + 4, "k": 5 + 5 + 1}
    assert wide.least.elements == inside[parallel]  # loops outside of it have one value


SHAPES = {"A": (6, 8), "B": (8, 6), "C": (6, 6)}
CASES = {
    "tiled product": (
        "for jo in range(2):\n for io in range(3):\n  for ko in range(2):\n   for i in range(2):\n"
        "    for j in range(3):\n"
        "     for k in range(4):\n      C[io*2+i, jo*3+j] += A[io*2+i, ko*4+k] * B[ko*4+k, jo*3+j]",
        SHAPES,
    ),
    "ragged tiles": (
        "for jo in range(2):\n for i in range(6):\n  for j in range(jo*4, min(6, jo*4+4)):\n"
        "   for k in range(8):\n"
        "    C[i, j] += A[i, k] * B[k, j]",
        SHAPES,
    ),
    "masked tiles": (
        "for jo in range(2):\n for i in range(6):\n  for ji in range(4):\n   for k in range(8):\n"
        "    if jo*4+ji < 6:\n     C[i, jo*4+ji] += A[i, k] * B[k, jo*4+ji]",
        SHAPES,
    ),
    "convolution": (
        "for k in range(2):\n for y in range(3):\n  for x in range(4):\n   for c in range(2):\n"
        "    for ky in range(3):\n"
        "     for kx in range(2):\n      O[k, y, x] += I[c, y+ky, x+kx] * W[k, c, ky, kx]",
        {"O": (2, 3, 4), "I": (2, 5, 5), "W": (2, 2, 3, 2)},
    ),
    "convolution with taps outside": (
        "for n in range(2):\n for ky in range(3):\n  for kx in range(2):\n   for c in range(2):\n"
        "    for y in range(3):\n"
        "     for x in range(2):\n      O[n, y, x] += I[n, c, 2*y+ky, 2*x+kx] * W[c, ky, kx]",
        {"O": (2, 3, 2), "I": (2, 2, 7, 4), "W": (2, 3, 2)},
    ),
    "convolution with borders": (
        "for y in range(4):\n for ky in range(3):\n  if y + ky >= 1 and y + ky < 5:\n   for c in range(3):\n"
        "    O[y, c] += I[y + ky - 1, c] * W[ky]",
        {"O": (4, 3), "I": (4, 3), "W": (3,)},
    ),
    "a select": (
        "for y in range(4):\n for ky in range(3):\n"
        "  O[y] += (I[y + ky - 1] if y + ky >= 1 and y + ky < 5 else 0.0) * W[ky]",
        {"O": (4,), "I": (4,), "W": (3,)},
    ),
    "pool": (
        "for y in range(3):\n for x in range(3):\n  O[y, x] = I[2*y, 2*x]\n  for ky in range(3):\n"
        "   for kx in range(3):\n"
        "    O[y, x] = max(O[y, x], I[2*y+ky, 2*x+kx])",
        {"O": (3, 3), "I": (7, 7)},
    ),
    "stencil": (
        "for t in range(3):\n for i in range(1, 7):\n  B[i] = A[i-1] + A[i] + A[i+1]\n for i in range(1, 7):\n"
        "  A[i] = B[i]",
        {"A": (8,), "B": (8,)},
    ),
    "triangle": (
        "for i in range(6):\n for j in range(i, 6):\n  for k in range(3):\n   C[i, j] += A[i, k] * A[j, k]",
        {"A": (6, 3), "C": (6, 6)},
    ),
    "lower triangle": (
        "for i in range(6):\n for j in range(i + 1):\n  x[i] += L[i, j] * y[j]",
        {"L": (6, 6), "x": (6,), "y": (6,)},
    ),
    "diagonal": ("for i in range(5):\n for j in range(4):\n  D[i, i] += A[i, j]", {"D": (5, 5), "A": (5, 4)}),
    "backwards": (
        "for i in range(5, -1, -1):\n for j in range(1, 8, 2):\n  y[i] += A[i, j] * x[j]",
        {"A": (6, 8), "x": (8,), "y": (6,)},
    ),
    "two nests": (
        "for i in range(4):\n for j in range(3):\n  C[i, j] = 0.0\nfor i in range(4):\n for j in range(3):\n"
        "  for k in range(2):\n   C[i, j] += A[i, k] * B[k, j]\nfor i in range(4):\n for j in range(3):\n"
        "  C[i, j] = max(C[i, j], 0.0)",
        {"A": (4, 2), "B": (2, 3), "C": (4, 3)},
    ),
    "quotients": ("for i in range(9):\n for j in range(4):\n  y[i // 2] += x[(i + j) % 3]", {"x": (3,), "y": (5,)}),
    "parallel inside": (
        "for t in range(2):\n for i in parallel(4):\n  for j in range(3):\n   C[i] += A[i, j] * x[j]",
        {"A": (4, 3), "C": (4,), "x": (3,)},
    ),
    "several statements": (
        "for i in range(4):\n s[i] = x[i] * 2.0\n for j in range(3):\n  y[i, j] = s[i] + x[j]\n s[i] = s[i] + y[i, 2]",
        {"s": (4,), "x": (4,), "y": (4, 3)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_enumerated(name: str) -> None:
    text, shapes = CASES[name]
    assert_as_enumerated(program(text, **shapes))


@cache
def convolution(target: str) -> Tunable:
    """A convolution with borders and a ReLU after it, in a net."""
    net = Net(2, seed=1)
    ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (3, 2, 3)), num_filters=8, kernel=3, stride=1, pad=1))
    (found,), _ = tunables(net, TARGETS[target], 2, phases=["forward"])
    return found


@pytest.mark.parametrize("scheduled", [False, True])
def test_layers_of_nets_as_enumerated(scheduled: bool) -> None:
    """Before its commands, and after them: with threads, copies, vectors and locals."""
    tunable = convolution("avx2")
    assert_as_enumerated(tunable.known.scheduled if scheduled else tunable.subject.program)


def test_what_is_not_known_is_an_upper_bound() -> None:
    """An indirect subscript may be any element; a condition on data may hold."""
    text = "for i in range(6):\n if m[i] > 0.0:\n  y[i] += t[at[i], 0] * x[0]"
    shapes = {"m": (6,), "y": (6,), "t": (5, 2), "x": (1,)}
    before = program(text, at=(6,), **shapes)
    before = before.with_buffers(at=type(before.buffers["at"])("net.at", (6,), "int32"))
    found = of(working_sets(before), "t[at[i], 0]", "i")
    assert not found.most.exact and found.most.elements == 5 + 6 + 6 + 5 + 1  # m[0] comes before the first source


def test_the_documentation_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tuning.md").read_text(encoding="utf-8")
    (code, told) = re.findall(r"```python\n(from swirl.ir.buffers.*?)```\n\n((?:    [^\n]*\n)+)", page, re.DOTALL)[0]
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == [line.strip() for line in told.splitlines()]
