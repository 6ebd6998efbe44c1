"""Layers of one's own in a model of PyTorch, beside the same model without Latte.

    python benchmarks/in_pytorch.py net [--items 32] [--size 56] [--json FILE]
    python benchmarks/in_pytorch.py call

``net``: a convolutional net with three layers of one's own (RMS norm of images, group norm, GELU). Sides: Latte's
layers in PyTorch, eager; PyTorch alone, eager and with ``torch.compile``; and Latte's layers with ``torch.compile`` of
all of it. Losses and gradients are compared before anything is timed. A training step each, and each of the three
layers alone, in turns. ``call``: what a call of the smallest layer takes above a custom operator that does nothing.
Nothing else may run on the machine.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from time import perf_counter
from typing import Any

import click
import torch
from rich.table import Table
from torch import nn

import latte.torch
from latte.tools.bench.alternate import BOUND, SETTLE, WARM
from latte.tools.bench.own_layers import OWN
from latte.tools.bench.report import machine, report_console, spread
from swirl.config import available_cores

LAYERS = ("rms-norm", "group-norm", "gelu")
CHANNELS = 64
ROUNDS, ROUND_SECONDS = 7, 0.3
Step = Callable[[], object]


class InTorch(nn.Module):
    """One of the layers, written in PyTorch, with parameters of Latte's module."""

    def __init__(self, name: str, like: nn.Module):
        super().__init__()
        self.definition = OWN[name].computed
        for stored, parameter in like.named_parameters():
            self.register_parameter(stored.rpartition(".")[2], nn.Parameter(parameter.detach().clone()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's value."""
        return self.definition(torch, x, **dict(self.named_parameters()))


def model(size: int, items: int) -> nn.Sequential:
    """The net with Latte's layers: three convolutions, each with a layer of one's own after it."""
    parts: list[nn.Module] = []
    channels = 3
    for name in LAYERS:
        parts.append(nn.Conv2d(channels, CHANNELS, 3, padding=1))
        parts.append(latte.torch.module(OWN[name].declare, [(CHANNELS, size, size)], batch_size=items))
        channels = CHANNELS
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))


def without_latte(ours: nn.Sequential) -> nn.Sequential:
    """The same net with PyTorch alone, and the same parameters."""
    names = iter(LAYERS)
    parts = [InTorch(next(names), p) if isinstance(p, latte.torch.Module) else copy.deepcopy(p) for p in ours]
    return nn.Sequential(*parts)


