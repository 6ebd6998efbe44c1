"""Losses and measures of classes with all options, for vectors, sequences and images, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import AccuracyLayer, FullyConnectedLayer, MeanSquaredErrorLayer, MemoryDataLayer, Net, SoftmaxLossLayer
from latte.errors import DataError, DeclarationError
from latte.tools.library import LIBRARY
from tests.layers.against_torch import Case, check_all
from tests.support import targets_in_turn

torch = pytest.importorskip("torch")

WEIGHTS = (0.5, 2.0, 0.0, 1.0, 3.0)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"class_weights": WEIGHTS},
    "smoothing": {"label_smoothing": 0.2},
    "ignored": {"ignore_label": 255},
    "a class ignored": {"ignore_label": 1, "class_weights": np.array(WEIGHTS)},
    "all": {"class_weights": WEIGHTS, "label_smoothing": 0.1, "ignore_label": -1},
}
SHAPES = (((5,), (1,)), ((7, 5), (7,)), ((5, 3, 4), (3, 4)), ((5, 3, 4), (1, 3, 4)))


def labels(options: dict[str, Any]) -> Callable[..., np.ndarray]:
    """Class numbers, a third of them ignored."""

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        found = generator.integers(0, 5, shape)
        return np.where(generator.random(shape) < 0.3, options.get("ignore_label", 0), found)

    return draw


def same_loss(options: dict[str, Any]) -> Callable[..., Any]:
    return partial(LIBRARY["SoftmaxLossLayer"].computed, torch, options=options)


@pytest.mark.parametrize(
    ("option", "shapes"),
    [("plain", SHAPES[1]), *((o, s) for o in OPTIONS if o != "all" for s in SHAPES[:3:2])],
    ids=str,
)
def test_softmax_loss_against_pytorch(option: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    options = OPTIONS[option]

    def declare(net: Net, scores: Any, label: Any) -> Any:
        return SoftmaxLossLayer(net, scores, label, **options, name="loss")

    check_all(Case(declare, same_loss(options), (shapes,), {1: labels(options)}), None, batch=6)


@pytest.mark.parametrize(("shapes", "target"), [*zip(SHAPES, targets_in_turn(vectors=True), strict=False)], ids=str)
def test_on_targets_in_turn(shapes: tuple[tuple[int, ...], ...], target: str) -> None:
    options = OPTIONS["all"]

    def declare(net: Net, scores: Any, label: Any) -> Any:
        return SoftmaxLossLayer(net, scores, label, **options)

    check_all(Case(declare, same_loss(options), (shapes,), {1: labels(options)}), target, batch=6)


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("shapes", SHAPES[:3], ids=str)
def test_a_smaller_batch(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Means are over the items that there are."""
    net = Net(6, seed=0)
    net.force_backward = True
    scores, label = (MemoryDataLayer(net, shape) for shape in shapes)
    SoftmaxLossLayer(net, scores, label, **OPTIONS["all"])
    MeanSquaredErrorLayer(net, scores, target := MemoryDataLayer(net, shapes[0]))
    AccuracyLayer(net, scores, label, top=5, ignore_label=-1)
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    x, wanted = generator.normal(size=(2, *shapes[0])), labels(OPTIONS["all"])(generator, (2, *shapes[1]))
    net.set_batch(x, wanted, np.zeros((2, *target.shape)))
    net.forward()
    net.backward()
    tensor = torch.tensor(x, requires_grad=True)
    expected = same_loss(OPTIONS["all"])(tensor, torch.tensor(wanted)) + (tensor**2).mean()
    expected.backward()
    assert net.loss == pytest.approx(expected.item(), rel=1e-5) and net.accuracy == 1.0
    np.testing.assert_allclose(scores.get_grad(), tensor.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_nothing_counts() -> None:
    net = Net(2, seed=0)
    net.force_backward = True
    scores, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, scores, label, ignore_label=255)
    AccuracyLayer(net, scores, label, ignore_label=255)
    net.compile(threads=1)
    net.set_batch(np.ones((2, 3)), [255, 255])
    net.forward()
    net.backward()
    assert net.loss == 0.0 and net.accuracy == 0.0 and not scores.get_grad().any()
    with pytest.raises(DataError, match="class numbers from 0 to 2, or 255; item 1 is 3"):
        net.set_batch(np.ones((2, 3)), [255, 3])


