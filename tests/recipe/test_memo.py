"""Results of passes and commands that are kept: the same as computed ones, whatever a recipe does."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import BatchNormLayer, ConvLayer, FullyConnectedLayer, MaxPoolingLayer, MemoryDataLayer, Net, ReLULayer
from swirl.errors import LatteError, Refused
from swirl.ir.buffers import Layout
from swirl.ir.nest import Program, make_nest, parse_program
from swirl.ir.text import from_json, identity, to_json
from swirl.schedule import memo as memo_module
from swirl.schedule import pipeline
from swirl.schedule.kept_schedules import FILE
from swirl.schedule.memo import Memo, Memos
from swirl.schedule.pipeline import Scheduled, finish, generate, schedule_alone
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.command import Command
from tests.ir.test_printing import programs as random_programs
from tests.recipe.test_schedule import BUFFERS, programs

TARGET = TARGETS["avx2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIRL_MEMO", raising=False)
    memo_module._version.cache_clear()
    # Whoever edits a source while the tests run has imported it before, or will fail elsewhere.
    monkeypatch.setattr(memo_module, "_IMPORTED", float("inf"))
    return tmp_path / "cache"


def forward(s: Schedule, target: Target) -> None:
    s.tile("value", dim=0, factor=8)
    s.parallelize("forward", "n")
    if s.extent("forward", "x") == 17:
        s.unroll("forward", "x", target.simd_width)
    s.unroll("forward", "nothing", 2, optional=True)
    s.parallelize("forward", "x", optional=True)


def backward(s: Schedule, target: Target) -> None:
    (made, *_) = s.tile_loop("backward", "c", 4)
    s.parallelize("backward", made)


RECIPE = Recipe("mine", {"forward": forward, "backward": backward})


def run(recipe: Recipe | None, given: dict[str, Program] | None = None) -> tuple[Scheduled, dict[str, Any], Memo]:
    given = given or programs()
    with Memos() as memos:
        memo = memos.of(given.values())
        scheduled = schedule_alone(given, recipe, TARGET, ["scale1."], memo)
        finished = {phase: finish(stages, memo) for phase, stages in scheduled.stages.items()}
        sources = {phase: generate(stages[-1].program, TARGET, memo=memo) for phase, stages in finished.items()}
    return scheduled, {"stages": shown(finished), "sources": sources}, memo


def shown(stages: dict[str, tuple[pipeline.Stage, ...]]) -> dict[str, list[tuple[str, str, Program]]]:
    return {phase: [(s.name, s.command, s.program) for s in found] for phase, found in stages.items()}


def test_a_second_run_computes_nothing_and_gives_the_same() -> None:
    first, made, cold = run(RECIPE)
    second, again, warm = run(RECIPE)
    assert cold.computed > 0 and warm.computed == 0
    assert made == again and first.outcomes == second.outcomes
    assert [outcome.status for outcome in second.outcomes].count("skipped") == 2
    assert shown(dict(first.stages)) == shown(dict(second.stages))


def test_a_second_compile_of_a_net_computes_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """With shipped recipes, chains and layouts: each command and pass can be told by its name."""
    memos: list[Memo] = []
    counted = Memo.__init__

    def noted(memo: Memo, *arguments: Any) -> None:
        counted(memo, *arguments)
        memos.append(memo)

    monkeypatch.setattr(Memo, "__init__", noted)
    computed = []
    for _ in range(2):
        memos.clear()
        net = Net(4, seed=0)
        conv = ConvLayer(net, MemoryDataLayer(net, (16, 9, 9)), num_filters=16, kernel=3, stride=1, pad=1)
        pooled = MaxPoolingLayer(net, ReLULayer(net, BatchNormLayer(net, conv)), kernel=3, stride=3)
        FullyConnectedLayer(net, pooled, 10)
        net.compile()
        computed.append([memo.computed for memo in memos if memo.known is not None])
        for kept in folder.glob(f"*/{FILE}"):  # as if other recipes asked for the same commands
            shutil.rmtree(kept.parent)
    assert sum(computed[0]) > 100
    assert len(computed[1]) == len(computed[0]) and sum(computed[1]) == 0


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_kept(name: str) -> None:
    function = COMMANDS[name].function
    assert memo_module.is_ours(COMMANDS[name])
    assert memo_module._name(COMMANDS[name]) == f"{function.__module__}.{COMMANDS[name].name}"


def test_a_command_made_at_run_time_is_called_each_time() -> None:
    calls = []

    def own(program: Program) -> Program:
        calls.append(program)
        return program

    memo = Memo({})
    for _ in range(2):
        memo.program(Command("own", own), programs()["forward"])
    assert len(calls) == 2 and memo.computed == 0


def test_without_memo_the_results_are_those(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    _, made, _ = run(RECIPE)
    _, kept, _ = run(RECIPE)
    monkeypatch.setenv("SWIRL_MEMO", "0")
    _, computed, memo = run(RECIPE)
    assert made == kept == computed and memo.known is None
    scheduled = schedule_alone(programs(), RECIPE, TARGET, ["scale1."])
    assert shown({p: finish(s) for p, s in scheduled.stages.items()}) == made["stages"]


def test_the_trees_are_the_same_too() -> None:
    first, *_ = run(RECIPE)
    second, *_ = run(RECIPE)
    for phase, stages in first.stages.items():
        for one, two in zip(stages, second.stages[phase], strict=True):
            for a, b in zip(one.program.nests, two.program.nests, strict=True):
                assert ast.dump(a.function) == ast.dump(b.function)


def test_a_recipe_may_do_what_it_likes() -> None:
    """What it reads (here a variable) is not part of any key, and need not be."""
    choice = {"factor": 4}

    def forward(s: Schedule, target: Target) -> None:
        s.tile_loop("forward", "x", choice["factor"])

    recipe = Recipe("moody", {"forward": forward})
    four, *_ = run(recipe)
    choice["factor"] = 8
    eight, *_ = run(recipe)
    choice["factor"] = 4
    again, *_ = run(recipe)
    assert "range(0, 8)" not in four.stages["forward"][-1].program.text
    assert shown(dict(four.stages)) == shown(dict(again.stages)) != shown(dict(eight.stages))


def test_an_edit_is_computed_from_its_command_on() -> None:
    def edited(s: Schedule, target: Target) -> None:
        s.tile("value", dim=0, factor=8)
        s.parallelize("forward", "n")
        s.unroll("forward", "x", 3)

    run(RECIPE)
    _, _, memo = run(Recipe("mine", {"forward": edited, "backward": backward}))
    # unroll, and for forward alone: tidy, scalars, sums, hoist, vectors, items, physical, C++
    assert memo.computed == 9


def test_refusals_read_the_same() -> None:
    def wrong(s: Schedule, target: Target) -> None:
        s.parallelize("update", "n", schedule="often")

    def race(s: Schedule, target: Target) -> None:
        s.vectorize("update", "c", 8)

    for recipe in (wrong, race):
        messages = []
        for _ in range(2):
            with pytest.raises(LatteError) as caught:
                run(Recipe("wrong", {"update": recipe}))
            messages.append((type(caught.value), str(caught.value)))
        assert messages[0] == messages[1]
    assert messages[0][0] is Refused


def test_what_changes_the_program_changes_the_key() -> None:
    given = programs()["forward"]
    others = [
        replace(given, name="scale2.forward"),
        replace(given, aliases={}),
        replace(given, commands=("tile_loop('forward', 'x', 4)",)),
        given.with_buffers(value=replace(BUFFERS["value"], name="scale2.value")),
        given.with_buffers(value=replace(BUFFERS["value"], dtype="float64")),
        given.with_buffers(value=BUFFERS["value"].with_layout(Layout(((1, 8),)))),
        given.with_nests([make_nest("other", given.nests[0].body, given.buffers)]),
    ]
    texts = {identity(program) for program in (given, *others)}
    assert len(texts) == 1 + len(others)
    for program in (given, *others):
        value = to_json(program)
        assert value is not None and from_json(value) == program


@pytest.mark.parametrize(
    ("value", "context"),
    [
        (-1.0, ast.Store()),
        (-0.0, ast.Store()),
        (float("nan"), ast.Store()),
        (np.float64(1), ast.Store()),
        (1.0, ast.Load()),
    ],
    ids=["negative", "negative zero", "not a number", "of NumPy", "a target that says that it is loaded"],
)
def test_a_program_that_does_not_survive_printing_is_not_kept(value: Any, context: ast.expr_context) -> None:
    nest = make_nest("odd", [ast.parse("value[0, 0, 0] = 1.0").body[0]], BUFFERS)
    assignment = nest.body[0]
    assert isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Subscript)
    assignment.value, assignment.targets[0].ctx = ast.Constant(value), context
    assert to_json(Program("odd", (nest,), {"value": BUFFERS["value"]})) is None


def test_what_is_kept_is_read_as_the_very_trees() -> None:
    """Of what commands and passes make, nearly all is kept; and its text stands for the same trees."""
    made = random_programs()
    kept = [program for program in made if to_json(program) is not None]
    assert len(kept) > 0.9 * len(made)
    for nest in (nest for program in kept for nest in program.nests):
        assert ast.dump(ast.parse(nest.text).body[0]) == ast.dump(nest.function)


def test_other_peoples_functions_and_objects_are_called_each_time() -> None:
    calls = []

    def own(program: Program, what: object = None) -> Program:
        calls.append(what)
        return program

    memo = Memo({})
    for _ in range(2):
        memo.program(own, programs()["forward"])
        memo.program(pipeline.tidy, programs()["forward"])
    assert len(calls) == 2 and memo.computed == 1
    assert not memo_module.is_plain(object()) and not memo_module.is_plain({"a": (1, [object()])})
    assert memo_module.is_plain(("a", [1, 2.5, None, {"b": True}]))


def test_a_pass_put_in_the_place_of_ours_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    run(None)
    renamed = tuple((name, lambda program: program) for name, _ in pipeline.AFTER_RECIPE)
    monkeypatch.setattr(pipeline, "AFTER_RECIPE", renamed)
    _, other, memo = run(None)
    assert memo.computed == 3  # the C++ of three other programs
    assert other["stages"]["forward"][-1][2].text == other["stages"]["forward"][1][2].text


@pytest.mark.parametrize("damage", ["{", "[]", '{"a": 3}', ""])
def test_a_damaged_entry_is_made_again(folder: Path, damage: str) -> None:
    _, made, cold = run(RECIPE)
    (entry,) = folder.glob("*/results.json")
    entry.write_text(damage)
    _, again, memo = run(RECIPE)
    assert again == made and memo.computed == cold.computed
    assert run(RECIPE)[2].computed == 0


def test_a_result_that_cannot_be_read_is_made_again() -> None:
    """As if what is stored had been changed, with its hash."""
    program = programs()["forward"]
    memo = Memo({})
    expected = memo.program(pipeline.canonicalise, program)
    for wrong in ({"made": {}}, {"made": None}, {"refused": None}, {}, 3, {"made": {"nests": ["x = 1"]}}):
        damaged = Memo(dict.fromkeys(memo.used, wrong))
        assert damaged.program(pipeline.canonicalise, program) == expected


def test_nothing_is_kept_of_sources_that_have_changed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    memo_module._version.cache_clear()
    monkeypatch.setattr(memo_module, "_IMPORTED", 0.0)
    _, _, memo = run(RECIPE)
    assert memo.known is None and not list(folder.glob("*/results.json"))
    memo_module._version.cache_clear()


# --- equal layers ---------------------------------------------------------------------------------------
def of_layer(name: str, source: str = "data1") -> dict[str, Program]:
    """The programs of a layer like the others, under another name and after another source."""
    result = {}
    for phase, program in programs().items():
        buffers = {
            local: replace(b, name=b.name.replace("scale1", name).replace("data1", source))
            for local, b in program.buffers.items()
        }
        result[phase] = replace(program.renamed(f"{name}.{phase}"), buffers=buffers)
    return result


def scheduled(given: dict[str, Program], memo: Memo, recipe: Recipe = RECIPE) -> dict[str, tuple[pipeline.Stage, ...]]:
    name = given["forward"].name.partition(".")[0]
    made = schedule_alone(given, recipe, TARGET, [f"{name}."], memo)
    return {phase: finish(stages, memo) for phase, stages in made.stages.items()}


@pytest.mark.parametrize(
    ("name", "source"), [("scale2", "scale1"), ("a", "scale"), ("scale1_relu1", "scale1"), ("avx2", "x_1")]
)
def test_equal_layers_are_computed_once(name: str, source: str) -> None:
    with Memos() as memos:
        memo = memos.of(programs().values())
        scheduled(programs(), memo)
        computed = memo.computed
        other = of_layer(name, source)
        assert memos.of(other.values()) is memo
        shared = scheduled(other, memo)
        assert memo.computed == computed
    for phase, stages in scheduled(other, Memo()).items():
        assert shown({phase: stages}) == shown({phase: shared[phase]})
        for one, two in zip(stages, shared[phase], strict=True):
            assert [nest.label for nest in one.program.nests] == [nest.label for nest in two.program.nests]


def test_layers_that_differ_in_where_a_source_lies_share_nothing_wrong() -> None:
    """One whose two buffers are one storage is not equal to one that has two."""
    text = "for n in range(2):\n for c in range(20):\n  for x in range(17):\n   value[n, c, x] = inputs[n, c, x]"
    two = {name: BUFFERS[name] for name in ("value", "inputs")}
    one = {**two, "inputs": replace(two["inputs"], name="scale1.value")}
    with Memos() as memos:
        texts = [parse_program(text, buffers, "scale1.forward") for buffers in (two, one)]
        assert memos.of(texts[:1]) is not memos.of(texts[1:])


def test_what_is_said_of_an_equal_layer_has_its_own_names() -> None:
    def race(s: Schedule, target: Target) -> None:
        s.vectorize("update", "c", 8)

    def unknown(s: Schedule, target: Target) -> None:
        s.parallelize("update", "cc")

    def own(s: Schedule, target: Target) -> None:
        s.contract("forward", "value")

    for recipe in (race, unknown, own):
        wrong = Recipe("wrong", {"forward" if recipe is own else "update": recipe})
        with Memos() as memos:
            memo = memos.of(programs().values())
            said = []
            other = of_layer("other7", "mine")
            for given, kept in ((programs(), memo), (other, memo), (other, Memo())):
                with pytest.raises(LatteError) as caught:
                    scheduled(given, kept, wrong)
                said.append(str(caught.value))
        assert said[1] == said[2]
        assert "scale1" not in said[1] and "zL" not in said[1]
        assert ("other7" in said[1]) == (recipe is not race)


def test_a_nest_is_named_by_the_layers_own_label() -> None:
    text = "for n in range(4):\n weights[0] += inputs[0, n, 0]\nfor n in range(20):\n value[0, n, 0] = weights[n]"
    with Memos() as memos:
        memo = memos.of([])
        for name in ("scale1", "scale2", "zL0z", "program"):
            buffers = {local: replace(b, name=b.name.replace("scale1", name)) for local, b in BUFFERS.items()}
            s = Schedule.alone({"forward": parse_program(text, buffers, f"{name}.forward")}, TARGET, f"{name}.", memo)
            s.parallelize("forward", "n", nest=f"{name}_forward_1")
            assert [nest.label for nest in s.programs["forward"].nests] == [f"{name}_forward_0", f"{name}_forward_1"]
            assert "parallel(20)" in s.programs["forward"].nests[1].text
            s.vectorize("forward", "q", 4, optional=True)
            assert f"no loop named 'q' in {name}.forward" in s.outcomes[1].reason
