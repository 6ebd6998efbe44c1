"""What the processes of the tests run: ``python workers.py NAME …``; rank and size are in the environment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed

import latte.distributed.group
from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.compiling import new_session
from latte.data import DataLoader, Flip
from latte.ensemble import Ensemble
from latte.runtime.callbacks import Run
from latte.runtime.group import Group
from latte.solver import SGD, Adam, AdamW, CosineDecay, RMSProp
from latte.training import Callback, EarlyStopping
from latte.version import VERSION

TIMEOUT = 4.0
"""Seconds that processes wait for each other where one of them fails."""
Layer = Callable[[Net, Ensemble], Ensemble]
TOGETHER = 24
"""Items in a batch of all processes: 1, 2, 3 and 4 of them share it evenly."""
ITEMS = 24 * 4 + 1
"""One more than batches: of the last one, all processes but the first have nothing."""
generator = np.random.default_rng(0)
images = generator.normal(size=(ITEMS, 1, 8, 8)).astype(np.float32)
labels = generator.integers(0, 5, ITEMS)
labels[::7] = -1  # ignored: other numbers of items count in each process


def declare(
    size: int,
    group: Group | bool = False,
    *,
    seed: int = 3,
    filters: int = 8,
    layer: Layer | None = None,
    double: bool = False,
) -> Net:
    """A small net, compiled, for the share that one of ``size`` processes has of a batch.

    Args:
        size: number of processes.
        group: of them.
        seed: of the net.
        filters: of its convolution.
        layer: makes a layer after the convolution; by default a pooling.
        double: whether it computes in double precision, on the portable target, as it is lowered: schedules do not
            matter for what is compared so.
    """
    net = Net(batch_size=TOGETHER // size, seed=seed)
    data, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
    inner = ReLULayer(net, ConvLayer(net, data, num_filters=filters))
    inner = MaxPoolingLayer(net, inner) if layer is None else layer(net, inner)
    scores = FullyConnectedLayer(net, inner, 5)
    SoftmaxLossLayer(net, scores, label, ignore_label=-1)
    AccuracyLayer(net, scores, label, ignore_label=-1)
    if double:  # what a net has no option for
        with mock.patch.dict(os.environ, LATTE_SCHEDULE="0"):
            net._session = new_session(net.graph, "portable", None, False, double=True)
        net.graph.settings.compiled = True
    else:
        net.compile(distributed=group)
    return net


def mixing(net: Net, source: Ensemble) -> Ensemble:
    """A layer that depends on all items of a batch, and on random numbers."""
    return DropoutLayer(net, BatchNormLayer(net, source, synchronised=True), 0.3)


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        solver: makes one for a net.
        options: of ``fit``, beside those of all.
        frozen: what does not train.
        layer: see :func:`declare`.
        items: of the data.
        loaded: whether a loader makes the batches.
        double: see :func:`declare`.
    """

    solver: Callable[[Net], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    frozen: str | None = None
    layer: Layer | None = None
    items: int = ITEMS
    loaded: bool = False
    double: bool = True


CASES = {
    "momentum": Case(lambda net: SGD(net, 0.05, momentum=0.9), {"accumulate": 3}, layer=mixing, items=77),
    "adam": Case(lambda net: Adam(net, 0.003), {"shuffle": False}, layer=mixing),
    "adamw": Case(lambda net: AdamW(net, 0.003, weight_decay=0.01), {"accumulate": 2}, frozen="conv*"),
    "rmsprop": Case(lambda net: RMSProp(net, 0.001, clip_norm=0.5, clip_value=0.1), items=77, loaded=True),
    "single": Case(lambda net: SGD(net, CosineDecay(0.02, steps=50)), layer=mixing, items=77, double=False),
}


class Gradients(Callback):
    """Keeps those of the first step."""

    def after_step(self, run: Run) -> None:
        if run.step == 0:
            self.found = run.session.gradients()


def train(names: str, size: int, group: Group | bool) -> Iterator[tuple[str, np.ndarray]]:
    """Train the cases; by names: losses, first gradients, parameters, validations."""
    for name in names.split(","):
        case, first = CASES[name], Gradients()
        net = declare(size, group, layer=case.layer, double=case.double)
        print("COMPILED", net.session.report.compiled)
        if case.frozen:
            net.freeze(case.frozen)
        data: tuple[Any, ...] = images[: case.items], labels[: case.items]
        if case.loaded:
            data = (DataLoader(*data, batch_size=TOGETHER // size),)
        history = net.fit(
            *data,
            solver=case.solver(net),
            epochs=-(-50 // -(-case.items // TOGETHER)),
            validation=(images[:50], labels[:50]),
            metrics={"mean": lambda scores, labels: float(np.mean(scores * labels))},
            callbacks=[first],
            progress=False,
            distributed=group,
            **case.options,
        )
        last = history.validations[-1]
        held = net.evaluate(images[:50], labels[:50], distributed=group)
        assert (held.loss, held.accuracy) == (last.loss, last.accuracy)
        yield f"{name}/losses", np.array(history.losses[:50])
        yield f"{name}/accuracies", np.array(history.accuracies)
        yield f"{name}/validation", np.array([last.loss, last.accuracy, last.metrics["mean"]])
        yield f"{name}/items", np.array([history.items, last.items])
        yield from ((f"{name}/gradient/{storage}", values) for storage, values in first.found.items())
        yield from ((f"{name}/learned/{storage}", values) for storage, values in net.state_dict().items())


def equal(group: Group, names: str, folder: str) -> None:
    """Train, and keep what each process has found."""
    np.savez(Path(folder, f"{group.rank}.npz"), **dict(train(names, group.size, group)))


def fail(group: Group, hows: str) -> None:
    """Train again and again, while something goes wrong in the last process; print what each process is told."""
    _failing(group, "nothing", epochs=1)  # all is compiled then, so that nobody waits for long
    soon = timedelta(seconds=TIMEOUT)
    for how in hows.split(","):
        wrong = group.rank == group.size - 1
        latte.distributed.group.VERSION = "9.9.9" if wrong and how == "another version" else VERSION
        group.sum(np.zeros(1), "waiting for those that have failed")
        try:
            hurried = torch.distributed.new_group(backend="gloo", timeout=soon)
            joined = latte.distributed.join(TIMEOUT, hurried)  # what was said before is not read again
            print("DONE", how, _failing(joined, how), flush=True)
        except Exception as error:  # what a user would read
            print("ERROR", how, type(error).__name__, error, flush=True)


class Wrong(Callback):
    """Something is done in the fourth step."""

    def __init__(self, what: Callable[[Run], None]):
        self.what = what

    def after_step(self, run: Run) -> None:
        if run.step == 3:
            self.what(run)


def _failing(group: Group, how: str, epochs: int = 10) -> str | None:
    wrong = group.rank == group.size - 1
    data, answers = images, labels
    if wrong and how == "fewer items":
        data, answers = images[:-3], labels[:-3]
    if wrong and how == "another type":
        data = images.astype(np.float64)
    if wrong and how == "another order":
        data = images[::-1].copy()
    if how == "cannot compile":
        net = Net(batch_size=2)
        ReLULayer(net, MemoryDataLayer(net, (4,)))
        net.compile(target="nonsense" if group.rank == 0 else None, distributed=group)
    net = declare(group.size, group, filters=16 if wrong and how == "another net" else 8)

    def do(run: Run) -> None:
        if not wrong:
            return
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs":
            time.sleep(3 * TIMEOUT)
        if how == "raises":
            raise KeyError("of a callback")
        if how == "freezes":
            net.freeze("conv*")
        if how == "stops":
            run.stop("enough")

    solver = Adam(net) if wrong and how == "another solver" else SGD(net, 1e30 if how == "diverges" else 0.05)
    epochs = 2 if wrong and how == "other epochs" else epochs
    history = net.fit(
        data, answers, solver=solver, epochs=epochs, callbacks=[Wrong(do)], progress=False, distributed=group
    )
    return history.stopped


def local(group: Group, folder: str) -> None:
    """Batch norm of each process, transforms and early stopping."""
    net = declare(group.size, group, seed=3 + group.rank, layer=lambda net, inner: BatchNormLayer(net, inner))
    path = Path(folder, "net.safetensors")
    history = net.fit(
        DataLoader(images, labels, batch_size=TOGETHER // group.size, transforms=[Flip()]),
        solver=Adam(net),
        epochs=6,
        validation=(images[:50], labels[:50]),
        callbacks=[EarlyStopping(2), lambda run: run.save(path)],
        progress=False,
        distributed=group,
    )
    assert path.exists()
    found = {"seed": np.array(net.graph.settings.seed), **net.state_dict()}
    np.savez(Path(folder, f"{group.rank}.npz"), losses=np.array(history.losses), **found)


def resume(group: Group, path: str, epochs: str, seed: str = "", kills: str = "0") -> None:
    """Train up to an epoch, and save each; from where the file is, if there is one. By the seed, one process is killed
    at some moment in each of the first runs."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    random = np.random.default_rng([int(seed), attempt]) if attempt < int(kills) else None
    layer = lambda net, inner: DropoutLayer(net, BatchNormLayer(net, inner), 0.3)  # noqa: E731
    kill = Kill(random, group, f"{path}.kills")
    net = declare(group.size, group, seed=11, layer=layer)
    solver = SGD(net, CosineDecay(0.05, steps=2000), momentum=0.9)
    if Path(path).exists():
        net.load(path, solver)
    done = (solver.step_number - 1) // -(-ITEMS // TOGETHER)
    callbacks = [kill, lambda run: run.save(path)]
    data = (images, labels)
    net.fit(*data, solver=solver, epochs=int(epochs) - done, callbacks=callbacks, progress=False, distributed=group)


class Kill(Callback):
    """Ends one process of a group: while it begins, or within some milliseconds after some step."""

    def __init__(self, random: np.random.Generator | None, group: Group, log: str):
        self.log, self.step, self.wait = log, -1, 0.0
        if random is not None:
            chosen, begins, early = random.integers(group.size), random.random() < 0.2, random.uniform(0, 2)
            step, self.wait = int(random.integers(15)), random.uniform(0, 0.02)
            if chosen != group.rank:
                return
            if begins:
                self._after(early)
            else:
                self.step = step

    def after_step(self, run: Run) -> None:
        if run.step == self.step:
            self._after(self.wait)

    def _after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._kill)
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        with Path(self.log).open("a") as log:
            log.write("killed\n")
        os.kill(os.getpid(), signal.SIGKILL)


WORKERS: dict[str, Callable[..., None]] = {
    "equal": equal,
    "fail": fail,
    "local": local,
    "resume": resume,
}


def main() -> None:
    """Join the others, and run the worker that is named."""
    name, *arguments = sys.argv[1:]
    WORKERS[name](latte.distributed.join(timeout=120.0), *arguments)


if __name__ == "__main__":
    main()
