"""How long each layer takes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from latte.model.checks import is_integer
from latte.model.source_location import user_location
from latte.runtime.executable import Executable
from latte.runtime.locking import one_at_a_time
from latte.runtime.session import Session
from swirl.errors import CommandError, nearest

TIMED = ("forward", "inference", "backward")
# What a run changes and the next one reads: restored afterwards, so that timing does not train.
KEPT_ROLES = ("state", "param_grad", "scalar")


@dataclass(frozen=True)
class LayerTime:
    """One kernel: the ensemble and phase that it belongs to, its median time, and its share of all."""

    ensemble: str
    phase: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Timings:
    """How long each layer of a net takes in one phase. ``print`` shows a table.

    Args:
        phase: ``forward``, ``inference``, or ``backward`` (with its update kernels).
        batch_size: items in the batch.
        threads: of OpenMP.
        repeat: number of runs; times are medians.
        layers: in the order in which they run.
    """

    phase: str
    batch_size: int
    threads: int
    repeat: int
    layers: tuple[LayerTime, ...]

    @property
    def seconds(self) -> float:
        """Sum over all layers."""
        return sum(layer.seconds for layer in self.layers)

    def shares(self) -> dict[str, float]:
        """Ensemble → its share of the time, ``backward`` and ``update`` together."""
        result: dict[str, float] = {}
        for layer in self.layers:
            result[layer.ensemble] = result.get(layer.ensemble, 0.0) + layer.share
        return result

    def table(self) -> Table:
        """The times as a table of ``rich``."""
        table = Table()
        table.add_column("layer")
        table.add_column("phase")
        table.add_column("µs", justify="right")
        table.add_column("share", justify="right")
        for layer in self.layers:
            table.add_row(layer.ensemble, layer.phase, f"{layer.seconds * 1e6:.1f}", f"{layer.share:.1%}")
        table.add_section()
        table.add_row("all", "", f"{self.seconds * 1e6:.1f}", "")
        return table

    def print(self, console: Console | None = None) -> None:
        """Show the table on the terminal."""
        console = console or Console()
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        runs = "1 run" if self.repeat == 1 else f"{self.repeat} runs"
        console.print(f"{self.phase}, batch size {self.batch_size}, {threads}, median of {runs}", highlight=False)
        console.print(self.table())

    def __str__(self) -> str:
        text = io.StringIO()
        self.print(Console(file=text, width=100))
        return text.getvalue().rstrip()

    def to_json(self) -> str:
        """The same as a JSON object."""
        return json.dumps({**asdict(self), "seconds": self.seconds}, indent=2)


@one_at_a_time
def timings(session: Session, phase: str = "forward", repeat: int = 10) -> Timings:
    """Run a phase of a compiled net on the current batch and time every layer.

    Parameters' gradients and states (a running mean, say) are restored; values are those that the phase computes.

    Args:
        session: of a compiled net.
        phase: ``forward``, ``inference`` or ``backward``. For ``backward``, a ``forward`` that has not run
            yet runs first.
        repeat: number of runs, after one that is not counted; times are medians.

    Raises:
        CommandError: there is no such phase, or nothing to repeat.
    """
    session.settle()
    executable = session.executable
    if not isinstance(phase, str) or phase not in TIMED:
        way_out = f"{nearest(str(phase), TIMED)}it takes {', '.join(TIMED)}"
        raise CommandError(f"timings: no phase named {phase!r}", location=user_location(), way_out=way_out)
    check_repeat("timings", repeat)
    with as_before(executable):
        if phase == "backward" and "forward" not in executable.has_run:
            executable.run("forward")
        executable.run(phase)
        runs = [executable.run_timed(phase) for _ in range(repeat)]
    medians = [median(step[2] for step in steps) for steps in zip(*runs, strict=True)]
    total = sum(medians) or 1.0
    layers = [
        LayerTime(name, step, seconds, seconds / total)
        for (name, step, _), seconds in zip(runs[0], medians, strict=True)
    ]
    return Timings(phase, executable.batch_size, session.runner.threads, repeat, tuple(layers))


def check_repeat(what: str, repeat: int) -> None:
    """CommandError where ``repeat`` is not a number of runs."""
    if not is_integer(repeat) or repeat < 1:
        raise CommandError(
            f"{what}: repeat must be a whole number, at least 1, not {repeat!r}", location=user_location()
        )


@contextmanager
def as_before(executable: Executable, values: bool = False) -> Iterator[None]:
    """Looking does not train: parameters' gradients, states and the phases that count as run are afterwards what they
    were, whatever runs meanwhile.

    Args:
        executable: that runs.
        values: whether the same holds for the values and gradients of all layers, of which copies are kept then.
    """
    kept_roles = (*KEPT_ROLES, "value", "grad") if values else KEPT_ROLES
    with executable.views.in_storage():
        restore = executable.memory.snapshot(kept_roles)
    has_run, missing, phase = set(executable.has_run), set(executable.missing), executable.memory.phase
    try:
        yield
    finally:
        with executable.views.in_storage():
            restore()
        executable.has_run.intersection_update(has_run)
        if values:
            executable.has_run, executable.missing, executable.memory.phase = has_run, missing, phase
