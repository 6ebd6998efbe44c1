"""Modules of Latte's layers where PyTorch compiles, exports, checks and distributes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.pytorch.test_modules import SHAPE, close, gradient, module, noisy, tensor  # noqa: E402


def model(**options: Any) -> Any:
    return nn.Sequential(nn.Conv2d(SHAPE[0], SHAPE[0], 3, padding=1), module(**options), nn.ReLU())


def test_torch_compile_in_one_graph() -> None:
    plain, x = model(), tensor()
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    close(gradient(compiled, x), gradient(plain, x))
    for items in (3, 2, 4):
        other = tensor(items)
        close(compiled(other), plain(other))
    with torch.no_grad():
        close(compiled(x), plain(x))


def test_torch_compile_changes_running_statistics() -> None:
    ours, x = module(noisy), tensor()
    torch.compile(ours, fullgraph=True, backend="aot_eager")(x).sum().backward()
    other = module(noisy)
    other(x)
    close(ours.batch_norm1.running_mean, other.batch_norm1.running_mean)


def test_torch_export() -> None:
    plain, x = model(batch_size=4).eval(), tensor().detach()
    exported = torch.export.export(plain, (x,), dynamic_shapes=({0: torch.export.Dim("items", min=1, max=4)},))
    for items in (4, 3):
        close(exported.module()(x[:items]), plain(x[:items]))


@pytest.mark.parametrize("build", [None, noisy])
def test_opcheck(build: Any) -> None:
    ours = module() if build is None else module(build)
    ours.eval()(tensor())
    function, parameters, states = ours._function, list(ours.parameters()), list(ours.buffers())
    frozen = [each.detach() for each in parameters]
    torch.library.opcheck(torch.ops.latte.inference.default, ([tensor().detach()], frozen, states, function.number, 4))
    call = [tensor()], parameters, states, torch.tensor(5), function.number, 4, "training", [True] * len(parameters)
    torch.library.opcheck(torch.ops.latte.forward.default, (*call, True))


def test_gradients_are_ready_layer_by_layer() -> None:
    """``DistributedDataParallel`` sends those of later layers while backward of earlier ones is still to come: what it
    is told by, the hooks of parameters, fires in this order."""
    first, second = module(), module()
    told: list[str] = []
    for name, each in (("first", first), ("second", second)):
        for parameter in each.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: told.append(name))
    between = first(tensor())
    between.register_hook(lambda _: told.append("backward of the first begins"))
    second(between).sum().backward()
    later, earlier = (["second"] * len(list(second.parameters())), ["first"] * len(list(first.parameters())))
    assert told == [*later, "backward of the first begins", *earlier]


SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from tests.pytorch.test_modules import SHAPE, module, block, tensor
rank, world, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(module(), nn.Flatten(), nn.Linear(8 * 7 * 5, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = tensor(4).detach()
for _ in range(3):
    optimizer.zero_grad()
    model(x[rank::world]).square().mean().backward()
    optimizer.step()
if rank == 0:
    torch.save({k: v.detach() for k, v in model.module.state_dict().items()}, sys.argv[4])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(SCRIPT)
    port, result = 20000 + os.getpid() % 20000, tmp_path / "state.pt"
    ranks = [
        subprocess.Popen([sys.executable, str(tmp_path / "rank.py"), str(rank), "2", str(port), str(result)])
        for rank in range(2)
    ]
    assert [each.wait(timeout=120) for each in ranks] == [0, 0]
    torch.manual_seed(0)
    alone = nn.Sequential(module(), nn.Flatten(), nn.Linear(8 * 7 * 5, 3))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        alone(tensor(4).detach()).square().mean().backward()
        optimizer.step()
    together = torch.load(result)
    for name, values in alone.state_dict().items():
        close(together[name], values)
