"""The nests of a solver: for each parameter one, compiled and run as one phase."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from latte.frontend.steps import SHRINK, Number, Rule, Step, adjusted, lower_step
from latte.model.source_location import user_location
from latte.planning.defaults.schedule import with_defaults
from latte.runtime.report import make_report
from latte.runtime.session import Session
from swirl.errors import TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.nest import Program, counting, make_nest, nested, stmts
from swirl.jit import Kernel, build, load
from swirl.memory import allocate
from swirl.pipeline import finish, generate, schedule_alone
from swirl.recipe import Recipe, Schedule
from swirl.runner import Phase
from swirl.target import Target

CHUNK = 4096
"""Elements that a thread takes at once; sums are divided in the same way, whatever the number of threads."""


@dataclass(frozen=True)
class _Compiled:
    """Kernels for one choice of what is done to gradients first.

    Args:
        phase: of all parameters.
        numbers: dtype → name → number, with the array that the kernels read.
        adjusted: dtype → adjustment → the array that the kernels read.
        sums: of the squares of gradients, of each chunk; only in the phase that computes them.
    """

    phase: Phase
    numbers: Mapping[str, Mapping[str, tuple[Number, np.ndarray]]]
    adjusted: Mapping[str, Mapping[str, np.ndarray]]
    sums: tuple[np.ndarray, ...] = ()


class Updates:
    """The nests of one solver for one net, and what it keeps.

    Args:
        session: of the net.
        rule: what is done to one element.
        keeps_zeros: whether padding of parameters stays zero if the rule is applied to it.

    Raises:
        TrainingError: the net has no parameters to train.
    """

    def __init__(self, session: Session, rule: Rule, keeps_zeros: bool):
        self._session, self._rule, self._keeps_zeros = session, rule, keeps_zeros
        buffers = session.executable.buffers
        self._parameters = [
            name for name, buffer in buffers.items() if buffer.role == "param" and gradient_of(name) in buffers
        ]
        if not self._parameters:
            raise TrainingError(
                "the net has no parameters to train",
                location=user_location(),
                way_out="add a layer that has some, FullyConnectedLayer for one",
            )
        arrays = session.executable.arrays
        occurring = lower_step(rule, "float32", ("i",), ()).arrays
        self._kept_names = [name for name in rule.kept if name in occurring]
        sizes = {
            f"{kept}.{name}": ((arrays[name].size,), arrays[name].dtype.type)
            for kept in self._kept_names
            for name in self._parameters
        }
        self._kept = allocate(sizes, session.runner) if sizes else {}
        self._compiled: dict[tuple[str, ...], _Compiled] = {}
        self._values: dict[int, tuple[Mapping[str, float], float]] = {}

    # --- running --------------------------------------------------------------------------------------------
    def prepare(self, adjustments: Iterable[str]) -> None:
        """Compile what a step with these adjustments of the gradients needs."""
        chosen = tuple(adjustments)
        if SHRINK in chosen:
            self._norms(tuple(name for name in chosen if name != SHRINK))
        self._steps(chosen)

    def run(self, adjustments: Mapping[str, float]) -> None:
        """Change all parameters."""
        self._run(self._steps(tuple(adjustments)), adjustments)

    def norm(self, adjustments: Mapping[str, float]) -> float:
        """The norm of all gradients together, after these adjustments."""
        compiled = self._norms(tuple(adjustments))
        self._run(compiled, adjustments)
        return math.sqrt(sum(float(sums.sum(dtype=np.float64)) for sums in compiled.sums))

    def _run(self, compiled: _Compiled, adjustments: Mapping[str, float]) -> None:
        for numbers in compiled.numbers.values():
            for number, array in numbers.values():
                array[0] = self._value(number)
        for arrays in compiled.adjusted.values():
            for name, array in arrays.items():
                array[0] = adjustments[name]
        with self._session.executable.views.in_storage():
            compiled.phase.run()

    def _value(self, number: Number) -> float:
        """A number for the settings as they are; computed again only if one of them has changed."""
        values = {name: self._rule.value(name) for name in number.settings}
        known = self._values.get(id(number))
        if known is None or known[0] != values:
            known = self._values[id(number)] = values, number.compute(values)
        return known[1]

    # --- compiling ------------------------------------------------------------------------------------------
    def _steps(self, adjustments: tuple[str, ...]) -> _Compiled:
        key = ("step", *adjustments)
        if key not in self._compiled:
            parts = [self._step(name, adjustments) for name in self._parameters]
            if not self._keeps_zeros:
                parts += [part for name in self._parameters for part in self._padding(name)]
            self._compiled[key] = self._compile(parts)
        return self._compiled[key]

    def _norms(self, adjustments: tuple[str, ...]) -> _Compiled:
        key = ("norm", *adjustments)
        if key not in self._compiled:
            self._compiled[key] = self._compile([self._squares(name, adjustments) for name in self._parameters])
        return self._compiled[key]

    def _step(self, name: str, adjustments: tuple[str, ...]) -> _Part:
        """The step of one parameter: over memory if all arrays have one layout, else element by element."""
        parameter, gradient = (self._session.executable.buffers[each] for each in (name, gradient_of(name)))
        flat = parameter.layout == gradient.layout and (self._keeps_zeros or not parameter.layout.halo)
        shape = (math.prod(parameter.physical_shape),) if flat else parameter.shape
        loops = ("i",) if len(shape) == 1 else tuple(f"i{dim}" for dim in range(len(shape)))
        step = lower_step(self._rule, parameter.dtype, loops, adjustments)
        arrays, memory = {}, self._session.executable.arrays
        storage = {"parameter": name, "gradient": gradient_of(name)}
        for each, own in step.arrays.items():
            layout = Layout() if flat else gradient.layout if each == "gradient" else parameter.layout
            held = self._kept[f"{each}.{name}"] if each not in storage else memory[storage[each]]
            arrays[own] = Buffer(own, shape, parameter.dtype, layout=layout), held
        recipe = None
        if parameter.dtype == "float32":
            recipe = _STEP if flat else with_defaults(None)
        statements = nested(counting(loops, shape), step.statements)
        return _Part(f"{self._rule.name.lower()}.step", statements, parameter.dtype, recipe, step, arrays)

    def _padding(self, name: str) -> list[_Part]:
        """Zeros where blocks of a parameter are not full, after a step over its memory."""
        buffer = self._session.executable.buffers[name]
        layout, physical = buffer.layout, buffer.physical_shape
        order = layout.order or tuple(range(len(buffer.shape)))
        names = [f"i{position}" for position in range(len(physical))]
        memory = self._session.executable.arrays[name]
        arrays = {"parameter": (Buffer("parameter", physical, buffer.dtype, "state"), memory)}
        parts = []
        for position, (dim, factor) in enumerate(layout.blocks):
            rest, block, lane = buffer.shape[dim] % factor, order.index(dim), len(buffer.shape) + position
            if rest == 0 or layout.halo:
                continue
            loops = counting(names, physical)
            loops[block] = replace(loops[block], start=ast.Constant(physical[block] - 1))
            loops[lane] = replace(loops[lane], start=ast.Constant(rest))
            zero = stmts(f"parameter[{', '.join(names)}] = 0.0")
            recipe = with_defaults(None) if buffer.dtype == "float32" else None
            step = Step([], {}, {}, {})
            parts.append(_Part("solver.padding", nested(loops, zero), buffer.dtype, recipe, step, arrays))
        return parts

    def _squares(self, name: str, adjustments: tuple[str, ...]) -> _Part:
        """The sums of the squares of one parameter's gradient, a chunk each; its padding is zero."""
        gradient = self._session.executable.buffers[gradient_of(name)]
        size = math.prod(gradient.physical_shape)
        chunks = -(-size // CHUNK)
        element = adjusted("gradient[i]", {each: each for each in adjustments})
        text = f"""
for chunk in range({chunks}):
    sums[chunk] = 0.0
    for i in range({CHUNK} * chunk, min({CHUNK} * chunk + {CHUNK}, {size})):
        element: {gradient.dtype} = {element}
        sums[chunk] += element * element
"""
        arrays = {
            "gradient": (
                Buffer("gradient", (size,), gradient.dtype),
                self._session.executable.arrays[gradient_of(name)],
            ),
            "sums": (Buffer("sums", (chunks,), gradient.dtype), np.zeros(chunks, DTYPES[gradient.dtype])),
        }
        recipe = _SQUARES if gradient.dtype == "float32" else None
        step = Step([], {}, {}, {each: each for each in adjustments})
        return _Part("solver.squares", stmts(text), gradient.dtype, recipe, step, arrays)

    def _compile(self, parts: list[_Part]) -> _Compiled:
        start, target = perf_counter(), self._session.executable.plan.target
        numbers: dict[str, dict[str, tuple[Number, np.ndarray]]] = {}
        changes: dict[str, dict[str, np.ndarray]] = {}
        sources, keys, given = {}, [], []  # sources by text: parameters of one size share a kernel
        for part in parts:
            own = numbers.setdefault(part.dtype, {})
            for name, number in part.step.numbers.items():
                own.setdefault(name, (number, np.zeros(1, DTYPES[part.dtype])))
            changed = changes.setdefault(part.dtype, {})
            for name in part.step.adjusted:
                changed.setdefault(name, np.zeros(1, DTYPES[part.dtype]))
            scalars = {name: own[name][1] for name in part.step.numbers}
            scalars |= {name: changed[each] for each, name in part.step.adjusted.items()}
            program = part.program(scalars)
            keys.append((program.text, tuple((buffer.dtype, buffer.layout) for buffer in program.buffers.values())))
            if keys[-1] not in sources:
                stages = schedule_alone({"update": program}, part.recipe, target).stages["update"]
                sources[keys[-1]] = generate(finish(stages)[-1].program, target)
            given.append({**{name: array for name, (_, array) in part.arrays.items()}, **scalars})
        generating = perf_counter() - start
        built = build(list(sources.values()), target)
        kernels: dict[object, Kernel] = {key: load(unit) for key, unit in zip(sources, built, strict=True)}
        self._session.add_report(make_report(built, perf_counter() - start, {"generating": generating}))
        steps = [
            (kernels[key], [arrays[buffer] for buffer in sources[key].buffers])
            for key, arrays in zip(keys, given, strict=True)
        ]
        sums = tuple(part.arrays["sums"][1] for part in parts if "sums" in part.arrays)
        return _Compiled(self._session.runner.phase(steps), numbers, changes, sums)

    # --- what is kept ---------------------------------------------------------------------------------------
    def read(self) -> dict[str, np.ndarray]:
        """Copies of what is kept: ``velocity.conv1.weights``, in logical order."""
        found = {}
        for kept in self._kept_names:
            for name in self._parameters:
                buffer = self._session.executable.buffers[name]
                memory = self._kept[f"{kept}.{name}"].reshape(buffer.physical_shape)
                found[f"{kept}.{name}"] = buffer.layout.unpack(memory, buffer.shape)
        return found

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set what is kept from arrays as :meth:`read` gives them."""
        for kept in self._kept_names:
            for name in self._parameters:
                layout = self._session.executable.buffers[name].layout
                self._kept[f"{kept}.{name}"][...] = layout.pack(arrays[f"{kept}.{name}"]).reshape(-1)


@dataclass(frozen=True)
class _Part:
    """The nest of one parameter.

    Args:
        name: of its program.
        statements: the loops.
        dtype: of the parameter.
        recipe: None leaves the loops as they are.
        step: that the loops are made of.
        arrays: name in the statements → buffer and memory.
    """

    name: str
    statements: list[ast.stmt]
    dtype: str
    recipe: Recipe | None
    step: Step
    arrays: Mapping[str, tuple[Buffer, np.ndarray]]

    def program(self, scalars: Iterable[str]) -> Program:
        """The nest with its buffers; ``scalars`` are arrays of one number."""
        buffers = {name: buffer for name, (buffer, _) in self.arrays.items()}
        buffers |= {name: Buffer(name, (1,), self.dtype, role="scalar") for name in scalars}
        nest = make_nest(f"{self.name.replace('.', '_')}_0", self.statements, buffers)
        return Program(self.name, (nest,), buffers)


def gradient_of(storage: str) -> str:
    """``conv1.weights`` → ``conv1.grad_weights``."""
    owner, name = storage.split(".")
    return f"{owner}.grad_{name}"


def _step_recipe(s: Schedule, target: Target) -> None:
    s.tile_loop("update", "i", CHUNK)
    s.parallelize("update", "i_outer")
    s.vectorize("update", "i_inner", target.simd_width)


def _squares_recipe(s: Schedule, target: Target) -> None:
    s.parallelize("update", "chunk")
    s.vectorize("update", "i", target.simd_width)


_STEP = Recipe("solver", {"update": _step_recipe})
_SQUARES = Recipe("squares", {"update": _squares_recipe})
