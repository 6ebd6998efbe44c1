"""Compiling, the disk cache, loading, running a phase, memory."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from swirl.build.cache import cache_contents
from swirl.build.jit import build, load, progress_bar
from swirl.build.libraries import Built
from swirl.build.translation_unit import TranslationUnit
from swirl.codegen.emit import KernelSource
from swirl.errors import CompilerFailed, CompilerMissing, DataError, LatteError
from swirl.run.memory import ALIGNMENT, HUGE_PAGE, Arena, allocate
from swirl.run.runner import Runner
from swirl.target.targets import get_target

ROOT = Path(__file__).parents[2]
PORTABLE = get_target("portable")

ADD_ONE = TranslationUnit(
    "add_one",
    """extern "C" void add_one(void* const* buffers) {
    float* value = static_cast<float*>(buffers[0]);
#pragma omp for
    for (long i = 0; i < 1000; ++i) value[i] += 1.0f;
}
""",
)
# Reads what add_one wrote from the other end of the array, so from another thread's share.
REVERSE = TranslationUnit(
    "reverse",
    """extern "C" void reverse(void* const* buffers) {
    const float* from = static_cast<const float*>(buffers[0]);
    float* to = static_cast<float*>(buffers[1]);
#pragma omp for
    for (long i = 0; i < 1000; ++i) to[i] = 2.0f * from[999 - i];
}
""",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIRL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def use_compiler_after(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each run of the compiler, the shell runs this line."""
    script = tmp_path / "compiler"
    real = shutil.which("g++") or shutil.which("clang++")
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {line}\nexec "{real}" "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("SWIRL_CXX", str(script))


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line to this file for each compilation."""
    log = tmp_path / "compilations"
    log.touch()
    use_compiler_after(f'echo "$@" >> "{log}"', tmp_path, monkeypatch)
    return log


def count(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_cold_then_warm(compilations: Path) -> None:
    cold = build([ADD_ONE, REVERSE], PORTABLE)
    assert [built.name for built in cold] == ["add_one", "reverse"]
    assert not any(built.cached for built in cold)
    assert count(compilations) == 2
    warm = build([REVERSE, ADD_ONE], PORTABLE)
    assert all(built.cached for built in warm)
    assert count(compilations) == 2
    # A warm run knows the time of the cold one.
    assert [built.seconds for built in warm] == [built.seconds for built in reversed(cold)]


def test_entry_holds_source_library_and_command(cache: Path) -> None:
    (built,) = build([ADD_ONE], PORTABLE)
    assert built.path.parent.parent == cache
    assert (built.path.parent / "kernel.cpp").read_text() == ADD_ONE.source
    assert (built.path.parent / "command.txt").read_text().strip() == built.command
    # The command works in its folder, for people who edit the C++ and run it again.
    built.path.unlink()
    subprocess.run(built.command, shell=True, cwd=built.path.parent, check=True)
    assert load(built).address


def test_equal_sources_are_compiled_once(compilations: Path) -> None:
    both = build([ADD_ONE, dataclasses.replace(ADD_ONE)], PORTABLE)
    assert both[0].path == both[1].path
    assert count(compilations) == 1


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone", "no manifest", "empty manifest"])
def test_damaged_entry_is_made_again(damage: str) -> None:
    (before,) = build([ADD_ONE], PORTABLE)
    content = before.path.read_bytes()
    manifest = before.path.parent / "manifest.json"
    match damage:
        case "truncated":
            before.path.write_bytes(content[: len(content) // 2])
        case "flipped":
            before.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "gone":
            before.path.unlink()
        case "no manifest":
            manifest.unlink()
        case "empty manifest":
            manifest.write_text("[]")
    (after,) = build([ADD_ONE], PORTABLE)
    assert not after.cached
    assert load(after).address
    assert build([ADD_ONE], PORTABLE)[0].cached


def test_every_flag_and_target_is_part_of_the_key() -> None:
    paths = [
        build([ADD_ONE], PORTABLE)[0].path,
        build([ADD_ONE], PORTABLE, contract=False)[0].path,
        build([ADD_ONE], PORTABLE, optimize="-O0")[0].path,
        build([ADD_ONE], PORTABLE, extra_flags=("-DX",))[0].path,
        build([ADD_ONE], dataclasses.replace(PORTABLE, name="other"))[0].path,
    ]
    assert len(set(paths)) == len(paths)


def test_changed_compiler_is_part_of_the_key(compilations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build([ADD_ONE], PORTABLE)[0]
    script = Path(os.environ["SWIRL_CXX"])
    script.write_text(script.read_text().replace("exec", '[ "$1" = --version ] && echo patched\nexec'))
    second = build([ADD_ONE], PORTABLE)[0]
    assert second.path != first.path
    assert not second.cached


def test_two_processes_at_once_compile_each_kernel_once(compilations: Path) -> None:
    units = [TranslationUnit(f"f{i}", f'extern "C" void f{i}(void* const*) {{}}\n') for i in range(4)]
    program = f"""
