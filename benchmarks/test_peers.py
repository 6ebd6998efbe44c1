"""The table of other systems' schedules, without its searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import numpy as np
import peers
import pytest
from searched import environment_of
from sides import Asked, Clock, SideFailed, SideProcess, check, expected

from latte.tools.tune.session import Machine
from swirl.config import child_environment
from swirl.cost.time import Rates
from swirl.errors import LatteError
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Candidate
from swirl.tune.evaluation import Timed
from swirl.tune.log import LOST, MEASURED

MACHINE = Machine(TARGETS["avx512"], 1, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
CONV, PRODUCT = Asked("conv", (2, 3, 7, 6, 5, 3, 2, 1), 1), Asked("product", (9, 11, 13), 1)


def test_layers_have_names_of_their_own() -> None:
    every = [work.name for work in peers.works(MACHINE, False, "odd")]
    assert every == ["odd", "odd product"]
    assert len(peers.CONVOLUTIONS) == 10 and len(peers.PRODUCTS) == 5
    assert [work.name for work in peers.works(MACHINE, True, "product")] == ["square product", "odd product"]


@pytest.mark.parametrize("asked", [CONV, PRODUCT], ids=lambda asked: asked.kind)
def test_a_wrong_result_is_found(asked: Asked) -> None:
    right = expected(asked, asked.operands)
    assert right.shape == asked.result
    check(right, right)
    last = right.copy()
    last[(-1,) * right.ndim] += 1
    for wrong in (right * 1.001, last, right * np.nan):
        with pytest.raises(SideFailed, match="its results differ by"):
            check(right, wrong)
    with pytest.raises(SideFailed, match="shape"):
        check(right, right.T)


def test_the_definition_of_a_convolution() -> None:
    x, weights, bias = CONV.operands
    found = expected(CONV, CONV.operands)
    rows, columns = slice(3, 6), slice(1, 4)  # of the pixel at 2, 1: stride 2, padding 1
    assert found[1, 4, 2, 1] == pytest.approx((x[1, :, rows, columns] * weights[4]).sum() + bias[4], rel=1e-5)


@pytest.mark.parametrize("script", ["searched_torch.py", "peers_halide.py", "peers_tvm.py"])
@pytest.mark.parametrize("asked", [CONV, PRODUCT], ids=lambda asked: asked.kind)
def test_a_system_computes_the_work(script: str, asked: Asked) -> None:
    pytest.importorskip({"searched_torch.py": "torch", "peers_halide.py": "halide", "peers_tvm.py": "tvm"}[script])
    with SideProcess(script, replace(asked, trials=2), environment_of(MACHINE)) as side:
        assert len(side.seconds(3)) == 3 and min(side.seconds(2)) > 0
        assert side.tried == (0 if script == "searched_torch.py" else 2)


def side(tmp_path: Path, body: str) -> SideProcess:
    """A side whose script prepares its work so."""
    script = tmp_path / "side.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport os\n"
        f"from sides import Prepared, expected, serve\ndef prepare(asked, operands, clock):\n{indent(body, '    ')}\n"
        "serve(prepare)\n"
    )
    return SideProcess(str(script), PRODUCT, child_environment())


def test_a_side_may_say_much(tmp_path: Path) -> None:
    body = "os.write(1, b'!' * 200_000)\nprint('?' * 200_000)\nvalue = expected(asked, operands)\n"
    with side(tmp_path, f"{body}return Prepared(lambda: None, lambda: value, 3, 1.5)") as made:
        assert (made.tried, made.search_seconds) == (3, 1.5)
        assert len(made.seconds(4)) == 4


def test_a_side_that_is_missing_or_wrong_says_why(tmp_path: Path) -> None:
    with pytest.raises(SideFailed, match="No module named 'missing_system'"):
        side(tmp_path, "import missing_system")
    with pytest.raises(SideFailed, match="its results differ by"):
        side(tmp_path, "return Prepared(lambda: None, lambda: 2 * expected(asked, operands))")


def test_a_side_that_dies_leaves_the_others(tmp_path: Path) -> None:
    body = (
        "value = expected(asked, operands)\nruns = []\n"
        "def run():\n    runs.append(1)\n    if len(runs) > 5:\n        os._exit(1)\n"
    )
    with side(tmp_path, f"{body}return Prepared(run, lambda: value)") as made:
        for _ in range(2):  # closing it after that is not an error, either
            with pytest.raises(SideFailed):
                made.seconds(20)


def test_runs_that_are_counted() -> None:
    runs: list[int] = []
    assert len(Clock(2).seconds(lambda: runs.append(1), 4)) == 4 and len(runs) == 6


class Timing:
    """In the place of an evaluator: candidates take these seconds, beside others."""

    def __init__(self, *timed: Timed):
        self.timed = timed

    def measure(self, candidates: Sequence[Candidate], runs: int) -> list[Timed]:
        return list(self.timed[: len(candidates)])


def test_a_schedule_that_cannot_be_timed_again_is_missing() -> None:
    work = next(peers.works(MACHINE, False, "attention"))
    made = peers.Row("attention", (1,), 10**9, 1e10, {}, {}, {}, {})
    lost, timed = Timed(LOST, "it has crashed"), Timed(MEASURED, "", [0.1, 0.1], [0.2, 0.2])
    peers._ours(made, work, {"regression": work.known, "TTiLE": work.known}, Timing(lost, timed))  # type: ignore[arg-type]
    assert made.seconds == {"TTiLE": [0.1, 0.1], "ships": [0.2, 0.2]}
    assert made.missing == {"regression": "it has crashed"}
    with pytest.raises(LatteError, match="it has crashed"):
        peers._ours(made, work, {}, Timing(lost))  # type: ignore[arg-type]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"ships": [0.2, 0.2], "TTiLE": [0.1, 0.1], "PyTorch": [0.4, 0.4]}
    row = peers.Row("odd", (1,), 10**9, 1e10, seconds, {"TTiLE": 30.0}, {"TTiLE": 8}, {"TVM": "no module"})
    peers.show([row])
    told = capsys.readouterr().out
    assert "50%" in told and "100%" in told and "25%" in told
    assert "s TTiLE" in told and "s TVM" not in told
    assert "1.00×" in told and "2.00×" in told and "0.50×" in told
