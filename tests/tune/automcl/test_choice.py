"""The choice of schedules: sizes, rows, training on made-up measurements, and what a search does with it."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latte.tools.tune.choice import (
    DEPTH,
    FILTERED,
    OPERATIONS,
    RATE,
    TREES,
    Row,
    Size,
    add_row,
    by_size,
    qualities,
    quality,
    read_rows,
    shares_best,
    sizes,
    split,
    trained,
)
from swirl.errors import CommandError, LatteError
from swirl.target.targets import TARGETS
from swirl.tune.automcl.choice import ScheduleChoice, choice_file, load_choice, opt_schedule
from swirl.tune.automcl.complexity import DNMM332, LPMM, RPMMV, TMM
from swirl.tune.automcl.space import CHOSEN_AMONG


def row(size: Size, schedule: str, seconds: float, **others: Any) -> Row:
    return Row(*size, schedule, FILTERED, seconds, 2.0, 8, 100, int(1000 * seconds), "avx2", "here", 2, **others)


def made_up(count: int) -> dict[Size, dict[str, Row]]:
    """Measurements by a rule: few rows DNMM332, few columns LPMM, few terms TMM, else RPMMV."""
    table: dict[Size, dict[str, Row]] = {}
    for size in sizes(count, 1):
        m, k, n = size
        best = DNMM332 if m <= 16 else LPMM if n <= 16 else TMM if k <= 64 else RPMMV
        table[size] = {name: row(size, name, 1.0 if name == best else 1.5) for name in CHOSEN_AMONG}
    return table


def test_sizes_are_like_the_papers() -> None:
    found = sizes(80)
    assert len(found) == len(set(found)) == 80 and found == sizes(80) != sizes(80, 1)
    assert all(2 * m * k * n <= OPERATIONS for m, k, n in found)
    usual = {1, 8, 16, 64, 256, 1024, 4096}
    assert sum(not set(size) <= usual for size in found) == 20
    train, test = split(dict.fromkeys(found))
    assert (len(train), len(test)) == (70, 10) and not set(train) & set(test)


def test_rows_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    assert read_rows(path) == []
    first, second = row((1, 2, 3), TMM, 1.0), row((4, 5, 6), LPMM, 2.0)
    for each in (replace(first, seconds=9.0), second, first):
        add_row(path, each)
    with path.open("a") as file:
        file.write('{"m": 1}\n{"m": ')
    assert read_rows(path) == [first, second]  # the last one counts
    assert by_size(read_rows(path)) == {(1, 2, 3): {TMM: first}, (4, 5, 6): {LPMM: second}}


def test_shares_of_sizes_with_each_schedule_best() -> None:
    table = {
        (1, 1, 1): {TMM: row((1, 1, 1), TMM, 1.0), LPMM: row((1, 1, 1), LPMM, 1.01)},
        (2, 2, 2): {TMM: row((2, 2, 2), TMM, 1.0), LPMM: row((2, 2, 2), LPMM, 3.0)},
    }
    assert shares_best(table) == {TMM: 1.0, LPMM: 0.5}
    assert shares_best(table, misses=True) == {TMM: 1.0, LPMM: 0.5}


def test_trees_learn_the_rule() -> None:
    pytest.importorskip("sklearn", reason="training needs scikit-learn")
    table = made_up(80)
    choice, test = trained(table)
    assert len(test) == 10
    train = [size for size in table if size not in test]
    assert quality(table, train, choice) > 0.99
    assert quality(table, test, choice) > quality(table, test, None)
    assert choice.card["trained on"] == 70 and choice.card["of the best, tested"] == round(
        quality(table, test, choice), 4
    )
    for size, name, share in qualities(table, test, choice):
        assert name == choice.choose(*size) and share in (1.0, pytest.approx(1 / 1.5))
    again = ScheduleChoice.read(choice.written(), "here")
    assert [again.choose(*size) for size in table] == [choice.choose(*size) for size in table]


def test_converted_trees_are_those_of_scikit_learn() -> None:
    """Evaluated with NumPy, they choose what the fitted model does."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="training needs scikit-learn")
    table = made_up(80)
    choice, test = trained(table)
    train, _ = split(table)
    model = ensemble.GradientBoostingClassifier(
        n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, init="zero", random_state=0
    )
    model.fit([list(size) for size in train], [min(CHOSEN_AMONG, key=lambda s: table[size][s].ratio) for size in train])
    others = [*test, *sizes(200, 7)]
    assert [choice.choose(*size) for size in others] == list(model.predict([list(size) for size in others]))


def test_two_schedules_and_one() -> None:
    pytest.importorskip("sklearn", reason="training needs scikit-learn")
    table = {
        size: {name: row(size, name, 1.0 + (name == TMM) * (size[0] > 16)) for name in (TMM, LPMM)}
        for size in sizes(40)
    }
    for rows in table.values():
        rows[TMM] = replace(rows[TMM], seconds=rows[TMM].seconds - 0.1)
    choice, _ = trained(table, (TMM, LPMM))
    right = [choice.choose(*size) == (LPMM if size[0] > 16 else TMM) for size in table]
    assert sum(right) >= 0.9 * len(right)
    only, _ = trained({size: {TMM: rows[TMM]} for size, rows in table.items()}, (TMM,))
    assert {only.choose(*size) for size in table} == {TMM}


def test_the_static_choice() -> None:
    assert (opt_schedule(16), opt_schedule(17)) == (DNMM332, RPMMV)


def test_what_cannot_be_trained_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_up(40)
    with pytest.raises(LatteError, match=r"7 sizes have all of .*: too few"):
        trained(dict(list(table.items())[:7]))
    first = next(iter(table))
    mixed = {**table, first: {name: replace(each, machine="there") for name, each in table[first].items()}}
    with pytest.raises(LatteError, match="several targets, machines or numbers of threads"):
        trained(mixed)
    own = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return own(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CommandError, match="training needs scikit-learn, which is not installed"):
        trained(table)


def test_a_choice_is_of_a_machine(tmp_path: Path) -> None:
    target = TARGETS["avx2"]
    assert load_choice(target, "here", 2, (tmp_path,)) is None
    pytest.importorskip("sklearn", reason="training needs scikit-learn")
    choice, _ = trained(made_up(40))
    choice_file(tmp_path, "avx2").write_text(choice.written())
    found = load_choice(target, "here", 2, (tmp_path / "other", tmp_path))
    assert found is not None and found.choose(8, 64, 64) == choice.choose(8, 64, 64)
    assert load_choice(target, "there", 2, (tmp_path,)) is load_choice(target, "here", 1, (tmp_path,)) is None


@pytest.mark.parametrize(
    "text", ["", "{}", '{"target": "avx2", "machine": "", "threads": 1, "scores": {"GEMM": {"base": 0, "trees": []}}}']
)
def test_a_damaged_choice_is_told(text: str, tmp_path: Path) -> None:
    choice_file(tmp_path, "avx2").write_text(text)
    with pytest.raises(LatteError, match="the trained choice of schedules is damaged"):
        load_choice(TARGETS["avx2"], "here", 1, (tmp_path,))
