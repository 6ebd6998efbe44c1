"""Nets through ``pickle``: in another process, beside other files, on another machine."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from latte import BatchNormLayer, DropoutLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import BodyError, DataError
from latte.neuron import Neuron, exp
from latte.runtime import pickling

BUILD = """
import numpy as np
from latte import BatchNormLayer, DropoutLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble
from latte.neuron import Neuron, exp

TABLE = np.array([1.0, 2.0, 3.0, 4.0], np.float32)

def doubled(x):
    return x * 2.0

def swish(net, source, factor):
    class Swish(Neuron):
        def own(self, value):
            return value / (1.0 + exp(-factor * value))

        def forward(self):
            self.value = self.own(doubled(self.input)) * TABLE[c]

    layer = net.add_ensemble(ActivationEnsemble(Swish, (4,), dims=("c",), kind="swish"))
    net.add_one_to_one_connections(source, layer)
    return layer

net = Net(4, seed=3)
data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
hidden = swish(net, BatchNormLayer(net, FullyConnectedLayer(net, data, 4)), 1.5)
SoftmaxLossLayer(net, FullyConnectedLayer(net, DropoutLayer(net, hidden), 3), label)
net.compile(threads=1)
"""
TRAIN = """
from latte.solver import SGD

draw = np.random.default_rng(0)
X, y = draw.normal(size=(10, 5)).astype(np.float32), draw.integers(0, 3, 10)
"""
FIRST = """
import pickle
net.fit(X, y, solver=SGD(net, 0.1), progress=False)
with open("net.pickle", "wb") as file:
    pickle.dump(net, file)
print(net.fit(X, y, solver=SGD(net, 0.1), epochs=2, progress=False).losses)
"""
SECOND = """
import pickle
import numpy as np
with open("net.pickle", "rb") as file:
    net = pickle.load(file)
"""
THEN = """
print(net.fit(X, y, solver=SGD(net, 0.1), epochs=2, progress=False).losses)
again = pickle.loads(pickle.dumps(net))
print(bool((again.predict(X) == net.predict(X)).all()))
"""


def run(folder: Path, text: str) -> list[str]:
    (folder / "program.py").write_text(text)
    command = [sys.executable, "program.py"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines()


def declared() -> Net:
    net = Net(4, seed=3)
    data, label = MemoryDataLayer(net, (5,)), MemoryDataLayer(net, (1,))
    hidden = BatchNormLayer(net, FullyConnectedLayer(net, data, 4, name="first"))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, DropoutLayer(net, hidden), 3), label)
    return net


def test_another_process_goes_on_where_the_file_holds_something_else(tmp_path: Path) -> None:
    [losses] = run(tmp_path, BUILD + TRAIN + FIRST)
    # The same name; where the bodies were, there are other lines now.
    assert run(tmp_path, SECOND + TRAIN + THEN) == [losses, "True"]


def test_before_compiling() -> None:
    net = pickle.loads(pickle.dumps(declared()))
    FullyConnectedLayer(net, net["first"], 2)
    other = declared()
    for each in (net, other):
        each.compile(threads=1)
    np.testing.assert_array_equal(net["first"].get_weights(), other["first"].get_weights())


def test_a_smaller_batch_and_gradients_that_were_given() -> None:
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (3,))
    FullyConnectedLayer(net, BatchNormLayer(net, data), 2, name="top")
    net.compile(threads=1)
    net.set_batch(np.random.default_rng(1).normal(size=(3, 3)))
    net["top"].set_grad(np.ones((3, 2)))
    other = pickle.loads(pickle.dumps(net))
    for each in (net, other):
        each.forward()
        each.backward()
    assert other["top"].get_value().shape == (3, 2)
    for name in ("value", "grad_weights"):
        expected = getattr(net["top"], f"get_{name}")()
        np.testing.assert_array_equal(getattr(other["top"], f"get_{name}")(), expected, err_msg=name)


def test_on_a_machine_without_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    net = declared()
    net.compile(threads=1)
    pickled = pickle.dumps(net)
    assert pickle.loads(pickled).executable.plan.target == net.executable.plan.target
    monkeypatch.setenv("SWIRL_HIDE", "avx2,avx512")
    assert pickle.loads(pickled).executable.plan.target.name == "portable"


def test_a_pickle_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(declared())
    monkeypatch.setattr(pickling, "VERSION", "0.0.9")
    with pytest.raises(DataError, match=r"of Latte has pickled this net, and this is 0.0.9\n.*net.save") as caught:
        pickle.loads(pickled)
    assert __file__ in str(caught.value.location)


def test_a_body_in_an_error_is_named_with_its_file() -> None:
    class Wrong(Neuron):
        def forward(self) -> None:
            self.value = self.input + missing(exp(self.input))  # type: ignore[name-defined]  # noqa: F821

    net = Net(2)
    layer: Ensemble = net.add_ensemble(ActivationEnsemble(Wrong, (3,), kind="wrong"))
    net.add_one_to_one_connections(MemoryDataLayer(net, (3,)), layer)
    other = pickle.loads(pickle.dumps(net))
    with pytest.raises(BodyError) as caught:
        other.compile()
    line = Wrong.forward.__code__.co_firstlineno + 1
    assert str(caught.value.location).endswith(f"{__file__}:{line}")


def test_what_cannot_be_written_is_named() -> None:
    net = declared()
    net["first"].note = Lock()
    with pytest.raises(TypeError, match=r"_thread\.lock"):
        pickle.dumps(net)
