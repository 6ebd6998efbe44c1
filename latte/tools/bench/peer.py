"""PyTorch's side of ``latte bench``. It is imported in a process of its own only, whose environment fixes its settings.

Source of the tuned setting: tensors in channels_last, and memory that is reused on huge pages; by default each tensor
is fresh memory, and page faults take longer than most layers' arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from latte.tools.bench.cases import Case
from latte.tools.library.entries import Arrays

MODULES = {
    "Conv2d": ("conv", "weights", "bias"),
    "BatchNorm2d": ("batch_norm", "gamma", "beta"),
    "Linear": ("fully_connected", "weights", "bias"),
}
"""Class of a module → the kind of layer, and what it calls weight and bias."""


class Lines(nn.Module):
    """A layer with parameters of these shapes; ``computed`` is given PyTorch, the source and the parameters."""

    def __init__(self, computed: Callable[..., torch.Tensor], **shapes: Sequence[int]):
        super().__init__()
        self.computed = computed
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(tuple(shape))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.computed(torch, x, **dict(self.named_parameters()))


def module(case: Case, parameters: Arrays) -> nn.Module:
    """The case in ``torch.nn``, or in plain lines; ``parameters`` are those of our side, by field."""
    if case.tried is not None:
        return Lines(case.tried.computed, **{name: values.shape for name, values in parameters.items()})
    window = case.kernel, case.stride, case.kernel // 2
    match case.kind:
        case "bn" | "bn-relu":
            norm = nn.BatchNorm2d(case.channels)
            return nn.Sequential(norm, nn.ReLU()) if case.kind == "bn-relu" else nn.Sequential(norm)
        case "relu":
            return nn.Sequential(nn.ReLU())
        case "pool":
            return nn.Sequential(nn.MaxPool2d(case.kernel, case.stride, (case.kernel - 1) // 2))
        case "conv":
            return nn.Sequential(nn.Conv2d(case.channels, case.filters, *window))
        case "cbr":
            conv = nn.Conv2d(case.channels, case.filters, *window, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(case.filters), nn.ReLU())
        case "fc":
            return nn.Sequential(nn.Linear(case.channels, case.filters))
    raise AssertionError(case.kind)


def load_parameters(net: nn.Module, parameters: Arrays) -> None:
    """Give a module the parameters of our side, by field, or by ensemble and field."""
    counts: dict[str, int] = {}
    if isinstance(net, Lines):
        for name, own in net.named_parameters():
            with torch.no_grad():
                own.copy_(torch.from_numpy(np.array(parameters[name])))
        return
    layers: Any = net  # torch types the parameters of layers as anything
    for layer in layers:
        if type(layer).__name__ not in MODULES:
            continue
        kind, *names = MODULES[type(layer).__name__]
        counts[kind] = counts.get(kind, 0) + 1
        for own, name in zip((layer.weight, layer.bias), names, strict=True):
            if own is not None:
                values = parameters.get(name, parameters.get(f"{kind}{counts[kind]}.{name}"))
                with torch.no_grad():
                    own.copy_(torch.from_numpy(np.array(values)).reshape(own.shape))


class Torch:
    """A case in PyTorch, but for whole nets.

    Args:
        case: what to declare.
        threads: of OpenMP.
        parameters: of our side.
        channels_last: whether tensors of images are stored so.
        compiled: whether it goes through ``torch.compile``.
    """

    def __init__(self, case: Case, threads: int, parameters: Arrays, channels_last: bool, compiled: bool):
        torch.set_num_threads(threads)
        self.case = case
        self.format = torch.channels_last if channels_last and len(case.source) == 3 else torch.contiguous_format
        self.net: Any = module(case, parameters)
        load_parameters(self.net, parameters)
        if channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = list(self.net.parameters())
        self.names = self._names()
        self.run: Callable[[torch.Tensor], torch.Tensor] = torch.compile(self.net) if compiled else self.net

    def _names(self) -> list[str]:
        if isinstance(self.net, Lines):
            return [name for name, _ in self.net.named_parameters()]
        found = []
        for layer in self.net:
            if type(layer).__name__ in MODULES:
                own = zip((layer.weight, layer.bias), MODULES[type(layer).__name__][1:], strict=True)
                found += [name for value, name in own if value is not None]
        return found

    def load(self, inputs: np.ndarray, gradient: np.ndarray) -> None:
        """Set the source, and the gradient of the value."""
        self.given = inputs, gradient
        self.inputs = torch.from_numpy(inputs).contiguous(memory_format=self.format)
        self.inputs = self.inputs.long() if self.case.reads_words else self.inputs.requires_grad_()
        is_image = gradient.ndim == 4
        self.gradient = torch.from_numpy(gradient)
        self.gradient = self.gradient.contiguous(memory_format=self.format) if is_image else self.gradient

    def results(self) -> Arrays:
        """As our side's."""
        value = self.run(self.inputs)
        gradients = torch.autograd.grad(value, self.differentiated, self.gradient)
        names = [*(["the source"] if self.inputs.requires_grad else []), *self.names]
        found = {"value": value.detach()}
        found |= {f"gradient of {name}": gradient for name, gradient in zip(names, gradients, strict=True)}
        return self.case.compared(*self.given, {name: tensor.contiguous().numpy() for name, tensor in found.items()})

    @property
    def differentiated(self) -> list[torch.Tensor]:
        """What a step differentiates by."""
        return [*([self.inputs] if self.inputs.requires_grad else []), *self.parameters]

    def seconds(self, phase: str, runs: int) -> list[float]:
        """Of so many runs of a phase."""
        timed = {
            "forward": self._timed_forward,
            "step": self._timed_step,
            "backward": lambda: self._timed_gradient([self.inputs]),
            "update": lambda: self._timed_gradient(self.parameters),
        }[phase]
        return [timed() for _ in range(runs)]

    def _timed_forward(self) -> float:
        start = perf_counter()
        value = self.run(self.inputs)
        taken = perf_counter() - start
        del value  # freeing what backward would need is no part of it
        return taken

    def _timed_gradient(self, of: Sequence[torch.Tensor]) -> float:
        value = self.run(self.inputs)
        start = perf_counter()
        torch.autograd.grad(value, of, self.gradient)
        return perf_counter() - start

    def _timed_step(self) -> float:
        start = perf_counter()
        value = self.run(self.inputs)
        torch.autograd.grad(value, self.differentiated, self.gradient)
        return perf_counter() - start
