"""AutoMCL's tables, from made-up measurements."""

from __future__ import annotations

from itertools import product
from statistics import geometric_mean

import pytest
from automcl import (
    FILTERED,
    FOLDER,
    POWERS_OF_2,
    PRIMES,
    SEARCHES,
    budget,
    compared,
    figure_2,
    figure_3,
    figures_4_and_5,
    logged,
    tilings,
)
from rich.table import Table

from latte.tools.tune.choice import ALL, FACTORS, POWERS, Row, Size, sizes
from swirl.tune.automcl.complexity import DNMM, LPMM, RPMM, TMM
from swirl.tune.automcl.factors import Filter
from swirl.tune.automcl.space import CHOSEN_AMONG
from swirl.tune.log import MEASURED, CandidateLine
from swirl.tune.replay import best_after


def row(size: Size, schedule: str, seconds: float, kind: str = FILTERED, count: int = 10, misses: int = 100) -> Row:
    return Row(*size, schedule, kind, seconds, 1.0, 8, count, misses, "avx2", "here", 1)


def cells(table: Table) -> list[list[str]]:
    return [list(map(str, each)) for each in zip(*(column.cells for column in table.columns), strict=True)]


def test_figure_2() -> None:
    """A size of which one schedule alone was measured, for figures 4 and 5, does not count."""
    slow = [row(size, name, 4.0) for size in ((4, 4, 4), (8, 4, 4)) for name in CHOSEN_AMONG if name not in (TMM, LPMM)]
    rows = [row((4, 4, 4), TMM, 1.0), row((4, 4, 4), LPMM, 2.0, misses=50)]
    rows += [row((8, 4, 4), TMM, 1.0, misses=50), row((8, 4, 4), LPMM, 2.0), row((16, 4, 4), LPMM, 1.0), *slow]
    found = {name: shares for name, *shares in cells(figure_2(rows))}
    assert found["TMM"] == ["100%", "50%"] and found["LPMM"] == ["0%", "50%"]


def test_figure_3() -> None:
    pytest.importorskip("sklearn", reason="training needs scikit-learn")
    rows = [
        row(size, name, 1.0 if (name == TMM) == (size[1] < 64) else 2.0) for size in sizes(40) for name in CHOSEN_AMONG
    ]
    found = cells(figure_3(rows, 0))
    assert len(found) == 6 and found[-1][0] == "geometric mean"
    assert float(found[-1][1]) >= float(found[-1][3]) and all(float(each[1]) <= 1 for each in found)
    (told,) = cells(figure_3(rows[:8], 0))
    assert "too few" in told[0]


def test_figures_4_and_5() -> None:
    speeds = {FACTORS: 2.0, POWERS: 2.0, ALL: 1.6, FILTERED: 1.6}
    counts = {FACTORS: 100, POWERS: 50, ALL: 60, FILTERED: 30}
    rows = [row(POWERS_OF_2[0], DNMM, 3.0, kind, counts[kind]) for kind in speeds]
    rows += [row(PRIMES[1], RPMM, seconds, kind, counts[kind]) for kind, seconds in speeds.items()]
    assert cells(figures_4_and_5(rows)) == [
        ["factor", "1.000", "1.00", "1.000", "1.00"],
        ["power", "1.000", "0.50", "1.000", "0.50"],
        ["pfactor", "1.000", "0.60", "1.250", "0.60"],
        ["pfactor+filter", "1.000", "0.30", "1.250", "0.30"],
    ]


@pytest.mark.parametrize("kind", [FACTORS, POWERS, ALL, FILTERED])
def test_spaces_have_each_tiling_once(kind: str) -> None:
    found = tilings(kind, RPMM, (12, 8, 32), 2, Filter(8, 10**6))
    assert len(found) == len(set(found)) > 0


def test_searches_beside_each_other() -> None:
    model = dict.fromkeys(("multiply_adds", "loads", "stores", "lanes", "level1", "level2", "memory", "shares"), 1)
    lines = []
    for mt, nt, kt in product((1, 2, 4, 8, 16, 32), (8, 16, 32, 64, 128), (4, 8, 16, 32, 64)):
        seconds = 1 + abs(mt - 8) / 8 + abs(nt - 32) / 32 + abs(kt - 16) / 16
        knobs = {"schedule": TMM, "M_t": mt, "N_t": nt, "K_t": kt}
        times = [seconds] * 3, [1.0] * 3
        lines.append(CandidateLine("s", f"{mt} {nt} {kt}", TMM, knobs, [], MEASURED, "", *times, 1.0, model))
    found = cells(compared("made up", lines, 1))
    assert [each[0] for each in found] == list(SEARCHES)
    for each in found:
        after = [float(cell) for cell in each[1:3]]
        assert 0 < after[0] <= after[1] <= 1
    assert budget("AutoMCL", lines, 0.95, 4) < budget("random", lines, 0.95, 4) <= 150


LOGS = sorted((FOLDER / "automcl").glob("*.jsonl.gz"))


@pytest.mark.parametrize("search", ["AutoMCL", "regression"])
def test_searches_beat_random_draws_on_the_logs_that_are_kept(search: str) -> None:
    """In the geometric mean of the logs, after 8, 32 and 64 trials."""
    assert len(LOGS) >= 3
    chosen = {name: SEARCHES[name] for name in ("random", search)}
    found = [best_after(logged(path), (8, 32, 64), 4, chosen) for path in LOGS]
    for place in range(3):
        by_search, at_random = (geometric_mean(each[name][place] for each in found) for name in (search, "random"))
        assert by_search > at_random
