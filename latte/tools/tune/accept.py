"""Whether a whole net gains by tuned recipes: with and without them, in turns, in a process of its own.

    python -m latte.tools.tune.accept FILE FOLDER [--target T] [--threads N] [--seconds S]

prints a line of JSON after ``tune: ``: the seconds of each step with and without, or what is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any

import click
import numpy as np

from latte.net import Net
from latte.tools.net_files import SET, load_net, plain_errors
from latte.tools.synthetic_data import synthetic_batch
from swirl.config import child_environment
from swirl.errors import LatteError

RESULT = "tune: "
"""How the line with the result begins."""
ERROR = "Error: "
"""How an error of ours begins, see :func:`latte.tools.net_files.plain_errors`."""
SETTLE, LEAST = 2, 5
"""Steps before the first one that counts, and steps at the least."""
CHANCE = 0.05
"""That equal nets look as if one were faster."""
TOLERANCE = 1e-3
"""Of inference's results, relative to the largest."""


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
        return median(before / tuned for tuned, before in zip(self.tuned, self.before, strict=True))

    @property
    def gains(self) -> bool:
        """Whether it is faster, in more than three of five pairs, and in more than two equal nets would be by chance
        (the sign test, one-sided)."""
        count = len(self.tuned)
        better = sum(tuned < before for tuned, before in zip(self.tuned, self.before, strict=True))
        chance = sum(comb(count, more) for more in range(better, count + 1)) / 2**count
        return self.ratio > 1 and better > 0.6 * count and chance < CHANCE


def compare_nets(
    file: Path,
    folder: Path,
    base: Path | None,
    target: str | None,
    threads: int | None,
    seconds: float,
    choices: Mapping[str, Any] = MappingProxyType({}),
) -> Comparison:
    """Measure a net's step in a fresh process.

    Args:
        file: that defines the net.
        folder: of tuned recipes.
        base: a folder of recipes of the net beside it; None for those that it has.
        target, threads: as of the search.
        seconds: that the steps may take.
        choices: for recipes of the net, by name.

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
    return Comparison(tuple(found["tuned"]), tuple(found["before"]), found["step"])


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
        _check(before, tuned)
        trains = bool(before.executable.order["backward"])
        steps = [_step(net, trains) for net in (before, tuned)]
        found = {**_in_turns(steps, seconds), "step": "training" if trains else "inference"}
        click.echo(f"\n{RESULT}{json.dumps(found)}")


def _net(file: Path, choices: Mapping[str, Any], folder: Path | None, target: str | None, threads: int | None) -> Net:
    net = load_net(file, choices)
    if net.compiled:
        raise LatteError(f"the net of {file} is compiled already", way_out="leave net.compile() out of the file")
    if folder is not None:
        net.graph.settings.recipes = (folder, *net.graph.settings.recipes)
    net.compile(target=target, threads=threads)
    return net


def _check(before: Net, tuned: Net) -> None:
    """Raise LatteError where the nets do not compute the same."""
    last = before.graph.order()[-1].name
    for net in (before, tuned):
        net.test()
    values = [np.asarray(net[last].get_value()) for net in (before, tuned)]
    scale = float(np.abs(values[0]).max()) if values[0].size else 0.0
    difference = float(np.abs(values[0] - values[1]).max()) if values[0].size else 0.0
    if not difference <= TOLERANCE * max(scale, 1e-30) and not np.array_equal(values[0], values[1], equal_nan=True):
        raise LatteError(f"{last} differs by {difference:.3g}, of values up to {scale:.3g}")


def _step(net: Net, trains: bool) -> Callable[[], None]:
    def training() -> None:
        net.forward()
        net.clear_grad()
        net.backward()

    return training if trains else net.test


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
