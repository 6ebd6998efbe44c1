"""Every layer's lowered forward program, executed, against a plain NumPy definition, at odd shapes."""

import numpy as np
import pytest

from latte import (
    AccuracyLayer,
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    FullyConnectedLayerNoBias,
    MaxPoolingLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
    TanhLayer,
)
from latte.autodiff.differentiated import layer_programs
from latte.ensemble import Ensemble
from swirl.ir.buffers import DTYPES
from swirl.ir.execute import execute
from swirl.ir.item_numbers import value_of
from swirl.ir.validate import validate

# The executed nests add one product after the other in float32: 2**-24 relative for each of at most 300
# additions of numbers of size 1, and the reference is in float64.
TOLERANCE = {"rtol": 3e-5, "atol": 3e-5}


def run(
    net: Net, ensemble: Ensemble, batch: int, *, training: bool = True, **given: np.ndarray
) -> dict[str, np.ndarray]:
    """Arrays after one forward of one ensemble; what is not given starts as NaN, so that reading it shows."""
    programs = next(p.programs for p in layer_programs(net.graph, batch) if p.ensemble is ensemble)
    program = validate(programs["forward" if training else "inference"])
    arrays = {}
    for name, buffer in program.buffers.items():
        if name in given:
            arrays[name] = np.array(given[name], DTYPES[buffer.dtype])
            assert arrays[name].shape == buffer.shape
        elif buffer.formula:
            arrays[name] = np.full(1, value_of(buffer.formula, batch), DTYPES[buffer.dtype])
        elif buffer.role in ("param", "state"):
            arrays[name] = ensemble.initial(name)
        else:
            arrays[name] = np.full(buffer.shape, -77 if buffer.dtype == "int32" else np.nan, DTYPES[buffer.dtype])
    execute(program, arrays, checking=True)
    first = {name: array.copy() for name, array in arrays.items()}
    execute(program, arrays)
    states = {name for name, buffer in program.buffers.items() if buffer.role == "state"}
    for name in set(arrays) - states:  # running a phase twice gives the same
        np.testing.assert_array_equal(arrays[name], first[name])
    return first


def data_net(batch: int, *shapes: tuple[int, ...]) -> tuple[Net, list[Ensemble], list[np.ndarray]]:
    net = Net(batch, seed=11)
    layers = [MemoryDataLayer(net, shape) for shape in shapes]
    generator = np.random.default_rng(sum(map(sum, shapes)))
    return net, layers, [generator.normal(size=(batch, *shape)).astype(np.float32) for shape in shapes]


def convolve(x, weights, bias, stride, pad, dilation):
    """The definition that programs for the original rely on, in float64."""
    N, C, H, W = x.shape
    K, _, KY, KX = weights.shape
    padded = np.zeros((N, C, H + 2 * pad[0], W + 2 * pad[1]))
    padded[:, :, pad[0] : pad[0] + H, pad[1] : pad[1] + W] = x
    height = (padded.shape[2] - (KY - 1) * dilation[0] - 1) // stride[0] + 1
    width = (padded.shape[3] - (KX - 1) * dilation[1] - 1) // stride[1] + 1
    out = np.zeros((N, K, height, width)) + bias.reshape(1, K, 1, 1)
    for y in range(height):
        for x_ in range(width):
            top, left = y * stride[0], x_ * stride[1]
            rows = slice(top, top + (KY - 1) * dilation[0] + 1, dilation[0])
            columns = slice(left, left + (KX - 1) * dilation[1] + 1, dilation[1])
            out[:, :, y, x_] += np.einsum("ncij,kcij->nk", padded[:, :, rows, columns], weights.astype(float))
    return out


