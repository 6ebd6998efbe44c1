"""Recipes that lay buffers out: the same results, and a net's user sees nothing of it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from latte import (
    BatchNormLayer,
    ConvLayerNoBias,
    FullyConnectedLayerNoBias,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    TanhLayer,
)
from latte.ensemble import Ensemble
from latte.runtime.report import NotTuned
from latte.solver import SGD
from swirl.errors import LayoutError
from tests.lowered import lowered

RECIPES = {
    "halo": """
def forward(s, target):
    s.set_padding("inputs", 0, PAD, PAD)
    s.vectorize("forward", "x", target.simd_width, strided="gather")
    s.parallelize("forward", "n")


def backward(s, target):
    _, _, iy, ix = s.subscripts("backward", "grad_inputs")
    s.reindex("backward", iy=iy)
    s.reindex("backward", ix=ix)
    s.set_padding("grad", 0, PAD, PAD)
    s.parallelize("backward", "n")


def update(s, target):
    s.parallelize("update", "k")
""",
    "channels innermost": """
def forward(s, target):
    for buffer in ("inputs", "value", "grad"):
        s.transpose(buffer, order=(1, 2, 0))
    s.transpose("weights", 0, 3)
    s.reorder("forward", ["y", "x", "ky", "kx", "c", "k"])
    s.vectorize("forward", "k", target.simd_width)
    s.parallelize("forward", "n")


def update(s, target):
    s.reorder("update", ["c", "ky", "kx", "n", "y", "x", "k"])
    s.parallelize("update", "c")
""",
    "copies": """
def forward(s, target):
    s.pack("forward", "inputs", order=(1, 2, 0))
    s.set_padding("inputs_packed", 0, 0, PAD, PAD)
    s.pack("forward", "weights", at="k", order=(1, 2, 3, 0))
    s.parallelize("forward", ["n", "k"])


def backward(s, target):
    s.pack("backward", "grad", at="n")


def update(s, target):
    s.privatize("update", "grad_weights", "n")
    s.parallelize("update", "n")
