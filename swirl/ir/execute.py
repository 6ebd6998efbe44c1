"""Running programs: the definition of what a nest means.

Execution compiles the printed nests with Python definitions of the loop kinds and calls; ``vector`` loops run each
statement for all lanes before the next one. *Checking* execution makes wrong schedules visible: ``parallel`` loops run
in a seeded shuffled order and what an iteration touches is compared with the others; locals read before they are
written are NaN. *Rational* arithmetic executes over ``fractions.Fraction``, where equality is exact.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from swirl.errors import LatteError
from swirl.ir.arithmetic import Literals, calls
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.names import buffers_in_scope
from swirl.ir.nest import Program, clone, local_type, loop_of, names_in
from swirl.ir.trees import Transformer, as_value, declared_in, located
from swirl.ir.types import Conversions, is_float

Element = tuple[str, Any]
"""An array's name, and one index or several."""


class RaceError(LatteError):
    """Two iterations of a parallel loop touched the same element, one of them writing."""


def _loops() -> dict[str, Callable[..., Any]]:
    def plain(*args: int, **_: object) -> range:
        return range(*(int(arg) for arg in args))

    return {"range": plain, "parallel": plain, "vector": plain, "unrolled": plain}


class _Python(Transformer):
    """Declarations as Python runs them, and rational division."""

    def __init__(self, rational: bool):
        self.rational = rational

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        assert node.value is not None
        kind = local_type(node)
        if not kind.shape:
            return ast.Assign([node.target], self.visit(node.value))
        extents: list[ast.expr] = [ast.Constant(extent) for extent in kind.shape]
        return ast.Assign([node.target], ast.Call(ast.Name(f"empty_{kind.dtype}", ast.Load()), extents, []))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if self.rational and isinstance(node.op, ast.Div):  # of two ints, too
            return ast.Call(ast.Name("rational_quotient", ast.Load()), [node.left, node.right], [])
        return node


# --- halos ----------------------------------------------------------------------------------------------
class _Padded:
    """An array whose halo may be read: it is zero."""

    def __init__(self, name: str, array: np.ndarray, layout: Layout):
        self.name, self.array, self.shape = name, array, array.shape
        self.readable = layout.readable(array.shape)

    def __getitem__(self, index: Any) -> Any:
        index = _as_tuple(index)
        if all(0 <= i < extent for i, extent in zip(index, self.shape, strict=True)):
            return self.array[index]
        if not all(low <= i < high for i, (low, high) in zip(index, self.readable, strict=True)):
            raise LatteError(f"{self.name}{list(map(int, index))} is outside its shape {self.shape} and its halo")
        return Fraction(0) if self.array.dtype == object else self.array.dtype.type(0)

    def __setitem__(self, index: Any, value: Any) -> None:
        index = _as_tuple(index)
        if not all(0 <= i < extent for i, extent in zip(index, self.shape, strict=True)):
            raise LatteError(f"{self.name}{list(map(int, index))} is outside its shape {self.shape}, and written")
        self.array[index] = value


