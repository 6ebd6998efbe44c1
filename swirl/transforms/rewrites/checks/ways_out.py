"""Ways out of a refusal: commands are run on the program before a message names them.

They are searched when the refusal is read (:class:`swirl.errors.Refused`), so refusals that a command catches, or that
come from a trial here, cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swirl.analysis.dependences import NotProved
from swirl.analysis.trips import all_instructions
from swirl.errors import CommandError, LayoutError, ValidationError
from swirl.ir.nest import Program, constant, kind_of, loop_of
from swirl.ir.paths import loops
from swirl.transforms.command import COMMANDS
from swirl.transforms.rewrites.loops.borders import interior
from swirl.transforms.rewrites.sites import Site, find_loops, loop_at

MORE_WORK = 8
"""Times the instructions of before that a way out may take; these are upper bounds, which peeled ends count twice."""
MOST_TRIED = 24
"""The most commands that are run for one refusal."""


@dataclass(frozen=True)
class Step:
    """One command with its arguments, as a recipe writes it (without the phase)."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def text(self) -> str:
        given = [repr(argument) for argument in self.arguments]
        given += [f"{key}={value!r}" for key, value in self.options]
        return f"{self.name}({', '.join(given)})"


def step(name: str, *arguments: Any, **options: Any) -> Step:
    """A command to be tried; options that are None are left out."""
    return Step(name, arguments, tuple((key, value) for key, value in options.items() if value is not None))


class Trial:
    """Tries the commands that a refusal might offer.

    Args:
        program: on which the command is refused.
    """

    def __init__(self, program: Program):
        self.program = program
        self.left = MOST_TRIED

    def after(self, *steps: Step) -> Program | None:
        """The program after these commands; None if one of them is refused or leaves a loop out, or if enough commands
        have been tried."""
        program = self.program
        for one in steps:
            if self.left == 0:
                return None
            self.left -= 1
            try:
                made = COMMANDS[one.name](program, *one.arguments, **dict(one.options))
            except (CommandError, LayoutError, ValidationError, NotProved):
                return None
            if made.remarks != program.remarks:
                return None
            program = made
        return program

    def works(self, *steps: Step) -> bool:
        """Whether the commands apply, change something, and do not compute much again."""
        made, program = self.after(*steps), self.program
        if made is None or (made.nests, dict(made.buffers)) == (program.nests, dict(program.buffers)):
            return False
        return all_instructions(made) <= MORE_WORK * max(1, all_instructions(program))


Make = Callable[..., Sequence[Step]]
"""The commands to try, for the name of a loop and the options ``nest`` and ``occurrence`` that distinguish it."""


def others(trial: Trial, site: Site, make: Make, *, by_occurrence: bool = True) -> list[Sequence[Step]]:
    """The commands that work on the other plain loops of the nest at ``site``, a sequence for each name; loops of one
    name are distinguished if the name is not enough.

    Args:
        make: the commands for a loop.
        by_occurrence: whether they take ``occurrence``.
    """
    nest = trial.program.nests[site.nest]
    own = loop_of(loop_at(trial.program, site)).var
    found: list[Sequence[Step]] = []
    plain = [loop_of(node) for _, node in loops(nest.body) if kind_of(node) == "range"]
    names = dict.fromkeys(loop.var for loop in plain if loop.extent != 1)
    for name in names:
        if name != own:
            found += _first(trial, site, name, make, by_occurrence)
    return found


def _first(trial: Trial, site: Site, name: str, make: Make, by_occurrence: bool) -> list[Sequence[Step]]:
    """The commands under the shortest name that works: for all loops of that name, those of the nest, or single
    ones."""
    everywhere = len(find_loops(trial.program, name))
    here = len(find_loops(trial.program, name, site.nest))
    ways: list[dict[str, Any]] = [{}]
    if here < everywhere:
        ways.append({"nest": site.nest})
    for options in ways:
        steps = make(name, **options)
        if trial.works(*steps):
            return [steps]
    single = []
    for number in range(here if by_occurrence and here > 1 else 0):
        steps = make(name, **ways[-1], occurrence=number)
        if trial.works(*steps):
            single.append(steps)
    return single


def tried(program: Program, *alternatives: Sequence[Step]) -> Callable[[], str | None]:
    """A function that finds which of these sequences of commands work, when a refusal is read."""

    def find() -> str | None:
        trial = Trial(program)
        return either([", then ".join(one.text for one in steps) for steps in alternatives if trial.works(*steps)])

    return find


def nest_of(program: Program, site: Site) -> int | None:
    """The nest that a command must name to mean the loop at ``site``; None if the loop's name is enough."""
    name = loop_of(loop_at(program, site)).var
    return site.nest if len(find_loops(program, name)) > len(find_loops(program, name, site.nest)) else None


def middle(program: Program, site: Site) -> tuple[Step, str] | None:
    """The split that removes a loop's borders, if something is clipped, and the name of the part between them."""
    loop, only = loop_of(loop_at(program, site)), nest_of(program, site)
    start, stop = constant(loop.start), constant(loop.stop)
    if start is None or stop is None or loop.step != 1 or start >= stop:
        return None
    low, high = interior(program, loop.var, nest=only)
    cuts = [cut for cut in (low, high) if start < cut < stop]
    return (step("split", loop.var, cuts, nest=only), f"{loop.var}_1" if low > start else loop.var) if cuts else None


def either(texts: Sequence[str | None]) -> str | None:
    """Ways out as one sentence; None where there is none."""
    found = [text for text in texts if text]
    return "; ".join(found) or None
