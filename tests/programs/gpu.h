/*
 * One small GPU interface over the CUDA runtime or, with USE_DRIVER, over the
 * driver API, so that each test program is one source for both. Every
 * function that can fail returns CUDA's code (the two agree on the numbers);
 * GPU(call) prints what failed and exits with 1.
 *
 * A thread calls gpu_set_device before anything else.
 */
#ifndef PROGRAMS_GPU_H
#define PROGRAMS_GPU_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu_stream_st *gpu_stream;
typedef struct gpu_event_st *gpu_event;
typedef struct gpu_graph_st *gpu_graph;
typedef struct { char bytes[64]; } gpu_ipc_handle;

/* Whom a capture forbids to allocate and to free while it is open: everybody,
 * the thread that captures, nobody. */
enum {
    GPU_CAPTURE_GLOBAL = 0,
    GPU_CAPTURE_THREAD_LOCAL = 1,
    GPU_CAPTURE_RELAXED = 2
};

enum { GPU_SUCCESS = 0, GPU_OUT_OF_MEMORY = 2, GPU_NOT_READY = 600,
       GPU_NOT_SUPPORTED = 801 };

/* kernels.ptx with a closing zero; the build names the file. */
__asm__(".section .rodata\n"
        ".balign 16\n"
        "gpu_kernels:\n"
        ".incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char gpu_kernels[] __attribute__((visibility("hidden")));

/* Whether all of these bytes, which are one at least, are `value`. */
static inline int gpu_is_all(const void *bytes, unsigned char value, size_t size) {
    const unsigned char *first = bytes;
    return *first == value && !memcmp(first, first + 1, size - 1);
}

/* The calling thread's own default stream. */
#define GPU_THREAD_STREAM ((gpu_stream)2)

#ifdef USE_DRIVER
#include "gpu_driver.h"
#else
#include "gpu_runtime.h"
#endif

#define GPU(call)                                                              \
    do {                                                                       \
        int gpu_code = (call);                                                 \
        if (gpu_code) {                                                        \
            fprintf(stderr, "%s:%d: %s: %d (%s)\n", __FILE__, __LINE__, #call, \
                    gpu_code, gpu_error_name(gpu_code));                       \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* Takes `ns` nanoseconds on the stream. */
static inline int gpu_spin(gpu_stream stream, uint64_t ns) {
    void *arguments[] = {&ns};
    return gpu_launch("spin", 1, stream, arguments);
}

/* Takes `ns` nanoseconds on the stream and then writes `count` words. */
static inline int gpu_fill(gpu_stream stream, void *device, uint32_t value,
                           uint64_t count, uint64_t ns) {
    uint64_t address = (uint64_t)(uintptr_t)device;
    void *arguments[] = {&address, &value, &count, &ns};
    return gpu_launch("fill", 256, stream, arguments);
}

#endif
