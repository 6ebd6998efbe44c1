"""Several processes that train one net: computing, bytes, and how long sending takes.

    python benchmarks/distributed.py [--processes 1 --processes 2] [--net vgg] [--items 16] [--json FILE]
    python benchmarks/distributed.py --processes 2 --bandwidth 1 --bandwidth 10
    python benchmarks/distributed.py --paper

Each process computes the same number of items, whatever the number of processes. It trains alone first, then together
with the others; then gradients alone are added up. The cores are divided among the processes. What of sending is hidden
is ``1 - (together - alone) / sending``. Nothing else may run on the machine.

With ``--bandwidth``, two processes run in a network namespace each, with a link of so many Gbit/s between them; where
Linux or the rights for that are missing, this is left out, and said.

With ``--paper``, ResNet-50 and VGG-16 train on this machine alone. From the times of their kernels, a step of more
machines like this one is calculated: a bucket of gradients is sent as soon as backward has it and the one before is
sent.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
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
    DropoutLayer,
    Ensemble,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.runtime.callbacks import Run
from latte.runtime.group import Group
from latte.runtime.reduction import planned
from latte.solver import SGD
from latte.training import Callback
from swirl.config import available_cores

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "nets"))
from resnet import resnet

STEPS, WARM = 20, 5
NETS = {"small": ((16, 32), 64), "vgg": ((64, 128, 256), 2048)}
"""Name → filters of the convolutions, neurons of the two layers after them."""
SPACES = ("latte-first", "latte-second")
"""Network namespaces, each with one end of a link."""
LINKS, ADDRESSES = ("latte-a", "latte-b"), ("10.213.77.1", "10.213.77.2")
MACHINES, GBITS = (8, 64), (10, 25, 100)
LATENCY = 50e-6
"""Seconds that a message takes from one machine to the next."""


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
    layer: Ensemble = MemoryDataLayer(net, (3, 32, 32))
    label = MemoryDataLayer(net, (1,))
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


# --- several processes ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """Where a process runs.

    Args:
        command: that its own command follows.
        environment: of it alone.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


def several(places: Sequence[Place], address: str, name: str, items: int) -> dict[str, float]:
    """Measure with a process in each place; what the first one has found.

    Args:
        places: of the processes, by rank.
        address: of the first one.
        name: of the net.
        items: of each process.

    Raises:
        ClickException: one has failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(len(places)), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--net", name, "--items", str(items), "--worker"]
    started = [
        subprocess.Popen(
            [*place.command, *command],
            env=os.environ | shared | {"RANK": str(rank)} | place.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, place in enumerate(places)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise click.ClickException("a process has failed")
    found: dict[str, float] = json.loads(printed[0].splitlines()[-1])
    return found


@contextmanager
def two_machines(gbit: float) -> Iterator[Sequence[Place]]:
    """Two network namespaces with a link of limited bandwidth between them; nothing of them is left afterwards.

    Raises:
        CalledProcessError: they cannot be made.
    """
    with ExitStack() as left:
        for space in SPACES:
            _system("ip", "netns", "add", space)
            left.callback(_system, "ip", "netns", "del", space)
        first, second = LINKS
        _system("ip", "link", "add", first, "netns", SPACES[0], "type", "veth", "peer", second, "netns", SPACES[1])
        for space, link, address in zip(SPACES, LINKS, ADDRESSES, strict=True):
            _system("ip", "-n", space, "address", "add", f"{address}/24", "dev", link)
            for each in ("lo", link):
                _system("ip", "-n", space, "link", "set", each, "up")
            rate = f"rate {gbit:g}gbit burst 4mb latency 50ms".split()
            _system("tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf", *rate)
        yield [
            Place(["ip", "netns", "exec", space], {"GLOO_SOCKET_IFNAME": link})
            for space, link in zip(SPACES, LINKS, strict=True)
        ]


def _system(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def why_no_machines() -> str | None:
    """Why there can be no such namespaces here, or None."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) missing"
    try:
        with two_machines(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd[:4])} …: {error.stderr.strip()}"


# --- on paper ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Alone:
    """What a net takes on one machine.

    Args:
        forward, solver: seconds.
        backward: seconds of each kernel.
        buckets: see :func:`latte.runtime.reduction.planned`.
    """

    forward: float
    backward: Sequence[float]
    solver: float
    buckets: Sequence[tuple[int, int]]

    def step(self, machines: int, gbit: float) -> float:
        """Seconds of a step of so many machines, of which each is connected with so many Gbit/s."""
        ready = [0.0, *accumulate(self.backward)]
        sent = 0.0
        for end, size in self.buckets:
            on_the_way = 2 * (machines - 1) * (size / machines / (gbit * 1e9 / 8) + LATENCY)
            sent = max(sent, ready[end]) + on_the_way
        return self.forward + max(ready[-1], sent) + self.solver


