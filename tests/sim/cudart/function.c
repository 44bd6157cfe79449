/*
 * What a program asks of a kernel short of launching it: attributes and how
 * many of its blocks fit on a multiprocessor.
 *
 * Owns nothing: the driver knows the attributes, and remembers those that were
 * set. The runtime's numbers of attributes are the driver's.
 */
#include "runtime.h"

struct cudaFuncAttributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int max_threads, registers, ptx_version, binary_version, cache_mode;
    int max_dynamic_shared_bytes, shared_carveout;
    int needs_cluster, cluster_width, cluster_height, cluster_depth;
    int cluster_policy, large_clusters;
    int reserved[16];
};

static cudaError_t attribute(int *value, int which, const void *function) {
    CUkernel kernel;
    CUdevice device;
    cudaError_t code = simrt_find_kernel(&kernel, function);
    if (!code)
        code = DRIVER(cuCtxGetDevice)(&device);
    return code ? code
                : DRIVER(cuKernelGetAttribute)(value, which, kernel, device);
}

static cudaError_t attributes(struct cudaFuncAttributes *out,
                              const void *function) {
    if (!out)
        return cudaErrorInvalidValue;
    *out = (struct cudaFuncAttributes){0};
    int shared = 0, constant = 0, local = 0;
    int *const fields[] = {
        &out->max_threads,    &shared,
        &constant,            &local,
        &out->registers,      &out->ptx_version,
        &out->binary_version, &out->cache_mode,
        &out->max_dynamic_shared_bytes, &out->shared_carveout,
    };
    for (int i = 0; i < (int)(sizeof fields / sizeof *fields); i++) {
        cudaError_t code = attribute(fields[i], i, function);
        if (code)
            return code;
    }
    out->shared_bytes = (size_t)shared;
    out->constant_bytes = (size_t)constant;
    out->local_bytes = (size_t)local;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out,
                                  const void *function) {
    IN_CONTEXT(attributes(out, function));
}

static cudaError_t set_attribute(const void *function, int which, int value) {
    CUkernel kernel;
    CUdevice device;
    cudaError_t code = simrt_find_kernel(&kernel, function);
    if (!code)
        code = DRIVER(cuCtxGetDevice)(&device);
    return code ? code
                : DRIVER(cuKernelSetAttribute)(which, value, kernel, device);
}

cudaError_t cudaFuncSetAttribute(const void *function, int which, int value) {
    IN_CONTEXT(set_attribute(function, which, value));
}

/* The driver takes a kernel where it asks for a function. */
static cudaError_t resident_blocks(int *blocks, const void *function,
                                   int threads, size_t shared_bytes,
                                   unsigned flags) {
    CUkernel kernel;
    cudaError_t code = simrt_find_kernel(&kernel, function);
    return code ? code
                : DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
                      blocks, kernel, threads, shared_bytes, flags);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, const void *function, int threads, size_t shared_bytes) {
    IN_CONTEXT(resident_blocks(blocks, function, threads, shared_bytes, 0));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *function, int threads, size_t shared_bytes,
    unsigned flags) {
    IN_CONTEXT(resident_blocks(blocks, function, threads, shared_bytes, flags));
}
