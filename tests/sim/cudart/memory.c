/*
 * Memory: the runtime's names for what the driver does. Nothing is kept here;
 * every pointer is the driver's own.
 */
#include "runtime.h"

typedef struct { void *ptr; size_t pitch, xsize, ysize; } cudaPitchedPtr;

struct cudaPointerAttributes {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
#if CUDART_MAJOR >= 13
    long reserved[8];
#endif
};

static CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

static void *pointer(CUdeviceptr at) { return (void *)(uintptr_t)at; }

/* A size of zero initialises and succeeds with NULL; the driver's own refuses
 * it. */
static cudaError_t allocate(void **out, size_t size) {
    CUdeviceptr at = 0;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = size ? DRIVER(cuMemAlloc)(&at, size) : cudaSuccess;
    if (!code)
        *out = pointer(at);
    return code;
}

cudaError_t cudaMalloc(void **out, size_t size) {
    IN_CONTEXT(allocate(out, size));
}

/* NULL succeeds, and has initialised the context: a common idiom. */
cudaError_t cudaFree(void *device) {
    IN_CONTEXT(device ? DRIVER(cuMemFree)(address(device)) : cudaSuccess);
}

static cudaError_t allocate_pitch(void **out, size_t *pitch, size_t width,
                                  size_t height) {
    enum { ELEMENT = 4 };
    CUdeviceptr at = 0;
    if (!out || !pitch)
        return cudaErrorInvalidValue;
    cudaError_t code =
        width && height
            ? DRIVER(cuMemAllocPitch)(&at, pitch, width, height, ELEMENT)
            : cudaSuccess;
    if (!code)
        *out = pointer(at);
    return code;
}

cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width,
                            size_t height) {
    IN_CONTEXT(allocate_pitch(out, pitch, width, height));
}

static cudaError_t allocate_3d(cudaPitchedPtr *out, cudaExtent extent) {
    size_t rows;
    if (!out || __builtin_mul_overflow(extent.height, extent.depth, &rows))
        return cudaErrorInvalidValue;
    out->xsize = extent.width;
    out->ysize = extent.height;
    return allocate_pitch(&out->ptr, &out->pitch, extent.width, rows);
}

cudaError_t cudaMalloc3D(cudaPitchedPtr *out, cudaExtent extent) {
    IN_CONTEXT(allocate_3d(out, extent));
}

static cudaError_t allocate_async(int twin, void **out, size_t size,
                                  cudaMemPool_t pool, cudaStream_t stream) {
    cudaError_t code = simrt_need_context();
    CUdeviceptr at = 0;
    if (!code && !out)
        code = cudaErrorInvalidValue;
    if (!code && size)
        code = pool ? DRIVER_OF(cuMemAllocFromPoolAsync, twin)(&at, size, pool,
                                                               stream)
                    : DRIVER_OF(cuMemAllocAsync, twin)(&at, size, stream);
    if (!code)
        *out = pointer(at);
    return simrt_record(code);
}

EXPORT_WITH_TWIN(cudaMallocAsync, _ptsz, allocate_async,
                 (void **out, size_t size, cudaStream_t stream), out, size,
                 NULL, stream)
EXPORT_WITH_TWIN(cudaMallocFromPoolAsync, _ptsz, allocate_async,
                 (void **out, size_t size, cudaMemPool_t pool,
                  cudaStream_t stream),
                 out, size, pool, stream)

static cudaError_t free_async(int twin, void *device, cudaStream_t stream) {
    IN_CONTEXT(device ? DRIVER_OF(cuMemFreeAsync, twin)(address(device), stream)
                      : cudaSuccess);
}

EXPORT_WITH_TWIN(cudaFreeAsync, _ptsz, free_async,
                 (void *device, cudaStream_t stream), device, stream)

static cudaError_t allocate_host(void **out, size_t size, unsigned flags) {
    if (!out)
        return cudaErrorInvalidValue;
    *out = NULL;
    return size ? DRIVER(cuMemHostAlloc)(out, size, flags) : cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t size) {
    IN_CONTEXT(allocate_host(out, size, 0));
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    IN_CONTEXT(allocate_host(out, size, flags));
}

cudaError_t cudaFreeHost(void *host) {
    IN_CONTEXT(host ? DRIVER(cuMemFreeHost)(host) : cudaSuccess);
}

cudaError_t cudaHostRegister(void *host, size_t size, unsigned flags) {
    IN_CONTEXT(DRIVER(cuMemHostRegister)(host, size, flags));
}

cudaError_t cudaHostUnregister(void *host) {
    IN_CONTEXT(DRIVER(cuMemHostUnregister)(host));
}

static cudaError_t device_pointer(void **out, void *host, unsigned flags) {
    CUdeviceptr at = 0;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = DRIVER(cuMemHostGetDevicePointer)(&at, host, flags);
    if (!code)
        *out = pointer(at);
    return code;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
    IN_CONTEXT(device_pointer(out, host, flags));
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *host) {
    IN_CONTEXT(DRIVER(cuMemHostGetFlags)(flags, host));
}

/* Either may be NULL: programs do that, and the driver takes it. */
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    IN_CONTEXT(DRIVER(cuMemGetInfo)(available, total));
}

static cudaError_t pointer_attributes(struct cudaPointerAttributes *out,
                                      const void *at) {
    enum { TYPE = 2, DEVICE = 3, HOST = 4, MANAGED = 8, ORDINAL = 9 };
    enum { UNREGISTERED = 0, IS_MANAGED = 3, NO_DEVICE = -2 };
    int type = 0, managed = 0, ordinal = 0;
    void *device = NULL, *host = NULL;
    const int asked[] = {TYPE, DEVICE, HOST, MANAGED, ORDINAL};
    void *answers[] = {&type, &device, &host, &managed, &ordinal};
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code =
        DRIVER(cuPointerGetAttributes)(5, asked, answers, address(at));
    if (code)
        return code;
    if (type == 0) {
        out->type = UNREGISTERED;
        out->device = NO_DEVICE;
        out->device_pointer = NULL;
        out->host_pointer = (void *)at;
        return cudaSuccess;
    }
    out->type = managed ? IS_MANAGED : type;
    out->device = ordinal;
    out->device_pointer = device;
    out->host_pointer = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out,
                                     const void *at) {
    IN_CONTEXT(pointer_attributes(out, at));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *device) {
    IN_CONTEXT(DRIVER(cuIpcGetMemHandle)(handle, address(device)));
}

static cudaError_t ipc_open(void **out, cudaIpcMemHandle_t handle,
                            unsigned flags) {
    CUdeviceptr at = 0;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = DRIVER(cuIpcOpenMemHandle)(&at, handle, flags);
    if (!code)
        *out = pointer(at);
    return code;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle,
                                 unsigned flags) {
    IN_CONTEXT(ipc_open(out, handle, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *device) {
    IN_CONTEXT(DRIVER(cuIpcCloseMemHandle)(address(device)));
}
