"""The steps of a recipe: grouped, shown, compiled to the same results, counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from latte.tools.bench.assembly import Counts, busiest_loop, counts
from latte.tools.bench.steps import convolution, main
from latte.tools.bench.walk import shortened, steps, touching
from swirl.target.targets import TARGETS
from tests.support import program

RECIPE = """
def forward(s, target):
    s.tile("value", 0, 8)
    s.tile("grad", 0, 8)
    s.flatten("forward", ["y", "x"], optional=True)
    s.split("forward", "x", [1, 4])
    for loop in ("x", "x_1", "x_2"):
        s.unroll("forward", loop, 2)
    s.parallelize("forward", "n")


def update(s, target):
    s.parallelize("update", "k_outer")
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    return path


def test_steps_are_groups_of_what_was_applied(recipe: Path) -> None:
    found = steps(convolution((2, 3, 8, 5)), "conv1", "forward", recipe, TARGETS["avx2"])
    assert [(step.key, len(step.commands)) for step in found] == [
        ("lowered", 0),
        ("tile", 2),
        ("split x", 1),
        ("unroll x", 3),
        ("parallelize n", 1),
        ("finished", 0),
    ]
    assert "for x_1 in range(1, 4)" in found[2].program.text and "parallel" not in found[3].program.text
    update = steps(convolution((2, 3, 8, 5)), "conv1", "update", recipe, TARGETS["avx2"])
    assert [step.key for step in update] == ["lowered", "tile", "parallelize k_outer", "finished"]


def test_nests_are_shortened() -> None:
    text = shortened(
        program(
            "for i in range(4):\n for j in range(5):\n  for k in range(6):\n   y[i] = 0.0\n   z[i, j] = 1.0\n"
            " for j in range(5):\n  y[i] += x[i, j] * 2.0\n  z[i, j] = 3.0\nfor i in range(4):\n y[i] = y[i] / 5.0",
            x=(4, 5),
            y=(4,),
            z=(4, 5),
        )
    )
    assert text == (
        "for i in range(4):\n    # … 4 lines: for j in range(5): for k in range(6):\n    for j in range(5):\n"
        "        y[i] += x[i, j] * 2.0\n        z[i, j] = 3.0\nfor i in range(4):\n    y[i] = y[i] / 5.0"
    )


def test_nests_are_shortened_to_what_touches_a_buffer() -> None:
    text = touching(
        program(
            "for i in range(4):\n y[i] = 0.0\n for j in range(5):\n  y[i] += 1.0\n for j in range(5):\n  y[i] += 2.0\n"
            " if y[i] > 0.0:\n  for j in range(5):\n   if y[i] > 1.0:\n    z[i, j] = y[i]\n else:\n  x[i, 0] = 2.0\n"
            "for i in range(4):\n y[i] = y[i] / 5.0",
            x=(4, 5),
            y=(4,),
            z=(4, 5),
        ),
        ["x"],
    )
    assert text == (
        "for i in range(4):\n    # … 5 lines: for j in range(5): for j in range(5):\n    if y[i] > 0.0:\n"
        "        for j in range(5):\n            if y[i] > 1.0:\n                z[i, j] = y[i]\n    else:\n"
        "        x[i, 0] = 2.0\nfor i in range(4):\n    y[i] = y[i] / 5.0"
    )


def test_every_step_computes_the_same_and_the_page_is_written(recipe: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured update -->\nold\n<!-- end -->\nafter\n")
    options = ["--recipe", str(recipe), "--phase", "update", "--shape", "2", "3", "8", "5", "--target", "portable"]
    done = CliRunner().invoke(main, [*options, "--threads", "1", "--rounds", "3", "--write", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("before\n<!-- measured update -->\n| after |") and text.endswith("<!-- end -->\nafter\n")
    assert "| parallelize k_outer |" in text and "old" not in text and "1 thread." in text


def test_counts_of_a_loop() -> None:
    code = [
        ("10", "vmovups zmm0,ZMMWORD PTR [rdi]"),
        ("14", "vfmadd231ps zmm1,zmm0,DWORD BCST [rsi]{1to16}"),
        ("18", "vfmadd231ps zmm2,zmm0,ZMMWORD PTR [rsp+0x40]"),
        ("1c", "vmovups ZMMWORD PTR [rdx],zmm1"),
        ("20", "add rdi,0x40"),
        ("24", "jne 10 <kernel+0x10>"),
        ("28", "jmp 4 <kernel>"),
    ]
    loop = busiest_loop(code)
    assert len(loop) == 6
    assert counts(loop) == Counts(multiply_adds=2, loads=1, broadcasts=1, spills=1, others=2, stores=1)
    assert busiest_loop(code[:3]) == []
