"""One random body: derived, and its gradients compared with differences in float64.

The forward program that derivation extends must compute the same bits. A gradient is compared along random directions
``d``: with ``(f(x + h d) - f(x - h d)) / 2 h`` for two steps ``h``, where the two agree and both sides have the same
slope. Else a branch or a maximum changes sides there, and the direction is skipped.
"""

from __future__ import annotations

import ast
import linecache
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latte import MemoryDataLayer, Net
from latte.autodiff import Derived, derive
from latte.frontend.lower import lower
from swirl.errors import DerivativeError, LatteError
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute
from swirl.ir.nest import Program, parse_program
from swirl.ir.operations import FUNCTIONS
from swirl.ir.trees import as_value
from swirl.ir.validate import validate
from tests.fuzz.derivative_cases import ROWS, SHAPES, STEPS, WRITTEN, Writer
from tests.fuzz.derivative_shrink import shrunk

COARSE, FINE = 1e-5, 1e-6
AGREE = 1e-6
"""Differences at the two steps: truncation is at most COARSE² and rounding 1e-16 / FINE, times moderate factors."""
BOUND = 1e-5
LARGEST = 1e5
"""Values beyond it have no digits left for differences."""
DIRECTIONS = 2
THERE = 0.75
"""What others have put into a gradient that a case adds to."""

Arrays = dict[str, np.ndarray]


@dataclass
class Outcome:
    """The outcome of a case: ``wrong`` is None if nothing is; ``counts`` are of cases and directions."""

    wrong: str | None = None
    counts: Counter[str] = field(default_factory=Counter)


# --- programs -----------------------------------------------------------------------------------------------
def program_of(source: str) -> Program:
    """The forward program of a text in doubles."""
    roles = {"w": "param", "value": "value", "inputs": "value", "powers": "state"}
    buffers = {
        name: Buffer(
            "source.value" if name == "inputs" else f"layer.{name}",
            shape,
            "int32" if name == "powers" else "float64",
            roles.get(name, "temporary"),
        )
        for name, shape in SHAPES.items()
    }
    return validate(parse_program(source, buffers, name="layer.forward"))


