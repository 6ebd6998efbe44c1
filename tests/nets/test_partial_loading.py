"""``strict=False``: what fits is taken, and what does not is told, as PyTorch's users expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import BatchNormLayer, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.errors import DataError
from latte.runtime.checkpoint import Checkpoint, read_file, write_file
from latte.solver import SGD, Adam

pytestmark = pytest.mark.usefixtures("as_lowered")
VECTORS = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0])


def net_of(classes: int = 3, seed: int = 1, *, hidden: int = 5, norm: bool = True) -> Net:
    net = Net(4, seed=seed)
    data, label = MemoryDataLayer(net, (6,)), MemoryDataLayer(net, (1,))
    layer = FullyConnectedLayer(net, data, hidden, name="stem")
    layer = ReLULayer(net, BatchNormLayer(net, layer, name="norm") if norm else layer)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, classes, name="head"), label)
    net.compile(threads=1)
    return net


def trained(net: Net, solver: Any) -> Net:
    net.fit(VECTORS, LABELS, solver=solver, epochs=2, progress=False)
    return net


def test_a_stem_goes_to_a_net_with_another_head(tmp_path: Path) -> None:
    old = net_of()
    old.freeze("norm")
    trained(old, SGD(old, 0.1))
    old.save(tmp_path / "old")
    net = net_of(classes=7, seed=9)
    net.freeze("stem")
    before = net.state_dict()
    with pytest.raises(DataError, match=r"head\.weights is float32"):
        net.load(tmp_path / "old")
    missing, unexpected, mismatched = left = net.load(tmp_path / "old", strict=False)
    assert left and (missing, unexpected) == ([], [])
    assert mismatched == [("head.weights", (3, 5), (7, 5)), ("head.bias", (3, 1), (7, 1))]
    for name, values in net.state_dict().items():
        np.testing.assert_array_equal(values, (before if "head" in name else old.state_dict())[name])
    # The rest of the net is as it was.
    assert net.seed == 9 and not net["stem"].trainable and net["norm"].trainable
    same = net_of(seed=9)
    assert not same.load(tmp_path / "old", strict=False) and not same.load(tmp_path / "old")
    assert same.seed == 1 and not same["norm"].trainable  # a net that is declared alike goes on as that one


def test_layers_that_one_of_them_does_not_have(tmp_path: Path) -> None:
    old, net = net_of(), net_of(norm=False, seed=2)
    old.save(tmp_path / "old")
    norms = [f"norm.{field}" for field in ("beta", "gamma", "running_mean", "running_var")]
    left = net.load(tmp_path / "old", strict=False)
    assert sorted(left.unexpected_keys) == norms and not left.missing_keys
    net.save(tmp_path / "new")
    left = old.load(tmp_path / "new", strict=False)
    assert sorted(left.missing_keys) == norms and not left.mismatched_keys
    assert left == (left.missing_keys, [], []) and left.missing_keys == left[0]


def test_what_a_solver_keeps_is_taken_with_its_parameters(tmp_path: Path) -> None:
    old, net = net_of(), net_of(classes=4, seed=2)
    solver, its_solver = Adam(old, 0.01), Adam(net, 0.5)
    trained(old, solver)
    old.save(tmp_path / "old", solver)
    with pytest.raises(DataError, match=r"head.weights is float32 \(3, 5\)"):
        net.load(tmp_path / "old", its_solver)
    left = net.load(tmp_path / "old", its_solver, strict=False)
    assert ("solver:mean.head.bias", (3, 1), (4, 1)) in left.mismatched_keys and len(left.mismatched_keys) == 6
    assert its_solver.learning_rate == 0.01 and its_solver.step_number == 3
    now = its_solver.state()
    for name, values in solver.state().arrays.items():
        if "head" not in name:
            np.testing.assert_array_equal(now.arrays[name], values)
    assert now.settings["skipped"] == {"head.weights": 2, "head.bias": 2}
    trained(net, its_solver)
    other = SGD(net)
    with pytest.raises(DataError, match="the state of a solver Adam, not of SGD"):
        net.load(tmp_path / "old", other, strict=False)


def test_bad_files_are_refused_all_the_same(tmp_path: Path) -> None:
    net, path = net_of(), tmp_path / "net"
    net.save(path)
    content = read_file(path)
    for wrong in (3, {"layers": "stem"}, {"layers": [1]}):
        write_file(path, Checkpoint(content.tensors, {**content.about, "frozen": wrong}))
        with pytest.raises(DataError, match="is frozen, not names"):
            net.load(path)
    write_file(path, Checkpoint(content.tensors, {n: v for n, v in content.about.items() if n != "frozen"}))
    net.freeze("stem")
    net.load(path)  # of an older version: what is frozen stays
    assert not net["stem"].trainable
    for flag in (1, None, "no"):
        with pytest.raises(DataError, match=f"strict must be True or False, not {flag!r}"):
            net.load(path, strict=flag)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="it ends in"):
        net.load(path, strict=False)


# --- arrays -----------------------------------------------------------------------------------------------
def test_arrays_by_name() -> None:
    old, net = net_of(), net_of(classes=7, seed=2)
    given = {**old.state_dict(), "more.weights": np.zeros(3)}
    del given["norm.beta"]
    left = net.load_state_dict(given, strict=False)
    assert left.missing_keys == ["norm.beta"] and left.unexpected_keys == ["more.weights"]
    assert left.mismatched_keys == [("head.weights", (3, 5), (7, 5)), ("head.bias", (3, 1), (7, 1))]
    np.testing.assert_array_equal(net.state_dict()["stem.weights"], old.state_dict()["stem.weights"])
    with pytest.raises(DataError, match=r"there is no 'norm\.beta'"):
        net.load_state_dict(given)
    assert old.load_state_dict({**old.state_dict(), "more": np.zeros(1)}) == ([], ["more"], [])
    with pytest.raises(DataError, match="real numbers are needed"):  # a wrong type is a mistake in any case
        net.load_state_dict({"stem.bias": np.array(["a"] * 5)}, strict=False)


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 9))
    net = net_of(norm=False)
    names = {"stem.weights": "0.weight", "stem.bias": "0.bias", "head.weights": "2.weight", "head.bias": "1.bias"}
    left = net.load_state_dict(module.state_dict(), names, strict=False)
    assert left.missing_keys == ["head.bias"] and left.unexpected_keys == ["2.bias"]
    assert left.mismatched_keys == [("head.weights", (9, 5), (3, 5))]
    np.testing.assert_array_equal(net["stem"].get_weights(), module[0].weight.detach().numpy())
