"""A recipe step by step: the commands of a phase in groups, and the nest after each, as short as it can be shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

from latte.net import Net
from latte.phases import net_programs
from swirl.ir.nest import Path as Place
from swirl.ir.nest import Program, enclosing, loop_of, walk
from swirl.pipeline import finish, schedule
from swirl.questions import PHASES
from swirl.recipe import Schedule
from swirl.recipe_files import read_recipe
from swirl.recorded import Recorded
from swirl.target import Target
from swirl.transforms import LAYOUT_COMMANDS

SHORT = 3  # lines of a loop that is shown whole although it is not what matters


@dataclass(frozen=True)
class Step:
    """Some commands, and what they lead to.

    Args:
        key: says which, and no other of the phase: ``unroll_and_jam x``; ``lowered`` is the first, without commands,
            and ``finished`` the last, after the passes behind the recipe.
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
        LatteError: the recipe is no recipe, or a command of it was refused.
    """
    lowered = next(found.programs for found in net_programs(net, net.batch_size) if found.ensemble.name == layer)
    canonical = {name: found[-1].program for name, found in schedule(lowered, None, target).stages.items()}
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
    replayed = Schedule(canonical, target)
    for key, group in groupby([*earlier, *commands[phase]], _key):
        members = tuple(group)
        for command in members:
            replayed.apply(command)
        taken.append(key)
        number = taken.count(key)
        result.append(Step(f"{key} {number}" if number > 1 else key, members, replayed.programs[phase]))
    recipe_stage = schedule({phase: lowered[phase]}, None, target).stages[phase][-1]
    whole = finish((type(recipe_stage)("recipe", replayed.programs[phase], 0.0),))
    physical = next(index for index, stage in enumerate(whole) if stage.name == "physical")
    return [*result, Step("finished", (), whole[physical - 1].program)]


def _recorded(programs: dict[str, Program], recipe: Path, target: Target) -> dict[str, list[Recorded]]:
    """The commands that each function of a recipe has applied."""
    recorder, found = Schedule(programs, target), read_recipe(recipe)
    result: dict[str, list[Recorded]] = {}
    for phase in PHASES:
        before = len(recorder.outcomes)
        found.apply(recorder, [phase])
        new = recorder.outcomes[before:]
        result[phase] = [outcome.command for outcome in new if outcome.status == "applied"]
    return result


def _key(command: Recorded) -> str:
    """Neighbours of one key are one step: parts of one loop (``x``, ``x_1``), and layouts."""
    second = command.arguments[1] if len(command.arguments) > 1 else None
    if command.name in LAYOUT_COMMANDS or not isinstance(second, str):
        return command.name
    return f"{command.name} {re.sub(r'_[0-9]+$', '', second)}"


# --- showing --------------------------------------------------------------------------------------------
def shortened(program: Program) -> str:
    """The nests without the loops beside the statement that is executed most often: of those a comment is left."""
    index, place = max(_products(program), key=lambda found: _executions(program, *found))
    lines: list[str] = []
    for number, nest in enumerate(program.nests):
        if number == index:
            lines += _shown(nest.body, place, 0)
        else:
            lines += _others(nest.body, "")
    return "\n".join(lines)


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


def _shown(body: Sequence[ast.stmt], place: Place, depth: int) -> list[str]:
    """The statements of a block; ``place`` is the rest of the way to the one that matters."""
    indent, position = "    " * depth, place[0][1]
    lines = _others(body[:position], indent)
    node = body[position]
    if isinstance(node, (ast.For, ast.If)) and len(place) > 1:
        lines.append(indent + ast.unparse(node).splitlines()[0])
        inner = node.body if place[1][0] == "body" else node.orelse
        if place[1][0] != "body":
            lines += [*_others(node.body, indent + "    "), f"{indent}else:"]
        lines += _shown(inner, place[1:], depth + 1)
    else:
        lines.append(indent + ast.unparse(node))
    return lines + _others(body[position + 1 :], indent)


def _others(body: Sequence[ast.stmt], indent: str) -> list[str]:
    lines: list[str] = []
    for node in body:
        text = ast.unparse(node).splitlines()
        if len(text) > SHORT:
            heads = [line.strip() for line in text[:-1] if line.strip().startswith("for ")]
            shown = " ".join(heads[:2])
            lines.append(f"{indent}# … {len(text)} lines: {shown}{' …' if len(heads) > 2 else ''}")
        else:
            lines += [indent + line for line in text]
    return lines
