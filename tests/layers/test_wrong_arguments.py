"""Wrong values of every parameter of every constructor, from their signatures: Latte errors, with the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import latte
from latte import MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from latte.errors import LatteError
from latte.tools.library import LIBRARY
from tests.layers.against_torch import arguments

pytestmark = pytest.mark.usefixtures("as_lowered")

WRONG = (
    None,
    "x",
    "",
    2.5,
    -1,
    0,
    True,
    [],
    (1, "a"),
    (0, 0, 0, 0),
    {},
    object(),
    np.nan,
    np.inf,
    10**12,
    10**30,
    10**400,
    1e39,
    np.complex64(1),
    np.ones(3),
    int,
)


def failure(layer: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    """What a call raises."""
    try:
        layer(**given)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", latte.layers.__all__)
def test_every_parameter(name: str) -> None:
    layer: Callable[..., Ensemble] = getattr(latte, name)
    for parameter in inspect.signature(layer).parameters:
        for wrong in WRONG:
            net = Net(2, seed=0)
            given = {**arguments(LIBRARY[name], net), parameter: wrong}
            before = list(net.ensembles)
            error = failure(layer, given)
            if error is not None:
                what = f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}"
                assert isinstance(error, LatteError) and "test_wrong_arguments.py" in str(error), what
                assert net.ensembles == before, what
    net = Net(2, seed=0)
    layer(**arguments(LIBRARY[name], net))
    ReLULayer(net, net.ensembles[0])


@pytest.mark.parametrize("name", latte.layers.__all__)
def test_what_is_too_large_is_refused_by_the_constructor(name: str) -> None:
    layer: Callable[..., Ensemble] = getattr(latte, name)
    for parameter in inspect.signature(layer).parameters:
        for size in (2**31, 10**30, 10**400):
            for wrong in (size, -size, (0, size, 0), [size, size]):
                net = Net(2, seed=0)
                given = {**arguments(LIBRARY[name], net), parameter: wrong}
                before = list(net.ensembles)
                error = failure(layer, given)
                if error is None:
                    net.compile(target="portable", threads=1)
                else:
                    what = f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}"
                    assert isinstance(error, LatteError) and "test_wrong_arguments.py" in str(error), what
                    assert net.ensembles == before, what


TOO_LARGE: list[tuple[str, str]] = [
    ("ResidualSumLayer", "scale"),
    ("LeakyReLULayer", "negative_slope"),
    ("PReLULayer", "init"),
    ("ELULayer", "alpha"),
    ("BatchNormLayer", "epsilon"),
    ("GroupNormLayer", "epsilon"),
    ("LayerNormLayer", "epsilon"),
    ("LRNLayer", "k"),
    ("HuberLossLayer", "delta"),
    ("ScaledDotProductAttentionLayer", "scale"),
    ("SoftmaxLossLayer", "loss_weight"),
]
"""Numbers that are part of what a layer computes."""


@pytest.mark.parametrize(("name", "parameter"), TOO_LARGE)
@pytest.mark.parametrize("wrong", [1e39, 1e300, 10**400, np.float64(3.5e38), np.inf, np.nan])
def test_numbers_that_float32_does_not_have(name: str, parameter: str, wrong: float) -> None:
    """They became infinities."""
    net = Net(2, seed=0)
    given = arguments(LIBRARY[name], net)
    expected = " for float32, which goes up to 3.4e38" if 3.4e38 < wrong < np.inf else ""
    error = failure(getattr(latte, name), {**given, parameter: wrong})
    assert isinstance(error, LatteError) and "test_wrong_arguments.py" in str(error)
    assert error.message.startswith(f"{parameter} must be a number{expected}"), error
    getattr(latte, name)(**{**given, parameter: np.float64(np.finfo(np.float32).max)})


@pytest.mark.parametrize("name", latte.layers.__all__)
def test_names_that_are_not_strings(name: str) -> None:
    layer: Callable[..., Any] = getattr(latte, name)
    for wrong in (np.nan, True, 3, b"ab", ["a"]):
        net = Net(2, seed=0)
        given = {**arguments(LIBRARY[name], net), "name": wrong}
        before = list(net.ensembles)
        error = failure(layer, given)
        assert isinstance(error, LatteError), f"{name}(name={wrong!r})"
        assert error.message == f"the name of a layer is a string, not {wrong!r}"
        assert "test_wrong_arguments.py" in str(error) and net.ensembles == before
    net = Net(2, seed=0)
    made = layer(**{**arguments(LIBRARY[name], net), "name": ""})  # is numbered
    assert not any(ensemble.name.startswith("_") for ensemble in (made if isinstance(made, list) else [made]))


@pytest.mark.parametrize(
    "wrong", [b"ab", bytearray(b"ab"), memoryview(b"ab"), {3: 4}, {3, 4}, "34", np.ones((2, 2), int)]
)
def test_shapes_that_are_not_sequences_of_integers(wrong: Any) -> None:
    net = Net(2)
    error = failure(MemoryDataLayer, {"net": net, "shape": wrong})
    assert isinstance(error, LatteError) and not net.ensembles
    assert "must be one or more positive integers" in str(error) and "test_wrong_arguments.py" in str(error)
    for number, good in enumerate((3, (3,), [3], np.int32(3), np.array([3]), range(3, 4))):
        assert MemoryDataLayer(net, good).shape == (3,), number


@pytest.mark.parametrize("wrong", ["x", 1, None, np.nan])
def test_clamp_is_a_flag(wrong: Any) -> None:
    net = Net(2)
    data, pool = MemoryDataLayer(net, (4, 6, 6)), MaxPoolingLayer(net, MemoryDataLayer(net, (4, 6, 6)))
    with pytest.raises(LatteError, match=f"clamp must be True or False, not {wrong!r}"):
        net.add_connections(data, pool, lambda c, y, x: (range(1), range(1), range(1)), clamp=wrong)
    assert len(net.connections) == 1
