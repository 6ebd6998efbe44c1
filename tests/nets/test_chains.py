"""Layers compiled together: the same results as apart, in every phase; and what stops it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SigmoidLayer,
    SoftmaxLossLayer,
)
from latte.autodiff.differentiated import differentiate
from latte.ensemble import Ensemble
from latte.frontend.lowered import lower_layers
from latte.neuron import Neuron
from latte.planning.chains import chained_order, find_chains
from latte.planning.plan import Untuned, make_plan
from latte.runtime.report import NotTuned
from latte.solver import SGD
from swirl.errors import CommandError, DataError, DeclarationError, RecipeError
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.machine import resolve_target
from tests.lowered import lowered

Layers = dict[str, Ensemble]
BATCH = 5
"""Of most nets here, so that tests share compiled kernels; threads have unequal shares of it."""
MANY = 17
"""Of nets in blocks: more items than a vector has lanes."""

TOLERANCE = 2e-5
"""Of values about 1 after three steps: sums of some hundred terms, taken in another order."""


def following(shape: tuple[int, ...], **layers: Callable[[Net, Ensemble], Ensemble]) -> Callable[[Net], Layers]:
    """Layers by name, each after the one before; then scores of four classes, and a loss."""

    def declare(net: Net) -> Layers:
        found: Layers = {"data": MemoryDataLayer(net, shape), "label": MemoryDataLayer(net, (1,))}
        last = found["data"]
        for name, layer in {**layers, "scores": partial(FullyConnectedLayer, num_outputs=4)}.items():
            last = found[name] = layer(net, last)
        SoftmaxLossLayer(net, last, found["label"])
        return found

    return declare


WINDOW, TAP = {"kernel": 3, "stride": 1, "pad": 1}, {"kernel": 1, "stride": 1, "pad": 0}

# Filters that fill less than half a vector of any width.
conv_bn_relu = following(
    (3, 7, 5), conv=partial(ConvLayer, num_filters=3, **WINDOW), norm=BatchNormLayer, relu=ReLULayer
)
# Filters that fill vectors, and some that do not; a batch norm with nothing after it.
in_blocks = following(
    (3, 7, 5),
    conv=partial(ConvLayer, num_filters=33, **WINDOW),
    norm=BatchNormLayer,
    relu=ReLULayer,
    narrow=partial(ConvLayer, num_filters=17, kernel=(3, 1), stride=1, pad=(1, 0)),
    last_norm=BatchNormLayer,
)
# 1 × 1 convolutions of whole blocks: with a bias, a ReLU, an odd number of blocks; and without.
one_tap = following(
    (3, 7, 5),
    conv=partial(ConvLayer, num_filters=48, **TAP),
    norm=BatchNormLayer,
    relu=ReLULayer,
    other=partial(ConvLayerNoBias, num_filters=32, **TAP),
    last_norm=BatchNormLayer,
)
conv_relu = following(
    (3, 9, 9),
    conv=partial(ConvLayer, num_filters=17, kernel=3, stride=2, pad=1),
    relu=ReLULayer,
    pool=MaxPoolingLayer,
)
norm_relu_of_vectors = following(
    (6,), hidden=partial(FullyConnectedLayer, num_outputs=17), norm=BatchNormLayer, relu=ReLULayer
)


def pair(net: Net) -> Layers:
    """A chain and nothing else, where what is computed does not matter."""
    layers: Layers = {"data": MemoryDataLayer(net, (3, 6, 6))}
    layers["conv"] = ConvLayer(net, layers["data"], num_filters=4)
    layers["relu"] = ReLULayer(net, layers["conv"])
    return layers


def two_readers(net: Net) -> Layers:
    """The batch norm is read by the ReLU and by another layer."""
    layers: Layers = {"data": MemoryDataLayer(net, (3, 5, 5)), "label": MemoryDataLayer(net, (1,))}
    layers["conv"] = ConvLayer(net, layers["data"], num_filters=4, kernel=1, stride=1, pad=0)
    layers["norm"] = BatchNormLayer(net, layers["conv"])
    layers["relu"] = ReLULayer(net, layers["norm"])
    for name in ("norm", "relu"):
        layers[f"scores of {name}"] = FullyConnectedLayer(net, layers[name], 4)
        SoftmaxLossLayer(net, layers[f"scores of {name}"], layers["label"])
    return layers


SIZES = {conv_bn_relu: (BATCH, 1), norm_relu_of_vectors: (BATCH, 1), in_blocks: (MANY, MANY)}
"""Of a net, where it is not ``BATCH`` both times: its batch size, and that of the last batch that it is trained on."""


def trained(
    declare: Callable[[Net], Layers], *, threads: int = 2, keep: str | None = None
) -> tuple[Net, Layers, dict[str, np.ndarray]]:
    """A net, and all that can be read of it after three steps, the last with a smaller batch, and an evaluation."""
    batch, smaller = SIZES.get(declare, (BATCH, BATCH))
    net = Net(batch, seed=1, keep=keep)
    net.force_backward = True
    layers = declare(net)
    net.compile(threads=threads)
    solver = SGD(net, learning_rate=0.05, momentum=0.9)
    generator = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for step, count in enumerate((batch, batch, smaller)):
        images = generator.normal(size=(count, *layers["data"].shape))
        net.set_batch(images, generator.integers(0, 4, count))
        net.clear_grad()
        net.forward()
        net.backward()
        found[f"loss {step}"] = np.array(net.loss)
        for name, layer in layers.items():
            for field, spec in layer.fields().items():
                if spec.role in ("param_grad", "state") or (name == "data" and field == "grad"):
                    found[f"{name}.{field} {step}"] = getattr(layer, f"get_{field}")()
        solver.step()
    net.test()
    found["tested"] = np.array(net.loss)
    return net, layers, found


trained_once = cache(trained)
"""The same, compiled once for all tests."""


def compiled(declare: Callable[[Net], Layers]) -> tuple[Net, Layers]:
    """That net with a batch of data, the same for all tests."""
    net, layers, _ = trained_once(declare)
    generator = np.random.default_rng(0)
    shape = net.batch_size, *layers["data"].shape
    net.set_batch(generator.normal(size=shape), generator.integers(0, 4, net.batch_size))
    return net, layers


@pytest.mark.parametrize(
    "declare",
    [
        conv_bn_relu,
        conv_relu,
        norm_relu_of_vectors,
        two_readers,
        pytest.param(in_blocks, marks=pytest.mark.slow),
        pytest.param(one_tap, marks=pytest.mark.slow),
    ],
    ids=["conv, norm, ReLU", "conv, ReLU", "norm of vectors", "two readers", "in blocks", "one tap"],
)
def test_trained_together_and_apart(declare: Callable[[Net], Layers]) -> None:
    net, _, together = trained_once(declare)
    with lowered():
        _, _, apart = trained(declare, keep="all")
    assert together.keys() == apart.keys()
    for name in together:
        np.testing.assert_allclose(together[name], apart[name], rtol=0, atol=TOLERANCE, err_msg=name)
    if declare in (in_blocks, one_tap):
        assert net.explain("relu1").recipe == (
            "recipes/conv_batch_norm_relu.py (inference, forward), "
            "otherwise recipes/batch_norm_relu.py (backward, update)"
        )
        assert "recipes/conv_batch_norm.py (inference, forward)" in net.explain("batch_norm2").recipe


@pytest.mark.parametrize(
    "declare",
    [
        conv_bn_relu,
        pytest.param(in_blocks, marks=pytest.mark.slow),
        pytest.param(one_tap, marks=pytest.mark.slow),
    ],
    ids=["conv, norm, ReLU", "in blocks", "one tap"],
)
def test_the_same_bits_again_with_any_number_of_threads(declare: Callable[[Net], Layers]) -> None:
    found, alone = trained_once(declare)[2], trained(declare, threads=1)[2]
    assert found.keys() == alone.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], alone[name], err_msg=name)
    net, layers = compiled(declare)
    results = []
    for _ in range(2):
        net.forward()
        net.clear_grad()
        net.backward()
        results.append([layers["relu"].get_value(), layers["conv"].get_grad_weights(), layers["norm"].get_grad_gamma()])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


# --- what is fused away -----------------------------------------------------------------------------------
def test_reading_what_is_fused_away_says_how_to_keep_it() -> None:
    net, layers = compiled(conv_relu)
    net.forward()
    assert layers["relu"].get_value().shape == (BATCH, 17, 5, 5)
    for read in (layers["conv"].get_value, layers["conv"].get_value_view):
        with pytest.raises(DataError) as caught:
            read()
        assert "conv1.value has been fused away into conv1_relu1: it is never stored" in str(caught.value)
        assert 'net.keep(conv1) before compile() keeps it, Net(batch_size, keep="all") keeps all' in str(caught.value)
    assert "conv1.value" not in net.executable.arrays  # and takes no memory
    net.backward()
    assert layers["conv"].get_grad().shape == (BATCH, 17, 5, 5)


def test_what_only_inference_fuses_away_is_never_stale() -> None:
    net, layers = compiled(conv_bn_relu)
    net.forward()
    before = layers["conv"].get_value()
    net.test()
    with pytest.raises(DataError, match="fused away into conv1_batch_norm1_relu1"):
        layers["conv"].get_value()
    net.forward()
    np.testing.assert_array_equal(layers["conv"].get_value(), before)


def test_kept_layers_can_be_read() -> None:
    net = Net(BATCH, seed=1)
    layers = pair(net)
    net.keep(layers["conv"])
    net.compile(threads=1)
    net.set_batch(np.random.default_rng(0).normal(size=(BATCH, 3, 6, 6)))
    net.forward()
    np.testing.assert_array_equal(layers["relu"].get_value(), np.maximum(layers["conv"].get_value(), 0))
    assert "not compiled as conv1_relu1: conv1 is kept (net.keep)" in net.explain("conv1").notes


def test_a_gradient_set_in_between_separates_the_layers() -> None:
    results = []
    for keep in (None, "all"):
        net = Net(BATCH, seed=1, keep=keep)
        layers = conv_bn_relu(net)
        with lowered(keep is not None):
            net.compile(threads=1)
        generator = np.random.default_rng(0)
        net.set_batch(generator.normal(size=(BATCH, 3, 7, 5)), generator.integers(0, 4, BATCH))
        net.forward()
        layers["norm"].set_grad(generator.normal(size=(BATCH, 3, 7, 5)))  # after a forward, which still counts
        net.backward()
        results.append([layers["conv"].get_grad_weights(), layers["norm"].get_grad(), layers["norm"].get_grad_gamma()])
        if keep is None:
            with pytest.raises(DataError, match=r"batch_norm1\.value has been fused away"):
                layers["norm"].get_value()  # until the next forward
            net.forward()
        assert layers["norm"].get_value().any()
    for together, apart in zip(*results, strict=True):
        np.testing.assert_allclose(together, apart, rtol=0, atol=TOLERANCE)


# --- matching ---------------------------------------------------------------------------------------------
def chains(net: Net) -> list[tuple[str, list[str]]]:
    return [(chain.name, sorted(chain.phases)) for chain in find_chains(net.graph).found]


def test_the_longest_chain_is_taken_phase_by_phase() -> None:
    net = Net(2, seed=1)
    conv_bn_relu(net)
    assert chains(net) == [
        ("conv1_batch_norm1_relu1", ["forward", "inference"]),
        ("batch_norm1_relu1", ["backward", "update"]),
    ]


def test_a_recipe_leaves_a_phase_to_shorter_chains() -> None:
    net, _ = compiled(conv_bn_relu)
    why = "forward is not compiled as conv1_batch_norm1_relu1: few filters: lanes run along the pixels"
    assert any(note.startswith(why) for note in net.explain("conv1").notes)
    assert net.explain("relu1").recipe == (
        "recipes/conv_batch_norm_relu.py (inference), otherwise recipes/batch_norm_relu.py (forward, backward, update)"
    )
    net = Net(2)
    BatchNormLayer(net, ConvLayer(net, MemoryDataLayer(net, (3, 7, 5)), num_filters=33, kernel=1, stride=1, pad=0))
    with Memos() as memos, KeptSchedules(memos, resolve_target()) as kept:
        plan = make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, 2)), kept)
    why = "forward is not compiled as conv1_batch_norm1: 1 × 1 with a ragged block of filters"
    assert any(note.startswith(why) for note in plan.notes["conv1"])


def test_leaving_a_phase_schedules_no_earlier_layer_again() -> None:
    net = Net(2, seed=1)
    source: Ensemble = MemoryDataLayer(net, (3, 4, 4))
    for _ in range(4):
        source = ConvLayer(net, source, num_filters=3, kernel=1, stride=1, pad=0)
        source = ReLULayer(net, BatchNormLayer(net, source))
    told: Counter[str] = Counter()
    with Memos() as memos, KeptSchedules(memos, resolve_target()) as kept:
        programs = differentiate(net.graph, lower_layers(net.graph, 2))
        plan = make_plan(net.graph, programs, kept, lambda done, count, name: told.update([name]))
    left = [note for notes in plan.chains.notes.values() for note in notes if "is not compiled as" in note]
    assert len(set(left)) == 8  # conv–batch norm–ReLU, then conv–batch norm, of four blocks
    assert told["conv1_batch_norm1_relu1"] == told["conv4_batch_norm4_relu4"] <= 3
    assert {unit.name for unit in plan.units} <= told.keys()


def test_a_layers_own_recipe_leaves_a_phase_to_the_default_schedule(tmp_path: Path) -> None:
    """As if it had no function for it: what it has done before it leaves is taken back."""
    (tmp_path / "mine.py").write_text(
        "def forward(s, target):\n    s.parallelize('forward', 'n')\n    s.decline('too small')\n\n"
        "def update(s, target):\n    s.unroll('update', 'ky', 3)\n"
    )
    nests = []
    for path in (tmp_path / "mine.py", tmp_path / "other.py"):
        net = Net(2, seed=1)
        conv = pair(net)["conv"]
        net.use_recipe(conv, path)
        if path.name == "other.py":
            path.write_text("def update(s, target):\n    s.unroll('update', 'ky', 3)\n")
            report = net.compile(threads=1)
            assert report.untuned == ()
        else:
            with pytest.warns(NotTuned) as given:
                report = net.compile(threads=1)
            assert [str(warning.message) for warning in given] == [
                f"not tuned: conv1 forward, by {path}: too small; the default schedule takes its place"
            ]
            assert report.untuned == (Untuned("conv1", "forward", str(path), "too small"),)
            assert "forward has the default schedule: too small" in net.explain(conv).notes
            assert "default schedule (forward" in net.explain(conv).recipe
        nests.append([phase.final for phase in net.explain(conv).phases])
    assert nests[0] == nests[1]


def test_a_chain_whose_layers_recipe_leaves_a_phase_is_apart_there(tmp_path: Path) -> None:
    (tmp_path / "conv.py").write_text("def forward(s, target):\n    s.decline('too small')\n")
    net = Net(2, seed=1)
    layers = pair(net)
    conv, relu = layers["conv"], layers["relu"]
    (tmp_path / "both.py").write_text(
        'chain = ("conv", "relu")\n\ndef forward(s, target):\n'
        '    s.fuse_layers("forward")\n    s.recipe("conv", "forward")\n'
    )
    net.use_recipe("conv", tmp_path / "conv.py")
    net.use_recipe("conv_relu", tmp_path / "both.py")
    with pytest.warns(NotTuned, match="conv1 forward"):
        net.compile(threads=1)
    assert "forward is not compiled as conv1_relu1: too small" in net.explain(conv).notes
    assert {unit.name for unit in net.executable.plan.units if "forward" in unit.parts} >= {conv.name, relu.name}


@pytest.mark.parametrize(("phase", "follower"), [("forward", "inference"), ("backward", "update")])
def test_what_follows_a_phase_is_left_with_it(tmp_path: Path, phase: str, follower: str) -> None:
    """Joined without its own function it would have no commands at all."""
    path = tmp_path / "mine.py"
    path.write_text(f'chain = ("conv", "relu")\n\ndef {phase}(s, target):\n    s.decline("too small")\n')
    for joined in (set(), {follower}):
        net = Net(2, seed=1)
        net.force_backward = True
        conv = ConvLayer(net, MemoryDataLayer(net, (1, 4, 4)), num_filters=2, kernel=1, stride=1, pad=0)
        ReLULayer(net, conv)
        net.use_recipe("conv_relu", path)
        net.compile(threads=1)
        kernels = [kernel for kernels in net.executable.order.values() for kernel in kernels]
        alone = {kernel.phase for kernel in kernels if kernel.ensemble is conv}
        assert alone == {"forward", "inference", "backward", "update"} - joined
        assert f"{phase} is not compiled as conv1_relu1: too small" in net.explain(conv).notes
        path.write_text(f"{path.read_text()}\ndef {follower}(s, target):\n    pass\n")


def test_the_last_iteration_of_a_reduction_is_peeled_for_what_follows(tmp_path: Path) -> None:
    """docs/chains.md: PolyDL, Algorithm 3."""
    text = (Path(__file__).parents[2] / "docs" / "chains.md").read_text()
    commands = text.split("PolyDL, Algorithm 3", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    path = tmp_path / "peeled.py"
    path.write_text(f'chain = ("conv", "relu")\n\n{commands}')
    results = []
    for recipe in (True, False):
        net = Net(3, seed=1)
        data = MemoryDataLayer(net, (3, 9, 9))
        relu = ReLULayer(net, ConvLayer(net, data, num_filters=17, kernel=3, stride=2, pad=1))
        if recipe:
            net.use_recipe("conv_relu", path)
        with lowered(not recipe):
            net.compile(threads=1)
        data.set_value(np.random.default_rng(0).normal(size=(3, 3, 9, 9)))
        net.forward()
        results.append(relu.get_value())
        if recipe:
            (phase,) = net.explain("conv1_relu1", "forward").phases
            assert phase.final.count("def ") == 1 and "for c in range(2)" in phase.final
    np.testing.assert_allclose(*results, rtol=0, atol=TOLERANCE)


def test_another_reader_stops_the_match_and_is_told() -> None:
    net, _ = compiled(two_readers)
    assert chains(net) == [("conv1_batch_norm1", ["forward", "inference"])]
    notes = net.explain("batch_norm1").notes
    assert "not compiled as batch_norm1_relu1: fully_connected1 reads batch_norm1 too" in notes
    assert any(note.startswith("not compiled as conv1_batch_norm1_relu1: ") for note in net.explain("conv1").notes)


def test_commands_of_ones_own_stop_a_shipped_chain(tmp_path: Path) -> None:
    net = Net(2, seed=1)
    layers = conv_bn_relu(net)
    layers["conv"].parallelize("forward", "n")
    (tmp_path / "mine.py").write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    net.use_recipe("batch_norm", tmp_path / "mine.py")
    assert chains(net) == []
    notes = find_chains(net.graph).notes
    assert "not compiled as conv1_batch_norm1_relu1: conv1 has commands of its own" in notes["conv1"]
    assert "not compiled as batch_norm1_relu1: batch_norm1 has a recipe of its own" in notes["relu1"]


MINE = """
chain = ("conv", "relu")

