"""A recipe step by step: the commands of a phase in groups, and the nest after each, shortened."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

from latte.autodiff.differentiated import layer_programs
from latte.net import Net
from swirl.ir.nest import Program, loop_of, names_in
from swirl.ir.paths import Path as Place
from swirl.ir.paths import enclosing, walk
from swirl.ir.phases import PHASES
from swirl.ir.printing import unparse
from swirl.schedule.command_log import Recorded
from swirl.schedule.files import read_recipe
from swirl.schedule.pipeline import Stage, canonical_stages, finish
from swirl.schedule.recipe import Schedule
from swirl.target.targets import Target
from swirl.transforms import LAYOUT_COMMANDS

SHORT = 3  # lines of a loop that is shown whole although it is not the one that matters

Beside = Callable[[Sequence[ast.stmt]], list[str]]
"""What is shown of neighbouring statements that do not matter."""


@dataclass(frozen=True)
class Step:
    """Some commands, and what they lead to.

    Args:
        key: unique in the phase: ``unroll_and_jam x``; ``lowered`` is the first, without commands, and ``finished`` the
            last, after the passes that follow the recipe.
        commands: applied one after the other.
        program: after them.
    """

    key: str
    commands: tuple[Recorded, ...]
    program: Program


def steps(net: Net, layer: str, phase: str, recipe: Path, target: Target) -> list[Step]:
    """How a recipe turns the nest of a layer as it is declared into the one that is compiled.

    Layouts that another phase's function chooses come first.

    Raises:
        LatteError: the file is not a recipe, or a command of it was refused.
    """
    found = layer_programs(net.graph, net.batch_size)
    lowered = next(one.programs for one in found if one.ensemble.name == layer)
    canonical = {name: canonical_stages(program)[-1].program for name, program in lowered.items()}
    commands = _recorded(canonical, recipe, target)
    known = {name for program in lowered.values() for name in program.buffers}
    earlier = [
        command
        for before in PHASES[: PHASES.index(phase)]
        for command in commands[before]
        if command.name in LAYOUT_COMMANDS and command.arguments[0] in known
    ]
    taken: list[str] = []
    result = [Step("lowered", (), lowered[phase])]
    replayed = Schedule.alone(canonical, target)
    for key, group in groupby([*earlier, *commands[phase]], _key):
        members = tuple(group)
        for command in members:
            replayed.apply(command)
        taken.append(key)
        number = taken.count(key)
        result.append(Step(f"{key} {number}" if number > 1 else key, members, replayed.programs[phase]))
    whole = finish((Stage("recipe", replayed.programs[phase], 0.0),))
    physical = next(index for index, stage in enumerate(whole) if stage.name == "physical")
    return [*result, Step("finished", (), whole[physical - 1].program)]


def _recorded(programs: dict[str, Program], recipe: Path, target: Target) -> dict[str, list[Recorded]]:
    """The commands that each function of a recipe has applied."""
    recorder, found = Schedule.alone(programs, target), read_recipe(recipe)
    result: dict[str, list[Recorded]] = {}
    for phase in PHASES:
        before = len(recorder.outcomes)
        found.apply(recorder, [phase])
        new = recorder.outcomes[before:]
        result[phase] = [outcome.command for outcome in new if outcome.status == "applied"]
    return result


def _key(command: Recorded) -> str:
    """Neighbours with the same key are one step: parts of one loop (``x``, ``x_1``), and layouts."""
    second = command.arguments[1] if len(command.arguments) > 1 else None
    if command.name in LAYOUT_COMMANDS or not isinstance(second, str):
        return command.name
    return f"{command.name} {re.sub(r'_[0-9]+$', '', second)}"


# --- showing --------------------------------------------------------------------------------------------
def shortened(program: Program) -> str:
    """The nests without the loops beside the statement that is executed most often: a comment is left of each."""
    place = max(_products(program), key=lambda found: _executions(program, *found))
    return _opened(program, [place], lambda beside: [line for node in beside for line in _remark([node])])


def touching(program: Program, buffers: Sequence[str]) -> str:
    """The nests with the loops in which some buffers are touched; one comment is left of everything between two."""
    return _opened(program, list(_touching(program, buffers)), _remark)


def _opened(program: Program, places: Sequence[tuple[int, Place]], beside: Beside) -> str:
    lines: list[str] = []
    for number, nest in enumerate(program.nests):
        lines += _shown(nest.body, [place for index, place in places if index == number], "body", beside)
    return "\n".join(lines)


def _touching(program: Program, buffers: Sequence[str]) -> Iterator[tuple[int, Place]]:
    """Statements with an element of one of the buffers in them."""
    for index, nest in enumerate(program.nests):
        for path, node in walk(nest.body):
            if not isinstance(node, (ast.For, ast.If)) and names_in(node) & set(buffers):
                yield index, path


def _products(program: Program) -> Iterator[tuple[int, Place]]:
    """Updates that multiply, or else every assignment."""
    places = [
        (index, path, node)
        for index, nest in enumerate(program.nests)
        for path, node in walk(nest.body)
        if isinstance(node, (ast.Assign, ast.AugAssign))
    ]
    multiply = [
        (index, path)
        for index, path, node in places
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Mult)
    ]
    yield from multiply or [(index, path) for index, path, _ in places]


def _executions(program: Program, index: int, place: Place) -> int:
    loops = [node for node in enclosing(program.nests[index].body, place) if isinstance(node, ast.For)]
    return prod(loop_of(node).extent or 1 for node in loops)


def _shown(body: Sequence[ast.stmt], places: Sequence[Place], field: str, beside: Beside) -> list[str]:
    """The statements of a block; those that contain one of the ``places`` (paths from the block) are opened."""
    lines: list[str] = []
    others: list[ast.stmt] = []
    for position, node in enumerate(body):
        inside = [place[1:] for place in places if place[0] == (field, position)]
        if not inside:
            others.append(node)
            continue
        lines += beside(others)
        others = []
        if () in inside:
            lines.append(unparse(node))
            continue
        assert isinstance(node, (ast.For, ast.If))
        lines.append(unparse(node).splitlines()[0])
        lines += [f"    {line}" for line in _shown(node.body, inside, "body", beside)]
        if node.orelse:
            lines += ["else:", *(f"    {line}" for line in _shown(node.orelse, inside, "orelse", beside))]
    return lines + beside(others)


def _remark(body: Sequence[ast.stmt]) -> list[str]:
    """The statements, or how long they are, and the first loops."""
    text = [line for node in body for line in unparse(node).splitlines()]
    if len(text) <= SHORT:
        return text
    heads = [line.strip() for line in text if line.strip().startswith("for ")]
    words = [f"# … {len(text)} lines{':' if heads else ''}", *heads[:2], *(["…"] if len(heads) > 2 else [])]
    return [" ".join(words)]
