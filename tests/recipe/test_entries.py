"""Recipes of entries: which entry a phase gets, what it gets without one, and what is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import ConvLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from latte.neuron import Neuron
from latte.runtime.report import DoubtfulCommand
from latte.tools.tune.subjects import tunables
from swirl.errors import CommandError, DeclarationError, RecipeError
from swirl.ir.nest import Program
from swirl.schedule.entries import form_of, key_of, sizes_of
from swirl.schedule.files import has_entries, read_recipe
from swirl.target.machine import resolve_target
from swirl.target.targets import TARGETS
from tests.support import program

TARGET = "portable"
L0, L1 = "_neuron_index_1", "_neuron_index_2"
"""Loops of the layer below, after that over items."""


class TwiceNeuron(Neuron):
    def forward(self) -> None:
        self.value = 2.0 * self.input

    def backward(self) -> None:
        self.grad_input += 2.0 * self.grad


def twice(items: int = 4, width: int = 24, force_backward: bool = False, **options: Any) -> Net:
    net = Net(items, seed=1, **options)
    net.force_backward = force_backward
    data = MemoryDataLayer(net, (3, width))
    net.init_activation_ensemble(TwiceNeuron, data)
    return net


def chain(extent: int = 6, **options: Path) -> Net:
    net = Net(2, seed=1, **options)
    ReLULayer(net, ConvLayer(net, MemoryDataLayer(net, (4, extent, extent)), num_filters=8, kernel=3, pad=1))
    return net


def begun(net: Net, phase: str = "forward", layer: str | None = None) -> Program:
    """A phase as a recipe finds it."""
    found, _ = tunables(net, resolve_target(TARGET), 1, [layer] if layer else [], [phase])
    return found[0].subject.program


def entry(before: Program, body: str, name: str = "forward_1", **changed: object) -> str:
    """The text of a recipe with one entry for a program."""
    fields = {
        "target": TARGET,
        "nests": key_of(before),
        "form": form_of(before),
        "sizes": sizes_of(before),
        "threads": 2,
        **changed,
    }
    given = ", ".join(f"{field}={value!r}" for field, value in fields.items())
    return (
        "from swirl.schedule.entries import Entry\n\n"
        f"def {name}(s, target):\n    {body}\n\nentries = (Entry({name}, {given}),)\n"
    )


def commands(net: Net, phase: str = "forward") -> list[str]:
    """That were applied, by a compilation for the target."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulCommand)
        net.compile(target=TARGET)
    layer = net.graph.order()[-1]
    return [each.text for each in net.explain(layer).commands if each.status == "applied" and each.phase == phase]


def notes(net: Net) -> str:
    return "\n".join(net.explain(net.graph.order()[-1]).notes)


def test_a_phase_gets_the_entry_for_its_nests(tmp_path: Path) -> None:
    before = begun(twice())
    (tmp_path / "twice.py").write_text(entry(before, f's.tile_loop("forward", "{L0}", 3)'))
    tuned, plain = twice(recipes=tmp_path), twice()
    assert commands(tuned) == [f"tile_loop('forward', '{L0}', 3)"]
    assert commands(plain) != commands(twice(recipes=tmp_path))
    assert "forward: the entry forward_1" in notes(tuned)
    values = np.random.default_rng(0).standard_normal((4, 3, 24)).astype(np.float32)
    for net in (tuned, plain):
        net.set_batch(values)
        net.forward()
    np.testing.assert_array_equal(tuned["twice1"].get_value(), 2 * values)


def test_other_phases_and_targets_get_what_they_would_get_without_it(tmp_path: Path) -> None:
    before = begun(twice())
    (tmp_path / "twice.py").write_text(entry(before, f's.tile_loop("forward", "{L0}", 3)', target="avx2"))
    assert commands(twice(recipes=tmp_path)) == commands(twice())


