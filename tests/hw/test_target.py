"""Targets: probes on this machine, and the code that each target's flags allow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import archspec.cpu
import pytest

from swirl.build.compiler import run_program
from swirl.build.jit import build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.errors import TargetError
from swirl.run.runner import Runner
from swirl.target import machine
from swirl.target.machine import resolve_target, why_not
from swirl.target.targets import TARGETS, Target, get_target
from tests.codegen.conftest import why_not_made


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIRL_TARGET", raising=False)
    monkeypatch.delenv("LATTE_VEC_CONFIG", raising=False)


def test_best_target_is_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIRL_HIDE", raising=False)
    features = archspec.cpu.host().features
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= features:
        expected = "avx512"
    else:
        expected = "avx2" if {"avx2", "fma"} <= features else "portable"
    assert resolve_target().name == expected


def test_portable_runs_everywhere_without_a_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve_target("portable").name == "portable"


def test_settings_choose_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_TARGET", "portable")
    assert resolve_target().name == "portable"


def test_cache_sizes_are_plausible() -> None:
    target = resolve_target("portable")
    assert 8 * 1024 <= target.l1_bytes <= target.l2_bytes


def test_unknown_target_is_refused_with_the_list() -> None:
    with pytest.raises(TargetError, match="no target 'avx1024'") as refused:
        get_target("avx1024")
    assert "avx512, avx2, portable" in str(refused.value)


@pytest.mark.parametrize(
    ("hidden", "target", "runnable"),
    [
        ("avx512", "avx512", "avx2, portable"),
        ("avx2", "avx2", "portable"),
        ("avx2", "avx512", "portable"),
        ("avx512, avx2", "avx512", "portable"),
    ],
)
def test_hidden_instruction_sets(hidden: str, target: str, runnable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden sets count as missing, although earlier probes have found them; nothing is kept about it."""
    monkeypatch.delenv("SWIRL_HIDE", raising=False)
    if runnable != "portable" and why_not(get_target("avx2")) is not None:
        pytest.skip("this machine has no AVX2")
    before = [why_not(other) for other in TARGETS.values()]
    monkeypatch.setenv("SWIRL_HIDE", hidden)
    with pytest.raises(TargetError, match=f"cannot run target '{target}': SWIRL_HIDE hides avx") as refused:
        resolve_target(target)
    assert f"it runs: {runnable}" in str(refused.value)
    assert resolve_target().name == runnable.split(",")[0]
    monkeypatch.delenv("SWIRL_HIDE")
    assert [why_not(other) for other in TARGETS.values()] == before


def test_kernels_with_hidden_instructions_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that ran one would end with a signal on a machine without them."""
    monkeypatch.setenv("SWIRL_HIDE", "avx2")
    target = get_target("avx2")
    if why_not_made(target):
        pytest.skip("needs an x86-64 compiler")
    (built,) = build([TranslationUnit("nothing", 'extern "C" void nothing(void* const*) {}\n')], target)
    phase = Runner(1).phase([(load(built), [])])
    for run in (phase.run, phase.run_timed):
        with pytest.raises(TargetError, match="cannot run: SWIRL_HIDE hides avx2"):
            run()


def test_subprocesses_inherit_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_HIDE", "avx512,avx2")
    ran = run_program(
        (sys.executable, "-c", "from swirl.target.machine import resolve_target; print(resolve_target().name)")
    )
    assert ran.stdout == "portable\n", ran.stderr


def test_target_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIRL_HIDE", raising=False)
    # A program that dies as one does on an instruction that the processor does not know.
    dies = "#include <csignal>\nint main() { raise(SIGILL); }\n"
    monkeypatch.setattr(machine, "_PROBES", {"avx512": dies, "avx2": "int main() {}\n"})
    with pytest.raises(TargetError, match="cannot run target 'avx512': the processor") as refused:
        resolve_target("avx512")
    assert "it runs: avx2, portable" in str(refused.value)
    assert resolve_target().name == "avx2"
    assert get_target("avx512").simd_width == 16


def test_target_that_the_compiler_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIRL_HIDE", raising=False)
    target = Target("avx2", 8, 16, isa_flags=("-mno-such-instructions",))
    reason = why_not(target)
    assert reason is not None
    assert "-mno-such-instructions" in reason


def test_probe_runs_once_for_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "compilations"
    script = tmp_path / "logging-compiler"
    real = shutil.which("g++") or shutil.which("clang++")
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo "$@" >> "{log}"\nexec "{real}" "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("SWIRL_CXX", str(script))
    if why_not(get_target("avx2")) is not None:
        pytest.skip("this machine has no AVX2")
    assert why_not(get_target("avx2")) is None
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "source", "register"),
    [
        (
            "avx512",
            "__m512 x = _mm512_loadu_ps(v); _mm512_storeu_ps(v, _mm512_fmadd_ps(x, x, x));",
            "%zmm",
        ),
        (
            "avx2",
            "__m256 x = _mm256_loadu_ps(v); _mm256_storeu_ps(v, _mm256_fmadd_ps(x, x, x));",
            "%ymm",
        ),
    ],
)
def test_code_of_a_target_needs_no_probe(name: str, source: str, register: str) -> None:
    if os.uname().machine != "x86_64" or shutil.which("objdump") is None:
        pytest.skip("needs an x86-64 compiler and objdump")
    text = f'#include <immintrin.h>\nextern "C" void f(void* const* b) {{ float* v = (float*)b[0]; {source} }}\n'
    (built,) = build([TranslationUnit("f", text)], get_target(name))
    code = subprocess.run(["objdump", "-d", str(built.path)], capture_output=True, text=True, check=True).stdout
    assert "vfmadd" in code
    assert register in code


def test_targets_are_best_first() -> None:
    assert list(TARGETS) == ["avx512", "avx2", "portable"]


@pytest.mark.parametrize(
    ("name", "instructions"),
    [("avx512", {"vfmsub", "vpaddb", "vandps", "vsqrtps", "vfmadd", "pext"}), ("avx2", {"vpaddd", "vfmadd"})],
)
def test_probe_executes_an_instruction_of_every_set(name: str, instructions: set[str], tmp_path: Path) -> None:
    if os.uname().machine != "x86_64" or shutil.which("objdump") is None:
        pytest.skip("needs an x86-64 compiler and objdump")
    source = machine._PROBES[name].replace("int main()", 'extern "C" int f()')
    path = build([TranslationUnit("f", source)], get_target(name), optimize="-O1")[0].path
    code = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert not {wanted for wanted in instructions if wanted not in code}
