/* gpu.h over the CUDA runtime. */
#ifndef PROGRAMS_GPU_RUNTIME_H
#define PROGRAMS_GPU_RUNTIME_H

typedef struct { unsigned x, y, z; } dim3;

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cudaMalloc(void **device, size_t size);
int cudaFree(void *device);
int cudaMallocPitch(void **device, size_t *pitch, size_t width, size_t rows);
int cudaMallocAsync(void **device, size_t size, gpu_stream stream);
int cudaFreeAsync(void *device, gpu_stream stream);
int cudaMallocHost(void **host, size_t size);
int cudaFreeHost(void *host);
int cudaHostAlloc(void **host, size_t size, unsigned flags);
int cudaHostGetFlags(unsigned *flags, void *host);
int cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
int cudaHostRegister(void *host, size_t size, unsigned flags);
int cudaHostUnregister(void *host);
int cudaMemGetInfo(size_t *available, size_t *total);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from,
                        int from_device, size_t size, gpu_stream stream);
int cudaMemset(void *device, int value, size_t size);
int cudaIpcGetMemHandle(gpu_ipc_handle *handle, void *device);
int cudaIpcOpenMemHandle(void **device, gpu_ipc_handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *device);
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind,
                    gpu_stream stream);
int cudaMemsetAsync(void *device, int value, size_t size, gpu_stream stream);
int cudaStreamCreateWithFlags(gpu_stream *stream, unsigned flags);
int cudaStreamDestroy(gpu_stream stream);
int cudaStreamSynchronize(gpu_stream stream);
int cudaStreamWaitEvent(gpu_stream stream, gpu_event event, unsigned flags);
int cudaEventCreateWithFlags(gpu_event *event, unsigned flags);
int cudaEventDestroy(gpu_event event);
int cudaEventRecord(gpu_event event, gpu_stream stream);
int cudaEventQuery(gpu_event event);
int cudaEventSynchronize(gpu_event event);
int cudaStreamBeginCapture(gpu_stream stream, int mode);
int cudaStreamEndCapture(gpu_stream stream, gpu_graph *graph);
int cudaGraphInstantiate(void **executable, gpu_graph graph,
                         unsigned long long flags);
int cudaGraphLaunch(void *executable, gpu_stream stream);
int cudaGraphExecDestroy(void *executable);
int cudaGraphDestroy(gpu_graph graph);
int cudaGetLastError(void);
const char *cudaGetErrorName(int code);
int cudaLibraryLoadData(void **library, const void *code, void *jit_options,
                        void **jit_values, unsigned jit_count, void *options,
                        void **values, unsigned count);
int cudaLibraryGetKernel(void **kernel, void *library, const char *name);
int cudaLaunchKernel(const void *function, dim3 grid, dim3 block,
                     void **arguments, size_t shared_bytes, gpu_stream stream);

#define GPU_KIND "runtime"

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3,
       BY_ADDRESS = 4 };

static inline int gpu_count(int *count) { return cudaGetDeviceCount(count); }
static inline int gpu_set_device(int device) { return cudaSetDevice(device); }
static inline int gpu_get_device(int *device) { return cudaGetDevice(device); }
static inline int gpu_sync(void) { return cudaDeviceSynchronize(); }

static inline int gpu_reset(void) { return cudaDeviceReset(); }

/* Lets the current device use the memory of another. */
static inline int gpu_enable_peer(int peer) {
    return cudaDeviceEnablePeerAccess(peer, 0);
}

static inline int gpu_malloc(void **device, size_t size) {
    return cudaMalloc(device, size);
}

static inline int gpu_free(void *device) { return cudaFree(device); }

/* Rows of `width` bytes, each `pitch` after the last. */
static inline int gpu_malloc_pitch(void **device, size_t *pitch, size_t width,
                                   size_t rows) {
    return cudaMallocPitch(device, pitch, width, rows);
}

/* From the device's own pool, in the order of the stream. */
static inline int gpu_malloc_async(void **device, size_t size,
                                   gpu_stream stream) {
    return cudaMallocAsync(device, size, stream);
}

static inline int gpu_free_async(void *device, gpu_stream stream) {
    return cudaFreeAsync(device, stream);
}

static inline int gpu_malloc_host(void **host, size_t size) {
    return cudaMallocHost(host, size);
}

/* With flags of cudaHostAlloc. */
static inline int gpu_host_alloc(void **host, size_t size, unsigned flags) {
    return cudaHostAlloc(host, size, flags);
}

static inline int gpu_host_flags(unsigned *flags, void *host) {
    return cudaHostGetFlags(flags, host);
}

/* Where the device sees pinned memory. */
static inline int gpu_host_pointer(void **device, void *host) {
    return cudaHostGetDevicePointer(device, host, 0);
}

static inline int gpu_host_register(void *host, size_t size) {
    return cudaHostRegister(host, size, 0);
}

