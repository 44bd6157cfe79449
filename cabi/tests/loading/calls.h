/* As much of CUDA as these pieces call. */
#ifndef LOADING_CALLS_H
#define LOADING_CALLS_H

#include <stddef.h>

int cudaMalloc(void **device, size_t size);
int cudaFree(void *device);
int cudaMemGetInfo(size_t *available, size_t *total);
int cudaGetLastError(void);
int cudaDeviceReset(void);
int cudaMemset(void *device, int value, size_t size);
int cudaMemsetAsync(void *device, int value, size_t size, void *stream);
int cudaMallocHost(void **host, size_t size);
int cudaFreeHost(void *host);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **graph);

struct handle { char bytes[64]; };
int cudaIpcGetMemHandle(struct handle *handle, void *device);

#endif
