"""What recipes are given: commands by phase, handles, aliases, records of what was skipped, and errors with
their place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from swirl.errors import CommandError, LayoutError, RecipeError, Refused
from swirl.ir.buffers import Buffer, Layout
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Program, parse_program
from swirl.schedule.command_log import Recorded
from swirl.schedule.files import read_recipe
from swirl.schedule.pipeline import schedule_alone
from swirl.schedule.plan_layouts import finished
from swirl.schedule.recipe import Recipe, Schedule
from swirl.target.targets import TARGETS
from tests.support import assert_same, laid_out

TARGET = TARGETS["portable"]
FORWARD = """
for n in range(2):
    for c in range(20):
        for x in range(17):
            value[n, c, x] = inputs[n, c, x] * weights[c]
"""
BACKWARD = """
for n in range(2):
    for c in range(20):
        for x in range(17):
            grad_inputs[n, c, x] += grad[n, c, x] * weights[c]
"""
UPDATE = """
for n in range(2):
    for c in range(20):
        for x in range(17):
            grad_weights[c] += grad[n, c, x] * inputs[n, c, x]
"""
WHOLE = (2, 20, 17)
BUFFERS = {
    "value": Buffer("scale1.value", WHOLE),
    "grad": Buffer("scale1.grad", WHOLE, role="grad"),
    "inputs": Buffer("data1.value", WHOLE),
    "grad_inputs": Buffer("data1.grad", WHOLE, role="grad"),
    "weights": Buffer("scale1.weights", (20,), role="param"),
    "grad_weights": Buffer("scale1.grad_weights", (20,), role="param_grad"),
}
ALIASES = {"_neuron_index_0": ("n",), "_neuron_index_1": ("c",), "_neuron_index_2": ("x",)}


def programs() -> dict[str, Program]:
    texts = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
    result = {}
    for phase, text in texts.items():
        program = parse_program(text, BUFFERS, f"scale1.{phase}", ALIASES)
        used = {
            name: buffer for name, buffer in BUFFERS.items() if any(name in nest.arguments for nest in program.nests)
        }
        result[phase] = parse_program(text, used, f"scale1.{phase}", ALIASES)
    return result


def new() -> Schedule:
    return Schedule.alone(programs(), TARGET, ["scale1."])


def test_commands_act_on_their_phase() -> None:
    s = new()
    s.parallelize("forward", "n")
    assert "parallel(2)" in s.programs["forward"].text
    assert "parallel" not in s.programs["backward"].text
    assert s.programs["forward"].commands == ("parallelize('forward', 'n')",)


def test_the_phase_may_be_named_and_has_an_alias() -> None:
    s = new()
    s.parallelize(phase="update_internal", loop_var="c")
    s.simd(phase="backward", loop_var="x", factor=8)
    assert "parallel(20)" not in s.programs["backward"].text
    assert "for c in parallel(20)" in s.programs["update"].text
    assert "vector(" in s.programs["backward"].text


def test_handles_are_the_loops_that_a_command_made() -> None:
    s = new()
    outer, inner = s.tile_loop("forward", "c", 16)
    assert (outer, inner) == ("c_outer", "c_inner")
    s.parallelize("forward", outer)
    (lane,) = s.vectorize("forward", "x", 8)
    assert lane == "x_lane"
    (copy,) = s.unroll("forward", inner, 2, optional=True) or ("refused",)
    assert copy in ("c_inner_unrolled", "refused")
    assert s.parallelize("backward", "n") == ()
    for phase, program in programs().items():
        assert_same(program, s.programs[phase])


def test_aliases_of_the_thesis() -> None:
    s = new()
    s.tile_loop("forward", "_neuron_index_1", 4)
    s.parallelize("forward", "_neuron_index_1_outer")
    s.unroll("forward", "_neuron_index_1_inner", 4)
    s.vectorize("forward", "_neuron_index_2", 16)
    assert "for c_outer in parallel(5)" in s.programs["forward"].text
    assert_same(programs()["forward"], s.programs["forward"])
    with pytest.raises(CommandError, match="no loop named '_neuron_index_1'"):
        s.parallelize("forward", "_neuron_index_1")


def test_tiling_a_buffer_strip_mines_its_loops_in_every_phase() -> None:
    s = new()
    s.tile("value", dim=0, factor=16)
    s.tile("grad", 0, 16)
    for phase in ("forward", "backward", "update"):
        assert "for c_outer in range(2)" in s.programs[phase].text
        assert_same(programs()[phase], s.programs[phase])
    assert s.programs["forward"].buffers["value"].layout.blocks == ((1, 16),)
    assert s.programs["backward"].buffers["grad"].layout == s.programs["update"].buffers["grad"].layout


def test_a_layout_belongs_to_the_ensemble_that_makes_the_buffer() -> None:
    s = new()
    with pytest.raises(LayoutError) as caught:
        s.tile("inputs", dim=0, factor=16, reorder=False)
    assert "inputs is data1.value, whose layout data1 chooses" in str(caught.value)
    assert "tile 'value' in data1's recipe, or leave reorder=False out: then it is copied" in str(caught.value)
    assert {phase: p.text for phase, p in s.programs.items()} == {phase: p.text for phase, p in programs().items()}


def test_a_reader_that_wants_another_layout_gets_a_copy() -> None:
    s = new()
    s.tile("inputs", 0, 16)
    s.tile("grad_inputs", 0, 16)
    assert s.blocks("inputs") == s.blocks("grad_inputs") == {0: 16}
    s.flatten("forward", ["n", "c", "x"], optional=True)
    assert s.outcomes.pop().status == "skipped"  # the copy is not flat
    after = {phase: finished(s.state, "scale1", phase, TARGET.simd_width) for phase in s.programs}
    forward, backward = after["forward"], after["backward"]
    assert forward.buffers["inputs_stored"] == BUFFERS["inputs"]  # in its owner's layout
    assert forward.buffers["inputs"].name == "scale1.copy.data1.value"
    assert after["update"].buffers["inputs"] == forward.buffers["inputs"]  # every phase has the same copy
    assert len(forward.nests) == 2 and len(backward.nests) == 3  # the gradient is added to: copied both ways
    megabytes = 4 * 2 * 17 * (20 + 32) / 1e6
    reason = "forward: data1.value is plain: copied to a layout that is blocked by 16 in dimension 1, "
    assert s.outcomes[0].reason.splitlines()[0] == f"{reason}{megabytes:.1f} MB moved"
    assert "copied to a layout that is blocked by 16 in dimension 1, and back" in s.outcomes[1].reason
    for phase, program in programs().items():
        made = after[phase]
        stored = {name: f"{name}_stored" if f"{name}_stored" in made.buffers else name for name in program.buffers}
        arrays = random_arrays(made, 0, "rational")
        expected = {name: arrays[stored[name]].copy() for name in stored}
        execute(program, expected, arithmetic="rational")
        execute(made, arrays, checking=True, arithmetic="rational")
        for name in stored:
            assert np.all(arrays[stored[name]] == expected[name]), name


def test_a_copy_that_only_update_needs_survives_becoming_a_part_of_backward() -> None:
    s = new()
    s.tile("inputs", 0, 16)
    s.fuse_layers("backward", "update")
    assert "update" not in s.programs
    made = finished(s.state, "scale1", "backward", TARGET.simd_width)
    assert made.buffers["inputs"].name == "scale1.copy.data1.value"
    assert made.buffers["inputs_stored"] == BUFFERS["inputs"]
    arrays = random_arrays(made, 0, "rational")
    backward, update = (programs()[phase] for phase in ("backward", "update"))
    expected = {
        name: arrays[f"{name}_stored" if name == "inputs" else name].copy() for name in BUFFERS if name in made.buffers
    }
    execute(backward, expected, arithmetic="rational")
    execute(update, expected, arithmetic="rational")
    execute(made, arrays, checking=True, arithmetic="rational")
    for name in ("grad_inputs", "grad_weights"):
        assert np.all(arrays[name] == expected[name]), name


def test_two_readers_of_blocks_may_want_others_or_none() -> None:
    layouts = {"data1.value": Layout(((1, 8),)), "data1.grad": Layout(((1, 8),))}
    given = {phase: laid_out(program, layouts) for phase, program in programs().items()}
    s = Schedule.alone(given, TARGET, ["scale1."])
    s.untile("inputs")
    assert s.blocks("inputs") == {}
    made = finished(s.state, "scale1", "forward", TARGET.simd_width)
    assert made.buffers["inputs_stored"].layout == layouts["data1.value"]
    s.tile("grad_inputs", 0, 4)
    assert s.blocks("grad_inputs") == {0: 4}
    with pytest.raises(LayoutError, match="blocked by 4 already"):
        s.tile("grad_inputs", 0, 2)  # the copy is the reader's own
    s.untile("value")
    assert [o.reason == "" for o in s.outcomes] == [False, False, True]


def test_gradients_that_nobody_computes_have_no_layout() -> None:
    s = Schedule.alone({"forward": programs()["forward"]}, TARGET, ["scale1.", "data1."])
    for gradient in ("grad", "grad_inputs", "grad_weights"):
        s.tile(gradient, 0, 16)
    assert s.programs["forward"].text == programs()["forward"].text
    for wrong in ("grads", "grad_input", "grad_"):
        with pytest.raises(CommandError, match=f"no buffer named '{wrong}'"):
            s.tile(wrong, 0, 16)


def test_optional_commands_are_recorded_as_skipped_with_their_reason() -> None:
    s = new()
    assert s.parallelize("update", "x", optional=True) == ()
    s.parallelize("update", "c")
    assert [outcome.status for outcome in s.outcomes] == ["skipped", "applied"]
    assert "two iterations would update the same element" in s.outcomes[0].reason
    assert "x=0 and x=1 both update grad_weights[c]" in s.outcomes[0].reason
    assert s.outcomes[0].command.text == "parallelize('update', 'x', optional=True)"


def test_a_refusal_names_file_line_and_command() -> None:
    with pytest.raises(Refused) as caught:
        new().parallelize("update", "x")
    error = caught.value
    assert error.location is not None and error.location.split(":")[0].endswith("test_schedule.py")
    assert error.message == "parallelize('update', 'x'): two iterations would update the same element"
    told = json.loads(error.to_json())
    assert told["location"] == error.location and "← asked to run in parallel" in told["nest"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.parallelise("forward", "n"), "'parallelise'\n  did you mean 'parallelize'"),
        (lambda s: s.parallelize("foward", "n"), "no phase named 'foward'\n  did you mean 'forward'? the"),
        (lambda s: s.parallelize(), "no phase named None"),
        (lambda s: s.parallelize("forward", "cc"), "scale1.forward\n  did you mean 'c'? the loops are n,"),
        (lambda s: s.tile("valu", 0, 4), "no buffer named 'valu'\n  did you mean 'value'? the buffers are"),
        (lambda s: s.tile("value"), "missing a required argument: 'dim'\n  it is tile(buffer, dim, factor"),
        (lambda s: s.tile(), "missing a required argument: 'buffer'"),
        (lambda s: s.tile("value", 7, 4), "0 to 1, not 7\n  its shape is (20, 17) without the batch"),
        (lambda s: s.tile_loop("forward", "c", 0), "factor must be a whole number of at least 1, not 0"),
        (lambda s: s.tile_loop("forward", "c"), "missing a required argument: 'factor'"),
        (
            lambda s: s.tile_loop("forward", "c", 2, depth=1),
            "'depth'\n  it is tile_loop(phase, loop_var, factor, *, tail=",
        ),
    ],
)
def test_bad_commands(call, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        call(new())
    assert message in str(caught.value)
    assert caught.value.location is not None and "test_schedule.py:" in caught.value.location


def test_a_phase_that_has_nothing_to_compute() -> None:
    s = Schedule.alone({"forward": programs()["forward"]}, TARGET)
    assert s.parallelize("update", "c") == ()


# --- files ----------------------------------------------------------------------------------------------
def write(folder: Path, text: str) -> Path:
    path = folder / "scale.py"
    path.write_text(text)
    return path


def test_a_file_of_phases(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(
            tmp_path,
            """
