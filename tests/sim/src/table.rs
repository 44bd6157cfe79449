//! Every function of the interface: its name, the version that it came with,
//! and the symbol that this ABI of it has.
//!
//! Owns the one table that look-ups, exports and the functions that are not
//! there come from. Invariant: a name that the interface knows is exported,
//! also where this driver answers `NOT_SUPPORTED`. Cost: a look-up is a linear
//! search.

#![allow(clippy::wildcard_imports, reason = "the table names every function")]

use std::ffi::c_void;
use std::sync::{Once, OnceLock};

use crate::capture::*;
use crate::context::*;
use crate::copy::*;
use crate::device::*;
use crate::entry::{Site, bare};
use crate::env;
use crate::errors::*;
use crate::event::*;
use crate::host::*;
use crate::init::unsupported;
use crate::init::*;
use crate::ipc::*;
use crate::launch::*;
use crate::memory::*;
use crate::memset::*;
use crate::module::*;
use crate::pointer::*;
use crate::pool::*;
use crate::stream::*;

/// One ABI of a function.
struct Name {
    base: &'static str,
    version: i32,
    symbol: &'static str,
    address: fn() -> *const c_void,
    /// The twin for which stream 0 is the thread's own default stream.
    twin: Option<fn() -> *const c_void>,
}

/// What the look-up says: found, not there at all, or newer than asked for.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const TOO_NEW: u32 = 2;

/// Flag of a look-up that asks for the twins.
const PER_THREAD: u64 = 2;

/// The newest ABI of a function that is no newer than `version`, and what to
/// say about it.
pub(crate) fn look_up(base: &str, version: i32, flags: u64) -> (*const c_void, u32) {
    let driver = *DRIVER.get_or_init(env::version);
    let named = || {
        NAMES
            .iter()
            .filter(|n| n.base == base && n.version <= driver)
    };
    let found = named()
        .filter(|n| n.version <= version && !env::lacks(n.symbol) && !env::lacks(base))
        .max_by_key(|n| n.version);
    match found {
        Some(name) if flags & PER_THREAD != 0 => (name.twin.unwrap_or(name.address)(), FOUND),
        Some(name) => ((name.address)(), FOUND),
        None if named().next().is_some() && !env::lacks(base) => (std::ptr::null(), TOO_NEW),
        None => (std::ptr::null(), NOT_FOUND),
    }
}

/// The functions that this driver is to lack: by the environment's word, or
/// because they are newer than it says it is.
pub(crate) fn lacking() -> Vec<*const c_void> {
    let driver = env::version();
    let there = |n: &Name| {
        let named = |other: &&Name| other.symbol == n.symbol && other.version <= driver;
        NAMES.iter().any(|other| named(&other)) && !env::lacks(n.symbol) && !env::lacks(n.base)
    };
    let gone = NAMES.iter().filter(|n| !there(n));
    gone.flat_map(|n| [Some((n.address)()), n.twin.map(|t| t())])
        .flatten()
        .collect()
}

static DRIVER: OnceLock<i32> = OnceLock::new();

/// Writes the table, and a function that says it is not there for each name
/// that this driver does without.
macro_rules! names {
    (here { $($base:ident $version:literal $symbol:ident $(/ $twin:ident)?;)* }
     absent { $($absent:ident $since:literal $stub:ident;)* }) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $stub() -> u32 {
                static SITE: Site = Site::new(stringify!($stub));
                static SAID: Once = Once::new();
                bare(&SITE, || unsupported(stringify!($stub), &SAID))
            }
        )*
        static NAMES: &[Name] = &[
            $(Name {
                base: stringify!($base),
                version: $version,
                symbol: stringify!($symbol),
                address: || $symbol as *const c_void,
                twin: names!(@twin $($twin)?),
            },)*
            $(Name {
                base: stringify!($absent),
                version: $since,
                symbol: stringify!($stub),
                address: || $stub as *const c_void,
                twin: None,
            },)*
        ];
    };
    (@twin) => { None };
    (@twin $twin:ident) => { Some(|| $twin as *const c_void) };
}

