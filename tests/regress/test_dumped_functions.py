"""A dumped stage runs by itself, whatever it calls: one with ``erf`` ended in a NameError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from swirl.dump.write import contents, stage_text
from swirl.ir.buffers import Buffer
from swirl.ir.nest import parse_program
from swirl.ir.operations import FUNCTIONS


def test_a_dumped_stage_may_call_every_function(tmp_path: Path) -> None:
    single = [name for name, known in FUNCTIONS.items() if known.arguments == 1]
    lines = "".join(f"    {name}_[i] = {name}(x[i])\n" for name in single)
    buffers = {name: Buffer(f"s.{name}", (3,)) for name in ("x", *(f"{name}_" for name in single))}
    program = parse_program(f"for i in range(3):\n{lines}", buffers)
    path = tmp_path / "stage.py"
    path.write_text(stage_text(program, "every function", buffers, False, contents(program)))
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(f"* {name}_" in ran.stdout for name in single)
