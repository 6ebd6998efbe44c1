"""Batch norm, compiled, against its NumPy definition and against PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from latte import BatchNormLayer, Net
from latte.ensemble import Ensemble
from latte.tools.bench.nets import BATCH_NORM_IN_BLOCKS as IN_BLOCKS
from tests.codegen.test_machine_code import target_named
from tests.layers.references import ROUNDING, Alone, BatchNorm, alone, assert_within

SHAPES = {
    "images": (3, (4, 5, 6)),
    "channels of the vector width plus one": (2, (17, 3, 3)),
    "one image, one channel, odd": (1, (1, 7, 5)),
    "images shorter than a cache line": (8, (1, 3, 3)),
    "channels of few pixels": (17, (3, 2, 2)),
    "rows longer than a vector": (2, (2, 3, 37)),
    "vectors": (6, (19,)),
    "two vectors": (2, (3,)),
    "vectors of single pixels": (5, (17, 1, 1)),
    "many small images": (52, (3, 7, 9)),
    "many vectors": (258, (5,)),
    "groups of channels": (3, (288, 7, 9)),
    "groups of channels and of images": (44, (336, 7, 7)),
    "groups of longer rows": (3, (64, 25, 25)),
    "channels that make no groups": (5, (97, 7, 7)),
    "blocks": (3, (32, 5, 6)),
    "blocks, the last one ragged": (4, (19, 7, 7)),
    "blocks of small images": (52, (16, 3, 3)),
    "groups of blocks": (4, (512, 7, 7)),
    "groups of blocks on AVX2": (5, (512, 7, 7)),
    "blocks of vectors": (7, (33,)),
    "blocks of single pixels": (5, (16, 1, 1)),
}
EPSILON = {"images": 1e-5, "vectors": 0.1}  # the others have 1e-3
MOMENTUM = 0.3


@dataclass(frozen=True)
class Trial:
    """A batch norm that ran forwards and backwards twice, on data with mean 2, parameters drawn."""

    alone: Alone
    expected: BatchNorm

    @property
    def relative(self) -> float:
        """Error of a mean over a channel, relative to the mean of absolute values: one rounding an element,
        and a few for the division and what follows. The data's means are not far larger than their
        deviations, so that differences from the mean lose a factor of less than 8."""
        return 8 * (self.expected.count + 8) * ROUNDING

    @property
    def gradient_size(self) -> np.ndarray:
        """The largest gradient of the source in each channel; roundings of its terms are relative to that."""
        of_source, _, _ = self.expected.gradients(self.alone.gradient)
        scale = abs(self.expected.gamma) / np.sqrt(self.expected.var + self.expected.epsilon)
        return self.expected.each(np.maximum(abs(of_source).max(self.expected.axes), 4 * scale))


@pytest.fixture(scope="module", params=SHAPES)
def trial(request: pytest.FixtureRequest) -> Trial:
    batch, shape = SHAPES[request.param]
    epsilon = EPSILON.get(request.param, 1e-3)

    def make(net: Net, data: Ensemble) -> Ensemble:
        layer = BatchNormLayer(net, data, epsilon=epsilon, momentum=MOMENTUM)
        if "blocks" in request.param:
            net.use_recipe(layer, IN_BLOCKS)
        return layer

    target = target_named("avx2", runs=True).name if "AVX2" in request.param else None
    threads = 3 if "groups" in request.param else 1
    result = alone(batch, shape, make, change=lambda x: x + 2.0, target=target, threads=threads)
    executable = result.net.executable
    commands = [outcome.command.text for outcome in executable.plan.outcomes[result.layer.name]]
    assert any(text.startswith("tile_loop('forward', 'c") for text in commands) == request.param.startswith("groups")
    blocks = executable.buffers[f"{result.layer.name}.value"].layout.blocks
    assert blocks == (((1, executable.plan.target.simd_width),) if "blocks" in request.param else ())
    generator = np.random.default_rng(5)
    gamma, beta = generator.uniform(-2, 2, shape[0]), generator.normal(size=shape[0])
    result.layer.set_gamma(gamma)
    result.layer.set_beta(beta)
    result.run()
    gamma, beta = gamma.astype(np.float32), beta.astype(np.float32)
    return Trial(result, BatchNorm(result.x, gamma, beta, epsilon))


def test_value_and_statistics(trial: Trial) -> None:
    layer, expected, relative = trial.alone.layer, trial.expected, trial.relative
    np.testing.assert_allclose(layer.get_mean(), expected.mean, rtol=relative)
    np.testing.assert_allclose(layer.get_var(), expected.var, rtol=relative, atol=relative)
    # |x - mean| / deviation is below 8 here: an error of the mean or the deviation counts so often.
    bound = 8 * relative * abs(expected.each(expected.gamma)) + 4 * ROUNDING * abs(expected.each(expected.beta))
    assert_within(layer.get_value(), expected.value, bound, "value")


def test_gradients(trial: Trial) -> None:
    layer, expected = trial.alone.layer, trial.expected
    of_source, of_gamma, of_beta = expected.gradients(trial.alone.gradient)
    size = abs(trial.alone.gradient).astype(np.float64).sum(expected.axes)
    assert_within(trial.alone.data.get_grad(), of_source, 4 * trial.relative * trial.gradient_size, "grad_inputs")
    assert_within(layer.get_grad_gamma(), of_gamma, 8 * trial.relative * size, "grad_gamma")
    assert_within(layer.get_grad_beta(), of_beta, trial.relative * size, "grad_beta")


def test_against_pytorch(trial: Trial) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    layer, expected = trial.alone.layer, trial.expected
    x, gamma, beta = (
        torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (trial.alone.x, expected.gamma, expected.beta)
    )
    running = torch.zeros(len(gamma), dtype=torch.float64), torch.ones(len(gamma), dtype=torch.float64)
    for _ in range(2):  # the trial ran twice: the running statistics have moved twice
        value = torch.nn.functional.batch_norm(x, *running, gamma, beta, True, MOMENTUM, expected.epsilon)
    value.backward(torch.tensor(trial.alone.gradient, dtype=torch.float64))
    relative = trial.relative
    np.testing.assert_allclose(layer.get_value(), value.detach().numpy(), rtol=0, atol=16 * relative)
    difference = trial.alone.data.get_grad() - x.grad.numpy()
    assert (abs(difference) <= 4 * relative * trial.gradient_size).all()
    np.testing.assert_allclose(layer.get_running_mean(), running[0].numpy(), rtol=relative, atol=relative)
    np.testing.assert_allclose(layer.get_running_var(), running[1].numpy(), rtol=relative, atol=relative)


def test_running_statistics_and_inference(trial: Trial) -> None:
    """Two steps from (0, 1) with the unbiased variance; inference uses them and leaves them alone."""
    layer, expected = trial.alone.layer, trial.expected
    mean, var = np.zeros_like(expected.mean), np.ones_like(expected.var)
    for _ in range(2):
        mean = (1 - MOMENTUM) * mean + MOMENTUM * expected.mean
        var = (1 - MOMENTUM) * var + MOMENTUM * expected.var * expected.count / (expected.count - 1)
    np.testing.assert_allclose(layer.get_running_mean(), mean, rtol=trial.relative)
    np.testing.assert_allclose(layer.get_running_var(), var, rtol=trial.relative)
    before = layer.get_running_mean(), layer.get_running_var()
    trial.alone.net.test()
    np.testing.assert_array_equal(layer.get_running_mean(), before[0])
    np.testing.assert_array_equal(layer.get_running_var(), before[1])
    # Inference computes with the float32 statistics that the getters show: four operations an element.
    scale = expected.gamma / np.sqrt(before[1].astype(np.float64) + expected.epsilon)
    value = (trial.alone.x - expected.each(before[0])) * expected.each(scale) + expected.each(expected.beta)
    size = (abs(trial.alone.x) + expected.each(abs(before[0]))) * expected.each(abs(scale))
    bound = 8 * ROUNDING * (size + expected.each(abs(expected.beta)))
    assert_within(layer.get_value(), value, bound, "value in inference")
    trial.alone.run()
    layer.set_running_mean(before[0])
    layer.set_running_var(before[1])


def test_repeated_phases(trial: Trial) -> None:
    """All but the running statistics is idempotent; gradients of parameters add up until cleared."""
    net, layer, data = trial.alone.net, trial.alone.layer, trial.alone.data
    statistics = layer.get_running_mean(), layer.get_running_var()
    before = layer.get_value(), layer.get_mean(), layer.get_var(), data.get_grad()
    of_gamma, of_beta = layer.get_grad_gamma(), layer.get_grad_beta()
    net.forward()
    net.backward()
    for now, then in zip((layer.get_value(), layer.get_mean(), layer.get_var(), data.get_grad()), before, strict=True):
        np.testing.assert_array_equal(now, then)
    _, of_gamma_exact, of_beta_exact = trial.expected.gradients(trial.alone.gradient)
    size = 2 * abs(trial.alone.gradient).astype(np.float64).sum(trial.expected.axes)
    assert_within(layer.get_grad_gamma(), 2 * of_gamma_exact, 16 * trial.relative * size, "grad_gamma, twice")
    assert_within(layer.get_grad_beta(), 2 * of_beta_exact, 2 * trial.relative * size, "grad_beta, twice")
    trial.alone.run()
    np.testing.assert_array_equal(layer.get_grad_gamma(), of_gamma)
    np.testing.assert_array_equal(layer.get_grad_beta(), of_beta)
    layer.set_running_mean(statistics[0])
    layer.set_running_var(statistics[1])


def additions(result: Alone) -> float:
    """How many additions a term of a channel's sum goes through at most, where lanes run along the pixels: in one of
    four registers, over the copies and the lanes, and over the images."""
    width = result.net.executable.plan.target.simd_width
    batch, _, *pixels = result.x.shape
    return np.prod(pixels) / (4 * width) + 4 + np.log2(width) + batch


def test_a_large_mean() -> None:
    """A mean of 1e4 costs a deviation of 1 no digits; the mean itself, a float32, shifts the value by its rounding."""
    mean, shape = 1e4, (5, 57, 55)
    result = alone(8, shape, lambda net, data: BatchNormLayer(net, data), change=lambda x: x + mean)
    expected = BatchNorm(result.x, np.ones(5), np.zeros(5), 1e-5)
    first = result.x[:, :, 0, 0].astype(np.float64)
    deviations = abs(first - result.x.mean((2, 3), dtype=np.float64)) / result.x.std((2, 3), dtype=np.float64)
    relative = (additions(result) + 8) * (1 + deviations.max() ** 2) * ROUNDING
    np.testing.assert_allclose(result.layer.get_var(), expected.var, rtol=relative)
    np.testing.assert_allclose(result.layer.get_mean(), expected.mean, rtol=2 * ROUNDING)
    bound = 2 * ROUNDING * mean / expected.var.min() ** 0.5 + abs(expected.value) * (relative + 8 * ROUNDING)
    assert_within(result.layer.get_value(), expected.value, bound, "value")


def test_sums_of_millions() -> None:
    """3.2 million elements of one channel, gradients of one sign: each term goes through a thousand additions at most
    (twice as many on AVX2), so that a sum keeps the digits that adding in order would lose."""
    result = alone(64, (1, 223, 225), lambda net, data: BatchNormLayer(net, data), change=lambda x: x + 0.5)
    result.gradient[...] = abs(result.gradient)
    result.layer.set_grad(result.gradient)
    result.run()
    expected = BatchNorm(result.x, np.ones(1), np.zeros(1), 1e-5)
    _, of_gamma, of_beta = expected.gradients(result.gradient)
    relative = additions(result) * ROUNDING
    np.testing.assert_allclose(result.layer.get_grad_beta(), of_beta, rtol=relative)
    normalized = np.abs(expected.value * result.gradient).sum()
    shifted = abs(of_beta) * 4 * ROUNDING  # by the rounding of the mean
    bound = (relative + 8 * ROUNDING) * normalized + shifted
    assert_within(result.layer.get_grad_gamma(), of_gamma, bound, "grad_gamma")


def test_one_item() -> None:
    """Variance 0, so that the value is beta and no gradient flows; the running variance stays finite."""
    result = alone(1, (5,), lambda net, data: BatchNormLayer(net, data, epsilon=0.01, momentum=0.5))
    result.layer.set_beta([1, 2, 3, 4, 5])
    result.run()
    np.testing.assert_array_equal(result.layer.get_value(), [[1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(result.layer.get_var(), np.zeros(5))
    # grad - mean(grad) of one element: what remains is rounding, times 1 / sqrt(epsilon) = 10.
    assert abs(result.data.get_grad()).max() <= 10 * 4 * ROUNDING * abs(result.gradient).max()
    np.testing.assert_array_equal(result.layer.get_running_var(), np.full(5, 0.25))


def test_momentum_zero_and_one() -> None:
    for momentum in (0.0, 1.0):
        result = alone(4, (2, 3, 3), lambda net, data, m=momentum: BatchNormLayer(net, data, momentum=m))
        mean = result.layer.get_mean() if momentum else np.zeros(2)
        np.testing.assert_array_equal(result.layer.get_running_mean(), mean)