from swirl.build.jit import build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.target import get_target
units = [TranslationUnit(*pair) for pair in {[(unit.name, unit.source) for unit in units]!r}]
for built in build(units, get_target("portable")):
    assert load(built).address
"""
    processes = [subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert count(compilations) == len(units)


def test_two_processes_at_once_share_libraries(compilations: Path) -> None:
    program = """
from swirl.codegen.emit import KernelSource
from swirl.build.jit import build, load
from swirl.target import get_target
texts = {f"f{i}": 'extern "C" void f%d(void* const*) {}\\n' % i for i in range(40)}
order = list(texts) if NUMBER else sorted(texts, reverse=True)
for built in build([KernelSource(name, texts[name], ()) for name in order], get_target("portable")):
    assert load(built).address
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program.replace("NUMBER", str(number))], cwd=ROOT)
        for number in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert count(compilations) == 1


def sharing(*functions: str, body: str = "") -> list[KernelSource]:
    return [
        KernelSource(
            name,
            f"#include <cmath>\nstatic inline float helper() {{ return {number}.0f; }}\n"
            f'extern "C" void {name}(void* const* buffers) {{ *(float*) buffers[0] = std::sqrt(helper()); {body} }}\n',
            ("value",),
        )
        for number, name in enumerate(functions)
    ]


def test_kernels_share_a_library(compilations: Path) -> None:
    runner = Runner(1)
    others, (entries_before, size_before) = count(compilations), cache_contents()
    built = build(sharing("f", "g", "h"), PORTABLE)
    assert count(compilations) == others + 1
    assert len({item.path for item in built}) == 3
    assert len({item.path.stat().st_ino for item in built}) == 1
    for number, item in enumerate(built):
        value = np.zeros(1, np.float32)
        runner.phase([(load(item), [value])]).run()
        assert value[0] == np.sqrt(np.float32(number))
    assert all(item.cached for item in build(sharing("f", "g", "h"), PORTABLE))
    entries, size = cache_contents()
    assert size - size_before < built[0].path.stat().st_size + 10_000  # the file once
    assert entries - entries_before == 3


def test_kernel_that_shares_a_library_can_be_compiled_by_itself() -> None:
    f, g = build(sharing("f", "g"), PORTABLE)
    assert (g.path.parent / "kernel.cpp").read_text() == sharing("f", "g")[1].source
    before = f.path.read_bytes()
    subprocess.run(g.command, shell=True, cwd=g.path.parent, check=True)
    assert f.path.read_bytes() == before != g.path.read_bytes()
    assert load(g).address


def test_kernel_that_shares_a_library_is_made_again_by_itself(compilations: Path) -> None:
    f, g = build(sharing("f", "g"), PORTABLE)
    shutil.rmtree(g.path.parent)
    assert [item.cached for item in build(sharing("f", "g"), PORTABLE)] == [True, False]
    assert count(compilations) == 2
    assert load(f).address


def test_one_of_several_that_is_refused_is_named(cache: Path) -> None:
    good, (bad,) = sharing("f", "g"), sharing("h", body="no_such_thing();")
    with pytest.raises(CompilerFailed, match="refused h:") as refused:
        build([good[0], bad, good[1]], PORTABLE)
    assert "no_such_thing" in str(refused.value)
    (source,) = cache.glob("failed/*/kernel.cpp")
    assert source.read_text() == bad.source
    assert not list(cache.glob("*.draft"))
    assert all(load(item).address for item in build(good, PORTABLE))


def test_many_kernels_are_divided_among_the_cores(compilations: Path) -> None:
    long = "\n".join(f"if (buffers[0] == buffers[{number}]) return;" for number in range(200))
    build(sharing(*"abcdefgh", body=long), PORTABLE)
    assert 2 <= count(compilations) <= 8


