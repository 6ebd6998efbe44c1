"""Settings from the environment."""

import os
import warnings
from pathlib import Path

import pytest

from swirl.config import IGNORED, SHARED_FROM, available_cores, settings, short_waits, user_places_threads
from swirl.errors import LatteError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SWIRL_", "LATTE_")) or name in ("CXX", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name)


def test_nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = settings()
    assert (found.target, found.dump, found.compiler, found.recipes) == (None, None, None, None)
    assert found.threads == available_cores()
    assert not found.compatibility
    assert found.memo
    assert found.hidden == frozenset()
    assert found.cache_dir.is_relative_to(tmp_path)


def test_each_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "SWIRL_TARGET": "avx2",
        "SWIRL_DUMP": "stages",
        "SWIRL_CXX": "ccache g++",
        "CXX": "icpx",
        "SWIRL_CACHE_DIR": "cache",
        "SWIRL_THREADS": "3",
        "LATTE_NUM_THREADS": "5",
        "LATTE_VEC_CONFIG": "AVX-512",
        "LATTE_RECIPES": str(tmp_path),
        "LATTE_COMPAT": "on",
        "LATTE_SCHEDULE": "no",
        "SWIRL_MEMO": "off",
        "SWIRL_HIDE": "avx2, avx512",
    }.items():
        monkeypatch.setenv(name, value)
    found = settings()
    assert found.target == "avx2"
    assert found.dump == tmp_path / "stages"
    assert found.compiler == ("ccache", "g++")
    assert found.cache_dir == tmp_path / "cache"
    assert found.threads == 3
    assert found.recipes == tmp_path
    assert found.compatibility
    assert not found.memo and not found.schedule
    assert found.hidden == {"avx2", "avx512"}


@pytest.mark.parametrize(("value", "target"), [("AVX", "avx2"), ("AVX-2", "avx2"), ("AVX-512", "avx512")])
def test_vec_config_of_the_original(value: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_VEC_CONFIG", value)
    assert settings().target == target


def test_threads_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTE_NUM_THREADS", "5")
    assert settings().threads == 5


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("SWIRL_TARGET", "avx-512", "avx512 | avx2 | portable"),
        ("SWIRL_HIDE", "avx512,sse", "avx512 | avx2, or both"),
        ("SWIRL_HIDE", "portable", "avx512 | avx2, or both"),
        ("LATTE_VEC_CONFIG", "SSE", "AVX | AVX-2 | AVX-512"),
        ("SWIRL_THREADS", "0", "a whole number of threads"),
        ("SWIRL_THREADS", "two", "a whole number of threads"),
        ("LATTE_NUM_THREADS", "-1", "a whole number of threads"),
        ("LATTE_RECIPES", "/no/such/folder", "an existing folder"),
        ("LATTE_COMPAT", "perhaps", "1 | on | true | yes"),
        ("SWIRL_CXX", "g++ 'unfinished", "a compiler's command"),
    ],
)
def test_bad_value_names_the_variable_and_what_it_takes(
    variable: str, value: str, accepted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(LatteError) as refused:
        settings()
    assert f"{variable}={value!r}" in str(refused.value)
    assert accepted in str(refused.value)


def test_variables_that_mean_nothing_here_are_ignored_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in IGNORED:
        monkeypatch.setenv(name, "1")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        settings()
        settings()
    assert len(said) == 1
    assert all(name in str(said[0].message) for name in IGNORED)


def test_waits_are_short_unless_the_user_says_how_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    for pause, rounds in ((20e-9, "10000"), (40e-9, "5000")):  # 200 µs, whatever the processor
        with short_waits(lambda pause=pause: pause):
            assert os.environ["GOMP_SPINCOUNT"] == rounds
        assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with short_waits(lambda: pytest.fail("it was measured")):
        assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with short_waits(lambda: pytest.fail("it was measured")):
        assert os.environ["GOMP_SPINCOUNT"] == "7"


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
def test_who_says_where_threads_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(each, raising=False)
    assert not user_places_threads()
    monkeypatch.setenv(name, "false")  # also who wants to be left alone
    assert user_places_threads()


@pytest.mark.parametrize(
    ("value", "instructions"), [("", SHARED_FROM), ("0", 0), (" 700 ", 700), ("-1", None), ("1e3", None), ("²", None)]
)
def test_from_which_work_on_threads_share_a_kernel(
    monkeypatch: pytest.MonkeyPatch, value: str, instructions: int | None
) -> None:
    monkeypatch.setenv("SWIRL_SHARED_FROM", value)
    if instructions is None:
        with pytest.raises(LatteError, match=r"(?s)SWIRL_SHARED_FROM=.*a whole number of instructions"):
            settings()
    else:
        assert settings().shared_from == instructions


@pytest.mark.parametrize(
    ("value", "threads"), [("3", 3), ("5,2", 5), ("0", None), ("many", None), ("", None), ("99999", None)]
)
def test_threads_of_openmp(monkeypatch: pytest.MonkeyPatch, value: str, threads: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert settings().threads == (threads or available_cores())
    monkeypatch.setenv("SWIRL_THREADS", "7")
    assert settings().threads == 7
