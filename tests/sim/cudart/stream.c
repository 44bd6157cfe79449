/*
 * Streams, events, graphs and capture: one line each over the driver. Handles
 * are the driver's own.
 */
#include "runtime.h"

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    IN_CONTEXT(DRIVER(cuStreamCreate)(stream, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    IN_CONTEXT(DRIVER(cuStreamCreate)(stream, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority) {
    IN_CONTEXT(DRIVER(cuStreamCreateWithPriority)(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    IN_CONTEXT(DRIVER(cuStreamDestroy)(stream));
}

ON_STREAM(cudaStreamSynchronize, cuStreamSynchronize, (cudaStream_t stream),
          stream)
ON_STREAM(cudaStreamQuery, cuStreamQuery, (cudaStream_t stream), stream)
ON_STREAM(cudaStreamWaitEvent, cuStreamWaitEvent,
          (cudaStream_t stream, cudaEvent_t event, unsigned flags), stream,
          event, flags)
ON_STREAM(cudaStreamGetPriority, cuStreamGetPriority,
          (cudaStream_t stream, int *priority), stream, priority)
ON_STREAM(cudaStreamGetFlags, cuStreamGetFlags,
          (cudaStream_t stream, unsigned *flags), stream, flags)
ON_STREAM(cudaStreamAddCallback, cuStreamAddCallback,
          (cudaStream_t stream, CUstreamCallback callback, void *data,
           unsigned flags),
          stream, callback, data, flags)
ON_STREAM(cudaLaunchHostFunc, cuLaunchHostFunc,
          (cudaStream_t stream, CUhostFn function, void *data), stream,
          function, data)

ON_STREAM(cudaStreamBeginCapture, cuStreamBeginCapture,
          (cudaStream_t stream, int mode), stream, mode)
ON_STREAM(cudaStreamEndCapture, cuStreamEndCapture,
          (cudaStream_t stream, cudaGraph_t *graph), stream, graph)
ON_STREAM(cudaStreamIsCapturing, cuStreamIsCapturing,
          (cudaStream_t stream, int *status), stream, status)

#if CUDART_MAJOR == 12
ON_STREAM(cudaStreamGetCaptureInfo, cuStreamGetCaptureInfo,
          (cudaStream_t stream, int *status, unsigned long long *id), stream,
          status, id, NULL, NULL, NULL)
ON_STREAM(cudaStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo,
          (cudaStream_t stream, int *status, unsigned long long *id,
           cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count),
          stream, status, id, graph, nodes, count)
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    IN_DRIVER(DRIVER(cuThreadExchangeStreamCaptureMode)(mode));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    IN_CONTEXT(DRIVER(cuEventCreate)(event, 0));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    IN_CONTEXT(DRIVER(cuEventCreate)(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    IN_CONTEXT(DRIVER(cuEventDestroy)(event));
}

ON_STREAM(cudaEventRecord, cuEventRecord,
          (cudaEvent_t event, cudaStream_t stream), event, stream)
ON_STREAM(cudaEventRecordWithFlags, cuEventRecordWithFlags,
          (cudaEvent_t event, cudaStream_t stream, unsigned flags), event,
          stream, flags)

cudaError_t cudaEventQuery(cudaEvent_t event) {
    IN_CONTEXT(DRIVER(cuEventQuery)(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    IN_CONTEXT(DRIVER(cuEventSynchronize)(event));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from,
                                 cudaEvent_t to) {
    IN_CONTEXT(DRIVER(cuEventElapsedTime)(milliseconds, from, to));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle,
                                  cudaEvent_t event) {
    IN_CONTEXT(DRIVER(cuIpcGetEventHandle)(handle, event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event,
                                   cudaIpcEventHandle_t handle) {
    IN_CONTEXT(DRIVER(cuIpcOpenEventHandle)(event, handle));
}

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    IN_DRIVER(DRIVER(cuGraphCreate)(graph, flags));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    IN_DRIVER(DRIVER(cuGraphDestroy)(graph));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes,
                              size_t *count) {
    IN_DRIVER(DRIVER(cuGraphGetNodes)(graph, nodes, count));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags) {
    IN_CONTEXT(DRIVER(cuGraphInstantiate)(executable, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable,
                                          cudaGraph_t graph,
                                          unsigned long long flags) {
    IN_CONTEXT(DRIVER(cuGraphInstantiate)(executable, graph, flags));
}

ON_STREAM(cudaGraphInstantiateWithParams, cuGraphInstantiateWithParams,
          (cudaGraphExec_t * executable, cudaGraph_t graph, void *params),
          executable, graph, params)

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    IN_DRIVER(DRIVER(cuGraphExecDestroy)(executable));
}

ON_STREAM(cudaGraphUpload, cuGraphUpload,
          (cudaGraphExec_t executable, cudaStream_t stream), executable, stream)
ON_STREAM(cudaGraphLaunch, cuGraphLaunch,
          (cudaGraphExec_t executable, cudaStream_t stream), executable, stream)

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path,
                                   unsigned flags) {
    IN_DRIVER(DRIVER(cuGraphDebugDotPrint)(graph, path, flags));
}

cudaError_t cudaProfilerStart(void) { IN_CONTEXT(DRIVER(cuProfilerStart)()); }

cudaError_t cudaProfilerStop(void) { IN_CONTEXT(DRIVER(cuProfilerStop)()); }