def forward(s, target):
    s.fuse_layers("forward")
    s.parallelize("forward", "n")
"""


@pytest.mark.parametrize("how", ["kinds", "layers", "folder"])
def test_a_chain_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path = tmp_path / "conv_relu.py"
    path.write_text(MINE)
    net = Net(2, seed=1)
    layers = pair(net)
    if how == "folder":
        monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    elif how == "kinds":
        net.use_recipe("conv_relu", path)
    else:
        net.use_recipe([layers["conv"], layers["relu"]], path)
    net.compile(threads=1)
    commands = [fact.text for fact in net.explain("relu1", "forward").commands]
    assert commands == ["fuse_layers('forward')", "parallelize('forward', 'n')"]
    assert net.explain("conv1").recipe.split(", otherwise ") == [f"{path} (inference, forward)", "recipes/conv.py"]
    (phase,) = net.explain("conv1", "forward").phases
    assert "conv_value_t" in phase.after_recipe


def test_recipes_are_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer, which is then in no recipe's chain either; of a kind; of a chain alone."""
    net = Net(2, seed=1)
    layers = pair(net)
    net.use_recipe(layers["conv"], None)
    net.compile(threads=1)
    assert net.explain("conv1").recipe.startswith("default schedule")
    assert net.explain("relu1").recipe.startswith("default schedule")
    net = Net(2, seed=1)
    pair(net)
    net.use_recipe("conv_relu", None)
    net.compile(threads=1)
    assert net.explain("conv1").recipe == "recipes/conv.py"
    assert net.explain("relu1").recipe.startswith("default schedule")
    (tmp_path / "conv.py").write_text("def forward(s, target): raise ValueError\n")
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    net = Net(2, seed=1)
    pair(net)
    net.use_recipe("conv", None)
    net.compile(threads=1)
    assert net.explain("conv1").recipe.startswith("default schedule")


