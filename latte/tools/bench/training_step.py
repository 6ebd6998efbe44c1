"""A training step beside PyTorch's on the same net: same weights, same batches, same threads, alternately.

    python -m latte.tools.bench.training_step [--batch 64] [--shape 1 8 8] [--filters 32 64] [--steps 50] [--rounds 9]

PyTorch runs twice, in separate processes: with defaults, and at its best setting (channels last, memory reused on huge
pages). The losses of all sides are compared step by step before anything is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich.table import Table

from latte.solver import SGD
from latte.tools.bench.digits import digits_net, random_batch
from latte.tools.bench.report import machine, report_console, spread
from swirl.config import available_cores, child_environment

SETTINGS = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
CHECKED_STEPS = 5
TUNED = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4000000000:glibc.malloc.trim_threshold=20000000000"


class LatteSide:
    """This project's side."""

    def __init__(self, options: dict[str, Any]):
        self.net = digits_net(options["batch"], shape=tuple(options["shape"]), filters=tuple(options["filters"]))
        self.net.compile(threads=options["threads"])
        self.solver = SGD(self.net, **SETTINGS)
        self.batch = random_batch(options["batch"], tuple(options["shape"]))

    def parameters(self) -> dict[str, list[Any]]:
        """Weights and biases by ensemble, for the other side."""
        executable = self.net.executable
        return {name: executable.read(name).tolist() for name, b in executable.buffers.items() if b.role == "param"}

    def step(self) -> float:
        net = self.net
        net.set_batch(*self.batch)
        net.forward()
        net.clear_grad()
        net.backward()
        self.solver.step()
        return net.loss


class TorchSide:
    """PyTorch's side: the same net in ``torch.nn``."""

    def __init__(self, options: dict[str, Any]):
        import torch
        from torch import nn

        torch.set_num_threads(options["threads"])
        channels, height, width = options["shape"]
        layers: list[nn.Module] = []
        for count in options["filters"]:
            layers += [
                nn.Conv2d(channels, count, 3, padding=1),
                nn.BatchNorm2d(count),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            ]
            channels, height, width = count, -(-height // 2), -(-width // 2)
        layers += [nn.Flatten(), nn.Linear(channels * height * width, 10)]
        self.net = nn.Sequential(*layers)
        self._load(options["parameters"])
        images, labels = random_batch(options["batch"], tuple(options["shape"]))
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)
        if options["tuned"]:
            self.net = self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.images = self.images.to(memory_format=torch.channels_last)
        self.loss = nn.CrossEntropyLoss()
        self.solver = torch.optim.SGD(
            self.net.parameters(),
            lr=SETTINGS["learning_rate"],
            momentum=SETTINGS["momentum"],
            weight_decay=SETTINGS["weight_decay"],
        )

    def _load(self, parameters: dict[str, list[Any]]) -> None:
        import torch

        names = {
            "Conv2d": ("conv", "weights", "bias"),
            "BatchNorm2d": ("batch_norm", "gamma", "beta"),
            "Linear": ("fully_connected", "weights", "bias"),
        }
        counts: dict[str, int] = {}
        layers: Any = self.net  # torch types the parameters of layers as anything
        for layer in layers:
            if type(layer).__name__ not in names:
                continue
            kind, weight, bias = names[type(layer).__name__]
            counts[kind] = counts.get(kind, 0) + 1
            with torch.no_grad():
                for tensor, field in ((layer.weight, weight), (layer.bias, bias)):
                    values = np.array(parameters[f"{kind}{counts[kind]}.{field}"], np.float32)
                    tensor.copy_(torch.from_numpy(values.reshape(tuple(tensor.shape))))

    def step(self) -> float:
        self.solver.zero_grad()
        loss = self.loss(self.net(self.images), self.labels)
        loss.backward()
        self.solver.step()
        return loss.item()


def serve() -> None:
    """A worker: options on the first line of the input, then a number of steps on each line; answers losses and
    seconds."""
    options = json.loads(sys.stdin.readline())
    side: Any = (TorchSide if options["torch"] else LatteSide)(options)
    _answer(side.parameters() if not options["torch"] else {})
    for line in sys.stdin:
        losses, seconds = [], []
        for _ in range(int(line)):
            start = perf_counter()
            losses.append(side.step())
            seconds.append(perf_counter() - start)
        _answer({"losses": losses, "seconds": seconds})


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


class Worker:
    """A side in a separate process."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str]):
        command = [sys.executable, "-c", "from latte.tools.bench.training_step import serve; serve()"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**child_environment(), **environment},
        )
        self.parameters = self.ask(json.dumps(options))

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("a side of the benchmark has died; its error is above")
        return json.loads(answer)


@click.command()
@click.option("--batch", default=64, show_default=True, help="Items in a batch.")
@click.option("--shape", nargs=3, type=int, default=(1, 8, 8), show_default=True, help="Channels, height, width.")
@click.option(
    "--filters",
    multiple=True,
    type=int,
    default=(32, 64),
    show_default=True,
    help="Filters, a convolution each.",
)
@click.option("--steps", default=50, show_default=True, help="Steps in a round.")
@click.option("--rounds", default=9, show_default=True, help="Rounds, the sides taking turns.")
def main(batch: int, shape: Sequence[int], filters: Sequence[int], steps: int, rounds: int) -> None:
    """Compare a training step with PyTorch's, default and tuned."""
    threads = available_cores()
    options = {
        "batch": batch,
        "shape": list(shape),
        "filters": list(filters),
        "threads": threads,
        "torch": False,
        "tuned": False,
    }
    latte = Worker(options, {})
    options |= {"torch": True, "parameters": latte.parameters}
    sides = {
        "Latte": latte,
        "PyTorch": Worker(options, {}),
        "PyTorch tuned": Worker({**options, "tuned": True}, {"GLIBC_TUNABLES": TUNED}),
    }
    losses = {name: side.ask(str(CHECKED_STEPS))["losses"] for name, side in sides.items()}
    for name, found in losses.items():
        # Rounding grows with the steps: each step feeds its errors into the next one's weights.
        if not np.allclose(found, losses["Latte"], rtol=1e-3):
            raise SystemExit(f"the sides disagree, nothing is timed: {losses['Latte']} and {name}'s {found}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side.ask(str(steps))  # warm
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name] += side.ask(str(steps))["seconds"]
    console = report_console()
    console.print(machine())
    console.print(
        f"batch {batch}, images {tuple(shape)}, filters {tuple(filters)}, {threads} threads, losses of the first "
        f"{CHECKED_STEPS} steps agree: {losses['Latte'][0]:.5f} … {losses['Latte'][-1]:.5f}"
    )
    table = Table("side", "training step", "ratio to Latte")
    for name, found in seconds.items():
        table.add_row(name, spread(found), f"{median(found) / median(seconds['Latte']):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
