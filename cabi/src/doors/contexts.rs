//! The doors by which contexts are made and retained.

use std::ffi::{c_int, c_uint, c_void};

use crate::doors::lifecycle;
use crate::driver::{contexts, green, users};
use crate::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

/// Gives the current context access to the memory of `owner`.
pub(crate) unsafe fn cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxEnablePeerAccess(owner, flags) };
    if result == 0 {
        contexts::current();
    }
    Some(result)
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(
    handle: *mut CUcontext,
    device: CUdevice,
) -> Option<CudaResult> {
    Some(users::retain(device, || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { real::cuDevicePrimaryCtxRetain(handle, device) };
        if result == 0 {
            // SAFETY: the real function has just written there.
            contexts::context(unsafe { *handle }, || Some(device));
        }
        result
    }))
}

/// Notes a context that was made, if `result` is success.
///
/// # Safety
/// If `result` is success, a context was written to `handle`.
unsafe fn made(result: CudaResult, handle: *mut CUcontext) -> Option<CudaResult> {
    if result == 0 {
        // SAFETY: the caller's promise.
        let handle = unsafe { *handle };
        green::forget_handle(handle);
        lifecycle::made(handle);
        contexts::context(handle, || None);
    }
    Some(result)
}

pub(crate) unsafe fn cuCtxCreate(
    handle: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe { made(real::cuCtxCreate(handle, flags, device), handle) }
}

pub(crate) unsafe fn cuCtxCreate_v2(
    handle: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe { made(real::cuCtxCreate_v2(handle, flags, device), handle) }
}

pub(crate) unsafe fn cuCtxCreate_v3(
    handle: *mut CUcontext,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxCreate_v3(handle, affinity, count, flags, device) };
    // SAFETY: as above.
    unsafe { made(result, handle) }
}

pub(crate) unsafe fn cuCtxCreate_v4(
    handle: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxCreate_v4(handle, parameters, flags, device) };
    // SAFETY: as above.
    unsafe { made(result, handle) }
}
