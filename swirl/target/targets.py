"""Targets: what code is made for.

A target names its instruction sets by explicit ``-m`` flags. ``-march=native`` is not used: a compiler older
than the processor maps it to the newest one it knows, and may lose AVX-512 on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from swirl.errors import TargetError

# Of the small server core; used where the machine does not say.
DEFAULT_L1_BYTES = 32 * 1024
DEFAULT_L2_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Target:
    """What code is made for.

    Attributes:
        name: ``avx512``, ``avx2`` or ``portable``.
        simd_width: float32 lanes of a vector.
        registers: vector registers.
        isa_flags: compiler flags that allow its instructions.
        link_flags: libraries that its code calls.
        l1_bytes: level-1 data cache of a core, in bytes.
        l2_bytes: level-2 cache of a core, in bytes.
    """

    name: str
    simd_width: int
    registers: int
    isa_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ("-lm",)
    l1_bytes: int = DEFAULT_L1_BYTES
    l2_bytes: int = DEFAULT_L2_BYTES

    @property
    def has_masks(self) -> bool:
        """Whether it has mask registers, so that a tail costs one masked instruction."""
        return self.name == "avx512"


# Best first. The vector log and its kin of the two with intrinsics come from glibc's libmvec.
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target(
                "avx512",
                simd_width=16,
                registers=32,
                isa_flags=(
                    "-mavx512f",
                    "-mavx512vl",
                    "-mavx512bw",
                    "-mavx512dq",
                    "-mavx2",
                    "-mfma",
                    "-mbmi2",
                    # Without this gcc 12 may split vectors into halves: more than twice as slow on a convolution.
                    "-mprefer-vector-width=512",
                ),
                link_flags=("-lmvec", "-lm"),
            ),
            Target(
                "avx2",
                simd_width=8,
                registers=16,
                isa_flags=("-mavx2", "-mfma"),
                link_flags=("-lmvec", "-lm"),
            ),
            Target("portable", simd_width=8, registers=16),
        )
    }
)


def get_target(name: str) -> Target:
    """The target of that name, with nominal cache sizes, whether or not this machine runs it.

    It depends on nothing but the name, so code generated for it is the same everywhere.

    Raises:
        TargetError: there is no such target.
    """
    if name not in TARGETS:
        raise TargetError(f"there is no target {name!r}", way_out=f"targets: {', '.join(TARGETS)}")
    return TARGETS[name]
