/*
 * gpu.h over the driver API, reached by dlopen and dlsym under the names of
 * its ABI; with GPU_RESOLVE=procaddress by cuGetProcAddress instead, as newer
 * bindings do.
 */
#ifndef PROGRAMS_GPU_DRIVER_H
#define PROGRAMS_GPU_DRIVER_H

#include <dlfcn.h>
#include <pthread.h>

#define GPU_KIND "driver"

typedef unsigned long long gpu_address;

/* F(base name, suffix of its ABI name, version of it, parameters) */
#define GPU_FUNCTIONS(F)                                                       \
    F(cuInit, "", 2000, (unsigned))                                            \
    F(cuDeviceGetCount, "", 2000, (int *))                                     \
    F(cuDevicePrimaryCtxRetain, "", 7000, (void **, int))                      \
    F(cuDevicePrimaryCtxReset, "_v2", 11000, (int))                            \
    F(cuCtxGetDevice, "", 2000, (int *))                                       \
    F(cuCtxSetCurrent, "", 4000, (void *))                                     \
    F(cuCtxSynchronize, "", 2000, (void))                                      \
    F(cuCtxEnablePeerAccess, "", 4000, (void *, unsigned))                     \
    F(cuMemAlloc, "_v2", 3020, (gpu_address *, size_t))                        \
    F(cuMemFree, "_v2", 3020, (gpu_address))                                   \
    F(cuMemAllocPitch, "_v2", 3020,                                            \
      (gpu_address *, size_t *, size_t, size_t, unsigned))                     \
    F(cuMemAllocAsync, "", 11020, (gpu_address *, size_t, gpu_stream))         \
    F(cuMemFreeAsync, "", 11020, (gpu_address, gpu_stream))                    \
    F(cuMemHostAlloc, "", 2020, (void **, size_t, unsigned))                   \
    F(cuMemFreeHost, "", 2000, (void *))                                       \
    F(cuMemHostGetFlags, "", 2030, (unsigned *, void *))                       \
    F(cuMemHostGetDevicePointer, "_v2", 3020,                                  \
      (gpu_address *, void *, unsigned))                                       \
    F(cuMemHostRegister, "_v2", 6050, (void *, size_t, unsigned))              \
    F(cuMemHostUnregister, "", 4000, (void *))                                 \
    F(cuMemGetInfo, "_v2", 3020, (size_t *, size_t *))                         \
    F(cuMemcpyHtoD, "_v2", 3020, (gpu_address, const void *, size_t))          \
    F(cuMemcpyDtoH, "_v2", 3020, (void *, gpu_address, size_t))                \
    F(cuMemcpyDtoD, "_v2", 3020, (gpu_address, gpu_address, size_t))           \
    F(cuMemcpyAsync, "", 4000, (gpu_address, gpu_address, size_t, gpu_stream)) \
    F(cuMemcpyPeerAsync, "", 4000,                                             \
      (gpu_address, void *, gpu_address, void *, size_t, gpu_stream))          \
    F(cuMemcpyDtoDAsync, "_v2", 3020,                                          \
      (gpu_address, gpu_address, size_t, gpu_stream))                          \
    F(cuMemsetD8, "_v2", 3020, (gpu_address, unsigned char, size_t))           \
    F(cuIpcGetMemHandle, "", 4010, (gpu_ipc_handle *, gpu_address))            \
    F(cuIpcOpenMemHandle, "_v2", 11000,                                        \
      (gpu_address *, gpu_ipc_handle, unsigned))                               \
    F(cuIpcCloseMemHandle, "", 4010, (gpu_address))                            \
    F(cuMemsetD8Async, "", 3020,                                               \
      (gpu_address, unsigned char, size_t, gpu_stream))                        \
    F(cuStreamCreate, "", 2000, (gpu_stream *, unsigned))                      \
    F(cuStreamDestroy, "_v2", 4000, (gpu_stream))                              \
    F(cuStreamSynchronize, "", 2000, (gpu_stream))                             \
    F(cuStreamWaitEvent, "", 3020, (gpu_stream, gpu_event, unsigned))          \
    F(cuEventCreate, "", 2000, (gpu_event *, unsigned))                        \
    F(cuEventDestroy, "_v2", 4000, (gpu_event))                                \
    F(cuEventRecord, "", 2000, (gpu_event, gpu_stream))                        \
    F(cuEventQuery, "", 2000, (gpu_event))                                     \
    F(cuEventSynchronize, "", 2000, (gpu_event))                               \
    F(cuStreamBeginCapture, "_v2", 10010, (gpu_stream, int))                   \
    F(cuStreamEndCapture, "", 10000, (gpu_stream, gpu_graph *))                \
    F(cuGraphInstantiateWithFlags, "", 11040,                                  \
      (void **, gpu_graph, unsigned long long))                                \
    F(cuGraphLaunch, "", 10000, (void *, gpu_stream))                          \
    F(cuGraphExecDestroy, "", 10000, (void *))                                 \
    F(cuGraphDestroy, "", 10000, (gpu_graph))                                  \
    F(cuLibraryLoadData, "", 12000,                                            \
      (void **, const void *, void *, void **, unsigned, void *, void **,      \
       unsigned))                                                              \
    F(cuLibraryGetKernel, "", 12000, (void **, void *, const char *))          \
    F(cuLaunchKernel, "", 4000,                                                \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
       unsigned, gpu_stream, void **, void **))                                \
    F(cuGetErrorName, "", 6000, (int, const char **))

