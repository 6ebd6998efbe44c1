"""Schedules are kept: equal layers share one, another process finds it, and whatever it depends on makes a new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import swirl.schedule.kept_schedules
from latte import BatchNormLayer, ConvLayer, GELULayer, MemoryDataLayer, Net, SigmoidLayer, SiLULayer
from latte.autodiff.differentiated import differentiate
from latte.frontend.lowered import lower_layers
from latte.planning.plan import Plan, make_plan
from swirl.build.cache import draft_folder, entry_lock, publish
from swirl.errors import CommandError, RecipeError
from swirl.ir.nest import Program
from swirl.schedule import pipeline
from swirl.schedule.kept_schedules import FILE, KeptSchedules
from swirl.schedule.memo import Memos
from swirl.schedule.plan_layouts import finished
from swirl.target.targets import TARGETS

RECIPE = 'def forward(s, target):\n    s.parallelize("forward", "n")\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIRL_MEMO", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regions that were scheduled by their recipes."""
    names: list[str] = []
    own = swirl.schedule.kept_schedules.schedule_declared

    def counted(declared: Any, *arguments: Any) -> Any:
        names.append(declared.name)
        return own(declared, *arguments)

    monkeypatch.setattr(swirl.schedule.kept_schedules, "schedule_declared", counted)
    return names


def three(recipe: Path | None = None, names: str = "l", batch: int = 2) -> Net:
    """Data, and three equal layers that read it."""
    net = Net(batch, seed=1)
    data = MemoryDataLayer(net, (4, 6))
    for number in range(3):
        layer = SiLULayer(net, data, name=f"{names}{number}")
        if recipe is not None:
            net.use_recipe(layer, recipe)
    return net


def planned(net: Net, target: str = "avx2") -> Plan:
    with Memos() as memos, KeptSchedules(memos, TARGETS[target]) as kept:
        return make_plan(net.graph, differentiate(net.graph, lower_layers(net.graph, net.batch_size)), kept)


def shown(plan: Plan) -> list[Any]:
    """All that a plan says, as text."""
    found: list[Any] = [sorted((name, repr(layout)) for name, layout in plan.layouts.items())]
    for item in plan.scheduled:
        for phase in item.result.stages:
            program = finished(plan.state, item.unit.name, phase, plan.target.simd_width)
            stages = [(stage.name, stage.command, stage.program.text) for stage in item.result.stages[phase]]
            found.append((item.unit.name, phase, program.text, program.buffers, stages))
        found.append([(o.command.text, o.command.location, o.status, o.reason) for o in item.result.outcomes])
    return found


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_equal_layers_share_one_before_a_recipe_runs(computed: list[str], tmp_path: Path) -> None:
    plan = planned(three(written(tmp_path / "r.py", RECIPE)))
    assert len(computed) == 3, computed  # of data, of its first reader, who lays it out, and of another one
    texts = [finished(plan.state, f"l{number}", "forward", 8).text for number in range(3)]
    assert [text.replace(f"l{number}", "l0") for number, text in enumerate(texts)] == [texts[0]] * 3
    assert "parallel" in texts[2]


def test_another_compilation_finds_them_and_says_the_same(computed: list[str]) -> None:
    def net() -> Net:
        net = Net(2, seed=1)
        layer = ConvLayer(net, MemoryDataLayer(net, (16, 7, 9)), 20)
        for kind in (BatchNormLayer, SigmoidLayer, GELULayer):
            layer = kind(net, layer)
        return net

    first = shown(planned(net()))
    assert computed
    computed.clear()
    plan = planned(net())
    assert not computed
    assert shown(plan) == first  # stages are made again


def test_other_names_share_it(computed: list[str], tmp_path: Path) -> None:
    recipe = written(tmp_path / "r.py", RECIPE)
    planned(three(recipe))
    computed.clear()
    planned(three(recipe, names="zR0z"))
    assert not computed


