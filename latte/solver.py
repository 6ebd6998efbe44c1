"""Solvers: how gradients change parameters."""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from latte.model.instances import is_number
from latte.model.source_location import user_location
from latte.net import Net
from latte.runtime.checkpoint import SolverState
from latte.runtime.report import make_report
from swirl.errors import DeclarationError, TrainingError
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.nest import Program, parse_program
from swirl.jit import TranslationUnit, build, load
from swirl.memory import allocate
from swirl.pipeline import finish, generate, schedule_alone
from swirl.recipe import Recipe, Schedule
from swirl.target import Target

SETTINGS = ("learning_rate", "momentum", "weight_decay")


class SGD:
    """Stochastic gradient descent with momentum and weight decay, as PyTorch defines them.

    ``velocity = momentum * velocity + gradient + weight_decay * parameter``;
    ``parameter -= learning_rate * velocity``.

    Args:
        net: a compiled net.
        learning_rate: may be changed between steps.
        momentum: 0 … 1.
        weight_decay: at least 0.

    Raises:
        DeclarationError: for values out of range.  TrainingError: the net is not compiled, or has nothing to train.
    """

    def __init__(self, net: Net, learning_rate: float = 0.01, momentum: float = 0.0, weight_decay: float = 0.0):
        location = user_location()
        for name, value, most in (
            ("learning_rate", learning_rate, math.inf),
            ("momentum", momentum, 1),
            ("weight_decay", weight_decay, math.inf),
        ):
            if not is_number(value) or not 0 <= value <= most:
                bounds = "at least 0" if most == math.inf else f"from 0 to {most}"
                raise DeclarationError(f"{name} must be a number, {bounds}, not {value!r}", location=location)
        if not isinstance(net, Net):
            raise DeclarationError(f"a solver needs the net that it trains, not {net!r}", location=location)
        if not net.compiled:
            raise TrainingError("a solver needs a compiled net", location=location, way_out="call net.compile() first")
        self.session = net.session
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        executable = net.executable
        self._parameters = [
            name
            for name, b in executable.buffers.items()
            if b.role == "param" and _gradient(name) in executable.buffers
        ]
        if not self._parameters:
            raise TrainingError(
                "the net has no parameters to train",
                location=location,
                way_out="add a layer that has some, FullyConnectedLayer for one",
            )
        self._prepare(executable.plan.target)

    def _prepare(self, target: Target) -> None:
        arrays = self.session.executable.arrays
        self._settings = {
            dtype: {name: np.zeros(1, dtype) for name in SETTINGS}
            for dtype in {arrays[name].dtype.name for name in self._parameters}
        }
        sizes = {name: ((arrays[name].size,), arrays[name].dtype.type) for name in self._parameters}
        self._velocities = allocate(sizes, self.session.runner)
        start = perf_counter()
        buffers = self.session.executable.buffers
        programs = {name: _step_program(buffers[name], buffers[_gradient(name)]) for name in self._parameters}
        sources = {}  # by text: parameters of one size share a kernel
        for program in programs.values():
            if _key(program) not in sources:
                alike = len({b.layout for b in program.buffers.values()}) == 1
                single = {b.dtype for b in program.buffers.values()} == {"float32"}
                recipe = _RECIPE if alike and single else None  # which knows one loop, and float32 lanes
                stages = schedule_alone({"update": program}, recipe, target).stages["update"]
                sources[_key(program)] = generate(finish(stages), target)
        generating = perf_counter() - start
        built = build([TranslationUnit(source.name, source.source) for source in sources.values()], target)
        kernels = {key: load(unit) for key, unit in zip(sources, built, strict=True)}
        self.session.add_report(make_report(built, perf_counter() - start, generating))
        steps = []
        for name in self._parameters:
            source, kernel = sources[_key(programs[name])], kernels[_key(programs[name])]
            given = {
                "parameter": arrays[name],
                "gradient": arrays[_gradient(name)],
                "velocity": self._velocities[name],
                **self._settings[arrays[name].dtype.name],
            }
            steps.append((kernel, [given[buffer] for buffer in source.buffers]))
        self._phase = self.session.runner.phase(steps)

    def state(self) -> SolverState:
        """Settings and velocities, as :meth:`latte.net.Net.save` keeps them."""
        buffers = self.session.executable.buffers
        settings = {name: float(getattr(self, name)) for name in SETTINGS}
        arrays = {
            f"velocity.{name}": buffers[name].layout.unpack(
                self._velocities[name].reshape(buffers[name].physical_shape), buffers[name].shape
            )
            for name in self._parameters
        }
        return SolverState("SGD", settings, arrays)

    def load_state(self, state: SolverState) -> None:
        """Go on from a state of a solver for the same net."""
        for name, value in state.settings.items():
            setattr(self, name, value)
        for name in self._parameters:
            layout = self.session.executable.buffers[name].layout
            self._velocities[name][...] = layout.pack(state.arrays[f"velocity.{name}"]).reshape(-1)

    def step(self) -> None:
        """Change every parameter by its gradient.

        Raises:
            TrainingError: no gradients since the net was compiled.
        """
        if "backward" not in self.session.has_run:
            raise TrainingError(
                "there are no gradients yet",
                location=user_location(),
                way_out="call net.forward() and net.backward() first",
            )
        self.session.settle_gradients()
        for settings in self._settings.values():
            for name, value in settings.items():
                value[0] = getattr(self, name)
        with self.session.executable.views.in_storage():
            self._phase.run()


def _gradient(storage: str) -> str:
    owner, name = storage.split(".")
    return f"{owner}.grad_{name}"


def _key(program: Program) -> tuple[str, tuple[tuple[str, Layout], ...]]:
    """What distinguishes one step from another."""
    return program.text, tuple((buffer.dtype, buffer.layout) for buffer in program.buffers.values())


def _step_program(parameter: Buffer, gradient: Buffer) -> Program:
    """The step for one parameter: over memory if both have one layout, else element by element."""
    alike = parameter.layout == gradient.layout
    shape = (math.prod(parameter.physical_shape),) if alike else parameter.shape
    loops = [f"i{dim}" for dim in range(len(shape))] if len(shape) > 1 else ["i"]
    lines = [f"{' ' * dim}for {loop} in range({shape[dim]}):" for dim, loop in enumerate(loops)]
    here, indent = ", ".join(loops), " " * len(loops)
    lines += [
        f"{indent}velocity[{here}] = momentum[0] * velocity[{here}]"
        f" + (gradient[{here}] + weight_decay[0] * parameter[{here}])",
        f"{indent}parameter[{here}] -= learning_rate[0] * velocity[{here}]",
    ]
    text = "\n".join(lines)
    layouts = {"parameter": parameter.layout, "gradient": gradient.layout, "velocity": parameter.layout}
    dtype = parameter.dtype
    buffers = {
        name: Buffer(name, shape, dtype, layout=Layout() if alike else layout) for name, layout in layouts.items()
    }
    buffers |= {
        name: Buffer(name, (1,), dtype, role="scalar") for name in ("learning_rate", "momentum", "weight_decay")
    }
    return parse_program(text, buffers, "sgd.step")


def _sgd_recipe(s: Schedule, target: Target) -> None:
    s.tile_loop("update", "i", 4096)
    s.parallelize("update", "i_outer")
    s.vectorize("update", "i_inner", target.simd_width)


_RECIPE = Recipe("sgd", {"update": _sgd_recipe})
