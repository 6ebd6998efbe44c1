"""The nests of a solver: for each parameter one, compiled and run as one phase."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from latte.frontend.steps import SHRINK, Number, Rule, Step, adjusted, lower_step
from latte.model.frozen import parameters_of
from latte.model.source_location import user_location
from latte.runtime.report import make_report
from latte.runtime.session import Session
from swirl.build.jit import Kernel, build, load
from swirl.errors import TrainingError
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.nest import Program, counting, make_nest, nested, stmts
from swirl.run.memory import allocate
from swirl.run.runner import Phase
from swirl.schedule.pipeline import finish, generate, schedule_alone
from swirl.schedule.recipe import Recipe, Schedule
from swirl.schedule.rules.schedule import with_defaults
from swirl.target.targets import Target

CHUNK = 4096
"""Elements that a thread takes at once; sums are divided in the same way, whatever the number of threads."""


@dataclass(frozen=True)
class Trained:
    """What a step changes.

    Args:
        parameters: storage of a parameter → its group: parameters of a group have the same settings and step number.
        version: equal where parameters, groups and memory are the same.
    """

    parameters: Mapping[str, Hashable]
    version: Hashable


@dataclass(frozen=True)
class _Compiled:
    """Kernels for one choice of what is trained, and of what is done to gradients first.

    Args:
        phase: of all parameters.
        numbers: dtype and group → name → number, with the array that the kernels read.
        adjusted: dtype → adjustment → the array that the kernels read.
        sums: of the squares of gradients, of each chunk; only in the phase that computes them.
    """

    phase: Phase
    numbers: Mapping[tuple[str, Hashable], Mapping[str, tuple[Number, np.ndarray]]]
    adjusted: Mapping[str, Mapping[str, np.ndarray]]
    sums: tuple[np.ndarray, ...] = ()


class Updates:
    """The nests of one solver for one net, and what it keeps.

    Args:
        session: of the net.
        rule: what is done to one element, by group.
        kept: names of what is kept for each element, if update uses it.
        keeps_zeros: whether padding of parameters stays zero if the rule is applied to it.

    Raises:
        TrainingError: the net has no parameters to train.
    """

    def __init__(self, session: Session, rule: Callable[[Hashable], Rule], kept: Sequence[str], keeps_zeros: bool):
        self._session, self._rule, self._keeps_zeros, self.kept = session, rule, keeps_zeros, list(kept)
        self.all = parameters_of(session.graph)
        if not any(map(self._has_gradient, self.all)) and not session.executable.plan.frozen.parameters:
            raise TrainingError(
                "the net has no parameters to train",
                location=user_location(),
                way_out="add a layer that has some, FullyConnectedLayer for one",
            )
        self._kept: dict[tuple[str, Layout], np.ndarray] = {}
        """Of each element, in the layout of the parameter: of another variant of the net, it may be another one."""
        self._layouts: dict[str, Layout] = {}
        """The layout that a parameter had when what is kept for it was last used."""
        self._kernels: dict[Hashable, tuple[Kernel, tuple[str, ...]]] = {}
        self._compiled: dict[Hashable, _Compiled] = {}
        self._values: dict[int, tuple[Mapping[str, float], float]] = {}

    def forget(self, kept: Sequence[str]) -> None:
        """Compile again: rules have changed, and what they keep for each element."""
        self.kept = list(kept)
        self._compiled.clear()
        self._values.clear()

    def needed(self) -> list[str]:
        """The parameters that a step changes, or would if they were not frozen."""
        freezing = self._session.graph.settings.freezing
        return [name for name in self.all if self._has_gradient(name) or name in freezing]

    def shapes(self) -> dict[str, np.ndarray]:
        """Zeros of the shape of all that may be kept, without memory: ``velocity.conv1.weights``."""
        buffers = self._session.executable.buffers
        dtypes = {name: DTYPES[buffers[name].dtype] for name in self.all}
        zeros: dict[str, np.ndarray] = {
            name: np.broadcast_to(np.zeros((), dtype), buffers[name].shape) for name, dtype in dtypes.items()
        }
        return {f"{kept}.{name}": zeros[name] for kept in self.kept for name in self.all}

    def trained(self) -> list[str]:
        """The parameters that a step changes: those whose gradients are computed, and that are not frozen."""
        freezing = self._session.graph.settings.freezing
        return [name for name in self.all if self._has_gradient(name) and name not in freezing]

    def _has_gradient(self, name: str) -> bool:
        return gradient_of(name) in self._session.executable.buffers

    @property
    def memory(self) -> Hashable:
        """Equal where parameters and their gradients are the same memory."""
        return self._session.executable.learned_memory

    # --- running --------------------------------------------------------------------------------------------
    def prepare(self, trained: Trained, adjustments: Iterable[str]) -> None:
        """Compile what a step with these adjustments of the gradients needs."""
        chosen = tuple(adjustments)
        if SHRINK in chosen:
            self._norms(trained, tuple(name for name in chosen if name != SHRINK))
        self._steps(trained, chosen)

    def run(self, trained: Trained, adjustments: Mapping[str, float]) -> None:
        """Change the parameters."""
        self._run(self._steps(trained, tuple(adjustments)), adjustments)

    def norm(self, trained: Trained, adjustments: Mapping[str, float]) -> float:
        """The norm of the gradients of all of them together, after these adjustments."""
        compiled = self._norms(trained, tuple(adjustments))
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
        values = {name: number.rule.value(name) for name in number.settings}
        known = self._values.get(id(number))
        if known is None or known[0] != values:
            known = self._values[id(number)] = values, number.compute(values)
        return known[1]

    # --- compiling ------------------------------------------------------------------------------------------
    def _steps(self, trained: Trained, adjustments: tuple[str, ...]) -> _Compiled:
        key = ("step", trained.version, *adjustments)
        if key not in self._compiled:
            self._keep(trained.parameters)
            parts = [self._step(name, group, adjustments) for name, group in trained.parameters.items()]
            if not self._keeps_zeros:
                parts += [part for name in trained.parameters for part in self._padding(name)]
            self._compiled[key] = self._compile(parts)
        self._lay_out(trained.parameters)
        return self._compiled[key]

    def _norms(self, trained: Trained, adjustments: tuple[str, ...]) -> _Compiled:
        key = ("norm", trained.version, *adjustments)
        if key not in self._compiled:
            self._compiled[key] = self._compile([self._squares(name, adjustments) for name in trained.parameters])
        return self._compiled[key]

    def _step(self, name: str, group: Hashable, adjustments: tuple[str, ...]) -> _Part:
        """The step of one parameter: over memory if all arrays have one layout, else element by element."""
        parameter, gradient = (self._session.executable.buffers[each] for each in (name, gradient_of(name)))
        flat = parameter.layout == gradient.layout and (self._keeps_zeros or not parameter.layout.halo)
        shape = (math.prod(parameter.physical_shape),) if flat else parameter.shape
        loops = ("i",) if len(shape) == 1 else tuple(f"i{dim}" for dim in range(len(shape)))
        rule = self._rule(group)
        step = lower_step(rule, parameter.dtype, loops, adjustments)
        arrays, memory = {}, self._session.executable.arrays
        storage = {"parameter": name, "gradient": gradient_of(name)}
        for each, own in step.arrays.items():
            layout = Layout() if flat else gradient.layout if each == "gradient" else parameter.layout
            held = memory[storage[each]] if each in storage else self._kept[f"{each}.{name}", parameter.layout]
            arrays[own] = Buffer(own, shape, parameter.dtype, layout=layout), held
        recipe = None
        if parameter.dtype == "float32":
            recipe = _STEP if flat else with_defaults(None)
        statements = nested(counting(loops, shape), step.statements)
        return _Part(f"{rule.name.lower()}.step", statements, parameter.dtype, recipe, step, arrays, group)

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
        numbers: dict[tuple[str, Hashable], dict[str, tuple[Number, np.ndarray]]] = {}
        changes: dict[str, dict[str, np.ndarray]] = {}
        sources, keys, given = {}, [], []  # sources by text: parameters of one size share a kernel
        for part in parts:
            own = numbers.setdefault((part.dtype, part.group), {})
            for name, number in part.step.numbers.items():
                own.setdefault(name, (number, np.zeros(1, DTYPES[part.dtype])))
            changed = changes.setdefault(part.dtype, {})
            for name in part.step.adjusted:
                changed.setdefault(name, np.zeros(1, DTYPES[part.dtype]))
            scalars = {name: own[name][1] for name in part.step.numbers}
            scalars |= {name: changed[each] for each, name in part.step.adjusted.items()}
            program = part.program(scalars)
            keys.append((program.text, tuple((buffer.dtype, buffer.layout) for buffer in program.buffers.values())))
            if keys[-1] not in self._kernels and keys[-1] not in sources:
                stages = schedule_alone({"update": program}, part.recipe, target).stages["update"]
                sources[keys[-1]] = generate(finish(stages)[-1].program, target)
            given.append({**{name: array for name, (_, array) in part.arrays.items()}, **scalars})
        generating = perf_counter() - start
        built = build(list(sources.values()), target) if sources else []
        for (key, source), unit in zip(sources.items(), built, strict=True):
            self._kernels[key] = load(unit), source.buffers
        if sources:
            self._session.add_report(make_report(built, perf_counter() - start, {"generating": generating}))
        steps = []
        for key, arrays in zip(keys, given, strict=True):
            kernel, buffers = self._kernels[key]
            steps.append((kernel, [arrays[buffer] for buffer in buffers]))
        sums = tuple(part.arrays["sums"][1] for part in parts if "sums" in part.arrays)
        return _Compiled(self._session.runner.phase(steps), numbers, changes, sums)

    # --- what is kept ---------------------------------------------------------------------------------------
    def _keep(self, parameters: Iterable[str]) -> None:
        """Zeros to be kept for parameters that have not been trained in this layout."""
        buffers, arrays = self._session.executable.buffers, self._session.executable.arrays
        needed = ((f"{kept}.{name}", name) for kept in self.kept for name in parameters)
        new = {key: name for key, name in needed if (key, buffers[name].layout) not in self._kept}
        sizes = {key: ((arrays[name].size,), arrays[name].dtype.type) for key, name in new.items()}
        for key, memory in (allocate(sizes, self._session.runner) if sizes else {}).items():
            self._kept[key, buffers[new[key]].layout] = memory

    def _lay_out(self, parameters: Iterable[str]) -> None:
        """What is kept for parameters goes where they are laid out now."""
        for name in parameters:
            buffer = self._session.executable.buffers[name]
            before = self._layouts.setdefault(name, buffer.layout)
            if before is not buffer.layout and before != buffer.layout:
                for kept in self.kept:
                    if (f"{kept}.{name}", before) in self._kept:
                        values = self._read(f"{kept}.{name}", replace(buffer, layout=before))
                        self._set(f"{kept}.{name}", buffer, values)
                self._layouts[name] = buffer.layout

    def _read(self, key: str, buffer: Buffer) -> np.ndarray:
        return buffer.layout.unpack(self._kept[key, buffer.layout].reshape(buffer.physical_shape), buffer.shape)

    def _set(self, key: str, buffer: Buffer, values: np.ndarray) -> None:
        self._kept[key, buffer.layout][...] = buffer.layout.pack(values).reshape(-1)

    def read(self, parameters: Iterable[str]) -> dict[str, np.ndarray]:
        """Copies of what is kept for parameters: ``velocity.conv1.weights``, in logical order; zeros for those that
        have not been trained."""
        found: dict[str, np.ndarray] = {}
        for kept in self.kept:
            for name in parameters:
                buffer, key = self._session.executable.buffers[name], f"{kept}.{name}"
                before = replace(buffer, layout=self._layouts.get(name, buffer.layout))
                known = (key, before.layout) in self._kept
                found[key] = self._read(key, before) if known else np.zeros(buffer.shape, DTYPES[buffer.dtype])
        return found

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set what is kept from arrays as :meth:`read` gives them; zeros for other parameters."""
        given = {name for name in self.all if any(f"{kept}.{name}" in arrays for kept in self.kept)}
        for name in (changed := given.union(self._layouts)):
            self._layouts[name] = self._session.executable.buffers[name].layout
        self._keep(changed)
        for name in changed:
            buffer = self._session.executable.buffers[name]
            for kept in self.kept:
                self._set(f"{kept}.{name}", buffer, arrays.get(f"{kept}.{name}", np.zeros(buffer.shape)))


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
        group: of the parameter.
    """

    name: str
    statements: list[ast.stmt]
    dtype: str
    recipe: Recipe | None
    step: Step
    arrays: Mapping[str, tuple[Buffer, np.ndarray]]
    group: Hashable = None

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
