"""PyTorch's side of whole nets in ``latte bench``; see :mod:`latte.tools.bench.peer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from latte.tools.bench.cases import Case
from latte.tools.bench.digits import CLASSES, FILTERS, SHAPE, random_batch
from latte.tools.bench.peer import Torch, load_parameters
from latte.tools.bench.published import Published
from latte.tools.bench.published_torch import GoogLeNet, ResNet
from latte.tools.bench.rounding import ROUNDING
from latte.tools.bench.whole_nets import CHECKED_STEPS, CHECKED_UPDATES, LAST, SMALL_STEPS, SOLVER, check_loss
from latte.tools.library.entries import Arrays

NOISE = 2.0**-22
"""Of each value of a layer and of its gradient, how much noise has: four roundings of float32."""
NOISY = (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
"""Modules whose values get it: those that add up many terms."""
DROPOUT = 0.2
"""Of GoogLeNet, while it is timed."""


def torch_side(case: Case, threads: int, parameters: Arrays, channels_last: bool, compiled: bool) -> Torch | TorchNet:
    """PyTorch's side of a case; see :class:`latte.tools.bench.peer.Torch`."""
    if case.published is not None:
        return TorchPublished(case, threads, parameters, channels_last, compiled)
    if case.kind == "net":
        return TorchDigits(case, threads, parameters, channels_last, compiled)
    return Torch(case, threads, parameters, channels_last, compiled)


class TorchNet:
    """A net that is trained by whole steps: forward, loss, backward, solver.

    Args:
        net: with the parameters of our side.
        batch: images and labels.
        solver: settings of SGD, as our side calls them.
        threads: of OpenMP.
        channels_last: whether images and weights are in this layout.
        compiled: whether the net goes through ``torch.compile``.
        fused: whether the solver updates each parameter in one pass.
    """

    def __init__(
        self,
        net: nn.Module,
        batch: tuple[np.ndarray, np.ndarray],
        solver: Mapping[str, Any],
        threads: int,
        channels_last: bool,
        compiled: bool,
        fused: bool = False,
    ):
        torch.set_num_threads(threads)
        self.net, self.settings, self.fused = net, solver, fused
        self.inputs, self.labels = map(torch.from_numpy, batch)
        if channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.inputs = self.inputs.to(memory_format=torch.channels_last)
        self.loss = nn.CrossEntropyLoss()
        self.solver = self._solver_of(self.net)
        self.run = torch.compile(self.net) if compiled else self.net
        self.last_loss = 0.0

    def _solver_of(self, net: nn.Module) -> torch.optim.Optimizer:
        named = {"lr" if name == "learning_rate" else name: value for name, value in self.settings.items()}
        return torch.optim.SGD(net.parameters(), **named, fused=self.fused)

    def load(self, inputs: np.ndarray, gradient: np.ndarray) -> None:
        """The data are those of the net."""

    def results(self) -> Arrays:
        """As our side's."""
        raise NotImplementedError

    def seconds(self, phase: str, runs: int) -> list[float]:
        """Of so many training steps, or inferences of a whole batch.

        Raises:
            LatteError: the last loss is not finite.
        """
        self.net.train(phase == "step")
        found = []
        for _ in range(runs):
            start = perf_counter()
            if phase == "step":
                self.last_loss = self.step()
            else:
                with torch.inference_mode():
                    self.run(self.inputs)
            found.append(perf_counter() - start)
        check_loss(self.last_loss)
        return found

    def step(self) -> float:
        """The loss of a training step."""
        self.solver.zero_grad()
        loss = self.loss(self.run(self.inputs), self.labels)
        loss.backward()
        self.solver.step()
        return loss.item()


class TorchDigits(TorchNet):
    """The net of the first example."""

    def __init__(self, case: Case, threads: int, parameters: Arrays, channels_last: bool, compiled: bool):
        net = _digits()
        load_parameters(net, parameters)
        super().__init__(net, random_batch(case.batch), SOLVER, threads, channels_last, compiled)

    def results(self) -> Arrays:
        """The losses of the first steps."""
        return {"losses": np.array([self.step() for _ in range(CHECKED_STEPS)])}