static struct {
#define GPU_DECLARE(name, suffix, version, parameters) int(*name) parameters;
    GPU_FUNCTIONS(GPU_DECLARE)
#undef GPU_DECLARE
} gpu_driver;

/* Stands in for what the driver lacks, like the runtime's own. */
static int gpu_lacking(void) { return GPU_NOT_SUPPORTED; }

static void *gpu_find(void *library, const char *base, const char *suffix,
                      int version) {
    typedef int (*resolver)(const char *, void **, int, uint64_t, int *);
    const char *how = getenv("GPU_RESOLVE");
    void *found = NULL;
    char name[128];
    if (how && !strcmp(how, "procaddress")) {
        int status = 0;
        resolver resolve = (resolver)dlsym(library, "cuGetProcAddress_v2");
        if (!resolve || resolve(base, &found, version, 0, &status))
            found = NULL;
    } else {
        snprintf(name, sizeof name, "%s%s", base, suffix);
        found = dlsym(library, name);
    }
    return found ? found : (void *)gpu_lacking;
}

static void gpu_load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(1);
    }
#define GPU_FIND(name, suffix, version, parameters)                            \
    gpu_driver.name =                                                          \
        (int(*) parameters)gpu_find(library, #name, suffix, version);
    GPU_FUNCTIONS(GPU_FIND)
#undef GPU_FIND
    int code = gpu_driver.cuInit(0);
    if (code) {
        fprintf(stderr, "cuInit: %d\n", code);
        exit(1);
    }
}

static void gpu_need_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, gpu_load);
}

static inline gpu_address gpu_at(const void *pointer) {
    return (gpu_address)(uintptr_t)pointer;
}

static inline int gpu_count(int *count) {
    gpu_need_driver();
    return gpu_driver.cuDeviceGetCount(count);
}

static inline int gpu_set_device(int device) {
    gpu_need_driver();
    void *context;
    int code = gpu_driver.cuDevicePrimaryCtxRetain(&context, device);
    return code ? code : gpu_driver.cuCtxSetCurrent(context);
}

static inline int gpu_get_device(int *device) {
    return gpu_driver.cuCtxGetDevice(device);
}

static inline int gpu_sync(void) { return gpu_driver.cuCtxSynchronize(); }

static inline int gpu_reset(void) {
    int device;
    int code = gpu_driver.cuCtxGetDevice(&device);
    return code ? code : gpu_driver.cuDevicePrimaryCtxReset(device);
}

/* Lets the current device use the memory of another. */
static inline int gpu_enable_peer(int peer) {
    void *context;
    int code = gpu_driver.cuDevicePrimaryCtxRetain(&context, peer);
    return code ? code : gpu_driver.cuCtxEnablePeerAccess(context, 0);
}

