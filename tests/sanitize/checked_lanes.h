// Read before each kernel that is compiled with AddressSanitizer. It looks at what C++ reads and writes; masked, gathered
// and streamed lanes are instructions that it does not see. Here they touch each active lane before, one by one.
#if defined(__AVX2__)
#include <immintrin.h>

namespace checked {
template <class T> inline void touch(const T *lane) { (void) *(const volatile T *) lane; }

template <class T> inline void lanes(const T *first, unsigned mask, int count) {
    for (int i = 0; i < count; i++) {
        if (mask >> i & 1) {
            touch(first + i);
        }
    }
}

template <class T> inline void lanes_at(const T *base, __m256i index, unsigned mask) {
    int positions[8];
    _mm256_storeu_si256((__m256i *) positions, index);
    for (int i = 0; i < 8; i++) {
        if (mask >> i & 1) {
            touch(base + positions[i]);
        }
    }
}

inline unsigned bits(__m256i mask) { return (unsigned) _mm256_movemask_ps(_mm256_castsi256_ps(mask)); }
inline unsigned bits(__m256 mask) { return (unsigned) _mm256_movemask_ps(mask); }
}  // namespace checked

#define _mm256_maskload_ps(from, mask) (checked::lanes(from, checked::bits(mask), 8), _mm256_maskload_ps(from, mask))
#define _mm256_maskload_epi32(from, mask) (checked::lanes(from, checked::bits(mask), 8), _mm256_maskload_epi32(from, mask))
#define _mm256_maskstore_ps(to, mask, a) (checked::lanes(to, checked::bits(mask), 8), _mm256_maskstore_ps(to, mask, a))
#define _mm256_maskstore_epi32(to, mask, a) \
    (checked::lanes(to, checked::bits(mask), 8), _mm256_maskstore_epi32(to, mask, a))
#define _mm256_stream_ps(to, a) (checked::lanes(to, 0xff, 8), _mm256_stream_ps(to, a))
#define _mm256_stream_si256(to, a) (checked::lanes((const int *) (to), 0xff, 8), _mm256_stream_si256(to, a))
#undef _mm256_i32gather_ps
#undef _mm256_i32gather_epi32
#undef _mm256_mask_i32gather_ps
#undef _mm256_mask_i32gather_epi32
namespace checked {
inline __m256 gather(const float *base, __m256i index, __m256 zero, __m256 mask) {
    lanes_at(base, index, bits(mask));
    return (__m256) __builtin_ia32_gathersiv8sf((__v8sf) zero, base, (__v8si) index, (__v8sf) mask, 4);
}
inline __m256i gather(const int *base, __m256i index, __m256i zero, __m256i mask) {
    lanes_at(base, index, bits(mask));
    return (__m256i) __builtin_ia32_gathersiv8si((__v8si) zero, base, (__v8si) index, (__v8si) mask, 4);
}
}  // namespace checked
#define _mm256_i32gather_ps(base, index, scale) \
    checked::gather(base, index, _mm256_setzero_ps(), _mm256_castsi256_ps(_mm256_set1_epi32(-1)))
#define _mm256_i32gather_epi32(base, index, scale) \
    checked::gather(base, index, _mm256_setzero_si256(), _mm256_set1_epi32(-1))
#define _mm256_mask_i32gather_ps(zero, base, index, mask, scale) checked::gather(base, index, zero, mask)
#define _mm256_mask_i32gather_epi32(zero, base, index, mask, scale) checked::gather(base, index, zero, mask)
#endif

#if defined(__AVX512F__)
namespace checked {
template <class T> inline void lanes_at(const T *base, __m512i index, unsigned mask) {
    int positions[16];
    _mm512_storeu_si512(positions, index);
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            touch(base + positions[i]);
        }
    }
}
inline __m512 gather(const float *base, __m512i index, __m512 zero, __mmask16 mask) {
    lanes_at(base, index, mask);
    return (__m512) __builtin_ia32_gathersiv16sf((__v16sf) zero, base, (__v16si) index, mask, 4);
}
inline __m512i gather(const int *base, __m512i index, __m512i zero, __mmask16 mask) {
    lanes_at(base, index, mask);
    return (__m512i) __builtin_ia32_gathersiv16si((__v16si) zero, base, (__v16si) index, mask, 4);
}
inline void scatter(float *base, __m512i index, __m512 a, __mmask16 mask) {
    lanes_at(base, index, mask);
    __builtin_ia32_scattersiv16sf(base, mask, (__v16si) index, (__v16sf) a, 4);
}
inline void scatter(int *base, __m512i index, __m512i a, __mmask16 mask) {
    lanes_at(base, index, mask);
    __builtin_ia32_scattersiv16si(base, mask, (__v16si) index, (__v16si) a, 4);
}
}  // namespace checked
#define _mm512_maskz_loadu_ps(mask, from) (checked::lanes((const float *) (from), mask, 16), _mm512_maskz_loadu_ps(mask, from))
#define _mm512_maskz_loadu_epi32(mask, from) \
    (checked::lanes((const int *) (from), mask, 16), _mm512_maskz_loadu_epi32(mask, from))
#define _mm512_mask_storeu_ps(to, mask, a) (checked::lanes((const float *) (to), mask, 16), _mm512_mask_storeu_ps(to, mask, a))
#define _mm512_mask_storeu_epi32(to, mask, a) \
    (checked::lanes((const int *) (to), mask, 16), _mm512_mask_storeu_epi32(to, mask, a))
#define _mm_maskz_loadu_epi8(mask, from) (checked::lanes((const char *) (from), mask, 16), _mm_maskz_loadu_epi8(mask, from))
#define _mm_mask_storeu_epi8(to, mask, a) (checked::lanes((const char *) (to), mask, 16), _mm_mask_storeu_epi8(to, mask, a))
#define _mm512_stream_ps(to, a) (checked::lanes((const float *) (to), 0xffff, 16), _mm512_stream_ps(to, a))
#define _mm512_stream_si512(to, a) (checked::lanes((const int *) (to), 0xffff, 16), _mm512_stream_si512(to, a))
#undef _mm512_i32gather_ps
#undef _mm512_i32gather_epi32
#undef _mm512_mask_i32gather_ps
#undef _mm512_mask_i32gather_epi32
#undef _mm512_i32scatter_ps
#undef _mm512_i32scatter_epi32
#undef _mm512_mask_i32scatter_ps
#undef _mm512_mask_i32scatter_epi32
#define _mm512_i32gather_ps(index, base, scale) checked::gather(base, index, _mm512_setzero_ps(), 0xffff)
#define _mm512_i32gather_epi32(index, base, scale) checked::gather(base, index, _mm512_setzero_si512(), 0xffff)
#define _mm512_mask_i32gather_ps(zero, mask, index, base, scale) checked::gather(base, index, zero, mask)
#define _mm512_mask_i32gather_epi32(zero, mask, index, base, scale) checked::gather(base, index, zero, mask)
#define _mm512_i32scatter_ps(base, index, a, scale) checked::scatter(base, index, a, 0xffff)
#define _mm512_i32scatter_epi32(base, index, a, scale) checked::scatter(base, index, a, 0xffff)
#define _mm512_mask_i32scatter_ps(base, mask, index, a, scale) checked::scatter(base, index, a, mask)
#define _mm512_mask_i32scatter_epi32(base, mask, index, a, scale) checked::scatter(base, index, a, mask)
#endif
