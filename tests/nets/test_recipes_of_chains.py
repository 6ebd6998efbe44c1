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
from latte.testing import check_recipe
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


# --- s.recipe -----------------------------------------------------------------------------------------------
BUILT = """\
chain = {kinds!r}


def forward(s, target):
{fused}    s.recipe("conv", "forward")


def backward(s, target):
{fused_back}    s.recipe("conv", "backward")
"""


def built(path: Path, kinds: tuple[str, str], fused: bool) -> Path:
    """A recipe of a chain that builds on that of its convolution."""
    lines = [f"    s.fuse_layers({phase!r})\n" if fused else "" for phase in ("forward", "backward")]
    path.write_text(BUILT.format(kinds=kinds, fused=lines[0], fused_back=lines[1]))
    return path


CONVOLUTIONS: dict[str, dict[str, int]] = {
    "3 × 3": {"num_filters": 32, "kernel": 3, "pad": 1},
    "odd": {"num_filters": 20, "kernel": 5, "pad": 2},
    "1 × 1": {"num_filters": 32, "kernel": 1, "pad": 0},
    "stride 2": {"num_filters": 32, "kernel": 3, "pad": 1, "stride": 2},
    "few filters, stride 2": {"num_filters": 3, "kernel": 3, "pad": 1, "stride": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_chains_build_on_the_recipe_of_a_convolution(tmp_path: Path, target: str, name: str) -> None:
    """Forward and backward, fused or not, of several images and of one: loops of the other layer do not matter."""
    sizes = [(8, (32, 14, 14)), (1, (20, 7, 7))]
    for fused, (items, shape) in zip((True, False), sizes if target == "avx2" else sizes[::-1], strict=True):
        net = Net(items, seed=1)
        net.force_backward = True
        ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, shape), **CONVOLUTIONS[name]))
        net.use_recipe("conv_relu", built(tmp_path / "conv_relu.py", ("conv", "relu"), fused))
        (parts,) = chains(net, TARGETS[target]).values()
        assert parts[1].keys() >= {"forward", "inference", "backward"}


def test_what_such_a_chain_computes(tmp_path: Path) -> None:
    def layer(net: Net, source: Ensemble) -> Ensemble:
        return SigmoidLayer(net, ConvLayer(net, source, num_filters=32, kernel=3, pad=1))

    path = built(tmp_path / "conv_sigmoid.py", ("conv", "sigmoid"), fused=False)
    check_recipe(layer, path, sizes=[(2, (32, 5, 4))], may_skip=["parallelize"])


def test_a_convolution_after_another_layer(tmp_path: Path) -> None:
    net = Net(4, seed=1)
    net.force_backward = True
    ConvLayer(net, ReLULayer(net, MemoryDataLayer(net, (32, 9, 9))), num_filters=32, kernel=3, pad=1)
    net.use_recipe("relu_conv", built(tmp_path / "relu_conv.py", ("relu", "conv"), fused=False))
    for target in ("avx512", "avx2"):
        ((_, programs),) = chains(net, TARGETS[target]).values()  # backward is left to the layers' own recipes
        assert programs.keys() == {"forward", "inference"}


def test_errors_in_the_recipe_of_a_layer_have_the_line_that_asked_for_it(tmp_path: Path) -> None:
    def made(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    chain = made(
        "conv_relu.py",
        'chain = ("conv", "relu")\n\n\ndef forward(s, target):\n    s.recipe("conv", "forward")\n',
    )
    for body, told in (
        ('s.vectorize("forward", "nobody", 4)', "vectorize('forward', 'nobody', 4): no loop named 'nobody'"),
        ('s.extent("forward", "nobody")', "no loop named 'nobody'"),
    ):
        own = made("conv.py", f"def forward(s, target):\n    {body}\n")
        net = chained("conv relu")
        net.use_recipe("conv", own)
        net.use_recipe("conv_relu", chain)
        with pytest.raises(CommandError) as raised:
            net.compile(target="portable")
        first, *lines = str(raised.value).splitlines()
        assert first.startswith(f"{own}:2: {told}")
        assert f"  asked by {chain}:5: s.recipe('conv', 'forward')" in lines
