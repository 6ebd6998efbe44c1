"""The smallest sensible example of each command, and the part of docs/recipes.md that is made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent

from swirl.errors import LatteError
from swirl.ir.buffers import Buffer
from swirl.ir.nest import Program, parse_program
from swirl.ir.validate import validate
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS

RECIPE = "my_recipe.py"
Shape = tuple[int, ...]


def nests(text: str, integers: Sequence[str] = (), /, **shapes: Shape) -> Program:
    """A program from the text of its nests; keywords are the shapes of its buffers, of which some hold int32."""
    types = dict.fromkeys(integers, "int32")
    buffers = {name: Buffer(f"net.{name}", shape, types.get(name, "float32")) for name, shape in shapes.items()}
    return validate(parse_program(dedent(text).strip(), buffers))


@dataclass(frozen=True)
class Refusal:
    """A command that is refused.

    Args:
        recipe: lines of a recipe, of which the last is refused.
        way_out: lines that do what was wanted, or the next best thing, on the same program.
        words: on the way out.
        program: what they are applied to; by default that of the example.
    """

    recipe: str
    way_out: str
    words: str
    program: Program | None = None


@dataclass(frozen=True)
class Example:
    """A command at work.

    Args:
        command: its name.
        program: before.
        recipe: lines of a recipe.
        refusal: a command that is refused, and the way out.
        words: on what to see; may be empty.
    """

    command: str
    program: Program
    recipe: str
    refusal: Refusal | None
    words: str = ""


def applied(program: Program, recipe: str) -> Program:
    """The program after the lines of a recipe.

    Raises:
        LatteError: as the commands do.
    """
    schedule = Schedule.alone({"forward": program}, TARGETS["avx512"], ("",))
    exec(compile(recipe, RECIPE, "exec"), {"s": schedule})
    return schedule.programs["forward"]


def refused(program: Program, recipe: str) -> LatteError:
    """The message that refuses the last line of a recipe; the lines before apply."""
    *before, _ = recipe.splitlines()
    applied(program, "\n".join(before))
    try:
        applied(program, recipe)
    except LatteError as error:
        return error
    raise AssertionError(f"not refused: {recipe}")


def examples() -> Sequence[Example]:
    """All, in the order of the page."""
    from docs.commands import layers, memory, order, ranges, statements

    return [*order.EXAMPLES, *ranges.EXAMPLES, *statements.EXAMPLES, *memory.EXAMPLES, *layers.EXAMPLES]
