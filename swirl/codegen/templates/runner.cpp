// The runner walks the kernels of a phase inside one parallel region.
//
// Every thread calls every kernel. Kernels share out their work by orphaned `omp for` and `omp single`, whose closing
// barriers keep one kernel's stores before the next kernel's loads; a kernel must not end without one.

#include <algorithm>
#include <limits>
#include <omp.h>

struct Step {
    void (*kernel)(void* const* buffers);
    void* const* buffers;
};

// seconds: one number a step, or null. Timing costs one barrier a step.
//
// A step lasts from when the first thread begins to when the first has left the kernel, whose closing barrier says that
// all is done: which thread the system lets wait at a barrier does not matter.
extern "C" void swirl_run(const Step* steps, long count, int threads, double* seconds) {
    double start = 0, stop = 0;
#pragma omp parallel num_threads(threads)
    for (long i = 0; i < count; ++i) {
        if (seconds == nullptr) {
            steps[i].kernel(steps[i].buffers);
        } else {
#pragma omp master
            start = stop = std::numeric_limits<double>::infinity();
#pragma omp barrier
            const double begun = omp_get_wtime();
            steps[i].kernel(steps[i].buffers);
            const double done = omp_get_wtime();
#pragma omp critical
            {
                start = std::min(start, begun);
                stop = std::min(stop, done);
            }
#pragma omp barrier
#pragma omp master
            seconds[i] = stop - start;
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
