"""Benchmarks beside foreign executables: the right lines, each followed by the layer's own figure."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest
from foreign import Measured, timed_lines
from prototypes import Case, measure

from latte import MemoryDataLayer, Net, ReLULayer


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        print("some words")
        print("P relu (2,3): min 0.50 med 0.75  [3.0 GB/s eff]", flush=True)
        print("P relu (2,30): min 5.00 med 7.50")
        print("relu step N2 3,4       min    1.00 med    1.25 ms   91.7% (min)", flush=True)
        while True:
            pass
        """)
    )
    path.chmod(0o755)
    return path


def test_wanted_lines(program: Path) -> None:
    """Whole names only; the program is ended after the last one, though it would never end."""
    wanted = [re.compile(r"relu \(2,3\)"), re.compile(r"relu step N2 3,4")]
    assert list(timed_lines([program], wanted)) == [
        Measured("relu (2,3)", 0.5, 0.75),
        Measured("relu step N2 3,4", 1.0, 1.25),
    ]


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="build it first"):
        list(timed_lines([tmp_path / "nothing"], []))


def test_sides_take_turns(program: Path) -> None:
    def declare() -> tuple[Net, tuple[str, ...]]:
        net = Net(2, seed=1)
        net.force_backward = True
        return net, (ReLULayer(net, MemoryDataLayer(net, (3,))).name,)

    cases = [
        Case("forward", (program.name,), r"relu \(2,3\)", declare, ("forward",)),
        Case("step", (program.name,), r"relu step N2 3,4", declare, ("forward", "backward")),
    ]
    found = measure(cases, program.parent, rounds=2, runs=3, target="portable", threads=1)
    assert [pair[0].least for pair in found["forward"]] == [0.5, 0.5]
    assert all(0 < ours.least <= ours.middle for pairs in found.values() for _, ours in pairs)
    unknown = [Case("none", (program.name,), r"tanh", declare, ("forward",)), cases[0]]
    program.write_text(program.read_text().replace("while True:\n    pass\n", ""))
    with pytest.raises(SystemExit, match="no line for 'none'"):
        measure(unknown, program.parent, rounds=1, runs=1, target="portable", threads=1)