# --- checking -------------------------------------------------------------------------------------------
class _Iteration:
    """What an iteration of a parallel loop has touched."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: set[Element] = set()
        self.writes: set[Element] = set()


class _Recorded:
    """An array that tells what is read and written to the iterations around the current statement."""

    __slots__ = ("_around", "_array", "_name", "_read", "_readable", "_whole", "_written", "shape")

    def __init__(self, name: str, array: np.ndarray | _Padded, around: list[_Iteration]):
        self._name, self._array, self._around = name, array, around
        self.shape = array.shape
        self._whole = tuple((0, extent) for extent in array.shape)
        self._readable = array.readable if isinstance(array, _Padded) else self._whole
        # Those that have been found inside: most elements are touched many times.
        self._read: set[Any] = set()
        self._written: set[Any] = set()

    def _check(self, index: Any, limits: tuple[tuple[int, int], ...]) -> None:
        where = _as_tuple(index)
        inside = len(where) == len(limits)
        for i, (low, high) in zip(where, limits, strict=False):
            inside = inside and low <= i < high
        if not inside:
            raise LatteError(f"{self._name}{[int(i) for i in where]} is outside its shape {self.shape}")

    def __getitem__(self, index: Any) -> Any:
        if index not in self._read:
            self._check(index, self._readable)
            self._read.add(index)
        for iteration in self._around:
            iteration.reads.add((self._name, index))
        return self._array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if index not in self._written:
            self._check(index, self._whole)
            self._written.add(index)
        for iteration in self._around:
            iteration.writes.add((self._name, index))
        self._array[index] = value


def _as_tuple(index: Any) -> tuple[int, ...]:
    return index if isinstance(index, tuple) else (index,)


def _recording(
    make: Callable[..., np.ndarray], around: list[_Iteration], numbers: Iterator[int]
) -> Callable[..., _Recorded]:
    """Local arrays that record reads and writes; each array made is a different one, of any type."""
    return lambda *shape: _Recorded(f"local_{next(numbers)}", make(*shape), around)


def _parallel(around: list[_Iteration], shuffle: random.Random, *args: int, **_: object) -> Iterator[int]:
    """Iterations in shuffled order; after each, what it touched is compared with the earlier ones."""
    order = list(range(*(int(arg) for arg in args)))
    shuffle.shuffle(order)
    owner: dict[Element, int] = {}
    readers: dict[Element, int] = {}
    for number in order:
        iteration = _Iteration()
        around.append(iteration)
        yield number
        around.pop()
        for element in iteration.writes:
            other = owner.get(element, readers.get(element))
            if other is not None and other != number:
                raise _race(other, number, element)
        for element in iteration.reads:
            if owner.get(element, number) != number:
                raise _race(owner[element], number, element)
        owner |= dict.fromkeys(iteration.writes, number)
        readers |= dict.fromkeys(iteration.reads, number)


def _race(one: int, two: int, element: Element) -> RaceError:
    name, index = element
    return RaceError(f"iterations {one} and {two} of a parallel loop share {name}{list(_as_tuple(index))}")


class _Lanes(Transformer):
    """Distributes each vector loop over its statements, and each statement over what it computes and what it stores; a
    local declared in one becomes an array with one element for each lane."""

    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        loop = loop_of(node)
        if loop.kind != "vector":
            self.generic_visit(node)
            return node
        declared = declared_in(node)
        result = [ast.parse(f"{name} = dict()").body[0] for name in (_computed(loop.var), *sorted(declared))]
        result += self._each(node.body, loop.node, loop.var, declared)
        return result

    def _each(
        self, body: list[ast.stmt], head: Callable[[list[ast.stmt]], ast.For], lane: str, declared: set[str]
    ) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.If):
                mask = f"mask_of_{lane}_{id(statement)}"
                result.append(ast.parse(f"{mask} = dict()").body[0])
                test = ast.parse(f"{mask}[{lane}] = 0").body[0]
                assert isinstance(test, ast.Assign)
                test.value = _subscript_locals(clone(statement.test), declared, lane)
                result.append(head([test]))
                for name, branch in (("", statement.body), ("not ", statement.orelse)):
                    for inner in self._each(branch, head, lane, declared):
                        if not isinstance(inner, ast.For):  # the mask of a condition inside
                            result.append(inner)
                            continue
                        guard = ast.parse(f"{name}{mask}[{lane}]", mode="eval").body
                        result.append(head([ast.If(guard, inner.body, [])]))
            else:
                result += map(head, _in_steps(_subscript_locals(clone(statement), declared, lane), lane))
        return result


def _in_steps(statement: ast.stmt, lane: str) -> list[list[ast.stmt]]:
    """The parts of a statement that all lanes do one after the other: all have read before the first one stores."""
    if isinstance(statement, ast.Assign):
        (target,), value = statement.targets, statement.value
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
        value = ast.BinOp(as_value(target), statement.op, statement.value)
    else:
        return [[statement]]
    computed = ast.Subscript(ast.Name(_computed(lane), ast.Load()), ast.Name(lane, ast.Load()), ast.Store())
    return [[ast.Assign([computed], value)], [ast.Assign([target], as_value(computed))]]


def _computed(lane: str) -> str:
    """What the lanes have computed and not yet stored."""
    return f"computed_by_{lane}"


def _subscript_locals(tree: Any, declared: set[str], lane: str) -> Any:
    class Rewrite(Transformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id not in declared:
                return node
            return ast.Subscript(ast.Name(node.id, ast.Load()), ast.Name(lane, ast.Load()), node.ctx)

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
            assert node.value is not None
            call = ast.Call(node.annotation, [self.visit(node.value)], [])
            return ast.Assign([self.visit(node.target)], call)

    return Rewrite().visit(tree)


# --- entry ----------------------------------------------------------------------------------------------
def execute(
    program: Program,
    arrays: Mapping[str, np.ndarray],
    *,
    checking: bool = False,
    arithmetic: str = "typed",
    seed: int = 0,
) -> None:
    """Run a program on arrays, in place.

    Args:
        program: nests that reference buffers logically (or physically, after layouts).
        arrays: name in the nests → array of the buffer's shape; object arrays of ``Fraction`` for rational
            arithmetic. Temporary buffers may be left out.
        checking: shuffle parallel loops and find races, check subscripts.
        arithmetic: ``typed``, each expression in its own type, as ``docs/ir.md`` says; ``float64``, every
            floating-point number a double; or ``rational``, every one a fraction, ``sqrt`` and its like stand-ins.
        seed: of the shuffling.

    Raises:
        RaceError: two iterations of a parallel loop share an element (checking mode).
    """
    environment = _loops() | calls(arithmetic)
    given = _arrays(program, arrays, arithmetic)
    if checking:
        given = _watched(given, environment, seed)
    rational = arithmetic == "rational"
    around = buffers_in_scope(program.buffers)
    with np.errstate(all="ignore"):
        for nest in program.nests:
            literals = Literals({dtype: environment[dtype] for dtype in DTYPES}, rational)
            body = Conversions(literals.leaf, fold=not rational).block(nest.body, around)
            function = _Python(rational).visit(_Lanes().visit(clone(nest.with_body(body).function)))
            module = ast.Module([located(function)], [])
            scope = environment | literals.numbers
            exec(compile(module, f"<{nest.label}>", "exec"), scope)
            scope[nest.label](*(given[name] for name in nest.arguments))


def _arrays(program: Program, arrays: Mapping[str, np.ndarray], arithmetic: str) -> dict[str, Any]:
    """The arrays that the nests touch: those given, temporary ones made, those with a halo readable there."""
    names = {name for nest in program.nests for name in nest.arguments}
    own = {
        name: _garbage(program.buffers[name], arithmetic)
        for name in sorted(names - set(arrays))
        if name in program.buffers and program.buffers[name].role == "temporary"
    }
    missing = sorted(names - set(arrays) - set(own))
    if missing:
        raise LatteError(f"{program.name}: no array given for {', '.join(missing)}")
    given: dict[str, Any] = {name: own[name] if name in own else arrays[name] for name in names}
    for name in names & set(program.buffers):
        layout = program.buffers[name].layout
        if layout.halo:
            given[name] = _Padded(name, given[name], layout)
    return given


def _watched(arrays: Mapping[str, Any], environment: dict[str, Any], seed: int) -> dict[str, Any]:
    """The arrays, and in ``environment`` local arrays and parallel loops, that make races visible."""
    around: list[_Iteration] = []
    shuffle, numbers = random.Random(seed), itertools.count(1)
    environment["parallel"] = lambda *args, **options: _parallel(around, shuffle, *args, **options)
    for dtype in DTYPES:
        environment[f"empty_{dtype}"] = _recording(environment[f"empty_{dtype}"], around, numbers)
    return {name: _Recorded(name, array, around) for name, array in arrays.items()}


def _garbage(buffer: Buffer, arithmetic: str) -> np.ndarray:
    """A temporary array with arbitrary contents, so that reads before writes show."""
    if arithmetic == "rational":
        return np.full(buffer.shape, Fraction(-987654321, 7), dtype=object)
    dtype = np.dtype(DTYPES[buffer.dtype])
    return np.full(buffer.shape, np.nan if dtype.kind == "f" else 1, dtype=dtype)


def random_arrays(program: Program, seed: int = 0, arithmetic: str = "typed") -> dict[str, np.ndarray]:
    """Arrays for every buffer a program touches: small integers (exact in float32). In rational arithmetic ints, and
    Fractions where they may meet integers of NumPy, which overflow."""
    generator = np.random.default_rng(seed)
    touched = {name for nest in program.nests for name in names_in(nest.function) if name in program.buffers}
    floats = all(is_float(program.buffers[name].dtype) for name in touched)
    result = {}
    for name in sorted(touched):
        buffer = program.buffers[name]
        if arithmetic == "rational" and is_float(buffer.dtype):
            values = generator.integers(-30, 31, buffer.shape)
            result[name] = values.astype(object) if floats else np.vectorize(Fraction, otypes=[object])(values, 7)
        else:
            values = generator.integers(-4, 5, buffer.shape)
            result[name] = values.astype({"bool": np.bool_}.get(buffer.dtype, buffer.dtype))
    return result
