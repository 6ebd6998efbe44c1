// The runner walks the kernels of a phase inside one parallel region.
//
// Every thread calls every kernel. Kernels share out their work by orphaned `omp for` and `omp single`, whose closing
// barriers keep one kernel's stores before the next kernel's loads; a kernel must not end without one.

#include <omp.h>

struct Step {
    void (*kernel)(void* const* buffers);
    void* const* buffers;
};

// seconds: one number a step, or null. Timing costs one barrier a step.
extern "C" void swirl_run(const Step* steps, long count, int threads, double* seconds) {
#pragma omp parallel num_threads(threads)
    for (long i = 0; i < count; ++i) {
        if (seconds == nullptr) {
            steps[i].kernel(steps[i].buffers);
        } else {
#pragma omp barrier
            double start = omp_get_wtime();
            steps[i].kernel(steps[i].buffers);
#pragma omp barrier
#pragma omp master
            seconds[i] = omp_get_wtime() - start;
        }
    }
}

// Writes the zeros that fresh pages hold anyway, so that they exist, each near the thread that will use it.
extern "C" void swirl_touch(char* start, long bytes, int threads) {
    const long page = 4096;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long offset = 0; offset < bytes; offset += page) {
        *static_cast<volatile char*>(start + offset) = 0;
    }
}
