//! The list of the symbols that we intercept.
//!
//! A line reads: library, when our function is called
//! ([`Entry`](crate::process::guard::Entry)), its module among the doors, the
//! CUDA version at which `cuGetProcAddress` gives out this ABI under the base
//! name (0: never), and the prototype. The real functions
//! ([`real`](crate::real)) and the doors ([`table`](crate::doors::table)) are
//! made from it.

/// Passes the list to the macro `then`.
macro_rules! intercepted {
    ($then:ident) => {
        $then! {
            Driver watch lifecycle 2000 cuCtxAttach(context: *mut CUcontext, flags: c_uint);
            Driver watch contexts 2000 cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice);
            Driver watch contexts 3020 cuCtxCreate_v2(
                context: *mut CUcontext, flags: c_uint, device: CUdevice,
            );
            Driver watch contexts 11040 cuCtxCreate_v3(
                context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint,
                device: CUdevice,
            );
            Driver watch contexts 12050 cuCtxCreate_v4(
                context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice,
            );
            Driver watch lifecycle 2000 cuCtxDestroy(context: CUcontext);
            Driver watch lifecycle 4000 cuCtxDestroy_v2(context: CUcontext);
            Driver watch lifecycle 2000 cuCtxDetach(context: CUcontext);
            Driver watch contexts 4000 cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint);
            Driver watch green 12040 cuCtxFromGreenCtx(context: *mut CUcontext, green: *mut c_void);
            Driver watch lifecycle 7000 cuDevicePrimaryCtxRelease(device: CUdevice);
            Driver watch lifecycle 11000 cuDevicePrimaryCtxRelease_v2(device: CUdevice);
            Driver watch lifecycle 7000 cuDevicePrimaryCtxReset(device: CUdevice);
            Driver watch lifecycle 11000 cuDevicePrimaryCtxReset_v2(device: CUdevice);
            Driver watch contexts 7000 cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            Driver always proc_address 11030 cuGetProcAddress(
                name: Text, function: *mut *mut c_void, version: c_int, flags: u64,
            );
            Driver always proc_address 12000 cuGetProcAddress_v2(
                name: Text, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int,
            );
            Driver watch green 12040 cuGreenCtxCreate(
                green: *mut *mut c_void, description: *mut c_void, device: CUdevice, flags: c_uint,
            );
            Driver watch green 12040 cuGreenCtxDestroy(green: *mut c_void);
            Driver watch ipc 4010 cuIpcCloseMemHandle(address: CUdeviceptr);
            Driver share ipc 4010 cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
            Driver watch ipc 4010 cuIpcOpenMemHandle(
                address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            Driver watch ipc 11000 cuIpcOpenMemHandle_v2(
                address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            Driver serve host 3020 cuMemAllocHost_v2(to: *mut *mut c_void, size: usize);
            Driver serve memory 3020 cuMemAllocPitch_v2(
                address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32,
            );
            Driver serve memory 3020 cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
            Driver free memory 11020 cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
            Driver free memory 11020 cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);
            Driver free host 2000 cuMemFreeHost(address: *mut c_void);
            Driver free memory 3020 cuMemFree_v2(address: CUdeviceptr);
            Driver share ranges 3020 cuMemGetAddressRange_v2(
                base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr,
            );
            Driver serve memory 2000 cuMemGetInfo(free: *mut u32, total: *mut u32);
            Driver serve memory 3020 cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            Driver serve host 2020 cuMemHostAlloc(
                to: *mut *mut c_void, size: usize, flags: c_uint,
            );
            Driver share host 2030 cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void);
            Driver share host 4000 cuMemHostUnregister(address: *mut c_void);
            Driver share ranges 4000 cuPointerGetAttribute(
                to: *mut c_void, attribute: c_int, address: CUdeviceptr,
            );
            Driver share ranges 7000 cuPointerGetAttributes(
                count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, address: CUdeviceptr,
            );
            Driver watch capture 10000 cuStreamBeginCapture(stream: CUstream);
            Driver watch capture 12030 cuStreamBeginCaptureToGraph(
                stream: CUstream, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
                count: usize, mode: CaptureMode,
            );
            Driver watch capture 12030 cuStreamBeginCaptureToGraph_ptsz(
                stream: CUstream, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
                count: usize, mode: CaptureMode,
            );
            Driver watch capture 10000 cuStreamBeginCapture_ptsz(stream: CUstream);
            Driver watch capture 10010 cuStreamBeginCapture_v2(stream: CUstream, mode: CaptureMode);
            Driver watch capture 10010 cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: CaptureMode);
            Driver watch capture 13030 cuStreamBeginRecaptureToGraph(
                stream: CUstream, mode: CaptureMode, graph: CUgraph, callback: *const c_void,
                data: *mut c_void,
            );
            Driver watch capture 13030 cuStreamBeginRecaptureToGraph_ptsz(
                stream: CUstream, mode: CaptureMode, graph: CUgraph, callback: *const c_void,
                data: *mut c_void,
            );
            Driver watch streams 2000 cuStreamCreate(stream: *mut CUstream, flags: c_uint);
            Driver watch streams 5050 cuStreamCreateWithPriority(
                stream: *mut CUstream, flags: c_uint, priority: c_int,
            );
            Driver watch streams 2000 cuStreamDestroy(stream: CUstream);
            Driver watch streams 4000 cuStreamDestroy_v2(stream: CUstream);
            Driver watch capture 10000 cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
            Driver watch capture 10000 cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph);
            Runtime free runtime 0 cudaFree(pointer: *mut c_void);
            Runtime serve runtime 0 cudaMalloc(pointer: *mut *mut c_void, size: usize);
            Runtime serve runtime 0 cudaMemGetInfo(free: *mut usize, total: *mut usize);
        }
    };
}

pub(crate) use intercepted;
