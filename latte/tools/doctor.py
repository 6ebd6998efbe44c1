"""``latte doctor``: what the machine has that nets are compiled for and run on, and what to mend."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage

import click

import latte
from latte.tools.results import ResultFile, write_results
from swirl.build.cache import cache_contents
from swirl.build.compiler import find_compiler
from swirl.config import available_cores, settings, variables
from swirl.errors import CompilerMissing, LatteError
from swirl.measure.rates import Limits, latency_sizes
from swirl.run.memory import machine_bytes
from swirl.run.runner import Runner
from swirl.target.machine import cache_bytes, processor_name, resolve_target, why_not
from swirl.target.targets import TARGETS

OLDEST_GCC = 12
GCC = re.compile(r"\)\s+(\d+)\.")
"""The first number after the name of the package, in brackets: dates, patches and revisions may follow it."""
ROOM = 2 * 10**9
"""Bytes that a cache folder should have left: kernels of a few large nets."""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
OPENMP = re.compile(r"lib(g|i|)omp")
"""The libraries of GCC, Intel and LLVM."""
ROUNDS = 5


@dataclass(frozen=True)
class Finding:
    """A thing that was looked at.

    Args:
        name: of it.
        value: what was found.
        problem: what is wrong with it, or "".
        mend: what to do about it, or "".
        stops: whether no net can be compiled before it is mended.
    """

    name: str
    value: str
    problem: str = ""
    mend: str = ""
    stops: bool = False


def findings() -> list[Finding]:
    """What the machine has; of its software and the environment alone where a variable has a value that is not
    accepted."""
    try:
        settings()
    except LatteError as error:
        wrong = Finding("settings", "not accepted", error.message, error.way_out or "", stops=True)
        return [*_software(), wrong, *_environment()]
    return [*_software(), *_compiler(), *_processor(), *_memory(), *_folder(), *_torch(), *_environment()]


def _software() -> Iterator[Finding]:
    yield Finding("latte", latte.__version__)
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield Finding("NumPy", version("numpy"))
    yield Finding("system", f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}".strip(", "))


def _compiler() -> Iterator[Finding]:
    try:
        compiler = find_compiler()
    except CompilerMissing as error:
        yield Finding("compiler", "none", error.message, error.way_out or "", stops=True)
        return
    told = compiler.version.partition("\n")[0]
    number = GCC.search(told)
    old = "clang" not in told and number is not None and int(number[1]) < OLDEST_GCC
    problem, mend = (f"g++ before {OLDEST_GCC} is not tested", "SWIRL_CXX names another") if old else ("", "")
    yield Finding("compiler", f"{told} ({' '.join(compiler.command)})", problem, mend)


def _processor() -> Iterator[Finding]:
    cores, threads = available_cores(), settings().threads
    yield Finding("processor", f"{processor_name()}, {cores} of {os.cpu_count()} cores")
    for target in TARGETS.values():
        try:
            reason = why_not(target)
        except LatteError as error:
            reason = error.message
        registers = f"{target.registers} registers of {target.simd_width} lanes"
        told = f"{registers}: runs here" if reason is None else f"not here: {reason}"
        hidden = reason is not None and "SWIRL_HIDE" in reason
        problem, mend = ("it is hidden", "unset SWIRL_HIDE") if hidden else ("", "")
        yield Finding(f"target {target.name}", told, problem, mend)
    caches = [f"level {level}: {_size(found)}" for level in (1, 2, 3) if (found := cache_bytes(level)) is not None]
    yield Finding("caches", ", ".join(caches) or "the system does not say: usual sizes are taken")
    too_many = threads > cores
    yield Finding(
        "threads",
        str(threads),
        f"there are {cores} cores: threads take turns" if too_many else "",
        f"SWIRL_THREADS={cores}" if too_many else "",
    )
    quota = _quota()
    if quota is not None:
        less = quota < threads
        mend = f"SWIRL_THREADS={max(1, int(quota))}" if less else ""
        yield Finding("cores by quota", f"{quota:.1f}", "more threads than the container may run" if less else "", mend)
    load = os.getloadavg()[0]
    busy = load > cores / 2
    yield Finding(
        "load",
        f"{load:.1f}",
        "something else runs: times mean little" if busy else "",
        "wait, or end it, before measuring" if busy else "",
    )


def _quota() -> float | None:
    """Cores' worth of time that a container may use, if that is limited."""
    try:
        quota, period = QUOTA.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Iterator[Finding]:
    yield Finding("memory", _size(machine_bytes()))
    try:
        chosen = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        chosen = ""
    never = chosen == "never"
    yield Finding(
        "huge pages",
        chosen or "the system does not say",
        "large arrays take many page faults and lookups" if never else "",
        f"echo madvise > {HUGE_PAGES} (as root)" if never else "",
    )


