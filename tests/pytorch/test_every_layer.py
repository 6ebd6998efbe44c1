"""Every layer of the library as a module of PyTorch: its gradients, in double precision, are slopes of its values."""

from functools import partial
from typing import Any, NamedTuple

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


class Declared(NamedTuple):
    """A layer of the library: how it becomes a module, what is drawn for it, and the module in double precision."""

    name: str
    make: Any
    drawn: list[Any]
    double: Any

    def tensors(self, module: Any, kind: Any, *, channels_last: bool = False) -> list[Any]:
        """What is drawn, with numbers of that type: of what has gradients, they are wanted."""
        found = []
        for given, label in zip(self.drawn, module._function.declared.labels(), strict=True):
            form = torch.channels_last if channels_last and given.dim() == 4 else torch.contiguous_format
            made = given.to(kind if given.is_floating_point() else given.dtype).clone(memory_format=form)
            found.append(made.requires_grad_(given.is_floating_point() and not label))
        return found


@pytest.fixture(scope="module", params=CASES, ids=[f"{name}, {title}" for name, title in CASES])
def declared(request: pytest.FixtureRequest) -> Declared:
    """A layer at its smallest sizes, whose module in double precision takes just so many items."""
    name, title = request.param
    layer, case = LIBRARY[name], LIBRARY[name].cases[title]
    batch, shapes = smallest(case)
    generator, inputs, drawn = np.random.default_rng(1), [], []
    for number, shape in enumerate(shapes):
        data = case.data.get(number)
        values = generator.standard_normal((batch, *shape)) if data is None else data.draw(generator, (batch, *shape))
        below = None if data is None else data.below
        inputs.append(latte.torch.Input(shape, "float32" if below is None else "int32", below))
        drawn.append(torch.tensor(values, dtype=torch.float32 if below is None else torch.int32))

    def make(capacity: int) -> Any:
        torch.manual_seed(0)  # of parameters
        return latte.torch.module(partial(build, layer, case), inputs, batch_size=capacity)

    return Declared(name, make, drawn, make(batch).double())


def test_gradients_in_double(declared: Declared) -> None:
    module, tensors = declared.double, declared.tensors(declared.double, torch.float64)

    def called(*given: Any) -> Any:
        torch.manual_seed(5)  # of random numbers
        return module(*given[: len(tensors)])

    arguments = *tensors, *module.parameters()
    assert torch.autograd.gradcheck(called, arguments, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def weighted(y: Any) -> Any:
    """A sum in which each element counts differently: normalised values have no gradient of their squares."""
    return (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


def values_and_gradients(name: str, module: Any, tensors: list[Any]) -> list[Any]:
    torch.manual_seed(5)  # of random numbers
    outputs = module(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    needed = [x for x in (*tensors, *module.parameters()) if x.requires_grad]
    back: Any = ()
    if needed and name != "AccuracyLayer":
        back = torch.autograd.grad([weighted(y) for y in outputs], needed)
    return [*(y.detach() for y in outputs), *back]


@pytest.mark.slow
def test_fewer_items_and_channels_last(declared: Declared) -> None:
    """Of a module that takes more items, in whatever format, as of one for just so many in double precision."""
    name, exact = declared.name, declared.double
    module = declared.make(len(declared.drawn[0]) + 3)
    found = values_and_gradients(name, module, declared.tensors(module, torch.float32, channels_last=True))
    wanted = values_and_gradients(name, exact, declared.tensors(exact, torch.float64))
    for one, other in zip(wanted, found, strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(one.abs().max().clamp(min=1e-2))
