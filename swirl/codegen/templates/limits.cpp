// What this machine can do at the best: multiply-adds in registers, reading memory, and waiting for it. LANES floats fit
// a vector.

#include <omp.h>

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4 * LANES), may_alias));

// 12 chains that do not wait for each other, ROUNDS steps each, on every thread. buffers[0]: LANES floats a thread.
// They start with what buffers[1] holds: from equal values, the compiler would make one chain of them.
extern "C" void swirl_multiply_add(void* const* buffers) {
    lanes* out = static_cast<lanes*>(buffers[0]) + omp_get_thread_num();
    const lanes* in = static_cast<const lanes*>(buffers[1]);
    const lanes factor = in[12] + 0.999f, term = in[13] + 0.001f;
    lanes a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5];
    lanes g = in[6], h = in[7], i = in[8], j = in[9], k = in[10], l = in[11];
    for (long round = 0; round < ROUNDS; ++round) {
        a = a * factor + term; b = b * factor + term; c = c * factor + term; d = d * factor + term;
        e = e * factor + term; f = f * factor + term; g = g * factor + term; h = h * factor + term;
        i = i * factor + term; j = j * factor + term; k = k * factor + term; l = l * factor + term;
    }
    *out = ((a + b) + (c + d)) + ((e + f) + (g + h)) + ((i + j) + (k + l));
}

// Sum of COUNT vectors of buffers[1], TIMES times; COUNT a multiple of 8. Each thread reads the same part of them every
// time. buffers[0]: LANES floats a thread.
extern "C" void READ(void* const* buffers) {
    lanes* out = static_cast<lanes*>(buffers[0]) + omp_get_thread_num();
    const lanes* in = static_cast<const lanes*>(buffers[1]);
    lanes a = in[0] * 0.0f, b = a, c = a, d = a;
    for (long time = 0; time < TIMES; ++time) {
#pragma omp for schedule(static) nowait
        for (long place = 0; place < COUNT; place += 8) {
            a += in[place] + in[place + 4];
            b += in[place + 1] + in[place + 5];
            c += in[place + 2] + in[place + 6];
            d += in[place + 3] + in[place + 7];
        }
    }
    *out = (a + b) + (c + d);
}

// ROUNDS loads, each of the place that the one before has found; buffers[1] holds such a chain. buffers[0]: one number.
extern "C" void swirl_chase(void* const* buffers) {
#pragma omp single
    {
        const long* next = static_cast<const long*>(buffers[1]);
        long place = 0;
        for (long round = 0; round < ROUNDS; ++round) place = next[place];
        *static_cast<long*>(buffers[0]) = place;
    }
}
