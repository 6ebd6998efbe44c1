"""Wrong values of what declares and trains a net, from the signatures: Latte errors, with the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from latte import (
    ConvLayer,
    FullyConnectedLayer,
    FullyConnectedLayerNoBias,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.data import Crop, DataLoader, Flip, Normalise
from latte.ensemble import Ensemble, LossEnsemble
from latte.errors import DeclarationError, LatteError, TrainingError
from latte.neuron import Constant, Field, Neuron, Param, State
from latte.solver import SGD, Adam, AdamW, CosineDecay, OneCycle, RMSProp, Setting, StepDecay, WarmUp
from latte.solvers import sgd_update
from latte.training import EarlyStopping
from swirl.transforms import COMMANDS
from tests.layers.test_wrong_arguments import WRONG

pytestmark = pytest.mark.usefixtures("as_lowered")

IMAGES, LABELS = np.zeros((4, 3, 4, 4), "f4"), np.zeros(4)


class Twice(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


def declared() -> Net:
    """A net that is not compiled."""
    net = Net(2, seed=0)
    images, labels = MemoryDataLayer(net, (3, 4, 4)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, ConvLayer(net, images, 2), 3), labels)
    return net


def problem(call: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """What a call raises that is not a Latte error with the line of the call; None if it raises nothing else."""
    try:
        call(*positional, **named)
    except LatteError as error:
        return None if "test_wrong_declarations.py" in str(error) else f"{type(error).__name__} without a line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


CONSTRUCTORS: dict[Callable[..., Any], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    Net: lambda: ((2,), {}),
    Ensemble: lambda: ((), {"shape": (3,), "dims": ("x",)}),
    LossEnsemble: lambda: ((), {}),
    Field: lambda: (("n",), {"shape": (2,)}),
    Param: lambda: (("n",), {"shape": (2,)}),
    State: lambda: (("n",), {"shape": (2,)}),
    Constant: lambda: (("n",), {"shape": (2,)}),
    SGD: lambda: ((compiled(),), {}),
    Adam: lambda: ((compiled(),), {}),
    AdamW: lambda: ((compiled(),), {}),
    RMSProp: lambda: ((compiled(),), {}),
    Setting: lambda: ((0.1,), {}),
    StepDecay: lambda: ((0.1, 10), {}),
    CosineDecay: lambda: ((0.1, 10), {}),
    OneCycle: lambda: ((0.1, 10), {}),
    WarmUp: lambda: ((10, 0.1), {}),
    DataLoader: lambda: ((IMAGES, LABELS), {"batch_size": 2}),
    Crop: lambda: ((3,), {}),
    Flip: lambda: ((), {}),
    Normalise: lambda: ((0.5,), {}),
    EarlyStopping: lambda: ((), {}),
    sgd_update: lambda: ((np.ones(3), np.ones(3), np.zeros(3), 0.1, 0.9), {}),
}


@cache
def compiled() -> Net:
    """A compiled net, the same for all solvers, of one parameter: each solver compiles an update for each."""
    net = Net(2, seed=0)
    FullyConnectedLayerNoBias(net, MemoryDataLayer(net, (3,)), 3)
    net.compile(target="portable", threads=1)
    return net


def wrong_calls(call: Callable[..., Any], good: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]) -> list[str]:
    """What is wrong with the errors of a call, for every parameter and every wrong value of it."""
    found = []
    for parameter in inspect.signature(call).parameters.values():
        for wrong in WRONG:
            positional, named = good()
            bound = inspect.signature(call).bind(*positional, **named)
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.arguments[parameter.name] = {"no_such": wrong}
            else:
                bound.arguments[parameter.name] = (wrong,) if parameter.kind is parameter.VAR_POSITIONAL else wrong
            what = problem(call, bound.args, bound.kwargs)
            if what is not None:
                found.append(f"{parameter.name}={wrong!r}: {what}")
    return found


@pytest.mark.parametrize("made", CONSTRUCTORS, ids=lambda made: made.__name__)
def test_every_parameter_of_constructors(made: Callable[..., Any]) -> None:
    assert not wrong_calls(made, CONSTRUCTORS[made])


METHODS: dict[str, Callable[[Net], tuple[Any, ...]]] = {
    "add_ensemble": lambda net: (Ensemble(Twice, (3,)),),
    "add_connections": lambda net: (net.ensembles[0], ReLULayer(net, net.ensembles[0])),
    "add_one_to_one_connections": lambda net: (net.ensembles[0], ReLULayer(net, net.ensembles[0])),
    "add_loss_connection": lambda net: (net.ensembles[0], ReLULayer(net, net.ensembles[0])),
    "init_activation_ensemble": lambda net: (Twice, net.ensembles[0]),
    "init_ensemble": lambda net: (np.zeros(3, dtype=object),),
    "keep": lambda net: (net.ensembles[0],),
    "use_recipe": lambda net: ("conv1", "recipe.py"),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_of_declaring_methods(name: str) -> None:
    found = []
    for parameter in inspect.signature(getattr(Net, name)).parameters.values():
        if parameter.name == "self":
            continue
        for wrong in WRONG:
            net = declared()
            bound = inspect.signature(getattr(net, name)).bind_partial(*METHODS[name](net))
            bound.arguments[parameter.name] = (wrong,) if parameter.kind is parameter.VAR_POSITIONAL else wrong
            before = list(net.ensembles)
            what = problem(getattr(net, name), bound.args, bound.kwargs)
            if what is not None:
                found.append(f"{parameter.name}={wrong!r}: {what}")
            elif net.ensembles[: len(before)] != before:
                found.append(f"{parameter.name}={wrong!r} has changed the net")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_on_an_ensemble(name: str) -> None:
    """Whatever is given, the command is refused where it is written or where the net is compiled, with the line."""
    found, conv = [], declared()["conv1"]
    for wrong in (*WRONG, np.arange(4), np.float32(2.5), np.int64(3)):
        what = problem(getattr(conv, name), ("forward", wrong), {})
        if what is not None:
            found.append(f"{wrong!r}: {what}")
    assert not found, "\n".join(found)


def test_a_constructor_that_does_not_call_its_base() -> None:
    class Layer(Ensemble):
        def __init__(self) -> None:
            pass

    class Own(SGD):
        def __init__(self, net: Net) -> None:
            pass

    net = Net(2)
    with pytest.raises(DeclarationError, match=r"Layer.__init__ has not called that of Ensemble\n  super\(\).__init__"):
        net.add_ensemble(Layer())
    data, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 2), label)
    net.compile(threads=1)
    batch = np.ones((2, 3)), np.zeros((2, 1))
    with pytest.raises(TrainingError, match=r"Own.__init__ has not called that of Solver\n  super\(\).__init__\(net\)"):
        net.fit(*batch, solver=Own(net), progress=False)
