"""The page on recipes: it shows every command, what it prints is what happens, and the examples compute the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from docs import kernels, steps
from docs.commands import Example, applied, examples, methods, page, refused
from docs.commands.page import OLDER, QUERIES
from latte import MemoryDataLayer, Net, ReLULayer
from swirl.errors import CommandError, LayoutError
from swirl.schedule.command_methods import CommandMethods
from swirl.schedule.queries import Questions
from swirl.transforms import COMMANDS
from tests.support import assert_same

DOCS = Path(__file__).parents[2] / "docs"
NAMES = list(dict.fromkeys(example.command for example in examples()))


def test_every_command_is_shown() -> None:
    """A new command gets an example in docs/commands; `python docs/refresh.py recipes` writes the page."""
    shown = [COMMANDS[name] for name in NAMES]
    missing = [name for name, function in COMMANDS.items() if function not in shown]
    assert not missing
    assert len(set(shown)) == len(shown)


def test_every_question_is_shown() -> None:
    asked = [query.split("(")[0].removeprefix("s.") for query, _ in QUERIES]
    assert sorted({*asked}) == sorted(
        name for name in vars(Questions) if not name.startswith("_") and name != "programs"
    )


@pytest.mark.parametrize(
    ("name", "filled"), [("recipes", page.filled), ("convolution", steps.filled), ("kernels", kernels.filled)]
)
def test_the_page_is_up_to_date(name: str, filled: Callable[[str], str]) -> None:
    """If not: `python docs/refresh.py`, with the page's name; if recipes have other steps, describe them there."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert filled(text) == text


def test_the_methods_are_up_to_date() -> None:
    """If not: `python docs/refresh.py command_methods`."""
    written = DOCS.parent / "swirl" / "schedule" / "command_methods.py"
    assert methods.filled() == written.read_text(encoding="utf-8")


def test_every_command_is_a_method() -> None:
    """With the command's parameters after those of a schedule, and nothing else."""
    for name, command in COMMANDS.items():
        takes = dict(inspect.signature(getattr(CommandMethods, name)).parameters)
        more = {"self", "phase", "optional"} - ({"phase"} if command.lays_out else set())
        assert set(takes) - set(command.signature.parameters) - {"phases"} == more
        assert all(
            takes[other].default == one.default and takes[other].kind == one.kind
            for other, one in command.signature.parameters.items()
        )


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.command)
def test_examples_compute_the_same(example: Example) -> None:
    assert example.recipe.splitlines()[-1].startswith((f"s.{example.command}(", "s.parallelize(", "s.tile("))
    assert_same(example.program, applied(example.program, example.recipe), seeds=(0,))
    if example.refusal is None:
        assert example.words, "say why nothing is refused"
        return
    program = example.refusal.program or example.program
    assert isinstance(refused(program, example.refusal.recipe), (CommandError, LayoutError))
    assert example.refusal.recipe.splitlines()[-1].startswith(f"s.{example.command}(")
    assert_same(program, applied(program, example.refusal.way_out), seeds=(0,))


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_say_all(name: str) -> None:
    """A sentence, before → after, every argument, what is raised."""
    text = COMMANDS[name].documentation
    assert text.split("\n\n")[0].endswith(".")
    assert "rewrite" in text
    assert "Raises:" in text
    parameters = COMMANDS[name].signature.parameters
    assert [parameter for parameter in parameters if f"    {parameter}: " not in text] == []


def test_older_names() -> None:
    for call in OLDER:
        assert call.split(".")[1].split("(")[0] in COMMANDS


def test_older_calls_are_accepted() -> None:
    """With the arguments in the order that they had."""
    net = Net(4, seed=0)
    relu = ReLULayer(net, MemoryDataLayer(net, (16, 6, 40)))
    relu.swap_loops("forward", ("_neuron_index_1", "_neuron_index_2"))
    relu.unroll_no_jam("forward", "_neuron_index_1", 4, 1)
    relu.simd("forward", "_neuron_index_3")
    relu.parallelize("forward", "_neuron_index_0")
    net.compile()
    assert [outcome.status for outcome in net.explain(relu).commands] == ["applied"] * 4