class TorchPublished(TorchNet):
    """A net of :data:`latte.tools.bench.published.NETS`; if tuned, in ``channels_last`` and with a fused solver."""

    def __init__(self, case: Case, threads: int, parameters: Arrays, channels_last: bool, compiled: bool):
        assert case.published is not None
        net = published(case.published)
        own = net.state_dict()
        counts = {name: count for name, count in own.items() if name.endswith("num_batches_tracked")}
        given = {name: torch.from_numpy(values).reshape(own[name].shape) for name, values in parameters.items()}
        net.load_state_dict(counts | given)  # every other name must be ours
        batch = case.published.batch(case.batch, case.extent)
        super().__init__(net, batch, SMALL_STEPS, threads, channels_last, compiled, fused=channels_last)

    def results(self) -> Arrays:
        """As our side's; and by names that begin with :data:`latte.tools.bench.rounding.ROUNDING` how far each moves
        if each layer's values have a little noise."""
        torch.manual_seed(0)
        copied = deepcopy(self.net)
        with _noise(copied):
            noisy = self._results(copied, copied, self._solver_of(copied))
        del copied
        found = self._results(self.net, self.run, self.solver)
        for module in self.net.modules():
            if isinstance(module, nn.Dropout):
                module.p = DROPOUT
        return found | {ROUNDING + name: noisy[name] - values for name, values in found.items()}

    def _results(self, net: nn.Module, run: Any, solver: torch.optim.Optimizer) -> Arrays:
        parameters = dict(net.named_parameters())
        first, weights, bias = next(iter(parameters.values())), parameters[f"{LAST}.weight"], parameters[f"{LAST}.bias"]
        before = weights.detach().clone()
        net.train()
        found: dict[str, torch.Tensor] = {}
        losses = []
        for number in range(CHECKED_UPDATES):
            solver.zero_grad()
            scores = run(self.inputs)
            loss = self.loss(scores, self.labels)
            loss.backward()
            if number == 0:
                assert first.grad is not None and weights.grad is not None and bias.grad is not None
                found = {
                    "scores in training": scores.detach(),
                    "gradient of the first convolution": first.grad.clone(),
                    "gradient of the last layer's weights": weights.grad.clone(),
                    "gradient of the last layer's bias": bias.grad.clone(),
                }
            losses.append(loss.item())
            solver.step()
        found["losses"] = torch.tensor(losses)
        found["steps of the last layer's weights"] = weights.detach() - before
        net.eval()
        with torch.inference_mode():
            found["scores in inference"] = run(self.inputs).clone()
        return {name: tensor.contiguous().numpy() for name, tensor in found.items()}


@contextmanager
def _noise(net: nn.Module) -> Iterator[None]:
    """Values of layers, and the gradients that come to them, have noise."""

    def changed(module: nn.Module, given: object, value: torch.Tensor) -> torch.Tensor:
        return value * (1.0 + NOISE * torch.randn_like(value))

    hooks = [module.register_forward_hook(changed) for module in net.modules() if isinstance(module, NOISY)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def published(net: Published) -> nn.Module:
    """The same net in PyTorch, with dropout that keeps every element."""
    program = net.program
    if net.file == "googlenet":
        found: nn.Module = GoogLeNet(program.INCEPTIONS, classes=net.classes)
    else:
        blocks = net.options.get("blocks") or program.BLOCKS[net.options["depth"]]
        found = ResNet(blocks, net.options["bottleneck"], net.classes)
    for module in found.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return found


def _digits() -> nn.Sequential:
    channels, height, width = SHAPE
    layers: list[nn.Module] = []
    for count in FILTERS:
        layers += [
            nn.Conv2d(channels, count, 3, padding=1),
            nn.BatchNorm2d(count),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        ]
        channels, height, width = count, -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, CLASSES))
