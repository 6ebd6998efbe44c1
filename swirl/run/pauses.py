"""How long a thread that waits takes for one look: GCC's OpenMP counts these, and they differ by processor."""

from __future__ import annotations

from pathlib import Path

from swirl.build.cache import cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.build.compiler import Compiler, find_compiler, run_program
from swirl.target.machine import processor_identity

USUAL = 25e-9
"""Where it cannot be measured."""

# The loop of libgomp. The least of many short runs is right on a busy machine, too.
_PROBE = """\
#include <cstdio>
#include <ctime>
int value = 0;
static double now() {
    timespec found;
    clock_gettime(CLOCK_MONOTONIC, &found);
    return 1e9 * (double)found.tv_sec + (double)found.tv_nsec;
}
int main() {
    double least = 1e9;
    for (int run = 0; run < 1000; ++run) {
        const double start = now();
        for (int i = 0; i < 100; ++i) {
            if (__atomic_load_n(&value, __ATOMIC_RELAXED) != 0) return 1;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#else
            __asm volatile("" : : : "memory");
#endif
        }
        const double taken = (now() - start) / 100;
        least = taken < least ? taken : least;
    }
    std::printf("%f\\n", least);
    return 0;
}
"""


def pause_seconds() -> float:
    """Seconds of one look at a value that another thread will change, with the pause after it; kept on disk.

    Raises:
        CompilerMissing: no compiler to find it out with.
    """
    compiler = find_compiler()
    key = cache_key("pause", _PROBE, *compiler.command, compiler.version, processor_identity())
    facts = read_entry(key, {"seconds": float})
    if facts is None:
        with entry_lock(key), draft_folder(key) as draft:
            measured = _measured(draft, compiler)
            if measured is None:
                return USUAL
            (draft / "probe").unlink()
            facts = {"seconds": measured}
            publish(draft, key, facts)
    return float(facts["seconds"])


def _measured(folder: Path, compiler: Compiler) -> float | None:
    (folder / "probe.cpp").write_text(_PROBE)
    if compiler.run(("-O1", "probe.cpp", "-o", "probe"), folder).returncode != 0:
        return None
    ran = run_program((str(folder / "probe"),))
    try:
        nanoseconds = float(ran.stdout)
    except ValueError:
        return None
    return 1e-9 * nanoseconds if nanoseconds > 0 else None