def forward(s, target):
    s.parallelize("forward", "n")
    s.vectorize("forward", "x", 8)

def update(s, target):
    s.parallelize("update", "c")
""",
        )
    )
    assert set(recipe.functions) == {"forward", "update"}
    scheduled = schedule_alone(programs(), recipe, TARGET, ["scale1."])
    assert [outcome.status for outcome in scheduled.outcomes] == ["applied"] * 3
    for phase, program in programs().items():
        assert_same(program, scheduled.stages[phase][-1].program)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("def forward(s, target)\n    pass\n", "is not Python", 1),
        ("\n1 / 0\n", "raised ZeroDivisionError: division by zero", 2),
        ("x = 1\n", "defines no phase", None),
        ("def forward(s, target):\n    pass\ndef backwrd(s, target):\n    pass\n", "nothing calls backwrd", 3),
        ("\ndef forward(s):\n    pass\n", "forward(s) is given a schedule and a target", 2),
        ("\ndef forward(s, target):\n    yield\n", "would not run when it is called", 2),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, message: str, line: int | None) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    assert message in caught.value.message
    assert caught.value.location == (f"{path}:{line}" if line else str(path))


def test_phases_that_tell_nothing_of_their_arguments(tmp_path: Path) -> None:
    assert read_recipe(write(tmp_path, "forward = max\n")).functions == {"forward": max}


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([6, 6, 5], "[6, 6, 5]"),
        ([13] * 231 + [12] * 9, "[13] * 231 + [12] * 9"),
        ([*"ncyx"], "['n', 'c', 'y', 'x']"),
        ([], "[]"),
        ([14] * 8 + [13], "[14] * 8 + [13]"),
        ([True, 1, 1, 1], "[True, 1, 1, 1]"),
    ],
)
def test_many_tile_sizes_are_written_shortly(sizes: list[object], text: str) -> None:
    command = Recorded("unroll_and_jam", ("forward", "x", sizes), (), None)
    assert command.text == f"unroll_and_jam('forward', 'x', {text})"
    assert eval(text) == sizes


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        read_recipe(tmp_path / "none.py")


def test_a_recipe_that_raises(tmp_path: Path) -> None:
    path = write(tmp_path, "def forward(s, target):\n    s.parallelize('forward', 'n')\n    target.no_such_thing\n")
    with pytest.raises(RecipeError) as caught:
        schedule_alone(programs(), read_recipe(path), TARGET, ["scale1."])
    assert caught.value.location == f"{path}:3"
    assert "forward() raised AttributeError" in caught.value.message


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("s.extent('forward', 'q')", "no loop named 'q' in scale1.forward"),
        ("s.extent('backward', 'c')", "nothing is computed in the phase 'backward'"),
        ("s.subscripts('backward', 'grad')", "nothing is computed in the phase 'backward'"),
        ("s.shape('values')", "no buffer named 'values'"),
        ("s.loops('forwards')", "no phase named 'forwards'"),
        ("s.combination(17, 0)", "the largest tile must be a whole number of at least 1, not 0"),
        ("s.recipe('conv', 'forward')", "no recipe for 'conv' in this chain"),
        ("s.default('forward')", "there is no default schedule here"),
    ],
)
def test_a_question_that_has_no_answer_names_its_line(tmp_path: Path, question: str, message: str) -> None:
    path = write(tmp_path, f"def forward(s, target):\n    s.parallelize('forward', 'n')\n    {question}\n")
    with pytest.raises(CommandError) as caught:
        schedule_alone({"forward": programs()["forward"]}, read_recipe(path), TARGET, ["scale1."])
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert caught.value.way_out or "combination" in question


def test_a_recipe_that_is_refused_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "def update(s, target):\n\n    s.parallelize('update', 'x')\n")
    with pytest.raises(Refused) as caught:
        schedule_alone(programs(), read_recipe(path), TARGET, ["scale1."])
    assert str(caught.value).startswith(f"{path}:3: parallelize('update', 'x'): two iterations would update")


def test_without_a_recipe_the_program_is_canonical() -> None:
    scheduled = schedule_alone(programs(), None, TARGET)
    assert scheduled.outcomes == ()
    assert_same(programs()["update"], scheduled.stages["update"][-1].program)


def test_a_recipe_of_functions() -> None:
    recipe = Recipe("mine", {"forward": lambda s, target: s.tile_loop("forward", "x", target.simd_width)})
    scheduled = schedule_alone(programs(), recipe, TARGETS["avx2"])
    assert "x_outer" in scheduled.stages["forward"][-1].program.text


# --- inference ------------------------------------------------------------------------------------------
def test_inference_that_is_computed_like_forward_follows_without_being_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it is what computing it would have given, labels included."""
    given = {"forward": programs()["forward"], "inference": programs()["forward"].renamed("scale1.inference")}
    results = []
    for alike in (Program.alike, lambda one, other: False):
        monkeypatch.setattr(Program, "alike", alike)
        s = Schedule.alone(given, TARGET, "scale1.")
        s.tile("value", dim=0, factor=8)
        s.split("forward", "x", [5])
        s.distribute("forward", "c_outer", optional=True)
        s.parallelize("forward", "n")
        assert [outcome.status for outcome in s.outcomes].count("applied") >= 3
        results.append(s.programs["inference"])
    assert results[0] == results[1] and results[0].text == results[1].text
    assert results[0].nests[0].label == "scale1_inference_0"
    assert results[0].commands == s.programs["forward"].commands


