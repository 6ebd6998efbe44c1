"""The log of searches: whole lines survive whatever happens to the process, and subjects come back as they were."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latte import ConvLayer, FullyConnectedLayer, MemoryDataLayer, Net, ReLULayer, SoftmaxLossLayer
from latte.tools.tune.session import Known, Machine
from latte.tools.tune.subjects import Tunable, tunables
from swirl.cost.time import Rates
from swirl.errors import LatteError
from swirl.target.targets import TARGETS
from swirl.tune.log import (
    FILE,
    MEASURED,
    CandidateLine,
    Log,
    ResultLine,
    SubjectLine,
    commands_of,
    commands_to_line,
    read_log,
    subject_of,
    to_line,
)


def found(target: str = "avx2") -> list[Tunable]:
    net = Net(4, seed=1)
    data, labels = MemoryDataLayer(net, (4, 8, 8)), MemoryDataLayer(net, (1,))
    layer = ReLULayer(net, ConvLayer(net, data, num_filters=8, kernel=3, pad=1))
    SoftmaxLossLayer(net, FullyConnectedLayer(net, layer, 10), labels)
    return tunables(net, TARGETS[target], 2)[0]


def candidate(key: str, seconds: list[float]) -> CandidateLine:
    return CandidateLine("s", key, "varied", {}, [], MEASURED, "", seconds, [2.0, 3.0])


def test_lines_come_back_and_logs_merge(tmp_path: Path) -> None:
    log = Log(tmp_path)
    lines = [candidate("a", [1.0, 2.0]), ResultLine("s", "a", 1.5, "faster", 3, 1)]
    for line in lines:
        log.tell(line)
    log.close()
    assert list(read_log(tmp_path)) == list(read_log(tmp_path / FILE)) == lines
    again = Log(tmp_path)
    again.tell(candidate("b", [1.0]))
    again.close()
    assert len(list(read_log(tmp_path))) == 3
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / FILE).read_bytes()))
    assert list(read_log(packed)) == list(read_log(tmp_path))
    both = tmp_path / "both.jsonl"
    both.write_text((tmp_path / FILE).read_text() * 2)
    assert len(list(read_log(both))) == 6


def test_a_line_that_was_cut_off_is_left_out_and_not_continued(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.tell(candidate("a", [1.0]))
    log.tell(candidate("b", [1.0]))
    log.close()
    text = (tmp_path / FILE).read_text()
    for end in range(len(text)):
        (tmp_path / FILE).write_text(text[:end])
        kept = [line.key for line in read_log(tmp_path) if isinstance(line, CandidateLine)]
        assert kept == ["a", "b"][: len(kept)]
    (tmp_path / FILE).write_text(text[:-20])
    again = Log(tmp_path)
    again.tell(candidate("c", [1.0]))
    again.close()
    assert [line.key for line in read_log(tmp_path) if isinstance(line, CandidateLine)] == ["a", "c"]


def test_foreign_lines_are_left_out(tmp_path: Path) -> None:
    rows = ["", "3", "[]", "null", '{"kind": "other"}', '{"kind": "result"}', "\0", json.dumps({"kind": ["subject"]})]
    (tmp_path / FILE).write_text("\n".join(rows))
    assert list(read_log(tmp_path)) == []
    assert list(read_log(tmp_path / "nowhere.jsonl")) == []


@pytest.mark.parametrize("times", [None, "fast", ["fast"], []])
def test_lines_without_times_are_left_out(tmp_path: Path, times: object) -> None:
    log = Log(tmp_path)
    log.tell(replace(candidate("a", [1.0]), seconds=times))  # type: ignore[arg-type]
    log.tell(replace(candidate("b", [1.0]), outcome="wrong", seconds=[]))
    log.close()
    assert [line.key for line in read_log(tmp_path) if isinstance(line, CandidateLine)] == ["b"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LatteError, match="cannot be written"):
        Log(tmp_path / "file")


def test_ratios_are_of_lower_quartiles() -> None:
    assert candidate("a", [1.0, 9.0, 9.0, 9.0]).ratio == pytest.approx(9.0 / 2.0)
    assert CandidateLine("s", "a", "varied", {}, [], "wrong").ratio is None


def test_subjects_come_back(tmp_path: Path) -> None:
    log, every = Log(tmp_path), found()
    assert {each.phase for each in every} == {"forward", "backward", "update"}
    for each in every:
        commands = commands_to_line(each.known.commands)
        log.tell(
            SubjectLine(
                each.key,
                each.unit.name,
                each.kinds,
                each.phase,
                "avx2",
                2,
                "m",
                "c",
                4,
                {},
                to_line(each.subject),
                commands,
            )
        )
    log.close()
    lines = [line for line in read_log(tmp_path) if isinstance(line, SubjectLine)]
    for line, each in zip(lines, every, strict=True):
        subject = subject_of(line, TARGETS["avx2"])
        assert subject.program.text == each.subject.program.text
        assert subject.after(commands_of(line.known)).program.text == each.known.program.text


def test_a_damaged_subject_is_told() -> None:
    line = SubjectLine("s", "conv1", ("conv",), "forward", "avx2", 2, "m", "c", 4, {}, {"dict": [["region", 3]]})
    with pytest.raises(LatteError, match="the log's line for conv1 forward is damaged"):
        subject_of(line, TARGETS["avx2"])


def test_of_merged_logs_what_this_machine_has_measured_counts() -> None:
    rates = Rates(1e11, 1e11, 5e10, 1e10)
    here = Machine(TARGETS["avx2"], 2, rates, 2**25, "this", "g++ 13")

    def subject(machine: str) -> SubjectLine:
        return SubjectLine("s", "a", ("conv",), "forward", "avx2", 2, machine, "g++ 13", 4, {}, {})

    lines = [subject("this"), candidate("a", [1.0]), subject("other"), candidate("b", [1.0]), candidate("a", [9.0])]
    known = Known.of([*lines, subject("this"), candidate("c", [1.0])], here)
    assert {key: line.seconds for (_, key), line in known.lines.items()} == {"a": [1.0], "c": [1.0]}


def test_lines_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    logs = [Log(tmp_path), Log(tmp_path)]
    line = ResultLine("s", "k" * 100_000, 1.0, "faster")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda log: [log.tell(line) for _ in range(20)], logs))
    for log in logs:
        log.close()
    assert list(read_log(tmp_path)) == [line] * 40


def test_values_that_json_has_not_are_told_by_their_text(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.tell(CandidateLine("s", "a", "chosen", {"size": np.int64(4)}, [], MEASURED, "", [1.0], [1.0]))
    log.close()
    (line,) = read_log(tmp_path)
    assert isinstance(line, CandidateLine) and "4" in str(line.knobs["size"])
