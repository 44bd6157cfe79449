//! The one table of intercepted symbols.
//!
//! From it come the exported doors, the real functions behind them
//! ([`real`]), the names that `dlsym` swaps and the addresses that
//! `cuGetProcAddress` swaps. To intercept one more symbol: add its line, in
//! alphabetical order, and a function of its name in the module that the line
//! names. That function answers `Some(result)`, or `None` to have the real
//! function called with the same arguments.
//!
//! A line reads: library, when our function is asked ([`Entry`]), its module,
//! the CUDA version at which `cuGetProcAddress` gives out this ABI under the
//! base name (0: never), and the prototype.
//!
//! Invariant: sorted by name (tested), each name the exact ABI name. Cost: a
//! binary search per look-up; no lock, no allocation.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard::{self, Entry, Passed};
use crate::resolve::{MISSING, Real};
use crate::types::{
    CUcontext, CUdevice, CUdeviceptr, CUgraph, CUgraphNode, CUipcMemHandle, CUstream, CaptureMode,
    CaptureStatus, CudaResult, Text,
};
use crate::{
    cancel, capture, dlsym, driver_api, green, host_memory, ipc, lifecycle, peers, proc_address,
    runtime, streams,
};

/// Which library a symbol belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// `libcuda.so`: also swapped in `dlsym` and `cuGetProcAddress`.
    Driver,
    /// `libcudart.so`: reached by its exported name alone.
    Runtime,
}

/// The address of a door.
#[derive(Copy, Clone)]
pub(crate) struct Door(*const ());

// SAFETY: the address of a function; nothing is read or written through it.
unsafe impl Sync for Door {}

impl Door {
    /// The address as a number.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }
}

/// One intercepted symbol.
pub(crate) struct Symbol {
    /// The exact ABI name.
    pub(crate) name: &'static str,
    /// Which library it belongs to.
    pub(crate) library: Library,
    /// The CUDA version that asks `cuGetProcAddress` for this ABI; 0: none.
    pub(crate) since: c_int,
    /// Our function.
    pub(crate) door: Door,
    /// Whether it has been asked.
    passed: &'static Passed,
}

/// A name with the zero that C wants, checked when compiled.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Functions of the real libraries. Each answers [`MISSING`] where there is
/// none.
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

            /// Finds those of a library.
            pub(super) fn find_all(library: Library) {
                $(
                    if Library::$library == library {
                        $name.get();
                    }
                )*
            }
        }
        $(
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

macro_rules! doors {
    ($(
        $library:ident $entry:ident $module:ident $since:literal
        $name:ident($($argument:ident: $type:ty),* $(,)?);
    )*) => {
        /// The doors: a guard, a call, a conversion.
        #[allow(non_snake_case, reason = "CUDA's names")]
        mod exported {
            use super::*;
            $(
                #[cfg_attr(not(test), unsafe(no_mangle))]
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CudaResult {
                    guard::enter(Entry::$entry, &passed::$name, || {
                        // SAFETY: the caller's promises about the arguments
                        // are handed on; they are CUDA's own for this name.
                        unsafe { $module::$name($($argument),*) }
                    })
                    .unwrap_or_else(|| {
                        let _held = cancel::Held::back();
                        // SAFETY: as above.
                        unsafe { real::$name($($argument),*) }
                    })
                }
            )*
        }

        /// Which doors the program has come through.
        #[allow(non_upper_case_globals, reason = "CUDA's names")]
        mod passed {
            use super::*;
            $(pub(super) static $name: Passed = Passed::new();)*
        }

        /// The real functions behind the doors, and those that only we call.
        #[allow(non_snake_case, non_upper_case_globals, reason = "CUDA's names")]
        pub(crate) mod real {
            use super::*;
            use crate::types::CUevent;
            use std::ffi::c_char;

            real_functions! { behind_doors of_caller $($library $name($($argument: $type),*);)* }

            /// Finds the functions of a library that is loaded.
            pub(super) fn find_all(library: Library) {
                behind_doors::find_all(library);
                called_by_us::find_all(library);
            }

            real_functions! {
                called_by_us get
                Driver cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
                Driver cuCtxGetCurrent(context: *mut CUcontext);
                Driver cuCtxGetDevice(device: *mut CUdevice);
                Driver cuCtxPopCurrent_v2(context: *mut CUcontext);
                Driver cuCtxPushCurrent_v2(context: CUcontext);
                Driver cuCtxSetCurrent(context: CUcontext);
                Driver cuCtxRecordEvent(context: CUcontext, event: CUevent);
                Driver cuCtxSynchronize();
                Driver cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
                Driver cuDeviceGetAttribute(
                    value: *mut c_int, attribute: c_int, device: CUdevice,
                );
                Driver cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
                Driver cuDevicePrimaryCtxGetState(
                    device: CUdevice, flags: *mut c_uint, active: *mut c_int,
                );
                Driver cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
                Driver cuEventCreate(event: *mut CUevent, flags: c_uint);
                Driver cuEventRecord(event: CUevent, stream: CUstream);
                Driver cuEventQuery(event: CUevent);
                Driver cuEventSynchronize(event: CUevent);
                Driver cuGetErrorName(error: CudaResult, name: *mut *const c_char);
                Driver cuInit(flags: c_uint);
                Driver cuMemHostRegister_v2(host: *mut c_void, size: usize, flags: c_uint);
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
                Driver cuStreamGetId(stream: CUstream, number: *mut u64);
                Driver cuStreamIsCapturing(stream: CUstream, status: *mut CaptureStatus);
                Driver cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut CaptureStatus);
                Driver cuThreadExchangeStreamCaptureMode(mode: *mut CaptureMode);
                Runtime cudaGetDevice(device: *mut c_int);
            }
        }

        /// All of them, sorted by name.
        pub(crate) static TABLE: &[Symbol] = &[$(
            Symbol {
                name: stringify!($name),
                library: Library::$library,
                since: $since,
                door: Door(exported::$name as *const ()),
                passed: &passed::$name,
            },
        )*];
    };
}

