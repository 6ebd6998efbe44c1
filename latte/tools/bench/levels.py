"""A layer's recipe in parts: how much each kind of command has to do with its speed."""

from __future__ import annotations

from dataclasses import replace

from latte.explain.explanation import Explanation
from swirl.ir.phases import PHASES

LEVELS = ("naive", "+ interchange, fusion, scalar replacement", "+ unrolling, SIMD")
"""What is left of a recipe at each level; all of it, threads included, is ours."""
PARALLEL = {"parallelize", "privatize"}
VECTORS = {"vectorize", "unroll", "unroll_and_jam", "stream", "prefetch", "partial_sums"}
"""Commands of the last two levels; ``partial_sums`` and ``stream`` are of vectors."""


def up_to(explanation: Explanation, level: int) -> str:
    """The recipe of a layer with the commands of a level and below, as a file's text.

    Args:
        explanation: of the layer under all commands.
        level: index in :data:`LEVELS`.
    """
    kept = [
        replace(command, text=_optional(command.text))  # loops of commands left out are missing
        for command in explanation.commands
        if command.status == "applied" and 0 < _level(command.text.split("(")[0]) <= level
    ]
    text = replace(explanation, commands=tuple(kept)).as_recipe()
    without = [phase for phase in PHASES if f"def {phase}(" not in text]  # they are not the default schedule's
    return "\n\n".join([text.rstrip(), *(f"def {phase}(s, target):\n    pass" for phase in without)]) + "\n"


def _optional(text: str) -> str:
    return text if "optional=True" in text else f"{text[:-1]}, optional=True)"


def _level(command: str) -> int:
    return 3 if command in PARALLEL else 2 if command in VECTORS else 1