""",
}


def compiled(shape: tuple[int, ...], recipe: Path | None) -> tuple[Net, Ensemble, Ensemble]:
    channels, filters, extent, kernel, stride = shape
    net = Net(3, seed=1, keep="all")
    data = MemoryDataLayer(net, (channels, extent, extent))
    conv = ConvLayerNoBias(net, data, num_filters=filters, kernel=kernel, stride=stride, pad=kernel // 2)
    ReLULayer(net, conv)
    net.force_backward = True
    if recipe is not None:
        net.use_recipe("conv", recipe)
    with lowered(recipe is None):
        net.compile()
    return net, data, conv


def written(tmp_path: Path, name: str, pad: int = 1) -> Path:
    path = tmp_path / "conv.py"
    path.write_text(RECIPES[name].replace("PAD", str(pad)))
    return path


def computed(net: Net, data: Ensemble, conv: Ensemble) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    data.set_value(generator.integers(-4, 5, data.get_value().shape))
    conv.set_weights(generator.integers(-4, 5, conv.get_weights().shape))
    relu = net.ensembles[-1]
    relu.set_grad(generator.integers(-4, 5, relu.get_value().shape))
    for _ in range(2):  # the halo is still zero in the second round
        net.forward()
        net.clear_grad()
        net.backward()
    return {
        "value": conv.get_value(),
        "relu": relu.get_value(),
        "grad": conv.get_grad(),
        "inputs": data.get_value(),
        "grad_inputs": data.get_grad(),
        "grad_weights": conv.get_grad_weights(),
    }


@cache
def plainly(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """What the net computes without a recipe."""
    return computed(*compiled(shape, None))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("shape", [(3, 4, 9, 3, 1), (2, 17, 8, 3, 2), (1, 1, 1, 1, 1), (5, 2, 11, 5, 3)], ids=str)
def test_the_same_results(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    if name == "channels innermost" and shape[0] == 1:
        pytest.skip("one channel has one place")
    net, data, conv = compiled(shape, written(tmp_path, name, shape[3] // 2))
    got = computed(net, data, conv)
    for field, expected in plainly(shape).items():
        np.testing.assert_array_equal(got[field], expected, err_msg=field)
    if name == "halo":
        nests = "".join(str(phase.after_recipe) for phase in net.explain(conv).phases)
        assert (" and " in nests or "if " in nests.replace("else", "")) is (shape[4] > 1 or "accumulate" in nests)


def test_views_show_the_data(tmp_path: Path) -> None:
    net, data, conv = compiled((3, 4, 9, 3, 1), written(tmp_path, "halo"))
    values = np.random.default_rng(1).normal(size=(3, 3, 9, 9)).astype(np.float32)
    view = net.executable.view("data1.value")
    assert view.shape == values.shape
    view[...] = values
    np.testing.assert_array_equal(data.get_value(), values)
    stored = net.executable.arrays["data1.value"]
    assert stored.shape == (3, 3, 11, 11) and (stored != 0).sum() == (values != 0).sum()
    assert "dimension 3 between 1 and 1 zeros" in str(net.explain(conv))


def test_views_in_another_order(tmp_path: Path) -> None:
    net, _, conv = compiled((3, 4, 9, 3, 1), written(tmp_path, "channels innermost"))
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    conv.set_weights(weights)
    np.testing.assert_array_equal(conv.get_weights_view(), weights)
    assert net.executable.arrays["conv1.weights"].shape == (3, 3, 3, 4)
    assert "dimensions in the order 3, 1, 2, 0" in str(net.explain(conv))


def test_a_view_stands_for_blocks(tmp_path: Path) -> None:
    path = tmp_path / "conv.py"
    path.write_text("def forward(s, target):\n    s.tile('weights', 0, 4)\n    s.transpose('weights', 0, 1)\n")
    _, _, conv = compiled((3, 4, 9, 3, 1), path)
    view = conv.get_weights_view()
    np.testing.assert_array_equal(view, conv.get_weights())
    view[1] = 2.0
    np.testing.assert_array_equal(view, conv.get_weights())


def test_training_steps(tmp_path: Path) -> None:
    results = []
    for recipe in (None, written(tmp_path, "channels innermost")):
        net, data, conv = compiled((3, 4, 9, 3, 1), recipe)
        computed(net, data, conv)
        SGD(net, learning_rate=0.5).step()
        results.append(conv.get_weights())
    np.testing.assert_array_equal(*results)


def test_a_layout_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "conv.py"
    path.write_text("def forward(s, target):\n    s.set_padding('inputs', 0, 1, 1, reorder=False)\n")
    net = Net(2, seed=1, keep="all")
    first = ConvLayerNoBias(net, MemoryDataLayer(net, (3, 6, 6)), num_filters=4, kernel=3, stride=1, pad=1)
    second = ConvLayerNoBias(net, first, num_filters=4, kernel=3, stride=1, pad=1)
    net.use_recipe(second, path)
    with pytest.raises(LayoutError) as caught:
        net.compile()
    assert "whose layout conv1 chooses" in str(caught.value)
    assert "set_padding 'value' in conv1's recipe, or leave reorder=False out" in str(caught.value)


def test_a_reader_follows_the_owner(tmp_path: Path) -> None:
    own, reader = tmp_path / "own.py", tmp_path / "reader.py"
    own.write_text("def forward(s, target):\n    s.set_padding('value', 0, 2, 2)\n")
    reader.write_text("def forward(s, target):\n    s.set_padding('inputs', 0, 1, 1)\n")
    results = []
    for recipes in (False, True):
        net = Net(2, seed=1, keep="all")
        data = MemoryDataLayer(net, (3, 6, 6))
        first = ConvLayerNoBias(net, data, num_filters=4, kernel=3, stride=1, pad=1)
        second = ConvLayerNoBias(net, first, num_filters=4, kernel=3, stride=1, pad=1)
        if recipes:
            net.use_recipe(first, own)
            net.use_recipe(second, reader)
        with lowered(not recipes):
            net.compile()
        for ensemble in (first, second):
            shape = ensemble.get_weights().shape
            ensemble.set_weights(np.random.default_rng(2).integers(-3, 4, shape))
        data.set_value(np.random.default_rng(3).integers(-3, 4, (2, 3, 6, 6)))
        net.forward()
        results.append(second.get_value())
    np.testing.assert_array_equal(*results)
    assert "if" not in next(p for p in net.explain(second).phases if p.phase == "forward").after_recipe


def test_not_after_flatten(tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(
        "def forward(s, target):\n    s.flatten('forward', s.loops('forward')[1:])\n    s.tile('value', 0, 2)\n"
    )
    net = Net(2, seed=1, keep="all")
    ReLULayer(net, MemoryDataLayer(net, (3, 6, 6)))
    net.use_recipe("relu", path)
    with pytest.raises(LayoutError, match="is seen flattened in the"):
        net.compile()


@pytest.mark.parametrize("name", ["halo", "copies"])
def test_dumped_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_DUMP", str(tmp_path / "stages"))
    compiled((2, 3, 5, 3, 2), written(tmp_path, name))
    stages = sorted((tmp_path / "stages" / "conv1" / "forward").glob("*.py"))
    outputs = []
    for stage in (*stages[:-2:8], *stages[-2:]):
        run = subprocess.run([sys.executable, str(stage)], capture_output=True, text=True)
        assert not run.stderr, (stage, run.stderr)
        outputs.append(next(line for line in run.stdout.splitlines() if line.startswith("* value")).split("crc")[0])
    assert len(set(outputs)) == 1
    for stage in (stages[-2], stages[-1]):
        command = [sys.executable, str(stage), "--check", "--compile"]
        run = subprocess.run(command, capture_output=True, text=True)
        compared = run.stdout[run.stdout.index("compiled for") :].splitlines()[1:]
        assert compared and all("the same bits" in line for line in compared), (stage, run.stdout, run.stderr)


LAYOUTS = {
    "halo": "s.set_padding('value', 1, 2, (0, 1))",
    "order": "s.transpose('value', order=(1, 2, 0))",
    "value alone": "s.tile('value', 0, 4)",
    "gradient alone": "s.tile('grad', 0, 4)",
    "halo and blocks": "s.set_padding('value', 0, 1, 1)\n    for buffer in ('value', 'grad'):\n"
    "        s.tile(buffer, 0, 4)",
}


@cache
def read(recipe: Path | None) -> list[np.ndarray]:
    """The values of readers of a convolution that has a recipe, and its gradients."""
    net = Net(2, seed=1, keep="all")
    data = MemoryDataLayer(net, (3, 6, 6))
    conv = ConvLayerNoBias(net, data, num_filters=5, kernel=3, stride=1, pad=1)
    readers = [
        ReLULayer(net, conv),
        TanhLayer(net, conv),
        BatchNormLayer(net, conv),
        MaxPoolingLayer(net, conv, kernel=2, stride=2),
        FullyConnectedLayerNoBias(net, conv, num_outputs=3),
        ConvLayerNoBias(net, conv, num_filters=2, kernel=3, stride=2, pad=1),
    ]
    if recipe is not None:
        net.use_recipe(conv, recipe)
    with lowered(recipe is None):
        net.compile()
    data.set_value(np.random.default_rng(3).integers(-3, 4, (2, 3, 6, 6)))
    net.forward()
    for reader in readers:
        reader.set_grad(np.ones(reader.get_value().shape, np.float32))
    net.clear_grad()
    net.backward()
    return [*(reader.get_value() for reader in readers), conv.get_grad(), conv.get_grad_weights()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shipped_recipes_follow(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "conv.py"
    path.write_text(f"def forward(s, target):\n    {LAYOUTS[layout]}\n")
    for got, expected in zip(read(path), read(None), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@cache
def trained(recipe: Path | None) -> list[np.ndarray]:
    """The value and gradients of a chain whose convolution has a recipe."""
    net = Net(3, seed=1)
    net.force_backward = True
    data = MemoryDataLayer(net, (3, 6, 6))
    conv = ConvLayerNoBias(net, data, num_filters=19, kernel=3, stride=1, pad=1)
    norm = BatchNormLayer(net, conv)
    relu = ReLULayer(net, norm)
    if recipe is not None:
        net.use_recipe(conv, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotTuned)
        with lowered(recipe is None):
            net.compile()
    data.set_value(np.random.default_rng(3).standard_normal((3, 3, 6, 6)))
    net.forward()
    relu.set_grad(np.random.default_rng(4).standard_normal((3, 19, 6, 6)))
    net.backward()
    return [relu.get_value(), norm.get_grad_gamma(), conv.get_grad_weights(), data.get_grad()]


@pytest.mark.parametrize("tiled", ["'value'", "'grad'", "'value', 'grad'"])
def test_chains_follow_what_a_source_has_laid_out(tiled: str, tmp_path: Path) -> None:
    """Where a chain leaves backward apart, its update meets the layer's own gradient."""
    path = tmp_path / "conv.py"
    path.write_text(
        f"def forward(s, target):\n    for buffer in ({tiled},):\n        s.tile(buffer, 0, target.simd_width)\n"
    )
    for got, expected in zip(trained(path), trained(None), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
