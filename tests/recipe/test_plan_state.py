"""The state of a plan: one table of layouts, regions without any, and commands that lead from state to state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer
from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.planning.plan import Plan, make_plan
from swirl.errors import LatteError
from swirl.ir.buffers import Layout
from swirl.schedule.kept_schedules import KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.plan_state import lone_region, resolve, stored
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from tests.recipe.test_schedule import programs
from tests.support import laid_out

ROOT = Path(__file__).parents[2]
TARGET = TARGETS["portable"]
BLOCKS = Layout(((1, 4),))

SETTERS = {
    "swirl/ir/buffers.py": "how it is done",
    "swirl/ir/text.py": "programs read from the disk",
    "swirl/schedule/plan_state.py": "the table, filled in and taken out",
    "swirl/schedule/plan_layouts.py": "the table, for what a command asks of it",
    "swirl/schedule/queries.py": "the table, to be asked",
    "swirl/codegen/physical.py": "layouts made physical",
    "latte/runtime/executable.py": "the table, for the memory that is bound",
    "latte/runtime/calls.py": "the table, for the memory that calls bring",
    "latte/solver/updates.py": "programs of no plan, for parameters as they lie",
}
"""What may give a buffer a layout, besides the commands on layouts, and copies, which follow those."""
COMMANDS_ON_LAYOUTS = {"tile", "transpose", "set_padding", "untile", "layout", "relayout"}


def test_nobody_else_sets_layouts() -> None:
    found = set()
    for path in [*(ROOT / "swirl").rglob("*.py"), *(ROOT / "latte").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "with_layout" or any(keyword.arg == "layout" for keyword in node.keywords):
                found.add(path.relative_to(ROOT).as_posix())
    others = {name for name in found if Path(name).stem not in COMMANDS_ON_LAYOUTS}
    assert others == set(SETTERS)


def test_what_is_stored_has_no_layout_and_is_filled_in_again() -> None:
    given = {phase: laid_out(program, {"scale1.value": BLOCKS}) for phase, program in programs().items()}
    state, region = lone_region(given)
    assert {b.layout for region in state.regions.values() for *_, b in region.bindings()} == {Layout()}
    assert state.layout("scale1.value") == BLOCKS and state.layout("scale1.grad") == Layout()
    for phase, program in given.items():
        assert resolve(state, region, phase) == program
        assert stored(state, region, phase, program) == state


def test_new_storage_brings_its_layout() -> None:
    s = Schedule.alone(programs(), TARGET, "scale1.")
    s.pack("forward", "weights")
    s.set_padding("weights_packed", (1, 1))
    assert s.state.layout("scale1.forward.weights_packed").halo == ((1, 1),)
    assert s.programs["forward"].buffers["weights_packed"].layout.halo == ((1, 1),)
    assert {b.layout for region in s.state.regions.values() for *_, b in region.bindings()} == {Layout()}


@pytest.mark.parametrize("optional", [False, True])
def test_to_take_a_command_back_is_to_keep_the_state(optional: bool) -> None:
    s = Schedule.alone(programs(), TARGET, "scale1.")
    s.tile("value", 0, 4)
    before = s.state
    try:
        s.tile("value", 0, 8, optional=optional)
    except LatteError:
        assert not optional
    assert s.state is before and s.outcomes[-1].status == ("skipped" if optional else "applied")


def planned(net: Net) -> Plan:
    with Memos() as memos, KeptSchedules(memos, TARGETS["avx512"]) as kept:
        differentiated = differentiate(net.graph, lower_layers(net.graph, net.batch_size))
        return make_plan(net.graph, differentiated, kept)


def test_a_layout_that_a_chain_has_chosen_stays_though_a_layer_has_phases_of_its_own(tmp_path: Path) -> None:
    net = Net(2, seed=0)
    net.force_backward = True
    ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (3, 6, 6)), 5))
    file = tmp_path / "conv_relu.py"
    file.write_text('chain = ("conv", "relu")\n\ndef forward(s, target):\n    s.transpose("value", 0, 1)\n')
    net.use_recipe("conv_relu", str(file))
    plan = planned(net)
    assert plan.layouts["relu1.value"].order == (0, 2, 1, 3)
    (relu,) = (item for item in plan.scheduled if item.unit.name == "relu1")
    *_, recipe = relu.result.stages["backward"]
    assert recipe.program.buffers["value"].layout == plan.layouts["relu1.value"]


def test_a_layer_that_a_chain_has_left_apart_sees_what_its_source_has_chosen() -> None:
    net = Net(3, seed=0)
    layer = MemoryDataLayer(net, (16, 5, 5))
    net.force_backward = True
    conv = ConvLayer(net, layer, num_filters=17, kernel=1, pad=0)
    FullyConnectedLayer(net, BatchNormLayer(net, conv), 4)
    plan = planned(net)
    assert [unit.name for unit in plan.units if "forward" in unit.parts][:2] == ["conv1", "batch_norm1"]
    blocks = ((1, 16),)
    assert plan.layouts["conv1.value"].blocks == plan.layouts["batch_norm1.value"].blocks == blocks
    regions = plan.state.regions.values()
    assert {b.layout for region in regions for *_, b in region.bindings()} == {Layout()}
