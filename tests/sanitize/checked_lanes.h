// Read before each kernel that is compiled with AddressSanitizer. It looks at what C++ reads and writes; masked, gathered
// and streamed lanes are instructions that it does not see. Here they touch each active lane before, one by one.
// Names without parameters stand for functions: commas of template arguments would separate those of a macro.
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

template <class T> inline void lanes_at(const T *base, const int *index, unsigned mask, int count) {
    for (int i = 0; i < count; i++) {
        if (mask >> i & 1) {
            touch(base + index[i]);
        }
    }
}

inline unsigned bits(__m256i mask) { return (unsigned) _mm256_movemask_ps(_mm256_castsi256_ps(mask)); }
inline unsigned bits(__m256 mask) { return (unsigned) _mm256_movemask_ps(mask); }

template <class T> inline void lanes_at(const T *base, __m256i index, unsigned mask) {
    int positions[8];
    _mm256_storeu_si256((__m256i *) positions, index);
    lanes_at(base, positions, mask, 8);
}

inline __m256 maskload_ps(const float *from, __m256i mask) {
    lanes(from, bits(mask), 8);
    return _mm256_maskload_ps(from, mask);
}
inline __m256i maskload_epi32(const int *from, __m256i mask) {
    lanes(from, bits(mask), 8);
    return _mm256_maskload_epi32(from, mask);
}
inline void maskstore_ps(float *to, __m256i mask, __m256 a) {
    lanes(to, bits(mask), 8);
    _mm256_maskstore_ps(to, mask, a);
}
inline void maskstore_epi32(int *to, __m256i mask, __m256i a) {
    lanes(to, bits(mask), 8);
    _mm256_maskstore_epi32(to, mask, a);
}
inline void stream_ps(float *to, __m256 a) {
    lanes(to, 0xff, 8);
    _mm256_stream_ps(to, a);
}
inline void stream_si256(__m256i *to, __m256i a) {
    lanes((const int *) to, 0xff, 8);
    _mm256_stream_si256(to, a);
}
inline __m256 mask_gather(__m256 zero, const float *base, __m256i index, __m256 mask, int) {
    lanes_at(base, index, bits(mask));
    return (__m256) __builtin_ia32_gathersiv8sf((__v8sf) zero, base, (__v8si) index, (__v8sf) mask, 4);
}
inline __m256i mask_gather(__m256i zero, const int *base, __m256i index, __m256i mask, int) {
    lanes_at(base, index, bits(mask));
    return (__m256i) __builtin_ia32_gathersiv8si((__v8si) zero, base, (__v8si) index, (__v8si) mask, 4);
}
inline __m256 gather(const float *base, __m256i index, int scale) {
    return mask_gather(_mm256_setzero_ps(), base, index, _mm256_castsi256_ps(_mm256_set1_epi32(-1)), scale);
}
inline __m256i gather(const int *base, __m256i index, int scale) {
    return mask_gather(_mm256_setzero_si256(), base, index, _mm256_set1_epi32(-1), scale);
}
}  // namespace checked

#undef _mm256_i32gather_ps
#undef _mm256_i32gather_epi32
#undef _mm256_mask_i32gather_ps
#undef _mm256_mask_i32gather_epi32
#define _mm256_maskload_ps checked::maskload_ps
#define _mm256_maskload_epi32 checked::maskload_epi32
#define _mm256_maskstore_ps checked::maskstore_ps
#define _mm256_maskstore_epi32 checked::maskstore_epi32
#define _mm256_stream_ps checked::stream_ps
#define _mm256_stream_si256 checked::stream_si256
#define _mm256_i32gather_ps checked::gather
#define _mm256_i32gather_epi32 checked::gather
#define _mm256_mask_i32gather_ps checked::mask_gather
#define _mm256_mask_i32gather_epi32 checked::mask_gather
#endif

