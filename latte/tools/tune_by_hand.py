"""Tuning one layer's recipe: edited, recompiled alone, timed beside its last version and the machine's limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from latte.autodiff.differentiated import differentiate
from latte.explain.showing import amount
from latte.frontend.lowered import lower_layers
from latte.model.ensemble import Ensemble
from latte.model.graph import EVERY_RECIPE
from latte.net import Net
from latte.planning.chains import chained_order, find_chains, neighbours
from latte.planning.plan import Plan, make_plan
from latte.planning.recipes import Recipes, chain_name
from latte.planning.units import NetUnits, Unit
from latte.tools.synthetic_data import synthetic_array
from swirl.analysis.work import Work, program_work
from swirl.build.jit import Kernel, build, load
from swirl.dump.write import contents
from swirl.errors import CommandError, LatteError, nearest
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.ir.nest import Program
from swirl.ir.phases import PHASE_ALIASES
from swirl.measure.rates import Limits, Measured
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.schedule.choices import check_asked, named_in
from swirl.schedule.command_log import Outcome
from swirl.schedule.files import read_recipe
from swirl.schedule.imports import recipe_sources
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.pipeline import Stage
from swirl.schedule.recipe import DEFAULT_SCHEDULE
from swirl.target.targets import Target

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """A phase of the layer as one version of the recipe made it.

    Args:
        stages: of the compiler, the last one translated.
        outcomes: of the recipe's commands.
        library: the compiled file.
        kernel, arrays: what runs, on its own data, one array for each of ``buffers``.
        work: operations and bytes.
        scheduling, compiling: seconds that it took; in the C++ compiler, 0 where the kernel was in the cache.
    """

    stages: Sequence[Stage]
    outcomes: tuple[Outcome, ...]
    library: Path
    kernel: Kernel
    buffers: dict[str, Buffer]
    arrays: list[np.ndarray]
    work: Work
    scheduling: float
    compiling: float


class Bench:
    """A layer of a net, or a chain that is compiled as one, to be compiled and timed by itself again and again.

    Args:
        net: declared; it need not be compiled.
        layer: name of an ensemble, or of a chain (``conv1_relu1``).
        phase: ``forward``, ``inference``, ``backward`` or ``update``.
        target: what code is made for.
        recipe: file to use in place of its own; one that declares a chain, for the chain that the layer begins.
        threads: of OpenMP.
        whole_numbers: use small whole numbers as data: sums are exact in any order.

    Raises:
        CommandError: there is no such layer or phase, or the layer has no recipe file.
    """

    def __init__(
        self,
        net: Net,
        layer: str,
        phase: str,
        target: Target,
        recipe: Path | None = None,
        threads: int | None = None,
        whole_numbers: bool = False,
    ):
        self.graph, self.target, self.whole_numbers = net.graph, target, whole_numbers
        self.layer = layer
        chains = {chain.name: chain.members for chain in find_chains(net.graph).found}
        self.members: tuple[Ensemble, ...] = chains.get(layer) or (net.graph.find(layer, list(chains)),)
        self.phase = PHASE_ALIASES.get(phase, phase)
        self._programs = differentiate(net.graph, lower_layers(net.graph, net.batch_size))
        found = [item for item in self._programs.programs() if item.ensemble in self.members]
        phases = list(dict.fromkeys(phase for item in found for phase in item.programs))
        if self.phase not in phases:
            way_out = f"{nearest(phase, phases)}it has {', '.join(phases)}" if phases else "it computes nothing"
            raise CommandError(f"{layer} has no phase {phase!r}", way_out=way_out)
        commands = [command for member in self.members for command in member.commands]
        if commands:
            raise CommandError(
                f"{layer} has commands of its own, which replace those of a file",
                location=commands[0].location,
                way_out="put them into a recipe file",
            )
        self.recipe = None if recipe is None else recipe.absolute()
        self._chosen: str | None = None
        self.paths: tuple[Path, ...] = (recipe if recipe is not None else self._own_file(),)
        """The files to watch: the recipe first."""
        self.runner = Runner(threads)
        self.limits = Limits(target, self.runner)
        self._data: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def compile(self) -> Trial:
        """The layer, or the chain that it is compiled in, under the recipe as it is now.

        Raises:
            LatteError: the recipe is not Python, or a command was refused.
        """
        start = perf_counter()
        if self.recipe is not None:
            self._use(self.recipe)
        self.paths = self._files()  # until the used ones are known
        with Memos() as memos, KeptSchedules(memos, self.target) as kept:
            plan = make_plan(self.graph, self._programs, kept, until=self._holds)
            item = plan.scheduled[-1]
            self._check(plan, item.unit)
            self.paths = _sources(item.result.files)
            asked = (knob.name for each in plan.scheduled for knob in each.result.knobs)
            check_asked(self.graph.choices.get(EVERY_RECIPE, {}), [*asked, *named_in(self.paths)])
            if self.phase not in item.result.stages:
                raise CommandError(
                    f"{item.unit.name} has no phase {self.phase!r}: its recipe has made it a part of another",
                    location=str(self.paths[0]),
                    way_out="--phase backward",
                )
            stages = item.stages(self.phase, plan.state, self.target)
            kernel = item.kernel(self.phase, plan.state, self.target)
            outcomes, program = tuple(item.result.outcomes), stages[-1].program
            buffers = item.result.stages[self.phase][-1].program.buffers
        taken = perf_counter() - start
        (built,) = build([kernel.source], self.target)
        known = {**kernel.added, **{buffer.name: buffer for buffer in buffers.values()}}
        used = {name: known[kernel.bound[name]] for name in kernel.source.buffers}
        arrays = self._arrays(used, stages[0].program)
        compiling = 0.0 if built.cached else built.seconds
        work = program_work(program)
        return Trial(stages, outcomes, built.path, load(built), used, arrays, work, taken, compiling)

    def _check(self, plan: Plan, unit: Unit) -> None:
        """Raise CommandError where another recipe has scheduled the phase."""
        reason = next((u.reason for u in plan.untuned if (u.layer, u.phase) == (unit.name, self.phase)), None)
        if reason is not None:
            raise CommandError(
                f"leaves {self.phase} to the default schedule: {reason}",
                location=str(self.paths[0]),
                way_out="latte show FILE --layer L --recipe prints the default schedule, to begin from",
            )
        if self.recipe is not None and (unit.recipe is None or unit.recipe.path != self.recipe):
            reasons = [reason for member in self.members for reason in plan.chains.notes.get(member.name, ())]
            raise CommandError(
                f"{self.recipe.name} does not schedule {self.layer}.{self.phase}",
                location=str(self.recipe),
                way_out="; ".join(dict.fromkeys(reasons)) or None,
            )

    def _files(self) -> tuple[Path, ...]:
        """The files that the layer may be scheduled by: the recipe, those of a chain's layers, and what they import."""
        recipes = Recipes(self.graph)
        members = [recipes.path(member) for member in self.members if len(self.members) > 1]
        return _sources([self.paths[0], *(path for path in members if path is not None)])

    def _holds(self, unit: Unit) -> bool:
        return self.phase in unit.parts and any(member in unit.members for member in self.members)

    def _own_file(self) -> Path:
        chains = find_chains(self.graph, frozen=self._programs)
        programs = self._programs.programs(chained_order(self.graph, chains.found))
        recipe = next(
            unit.recipe
            for unit in NetUnits(self.graph, Recipes(self.graph, self._programs)).of(programs, chains)
            if self._holds(unit)
        )
        if recipe is None or recipe.path is None:
            raise CommandError(f"{self.layer} has no recipe file", way_out="name a new one: --recipe my_recipe.py")
        return recipe.path

    def _use(self, file: Path) -> None:
        """Use a file for the layer, or for the layers around it whose kinds it declares."""
        self.graph.recipes.pop(self._chosen or "", None)
        kinds = read_recipe(file).chain
        if kinds:
            fitting = [path for path in neighbours(self.graph) if tuple(member.kind for member in path) == kinds]
            names = [chain_name(path) for path in fitting if all(member in path for member in self.members)]
            if not names:
                raise CommandError(
                    f"{self.layer} is in no chain {', '.join(kinds)}",
                    location=str(file),
                    way_out="without `chain` it is a recipe for one layer",
                )
        elif len(self.members) > 1:
            kinds = tuple(member.kind for member in self.members)
            raise CommandError(
                f"declares no chain, but is used for {self.layer}",
                location=str(file),
                way_out=f"chain = {kinds} at its top, or --layer with one layer",
            )
        else:
            names = [member.name for member in self.members]
        self._chosen = names[0]
        self.graph.recipes[names[0]] = file

    def measure(self, *trials: Trial) -> Measured:
        """Trials beside each other and the machine's limits."""
        return self.limits.measure([(trial.kernel, trial.arrays) for trial in trials])

    def results(self, trial: Trial) -> dict[str, np.ndarray]:
        """The buffers of the layer after the kernel has run, each as it is declared. Call it before any other run: the
        kernel may add to what an earlier run has left."""
        self.runner.phase([(trial.kernel, trial.arrays)]).run()
        declared = trial.stages[0].program.buffers
        arrays = dict(zip(trial.buffers, trial.arrays, strict=True))
        return {
            name: trial.buffers[name].layout.unpack(arrays[name], trial.buffers[name].shape).reshape(buffer.shape)
            for name, buffer in declared.items()
            if name in trial.buffers
        }

    def _arrays(self, buffers: dict[str, Buffer], lowered: Program) -> list[np.ndarray]:
        """Random contents in the layout of memory; whole numbers where the buffer needs them."""
        values = contents(lowered)
        sizes = {name: (buffer.physical_shape, DTYPES[buffer.dtype]) for name, buffer in buffers.items()}
        memory = allocate(sizes, self.runner)
        for name, buffer in buffers.items():
            if buffer.formula:
                memory[name][0] = value_of(buffer.formula, self.graph.settings.batch_size)
                continue
            key = (buffer.name, buffer.shape)
            if key not in self._data:
                self._data[key] = synthetic_array(buffer, values.get(name), self.whole_numbers)
            memory[name][...] = buffer.layout.pack(self._data[key])
        return [memory[name] for name in buffers]