static inline int gpu_malloc(void **device, size_t size) {
    gpu_address at = 0;
    int code = gpu_driver.cuMemAlloc(&at, size);
    if (!code)
        *device = (void *)(uintptr_t)at;
    return code;
}

static inline int gpu_free(void *device) {
    return gpu_driver.cuMemFree(gpu_at(device));
}

/* Rows of `width` bytes, each `pitch` after the last. */
static inline int gpu_malloc_pitch(void **device, size_t *pitch, size_t width,
                                   size_t rows) {
    gpu_address at = 0;
    int code = gpu_driver.cuMemAllocPitch(&at, pitch, width, rows, 4);
    if (!code)
        *device = (void *)(uintptr_t)at;
    return code;
}

/* From the device's own pool, in the order of the stream. */
static inline int gpu_malloc_async(void **device, size_t size,
                                   gpu_stream stream) {
    gpu_address at = 0;
    int code = gpu_driver.cuMemAllocAsync(&at, size, stream);
    if (!code)
        *device = (void *)(uintptr_t)at;
    return code;
}

static inline int gpu_free_async(void *device, gpu_stream stream) {
    return gpu_driver.cuMemFreeAsync(gpu_at(device), stream);
}

static inline int gpu_malloc_host(void **host, size_t size) {
    return gpu_driver.cuMemHostAlloc(host, size, 0);
}

/* With flags of cuMemHostAlloc. */
static inline int gpu_host_alloc(void **host, size_t size, unsigned flags) {
    return gpu_driver.cuMemHostAlloc(host, size, flags);
}

static inline int gpu_host_flags(unsigned *flags, void *host) {
    return gpu_driver.cuMemHostGetFlags(flags, host);
}

/* Where the device sees pinned memory. */
static inline int gpu_host_pointer(void **device, void *host) {
    gpu_address at = 0;
    int code = gpu_driver.cuMemHostGetDevicePointer(&at, host, 0);
    if (!code)
        *device = (void *)(uintptr_t)at;
    return code;
}

static inline int gpu_host_register(void *host, size_t size) {
    return gpu_driver.cuMemHostRegister(host, size, 0);
}

static inline int gpu_host_unregister(void *host) {
    return gpu_driver.cuMemHostUnregister(host);
}

static inline int gpu_free_host(void *host) {
    return gpu_driver.cuMemFreeHost(host);
}

static inline int gpu_mem_info(size_t *available, size_t *total) {
    return gpu_driver.cuMemGetInfo(available, total);
}

static inline int gpu_copy_in(void *device, const void *host, size_t size) {
    return gpu_driver.cuMemcpyHtoD(gpu_at(device), host, size);
}

static inline int gpu_copy_out(void *host, const void *device, size_t size) {
    return gpu_driver.cuMemcpyDtoH(host, gpu_at(device), size);
}

static inline int gpu_copy(void *to, const void *from, size_t size) {
    return gpu_driver.cuMemcpyDtoD(gpu_at(to), gpu_at(from), size);
}

/* Between any two places, by their addresses. */
static inline int gpu_copy_unified(void *to, const void *from, size_t size,
                                   gpu_stream stream) {
    return gpu_driver.cuMemcpyAsync(gpu_at(to), gpu_at(from), size, stream);
}

/* Between devices, whether or not they have access to each other. */
static inline int gpu_copy_peer(void *to, int to_device, const void *from,
                                int from_device, size_t size,
                                gpu_stream stream) {
    void *to_context, *from_context;
    int code = gpu_driver.cuDevicePrimaryCtxRetain(&to_context, to_device);
    if (!code)
        code = gpu_driver.cuDevicePrimaryCtxRetain(&from_context, from_device);
    return code ? code
                : gpu_driver.cuMemcpyPeerAsync(gpu_at(to), to_context,
                                               gpu_at(from), from_context,
                                               size, stream);
}

static inline int gpu_set(void *device, int value, size_t size) {
    return gpu_driver.cuMemsetD8(gpu_at(device), (unsigned char)value, size);
}

/* What another process needs to use the memory. */
static inline int gpu_ipc_get(gpu_ipc_handle *handle, void *device) {
    return gpu_driver.cuIpcGetMemHandle(handle, gpu_at(device));
}

