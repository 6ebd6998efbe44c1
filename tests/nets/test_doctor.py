"""``latte doctor``: what is found, and what is to be mended, with a way to do it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from latte.tools import doctor
from latte.tools.cli import main
from swirl.build.compiler import find_compiler
from swirl.measure.rates import Limits
from swirl.run.runner import Runner
from swirl.target.targets import TARGETS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False)


def test_a_machine_that_can_compile(tmp_path: Path) -> None:
    done = run("--json", str(tmp_path / "found.json"))
    assert done.exit_code == 0
    found = {each["name"]: each for each in json.loads((tmp_path / "found.json").read_text())}
    for name in ("latte", "compiler", "processor", "target portable", "caches", "threads", "memory", "cache folder"):
        assert found[name]["value"] and name in done.output
    assert found["target portable"]["value"] == "16 registers of 8 lanes: runs here"


@pytest.mark.parametrize("variable", ["SWIRL_TARGET", "SWIRL_THREADS", "LATTE_RECIPES"])
def test_a_variable_that_is_not_accepted(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/no-such-value")
    done = CliRunner().invoke(main, ["doctor"], catch_exceptions=False)
    assert done.exit_code == 1 and f"settings: {variable}='/no-such-value' is not accepted" in done.output


@pytest.mark.parametrize(
    ("told", "old"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0", False),
        ("g++ (SUSE Linux) 13.2.1 20240206 [revision 67ac78caf31f7cb3202177e6428a46d829b70f23]", False),
        ("g++ (Gentoo 11.4.1_p20230622 p2) 11.4.1 20230622", True),
        ("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-4)", True),
        ("Debian clang version 11.0.1", False),
    ],
)
def test_compilers_that_are_too_old(monkeypatch: pytest.MonkeyPatch, told: str, old: bool) -> None:
    compiler = replace(find_compiler(), version=f"{told}\nCopyright")
    monkeypatch.setattr(doctor, "find_compiler", lambda: compiler)
    (found,) = doctor._compiler()
    assert bool(found.problem) == old


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_CXX", "no-such-compiler")
    done = run()
    assert done.exit_code == 1
    assert "compiler: " in done.output and "no-such-compiler" in done.output


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    done = run()
    assert done.exit_code == 1
    assert "cannot be written\n  SWIRL_CACHE_DIR names a folder that you can write" in done.output


def test_what_is_to_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, quota = tmp_path / "pages", tmp_path / "quota"
    pages.write_text("always madvise [never]\n")
    quota.write_text("150000 100000\n")
    monkeypatch.setattr(doctor, "HUGE_PAGES", pages)
    monkeypatch.setattr(doctor, "QUOTA", quota)
    monkeypatch.setattr(doctor, "ROOM", 10**30)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setenv("SWIRL_THREADS", "4000")
    monkeypatch.setenv("SWIRL_HIDE", "avx2")
    done = run()
    assert done.exit_code == 0
    for told in (
        "cores: threads take turns\n  SWIRL_THREADS=",
        "cores by quota: more threads than the container may run\n  SWIRL_THREADS=1",
        "load: something else runs: times mean little",
        "huge pages: large arrays take many page faults and lookups\n  echo madvise > ",
        "cache folder: little room is left",
        "target avx2: it is hidden\n  unset SWIRL_HIDE",
        "SWIRL_HIDE=avx2, ",
        ", SWIRL_THREADS=4000",
    ):
        assert told in done.output


def test_without_limits_nothing_is_said_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "quota"
    monkeypatch.setattr(doctor, "QUOTA", quota)
    assert "cores by quota" not in run().output
    quota.write_text("max 100000\n")
    assert "cores by quota" not in run().output


def test_loads_wait_longer_for_larger_memory() -> None:
    limits = Limits(TARGETS["portable"], Runner(1))
    near, far = limits.latency(2**13), limits.latency(2**27)
    assert 0 < near < far


def test_rates_are_told_for_each_target_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROUNDS", 1)
    monkeypatch.setenv("SWIRL_HIDE", "avx2")
    done = run("--machine")
    assert "portable, 1 thread" in done.output and "Gflop/s of multiply-adds" in done.output
    assert "avx512, 1 thread" not in done.output
    assert "a load takes" in done.output and " ns" in done.output
