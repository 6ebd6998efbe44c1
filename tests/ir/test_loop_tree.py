"""The view of a nest, beside running it: loops, statements, and what they touch, in elements and cache lines."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from swirl.analysis.enumeration import Values
from swirl.analysis.footprints import Footprint
from swirl.analysis.loop_tree import LoopFacts, facts, loop_tree, sum_loop
from swirl.analysis.strides import LINE
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Nest, Program, loop_of, parse_program, subscripts
from swirl.ir.paths import Path, at, loops
from swirl.ir.printing import unparse
from swirl.ir.trees import children
from tests.fuzz.checks import random_pick
from tests.fuzz.programs import ProgramMaker

CASES: dict[str, tuple[str, dict[str, Buffer]]] = {
    "a triangle": (
        """
for i in range(9):
    for j in range(i, 9):
        for k in range(i + 1):
            c[i, j] += a[i, k] * b[k, j]
""",
        {"a": Buffer("a", (9, 9)), "b": Buffer("b", (9, 9)), "c": Buffer("c", (9, 9))},
    ),
    "a clipped border": (
        """
for y in range(7):
    for ky in range(max(0, 1 - y), min(3, 8 - y)):
        for x in range(33):
            for kx in range(3):
                if x + kx >= 1 and x + kx < 34:
                    out[y, x] += w[ky, kx] * inp[y + ky - 1, x + kx - 1]
""",
        {"out": Buffer("out", (7, 33)), "w": Buffer("w", (3, 3)), "inp": Buffer("inp", (7, 33))},
    ),
    "a ragged tile": (
        """
for n in range(2):
    for t in range(0, 21, 4):
        for i in range(min(4, 21 - t)):
            y[n, t + i] = x[n, 2 * (t + i) + 1]
""",
        {"x": Buffer("x", (2, 48)), "y": Buffer("y", (2, 21))},
    ),
    "blocks and a halo": (
        """
for c in range(20):
    for y in range(5):
        for x in range(7):
            out[c, y, x] = inp[c, y - 1, x] + inp[c, y + 1, x]
""",
        {
            "inp": Buffer("inp", (20, 5, 7), layout=Layout(((0, 16),), ((0, 0), (1, 1), (0, 0)))),
            "out": Buffer("out", (20, 5, 7), layout=Layout(((0, 16),), order=(1, 2, 0))),
        },
    ),
    "backwards, with steps": (
        """
