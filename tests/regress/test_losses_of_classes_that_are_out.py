"""Scores that are masked (minus infinity, or the least number) and ignored items that are NaN: the loss was NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latte import MemoryDataLayer, Net, SoftmaxLossLayer

torch = pytest.importorskip("torch")
LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("options", [{}, {"ignore_label": 3}, {"class_weights": [1, 2, 3, 4]}], ids=str)
@pytest.mark.parametrize("shapes", [((4,), (1,)), ((3, 4), (3,)), ((4, 2, 2), (2, 2))], ids=str)
def test_as_pytorch(shapes: tuple[tuple[int, ...], ...], options: dict[str, Any]) -> None:
    net = Net(3, seed=0)
    net.force_backward = True
    layers = [MemoryDataLayer(net, shape) for shape in shapes]
    SoftmaxLossLayer(net, *layers, **options)
    net.compile(threads=1)
    for masked in (
        -np.inf,
        LEAST,
        *((np.nan,) if "ignore_label" in options else ()),
    ):  # only what is ignored may be NaN
        generator = np.random.default_rng(1)
        scores = generator.normal(size=(3, *shapes[0])).astype(np.float32)
        label = generator.integers(0, 2, (3, *shapes[1]))
        classes = np.moveaxis(scores, 2 if len(shapes[0]) == 2 else 1, -1)
        if np.isnan(masked):
            scores[1], label[1] = masked, 3
        else:
            classes[..., 2:] = masked
        net.set_batch(scores, label, finite=False)
        net.forward()
        net.backward()
        x = torch.tensor(scores, requires_grad=True)
        weights = torch.tensor(options["class_weights"]).float() if "class_weights" in options else None
        wanted = torch.nn.functional.cross_entropy(
            x.movedim(-1, 1) if len(shapes[0]) == 2 else x,
            torch.tensor(label[:, 0] if len(shapes[0]) == 1 else label),
            weights,
            ignore_index=options.get("ignore_label", -100),
        )
        wanted.backward()
        assert net.loss == pytest.approx(wanted.item(), rel=1e-4)
        np.testing.assert_allclose(layers[0].get_grad(), x.grad, rtol=0, atol=1e-6)