def test_the_nearest_sizes_and_it_is_told(tmp_path: Path) -> None:
    near, far = begun(twice(width=24)), begun(twice(width=960))
    first = entry(near, f's.tile_loop("forward", "{L1}", 4)')
    second = entry(far, f's.tile_loop("forward", "{L1}", 8)', name="forward_2").replace(
        "entries = (", "entries = (*entries, "
    )
    (tmp_path / "twice.py").write_text(first + second.partition("\n\n")[2])
    net = twice(width=32, recipes=tmp_path)
    assert commands(net) == [f"tile_loop('forward', '{L1}', 4)"]
    assert "found for inputs 4 × 3 × 24, value 4 × 3 × 24; for these sizes there is none" in notes(net)
    assert commands(twice(width=800, recipes=tmp_path)) == [f"tile_loop('forward', '{L1}', 8)"]


def test_a_refused_entry_of_other_sizes_is_not_used(tmp_path: Path) -> None:
    before = begun(twice(width=24))
    (tmp_path / "twice.py").write_text(entry(before, f's.split("forward", "{L1}", [20])'))
    net = twice(width=16, recipes=tmp_path)
    assert commands(net) == commands(twice(width=16))
    assert "forward_1" in notes(net) and "is not used: split" in notes(net)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nests": "0" * 12, "form": "0" * 12}, "the compiler makes other nests of this layer than when it was found"),
        ({}, "is not used: tile_loop('forward', 'nobody', 3)"),
    ],
)
def test_stale_entries_are_told_and_not_used(tmp_path: Path, changed: dict[str, str], reason: str) -> None:
    before = begun(twice())
    loop = L0 if changed else "nobody"
    (tmp_path / "twice.py").write_text(entry(before, f's.tile_loop("forward", "{loop}", 3)', **changed))
    net = twice(recipes=tmp_path)
    with pytest.warns(DoubtfulCommand, match="forward_1 of twice1"):
        net.compile(target=TARGET)
    assert any(reason in caution for caution in net.report.cautions)
    assert commands(twice(recipes=tmp_path)) == commands(twice())


def test_a_command_that_is_refused_half_way_changes_nothing(tmp_path: Path) -> None:
    before = begun(twice())
    body = f's.tile_loop("forward", "{L0}", 3); s.tile_loop("forward", "nobody", 3)'
    (tmp_path / "twice.py").write_text(entry(before, body))
    assert commands(twice(recipes=tmp_path)) == commands(twice())


def header(net: Net) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulCommand)
        net.compile(target=TARGET)
    return net.explain(net.graph.order()[-1]).recipe