def training_step(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Step:
    """A step of training: forward, loss, backward, SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def layer_step(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> Step:
    """Forward and backward of one layer."""

    def step() -> None:
        x.grad = None
        layer.zero_grad()
        layer(x).backward(gradient)

    return step


def agree(nets: dict[str, nn.Module], images: torch.Tensor, labels: torch.Tensor) -> None:
    """Compare the loss and the gradients of all parameters.

    Raises:
        SystemExit: they do not agree.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for name, net in nets.items():
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        found[name] = [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        net.zero_grad()
    first, *others = found
    for other in others:
        for mine, theirs in zip(found[first], found[other], strict=True):
            if float((mine - theirs).abs().max()) > BOUND * float(mine.abs().max()) + 1e-7:
                raise SystemExit(f"{first} and {other} do not agree")


def in_turns(steps: dict[str, Step], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each run of each side, sides in turns."""
    counts: dict[str, int] = {}
    for name, step in steps.items():
        step()
        started = perf_counter()
        step()
        counts[name] = max(2, int(ROUND_SECONDS / max(perf_counter() - started, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            waited = perf_counter()
            while perf_counter() - waited < SETTLE:
                pass
            for run in range(WARM + min(counts[name], 500)):
                started = perf_counter()
                step()
                if run >= WARM:
                    seconds[name].append(perf_counter() - started)
    return seconds


def table(title: str, rows: dict[str, dict[str, list[float]]], ours: str) -> tuple[Table, dict[str, dict[str, float]]]:
    """Times, and how many times as long as ours each side takes."""
    made = Table(title=title)
    sides = list(next(iter(rows.values())))
    for heading in ("what", *sides, *(f"{side} / {ours}" for side in sides if side != ours)):
        made.add_column(heading)
    ratios: dict[str, dict[str, float]] = {}
    for what, seconds in rows.items():
        own = median(seconds[ours])
        ratios[what] = {side: median(seconds[side]) / own for side in sides if side != ours}
        made.add_row(what, *(spread(seconds[side]) for side in sides), *(f"{r:.2f}" for r in ratios[what].values()))
    return made, ratios


@click.group(help=__doc__)
def main() -> None:
    torch.set_num_threads(available_cores())


@main.command()
@click.option("--items", default=32, show_default=True, type=click.IntRange(1))
@click.option("--size", default=56, show_default=True, type=click.IntRange(4), help="Height and width of the images.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="All ratios, to a file.")
def net(items: int, size: int, path: Path | None) -> None:
    """A training step of a net with three layers of one's own, and these layers alone."""
    console = report_console()
    console.print(f"{machine()}; {torch.get_num_threads()} threads")
    torch.manual_seed(0)
    images, labels = torch.randn(items, 3, size, size), torch.randint(0, 10, (items,))
    ours = model(size, items)
    alone = without_latte(ours)
    nets: dict[str, nn.Module] = {
        "with Latte": ours,
        "eager": alone,
        "compiled": torch.compile(copy.deepcopy(alone)),
        "with Latte, compiled": torch.compile(copy.deepcopy(ours)),
    }
    agree(nets, images, labels)
    rows = {"net": in_turns({name: training_step(each, images, labels) for name, each in nets.items()})}
    made, ratios = table(f"a training step, {items} × 3 × {size} × {size}", rows, "with Latte")
    console.print(made)
    layers: dict[str, dict[str, list[float]]] = {}
    gradient = torch.randn(items, CHANNELS, size, size)
    for number, name in enumerate(LAYERS):
        x = torch.randn(items, CHANNELS, size, size, requires_grad=True)
        sides = {"with Latte": ours[2 * number + 1], "eager": alone[2 * number + 1]}
        sides["compiled"] = torch.compile(copy.deepcopy(sides["eager"]))
        layers[name] = in_turns({side: layer_step(layer, x, gradient) for side, layer in sides.items()})
    made, of_layers = table(
        f"a layer, forward and backward, {items} × {CHANNELS} × {size} × {size}", layers, "with Latte"
    )
    console.print(made)
    best = {name: min(found.values()) for name, found in of_layers.items()}
    console.print(f"the fastest of PyTorch ÷ ours, geometric mean: {geometric_mean(best.values()):.2f}")
    console.print(f"copies: {[dict(each.report.copied) for each in ours if isinstance(each, latte.torch.Module)]}")
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "net": ratios, "layers": of_layers}, indent=1))


@main.command()
def call() -> None:
    """What a call takes above a custom operator that does nothing."""
    console = report_console()
    console.print(machine())

    @torch.library.custom_op("latte_benchmark::nothing", mutates_args=())
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    nothing.register_fake(torch.empty_like)
    nothing.register_autograd(lambda context, gradient: nothing(gradient))
    ours = latte.torch.module(OWN["gelu"].declare, [(1, 2, 2)]).eval()
    plain, with_gradient, ones = (
        torch.ones(2, 1, 2, 2),
        torch.ones(2, 1, 2, 2, requires_grad=True),
        torch.ones(2, 1, 2, 2),
    )
    rows: dict[str, dict[str, list[float]]] = {}

    def without(layer: Any) -> Step:
        def step() -> None:
            with torch.no_grad():
                layer(plain)

        return step

    def backward(layer: Any) -> Step:
        def step() -> None:
            with_gradient.grad = None
            layer(with_gradient).backward(ones)

        return step

    kinds: dict[str, Callable[[Any], Step]] = {
        "without gradients": without,
        "forward": lambda layer: lambda: layer(with_gradient),
        "forward and backward": backward,
    }
    for what, kind in kinds.items():
        rows[what] = in_turns({"a Latte module": kind(ours), "nothing": kind(nothing)}, rounds=5)
    made = Table("what", "a Latte module", "nothing", "more", title="microseconds: lower quartile")
    for what, seconds in rows.items():
        low = {side: quantiles(of, n=4)[0] * 1e6 for side, of in seconds.items()}
        mine, empty = low["a Latte module"], low["nothing"]
        made.add_row(what, f"{mine:.1f}", f"{empty:.1f}", f"{mine - empty:.1f}")
    console.print(made)


if __name__ == "__main__":
    main()
