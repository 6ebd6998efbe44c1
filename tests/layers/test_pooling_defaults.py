"""The sizes of pooling are PyTorch's by default, the original's in a net with ``compat``; what differs is told once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from latte import GlobalMeanPoolingLayer, MaxPoolingLayer, MeanPoolingLayer, MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.model.sizes import SizesAsInPyTorch

SHAPES = ((1, 112, 112), (2, 7, 5), (1, 8, 9), (1, 1, 6), (3, 5, 5), (1, 17, 16))
WINDOWS = ((3, 2, 1), (2, 2, 0), (3, 2, 0), (3, 1, 1), ((1, 3), (1, 2), (0, 1)), (2, 3, 1), (4, 3, 2))
LAYERS: dict[str, tuple[Callable[..., Ensemble], str]] = {
    "max": (MaxPoolingLayer, "max_pool2d"),
    "mean": (MeanPoolingLayer, "avg_pool2d"),
}


@pytest.mark.filterwarnings("ignore::latte.model.sizes.SizesAsInPyTorch")
@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("layer", LAYERS)
def test_sizes_and_values_are_pytorchs(layer: str) -> None:
    torch = pytest.importorskip("torch")
    make, theirs = LAYERS[layer]
    net = Net(2, seed=1)
    made, expected, given = [], [], []
    for number, shape in enumerate(SHAPES):
        x = np.random.default_rng(number).standard_normal((2, *shape)).astype(np.float32)
        data = MemoryDataLayer(net, shape)
        given.append(x)
        for kernel, stride, pad in WINDOWS:
            arguments = (kernel, stride, pad)
            try:
                value = getattr(torch.nn.functional, theirs)(torch.tensor(x), *arguments)
            except RuntimeError:
                with pytest.raises(DeclarationError):
                    make(net, data, *arguments)
                continue
            made.append(make(net, data, *arguments))
            expected.append(value.numpy())
    net.compile(threads=1)
    net.set_batch(*given)
    net.test()
    assert len(made) > 30
    for ours, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(ours.get_value(), wanted, rtol=1e-5, atol=1e-6)


def declared(**options: Any) -> tuple[Net, Ensemble]:
    net = Net(2, seed=1, **options)
    return net, MemoryDataLayer(net, (1, 112, 112))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_original_rule_with_compat(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 3 by steps of 2 on 112, padded: 57; its mask, and the mean, count the edge twice."""
    make, _ = LAYERS[layer]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net, data = declared(compat=True)
        assert make(net, data, 3, 2, 1).shape == (1, 57, 57)
        assert make(net, data, 3, 2, 1, ceil_mode=False, clamp=False).shape == (1, 56, 56)
        monkeypatch.setenv("LATTE_COMPAT", "1")
        net, data = declared()
        assert make(net, data, 3, 2, 1).shape == (1, 57, 57)
        assert make(net, data, 2, 2, 2).shape == (1, 58, 58)  # windows in the padding alone read the edge


@pytest.mark.parametrize("layer", LAYERS)
def test_other_sizes_than_the_originals_are_told_once(layer: str) -> None:
    make, _ = LAYERS[layer]
    net, data = declared()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(net, data)  # the same by both rules
        make(net, data, 3, 1, 1)
        for mode in (True, False):
            make(net, data, 3, 2, 1, ceil_mode=mode, clamp=mode)
        GlobalMeanPoolingLayer(net, data)
    with pytest.warns(SizesAsInPyTorch, match=r"PoolingLayer has 56 × 56 windows, as in PyTorch; .* 57 × 57: ") as told:
        make(net, data, 3, 2, 1)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(net, data, 3, 2, 1)
        other = copy.deepcopy(net)
        make(other, other["data1"], 3, 2, 1)
    net, data = declared()
    with pytest.warns(SizesAsInPyTorch, match="55 × 55 windows, as in PyTorch; .* 56 × 56"):
        make(net, data, 3, 2)


def test_rounded_up_as_in_pytorch() -> None:
    """``ceil_mode=True`` alone is PyTorch's, without a window that begins after the source: told, if that is one."""
    net, data = declared()
    with pytest.warns(SizesAsInPyTorch, match="2 × 2 windows, as in PyTorch; .* 3 × 3"):
        MaxPoolingLayer(net, MemoryDataLayer(net, (1, 5, 5)), 2, 3, 1, ceil_mode=True)
    with pytest.raises(DeclarationError, match=r"pad .* is more than half of the kernel"):
        MaxPoolingLayer(net, data, 2, 2, 2)
    for wrong in (0, "yes"):
        for name in ("ceil_mode", "clamp"):
            with pytest.raises(DeclarationError, match=f"{name} must be True or False, not {wrong!r}"):
                MeanPoolingLayer(net, data, **{name: wrong})  # type: ignore[arg-type]
