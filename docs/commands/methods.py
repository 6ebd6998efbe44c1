"""``swirl/schedule/command_methods.py``: the commands as methods, for editors and mypy, made from declarations."""

from __future__ import annotations

import inspect
import re
from textwrap import fill, indent

from swirl.transforms import COMMANDS
from swirl.transforms.command import OCCURRENCE, Command, with_occurrence

WIDTH = 120

HEAD = '''"""The commands as methods of ``s``: what an editor completes in a recipe, and what mypy checks there.

Written from ``swirl/transforms/commands`` by ``python docs/refresh.py command_methods``; not to be edited. At run time,
:class:`swirl.schedule.recipe.Schedule` finds a command by its name.
"""

from __future__ import annotations

from swirl.transforms.arguments import (
{types}
)


class CommandMethods:
    """Each returns the names of the loops that it made. ``optional=True`` skips a command that is refused."""
'''

MORE = {"fuse_layers": ["*phases: str"]}
"""What the schedule itself does with further arguments: here, phases whose programs become one."""


def filled(_: str = "") -> str:
    """The whole file."""
    names = [name for name, command in COMMANDS.items() if name == command.name]
    methods = [_method(COMMANDS[name]) for name in sorted(names)]
    older = [f"    {name} = {command.name}" for name, command in COMMANDS.items() if name != command.name]
    words = set(re.findall(r"\b[A-Z]\w+", " ".join(_annotations(COMMANDS[name]) for name in names))) - {"None"}
    head = HEAD.format(types="\n".join(f"    {word}," for word in sorted(words)))
    return "\n".join([head, *methods, "    # Older spellings", *sorted(older), ""])


def _method(command: Command[...]) -> str:
    parameters = [*MORE.get(command.name, []), *_parameters(command)]
    takes = ["self", *([] if command.lays_out else ["phase: str"]), *parameters]
    if any(one.startswith("*phases") for one in takes):
        takes.remove("*")
    return "\n".join([_head(command.name, takes), _sentence(command), "        raise NotImplementedError", ""])


def _parameters(command: Command[...]) -> list[str]:
    """As they are declared, with ``optional`` after the last one that is not ``**``."""
    found: list[str] = []
    star, last = False, []
    for parameter in _declared(command).values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            last = [str(parameter).replace("'", "")]
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            star = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            found, star = [*found, "*"], True
        found.append(_written(parameter))
    return [*found, *([] if star else ["*"]), "optional: bool = False", *last]


def _written(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}".replace("'", '"')
    return f"{star}{parameter.name}: {parameter.annotation}{default}"


def _declared(command: Command[...]) -> dict[str, inspect.Parameter]:
    """The parameters after the program, annotations as they are written."""
    found = dict(inspect.signature(command.function).parameters)
    found.pop("program")
    if not command.selects:
        return found
    occurrence = OCCURRENCE.replace(annotation="LoopOccurrence | None")
    return {each.name: each for each in with_occurrence(list(found.values()), occurrence)}


def _annotations(command: Command[...]) -> str:
    return " ".join(str(parameter.annotation) for parameter in _declared(command).values())


def _head(name: str, takes: list[str]) -> str:
    result = " -> tuple[str, ...]:"
    line = f"    def {name}({', '.join(takes)}){result}"
    if len(line) <= WIDTH:
        return line
    inside = f"        {', '.join(takes)}"
    if len(inside) <= WIDTH:
        return f"    def {name}(\n{inside}\n    ){result}"
    return "\n".join([f"    def {name}(", *(f"        {one}," for one in takes), f"    ){result}"])


def _sentence(command: Command[...]) -> str:
    first = " ".join(command.documentation.split("\n\n")[0].split())
    return indent(fill(f'"""{first}"""', WIDTH - 8), "        ")
