"""Calls on a compiled net that ask for something that does not exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, Neuron, Param, ReLULayer
from latte.ensemble import Ensemble
from latte.errors import CommandError, DataError, LatteError, TrainingError, UnknownName
from latte.solver import SGD


def compiled() -> tuple[Net, Ensemble, Ensemble]:
    """data (4) → relu."""
    net = Net(2, seed=1)
    data = MemoryDataLayer(net, (4,))
    relu = ReLULayer(net, data)
    net.compile(threads=1)
    return net, data, relu


def test_training_without_a_loss_or_parameters() -> None:
    net, _, _ = compiled()
    with pytest.raises(TrainingError, match=r"no loss(.|\n)*SoftmaxLossLayer"):
        net.backward()
    with pytest.raises(TrainingError, match="no parameters"):
        SGD(net)
    assert net.loss == 0.0 and net.accuracy == 0.0


def test_fit_without_a_loss() -> None:
    net = Net(2, seed=1)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 2)
    MemoryDataLayer(net, (1,))
    net.compile(threads=1)
    weights = scores.get_weights()
    with pytest.raises(TrainingError, match=r"no loss(.|\n)*SoftmaxLossLayer"):
        net.fit(np.zeros((2, 4)), [0, 1], solver=SGD(net, 0.1), progress=False)
    np.testing.assert_array_equal(scores.get_weights(), weights)


def test_getters_of_what_is_not_there() -> None:
    _, data, relu = compiled()
    with pytest.raises(DataError, match="force_backward"):
        data.get_grad()
    with pytest.raises(UnknownName, match=r"no field 'weights'(.|\n)*value"):
        relu.get_weights()
    with pytest.raises(UnknownName, match="no field 'seed'"):
        relu.get_seed()
    with pytest.raises(DataError, match=r"data1.set_value: the shape is \(4,\), but \(2, 4\) is needed"):
        data.set_value(np.zeros(4))


def test_a_gradient_that_no_setting_would_bring() -> None:
    """The way out is shown only if it works."""
    _, _, relu = compiled()
    with pytest.raises(DataError) as caught:
        relu.get_grad()
    assert caught.value.way_out is None


def test_what_looks_into_a_net() -> None:
    net, _, _ = compiled()
    with pytest.raises(CommandError, match=r"no ensemble named 'relu'\n  did you mean 'relu1'"):
        net.explain("relu")
    for nothing in (None, 3, MemoryDataLayer(Net(1), 4)):
        with pytest.raises(CommandError, match=r"no ensemble named|is not in this net"):
            net.explain(nothing)  # type: ignore[arg-type]
    with pytest.raises(CommandError, match=r"no phase named 'foreward'\n  did you mean 'forward'"):
        net.timings("foreward")
    with pytest.raises(CommandError, match=r"at least 1, not 1.5"):
        net.timings(repeat=1.5)  # type: ignore[arg-type]


def test_what_is_asked_about_a_phase_that_is_none() -> None:
    net, _, _ = compiled()
    with pytest.raises(CommandError, match=r"relu1 has no phase \[\]\n  it has"):
        net.explain("relu1", [])  # type: ignore[arg-type]
    other = Net(2)
    scores = FullyConnectedLayer(other, MemoryDataLayer(other, (4,)), 2)
    with pytest.raises(CommandError, match=r"no phase named \['forward'\]"):
        scores.tile_loop(["forward"], "n", 4)
    for entries in (3, [3], "value"):
        with pytest.raises(CommandError, match="is neither a dictionary of buffers nor a list of such"):
            scores.prefetch("forward", prefetch_dict_list=entries)


def test_recipes_for_what_is_no_layer(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('chain = ("fully_connected", "relu")\ndef forward(s, target): s.fuse_layers("forward")\n')
    net = Net(2)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 2)
    relu = ReLULayer(net, scores)
    for nothing in (None, 3, [], [None], {"conv": 1}):
        with pytest.raises(CommandError, match="use_recipe is for a layer, a kind or a list of layers, not for"):
            net.use_recipe(nothing, path)  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="the path of a recipe is a string or a Path, not 3"):
        net.use_recipe(relu, 3)  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="relu1, fully_connected1 is not a chain of neighbours"):
        net.use_recipe(["relu1", scores], path)
    net.use_recipe(["fully_connected1", relu], path)
    net.compile()
    assert "applied  fuse_layers('forward')" in str(net.explain("fully_connected1_relu1"))


def test_numbers_of_numpy_are_numbers() -> None:
    net = Net(np.int64(2), seed=np.int32(3))  # type: ignore[arg-type]
    filters, kernel = np.array([3, 3])
    conv = ConvLayer(net, MemoryDataLayer(net, (1, 5, 5)), num_filters=filters, kernel=(kernel, kernel))
    assert conv.shape == (3, 5, 5)
    assert FullyConnectedLayer(net, conv, np.int64(4)).shape == (4,)


@pytest.mark.parametrize("late", [False, True])
def test_a_field_is_no_attribute(late: bool) -> None:
    net = Net(2, seed=1)
    scores = FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 2)
    if late:
        net.compile(threads=1)
    with pytest.raises(CommandError, match=r"test_bad_calls\.py:\d+: weights of(.|\n)*set_weights\(array\)"):
        scores.weights = np.zeros((2, 4))
    with pytest.raises(CommandError, match=r"test_bad_calls\.py:\d+: .* has no attribute 'note'"):
        scores.note = "which nothing reads"


def test_errors_of_compiling_have_the_callers_line() -> None:
    class Scale(Neuron):
        gain = Param("k")

        def forward(self) -> None:
            self.value = self.gain * self.inputs

    def declare(net: Net) -> None:
        ensemble = net.add_ensemble(Ensemble(Scale, (4,), ("c",)))
        net.add_one_to_one_connections(MemoryDataLayer(net, (4,)), ensemble)
        net.compile()

    net = Net(2)
    MemoryDataLayer(net, (4,))
    for call, message in (
        (lambda: Net(2).compile(), "the net has no layers"),
        (lambda: net.compile(target="gpu"), "there is no target 'gpu'"),
        (lambda: declare(Net(2)), "names the dimension 'k'"),
    ):
        with pytest.raises(LatteError, match=message) as caught:
            call()
        assert __file__ in str(caught.value.location)


def test_states_that_do_not_fit() -> None:
    net = Net(2, seed=1)
    FullyConnectedLayer(net, MemoryDataLayer(net, (4,)), 2, name="s")
    net.compile(threads=1)
    for arguments, message in (
        ((5,), "arrays are given by name, as state_dict"),
        ((net.state_dict(), 5), "names are a dictionary"),
        (
            ({"s.weight": np.zeros((2, 4)), "s.bias": np.zeros(2)},),
            "no 's.weights', for s.weights\n  did you mean s.weights by s.weight[?] all names of the net are needed",
        ),
        (({"s.weights": np.zeros((2, 4))},), "no 's.bias', for s.bias\n  all names of the net are needed"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            net.load_state_dict(*arguments)
        assert __file__ in str(caught.value.location)
