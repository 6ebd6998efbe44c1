"""Derived gradients of the library's layers are central differences of their forward phase, in float64."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from latte import Net
from latte.autodiff.differentiated import layer_programs
from latte.tools.library import LIBRARY
from latte.tools.library.entries import Case, Sizes
from tests.items_of import Arrays, as_double, given, in_order, run
from tests.layers.against_torch import of_library, sources_of

STEP, BOUND = 1e-5, 1e-7  # the truncation is STEP² times a third derivative, rounding 1e-16 / STEP


def smallest(case: Case) -> Sizes:
    """The fewest elements that are more than a few."""
    counts = {sizes: sizes.batch * sum(map(prod, sizes.sources)) for sizes in case.sizes}
    return min(counts, key=lambda sizes: (counts[sizes] < 10, counts[sizes]))


@pytest.mark.parametrize("name", [name for name, layer in LIBRARY.items() if "comparison" not in layer.lacks])
def test_gradients_are_differences(name: str) -> None:
    """Along a random direction of each source and parameter. No number that is drawn is near a kink."""
    case = next(iter(LIBRARY[name].cases.values()))
    (batch, shapes), compared = smallest(case), of_library(LIBRARY[name], case)
    net = Net(batch, seed=0)
    net.force_backward = True
    compared.layer(net, *sources_of(net, compared, shapes))
    layers = layer_programs(net.graph, batch)
    known = {storage: as_double(array) for storage, array in given(net.graph, batch, batch, seed=1).items()}
    seeds = {storage: array for storage, array in known.items() if storage.endswith(".grad")}

    def after(arrays: Arrays, *phases: str) -> Arrays:
        found = {storage: array.copy() for storage, array in arrays.items()}
        for phase in phases:
            run(in_order(layers, phase), found, batch, double=True)
        return found

    def moved(storage: str, step: np.ndarray) -> float:
        found = after({**known, storage: known[storage] + step}, "forward")
        return float(sum(np.sum(array * found[top.replace(".grad", ".value")]) for top, array in seeds.items()))

    gradients = after(known, "forward", "backward")
    generator, count = np.random.default_rng(2), 0
    for storage in known:
        ensemble, field = storage.split(".")
        gradient = f"{ensemble}.grad" if field == "value" else f"{ensemble}.grad_{field}"
        if gradient in gradients:
            direction = generator.normal(size=known[storage].shape)
            direction /= np.linalg.norm(direction)
            difference = (moved(storage, STEP * direction) - moved(storage, -STEP * direction)) / (2 * STEP)
            found = float(np.sum(gradients[gradient] * direction))
            assert found == pytest.approx(difference, rel=BOUND, abs=BOUND), storage
            count += 1
    assert count
