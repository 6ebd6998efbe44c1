"""``latte export``, as a user calls it: what it takes, and what it refuses before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from latte.tools.net_files import load_net
from tests.tools.export.building import call, exported

NET = """
from latte import *

def net(batch_size=2):
    net = Net(batch_size, seed=1)
    data, label = MemoryDataLayer(net, (5,), name="data"), MemoryDataLayer(net, (1,), name="label")
    hidden = ReLULayer(net, FullyConnectedLayer(net, data, 4, name="hidden"), name="active")
    scores = FullyConnectedLayer(net, hidden, 3, name="scores")
    SoftmaxLossLayer(net, scores, label, name="loss")
    AccuracyLayer(net, scores, label, name="accuracy")
    return net
"""
PORTABLE = ("--target", "portable")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(NET)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code != 0, result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit), result.exception
    return result.output


# --- what is written -----------------------------------------------------------------------------------------
def test_the_same_net_gives_the_same_files(file: Path, tmp_path: Path) -> None:
    first = call(file, "--out", tmp_path / "a", *PORTABLE)
    assert first.exit_code == 0, first.output
    assert "inputs   data 5" in first.output and "outputs  scores 3" in first.output and "for 2 items" in first.output
    assert call(file, "--out", tmp_path / "b", *PORTABLE).exit_code == 0
    found = contents(tmp_path / "a")
    assert found == contents(tmp_path / "b")
    assert {"latte.h", "main.c", "Makefile", "CMakeLists.txt", "README.md", "weights.bin"} < found.keys()
    text = b"".join(found.values())
    assert str(tmp_path).encode() not in text
    assert call(file, "--out", tmp_path / "a", *PORTABLE).exit_code == 0
    assert found == contents(tmp_path / "a")


def test_options_have_several_values(file: Path, tmp_path: Path) -> None:
    options = ("--batch", "3", "1", "--target", "portable", "avx2", "--layer", "active", "--layer", "scores")
    result = call("--out", tmp_path / "out", *options, file)
    assert result.exit_code == 0, result.output
    said = [line.split()[0] for line in result.output.splitlines() if not line.startswith("scheduling")]
    assert said == ["inputs", "outputs", "avx2", "portable", "wrote"]
    assert "kernels for 1 item, " in result.output and "kernels for 3 items" in result.output
    assert "outputs  active 4, scores 3" in result.output
    header = (tmp_path / "out" / "latte.h").read_text()
    assert "#define LATTE_BATCH 3 " in header and "#define LATTE_OUTPUTS 2\n" in header


def test_what_training_alone_needs_is_left_out(file: Path, tmp_path: Path) -> None:
    sources = contents(exported(tmp_path, NET, *PORTABLE))
    tables = sources["src/portable.cpp"].decode()
    assert tables.count("of_kernel_") == 2 * tables.count("void kernel_")  # each declared, and run once
    assert "label" not in sources["src/latte.cpp"].decode()


def test_a_net_that_is_compiled_has_the_same_weights(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    declared = contents(exported(tmp_path / "declared", NET, *PORTABLE))
    compiled = NET.replace("    return net\n", "    net.compile()\n    return net\n")
    assert contents(exported(tmp_path / "compiled", compiled, *PORTABLE)) == declared
    net = load_net(file)
    net.compile()
    net["scores"].set_bias(np.arange(3.0)[:, None])
    net.save(tmp_path / "checkpoint")
    options = (*PORTABLE, "--checkpoint", tmp_path / "checkpoint")
    trained = [contents(exported(tmp_path / name, text, *options)) for name, text in (("a", NET), ("b", compiled))]
    assert trained[0] == trained[1]
    changed = {name for name in declared if declared[name] != trained[0][name]}
    assert changed == {"weights.bin", "latte.h", ".latte-export.json"}


# --- folders -------------------------------------------------------------------------------------------------
def test_an_export_takes_the_place_of_another_one(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call(file, "--out", out, "--name", "first", *PORTABLE).exit_code == 0
    (out / "notes.txt").write_text("mine")
    (out / "build").mkdir()
    assert call(file, "--out", out, *PORTABLE).exit_code == 0
    assert not (out / "first.h").exists() and not (out / "src" / "first.cpp").exists()
    assert (out / "latte.h").exists() and (out / "notes.txt").read_text() == "mine"
    listed = json.loads((out / ".latte-export.json").read_text())["files"]
    assert set(listed) == set(contents(out)) - {"notes.txt", ".latte-export.json"}


def test_other_files_are_not_overwritten(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert call(file, "--out", out, *PORTABLE).exit_code == 0, "an empty folder is taken"
    (out / "main.c").write_text("mine")
    before = contents(out)
    assert "main.c is not as latte export has written it" in refusal(file, "--out", out, *PORTABLE)
    assert contents(out) == before
    (out / "main.c").unlink()
    assert call(file, "--out", out, *PORTABLE).exit_code == 0, "what is missing is written again"
    (out / "other.h").write_text("mine")
    assert "other.h is not as" in refusal(file, "--out", out, "--name", "other", *PORTABLE)
    assert (out / "other.h").read_text() == "mine" and (out / "latte.h").exists()
    shutil.copy(out / "main.c", tmp_path / "beside.c")
    (out / "main.c").unlink()
    (out / "main.c").symlink_to(tmp_path / "beside.c")
    assert "main.c is not as" in refusal(file, "--out", out, *PORTABLE)


@pytest.mark.parametrize("manifest", [None, "", "[]", '{"files": 3}', '{"files": {"../mine.py": ["0"]}}'])
def test_a_folder_of_something_else(file: Path, tmp_path: Path, manifest: str | None) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    if manifest is not None:
        (out / ".latte-export.json").write_text(manifest)
    before = contents(tmp_path)
    assert "is not an export: nothing in it is overwritten" in refusal(file, "--out", out, *PORTABLE)
    assert "mine.py exists, and is not an export" in refusal(file, "--out", file, *PORTABLE)
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_made(file: Path, tmp_path: Path) -> None:
    assert "cannot be written" in refusal(file, "--out", file / "below", *PORTABLE)


# --- what is refused -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--layer", "loss"], "loss has one value for a whole batch"),
        (["--layer", "accuracy"], "accuracy has one value for a whole batch"),
        (["--layer", "score"], "did you mean 'scores'?"),
        (["--layer", "scores", "--layer", "scores"], "--layer scores is given twice"),
        (["--layer", "hidden"], "hidden.value has been fused away into"),
        (["--name", "Capital"], "cannot begin the names of a library"),
        (["--name", "1st"], "cannot begin the names of a library"),
        (["--batch", "0"], "0 is not in the range"),
        (["--batch", "many"], "'many' is not a valid integer"),
        (["--target", "sse"], "'sse' is not one of"),
        (["--checkpoint", "none"], "does not exist"),
        (["--set", "x"], "is not NAME=VALUE"),
    ],
)
def test_wrong_options(file: Path, tmp_path: Path, options: list[str], said: str) -> None:
    targets = [] if "--target" in options else PORTABLE
    assert said in refusal(file, "--out", tmp_path / "out", *targets, *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "defines no net"),
        ("raise ValueError('mine')", "does not run: ValueError: mine"),
        ("from latte import *\nnet = Net(2)\nMemoryDataLayer(net, (5,))", "which layer predicts is not clear"),
        (
            "from latte import *\nnet = Net(2)\ndata = MemoryDataLayer(net, (5,))\n"
            "a, b = (FullyConnectedLayer(net, data, 2) for _ in range(2))",
            "which layer predicts is not clear: fully_connected1, fully_connected2",
        ),
    ],
)
def test_files_without_a_net_to_export(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "other.py"
    path.write_text(text)
    assert said in refusal(path, "--out", tmp_path / "out", *PORTABLE)
    assert not (tmp_path / "out").exists()


def test_checkpoints_of_other_nets(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    net = load_net(file)
    net.compile()
    net.save(tmp_path / "checkpoint")
    wider = tmp_path / "wider.py"
    wider.write_text(NET.replace("data, 4", "data, 5"))
    options = ("--out", tmp_path / "out", *PORTABLE, "--checkpoint")
    assert "hidden.weights is float32 (4, 5)" in refusal(wider, *options, tmp_path / "checkpoint")
    damaged = bytearray((tmp_path / "checkpoint").read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    assert "damaged" in refusal(file, *options, tmp_path / "damaged")
    assert not (tmp_path / "out").exists()


def test_a_compiler_that_does_not_make_code_for_a_target(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("g++") or shutil.which("clang++")
    old = tmp_path / "old-compiler"
    old.write_text(
        f'#!/bin/sh\ncase "$*" in *-mavx512f*) echo "unknown -mavx512f" >&2; exit 1;; esac\nexec {real} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("SWIRL_CXX", str(old))
    said = refusal(file, "--out", tmp_path / "out")
    assert "--target avx512: the compiler" in said and "unknown -mavx512f" in said and "--target avx2 portable" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("SWIRL_CXX", str(tmp_path / "none"))
    assert "is not a program here" in refusal(file, "--out", tmp_path / "out")
