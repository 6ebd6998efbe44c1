"""Layers of the library against PyTorch in double precision: values, gradients of the source and of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import latte
from latte import (
    BinaryCrossEntropyLayer,
    DropoutLayer,
    ELULayer,
    GELULayer,
    GlobalMeanPoolingLayer,
    GroupNormLayer,
    HuberLossLayer,
    InstanceNormLayer,
    L1LossLayer,
    LayerNormLayer,
    LeakyReLULayer,
    LogSoftmaxLayer,
    LRNLayer,
    MeanPoolingLayer,
    MeanSquaredErrorLayer,
    MemoryDataLayer,
    Net,
    PositionwiseLinearLayer,
    PReLULayer,
    ReLU6Layer,
    SigmoidLayer,
    SiLULayer,
    SoftmaxLayer,
    TanhLayer,
)
from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from tests.layers import against_torch
from tests.layers.against_torch import check_all, in_turn, near
from tests.layers.references import alone

torch = pytest.importorskip("torch")
F = torch.nn.functional


@dataclass(frozen=True)
class Case:
    """A layer, and the same of PyTorch on a tensor and on parameters by name."""

    layer: Callable[..., Ensemble]
    same: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)


IMAGES = ((3, 17, 5, 7), (2, 33, 8, 16), (1, 1, 1, 1))
ANY = ((3, 17), (2, 3, 5), *IMAGES)
TWO = ((3, 17, 5, 7), (2, 3, 5))
"""For functions of an element, which differ in their bodies alone."""
CASES = {
    "relu6": Case(ReLU6Layer, F.relu6, TWO),
    "leaky relu": Case(LeakyReLULayer, lambda x: F.leaky_relu(x, 0.1), TWO, {"negative_slope": 0.1}),
    "prelu": Case(PReLULayer, lambda x, slope: F.prelu(x, slope), ANY),
    "elu": Case(ELULayer, lambda x: F.elu(x, 0.7), TWO, {"alpha": 0.7}),
    "gelu": Case(GELULayer, F.gelu, TWO),
    "gelu by tanh": Case(GELULayer, lambda x: F.gelu(x, approximate="tanh"), TWO, {"approximate": "tanh"}),
    "silu": Case(SiLULayer, F.silu, TWO),
    "sigmoid": Case(SigmoidLayer, torch.sigmoid, ANY),
    "softmax": Case(SoftmaxLayer, lambda x: F.softmax(x, 1), ((3, 17), *IMAGES)),
    "softmax of sequences": Case(SoftmaxLayer, lambda x: F.softmax(x, 2), ((2, 3, 5), (3, 7, 32))),
    "log softmax": Case(LogSoftmaxLayer, lambda x: F.log_softmax(x, 1), ((3, 17), *IMAGES)),
    "log softmax of sequences": Case(LogSoftmaxLayer, lambda x: F.log_softmax(x, 2), ((2, 3, 5), (3, 7, 32))),
    "group norm": Case(
        GroupNormLayer,
        lambda x, gamma, beta: F.group_norm(x, 3, gamma, beta),
        ((2, 6, 5, 7), (3, 48, 8, 8)),
        {"groups": 3},
    ),
    "instance norm": Case(
        InstanceNormLayer,
        lambda x, gamma, beta: F.instance_norm(x, None, None, gamma, beta),
        ((3, 17, 5, 7), (2, 32, 8, 8)),
    ),
    "layer norm": Case(
        LayerNormLayer,
        lambda x, gamma, beta: F.layer_norm(x, gamma.shape, gamma, beta),
        ((3, 17), (2, 19, 32), (3, 17, 5, 7), (2, 16, 8, 8)),
    ),
    "lrn": Case(LRNLayer, lambda x: F.local_response_norm(x, 5, 0.5, 0.75, 2.0), IMAGES, {"alpha": 0.5, "k": 2.0}),
    "lrn of few": Case(LRNLayer, lambda x: F.local_response_norm(x, 3, 0.5), ((2, 2, 5, 7),), {"n": 3, "alpha": 0.5}),
    "mean pooling": Case(
        MeanPoolingLayer,
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        ((3, 17, 5, 7), (2, 32, 8, 16)),
        {"kernel": 3, "pad": 1},
    ),
    "mean pooling inside": Case(
        MeanPoolingLayer,
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), 1, ceil_mode=True, count_include_pad=False),
        ((3, 17, 5, 7), (2, 32, 8, 15)),
        {"kernel": (3, 2), "stride": (2, 3), "pad": 1, "ceil_mode": True, "count_include_pad": False},
    ),
    **{
        f"mean pooling {kernel} {stride} {pad} rounded up": Case(
            MeanPoolingLayer,
            lambda x, kernel=kernel, stride=stride, pad=pad: F.avg_pool2d(x, kernel, stride, pad, ceil_mode=True),
            shapes,
            {"kernel": kernel, "stride": stride, "pad": pad, "ceil_mode": True},
        )
        for kernel, stride, pad, shapes in (
            (2, 2, 0, ((1, 1, 5, 5), (3, 17, 5, 7), (2, 32, 7, 16))),
            (3, 2, 1, ((1, 1, 6, 6), (3, 17, 6, 8), (2, 16, 5, 6))),
            ((3, 5), (2, 3), (1, 2), ((2, 5, 8, 9), (2, 33, 6, 17))),
            ((4, 2), (3, 4), (2, 0), ((2, 17, 9, 7),)),
            (3, 5, 1, ((2, 3, 9, 14), (1, 1, 4, 4))),
        )
    },
    "mean pooling of the edge": Case(
        MeanPoolingLayer,
        lambda x: F.avg_pool2d(F.pad(x, (1, 2, 1, 2), mode="replicate"), 3, 2),
        ((3, 17, 6, 8),),
        {"kernel": 3, "pad": 1, "ceil_mode": True, "clamp": True},
    ),
    "linear of positions": Case(
        PositionwiseLinearLayer,
        lambda x, weights, bias: F.linear(x, weights, bias),
        ((3, 5, 7), (2, 16, 32), (1, 1, 1)),
        {"num_outputs": 19},
    ),
    "linear of positions without bias": Case(
        PositionwiseLinearLayer,
        lambda x, weights: F.linear(x, weights),
        ((3, 5, 7),),
        {"num_outputs": 16, "bias": False},
    ),
    "global mean": Case(GlobalMeanPoolingLayer, lambda x: F.adaptive_avg_pool2d(x, 1), IMAGES),
}


@pytest.mark.parametrize(("name", "target", "number"), in_turn(CASES), ids=str)
def test_against_pytorch(name: str, target: str, number: int) -> None:
    case = CASES[name]
    batch, *shape = case.shapes[number]

    def declare(net: Net, source: Ensemble) -> Ensemble:
        return case.layer(net, source, **case.options)

    wide = {0: lambda generator, shape: 3 * generator.standard_normal(shape)}
    check_all(against_torch.Case(declare, case.same, ((tuple(shape),),), wide), target, batch)


@pytest.mark.parametrize(
    ("layer", "same"),
    [(SigmoidLayer, torch.sigmoid), (SiLULayer, F.silu), (ELULayer, F.elu), (ReLU6Layer, F.relu6)],
    ids=["sigmoid", "silu", "elu", "relu6"],
)
def test_far_from_zero(layer: Callable[..., Ensemble], same: Callable[..., Any]) -> None:
    """No infinite intermediate value makes a NaN."""
    numbers = [[0.0, -0.0, 100.0, -100.0, 1e30, -1e30, np.inf, np.nan]]
    trial = alone(1, (8,), layer)
    trial.data.set_value(numbers)
    trial.run()
    x = torch.tensor(numbers, requires_grad=True)
    value = same(x)
    value.backward(torch.tensor(trial.gradient))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(trial.data.get_grad()[0, :6], x.grad.numpy()[0, :6], rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize(
    ("layer", "same"),
    [(ELULayer, F.elu), (GELULayer, F.gelu), (TanhLayer, torch.tanh)],
    ids=["elu", "gelu", "tanh"],
)
def test_digits_near_zero(layer: Callable[..., Ensemble], same: Callable[..., Any]) -> None:
    """Each result is right relative to itself, however small."""
    numbers = [[s * 10.0**-e for e in (1, 3, 5, 7, 20) for s in (1, -1)]]
    trial = alone(1, (10,), layer)
    trial.data.set_value(numbers)
    trial.run()
    x = torch.tensor(np.float32(numbers), dtype=torch.float64, requires_grad=True)
    value = same(x)
    value.backward(torch.tensor(trial.gradient, dtype=torch.float64))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(trial.data.get_grad(), x.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 3, 3)], ids=str)
def test_log_softmax_keeps_the_digits_of_a_certain_class(shape: tuple[int, ...]) -> None:
    """Its logarithm is -1e-9; ``log`` of the sum of exponentials is 0. Several may be the largest."""
    trial = alone(2, shape, LogSoftmaxLayer)
    given = trial.x.copy()
    given[0, 1], given[1, 2:4] = given[0].max() + 20, given[1].max() + 1
    trial.data.set_value(given)
    trial.run()
    x = torch.tensor(given, dtype=torch.float64, requires_grad=True)
    value = F.log_softmax(x, 1)
    value.backward(torch.tensor(trial.gradient, dtype=torch.float64))
    np.testing.assert_allclose(trial.layer.get_value(), value.detach().numpy(), rtol=2e-6)
    near(trial.data.get_grad(), x.grad, "gradient")


# --- dropout ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(5000,), (3, 17, 29), (2, 3, 5, 7)], ids=str)
def test_dropout_drops_what_it_says(shape: tuple[int, ...]) -> None:
    ratio = 0.3
    trial = alone(3, shape, lambda net, data: DropoutLayer(net, data, ratio))
    drawn = trial.layer.get_randval()
    factor = np.float32(1 / (1 - ratio))
    np.testing.assert_array_equal(trial.layer.get_value(), np.where(drawn >= ratio, trial.x * factor, 0))
    np.testing.assert_array_equal(trial.data.get_grad(), np.where(drawn >= ratio, trial.gradient * factor, 0))
    assert drawn.min() >= 0 and drawn.max() <= 1 and abs((drawn >= ratio).mean() - 0.7) < 5 / np.sqrt(drawn.size)
    trial.net.forward()
    assert (trial.layer.get_randval() != drawn).mean() > 0.99
    trial.net.test()
    np.testing.assert_array_equal(trial.layer.get_value(), trial.x)


def test_dropout_of_nothing() -> None:
    trial = alone(2, (7,), lambda net, data: DropoutLayer(net, data, 0.0))
    np.testing.assert_array_equal(trial.layer.get_value(), trial.x)


# --- losses -----------------------------------------------------------------------------------------------
LOSSES = {
    "squared": (MeanSquaredErrorLayer, F.mse_loss, {}),
    "l1": (L1LossLayer, F.l1_loss, {}),
    "huber": (HuberLossLayer, lambda x, t: F.huber_loss(x, t, delta=0.4), {"delta": 0.4}),
    "binary": (BinaryCrossEntropyLayer, F.binary_cross_entropy_with_logits, {}),
}


OF_LOSSES = [(4, 1), (3, 17), (33, 64), (2, 3, 5), (2, 3, 5, 7)]


@pytest.mark.parametrize(
    ("name", "shape"), [(name, s) for name in LOSSES for s in OF_LOSSES[:: 1 if name == "binary" else 2]], ids=str
)
def test_losses_against_pytorch(name: str, shape: tuple[int, ...]) -> None:
    layer, same, options = LOSSES[name]
    net = Net(shape[0], seed=1)
    net.force_backward = True
    data, target = MemoryDataLayer(net, shape[1:]), MemoryDataLayer(net, shape[1:])
    loss = layer(net, data, target, **options, name="the_loss")
    net.compile(threads=1)
    assert loss.name == "the_loss"
    generator = np.random.default_rng(0)
    x, wanted = (3 * generator.standard_normal(shape)).astype(np.float32), generator.random(shape).astype(np.float32)
    net.set_batch(x, wanted)
    net.forward()
    net.backward()
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = same(tensor, torch.tensor(wanted, dtype=torch.float64))
    expected.backward()
    assert net.loss == pytest.approx(expected.item(), rel=1e-5)
    near(data.get_grad(), tensor.grad, "gradient")
    if name == "binary":
        net.set_batch(np.full(shape, -200.0), np.ones(shape))
        net.forward()
        net.backward()
        assert net.loss == pytest.approx(200.0) and np.isfinite(data.get_grad()).all()


def test_a_small_binary_loss_keeps_its_digits() -> None:
    """``log(1 + e)`` is 0 for ``e`` below 6e-8."""
    net = Net(1)
    data, target = MemoryDataLayer(net, (2,)), MemoryDataLayer(net, (2,))
    BinaryCrossEntropyLayer(net, data, target)
    net.compile(threads=1)
    net.set_batch([[20.0, -30.0]], [[1.0, 0.0]])
    net.forward()
    assert net.loss == pytest.approx((np.log1p(np.exp(-20.0)) + np.log1p(np.exp(-30.0))) / 2, rel=1e-6)


# --- names and bad arguments ------------------------------------------------------------------------------
def source(net: Net) -> Ensemble:
    return MemoryDataLayer(net, (4, 6, 6))


@pytest.mark.parametrize("name", [name for name in CASES if "of" not in name and "inside" not in name])
def test_layers_take_a_name(name: str) -> None:
    net = Net(2)
    options = {**CASES[name].options, **({"groups": 2} if name == "group norm" else {})}
    assert CASES[name].layer(net, source(net), **options, name="mine").name == "mine"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: DropoutLayer(net, source(net), 1.0), "ratio must be a number, at least 0, below 1, not 1.0"),
        (lambda net: DropoutLayer(net, source(net), "half"), "ratio must be a number, at least 0, below 1, not 'half'"),
        (lambda net: ELULayer(net, source(net), alpha=-1), "alpha must be a number, at least 0, not -1"),
        (lambda net: GELULayer(net, source(net), "erf"), "approximate must be 'none' or 'tanh', not 'erf'"),
        (lambda net: LeakyReLULayer(net, source(net), np.nan), "negative_slope must be a number, not nan"),
        (lambda net: GroupNormLayer(net, source(net), 3), "4 channels cannot be divided into 3 groups"),
        (lambda net: GroupNormLayer(net, source(net), 2.0), "groups must be a positive integer, not 2.0"),
        (lambda net: LayerNormLayer(net, source(net), 0), "epsilon must be greater than 0"),
        (lambda net: LRNLayer(net, source(net), k=0), "k must be greater than 0"),
        (lambda net: SoftmaxLayer(net, MemoryDataLayer(net, (2, 3, 4, 5))), "reads 1 or 2 or 3 dimensions"),
        (lambda net: PReLULayer(net, MemoryDataLayer(net, (2, 3, 4, 5))), "PReLULayer reads at most 3 dimensions"),
        (lambda net: HuberLossLayer(net, MemoryDataLayer(net, 3), MemoryDataLayer(net, 3), 0), "delta must be greater"),
        (
            lambda net: MeanSquaredErrorLayer(net, MemoryDataLayer(net, 3), MemoryDataLayer(net, 4)),
            "must be two layers of one shape",
        ),
        (lambda net: PositionwiseLinearLayer(net, source(net), 3), "reads 2 dimensions without the batch"),
        (lambda net: GELULayer(net, source(net), name="a b"), "'a b' cannot name an ensemble"),
    ],
)
def test_arguments_that_do_not_fit(make: Callable[[Net], Ensemble], message: str) -> None:
    """The net can be used afterwards."""
    net = Net(2)
    with pytest.raises(DeclarationError) as caught:
        make(net)
    assert message in str(caught.value) and "test_library.py" in str(caught.value)
    make_again = GELULayer(net, net.ensembles[0])
    net.compile(threads=1)
    assert make_again.name == "gelu1"


def test_every_constructor_is_in_the_star_import() -> None:
    assert set(latte.layers.__all__) <= set(latte.__all__)
    for name in latte.layers.__all__:
        assert (getattr(latte, name).__doc__ or "").strip()
