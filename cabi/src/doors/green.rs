//! The doors of green contexts.

use std::ffi::{c_uint, c_void};

use crate::doors::lifecycle;
use crate::driver::{green as parts, streams, users};
use crate::families::relief;
use crate::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

pub(crate) unsafe fn cuGreenCtxCreate(
    green: *mut *mut c_void,
    description: *mut c_void,
    device: CUdevice,
    flags: c_uint,
) -> Option<CudaResult> {
    streams::expect_parts();
    let make = || {
        // SAFETY: the caller's own arguments.
        let result = unsafe { real::cuGreenCtxCreate(green, description, device, flags) };
        if result == 0 {
            // SAFETY: the real function has just written there.
            parts::note(unsafe { *green }, device);
        }
        result
    };
    Some(relief::retry(Some(device), &mut || {
        users::retain(device, make)
    }))
}

pub(crate) unsafe fn cuCtxFromGreenCtx(
    context: *mut CUcontext,
    green: *mut c_void,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxFromGreenCtx(context, green) };
    if result == 0 {
        // SAFETY: the real function has just written there.
        parts::note_context(green, unsafe { *context });
    }
    Some(result)
}

/// Releases the primary context too, which ends if this was its last user.
pub(crate) unsafe fn cuGreenCtxDestroy(green: *mut c_void) -> Option<CudaResult> {
    let (number, device) = parts::find(green)?;
    lifecycle::release(device, || {
        // SAFETY: the caller's own argument.
        let result = unsafe { real::cuGreenCtxDestroy(green) };
        if result == 0 {
            parts::gone(number, device);
        }
        result
    })
}
