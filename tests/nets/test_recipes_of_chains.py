"""The commands of a chain as a recipe: it makes the same programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from latte import (
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SigmoidLayer,
    SoftmaxLossLayer,
)
from latte.autodiff.differentiated import differentiate
from latte.ensemble import Ensemble
from latte.frontend.lowered import lower_layers
from latte.planning.plan import make_plan
from latte.tools.starting_recipe import starting_recipe
from swirl.errors import CommandError
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.target.targets import TARGETS, Target

PORTABLE = TARGETS["portable"]


def chained(kinds: str) -> Net:
    net = Net(4, seed=1)
    net.force_backward = True
    layer: Ensemble = MemoryDataLayer(net, (16, 9, 9))
    for kind in kinds.split():
        match kind:
            case "conv":
                layer = ConvLayer(net, layer, num_filters=32, kernel=3, pad=1)
            case "plain":
                layer = ConvLayerNoBias(net, layer, num_filters=32, kernel=3, pad=1)
            case "norm":
                layer = BatchNormLayer(net, layer)
            case "relu":
                layer = ReLULayer(net, layer)
            case "sigmoid":
                layer = SigmoidLayer(net, layer)
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 3), MemoryDataLayer(net, (1,)))
    return net


def chains(net: Net, target: Target) -> dict[str, tuple[list[Ensemble], dict[str, str]]]:
    """Chain → its layers; phase → its program."""
    with Memos() as memos, KeptSchedules(memos, target) as kept:
        plan = make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, net.batch_size)), kept)
        return {
            item.unit.name: (
                [net[member.name] for member in item.unit.members],
                {phase: item.stages(phase, plan.state, target)[-1].program.text for phase in item.result.stages},
            )
            for item in plan.scheduled
            if item.unit.joined
        }


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kinds", ["conv relu", "plain norm relu", "conv sigmoid"])
def test_printed_commands_of_a_chain_make_the_same_programs(kinds: str, target: Target, tmp_path: Path) -> None:
    before = chains(chained(kinds), target)
    assert before
    for name, (_, programs) in before.items():
        file, again = tmp_path / f"{name}.py", chained(kinds)
        file.write_text(starting_recipe(again, name, target))
        members, _ = chains(again, target)[name]
        again.use_recipe(members, file)
        _, made = chains(again, target)[name]
        assert made == programs, file.read_text()


def test_explain_prints_them() -> None:
    net = chained("conv relu")
    net.compile(target="portable")
    printed = net.explain("conv1_relu1").as_recipe()
    begun = starting_recipe(chained("conv relu"), "conv1_relu1", PORTABLE)
    lines = [[line for line in text.splitlines() if line.strip().startswith("s.")] for text in (printed, begun)]
    assert lines[0] == lines[1]
    assert "    s.tile('weights', 0, target.simd_width, of='conv')" in lines[0]


def test_a_layer_in_a_chain_names_the_chain() -> None:
    net = chained("conv relu")
    net.compile(target="portable")
    with pytest.raises(CommandError, match="conv1 is scheduled in the chain conv1_relu1") as raised:
        net.explain("conv1").as_recipe()
    assert "--layer conv1_relu1" in str(raised.value)
