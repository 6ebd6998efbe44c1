"""Derived gradients of the library's layers are central differences of their forward phase, in float64."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
import pytest

from latte import Net
from latte.autodiff.differentiated import layer_programs
from latte.tools.library import LIBRARY
from latte.tools.library.entries import Case, Sizes
from swirl.ir.execute import execute
from swirl.ir.item_numbers import value_of
from swirl.ir.nest import Program
from tests.layers.against_torch import of_library, sources_of

STEP, BOUND = 1e-5, 1e-7  # the truncation is STEP² times a third derivative, rounding 1e-16 / STEP
Arrays = dict[str, np.ndarray]


def smallest(case: Case) -> Sizes:
    """The fewest elements that are more than a few."""
    counts = {sizes: sizes.batch * sum(map(prod, sizes.sources)) for sizes in case.sizes}
    return min(counts, key=lambda sizes: (counts[sizes] < 10, counts[sizes]))


def run(programs: Iterable[Program], known: Arrays, items: int) -> Arrays:
    """All arrays by storage after the programs; what is not known is NaN before them."""
    arrays = {name: array.copy() for name, array in known.items()}
    for program in programs:
        own = {}
        for name, buffer in program.buffers.items():
            empty = np.full(buffer.shape, *((np.nan, np.float64) if "float" in buffer.dtype else (0, buffer.dtype)))
            if buffer.formula:
                own[name] = np.full_like(empty, value_of(buffer.formula, items), shape=(1,))
            elif buffer.role == "temporary":
                own[name] = empty
            else:
                own[name] = arrays.setdefault(buffer.name, empty).reshape(buffer.shape)
        execute(program, own, arithmetic="float64")
    return arrays


@pytest.mark.parametrize("name", [name for name, layer in LIBRARY.items() if "comparison" not in layer.lacks])
def test_gradients_are_differences(name: str) -> None:
    layer = LIBRARY[name]
    case = next(iter(layer.cases.values()))
    sizes, compared = smallest(case), of_library(layer, case)
    net = Net(sizes.batch, seed=0)
    net.force_backward = True
    sources = sources_of(net, compared, sizes.sources)
    made = compared.layer(net, *sources)
    layers = layer_programs(net.graph, sizes.batch)
    forward = [each.programs["forward"] for each in layers if "forward" in each.programs]
    back = [each.programs[phase] for each in layers[::-1] for phase in ("backward", "update") if phase in each.programs]
    generator = np.random.default_rng(1)
    known: Arrays = {"net.accumulate": np.zeros(1, np.int32)}
    moved = []
    for ensemble in net.ensembles:
        for field, spec in ensemble.fields().items():
            if spec.role == "constant":
                known[spec.storage] = ensemble.initial(field, sizes.batch)
            elif spec.role in ("param", "state"):
                known[spec.storage] = generator.normal(size=spec.shape)
                moved += [spec.storage] if spec.role == "param" else []
    for number, source in enumerate(sources):
        drawn = compared.data[number](generator, (sizes.batch, *sizes.sources[number]))
        known[f"{source.name}.value"] = drawn if number in compared.below else drawn.astype(np.float64)
    tops = [f"{each.name}." for each in (made if isinstance(made, list) else [made])]
    after = run(forward, known, sizes.batch)
    seeds = {f"{top}grad": generator.normal(size=after[f"{top}value"].shape) for top in tops}
    gradients = run(back, {**after, **seeds}, sizes.batch)
    moved += [f"{source.name}.value" for source in sources if f"{source.name}.grad" in gradients]
    assert moved
    for storage in moved:
        ensemble_name, field = storage.split(".")
        gradient = gradients[f"{ensemble_name}.grad" if field == "value" else f"{ensemble_name}.grad_{field}"]
        direction = generator.normal(size=known[storage].shape)

        def moved_by(step: float, storage: str = storage, direction: np.ndarray = direction) -> float:
            found = run(forward, {**known, storage: known[storage] + step * direction}, sizes.batch)
            return float(sum(np.sum(seeds[f"{top}grad"] * found[f"{top}value"]) for top in tops))

        difference = (moved_by(STEP) - moved_by(-STEP)) / (2 * STEP)
        assert float(np.sum(gradient * direction)) == pytest.approx(difference, rel=BOUND, abs=BOUND), storage
