"""Entries of the cache that are damaged, of another form, or something else altogether: they are made again. Valid JSON
without what it should have was a KeyError at every later compilation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latte import FullyConnectedLayer, MemoryDataLayer, Net, SiLULayer
from swirl.build import precompiled
from swirl.build.cache import MANIFEST, _sum, cache_folder, clear_cache, draft_folder, entry_lock, publish, read_entry
from swirl.build.compiler import find_compiler
from swirl.errors import LatteError, Refused
from swirl.schedule import memo as memo_module
from swirl.schedule.memo import RESULTS, Memo, Memos
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS
from tests.regress.test_damaged_checkpoints import VALUES, changed, places
from tests.support import program

KEY = "0" * 64
FACTS = {"name": "kernel", "seconds": 0.5, "why_not": None, "nested": {"a": [1, 2]}}
WANTED = {"name": str, "seconds": float | int, "why_not": str | None}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIRL_MEMO", raising=False)
    monkeypatch.delenv("SWIRL_HIDE", raising=False)
    memo_module._version.cache_clear()
    monkeypatch.setattr(memo_module, "_IMPORTED", float("inf"))  # whoever edits a source while the tests run
    return tmp_path / "cache"


def published(facts: dict[str, Any] = FACTS) -> Path:
    with entry_lock(KEY), draft_folder(KEY) as draft:
        (draft / "kernel.so").write_bytes(b"code")
        return publish(draft, KEY, facts, verified=("kernel.so",))


def test_each_value_of_a_manifest() -> None:
    path = published() / MANIFEST
    whole = json.loads(path.read_text())
    assert read_entry(KEY, WANTED, ("kernel.so",)) == FACTS
    for place in places(whole):
        for new in [..., *VALUES] if place else VALUES:
            other = changed(whole, place, new)
            path.write_text(json.dumps(other))
            same = json.dumps(other, sort_keys=True) == json.dumps(whole, sort_keys=True)
            assert (read_entry(KEY, WANTED, ("kernel.so",)) is None) != same, (place, new)
            assert (read_entry(KEY) is None) != same


def test_each_bit_of_a_manifest() -> None:
    path = published() / MANIFEST
    whole = path.read_bytes()
    read = 0
    for place in range(0, len(whole), 4):
        for bit in range(8):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            path.write_bytes(bytes(content))
            found = read_entry(KEY, WANTED, ("kernel.so",))
            assert found is None or found == FACTS
            read += found is not None
    assert read < 20  # spaces between the values


@pytest.mark.parametrize(
    "text", ["", "{", "5", "[]", "null", "[" * 100_000, '{"facts": ' + "9" * 5000 + "}", "\0", "é"]
)
def test_manifests_that_are_not_objects(text: str) -> None:
    path = published() / MANIFEST
    path.write_text(text, encoding="latin-1")
    assert read_entry(KEY) is None
    assert read_entry(KEY, WANTED, ("kernel.so",)) is None


def test_what_another_version_has_written() -> None:
    """With the right sum, and other facts or files than are expected."""
    path = published() / MANIFEST
    files = json.loads(path.read_text())["files"]
    for facts in [{**FACTS, name: value} for name in WANTED for value in (5, True, "a", None, [], {}, ...)]:
        facts = {name: value for name, value in facts.items() if value is not ...}
        path.write_text(json.dumps({"facts": facts, "files": files, "sum": _sum(facts, files)}))
        fits = facts.keys() == FACTS.keys() and all(isinstance(facts[name], kind) for name, kind in WANTED.items())
        assert (read_entry(KEY, WANTED) is not None) == fits
        assert read_entry(KEY) == facts
    path.write_text(json.dumps({"facts": FACTS, "files": {}, "sum": _sum(FACTS, {})}))
    assert read_entry(KEY, WANTED) == FACTS and read_entry(KEY, WANTED, ("kernel.so",)) is None


def _folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _file_in_its_place(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")


def _link_in_its_place(path: Path) -> None:
    elsewhere = path.parent.with_name(f"elsewhere-{path.parent.name}")
    path.parent.rename(elsewhere)
    path.parent.symlink_to(elsewhere)


def _link_to_nothing(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to("nowhere")


def _draft_that_is_a_file(path: Path) -> None:
    path.unlink()
    path.parent.with_name(f"{path.parent.name}.draft").write_text("a file")


PLACES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "no manifest": Path.unlink,
    "a folder": _folder_in_its_place,
    "a file in place of the entry": _file_in_its_place,
    "a link in place of the entry": _link_in_its_place,
    "a link to nothing": _link_to_nothing,
    "a draft that is a file": _draft_that_is_a_file,
    "facts of another form": lambda path: _rewritten(path, "facts", {}),
    "facts that are a list": lambda path: _rewritten(path, "facts", [1]),
    "files of another form": lambda path: _rewritten(path, "files", {}),
    "no sum": lambda path: _rewritten(path, "sum", None),
    "not JSON": lambda path: _text(path, "{"),
    "nested": lambda path: _text(path, "[" * 100_000),
    "another encoding": lambda path: path.write_bytes('{"é": 1}'.encode("utf-16")) and None,
}


def _text(path: Path, text: str) -> None:
    path.write_text(text)


def _rewritten(path: Path, part: str, new: Any) -> None:
    """With the sum that belongs to it, if it is not the sum that is changed."""
    entry = {**json.loads(path.read_text()), part: new}
    path.write_text(json.dumps(entry if part == "sum" else {**entry, "sum": _sum(entry["facts"], entry["files"])}))


@pytest.mark.parametrize("what", PLACES)
def test_what_is_in_the_place_of_an_entry(what: str) -> None:
    path = published() / MANIFEST
    PLACES[what](path)
    assert (read_entry(KEY, WANTED, ("kernel.so",)) is None) == (
        what not in ("nothing", "a link in place of the entry")
    )
    published()
    assert read_entry(KEY, WANTED, ("kernel.so",)) == FACTS and not path.parent.is_symlink()
    assert (path.parent / "kernel.so").read_bytes() == b"code"
    clear_cache()


# --- whole compilations ---------------------------------------------------------------------------------------
def value_of(target: str = "portable") -> tuple[bytes, Net]:
    net = Net(4, seed=0)
    data = MemoryDataLayer(net, (3, 8))
    layer = SiLULayer(net, FullyConnectedLayer(net, data, 5))
    net.compile(target=target, threads=1)
    data.set_value(np.random.default_rng(0).normal(size=(4, 3, 8)))
    net.forward()
    return layer.get_value().tobytes(), net


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bytes]]:
    """A cache after a compilation, and what was computed."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("filled") / "cache"
        patch.setenv("SWIRL_CACHE_DIR", str(folder))
        patch.delenv("SWIRL_MEMO", raising=False)
        memo_module._version.cache_clear()
        patch.setattr(memo_module, "_IMPORTED", float("inf"))
        yield folder, value_of()[0]


