"""A batch of cases in one process: made, compared executed, then compiled together for every target."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from swirl.ir.nest import Program
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, Target
from tests.fuzz.checks import Case, Wrong, make_case, problem_of, random_pick
from tests.fuzz.commands import Command
from tests.fuzz.compiled import Batch, comparable
from tests.fuzz.features import features
from tests.fuzz.shrink import Failing, regression_test, shrink

SHRUNK = 3
"""Failures of a batch that are reduced; the others are shown as they are."""


def run_batch(first: int, count: int, commands: int, optimized: bool) -> dict[str, Any]:
    """Counts, and what went wrong, of the cases ``first`` … ``first + count - 1``."""
    counts = Counter[str](cases=count)
    cases: dict[int, Case] = {}
    failures: list[tuple[int, Program, list[Command], str, Failing]] = []
    for seed in range(first, first + count):
        try:
            case = cases[seed] = make_case(random_pick(seed), commands, finish=True, seed=seed)
        except Wrong as error:
            case = error.case
            fails = partial(executed_problem, seed=seed)
            failures.append((seed, case.program, case.commands, error.what, fails))
        for (name, _, _), applied in list(zip(case.commands, case.applied, strict=False))[:commands]:
            counts[f"tried {name}"] += 1
            counts[f"applied {name}"] += applied
        counts["changed"] += any(case.applied[:commands])
        counts[f"floats {case.floats}"] += bool(case.floats)
        counts.update(f"drawn {feature}" for feature in features(case.program))
    results = {seed: case.result or case.program for seed, case in cases.items()}
    groups: dict[str, dict[int, Program]] = {"float32": {}, "float64": {}}
    for seed, result in results.items():
        if comparable(result):
            groups["float64" if has_doubles(result) else "float32"][seed] = result
    optimize = "-O3" if optimized else "-O0"
    batches = {dtype: Batch(programs, first) for dtype, programs in groups.items() if programs}
    for target in (target for target in TARGETS.values() if why_not(target) is None):
        for dtype, batch in batches.items():
            if dtype == "float64" and target.isa_flags:  # only the portable target has it
                continue
            counts[f"compiled {target.name}"] += len(batch.parts)
            for seed, what in batch.wrong(target, optimize).items():
                if what.startswith("no code"):
                    counts[f"no code {target.name}"] += 1
                else:
                    fails = compiled_problem(target, optimize, first)
                    failures.append((seed, cases[seed].program, cases[seed].commands, what, fails))
    wrong = [_told(number, *failure) for number, failure in enumerate(failures)]
    return {"counts": dict(counts), "wrong": wrong}


def has_doubles(program: Program) -> bool:
    """Whether anything is of float64, which only the portable target has."""
    touched = {name for nest in program.nests for name in nest.arguments}
    return "float64" in program.text or any(program.buffers[name].dtype == "float64" for name in touched)


def executed_problem(program: Program, commands: Sequence[Command], seed: int = 0) -> str | None:
    """What is wrong with a case without compiling it."""
    return problem_of(program, commands, seed)[0]


def compiled_problem(target: Target, optimize: str, seed: int) -> Failing:
    """A function that tells whether a case computes something else on a target."""

    def problem(program: Program, commands: Sequence[Command]) -> str | None:
        other, after = problem_of(program, commands, seed)
        return other or Batch({0: after}, seed).wrong(target, optimize).get(0)

    return problem


def _told(
    number: int, seed: int, program: Program, commands: list[Command], what: str, fails: Failing
) -> dict[str, Any]:
    start = time.monotonic()
    if number < SHRUNK:
        program, commands = shrink(program, commands, fails)
        what = fails(program, commands) or what
    test = regression_test(program, commands, what, f"found_by_fuzzing_{seed}", seed)
    return {"seed": seed, "what": what, "test": test, "shrinking": time.monotonic() - start}