static inline int gpu_ipc_open(void **device, gpu_ipc_handle handle) {
    gpu_address at = 0;
    int code = gpu_driver.cuIpcOpenMemHandle(&at, handle, 1);
    if (!code)
        *device = (void *)(uintptr_t)at;
    return code;
}

static inline int gpu_ipc_close(void *device) {
    return gpu_driver.cuIpcCloseMemHandle(gpu_at(device));
}

static inline int gpu_copy_async(void *to, const void *from, size_t size,
                                 gpu_stream stream) {
    return gpu_driver.cuMemcpyDtoDAsync(gpu_at(to), gpu_at(from), size, stream);
}

static inline int gpu_set_async(void *device, int value, size_t size,
                                gpu_stream stream) {
    return gpu_driver.cuMemsetD8Async(gpu_at(device), (unsigned char)value,
                                      size, stream);
}

/* A stream that orders with the legacy default stream. */
static inline int gpu_stream_create_blocking(gpu_stream *stream) {
    return gpu_driver.cuStreamCreate(stream, 0);
}

/* A stream that does not order with the legacy default stream. */
static inline int gpu_stream_create(gpu_stream *stream) {
    return gpu_driver.cuStreamCreate(stream, 1);
}

static inline int gpu_stream_destroy(gpu_stream stream) {
    return gpu_driver.cuStreamDestroy(stream);
}

static inline int gpu_stream_sync(gpu_stream stream) {
    return gpu_driver.cuStreamSynchronize(stream);
}

/* Lets later work on the stream wait for the event. */
static inline int gpu_stream_wait(gpu_stream stream, gpu_event event) {
    return gpu_driver.cuStreamWaitEvent(stream, event, 0);
}

/* An event without a time stamp. */
static inline int gpu_event_create(gpu_event *event) {
    return gpu_driver.cuEventCreate(event, 2);
}

static inline int gpu_event_destroy(gpu_event event) {
    return gpu_driver.cuEventDestroy(event);
}

static inline int gpu_event_record(gpu_event event, gpu_stream stream) {
    return gpu_driver.cuEventRecord(event, stream);
}

static inline int gpu_event_query(gpu_event event) {
    return gpu_driver.cuEventQuery(event);
}

static inline int gpu_event_sync(gpu_event event) {
    return gpu_driver.cuEventSynchronize(event);
}

static inline int gpu_capture_begin(gpu_stream stream, int mode) {
    return gpu_driver.cuStreamBeginCapture(stream, mode);
}

static inline int gpu_capture_end(gpu_stream stream, gpu_graph *graph) {
    return gpu_driver.cuStreamEndCapture(stream, graph);
}

static inline int gpu_graph_prepare(void **executable, gpu_graph graph) {
    int code = gpu_driver.cuGraphInstantiateWithFlags(executable, graph, 0);
    return code ? code : gpu_driver.cuGraphDestroy(graph);
}

static inline int gpu_graph_launch(void *executable, gpu_stream stream) {
    return gpu_driver.cuGraphLaunch(executable, stream);
}

static inline int gpu_graph_destroy(void *executable) {
    return gpu_driver.cuGraphExecDestroy(executable);
}

static inline int gpu_last_error(void) { return GPU_SUCCESS; }

static inline const char *gpu_error_name(int code) {
    const char *name = NULL;
    if (gpu_driver.cuGetErrorName(code, &name) || !name)
        return "unknown";
    return name;
}

/* A library, unlike a module, serves in every context. */
static inline int gpu_launch(const char *name, unsigned threads,
                             gpu_stream stream, void **arguments) {
    static __thread void *library;
    void *kernel;
    int code = GPU_SUCCESS;
    if (!library)
        code = gpu_driver.cuLibraryLoadData(&library, gpu_kernels, NULL, NULL,
                                            0, NULL, NULL, 0);
    if (!code)
        code = gpu_driver.cuLibraryGetKernel(&kernel, library, name);
    if (!code)
        code = gpu_driver.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0,
                                         stream, arguments, NULL);
    return code;
}

#endif
