"""Modules of PyTorch made of Latte's layers: values, gradients, states, and what PyTorch does with modules."""

import ast
import copy
import gc
import io
import mmap
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import latte.torch  # noqa: E402
from latte import (  # noqa: E402
    AddLayer,
    BatchNormLayer,
    ConvLayer,
    DropoutLayer,
    EmbeddingLayer,
    Ensemble,
    FullyConnectedLayer,
    MeanSquaredErrorLayer,
    Neuron,
    Param,
    ReLULayer,
)
from latte.neuron import exp, ones  # noqa: E402
from swirl.errors import DataError, DeclarationError, TrainingError  # noqa: E402
from tests.support import running_targets  # noqa: E402

RUNNABLE = running_targets()
SHAPE = (8, 7, 5)


class Swish(Neuron):
    """x · sigmoid(beta · x)."""

    beta = Param("c", init=ones)

    def forward(self):
        self.value = self.input / (1.0 + exp(-self.beta * self.input))


class Exponential(Neuron):
    """Without parameters; its gradient is its value."""

    def forward(self):
        self.value = exp(self.input)


def swish(net: Any, source: Any) -> Any:
    layer = net.add_ensemble(Ensemble(Swish, source.shape, dims=("c", "y", "x")))
    net.add_one_to_one_connections(source, layer)
    return layer


def block(net: Any, source: Any) -> Any:
    return ReLULayer(net, BatchNormLayer(net, ConvLayer(net, source, num_filters=16, kernel=3, pad=1)))


def noisy(net: Any, source: Any) -> Any:
    return DropoutLayer(net, BatchNormLayer(net, source), 0.5)


def normed(net: Any, source: Any) -> Any:
    """Two layers with parameters, and running statistics; without random numbers."""
    return swish(net, BatchNormLayer(net, source))


def two(net: Any, x: Any, y: Any) -> Any:
    """The first output is read by the second one, too."""
    first = AddLayer(net, [x, y])
    return first, ReLULayer(net, first)


def module(build: Any = swish, **options: Any) -> Any:
    torch.manual_seed(0)
    return latte.torch.module(build, inputs=[SHAPE] * (2 if build is two else 1), **options)


