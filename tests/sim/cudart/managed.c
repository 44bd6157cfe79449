/*
 * Managed memory, and the memory of graphs. The runtime's structures are the
 * driver's; its functions for managed memory took a device's number up to
 * version 12 and take a place since.
 */
#include "runtime.h"

static CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

static cudaError_t allocate_managed(void **out, size_t size, unsigned flags) {
    CUdeviceptr at = 0;
    if (!out)
        return cudaErrorInvalidValue;
    cudaError_t code = DRIVER(cuMemAllocManaged)(&at, size, flags);
    if (!code)
        *out = (void *)(uintptr_t)at;
    return code;
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    IN_CONTEXT(allocate_managed(out, size, flags));
}

#if CUDART_MAJOR == 12
static cudaMemLocation place(int device) {
    enum { CPU = -1, ON_DEVICE = 1, ON_HOST = 2 };
    return device == CPU ? (cudaMemLocation){ON_HOST, 0}
                         : (cudaMemLocation){ON_DEVICE, device};
}

cudaError_t cudaMemAdvise(const void *start, size_t size, int advice,
                          int device) {
    IN_CONTEXT(
        DRIVER(cuMemAdvise)(address(start), size, advice, place(device)));
}

cudaError_t cudaMemAdvise_v2(const void *start, size_t size, int advice,
                             cudaMemLocation location) {
    IN_CONTEXT(DRIVER(cuMemAdvise)(address(start), size, advice, location));
}

ON_STREAM(cudaMemPrefetchAsync, cuMemPrefetchAsync,
          (const void *start, size_t size, int device, cudaStream_t stream),
          address(start), size, place(device), 0, stream)
ON_STREAM(cudaMemPrefetchAsync_v2, cuMemPrefetchAsync,
          (const void *start, size_t size, cudaMemLocation location,
           unsigned flags, cudaStream_t stream),
          address(start), size, location, flags, stream)
#else
cudaError_t cudaMemAdvise(const void *start, size_t size, int advice,
                          cudaMemLocation location) {
    IN_CONTEXT(DRIVER(cuMemAdvise)(address(start), size, advice, location));
}

ON_STREAM(cudaMemPrefetchAsync, cuMemPrefetchAsync,
          (const void *start, size_t size, cudaMemLocation location,
           unsigned flags, cudaStream_t stream),
          address(start), size, location, flags, stream)
#endif

cudaError_t cudaMemRangeGetAttribute(void *data, size_t room, int attribute,
                                     const void *start, size_t size) {
    IN_CONTEXT(DRIVER(cuMemRangeGetAttribute)(data, room, attribute,
                                              address(start), size));
}

cudaError_t cudaMemRangeGetAttributes(void **data, size_t *rooms,
                                      int *attributes, size_t count,
                                      const void *start, size_t size) {
    IN_CONTEXT(DRIVER(cuMemRangeGetAttributes)(data, rooms, attributes, count,
                                               address(start), size));
}

ON_STREAM(cudaStreamAttachMemAsync, cuStreamAttachMemAsync,
          (cudaStream_t stream, void *start, size_t size, unsigned flags),
          stream, address(start), size, flags)

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                     const cudaGraphNode_t *after, size_t count,
                                     void *params) {
    IN_CONTEXT(
        DRIVER(cuGraphAddMemAllocNode)(node, graph, after, count, params));
}

cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, void *params) {
    IN_DRIVER(DRIVER(cuGraphMemAllocNodeGetParams)(node, params));
}

cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                    const cudaGraphNode_t *after, size_t count,
                                    void *device) {
    IN_CONTEXT(DRIVER(cuGraphAddMemFreeNode)(node, graph, after, count,
                                             address(device)));
}

cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void *device) {
    IN_DRIVER(DRIVER(cuGraphMemFreeNodeGetParams)(node, device));
}

static cudaError_t add_set(cudaGraphNode_t *node, cudaGraph_t graph,
                           const cudaGraphNode_t *after, size_t count,
                           const void *params) {
    CUcontext context = NULL;
    cudaError_t code = DRIVER(cuCtxGetCurrent)(&context);
    return code ? code
                : DRIVER(cuGraphAddMemsetNode)(node, graph, after, count,
                                               params, context);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                   const cudaGraphNode_t *after, size_t count,
                                   const void *params) {
    IN_CONTEXT(add_set(node, graph, after, count, params));
}

#if CUDART_MAJOR == 12
cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph,
                             const cudaGraphNode_t *after, size_t count,
                             void *params) {
    IN_CONTEXT(DRIVER(cuGraphAddNode)(node, graph, after, NULL, count, params));
}

cudaError_t cudaGraphAddNode_v2(cudaGraphNode_t *node, cudaGraph_t graph,
                                const cudaGraphNode_t *after, const void *edges,
                                size_t count, void *params) {
    IN_CONTEXT(
        DRIVER(cuGraphAddNode)(node, graph, after, edges, count, params));
}
#else
cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph,
                             const cudaGraphNode_t *after, const void *edges,
                             size_t count, void *params) {
    IN_CONTEXT(
        DRIVER(cuGraphAddNode)(node, graph, after, edges, count, params));
}
#endif

cudaError_t cudaDeviceGraphMemTrim(int device) {
    IN_DRIVER(DRIVER(cuDeviceGraphMemTrim)(device));
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, int which, void *value) {
    IN_DRIVER(DRIVER(cuDeviceGetGraphMemAttribute)(device, which, value));
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, int which, void *value) {
    IN_DRIVER(DRIVER(cuDeviceSetGraphMemAttribute)(device, which, value));
}