def _sources(recipes: Iterable[Path]) -> tuple[Path, ...]:
    """Recipes, and what they import."""
    return tuple(dict.fromkeys(file for recipe in recipes for file in recipe_sources(recipe)))


# --- words --------------------------------------------------------------------------------------------------
def report(bench: Bench, trial: Trial, measured: Measured, before: Trial | None) -> str:
    """The result of one save of the recipe."""
    now = measured.kernels[0]
    low, high = now.spread
    runs = "1 run" if len(now.runs) == 1 else f"{len(now.runs)} runs"
    threads = "1 thread" if bench.runner.threads == 1 else f"{bench.runner.threads} threads"
    lines = [f"{seconds(now.median):>11}   half of {runs} from {seconds(low)} to {seconds(high)}, {threads}"]
    if before is not None:
        was = measured.kernels[1].median
        if trial.kernel.name == before.kernel.name:
            lines.append(f"{'':11}   the same kernel as before")
        else:
            lines.append(f"{seconds(was):>11}   before, measured in turn: {was / now.median:.2f} times as fast now")
    work = trial.work
    if work.operations:
        total = _at_most(work.exact) + amount(work.operations, "flop")
        what = f"multiply-adds in registers ({total})"
        lines.append(_rate(work.operations / now.median, measured.peak, "flop/s", what))
    total = _at_most(all(touched.exact for touched in work.touched)) + amount(work.bytes, "B")
    what = f"reading memory ({total}, each element once)"
    lines.append(_rate(work.bytes / now.median, measured.bandwidth, "B/s", what))
    own = [outcome for outcome in trial.outcomes if outcome.command.location != DEFAULT_SCHEDULE]
    applied = sum(outcome.status == "applied" for outcome in own)
    skipped = [outcome for outcome in own if outcome.status == "skipped"]
    compiler = f"{trial.compiling:.1f} s in the C++ compiler" if trial.compiling else "the kernel was in the cache"
    lines.append(
        f"{'':11}   {applied} commands applied, {len(skipped)} skipped; "
        f"scheduled in {trial.scheduling:.1f} s, {compiler}"
    )
    for outcome in own:
        lines += [f"  caution  {outcome.command.location}: {outcome.command.text}: {text}" for text in outcome.cautions]
    for outcome in skipped:
        location = f"{outcome.command.location}: " if outcome.command.location else ""
        lines += [
            f"  skipped  {location}{outcome.command.text}",
            *(f"    {line}" for line in outcome.reason.splitlines()),
        ]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """``3.21 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError


def _rate(rate: float, limit: float, unit: str, what: str) -> str:
    return f"{amount(rate, unit):>11}   {rate / limit:.0%} of {amount(limit, unit)}, {what}"


def _at_most(exact: bool) -> str:
    return "" if exact else "at most "


# --- watching -----------------------------------------------------------------------------------------------
def tries(bench: Bench, say: Callable[[str], None]) -> Iterator[bool]:
    """Compile and time, again after each save of the recipe file; errors in it are shown, and watching goes on.

    Yields:
        whether this version of the recipe ran, after its report.
    """
    before: Trial | None = None
    while True:
        seen = {path: _saved(path) for path in bench.paths}
        try:
            try:
                trial = bench.compile()
            finally:
                seen = {path: seen.get(path, _saved(path)) for path in bench.paths}  # it may build on other files now
            measured = bench.measure(*(t for t in (trial, before) if t is not None))
        except LatteError as error:
            say(str(error))
            yield False
        else:
            say(report(bench, trial, measured, before))
            before = trial
            yield True
        while all(_saved(path) in (seen[path], None) for path in seen):  # None: an editor is just replacing it
            time.sleep(POLL_SECONDS)


def _saved(path: Path) -> tuple[int, int] | None:
    """What changes when the file is saved; None where it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
