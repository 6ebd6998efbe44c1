"""Operations and bytes of loops, against counting them one by one."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from swirl.analysis.domains import Domain
from swirl.analysis.enumeration import Values
from swirl.analysis.work import loop_works, operations_of, program_work
from swirl.codegen.physical import physical
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.names import whole_scope, with_distinct_names
from swirl.ir.nest import Nest, Program, names_in, parse_program, subscripts
from swirl.ir.paths import Path, loops, walk
from swirl.ir.trees import declared_in
from tests.fuzz.programs import ProgramMaker
from tests.support import program

Counted = tuple[int, int, dict[str, set[int]]]


class Counting(ast.NodeTransformer):
    """Makes a nest count its statements and the elements that they name, instead of computing."""

    def __init__(self, nest: Nest, buffers: dict[str, Buffer], pick: random.Random):
        self.paths = {id(node): path for path, node in walk(nest.body)}
        self.scope, self.buffers = whole_scope(nest, buffers), buffers
        self.locals = declared_in(nest.function)
        self.open: list[tuple[Path, dict[str, set[tuple[int, ...]]]]] = []
        self.executions: dict[Path, list[dict[str, set[tuple[int, ...]]]]] = defaultdict(list)
        self.operations: dict[Path, int] = defaultdict(int)
        self.pick = pick
        self.body = [part for statement in nest.body for part in self.counted(statement)]

    def run(self) -> None:
        kinds = dict.fromkeys(("parallel", "vector", "unrolled"), range)
        module = ast.fix_missing_locations(ast.Module(self.body, []))
        calls = (self.enter, self.leave, self.seen, self.any_case)
        # Arrays of integers may be subscripts: of zeros, each is the subscript of some element.
        integers = {n: np.zeros(b.shape, int) for n, b in self.buffers.items() if b.dtype == "int32"}
        names: dict[str, Any] = {**kinds, **{call.__name__: call for call in calls}, **integers}
        self.enter(())
        exec(compile(module, "nest", "exec"), names)
        self.leave()

    def enter(self, path: Path) -> None:
        self.open.append((path, defaultdict(set)))

    def leave(self) -> None:
        path, touched = self.open.pop()
        self.executions[path].append(touched)

    def any_case(self) -> bool:
        return self.pick.random() < 0.7

    def seen(self, operations: int, touched: list[tuple[str, tuple[int, ...]]]) -> None:
        for path, elements in self.open:
            self.operations[path] += operations
            for name, index in touched:
                elements[name].add(index)

    def counted(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.For):
            inner = [part for statement in node.body for part in self.counted(statement)]
            loop = ast.For(node.target, node.iter, inner, [])
            return [*ast.parse(f"enter({self.paths[id(node)]!r})").body, loop, *ast.parse("leave()").body]
        if isinstance(node, ast.If):
            test = ast.parse("any_case()", mode="eval").body if self.on_data(node.test) else node.test
            body = [part for statement in node.body for part in self.counted(statement)]
            orelse = [part for statement in node.orelse for part in self.counted(statement)]
            return [self.note(node.test), ast.If(test, body, orelse)]
        return [self.note(node)]

    def note(self, node: ast.AST) -> ast.stmt:
        return ast.parse(f"seen({operations_of(node, self.scope)}, [{self.touched(node)}])").body[0]

    def touched(self, node: ast.AST) -> str:
        """Elements of a list: the references that are evaluated; where data choose, of both branches."""
        if isinstance(node, ast.IfExp) and not self.on_data(node.test):
            body, orelse = self.touched(node.body), self.touched(node.orelse)
            return f"*([{body}] if {ast.unparse(node.test)} else [{orelse}])"
        if isinstance(node, ast.BoolOp) and not self.on_data(node.values[0]):
            first, *others = node.values
            rest = self.touched(others[0] if len(others) == 1 else ast.BoolOp(node.op, others))
            no = "" if isinstance(node.op, ast.And) else "not "
            return f"*([{rest}] if {no}({ast.unparse(first)}) else [])"
        parts = []
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in self.buffers:
            parts.append(f"({node.value.id!r}, ({', '.join(map(ast.unparse, subscripts(node)))},))")
        parts += [self.touched(child) for child in ast.iter_child_nodes(node)]
        return ", ".join(part for part in parts if part)

    def on_data(self, test: ast.expr) -> bool:
        return any(isinstance(n, ast.Subscript) for n in ast.walk(test)) or bool(names_in(test) & self.locals)


def check(made: Program, seed: int = 0) -> int:
    """Compare with counting; the number of claims of exactness that were met."""
    exact = 0
    total: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    operations = 0
    for nest in map(with_distinct_names, made.nests):  # a name in it is a loop, or locals
        counting = Counting(nest, dict(made.buffers), random.Random(seed))
        counting.run()
        operations += counting.operations[()]
        for name, elements in counting.executions[()][0].items():
            total[name] |= elements
        for (path, _), work in zip(loops(nest.body), loop_works(nest, made.buffers), strict=True):
            found = counting.executions[path]
            if work.exact:
                assert work.operations == counting.operations[path], nest.text
                exact += 1
            else:
                assert work.operations >= counting.operations[path], nest.text
            for touched in work.touched:
                size = np.dtype(made.buffers[touched.buffer].dtype).itemsize
                sizes = {size * len(elements[touched.buffer]) for elements in found}
                if touched.exact and sizes:
                    assert sizes == {touched.bytes}, (touched, path, nest.text)
                    exact += 1
                assert all(one <= touched.bytes for one in sizes), (touched, path, nest.text)
    work = program_work(made)
    assert work.operations == operations if work.exact else work.operations >= operations
    for touched in work.touched:
        size = np.dtype(made.buffers[touched.buffer].dtype).itemsize * len(total[touched.buffer])
        assert touched.bytes == size if touched.exact else touched.bytes >= size, (touched, made.text)
        exact += touched.exact
    return exact


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    pick = random.Random(seed)
    check(ProgramMaker(pick.choice).program(), seed)


def test_a_matrix_product() -> None:
    made = program(
        """