def test_explain_says_where_commands_come_from(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(entry(begun(twice(force_backward=True)), f's.tile_loop("forward", "{L0}", 3)'))
    assert header(twice(force_backward=True)) == "default schedule (forward, backward)"
    assert header(twice(force_backward=True, recipes=tmp_path)) == (
        f"{file} (forward), otherwise default schedule (backward)"
    )
    # One that is not used is not named.
    assert header(twice(force_backward=True, width=800, items=1)) == "default schedule (forward, backward)"
    file.write_text(entry(begun(twice(force_backward=True)), "pass", nests="0" * 12, form="0" * 12))
    assert header(twice(force_backward=True, recipes=tmp_path)) == "default schedule (forward, backward)"

    chain_file = tmp_path / "conv_relu.py"
    text = entry(begun(chain()), 's.fuse_layers("forward")', form="")
    chain_file.write_text('chain = ("conv", "relu")\n\n' + text)
    assert header(chain(recipes=tmp_path)).startswith(f"{chain_file} (forward)")
    assert header(chain(extent=11, recipes=tmp_path)) == header(chain(extent=11))


def test_chains_get_theirs_and_the_shipped_recipe_otherwise(tmp_path: Path) -> None:
    before = begun(chain())
    body = 's.fuse_layers("forward"); s.tile("value", 0, 4)'
    text = 'chain = ("conv", "relu")\n\n' + entry(before, body, form="")
    (tmp_path / "conv_relu.py").write_text(text)
    (tmp_path / "conv.py").write_text(entry(begun(chain(), "update", "conv1"), "pass", name="update_1"))
    assert [text for text in commands(chain(recipes=tmp_path)) if "fuse" in text] == ["fuse_layers('forward')"]
    plan = [item.unit.name for item in chain_plan(tmp_path)]
    assert "conv1_relu1" in plan  # which an entry for one of its layers does not take apart
    assert commands(chain(extent=11, recipes=tmp_path)) == commands(chain(extent=11))


def chain_plan(folder: Path) -> list:  # type: ignore[type-arg]
    net = chain(recipes=folder)
    net.compile(target=TARGET)
    return list(net.executable.plan.scheduled)


def test_layout_commands_of_a_layer_in_a_chain(tmp_path: Path) -> None:
    before = begun(chain())
    body = 's.tile("weights", 0, 4, of="conv"); s.tile("grad_weights", 0, 4, of="conv")'
    (tmp_path / "conv_relu.py").write_text('chain = ("conv", "relu")\n\n' + entry(before, body))
    net = chain(recipes=tmp_path)
    net.compile(target=TARGET)
    layouts = net.executable.plan.layouts
    assert layouts["conv1.weights"].blocks and layouts["conv1.grad_weights"].blocks
    (tmp_path / "conv_relu.py").write_text(
        'chain = ("conv", "relu")\n\ndef forward(s, target):\n    s.tile("weights", 0, 4, of="pool")\n'
    )
    with pytest.raises(CommandError, match="no layer of the kind 'pool' is scheduled here") as raised:
        chain(recipes=tmp_path).compile(target=TARGET)
    assert "there are conv, relu" in str(raised.value)


def test_entries_of_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, extent in ((first, 6), (second, 11)):
        folder.mkdir()
        before = begun(chain(extent), "forward", "conv1_relu1")
        body = 's.fuse_layers("forward"); s.tile("value", 0, 4)'
        (folder / "conv_relu.py").write_text('chain = ("conv", "relu")\n\n' + entry(before, body, form=""))
        (folder / "conv.py").write_text(entry(begun(chain(extent), "update", "conv1"), "pass", "update_1", form=""))
    shipped = commands(chain(9))
    monkeypatch.setenv("LATTE_RECIPES", str(second))
    assert commands(chain(9, recipes=first)) == shipped  # what there is without any of these files
    for extent in (6, 11):
        assert commands(chain(extent, recipes=first)) == ["fuse_layers('forward')"]
        updates = chain(extent, recipes=first)
        updates.compile(target=TARGET)
        assert any("the entry update_1" in note for note in updates.explain("conv1").notes)


def test_a_recipe_named_by_the_net_comes_first(tmp_path: Path) -> None:
    before = begun(twice())
    (tmp_path / "twice.py").write_text(entry(before, f's.tile_loop("forward", "{L0}", 3)'))
    own = tmp_path / "own_recipe_of_mine.py"
    own.write_text(f'def forward(s, target):\n    s.tile_loop("forward", "{L1}", 2)\n')
    net = twice(recipes=tmp_path)
    net.use_recipe("twice", own)
    assert commands(net) == [f"tile_loop('forward', '{L1}', 2)"]
    without = twice(recipes=tmp_path)
    without.use_recipe("twice", None)
    assert commands(without) == commands(twice())
    named = twice()
    named.use_recipe("twice", tmp_path / "twice.py")
    assert commands(named) == [f"tile_loop('forward', '{L0}', 3)"]


def test_a_function_of_the_file_is_what_there_is_otherwise(tmp_path: Path) -> None:
    before = begun(twice(width=24))
    text = entry(before, f's.tile_loop("forward", "{L0}", 3)', form="")
    (tmp_path / "twice.py").write_text(text + f'\ndef forward(s, target):\n    s.tile_loop("forward", "{L1}", 2)\n')
    assert commands(twice(width=24, recipes=tmp_path)) == [f"tile_loop('forward', '{L0}', 3)"]
    assert commands(twice(width=40, recipes=tmp_path)) == [f"tile_loop('forward', '{L1}', 2)"]


def test_outcomes_are_kept_with_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIRL_MEMO", raising=False)
    folder = tmp_path / "tuned"
    folder.mkdir()
    file = folder / "twice.py"
    file.write_text(entry(begun(twice(width=24)), f's.tile_loop("forward", "{L1}", 4)'))
    first, again = twice(width=32, recipes=folder), twice(width=32, recipes=folder)
    assert commands(first) == commands(again) == [f"tile_loop('forward', '{L1}', 4)"]
    assert again.report.known and notes(first) == notes(again)
    file.write_text(file.read_text().replace("4)", "8)"))
    assert commands(twice(width=32, recipes=folder)) == [f"tile_loop('forward', '{L1}', 8)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entries = 3", "entries is a tuple of Entry"),
        ("entries = (3,)", "entries is a tuple of Entry"),
        (entry(program("for i in range(4):\n a[i] = b[i]", a=(4,), b=(4,)), "pass", name="forwards"), "after a phase"),
        (entry(program("for i in range(4):\n a[i] = b[i]", a=(4,), b=(4,)), "pass", target="avx9"), "target 'avx9'"),
        (
            entry(program("for i in range(4):\n a[i] = b[i]", a=(4,), b=(4,)), "pass") + "entries = entries * 2\n",
            "forward_1 is the function of two entries",
        ),
    ],
)
def test_damaged_tables(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "twice.py"
    file.write_text(text)
    assert has_entries(file)
    with pytest.raises(RecipeError, match=message):
        read_recipe(file)


def test_the_folder_of_a_net_exists(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="recipes must be a folder of recipe files"):
        Net(4, recipes=tmp_path / "nowhere")
    with pytest.raises(DeclarationError, match="recipes must be a folder of recipe files"):
        Net(4, recipes=3)  # type: ignore[arg-type]


def test_no_folder_of_a_net() -> None:
    assert commands(twice(recipes=None)) == commands(twice())


def test_several_folders_of_a_net(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    before = begun(twice())
    (first / "twice.py").write_text(entry(before, f's.tile_loop("forward", "{L0}", 3)'))
    (second / "twice.py").write_text(f'def forward(s, target):\n    s.tile_loop("forward", "{L1}", 2)\n')
    assert commands(twice(recipes=[first, second])) == [f"tile_loop('forward', '{L0}', 3)"]
    assert commands(twice(width=40, recipes=[second])) == [f"tile_loop('forward', '{L1}', 2)"]


def test_keys_know_no_names_and_forms_no_sizes() -> None:
    one, other = begun(twice()), begun(twice())
    assert key_of(one) == key_of(other)
    assert key_of(one) != key_of(begun(twice(width=25))) and form_of(one) == form_of(begun(twice(width=25)))
    net = Net(2, seed=1)
    layer: Ensemble = MemoryDataLayer(net, (4, 6, 6))
    for name in "abc":
        layer = ConvLayer(net, layer, num_filters=8, kernel=3, pad=1, name=name)
    found, _ = tunables(net, TARGETS["portable"], 1, [], ["update"])
    assert [each.alike for each in found] == [["a"], ["b", "c"]]


def pools(**options: Path) -> Net:
    net = Net(2, seed=1, **options)
    small = MaxPoolingLayer(net, MemoryDataLayer(net, (4, 8, 8)), kernel=3, stride=1, pad=1)
    MaxPoolingLayer(net, small, kernel=5, stride=1, pad=2)
    return net


def test_layers_of_one_kind_and_size_that_differ_in_other_numbers(tmp_path: Path) -> None:
    first, second = (begun(pools(), "forward", f"max_pooling{number}") for number in (1, 2))
    assert sizes_of(first) == sizes_of(second) and key_of(first) != key_of(second)
    (tmp_path / "max_pooling.py").write_text(entry(first, "pass"))
    net = pools(recipes=tmp_path)
    net.compile(target=TARGET)
    assert not any("forward_1" in each for each in net.report.cautions)
    assert "found for other numbers in the same nests" in notes(net)
    (tmp_path / "max_pooling.py").write_text(entry(first, "pass", form=""))
    net = pools(recipes=tmp_path)
    net.compile(target=TARGET)
    assert not any("forward_1" in each for each in net.report.cautions)  # the entry is used, by the other one


def test_layers_whose_recipe_the_net_names_are_not_tuned(tmp_path: Path) -> None:
    own = tmp_path / "own_recipe_of_mine.py"
    own.write_text(f'def forward(s, target):\n    s.tile_loop("forward", "{L1}", 2)\n')
    for path in (own, None):
        net = twice()
        net.use_recipe("twice", path)
        found, left = tunables(net, resolve_target(TARGET), 1)
        assert not found and "net.use_recipe names its recipe" in left[0].reason
    net = twice()
    table = tmp_path / "table.py"
    table.write_text(entry(begun(net), "pass"))
    net.use_recipe("twice", table)
    assert tunables(net, resolve_target(TARGET), 1)[0]
