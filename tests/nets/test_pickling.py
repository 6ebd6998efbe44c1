"""Nets through ``pickle``: in another process, beside other files, on another machine."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from latte import BatchNormLayer, DropoutLayer, FullyConnectedLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.errors import BodyError, DataError, DeclarationError
from latte.neuron import Neuron, exp
from latte.runtime import pickling

pytestmark = pytest.mark.usefixtures("as_lowered")

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


def test_the_last_batch_and_its_gradients_are_not_in_it() -> None:
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (300,))
    FullyConnectedLayer(net, BatchNormLayer(net, data), 2, name="top")
    net.compile(threads=1)
    mine = np.full((3, 300), 7.654321, np.float32)
    net.set_batch(mine)
    net["top"].set_grad(np.full((3, 2), 1.234567))
    net.forward()
    pickled = pickle.dumps(net)
    assert mine[0, :2].tobytes() not in pickled and np.full(2, 1.234567, np.float32).tobytes() not in pickled
    other = pickle.loads(pickled)
    for each in (net, other):
        each.set_batch(mine)
        each.test()
    np.testing.assert_array_equal(other["top"].get_value(), net["top"].get_value())


FACTOR = 5.0


def scaled(net: Net) -> Ensemble:
    class Scaled(Neuron):
        def forward(self) -> None:
            self.value = self.input * FACTOR

    layer = net.add_ensemble(ActivationEnsemble(Scaled, (3,), kind="scaled"))
    net.add_one_to_one_connections(MemoryDataLayer(net, (3,)), layer)
    return layer


def test_nets_of_the_process_that_loads_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(2)
    kind = scaled(net).neuron_class
    before = dict(vars(kind))
    first = pickle.dumps(net)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    second = pickle.dumps(net)
    loaded = [pickle.loads(each) for each in (first, second, first)]
    assert kind.forward.__globals__ is globals() and dict(vars(kind)) == before
    for each, factor in zip([*loaded, net], [5.0, 2.0, 5.0, 2.0], strict=True):
        each.compile(threads=1)
        each.set_batch(np.ones((1, 3)))
        each.forward()
        np.testing.assert_array_equal(each["scaled1"].get_value(), np.full((1, 3), factor))


def test_a_file_that_is_edited_while_its_program_runs(tmp_path: Path) -> None:
    """What is compiled later, and what is pickled, is what was declared."""
    edit = """
import pathlib, traceback
before = net.predict(X)
file = pathlib.Path(__file__)
file.write_text("# a line more\\n" + file.read_text().replace("x * 2.0", "x * 3.0"))
traceback.format_exc()
import linecache
linecache.checkcache()
again = pickle.loads(pickle.dumps(net))
print(bool((again.predict(X) == before).all()), bool((net.predict(X[:3]) == before[:3]).all()))
"""
    assert run(tmp_path, "import pickle\n" + BUILD + TRAIN + edit) == ["True True"]


class Named(Net):
    """A net of a user."""


def test_subclasses_and_attributes_are_kept() -> None:
    net = Named(2)
    net.best = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2, name="best")  # type: ignore[attr-defined]
    net.classes = ["yes", "no"]  # type: ignore[attr-defined]
    for other in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert type(other) is Named and other.classes == ["yes", "no"] and other.best is other["best"]


def test_a_layer_without_its_net() -> None:
    net = declared()
    with pytest.raises(DeclarationError, match=r"without its net\n  pickle the net, and take net\['first'\]"):
        pickle.dumps({"net": net, "layer": net["first"]})


def test_on_a_machine_without_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    net = declared()
    net.compile(threads=1)
    pickled = pickle.dumps(net)
    assert pickle.loads(pickled).executable.plan.target == net.executable.plan.target
    monkeypatch.setenv("SWIRL_HIDE", "avx2,avx512")
    assert pickle.loads(pickled).executable.plan.target.name == "portable"
    asked = declared()
    monkeypatch.delenv("SWIRL_HIDE")
    asked.compile(target=net.executable.plan.target.name, threads=1)
    pickled = pickle.dumps(asked)
    monkeypatch.setenv("SWIRL_HIDE", "avx2,avx512")
    if net.executable.plan.target.name != "portable":
        with pytest.warns(UserWarning, match="compiled for the best target of this machine instead"):
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
    net.note = Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"_thread\.lock"):
        pickle.dumps(net)
