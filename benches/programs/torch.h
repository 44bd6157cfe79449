/*
 * gpu.h over PyTorch's own allocator, without Python: torch.cpp calls it in
 * libc10_cuda.so. Put before everything else with -include.
 */
#ifndef PROGRAMS_GPU_H
#define PROGRAMS_GPU_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu_stream_st *gpu_stream;

enum { GPU_SUCCESS = 0, GPU_OUT_OF_MEMORY = 2 };

#ifdef __cplusplus
extern "C" {
#endif
/* Makes the allocator ready and the device current on this thread. */
int gpu_set_device(int device);
int gpu_malloc(void **block, size_t size);
int gpu_free(void *block);
/* Takes `ns` nanoseconds on the stream. */
int gpu_spin(gpu_stream stream, uint64_t ns);
/* Waits for the default stream, and so for those that are not apart from it. */
int gpu_sync(void);
#ifdef __cplusplus
}
#endif

#define GPU(call)                                                              \
    do {                                                                       \
        int gpu_code = (call);                                                 \
        if (gpu_code) {                                                        \
            fprintf(stderr, "%s: %d\n", #call, gpu_code);                      \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#endif
