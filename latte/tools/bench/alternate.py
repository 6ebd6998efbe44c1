"""Measuring a case: the sides' results compared, then their times taken in turns, with the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median, quantiles
from time import sleep

import numpy as np

from latte.tools.bench.cases import Case
from latte.tools.bench.rounding import WrongResult, compared_in_norm
from latte.tools.bench.workers import OURS, Side, Turn, Worker, Workers
from latte.tools.library.entries import VOCABULARY, Arrays
from swirl.errors import LatteError

BOUND = 1e-4
"""Of the greatest element: sides add up to some 100,000 terms near 1 in other orders."""
LOSS_BOUND = 1e-3
"""Of each loss: rounding grows with the steps of a net."""
LEVEL_BOUND = 1e-2
"""Of levels of a recipe: those without its short sums add up all terms in one number, which loses their last digits."""
ROUNDED = 1e-6
"""Share of a ReLU's values of which rounding may decide on which side of 0 they are."""
SOURCE = "gradient of the source"
WITH_RELU = ("bn-relu", "cbr")
"""Kinds in which gradients may be farther apart wherever such a value reaches."""
ONE_TERM, ONE_OF_FEW = 0.2, 0.5
"""Of the greatest element: how far one term may move a gradient: a parameter's has many, the source's few."""
ROUND_SECONDS, MOST_RUNS = 0.2, 500
"""Of one side in a round."""
SETTLE = 0.05
"""Seconds before a side's turn: threads of the one before may spin after its last run, and take the cores."""
WARM = 2
"""Runs of a turn that are not counted: threads wake up, and arrays come into the caches."""
WARM_IF_LONG = 1
"""The same where one run fills the round."""
NOISE = 0.15
"""Of the median: with a greater distance of the quartiles a row is called noisy."""
TUNED = ("PyTorch tuned", "PyTorch compiled", "PyTorch")
"""The peers whose best is "tuned": some layers are fastest as PyTorch comes."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What was measured of a case.

    Args:
        case: the layer and its shape.
        phase: ``forward``, ``backward``, ``update``, ``step`` or ``inference``.
        target, threads, layout: of our side.
        seconds: by side, of every run.
        differences: by peer, the greatest difference of a result as a share of its greatest element.
        operations, bytes: of our kernels: floating-point operations, and what they touch at the least.
        peak, bandwidth: operations and bytes a second at the most, the best of all rounds.
        missing: by side, why it was not measured.
        shared: by side of ours, parallel regions in which two threads were on one core, of how many.
        planned: bytes of memory that our net needs for this phase; 0 if it is not a whole net.
    """

    case: Case
    phase: str
    target: str
    threads: int
    layout: str
    seconds: dict[str, list[float]]
    differences: dict[str, float]
    operations: int
    bytes: int
    peak: float
    bandwidth: float
    missing: dict[str, str] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    planned: int = 0

    def median(self, side: str = OURS) -> float:
        """Seconds."""
        return median(self.seconds[side])

    def ratio(self, side: str) -> float:
        """How many times as long as ours a side takes."""
        return self.median(side) / self.median()

    @property
    def tuned(self) -> str:
        """The fastest peer; "" where none was measured."""
        return min((name for name in TUNED if name in self.seconds), key=self.median, default="")

    @property
    def limit(self) -> float:
        """Seconds that the machine takes at the least for the arithmetic, or for moving the bytes once."""
        return max(self.operations / self.peak, self.bytes / self.bandwidth)

    @property
    def share(self) -> float:
        """Of the limit that ours reaches."""
        return self.limit / self.median()

    @property
    def shared_core(self) -> list[str]:
        """What is to be said of our sides whose threads have shared a core."""
        return [f"{name} in {count} of {every} regions" for name, (count, every) in self.shared.items() if count]

    @property
    def noisy(self) -> list[str]:
        """The sides whose times vary too much to be believed."""
        return [name for name, seconds in self.seconds.items() if _distance(seconds) > NOISE]


def sides_but(rows: Iterable[Row], *known: str) -> list[str]:
    """The names of the sides of some rows, but for these, each once."""
    return list(dict.fromkeys(name for row in rows for name in row.seconds if name not in known))