def lowered(source: str) -> Program:
    """The same body as an ensemble's, through the frontend; then in doubles."""
    lines = (re.sub(r": (float64|int32|bool) =", " =", line) for line in source.splitlines())
    body = "\n".join(f"        {line}" for line in lines)
    fields = ", ".join(name for name in SHAPES if name not in ("inputs", "value"))
    text = (
        "from latte import *\nfrom latte.ensemble import Ensemble\n"
        "from latte.neuron import Field, Param, State, zeros\n"
        "from latte.neuron import atan, cos, erf, exp, expm1, log, log1p, sin, sqrt, tanh\n\n\n"
        "class Layer(Ensemble):\n"
        '    w = Param("i", init=zeros)\n    h = Field("n", "i")\n    s = Field("n")\n    u = Field("i")\n'
        '    powers = State("i", dtype="int32")\n\n'
        f"    def forward(self, inputs, value, {fields}):\n"
        f"{body}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.py"
        path.write_text(text)
        scope: dict[str, Any] = {"__name__": "layer"}
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        exec(compile(text, str(path), "exec"), scope)
        net = Net(ROWS, seed=1)
        data = MemoryDataLayer(net, (STEPS,))
        layer = net.add_ensemble(scope["Layer"](shape=(STEPS,), dims=("i",), name="layer"))
        net.add_connections(data, layer, lambda *_: None)
        program = lower(layer, "forward", batch_size=ROWS)
    doubles = program.text.replace("float32", "float64")
    buffers = {
        name: Buffer(buffer.name, buffer.shape, buffer.dtype.replace("float32", "float64"), buffer.role)
        for name, buffer in program.buffers.items()
    }
    return validate(parse_program(doubles, buffers, name=program.name))


# --- running ------------------------------------------------------------------------------------------------
class _Declared(ast.NodeTransformer):
    """Declarations convert to their type; divisions are calls, which have a result by zero, too; what is stored is
    noted."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        return ast.Call(ast.Name("divide", ast.Load()), [node.left, node.right], [])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        assert node.value is not None
        value = self.visit(node.value)
        if isinstance(node.annotation, ast.Name):
            value = ast.Call(node.annotation, [value], [])
        return ast.Assign([node.target], _noted(value))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        return ast.Assign(node.targets, _noted(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        return self.visit_Assign(ast.Assign([node.target], ast.BinOp(as_value(node.target), node.op, node.value)))


class _Noted(ast.NodeTransformer):
    """Results of arithmetic are noted, but not first values: of a maximum, it is minus infinity."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return ast.Call(ast.Name("noted", ast.Load()), [node], [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node


def _noted(value: ast.expr) -> ast.expr:
    result: ast.expr = _Noted().visit(value)
    return result


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def call(first: Any, *others: Any) -> Any:
        for other in others:
            first = first if better(first, other) or first != first else other
        return first

    return call


DOUBLES: dict[str, Callable[..., Any]] = {
    **{name: function.floating for name, function in FUNCTIONS.items()},
    "abs": np.abs,
    "divide": np.divide,
}
CALLS: dict[str, Any] = {
    "max": _extreme(lambda a, b: a > b),
    "min": _extreme(lambda a, b: a < b),
    "float64": np.float64,
    "float32": np.float64,
    "int32": lambda x: np.int32(int(x)),
    "bool": bool,
    "empty": lambda *shape: np.full(shape, np.nan),
    "INFINITY": np.float64(np.inf),
}


class Runner:
    """A program translated once, to be run many times (``execute`` translates it each time)."""

    def __init__(self, program: Program):
        self.program = program
        self.finite = True
        """Whether everything that the last run computed was finite: the gradient of 0 times infinity is not a
        number."""
        self.calls: list[tuple[Callable[..., None], tuple[str, ...]]] = []
        for nest in program.nests:
            scope = {**CALLS, **{name: self._double(function) for name, function in DOUBLES.items()}}
            scope["noted"] = self._noted
            tree = _Declared().visit(ast.parse(nest.text))
            exec(compile(ast.fix_missing_locations(tree), nest.label, "exec"), scope)
            self.calls.append((scope[nest.label], nest.arguments))

    def _double(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return self._noted(function(*map(np.float64, args)))

        return call

    def _noted(self, value: Any) -> Any:
        self.finite = self.finite and bool(np.isfinite(value))
        return value

    def run(self, known: Arrays) -> Arrays:
        self.finite = True
        arrays = _filled(self.program, known)
        with np.errstate(all="ignore"):
            for function, names in self.calls:
                function(*(arrays[name] for name in names))
        return {**known, **arrays}


def executed(program: Program, known: Arrays) -> Arrays:
    """The arrays after a derived phase, every subscript of it inside its shape."""
    arrays = _filled(program, known)
    execute(validate(program), arrays, checking=True, arithmetic="float64")
    return {**known, **arrays}


def _filled(program: Program, known: Arrays) -> Arrays:
    """Copies of known arrays; all others hold what a program must not read before it writes."""
    return {
        name: known[name].copy()
        if name in known
        else np.full(buffer.shape, np.nan if buffer.dtype == "float64" else 7, buffer.dtype)
        for name, buffer in program.buffers.items()
    }


def data(seed: int, special: bool) -> Arrays:
    """Contents of the inputs; ``special``: small whole numbers, many of them zero."""
    generator = np.random.default_rng(seed)
    known = {name: generator.normal(size=SHAPES[name]) for name in ("inputs", "w")}
    if special:
        known = {name: generator.integers(-1, 2, SHAPES[name]).astype(float) for name in known}
    known["powers"] = generator.integers(0, 4, SHAPES["powers"]).astype(np.int32)
    return known


# --- checking -----------------------------------------------------------------------------------------------
def check(program: Program, seed: int, special: bool = False) -> Outcome:
    """Derive ``program`` and compare; the counts are in the summary of ``run.py``."""
    outcome = Outcome()
    counts = outcome.counts
    try:
        derived = derive(program, inputs=["inputs"], params=["w"], add_to=["inputs"] if adds(seed) else [])
    except DerivativeError as error:
        counts[f"refused: {_kind(error)}"] += 1
        if error.line is None:
            outcome.wrong = f"refusal without a line: {error}"
        return outcome
    except LatteError:
        raise
    except Exception as error:
        outcome.wrong = f"{type(error).__name__} in derive: {error}"
        return outcome
    counts["derived"] += 1
    counts["with values kept one an iteration"] += any("is kept as kept_" in note for note in derived.notes)
    try:
        _compare(program, derived, seed, special, outcome)
    except LatteError as error:
        outcome.wrong = f"invalid: {error}"
    except (NameError, IndexError, ValueError, ZeroDivisionError, OverflowError) as error:
        outcome.wrong = f"{type(error).__name__}: {error}"
    return outcome


def adds(seed: int) -> bool:
    """Whether the gradients of a case are added to what other readers and earlier steps have left."""
    return seed % 3 == 0


def _kind(error: DerivativeError) -> str:
    """The message without names and numbers."""
    parts = error.message.split("`")
    return "…".join(parts[::2]).strip()


def _compare(program: Program, derived: Derived, seed: int, special: bool, outcome: Outcome) -> None:
    counts = outcome.counts
    start = data(seed, special)
    plain = Runner(program)
    before = plain.run(start)
    finite = plain.finite
    touched = {name for nest in program.nests for name in nest.arguments}
    largest = np.max([np.abs(before[name]).max() for name in WRITTEN if name in touched])
    if not finite or not largest < LARGEST:
        counts["skipped: values too large or not finite"] += 1
        return
    counts["compared"] += 1
    after = executed(derived.forward, start)
    for name in program.buffers:
        if not np.array_equal(before[name], after[name], equal_nan=True):
            outcome.wrong = f"forward: {name} is not the same"
            return
    weights = np.random.default_rng(seed + 1).normal(size=SHAPES["value"])
    gradients: Arrays = {}
    for phase, name in ((derived.update, "w"), (derived.backward, "inputs")):
        given = {**after, "grad": weights, "accumulate": np.full(1, adds(seed), np.int32)}
        if adds(seed):
            given[f"grad_{name}"] = np.full(SHAPES[name], THERE)
        got = executed(phase, given) if phase is not None else given
        for untouched in (*SHAPES, "grad"):
            if untouched in given and not np.array_equal(got[untouched], given[untouched], equal_nan=True):
                outcome.wrong = f"{name}: {untouched} is written by a derived phase"
                return
        gradients[name] = got.get(f"grad_{name}", np.zeros(SHAPES[name])) - THERE * adds(seed)
    generator = np.random.default_rng(seed + 2)
    base = (before["value"] * weights).sum()
    for name, gradient in gradients.items():
        for _ in range(DIRECTIONS):
            direction = generator.normal(size=SHAPES[name])

            def result(step: float, name: str = name, direction: np.ndarray = direction) -> float:
                return float((plain.run({**start, name: start[name] + step * direction})["value"] * weights).sum())

            counts["directions"] += 1
            slopes = [(result(h) - result(-h)) / (2 * h) for h in (COARSE, FINE)]
            sides = [(result(FINE) - base) / FINE, (base - result(-FINE)) / FINE]
            scale = 1 + abs(slopes[0])
            smooth = abs(slopes[0] - slopes[1]) < AGREE * scale and abs(sides[0] - sides[1]) < 1e-4 * scale
            if not smooth:
                counts["directions skipped"] += 1
                continue
            along = (gradient * direction).sum()
            if not np.isfinite(gradient).all():
                outcome.wrong = f"gradient of {name} is not finite where the function is smooth"
                return
            if not special and not abs(along - slopes[0]) < BOUND * scale:
                outcome.wrong = f"gradient of {name}: {along} along a direction, the difference is {slopes[0]}"
                return


# --- cases --------------------------------------------------------------------------------------------------
def case_of(seed: int) -> tuple[str, bool, bool]:
    """Text of a seed's body, whether it goes through the frontend, whether its inputs are special."""
    language, special = seed % 4 == 3, seed % 5 == 4
    return Writer(seed, layer=language).program(), language, special


def problem(source: str, seed: int, language: bool, special: bool) -> Outcome:
    """What is wrong with the derivatives of a text."""
    if language:
        try:
            program = lowered(source)
        except LatteError as error:
            return Outcome(None, Counter({f"not lowered: {type(error).__name__}": 1}))
    else:
        program = program_of(source)
    found = check(program, seed, special)
    found.counts["through the frontend"] += language
    found.counts["special points"] += special
    return found


def run_derivatives(first: int, count: int) -> dict[str, Any]:
    """Counts, and what went wrong, of the cases ``first`` … ``first + count - 1``."""
    counts = Counter[str](cases=count)
    wrong = []
    for seed in range(first, first + count):
        source, language, special = case_of(seed)
        found = problem(source, seed, language, special)
        counts.update(found.counts)
        if found.wrong is not None:
            if len(wrong) < 3:
                source = shrunk(source, partial(_wrong, seed=seed, language=language, special=special))
            what = problem(source, seed, language, special).wrong or found.wrong
            wrong.append({"seed": seed, "what": what, "test": test_of(source, seed, language, special, what)})
    return {"counts": dict(counts), "wrong": wrong}


def _wrong(source: str, seed: int, language: bool, special: bool) -> str | None:
    return problem(source, seed, language, special).wrong


def test_of(source: str, seed: int, language: bool, special: bool, what: str) -> str:
    """A test for tests/regress of a failing text."""
    return (
        f'def test_found_by_fuzzing_{seed}() -> None:\n    """{what.splitlines()[0]}"""\n'
        f'    source = """\n{source}"""\n'
        f"    assert problem(source, {seed}, {language}, {special}).wrong is None\n"
    )
