/*
 * As much of CUDA's header as PyTorch's allocator header asks for, so that
 * torch.cpp compiles without a CUDA toolkit. Names, types and numbers are
 * CUDA's; the functions are those of the runtime that is linked.
 */
#ifndef BENCHES_CUDA_RUNTIME_API_H
#define BENCHES_CUDA_RUNTIME_API_H

#include <stddef.h>

enum cudaError_t { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum cudaMemcpyKind { cudaMemcpyHostToHost = 0 };
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

typedef struct CUstream_st *cudaStream_t;

extern "C" {
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t count,
                            cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus *status);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
}

#endif
