/*
 * gpu.h over the host's malloc, for CPU allocators: the limit of what an
 * allocator's fast path can be. Put before everything else with -include.
 */
#ifndef PROGRAMS_GPU_H
#define PROGRAMS_GPU_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int gpu_set_device(int device) { return device; }

/* The compiler must not see that the block is never used. */
static inline int gpu_malloc(void **block, size_t size) {
    void *found = malloc(size);
    __asm__ volatile("" : "+r"(found));
    *block = found;
    return found ? 0 : 2;
}

static inline int gpu_free(void *block) {
    free(block);
    return 0;
}

#define GPU(call)                                                              \
    do {                                                                       \
        if (call) {                                                            \
            fprintf(stderr, "%s failed\n", #call);                             \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#endif