def test_the_default_schedule_joins_layers_that_are_to_have_no_recipe(tmp_path: Path) -> None:
    for off, joined in ((["sigmoid1"], True), (["conv1", "sigmoid1"], True), ([], True), (["chain"], False)):
        net = Net(2, seed=1)
        conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=4, kernel=3, pad=1)
        sigmoid = SigmoidLayer(net, conv)
        for name in off:
            net.use_recipe([conv, sigmoid] if name == "chain" else name, None)
        net.compile(threads=1)
        assert any("conv_value" in c.program.text for c in net.executable.compiled) == joined, off
    (tmp_path / "mine.py").write_text(
        'chain = ("conv", "sigmoid")\n'
        'def forward(s, target):\n    s.fuse_layers("forward")\n    s.recipe("conv", "forward")\n'
    )
    net = Net(2, seed=1)
    conv = ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=4, kernel=3, pad=1)
    sigmoid = SigmoidLayer(net, conv)
    net.use_recipe("conv", None)
    net.use_recipe([conv, sigmoid], tmp_path / "mine.py")
    net.compile(threads=1)
    assert {fact.location for fact in net.explain("sigmoid1", "forward").commands[1:]} == {"default schedule"}


def test_a_chain_is_called_after_its_kinds(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    net = Net(2, seed=1)
    conv_bn_relu(net)
    with pytest.raises(CommandError, match="no ensemble or kind named 'conv_relu'"):
        net.use_recipe("conv_relu", path)
    net.use_recipe("batch_norm_relu", path)
    with pytest.raises(RecipeError, match="declares the chain conv, relu, but is used for batch_norm, relu"):
        net.compile()
    net = Net(2, seed=1)
    conv_relu(net)
    net.use_recipe("conv", path)
    with pytest.raises(RecipeError, match=r"not for one layer(.|\n)*net.use_recipe\('conv_relu', path\)"):
        net.compile()


@pytest.mark.parametrize("chain", ['("conv",)', '"conv_relu"', "(1, 2)"])
def test_a_chain_that_is_none(tmp_path: Path, chain: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"chain = {chain}\ndef forward(s, target):\n    pass\n")
    net = Net(2, seed=1)
    conv_relu(net)
    net.use_recipe("conv_relu", path)
    with pytest.raises(RecipeError, match="chain must name at least two kinds"):
        net.compile()


def test_a_recipe_for_layers_that_declares_no_chain(tmp_path: Path) -> None:
    """It was silently skipped."""
    path = tmp_path / "mine.py"
    path.write_text("def forward(s, target):\n    pass\n")
    net = Net(2, seed=1)
    layers = conv_relu(net)
    net.use_recipe([layers["conv"], layers["relu"]], path)
    with pytest.raises(RecipeError, match=r"declares no chain, but is used for conv, relu\n  chain = \('conv"):
        net.compile()
    with pytest.raises(CommandError, match="relu1, conv1 is not a chain of neighbours"):
        Net.use_recipe(net, [layers["relu"], layers["conv"]], path)


def test_what_is_too_large_for_a_local_array_stays_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('chain = ("conv", "max_pooling")\ndef forward(s, target):\n    s.fuse_layers("forward")\n')
    for extent, stays in ((16, False), (258, True)):
        net = Net(1, seed=1)
        conv = ConvLayer(net, MemoryDataLayer(net, (1, extent, extent)), num_filters=2, kernel=1, stride=1, pad=0)
        pool = MaxPoolingLayer(net, conv)
        net.use_recipe([conv, pool], path)
        net.compile(target="portable")
        told = "conv_value stays in memory: 266256 bytes of conv_value are alive at a time"
        assert (told in str(net.explain(pool, "forward"))) == stays


def test_a_recipe_that_asks_for_what_others_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('chain = ("conv", "relu")\ndef forward(s, target):\n    s.contract("forward", "value")\n')
    net = Net(2, seed=1)
    conv_relu(net)
    net.use_recipe("conv_relu", path)
    with pytest.raises(CommandError, match=r"mine\.py:3: contract\('forward', 'value'\): value \(relu1\.value\)"):
        net.compile()


def test_the_recipe_of_a_kind_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('chain = ("conv", "relu")\ndef forward(s, target):\n    s.recipe("konv", "forward")\n')
    net = Net(2, seed=1)
    conv_relu(net)
    net.use_recipe("conv_relu", path)
    with pytest.raises(CommandError, match=r"mine\.py:3: no recipe for 'konv'"):
        net.compile()


def test_members_of_a_chain_run_next_to_each_other() -> None:
    net = Net(2, seed=1)
    layers: Layers = {"data": MemoryDataLayer(net, (3, 5, 5)), "label": MemoryDataLayer(net, (1,))}
    first = ConvLayer(net, layers["data"], num_filters=4, kernel=1, stride=1, pad=0)
    other = ConvLayer(net, layers["data"], num_filters=4, kernel=1, stride=1, pad=0)
    ReLULayer(net, other)
    ReLULayer(net, first)
    names = [ensemble.name for ensemble in chained_order(net.graph, find_chains(net.graph).found)]
    assert names == ["data1", "data2", "conv2", "relu1", "conv1", "relu2"]


@pytest.mark.slow
def test_backward_and_update_of_one_layer_as_one_program(tmp_path: Path) -> None:
    path = tmp_path / "conv.py"
    path.write_text('def backward(s, target):\n    s.fuse_layers("backward", "update")\n')
    results = []
    for recipe in (True, False):
        net = Net(BATCH, seed=1)
        net.force_backward = True
        layers = conv_relu(net)
        if recipe:
            net.use_recipe("conv", path)
        with lowered(not recipe):
            net.compile(threads=1)
        generator = np.random.default_rng(0)
        net.set_batch(generator.normal(size=(BATCH, 3, 9, 9)), generator.integers(0, 4, BATCH))
        net.forward()
        net.backward()
        results.append([layers["conv"].get_grad_weights(), layers["data"].get_grad()])
        phases = [phase.phase for phase in net.explain("conv1").phases]
        assert ("update" in phases) != recipe and "backward" in phases
    for together, apart in zip(*results, strict=True):
        np.testing.assert_allclose(together, apart, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("images", "filters", "window", "force", "layer"),
    [
        (1, 6, 3, False, ConvLayer),
        (19, 6, 3, True, ConvLayer),
        (3, 1, 1, True, ConvLayerNoBias),
    ],
)
def test_backward_with_update_per_image(
    images: int, filters: int, window: int, force: bool, layer: Callable[..., Ensemble]
) -> None:
    path = Path(__file__).parents[2] / "examples" / "recipes" / "conv_relu_per_image.py"
    results = []
    for recipe in (True, False):
        net = Net(images, seed=1)
        net.force_backward = force
        data = MemoryDataLayer(net, (3, 7, 5))
        conv = layer(net, data, num_filters=filters, kernel=window, stride=2, pad=window // 2)
        relu = ReLULayer(net, conv)
        if recipe:
            net.use_recipe([conv, relu], path)
        with lowered(not recipe):
            net.compile(threads=2)
        generator = np.random.default_rng(0)
        for name in ("weights", "bias") if layer is ConvLayer else ("weights",):
            getattr(conv, f"set_{name}")(generator.integers(-3, 4, getattr(conv, f"get_{name}")().shape))
        data.set_value(generator.integers(-3, 4, (images, 3, 7, 5)))
        net.forward()
        relu.set_grad(generator.integers(-3, 4, (images, *relu.shape)))
        net.clear_grad()
        net.backward()
        results.append([conv.get_grad_weights(), conv.get_grad_bias() if layer is ConvLayer else np.zeros(1)])
        if force:
            results[-1].append(data.get_grad())
        if recipe:
            (kernel,) = [step for step in net.executable.compiled if step.phase == "backward"]
            size = f"[{filters}, 4, 3]" if filters > 1 else "[4, 3]"
            assert f"conv_grad_t: float32{size}" in kernel.program.text  # of one image
            assert not any(step.phase == "update" for step in net.executable.compiled)
    for together, apart in zip(*results, strict=True):
        np.testing.assert_array_equal(together, apart)


class Copied(Neuron):
    def forward(self):
        self.value = self.input


def test_no_chain_has_the_name_of_another_layer() -> None:
    net = Net(2)
    data = MemoryDataLayer(net, (3, 5, 5))
    relu = ReLULayer(net, ConvLayer(net, data, num_filters=4, kernel=3, pad=1))
    other = net.add_ensemble(Ensemble(Copied, relu.shape, name="conv1_relu1"))
    net.add_one_to_one_connections(relu, other)
    net.compile(threads=1)
    assert "not compiled as conv1_relu1: another layer has this name" in str(net.explain("conv1"))
    assert net.explain("conv1_relu1").shape == relu.shape
    names = {step.unit.name for step in net.executable.compiled}
    assert names == {"conv1", "conv1_relu1_conv1_relu1", "relu1_conv1_relu1"}


def test_keep_is_checked() -> None:
    with pytest.raises(DeclarationError, match=r"keep must be 'all'(.|\n)*net\.keep\(conv1\)"):
        Net(2, keep="conv1")
    net, layers = compiled(conv_relu)
    with pytest.raises(CommandError, match="keep: the net is compiled already"):
        net.keep(layers["conv"])
    with pytest.raises(DeclarationError, match="is not in this net"):
        Net(2).keep(layers["conv"])


# --- what a chain builds on -------------------------------------------------------------------------------
BLOCKED = """
def forward(s, target):
    for buffer in ("weights", "grad_weights", "value", "grad"):
        s.tile(buffer, 0, 4)
    s.parallelize("forward", "n")

def backward(s, target):
    s.parallelize("backward", "n")

def update(s, target):
    s.parallelize("update", "k_outer")
"""


@pytest.mark.parametrize("filters", [8, 5])
def test_layouts_of_a_layers_recipe_reach_all_of_the_chain(tmp_path: Path, filters: int) -> None:
    """The chain's value, and the gradients of both layers, which separate programs compute."""
    (tmp_path / "conv.py").write_text(BLOCKED)
    found = []
    for keep in (None, "all"):
        net = Net(3, seed=1, keep=keep)
        net.force_backward = True
        data, label = MemoryDataLayer(net, (3, 5, 5)), MemoryDataLayer(net, (1,))
        conv = ConvLayer(net, data, num_filters=filters, kernel=3, stride=1, pad=1)
        relu = ReLULayer(net, conv)
        SoftmaxLossLayer(net, FullyConnectedLayer(net, relu, 4), label)
        net.use_recipe("conv", tmp_path / "conv.py")
        net.use_recipe("conv_relu", Path(__file__).parents[2] / "recipes" / "conv_relu.py")
        net.compile(threads=2)
        buffers = net.executable.buffers
        for name in ("relu1.value", "relu1.grad", "conv1.grad") if keep is None else ("conv1.value", "conv1.grad"):
            assert buffers[name].layout.blocks == ((1, 4),), name
        assert buffers["conv1.weights"].layout.blocks == buffers["conv1.grad_weights"].layout.blocks == ((0, 4),)
        generator = np.random.default_rng(0)
        net.set_batch(generator.normal(size=(3, 3, 5, 5)), generator.integers(0, 4, 3))
        net.forward()
        net.backward()
        found.append([relu.get_value(), relu.get_grad(), conv.get_grad(), conv.get_grad_weights(), data.get_grad()])
    for together, apart in zip(*found, strict=True):
        np.testing.assert_allclose(together, apart, rtol=0, atol=TOLERANCE)


def test_who_has_chosen_a_recipe_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conv_relu.py").write_text(MINE)
    (tmp_path / "conv.py").write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))

    def joined(**recipes: str) -> bool:
        net = Net(2, seed=1)
        conv_relu(net)
        for name, file in recipes.items():
            net.use_recipe(name, tmp_path / f"{file}.py")
        return "conv1_relu1" in dict(chains(net))

    assert joined()
    assert not joined(conv1="conv") and not joined(conv="conv") and not joined(relu1="conv")
    assert joined(conv1="conv", conv_relu="conv_relu")
    (tmp_path / "conv_relu.py").unlink()
    assert not joined()  # the shipped one gives way


