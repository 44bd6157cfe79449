/*
 * Pools of stream-ordered memory: the runtime's names for what the driver
 * does. Its structures of properties, places and accesses are the driver's.
 */
#include "runtime.h"

static CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    IN_DRIVER(DRIVER(cuDeviceGetDefaultMemPool)(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    IN_DRIVER(DRIVER(cuDeviceGetMemPool)(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    IN_DRIVER(DRIVER(cuDeviceSetMemPool)(device, pool));
}

#if CUDART_MAJOR >= 13
cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t *pool,
                                     cudaMemLocation *location, int type) {
    IN_DRIVER(DRIVER(cuMemGetDefaultMemPool)(pool, location, type));
}

cudaError_t cudaMemGetMemPool(cudaMemPool_t *pool, cudaMemLocation *location,
                              int type) {
    IN_DRIVER(DRIVER(cuMemGetMemPool)(pool, location, type));
}

cudaError_t cudaMemSetMemPool(cudaMemLocation *location, int type,
                              cudaMemPool_t pool) {
    IN_DRIVER(DRIVER(cuMemSetMemPool)(location, type, pool));
}
#endif

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const void *properties) {
    IN_DRIVER(DRIVER(cuMemPoolCreate)(pool, properties));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    IN_DRIVER(DRIVER(cuMemPoolDestroy)(pool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    IN_DRIVER(DRIVER(cuMemPoolTrimTo)(pool, keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int which,
                                    void *value) {
    IN_DRIVER(DRIVER(cuMemPoolGetAttribute)(pool, which, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int which,
                                    void *value) {
    IN_DRIVER(DRIVER(cuMemPoolSetAttribute)(pool, which, value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const void *accesses,
                                 size_t count) {
    IN_DRIVER(DRIVER(cuMemPoolSetAccess)(pool, accesses, count));
}

cudaError_t cudaMemPoolGetAccess(int *flags, cudaMemPool_t pool,
                                 cudaMemLocation *location) {
    IN_DRIVER(DRIVER(cuMemPoolGetAccess)(flags, pool, location));
}

cudaError_t cudaMemPoolExportToShareableHandle(void *handle, cudaMemPool_t pool,
                                               int type, unsigned flags) {
    IN_DRIVER(DRIVER(cuMemPoolExportToShareableHandle)(handle, pool, type,
                                                       flags));
}

cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t *pool,
                                                 void *handle, int type,
                                                 unsigned flags) {
    IN_DRIVER(DRIVER(cuMemPoolImportFromShareableHandle)(pool, handle, type,
                                                         flags));
}

cudaError_t cudaMemPoolExportPointer(void *data, void *device) {
    IN_DRIVER(DRIVER(cuMemPoolExportPointer)(data, address(device)));
}

static cudaError_t import_pointer(void **out, cudaMemPool_t pool, void *data) {
    CUdeviceptr at = 0;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = DRIVER(cuMemPoolImportPointer)(&at, pool, data);
    if (!code)
        *out = (void *)(uintptr_t)at;
    return code;
}

cudaError_t cudaMemPoolImportPointer(void **out, cudaMemPool_t pool,
                                     void *data) {
    IN_CONTEXT(import_pointer(out, pool, data));
}
