"""Which targets this machine can run, found by compiling a probe with the target's own flags and running it; and the
sizes of its caches.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import archspec.cpu

from swirl.build.cache import cache_key, draft_folder, entry_lock, publish, read_entry
from swirl.build.compiler import Compiler, find_compiler, run_program
from swirl.config import settings
from swirl.errors import TargetError
from swirl.target.targets import DEFAULT_L1_BYTES, DEFAULT_L2_BYTES, TARGETS, Target, get_target

# Each executes an instruction of every set in the target's flags and returns 0. The operands come through
# `volatile`, so the compiler cannot do the work itself.
_PROBES: Mapping[str, str] = MappingProxyType(
    {
        "avx512": """\
#include <immintrin.h>
int main() {
    volatile float two = 2.0f, five = 5.0f;
    volatile int zero = 0;
    volatile unsigned mask = 0xffff;
    __m512 twos = _mm512_set1_ps(two), fives = _mm512_set1_ps(five), sixes = _mm512_set1_ps(five + 1);
    __m512 f = _mm512_maskz_fmsub_ps((__mmask16)mask, twos, fives, sixes);  // 4
    __m512i bw = _mm512_add_epi8(_mm512_castps_si512(f), _mm512_set1_epi32(zero));  // 4
    __m512 dq = _mm512_and_ps(_mm512_castsi512_ps(bw), fives);  // bits of 4 and 5: 4
    __m256 vl = _mm256_maskz_sqrt_ps((__mmask8)mask, _mm512_castps512_ps256(dq));  // 2
    volatile float lane = _mm256_cvtss_f32(_mm256_fmadd_ps(vl, vl, vl));  // 6
    volatile unsigned bmi2 = _pext_u32(mask, mask);
    return lane == 6.0f && bmi2 == 0xffff ? 0 : 1;
}
""",
        "avx2": """\
#include <immintrin.h>
int main() {
    volatile float one = 1.0f;
    volatile int exponent = 1 << 23;
    __m256i doubled = _mm256_add_epi32(_mm256_castps_si256(_mm256_set1_ps(one)), _mm256_set1_epi32(exponent));
    __m256 lanes = _mm256_castsi256_ps(doubled);
    volatile float lane = _mm256_cvtss_f32(_mm256_fmadd_ps(lanes, lanes, lanes));
    return lane == 6.0f ? 0 : 1;
}
""",
    }
)


def resolve_target(name: str | None = None) -> Target:
    """The target to run on this machine, with this machine's cache sizes.

    Args:
        name: the target's name; by default SWIRL_TARGET (or LATTE_VEC_CONFIG), else the best that runs.

    Raises:
        TargetError: the target asked for does not exist, or does not run here.
        CompilerMissing: no compiler to find it out with.
    """
    name = name or settings().target
    if name is None:
        return _with_caches(next(target for target in TARGETS.values() if why_not(target) is None))
    target = get_target(name)
    reason = why_not(target)
    if reason is not None:
        runnable = [other.name for other in TARGETS.values() if why_not(other) is None]
        raise TargetError(
            f"this machine cannot run target {name!r}: {reason}", way_out=f"it runs: {', '.join(runnable)}"
        )
    return _with_caches(target)


def why_not(target: Target) -> str | None:
    """Why this machine cannot run a target, or None if it can; the answer is kept on disk.

    What SWIRL_HIDE names counts as missing, whatever the disk says, and nothing is kept about it.

    Raises:
        CompilerMissing: no compiler to find it out with.
    """
    if not target.isa_flags:
        return None
    reason = why_hidden(target)
    if reason is not None:
        return reason
    compiler = find_compiler()
    probe = _PROBES[target.name]
    key = cache_key("probe", probe, *target.isa_flags, *compiler.command, compiler.version, processor_identity())
    facts = read_entry(key, {"why_not": str | None})
    if facts is None:
        with entry_lock(key), draft_folder(key) as draft:
            reason, final = _run_probe(draft, target, compiler)
            if not final:
                return reason
            facts = {"target": target.name, "why_not": reason}
            publish(draft, key, facts)
    answer: str | None = facts["why_not"]
    return answer


def why_not_made(target: Target) -> str | None:
    """Why the compiler does not make code for a target, whatever this machine runs, or None if it does.

    Raises:
        CompilerMissing: there is none.
    """
    compiler = find_compiler()
    if not target.isa_flags:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return _compile_probe(Path(folder), target, compiler)


def why_hidden(target: Target) -> str | None:
    """Which instruction set of a target SWIRL_HIDE hides, as a reason not to run it, or None.

    A set hides all that needs it: no processor has AVX-512 without AVX2.
    """
    for name in sorted(settings().hidden):
        if any(flag.startswith(f"-m{name}") for flag in target.isa_flags):
            return f"SWIRL_HIDE hides {name}"
    return None


def _compile_probe(folder: Path, target: Target, compiler: Compiler) -> str | None:
    """Compile ``probe.cpp``: why that fails, or None."""
    (folder / "probe.cpp").write_text(_PROBES[target.name], encoding="utf-8")
    compiled = compiler.run(("-O1", *target.isa_flags, "probe.cpp", "-o", "probe"), folder)
    if compiled.returncode == 0:
        return None
    words = compiled.stderr.strip().splitlines() or ["no message"]
    return f"the compiler {compiler.command[0]} does not make its code ({words[0]})"


def _run_probe(folder: Path, target: Target, compiler: Compiler) -> tuple[str | None, bool]:
    """Compile and run ``probe.cpp``: why it fails (or None), and whether that answer is final."""
    reason = _compile_probe(folder, target, compiler)
    if reason is not None:
        return reason, False  # could as well be a full disk: not to be remembered
    ran = run_program((str(folder / "probe"),))
    if ran.returncode == 0:
        return None, True
    return "the processor or the operating system lacks its instructions", True


def processor_name() -> str:
    """What this machine's processor calls itself, or else the name of its kind."""
    return archspec.cpu.brand_string() or str(archspec.cpu.host().name)


def processor_identity() -> str:
    """Identity of the processor, as far as instruction sets go."""
    host = archspec.cpu.host()
    return json.dumps([archspec.cpu.brand_string(), host.name, sorted(host.features)])


def _with_caches(target: Target) -> Target:
    return replace(
        target,
        l1_bytes=cache_bytes(level=1) or DEFAULT_L1_BYTES,
        l2_bytes=cache_bytes(level=2) or DEFAULT_L2_BYTES,
    )


def cache_bytes(level: int) -> int | None:
    """Size of a data cache of core 0, or None where the operating system does not say."""
    units = {"K": 1024, "M": 1024 * 1024}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, size = (entry / "type").read_text().strip(), (entry / "size").read_text().strip()
            if int((entry / "level").read_text()) == level and kind != "Instruction" and size[-1:] in units:
                return int(size[:-1]) * units[size[-1]]
        except (OSError, ValueError):
            continue
    return None
