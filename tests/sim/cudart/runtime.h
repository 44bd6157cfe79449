/*
 * What the files of this runtime share: the runtime's own types, the ways to
 * begin and to end an exported function, and the per-thread state.
 *
 * Every exported function begins by asking for what it needs (the driver, or
 * also a current context) and ends in simrt_record, which keeps the thread's
 * last error.
 */
#ifndef SIM_CUDART_RUNTIME_H
#define SIM_CUDART_RUNTIME_H

#include "driver.h"

#ifndef CUDART_MAJOR
#error "CUDART_MAJOR says which runtime this is: 12 or 13"
#endif

typedef int cudaError_t;
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphExec cudaGraphExec_t;
typedef CUgraphNode cudaGraphNode_t;
typedef CUlibrary cudaLibrary_t;
typedef CUkernel cudaKernel_t;
typedef CUmemoryPool cudaMemPool_t;
typedef CUarray cudaArray_t;
typedef CUmipmappedArray cudaMipmappedArray_t;
typedef CUmemLocation cudaMemLocation;
typedef CUipcHandle cudaIpcMemHandle_t;
typedef CUipcHandle cudaIpcEventHandle_t;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { size_t width, height, depth; } cudaExtent;

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorCudartUnloading = 4,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidChannelDescriptor = 20,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorCallRequiresNewerDriver = 36,
    cudaErrorMissingConfiguration = 52,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
};

enum { MAX_DEVICES = 64 };

/* Loads and initialises the driver; success, or why there is none. */
cudaError_t simrt_need_driver(void);

/* The same, and sees to it that the thread has a current context. */
cudaError_t simrt_need_context(void);

/* Keeps `code` as the thread's last error and returns it. */
cudaError_t simrt_record(cudaError_t code);

/* The primary context of a device, made active if it is not. */
cudaError_t simrt_primary(int device, CUcontext *context);

/* The driver's kernel for a host function or for a handle given out before. */
cudaError_t simrt_find_kernel(CUkernel *kernel, const void *name);

/* What a function that works in the current context does, in one line. */
#define IN_CONTEXT(call)                                                       \
    do {                                                                       \
        cudaError_t needed = simrt_need_context();                             \
        return simrt_record(needed ? needed : (call));                         \
    } while (0)

/* The same for a function that needs no context. */
#define IN_DRIVER(call)                                                        \
    do {                                                                       \
        cudaError_t needed = simrt_need_driver();                              \
        return simrt_record(needed ? needed : (call));                         \
    } while (0)

/*
 * A function on a stream that exists twice: the body is the driver's function
 * of the matching slot.
 */
#define ON_STREAM(name, driver_name, parameters, ...)                          \
    cudaError_t name parameters { IN_CONTEXT(DRIVER(driver_name)(__VA_ARGS__)); } \
    cudaError_t name##_ptsz parameters {                                       \
        IN_CONTEXT(DRIVER_OF(driver_name, 1)(__VA_ARGS__));                    \
    }

/*
 * Exports `name` and its twin for programs compiled for per-thread default
 * streams; both call `name_on` (the name's lower-case body in the same file),
 * whose first argument picks the driver's slot.
 */
#define EXPORT_WITH_TWIN(name, suffix, body, parameters, ...)                  \
    cudaError_t name parameters { return body(0, __VA_ARGS__); }               \
    cudaError_t name##suffix parameters { return body(1, __VA_ARGS__); }

#endif