static inline int gpu_host_unregister(void *host) {
    return cudaHostUnregister(host);
}

static inline int gpu_free_host(void *host) { return cudaFreeHost(host); }

static inline int gpu_mem_info(size_t *available, size_t *total) {
    return cudaMemGetInfo(available, total);
}

static inline int gpu_copy_in(void *device, const void *host, size_t size) {
    return cudaMemcpy(device, host, size, HOST_TO_DEVICE);
}

static inline int gpu_copy_out(void *host, const void *device, size_t size) {
    return cudaMemcpy(host, device, size, DEVICE_TO_HOST);
}

static inline int gpu_copy(void *to, const void *from, size_t size) {
    return cudaMemcpy(to, from, size, DEVICE_TO_DEVICE);
}

/* Between any two places, by their addresses. */
static inline int gpu_copy_unified(void *to, const void *from, size_t size,
                                   gpu_stream stream) {
    return cudaMemcpyAsync(to, from, size, BY_ADDRESS, stream);
}

/* Between devices, whether or not they have access to each other. */
static inline int gpu_copy_peer(void *to, int to_device, const void *from,
                                int from_device, size_t size,
                                gpu_stream stream) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
}

static inline int gpu_set(void *device, int value, size_t size) {
    return cudaMemset(device, value, size);
}

/* What another process needs to use the memory. */
static inline int gpu_ipc_get(gpu_ipc_handle *handle, void *device) {
    return cudaIpcGetMemHandle(handle, device);
}

static inline int gpu_ipc_open(void **device, gpu_ipc_handle handle) {
    return cudaIpcOpenMemHandle(device, handle, 1);
}

static inline int gpu_ipc_close(void *device) {
    return cudaIpcCloseMemHandle(device);
}

static inline int gpu_copy_async(void *to, const void *from, size_t size,
                                 gpu_stream stream) {
    return cudaMemcpyAsync(to, from, size, DEVICE_TO_DEVICE, stream);
}

static inline int gpu_set_async(void *device, int value, size_t size,
                                gpu_stream stream) {
    return cudaMemsetAsync(device, value, size, stream);
}

/* A stream that orders with the legacy default stream. */
static inline int gpu_stream_create_blocking(gpu_stream *stream) {
    return cudaStreamCreateWithFlags(stream, 0);
}

/* A stream that does not order with the legacy default stream. */
static inline int gpu_stream_create(gpu_stream *stream) {
    return cudaStreamCreateWithFlags(stream, 1);
}

static inline int gpu_stream_destroy(gpu_stream stream) {
    return cudaStreamDestroy(stream);
}

static inline int gpu_stream_sync(gpu_stream stream) {
    return cudaStreamSynchronize(stream);
}

/* Lets later work on the stream wait for the event. */
static inline int gpu_stream_wait(gpu_stream stream, gpu_event event) {
    return cudaStreamWaitEvent(stream, event, 0);
}

/* An event without a time stamp. */
static inline int gpu_event_create(gpu_event *event) {
    return cudaEventCreateWithFlags(event, 2);
}

static inline int gpu_event_destroy(gpu_event event) {
    return cudaEventDestroy(event);
}

static inline int gpu_event_record(gpu_event event, gpu_stream stream) {
    return cudaEventRecord(event, stream);
}

static inline int gpu_event_query(gpu_event event) {
    return cudaEventQuery(event);
}

static inline int gpu_event_sync(gpu_event event) {
    return cudaEventSynchronize(event);
}

static inline int gpu_capture_begin(gpu_stream stream, int mode) {
    return cudaStreamBeginCapture(stream, mode);
}

static inline int gpu_capture_end(gpu_stream stream, gpu_graph *graph) {
    return cudaStreamEndCapture(stream, graph);
}

static inline int gpu_graph_prepare(void **executable, gpu_graph graph) {
    int code = cudaGraphInstantiate(executable, graph, 0);
    return code ? code : cudaGraphDestroy(graph);
}

static inline int gpu_graph_launch(void *executable, gpu_stream stream) {
    return cudaGraphLaunch(executable, stream);
}

static inline int gpu_graph_destroy(void *executable) {
    return cudaGraphExecDestroy(executable);
}

/* The thread's last error, which is cleared. The driver has none. */
static inline int gpu_last_error(void) { return cudaGetLastError(); }

static inline const char *gpu_error_name(int code) {
    return cudaGetErrorName(code);
}

static inline int gpu_launch(const char *name, unsigned threads,
                             gpu_stream stream, void **arguments) {
    static __thread void *library;
    void *kernel;
    int code = GPU_SUCCESS;
    if (!library)
        code = cudaLibraryLoadData(&library, gpu_kernels, NULL, NULL, 0, NULL,
                                   NULL, 0);
    if (!code)
        code = cudaLibraryGetKernel(&kernel, library, name);
    if (!code)
        code = cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){threads, 1, 1},
                                arguments, 0, stream);
    return code;
}

#endif
