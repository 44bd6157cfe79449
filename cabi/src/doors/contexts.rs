//! The doors by which contexts are made and retained.

use std::ffi::{c_int, c_uint, c_void};

use crate::doors::lifecycle;
use crate::driver::{green, peers, users};
use crate::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

/// Gives the current context access to the memory of `owner`.
pub(crate) unsafe fn cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxEnablePeerAccess(owner, flags) };
    if result == 0 {
        peers::current();
    }
    Some(result)
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> Option<CudaResult> {
    Some(users::retain(device, || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { real::cuDevicePrimaryCtxRetain(context, device) };
        if result == 0 {
            // SAFETY: the real function has just written there.
            peers::marker(unsafe { *context }, || Some(device));
        }
        result
    }))
}

/// Notes a context that was made where `result` is success.
///
/// # Safety
/// Where `result` is success, a context was written to `context`.
unsafe fn made(result: CudaResult, context: *mut CUcontext) -> Option<CudaResult> {
    if result == 0 {
        // SAFETY: the caller's promise.
        let context = unsafe { *context };
        green::forget_handle(context);
        lifecycle::made(context);
        peers::marker(context, || None);
    }
    Some(result)
}

pub(crate) unsafe fn cuCtxCreate(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe { made(real::cuCtxCreate(context, flags, device), context) }
}

pub(crate) unsafe fn cuCtxCreate_v2(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe { made(real::cuCtxCreate_v2(context, flags, device), context) }
}

pub(crate) unsafe fn cuCtxCreate_v3(
    context: *mut CUcontext,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxCreate_v3(context, affinity, count, flags, device) };
    // SAFETY: as above.
    unsafe { made(result, context) }
}

pub(crate) unsafe fn cuCtxCreate_v4(
    context: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxCreate_v4(context, parameters, flags, device) };
    // SAFETY: as above.
    unsafe { made(result, context) }
}
