"""In whatever phases neighbours are compiled together, layers run after what they read: plans of random nets, of which
nothing is compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from latte import AddLayer, ConvLayer, MemoryDataLayer, Net, PReLULayer
from latte.autodiff.differentiated import Differentiated, LayerPrograms
from latte.frontend.lowered import lower_layers
from latte.model.graph import Graph
from latte.planning.chains import chained_order, find_chains
from latte.planning.recipes import Recipes
from latte.planning.units import NetUnits, Unit, touched, written
from latte.runtime.arranging import execution_order
from tests.fuzz.checks import random_pick
from tests.fuzz.net_cases import Layer, NetCase, NetMaker, declare

SHARES = (0.0, 0.3, 0.6)
"""Of the phases of chains, those that their recipes leave to the layers."""


def differentiated(graph: Graph, batch: int) -> Differentiated:
    return Differentiated(graph, lower_layers(graph, batch))


def planned(graph: Graph, layers: Differentiated, share: float, seed: int) -> tuple[list[LayerPrograms], list[Unit]]:
    """The programs of a net in the order that its chains need, and what is compiled together."""
    generator = random.Random(seed)
    left: dict[tuple[str, str], str] = {}
    asked: set[tuple[str, str]] = set()
    while True:
        chains = find_chains(graph, left=left)
        programs = layers.programs(chained_order(graph, chains.found))
        units = NetUnits(graph, Recipes(graph)).of(programs, chains)
        new = [(unit.name, phase) for unit in units if unit.joined for phase in unit.parts if phase != "update"]
        new = [key for key in new if key not in asked]
        if not new:
            return programs, units
        asked.add(new[0])
        if generator.random() < share:
            left[new[0]] = "left by chance"


def assert_in_order(graph: Graph, programs: Sequence[LayerPrograms], units: Sequence[Unit]) -> None:
    owner = {id(program): item.ensemble.name for item in programs for program in item.programs.values()}
    kernels: list[Any] = [SimpleNamespace(unit=unit, phase=phase) for unit in units for phase in unit.parts]
    runs = {
        phase: [(owner[id(part.program)], part.program) for kernel in order for part in kernel.unit.parts[kernel.phase]]
        for phase, order in execution_order(kernels).items()
    }
    assert sum(map(len, runs.values())) == sum(len(item.programs) for item in programs)
    for phase in ("forward", "inference"):
        names = [name for name, _ in runs[phase]]
        for edge in graph.connections:
            if edge.source.name in names and edge.sink.name in names:
                assert names.index(edge.source.name) < names.index(edge.sink.name), (phase, names)
    position = {item.ensemble.name: number for number, item in enumerate(programs)}
    for storage in {name for _, program in runs["backward"] for name in written(program)}:
        layer, _, field = storage.partition(".")
        steps = [
            (number, name, storage in written(program))
            for number, (name, program) in enumerate(runs["backward"])
            if storage in touched(program)
        ]
        writers = [(number, name) for number, name, writes in steps if writes and (name, field) != (layer, "grad")]
        first = max((name for _, name in writers), key=lambda name: position[name])
        assert writers[0][1] == first, f"{storage} is set by {first}, and {writers[0][1]} runs before it"
        reads = [number for number, name, writes in steps if name == layer and not writes]
        if field == "grad" and reads:
            assert max(writers)[0] < min(reads), f"{layer} reads its gradient before all have added to it"


def branching(seed: int) -> NetCase:
    """Layers of one shape that read and join each other's values."""
    generator = random.Random(seed)
    case = NetCase(3, (16, 5, 5), (Layer("conv", (0,), {"num_filters": 16}),))
    for _ in range(8):
        layers = range(1, len(case.layers) + 1)
        first, second = (generator.choice(list(generator.choice((layers, case.tops)))) for _ in range(2))
        if first != second:
            layer = Layer(generator.choice(("add", "multiply", "residual_sum")), (first, second))
        else:
            kind = generator.choice(("conv", "conv", "relu", "prelu", "tanh", "batch_norm", "layer_norm", "doubled"))
            layer = Layer(kind, (first,), {"num_filters": 16} if kind == "conv" else {})
        case = replace(case, layers=(*case.layers, layer))
    return case


@pytest.mark.parametrize("seed", range(18))
@pytest.mark.parametrize(
    "make", [branching, lambda seed: NetMaker(random_pick(seed)).make(seed)], ids=["branching", "any"]
)
def test_of_random_nets(make: Callable[[int], NetCase], seed: int) -> None:
    case = make(seed)
    graph = declare(case).net.graph
    layers = differentiated(graph, case.batch)
    for share in SHARES:
        assert_in_order(graph, *planned(graph, layers, share, seed))


@pytest.mark.parametrize("first", [True, False])
def test_of_two_branches_that_are_added(first: bool) -> None:
    """Forward was compiled with one of them, backward with the other one."""
    net = Net(3, seed=0)
    net.force_backward = True
    source = ConvLayer(net, MemoryDataLayer(net, (3, 5, 5)), num_filters=16)
    branches = [ConvLayer(net, source, num_filters=16), PReLULayer(net, source)]
    AddLayer(net, branches if first else branches[::-1])
    layers = differentiated(net.graph, 3)
    for seed in range(8):
        assert_in_order(net.graph, *planned(net.graph, layers, 0.5, seed))


def test_recipes_that_join_one_layer_with_two_sources(tmp_path: Path) -> None:
    """In different phases: the second one is not followed, and ``explain`` says why."""
    net = Net(3, seed=0)
    source = ConvLayer(net, MemoryDataLayer(net, (3, 5, 5)), num_filters=16)
    branches = [ConvLayer(net, source, num_filters=16), PReLULayer(net, source)]
    top = AddLayer(net, branches)
    for branch, phase in zip(branches, ("forward", "backward"), strict=True):
        path = tmp_path / f"{phase}.py"
        path.write_text(f"chain = {branch.kind, top.kind}\n\ndef {phase}(s, target):\n    pass\n")
        net.use_recipe([branch, top], path)
    chains = find_chains(net.graph)
    assert [chain.name for chain in chains.found] == ["conv2_add1"]
    assert chains.notes["prelu1"] == ("not compiled as prelu1_add1: add1 is compiled with conv2 in forward, inference",)
