/*
 * For the programs that measure what CUDA does, fact_*.c: each prints lines
 * `fact NAME VALUE`. Names are made of words between points, values are
 * integers: nanoseconds, bytes, codes of CUDA, or 1 for yes and 0 for no.
 *
 * They answer on whatever is below; scripts/gpu-check holds the answers
 * against what the library and the simulated CUDA take for granted.
 */
#ifndef PROGRAMS_FACTS_H
#define PROGRAMS_FACTS_H

#include "gpu.h"

#include <stdarg.h>
#include <time.h>

/* Long enough that no call that does not wait can take as long. */
static const uint64_t KERNEL_NS = 20 * 1000 * 1000;

static inline uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* fact(VALUE, NAME as printf makes it) */
__attribute__((format(printf, 2, 3))) static inline void
fact(long long value, const char *name, ...) {
    va_list rest;
    va_start(rest, name);
    printf("fact ");
    vprintf(name, rest);
    printf(" %lld\n", value);
    fflush(stdout);
    va_end(rest);
}

static inline int facts_compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static inline uint64_t median(uint64_t *samples, int count) {
    qsort(samples, (size_t)count, sizeof *samples, facts_compare);
    return samples[count / 2];
}

/* The sorts of streams that a kernel can run on. */
enum { LEGACY, BLOCKING, NON_BLOCKING, OF_THREAD, STREAM_SORTS };

static const char *const stream_sorts[] = {"legacy", "blocking", "non_blocking",
                                           "of_thread"};

static inline gpu_stream stream_of(int sort) {
    gpu_stream stream = NULL;
    if (sort == BLOCKING)
        GPU(gpu_stream_create_blocking(&stream));
    else if (sort == NON_BLOCKING)
        GPU(gpu_stream_create(&stream));
    else if (sort == OF_THREAD)
        stream = GPU_THREAD_STREAM;
    return stream;
}

static inline void drop_stream(int sort, gpu_stream stream) {
    if (sort == BLOCKING || sort == NON_BLOCKING)
        GPU(gpu_stream_destroy(stream));
}

/* Makes the kernels ready, which takes long and which a capture forbids. */
static inline void load_kernels(void) {
    void *block;
    GPU(gpu_malloc(&block, 4096));
    GPU(gpu_fill(NULL, block, 1, 16, 0));
    GPU(gpu_spin(NULL, 0));
    GPU(gpu_sync());
    GPU(gpu_free(block));
}

#endif