def test_file_system_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    built = build(sharing("f", "g"), PORTABLE)
    assert len({item.path.stat().st_ino for item in built}) == 2
    assert all(load(item).address for item in built)


def test_draft_of_a_killed_process_is_removed(cache: Path) -> None:
    (built,) = build([ADD_ONE], PORTABLE)
    key = built.path.parent.name
    shutil.rmtree(built.path.parent)
    left_behind = cache / f"{key}.draft"
    left_behind.mkdir()
    (left_behind / "kernel.so").write_text("half")
    build([ADD_ONE], PORTABLE)
    assert not list(cache.glob("*.draft"))


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIRL_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match="neither g\\+\\+ nor clang\\+\\+") as refused:
        build([ADD_ONE], PORTABLE)
    assert "apt install g++" in str(refused.value)


def test_named_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_CXX", "no-such-compiler -O2")
    with pytest.raises(CompilerMissing, match="SWIRL_CXX names 'no-such-compiler'"):
        build([ADD_ONE], PORTABLE)


def test_compiler_error_keeps_text_source_and_command(cache: Path) -> None:
    broken = TranslationUnit("broken", "int x = undeclared_thing;\n")
    with pytest.raises(CompilerFailed) as refused:
        build([broken, ADD_ONE], PORTABLE)
    message = str(refused.value)
    assert "kernel.cpp:1" in message
    assert "undeclared_thing" in message
    (source,) = cache.glob("failed/*/kernel.cpp")
    assert source.read_text() == broken.source
    assert str(source) in message
    assert (source.parent / "command.txt").read_text().strip() in message
    # Nothing of it counts as built, and it can be tried again.
    with pytest.raises(CompilerFailed):
        build([broken], PORTABLE)


def test_no_compiler_runs_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler_after("{ grep -q add_one kernel.cpp && sleep 0.5; }", tmp_path, monkeypatch)
    threads = threading.active_count()
    with pytest.raises(CompilerFailed):
        build([TranslationUnit("broken", "int x = undeclared_thing;\n"), ADD_ONE], PORTABLE)
    assert threading.active_count() == threads
    assert build([ADD_ONE], PORTABLE)[0].cached


def test_cache_that_others_may_write_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(LatteError, match="others may write") as refused:
        build([ADD_ONE], PORTABLE)
    assert "chmod 700" in str(refused.value)


def test_cache_of_somebody_else_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(mode=0o700)
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(LatteError, match=f"belongs to user {own}, not to you"):
        build([ADD_ONE], PORTABLE)


