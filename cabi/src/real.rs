//! The real functions of CUDA: those behind the doors, and others we call.
//!
//! Owns the address of each, found on first use, or together as soon as a
//! context is seen ([`find_all`]). Invariant: none of them is ours. Cost: an
//! atomic load for each call.

#![allow(non_snake_case, non_upper_case_globals, reason = "CUDA's names")]

mod intercepted;
pub(crate) mod passed;
pub(crate) mod reach;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::linker::resolve::{Library, MISSING, Real};
use crate::types::{
    ArrayDescription, CUarray, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphExec,
    CUgraphNode, CUipcMemHandle, CUmemoryPool, CUstream, CaptureMode, CaptureStatus, CudaResult,
    ExternalMemory, FlatDescription, MemHandle, MemNode, MemProperties, NodeParameters, Text,
    UnitProperties,
};

pub(crate) use intercepted::intercepted;
use reach::Reach;

/// `name`, which ends in zero, as a C string; checked when compiled.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Functions of the real libraries. Each returns [`MISSING`] if there is none.
macro_rules! real_functions {
    (
        $place:ident $find:ident
        $($library:ident $name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        mod $place {
            use super::*;
            $(
                pub(super) static $name: Real<unsafe extern "C" fn($($type),*) -> CudaResult> =
                    Real::new(Library::$library, c_name(concat!(stringify!($name), "\0")));
            )*

            /// Finds the functions of a library.
            pub(super) fn find_all(library: Library) {
                $(
                    if Library::$library == library {
                        $name.get();
                    }
                )*
            }
        }
        $(
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> CudaResult {
                match $place::$name.$find() {
                    // SAFETY: CUDA gives this name this prototype; its
                    // promises about the arguments are the caller's.
                    Some(function) => unsafe { function($($argument),*) },
                    None => MISSING,
                }
            }
        )*
    };
}

/// The functions behind the doors.
macro_rules! behind_doors {
    ($(
        $library:ident $entry:ident $module:ident $since:literal
        $name:ident($($argument:ident: $type:ty),* $(,)?);
    )*) => {
        real_functions! { behind_doors of_caller $($library $name($($argument: $type),*);)* }
    };
}

intercepted! { behind_doors }

real_functions! {
    called_by_us get
    Driver cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
    Driver cuCtxDisablePeerAccess(owner: CUcontext);
    Driver cuCtxGetCurrent(context: *mut CUcontext);
    Driver cuCtxGetDevice(device: *mut CUdevice);
    Driver cuCtxGetFlags(flags: *mut c_uint);
    Driver cuCtxPopCurrent_v2(context: *mut CUcontext);
    Driver cuCtxPushCurrent_v2(context: CUcontext);
    Driver cuCtxSetCurrent(context: CUcontext);
    Driver cuCtxSetFlags(flags: c_uint);
    Driver cuCtxRecordEvent(context: CUcontext, event: CUevent);
    Driver cuCtxSynchronize();
    Driver cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    Driver cuDeviceGetCount(count: *mut c_int);
    Driver cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    Driver cuDeviceGetGraphMemAttribute(
        device: CUdevice, attribute: c_int, value: *mut c_void,
    );
    Driver cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    Driver cuDeviceGetAttribute(
        value: *mut c_int, attribute: c_int, device: CUdevice,
    );
    Driver cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    Driver cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice);
    Driver cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    Driver cuDriverGetVersion(version: *mut c_int);
    Driver cuDevicePrimaryCtxGetState(
        device: CUdevice, flags: *mut c_uint, active: *mut c_int,
    );
    Driver cuEventRecord(event: CUevent, stream: CUstream);
    Driver cuEventQuery(event: CUevent);
    Driver cuEventSynchronize(event: CUevent);
    Driver cuGetErrorName(error: CudaResult, name: *mut *const c_char);
    Driver cuInit(flags: c_uint);
    Driver cuMemAddressFree(address: CUdeviceptr, size: usize);
    Driver cuMemAddressReserve(
        address: *mut CUdeviceptr, size: usize, alignment: usize, wish: CUdeviceptr, flags: u64,
    );
    Driver cuMemGetAllocationGranularity(
        granule: *mut usize, properties: *const UnitProperties, option: c_int,
    );
    Driver cuMemPoolGetAttribute(
        pool: CUmemoryPool, attribute: c_int, value: *mut c_void,
    );
    Driver cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize);
    Driver cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize);
    Driver cuMemsetD8Async(
        address: CUdeviceptr, byte: u8, size: usize, stream: CUstream,
    );
    Driver cuMemsetD8_v2(address: CUdeviceptr, byte: u8, size: usize);
    Driver cuStreamGetCaptureInfo(
        stream: CUstream, status: *mut CaptureStatus, number: *mut u64,
    );
    Driver cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut CaptureStatus, number: *mut u64,
        graph: *mut CUgraph, after: *mut *const CUgraphNode, count: *mut usize,
    );
    Driver cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut CaptureStatus, number: *mut u64,
        graph: *mut CUgraph, after: *mut *const CUgraphNode,
        edges: *mut *const c_void, count: *mut usize,
    );
    Driver cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    Driver cuStreamQuery(stream: CUstream);
    Driver cuStreamGetId(stream: CUstream, number: *mut u64);
    Driver cuStreamIsCapturing(stream: CUstream, status: *mut CaptureStatus);
    Driver cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut CaptureStatus);
    Driver cuThreadExchangeStreamCaptureMode(mode: *mut CaptureMode);
    Runtime cudaGetDevice(device: *mut c_int);
}

/// Functions that were found before, for where nothing may be looked for.
pub(crate) mod known {
    use super::{CUcontext, CudaResult, c_int, called_by_us};

    /// Finds the first one; whether the driver has it.
    pub(super) fn find() -> bool {
        called_by_us::cuCtxGetCurrent.get().is_some()
    }

    /// Only where it was found, as before the shortcut is opened.
    #[inline(always)]
    pub(crate) unsafe fn cuCtxGetCurrent(context: *mut CUcontext) -> CudaResult {
        // SAFETY: the caller's promise; otherwise as for the function in `super`.
        unsafe { called_by_us::cuCtxGetCurrent.found()(context) }
    }

    /// `None` if the function was not found yet.
    #[inline(always)]
    pub(crate) unsafe fn cudaGetDevice(device: *mut c_int) -> Option<CudaResult> {
        let function = called_by_us::cudaGetDevice.known()?;
        // SAFETY: as for the function in `super`.
        Some(unsafe { function(device) })
    }
}

/// Finds every function that we may ever call, as soon as a context is seen:
/// later the linker may be busy with a thread that waits for us. Returns false
/// if that was done before, or no driver is loaded yet.
pub(crate) fn find_all() -> bool {
    static FOUND: AtomicBool = AtomicBool::new(false);
    // Relaxed: it guards no other memory; to find a function twice is harmless.
    if FOUND.load(Ordering::Relaxed) || reach::reach() == Reach::Unknown {
        return false;
    }
    find_in(Library::Driver);
    find_in(Library::Runtime);
    !FOUND.swap(true, Ordering::Relaxed)
}

/// Finds the runtime's functions when a runtime has been loaded. It is called
/// when that runtime looks for the driver, which it does first; if the linker's
/// lock has to be held for that, its thread holds it.
pub(crate) fn find_runtime() {
    find_in(Library::Runtime);
}

fn find_in(library: Library) {
    behind_doors::find_all(library);
    called_by_us::find_all(library);
}
