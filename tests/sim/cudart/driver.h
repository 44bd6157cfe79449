/*
 * The driver as this runtime sees it: types, the table of the functions it
 * fetches, and how one of them is called.
 *
 * Invariant: a slot is never NULL once the driver is loaded; a function that
 * the driver lacks has a stand-in that answers "call requires newer driver".
 * Cost: one indirect call per driver call.
 */
#ifndef SIM_CUDART_DRIVER_H
#define SIM_CUDART_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcHandle;
typedef struct { int type, id; } CUmemLocation;

typedef struct {
    size_t width, height;
    unsigned format, channels;
} CUarrayShape2D;

typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} CUarrayShape;

typedef struct {
    size_t src_x, src_y;
    unsigned src_type;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    unsigned dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} CUmemcpy2D;

typedef struct {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);

enum {
    MEMORY_HOST = 1,
    MEMORY_DEVICE = 2,
    MEMORY_ARRAY = 3,
    MEMORY_UNIFIED = 4,
};

/*
 * F(name, version of the plain function, version of its per-thread twin or 0,
 *   parameters). The version picks the ABI behind the base name, as in
 * cuGetProcAddress: cuMemAlloc at 3020 is cuMemAlloc_v2.
 */
#define DRIVER_FUNCTIONS(F)                                                    \
    F(cuInit, 2000, 0, (unsigned))                                             \
    F(cuDriverGetVersion, 2020, 0, (int *))                                    \
    F(cuDeviceGet, 2000, 0, (CUdevice *, int))                                 \
    F(cuDeviceGetCount, 2000, 0, (int *))                                      \
    F(cuDeviceGetName, 2000, 0, (char *, int, CUdevice))                       \
    F(cuDeviceTotalMem, 3020, 0, (size_t *, CUdevice))                         \
    F(cuDeviceGetAttribute, 2000, 0, (int *, int, CUdevice))                   \
    F(cuDeviceGetUuid, 11040, 0, (CUuuid *, CUdevice))                         \
    F(cuDeviceGetPCIBusId, 4010, 0, (char *, int, CUdevice))                   \
    F(cuDeviceCanAccessPeer, 4000, 0, (int *, CUdevice, CUdevice))             \
    F(cuDevicePrimaryCtxRetain, 7000, 0, (CUcontext *, CUdevice))              \
    F(cuDevicePrimaryCtxReset, 7000, 0, (CUdevice))                            \
    F(cuDevicePrimaryCtxSetFlags, 7000, 0, (CUdevice, unsigned))               \
    F(cuDevicePrimaryCtxGetState, 7000, 0, (CUdevice, unsigned *, int *))      \
    F(cuCtxGetCurrent, 4000, 0, (CUcontext *))                                 \
    F(cuCtxSetCurrent, 4000, 0, (CUcontext))                                   \
    F(cuCtxGetDevice, 2000, 0, (CUdevice *))                                   \
    F(cuCtxSynchronize, 2000, 0, (void))                                       \
    F(cuCtxGetStreamPriorityRange, 5050, 0, (int *, int *))                    \
    F(cuCtxEnablePeerAccess, 4000, 0, (CUcontext, unsigned))                   \
    F(cuCtxDisablePeerAccess, 4000, 0, (CUcontext))                            \
    F(cuMemAlloc, 3020, 0, (CUdeviceptr *, size_t))                            \
    F(cuMemFree, 3020, 0, (CUdeviceptr))                                       \
    F(cuMemAllocPitch, 3020, 0,                                                \
      (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                     \
    F(cuMemGetInfo, 3020, 0, (size_t *, size_t *))                             \
    F(cuMemAllocManaged, 6000, 0, (CUdeviceptr *, size_t, unsigned))           \
    F(cuMemHostAlloc, 2020, 0, (void **, size_t, unsigned))                    \
    F(cuMemFreeHost, 2000, 0, (void *))                                        \
    F(cuMemHostRegister, 6050, 0, (void *, size_t, unsigned))                  \
    F(cuMemHostUnregister, 4000, 0, (void *))                                  \
    F(cuMemHostGetDevicePointer, 3020, 0, (CUdeviceptr *, void *, unsigned))   \
    F(cuMemHostGetFlags, 2030, 0, (unsigned *, void *))                        \
    F(cuMemAllocAsync, 11020, 11020, (CUdeviceptr *, size_t, CUstream))        \
    F(cuMemFreeAsync, 11020, 11020, (CUdeviceptr, CUstream))                   \
    F(cuMemAllocFromPoolAsync, 11020, 11020,                                   \
      (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                         \
    F(cuDeviceGetDefaultMemPool, 11020, 0, (CUmemoryPool *, CUdevice))         \
    F(cuMemPoolTrimTo, 11020, 0, (CUmemoryPool, size_t))                       \
    F(cuMemPoolGetAttribute, 11020, 0, (CUmemoryPool, int, void *))            \
    F(cuMemPoolSetAttribute, 11020, 0, (CUmemoryPool, int, void *))            \
    F(cuMemPoolSetAccess, 11020, 0, (CUmemoryPool, const void *, size_t))      \
    F(cuDeviceGetMemPool, 11020, 0, (CUmemoryPool *, CUdevice))                \
    F(cuDeviceSetMemPool, 11020, 0, (CUdevice, CUmemoryPool))                  \
    F(cuMemGetDefaultMemPool, 13000, 0, (CUmemoryPool *, void *, int))         \
    F(cuMemGetMemPool, 13000, 0, (CUmemoryPool *, void *, int))                \
    F(cuMemSetMemPool, 13000, 0, (void *, int, CUmemoryPool))                  \
    F(cuMemPoolCreate, 11020, 0, (CUmemoryPool *, const void *))               \
    F(cuMemPoolDestroy, 11020, 0, (CUmemoryPool))                              \
    F(cuMemPoolGetAccess, 11020, 0, (int *, CUmemoryPool, void *))             \
    F(cuMemPoolExportToShareableHandle, 11020, 0,                              \
      (void *, CUmemoryPool, int, unsigned long long))                         \
    F(cuMemPoolImportFromShareableHandle, 11020, 0,                            \
      (CUmemoryPool *, void *, int, unsigned long long))                       \
    F(cuMemPoolExportPointer, 11020, 0, (void *, CUdeviceptr))                 \
    F(cuMemPoolImportPointer, 11020, 0, (CUdeviceptr *, CUmemoryPool, void *)) \
    F(cuMemAdvise, 12020, 0, (CUdeviceptr, size_t, int, CUmemLocation))        \
    F(cuMemPrefetchAsync, 12020, 12020,                                        \
      (CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream))                \
    F(cuMemRangeGetAttribute, 8000, 0,                                         \
      (void *, size_t, int, CUdeviceptr, size_t))                              \
    F(cuMemRangeGetAttributes, 8000, 0,                                        \
      (void **, size_t *, int *, size_t, CUdeviceptr, size_t))                 \
    F(cuStreamAttachMemAsync, 6000, 7000,                                      \
      (CUstream, CUdeviceptr, size_t, unsigned))                               \
    F(cuArrayCreate, 3020, 0, (CUarray *, const CUarrayShape2D *))             \
    F(cuArray3DCreate, 3020, 0, (CUarray *, const CUarrayShape *))             \
    F(cuArray3DGetDescriptor, 3020, 0, (CUarrayShape *, CUarray))              \
    F(cuArrayDestroy, 2000, 0, (CUarray))                                      \
    F(cuArrayGetMemoryRequirements, 11060, 0, (void *, CUarray, CUdevice))     \
    F(cuMipmappedArrayCreate, 5000, 0,                                         \
      (CUmipmappedArray *, const CUarrayShape *, unsigned))                    \
    F(cuMipmappedArrayGetLevel, 5000, 0,                                       \
      (CUarray *, CUmipmappedArray, unsigned))                                 \
    F(cuMipmappedArrayDestroy, 5000, 0, (CUmipmappedArray))                    \
    F(cuMipmappedArrayGetMemoryRequirements, 11060, 0,                         \
      (void *, CUmipmappedArray, CUdevice))                                    \
    F(cuMemcpy, 4000, 7000, (CUdeviceptr, CUdeviceptr, size_t))                \
    F(cuMemcpyHtoD, 3020, 7000, (CUdeviceptr, const void *, size_t))           \
    F(cuMemcpyDtoH, 3020, 7000, (void *, CUdeviceptr, size_t))                 \
    F(cuMemcpyDtoD, 3020, 7000, (CUdeviceptr, CUdeviceptr, size_t))            \
    F(cuMemcpyAsync, 4000, 7000, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    F(cuMemcpyHtoDAsync, 3020, 7000,                                           \
      (CUdeviceptr, const void *, size_t, CUstream))                           \
    F(cuMemcpyDtoHAsync, 3020, 7000, (void *, CUdeviceptr, size_t, CUstream))  \
    F(cuMemcpyDtoDAsync, 3020, 7000,                                           \
      (CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
    F(cuMemcpy2D, 3020, 7000, (const CUmemcpy2D *))                            \
    F(cuMemcpy2DAsync, 3020, 7000, (const CUmemcpy2D *, CUstream))             \
    F(cuMemcpyPeer, 4000, 7000,                                                \
      (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))                \
    F(cuMemcpyPeerAsync, 4000, 7000,                                           \
      (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))      \
    F(cuMemsetD8, 3020, 7000, (CUdeviceptr, unsigned char, size_t))            \
    F(cuMemsetD8Async, 3020, 7000,                                             \
      (CUdeviceptr, unsigned char, size_t, CUstream))                          \
    F(cuStreamCreate, 2000, 0, (CUstream *, unsigned))                         \
    F(cuStreamCreateWithPriority, 5050, 0, (CUstream *, unsigned, int))        \
    F(cuStreamDestroy, 4000, 0, (CUstream))                                    \
    F(cuStreamSynchronize, 2000, 7000, (CUstream))                             \
    F(cuStreamQuery, 2000, 7000, (CUstream))                                   \
    F(cuStreamWaitEvent, 3020, 7000, (CUstream, CUevent, unsigned))            \
    F(cuStreamGetPriority, 5050, 7000, (CUstream, int *))                      \
    F(cuStreamGetFlags, 5050, 7000, (CUstream, unsigned *))                    \
    F(cuStreamAddCallback, 5000, 7000,                                         \
      (CUstream, CUstreamCallback, void *, unsigned))                          \
    F(cuLaunchHostFunc, 10000, 10000, (CUstream, CUhostFn, void *))            \
    F(cuStreamBeginCapture, 10010, 10010, (CUstream, int))                     \
    F(cuStreamEndCapture, 10000, 10000, (CUstream, CUgraph *))                 \
    F(cuStreamIsCapturing, 10000, 10000, (CUstream, int *))                    \
    F(cuStreamGetCaptureInfo, 11030, 11030,                                    \
      (CUstream, int *, unsigned long long *, CUgraph *,                       \
       const CUgraphNode **, size_t *))                                        \
    F(cuThreadExchangeStreamCaptureMode, 10010, 0, (int *))                    \
    F(cuEventCreate, 2000, 0, (CUevent *, unsigned))                           \
    F(cuEventDestroy, 4000, 0, (CUevent))                                      \
    F(cuEventRecord, 2000, 7000, (CUevent, CUstream))                          \
    F(cuEventRecordWithFlags, 11010, 11010, (CUevent, CUstream, unsigned))     \
    F(cuEventQuery, 2000, 0, (CUevent))                                        \
    F(cuEventSynchronize, 2000, 0, (CUevent))                                  \
    F(cuEventElapsedTime, 2000, 0, (float *, CUevent, CUevent))                \
    F(cuGraphCreate, 10000, 0, (CUgraph *, unsigned))                          \
    F(cuGraphDestroy, 10000, 0, (CUgraph))                                     \
    F(cuGraphInstantiate, 12000, 0,                                            \
      (CUgraphExec *, CUgraph, unsigned long long))                            \
    F(cuGraphUpload, 11010, 11010, (CUgraphExec, CUstream))                    \
    F(cuGraphLaunch, 10000, 10000, (CUgraphExec, CUstream))                    \
    F(cuGraphExecDestroy, 10000, 0, (CUgraphExec))                             \
    F(cuGraphGetNodes, 10000, 0, (CUgraph, CUgraphNode *, size_t *))           \
    F(cuGraphDebugDotPrint, 11030, 0, (CUgraph, const char *, unsigned))       \
    F(cuGraphInstantiateWithParams, 12000, 12000,                              \
      (CUgraphExec *, CUgraph, void *))                                        \
    F(cuGraphAddMemAllocNode, 11040, 0,                                        \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))           \
    F(cuGraphMemAllocNodeGetParams, 11040, 0, (CUgraphNode, void *))           \
    F(cuGraphAddMemFreeNode, 11040, 0,                                         \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))      \
    F(cuGraphMemFreeNodeGetParams, 11040, 0, (CUgraphNode, void *))            \
    F(cuGraphAddMemsetNode, 10000, 0,                                          \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const void *,      \
       CUcontext))                                                             \
    F(cuGraphAddNode, 12030, 0,                                                \
      (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,      \
       void *))                                                                \
    F(cuDeviceGraphMemTrim, 11040, 0, (CUdevice))                              \
    F(cuDeviceGetGraphMemAttribute, 11040, 0, (CUdevice, int, void *))         \
    F(cuDeviceSetGraphMemAttribute, 11040, 0, (CUdevice, int, void *))         \
    F(cuProfilerStart, 4000, 0, (void))                                        \
    F(cuProfilerStop, 4000, 0, (void))                                         \
    F(cuPointerGetAttributes, 7000, 0,                                         \
      (unsigned, const int *, void **, CUdeviceptr))                           \
    F(cuIpcGetMemHandle, 4010, 0, (CUipcHandle *, CUdeviceptr))                \
    F(cuIpcOpenMemHandle, 11000, 0, (CUdeviceptr *, CUipcHandle, unsigned))    \
    F(cuIpcCloseMemHandle, 4010, 0, (CUdeviceptr))                             \
    F(cuIpcGetEventHandle, 4010, 0, (CUipcHandle *, CUevent))                  \
    F(cuIpcOpenEventHandle, 4010, 0, (CUevent *, CUipcHandle))                 \
    F(cuLibraryLoadData, 12000, 0,                                             \
      (CUlibrary *, const void *, void *, void **, unsigned, void *, void **,  \
       unsigned))                                                              \
    F(cuLibraryUnload, 12000, 0, (CUlibrary))                                  \
    F(cuLibraryGetKernel, 12000, 0, (CUkernel *, CUlibrary, const char *))     \
    F(cuLibraryGetGlobal, 12000, 0,                                            \
      (CUdeviceptr *, size_t *, CUlibrary, const char *))                      \
    F(cuKernelGetAttribute, 12000, 0, (int *, int, CUkernel, CUdevice))        \
    F(cuKernelSetAttribute, 12000, 0, (int, int, CUkernel, CUdevice))          \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, 0,           \
      (int *, CUkernel, int, size_t, unsigned))                                \
    F(cuLaunchKernel, 4000, 7000,                                              \
      (CUkernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
       unsigned, CUstream, void **, void **))                                  \
    F(cuLaunchKernelEx, 11060, 11060,                                          \
      (const CUlaunchConfig *, CUkernel, void **, void **))

/* Slot 0 is the plain function, slot 1 its per-thread twin. */
struct driver {
#define DECLARE(name, plain, twin, parameters) CUresult(*name[2]) parameters;
    DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
    CUresult (*get_proc_address)(const char *, void **, int, uint64_t, int *);
};

extern struct driver simrt_driver;

/* The driver function `name`; DRIVER_OF picks the twin where `twin` is 1. */
#define DRIVER(name) (simrt_driver.name[0])
#define DRIVER_OF(name, twin) (simrt_driver.name[twin])

#endif