def tensor(items: int = 4, shape: tuple[int, ...] = SHAPE, seed: int = 1) -> Any:
    made = torch.randn(items, *shape, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_()


def gradient(called: Any, given: Any) -> Any:
    """Of a fixed function of the output, by the input."""
    given.grad = None
    called(given).square().sum().backward()
    return given.grad.clone()


def close(ours: Any, theirs: Any, bound: float = 1e-5) -> None:
    """Whether numbers agree relative to the greatest one; the shapes are PyTorch's."""
    ours, theirs = ours.detach().reshape(theirs.shape), theirs.detach()
    assert float((ours - theirs).abs().max()) <= bound * float(theirs.abs().max().clamp(min=1e-3))


def peer(ours: Any) -> Any:
    """``block`` in PyTorch, with the same parameters."""
    made = nn.Sequential(nn.Conv2d(SHAPE[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    known = ours.state_dict()
    names = {"0.weight": "conv1.weights", "0.bias": "conv1.bias", "1.weight": "batch_norm1.gamma"}
    names["1.bias"] = "batch_norm1.beta"
    state = made.state_dict()
    made.load_state_dict(state | {theirs: known[own].reshape(state[theirs].shape) for theirs, own in names.items()})
    return made


# --- values and gradients -------------------------------------------------------------------------------------
def compare_with_pytorch(ours: Any, theirs: Any, x: Any) -> None:
    """Values, gradients and running statistics of a step, and the layout of each."""
    x = x.detach().requires_grad_()
    like = x.detach().clone().requires_grad_()
    y, other = ours(x), theirs(like)
    seed = torch.randn_like(other)
    y.backward(seed), other.backward(seed)
    close(y, other), close(x.grad, like.grad)
    close(ours.conv1.weights.grad, theirs[0].weight.grad), close(ours.batch_norm1.gamma.grad, theirs[1].weight.grad)
    close(ours.batch_norm1.running_mean, theirs[1].running_mean)
    close(ours.batch_norm1.running_var, theirs[1].running_var)
    assert y.stride() == other.stride() and x.grad.stride() == like.grad.stride()
    ours.zero_grad(), theirs.zero_grad()


@pytest.mark.parametrize(("target", "channels_last"), [(RUNNABLE[0], True), *((each, False) for each in RUNNABLE)])
def test_as_in_pytorch(target: str, channels_last: bool) -> None:
    ours = module(block, target=target, batch_size=4)
    theirs = peer(ours)
    form = torch.channels_last if channels_last else torch.contiguous_format
    for items in (4, 3, 1):
        x = tensor(items, seed=items).to(memory_format=form)
        compare_with_pytorch(ours.train(), theirs.train(), x)
        with torch.no_grad():
            close(ours.eval()(x), theirs.eval()(x))
    assert not ours.report.copied


def test_gradients_in_evaluation() -> None:
    ours = module(block, batch_size=4)
    theirs = peer(ours)
    for training in (True, False):
        compare_with_pytorch(ours.train(training), theirs.train(training), tensor(4))
    assert not ours.report.copied


def test_any_number_of_items() -> None:
    ours = module()
    for items in (3, 1, 0, 7):
        x = tensor(items)
        y = ours(x)
        y.sum().backward()
        assert y.shape == x.shape == x.grad.shape
        close(y, x * torch.sigmoid(x)) if items else None
    declared = module(batch_size=4)
    with pytest.raises(DataError, match="5 items are given, and the module was declared for 4 at most"):
        declared(tensor(5))


def test_several_inputs_and_outputs() -> None:
    ours = module(two)
    x, y = tensor(seed=1), tensor(seed=2)
    first, second = ours(x, y)
    (first.sum() + (3 * second).sum()).backward()
    expected = 1 + 3 * ((x + y) > 0).float()
    assert torch.equal(x.grad, expected) and torch.equal(y.grad, expected)
    x.grad = None
    first, second = ours(x, y)
    second.sum().backward()  # nothing for the first
    assert torch.equal(x.grad, ((x + y) > 0).float())


def test_integers() -> None:
    words = latte.torch.module(
        lambda net, x: EmbeddingLayer(net, x, 11, 6), [latte.torch.Input((5,), "int32", below=11)]
    )
    x = torch.randint(0, 11, (3, 5))
    y = words(x)
    assert torch.equal(y, words.embedding1.weights[x])
    y.sum().backward()
    assert torch.equal(words.embedding1.weights.grad.sum(1), 6.0 * torch.bincount(x.flatten(), minlength=11))
    with pytest.raises(DataError, match="input 0 has 11: it must be from 0 to 10"):
        words(x + 11 - x.max() + 0)


def test_a_loss() -> None:
    loss = latte.torch.module(lambda net, x, y: MeanSquaredErrorLayer(net, x, y), [(7,), (7,)])
    x, y = tensor(shape=(7,)), tensor(shape=(7,), seed=2).detach()
    found = loss(x, y)
    found.backward()
    assert found.shape == ()
    close(found, nn.functional.mse_loss(x, y)), close(x.grad, 2 * (x - y) / x.numel())
    with pytest.raises(DataError, match="input 1 is read as a label"):
        loss(x, y.clone().requires_grad_())


# --- the state of a call --------------------------------------------------------------------------------------
def test_state_belongs_to_the_call() -> None:
    ours = module()
    x, other = tensor(4), tensor(2, seed=3)
    alone = gradient(ours, x)
    first, second = ours(x), ours(other)
    x.grad = None
    first.square().sum().backward(retain_graph=True)
    assert torch.equal(x.grad, alone)
    second.square().sum().backward()
    x.grad = None
    first.square().sum().backward()
    assert torch.equal(x.grad, alone)
    twice = gradient(lambda given: ours(ours(given)), x)
    plain = gradient(lambda given: nn.functional.silu(nn.functional.silu(given)), x)
    close(twice, plain)


def test_what_changes_between_forward_and_backward() -> None:
    """The number of threads, whose kernels backward then has; and the most items of a call."""
    ours, x, threads = module(normed), tensor(4), torch.get_num_threads()
    alone = gradient(ours, x)
    x.grad = None
    try:
        value = ours(x)
        torch.set_num_threads(threads + 1)
        value.square().sum().backward()
        assert {each.threads for each in ours._function._bound} == {threads, threads + 1}
    finally:
        torch.set_num_threads(threads)
    close(x.grad, alone)
    x.grad, value = None, ours(x)
    ours(tensor(9))  # compiles for more items: what was for four is dropped
    value.square().sum().backward()
    assert torch.equal(x.grad, alone)


def test_checkpointed_segments() -> None:
    ours, x = nn.Sequential(module(), module(noisy)), tensor()
    torch.manual_seed(3)
    plain = gradient(ours, x)
    for reentrant in (False, True):
        torch.manual_seed(3)
        assert torch.equal(gradient(lambda given, how=reentrant: checkpoint(ours, given, use_reentrant=how), x), plain)


def test_threads_of_python() -> None:
    ours = module()
    ours(tensor())
    batches = [tensor(1 + number % 4, seed=number) for number in range(6)]
    wanted = [gradient(ours, x) for x in batches]
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(20):
            x = batches[number].detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(ours(x).square().sum(), x)
            if not torch.equal(found, wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_numbers_follow_pytorchs_seed() -> None:
    ours, x = module(noisy), tensor()
    torch.manual_seed(1)
    first = ours(x)
    second = ours(x)
    torch.manual_seed(1)
    assert torch.equal(ours(x), first) and not torch.equal(first, second)


def test_changes_that_leave_no_trace() -> None:
    ours, x = module(), tensor()
    before = ours(x)
    ours.swish1.beta.data.add_(1)
    assert not torch.equal(ours(x), before)
    with torch.no_grad():
        average = torch.optim.swa_utils.AveragedModel(ours)
        average.update_parameters(ours)  # the first one copies
        ours.swish1.beta.data.add_(1)
        average.update_parameters(ours)
        close(average(x), x / (1 + torch.exp(-2.5 * x)))


# --- what PyTorch does with modules ---------------------------------------------------------------------------
def test_state_dict_copies_and_pickles() -> None:
    ours, x = module(normed), tensor()
    gradient(ours, x)
    assert list(ours.state_dict()) == [
        "batch_norm1.gamma",
        "batch_norm1.beta",
        "batch_norm1.running_mean",
        "batch_norm1.running_var",
        "swish1.beta",
    ]
    ours.eval()
    wanted = ours(x)
    copied, pickled, loaded = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), module(normed).eval()
    loaded.load_state_dict(ours.state_dict())
    stored = io.BytesIO()
    torch.save(ours, stored)
    stored.seek(0)
    for other in (copied, pickled, loaded, torch.load(stored, weights_only=False)):
        assert torch.equal(other(x), wanted)
    copied.swish1.beta.data.zero_()
    assert torch.equal(ours(x), wanted)


def test_optimizers_and_frozen_parameters() -> None:
    ours, x = module(), tensor()
    optimizer = torch.optim.Adam(ours.parameters())
    before = ours.swish1.beta.detach().clone()
    gradient(ours, x)
    optimizer.step()
    assert not torch.equal(ours.swish1.beta, before)
    ours.requires_grad_(False)
    optimizer.zero_grad()
    gradient(ours, x)
    assert ours.swish1.beta.grad is None
    assert not ours(x.detach()).requires_grad


def test_batch_norm_trains_with_frozen_parameters() -> None:
    ours, x = module(noisy).requires_grad_(False), tensor().detach()
    before = ours.batch_norm1.running_mean.clone()
    ours(x)  # as in PyTorch, statistics follow the data unless eval() is called
    assert not torch.equal(ours.batch_norm1.running_mean, before)


def test_hooks() -> None:
    ours, seen = module(), []
    ours.register_forward_hook(lambda *_: seen.append("forward"))
    ours.register_full_backward_hook(lambda *_: seen.append("backward"))
    ours.swish1.beta.register_hook(lambda grad: seen.append("parameter"))
    gradient(ours, tensor())
    assert seen == ["forward", "parameter", "backward"] or sorted(seen) == ["backward", "forward", "parameter"]


def test_hooks_on_saved_tensors() -> None:
    ours, x = nn.Sequential(module(normed), nn.Flatten()), tensor()
    plain = gradient(ours, x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        assert torch.equal(gradient(ours, x), plain)


def test_reparametrised_parameters() -> None:
    ours, x = module(), tensor()
    plain = ours(x)
    torch.nn.utils.parametrizations.weight_norm(ours.swish1, "beta")
    close(ours(x), plain)
    gradient(ours, x)
    assert all(p.grad is not None for p in ours.parameters())


def test_backward_after_the_module_is_gone() -> None:
    x = tensor()
    wanted = gradient(module(), x)
    x.grad = None
    y = module()(x)
    gc.collect()
    y.square().sum().backward()
    assert torch.equal(x.grad, wanted)


def test_first_calls_of_several_threads() -> None:
    ours, x, failed = latte.torch.module(swish), tensor(), []

    def run() -> None:
        try:
            ours(x)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_autocast_computes_in_float32() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), module())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(tensor()).dtype == torch.float32


def test_shapes_of_the_first_call() -> None:
    act = latte.torch.layer(Exponential)
    x = tensor(2, (3, 5))
    close(act(x), torch.exp(x))
    late = latte.torch.module(swish)
    with pytest.raises(DataError, match="the parameters of this module do not exist yet"):
        late.load_state_dict(module().state_dict())
    with pytest.warns(latte.torch.LateParameters):
        late(tensor())
    assert [name for name, _ in late.named_parameters()] == ["swish1.beta"]
    dense = latte.torch.layer(FullyConnectedLayer, num_outputs=3, inputs=[(5,)])
    assert dense(torch.ones(2, 5)).shape == (2, 3)


# --- memory ---------------------------------------------------------------------------------------------------
def test_copies_are_counted() -> None:
    ours = module()
    x = tensor(4).detach()
    ours(x), ours(x.to(memory_format=torch.channels_last))
    assert not ours.report.copied
    ours(x[:, :, :, :].transpose(2, 3).contiguous().transpose(2, 3))
    ours(torch.randn(4 * 8 * 7 * 5 + 1)[1:].view(4, *SHAPE))
    reasons = sorted(ours.report.copied)
    assert len(reasons) == 2 and reasons[0].startswith("input 0: not aligned") and "strides" in reasons[1]


def at_the_end_of_a_page(values: Any) -> Any:
    """A tensor after whose last element no memory can be read."""
    nbytes, page = values.numel() * 4, mmap.PAGESIZE
    size = -(-nbytes // page) * page
    region = mmap.mmap(-1, size + page)
    array = np.frombuffer(region, np.float32, offset=size - nbytes, count=values.numel()).reshape(values.shape)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    end = array.ctypes.data + nbytes
    assert libc.mprotect(ctypes.c_void_p(end), page, 0) == 0
    made = torch.from_numpy(array)
    made.copy_(values)
    return made


@pytest.mark.parametrize(
    ("target", "shape"), [(RUNNABLE[0], (16, 1, 1)), *((each, SHAPE) for each in RUNNABLE)], ids=str
)
@pytest.mark.parametrize("build", [swish, block, noisy], ids=lambda build: build.__name__)
def test_nothing_is_read_after_the_last_item(build: Any, target: str, shape: tuple[int, ...]) -> None:
    ours = latte.torch.module(build, [shape], batch_size=4, target=target)
    for items in (4, 2):  # an even number, so that the first element is aligned
        x = at_the_end_of_a_page(torch.randn(items, *shape)).requires_grad_()
        y = ours.train()(x)
        y.backward(at_the_end_of_a_page(torch.randn_like(y)))
        with torch.no_grad():
            ours.eval()(x)
    assert not ours.report.copied


def test_channels_last_whose_backward_does_not_need_the_output() -> None:
    ours = latte.torch.module(lambda net, x: ConvLayer(net, x, num_filters=4, kernel=3, pad=1), [SHAPE])
    x = tensor(3).detach().to(memory_format=torch.channels_last).requires_grad_()
    y = ours(x)
    y.backward(torch.ones_like(y))
    like = x.detach().clone().requires_grad_()
    weights, bias = ours.conv1.weights, ours.conv1.bias.flatten()
    nn.functional.conv2d(like, weights, bias, padding=1).backward(torch.ones_like(y))
    close(x.grad, like.grad)
    assert not ours.report.copied


# --- refused --------------------------------------------------------------------------------------------------
def test_what_is_refused() -> None:
    ours, x = module(), tensor()
    for kind in (torch.half, torch.bfloat16):
        with pytest.raises(TrainingError, match="computes in float32 or float64 on the CPU"):
            ours.to(kind)
    with pytest.raises(DataError, match=r"input 0 has shape \(4, 8, 7, 4\), and this module was declared for"):
        ours(x[..., :4])
    with pytest.raises(DataError, match="this module takes 1 inputs, not 2"):
        ours(x, x)
    with pytest.raises(DataError, match=r"input 0 is torch\.int64"):
        ours(torch.ones(4, *SHAPE, dtype=torch.int64))
    with pytest.raises(DataError, match="computes in float32, or all in float64"):
        ours(x.double())
    for wrong in ((), (3,), (x[0, 0, 0, 0],), ([1.0],)):
        with pytest.raises(DataError, match="takes tensors, the items in their first dimension") as caught:
            ours(*wrong)
        assert Path(__file__).name in str(caught.value)
    with pytest.raises(DataError, match="complex64"):
        ours(x.detach().to(torch.complex64))
    with pytest.raises(TrainingError, match=r"transforms of torch\.func"):
        torch.func.grad(lambda given: ours(given).sum())(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(TrainingError, match="forward-mode derivatives"):
        ours(torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x)))
    other = module(noisy)
    other.batch_norm1.running_mean = torch.zeros(2)  # kernels would write after its end
    with pytest.raises(DataError, match=r"batch_norm1\.running_mean has shape \(2,\)"):
        other(x)
    with pytest.raises(DataError, match=r"swish1\.beta has shape \(3,\)"):
        torch.func.functional_call(ours, {"swish1.beta": torch.ones(3)}, (x,))
    (found,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
    with pytest.raises(TrainingError, match="gradients of gradients do not go through a Latte module"):
        found.sum().backward()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net, x: x, "returns an input as it is"),
        (lambda net, x: 3, "a function that returns a layer"),
        (lambda net, x: [], "a function that returns a layer"),
        (lambda net, x: [swish(net, x)] * 2, "returns a layer twice"),
        (lambda net, x: ReLULayer(net, x, name="forward"), None),
    ],
)
def test_wrong_declarations(build: Any, message: str | None) -> None:
    if message is None:
        latte.torch.module(build, [SHAPE])  # a name that PyTorch has matters where there are parameters
        return
    with pytest.raises(DeclarationError, match=message):
        latte.torch.module(build, [SHAPE])


def test_wrong_inputs() -> None:
    for given in ("8", 0, (8, -1), (8, 2.5), None):
        with pytest.raises(DeclarationError, match="an input is given by its shape without the batch"):
            latte.torch.module(swish, [given])
    with pytest.raises(DeclarationError, match="a layer of Swish has no gain"):
        latte.torch.layer(Swish, gain=3)


ONE_OPENMP = """
import latte.torch, torch
from latte import MemoryDataLayer, Net, ReLULayer
latte.torch.layer(ReLULayer)(torch.ones(2, 3))
net = Net(2)
ReLULayer(net, MemoryDataLayer(net, (3,)))
net.compile()
print({line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "iomp" in line})
"""


@pytest.mark.parametrize("first", ["import torch", "import latte; latte.Net(1)"])
def test_one_openmp(first: str) -> None:
    """In a process of its own: other packages bring theirs."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-c", f"{first}\n{ONE_OPENMP}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert len(ast.literal_eval(done.stdout.splitlines()[-1])) == 1, done.stdout
