"""Per layer: the tuned target beside the portable one, same nets, same data, alternately in one process.

python -m latte.tools.bench.targets [--batch 64] [--shape 1 8 8] [--filters 32 64] [--repeat 30]
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import click
import numpy as np
from rich.table import Table

from latte.net import Net
from latte.tools.bench.digits import digits_net, random_batch
from latte.tools.bench.report import machine, report_console, spread
from latte.tools.net_files import AtLeastOne, plain_errors

Times = dict[tuple[str, str], list[float]]


@click.command()
@click.option("--batch", type=AtLeastOne, default=64, show_default=True, help="Items in a batch.")
@click.option(
    "--shape", nargs=3, type=AtLeastOne, default=(1, 8, 8), show_default=True, help="Channels, height, width."
)
@click.option(
    "--filters",
    multiple=True,
    type=AtLeastOne,
    default=(32, 64),
    show_default=True,
    help="Filters, a convolution each.",
)
@click.option("--repeat", type=AtLeastOne, default=30, show_default=True, help="Training steps measured on each side.")
@plain_errors()
def main(batch: int, shape: tuple[int, int, int], filters: tuple[int, ...], repeat: int) -> None:
    """Time every layer and phase of the digits net on the best target and on the portable one."""
    nets = {name: digits_net(batch, shape=shape, filters=filters) for name in ("best", "portable")}
    nets["best"].compile()
    nets["portable"].compile(target="portable")
    images, labels = random_batch(batch, shape)
    for net in nets.values():
        net.set_batch(images, labels)
        net.forward()
        net.backward()
    one, two = (np.array([net.loss]) for net in nets.values())
    if not np.allclose(one, two, rtol=1e-4):
        raise SystemExit(f"the targets disagree: loss {one[0]} and {two[0]}")
    times: dict[str, Times] = {name: defaultdict(list) for name in nets}
    for _ in range(repeat):
        for name, net in nets.items():
            _time(net, times[name])
    console = report_console()
    console.print(machine())
    table = Table("layer", "phase", f"{nets['best'].executable.plan.target.name}", "portable", "ratio", "share")
    total = sum(median(seconds) for seconds in times["best"].values())
    for key, seconds in times["best"].items():
        other = times["portable"][key]
        ratio = median(other) / median(seconds)
        table.add_row(*key, spread(seconds), spread(other), f"{ratio:.2f}", f"{median(seconds) / total:.1%}")
    console.print(table)


def _time(net: Net, times: Times) -> None:
    for phase in ("forward", "backward"):
        for name, part, seconds in net.executable.run_timed(phase):
            times[name, part].append(seconds)


if __name__ == "__main__":
    main()
