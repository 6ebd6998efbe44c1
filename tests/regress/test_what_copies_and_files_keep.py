"""Gradients that copies lost, weights of losses that files lost, and data, states and metrics that were not refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MeanSquaredErrorLayer, MemoryDataLayer, Net
from latte.data import DataLoader
from latte.errors import LatteError
from latte.runtime.checkpoint import Checkpoint, read_file, write_file
from latte.solver import SGD

X = np.arange(24.0).reshape(8, 3) / 10
Y = np.arange(16.0).reshape(8, 2) / 10


def compiled() -> Net:
    net = Net(4, seed=1)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (3,)), 2, name="fc")
    MeanSquaredErrorLayer(net, scores, MemoryDataLayer(net, (2,)), name="loss")
    net.compile(target="portable", threads=1)
    return net


def step(net: Net, items: slice) -> None:
    net.set_batch(X[items], Y[items])
    net.forward()
    net.backward()


@pytest.mark.parametrize("smaller", [4, 3])
def test_a_copy_in_the_middle_of_accumulating(smaller: int) -> None:
    net = compiled()
    step(net, slice(0, smaller))
    other = copy.deepcopy(net)
    np.testing.assert_array_equal(other["fc"].get_grad_weights(), net["fc"].get_grad_weights())
    assert other["fc"].get_grad_weights().any()
    for each in (net, other):
        step(each, slice(4, 8))
        SGD(each, 0.1).step(batches=2)
    np.testing.assert_array_equal(other["fc"].get_weights(), net["fc"].get_weights())


def test_a_copy_may_step_at_once() -> None:
    net = compiled()
    step(net, slice(0, 4))
    other = copy.deepcopy(net)
    for each in (net, other):
        SGD(each, 0.1).step()
    np.testing.assert_array_equal(other["fc"].get_weights(), net["fc"].get_weights())


def test_weights_of_losses_are_saved(tmp_path: Path) -> None:
    net, other = compiled(), compiled()
    net["loss"].loss_weight = 0.25
    net.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    assert other["loss"].loss_weight == 0.25
    losses = [each.fit(X, Y, solver=SGD(each, 0.1), progress=False).losses for each in (net, other)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("changed", "told"), [({"batch_size": 3}, "batches of 4 items.* has 3"), ({}, "8 items.* has 7")]
)
def test_the_state_of_another_loader(changed: dict[str, int], told: str) -> None:
    loader = DataLoader(X, Y, batch_size=4)
    next(iter(loader))
    items = 8 if changed else 7
    other = DataLoader(X[:items], Y[:items], **{"batch_size": 4, **changed})
    with pytest.raises(LatteError, match=told):
        other.load_state(loader.state())


def test_files_from_before_weights_of_losses_were_saved(tmp_path: Path) -> None:
    net = compiled()
    net.save(tmp_path / "saved")
    content = read_file(tmp_path / "saved")
    about = {name: value for name, value in content.about.items() if name != "loss_weights"}
    write_file(tmp_path / "saved", Checkpoint(content.tensors, about))
    net["loss"].loss_weight = 0.25
    net.load(tmp_path / "saved")
    assert net["loss"].loss_weight == 0.25


def test_a_metric_with_the_name_of_a_loss() -> None:
    with pytest.raises(LatteError, match=r"a metric cannot be called 'loss'"):
        compiled().evaluate(X, Y, metrics={"loss": lambda scores, labels: 1.0})


@pytest.mark.parametrize("data", [[(X[0], Y[0])], iter([1]), {"x": X}])
def test_what_belongs_in_a_loader(data: Any) -> None:
    net = compiled()
    with pytest.raises(LatteError, match=r"(?s)2 arrays are needed.*DataLoader"):
        net.fit(data, solver=SGD(net, 0.1), progress=False)


def test_tensors_of_types_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    net = compiled()
    short = [torch.tensor(each, dtype=torch.bfloat16) for each in (X, Y)]
    long = [each.float().numpy() for each in short]
    assert net.evaluate(*short).loss == net.evaluate(*long).loss
    net["fc"].set_weights(torch.ones((2, 3), dtype=torch.bfloat16))
    assert (net["fc"].get_weights() == 1).all()
    ((first, _),) = DataLoader(list(zip(*short, strict=True)), batch_size=8, shuffle=False)
    np.testing.assert_array_equal(first, long[0])
    ((first, _),) = DataLoader(*short, batch_size=8, shuffle=False)
    np.testing.assert_array_equal(first, long[0])
    with pytest.raises(LatteError, match="a loader needs arrays"):
        DataLoader(short[0], short[1].float().to_sparse(), batch_size=8)
    with pytest.raises(LatteError, match="set_weights"):
        net["fc"].set_weights(torch.ones((2, 3)).to_sparse())
