"""Whether a whole net gains by tuned recipes: with and without them, in turns, in a process of its own.

    python -m latte.tools.tune.accept FILE FOLDER [--target T] [--threads N] [--seconds S]

prints a line of JSON after ``tune: ``: the seconds of each step with and without, or what is wrong. The steps are those
of training and of inference; of a net without a loss, which nothing trains, inference alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any

import click
import numpy as np

from latte.model.ensemble_kinds import LossEnsemble
from latte.net import Net
from latte.tools.net_files import SET, load_net, plain_errors
from latte.tools.synthetic_data import synthetic_batch
from swirl.config import child_environment
from swirl.errors import DataError, LatteError

RESULT = "tune: "
"""How the line with the result begins."""
ERROR = "Error: "
"""How an error of ours begins, see :func:`latte.tools.net_files.plain_errors`."""
SETTLE, LEAST = 2, 5
"""Steps before the first one that counts, and steps at the least."""
CHANCE = 0.05
"""That equal nets look as if one were faster."""
TOLERANCE = 1e-3
"""Of results, relative to the largest."""
GRADIENTS = 1e-2
"""Of gradients, relative, of their norms: rounding decides which of two equal maxima gets one."""
SEED = 1
"""Of both nets' random numbers."""


@dataclass(frozen=True)
class Comparison:
    """Steps of a net with and without tuned recipes, in turns.

    Args:
        tuned, before: seconds of each.
        step: what a step is: ``training`` or ``inference``.
    """

    tuned: tuple[float, ...]
    before: tuple[float, ...]
    step: str

    @property
    def ratio(self) -> float:
        """How many times as fast with them: the median of the ratios of neighbours."""
        return median(before / tuned for tuned, before in self._pairs())

    @property
    def gains(self) -> bool:
        """Whether it is faster, in more than three of five pairs, and in more than two equal nets would be by chance
        (the sign test, one-sided)."""
        return self.ratio > 1 and self._often(tuned < before for tuned, before in self._pairs())

    @property
    def loses(self) -> bool:
        """Whether it is slower, by the same test."""
        return self.ratio < 1 and self._often(tuned > before for tuned, before in self._pairs())

    def _pairs(self) -> Iterator[tuple[float, float]]:
        return zip(self.tuned, self.before, strict=True)

    def _often(self, found: Iterable[bool]) -> bool:
        count, often = len(self.tuned), sum(found)
        chance = sum(comb(count, more) for more in range(often, count + 1)) / 2**count
        return often > 0.6 * count and chance < CHANCE

    def __str__(self) -> str:
        return f"a step of {self.step} is {self.ratio:.3f} times as fast"


def compare_nets(
    file: Path,
    folder: Path,
    base: Path | None,
    target: str | None,
    threads: int | None,
    seconds: float,
    choices: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Comparison, ...]:
    """Measure a net's steps in a fresh process: training, if it has a loss, and inference.

    Args:
        file: that defines the net.
        folder: of tuned recipes.
        base: a folder of recipes of the net beside it; None for those that it has.
        target, threads: as of the search.
        seconds: that the steps may take in all.
        choices: for recipes of the net, by name.

    Returns:
        what the net is for first.

    Raises:
        LatteError: the process fails, or results differ.
    """
    command = [sys.executable, "-m", "latte.tools.tune.accept", str(file), str(folder), "--seconds", str(seconds)]
    command += [] if base is None else ["--base", str(base)]
    command += [] if target is None else ["--target", target]
    command += [] if threads is None else ["--threads", str(threads)]
    for name, value in choices.items():
        command += ["--set", f"{name}={value!r}"]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]  # the net's file may print, too
    if done.returncode or not lines:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        own = [number for number, line in enumerate(lines) if line.startswith(ERROR)]  # with a way out after it
        told = "\n".join(lines[own[-1] if own else -1 :]).removeprefix(ERROR)
        raise LatteError(f"the net with tuned recipes cannot be measured: {told}")
    found = json.loads(lines[-1].removeprefix(RESULT))
    return tuple(Comparison(tuple(each["tuned"]), tuple(each["before"]), each["step"]) for each in found)


