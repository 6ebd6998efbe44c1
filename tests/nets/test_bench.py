"""What users time: results are compared first, tables have one line for each row."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from latte.ensemble import Ensemble
from latte.tools.bench import convolution, layers

SMALL = ["--batch", "3", "--shape", "1", "4", "4", "--filters", "2"]


@pytest.mark.slow
def test_tables_in_a_file_have_one_line_a_row() -> None:
    """A subprocess has no terminal, as a file has none; a warning would be among the figures."""
    command = [sys.executable, "-m", "latte.tools.bench.targets", *SMALL, "--repeat", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert rows and all("ms (" in line for line in rows), done.stdout


@pytest.mark.usefixtures("small_probes")
def test_shares_of_the_limit() -> None:
    cells = convolution.row(convolution.Case(2, 20, 7, 3, 2), threads=1, rounds=2)
    assert cells[0] == "20, 7, 3 × 3, stride 2"
    assert all(re.fullmatch(r"\d+% \(\d+% … \d+%\), \d+", cell) for cell in cells[1:])


@pytest.mark.usefixtures("small_probes")
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
    few = [
        layers.Case("max_pooling", (3, 5, 5), {"kernel": 2, "stride": 2}),
        layers.Case("softmax_loss", (5,)),
        layers.Case("fully_connected", (2, 3, 3), {"num_outputs": 3}),
    ]
    monkeypatch.setattr(layers, "cases", lambda: iter(few))
    ran = CliRunner().invoke(layers.main, ["--batch", "2", "--repeat", "2"])
    assert ran.exit_code == 0, ran.output
    assert len(re.findall(r"max_pooling 3×5×5 kernel 2 stride 2 +│ (?:forward|backward)", ran.output)) == 2
    assert re.search(r"\d of 6 are slower than portable code", ran.output)


def test_layers_that_disagree() -> None:
    case = layers.Case("relu", (2,))
    with pytest.raises(SystemExit, match=r"the targets disagree by 0\.5"):
        layers._compare(case, [np.ones(2, np.float32)], [np.full(2, 1.5, np.float32)])