#if defined(__AVX512F__)
namespace checked {
template <class T> inline void lanes_at(const T *base, __m512i index, unsigned mask) {
    int positions[16];
    _mm512_storeu_si512(positions, index);
    lanes_at(base, positions, mask, 16);
}

inline __m512 maskz_loadu_ps(__mmask16 mask, const void *from) {
    lanes((const float *) from, mask, 16);
    return _mm512_maskz_loadu_ps(mask, from);
}
inline __m512i maskz_loadu_epi32(__mmask16 mask, const void *from) {
    lanes((const int *) from, mask, 16);
    return _mm512_maskz_loadu_epi32(mask, from);
}
inline void mask_storeu_ps(void *to, __mmask16 mask, __m512 a) {
    lanes((const float *) to, mask, 16);
    _mm512_mask_storeu_ps(to, mask, a);
}
inline void mask_storeu_epi32(void *to, __mmask16 mask, __m512i a) {
    lanes((const int *) to, mask, 16);
    _mm512_mask_storeu_epi32(to, mask, a);
}
inline __m128i maskz_loadu_epi8(__mmask16 mask, const void *from) {
    lanes((const char *) from, mask, 16);
    return _mm_maskz_loadu_epi8(mask, from);
}
inline void mask_storeu_epi8(void *to, __mmask16 mask, __m128i a) {
    lanes((const char *) to, mask, 16);
    _mm_mask_storeu_epi8(to, mask, a);
}
inline void stream_ps(void *to, __m512 a) {
    lanes((const float *) to, 0xffff, 16);
    _mm512_stream_ps((float *) to, a);
}
inline void stream_si512(void *to, __m512i a) {
    lanes((const int *) to, 0xffff, 16);
    _mm512_stream_si512((__m512i *) to, a);
}
inline __m512 mask_gather(__m512 zero, __mmask16 mask, __m512i index, const float *base, int) {
    lanes_at(base, index, mask);
    return (__m512) __builtin_ia32_gathersiv16sf((__v16sf) zero, base, (__v16si) index, mask, 4);
}
inline __m512i mask_gather(__m512i zero, __mmask16 mask, __m512i index, const int *base, int) {
    lanes_at(base, index, mask);
    return (__m512i) __builtin_ia32_gathersiv16si((__v16si) zero, base, (__v16si) index, mask, 4);
}
inline __m512 gather(__m512i index, const float *base, int scale) {
    return mask_gather(_mm512_setzero_ps(), 0xffff, index, base, scale);
}
inline __m512i gather(__m512i index, const int *base, int scale) {
    return mask_gather(_mm512_setzero_si512(), 0xffff, index, base, scale);
}
inline void mask_scatter(float *base, __mmask16 mask, __m512i index, __m512 a, int) {
    lanes_at(base, index, mask);
    __builtin_ia32_scattersiv16sf(base, mask, (__v16si) index, (__v16sf) a, 4);
}
inline void mask_scatter(int *base, __mmask16 mask, __m512i index, __m512i a, int) {
    lanes_at(base, index, mask);
    __builtin_ia32_scattersiv16si(base, mask, (__v16si) index, (__v16si) a, 4);
}
template <class T, class V> inline void scatter(T *base, __m512i index, V a, int scale) {
    mask_scatter(base, 0xffff, index, a, scale);
}
}  // namespace checked

#undef _mm512_i32gather_ps
#undef _mm512_i32gather_epi32
#undef _mm512_mask_i32gather_ps
#undef _mm512_mask_i32gather_epi32
#undef _mm512_i32scatter_ps
#undef _mm512_i32scatter_epi32
#undef _mm512_mask_i32scatter_ps
#undef _mm512_mask_i32scatter_epi32
#define _mm512_maskz_loadu_ps checked::maskz_loadu_ps
#define _mm512_maskz_loadu_epi32 checked::maskz_loadu_epi32
#define _mm512_mask_storeu_ps checked::mask_storeu_ps
#define _mm512_mask_storeu_epi32 checked::mask_storeu_epi32
#define _mm_maskz_loadu_epi8 checked::maskz_loadu_epi8
#define _mm_mask_storeu_epi8 checked::mask_storeu_epi8
#define _mm512_stream_ps checked::stream_ps
#define _mm512_stream_si512 checked::stream_si512
#define _mm512_i32gather_ps checked::gather
#define _mm512_i32gather_epi32 checked::gather
#define _mm512_mask_i32gather_ps checked::mask_gather
#define _mm512_mask_i32gather_epi32 checked::mask_gather
#define _mm512_i32scatter_ps checked::scatter
#define _mm512_i32scatter_epi32 checked::scatter
#define _mm512_mask_i32scatter_ps checked::mask_scatter
#define _mm512_mask_i32scatter_epi32 checked::mask_scatter
#endif
