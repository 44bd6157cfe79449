//! CUDA's type names, from one place.
//!
//! `cuda-driver-sys` dates from CUDA 10.2. Its functions must never be called
//! from here: they would bind to our own exports and recurse. Its result type
//! is not used either: it is a Rust enum, for which an unknown code is
//! undefined behaviour, so results are plain integers here. Its pointer and
//! integer types are stable ABI; their sizes are asserted below.

use std::ffi::{c_char, c_int, c_uint};

pub(crate) use cuda_driver_sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUipcMemHandle, CUstream,
};

/// What a driver or runtime function returns; 0 is success.
pub(crate) type CudaResult = u32;

/// `CUstreamCaptureMode` and `CUstreamCaptureStatus`: integers, so that values
/// newer than this project stay harmless.
pub(crate) type CaptureMode = c_int;
pub(crate) type CaptureStatus = c_int;

/// The mode in which a thread's calls disturb no capture.
pub(crate) const CAPTURE_MODE_RELAXED: CaptureMode = 2;
/// The stream captures nothing.
pub(crate) const CAPTURE_STATUS_NONE: CaptureStatus = 0;
/// An event without a time stamp: cheaper to record.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// Ask `cuGetProcAddress` for the twin that works on the per-thread stream.
pub(crate) const PROC_PER_THREAD_STREAM: u64 = 2;

/// A C string that belongs to the caller.
pub(crate) type Text = *const c_char;

/// Writes `value` to `place`, unless that is null.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *place = value };
    }
}

const _: () = {
    assert!(size_of::<CUcontext>() == size_of::<usize>());
    assert!(size_of::<CUstream>() == size_of::<usize>());
    assert!(size_of::<CUevent>() == size_of::<usize>());
    assert!(size_of::<CUgraph>() == size_of::<usize>());
    assert!(size_of::<CUgraphNode>() == size_of::<usize>());
    assert!(size_of::<CUdeviceptr>() == 8);
    assert!(size_of::<CUdevice>() == 4);
    assert!(size_of::<CUipcMemHandle>() == 64);
    assert!(size_of::<usize>() == 8);
};
