"""Gradients of layers against central differences of their forward phase, compiled in double precision."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from latte.autodiff.differentiated import LayerPrograms, layer_programs
from latte.autodiff.stopped import stopped
from latte.frontend.lowered import LoweredLayer, lower_layers
from latte.model.checks import is_integer
from latte.model.ensemble import Ensemble
from latte.model.ensemble_kinds import AccuracyEnsemble, in_python
from latte.model.frozen import Frozen
from latte.model.graph import Graph
from latte.model.ranges import classes_of
from latte.model.source_location import user_location
from swirl.build.jit import build, load
from swirl.errors import DataError, DerivativeError
from swirl.ir.buffers import DTYPES
from swirl.ir.item_numbers import ITEMS, value_of
from swirl.ir.nest import Program
from swirl.ir.precision import in_double
from swirl.ir.types import is_float
from swirl.run.runner import Phase, Runner
from swirl.schedule.pipeline import finish, generate, schedule_alone
from swirl.target.targets import get_target

STEP = 1e-5
"""Of the differences, in units of the random directions: what is left out is STEP² times a third derivative."""
BOUND = 1e-6
"""How far a slope may be off, as a share of the sum of its terms' absolute values."""
SMOOTH = 1e-4
"""How far the slopes of two steps may be apart, in the same way, where the layer is smooth."""
LARGEST_BATCH = 4
INTEGERS = 8
"""Data of integers without a range are below this."""
Draw = Callable[[tuple[int, ...]], np.ndarray]
"""Random numbers of a shape."""
ELEMENTS = 64
"""How many elements are looked at by themselves when a gradient is wrong."""


@dataclass(frozen=True)
class CheckedGradient:
    """The gradient of one array of one layer.

    Args:
        layer: its name.
        array: a parameter, or ``inputs``.
        directions: along which it was compared; along ``skipped`` more of them the layer is not smooth.
        error: the largest distance from a difference, as a share of the sum of the terms' absolute values.
    """

    layer: str
    array: str
    directions: int
    skipped: int
    error: float


@dataclass(frozen=True)
class GradientCheck:
    """Gradients that are right.

    Args:
        gradients: those that were compared.
        infinite: layers whose forward is infinite or NaN for random inputs: nothing was compared.
    """

    gradients: tuple[CheckedGradient, ...]
    infinite: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False)
        for heading in ("layer", "gradient of", "directions", "error"):
            table.add_column(heading)
        for each in self.gradients:
            skipped = f" ({each.skipped} more: not smooth)" if each.skipped else ""
            error = f"{each.error:.1e}" if each.directions else ""
            table.add_row(each.layer, each.array, f"{each.directions}{skipped}", error)
        for name in self.infinite:
            table.add_row(name, "", "forward is NaN or infinite", "")
        text = io.StringIO()
        Console(file=text, width=120).print(table, highlight=False, markup=False)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def check_gradients(
    graph: Graph, layer: Ensemble | str | None = None, *, batch_size: int | None = None, directions: int = 3
) -> GradientCheck:
    """Compare the gradients of layers, derived or written, with central differences of forward.

    Each layer is taken by itself: its sources get random numbers (labels: class numbers; integers: in their range),
    parameters their initial values and some noise, what comes back from its readers is random. Forward, backward and
    update are compiled for the portable target in double precision, without a recipe. What is looked at are slopes
    along random directions; where forward is not smooth (two steps have different slopes) a direction is skipped.
    What ``stop_gradient(…)`` is given stays as it is: so does a row that is not trained. Where forward is infinite or
    NaN for standard normal inputs, they are drawn from 0 to 1; a layer that is so for these, too, is left out.

    Args:
        graph: of the net, compiled or not.
        layer: or its name; all by default.
        batch_size: items; by default those of the net, but four at most.
        directions: random directions for each array.

    Raises:
        DerivativeError: a gradient is wrong; the message has the layer, the array and the element that is farthest off.
        CommandError: there is no such layer.  DataError: a number is not at least 1, Python computes the layer, or its
            forward is infinite or NaN for random inputs.
        BodyError, DeclarationError: a layer cannot be lowered.
    """
    batch_size = min(graph.settings.batch_size, LARGEST_BATCH) if batch_size is None else batch_size
    for name, value in (("batch_size", batch_size), ("directions", directions)):
        if not is_integer(value) or value < 1:
            raise DataError(f"{name} must be a whole number, at least 1, not {value!r}", location=user_location())
    chosen = None if layer is None else graph.find(layer)
    if chosen is not None and in_python(chosen):
        message = f"{chosen.name} is computed by Python; only gradients of bodies are checked"
        raise DataError(message, location=user_location())
    found = [each for each in _programs(graph, batch_size) if chosen in (None, each.ensemble)]
    lowered = lower_layers(graph, batch_size)
    runner, generator = Runner(), np.random.default_rng(graph.settings.seed)
    checked: list[CheckedGradient] = []
    infinite: list[str] = []
    for each in found:
        if "forward" in each.programs and not isinstance(each.ensemble, AccuracyEnsemble):
            check = _Check(graph, each, lowered[each.ensemble.name], runner, generator)
            if check.begin():
                checked += check.results(directions)
            elif chosen is None:
                infinite.append(each.ensemble.name)
            else:
                raise DataError(
                    f"{chosen.name}: forward is NaN or infinite for random inputs: nothing can be compared",
                    location=chosen.body("forward").location(),
                    way_out="it is tried for standard normal sources, and for sources from 0 to 1",
                )
    return GradientCheck(tuple(checked), tuple(infinite))


