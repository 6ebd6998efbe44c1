"""One layer's recipe on the bench: edited, recompiled alone, timed beside what it was and what the machine can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from zlib import crc32

import numpy as np

from latte.ensemble import Ensemble
from latte.explain import find_ensemble
from latte.net import Net
from latte.phases import net_programs
from latte.recipes_of import recipe_of, recipe_path
from latte.runtime import laid_out, owned_storage
from latte.showing import amount
from swirl.dump.write import contents
from swirl.errors import CommandError, LatteError, nearest
from swirl.ir.buffers import DTYPES, Buffer, Layout
from swirl.ir.nest import Program
from swirl.ir.work import Work, program_work
from swirl.jit import Kernel, Unit, build, load
from swirl.measure import Limits, Measured
from swirl.memo import remembering
from swirl.memory import allocate
from swirl.pipeline import Stage, finish, generate, schedule
from swirl.questions import PHASE_ALIASES
from swirl.recipe import Outcome
from swirl.runner import Runner
from swirl.target import Target

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """A phase of the layer as one version of the recipe made it.

    Args:
        stages: of the compiler, the last one translated.
        outcomes: what became of the recipe's commands.
        library: the compiled file.
        kernel, arrays: what runs, on data of its own, one array for each of ``buffers``.
        work: operations and bytes.
        scheduling, compiling: seconds that it took; in the C++ compiler, 0 where the kernel was in the cache.
    """

    stages: tuple[Stage, ...]
    outcomes: tuple[Outcome, ...]
    library: Path
    kernel: Kernel
    buffers: dict[str, Buffer]
    arrays: list[np.ndarray]
    work: Work
    scheduling: float
    compiling: float


class Bench:
    """A layer of a net, to be compiled and timed by itself again and again.

    Args:
        net: declared; it need not be compiled.
        layer: name of an ensemble.
        phase: ``forward``, ``inference``, ``backward`` or ``update``.
        target: what code is made for.
        recipe: file to use for this layer, in place of its own.
        threads: of OpenMP.
        whole_numbers: as data, small ones: sums are exact in whatever order.

    Raises:
        CommandError: there is no such layer or phase, or the layer has no recipe file.
    """

    def __init__(self, net: Net, layer: str, phase: str, target: Target, recipe: Path | None = None,
                 threads: int | None = None, whole_numbers: bool = False):  # fmt: skip
        self.net, self.target, self.whole_numbers = net, target, whole_numbers
        self.ensemble: Ensemble = find_ensemble(net, layer)
        self.phase = PHASE_ALIASES.get(phase, phase)
        self._programs = net_programs(net, net.batch_size)
        phases = next(list(found.programs) for found in self._programs if found.ensemble is self.ensemble)
        if self.phase not in phases:
            way_out = f"{nearest(phase, phases)}it has {', '.join(phases)}" if phases else "it computes nothing"
            raise CommandError(f"{layer} has no phase {phase!r}", way_out=way_out)
        if recipe is not None:
            net.recipes[self.ensemble.name] = recipe
        path = recipe_path(net, self.ensemble)
        if path is None:
            raise CommandError(f"{layer} has no recipe file", way_out="name a new one: --recipe my_recipe.py")
        if self.ensemble.commands:
            raise CommandError(
                f"{layer} has commands of its own, which replace those of a file",
                place=self.ensemble.commands[0].place,
                way_out="put them into a recipe file",
            )
        self.path = path
        self.runner = Runner(threads)
        self.limits = Limits(target, self.runner)
        self._data: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def compile(self) -> Trial:
        """The layer under the recipe as it is now.

        Raises:
            LatteError: the recipe is no Python, or a command was refused.
        """
        start = perf_counter()
        layouts: dict[str, Layout] = {}
        with ExitStack() as memos:
            for programs in self._programs:  # the layers before it choose how its sources lie; all that is remembered
                current = {phase: laid_out(program, layouts) for phase, program in programs.programs.items()}
                memo = memos.enter_context(remembering(current.values()))
                recipe = recipe_of(self.net, programs.ensemble)
                owned = owned_storage(programs.ensemble, layouts)
                result = schedule(current, recipe, self.target, owned, memo)
                for stages in result.stages.values():
                    layouts |= {b.name: b.layout for b in stages[-1].program.buffers.values()}
                if programs.ensemble is self.ensemble:
                    break
            finished = finish(result.stages[self.phase], memo)
            source = generate(finished, self.target, memo=memo)
        scheduling = perf_counter() - start
        (built,) = build([Unit(source.name, source.source)], self.target)
        buffers = result.stages[self.phase][-1].program.buffers
        used = {name: buffers[name] for name in source.buffers}
        arrays = self._arrays(used, finished[0].program)
        compiling = 0.0 if built.cached else built.seconds
        work = program_work(finished[-1].program)
        return Trial(finished, result.outcomes, built.path, load(built), used, arrays, work, scheduling, compiling)

    def measure(self, *trials: Trial) -> Measured:
        """Trials beside each other and the machine's limits."""
        return self.limits.measure([(trial.kernel, trial.arrays) for trial in trials])

    def results(self, trial: Trial) -> dict[str, np.ndarray]:
        """What the kernel makes of the buffers that the layer has, each as it is declared. To be asked for before any
        other run: it may add to what the one before has left."""
        self.runner.phase([(trial.kernel, trial.arrays)]).run()
        declared = trial.stages[0].program.buffers
        arrays = dict(zip(trial.buffers, trial.arrays, strict=True))
        return {
            name: trial.buffers[name].layout.unpack(arrays[name], trial.buffers[name].shape).reshape(buffer.shape)
            for name, buffer in declared.items()
            if name in trial.buffers
        }

    def _arrays(self, buffers: dict[str, Buffer], lowered: Program) -> list[np.ndarray]:
        """Random contents as they lie in memory; whole numbers where they are used as such."""
        values = contents(lowered)
        sizes = {name: (buffer.physical_shape, DTYPES[buffer.dtype]) for name, buffer in buffers.items()}
        memory = allocate(sizes, self.runner)
        for name, buffer in buffers.items():
            key = (buffer.name, buffer.shape)
            if key not in self._data:
                self._data[key] = _made(buffer, values.get(name), self.whole_numbers)
            memory[name][...] = buffer.layout.pack(self._data[key])
        return [memory[name] for name in buffers]


