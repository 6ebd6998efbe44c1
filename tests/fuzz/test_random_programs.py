"""Random programs and commands: refused, or the same results. A fixed budget; ``make fuzz`` goes on for as long as one
likes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swirl.ir.nest import Program, for_loop, loop_of
from swirl.ir.paths import edit_at
from swirl.target.targets import TARGETS, Target
from swirl.transforms import COMMANDS
from swirl.transforms.rewrites.sites import find_loops, loop_at
from tests.fuzz.batch import executed_problem, run_batch
from tests.fuzz.chains import CHAIN
from tests.fuzz.checks import PASSES, apply, make_case, problem_of, random_pick
from tests.fuzz.commands import COMMAND_MAKERS, Command
from tests.fuzz.compiled import Batch
from tests.fuzz.programs import PRIVATE, RANKS, ProgramMaker
from tests.fuzz.shapes import SHAPES, Shapes
from tests.fuzz.shrink import regression_test, shrink
from tests.sanitize import sanitized
from tests.support import program

SLOW_IS_FINE = settings(
    deadline=None,
    max_examples=45,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SEED = int(os.environ.get("FUZZ_SEED", "40000"))
"""Of the first case."""


@SLOW_IS_FINE
@given(st.data())
def test_commands_keep_the_meaning(data: st.DataObject) -> None:
    def pick(choices: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(list(choices)))

    make_case(pick, commands=4, finish=True)


@pytest.mark.parametrize("part", range(2))
def test_plain_random_cases(part: int) -> None:
    """Larger programs than Hypothesis likes to make, compiled for every target that this machine runs; other ones under
    the sanitizers."""
    seed = SEED + 30 * part + 60 * sanitized()
    print(f"seeds from {seed}")
    found = run_batch(seed, 30, commands=5, optimized=part == 0 and not sanitized())
    assert not found["wrong"], "\n\n".join(wrong["test"] for wrong in found["wrong"])


def test_every_command_is_tried() -> None:
    assert set(COMMAND_MAKERS) == {command.name for command in COMMANDS.values()} | set(PASSES)


@pytest.mark.parametrize("shape", sorted(set(SHAPES)))
def test_shapes(shape: str) -> None:
    for seed in range(20):
        lines, extents = Shapes(random_pick(seed)).make(shape)
        assert extents.keys() <= RANKS.keys() and all(len(extents[name]) == RANKS[name] for name in extents)
        executed = program("\n".join(lines), **{name: extents.get(name, (1,) * rank) for name, rank in RANKS.items()})
        if shape != "indirect":  # there the subscripts are an array of integers
            assert executed_problem(executed, []) is None


def test_chains() -> None:
    made = [ProgramMaker(random_pick(seed)).program(CHAIN) for seed in range(60)]
    assert {name for program in made for nest in program.nests for name in nest.arguments} >= set(PRIVATE)
    assert not any(executed_problem(program, []) for program in made)
    joined = [apply(program, ("fuse_layers", (), {})) for program in made]
    assert sum(after is not None for after in joined) > 20


# --- finding, and making small --------------------------------------------------------------------------------
def _unchecked_reverse(nests: Program, loop_var: str) -> Program:
    """A wrong command: it does not check whether the order matters."""
    for site in find_loops(nests, loop_var):
        loop = loop_of(loop_at(nests, site))
        if loop.extent is not None and loop.step == 1:
            body = loop_at(nests, site).body
            turned = for_loop(loop.var, -1, body, start=loop.extent - 1, step=-1)
            nest = nests.nests[site.nest]
            nests = nests.with_nest(site.nest, nest.with_body(edit_at(nest.body, site.path, lambda _, t=turned: [t])))  # type: ignore[misc]
    return nests


def test_a_wrong_command_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "reverse", _unchecked_reverse)
    before = program(
        """
for i in range(7):
    z[i] = x[i, 0] + 1.0
    for j in range(1, 5):
        if i < 3:
            y[i, j] = max(0.0, x[i, j] * w[j])
for j in range(8):
    w[j + 1] = w[j] * 2.0 + x[0, j]
""",
        x=(7, 8),
        y=(7, 5),
        z=(7,),
        w=(9,),
    )
    commands: list[Command] = [("hoist", (), {}), ("reverse", ("j",), {}), ("tidy", (), {})]
    assert (executed_problem(before, commands) or "").startswith("differs: ")
    smaller, fewer = shrink(before, commands, executed_problem)
    assert fewer == [("reverse", ("j",), {})]
    assert smaller.text.count("\n") == 2  # the function, the loop, one statement
    problem, _ = problem_of(smaller, fewer)
    assert problem is not None
    text = regression_test(smaller, fewer, problem, "order")
    assert "after = COMMANDS[\"reverse\"](after, 'j')" in text
    scope: dict[str, Any] = {}
    exec("from tests.support import assert_same, program\nfrom swirl.transforms import COMMANDS\n" + text, scope)
    with pytest.raises(pytest.fail.Exception, match="became"):
        scope["test_order"]()


def test_a_wrong_kernel_is_found(target: Target) -> None:
    right = program("for i in range(5):\n    y[i] = x[i] + 1.0", x=(5,), y=(5,))
    batch = Batch({7: right, 9: right})
    assert batch.wrong(target, "-O0") == {}
    batch.expected["y_of_9"][3] = 12345.0
    assert set(batch.wrong(target, "-O0")) == {9}


def test_something_in_the_padding_is_found() -> None:
    text = "for i in range(5):\n    y[0, i] = x[i] + 1.0"
    blocked = COMMANDS["tile"](program(text, x=(5,), y=(1, 5)), "y", 0, 4)
    batch = Batch({0: blocked})
    assert batch.wrong(TARGETS["portable"], "-O0") == {}
    written = blocked.buffers["y"].layout.pack(batch.expected["y_of_0"])
    written[0, 1, 3] = 1.0
    assert batch._problem("y_of_0", written) == "the padding of y is not zero"