names! {
    here {
        cuCtxCreate 3020 cuCtxCreate_v2;
        cuCtxCreate 11040 cuCtxCreate_v3;
        cuCtxCreate 12050 cuCtxCreate_v4;
        cuCtxDestroy 4000 cuCtxDestroy_v2;
        cuCtxDisablePeerAccess 4000 cuCtxDisablePeerAccess;
        cuCtxEnablePeerAccess 4000 cuCtxEnablePeerAccess;
        cuCtxGetApiVersion 3020 cuCtxGetApiVersion;
        cuCtxGetCacheConfig 3020 cuCtxGetCacheConfig;
        cuCtxGetCurrent 4000 cuCtxGetCurrent;
        cuCtxGetDevice 2000 cuCtxGetDevice;
        cuCtxGetDevice 13000 cuCtxGetDevice_v2;
        cuCtxGetFlags 7000 cuCtxGetFlags;
        cuCtxGetId 12000 cuCtxGetId;
        cuCtxGetLimit 3010 cuCtxGetLimit;
        cuCtxGetSharedMemConfig 4020 cuCtxGetSharedMemConfig;
        cuCtxGetStreamPriorityRange 5050 cuCtxGetStreamPriorityRange;
        cuCtxPopCurrent 4000 cuCtxPopCurrent_v2;
        cuCtxPushCurrent 4000 cuCtxPushCurrent_v2;
        cuCtxRecordEvent 12050 cuCtxRecordEvent;
        cuCtxResetPersistingL2Cache 11000 cuCtxResetPersistingL2Cache;
        cuCtxSetCacheConfig 3020 cuCtxSetCacheConfig;
        cuCtxSetCurrent 4000 cuCtxSetCurrent;
        cuCtxSetFlags 12010 cuCtxSetFlags;
        cuCtxSetLimit 3010 cuCtxSetLimit;
        cuCtxSetSharedMemConfig 4020 cuCtxSetSharedMemConfig;
        cuCtxSynchronize 2000 cuCtxSynchronize;
        cuCtxSynchronize 13000 cuCtxSynchronize_v2;
        cuCtxWaitEvent 12050 cuCtxWaitEvent;
        cuDeviceCanAccessPeer 4000 cuDeviceCanAccessPeer;
        cuDeviceComputeCapability 2000 cuDeviceComputeCapability;
        cuDeviceGet 2000 cuDeviceGet;
        cuDeviceGetAttribute 2000 cuDeviceGetAttribute;
        cuDeviceGetByPCIBusId 4010 cuDeviceGetByPCIBusId;
        cuDeviceGetCount 2000 cuDeviceGetCount;
        cuDeviceGetDefaultMemPool 11020 cuDeviceGetDefaultMemPool;
        cuDeviceGetLuid 10000 cuDeviceGetLuid;
        cuDeviceGetMemPool 11020 cuDeviceGetMemPool;
        cuDeviceGetName 2000 cuDeviceGetName;
        cuDeviceGetP2PAttribute 8000 cuDeviceGetP2PAttribute;
        cuDeviceGetPCIBusId 4010 cuDeviceGetPCIBusId;
        cuDeviceGetUuid 9020 cuDeviceGetUuid;
        cuDeviceGetUuid 11040 cuDeviceGetUuid_v2;
        cuDevicePrimaryCtxGetState 7000 cuDevicePrimaryCtxGetState;
        cuDevicePrimaryCtxRelease 7000 cuDevicePrimaryCtxRelease;
        cuDevicePrimaryCtxRelease 11000 cuDevicePrimaryCtxRelease_v2;
        cuDevicePrimaryCtxReset 7000 cuDevicePrimaryCtxReset;
        cuDevicePrimaryCtxReset 11000 cuDevicePrimaryCtxReset_v2;
        cuDevicePrimaryCtxRetain 7000 cuDevicePrimaryCtxRetain;
        cuDevicePrimaryCtxSetFlags 7000 cuDevicePrimaryCtxSetFlags;
        cuDevicePrimaryCtxSetFlags 11000 cuDevicePrimaryCtxSetFlags_v2;
        cuDeviceSetMemPool 11020 cuDeviceSetMemPool;
        cuDeviceTotalMem 3020 cuDeviceTotalMem_v2;
        cuDriverGetVersion 2020 cuDriverGetVersion;
        cuEventCreate 2000 cuEventCreate;
        cuEventDestroy 4000 cuEventDestroy_v2;
        cuEventElapsedTime 2000 cuEventElapsedTime;
        cuEventElapsedTime 12080 cuEventElapsedTime_v2;
        cuEventQuery 2000 cuEventQuery;
        cuEventRecord 2000 cuEventRecord / cuEventRecord_ptsz;
        cuEventRecordWithFlags 11010 cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz;
        cuEventSynchronize 2000 cuEventSynchronize;
        cuFlushGPUDirectRDMAWrites 11030 cuFlushGPUDirectRDMAWrites;
        cuFuncGetAttribute 2020 cuFuncGetAttribute;
        cuFuncGetModule 11000 cuFuncGetModule;
        cuFuncGetName 12030 cuFuncGetName;
        cuFuncGetParamCount 13020 cuFuncGetParamCount;
        cuFuncGetParamInfo 12040 cuFuncGetParamInfo;
        cuFuncIsLoaded 12040 cuFuncIsLoaded;
        cuFuncLoad 12040 cuFuncLoad;
        cuFuncSetAttribute 9000 cuFuncSetAttribute;
        cuFuncSetCacheConfig 3000 cuFuncSetCacheConfig;
        cuFuncSetSharedMemConfig 4020 cuFuncSetSharedMemConfig;
        cuGetErrorName 6000 cuGetErrorName;
        cuGetErrorString 6000 cuGetErrorString;
        cuGetProcAddress 11030 cuGetProcAddress;
        cuGetProcAddress 12000 cuGetProcAddress_v2;
        cuGraphCreate 10000 cuGraphCreate;
        cuGraphDestroy 10000 cuGraphDestroy;
        cuGraphExecDestroy 10000 cuGraphExecDestroy;
        cuGraphGetNodes 10000 cuGraphGetNodes;
        cuGraphInstantiate 10000 cuGraphInstantiate;
        cuGraphInstantiate 11000 cuGraphInstantiate_v2;
        cuGraphInstantiate 12000 cuGraphInstantiateWithFlags;
        cuGraphInstantiateWithFlags 11040 cuGraphInstantiateWithFlags;
        cuGraphInstantiateWithParams 12000 cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz;
        cuGraphLaunch 10000 cuGraphLaunch / cuGraphLaunch_ptsz;
        cuGraphUpload 11010 cuGraphUpload / cuGraphUpload_ptsz;
        cuInit 2000 cuInit;
        cuIpcCloseMemHandle 4010 cuIpcCloseMemHandle;
        cuIpcGetEventHandle 4010 cuIpcGetEventHandle;
        cuIpcGetMemHandle 4010 cuIpcGetMemHandle;
        cuIpcOpenEventHandle 4010 cuIpcOpenEventHandle;
        cuIpcOpenMemHandle 4010 cuIpcOpenMemHandle;
        cuIpcOpenMemHandle 11000 cuIpcOpenMemHandle_v2;
        cuKernelGetAttribute 12000 cuKernelGetAttribute;
        cuKernelGetFunction 12000 cuKernelGetFunction;
        cuKernelGetLibrary 12050 cuKernelGetLibrary;
        cuKernelGetName 12030 cuKernelGetName;
        cuKernelGetParamCount 13020 cuKernelGetParamCount;
        cuKernelGetParamInfo 12040 cuKernelGetParamInfo;
        cuKernelSetAttribute 12000 cuKernelSetAttribute;
        cuKernelSetCacheConfig 12000 cuKernelSetCacheConfig;
        cuLaunchCooperativeKernel 9000 cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz;
        cuLaunchHostFunc 10000 cuLaunchHostFunc / cuLaunchHostFunc_ptsz;
        cuLaunchKernel 4000 cuLaunchKernel / cuLaunchKernel_ptsz;
        cuLaunchKernelEx 11060 cuLaunchKernelEx / cuLaunchKernelEx_ptsz;
        cuLibraryEnumerateKernels 12040 cuLibraryEnumerateKernels;
        cuLibraryGetGlobal 12000 cuLibraryGetGlobal;
        cuLibraryGetKernel 12000 cuLibraryGetKernel;
        cuLibraryGetKernelCount 12040 cuLibraryGetKernelCount;
        cuLibraryGetModule 12000 cuLibraryGetModule;
        cuLibraryLoadData 12000 cuLibraryLoadData;
        cuLibraryLoadFromFile 12000 cuLibraryLoadFromFile;
        cuLibraryUnload 12000 cuLibraryUnload;
        cuLinkAddData 6050 cuLinkAddData_v2;
        cuLinkAddFile 6050 cuLinkAddFile_v2;
        cuLinkComplete 5050 cuLinkComplete;
        cuLinkCreate 6050 cuLinkCreate_v2;
        cuLinkDestroy 5050 cuLinkDestroy;
        cuMemAdvise 8000 cuMemAdvise;
        cuMemAdvise 12020 cuMemAdvise_v2;
        cuMemAlloc 3020 cuMemAlloc_v2;
        cuMemAllocAsync 11020 cuMemAllocAsync / cuMemAllocAsync_ptsz;
        cuMemAllocFromPoolAsync 11020 cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz;
        cuMemAllocHost 3020 cuMemAllocHost_v2;
        cuMemAllocManaged 6000 cuMemAllocManaged;
        cuMemAllocPitch 3020 cuMemAllocPitch_v2;
        cuMemFree 3020 cuMemFree_v2;
        cuMemFreeAsync 11020 cuMemFreeAsync / cuMemFreeAsync_ptsz;
        cuMemFreeHost 2000 cuMemFreeHost;
        cuMemGetAddressRange 3020 cuMemGetAddressRange_v2;
        cuMemGetInfo 3020 cuMemGetInfo_v2;
        cuMemHostAlloc 2020 cuMemHostAlloc;
        cuMemHostGetDevicePointer 3020 cuMemHostGetDevicePointer_v2;
        cuMemHostGetFlags 2030 cuMemHostGetFlags;
        cuMemHostRegister 4000 cuMemHostRegister;
        cuMemHostRegister 6050 cuMemHostRegister_v2;
        cuMemHostUnregister 4000 cuMemHostUnregister;
        cuMemPoolCreate 11020 cuMemPoolCreate;
        cuMemPoolDestroy 11020 cuMemPoolDestroy;
        cuMemPoolGetAccess 11020 cuMemPoolGetAccess;
        cuMemPoolGetAttribute 11020 cuMemPoolGetAttribute;
        cuMemPoolSetAccess 11020 cuMemPoolSetAccess;
        cuMemPoolSetAttribute 11020 cuMemPoolSetAttribute;
        cuMemPoolTrimTo 11020 cuMemPoolTrimTo;
        cuMemPrefetchAsync 8000 cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz;
        cuMemPrefetchAsync 12020 cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz;
        cuMemcpy 4000 cuMemcpy / cuMemcpy_ptds;
        cuMemcpy2D 3020 cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds;
        cuMemcpy2DAsync 3020 cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz;
        cuMemcpy2DUnaligned 3020 cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds;
        cuMemcpy3D 3020 cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds;
        cuMemcpy3DAsync 3020 cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz;
        cuMemcpy3DPeer 4000 cuMemcpy3DPeer / cuMemcpy3DPeer_ptds;
        cuMemcpy3DPeerAsync 4000 cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz;
        cuMemcpyAsync 4000 cuMemcpyAsync / cuMemcpyAsync_ptsz;
        cuMemcpyDtoD 3020 cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds;
        cuMemcpyDtoDAsync 3020 cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz;
        cuMemcpyDtoH 3020 cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds;
        cuMemcpyDtoHAsync 3020 cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz;
        cuMemcpyHtoD 3020 cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds;
        cuMemcpyHtoDAsync 3020 cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz;
        cuMemcpyPeer 4000 cuMemcpyPeer / cuMemcpyPeer_ptds;
        cuMemcpyPeerAsync 4000 cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz;
        cuMemsetD16 3020 cuMemsetD16_v2 / cuMemsetD16_v2_ptds;
        cuMemsetD16Async 3020 cuMemsetD16Async / cuMemsetD16Async_ptsz;
        cuMemsetD2D16 3020 cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds;
        cuMemsetD2D16Async 3020 cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz;
        cuMemsetD2D32 3020 cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds;
        cuMemsetD2D32Async 3020 cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz;
        cuMemsetD2D8 3020 cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds;
        cuMemsetD2D8Async 3020 cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz;
        cuMemsetD32 3020 cuMemsetD32_v2 / cuMemsetD32_v2_ptds;
        cuMemsetD32Async 3020 cuMemsetD32Async / cuMemsetD32Async_ptsz;
        cuMemsetD8 3020 cuMemsetD8_v2 / cuMemsetD8_v2_ptds;
        cuMemsetD8Async 3020 cuMemsetD8Async / cuMemsetD8Async_ptsz;
        cuModuleEnumerateFunctions 12040 cuModuleEnumerateFunctions;
        cuModuleGetFunction 2000 cuModuleGetFunction;
        cuModuleGetFunctionCount 12040 cuModuleGetFunctionCount;
        cuModuleGetGlobal 3020 cuModuleGetGlobal_v2;
        cuModuleGetLoadingMode 11070 cuModuleGetLoadingMode;
        cuModuleLoad 2000 cuModuleLoad;
        cuModuleLoadData 2000 cuModuleLoadData;
        cuModuleLoadDataEx 2010 cuModuleLoadDataEx;
        cuModuleLoadFatBinary 2000 cuModuleLoadFatBinary;
        cuModuleUnload 2000 cuModuleUnload;
        cuOccupancyAvailableDynamicSMemPerBlock 10020 cuOccupancyAvailableDynamicSMemPerBlock;
        cuOccupancyMaxActiveBlocksPerMultiprocessor 6050 cuOccupancyMaxActiveBlocksPerMultiprocessor;
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
        cuOccupancyMaxPotentialBlockSize 6050 cuOccupancyMaxPotentialBlockSize;
        cuOccupancyMaxPotentialBlockSizeWithFlags 7000 cuOccupancyMaxPotentialBlockSizeWithFlags;
        cuPointerGetAttribute 4000 cuPointerGetAttribute;
        cuPointerGetAttributes 7000 cuPointerGetAttributes;
        cuPointerSetAttribute 6000 cuPointerSetAttribute;
        cuProfilerStart 4000 cuProfilerStart;
        cuProfilerStop 4000 cuProfilerStop;
        cuStreamAddCallback 5000 cuStreamAddCallback / cuStreamAddCallback_ptsz;
        cuStreamAttachMemAsync 6000 cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz;
        cuStreamBeginCapture 10000 cuStreamBeginCapture / cuStreamBeginCapture_ptsz;
        cuStreamBeginCapture 10010 cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz;
        cuStreamCopyAttributes 11000 cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz;
        cuStreamCreate 2000 cuStreamCreate;
        cuStreamCreateWithPriority 5050 cuStreamCreateWithPriority;
        cuStreamDestroy 4000 cuStreamDestroy_v2;
        cuStreamEndCapture 10000 cuStreamEndCapture / cuStreamEndCapture_ptsz;
        cuStreamGetCaptureInfo 10010 cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz;
        cuStreamGetCaptureInfo 11030 cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz;
        cuStreamGetCaptureInfo 12030 cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz;
        cuStreamGetCtx 9020 cuStreamGetCtx / cuStreamGetCtx_ptsz;
        cuStreamGetCtx 12050 cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz;
        cuStreamGetDevice 12080 cuStreamGetDevice / cuStreamGetDevice_ptsz;
        cuStreamGetFlags 5050 cuStreamGetFlags / cuStreamGetFlags_ptsz;
        cuStreamGetId 12000 cuStreamGetId / cuStreamGetId_ptsz;
        cuStreamGetPriority 5050 cuStreamGetPriority / cuStreamGetPriority_ptsz;
        cuStreamIsCapturing 10000 cuStreamIsCapturing / cuStreamIsCapturing_ptsz;
        cuStreamQuery 2000 cuStreamQuery / cuStreamQuery_ptsz;
        cuStreamSetAttribute 11000 cuStreamSetAttribute / cuStreamSetAttribute_ptsz;
        cuStreamSynchronize 2000 cuStreamSynchronize / cuStreamSynchronize_ptsz;
        cuStreamWaitEvent 3020 cuStreamWaitEvent / cuStreamWaitEvent_ptsz;
        cuThreadExchangeStreamCaptureMode 10010 cuThreadExchangeStreamCaptureMode;
    }
    absent {
        cuArray3DCreate 2000 cuArray3DCreate;
        cuArray3DCreate 3020 cuArray3DCreate_v2;
        cuArray3DGetDescriptor 2000 cuArray3DGetDescriptor;
        cuArray3DGetDescriptor 3020 cuArray3DGetDescriptor_v2;
        cuArrayCreate 2000 cuArrayCreate;
        cuArrayCreate 3020 cuArrayCreate_v2;
        cuArrayDestroy 2000 cuArrayDestroy;
        cuArrayGetDescriptor 2000 cuArrayGetDescriptor;
        cuArrayGetDescriptor 3020 cuArrayGetDescriptor_v2;
        cuArrayGetMemoryRequirements 11060 cuArrayGetMemoryRequirements;
        cuArrayGetPlane 11020 cuArrayGetPlane;
        cuArrayGetSparseProperties 11010 cuArrayGetSparseProperties;
        cuCheckpointOperationComplete 13041 cuCheckpointOperationComplete;
        cuCheckpointProcessCheckpoint 12080 cuCheckpointProcessCheckpoint;
        cuCheckpointProcessGetRestoreThreadId 12080 cuCheckpointProcessGetRestoreThreadId;
        cuCheckpointProcessGetState 12080 cuCheckpointProcessGetState;
        cuCheckpointProcessLock 12080 cuCheckpointProcessLock;
        cuCheckpointProcessRestore 12080 cuCheckpointProcessRestore;
        cuCheckpointProcessUnlock 12080 cuCheckpointProcessUnlock;
        cuCoredumpDeregisterCompleteCallback 13020 cuCoredumpDeregisterCompleteCallback;
        cuCoredumpDeregisterStartCallback 13020 cuCoredumpDeregisterStartCallback;
        cuCoredumpGetAttribute 12010 cuCoredumpGetAttribute;
        cuCoredumpGetAttributeGlobal 12010 cuCoredumpGetAttributeGlobal;
        cuCoredumpRegisterCompleteCallback 13020 cuCoredumpRegisterCompleteCallback;
        cuCoredumpRegisterStartCallback 13020 cuCoredumpRegisterStartCallback;
        cuCoredumpSetAttribute 12010 cuCoredumpSetAttribute;
        cuCoredumpSetAttributeGlobal 12010 cuCoredumpSetAttributeGlobal;
        cuCtxAttach 2000 cuCtxAttach;
        cuCtxCreate 2000 cuCtxCreate;
        cuCtxDestroy 2000 cuCtxDestroy;
        cuCtxDetach 2000 cuCtxDetach;
        cuCtxFromGreenCtx 12040 cuCtxFromGreenCtx;
        cuCtxGetDevResource 12040 cuCtxGetDevResource;
        cuCtxGetExecAffinity 11040 cuCtxGetExecAffinity;
        cuCtxPopCurrent 2000 cuCtxPopCurrent;
        cuCtxPushCurrent 2000 cuCtxPushCurrent;
        cuDestroyExternalMemory 10000 cuDestroyExternalMemory;
        cuDestroyExternalSemaphore 10000 cuDestroyExternalSemaphore;
        cuDevResourceGenerateDesc 12040 cuDevResourceGenerateDesc;
        cuDevSmResourceSplit 13010 cuDevSmResourceSplit;
        cuDevSmResourceSplitByCount 12040 cuDevSmResourceSplitByCount;
        cuDeviceGetCliqueCount 13041 cuDeviceGetCliqueCount;
        cuDeviceGetCliqueInfo 13041 cuDeviceGetCliqueInfo;
        cuDeviceGetDevResource 12040 cuDeviceGetDevResource;
        cuDeviceGetExecAffinitySupport 11040 cuDeviceGetExecAffinitySupport;
        cuDeviceGetFabricClusterUuid 13041 cuDeviceGetFabricClusterUuid;
        cuDeviceGetGraphMemAttribute 11040 cuDeviceGetGraphMemAttribute;
        cuDeviceGetHostAtomicCapabilities 13000 cuDeviceGetHostAtomicCapabilities;
        cuDeviceGetNvSciSyncAttributes 10020 cuDeviceGetNvSciSyncAttributes;
        cuDeviceGetP2PAtomicCapabilities 13000 cuDeviceGetP2PAtomicCapabilities;
        cuDeviceGetProperties 2000 cuDeviceGetProperties;
        cuDeviceGetTexture1DLinearMaxWidth 11010 cuDeviceGetTexture1DLinearMaxWidth;
        cuDeviceGraphMemTrim 11040 cuDeviceGraphMemTrim;
        cuDeviceRegisterAsyncNotification 12040 cuDeviceRegisterAsyncNotification;
        cuDeviceSetGraphMemAttribute 11040 cuDeviceSetGraphMemAttribute;
        cuDeviceTotalMem 2000 cuDeviceTotalMem;
        cuDeviceUnregisterAsyncNotification 12040 cuDeviceUnregisterAsyncNotification;
        cuEGLStreamConsumerAcquireFrame 7000 cuEGLStreamConsumerAcquireFrame;
        cuEGLStreamConsumerConnect 7000 cuEGLStreamConsumerConnect;
        cuEGLStreamConsumerConnectWithFlags 8000 cuEGLStreamConsumerConnectWithFlags;
        cuEGLStreamConsumerDisconnect 7000 cuEGLStreamConsumerDisconnect;
        cuEGLStreamConsumerReleaseFrame 7000 cuEGLStreamConsumerReleaseFrame;
        cuEGLStreamProducerConnect 7000 cuEGLStreamProducerConnect;
        cuEGLStreamProducerDisconnect 7000 cuEGLStreamProducerDisconnect;
        cuEGLStreamProducerPresentFrame 7000 cuEGLStreamProducerPresentFrame;
        cuEGLStreamProducerReturnFrame 7000 cuEGLStreamProducerReturnFrame;
        cuEventCreateFromEGLSync 9000 cuEventCreateFromEGLSync;
        cuEventDestroy 2000 cuEventDestroy;
        cuExternalMemoryGetMappedBuffer 10000 cuExternalMemoryGetMappedBuffer;
        cuExternalMemoryGetMappedMipmappedArray 10000 cuExternalMemoryGetMappedMipmappedArray;
        cuFabricCpyBatchAsync 13050 cuFabricCpyBatchAsync;
        cuFuncSetBlockShape 2000 cuFuncSetBlockShape;
        cuFuncSetSharedSize 2000 cuFuncSetSharedSize;
        cuGLCtxCreate 3020 cuGLCtxCreate;
        cuGLGetDevices 6050 cuGLGetDevices;
        cuGLInit 2000 cuGLInit;
        cuGLMapBufferObject 3020 cuGLMapBufferObject;
        cuGLMapBufferObjectAsync 3020 cuGLMapBufferObjectAsync;
        cuGLRegisterBufferObject 2000 cuGLRegisterBufferObject;
        cuGLSetBufferObjectMapFlags 2030 cuGLSetBufferObjectMapFlags;
        cuGLUnmapBufferObject 2000 cuGLUnmapBufferObject;
        cuGLUnmapBufferObjectAsync 2030 cuGLUnmapBufferObjectAsync;
        cuGLUnregisterBufferObject 2000 cuGLUnregisterBufferObject;
        cuGetExportTable 3000 cuGetExportTable;
        cuGraphAddBatchMemOpNode 11070 cuGraphAddBatchMemOpNode;
        cuGraphAddChildGraphNode 10000 cuGraphAddChildGraphNode;
        cuGraphAddDependencies 10000 cuGraphAddDependencies;
        cuGraphAddDependencies 12030 cuGraphAddDependencies_v2;
        cuGraphAddEmptyNode 10000 cuGraphAddEmptyNode;
        cuGraphAddEventRecordNode 11010 cuGraphAddEventRecordNode;
        cuGraphAddEventWaitNode 11010 cuGraphAddEventWaitNode;
        cuGraphAddExternalSemaphoresSignalNode 11020 cuGraphAddExternalSemaphoresSignalNode;
        cuGraphAddExternalSemaphoresWaitNode 11020 cuGraphAddExternalSemaphoresWaitNode;
        cuGraphAddHostNode 10000 cuGraphAddHostNode;
        cuGraphAddKernelNode 10000 cuGraphAddKernelNode;
        cuGraphAddKernelNode 12000 cuGraphAddKernelNode_v2;
        cuGraphAddMemAllocNode 11040 cuGraphAddMemAllocNode;
        cuGraphAddMemFreeNode 11040 cuGraphAddMemFreeNode;
        cuGraphAddMemcpyNode 10000 cuGraphAddMemcpyNode;
        cuGraphAddMemsetNode 10000 cuGraphAddMemsetNode;
        cuGraphAddNode 12020 cuGraphAddNode;
        cuGraphAddNode 12030 cuGraphAddNode_v2;
        cuGraphAddNode 13041 cuGraphAddNode_v3;
        cuGraphBatchMemOpNodeGetParams 11070 cuGraphBatchMemOpNodeGetParams;
        cuGraphBatchMemOpNodeSetParams 11070 cuGraphBatchMemOpNodeSetParams;
        cuGraphChildGraphNodeGetGraph 10000 cuGraphChildGraphNodeGetGraph;
        cuGraphClone 10000 cuGraphClone;
        cuGraphConditionalHandleCreate 12030 cuGraphConditionalHandleCreate;
        cuGraphDebugDotPrint 11030 cuGraphDebugDotPrint;
        cuGraphDestroyNode 10000 cuGraphDestroyNode;
        cuGraphEventRecordNodeGetEvent 11010 cuGraphEventRecordNodeGetEvent;
        cuGraphEventRecordNodeSetEvent 11010 cuGraphEventRecordNodeSetEvent;
        cuGraphEventWaitNodeGetEvent 11010 cuGraphEventWaitNodeGetEvent;
        cuGraphEventWaitNodeSetEvent 11010 cuGraphEventWaitNodeSetEvent;
        cuGraphExecBatchMemOpNodeSetParams 11070 cuGraphExecBatchMemOpNodeSetParams;
        cuGraphExecChildGraphNodeSetParams 11010 cuGraphExecChildGraphNodeSetParams;
        cuGraphExecEventRecordNodeSetEvent 11010 cuGraphExecEventRecordNodeSetEvent;
        cuGraphExecEventWaitNodeSetEvent 11010 cuGraphExecEventWaitNodeSetEvent;
        cuGraphExecExternalSemaphoresSignalNodeSetParams 11020 cuGraphExecExternalSemaphoresSignalNodeSetParams;
        cuGraphExecExternalSemaphoresWaitNodeSetParams 11020 cuGraphExecExternalSemaphoresWaitNodeSetParams;
        cuGraphExecGetFlags 12000 cuGraphExecGetFlags;
        cuGraphExecGetId 13010 cuGraphExecGetId;
        cuGraphExecHostNodeSetParams 10020 cuGraphExecHostNodeSetParams;
        cuGraphExecKernelNodeSetParams 10010 cuGraphExecKernelNodeSetParams;
        cuGraphExecKernelNodeSetParams 12000 cuGraphExecKernelNodeSetParams_v2;
        cuGraphExecMemcpyNodeSetParams 10020 cuGraphExecMemcpyNodeSetParams;
        cuGraphExecMemsetNodeSetParams 10020 cuGraphExecMemsetNodeSetParams;
        cuGraphExecNodeSetParams 12020 cuGraphExecNodeSetParams;
        cuGraphExecUpdate 10020 cuGraphExecUpdate;
        cuGraphExecUpdate 12000 cuGraphExecUpdate_v2;
        cuGraphExternalSemaphoresSignalNodeGetParams 11020 cuGraphExternalSemaphoresSignalNodeGetParams;
        cuGraphExternalSemaphoresSignalNodeSetParams 11020 cuGraphExternalSemaphoresSignalNodeSetParams;
        cuGraphExternalSemaphoresWaitNodeGetParams 11020 cuGraphExternalSemaphoresWaitNodeGetParams;
        cuGraphExternalSemaphoresWaitNodeSetParams 11020 cuGraphExternalSemaphoresWaitNodeSetParams;
        cuGraphGetEdges 10000 cuGraphGetEdges;
        cuGraphGetEdges 12030 cuGraphGetEdges_v2;
        cuGraphGetId 13010 cuGraphGetId;
        cuGraphGetRootNodes 10000 cuGraphGetRootNodes;
        cuGraphHostNodeGetParams 10000 cuGraphHostNodeGetParams;
        cuGraphHostNodeSetParams 10000 cuGraphHostNodeSetParams;
        cuGraphKernelNodeCopyAttributes 11000 cuGraphKernelNodeCopyAttributes;
        cuGraphKernelNodeGetAttribute 11000 cuGraphKernelNodeGetAttribute;
        cuGraphKernelNodeGetParams 10000 cuGraphKernelNodeGetParams;
        cuGraphKernelNodeGetParams 12000 cuGraphKernelNodeGetParams_v2;
        cuGraphKernelNodeSetAttribute 11000 cuGraphKernelNodeSetAttribute;
        cuGraphKernelNodeSetParams 10000 cuGraphKernelNodeSetParams;
        cuGraphKernelNodeSetParams 12000 cuGraphKernelNodeSetParams_v2;
        cuGraphMemAllocNodeGetParams 11040 cuGraphMemAllocNodeGetParams;
        cuGraphMemFreeNodeGetParams 11040 cuGraphMemFreeNodeGetParams;
        cuGraphMemcpyNodeGetParams 10000 cuGraphMemcpyNodeGetParams;
        cuGraphMemcpyNodeSetParams 10000 cuGraphMemcpyNodeSetParams;
        cuGraphMemsetNodeGetParams 10000 cuGraphMemsetNodeGetParams;
        cuGraphMemsetNodeSetParams 10000 cuGraphMemsetNodeSetParams;
        cuGraphNodeFindInClone 10000 cuGraphNodeFindInClone;
        cuGraphNodeGetContainingGraph 13010 cuGraphNodeGetContainingGraph;
        cuGraphNodeGetDependencies 10000 cuGraphNodeGetDependencies;
        cuGraphNodeGetDependencies 12030 cuGraphNodeGetDependencies_v2;
        cuGraphNodeGetDependentNodes 10000 cuGraphNodeGetDependentNodes;
        cuGraphNodeGetDependentNodes 12030 cuGraphNodeGetDependentNodes_v2;
        cuGraphNodeGetEnabled 11060 cuGraphNodeGetEnabled;
        cuGraphNodeGetLocalId 13010 cuGraphNodeGetLocalId;
        cuGraphNodeGetParams 13020 cuGraphNodeGetParams;
        cuGraphNodeGetToolsId 13010 cuGraphNodeGetToolsId;
        cuGraphNodeGetType 10000 cuGraphNodeGetType;
        cuGraphNodeSetEnabled 11060 cuGraphNodeSetEnabled;
        cuGraphNodeSetParams 12020 cuGraphNodeSetParams;
        cuGraphNodeSetParams 13041 cuGraphNodeSetParams_v2;
        cuGraphReleaseUserObject 11030 cuGraphReleaseUserObject;
        cuGraphRemoveDependencies 10000 cuGraphRemoveDependencies;
        cuGraphRemoveDependencies 12030 cuGraphRemoveDependencies_v2;
        cuGraphRetainUserObject 11030 cuGraphRetainUserObject;
        cuGraphicsEGLRegisterImage 7000 cuGraphicsEGLRegisterImage;
        cuGraphicsGLRegisterBuffer 3000 cuGraphicsGLRegisterBuffer;
        cuGraphicsGLRegisterImage 3000 cuGraphicsGLRegisterImage;
        cuGraphicsMapResources 3000 cuGraphicsMapResources;
        cuGraphicsResourceGetMappedEglFrame 7000 cuGraphicsResourceGetMappedEglFrame;
        cuGraphicsResourceGetMappedMipmappedArray 5000 cuGraphicsResourceGetMappedMipmappedArray;
        cuGraphicsResourceGetMappedPointer 2000 cuGraphicsResourceGetMappedPointer;
        cuGraphicsResourceGetMappedPointer 3020 cuGraphicsResourceGetMappedPointer_v2;
        cuGraphicsResourceSetMapFlags 6050 cuGraphicsResourceSetMapFlags_v2;
        cuGraphicsSubResourceGetMappedArray 3000 cuGraphicsSubResourceGetMappedArray;
        cuGraphicsUnmapResources 3000 cuGraphicsUnmapResources;
        cuGraphicsUnregisterResource 3000 cuGraphicsUnregisterResource;
        cuGraphicsVDPAURegisterOutputSurface 3010 cuGraphicsVDPAURegisterOutputSurface;
        cuGraphicsVDPAURegisterVideoSurface 3010 cuGraphicsVDPAURegisterVideoSurface;
        cuGreenCtxCreate 12040 cuGreenCtxCreate;
        cuGreenCtxDestroy 12040 cuGreenCtxDestroy;
        cuGreenCtxGetDevResource 12040 cuGreenCtxGetDevResource;
        cuGreenCtxGetId 13000 cuGreenCtxGetId;
        cuGreenCtxRecordEvent 12040 cuGreenCtxRecordEvent;
        cuGreenCtxStreamCreate 12050 cuGreenCtxStreamCreate;
        cuGreenCtxWaitEvent 12040 cuGreenCtxWaitEvent;
        cuImportExternalMemory 10000 cuImportExternalMemory;
        cuImportExternalSemaphore 10000 cuImportExternalSemaphore;
        cuLaunch 2000 cuLaunch;
        cuLaunchCooperativeKernelMultiDevice 9000 cuLaunchCooperativeKernelMultiDevice;
        cuLaunchGrid 2000 cuLaunchGrid;
        cuLaunchGridAsync 2000 cuLaunchGridAsync;
        cuLaunchHostFunc 13020 cuLaunchHostFunc_v2;
        cuLibraryGetManaged 12000 cuLibraryGetManaged;
        cuLibraryGetUnifiedFunction 12000 cuLibraryGetUnifiedFunction;
        cuLinkAddData 5050 cuLinkAddData;
        cuLinkAddFile 5050 cuLinkAddFile;
        cuLinkCreate 5050 cuLinkCreate;
        cuLogicalEndpointAddDevice 13030 cuLogicalEndpointAddDevice;
        cuLogicalEndpointBindAddr 13030 cuLogicalEndpointBindAddr;
        cuLogicalEndpointBindMem 13030 cuLogicalEndpointBindMem;
        cuLogicalEndpointCreate 13030 cuLogicalEndpointCreate;
        cuLogicalEndpointDestroy 13030 cuLogicalEndpointDestroy;
        cuLogicalEndpointExport 13030 cuLogicalEndpointExport;
        cuLogicalEndpointGetLimits 13030 cuLogicalEndpointGetLimits;
        cuLogicalEndpointIdRelease 13030 cuLogicalEndpointIdRelease;
        cuLogicalEndpointIdReserve 13030 cuLogicalEndpointIdReserve;
        cuLogicalEndpointImport 13030 cuLogicalEndpointImport;
        cuLogicalEndpointQuery 13030 cuLogicalEndpointQuery;
        cuLogicalEndpointUnbind 13030 cuLogicalEndpointUnbind;
        cuLogsCurrent 12090 cuLogsCurrent;
        cuLogsDumpToFile 12090 cuLogsDumpToFile;
        cuLogsDumpToMemory 12090 cuLogsDumpToMemory;
        cuLogsRegisterCallback 12090 cuLogsRegisterCallback;
        cuLogsUnregisterCallback 12090 cuLogsUnregisterCallback;
        cuMemAddressFree 10020 cuMemAddressFree;
        cuMemAddressReserve 10020 cuMemAddressReserve;
        cuMemAlloc 2000 cuMemAlloc;
        cuMemAllocHost 2000 cuMemAllocHost;
        cuMemAllocPitch 2000 cuMemAllocPitch;
        cuMemBatchDecompressAsync 12060 cuMemBatchDecompressAsync;
        cuMemCreate 10020 cuMemCreate;
        cuMemDiscardAndPrefetchBatchAsync 13000 cuMemDiscardAndPrefetchBatchAsync;
        cuMemDiscardBatchAsync 13000 cuMemDiscardBatchAsync;
        cuMemExportToShareableHandle 10020 cuMemExportToShareableHandle;
        cuMemFree 2000 cuMemFree;
        cuMemGetAccess 10020 cuMemGetAccess;
        cuMemGetAddressRange 2000 cuMemGetAddressRange;
        cuMemGetAllocationGranularity 10020 cuMemGetAllocationGranularity;
        cuMemGetAllocationPropertiesFromHandle 10020 cuMemGetAllocationPropertiesFromHandle;
        cuMemGetDefaultMemPool 13000 cuMemGetDefaultMemPool;
        cuMemGetHandleForAddressRange 11070 cuMemGetHandleForAddressRange;
        cuMemGetInfo 2000 cuMemGetInfo;
        cuMemGetLocationInfo 13041 cuMemGetLocationInfo;
        cuMemGetMemPool 13000 cuMemGetMemPool;
        cuMemHostGetDevicePointer 2000 cuMemHostGetDevicePointer;
        cuMemImportFromShareableHandle 10020 cuMemImportFromShareableHandle;
        cuMemMap 10020 cuMemMap;
        cuMemMapArrayAsync 11010 cuMemMapArrayAsync;
        cuMemPoolExportPointer 11020 cuMemPoolExportPointer;
        cuMemPoolExportToShareableHandle 11020 cuMemPoolExportToShareableHandle;
        cuMemPoolImportFromShareableHandle 11020 cuMemPoolImportFromShareableHandle;
        cuMemPoolImportPointer 11020 cuMemPoolImportPointer;
        cuMemPrefetchBatchAsync 13000 cuMemPrefetchBatchAsync;
        cuMemRangeGetAttribute 8000 cuMemRangeGetAttribute;
        cuMemRangeGetAttributes 8000 cuMemRangeGetAttributes;
        cuMemRelease 10020 cuMemRelease;
        cuMemRetainAllocationHandle 11000 cuMemRetainAllocationHandle;
        cuMemSetAccess 10020 cuMemSetAccess;
        cuMemSetMemPool 13000 cuMemSetMemPool;
        cuMemUnmap 10020 cuMemUnmap;
        cuMemcpy2D 2000 cuMemcpy2D;
        cuMemcpy2DAsync 2000 cuMemcpy2DAsync;
        cuMemcpy2DUnaligned 2000 cuMemcpy2DUnaligned;
        cuMemcpy3D 2000 cuMemcpy3D;
        cuMemcpy3DAsync 2000 cuMemcpy3DAsync;
        cuMemcpy3DBatchAsync 12080 cuMemcpy3DBatchAsync;
        cuMemcpy3DBatchAsync 13000 cuMemcpy3DBatchAsync_v2;
        cuMemcpy3DWithAttributesAsync 13020 cuMemcpy3DWithAttributesAsync;
        cuMemcpyAtoA 2000 cuMemcpyAtoA;
        cuMemcpyAtoA 3020 cuMemcpyAtoA_v2;
        cuMemcpyAtoD 2000 cuMemcpyAtoD;
        cuMemcpyAtoD 3020 cuMemcpyAtoD_v2;
        cuMemcpyAtoH 2000 cuMemcpyAtoH;
        cuMemcpyAtoH 3020 cuMemcpyAtoH_v2;
        cuMemcpyAtoHAsync 2000 cuMemcpyAtoHAsync;
        cuMemcpyAtoHAsync 3020 cuMemcpyAtoHAsync_v2;
        cuMemcpyBatchAsync 12080 cuMemcpyBatchAsync;
        cuMemcpyBatchAsync 13000 cuMemcpyBatchAsync_v2;
        cuMemcpyDtoA 2000 cuMemcpyDtoA;
        cuMemcpyDtoA 3020 cuMemcpyDtoA_v2;
        cuMemcpyDtoD 2000 cuMemcpyDtoD;
        cuMemcpyDtoDAsync 2000 cuMemcpyDtoDAsync;
        cuMemcpyDtoH 2000 cuMemcpyDtoH;
        cuMemcpyDtoHAsync 2000 cuMemcpyDtoHAsync;
        cuMemcpyHtoA 2000 cuMemcpyHtoA;
        cuMemcpyHtoA 3020 cuMemcpyHtoA_v2;
        cuMemcpyHtoAAsync 2000 cuMemcpyHtoAAsync;
        cuMemcpyHtoAAsync 3020 cuMemcpyHtoAAsync_v2;
        cuMemcpyHtoD 2000 cuMemcpyHtoD;
        cuMemcpyHtoDAsync 2000 cuMemcpyHtoDAsync;
        cuMemcpyWithAttributesAsync 13020 cuMemcpyWithAttributesAsync;
        cuMemsetD16 2000 cuMemsetD16;
        cuMemsetD2D16 2000 cuMemsetD2D16;
        cuMemsetD2D32 2000 cuMemsetD2D32;
        cuMemsetD2D8 2000 cuMemsetD2D8;
        cuMemsetD32 2000 cuMemsetD32;
        cuMemsetD8 2000 cuMemsetD8;
        cuMipmappedArrayCreate 5000 cuMipmappedArrayCreate;
        cuMipmappedArrayDestroy 5000 cuMipmappedArrayDestroy;
        cuMipmappedArrayGetLevel 5000 cuMipmappedArrayGetLevel;
        cuMipmappedArrayGetMemoryRequirements 11060 cuMipmappedArrayGetMemoryRequirements;
        cuMipmappedArrayGetSparseProperties 11010 cuMipmappedArrayGetSparseProperties;
        cuModuleGetGlobal 2000 cuModuleGetGlobal;
        cuModuleGetSurfRef 3000 cuModuleGetSurfRef;
        cuModuleGetTexRef 2000 cuModuleGetTexRef;
        cuMulticastAddDevice 12010 cuMulticastAddDevice;
        cuMulticastBindAddr 12010 cuMulticastBindAddr;
        cuMulticastBindAddr 13010 cuMulticastBindAddr_v2;
        cuMulticastBindMem 12010 cuMulticastBindMem;
        cuMulticastBindMem 13010 cuMulticastBindMem_v2;
        cuMulticastCreate 12010 cuMulticastCreate;
        cuMulticastGetGranularity 12010 cuMulticastGetGranularity;
        cuMulticastUnbind 12010 cuMulticastUnbind;
        cuOccupancyMaxActiveClusters 11070 cuOccupancyMaxActiveClusters;
        cuOccupancyMaxPotentialClusterSize 11070 cuOccupancyMaxPotentialClusterSize;
        cuParamSetSize 2000 cuParamSetSize;
        cuParamSetTexRef 2000 cuParamSetTexRef;
        cuParamSetf 2000 cuParamSetf;
        cuParamSeti 2000 cuParamSeti;
        cuParamSetv 2000 cuParamSetv;
        cuProfilerInitialize 4000 cuProfilerInitialize;
        cuSignalExternalSemaphoresAsync 10000 cuSignalExternalSemaphoresAsync;
        cuStreamBatchMemOp 8000 cuStreamBatchMemOp;
        cuStreamBatchMemOp 11070 cuStreamBatchMemOp_v2;
        cuStreamBeginCaptureToCig 13020 cuStreamBeginCaptureToCig;
        cuStreamBeginCaptureToGraph 12030 cuStreamBeginCaptureToGraph;
        cuStreamBeginRecaptureToGraph 13030 cuStreamBeginRecaptureToGraph;
        cuStreamDestroy 2000 cuStreamDestroy;
        cuStreamEndCaptureToCig 13020 cuStreamEndCaptureToCig;
        cuStreamGetAttribute 11000 cuStreamGetAttribute;
        cuStreamGetDevResource 13010 cuStreamGetDevResource;
        cuStreamGetGreenCtx 12040 cuStreamGetGreenCtx;
        cuStreamUpdateCaptureDependencies 11030 cuStreamUpdateCaptureDependencies;
        cuStreamUpdateCaptureDependencies 12030 cuStreamUpdateCaptureDependencies_v2;
        cuStreamWaitValue32 8000 cuStreamWaitValue32;
        cuStreamWaitValue32 11070 cuStreamWaitValue32_v2;
        cuStreamWaitValue64 9000 cuStreamWaitValue64;
        cuStreamWaitValue64 11070 cuStreamWaitValue64_v2;
        cuStreamWriteValue32 8000 cuStreamWriteValue32;
        cuStreamWriteValue32 11070 cuStreamWriteValue32_v2;
        cuStreamWriteValue64 9000 cuStreamWriteValue64;
        cuStreamWriteValue64 11070 cuStreamWriteValue64_v2;
        cuSurfObjectCreate 5000 cuSurfObjectCreate;
        cuSurfObjectDestroy 5000 cuSurfObjectDestroy;
        cuSurfObjectGetResourceDesc 5000 cuSurfObjectGetResourceDesc;
        cuSurfRefGetArray 3000 cuSurfRefGetArray;
        cuSurfRefSetArray 3000 cuSurfRefSetArray;
        cuTensorMapEncodeIm2col 12000 cuTensorMapEncodeIm2col;
        cuTensorMapEncodeIm2colWide 12080 cuTensorMapEncodeIm2colWide;
        cuTensorMapEncodeTiled 12000 cuTensorMapEncodeTiled;
        cuTensorMapReplaceAddress 12000 cuTensorMapReplaceAddress;
        cuTensorMapSetAllocationClass 13050 cuTensorMapSetAllocationClass;
        cuTexObjectCreate 5000 cuTexObjectCreate;
        cuTexObjectDestroy 5000 cuTexObjectDestroy;
        cuTexObjectGetResourceDesc 5000 cuTexObjectGetResourceDesc;
        cuTexObjectGetResourceViewDesc 5000 cuTexObjectGetResourceViewDesc;
        cuTexObjectGetTextureDesc 5000 cuTexObjectGetTextureDesc;
        cuTexRefCreate 2000 cuTexRefCreate;
        cuTexRefDestroy 2000 cuTexRefDestroy;
        cuTexRefGetAddress 2000 cuTexRefGetAddress;
        cuTexRefGetAddress 3020 cuTexRefGetAddress_v2;
        cuTexRefGetAddressMode 2000 cuTexRefGetAddressMode;
        cuTexRefGetArray 2000 cuTexRefGetArray;
        cuTexRefGetBorderColor 8000 cuTexRefGetBorderColor;
        cuTexRefGetFilterMode 2000 cuTexRefGetFilterMode;
        cuTexRefGetFlags 2000 cuTexRefGetFlags;
        cuTexRefGetFormat 2000 cuTexRefGetFormat;
        cuTexRefGetMaxAnisotropy 5000 cuTexRefGetMaxAnisotropy;
        cuTexRefGetMipmapFilterMode 5000 cuTexRefGetMipmapFilterMode;
        cuTexRefGetMipmapLevelBias 5000 cuTexRefGetMipmapLevelBias;
        cuTexRefGetMipmapLevelClamp 5000 cuTexRefGetMipmapLevelClamp;
        cuTexRefGetMipmappedArray 5000 cuTexRefGetMipmappedArray;
        cuTexRefSetAddress 2000 cuTexRefSetAddress;
        cuTexRefSetAddress 3020 cuTexRefSetAddress_v2;
        cuTexRefSetAddress2D 4010 cuTexRefSetAddress2D_v3;
        cuTexRefSetAddressMode 2000 cuTexRefSetAddressMode;
        cuTexRefSetArray 2000 cuTexRefSetArray;
        cuTexRefSetBorderColor 8000 cuTexRefSetBorderColor;
        cuTexRefSetFilterMode 2000 cuTexRefSetFilterMode;
        cuTexRefSetFlags 2000 cuTexRefSetFlags;
        cuTexRefSetFormat 2000 cuTexRefSetFormat;
        cuTexRefSetMaxAnisotropy 5000 cuTexRefSetMaxAnisotropy;
        cuTexRefSetMipmapFilterMode 5000 cuTexRefSetMipmapFilterMode;
        cuTexRefSetMipmapLevelBias 5000 cuTexRefSetMipmapLevelBias;
        cuTexRefSetMipmapLevelClamp 5000 cuTexRefSetMipmapLevelClamp;
        cuTexRefSetMipmappedArray 5000 cuTexRefSetMipmappedArray;
        cuUserObjectCreate 11030 cuUserObjectCreate;
        cuUserObjectRelease 11030 cuUserObjectRelease;
        cuUserObjectRetain 11030 cuUserObjectRetain;
        cuVDPAUCtxCreate 3020 cuVDPAUCtxCreate;
        cuVDPAUGetDevice 3010 cuVDPAUGetDevice;
        cuWaitExternalSemaphoresAsync 10000 cuWaitExternalSemaphoresAsync;
    }
}
