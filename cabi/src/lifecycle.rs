//! The ends of contexts.
//!
//! A context takes its memory with it, and its handle may come back for the
//! next one. So the arena of a context forgets everything before the real
//! call where that surely ends the context, and right after it where only the
//! driver knows (a primary context is counted). Owns nothing. Cost: none in
//! a process without arenas.

use std::ffi::{c_int, c_uint};

use crate::context;
use crate::symbols::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

pub(crate) unsafe fn cuCtxDestroy(context: CUcontext) -> Option<CudaResult> {
    context::retire(context);
    None
}

pub(crate) unsafe fn cuCtxDestroy_v2(context: CUcontext) -> Option<CudaResult> {
    context::retire(context);
    None
}

/// The oldest way to end a context; those of today count no users.
pub(crate) unsafe fn cuCtxDetach(context: CUcontext) -> Option<CudaResult> {
    context::retire(context);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(device: CUdevice) -> Option<CudaResult> {
    context::retire_primary(device);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Option<CudaResult> {
    context::retire_primary(device);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    let result = unsafe { real::cuDevicePrimaryCtxRelease(device) };
    retire_if_released(device);
    Some(result)
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    let result = unsafe { real::cuDevicePrimaryCtxRelease_v2(device) };
    retire_if_released(device);
    Some(result)
}

/// Retires the arena of a device's primary context, if that is gone.
fn retire_if_released(device: CUdevice) {
    if context::has_primary(device) && is_active(device) == Some(false) {
        context::retire_primary(device);
    }
}

/// Whether the primary context of a device exists; none where the driver does
/// not say.
pub(crate) fn is_active(device: CUdevice) -> Option<bool> {
    let mut flags: c_uint = 0;
    let mut active: c_int = 0;
    // SAFETY: places for both answers.
    let result =
        unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    (result == 0).then_some(active != 0)
}