def _distance(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 0.0
    low, middle, high = quantiles(seconds, n=4)
    return (high - low) / middle


def measured(
    case: Case,
    phases: Sequence[str],
    sides: Sequence[Side],
    threads: int,
    target: str | None,
    blocks: bool,
    rounds: int,
    progress: Progress,
) -> list[Row]:
    """The rows of a case, one for each phase.

    A peer that fails is left out, and so is one whose results differ from ours and from another peer's that agrees with
    ours; the row says why.

    Raises:
        WrongResult: a peer's results differ from ours.
        LatteError: our side fails, or has no such phase.
    """
    missing: dict[str, str] = {}
    with Workers(case, threads, target, blocks) as workers:
        progress(f"{case}: {OURS} compiles{' (minutes, if its kernels are not in the cache)' * bool(case.published)}")
        ours = workers.start(sides[0])
        data = workers.path("data.npz")
        write_data(case, ours.about["value"], data)
        expected = ours.results(data)
        differences: dict[str, float] = {}
        agreed: dict[str, Arrays] = {}  # by peer
        for side in sides[1:]:
            bound = LOSS_BOUND if case.kind == "net" else BOUND if side.level is None else LEVEL_BOUND
            progress(f"{case}: {side.name} {'compiles' if side.compiled else 'starts'}; results are compared")
            try:
                found = workers.start(side).results(data)
                differences[side.name] = compared(case, side.name, found, expected, bound)
                agreed |= {side.name: found} if side.peer else {}
            except WrongResult as error:
                against = agreed.items() if side.peer else ()
                alone = [name for name, results in against if _differ(case, name, results, found, bound)]
                if not alone:
                    raise
                missing[side.name] = f"its results differ from {alone[0]}'s, too: {error.message}"
                workers.drop(side)
            except LatteError as error:
                missing[side.name] = error.message
                workers.drop(side)
        return [_timed(case, phase, workers, differences, rounds, progress, missing) for phase in phases]


def write_data(case: Case, value: Sequence[int], path: Path) -> None:
    """Random data of a case to a file: a source, and a gradient of the value, whose shape is given."""
    generator = np.random.default_rng(0)
    shape = (case.batch, *(case.source if value else ()))
    inputs = generator.standard_normal(shape, np.float32)
    if case.reads_words:
        inputs = generator.integers(0, VOCABULARY, shape, np.int32)
    np.savez(path, inputs=inputs, gradient=generator.standard_normal(value, np.float32))


def compared(case: Case, name: str, found: Arrays, expected: Arrays, bound: float = BOUND) -> float:
    """The greatest difference, as a share of the greatest element of its result; of a published net, of its norm.

    Raises:
        WrongResult: it is beyond the bound.
    """
    if case.published is not None:
        return compared_in_norm(str(case), name, found, expected)
    worst = 0.0
    for what, ours in expected.items():
        theirs = found[what].reshape(ours.shape)
        scale = max(float(np.abs(ours).max()), 1e-30)
        difference = np.nan_to_num(np.abs(ours.astype(np.float64) - theirs) / scale, nan=np.inf)
        beyond = difference > bound
        if beyond.any():
            term = ONE_OF_FEW if what == SOURCE else ONE_TERM
            beyond &= ~_reached(case, what, found, expected) | (difference > term)
        if beyond.any():
            at = np.unravel_index(int(np.argmax(difference * beyond)), difference.shape)
            place = ", ".join(map(str, at))
            raise WrongResult(
                f"{case}: {what}: {beyond.sum()} of {difference.size} elements differ from {name}'s by more than "
                f"{bound:g} of the greatest; [{place}] is {ours[at]:.6g}, and {theirs[at]:.6g}",
                way_out="nothing was timed: mend the layer, or report it with this line",
            )
        worst = max(worst, float(difference.max()))
    return worst


def _reached(case: Case, what: str, found: Arrays, expected: Arrays) -> np.ndarray:
    """The elements of a gradient that values of a ReLU reach which are 0 on one side alone, as rounding has decided, if
    they are few: in the source through a convolution's window, in parameters those of their channels. The answer can be
    broadcast to the shape of the result."""
    none = np.zeros(1, bool)
    if case.kind not in WITH_RELU or not what.startswith("gradient"):
        return none
    values = expected["value"]
    decided = (values > 0) != (found["value"].reshape(values.shape) > 0)
    if decided.sum() > ROUNDED * values.size:
        return none
    if what != SOURCE:
        return decided.any((0, *range(2, decided.ndim))).reshape(-1, *(1,) * (expected[what].ndim - 1))
    if case.kind != "cbr":
        return decided
    reached = np.zeros(expected[what].shape, bool)
    for image, _, *pixel in np.argwhere(decided):
        first = [case.stride * at - case.kernel // 2 for at in pixel]
        rows, columns = (slice(max(0, low), low + case.kernel) for low in first)
        reached[image, :, rows, columns] = True
    return reached


def _differ(case: Case, name: str, found: Arrays, expected: Arrays, bound: float) -> bool:
    """Whether two sides' results do."""
    try:
        compared(case, name, found, expected, bound)
    except WrongResult:
        return True
    return False


def _timed(
    case: Case,
    phase: str,
    workers: Workers,
    differences: dict[str, float],
    rounds: int,
    progress: Progress,
    missing: dict[str, str],
) -> Row:
    ours = workers.running[OURS]
    progress(f"{case} {phase}: how many runs make a round")
    runs = {name: run_count(worker, phase) for name, worker in workers.running.items()}
    seconds: dict[str, list[float]] = {name: [] for name in workers.running}
    shared: dict[str, tuple[int, int]] = {}
    limits: list[tuple[float, float]] = []
    for number in range(rounds):
        progress(f"{case} {phase}: round {number + 1} of {rounds}")
        for name, worker in workers.running.items():
            taken = turn(worker, phase, runs[name], WARM if runs[name] > 1 else WARM_IF_LONG)
            seconds[name] += taken.seconds
            if not worker.side.peer:
                before = shared.get(name, (0, 0))
                shared[name] = before[0] + taken.shared, before[1] + taken.regions
        found = ours.ask(do="limits")
        limits.append((found["peak"], found["bandwidth"]))
    work = ours.ask(do="work", phase=phase)
    return Row(
        case,
        phase,
        ours.about["target"],
        workers.threads,
        "blocks" if workers.blocks else "plain",
        seconds,
        differences,
        work["operations"],
        work["bytes"],
        max(peak for peak, _ in limits),
        max(bandwidth for _, bandwidth in limits),
        missing,
        shared,
        work["planned"],
    )


def turn(worker: Worker, phase: str, runs: int, warm: int = WARM) -> Turn:
    """So many runs of one side, when the others are at rest."""
    sleep(SETTLE)
    return worker.turn(phase, runs, warm)


def run_count(worker: Worker, phase: str) -> int:
    """Runs of a round."""
    (once,) = turn(worker, phase, 1).seconds
    return max(1, min(MOST_RUNS, ceil(ROUND_SECONDS / max(once, 1e-6))))