def _folder() -> Iterator[Finding]:
    folder = settings().cache_dir
    parent = next(each for each in (folder, *folder.parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        mend = "SWIRL_CACHE_DIR names a folder that you can write"
        yield Finding("cache folder", str(folder), f"{parent} cannot be written", mend, stops=True)
        return
    count, size = cache_contents()
    free = disk_usage(parent).free
    yield Finding(
        "cache folder",
        f"{folder}: {count} entries, {_size(size)}; {_size(free)} free",
        "little room is left" if free < ROOM else "",
        "latte cache --clear, or SWIRL_CACHE_DIR" if free < ROOM else "",
    )


def _torch() -> Iterator[Finding]:
    try:
        told = version("torch")
    except PackageNotFoundError:
        yield Finding("PyTorch", "not installed: only comparisons need it")
        return
    spec = find_spec("torch")
    root = Path(spec.origin).parent if spec is not None and spec.origin else None
    beside = [root / "lib", root.parent / "torch.libs"] if root is not None else []
    own = sorted(
        {f.name for folder in beside if folder.is_dir() for f in folder.glob("lib*omp*.so*") if OPENMP.match(f.name)}
    )
    openmp = f"OpenMP of its own: {', '.join(own)}" if own else "the OpenMP of the system"
    yield Finding("PyTorch", f"{told}, {openmp}")


def _environment() -> Iterator[Finding]:
    found = variables()
    yield Finding("environment", ", ".join(f"{name}={value}" for name, value in found.items()) or "nothing is set")


def measured() -> Iterator[Finding]:
    """Rates of the machine: multiply-adds, reading caches and memory, and the time that a load takes."""
    level2, level3 = cache_bytes(2) or 0, cache_bytes(3) or 0
    threads = settings().threads
    for target in TARGETS.values():
        if why_not(target) is not None:
            continue
        for count in dict.fromkeys((1, threads)):
            probes = Limits(resolve_target(target.name), Runner(count))
            rates, level1 = probes.best(ROUNDS), probes.level1_rate()
            told = (
                f"{rates.peak / 1e9:.0f} Gflop/s of multiply-adds; reading level 1 {level1 / 1e9:.0f}, level 2 "
                f"{rates.level2 / 1e9:.0f}, level 3 {rates.level3 / 1e9:.0f}, memory {rates.memory / 1e9:.0f} GB/s"
            )
            yield Finding(f"{target.name}, {count} thread{'s' if count > 1 else ''}", told)
    limits = Limits(resolve_target("portable"), Runner(1))
    sizes = latency_sizes(cache_bytes(1) or 0, level2, level3)
    told = ", ".join(f"{name} {limits.latency(size) * 1e9:.1f} ns" for name, size in sizes.items())
    yield Finding("a load takes", told)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def text(found: Sequence[Finding]) -> str:
    """Findings as lines, what is to be mended last."""
    width = max(len(each.name) for each in found)
    lines = [f"{each.name:{width}}  {each.value}" for each in found]
    problems = [each for each in found if each.problem]
    lines += ["", *(f"{each.name}: {each.problem}\n  {each.mend}" for each in problems)] if problems else []
    return "\n".join(lines)


@click.command("doctor")
@click.option("--machine", is_flag=True, help="measure rates and latencies, too: half a minute on an idle machine")
@click.option("--json", "json_file", type=ResultFile(), help="write the findings there as well")
def doctor(machine: bool, json_file: Path | None) -> None:
    """Show what this machine has that nets are compiled for and run on, and what to mend.

    The output is what a report of an error should contain. Exit status 1 where no net can be compiled.
    """
    found = findings()
    if machine and not any(each.stops for each in found):
        found += measured()
    click.echo(text(found))
    if json_file is not None:
        write_results(json_file, json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False) + "\n")
    if any(each.stops for each in found):
        raise SystemExit(1)
