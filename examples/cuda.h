/*
 * The few functions of the CUDA runtime that the examples call: NVIDIA's header
 * where it is installed, else these declarations of the same functions.
 */
#ifndef EXAMPLES_CUDA_H
#define EXAMPLES_CUDA_H

#include <stdio.h>
#include <stdlib.h>

#include <vramalloc.h>

#if defined(__has_include)
#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#define EXAMPLES_HAVE_CUDA 1
#endif
#endif

#ifndef EXAMPLES_HAVE_CUDA
typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
cudaError_t cudaMemcpy(void *to, const void *from, size_t size,
                       enum cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void *to, int value, size_t size,
                            cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
#endif

/* Ends the program where a call fails; the codes of both are 0 for success. */
#define CHECK(call)                                                          \
    do {                                                                     \
        int check_code = (int)(call);                                        \
        if (check_code != 0) {                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,    \
                    vramalloc_error_name(check_code));                       \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

#endif
