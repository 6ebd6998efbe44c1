"""The nests in docs/convolution.md: what the recipe's commands make of a convolution, step by step."""

from __future__ import annotations

import re

from latte.tools.bench.report import replaced
from latte.tools.bench.steps import convolution, recipe_file
from latte.tools.bench.walk import Step, shortened, steps
from swirl.target.targets import TARGETS

MARK = re.compile(r"<!-- step (\w+) (.+?) -->")
WHOLE = ("forward",)
"""Phases of which every step is shown; the page chooses steps of the others."""


def filled(text: str) -> str:
    """The page with updated commands and nests.

    Raises:
        ValueError: its steps are not those of the recipe, in their order.
    """
    marks = MARK.findall(text)
    for phase in dict.fromkeys(phase for phase, _ in marks):
        found = {step.key: step for step in steps(convolution(), "conv1", phase, recipe_file(), TARGETS["avx512"])}
        shown = [key for of, key in marks if of == phase]
        expected = [key for key in found if phase in WHOLE or key in shown]
        if shown != expected:
            raise ValueError(f"the page shows {shown} of {phase}; the recipe's steps are {list(found)}")
        for key in shown:
            text = replaced(text, f"step {phase} {key}", part(found[key]))
    return text


def part(step: Step) -> str:
    """The commands of a step, and the nest after them."""
    commands = "\n".join(f"s.{command.text}" for command in step.commands)
    blocks = [commands, shortened(step.program)] if commands else [shortened(step.program)]
    return "\n\n".join(f"```python\n{block}\n```" for block in blocks)
