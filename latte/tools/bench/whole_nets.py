"""This project's side of whole nets in ``latte bench``: training steps and inference."""

from __future__ import annotations

from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from latte.net import Net
from latte.planning.memory import INFERENCE, TRAINING
from latte.solver import SGD
from latte.tools.bench.cases import Case
from latte.tools.bench.digits import digits_net, random_batch
from latte.tools.library.entries import Arrays
from swirl.analysis.work import program_work
from swirl.errors import CommandError, LatteError
from swirl.measure.rates import Limits
from swirl.run.runner import Seen

RUNS = {
    "forward": ("forward",),
    "backward": ("backward",),
    "update": ("backward",),
    "step": ("forward", "backward"),
    "inference": ("inference",),
}
"""Phase → what the net runs for it."""

SOLVER: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
"""Of the digits net."""
CHECKED_STEPS = 5
"""Steps of the digits net whose losses are compared."""

SMALL_STEPS: dict[str, Any] = {**SOLVER, "learning_rate": 1e-4}
"""Of published nets: steps on one batch, again and again, neither diverge nor soon reach gradients near 0."""
CHECKED_UPDATES = 2
"""Steps of a published net that are compared: momentum is seen in the second one."""
LAST = "fc"
"""The last layer of published nets, whose values are the scores."""


def work(net: Net, phase: str) -> tuple[int, int]:
    """Floating-point operations of a phase, and bytes that its kernels touch at the least."""
    kernels = [kernel for run in RUNS[phase] for kernel in net.executable.order[run]]
    found = [program_work(kernel.program) for kernel in kernels if phase in ("step", kernel.phase)]
    return sum(each.operations for each in found), sum(each.bytes for each in found)


def check_loss(loss: float) -> None:
    """Times of steps on NaN say nothing.

    Raises:
        LatteError: the loss is not finite.
    """
    if not isfinite(loss):
        raise LatteError(f"after some steps the loss is {loss}", way_out="other images or sizes: --batch, --size")


class WholeNet:
    """A net that is trained by whole steps: batch, forward, backward, solver.

    Args:
        net: not compiled.
        batch: images and labels.
        solver: settings of SGD.
        threads: of OpenMP.
        target: by default the best that runs here.
    """

    phases: tuple[str, ...] = ("step",)

    def __init__(
        self, net: Net, batch: tuple[np.ndarray, np.ndarray], solver: dict[str, Any], threads: int, target: str | None
    ):
        self.net, self.batch = net, batch
        self.net.compile(threads=threads, target=target)
        self.solver = SGD(self.net, **solver)
        self.limits = Limits(self.net.executable.plan.target, self.net.session.runner)

    @property
    def target(self) -> str:
        return self.net.executable.plan.target.name

    @property
    def seen(self) -> Seen:
        """What the threads have met so far."""
        return self.net.session.runner.seen

    def parameters(self) -> Arrays:
        """What the other sides begin with, by names that they know."""
        raise NotImplementedError

    def load(self, inputs: np.ndarray, gradient: np.ndarray) -> None:
        """The data are those of the net."""

    def results(self) -> Arrays:
        """What is compared, after as few steps as it needs."""
        raise NotImplementedError

    def work(self, phase: str) -> tuple[int, int]:
        """See :func:`work`."""
        return work(self.net, phase)

    def planned(self, phase: str) -> int:
        """Bytes of memory that the net needs for a phase."""
        return self.net.memory()[INFERENCE if phase == "inference" else TRAINING].peak

    def seconds(self, phase: str, runs: int) -> list[float]:
        """Of so many training steps, or inferences of a whole batch.

        Raises:
            CommandError: the net is not measured by this phase.
            LatteError: the last loss is not finite.
        """
        if phase not in self.phases:
            raise CommandError(
                "a net is measured by whole steps", way_out=" ".join(f"--phase {each}" for each in self.phases)
            )
        found = []
        for _ in range(runs):
            start = perf_counter()
            if phase == "step":
                self.step()
            else:
                self.net.predict(self.batch[0])
            found.append(perf_counter() - start)
        check_loss(self.net.loss)
        return found

    def step(self) -> float:
        """The loss of a training step."""
        self.differentiate()
        self.solver.step()
        return self.net.loss

    def differentiate(self) -> None:
        """A training step but for the solver."""
        self.net.set_batch(*self.batch)
        self.net.forward()
        self.net.clear_grad()
        self.net.backward()


class Digits(WholeNet):
    """The net of the first example."""

    def __init__(self, case: Case, threads: int, target: str | None):
        super().__init__(digits_net(case.batch), random_batch(case.batch), SOLVER, threads, target)

    def parameters(self) -> Arrays:
        """By ensemble and field."""
        executable = self.net.executable
        return {name: executable.read(name) for name, b in executable.buffers.items() if b.role == "param"}

    def results(self) -> Arrays:
        """The losses of the first steps."""
        return {"losses": np.array([self.step() for _ in range(CHECKED_STEPS)])}


class PublishedNet(WholeNet):
    """A net of :data:`latte.tools.bench.published.NETS`; inference is ``predict`` of its batch."""

    phases = ("step", "inference")

    def __init__(self, case: Case, threads: int, target: str | None):
        assert case.published is not None
        self.published, size = case.published, (case.batch, case.extent)
        super().__init__(self.published.declared(*size), self.published.batch(*size), SMALL_STEPS, threads, target)

    def parameters(self) -> Arrays:
        """Running statistics, too; by torchvision's names."""
        return self.net.state_dict(self.published.program.torchvision_names(self.net))

    def results(self) -> Arrays:
        """Of two steps, the first one's scores, and its gradients of the first convolution and of the last layer; both
        losses; how far the last layer's weights have moved; and scores in inference afterwards."""
        first = next(layer for layer in self.net.ensembles if layer.kind == "conv")
        last = self.net[LAST]
        before = last.get_weights()
        self.differentiate()
        found = {
            "scores in training": last.get_value(),
            "gradient of the first convolution": first.get_grad_weights(),
            "gradient of the last layer's weights": last.get_grad_weights(),
            "gradient of the last layer's bias": last.get_grad_bias(),
        }
        losses = [self.net.loss]
        self.solver.step()
        losses += [self.step() for _ in range(CHECKED_UPDATES - 1)]
        found["losses"] = np.array(losses)
        found["steps of the last layer's weights"] = last.get_weights() - before
        found["scores in inference"] = self.net.predict(self.batch[0])
        return found
