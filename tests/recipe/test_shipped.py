"""What the shipped recipes do on usual and on odd shapes: a recipe that quietly skips everything is a defect."""

from collections.abc import Callable
from pathlib import Path

import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    MemoryDataLayer,
    Net,
    ReLULayer,
    TanhLayer,
)
from latte.autodiff.differentiated import differentiate, layer_programs
from latte.ensemble import Ensemble
from latte.frontend.lowered import lower_layers
from latte.planning.plan import make_plan
from latte.planning.recipes import Recipes
from swirl.ir.buffers import Layout
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.pipeline import schedule_alone
from swirl.target.targets import get_target
from tests.support import laid_out

LAYERS = {
    "conv, 16 × 32 channels of 28 × 28": lambda net: ConvLayer(net, MemoryDataLayer(net, (16, 28, 28)), 32),
    "conv, odd": lambda net: ConvLayerNoBias(net, MemoryDataLayer(net, (3, 7, 5)), 17, stride=2),
    "batch norm of images": lambda net: BatchNormLayer(net, MemoryDataLayer(net, (64, 14, 14))),
    "batch norm of vectors": lambda net: BatchNormLayer(net, MemoryDataLayer(net, 37)),
    "ReLU": lambda net: ReLULayer(net, MemoryDataLayer(net, (5, 7, 3))),
    "ReLU, more elements than an int counts": lambda net: ReLULayer(net, MemoryDataLayer(net, (2**9, 2**10, 2**9))),
    "tanh": lambda net: TanhLayer(net, MemoryDataLayer(net, 10)),
}


LAYERS |= {
    "ReLU, in blocks": lambda net: ReLULayer(net, MemoryDataLayer(net, (32, 7, 3))),
    "ReLU, large and in blocks": lambda net: ReLULayer(net, MemoryDataLayer(net, (64, 56, 56))),
    "ReLU, large, prime and in blocks": lambda net: ReLULayer(net, MemoryDataLayer(net, (16, 1, 1031))),
    "ReLU, few channels in a block": lambda net: ReLULayer(net, MemoryDataLayer(net, (20, 3, 3))),
    "batch norm of images, in blocks": lambda net: BatchNormLayer(net, MemoryDataLayer(net, (64, 56, 56))),
    "batch norm of small images, few channels in a block": lambda net: BatchNormLayer(
        net, MemoryDataLayer(net, (20, 7, 7))
    ),
    "batch norm of vectors, in blocks": lambda net: BatchNormLayer(net, MemoryDataLayer(net, 37)),
    "tanh, in blocks": lambda net: TanhLayer(net, MemoryDataLayer(net, 64)),
}


@pytest.mark.parametrize("layer", list(LAYERS))
def test_applied_and_skipped(layer: str, snapshot) -> None:
    net = Net(8, seed=0)
    net.force_backward = True
    ensemble = LAYERS[layer](net)
    (programs,) = [p.programs for p in layer_programs(net.graph, 8) if p.ensemble is ensemble]
    if "block" in layer:
        blocks = Layout(((1, 16),))
        layouts = {f"{edge.source.name}.{name}": blocks for edge in ensemble.connections for name in ("value", "grad")}
        programs = {phase: laid_out(program, layouts) for phase, program in programs.items()}
    # get_target: the same on every machine, whatever it can run.
    scheduled = schedule_alone(programs, Recipes(net.graph).of(ensemble), get_target("avx512"), [f"{ensemble.name}."])
    lines = [
        f"{o.status}: {o.command.text} {o.reason.splitlines()[0] if o.reason else ''}".rstrip()
        for o in scheduled.outcomes
    ]
    assert any(line.startswith("applied") for line in lines)
    assert "\n".join(lines) == snapshot


def conv_relu(net: Net, data: Ensemble) -> Ensemble:
    return ReLULayer(net, ConvLayer(net, data, 32))


def conv_batch_norm_relu(net: Net, data: Ensemble) -> Ensemble:
    return ReLULayer(net, BatchNormLayer(net, ConvLayer(net, data, 32)))


@pytest.mark.parametrize("declare", [conv_relu, conv_batch_norm_relu])
@pytest.mark.parametrize("shape", [(16, 28, 28), (3, 7, 5)])
def test_applied_and_skipped_in_chains(
    declare: Callable[[Net, Ensemble], Ensemble], shape: tuple[int, ...], snapshot
) -> None:
    net = Net(8, seed=0)
    net.force_backward = True
    declare(net, MemoryDataLayer(net, shape))
    lines = []
    programs = differentiate(net.graph, lower_layers(net.graph, 8))
    with Memos() as memos, KeptSchedules(memos, get_target("avx512")) as kept:
        plan = make_plan(net.graph, programs, kept)
    for item in plan.scheduled:
        outcomes = item.result.outcomes
        if item.unit.joined:
            assert any(o.status == "applied" for o in outcomes)
            lines.append(f"{item.unit.name}: {', '.join(item.unit.parts)}")
            lines += [
                f"{o.status}: {o.command.text} {o.reason.splitlines()[0] if o.reason else ''}".rstrip()
                for o in outcomes
            ]
    assert lines and "\n".join(lines) == snapshot


def test_the_manual_says_which_layers_have_recipes() -> None:
    """The table of docs/layers.md: a recipe goes where the default schedule does as well. Each is tried above."""
    root = Path(__file__).parents[2]
    alone = {path.stem for path in (root / "recipes").glob("[!_]*.py") if "\nchain = " not in path.read_text()}
    rows = [line.split(" | ") for line in (root / "docs/layers.md").read_text().splitlines() if "Layer`" in line[:60]]
    said = {row[0].split("`")[1] for row in rows if "recipe" in row[-1]}
    assert said == {"".join(map(str.capitalize, kind.split("_"))) + "Layer" for kind in alone}
    assert alone <= {declare(Net(8, seed=0)).kind for declare in LAYERS.values()}
