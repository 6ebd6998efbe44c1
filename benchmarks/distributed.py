"""Several processes that train one net: computing, bytes, and how long sending takes.

    python benchmarks/distributed.py [--processes 1 --processes 2] [--net vgg] [--items 16] [--json FILE]

Each process computes the same number of items, whatever the number of processes. It trains alone first, then together
with the others; then gradients alone are added up. The cores are divided among the processes. What of sending is hidden
is ``1 - (together - alone) / sending``. Nothing else may run on the machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import latte.distributed
from latte import (
    BatchNormLayer,
    ConvLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.runtime.callbacks import Run
from latte.runtime.group import Group
from latte.solver import SGD
from latte.training import Callback
from swirl.config import available_cores

STEPS, WARM = 20, 5
NETS = {"small": ((16, 32), 64), "vgg": ((64, 128, 256), 2048)}
"""Name → filters of the convolutions, neurons of the two layers after them."""


class Times(Callback):
    """When each step has ended."""

    def before_training(self, run: Run) -> None:
        self.ends = [perf_counter()]

    def after_step(self, run: Run) -> None:
        self.ends.append(perf_counter())

    @property
    def median(self) -> float:
        """Seconds of a step, without those that warm up."""
        return median(np.diff(self.ends)[WARM:].tolist())


def declare(name: str, items: int, group: Group) -> Net:
    """The net, compiled for this process's part of the cores."""
    filters, neurons = NETS[name]
    net = Net(batch_size=items, seed=0)
    layer, label = MemoryDataLayer(net, (3, 32, 32)), MemoryDataLayer(net, (1,))
    for count in filters:
        layer = MaxPoolingLayer(net, ReLULayer(net, BatchNormLayer(net, ConvLayer(net, layer, num_filters=count))))
    for _ in range(2):
        layer = ReLULayer(net, FullyConnectedLayer(net, layer, neurons))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 10), label)
    net.compile(threads=max(1, available_cores() // group.size), distributed=group)
    return net


def measure(name: str, items: int) -> dict[str, float]:
    """What one process of several finds, in seconds of a step and bytes."""
    group = latte.distributed.join()
    generator = np.random.default_rng(0)
    images = generator.normal(size=(items * group.size * STEPS, 3, 32, 32)).astype(np.float32)
    labels = generator.integers(0, 10, len(images))
    seconds = {}
    for together in (False, True):
        net, times = declare(name, items, group), Times()
        count = items * STEPS * (group.size if together else 1)
        solver = SGD(net, 0.01, momentum=0.9)
        net.fit(
            images[:count],
            labels[:count],
            solver=solver,
            callbacks=[times],
            progress=False,
            distributed=group if together else False,
        )
        seconds["together" if together else "alone"] = times.median
    size = sum(values.size for values in net.session.gradients().values())
    gradients, sending = np.zeros(size, np.float32), []
    for _ in range(STEPS):
        start = perf_counter()
        group.start_sum(gradients, "measuring")()
        sending.append(perf_counter() - start)
    sent = 2 * (group.size - 1) / group.size * gradients.nbytes
    return {**seconds, "sending": median(sending[WARM:]), "bytes": sent}


def several(size: int, name: str, items: int) -> dict[str, float]:
    """Measure with so many processes; what the first one has found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--net", name, "--items", str(items), "--worker"]
    started = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise click.ClickException("a process has failed")
    found: dict[str, float] = json.loads(printed[0].splitlines()[-1])
    return found


@click.command(help=__doc__)
@click.option("--processes", multiple=True, type=click.IntRange(1), default=(1, 2, 4), show_default=True)
@click.option("--net", "name", type=click.Choice(sorted(NETS)), default="vgg", show_default=True)
@click.option("--items", type=click.IntRange(1), default=16, show_default=True, help="Items of each process.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the figures.")
@click.option("--worker", is_flag=True, hidden=True)
def main(processes: Sequence[int], name: str, items: int, path: Path | None, worker: bool) -> None:
    """Measure, and print a table."""
    if worker:
        print(json.dumps(measure(name, items)))
        return
    found = {size: several(size, name, items) for size in processes}
    table = Table("processes", "alone, ms", "together, ms", "sending alone, ms", "sent, MB", "hidden")
    for size, each in found.items():
        over = each["together"] - each["alone"]
        hidden = "" if size == 1 else f"{1 - over / each['sending']:.0%}"
        times = (f"{1e3 * each[part]:.2f}" for part in ("alone", "together", "sending"))
        table.add_row(str(size), *times, f"{each['bytes'] / 1e6:.1f}", hidden)
    Console().print(table)
    if path is not None:
        path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
