"""Numbers given for integers and flags: 2**32 + 3 was stored as 3, 0.7 as 0, NaN as the least integer, 2 as True."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import LatteError
from latte.model.neuron import Initialiser
from latte.neuron import Neuron, State, constant, given, zeros

WRONG = {"count": [2**32 + 3, 2**31, -(2**31) - 1, 0.7, np.nan, np.inf], "seen": [2, -1, 0.5, np.nan]}
FITS = {"count": [-(2**31), 2**31 - 1, 7.0, True], "seen": [True, 0, 1.0]}


def counting(count: Initialiser = zeros, seen: Initialiser = zeros) -> tuple[Net, Ensemble]:
    class Counter(Neuron):
        total = State("c", dtype="int32", init=count)
        flag = State("c", dtype="bool", init=seen)

        def forward(self) -> None:
            self.value = self.input * self.total if self.flag else 0.0

    net = Net(2)
    layer = net.add_ensemble(Ensemble(Counter, (2,), ("c",), name="counter"))
    net.add_one_to_one_connections(MemoryDataLayer(net, 2), layer)
    return net, layer


FIELDS = {"count": "total", "seen": "flag"}
GIVEN = [(name, number) for name, numbers in WRONG.items() for number in numbers]
SETTERS: dict[str, Callable[[Net, Ensemble, str, np.ndarray], None]] = {
    "setter": lambda net, layer, field, values: getattr(layer, f"set_{field}")(values),
    "load_state_dict": lambda net, layer, field, values: net.load_state_dict(
        {"theirs": values}, {f"counter.{field}": "theirs"}
    ),
}


@pytest.fixture(scope="module")
def compiled() -> tuple[Net, Ensemble]:
    net, layer = counting()
    net.compile(target="portable", threads=1)
    return net, layer


@pytest.mark.parametrize(("name", "number"), GIVEN)
@pytest.mark.parametrize("setter", SETTERS)
def test_what_does_not_fit_is_refused(compiled: tuple[Net, Ensemble], setter: str, name: str, number: float) -> None:
    net, layer = compiled
    field = FIELDS[name]
    SETTERS[setter](net, layer, field, np.array([1, 0]))
    with pytest.raises(LatteError, match=r"needed; at \[1\] it is") as caught:
        SETTERS[setter](net, layer, field, np.array([0, number]))
    assert __file__ in str(caught.value.location)
    np.testing.assert_array_equal(getattr(layer, f"get_{field}")(), [1, 0])


@pytest.mark.parametrize("setter", SETTERS)
def test_what_fits_is_stored(compiled: tuple[Net, Ensemble], setter: str) -> None:
    net, layer = compiled
    for name, numbers in FITS.items():
        for number in numbers:
            SETTERS[setter](net, layer, FIELDS[name], np.array([0, number]))
            np.testing.assert_array_equal(getattr(layer, f"get_{FIELDS[name]}")(), [0, number])


@pytest.mark.parametrize(("name", "number"), GIVEN)
def test_initial_values(name: str, number: float) -> None:
    net, _ = counting(**{name: given([0, number])})
    with pytest.raises(LatteError, match=rf"counter\.{FIELDS[name]}: of what init returned.*; at \[1\] it is"):
        net.compile(target="portable", threads=1)


def test_initial_values_that_fit() -> None:
    net, layer = counting(constant(3.0), constant(True))
    net.compile(target="portable", threads=1)
    assert (layer.get_total() == 3).all() and layer.get_flag().all()
