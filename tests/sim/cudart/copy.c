/*
 * Copies and fills. The direction picks the driver's function, as the driver
 * models what each of them waits for.
 */
#include "runtime.h"

enum {
    HOST_TO_HOST = 0,
    HOST_TO_DEVICE = 1,
    DEVICE_TO_HOST = 2,
    DEVICE_TO_DEVICE = 3,
    BY_ADDRESS = 4,
};

static CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

static cudaError_t copy(int twin, void *to, const void *from, size_t size,
                        int kind) {
    switch (kind) {
    case HOST_TO_DEVICE:
        return DRIVER_OF(cuMemcpyHtoD, twin)(address(to), from, size);
    case DEVICE_TO_HOST:
        return DRIVER_OF(cuMemcpyDtoH, twin)(to, address(from), size);
    case DEVICE_TO_DEVICE:
        return DRIVER_OF(cuMemcpyDtoD, twin)(address(to), address(from), size);
    case HOST_TO_HOST:
    case BY_ADDRESS:
        return DRIVER_OF(cuMemcpy, twin)(address(to), address(from), size);
    default:
        return cudaErrorInvalidMemcpyDirection;
    }
}

static cudaError_t memcpy_on(int twin, void *to, const void *from, size_t size,
                             int kind) {
    IN_CONTEXT(size ? copy(twin, to, from, size, kind) : cudaSuccess);
}

EXPORT_WITH_TWIN(cudaMemcpy, _ptds, memcpy_on,
                 (void *to, const void *from, size_t size, int kind), to, from,
                 size, kind)

static cudaError_t copy_async(int twin, void *to, const void *from, size_t size,
                              int kind, cudaStream_t stream) {
    switch (kind) {
    case HOST_TO_DEVICE:
        return DRIVER_OF(cuMemcpyHtoDAsync, twin)(address(to), from, size,
                                                  stream);
    case DEVICE_TO_HOST:
        return DRIVER_OF(cuMemcpyDtoHAsync, twin)(to, address(from), size,
                                                  stream);
    case DEVICE_TO_DEVICE:
        return DRIVER_OF(cuMemcpyDtoDAsync, twin)(address(to), address(from),
                                                  size, stream);
    case HOST_TO_HOST:
    case BY_ADDRESS:
        return DRIVER_OF(cuMemcpyAsync, twin)(address(to), address(from), size,
                                              stream);
    default:
        return cudaErrorInvalidMemcpyDirection;
    }
}

static cudaError_t memcpy_async_on(int twin, void *to, const void *from,
                                   size_t size, int kind, cudaStream_t stream) {
    IN_CONTEXT(size ? copy_async(twin, to, from, size, kind, stream)
                    : cudaSuccess);
}

EXPORT_WITH_TWIN(cudaMemcpyAsync, _ptsz, memcpy_async_on,
                 (void *to, const void *from, size_t size, int kind,
                  cudaStream_t stream),
                 to, from, size, kind, stream)

/* Unified addresses tell the driver on their own which side is which. */
static CUmemcpy2D rectangle(void *to, size_t to_pitch, const void *from,
                            size_t from_pitch, size_t width, size_t height) {
    return (CUmemcpy2D){
        .src_type = MEMORY_UNIFIED,
        .src_device = address(from),
        .src_pitch = from_pitch,
        .dst_type = MEMORY_UNIFIED,
        .dst_device = address(to),
        .dst_pitch = to_pitch,
        .width = width,
        .height = height,
    };
}

static cudaError_t memcpy_2d_on(int twin, void *to, size_t to_pitch,
                                const void *from, size_t from_pitch,
                                size_t width, size_t height, int kind) {
    CUmemcpy2D area = rectangle(to, to_pitch, from, from_pitch, width, height);
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS)
        return simrt_record(cudaErrorInvalidMemcpyDirection);
    IN_CONTEXT(DRIVER_OF(cuMemcpy2D, twin)(&area));
}

EXPORT_WITH_TWIN(cudaMemcpy2D, _ptds, memcpy_2d_on,
                 (void *to, size_t to_pitch, const void *from,
                  size_t from_pitch, size_t width, size_t height, int kind),
                 to, to_pitch, from, from_pitch, width, height, kind)

static cudaError_t memcpy_2d_async_on(int twin, void *to, size_t to_pitch,
                                      const void *from, size_t from_pitch,
                                      size_t width, size_t height, int kind,
                                      cudaStream_t stream) {
    CUmemcpy2D area = rectangle(to, to_pitch, from, from_pitch, width, height);
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS)
        return simrt_record(cudaErrorInvalidMemcpyDirection);
    IN_CONTEXT(DRIVER_OF(cuMemcpy2DAsync, twin)(&area, stream));
}

EXPORT_WITH_TWIN(cudaMemcpy2DAsync, _ptsz, memcpy_2d_async_on,
                 (void *to, size_t to_pitch, const void *from,
                  size_t from_pitch, size_t width, size_t height, int kind,
                  cudaStream_t stream),
                 to, to_pitch, from, from_pitch, width, height, kind, stream)

static cudaError_t copy_peer(void *to, int to_device, const void *from,
                             int from_device, size_t size, int async,
                             cudaStream_t stream) {
    CUcontext to_context, from_context;
    cudaError_t code = simrt_primary(to_device, &to_context);
    if (!code)
        code = simrt_primary(from_device, &from_context);
    if (code)
        return code;
    return async ? DRIVER(cuMemcpyPeerAsync)(address(to), to_context,
                                             address(from), from_context, size,
                                             stream)
                 : DRIVER(cuMemcpyPeer)(address(to), to_context, address(from),
                                        from_context, size);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from,
                           int from_device, size_t size) {
    IN_CONTEXT(copy_peer(to, to_device, from, from_device, size, 0, NULL));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from,
                                int from_device, size_t size,
                                cudaStream_t stream) {
    IN_CONTEXT(copy_peer(to, to_device, from, from_device, size, 1, stream));
}

static cudaError_t memset_on(int twin, void *device, int value, size_t size) {
    IN_CONTEXT(size ? DRIVER_OF(cuMemsetD8, twin)(address(device),
                                                  (unsigned char)value, size)
                    : cudaSuccess);
}

EXPORT_WITH_TWIN(cudaMemset, _ptds, memset_on,
                 (void *device, int value, size_t size), device, value, size)

static cudaError_t memset_async_on(int twin, void *device, int value,
                                   size_t size, cudaStream_t stream) {
    IN_CONTEXT(size ? DRIVER_OF(cuMemsetD8Async, twin)(
                          address(device), (unsigned char)value, size, stream)
                    : cudaSuccess);
}

EXPORT_WITH_TWIN(cudaMemsetAsync, _ptsz, memset_async_on,
                 (void *device, int value, size_t size, cudaStream_t stream),
                 device, value, size, stream)
