"""``latte bench --sweep``: falls are found, measured twice, remembered."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import latte
import swirl
from latte.tools.bench import sweep as module
from latte.tools.bench.cases import parsed
from latte.tools.bench.command import bench
from latte.tools.bench.sweep import Point, Rates, Sweep, bases, falls, lines
from latte.tools.results import write_results
from swirl.errors import LatteError

CASE = parsed("conv", "4,16,16,8,3,1")
ABOUT = {"machine": "one", "target": "avx2", "threads": 2}


def even(point: Point) -> Rates:
    return Rates({"forward": 1e-3}, {"forward": 0.5})


def test_lines_differ_in_one_thing() -> None:
    assert len(bases(None)) == 20
    for base in bases(None):
        for line in lines(base):
            texts = [str(point) for point in line]
            assert len(set(texts)) == len(line) > 1
            for one, two in pairwise(line):
                ours = [*one.case.shape.split(","), one.blocks]
                theirs = [*two.case.shape.split(","), two.blocks]
                assert sum(a != b for a, b in zip(ours, theirs, strict=True)) == 1
    layouts = [line for line in lines(CASE) if line[0].blocks != line[1].blocks]
    assert len(layouts) == 1
    assert not any(point.blocks for line in lines(CASE, blocks=False) for point in line)


def test_a_fall_is_found_beside_its_better_neighbour() -> None:
    through = [[Point(parsed("bn", f"{batch},8,8"), False) for batch in (1, 2, 3)]]
    found = {str(point): even(point) for point in through[0]}
    assert falls(through, found) == []
    low = str(through[0][1])
    found[low] = Rates({"forward": 1e-3}, {"forward": 0.2}, ("bn1 forward, by x.py: why", "bn1 update, by x.py: no"))
    found[str(through[0][2])] = Rates({"forward": 1e-3}, {"forward": 0.6})
    (fall,) = falls(through, found)
    assert (fall.point, fall.neighbour, fall.share, fall.beside) == (low, str(through[0][2]), 0.2, 0.6)
    assert fall.reasons == ("bn1 forward, by x.py: why",)
    assert str(fall) == (
        "bn 2,8,8 plain forward: 20.0% of the limit, where bn 3,8,8 plain has 60.0%; bn1 forward, by x.py: why"
    )
    for share, count in ((0.49, 1), (0.51, 0)):  # a neighbour that stays in the caches
        found[low] = Rates({"forward": 1e-3}, {"forward": share})
        fallen = falls(through, {**found, str(through[0][2]): Rates({"forward": 1e-3}, {"forward": 4.0})})
        assert [fall.beside for fall in fallen] == [4.0] * count  # as it was measured; the limit is expected
    found[low] = Rates({"forward": module.SHORT / 2}, {"forward": 0.01})
    assert falls(through, found) == []  # too short to tell
    found[low] = Rates(failed="no compiler")
    assert falls(through, found) == []


def test_sources_that_rates_depend_on(tmp_path: Path) -> None:
    """Recipes and templates are among them: rates of an edited recipe are not mixed with earlier ones."""
    package = Path(latte.__file__).parent
    found = {path.resolve() for path in module._sources(package)}
    assert {(package / name).resolve() for name in ("recipes/conv.py", "layers/pooling.py", "net.py")} <= found
    assert any(path.name == "helpers_avx512.cpp.j2" for path in module._sources(Path(swirl.__file__).parent))
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "conv.py").write_text("")
    (tmp_path / "linked").symlink_to(tmp_path / "recipes")
    assert [path.parent.name for path in module._sources(tmp_path)] == ["linked", "recipes"]


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    path, asked = tmp_path / "sweep.json", []

    def measured(point: Point) -> Rates:
        asked.append(str(point))
        if len(asked) == 5:
            raise KeyboardInterrupt
        return even(point)

    with pytest.raises(KeyboardInterrupt):
        Sweep([CASE], ABOUT, path=path).run(1000, print, measured)
    again = Sweep([CASE], ABOUT, path=path)
    assert len(again.found) == 4 and len(again.missing) == len(again.points) - 4
    again.run(3, print, measured)
    assert len(again.found) == 7
    again.run(1000, print, measured)
    assert not again.missing and sorted(asked[:4] + asked[5:]) == sorted(again.points)


def test_what_falls_is_measured_a_second_time(tmp_path: Path) -> None:
    """A machine that was busy once is not a fall."""
    asked: list[str] = []

    def once_slow(point: Point) -> Rates:
        asked.append(str(point))
        slow = asked.count(str(point)) == 1 and point.case.batch == 3
        return Rates({"forward": 1e-3}, {"forward": 0.1 if slow else 0.5})

    swept = Sweep([CASE], ABOUT, path=tmp_path / "sweep.json")
    swept.run(1000, print, once_slow)
    assert falls(swept.lines, swept.found) == []
    before = len(asked)
    Sweep([CASE], ABOUT, path=tmp_path / "sweep.json").run(1000, print, once_slow)
    assert len(asked) == before
    assert asked.count("conv 3,16,16,8,3,1 blocks") == 2
    assert json.loads((tmp_path / "sweep.json").read_text())["falls"] == []


def test_what_has_failed_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    Sweep([CASE], ABOUT, path=path).run(1000, print, lambda point: Rates(failed="busy"))
    again = Sweep([CASE], ABOUT, path=path)
    assert len(again.missing) == len(again.points)
    again.run(1000, print, even)
    assert not again.missing


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    Sweep([CASE], ABOUT, path=path).run(1, print, even)
    with pytest.raises(LatteError, match="measured with target avx2, not avx512"):
        Sweep([CASE], {**ABOUT, "target": "avx512"}, path=path)
    for text in ("{", "[]", '{"points": {"a": {}}}'):
        path.write_text(text)
        with pytest.raises(LatteError, match="is not the file of a sweep"):
            Sweep([CASE], ABOUT, path=path)
        assert path.read_text() == text


def test_links_are_written_to(tmp_path: Path) -> None:
    """They were replaced by files, also those in ``/dev``."""
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    link.symlink_to(kept)
    for text in ("one", "two"):
        write_results(link, text)
        assert link.is_symlink() and kept.read_text() == text
    write_results(kept, "three")
    assert link.read_text() == "three" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": {"forward": "x"}},
        {"shares": {"forward": None}},
        {"shares": {}},
        {"times": "a"},
        {"failed": None},
        {"untuned": [1]},
        {"seconds": {"forward": -1.0}},
    ],
    ids=str,
)
def test_a_damaged_point_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "sweep.json"
    swept = Sweep([CASE], ABOUT, path=path)
    swept.run(1, print, even)
    kept = json.loads(path.read_text())
    (point,) = swept.found
    kept["points"][point] |= damage
    path.write_text(json.dumps(kept))
    with pytest.raises(LatteError, match="is damaged at 'conv"):
        Sweep([CASE], ABOUT, path=path)


@pytest.mark.slow
def test_a_sweep_of_small_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep.json"
    arguments = ["relu", "--sweep", "--shape", "2,2,3", "--target", "portable", "--threads", "1", "--json", str(path)]
    ran = CliRunner().invoke(bench, [*arguments, "--kernels", "4"])
    assert ran.exit_code == 0, ran.output
    assert "0 falls at 2 of 7 points" in ran.output and "5 points are left: the same command goes on" in ran.output
    point = json.loads(path.read_text())["points"]["relu 1,2,3 plain"]
    assert point["seconds"].keys() == point["shares"].keys() == {"forward", "backward"} and not point["failed"]
