"""What a random net must compute: in PyTorch, in float64, with a bound on what float32 may differ by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latte.ensemble import Ensemble
from tests.fuzz.net_cases import Declared, NetCase
from tests.fuzz.net_layers import Formula
from tests.fuzz.net_library import KINDS

Arrays = dict[str, np.ndarray]

EXACT = 2.0**20
"""Whole numbers below are sums in float32 that no order of additions changes, with a reserve for partial sums."""
NOISE = 2.0**-21
"""Noise relative to the greatest element, put on every array in between to see how far roundings reach."""
SAMPLES = 3
REACH = 16.0
"""Times what noise of this size changes, plus :data:`FLOOR` of the greatest element, is how far float32 may be off."""
LOGARITHM = 2.0**-22
"""Of a loss: the logarithm of a sum of exponentials that may be near 1, which float32 rounds."""
FLOOR = 2e-5
KINK = 4e-6
"""Nearer to a kink than this, relative to the greatest element, a rounding may change which side an element is on."""


@dataclass
class Inputs:
    """The inputs of a net.

    Args:
        parameters: storage → values, states included.
        batches: for each run its data, and the gradients of the tops by number of the layer.
        labels: for each run.
    """

    parameters: Arrays
    batches: list[tuple[np.ndarray, dict[int, np.ndarray]]]
    labels: list[np.ndarray]


@dataclass
class Expected:
    """The expected results, by the names of :func:`tests.fuzz.net_checks.computed`.

    Args:
        values: the results.
        bounds: how far each may be off; absent where it must be the same number.
        inputs: what it was computed from.
        sure: whether gradients are compared; not so near a kink.
    """

    values: Arrays
    inputs: Inputs
    bounds: dict[str, float] = field(default_factory=dict)
    sure: bool = True


def expected(case: NetCase, declared: Declared) -> Expected:
    """The results of a net. Whole numbers where it can compute them exactly; else of a normal distribution, drawn again
    where a kink is near."""
    import torch

    torch.set_num_threads(1)
    if case.exact:
        inputs = _inputs(case, declared, case.seed, whole=True)
        if _largest(torch, case, declared, inputs) < EXACT:
            return Expected(_evaluated(torch, case, declared, inputs)[0], inputs)
    for attempt in range(4):
        inputs = _inputs(case, declared, case.seed + 7919 * attempt, whole=False)
        values, kinks = _evaluated(torch, case, declared, inputs)
        sure = min(kinks, default=1.0) > KINK
        if sure:
            break
    generator = torch.Generator().manual_seed(case.seed)
    noisy = [_evaluated(torch, case, declared, inputs, generator)[0] for _ in range(SAMPLES)]
    bounds = {
        name: REACH * max(float(np.abs(other[name] - array).max()) for other in noisy)
        + FLOOR * float(np.abs(array).max(initial=0.0))
        + LOGARITHM * name.endswith("loss")
        for name, array in values.items()
    }
    return Expected(values, inputs, bounds, sure)


# --- what it is given -----------------------------------------------------------------------------------------
def _inputs(case: NetCase, declared: Declared, seed: int, whole: bool) -> Inputs:
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], low: int, high: int, scale: float) -> np.ndarray:
        if whole:
            return generator.integers(low, high + 1, shape).astype(np.float32)
        return (generator.normal(size=shape) * scale).astype(np.float32)

    parameters = {}
    for layer in declared.layers:
        for name, spec in layer.fields().items():
            if spec.role == "param":
                scale = 1.0 if name != "weights" else 1.0 / float(np.sqrt(np.prod(spec.shape[1:])))
                values = draw(spec.shape, -1, 1, scale)
                parameters[spec.storage] = values + np.float32(1.5) if name in ("gamma", "gain") else values
            elif spec.role == "state":
                values = generator.random(spec.shape).astype(np.float32)
                parameters[spec.storage] = values + np.float32(0.5) if "var" in name else values
    batches, labels = [], []
    for count in filter(None, (case.batch, case.smaller)):
        seeds = {
            number: draw((count, *declared.layers[number].shape), -1, 1, 1.0)
            for number in case.tops
            if not (case.classes and number == len(case.layers))
        }
        batches.append((draw((count, *case.shape), -2, 2, 1.0), seeds))
        classes = declared.layers[-1].shape[0]
        labels.append(generator.integers(0, classes, (count, 1)).astype(np.float32))
    return Inputs(parameters, batches, labels)


def _largest(torch: Any, case: NetCase, declared: Declared, inputs: Inputs) -> float:
    """The greatest number, in units of the smallest part of one, if nothing cancelled."""
    absolute = Inputs(
        {name: np.abs(values) for name, values in inputs.parameters.items()},
        [(np.abs(data), {n: np.abs(seed) for n, seed in seeds.items()}) for data, seeds in inputs.batches],
        inputs.labels,
    )
    values, _ = _evaluated(torch, case, declared, absolute)
    kinds = [KINDS[layer.kind] for layer in case.layers]
    parts = sum(kind.fraction for kind in kinds)
    products = 2 ** sum(kind.multiplies for kind in kinds)  # which multiply the parts
    return max(float(np.abs(array).max(initial=0.0)) for array in values.values()) * 4.0 ** (parts * products)


# --- evaluating -----------------------------------------------------------------------------------------------
def _evaluated(
    torch: Any, case: NetCase, declared: Declared, inputs: Inputs, noise: Any = None
) -> tuple[Arrays, list[float]]:
    """All results, and the distances to kinks."""
    names = [layer.name for layer in declared.layers]
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in inputs.parameters.items()}
    states = {name: tensor for name, tensor in tensors.items() if ".running_" in name}
    result: Arrays = {}
    kinks: list[float] = []
    for run, ((data, seeds), labels) in enumerate(zip(inputs.batches, inputs.labels, strict=True)):
        parameters = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items() if name not in states}
        f = Formula(torch, True, states, _noisy(torch, noise), kinks)
        values = _forward(case, names, data, parameters, f)
        total = sum((values[number] * torch.tensor(seed, dtype=torch.float64)).sum() for number, seed in seeds.items())
        if case.classes:
            loss = torch.nn.functional.cross_entropy(values[-1], torch.tensor(labels[:, 0], dtype=torch.long))
            result[f"{run} loss"] = loss.detach().numpy()
            total = total + loss
        for value in values:
            value.retain_grad()
        total.backward()
        for name, value in zip(names, values, strict=True):
            result[f"{run} {name}.value"] = value.detach().numpy()
            if value.grad is not None:
                result[f"{run} {name}.grad"] = value.grad.numpy()
        for name, tensor in parameters.items():
            layer, own = name.split(".")
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            result[f"{run} {layer}.grad_{own}"] = gradient.numpy()
            result[f"{run} twice {layer}.grad_{own}"] = 2 * gradient.numpy()
        result |= {f"{run} {name}": tensor.numpy().copy() for name, tensor in states.items()}
    f = Formula(torch, False, states, _noisy(torch, noise), kinks)
    with torch.no_grad():
        values = _forward(case, names, inputs.batches[-1][0], tensors, f)
    result |= {f"tested {name}.value": value.numpy() for name, value in zip(names, values, strict=True)}
    return result, kinks


def _noisy(torch: Any, generator: Any) -> Callable[[Any], Any]:
    """A function that puts noise on a tensor and on its gradient; without a generator none."""
    if generator is None:
        return lambda tensor: tensor

    def once(tensor: Any) -> Any:
        noise = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
        return tensor + NOISE * tensor.detach().abs().max() * noise

    def both(tensor: Any) -> Any:
        result = once(tensor)
        if result.requires_grad:
            result.register_hook(once)
        return result

    return both


def _forward(case: NetCase, names: list[str], data: np.ndarray, parameters: Mapping[str, Any], f: Formula) -> list[Any]:
    """The values of all layers."""
    values = [f.torch.tensor(data, dtype=f.torch.float64, requires_grad=f.training)]
    for number, layer in enumerate(case.layers, 1):
        own = {key.split(".")[1]: tensor for key, tensor in parameters.items() if key.split(".")[0] == names[number]}
        sources = [values[source] for source in layer.sources]
        values.append(f.rounded(KINDS[layer.kind].formula(f, names[number], sources, own, **layer.options)))
    return values


def readable(layer: Ensemble) -> dict[str, str]:
    """The fields of a layer that are compared → their storage."""
    roles = ("value", "grad", "param_grad", "state")
    return {
        name: spec.storage
        for name, spec in layer.fields().items()
        if spec.role in roles and (name in ("value", "grad") or spec.role != "value")
    }