doors! {
    Driver watch lifecycle 2000 cuCtxAttach(context: *mut CUcontext, flags: c_uint);
    Driver watch peers 2000 cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    Driver watch peers 3020 cuCtxCreate_v2(
        context: *mut CUcontext, flags: c_uint, device: CUdevice,
    );
    Driver watch peers 11040 cuCtxCreate_v3(
        context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint,
        device: CUdevice,
    );
    Driver watch peers 12050 cuCtxCreate_v4(
        context: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice,
    );
    Driver watch lifecycle 2000 cuCtxDestroy(context: CUcontext);
    Driver watch lifecycle 4000 cuCtxDestroy_v2(context: CUcontext);
    Driver watch lifecycle 2000 cuCtxDetach(context: CUcontext);
    Driver watch peers 4000 cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint);
    Driver watch green 12040 cuCtxFromGreenCtx(context: *mut CUcontext, green: *mut c_void);
    Driver watch lifecycle 7000 cuDevicePrimaryCtxRelease(device: CUdevice);
    Driver watch lifecycle 11000 cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    Driver watch lifecycle 7000 cuDevicePrimaryCtxReset(device: CUdevice);
    Driver watch lifecycle 11000 cuDevicePrimaryCtxReset_v2(device: CUdevice);
    Driver watch peers 7000 cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
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
    Driver serve host_memory 3020 cuMemAllocHost_v2(to: *mut *mut c_void, size: usize);
    Driver serve driver_api 3020 cuMemAllocPitch_v2(
        address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32,
    );
    Driver serve driver_api 3020 cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    Driver free driver_api 11020 cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    Driver free driver_api 11020 cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);
    Driver free host_memory 2000 cuMemFreeHost(address: *mut c_void);
    Driver free driver_api 3020 cuMemFree_v2(address: CUdeviceptr);
    Driver share ipc 3020 cuMemGetAddressRange_v2(
        base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr,
    );
    Driver serve driver_api 2000 cuMemGetInfo(free: *mut u32, total: *mut u32);
    Driver serve driver_api 3020 cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    Driver serve host_memory 2020 cuMemHostAlloc(
        to: *mut *mut c_void, size: usize, flags: c_uint,
    );
    Driver share host_memory 2030 cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void);
    Driver share host_memory 4000 cuMemHostUnregister(address: *mut c_void);
    Driver share ipc 4000 cuPointerGetAttribute(
        to: *mut c_void, attribute: c_int, address: CUdeviceptr,
    );
    Driver share ipc 7000 cuPointerGetAttributes(
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

/// The driver symbol of this name, if we intercept it.
pub(crate) fn driver_symbol(name: &[u8]) -> Option<&'static Symbol> {
    let index = TABLE
        .binary_search_by(|symbol| symbol.name.as_bytes().cmp(name))
        .ok()?;
    TABLE
        .get(index)
        .filter(|symbol| symbol.library == Library::Driver)
}

/// Finds every function that we may ever call, as soon as a context is seen:
/// later the linker may be busy with whoever waits for us.
pub(crate) fn find_all() {
    static FOUND: AtomicBool = AtomicBool::new(false);
    // Relaxed: it stands for itself; what is found twice is the same.
    if FOUND.load(Ordering::Relaxed) || dlsym::reach() == dlsym::Reach::Unknown {
        return;
    }
    real::find_all(Library::Driver);
    real::find_all(Library::Runtime);
    streams::find_way();
    FOUND.store(true, Ordering::Relaxed);
}

/// The same when a runtime has been loaded: it begins by looking for the
/// driver, and holds the linker's lock where it has to.
pub(crate) fn find_runtime() {
    real::find_all(Library::Runtime);
}

/// Names of the doors that the program has come through, sorted.
pub(crate) fn passed() -> Vec<&'static str> {
    TABLE
        .iter()
        .filter(|symbol| symbol.passed.get())
        .map(|symbol| symbol.name)
        .collect()
}

/// Whether this is the address of one of our doors.
pub(crate) fn is_door(address: usize) -> bool {
    TABLE.iter().any(|symbol| symbol.door.address() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        for pair in TABLE.windows(2) {
            assert!(
                pair[0].name < pair[1].name,
                "{} before {}",
                pair[0].name,
                pair[1].name
            );
        }
    }

    #[test]
    fn each_driver_name_is_found_and_no_other() {
        for symbol in TABLE {
            let found = driver_symbol(symbol.name.as_bytes());
            assert_eq!(found.is_some(), symbol.library == Library::Driver);
        }
        for other in [
            "cu",
            "cuMemAlloc",
            "cuMemAlloc_v",
            "cuMemAlloc_v22",
            "cuInit",
            "",
        ] {
            assert!(driver_symbol(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn a_door_is_known_by_its_address() {
        assert!(TABLE.iter().all(|symbol| is_door(symbol.door.address())));
        assert!(!is_door(0));
    }
}
