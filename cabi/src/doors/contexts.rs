//! The doors by which contexts are made and retained.

use std::ffi::{c_int, c_uint, c_void};

use crate::doors::lifecycle;
use crate::driver::{contexts, green, in_step, users};
use crate::families::relief;
use crate::pools::device;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

/// Gives the current context access to the memory of `owner`. The driver's call does
/// not reach what is mapped; where that cannot be reached, nothing is.
pub(crate) unsafe fn cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxEnablePeerAccess(owner, flags) };
    if result != 0 {
        return Some(result);
    }
    contexts::current();
    let mut guest: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let told = own_call(|| unsafe { real::cuCtxGetDevice(&raw mut guest) }) == 0;
    let admitted = if told {
        device::let_in(owner, guest)
    } else {
        Ok(())
    };
    Some(admitted.err().map_or(0, |code| {
        // SAFETY: undoes the call above.
        own_call(|| unsafe { real::cuCtxDisablePeerAccess(owner) });
        code.get()
    }))
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(
    handle: *mut CUcontext,
    device: CUdevice,
) -> Option<CudaResult> {
    let retain = || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { real::cuDevicePrimaryCtxRetain(handle, device) };
        if result == 0 {
            // SAFETY: the real function has just written there.
            in_step::joins(&contexts::context(unsafe { *handle }, || Some(device)));
        }
        result
    };
    Some(relief::retry(Some(device), &mut || {
        users::retain(device, retain)
    }))
}

/// Makes a context by `call`, and notes it.
///
/// # Safety
/// `call` writes a context to `handle` when it succeeds.
unsafe fn make(
    device: CUdevice,
    handle: *mut CUcontext,
    mut call: impl FnMut() -> CudaResult,
) -> Option<CudaResult> {
    let result = relief::retry(Some(device), &mut call);
    if result == 0 {
        // SAFETY: the caller's promise.
        let handle = unsafe { *handle };
        green::forget_handle(handle);
        lifecycle::made(handle);
        in_step::joins(&contexts::context(handle, || None));
    }
    Some(result)
}

doors! {
    make(device, handle) cuCtxCreate(handle: *mut CUcontext, flags: c_uint, device: CUdevice);
    make(device, handle) cuCtxCreate_v2(handle: *mut CUcontext, flags: c_uint, device: CUdevice);
    make(device, handle) cuCtxCreate_v3(
        handle: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint,
        device: CUdevice,
    );
    make(device, handle) cuCtxCreate_v4(
        handle: *mut CUcontext, parameters: *mut c_void, flags: c_uint, device: CUdevice,
    );
}
