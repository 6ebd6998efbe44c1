"""Benchmarks beside foreign executables: the right lines, each followed by the layer's own figure."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latte import MemoryDataLayer, Net, ReLULayer
from latte.ensemble import Ensemble
from latte.tools.bench import convolution, layers
from latte.tools.bench.foreign import Measured, timed_lines
from latte.tools.bench.prototypes import Case, measure


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        print("some words")
        print("P relu (2,3): min 0.50 med 0.75  [3.0 GB/s eff]", flush=True)
        print("P relu (2,30): min 5.00 med 7.50")
        print("P relu (2,3) step: min 1.00 med 1.25", flush=True)
        while True:
            pass
        """)
    )
    path.chmod(0o755)
    return path


def test_wanted_lines(program: Path) -> None:
    """Whole names only; the program is ended after the last one, though it would never end."""
    wanted = [re.compile(r"relu \(2,3\)"), re.compile(r"relu \(2,3\) step")]
    assert list(timed_lines(program, wanted)) == [
        Measured("relu (2,3)", 0.5, 0.75),
        Measured("relu (2,3) step", 1.0, 1.25),
    ]


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="build it first"):
        list(timed_lines(tmp_path / "nothing", []))


def test_sides_take_turns(program: Path) -> None:
    def declare() -> tuple[Net, tuple[str, ...]]:
        net = Net(2, seed=1)
        net.force_backward = True
        return net, (ReLULayer(net, MemoryDataLayer(net, (3,))).name,)

    cases = [
        Case("forward", program.name, r"relu \(2,3\)", declare, ("forward",)),
        Case("step", program.name, r"relu \(2,3\) step", declare, ("forward", "backward")),
    ]
    found = measure(cases, program.parent, rounds=2, runs=3, threads=1)
    assert [pair[0].least for pair in found["forward"]] == [0.5, 0.5]
    assert all(0 < ours.least <= ours.middle for pairs in found.values() for _, ours in pairs)
    unknown = [Case("none", "kernels", r"tanh", declare, ("forward",)), cases[0]]
    program.write_text(program.read_text().replace("while True:\n    pass\n", ""))
    with pytest.raises(SystemExit, match="no line for 'none'"):
        measure(unknown, program.parent, rounds=1, runs=1, threads=1)


SMALL = ["--batch", "3", "--shape", "1", "4", "4", "--filters", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options"), [("targets", ["--repeat", "2"]), ("training_step", ["--rounds", "1", "--steps", "2"])]
)
def test_tables_in_a_file_have_one_line_a_row(module: str, options: list[str]) -> None:
    """A subprocess has no terminal, as a file has none; a warning would stand among the figures."""
    if module == "training_step":
        pytest.importorskip("torch")
    command = [sys.executable, "-m", f"latte.tools.bench.{module}", *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert rows and all("ms (" in line for line in rows), done.stdout


def test_shares_of_the_limit() -> None:
    cells = convolution.row(convolution.Case(2, 20, 7, 3, 2), threads=1, rounds=2)
    assert cells[0] == "20, 7, 3 × 3, stride 2"
    assert all(re.fullmatch(r"\d+% \(\d+% … \d+%\), \d+", cell) for cell in cells[1:])


@pytest.mark.parametrize("field", ["value", "grad_weights"])
def test_wrong_results_are_not_timed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Ensemble.__getattr__

    def wrong(layer: Ensemble, name: str) -> Any:
        found = right(layer, name)
        return (lambda: found() * 1.01) if name == f"get_{field}" else found

    monkeypatch.setattr(Ensemble, "__getattr__", wrong)
    with pytest.raises(SystemExit, match=r"is .*, not "):
        convolution.Layer(convolution.Case(2, 16, 4, 1, 1), threads=1)


def test_layers_on_both_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer is compared and timed on both targets, and what is slower is counted."""
    few = [layers.Case("max_pooling", (3, 5, 5), {"kernel": 2, "stride": 2}), layers.Case("softmax_loss", (5,)),
           layers.Case("fully_connected", (2, 3, 3), {"num_outputs": 3})]  # fmt: skip
    monkeypatch.setattr(layers, "cases", lambda: iter(few))
    ran = CliRunner().invoke(layers.main, ["--batch", "2", "--repeat", "2"])
    assert ran.exit_code == 0, ran.output
    assert len(re.findall(r"max_pooling 3×5×5 kernel 2 stride 2 +│ (?:forward|backward)", ran.output)) == 2
    assert re.search(r"\d of 6 are slower than portable code", ran.output)


def test_layers_that_disagree() -> None:
    case = layers.Case("relu", (2,))
    with pytest.raises(SystemExit, match=r"the targets disagree by 0\.5"):
        layers._compare(case, [np.ones(2, np.float32)], [np.full(2, 1.5, np.float32)])
