"""Wrong values of the parameters of a net's methods, from their signatures: Latte errors, with the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.errors import LatteError
from latte.solver import SGD
from tests.layers.test_wrong_arguments import WRONG

pytestmark = pytest.mark.usefixtures("as_lowered")

IMAGES, LABELS = np.zeros((2, 3, 4, 4), "f4"), np.zeros(2)
LONG: set[tuple[str, str]] = {("fit", "epochs"), ("timings", "repeat"), ("profile", "repeat")}
"""What a large number makes run for long."""


@pytest.fixture(scope="module")
def net() -> Net:
    net = Net(2, seed=0)
    images, labels = MemoryDataLayer(net, (3, 4, 4)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, ConvLayer(net, images, 2), 3), labels)
    net.compile(target="portable", threads=1)
    net.set_batch(IMAGES, LABELS)
    net.forward()
    return net


def given(net: Net, name: str, folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Good arguments."""
    return {
        "fit": ((IMAGES, LABELS), {"solver": SGD(net), "progress": False}),
        "evaluate": ((IMAGES, LABELS), {}),
        "predict": ((IMAGES,), {}),
        "set_batch": ((IMAGES, LABELS), {}),
        "prepare": ((1,), {}),
        "explain": (("conv1",), {}),
        "timings": ((), {"repeat": 1}),
        "profile": ((), {"repeat": 1}),
        "state_dict": ((), {}),
        "load_state_dict": ((net.state_dict(),), {}),
        "save": ((folder / "saved.safetensors",), {}),
        "load": ((folder / "good.safetensors",), {}),
    }[name]


METHODS = (
    *("fit", "evaluate", "predict", "set_batch", "prepare", "explain", "timings", "profile"),
    *("state_dict", "load_state_dict", "save", "load"),
)


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter(net: Net, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of the wrong paths are names of files
    net.save(tmp_path / "good.safetensors")
    method: Callable[..., Any] = getattr(net, name)
    signature = inspect.signature(method)
    positional, named = given(net, name, tmp_path)
    for parameter in signature.parameters.values():
        for wrong in WRONG:
            if (name, parameter.name) in LONG and isinstance(wrong, int) and wrong > 1:
                continue
            if parameter.name == "after_epoch" and callable(wrong):
                continue  # a function of the user's raises what it likes
            call = signature.bind(*positional, **named)
            call.arguments[parameter.name] = (wrong,) if parameter.kind is parameter.VAR_POSITIONAL else wrong
            error = None
            try:
                method(*call.args, **call.kwargs)
            except Exception as raised:
                error = raised
            if error is not None:
                what = f"{name}({parameter.name}={wrong!r}): {type(error).__name__}: {error}"
                assert isinstance(error, LatteError) and "test_wrong_calls.py" in str(error), what
    net.set_batch(IMAGES, LABELS)
    net.forward()
    net.backward()
    assert np.isfinite(net.loss)


@pytest.mark.parametrize("name", ["has_phase", "phase_is_explicit"])
def test_every_parameter_of_an_ensembles_methods(net: Net, name: str) -> None:
    for wrong in WRONG:
        with pytest.raises(LatteError, match=r"test_wrong_calls\.py"):
            getattr(net["conv1"], name)(wrong)
