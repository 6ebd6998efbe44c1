"""The study of the cost model's order, on the record that is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ranking
from click.testing import CliRunner

from swirl.target.targets import TARGETS


def candidate(*seconds: float) -> dict[str, object]:
    return {"commands": [], "seconds": seconds}


def test_pairs_differ_enough_and_in_both_passes() -> None:
    found = [candidate(1.0, 1.0), candidate(1.2, 1.3), candidate(1.05, 1.3), candidate(4.0, 4.0), candidate(0.9, 1.2)]
    assert set(ranking.pairs(found)) == {(0, 1)}  # 2: near in one pass; 3: far; 4: faster in one pass alone
    assert set(ranking.pairs([candidate(2.0, 2.2), candidate(1.0, 1.1)])) == {(1, 0)}


@pytest.mark.parametrize("path", sorted(ranking.RECORDS.glob("*.jsonl.gz")), ids=lambda path: path.name)
def test_the_record_is_whole(path: Path) -> None:
    head, *subjects = ranking.read(path)
    assert head["target"] in TARGETS and len(head["rates"]) == 4 and head["threads"] > 0
    assert len(subjects) > 30 and len({(s["net"], s["unit"], s["phase"]) for s in subjects}) == len(subjects)
    for subject in subjects:
        assert 1 <= len(subject["candidates"]) <= ranking.COUNT + 1
        assert all(len(each["seconds"]) == 2 and min(each["seconds"]) > 0 for each in subject["candidates"])


def test_the_model_orders_most_pairs_rightly() -> None:
    records = ranking.read(ranking.RECORDS / "avx512.jsonl.gz")
    found = list(ranking.judged(records, "own group-norm"))
    right, every = sum(each.right for each in found), sum(each.pairs for each in found)
    assert every > 20 and right / every > 0.65
    assert all(each.picked > 0 and each.best > 0 for each in found)


def test_candidates_are_legal_and_come_back_from_the_record() -> None:
    (name, net), *_ = ranking.nets()
    unit, phase, subject, commands = next(ranking.subjects(net, TARGETS["avx512"]))
    found = ranking.around(subject, commands, 4, seed=3)
    assert len({each.program.text for each in found}) == len(found) > 2 and name.startswith("own ")
    again = ranking.around(subject, commands, 4, seed=3)
    assert [each.program.text for each in again] == [each.program.text for each in found]
    for each in found:
        kept = json.loads(json.dumps([[c.name, c.arguments, c.options] for c in each.commands]))
        commands = [ranking._recorded(*parts) for parts in kept]
        assert subject.after(commands).program.text == each.program.text, (unit, phase)


def test_measuring_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "COUNT", 1)
    monkeypatch.setattr(ranking, "SECONDS", 0.001)
    monkeypatch.setattr("swirl.measure.rates.STEPS", 10_000)
    monkeypatch.setattr("swirl.measure.rates.READ_BYTES", 1024 * 1024)
    told = CliRunner().invoke(ranking.main, ["measure", "portable", "--only", "own prelu"], catch_exceptions=False)
    lines = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert told.exit_code == 0 and lines[0]["target"] == "portable" and lines[1]["net"] == "own prelu"
    assert len(lines[1]["candidates"]) == 2
