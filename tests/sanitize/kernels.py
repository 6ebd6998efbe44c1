"""Kernels written by hand, one of them right: ``python -m tests.sanitize.kernels NAME`` under the sanitizers."""

from __future__ import annotations

import sys

from swirl.build.jit import build, load
from swirl.build.translation_unit import TranslationUnit
from swirl.run.runner import Runner
from swirl.target.targets import get_target
from tests.sanitize import exact

HEAD = """#include <immintrin.h>
extern "C" void NAME(void *const *buffers) {
    float *x = (float *) buffers[0], *y = (float *) buffers[1];
    int *n = (int *) buffers[2];
    (void) x, (void) y, (void) n;
#pragma omp single
    {
"""

# x and y have 21 elements, n has one. Name → (target, body, its name in the report; nothing for the right one).
KERNELS: dict[str, tuple[str, str, str]] = {
    "right": (
        "avx512",
        """
        for (int i = 0; i < 21; i += 16) {
            __mmask16 mask = i ? 0x001f : 0xffff;
            _mm512_mask_storeu_ps(y + i, mask, _mm512_maskz_loadu_ps(mask, x + i));
            _mm512_mask_storeu_ps(y + i - 3, mask & 0xfff8, _mm512_maskz_loadu_ps(mask & 0xfff8, x + i - 3));
        }
        __m512i index = _mm512_set1_epi32(20);
        _mm512_mask_i32scatter_ps(y, 1, index, _mm512_i32gather_ps(index, x, 4), 4);""",
        "",
    ),
    "scalar": ("portable", "for (int i = 0; i <= 21; i++) y[i] = x[0];", "heap-buffer-overflow"),
    "before": ("portable", "y[n[0] - 1] = 1.0f;", "heap-buffer-overflow"),
    "whole": ("avx512", "_mm512_storeu_ps(y + 6, _mm512_loadu_ps(x));", "ERROR: AddressSanitizer"),
    "masked": ("avx512", "_mm512_mask_storeu_ps(y + 16, 0x003f, _mm512_setzero_ps());", "heap-buffer-overflow"),
    "loaded": ("avx512", "y[0] = _mm512_reduce_add_ps(_mm512_maskz_loadu_ps(0x0020, x + 16));", "heap-buffer-overflow"),
    "gather": (
        "avx512",
        "y[0] = _mm512_cvtss_f32(_mm512_i32gather_ps(_mm512_set1_epi32(21), x, 4));",
        "heap-buffer-overflow",
    ),
    "narrow": (
        "avx2",
        "_mm256_maskstore_ps(y + 14, _mm256_set1_epi32(-1), _mm256_setzero_ps());",
        "heap-buffer-overflow",
    ),
    "row": ("portable", "float a[2][3] = {}; a[1][n[0] + 3] = 1.0f; y[0] = a[1][n[0]];", "out of bounds"),
    "overflow": ("portable", "n[0] += 2147483647; n[0] += 2147483647;", "signed integer overflow"),
}

if __name__ == "__main__":
    target, body, _ = KERNELS[sys.argv[1]]
    name = f"kernel_{sys.argv[1]}"
    source = HEAD.replace("NAME", name) + body + "\n    }\n}\n"
    if target == "portable":
        source = source.replace("#include <immintrin.h>", "")
    (built,) = build([TranslationUnit(name, source)], get_target(target), optimize="-O1")
    arrays = [exact((21,), "float32"), exact((21,), "float32"), exact((1,), "int32")]
    Runner(1).phase([(load(built), arrays)]).run()
    print("no report")
