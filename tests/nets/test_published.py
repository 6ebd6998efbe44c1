"""The published nets of the examples compute what PyTorch's of the same weights do."""

import copy

import numpy as np
import pytest
from googlenet import INCEPTIONS, googlenet
from resnet import BLOCKS, resnet, torchvision_names

from latte import Net
from latte.tools.net_files import load_net
from tests.nets.test_examples import ROOT

torch = pytest.importorskip("torch")

from latte.tools.bench.published_torch import GoogLeNet, ResNet  # noqa: E402

OURS = 10.0
"""How many times as far as PyTorch's float32 ours may be from the values in double precision: sums in other orders.
Batch norm over a few numbers amplifies rounding in each of a net's layers."""
LEAST = {"first": 1e-3}
"""Of the norm, where PyTorch's own rounding is less than usual; by default 1e-5. Rounding decides for a ReLU and a
maximum whose values are nearly equal: that moves the first layer's gradient by the root of the share of such cases."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Modules have the same weights each time."""
    torch.manual_seed(3)


def check_same(net: Net, module: torch.nn.Module, size: int, classes: int) -> None:
    """Scores in inference and in training, the loss, gradients of the first and of the last layer."""
    generator = np.random.default_rng(3)
    images = generator.standard_normal((net.batch_size, 3, size, size), np.float32)
    labels = generator.integers(0, classes, net.batch_size)
    torch.manual_seed(3)
    for buffer in module.buffers():
        if buffer.dtype.is_floating_point:
            buffer.uniform_(0.5, 1.5)
    net.load_state_dict(module.state_dict(), torchvision_names(net))
    net.set_batch(images, labels)
    single, double = (
        results(copy.deepcopy(module).to(dtype), images, labels) for dtype in (torch.float32, torch.float64)
    )
    net.test()
    ours = {"inference": net["fc"].get_value()}
    net.forward()
    net.backward()
    first = next(layer for layer in net.ensembles if layer.kind == "conv")
    ours |= {"training": net["fc"].get_value(), "loss": np.array(net.loss)}
    ours |= {"first": first.get_grad_weights(), "last": net["fc"].get_grad_bias()[:, 0]}
    for name, exact in double.items():
        own, norm = np.linalg.norm(single[name] - exact), np.linalg.norm(exact)
        assert np.linalg.norm(ours[name] - exact) <= max(OURS * own, LEAST.get(name, 1e-5) * OURS * norm), name


def results(module: torch.nn.Module, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """PyTorch's, in the precision of the module."""
    given, wanted = torch.from_numpy(images).to(next(module.parameters()).dtype), torch.from_numpy(labels)
    with torch.no_grad():
        scores = module.eval()(given)
    every = module.train()(given)
    every = (every,) if isinstance(every, torch.Tensor) else every
    losses = [torch.nn.functional.cross_entropy(each, wanted) for each in every]
    total = losses[0] + 0.3 * sum(losses[1:])
    total.backward()
    parameters = list(module.parameters())
    found = {"inference": scores if isinstance(scores, torch.Tensor) else scores[0], "training": every[0]}
    found |= {"loss": total, "first": parameters[0].grad, "last": parameters[-1].grad}
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


@pytest.mark.usefixtures("as_lowered")
@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_residual_net(bottleneck):
    net = resnet(batch_size=4, size=33, classes=7, blocks=(1, 2), bottleneck=bottleneck, seed=0)
    net.compile()
    check_same(net, ResNet((1, 2), bottleneck, 7), 33, 7)


@pytest.mark.slow
@pytest.mark.usefixtures("as_lowered")
def test_googlenet(monkeypatch):
    """With its auxiliary losses, without dropout; three of its nine modules."""
    some = {name: INCEPTIONS[name] for name in ("3b", "4a", "4d")}
    monkeypatch.setattr("googlenet.INCEPTIONS", some)
    module = GoogLeNet(some, True, 7)
    module.dropout.p = module.aux1.dropout.p = module.aux2.dropout.p = 0.0
    net = googlenet(3, size=64, classes=7, aux=True, dropout=0.0, dropout_aux=0.0, seed=0)
    net.compile()
    check_same(net, module, 64, 7)


@pytest.mark.parametrize(("depth", "bottleneck"), [(18, False), (34, False), (50, True), (101, True), (152, True)])
def test_names_and_shapes_of_residual_nets(depth, bottleneck):
    check_names(resnet(depth, 1, size=32), ResNet(BLOCKS[depth], bottleneck))


@pytest.mark.parametrize("aux", [False, True])
def test_names_and_shapes_of_googlenet(aux):
    check_names(googlenet(1, aux=aux), GoogLeNet(INCEPTIONS, aux))


def check_names(net: Net, module: torch.nn.Module) -> None:
    """Each tensor of the module but for the counters of batches, with as many elements."""
    with torch.no_grad():
        theirs = {n: t.numel() for n, t in module.state_dict().items() if not n.endswith("num_batches_tracked")}
    names = torchvision_names(net)
    sizes = {
        f"{layer.name}.{field}": int(np.prod(spec.shape))
        for layer in net.ensembles
        for field, spec in layer.fields().items()
    }
    assert {named: sizes[name] for name, named in names.items()} == theirs


@pytest.mark.parametrize("name", ["resnet", "googlenet"])
def test_the_command_line_finds_a_net(name):
    assert load_net(ROOT / "examples" / "nets" / f"{name}.py").batch_size == 4
