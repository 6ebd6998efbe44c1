"""Tuning one layer's recipe: the layer is compiled alone, and its kernels are timed beside each other and the machine's
limits. :mod:`latte.tools.tuning_session` watches and reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.model.ensemble import Ensemble
from latte.model.graph import EVERY_RECIPE
from latte.net import Net
from latte.planning.chains import chained_order, find_chains, neighbours
from latte.planning.plan import Plan, make_plan
from latte.planning.recipes import Recipes, chain_name
from latte.planning.units import NetUnits, Unit
from swirl.analysis.work import Work, program_work
from swirl.build.jit import Kernel, build, load
from swirl.dump.write import contents
from swirl.errors import CommandError, LatteError, nearest
from swirl.ir.buffers import DTYPES, Buffer
from swirl.ir.item_numbers import value_of
from swirl.ir.nest import Program
from swirl.ir.phases import INFERENCE, PHASE_ALIASES, PHASES
from swirl.measure.rates import Limits, Measured
from swirl.run.memory import allocate
from swirl.run.runner import Runner
from swirl.schedule.choices import check_asked, named_in
from swirl.schedule.command_log import Outcome
from swirl.schedule.files import read_recipe
from swirl.schedule.imports import recipe_sources
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.pipeline import Scheduled, Stage
from swirl.schedule.plan_state import PLAIN
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Recipe
from swirl.target.targets import Target
from swirl.transforms import LAYOUT_COMMANDS
from swirl.tune.arrays import synthetic_array


@dataclass(frozen=True)
class Trial:
    """A phase of the layer as one version of the recipe made it.

    Args:
        unit: name of the layer, or of the chain that it is compiled in.
        stages: of the compiler, the last one translated.
        outcomes: of the recipe's commands.
        library: the compiled file.
        kernel, arrays: what runs, on its own data, one array for each of ``buffers``.
        work: operations and bytes.
        scheduling, compiling: seconds that it took; in the C++ compiler, 0 where the kernel was in the cache.
        mistakes: in the recipe's functions for other phases.
        laid_out: phases that are compiled with it, and touch what its commands have laid out.
    """

    unit: str
    stages: Sequence[Stage]
    outcomes: tuple[Outcome, ...]
    library: Path
    kernel: Kernel
    buffers: dict[str, Buffer]
    arrays: list[np.ndarray]
    work: Work
    scheduling: float
    compiling: float
    mistakes: Mapping[str, LatteError] = field(default_factory=dict)
    laid_out: tuple[str, ...] = ()


class NoRecipeFile(CommandError):
    """A layer has no recipe file for a phase, and none was named."""


class Bench:
    """A layer of a net, or a chain that is compiled as one, to be compiled and timed by itself again and again.

    Args:
        net: declared; it need not be compiled.
        layer: name of an ensemble, or of a chain (``conv1_relu1``).
        phase: ``forward``, ``inference``, ``backward`` or ``update``; None for the first that it has, without a recipe
            the first for which there is one.
        target: what code is made for.
        recipe: file to use in place of its own; one that declares a chain, for the chain that the layer begins.
        threads: of OpenMP.
        whole_numbers: use small whole numbers as data: sums are exact in any order.

    Raises:
        CommandError: there is no such layer or phase, or (NoRecipeFile) the layer has no recipe file.
    """

    def __init__(
        self,
        net: Net,
        layer: str,
        phase: str | None,
        target: Target,
        recipe: Path | None = None,
        threads: int | None = None,
        whole_numbers: bool = False,
    ):
        self.graph, self.target, self.whole_numbers = net.graph, target, whole_numbers
        self.layer = layer
        chains = {chain.name: chain.members for chain in find_chains(net.graph).found}
        self.members: tuple[Ensemble, ...] = chains.get(layer) or (net.graph.find(layer, list(chains)),)
        self._programs = differentiate(net.graph, lower_layers(net.graph, net.batch_size))
        found = [item for item in self._programs.programs() if item.ensemble in self.members]
        self.phases = tuple(dict.fromkeys(phase for item in found for phase in item.programs))
        """That the layer computes."""
        self.phase = self._known(phase or next((each for each in PHASES if each in self.phases), "forward"))
        commands = [command for member in self.members for command in member.commands]
        if commands:
            raise CommandError(
                f"{layer} has commands of its own, which replace those of a file",
                location=commands[0].location,
                way_out="put them into a recipe file",
            )
        self.recipe = None if recipe is None else recipe.absolute()
        if phase is None and recipe is None:
            with_file = (each for each in PHASES if each in self.phases and self.file_for(each) is not None)
            self.phase = next(with_file, self.phase)
        self.paths: tuple[Path, ...] = (recipe if recipe is not None else self._own_file(),)
        """The files that the phase is scheduled by: the recipe first."""
        self.watched: tuple[Path, ...] = self.paths
        """The files of all phases that have been tried, and of what they were measured beside."""
        self.runner = Runner(threads)
        self.limits = Limits(target, self.runner)
        self._data: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def of(self, phase: str | None = None, recipe: Path | None = None) -> Bench:
        """The same for another phase, or with another recipe in place of this one.

        Raises:
            CommandError: there is no such phase, or it has no recipe file.
        """
        other = copy(self)
        other.phase = self.phase if phase is None else self._known(phase)
        other.recipe = self.recipe if recipe is None else recipe.absolute()
        known = recipe or (self.paths[0] if self.recipe is not None else None)
        file = known if known is not None else other._own_file()
        other.paths = (file, *_sources([file])[1:])
        return other

    def _known(self, phase: str) -> str:
        """The phase of that name."""
        found = PHASE_ALIASES.get(phase, phase)
        if found not in self.phases:
            has = f"{nearest(phase, self.phases)}it has {', '.join(self.phases)}"
            way_out = has if self.phases else "it computes nothing"
            raise CommandError(f"{self.layer} has no phase {phase!r}", way_out=way_out)
        return found

    def compile(self) -> Trial:
        """The layer, or the chain that it is compiled in, under the recipe as it is now. A mistake in the recipe's
        function for another phase does not matter: the commands before it count.

        Raises:
            LatteError: the recipe is not Python, or a command was refused in this phase.
        """
        with self._used():
            try:
                return self._compile()
            except LatteError as error:
                mistakes: dict[str, LatteError] = {}
                try:
                    trial = self._compile(mistakes)
                except LatteError:
                    raise (self._mistake(mistakes) or error) from None
                own = self._mistake(mistakes)
                if own is not None or not mistakes:
                    raise (own or error) from None
                return replace(trial, mistakes=mistakes)

    def _mistake(self, mistakes: Mapping[str, LatteError]) -> LatteError | None:
        """That in the function of this phase; inference follows forward."""
        return mistakes.get(self.phase) or (mistakes.get("forward") if self.phase == INFERENCE else None)

    def _reading(self, mistakes: dict[str, LatteError] | None) -> Recipes:
        """The recipes of the net; with ``mistakes``, the functions of the one that is tuned tell theirs, and the others
        go on."""
        tuned = self.paths[0].absolute()

        def read(path: Path) -> Recipe:
            found = read_recipe(path)
            return found if mistakes is None or path.absolute() != tuned else found.going_on(tell)

        def tell(phase: str, error: LatteError) -> None:
            assert mistakes is not None
            mistakes.setdefault(phase, error)

        return Recipes(self.graph, self._programs, read)

    def _compile(self, mistakes: dict[str, LatteError] | None = None) -> Trial:
        start = perf_counter()
        self.paths = self._files()  # until the used ones are known
        with Memos() as memos, KeptSchedules(memos, self.target) as kept:
            plan = make_plan(self.graph, self._programs, kept, until=self._holds, recipes=self._reading(mistakes))
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
            laid_out = _laid_out(item.result)
            buffers = item.result.stages[self.phase][-1].program.buffers
        taken = perf_counter() - start
        (built,) = build([kernel.source], self.target)
        known = {**kernel.added, **{buffer.name: buffer for buffer in buffers.values()}}
        used = {name: known[kernel.bound[name]] for name in kernel.source.buffers}
        arrays = self._arrays(used, stages[0].program)
        compiling = 0.0 if built.cached else built.seconds
        work = program_work(program)
        loaded = load(built)
        return Trial(
            item.unit.name,
            stages,
            outcomes,
            built.path,
            loaded,
            used,
            arrays,
            work,
            taken,
            compiling,
            laid_out=laid_out,
        )

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

    def _holds(self, unit: Unit, phase: str | None = None) -> bool:
        return (phase or self.phase) in unit.parts and any(member in unit.members for member in self.members)

    def file_for(self, phase: str) -> Path | None:
        """The file that schedules a phase of the layer where no other one is named, if there is one."""
        chains = find_chains(self.graph, frozen=self._programs)
        programs = self._programs.programs(chained_order(self.graph, chains.found))
        units = NetUnits(self.graph, Recipes(self.graph, self._programs)).of(programs, chains)
        recipe = next(unit.recipe for unit in units if self._holds(unit, phase))
        return None if recipe is None else recipe.path

    def _own_file(self) -> Path:
        found = self.file_for(self.phase)
        if found is None:
            raise NoRecipeFile(f"{self.layer} has no recipe file", way_out="name a new one: --recipe my_recipe.py")
        return found

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Inside, the file is that of the layer, or of the layers around it whose kinds it declares."""
        before = dict(self.graph.recipes)
        try:
            if self.recipe is not None:
                self.graph.recipes[self._key(self.recipe)] = self.recipe
            yield
        finally:
            self.graph.recipes.clear()
            self.graph.recipes.update(before)

    def _key(self, file: Path) -> str:
        """The name of the layer, or of the chain, that a file is for.

        Raises:
            CommandError: the layer is in no such chain, or it is a chain, and the file declares none.
        """
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
            return names[0]
        if len(self.members) > 1:
            kinds = tuple(member.kind for member in self.members)
            raise CommandError(
                f"declares no chain, but is used for {self.layer}",
                location=str(file),
                way_out=f"chain = {kinds} at its top, or --layer with one layer",
            )
        return self.members[0].name

    def with_data(self, trial: Trial) -> Trial:
        """A trial with its data as they were made: kernels change them."""
        return replace(trial, arrays=self._arrays(trial.buffers, trial.stages[0].program))

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


def _laid_out(result: Scheduled) -> tuple[str, ...]:
    """The phases with a buffer that a recipe has laid out; inference follows forward."""
    own = [outcome.command for outcome in result.outcomes if outcome.status == "applied"]
    layouts = [each for each in own if each.name in LAYOUT_COMMANDS and each.location != DEFAULT_SCHEDULE]
    named = [(each.of, each.arguments[0] if each.arguments else dict(each.options)["buffer"]) for each in layouts]
    names = {name for of, buffer in named for name in (buffer, f"{of}_{buffer}")}
    last = {phase: stages[-1].program for phase, stages in result.stages.items() if phase != INFERENCE}
    return tuple(
        phase
        for phase, program in last.items()
        if any(name in program.buffers and program.buffers[name].layout != PLAIN for name in names)
    )