@pytest.mark.parametrize("top", [1, 2, 5])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_accuracy(shapes: tuple[tuple[int, ...], ...], top: int) -> None:
    net = Net(6, seed=0)
    scores, label = (MemoryDataLayer(net, shape) for shape in shapes)
    AccuracyLayer(net, scores, label, top=top, ignore_label=255)
    net.compile(threads=1)
    generator = np.random.default_rng(0)
    x = generator.integers(0, 4, (6, *shapes[0])).astype(float)  # many are equal
    wanted = labels({"ignore_label": 255})(generator, (6, *shapes[1]))
    net.set_batch(x, wanted)
    net.forward()
    moved = x if x.ndim == 2 else np.moveaxis(x, 2 if x.ndim == 3 else 1, -1)
    rows, numbers = moved.reshape(-1, 5), wanted.reshape(-1)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :top]
    counted = numbers != 255
    right = (best == numbers[:, None]).any(1) & counted
    assert net.accuracy == pytest.approx(right.sum() / counted.sum(), rel=1e-6)


def test_what_is_not_a_number_is_not_right() -> None:
    net = Net(1, seed=0)
    scores, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    AccuracyLayer(net, scores, label, top=2)
    net.compile(threads=1)
    scores.set_value([[np.nan, np.nan, np.nan]])
    label.set_value([[1]])
    net.forward()
    assert net.accuracy == 0.0


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("options", [{"class_weights": [1, 2, 3]}, {"label_smoothing": 0.1}, {}], ids=str)
def test_the_declaration_gives_the_weights_of_classes_not_a_file(options: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    for others in ({"class_weights": [5, 1, 1]}, options):
        net = Net(2, seed=1)
        data, label = MemoryDataLayer(net, (4,)), MemoryDataLayer(net, (1,))
        SoftmaxLossLayer(net, FullyConnectedLayer(net, data, 3), label, **others)
        net.compile()
        for _ in range(2):
            net.set_batch(np.eye(2, 4), np.array([0, 2]))
            net.forward()
            losses.append(net.loss)
            net.load(tmp_path / "net.safetensors") if others is options else net.save(tmp_path / "net.safetensors")
    assert losses[2] == losses[3]  # of one seed: the same parameters
    assert losses[0] != losses[2]


def declared(*shapes: tuple[int, ...], **options: Any) -> Callable[[Net], Any]:
    def declare(net: Net) -> Any:
        layer = AccuracyLayer if "top" in options else SoftmaxLossLayer
        return layer(net, *(MemoryDataLayer(net, shape) for shape in shapes), **options)

    return declare


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (declared((3,), (1,), class_weights=[1, 2]), "class_weights must be 3 numbers, none of them negative"),
        (declared((3,), (1,), class_weights=[1, 2, -3]), "none of them negative"),
        (declared((3,), (1,), class_weights="abc"), "class_weights must be 3 numbers"),
        (declared((3,), (1,), label_smoothing=2), "label_smoothing must be a number, at least 0, at most 1, not 2"),
        (declared((3,), (1,), label_smoothing="a"), "label_smoothing must be a number, at least 0, at most 1, not 'a'"),
        (declared((3,), (1,), ignore_label=0.5), "ignore_label must be an integer"),
        (declared((7, 5), (5,)), "labels have shape (7,)"),
        (declared((5, 3, 4), (4, 3)), "labels have shape (3, 4)"),
        (declared((5, 3, 4, 2), (1,)), "reads 1 or 2 or 3 dimensions"),
        (declared((3,), (1,), top=4), "top must be from 1 to 3, not 4"),
        (declared((3,), (1,), top=0), "top must be a positive integer, not 0"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Any], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make(Net(2))
    assert message in str(caught.value) and "test_classes.py" in str(caught.value)


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_evaluation_of_batches_whose_classes_have_no_weight(batch_size: int) -> None:
    """With label smoothing they have terms, which are divided by the weights of all batches."""
    scores = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
    labels = np.array([0, 0, 0, 1, 0])
    net = Net(batch_size, seed=0)
    x, label = MemoryDataLayer(net, (3,)), MemoryDataLayer(net, (1,))
    SoftmaxLossLayer(net, x, label, class_weights=[0, 1, 2], label_smoothing=0.3)
    net.compile(threads=1)
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(scores), torch.tensor(labels), torch.tensor([0.0, 1.0, 2.0]), label_smoothing=0.3
    )
    assert abs(net.evaluate(scores, labels[:, None]).loss - float(expected)) < 1e-5
