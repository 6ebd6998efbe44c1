"""Settings that layer code asks for: ``latte.config.SIMDWIDTH`` and the like. They follow the environment."""

from __future__ import annotations

from typing import Any

from swirl.config import settings
from swirl.target.machine import resolve_target

_VEC_CONFIGS = {"avx512": "AVX-512", "avx2": "AVX-2", "portable": "AVX-2"}

_OF_THE_ORIGINAL = {"parallel_strategy": "OPENMP", "codegen_strategy": "AUTOVEC"}
"""What the original's settings would be; its variables for them are ignored."""


def __getattr__(name: str) -> Any:
    """``SIMDWIDTH``: lanes of the target that nets are compiled for by default; ``nthreads``; ``vec_config``;
    ``parallel_strategy`` and ``codegen_strategy``, which change nothing."""
    if name == "SIMDWIDTH":
        return resolve_target().simd_width
    if name == "nthreads":
        return settings().threads
    if name == "vec_config":
        return _VEC_CONFIGS[resolve_target().name]
    if name in _OF_THE_ORIGINAL:
        return _OF_THE_ORIGINAL[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