def test_inference_that_differs_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = programs()["forward"]
    other = parse_program(FORWARD.replace("weights[c]", "2.0"), forward.buffers, "scale1.inference", ALIASES)
    assert not forward.alike(other) and forward.alike(forward.renamed("scale1.inference"))
    s = Schedule.alone({"forward": forward, "inference": other}, TARGET, "scale1.")
    s.parallelize("forward", "n")
    assert "parallel(2)" in s.programs["inference"].text and "2.0" in s.programs["inference"].text


def test_a_refusal_names_the_phase_that_reads() -> None:
    s = new()
    with pytest.raises(Refused) as caught:
        s.contract("backward", "grad")
    assert caught.value.witness == ("grad_weights[c] += grad[n, c, x] * inputs[n, c, x] in the update phase reads it")


def test_what_a_command_has_left_alone_is_recorded() -> None:
    text = "for n in range(4):\n weights[0] += inputs[0, n, 0]\nfor n in range(20):\n value[0, n, 0] = weights[n]"
    before = parse_program(text, BUFFERS, "scale1.forward")
    s = Schedule.alone({"forward": before}, TARGET, ["scale1."])
    s.parallelize("forward", "n")
    assert s.outcomes[0].status == "applied"
    assert s.outcomes[0].reason == (
        "loop n of scale1_forward_0 stays as it is: two iterations would update the same element"
    )
    assert s.programs["forward"].remarks == ()
    s.parallelize("forward", "n", nest=1)
    assert s.outcomes[1].reason == ""
