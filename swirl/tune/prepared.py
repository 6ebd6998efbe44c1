"""A phase before a search's own commands: with the layouts that it has; and what becomes of its other nests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from swirl.errors import LatteError
from swirl.ir.nest import Nest, kind_of, variable_of
from swirl.ir.paths import loops
from swirl.schedule.command_log import Recorded
from swirl.schedule.recipe import DEFAULT_SCHEDULE, Schedule
from swirl.transforms import LAYOUT_COMMANDS
from swirl.tune.candidates import Subject, applies
from swirl.tune.problem import Problem

PREPARING = (*LAYOUT_COMMANDS, "flatten", "fuse_layers", "pack", "reindex")
"""Commands of a known schedule before others: they choose arrays and statements, not the order of loops."""


def prepared(subject: Subject, known: Sequence[Recorded]) -> Subject:
    """A phase after the commands of a known schedule that others go on from; those that are refused are left out.

    Args:
        subject: the phase.
        known: commands of its schedule.
    """
    begun = subject.begun.copy()
    for command in known:
        if command.name in PREPARING and "at" not in dict(command.options):
            applies(begun, command)
    return replace(subject, begun=begun)


def preparing(subject: Subject, after: Subject) -> tuple[Recorded, ...]:
    """The commands with which :func:`prepared` has made a phase of another one."""
    new = after.begun.outcomes[len(subject.begun.outcomes) :]
    return tuple(each.command for each in new if each.status == "applied")


def schedule_others(s: Schedule, phase: str, problem: Problem, known: Sequence[Recorded], shares: bool) -> None:
    """Schedule the nests without the contraction: what the known schedule does to them, and threads where the
    contraction has some.

    Args:
        s: the schedule, in which the contraction is scheduled already.
        phase: of it.
        problem: the contraction.
        known: commands of another schedule of the phase.
        shares: whether loops of other nests are shared by threads.
    """
    program = s.programs[phase]
    own = {name for nest in program.nests if has_sum(nest, problem) for name in _variables([nest])}
    others = _variables(nest for nest in program.nests if not has_sum(nest, problem)) - own
    for command in known:
        named = {n for each in command.arguments[1:] for n in ([each] if isinstance(each, str) else _texts(each))}
        if command.name not in PREPARING and named and named <= others | {f"{n}_inner" for n in others}:
            with suppress(LatteError):
                s.apply(replace(command, location=DEFAULT_SCHEDULE))
    for nest in s.programs[phase].nests if shares else ():
        kinds = [kind_of(node) for _, node in loops(nest.body)]
        if kinds and "parallel" not in kinds and not has_sum(nest, problem):
            with suppress(LatteError):
                s.parallelize(phase, variable_of(loops(nest.body)[0][1]), nest=nest.label)


def has_sum(nest: Nest, problem: Problem) -> bool:
    """Whether a contraction, or a part of it, is in a nest."""
    inputs = {tensor.name for tensor in problem.tensors if not tensor.output}
    return inputs <= set(nest.names)


def _variables(nests: Iterable[Nest]) -> set[str]:
    return {variable_of(node) for nest in nests for _, node in loops(nest.body)}


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, (list, tuple)) else []
