"""Measuring a profile: layers as they are compiled, their loop nests apart, and the limits of the machine, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latte.model.source_location import user_location
from latte.profiling.nests import LoopNest, loop_nests
from latte.profiling.profile import Profile
from latte.profiling.rows import COMPUTE, MEMORY, Row
from latte.runtime.kernels import CompiledPhase
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from latte.runtime.timings import as_before, check_repeat
from swirl.errors import DataError
from swirl.ir.nest import Program
from swirl.ir.work import Work, program_work
from swirl.measure import Limits, Times
from swirl.target import processor_name

TRAINING = ("forward", "backward")
"""What a training step runs; ``backward`` with the update of parameters' gradients."""

Run = Callable[[str], list[float]]
"""Runs a phase of the net; the seconds of its parts."""


@dataclass(frozen=True)
class Measurements:
    """Seconds of each round.

    Args:
        compiled: of each layer and phase, as it is compiled.
        apart: of each loop nest of each of them.
        peak, bandwidth: of the machine, the best round.
    """

    compiled: tuple[Times, ...]
    apart: tuple[tuple[Times, ...], ...]
    peak: float
    bandwidth: float


@one_at_a_time
def profile(session: Session, repeat: int = 10) -> Profile:
    """Where the time of a training step goes on the current batch, and how far each part is from what the machine can
    do.

    A layer (or a chain of layers) is one kernel a phase. Its loop nests are compiled once more, each as a kernel of its
    own, and run in the same order on the same arrays. A nest with several loops one after the other is taken apart too,
    unless they share locals. What the nests take apart need not add up to the time of the layer: each has a timer and a
    barrier of its own.

    In each round the limits are measured first; then the step runs three times: not timed, so that the caches hold what
    they do in training; timed by layer; timed by nest. Afterwards all values, gradients and states are what they were;
    copies of them are kept meanwhile. The solver is not part of the step.

    Args:
        session: of a compiled net with data.
        repeat: number of rounds; times are medians.

    Raises:
        CommandError: nothing to repeat.  DataError: the data layers have not been set.
        TrainingError: a gradient was set for another batch size.
        CompilerMissing, CompilerFailed, LatteError: see :func:`swirl.jit.build`.
    """
    check_repeat("profile", repeat)
    unset = [layer.name for layer in session.graph.data() if layer.name not in session.given]
    if unset:
        raise DataError(
            f"profile needs a batch: nobody has set {', '.join(unset)}",
            location=user_location(),
            way_out="call net.set_batch(…) first",
        )
    executable = session.executable
    phases = [compiled for name in TRAINING for compiled in executable.order[name]]
    nests = loop_nests(phases, executable.plan.target)
    works = Works()
    measured = _measure(session, nests, repeat)
    whole = sum(times.median for times in measured.compiled) or 1.0
    rows = [
        _row(works, measured, whole, compiled, several, number)
        for number, (compiled, several) in enumerate(zip(phases, nests, strict=True))
    ]
    return Profile(
        processor_name(),
        executable.plan.target.name,
        session.runner.threads,
        executable.batch_size,
        repeat,
        measured.peak,
        measured.bandwidth,
        tuple(rows),
    )


# --- measuring ----------------------------------------------------------------------------------------------
def _measure(session: Session, nests: Sequence[Sequence[LoopNest]], repeat: int) -> Measurements:
    executable, runner = session.executable, session.runner
    limits = Limits(executable.plan.target, runner)
    forward = len(executable.order["forward"])
    apart = {
        name: runner.phase(
            [
                (nest.kernel, [executable.arrays[nest.program.buffers[buffer].name] for buffer in nest.buffers])
                for several in part
                for nest in several
            ]
        )
        for name, part in zip(TRAINING, (nests[:forward], nests[forward:]), strict=True)
    }

    def by_nest(name: str) -> list[float]:
        with executable.views.in_storage():
            return apart[name].run_timed()

    def by_layer(name: str) -> list[float]:
        return [seconds for _, _, seconds in executable.run_timed(name)]

    with as_before(executable, values=True):
        rounds = []
        for _ in range(repeat):
            rates = limits.rates()
            _step(session, by_layer)
            rounds.append((rates, _step(session, by_layer), _step(session, by_nest)))
    peaks, bandwidths = zip(*(rates for rates, _, _ in rounds), strict=True)
    compiled = [Times(runs) for runs in zip(*(layers for _, layers, _ in rounds), strict=True)]
    parts = iter([Times(runs) for runs in zip(*(own for _, _, own in rounds), strict=True)])
    return Measurements(
        tuple(compiled), tuple(tuple(next(parts) for _ in several) for several in nests), max(peaks), max(bandwidths)
    )


def _step(session: Session, run: Run) -> list[float]:
    """A training step, in which gradients of parameters begin anew."""
    executable = session.executable
    seconds = run("forward")
    session.seeds.before_backward(executable)
    if "net.accumulate" in executable.arrays:
        executable.arrays["net.accumulate"][0] = 0
    return [*seconds, *run("backward")]


# --- rows ---------------------------------------------------------------------------------------------------
class Works:
    """Operations and bytes of kernels, counted once for each: layers of the same shape share one."""

    def __init__(self) -> None:
        self._found: dict[str, Work] = {}

    def of(self, kernel: str, program: Program) -> Work:
        if kernel not in self._found:
            self._found[kernel] = program_work(program)
        return self._found[kernel]


def _row(
    works: Works, measured: Measurements, whole: float, compiled: CompiledPhase, nests: Sequence[LoopNest], number: int
) -> Row:
    """The row of the phase with that number, and those of its nests."""

    def row(
        kernel: str,
        program: Program,
        times: Times,
        nest: str = "",
        writes: tuple[str, ...] = (),
        nests: tuple[Row, ...] = (),
    ) -> Row:
        work = works.of(kernel, program)
        exact = work.exact and all(touched.exact for touched in work.touched)
        compute, memory = work.operations / measured.peak, work.bytes / measured.bandwidth
        return Row(
            compiled.unit.name,
            compiled.phase,
            nest,
            writes,
            times.median,
            times.spread,
            times.median / whole,
            work.operations,
            work.bytes,
            exact,
            max(compute, memory),
            COMPUTE if compute > memory else MEMORY,
            nests,
        )

    below = tuple(
        row(nest.kernel.name, nest.program, times, nest.label, nest.writes)
        for nest, times in zip(nests, measured.apart[number], strict=True)
    )
    return row(compiled.kernel.name, compiled.program, measured.compiled[number], nests=below)
