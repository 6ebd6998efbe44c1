"""Precompiled headers: used where they exist, with the same machine code as without."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from swirl.build import precompiled
from swirl.build.compiler import find_compiler
from swirl.build.jit import build, load
from swirl.build.libraries import Built
from swirl.build.translation_unit import TranslationUnit
from swirl.errors import CompilerFailed
from swirl.target.machine import why_not
from swirl.target.targets import TARGETS, Target


def unit(name: str, header: str) -> TranslationUnit:
    body = f"static_cast<float*>(buffers[0])[0] += std::sqrt({len(name)}.0f);"
    headers = "".join(f"#include <{each}>\n" for each in dict.fromkeys([header, "cmath"]))
    return TranslationUnit(name, f'{headers}extern "C" void {name}(void* const* buffers) {{ {body} }}\n')


def units(target: Target) -> list[TranslationUnit]:
    """Those until the header is made, and one more."""
    header = "immintrin.h" if target.isa_flags else "cmath"
    return [unit("f" * length, header) for length in range(1, 5)]


def build_each(units: Iterable[TranslationUnit], target: Target, contract: bool = True) -> list[Built]:
    return [built for each in units for built in build([each], target, contract=contract)]


@pytest.fixture(autouse=True)
def gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    if "clang" in find_compiler().version:
        pytest.skip("clang does not look for precompiled headers in the folders of -I")


def headers(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*/*.gch"))


def used(built: Built, flags: str = "") -> bool:
    """Whether the command, given again, takes the precompiled header (marked by an exclamation mark), and
    ``cmath`` from it."""
    told = subprocess.run(
        f"{built.command} -H {flags}", shell=True, cwd=built.path.parent, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    taken = bool(re.match(r"! \S*\.gch$", told.stderr, re.MULTILINE))
    again = re.search(r"^\.\.\. ", told.stderr, re.MULTILINE)  # what a header that is included includes includes
    assert not (taken and again), told.stderr
    return taken


def test_made_once_and_used_from_then_on(target: Target, tmp_path: Path) -> None:
    *first, last = units(target)
    build_each(first[:-1], target)
    assert not headers(tmp_path)  # it does not pay before
    build_each(first, target)
    (header,) = headers(tmp_path)
    made = header.stat().st_mtime_ns
    (built,) = build([last], target)
    assert [(path, path.stat().st_mtime_ns) for path in headers(tmp_path)] == [(header, made)]
    assert used(built)
    assert not used(built, "-O0 -g")
    if target.name == "portable":  # With other flags it would not be valid: another one is made.
        build_each(first, target, contract=False)
        assert len(headers(tmp_path)) == 2


def test_the_library_is_the_same_with_and_without(tmp_path: Path) -> None:
    target = TARGETS["portable"]
    *_, built = build_each(units(target), target)
    with_header = built.path.read_bytes()
    assert used(built)
    # If the header is gone, the entry's own command works without.
    (header,) = headers(tmp_path)
    shutil.rmtree(header.parent)
    assert not used(built)
    assert built.path.read_bytes() == with_header
    assert build(units(target)[-1:], target)[0].cached


def test_damaged_header_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["portable"]
    *first, last = units(target)
    build_each(first, target)
    (header,) = headers(tmp_path)
    half = header.stat().st_size // 2
    header.write_bytes(header.read_bytes()[:half])
    monkeypatch.setattr(precompiled, "_wanted", Counter())  # as in a fresh process
    for path in tmp_path.glob("cache/*/kernel.so"):
        path.unlink()
    build_each(first, target)
    (built,) = build([last], target)
    assert load(built).address
    assert header.stat().st_size > half


@pytest.mark.parametrize("refused", ["-I../", "c++-header"])
def test_compiler_that_cannot_use_or_make_one(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["portable"]
    script = tmp_path / "compiler"
    (real,) = find_compiler().command
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *{refused}*) echo "had to relocate PCH" >&2; exit 1;; esac\nexec {real} "$@"\n'
    )
    script.chmod(0o700)
    monkeypatch.setenv("SWIRL_CXX", str(script))
    for built in build_each(units(target), target):
        assert load(built).address
        assert refused not in built.command
    # The message of a real error is not about headers.
    broken = unit("f", "cmath")
    with pytest.raises(CompilerFailed, match="no_such_thing") as error:
        build([TranslationUnit("f", broken.source + "int x = no_such_thing;\n")], target)
    assert "PCH" not in str(error.value)


def test_kernels_without_headers_make_none(tmp_path: Path) -> None:
    for target in _runnable():
        build([TranslationUnit("f", 'extern "C" void f(void* const*) {}\n')], target)
    assert not headers(tmp_path)


def _runnable() -> list[Target]:
    return [target for target in TARGETS.values() if why_not(target) is None]
