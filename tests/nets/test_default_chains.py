"""Neighbours without a recipe that are compiled together by default: the same results, and what stops it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    TanhLayer,
)
from latte.autodiff.differentiated import differentiate
from latte.ensemble import ActivationEnsemble, Ensemble
from latte.frontend.lowered import lower_layers
from latte.layers import (
    AddLayer,
    ELULayer,
    GELULayer,
    GlobalMeanPoolingLayer,
    LayerNormLayer,
    LeakyReLULayer,
    PReLULayer,
    SigmoidLayer,
    SiLULayer,
    SoftmaxLayer,
    TransposedConvLayer,
)
from latte.neuron import Neuron, tanh
from latte.planning import recipes
from latte.planning.chains import find_chains, neighbours
from latte.planning.plan import Plan, make_plan
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.machine import resolve_target
from swirl.target.targets import Target
from tests.lowered import lowered

Layer = Callable[[Net, Ensemble], Ensemble]


class AddNeuron(Neuron):
    def forward(self) -> None:
        self.value = self.input + 0.5 * self.inputs1[0, 0, 0]


def declared(*layers: Layer, shape: tuple[int, ...] = (18, 7, 9), batch: int = 3) -> tuple[Net, list[Ensemble]]:
    """A net of data and layers, each after the one before."""
    net = Net(batch, seed=1)
    net.force_backward = True
    found = [MemoryDataLayer(net, shape)]
    for layer in layers:
        found.append(layer(net, found[-1]))
    return net, found


def compiled_as(net: Net) -> set[str]:
    """``"conv1_gelu1.forward"``, …"""
    net.compile()
    return {f"{item.program.name}" for item in net.executable.compiled if item.phase != "inference"}


def planned(net: Net, target: Target | None = None) -> tuple[Plan, set[str]]:
    """How a net would be compiled, and as what."""
    with Memos() as memos, KeptSchedules(memos, target or resolve_target()) as kept:
        programs = differentiate(net.graph, lower_layers(net.graph, net.batch_size))
        plan = make_plan(net.graph, programs, kept)
    return plan, {f"{unit.name}.{phase}" for unit in plan.units for phase in unit.parts if phase != "inference"}


def results(net: Net, layers: list[Ensemble]) -> list[np.ndarray]:
    """Value, gradients, value in inference."""
    generator = np.random.default_rng(0)
    data, last = layers[0], layers[-1]
    data.set_value(generator.standard_normal((net.batch_size, *data.shape)))
    last.set_grad(generator.standard_normal((net.batch_size, *last.shape)))
    found = []
    net.forward()
    net.backward()
    found += [last.get_value(), data.get_grad()]
    for layer in layers:
        roles = {field: spec.role for field, spec in layer.fields().items()}
        found += [getattr(layer, f"get_grad_{field}")() for field, role in roles.items() if role == "param"]
    net.test()
    return [*found, last.get_value()]


conv, connected = partial(ConvLayer, num_filters=20), partial(FullyConnectedLayer, num_outputs=19)


@pytest.mark.parametrize(
    ("layers", "joined"),
    [
        ((SigmoidLayer, GELULayer), {"sigmoid1_gelu1.forward", "sigmoid1_gelu1.backward"}),
        ((conv, GELULayer, DropoutLayer), {"conv1_gelu1_dropout1.forward", "gelu1_dropout1.backward"}),
        ((connected, SiLULayer), {"fully_connected1_silu1.forward", "silu1.backward"}),
        ((MaxPoolingLayer, PReLULayer, ReLULayer), {"max_pooling1_prelu1_relu1.forward", "prelu1_relu1.backward"}),
        ((partial(MaxPoolingLayer, ceil_mode=True), ELULayer), {"max_pooling1.forward", "elu1.forward"}),
        ((BatchNormLayer, SiLULayer), set()),
        ((LayerNormLayer, GELULayer), {"layer_norm1_gelu1.forward", "gelu1.backward"}),
        ((LayerNormLayer, ReLULayer), {"layer_norm1_relu1.forward", "layer_norm1_relu1.backward"}),
        ((BatchNormLayer, LeakyReLULayer), {"batch_norm1_leaky_relu1.forward", "batch_norm1_leaky_relu1.backward"}),
        ((BatchNormLayer, PReLULayer), {"batch_norm1_prelu1.forward", "batch_norm1_prelu1.backward"}),
        (
            (BatchNormLayer, LeakyReLULayer, LeakyReLULayer),
            {"batch_norm1_leaky_relu1_leaky_relu2.forward", "batch_norm1_leaky_relu1_leaky_relu2.backward"},
        ),
        ((PReLULayer, SoftmaxLayer), {"prelu1.forward", "softmax1.forward"}),
        ((partial(ConvLayer, num_filters=1), LeakyReLULayer), {"conv1_leaky_relu1.forward"}),
        ((conv, LeakyReLULayer), {"conv1_leaky_relu1.forward", "conv1.backward", "leaky_relu1.backward"}),
        ((GELULayer, SoftmaxLayer), {"gelu1.forward", "gelu1_softmax1.backward"}),
    ],
    ids=lambda value: "-".join(getattr(v, "func", v).__name__ for v in value) if isinstance(value, tuple) else "",
)
def test_together_and_apart(layers: tuple[Layer, ...], joined: set[str]) -> None:
    """The same to a few units in the last place of sums that are taken in another order."""
    net, together = declared(*layers)
    assert joined <= compiled_as(net)
    kept, members = declared(*layers)
    kept.keep(*members)
    assert not find_chains(kept.graph).found
    with lowered():
        other_net, apart = declared(*layers)
        other_net.compile()
        expected = results(other_net, apart)
    for one, other in zip(results(net, together), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * float(np.abs(other).max()))


def test_layers_whose_recipes_are_taken_away() -> None:
    """The chain of their kinds has a recipe, too, which is not for them then."""
    net, together = declared(BatchNormLayer, ReLULayer)
    for layer in together[1:]:
        net.use_recipe(layer, None)
    plan, names = planned(net)
    assert {"batch_norm1_relu1.forward", "batch_norm1_relu1.backward"} <= names, names
    assert "the recipe of batch_norm1_relu1 is not used: batch_norm1 is to have no recipe" in plan.notes["relu1"]
    with lowered():
        other_net, apart = declared(BatchNormLayer, ReLULayer)
        other_net.compile()
        expected = results(other_net, apart)
    net.compile()
    for one, other in zip(results(net, together), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * float(np.abs(other).max()))


@pytest.mark.parametrize("first", [BatchNormLayer, conv])
def test_a_first_layer_that_sends_no_gradient_on(first: Layer) -> None:
    net, layers = declared(first, LeakyReLULayer)
    net.force_backward = False
    plan, names = planned(net)
    assert "leaky_relu1.backward" in names
    told = f"backward is not compiled as {layers[1].name}_leaky_relu1: the first layer has no gradient to compute"
    assert told in plan.notes[layers[1].name], plan.notes


@pytest.mark.parametrize("shape", [(18, 7, 9), (150, 28, 28)], ids=str)  # 150 square roots, of channels, one by one
@pytest.mark.parametrize("recipe", [True, False])
def test_a_gradient_is_computed_again_in_each_pass_of_a_norm(recipe: bool, shape: tuple[int, ...]) -> None:
    """It is neither stored nor read, whether the norm has a recipe or not."""
    net, layers = declared(BatchNormLayer, LeakyReLULayer, shape=shape)
    if not recipe:
        net.use_recipe(layers[1], None)
    net.compile()
    told = net.explain("batch_norm1_leaky_relu1", phase="backward")
    assert any(outcome.text.startswith("inline('backward', 'batch_norm_grad'") for outcome in told.commands)
    assert "leaky_relu1.grad" in str(told) and "batch_norm1.grad," not in str(told)


@pytest.mark.parametrize(
    ("layer", "outputs", "batch", "why"),
    [
        (TanhLayer, 80, 2, None),  # where sums have loops of their own in the chain, too
        (ReLULayer, 80, 2, None),
        (ReLULayer, 600, 64, "sums have loops of their own"),
    ],
)
def test_products_keep_their_schedule(layer: Layer, outputs: int, batch: int, why: str | None) -> None:
    """Lanes of a fully connected layer run along its terms: what follows a sum is not in lanes. Where the sums have
    loops of their own, joined ones would lack the source packed for the lanes."""
    connect = partial(FullyConnectedLayer, num_outputs=outputs)
    net, (_, connected, last) = declared(connect, layer, shape=(1100,), batch=batch)
    name = f"{connected.name}_{last.name}"
    plan, names = planned(net)
    assert (f"{name}.forward" in names) == (why is None)
    notes = plan.notes.get(last.name, ())
    assert (f"forward is not compiled as {name}: {why}" in notes) == (why is not None), notes


class Recurrence(Ensemble):
    """Functions of a recurrence have no lanes, whether it is joined or not."""

    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            run = 0.0
            for c in range(C):
                run = tanh(run + inputs[n, c])
                value[n, c] = run


def recurrent(net: Net, source: Ensemble) -> Ensemble:
    made = net.add_ensemble(Recurrence(shape=source.shape, dims=("c",)))
    net.add_one_to_one_connections(source, made)
    return made


def test_layers_are_left_apart_where_they_have_lanes_by_themselves() -> None:
    """After sums that lanes run along, not from each other; and only if it helps."""
    net, (_, _, activation, *_) = declared(GlobalMeanPoolingLayer, TanhLayer, SigmoidLayer, shape=(80, 8, 8), batch=2)
    plan, names = planned(net)
    assert {"mean_pooling1.forward", "tanh1_sigmoid1.forward"} <= names
    why = "forward is not compiled as mean_pooling1_tanh1: functions would be called one by one, not in lanes"
    assert why in plan.notes[activation.name]
    net, _ = declared(recurrent, ReLULayer, shape=(500,))
    assert "recurrence1_relu1.forward" in planned(net)[1]


def test_a_chain_follows_the_blocks_of_its_source() -> None:
    """In all phases, those that are not joined as well: the gradients of weights are laid out as the weights are."""
    net, (_, conv, pooling, relu, connected, last) = declared(
        partial(ConvLayer, num_filters=32, kernel=3, pad=1),
        partial(MaxPoolingLayer, kernel=2, stride=2),
        ReLULayer,
        partial(FullyConnectedLayer, num_outputs=19),
        ReLULayer,
    )
    plan, names = planned(net)
    assert {"max_pooling1_relu1.forward", "fully_connected1.update"} <= names
    layouts = {storage: layout.blocks for storage, layout in plan.layouts.items()}
    blocks = layouts[f"{conv.name}.value"]
    assert blocks and all(layouts[f"{relu.name}.{kind}"] == blocks for kind in ("value", "grad"))
    assert layouts[f"{pooling.name}.mask_j"] == blocks
    assert layouts[f"{connected.name}.weights"] and last.name == "relu2"
    assert layouts[f"{connected.name}.weights"] == layouts[f"{connected.name}.grad_weights"]


def test_what_shares_a_loop_need_not_run_alike() -> None:
    """As many channels as filters: the update has one loop for the channels of the weights and the filters of the bias;
    blocks of filters are for the latter alone. Without blocks the update took ten times as long."""
    net, (_, transposed) = declared(partial(TransposedConvLayer, num_filters=32, kernel=2, stride=2), shape=(32, 7, 7))
    plan, _ = planned(net)
    blocks = {name: plan.layouts[f"{transposed.name}.{name}"].blocks for name in ("value", "weights")}
    lanes = plan.target.simd_width
    assert blocks == {"value": ((1, lanes),), "weights": ((1, lanes),)}


def test_what_is_read_where_it_is_made_is_not_stored() -> None:
    net, (_, sigmoid, *_) = declared(SigmoidLayer, GELULayer)
    net.compile()
    (backward,) = (item.program for item in net.executable.compiled if item.phase == "backward")
    assert len(backward.nests) == 1
    assert f"{sigmoid.name}.grad" not in {buffer.name for buffer in backward.buffers.values()}
    assert "each layer reads an element where the one before it makes it" in str(net.explain("sigmoid1_gelu1"))


def test_the_recipe_of_the_first_layer_schedules_what_follows_it() -> None:
    net, _ = declared(conv, GELULayer)
    net.compile()
    commands = [outcome.text for outcome in net.explain("conv1_gelu1").commands]
    assert commands[0] == "fuse_layers('forward')"
    assert any(text.startswith("unroll_and_jam('forward', 'x'") for text in commands)


def test_a_pair_that_does_not_meet_is_told_once() -> None:
    net, (_, _, softmax, silu) = declared(GELULayer, SoftmaxLayer, SiLULayer)
    notes = planned(net)[0].notes
    assert [note for note in notes[softmax.name] if "forward" in note] == [
        "forward is not compiled as gelu1_softmax1: an element is not read in the iteration that makes it",
        "forward is not compiled as softmax1_silu1: an element is not read in the iteration that makes it",
    ]
    assert not [note for note in notes[silu.name] if "gelu1" in note]


def test_another_reader_a_kept_value_and_a_gradient_that_is_set() -> None:
    for stop in ("reader", "kept", "set"):
        net, (_, sigmoid, gelu) = declared(SigmoidLayer, GELULayer)
        if stop == "reader":
            GELULayer(net, sigmoid)
        if stop == "kept":
            net.keep(sigmoid)
        net.compile()
        if stop == "set":
            sigmoid.set_grad(np.ones((3, *sigmoid.shape)))
            gelu.set_grad(np.ones((3, *sigmoid.shape)))
            net.forward()
            net.backward()
        assert "sigmoid1.forward" in {item.program.name for item in net.executable.compiled}, stop


def test_a_layer_that_has_a_recipe_or_commands_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / "gelu.py").write_text("def forward(s, target): ...\n")
    net, (_, _, gelu) = declared(SigmoidLayer, GELULayer)
    net.use_recipe(gelu, tmp_path / "gelu.py")
    assert "gelu1.forward" in planned(net)[1]
    net, (_, _, gelu) = declared(SigmoidLayer, GELULayer)
    gelu.parallelize("forward", "n")
    assert "gelu1.forward" in planned(net)[1]


def test_a_recipe_for_the_chain_takes_precedence(tmp_path: Path) -> None:
    """Also for the phases that it does not name."""
    path = tmp_path / "sigmoid_gelu.py"
    path.write_text('chain = ("sigmoid", "gelu")\ndef forward(s, target):\n    s.fuse_layers("forward")\n')
    net, (_, *both) = declared(SigmoidLayer, GELULayer)
    net.use_recipe(both, path)
    assert {"sigmoid1_gelu1.forward", "sigmoid1.backward", "gelu1.backward"} <= compiled_as(net)
    assert [outcome.text for outcome in net.explain("sigmoid1_gelu1").commands] == ["fuse_layers('forward')"]


def test_a_shipped_recipe_that_does_not_fit_the_joined_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = "def forward(s, target):\n    if len(s.buffers('forward')) > 2: s.tile_loop('forward', 'mine', 4)\n"
    (tmp_path / "sigmoid.py").write_text(recipe)
    monkeypatch.setattr(recipes, "_shipped", lambda: tmp_path)
    net, (_, sigmoid, _) = declared(SigmoidLayer, GELULayer)
    plan, names = planned(net)
    assert "sigmoid1.forward" in names
    backward, told = plan.notes[sigmoid.name]
    assert told.startswith("forward is not compiled as sigmoid1_gelu1: the recipe of sigmoid is for that layer alone: ")
    assert "no loop named 'mine'" in told
    assert backward.startswith(
        "backward is not compiled as sigmoid1_gelu1: the recipe of sigmoid is for that layer alone"
    )
    assert backward.endswith("has no function backward")


def test_a_recipe_that_would_leave_the_update_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batch_norm.py").write_text("def backward(s, target):\n    pass\n")
    monkeypatch.setattr(recipes, "_shipped", lambda: tmp_path)
    net, (_, norm, _) = declared(BatchNormLayer, LeakyReLULayer)
    plan, names = planned(net)
    assert {"batch_norm1.backward", "leaky_relu1.backward"} <= names, names
    told = "the recipe of batch_norm leaves loops of the update as they are"
    assert f"backward is not compiled as batch_norm1_leaky_relu1: {told}" in plan.notes[norm.name], plan.notes


def test_a_second_source() -> None:
    """``x → sigmoid → (+ 0.5 elu(x))``: the sum joins the sigmoid, and sends its other gradient on."""
    found = []
    for keep in (False, True):
        net = Net(3, seed=1, **({"keep": "all"} if keep else {}))
        net.force_backward = True
        data = MemoryDataLayer(net, (18, 7, 9))
        other, sigmoid = ELULayer(net, data), SigmoidLayer(net, data)
        total = ActivationEnsemble(AddNeuron(), sigmoid.shape)
        net.add_ensemble(total)
        net.add_one_to_one_connections(sigmoid, total)
        net.add_connections(other, total, lambda c, y, x: (range(c, c + 1), range(y, y + 1), range(x, x + 1)))
        names = compiled_as(net)
        assert ("sigmoid1_add1.backward" in names) != keep, names
        found.append(results(net, [data, total]))
    for one, apart in zip(*found, strict=True):
        np.testing.assert_array_equal(one, apart)


def test_densely_connected_layers_have_few_paths() -> None:
    """Each layer reads all before it: the number of paths grows with the connections."""
    net = Net(2)
    data = MemoryDataLayer(net, (2, 5, 5))
    found = [ConvLayer(net, data, num_filters=2) for _ in range(2)]
    for _ in range(12):
        found.append(SigmoidLayer(net, AddLayer(net, found)))
    assert len(neighbours(net.graph)) <= 3 * len(net.connections)
