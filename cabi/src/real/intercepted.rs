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
            Driver watch arrays 3020 cuArray3DCreate_v2(array: *mut CUarray, description: *const ArrayDescription);
            Driver watch arrays 3020 cuArrayCreate_v2(array: *mut CUarray, description: *const FlatDescription);
            Driver watch arrays 2000 cuArrayDestroy(array: CUarray);
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
            Driver watch room 3010 cuCtxSetLimit(limit: c_int, value: usize);
            Driver watch devices 11040 cuDeviceGraphMemTrim(device: CUdevice);
            Driver watch lifecycle 7000 cuDevicePrimaryCtxRelease(device: CUdevice);
            Driver watch lifecycle 11000 cuDevicePrimaryCtxRelease_v2(device: CUdevice);
            Driver watch lifecycle 7000 cuDevicePrimaryCtxReset(device: CUdevice);
            Driver watch lifecycle 11000 cuDevicePrimaryCtxReset_v2(device: CUdevice);
            Driver watch contexts 7000 cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            Driver watch devices 2000 cuDeviceTotalMem(bytes: *mut u32, device: CUdevice);
            Driver watch devices 3020 cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
            Driver watch room 2000 cuEventCreate(event: *mut CUevent, flags: c_uint);
            Driver always proc_address 11030 cuGetProcAddress(
                name: Text, function: *mut *mut c_void, version: c_int, flags: u64,
            );
            Driver always proc_address 12000 cuGetProcAddress_v2(
                name: Text, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int,
            );
            Driver watch graphs 11040 cuGraphAddMemAllocNode(
                node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
                parameters: *mut MemNode,
            );
            Driver watch graphs 12020 cuGraphAddNode(
                node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
                parameters: *mut NodeParameters,
            );
            Driver watch graphs 12030 cuGraphAddNode_v2(
                node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
                count: usize, parameters: *mut NodeParameters,
            );
            Driver watch graphs 13041 cuGraphAddNode_v3(
                node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
                count: usize, parameters: *mut NodeParameters,
            );
            Driver watch graphs 10000 cuGraphInstantiate(
                executable: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char,
                length: usize,
            );
            Driver watch graphs 11040 cuGraphInstantiateWithFlags(
                executable: *mut CUgraphExec, graph: CUgraph, flags: u64,
            );
            Driver watch graphs 12000 cuGraphInstantiateWithParams(
                executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void,
            );
            Driver watch graphs 12000 cuGraphInstantiateWithParams_ptsz(
                executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut c_void,
            );
            Driver watch graphs 11000 cuGraphInstantiate_v2(
                executable: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char,
                length: usize,
            );
            Driver watch graphs 10000 cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
            Driver watch graphs 10000 cuGraphLaunch_ptsz(executable: CUgraphExec, stream: CUstream);
            Driver watch graphs 11010 cuGraphUpload(executable: CUgraphExec, stream: CUstream);
            Driver watch graphs 11010 cuGraphUpload_ptsz(executable: CUgraphExec, stream: CUstream);
            Driver watch room 3000 cuGraphicsMapResources(
                count: c_uint, resources: *mut *mut c_void, stream: CUstream,
            );
            Driver watch room 7000 cuGraphicsMapResources_ptsz(
                count: c_uint, resources: *mut *mut c_void, stream: CUstream,
            );
            Driver watch green 12040 cuGreenCtxCreate(
                green: *mut *mut c_void, description: *mut c_void, device: CUdevice, flags: c_uint,
            );
            Driver watch green 12040 cuGreenCtxDestroy(green: *mut c_void);
            Driver watch imports 10000 cuImportExternalMemory(
                memory: *mut *mut c_void, description: *const ExternalMemory,
            );
            Driver watch ipc 4010 cuIpcCloseMemHandle(address: CUdeviceptr);
            Driver share ipc 4010 cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
            Driver watch ipc 4010 cuIpcOpenMemHandle(
                address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            Driver watch ipc 11000 cuIpcOpenMemHandle_v2(
                address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            Driver watch async_pools 11020 cuMemAllocAsync(
                address: *mut CUdeviceptr, size: usize, stream: CUstream,
            );
            Driver watch async_pools 11020 cuMemAllocAsync_ptsz(
                address: *mut CUdeviceptr, size: usize, stream: CUstream,
            );
            Driver watch async_pools 11020 cuMemAllocFromPoolAsync(
                address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
            );
            Driver watch async_pools 11020 cuMemAllocFromPoolAsync_ptsz(
                address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
            );
            Driver serve host 3020 cuMemAllocHost_v2(to: *mut *mut c_void, size: usize);
            Driver watch managed 6000 cuMemAllocManaged(
                address: *mut CUdeviceptr, size: usize, flags: c_uint,
            );
            Driver serve memory 3020 cuMemAllocPitch_v2(
                address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32,
            );
            Driver serve memory 3020 cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
            Driver watch virtual_memory 10020 cuMemCreate(
                handle: *mut MemHandle, size: usize, properties: *const MemProperties, flags: u64,
            );
            Driver free memory 11020 cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
            Driver free memory 11020 cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);
            Driver free host 2000 cuMemFreeHost(address: *mut c_void);
            Driver free memory 3020 cuMemFree_v2(address: CUdeviceptr);
            Driver share ranges 3020 cuMemGetAddressRange_v2(
                base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr,
            );
            Driver watch ranges 11070 cuMemGetHandleForAddressRange(
                handle: *mut c_void, address: CUdeviceptr, size: usize, kind: c_int, flags: u64,
            );
            Driver serve memory 2000 cuMemGetInfo(free: *mut u32, total: *mut u32);
            Driver serve memory 3020 cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            Driver serve host 2020 cuMemHostAlloc(
                to: *mut *mut c_void, size: usize, flags: c_uint,
            );
            Driver share host 2030 cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void);
            Driver watch host 6050 cuMemHostRegister_v2(
                host: *mut c_void, size: usize, flags: c_uint,
            );
            Driver share host 4000 cuMemHostUnregister(address: *mut c_void);
            Driver watch virtual_memory 10020 cuMemImportFromShareableHandle(
                handle: *mut MemHandle, shared: *mut c_void, kind: c_int,
            );
            Driver watch virtual_memory 10020 cuMemMap(
                address: CUdeviceptr, size: usize, offset: usize, handle: MemHandle, flags: u64,
            );
            Driver watch async_pools 11020 cuMemPoolCreate(
                pool: *mut CUmemoryPool, properties: *const MemProperties,
            );
            Driver watch async_pools 11020 cuMemPoolDestroy(pool: CUmemoryPool);
            Driver watch async_pools 11020 cuMemPoolImportFromShareableHandle(
                pool: *mut CUmemoryPool, shared: *mut c_void, kind: c_int, flags: u64,
            );
            Driver watch async_pools 11020 cuMemPoolImportPointer(
                address: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut c_void,
            );
            Driver watch async_pools 11020 cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
            Driver watch virtual_memory 10020 cuMemRelease(handle: MemHandle);
            Driver watch virtual_memory 11000 cuMemRetainAllocationHandle(
                handle: *mut MemHandle, address: *mut c_void,
            );
            Driver watch virtual_memory 10020 cuMemSetAccess(
                address: CUdeviceptr, size: usize, access: *const c_void, count: usize,
            );
            Driver watch virtual_memory 10020 cuMemUnmap(address: CUdeviceptr, size: usize);
            Driver watch arrays 5000 cuMipmappedArrayCreate(
                array: *mut CUarray, description: *const ArrayDescription, levels: c_uint,
            );
            Driver watch arrays 5000 cuMipmappedArrayDestroy(array: CUarray);
            Driver watch room 12010 cuMulticastBindAddr(
                multicast: MemHandle, offset: usize, address: CUdeviceptr, size: usize, flags: u64,
            );
            Driver watch room 13010 cuMulticastBindAddr_v2(
                multicast: MemHandle, device: CUdevice, offset: usize, address: CUdeviceptr,
                size: usize, flags: u64,
            );
            Driver watch room 12010 cuMulticastBindMem(
                multicast: MemHandle, offset: usize, memory: MemHandle, from: usize, size: usize,
                flags: u64,
            );
            Driver watch room 13010 cuMulticastBindMem_v2(
                multicast: MemHandle, device: CUdevice, offset: usize, memory: MemHandle,
                from: usize, size: usize, flags: u64,
            );
            Driver share ranges 4000 cuPointerGetAttribute(
                to: *mut c_void, attribute: c_int, address: CUdeviceptr,
            );
            Driver share ranges 7000 cuPointerGetAttributes(
                count: c_uint, attributes: *mut c_int, to: *mut *mut c_void, address: CUdeviceptr,
            );
            Driver watch ranges 6000 cuPointerSetAttribute(
                value: *const c_void, attribute: c_int, address: CUdeviceptr,
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