for i in range(5):
    for j in range(7):
        for k in range(3):
            c[i, j] += a[i, k] * b[k, j]
""",
        a=(5, 3),
        b=(3, 7),
        c=(5, 7),
    )
    whole = program_work(made)
    assert (whole.operations, whole.exact) == (2 * 5 * 7 * 3, True)
    assert {t.buffer: (t.bytes, t.exact, t.written) for t in whole.touched} == {
        "a": (60, True, False),
        "b": (84, True, False),
        "c": (140, True, True),
    }
    inner = loop_works(made.nests[0], made.buffers)[2]
    assert inner.executions == 35
    assert {t.buffer: t.bytes for t in inner.touched} == {"a": 12, "b": 12, "c": 4}
    assert check(made) > 0


@pytest.mark.parametrize("extent", [1, 2, 7, 16, 17])
def test_a_clipped_window(extent: int) -> None:
    made = program(
        f"""
for y in range({extent}):
    for ky in range(max(0, 1 - y), min(3, {extent + 1} - y)):
        for x in range({extent}):
            for kx in range(3):
                if x + kx >= 1 and x + kx < {extent + 1}:
                    out[y, x] += w[ky, kx] * inp[y + ky - 1, x + kx - 1]
""",
        out=(extent, extent),
        w=(3, 3),
        inp=(extent, extent),
    )
    work = program_work(made)
    taps = sum(1 for y in range(extent) for k in range(3) if 0 <= y + k - 1 < extent)
    assert (work.operations, work.exact) == (2 * taps * taps, True)
    assert all(touched.exact for touched in work.touched)
    check(made)


@pytest.mark.parametrize(("extent", "factor"), [(16, 4), (17, 4), (1, 8), (15, 16)])
def test_blocks_and_tails(extent: int, factor: int) -> None:
    buffers = {"y": Buffer("net.y", (3, extent), layout=Layout(((1, factor),))), "x": Buffer("net.x", (3, extent))}
    made = physical(
        parse_program(
            f"""
for i in parallel(3):
    for k in range(0, {extent}, {factor}):
        for lane in vector(min({factor}, {extent} - k)):
            y[i, k + lane] = max(x[i, k + lane], 0.0)
""",
            buffers,
        )
    )
    work = program_work(made)
    assert (work.operations, work.exact) == (3 * extent, True)
    assert {t.buffer: (t.bytes, t.exact) for t in work.touched} == {
        "y": (3 * extent * 4, True),
        "x": (3 * extent * 4, True),
    }
    check(made)


def test_what_depends_on_data_is_a_bound() -> None:
    made = program(
        """
for i in range(9):
    if x[i] > 0.0:
        y[i] = x[i] * 2.0
""",
        x=(9,),
        y=(9,),
    )
    work = program_work(made)
    assert (work.operations, work.exact) == (9, False)
    assert {t.buffer: t.exact for t in work.touched} == {"x": True, "y": False}


def test_a_streaming_store_computes_nothing() -> None:
    made = program("for i in range(9):\n    y[i] = stream(float32(i) * x[i])", x=(9,), y=(9,))
    assert program_work(made).operations == 9


def test_large_layers_are_counted_without_visiting_them() -> None:
    made = program(
        """
for n in range(64):
    for k in range(256):
        for p in range(3136):
            for c in range(64):
                out[n, k, p] += w[k, c] * inp[n, c, p]
""",
        out=(64, 256, 3136),
        w=(256, 64),
        inp=(64, 64, 3136),
    )
    work = program_work(made)
    assert (work.operations, work.exact) == (2 * 64 * 256 * 3136 * 64, True)
    assert work.bytes == 4 * (64 * 256 * 3136 + 256 * 64 + 64 * 64 * 3136)
    flat = program("for i in range(100000000):\n    y[i] = x[i]", x=(100000000,), y=(100000000,))
    assert program_work(flat).bytes == 800000000


def test_values() -> None:
    """Sets of sums, in closed form and listed."""
    generator = random.Random(1)
    for _ in range(300):
        a = Values(generator.randint(-5, 5), generator.randint(1, 4), generator.randint(1, 6))
        b = Values(generator.randint(-5, 5), generator.randint(1, 4), generator.randint(1, 6))
        c = generator.randint(-7, 7)
        found = a.plus(c, b)
        assert found is not None
        expected = sorted({x + c * y for x in a.listed().tolist() for y in b.listed().tolist()})
        assert found.listed().tolist() == expected and found.count == len(expected)
        assert a.union(b).listed().tolist() == sorted({*a.listed().tolist(), *b.listed().tolist()})
        assert a.within(6).listed().tolist() == [v for v in a.listed().tolist() if 0 <= v < 6]
        assert a.meets(b) == bool({*a.listed().tolist()} & {*b.listed().tolist()})


def test_a_domain_without_loops_is_one_point() -> None:
    assert Domain(()).count == (1, True)
