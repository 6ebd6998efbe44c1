"""Calls with arguments that a function does not take: errors of Latte's, with the caller's line and the nearest name.
They were Python's TypeErrors, which what shows Latte's errors does not show."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import latte
from latte import (
    ConvLayer,
    Ensemble,
    FullyConnectedLayer,
    LSTMLayer,
    MemoryDataLayer,
    Net,
    Neuron,
    Param,
    ReLULayer,
    SoftmaxLossLayer,
    layers,
)
from latte.data import DataLoader, Normalise
from latte.ensemble import ActivationEnsemble
from latte.errors import DeclarationError, LatteError, WrongCall
from latte.layers.activation import ReLULayer as DefinedReLULayer
from latte.math import compute_accuracy
from latte.neuron import given, normal
from latte.solver import SGD, Adam, CosineDecay, Solver
from latte.solvers import sgd_update
from latte.tools.cli import main
from latte.training import EarlyStopping
from tests.lowered import lowered


def declared() -> tuple[Net, Any]:
    net = Net(2, seed=0)
    return net, MemoryDataLayer(net, (3, 4, 4), name="x")


@pytest.fixture(scope="module")
def compiled() -> Net:
    with lowered():
        net, data = declared()
        SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 3, name="scores"), MemoryDataLayer(net, (1,), name="y"))
        net.compile(target="portable", threads=1)
    return net


class Doubled(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input


Calls = dict[str, tuple[Callable[[Net, Any], Any], str, str]]
DECLARING: Calls = {
    "the net forgotten": (
        lambda net, x: ReLULayer(x),
        "ReLULayer: missing .*'input_ensemble'",
        "the net comes first: Re",
    ),
    "and a number": (lambda net, x: LSTMLayer(x), "LSTMLayer: missing .*'", "the net comes first: LSTMLayer(net, "),
    "nothing": (
        lambda net, x: ConvLayer(),
        "ConvLayer: missing .*'net'",
        "ConvLayer(net, input_ensemble, num_filters=0",
    ),
    "a misspelt keyword": (
        lambda net, x: ConvLayer(net, x, num_filter=3),
        "no argument 'num_filter'",
        "'num_filters'?",
    ),
    "one of another program": (
        lambda net, x: ConvLayer(net, x, 3, padding=1),
        "no argument 'padding'",
        "did you mean 'pad'",
    ),
    "one that is far from all": (lambda net, x: ConvLayer(net, x, bogus=1), "no argument 'bogus'", "ConvLayer(net, "),
    "too many": (
        lambda net, x: ReLULayer(net, x, "name", 5),
        "ReLULayer: too many positional",
        "ReLULayer(net, input_",
    ),
    "one given twice": (
        lambda net, x: ReLULayer(net, x, net=net),
        "ReLULayer: multiple values .*'net'",
        "ReLULayer(net",
    ),
    "where it is defined": (lambda net, x: DefinedReLULayer(net), "ReLULayer: missing", "ReLULayer(net, input_ens"),
    "in the package": (lambda net, x: layers.ReLULayer(net, x, nam="a"), "no argument 'nam'", "did you mean 'name'?"),
    "a net": (
        lambda net, x: Net(batchsize=3),
        "Net has no argument 'batchsize'",
        "did you mean 'batch_size'? Net(batch_s",
    ),
    "a net of nothing": (lambda net, x: Net(), "Net: missing .*'batch_size'", "Net(batch_size, *, seed=None"),
    "an ensemble": (lambda net, x: Ensemble(Doubled, 3, dim=("c",)), "Ensemble has no argument 'dim'", "'dims'?"),
    "of a subclass": (lambda net, x: ActivationEnsemble(Doubled, (3,), names="a"), "no argument 'names'", "'name'?"),
    "a field": (lambda net, x: Param("c", shapes=3), "Param|Declaration has no argument 'shapes'", "'shape'?"),
    "an initialiser": (lambda net, x: normal(), "normal: missing .*'deviation'", "normal(deviation)"),
    "a method": (
        lambda net, x: net.add_connections(x),
        "Net.add_connections: missing .*'sink'",
        "source, sink, mapping",
    ),
    "of an ensemble": (lambda net, x: x.set_padding(pad=1), "Ensemble.set_padding has no argument 'pad'", "*pairs"),
    "compile": (
        lambda net, x: net.compile(thread=1),
        "Net.compile has no argument 'thread'",
        "did you mean 'threads'?",
    ),
    "a loader": (lambda net, x: DataLoader(np.ones(3), batchsize=2), "DataLoader has no argument", "'batch_size'?"),
    "a transform": (lambda net, x: Normalise(), "Normalise: missing .*'mean'", "Normalise(mean, deviation=1.0)"),
    "a class method": (lambda net, x: Normalise.of(), "Normalise.of: missing .*'images'", "Normalise.of(images)"),
    "a callback": (lambda net, x: EarlyStopping(patient=3), "no argument 'patient'", "did you mean 'patience'?"),
    "a schedule": (lambda net, x: CosineDecay(0.1, step=3), "CosineDecay has no argument 'step'", "'steps'?"),
    "sgd_update": (lambda net, x: sgd_update(1, 2), "sgd_update: missing", "sgd_update(param, grad, hist, lr, mom"),
    "latte.math": (lambda net, x: compute_accuracy(1), "compute_accuracy: missing .*'label'", "(output, label)"),
}
RUNNING: Calls = {
    "fit": (lambda net, x: net.fit(1, solver=2, epoch=3), "Net.fit has no argument 'epoch'", "did you mean 'epochs'?"),
    "fit without a solver": (
        lambda net, x: net.fit(1, 2),
        "Net.fit: missing .*'solver'",
        "Net.fit(*data, solver, epochs=1",
    ),
    "save": (lambda net, x: net.save(), "Net.save: missing .*'path'", "Net.save(path, solver=None"),
    "forward": (lambda net, x: net.forward(x), "Net.forward: too many positional", "Net.forward()"),
    "a solver": (lambda net, x: SGD(), "SGD: missing .*'net'", "SGD(net, learning_rate=0.01"),
    "a solver's step": (lambda net, x: SGD(net).step(batch=3), "Solver.step has no argument 'batch'", "'batches'?"),
    "too many of a solver": (lambda net, x: Adam(*[net] * 20), "Adam: too many positional", "Adam(net, learning_rate"),
    "a getter": (lambda net, x: net["scores"].get_value(3), "scores.get_value: too many", "scores.get_value()"),
    "a setter": (lambda net, x: net["x"].set_value(), "x.set_value: missing .*'values'", "x.set_value(values)"),
    "a view": (lambda net, x: net["scores"].get_weights_view(copy=True), "no argument 'copy'", "get_weights_view()"),
}


def check(call: Callable[[Net, Any], Any], net: Net, x: Any, words: str, way_out: str) -> None:
    with pytest.raises(WrongCall, match=words) as caught:
        call(net, x)
    error = caught.value
    assert way_out in str(error.way_out)
    file, line = str(error.location).rsplit(":", 1)
    assert file == __file__ and int(line) == call.__code__.co_firstlineno
    assert isinstance(error, DeclarationError) and isinstance(error, TypeError)


@pytest.mark.parametrize("what", DECLARING)
def test_declaring(what: str) -> None:
    call, words, way_out = DECLARING[what]
    net, x = declared()
    before = list(net.ensembles)
    check(call, net, x, words, way_out)
    assert net.ensembles == before


@pytest.mark.parametrize("what", RUNNING)
def test_running(what: str, compiled: Net) -> None:
    call, words, way_out = RUNNING[what]
    check(call, compiled, compiled["x"], words, way_out)


@pytest.mark.parametrize("name", layers.__all__)
def test_every_layer(name: str) -> None:
    """Without its net, with a keyword that it does not have, with nothing."""
    net, x = declared()
    constructor = getattr(latte, name)
    assert constructor is getattr(layers, name) is vars(sys.modules[constructor.__module__])[name]
    for arguments, options in (((x,), {}), ((), {}), ((net, x), {"unheard_of": 1}), ((net,) * 30, {})):
        with pytest.raises(LatteError) as caught:
            constructor(*arguments, **options)
        assert str(caught.value.location).startswith(__file__) and name in str(caught.value)
    for keyword in list(inspect.signature(constructor).parameters)[2:]:
        with pytest.raises(WrongCall, match=rf"{name} has no argument '{keyword}s?_'") as caught:
            constructor(net, x, **{f"{keyword}_": 1})
        assert f"did you mean {keyword!r}?" in str(caught.value) or len(keyword) < 4
    assert net.ensembles == [x]


def test_signatures_stay_visible() -> None:
    assert list(inspect.signature(ReLULayer).parameters) == ["net", "input_ensemble", "name"]
    assert inspect.signature(Net).parameters["seed"].kind is inspect.Parameter.KEYWORD_ONLY
    assert ReLULayer.__module__ == "latte.layers.activation" and ReLULayer.__doc__
    assert inspect.getsource(ReLULayer).startswith("def ReLULayer(net: Net, input_ensemble: Ensemble")
    assert pickle.loads(pickle.dumps(ReLULayer)) is ReLULayer
    assert "epochs" in inspect.signature(Net.fit).parameters and Net.fit.__qualname__ == "Net.fit"


class Failing(Ensemble):
    def __init__(self) -> None:
        super().__init__(Doubled, (3,), dims=("c",))

    def own(self, number: int) -> int:
        return number


def test_type_errors_from_inside_stay(compiled: Net) -> None:
    """Of a user's function that is called, or of a user's class."""
    with pytest.raises(TypeError) as caught:
        Failing().own()  # type: ignore[call-arg]
    assert not isinstance(caught.value, LatteError)
    with pytest.raises(TypeError) as caught:
        Failing(3)  # type: ignore[call-arg]
    assert not isinstance(caught.value, LatteError)

    class Wrong(Ensemble):
        def __init__(self) -> None:
            super().__init__(Doubled, (3,), dimensions=("c",))  # type: ignore[call-arg]

    with pytest.raises(WrongCall, match="Ensemble has no argument 'dimensions'") as wrong:
        Wrong()
    assert wrong.value.location == f"{__file__}:{inspect.getsourcelines(Wrong)[1] + 2}"

    class Mine(Solver):
        def __init__(self, net: Net, mine: int):
            super().__init__(net)

    with pytest.raises(TypeError) as caught:
        Mine()  # type: ignore[call-arg]
    assert not isinstance(caught.value, LatteError)

    def broken(run: Any) -> None:
        raise TypeError("of the user's")

    with pytest.raises(TypeError, match="of the user's") as caught:
        compiled.fit(np.ones((2, 3, 4, 4)), np.zeros(2), solver=SGD(compiled), progress=False, callbacks=[broken])
    assert not isinstance(caught.value, LatteError)


def test_on_another_thread() -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            ReLULayer(declared()[1])  # type: ignore[call-arg]
        except WrongCall as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (error,) = found
    assert str(error.location).startswith(__file__)  # type: ignore[attr-defined]


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from latte import *\nnet = Net(2)\nReLULayer(MemoryDataLayer(net, (3,)))\n")
    result = CliRunner().invoke(main, ["show", str(path)])
    assert result.exit_code == 1
    assert f"{path}:3: ReLULayer: missing" in result.output and "the net comes first" in result.output


def test_given_is_a_function_still() -> None:
    init = given([1.0, 2.0])
    assert init((2,), 1, np.random.default_rng()).tolist() == [1.0, 2.0]
    with pytest.raises(WrongCall, match="given: missing"):
        given()  # type: ignore[call-arg]


MODULES = ("latte.solver", "latte.layers.convolution")


@pytest.mark.parametrize("module", MODULES)
def test_whatever_is_imported_first(module: str) -> None:
    lines = (f"import {module}, latte", "try: latte.ConvLayer()", "except latte.errors.WrongCall: print('told')")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "told\n"