@pytest.mark.parametrize(
    ("batch", "shape", "filters", "kernel", "stride", "pad", "dilation"),
    [
        (2, (3, 7, 5), 4, 3, 1, 1, 1),
        (1, (1, 5, 5), 1, 3, 2, 0, 1),
        (2, (2, 8, 9), 3, 3, 2, 1, 2),
        (1, (2, 6, 6), 3, 1, 1, 0, 1),
        (1, (1, 7, 9), 2, 5, 3, 4, 1),
        (2, (2, 5, 7), 3, (3, 1), (2, 1), (0, 2), (1, 1)),
        (1, (1, 5, 5), 2, 4, 1, 6, 4),
        (3, (2, 1, 1), 2, 1, 1, 1, 1),
    ],
)
def test_convolution(batch, shape, filters, kernel, stride, pad, dilation) -> None:
    net, (data,), (x,) = data_net(batch, shape)
    bias = np.random.default_rng(2).normal(size=(filters, 1))
    pairs = [value if isinstance(value, tuple) else (value, value) for value in (stride, pad, dilation)]
    conv = ConvLayer(net, data, filters, kernel=kernel, stride=stride, pad=pad, dilation=dilation)
    result = run(net, conv, batch, inputs=x, bias=bias)
    expected = convolve(x, result["weights"], bias, *pairs)
    assert expected.shape == (batch, *conv.shape)
    np.testing.assert_allclose(result["value"], expected, **TOLERANCE)
    plain = ConvLayerNoBias(net, data, filters, kernel, stride, pad, dilation)
    result = run(net, plain, batch, inputs=x)
    expected = convolve(x, result["weights"], np.zeros(filters), *pairs)
    np.testing.assert_allclose(result["value"], expected, **TOLERANCE)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (7, 1)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_fully_connected(shape, outputs) -> None:
    net, (data,), (x,) = data_net(3, shape)
    bias = np.arange(outputs).reshape(outputs, 1) + 0.5
    result = run(net, FullyConnectedLayer(net, data, outputs), 3, inputs=x, bias=bias)
    expected = x.reshape(3, -1).astype(float) @ result["weights"].reshape(outputs, -1).T + bias.T
    np.testing.assert_allclose(result["value"], expected, **TOLERANCE)
    result = run(net, FullyConnectedLayerNoBias(net, data, outputs), 3, inputs=x)
    expected = x.reshape(3, -1).astype(float) @ result["weights"].reshape(outputs, -1).T
    np.testing.assert_allclose(result["value"], expected, **TOLERANCE)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (3, 4), (2, 1, 2, 3)])