def _made(buffer: Buffer, values: int | str | None, whole_numbers: bool) -> np.ndarray:
    generator = np.random.default_rng(crc32(buffer.name.encode()))
    if isinstance(values, int) or not buffer.dtype.startswith("float"):
        below = values if isinstance(values, int) else 2
        return generator.integers(0, below, buffer.shape).astype(DTYPES[buffer.dtype])
    if whole_numbers:
        return generator.integers(-2, 3, buffer.shape).astype(DTYPES[buffer.dtype])
    made = generator.standard_normal(buffer.shape, np.float32)
    return (np.abs(made) + 0.5 if values == "positive" else made).astype(DTYPES[buffer.dtype])


# --- words --------------------------------------------------------------------------------------------------
def report(bench: Bench, trial: Trial, measured: Measured, before: Trial | None) -> str:
    """What one save of the recipe led to."""
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
    applied = sum(outcome.status == "applied" for outcome in trial.outcomes)
    skipped = [outcome for outcome in trial.outcomes if outcome.status == "skipped"]
    compiler = f"{trial.compiling:.1f} s in the C++ compiler" if trial.compiling else "the kernel was in the cache"
    lines.append(f"{'':11}   {applied} commands applied, {len(skipped)} skipped; "
                 f"scheduled in {trial.scheduling:.1f} s, {compiler}")  # fmt: skip
    for outcome in skipped:
        place = f"{outcome.command.place}: " if outcome.command.place else ""
        lines += [f"  skipped  {place}{outcome.command.text}", *(f"    {line}" for line in outcome.reason.splitlines())]
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
    """Compile and time, again after each save of the recipe file; what is wrong with it is said, and watching goes on.

    Yields:
        whether this version of the recipe ran, as soon as all is said about it.
    """
    before: Trial | None = None
    while True:
        seen = _saved(bench.path)
        try:
            trial = bench.compile()
            measured = bench.measure(*(t for t in (trial, before) if t is not None))
        except LatteError as error:
            say(str(error))
            yield False
        else:
            say(report(bench, trial, measured, before))
            before = trial
            yield True
        while _saved(bench.path) in (seen, None):  # None: an editor is just replacing it
            time.sleep(POLL_SECONDS)


def _saved(path: Path) -> tuple[int, int] | None:
    """What changes when the file is saved; None where it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