@click.command(help=__doc__)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--base", type=click.Path(path_type=Path))
@click.option("--target")
@click.option("--threads", type=int)
@click.option("--seconds", default=10.0)
@SET
def main(
    file: Path,
    folder: Path,
    base: Path | None,
    target: str | None,
    threads: int | None,
    seconds: float,
    choices: dict[str, Any],
) -> None:
    """See the module."""
    with plain_errors(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, tuned = (_net(file, choices, each, target, threads) for each in (base, folder))
        tuned.load_state_dict(before.state_dict())
        batch = synthetic_batch(before)
        for net in (before, tuned):
            net.set_batch(*batch)
        trains = has_loss(before)
        check_results(before, tuned, trains)
        names = ("training", "inference") if trains else ("inference",)
        found = [
            {"step": name, **_in_turns([_step(net, name) for net in (before, tuned)], seconds / len(names))}
            for name in names
        ]
        click.echo(f"\n{RESULT}{json.dumps(found)}")


def has_loss(net: Net) -> bool:
    """Whether a net is trained: backward has a loss to start from."""
    return bool(net.graph.losses())


def _net(file: Path, choices: Mapping[str, Any], folder: Path | None, target: str | None, threads: int | None) -> Net:
    net = load_net(file, choices)
    if net.compiled:
        raise LatteError(f"the net of {file} is compiled already", way_out="leave net.compile() out of the file")
    if folder is not None:
        net.graph.settings.recipes = (folder, *net.graph.settings.recipes)
    net.graph.settings.seed = SEED
    net.compile(target=target, threads=threads)
    return net


def check_results(before: Net, tuned: Net, trains: bool) -> None:
    """Compare what two compiled nets with a batch compute: outputs and losses, and gradients where they are trained.

    Raises:
        LatteError: the first that differs.
    """
    (values, gradients), (own_values, own_gradients) = (_results(net, trains) for net in (before, tuned))
    for name in values.keys() & own_values.keys():  # what one of them has fused away cannot be read
        value, own = values[name], own_values[name]
        scale, difference = _largest(value), _largest(value - own)
        if not difference <= TOLERANCE * max(scale, 1e-30) and not np.array_equal(value, own, equal_nan=True):
            raise LatteError(f"{name} differs by {difference:.3g}, of values up to {scale:.3g}")
    for name in gradients.keys() & own_gradients.keys():
        gradient, own = gradients[name], own_gradients[name]
        scale, difference = float(np.linalg.norm(gradient)), float(np.linalg.norm(gradient - own))
        if not difference <= GRADIENTS * max(scale, 1e-30) and not np.array_equal(gradient, own, equal_nan=True):
            raise LatteError(f"the gradient {name} differs by {difference:.3g}, of a norm of {scale:.3g}")


def _results(net: Net, trains: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The values of a net's outputs and losses in inference and training; the gradients of parameters and data."""
    values = _outputs(net, "inference", net.test)
    if not trains:
        return values, {}
    values |= _outputs(net, "training", net.forward)
    net.clear_grad()
    net.backward()
    executable = net.executable
    names = [name for name, buffer in executable.buffers.items() if buffer.role == "param_grad"]
    names += [name for layer in net.graph.data() if (name := f"{layer.name}.grad") in executable.buffers]
    return values, {name: executable.read(name).astype(np.float64).ravel() for name in names}


def _outputs(net: Net, step: str, run: Callable[[], None]) -> dict[str, np.ndarray]:
    """What a step computes of the layers that none reads but losses and accuracies, and of these."""
    run()
    measured = {"loss": net.loss, "accuracy": net.accuracy}
    found = {name: np.asarray([value]) for name, value in measured.items() if value is not None}
    for layer in net.graph.order():
        sinks = [edge.sink for edge in net.graph.readers(layer)]
        if layer.has_body and all(isinstance(sink, LossEnsemble) for sink in sinks):
            with suppress(DataError):  # fused away into the loss
                found[layer.name] = np.asarray(layer.get_value())
    return {f"{name} in {step}": value.astype(np.float64).ravel() for name, value in found.items()}


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


def _step(net: Net, name: str) -> Callable[[], None]:
    def training() -> None:
        net.forward()
        net.clear_grad()
        net.backward()

    return training if name == "training" else net.test


def _in_turns(steps: Sequence[Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    for _ in range(SETTLE):
        for step in steps:
            step()
    times: list[list[float]] = [[], []]
    start = perf_counter()
    while len(times[0]) < LEAST or perf_counter() - start < seconds:
        for number in (0, 1) if len(times[0]) % 2 == 0 else (1, 0):
            begun = perf_counter()
            steps[number]()
            times[number].append(perf_counter() - begun)
    return {"before": times[0], "tuned": times[1]}


if __name__ == "__main__":
    main()
