"""Every layer of the library as a module of PyTorch: its gradients, in double precision, are slopes of its values."""

from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import latte.torch  # noqa: E402
from latte.tools.library import LIBRARY  # noqa: E402
from latte.tools.library.entries import Case, LibraryLayer  # noqa: E402

CASES = [(name, next(iter(layer.cases))) for name, layer in LIBRARY.items() if name != "MemoryDataLayer"]


def build(layer: LibraryLayer, case: Case, net: Any, *sources: Any) -> Any:
    """The layer of a case, of the sources that it reads."""
    reads = case.reads or range(len(sources))
    return layer.declare(net, *(sources[number] for number in reads), options=case.options)


def smallest(case: Case) -> Any:
    """The batch and the shapes with the fewest elements."""
    return min(case.sizes, key=lambda sizes: sizes.batch * sum(map(np.prod, sizes.sources)))


@pytest.mark.parametrize(("name", "title"), CASES, ids=[f"{name}, {title}" for name, title in CASES])
def test_gradients_in_double(name: str, title: str) -> None:
    layer, case = LIBRARY[name], LIBRARY[name].cases[title]
    batch, shapes = smallest(case)
    drawn = {number: case.data.get(number) for number in range(len(shapes))}
    whole = {number: data.below for number, data in drawn.items() if data is not None and data.below is not None}
    inputs = [
        latte.torch.Input(shape, "int32" if number in whole else "float32", whole.get(number))
        for number, shape in enumerate(shapes)
    ]
    module = latte.torch.module(partial(build, layer, case), inputs, batch_size=batch).double()
    generator, tensors = np.random.default_rng(1), []
    for number, (shape, data) in enumerate(zip(shapes, drawn.values(), strict=True)):
        values = generator.standard_normal((batch, *shape)) if data is None else data.draw(generator, (batch, *shape))
        tensors.append(torch.tensor(values, dtype=torch.int64 if number in whole else torch.float64))
        labels = module._function.declared.labels()
        tensors[-1].requires_grad_(number not in whole and not labels[number])

    def called(*given: Any) -> Any:
        torch.manual_seed(5)  # of random numbers
        return module(*given[: len(tensors)])

    arguments = *tensors, *module.parameters()
    assert torch.autograd.gradcheck(called, arguments, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def weighted(y: Any) -> Any:
    """A sum in which each element counts differently: normalised values have no gradient of their squares."""
    return (y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "title"), CASES, ids=[f"{name}, {title}" for name, title in CASES])
def test_fewer_items_and_channels_last(name: str, title: str) -> None:
    """Of a module that takes more items, in whatever format, as of one for just so many."""
    layer, case = LIBRARY[name], LIBRARY[name].cases[title]
    batch, shapes = smallest(case)
    drawn = {number: case.data.get(number) for number in range(len(shapes))}
    whole = {number: data.below for number, data in drawn.items() if data is not None and data.below is not None}
    inputs = [
        latte.torch.Input(shape, "int32" if number in whole else "float32", whole.get(number))
        for number, shape in enumerate(shapes)
    ]
    generator, given = np.random.default_rng(1), []
    for number, (shape, data) in enumerate(zip(shapes, drawn.values(), strict=True)):
        values = generator.standard_normal((batch, *shape)) if data is None else data.draw(generator, (batch, *shape))
        given.append(torch.tensor(values, dtype=torch.int32 if number in whole else torch.float32))
    found: list[list[Any]] = []
    for capacity, channels_last in ((batch, False), (batch + 3, True)):
        torch.manual_seed(0)
        module = latte.torch.module(partial(build, layer, case), inputs, batch_size=capacity)
        labels = module._function.declared.labels()
        tensors = []
        for number, each in enumerate(given):
            form = torch.channels_last if channels_last and each.dim() == 4 else torch.contiguous_format
            made = each.clone(memory_format=form)
            tensors.append(made.requires_grad_(number not in whole and not labels[number]))
        torch.manual_seed(5)
        outputs = module(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        needed = [x for x in (*tensors, *module.parameters()) if x.requires_grad]
        back: Any = ()
        if needed and name != "AccuracyLayer":
            back = torch.autograd.grad([weighted(y) for y in outputs], needed)
        found.append([*(y.detach() for y in outputs), *back])
    for one, other in zip(*found, strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(one.abs().max().clamp(min=1e-2))