def test_activations(shape) -> None:
    net, (data,), (x,) = data_net(2, shape)
    np.testing.assert_array_equal(run(net, ReLULayer(net, data), 2, inputs=x)["value"], np.maximum(x, 0))
    np.testing.assert_allclose(run(net, TanhLayer(net, data), 2, inputs=x)["value"], np.tanh(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pad"),
    [
        ((2, 7, 5), 2, 2, 0),
        ((1, 8, 8), 3, 2, 0),
        ((3, 5, 6), 3, 1, 1),
        ((1, 5, 5), 2, 2, 1),
        ((2, 4, 9), (1, 3), (1, 2), 0),
    ],
)
def test_max_pooling_rounds_up_and_clamps(shape, kernel, stride, pad) -> None:
    net, (data,), (x,) = data_net(2, shape)
    x = np.round(x)  # many equal elements: the first one wins
    pool = MaxPoolingLayer(net, data, kernel, stride, pad, ceil_mode=True, clamp=True)
    result = run(net, pool, 2, inputs=x)
    (KY, KX), (SY, SX) = (value if isinstance(value, tuple) else (value, value) for value in (kernel, stride))
    C, H, W = shape
    assert pool.shape == (C, -(-(H + 2 * pad - KY) // SY) + 1, -(-(W + 2 * pad - KX) // SX) + 1)
    for n, c, y, x_ in np.ndindex(2, *pool.shape):
        best, mask = -np.inf, (0, 0)
        for ky, kx in np.ndindex(KY, KX):
            element = x[n, c, np.clip(y * SY - pad + ky, 0, H - 1), np.clip(x_ * SX - pad + kx, 0, W - 1)]
            if element > best:
                best, mask = element, (ky, kx)
        assert result["value"][n, c, y, x_] == best
        assert (result["mask_j"][n, c, y, x_], result["mask_k"][n, c, y, x_]) == mask


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pad"),
    [
        ((2, 7, 5), 2, 2, 0),
        ((1, 8, 8), 3, 2, 1),
        ((2, 5, 6), 3, 1, 1),
        ((1, 6, 5), 2, 3, 1),
        ((1, 9, 7), 3, 4, 1),
    ],
)
def test_max_pooling_like_pytorch(shape, kernel, stride, pad, ceil_mode) -> None:
    torch = pytest.importorskip("torch")
    net, (data,), (x,) = data_net(2, shape)
    pool = MaxPoolingLayer(net, data, kernel, stride, pad, ceil_mode=ceil_mode, clamp=False)
    expected = torch.nn.functional.max_pool2d(torch.tensor(x), kernel, stride, pad, ceil_mode=ceil_mode).numpy()
    assert (2, *pool.shape) == expected.shape
    np.testing.assert_array_equal(run(net, pool, 2, inputs=x)["value"], expected)


@pytest.mark.parametrize(("batch", "shape"), [(3, (4, 3, 5)), (1, (2, 1, 7)), (5, (3,)), (1, (2,))])
def test_batch_norm(batch, shape) -> None:
    net, (data,), (x,) = data_net(batch, shape)
    layer = BatchNormLayer(net, data, epsilon=0.01, momentum=0.3)
    generator = np.random.default_rng(5)
    fields = {
        name: generator.uniform(0.5, 2, shape[0]).astype(np.float32)
        for name in ("gamma", "beta", "running_mean", "running_var")
    }
    result = run(net, layer, batch, inputs=x, **fields)
    axes = (0, 2, 3) if len(shape) == 3 else (0,)
    each = (1, -1, 1, 1) if len(shape) == 3 else (1, -1)
    count = x.size // shape[0]
    mean, var = x.mean(axes, dtype=float), x.var(axes, dtype=float)
    np.testing.assert_allclose(result["mean"], mean, **TOLERANCE)
    np.testing.assert_allclose(result["var"], var, **TOLERANCE)
    gamma, beta = fields["gamma"].reshape(each), fields["beta"].reshape(each)
    expected = gamma * (x - mean.reshape(each)) / np.sqrt(var + 0.01).reshape(each) + beta
    np.testing.assert_allclose(result["value"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result["running_mean"], 0.7 * fields["running_mean"] + 0.3 * mean, **TOLERANCE)
    unbiased = var * count / max(count - 1, 1)
    np.testing.assert_allclose(result["running_var"], 0.7 * fields["running_var"] + 0.3 * unbiased, **TOLERANCE)

    inference = run(net, layer, batch, training=False, inputs=x, **fields)
    centered = x - fields["running_mean"].reshape(each)
    expected = gamma * centered / np.sqrt(fields["running_var"] + 0.01).reshape(each) + beta
    np.testing.assert_allclose(inference["value"], expected, **TOLERANCE)
    np.testing.assert_array_equal(inference["running_mean"], fields["running_mean"])


@pytest.mark.parametrize(("batch", "classes", "offset"), [(4, 7, 0.0), (1, 1, 0.0), (3, 10, 1000.0)])
def test_softmax_loss_and_accuracy(batch, classes, offset) -> None:
    net, (data, label), (x, _) = data_net(batch, (classes,), (1,))
    x += np.float32(offset)
    labels = np.random.default_rng(3).integers(0, classes, (batch, 1))
    result = run(net, SoftmaxLossLayer(net, data, label), batch, inputs=x, label=labels)
    shifted = x.astype(float) - x.max(1, keepdims=True)
    prob = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    np.testing.assert_allclose(result["prob"], prob, rtol=1e-5, atol=1e-7)
    loss = -np.log(prob[np.arange(batch), labels[:, 0]]).mean()
    np.testing.assert_allclose(result["value"], [loss], rtol=1e-5, atol=1e-6)
    accuracy = run(net, AccuracyLayer(net, data, label), batch, inputs=x, label=labels)
    assert accuracy["value"][0] == np.float32((x.argmax(1) == labels[:, 0]).mean())


def test_accuracy_takes_the_first_of_equals() -> None:
    net, (data, label), _ = data_net(2, (3,), (1,))
    x = np.array([[1, 1, 0], [0, 2, 2]], np.float32)
    result = run(net, AccuracyLayer(net, data, label), 2, inputs=x, label=np.array([[0], [2]]))
    assert result["value"][0] == 0.5