for i in range(40, 3, -3):
    for j in range(1, 30, 2):
        y[i - 4, j] = x[i - 4] + float32(z[j // 4]) + w[i % 5, j]
""",
        {
            "x": Buffer("x", (40,), "float64"),
            "y": Buffer("y", (40, 32)),
            "z": Buffer("z", (16,), "bool"),
            "w": Buffer("w", (5, 30)),
        },
    ),
    "rows that are no whole lines": (
        """
for i in range(6):
    for j in range(4):
        for l in vector(8):
            y[i, j * 8 + l] = x[i, j * 8 + l] + x[i, j * 8 + l + 5] + x[i + 1, 3]
""",
        {"x": Buffer("x", (7, 37)), "y": Buffer("y", (6, 32))},
    ),
    "whole lines": (
        """
for i in parallel(6):
    for j in range(4):
        for l in vector(16):
            y[i, j * 16 + l] = x[i, j * 16 + l] + x[i, j * 16 + 64 + l]
""",
        {"x": Buffer("x", (6, 128)), "y": Buffer("y", (6, 64))},
    ),
    "conditions": (
        """
for i in range(8):
    if i % 2 == 0:
        for j in range(20):
            y[i, j] = x[i + j] if j >= 5 else 0.0
    else:
        for j in range(3):
            if not i == 3:
                y[i, j * 5] += x[j * i]
""",
        {"x": Buffer("x", (40,)), "y": Buffer("y", (8, 20))},
    ),
    "many elements of one line": (
        """
for i in range(5):
    for k in range(4):
        y[i] += x[i * 100 + k * 30] * x[k * 20]
""",
        {"x": Buffer("x", (600,)), "y": Buffer("y", (5,))},
    ),
}

Element = tuple[str, tuple[int, ...]]
Instance = tuple[Path, dict[str, int], list[Element]]


def instances(body: list[ast.stmt], prefix: Path = (), around: Mapping[str, int] = {}) -> Iterator[Instance]:
    """Every execution of a statement: its path, the loops' variables, and the elements that it touches."""

    def value(node: ast.expr) -> Any:
        return eval(unparse(node), {"min": min, "max": max}, dict(around))

    def touched(node: ast.AST) -> Iterator[Element]:
        if isinstance(node, ast.IfExp):
            yield from touched(node.body if value(node.test) else node.orelse)
            return
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            yield node.value.id, tuple(map(value, subscripts(node)))
        for child in children(node):
            yield from touched(child)

    def block(body: list[ast.stmt], field: str, path: Path) -> Iterator[Instance]:
        for index, node in enumerate(body):
            here = (*path, (field, index))
            if isinstance(node, ast.For):
                loop = loop_of(node)
                for each in range(value(loop.start), value(loop.stop), loop.step):
                    yield from instances(node.body, here, {**around, loop.var: each})
            elif isinstance(node, ast.If):
                yield here, dict(around), list(touched(node.test))
                yield from block(*((node.body, "body") if value(node.test) else (node.orelse, "orelse")), here)
            else:
                yield here, dict(around), list(touched(node))

    yield from block(body, "body", prefix)


def places(buffer: Buffer) -> dict[tuple[int, ...], int]:
    """The elements that may be read → bytes from the array's beginning."""
    limits = buffer.layout.readable(buffer.shape)
    padded = tuple(high - low for low, high in limits)
    numbers = np.arange(1, np.prod(padded) + 1).reshape(padded)
    in_memory = Layout(buffer.layout.blocks, (), buffer.layout.order).pack(numbers).ravel()
    at_number = {int(number): place for place, number in enumerate(in_memory) if number}
    return {
        tuple(int(i) + low for i, (low, _) in zip(index, limits, strict=True)): at_number[int(number)] * buffer.itemsize
        for index, number in np.ndenumerate(numbers)
    }


def seen(made: Program, loop: LoopFacts) -> tuple[list[set[Element]], list[set[Element]], list[set[Element]]]:
    """What each execution of a loop touches, each iteration, and each two neighbouring ones."""
    outer = [one.var for one in loop.around.loops]
    found: dict[tuple[int, ...], dict[int, set[Element]]] = defaultdict(dict)
    for path, values, elements in instances(loop.nest.body):
        if path[: loop.depth] == loop.path:
            execution = found[tuple(values[var] for var in outer)]
            execution.setdefault(values[loop.var], set()).update(e for e in elements if e[0] in made.buffers)
    whole = [set().union(*execution.values()) for execution in found.values()]
    single = [each for execution in found.values() for each in execution.values()]
    pairs = [
        one | two
        for execution in found.values()
        for (a, one), (b, two) in pairwise(execution.items())
        if b - a == loop.loop.step
    ]
    return whole, single, pairs


def assert_counted(buffers: Mapping[str, Buffer], touched: list[Footprint], found: list[set[Element]]) -> int:
    """Compare with what was seen; the number of claims of exactness that were met."""
    known, exact = {each.name: each for each in touched}, 0
    for name, buffer in buffers.items():
        at_byte = places(buffer)
        elements = {len({index for other, index in one if other == name}) for one in found}
        lines = {len({at_byte[index] // LINE for other, index in one if other == name}) for one in found}
        for sizes, (count, sure) in zip(
            (elements, lines),
            (known[name].elements, known[name].lines) if name in known else [(0, True)] * 2,
            strict=True,
        ):
            assert all(size <= count for size in sizes), (name, sizes, count)
            assert not sure or sizes <= {count}, (name, sizes, count)
            exact += sure and bool(sizes)
    return exact


def nest_of(name: str) -> tuple[Program, Nest]:
    text, buffers = CASES[name]
    made = parse_program(text, buffers)
    return made, made.nests[0]


@pytest.mark.parametrize("name", CASES)
def test_what_is_touched_is_what_running_touches(name: str) -> None:
    made, nest = nest_of(name)
    exact = 0
    for loop in facts(nest, made.buffers):
        ways = zip(
            (loop.in_all_iterations, loop.in_one_iteration, loop.in_two_iterations), seen(made, loop), strict=True
        )
        exact += sum(assert_counted(made.buffers, touched, found) for touched, found in ways)
    assert exact > 0


def counts(name: str, var: str) -> dict[str, list[tuple[int, bool]]]:
    """Buffer → elements of an execution, of an iteration, of two; and lines."""
    made, nest = nest_of(name)
    loop = next(loop for loop in facts(nest, made.buffers) if loop.var == var)
    found = [loop.in_all_iterations, loop.in_one_iteration, loop.in_two_iterations]
    return {
        each.name: [next(e for e in some if e.name == each.name).elements for some in found]
        + [next(e for e in some if e.name == each.name).lines for some in found]
        for each in found[0]
    }


def test_counts_are_exact_where_nothing_is_unknown() -> None:
    assert counts("whole lines", "i")["x"] == [(768, True), (128, True), (256, True), (48, True), (8, True), (16, True)]
    assert counts("whole lines", "j")["x"] == [(128, True), (32, True), (64, True), (8, True), (2, True), (4, True)]
    assert counts("a triangle", "i")["b"][0] == (45, True)  # k <= j
    assert counts("blocks and a halo", "x")["inp"][:3] == [(14, True), (2, True), (4, True)]
    eight = counts("rows that are no whole lines", "l")["y"]
    assert eight[0] == (8, True) and eight[3] == (2, False)  # where they begin in a line is not known


def test_loops_and_statements_are_those_of_the_text() -> None:
    for seed in range(40):
        for nest in ProgramMaker(random_pick(seed)).program().nests:
            tree = loop_tree(nest)
            assert [(path, loop.loop) for path, loop in tree.loops.items()] == [
                (path, loop_of(node)) for path, node in loops(nest.body)
            ]
            for statement in tree.statements:
                assert at(nest.body, statement.path) is statement.node
                assert all(tree.loops[path].loop == loop for path, loop in statement.loop_paths())
            for path, loop in tree.loops.items():
                assert all(s.path[: len(path)] == path and s.loops[loop.level] == loop.loop for s in loop.inside)
                assert loop.iteration.loops[:-1] == loop.around.loops
                node = at(nest.body, path)
                assert isinstance(node, ast.For) and loop.holds_one == (len(node.body) == 1)


@pytest.mark.parametrize("name", CASES)
def test_loops_are_entered_and_run_as_often_as_they_say(name: str) -> None:
    _, nest = nest_of(name)
    for path, loop in loop_tree(nest).loops.items():
        entered: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for where, values, _ in instances(nest.body):
            if where[: len(path)] == path:
                entered[tuple(values[one.var] for one in loop.around.loops)].add(values[loop.var])
        assert len(entered) <= loop.executions <= loop.entries
        assert max(map(len, entered.values())) <= loop.trips
        if loop.loop.extent is not None and loop.around.count[1]:
            assert len(entered) == loop.executions and {loop.trips} == set(map(len, entered.values()))


def test_a_tree_is_made_once_and_facts_once_for_each_layout() -> None:
    made, nest = nest_of("blocks and a halo")
    assert loop_tree(nest) is loop_tree(nest)
    first = facts(nest, made.buffers)
    assert facts(nest, dict(made.buffers))[0] is first[0]
    plain = {name: buffer.with_layout(Layout()) for name, buffer in made.buffers.items()}
    assert facts(nest, plain)[0] is not first[0]
    strides = (
        {use.access.name: use.stride for use in facts(nest, plain)[2].uses},
        {use.access.name: use.stride for use in first[2].uses},
    )
    assert strides == ({"inp": 1, "out": 1}, {"inp": 16, "out": 32})


def test_chains_regions_and_what_is_directly_inside() -> None:
    text = """
for a in range(2):
    for b in parallel(3):
        for c in parallel(4):
            x[a, b, c] = 0.0
    for d in parallel(5):
        x[a, 0, 0] += y[d]
        for e in range(6):
            x[a, 0, 0] += y[e]
"""
    made = parse_program(text, {"x": Buffer("x", (2, 3, 4)), "y": Buffer("y", (6,))})
    tree = loop_tree(made.nests[0])
    assert [[loop.var for loop in chain] for chain in tree.chains()] == [["a"], ["b", "c"], ["d"], ["e"]]
    assert [(loop.var, loop.entries) for loop in tree.regions()] == [("b", 2), ("d", 2)]
    (outer,) = tree.directly_inside()
    assert [tree.loops[path].var for path in tree.directly_inside(outer)] == ["b", "d"]
    sums = {statement.path: sum_loop(statement) for statement in tree.statements}
    assert [found and found[1].var for found in sums.values()] == [None, "d", "e"]


def test_lines_of_numbers() -> None:
    pick = np.random.default_rng(1)
    for _ in range(300):
        start, step, count, size = (int(pick.integers(low, high)) for low, high in ((-9, 40), (1, 40), (1, 9), (1, 17)))
        listed = start + step * np.arange(count)
        values = Values(start, step, count) if pick.random() < 0.5 else Values(start, 1, count, listed)
        assert set(values.in_lines(size, True).listed().tolist()) == set((listed // size).tolist())
        most = max(len(set(((listed + shift) // size).tolist())) for shift in range(size))
        assert values.in_lines(size, False).count == most