def test_cache_that_is_a_file_is_refused(cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(LatteError, match="cannot be made"):
        build([ADD_ONE], PORTABLE)


def test_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(LatteError, match="No space left on device"):
        build([ADD_ONE], PORTABLE)


def test_cache_is_private(cache: Path) -> None:
    build([ADD_ONE], PORTABLE)
    assert cache.stat().st_mode & 0o777 == 0o700


def test_progress_counts_what_is_compiled() -> None:
    build([REVERSE], PORTABLE)
    calls: list[tuple[int, int]] = []
    build([ADD_ONE, REVERSE], PORTABLE, progress=lambda done, total, _: calls.append((done, total)))
    assert calls == [(0, 1), (1, 1)]
    calls.clear()
    build([ADD_ONE, REVERSE], PORTABLE, progress=lambda done, total, _: calls.append((done, total)))
    assert not calls


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (True, False):  # the second time there is nothing to compile, and nothing to see
        with progress_bar("compiling") as progress:
            build([ADD_ONE], PORTABLE, progress=progress)
        captured = capsys.readouterr()
        assert ("compiling" in captured.err) == expected
        assert not captured.out


def test_library_without_the_function() -> None:
    (built,) = build([TranslationUnit("expected", 'extern "C" void other(void* const*) {}\n')], PORTABLE)
    with pytest.raises(LatteError, match="no function 'expected'"):
        load(built)


def test_library_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kernel.so"
    path.write_text("not a library")
    with pytest.raises(LatteError, match="cannot be loaded"):
        load(Built("f", path, 0.0, False, "", "portable"))


@pytest.mark.parametrize("contract", [True, False])
def test_arithmetic_is_ieee(contract: bool) -> None:
    source = """extern "C" void f(void* const* buffers) {
    float* v = static_cast<float*>(buffers[0]);
#pragma omp single
    {
        v[1] = (v[0] + 1e8f) - 1e8f;            // no reassociation
        v[2] = v[3] * 0.5f;                     // subnormals are kept
        v[4] = v[5] != v[5] ? 1.0f : 0.0f;      // NaN exists
        v[6] = 0.0f + v[7];                     // -0 + 0 is +0
    }
}
"""
    (built,) = build([TranslationUnit("f", source)], PORTABLE, contract=contract)
    v = np.array([1, 0, 0, 2**-140, 0, np.nan, 1, -0.0], np.float32)
    Runner(threads=2).phase([(load(built), [v])]).run()
    assert v[1] == np.float32(np.float32(1) + np.float32(1e8)) - np.float32(1e8)
    assert v[2] == np.float32(2**-141)
    assert v[4] == 1
    assert not np.signbit(v[6])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_phase_of_two_steps(threads: int) -> None:
    add_one, reverse = (load(built) for built in build([ADD_ONE, REVERSE], PORTABLE))
    value = np.arange(1000, dtype=np.float32)
    reversed_ = np.zeros(1000, np.float32)
    phase = Runner(threads).phase([(add_one, [value]), (reverse, [value, reversed_]), (add_one, [reversed_])])
    for times in (1, 2):
        phase.run()
        np.testing.assert_array_equal(value, np.arange(1000, dtype=np.float32) + times)
        np.testing.assert_array_equal(reversed_, 2 * value[::-1] + 1)


def test_phase_reports_seconds_of_each_step() -> None:
    add_one, reverse = (load(built) for built in build([ADD_ONE, REVERSE], PORTABLE))
    value = np.zeros(1000, np.float32)
    phase = Runner(2).phase([(add_one, [value]), (reverse, [value, np.zeros(1000, np.float32)])])
    seconds = phase.run_timed()
    assert len(seconds) == 2
    assert all(second >= 0 for second in seconds)
    assert value[0] == 1


def test_phase_without_steps() -> None:
    phase = Runner(2).phase([])
    phase.run()
    assert phase.run_timed() == []


def test_phase_keeps_its_arrays() -> None:
    (add_one,) = (load(built) for built in build([ADD_ONE], PORTABLE))
    arrays = allocate({"value": ((1000,), np.float32)})
    view = arrays["value"][:5]
    phase = Runner(2).phase([(add_one, [arrays.pop("value")])])
    phase.run()
    np.testing.assert_array_equal(view, np.ones(5))


def test_phase_refuses_arrays_that_are_not_in_c_order() -> None:
    (add_one,) = (load(built) for built in build([ADD_ONE], PORTABLE))
    with pytest.raises(DataError, match="add_one: array 0"):
        Runner(1).phase([(add_one, [np.zeros((2, 1000), np.float32).T])])


@pytest.mark.parametrize("touched_by_runner", [True, False])
def test_arrays_are_aligned_zeroed_and_apart(touched_by_runner: bool) -> None:
    specs = {
        "prime": ((7, 3), np.float32),
        "scalar": ((), np.float32),
        "empty": ((0, 5), np.float32),
        "mask": ((13,), np.bool_),
        "double": ((5,), np.float64),
        "large": ((HUGE_PAGE // 4 + 1,), np.float32),
    }
    arrays = allocate(specs, Runner(2) if touched_by_runner else None)
    assert list(arrays) == list(specs)
    for name, array in arrays.items():
        assert (array.shape, array.dtype) == (specs[name][0], np.dtype(specs[name][1]))
        assert array.ctypes.data % ALIGNMENT == 0
        assert not array.any()
    for number, array in enumerate(arrays.values()):
        array[...] = number % 2
    for number, array in enumerate(arrays.values()):
        assert (array == number % 2).all()


def test_large_arena_begins_at_a_huge_page() -> None:
    assert Arena(HUGE_PAGE).array((1,)).ctypes.data % HUGE_PAGE == 0


def test_arena_that_is_full() -> None:
    arena = Arena(128)
    arena.array((16,))
    arena.array((16,))
    with pytest.raises(LatteError, match="no room"):
        arena.array((1,))


def test_more_memory_than_there_is() -> None:
    with pytest.raises(LatteError, match="no memory for buffers"):
        allocate({"huge": ((2**55,), np.float32)})