def test_a_declined_chain_is_kept(computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_RECIPES", str(tmp_path))
    text = 'chain = ("silu", "sigmoid")\n\ndef forward(s, target):\n    helper(s)\n\n'
    written(tmp_path / "silu_sigmoid.py", text + 'def helper(s):\n    s.decline("too small")\n')

    def notes() -> tuple[str, ...]:
        net = Net(2, seed=1)
        SigmoidLayer(net, SiLULayer(net, MemoryDataLayer(net, (4, 6))))
        return planned(net).notes["silu1"]

    first = notes()
    assert "forward is not compiled as silu1_sigmoid1: too small" in first
    computed.clear()
    assert notes() == first and not computed


def changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What an outcome depends on, each with something that changes it."""
    yield "the recipe", lambda: path.write_text(RECIPE.replace("def", "# other\ndef") + "\n")
    yield "what it imports", lambda: (path.parent / "sizes.py").write_text("from deeper import DEEP\nSIZE = 3\n")
    yield "what that imports", lambda: (path.parent / "deeper.py").write_text("DEEP = 3\n")
    yield "a file that it reads", lambda: (path.parent / "tiles.json").write_text("[2]")
    yield "a variable that it reads", lambda: monkeypatch.setenv("TILE_SIZE", "4")


def test_whatever_it_depends_on_makes_a_new_one(
    computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deeper.py").write_text("DEEP = 2\n")
    (tmp_path / "sizes.py").write_text("from deeper import DEEP\nSIZE = 2\n")
    (tmp_path / "tiles.json").write_text("[1]")
    head = 'from sizes import SIZE\nimport json\n\nreads = ("tiles.json", "$TILE_SIZE")\n\n'
    path = written(tmp_path / "r.py", head + RECIPE)
    planned(three(path))
    for what, change in changes(path, monkeypatch):
        computed.clear()
        planned(three(path))
        assert not computed, what
        if what == "the recipe":
            path.write_text(head + RECIPE.replace("def", "# other\ndef"))
        else:
            change()
        planned(three(path))
        assert computed, what
    for other in (three(path, batch=3), three(path)):
        computed.clear()
        planned(other, "avx512")
        assert computed


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "import os",
        "from pathlib import Path",
        "from latte.net import Net",
        "import swirl.config",
        "COUNT = open(__file__).read()",
        "def helper():\n    global seen",
        "def helper():\n    print('here')",
    ],
)
def test_a_recipe_that_may_look_elsewhere_is_asked_each_time(line: str, computed: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "r.py", f"{line}\n\n{RECIPE}")
    planned(three(path))
    computed.clear()
    planned(three(path))
    assert computed == ["l0", "l1", "l2"]
    written(path, f"reads = ()\n{line}\n\n{RECIPE}")  # it says that it does not
    planned(three(path))
    computed.clear()
    planned(three(path))
    assert not computed


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("3", "reads must be a list"),
        ("('none.json',)", "reads none.json, which cannot be read"),
        ("('',)", "reads must be"),
    ],
)
def test_what_a_recipe_says_that_it_reads_must_be_there(reads: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        planned(three(written(tmp_path / "r.py", f"reads = {reads}\n{RECIPE}")))


def test_a_recipe_that_looks_at_names_gets_them(computed: list[str], tmp_path: Path) -> None:
    text = (
        'def forward(s, target):\n    if s.layers == ("l1",):\n        s.vectorize("forward", "i1", 8)\n'
        '    s.parallelize("forward", "n", nest=s.nests("forward")[0])\n'
    )
    path = written(tmp_path / "r.py", text.replace('"i1"', 's.loops("forward")[-1]'))
    plan = planned(three(path))
    assert computed[1:] == ["l0", "l1", "l2"]
    vectors = ["vector" in finished(plan.state, f"l{number}", "forward", 8).text for number in range(3)]
    assert vectors == [False, True, False]
    computed.clear()
    planned(three(path))
    assert not computed


def test_a_refusal_names_the_layer_and_the_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r.py", 'def forward(s, target):\n    s.parallelize("forward", "nothing")\n')
    for _ in range(2):
        with pytest.raises(CommandError) as caught:
            planned(three(path))
        assert "r.py:2" in str(caught.value) and "zR" not in str(caught.value)


def test_commands_of_a_layer_are_kept(computed: list[str]) -> None:
    def net(size: int) -> Net:
        net = three()
        net["l1"].tile_loop("forward", "n", size)
        return net

    planned(net(2))
    computed.clear()
    planned(net(2))
    assert not computed
    planned(net(1))
    assert computed == ["l1"]


def other_values(value: Any) -> Iterator[Any]:
    """Values of other types than this one."""
    yield from (each for each in (None, 7, 1.5, "text", [], {}, [1], {"a": 1}) if type(each) is not type(value))


def test_damaged_entries_are_made_again(computed: list[str], folder: Path) -> None:
    right = shown(planned(three()))
    entries = {path: path.read_text() for path in folder.glob(f"*/{FILE}")}
    assert len(entries) == 3
    for path, text in entries.items():
        whole = json.loads(text)
        damaged = [
            text[:-1],
            "",
            "[]",
            "null",
            *(json.dumps({**whole, key: v}) for key in whole for v in other_values(whole[key])),
        ]
        damaged += [json.dumps({name: value for name, value in whole.items() if name != key}) for key in whole]
        for content in damaged:
            key = path.parent.name
            with entry_lock(key), draft_folder(key) as draft:
                (draft / FILE).write_text(content)
                publish(draft, key, {}, verified=(FILE,))
            assert shown(planned(three())) == right, content[:200]


def test_what_a_replaced_pass_makes_is_not_kept(computed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = shown(planned(three()))

    def wrong(program: Program) -> Program:
        return replace(program, nests=program.nests[:0])

    for name in ("BEFORE_RECIPE", "AFTER_RECIPE"):
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, name, (("wrong", wrong),))
            assert planned(three()).scheduled[-1].kept.entry is None
            program = finished(planned(three()).state, "l0", "forward", 8)
            assert name == "BEFORE_RECIPE" or not pipeline.finished_program(program).nests
        computed.clear()
        plan = planned(three())
        assert not computed
        assert shown(plan) == right
