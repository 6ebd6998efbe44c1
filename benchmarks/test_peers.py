"""The table of other systems' schedules, without its searches."""

from __future__ import annotations

import numpy as np
import peers
import pytest
from sides import Asked, SideFailed, SideProcess, check, timed

from latte.tools.tune.session import Machine
from swirl.config import child_environment
from swirl.cost.time import Rates
from swirl.target.targets import TARGETS

MACHINE = Machine(TARGETS["avx512"], 1, Rates(1e11, 1e11, 5e10, 1e10), 2**25, "", "")
CONV, PRODUCT = Asked("conv", (2, 3, 7, 6, 5, 3, 2, 1), 1), Asked("product", (9, 11, 13), 1)


def test_layers_have_names_of_their_own() -> None:
    every = [work.name for work in peers.works(MACHINE, False, "odd")]
    assert every == ["odd", "odd product"]
    assert len(peers.CONVOLUTIONS) == 10 and len(peers.PRODUCTS) == 5
    assert [work.name for work in peers.works(MACHINE, True, "product")] == ["square product", "odd product"]


def values(asked: Asked) -> np.ndarray:
    """By definition, in float32."""
    if asked.kind == "product":
        a, b = asked.operands
        return a @ b
    x, weights, bias = asked.operands
    *_, kernel, stride, pad = asked.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncyxuv,fcuv->nfyx", windows, weights) + bias[:, None, None]


@pytest.mark.parametrize("asked", [CONV, PRODUCT], ids=lambda asked: asked.kind)
def test_a_wrong_result_is_found(asked: Asked) -> None:
    right = values(asked)
    assert right.shape == asked.result
    check(asked, asked.operands, right)
    for wrong in (right * 1.001, np.where(np.abs(right) > 2, 0, right), right * np.nan):
        with pytest.raises(SideFailed, match="its results differ by"):
            check(asked, asked.operands, wrong)
    with pytest.raises(SideFailed, match="shape"):
        check(asked, asked.operands, right.T)


@pytest.mark.parametrize("asked", [CONV, PRODUCT], ids=lambda asked: asked.kind)
def test_pytorch_computes_the_work_in_a_process(asked: Asked) -> None:
    pytest.importorskip("torch")
    with SideProcess("searched_torch.py", asked, child_environment()) as side:
        assert len(side.seconds(3)) == 3 and min(side.seconds(2)) > 0
        assert side.tried == 0


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {**child_environment(), "PYTHONPATH": "", "PATH": ""}
    with pytest.raises(SideFailed, match=r"No such file|can't open file"):
        SideProcess("none.py", PRODUCT, hidden)


def test_runs_that_are_counted() -> None:
    runs: list[int] = []
    assert len(timed(lambda: runs.append(1), 4, np.ones(4))) == 4 and len(runs) == 6


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"ships": [0.2, 0.2], "TTiLE": [0.1, 0.1], "oneDNN": [0.4, 0.4]}
    row = peers.Row("odd", (1,), 10**9, 1e10, seconds, {"TTiLE": 30.0}, {"TTiLE": 8}, {"TVM": "no module"})
    peers.show([row])
    told = capsys.readouterr().out
    assert "50%" in told and "100%" in told and "25%" in told
    assert "s TTiLE" in told and "s TVM" not in told
    assert "1.00×" in told and "2.00×" in told and "0.50×" in told