def vgg16(items: int) -> Net:
    """Simonyan, Zisserman, *Very deep convolutional networks*, ICLR 2015, configuration D."""
    net = Net(batch_size=items, seed=0)
    layer: Ensemble = MemoryDataLayer(net, (3, 224, 224))
    label = MemoryDataLayer(net, (1,))
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layer = ReLULayer(net, ConvLayer(net, layer, num_filters=filters))
        layer = MaxPoolingLayer(net, layer, kernel=2, stride=2, ceil_mode=False, clamp=False)
    for _ in range(2):
        layer = DropoutLayer(net, ReLULayer(net, FullyConnectedLayer(net, layer, 4096)))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 1000), label)
    return net


def alone(net: Net) -> Alone:
    """Train a net on this machine, on noise."""
    net.compile()
    items, shape = net.batch_size, net.graph.data()[0].shape
    generator = np.random.default_rng(0)
    images = generator.normal(size=(items, *shape)).astype(np.float32)
    solver = SGD(net, 1e-6, momentum=0.9)
    runs = []
    for _ in range(WARM + 5):
        net.set_batch(images, generator.integers(0, 1000, items))
        net.clear_grad()
        start = perf_counter()
        net.forward()
        forward = perf_counter() - start
        net.backward()
        kernels = [seconds for *_, seconds in net.executable.run_timed("backward")]
        start = perf_counter()
        solver.step()
        runs.append((forward, perf_counter() - start, *kernels))
    forward, last, *kernels = (median(column) for column in zip(*runs[WARM:], strict=True))
    return Alone(forward, kernels, last, planned(net.executable))


def paper(items: int) -> Table:
    """The estimate of docs/distributed.md."""
    table = Table("net", "items of a machine", "MB", "one machine, ms", "machines", *(f"{g} Gbit/s, ms" for g in GBITS))
    table.title = f"A step on paper: {available_cores()} cores a machine, {1e6 * LATENCY:g} µs a message"
    for name, net in (("ResNet-50", resnet(50, items)), ("VGG-16", vgg16(items))):
        found = alone(net)
        own = found.step(1, 1.0)
        size = sum(size for _, size in found.buckets)
        for machines in MACHINES:
            steps = [found.step(machines, gbit) for gbit in GBITS]
            cells = [f"{1e3 * step:.0f} ({own / step:.0%})" for step in steps]
            table.add_row(name, str(items), f"{size / 1e6:.0f}", f"{1e3 * own:.0f}", str(machines), *cells)
    return table


def table_of(found: Mapping[str, Mapping[str, float]]) -> Table:
    """What was measured, by the processes and their connection."""
    table = Table("processes", "alone, ms", "together, ms", "sending alone, ms", "sent, MB", "hidden")
    for called, each in found.items():
        over = each["together"] - each["alone"]
        hidden = f"{1 - over / each['sending']:.0%}" if each["bytes"] else ""
        times = (f"{1e3 * each[part]:.2f}" for part in ("alone", "together", "sending"))
        table.add_row(called, *times, f"{each['bytes'] / 1e6:.1f}", hidden)
    return table


@click.command(help=__doc__)
@click.option("--processes", multiple=True, type=click.IntRange(1), default=(1, 2, 4), show_default=True)
@click.option(
    "--bandwidth", multiple=True, type=click.FloatRange(0, min_open=True), help="Gbit/s between two machines."
)
@click.option("--net", "name", type=click.Choice(sorted(NETS)), default="vgg", show_default=True)
@click.option("--items", type=click.IntRange(1), default=16, show_default=True, help="Items of each process.")
@click.option("--paper", "on_paper", is_flag=True, help="More machines with ResNet-50 and VGG-16, calculated.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the figures that were measured.")
@click.option("--worker", is_flag=True, hidden=True)
def main(
    processes: Sequence[int],
    bandwidth: Sequence[float],
    name: str,
    items: int,
    on_paper: bool,
    path: Path | None,
    worker: bool,
) -> None:
    """Measure, and print a table."""
    if worker:
        print(json.dumps(measure(name, items)))
        return
    if on_paper:
        Console().print(paper(items))
        return
    found = {f"{size}": several([Place([], {})] * size, "127.0.0.1", name, items) for size in processes}
    why = why_no_machines() if bandwidth else None
    if why is not None:
        print(f"no machines with limited bandwidth: {why}")
    for gbit in () if why is not None else bandwidth:
        with two_machines(gbit) as places:
            found[f"2, by {gbit:g} Gbit/s"] = several(places, ADDRESSES[0], name, items)
    Console().print(table_of(found))
    if path is not None:
        path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