def _programs(graph: Graph, batch_size: int) -> list[LayerPrograms]:
    """With gradients of data, too, where they exist, and of what is frozen."""
    try:
        return layer_programs(graph, batch_size, forced=True, frozen=Frozen())
    except DerivativeError:
        return layer_programs(graph, batch_size, frozen=Frozen())


class _Check:
    """One layer, ready to run.

    Args:
        graph: of the net.
        layer: its programs.
        written: the layer as it is written.
        runner: that runs them.
        generator: of random numbers.
    """

    def __init__(
        self, graph: Graph, layer: LayerPrograms, written: LoweredLayer, runner: Runner, generator: np.random.Generator
    ):
        self.graph, self.ensemble, self.generator = graph, layer.ensemble, generator
        self.batch_size = written.batch_size
        self.fields = layer.ensemble.fields(self.batch_size)
        programs = {phase: in_double(p) for phase, p in layer.programs.items() if phase != "inference"}
        self.buffers = {b.name: b for program in programs.values() for b in program.buffers.values()}
        self.arrays: dict[str, np.ndarray] = {
            name: np.zeros(b.shape, DTYPES[b.dtype]) for name, b in self.buffers.items()
        }
        self.value = self.fields["value"].storage
        self.gradient = self.fields["grad"].storage
        self.seed = generator.standard_normal(self.fields["value"].shape)
        self.names = {b.name: local for local, b in layer.programs["forward"].buffers.items()}
        self.stopped = stopped(written.forward)
        for program in (self.stopped.keeping, self.stopped.held):
            for buffer in program.buffers.values():
                self.arrays.setdefault(buffer.name, np.zeros(buffer.shape))
        also = {"moved": in_double(self.stopped.held)}
        if self.stopped.storage:
            also["keeping"] = in_double(self.stopped.keeping)
        self.phases = _phases({**programs, **also}, self.arrays, runner)
        scalars = (ITEMS, *(buffer for buffer in self.buffers.values() if buffer.formula))
        self.counts = {scalar.name: value_of(scalar.formula, self.batch_size) for scalar in scalars}
        self.start: dict[str, np.ndarray] = {}

    def begin(self) -> bool:
        """Whether there are first values for which forward is finite: standard normal, or else from 0 to 1, as a
        logarithm or a root wants them. What ``stop_gradient`` is given for them is kept."""
        draws: tuple[Draw, ...] = (
            lambda shape: self.generator.standard_normal(shape),
            lambda shape: self.generator.uniform(0.05, 0.95, shape),
        )
        for draw in draws:
            self.start = dict(self._given(draw))
            self._clear()
            self._run("keeping" if self.stopped.storage else "moved", self.start)
            if np.isfinite(self.arrays[self.value]).all():
                return True
        return False

    def _given(self, draw: Draw) -> Iterator[tuple[str, np.ndarray]]:
        """Storage and its first values: what forward reads without computing it.

        Args:
            draw: random numbers of a shape, for sources, and for the noise of parameters.
        """
        for name, buffer in self.buffers.items():
            owner, _, field = name.partition(".")
            if name == "net.step":
                yield name, np.ones(1, np.int32)
            elif buffer.role in ("param", "state", "constant"):
                values = self.graph.find(owner).initial(field, self.batch_size)
                noise = 0.1 * draw(values.shape) if buffer.role == "param" else 0
                yield name, values + noise if values.dtype.kind == "f" else values
            elif field == "value" and owner != self.ensemble.name:
                yield name, self._source(owner, buffer.shape, buffer.dtype, draw)

    def _source(self, owner: str, shape: tuple[int, ...], dtype: str, draw: Draw) -> np.ndarray:
        edges = [edge for edge in self.ensemble.connections if edge.source.name == owner]
        labels = [edge for edge in edges if edge.is_label and self.ensemble.class_labels]
        if labels:
            return self.generator.integers(0, classes_of(labels[0]), shape)
        if is_float(dtype):
            return draw(shape)
        below = self.graph.find(owner).fields()["value"].below
        return self.generator.integers(0, INTEGERS if below is None else below, shape)

    # --- running --------------------------------------------------------------------------------------------
    def _clear(self) -> None:
        """Zeros everywhere but in what is kept of ``stop_gradient``, and in what the number of items says."""
        for name, array in self.arrays.items():
            if name not in self.stopped.storage:
                array[...] = self.counts.get(name, 0)

    def _run(self, phase: str, given: Mapping[str, np.ndarray]) -> None:
        for name, values in given.items():
            if name in self.arrays:  # where forward is constant, no gradient is read
                self.arrays[name][...] = values
        self.phases[phase].run()

    def _loss(self, given: Mapping[str, np.ndarray]) -> tuple[float, float]:
        """What comes back from the readers, times the value, in all; and the sum of its terms' absolute values."""
        self._clear()
        self._run("moved", {**self.start, **given})
        terms = self.seed * self.arrays[self.value]
        return float(terms.sum()), float(abs(terms).sum())

    def _gradients(self) -> dict[str, np.ndarray]:
        self._clear()
        self._run("forward", self.start)
        for phase in ("backward", "update"):
            if phase in self.phases:
                self._run(phase, {self.gradient: self.seed})
        found = {}
        for name in self.start:
            owner, _, field = name.partition(".")
            if self.buffers[name].role == "state":  # what it was before is a constant
                continue
            storage = f"{owner}.grad" if field == "value" else f"{owner}.grad_{field}"
            if storage in self.arrays:
                found[name] = self.arrays[storage].copy()
        return found

    # --- comparing ------------------------------------------------------------------------------------------
    def results(self, directions: int) -> Iterator[CheckedGradient]:
        """A result for each array that has a gradient.

        Raises:
            DerivativeError: it is wrong.
        """
        for name, gradient in self._gradients().items():
            local = self.names.get(name, name)
            compared, skipped, largest = 0, 0, 0.0
            for _ in range(directions):
                direction = self.generator.standard_normal(gradient.shape)
                slope, smooth = self._slope(name, direction, abs(gradient * direction).sum())
                if not smooth:
                    skipped += 1
                    continue
                compared += 1
                found = float((gradient * direction).sum())
                error = abs(found - slope) / self._scale(abs(gradient * direction).sum() + abs(slope))
                largest = max(largest, error)
                if not error <= BOUND:
                    raise self._wrong(name, local, gradient, found, slope)
            yield CheckedGradient(self.ensemble.name, local, compared, skipped, largest)

    def _slope(self, name: str, direction: np.ndarray, size: float) -> tuple[float, bool]:
        """The slope of the loss along a direction, and whether it is the same for half the step."""
        slopes = []
        for step in (STEP, STEP / 2):
            up, down = (self._loss({name: self.start[name] + s * direction})[0] for s in (step, -step))
            slopes.append((up - down) / (2 * step))
        scale = self._scale(size + max(map(abs, slopes)))
        return slopes[1], bool(abs(slopes[0] - slopes[1]) <= SMOOTH * scale)

    def _scale(self, size: float) -> float:
        """What an error is compared with: rounding of the loss counts, too."""
        rounding = 2.0**-52 * self._loss({})[1] / STEP
        return float(size + rounding / BOUND) or 1.0

    def _wrong(self, name: str, local: str, gradient: np.ndarray, found: float, slope: float) -> DerivativeError:
        worst, element = -1.0, ""
        for index in self.generator.permutation(gradient.size)[:ELEMENTS]:
            direction = np.zeros(gradient.shape)
            direction.flat[index] = 1.0
            own = float(gradient.flat[index])
            difference, smooth = self._slope(name, direction, abs(own))
            if smooth and abs(own - difference) > worst:
                worst = abs(own - difference)
                place = ", ".join(str(int(i)) for i in np.unravel_index(index, gradient.shape))
                element = f"; of {local}[{place}], {own:.6g} and {difference:.6g}"
        phase = "backward" if name.endswith(".value") else "update"
        written = self.ensemble.has_phase(phase)
        body = self.ensemble.body(phase if written else "forward")
        return DerivativeError(
            f"{self.ensemble.name}: the gradient of {local} is not the slope of forward: along a random direction it "
            f"is {found:.6g}, and differences say {slope:.6g}{element}",
            location=body.location(),
            way_out=f"mend {phase}, or remove it: then it is derived from forward"
            if written
            else "this is a defect of Latte's: please report it",
        )


def _phases(programs: Mapping[str, Program], arrays: Mapping[str, np.ndarray], runner: Runner) -> dict[str, Phase]:
    """The programs compiled for the portable target, bound to the arrays by storage."""
    target = get_target("portable")
    finished = {
        phase: finish(schedule_alone({phase: program}, None, target).stages[phase])
        for phase, program in programs.items()
    }
    sources = {phase: generate(stages[-1].program, target) for phase, stages in finished.items()}
    built = build(list(sources.values()), target)
    result = {}
    for (phase, source), unit in zip(sources.items(), built, strict=True):
        buffers = finished[phase][-1].program.buffers
        for name in source.buffers:  # what passes have added
            storage = buffers[name].name
            if storage not in arrays:
                arrays[storage] = np.zeros(buffers[name].physical_shape, DTYPES[buffers[name].dtype])  # type: ignore
        result[phase] = runner.phase([(load(unit), [arrays[buffers[name].name] for name in source.buffers])])
    return result
