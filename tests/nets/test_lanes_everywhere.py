"""Every phase of every layer of the library has lanes where it has a loop as long as a vector: inference, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from latte import MemoryDataLayer, Net
from latte.autodiff.differentiated import differentiate
from latte.ensemble import Ensemble
from latte.frontend.lowered import lower_layers
from latte.planning.plan import Plan, make_plan
from latte.tools.bench.shipped_layers import SHIPPED
from latte.tools.bench.tried import Tried
from swirl.ir.nest import Program, loop_of
from swirl.ir.paths import loops
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.plan_layouts import finished
from swirl.target.targets import TARGETS

Layer = Callable[[Net, Ensemble], Ensemble]

SMALL = {"image": (3, 20, 12), "sequence": (2, 24, 20), "vector": (4, 40, 1), "words": (4, 24, 1)}
"""Batch, channels and extent."""
JOINED = ["gelu", "silu", "prelu", "leaky-relu", "dropout", "elu"]
"""Layers that the default chain joins with the one before them."""
BEFORE = [
    "conv",
    "fully-connected",
    "positionwise-linear",
    "batch-norm",
    "layer-norm",
    "max-pool",
    "sigmoid",
    "conv-depthwise",
]


def planned(tried: Tried, *layers: Layer, target: str) -> Plan:
    """The plan of a source and layers, each after the one before, in training."""
    batch, channels, extent = SMALL[tried.source]
    channels, extent = -(-channels // tried.channels) * tried.channels, -(-extent // tried.extent) * tried.extent
    net = Net(batch, seed=1)
    net.force_backward = True
    words = {"dtype": "int32", "below": 10_000} if tried.source == "words" else {}
    last: Ensemble = MemoryDataLayer(net, tried.item(channels, extent), **words)
    for layer in layers:
        last = layer(net, last)
    with Memos() as memos, KeptSchedules(memos, TARGETS[target]) as kept:
        return make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, batch)), kept)


def longest(program: Program) -> int:
    """Iterations of the longest loop of constant bounds, that of items left aside."""
    found = [loop_of(node) for nest in program.nests for _, node in loops(nest.body)]
    return max((loop.extent or 0 for loop in found if loop.var != "n"), default=0)


def has_lanes(program: Program) -> bool:
    return any(loop_of(node).kind == "vector" for nest in program.nests for _, node in loops(nest.body))


def without_lanes(plan: Plan) -> list[str]:
    """The phases with a loop as long as a vector that run without vectors."""
    width = plan.target.simd_width
    return [
        f"{item.unit.name}.{phase}"
        for item in plan.scheduled
        for phase in item.result.stages
        if any(longest(part.program) >= width for part in item.unit.parts[phase])
        and not has_lanes(finished(plan.state, item.unit.name, phase, width))
    ]


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("name", SHIPPED)
def test_each_phase_of_a_layer_has_lanes(name: str, target: str) -> None:
    tried = SHIPPED[name]
    assert not without_lanes(planned(tried, tried.declare, target=target))


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("second", JOINED)
@pytest.mark.parametrize("first", BEFORE)
def test_each_phase_of_a_pair_has_lanes(first: str, second: str, target: str) -> None:
    before, after = SHIPPED[first], SHIPPED[second]
    assert not without_lanes(planned(before, before.declare, after.declare, target=target))