DAMAGE = ["a file in place of the entry", "a link in place of the entry", "a draft that is a file", "nested"]


@pytest.mark.parametrize("what", [*DAMAGE, "facts of another form", "files of another form"])
def test_compiling_with_a_damaged_cache(what: str, filled: tuple[Path, bytes], folder: Path) -> None:
    """Each entry damaged: kernels, results of commands, the runner. It is made again, once."""
    whole, expected = filled
    shutil.copytree(whole, folder, symlinks=True)
    manifests = sorted(folder.glob(f"*/{MANIFEST}"))
    kinds = {path.parent / name for path in manifests for name in ("kernel.so", RESULTS)}
    assert {path.name for path in kinds if path.exists()} == {"kernel.so", RESULTS}
    for path in manifests:
        PLACES[what](path)
    assert value_of()[0] == expected
    assert value_of()[1].report.compiled == 0


@pytest.mark.parametrize("wrong", [{}, [1], {"why_not": 5}])
def test_answers_about_the_processor(wrong: Any, folder: Path) -> None:
    answer = why_not(TARGETS["avx2"])
    (path,) = folder.glob(f"*/{MANIFEST}")
    _rewritten(path, "facts", wrong)
    assert why_not(TARGETS["avx2"]) == answer
    assert json.loads(path.read_text())["facts"] == {"target": "avx2", "why_not": answer}


# --- results of commands --------------------------------------------------------------------------------------
TEXT = "for i in range(8):\n    y[i] = x[i] * 2.0\n    z[0] = z[0] * 0.5 + y[i]"


def asked(memo: Memo) -> tuple[str, str]:
    """A command that is applied, and one that is refused."""
    before = program(TEXT, x=(8,), y=(8,), z=(1,))
    after = memo.program(COMMANDS["tile_loop"], before, "i", 4)
    with pytest.raises(Refused) as caught:
        memo.program(COMMANDS["parallelize"], before, "i")
    assert caught.value.to_json()
    return after.text, str(caught.value)


def test_each_value_of_kept_results() -> None:
    """Of another type, or missing: computed anew, and the errors are Latte's own."""
    memo = Memo({})
    expected = asked(memo)
    results = json.loads(json.dumps(memo.used))
    again = Memo(json.loads(json.dumps(results)))
    assert asked(again) == expected and again.computed == 0
    for place in places(results):
        if not place:
            continue
        for new in (..., None, True, 5, 0.5, "", "a", [], [1], {}, {"refused": 5}, {"made": None}):
            other = Memo(changed(json.loads(json.dumps(results)), place, new))
            made, refused = asked(other)
            if len(place) == 1 or (place[1] == "refused" and not isinstance(new, str | None)):
                assert (made, refused) == expected, (place, new)


def test_results_that_are_not_an_object(folder: Path) -> None:
    before = program(TEXT, x=(8,), y=(8,), z=(1,))
    with Memos() as memos:
        expected = asked(memos.of([before]))
    (path,) = folder.glob(f"*/{RESULTS}")
    for text in ("5", "[]", "null", "[" * 100_000, "{", '{"a": {"made": 5}}'):
        path.write_text(text)
        for verified in (False, True):
            if verified:  # as another program would
                with entry_lock(path.parent.name), draft_folder(path.parent.name) as draft:
                    (draft / RESULTS).write_text(text)
                    publish(draft, path.parent.name, {}, verified=(RESULTS,))
            with Memos() as memos:
                assert asked(memos.of([before])) == expected


def test_a_precompiled_header(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = find_compiler()
    key = precompiled.precompiled_key(["cmath"], compiler, ["-O0"])
    if key is None:
        pytest.skip("this compiler has no precompiled headers")
    for what in ("nothing", "no manifest", "files of another form", "a file in place of the entry"):
        monkeypatch.setattr(precompiled, "_wanted", type(precompiled._wanted)())
        for _ in range(3):
            precompiled.precompile("cmath", key, compiler, ["-O0"])
        assert read_entry(key, files=("cmath.gch",)) is not None
        PLACES[what](cache_folder() / key / MANIFEST)


def test_what_is_where_refused_kernels_go(folder: Path) -> None:
    cache_folder()
    (folder / "failed").write_text("a file")
    net = Net(1)
    layer = SiLULayer(net, MemoryDataLayer(net, (3,)))
    layer.parallelize("forward", "n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swirl.codegen.emit._parameter", lambda name, buffer, written: _Broken())
        with pytest.raises(LatteError, match="the C\\+\\+ compiler refused"):
            net.compile(target="portable", threads=1)


class _Broken:
    declaration = cast = "no type"