def test_a_layers_recipe_on_another_phase_is_explained_as_such() -> None:
    net, _ = compiled(conv_bn_relu)
    inference = [fact.text for fact in net.explain("relu1", "inference").commands]
    assert inference[0] == "fuse_layers('inference')" and "parallelize('inference', 'n')" in inference
    assert not any("'inference'" in fact.text for fact in net.explain("relu1", "forward").commands)


def test_the_update_finds_its_sums_in_backward() -> None:
    """Batch norm's gradients of scale and shift are sums that the gradient of its input needs as well."""
    net, _ = compiled(conv_bn_relu)
    (phase,) = net.explain("batch_norm1", "backward").phases
    assert phase.after_recipe.count("for n in") == 2
    assert re.search(r"grad_beta\[.*\] \+= grad_value_sum", phase.after_recipe)


def test_statistics_in_registers_keep_their_digits() -> None:
    """Each filter is one input channel: its mean and variance are known."""
    net = Net(4, seed=1)
    data = MemoryDataLayer(net, (16, 13, 11))
    conv = ConvLayerNoBias(net, data, num_filters=48, kernel=1, stride=1, pad=0)
    norm = BatchNormLayer(net, conv)
    relu = ReLULayer(net, norm)
    net.compile()
    assert "conv_batch_norm_relu.py (inference, forward)" in net.explain(relu).recipe
    weights = np.zeros_like(conv.get_weights())
    weights[np.arange(48), np.arange(48) % 16] = 1.0
    conv.set_weights(weights)
    for mean in (0.0, 1e4):
        images = np.random.default_rng(0).normal(mean, 1.0, (4, 16, 13, 11)).astype(np.float32)
        data.set_value(images)
        net.forward()
        exact = images.astype(np.float64)[:, np.arange(48) % 16]
        np.testing.assert_allclose(norm.get_mean(), exact.mean((0, 2, 3)), rtol=1e-7, atol=1e-6)
        np.testing.assert_allclose(norm.get_var(), exact.var((0, 2, 3)), rtol=2e-5)
        scaled = (exact - exact.mean((0, 2, 3), keepdims=True)) / np.sqrt(exact.var((0, 2, 3), keepdims=True) + 1e-5)
        np.testing.assert_allclose(relu.get_value(), np.maximum(scaled, 0.0), rtol=0, atol=2e-3 if mean else 1e-5)
