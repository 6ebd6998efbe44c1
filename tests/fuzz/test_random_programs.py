"""Random programs and commands: refused, or the same results. A fixed budget; ``run.py`` goes on for as long
as one likes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swirl.codegen.emit import emit
from swirl.codegen.physical import physical
from swirl.ir.buffers import Buffer
from swirl.ir.execute import execute, random_arrays
from swirl.ir.nest import Nest, Program, make_nest, substitute
from swirl.target import Target
from tests.codegen.conftest import assert_same_bits, run_source
from tests.fuzz.checks import make_case, random_pick

SLOW_IS_FINE = settings(deadline=None, max_examples=100, print_blob=True,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip


@SLOW_IS_FINE
@given(st.data())
def test_commands_keep_the_meaning(data: st.DataObject) -> None:
    def pick(choices: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(list(choices)))

    make_case(pick, commands=4, finish=True)


@pytest.mark.parametrize("seed", range(40_000, 40_200, 20))
def test_plain_random_cases(seed: int) -> None:
    """Larger programs than Hypothesis likes to make."""
    for number in range(seed, seed + 20):
        make_case(random_pick(number), commands=5, finish=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_compiled(seed: int, target: Target) -> None:
    """Several cases in one kernel: the compiled programs compute what the executed ones do, bit for bit."""
    cases = [make_case(random_pick(50_000 + 100 * seed + i), commands=5, finish=True) for i in range(40)]
    cases = [case for case in cases if "exp(" not in case.program.text]  # libmvec rounds otherwise
    nests: list[Nest] = []
    buffers: dict[str, Buffer] = {}
    for number, case in enumerate(cases):
        program = _renamed(case.result or case.program, f"_{number}")
        nests += program.nests
        buffers |= program.buffers
    together = Program("together", tuple(nests), buffers)
    arrays = random_arrays(together, seed)
    expected = {name: array.copy() for name, array in arrays.items()}
    execute(together, expected)
    source = emit(physical(together), target, contract=False)
    got = run_source(
        source, {name: buffers[name].layout.pack(array) for name, array in arrays.items()}, target
    )
    for name, array in expected.items():
        found = buffers[name].layout.unpack(got[name], buffers[name].shape)
        assert_same_bits(found, array, name)


def _renamed(program: Program, suffix: str) -> Program:
    """The program with buffers and labels of its own."""
    buffers = {name + suffix: buffer for name, buffer in program.buffers.items()}
    mapping: dict[str, ast.expr] = {name: ast.Name(name + suffix, ast.Load()) for name in program.buffers}
    nests = [
        make_nest(nest.label + suffix, [substitute(s, mapping) for s in nest.body], buffers)
        for nest in program.nests
    ]
    return Program(program.name, tuple(nests), buffers)
