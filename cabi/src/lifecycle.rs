//! The ends of contexts.
//!
//! A context takes its memory with it, and its handle may come back for the
//! next one. So the arena of a context forgets everything before the real
//! call where that surely ends the context, and right after it where only the
//! driver knows (a primary context is counted). Owns nothing. Cost: none in
//! a process without arenas.

use std::ffi::{c_int, c_uint};

use crate::symbols::real;
use crate::types::{CUcontext, CUdevice, CudaResult};
use crate::{context, ipc, peers};

pub(crate) unsafe fn cuCtxDestroy(context: CUcontext) -> Option<CudaResult> {
    end(context);
    None
}

pub(crate) unsafe fn cuCtxDestroy_v2(context: CUcontext) -> Option<CudaResult> {
    end(context);
    None
}

/// The oldest way to end a context; those of today count no users.
pub(crate) unsafe fn cuCtxDetach(context: CUcontext) -> Option<CudaResult> {
    end(context);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    end_primary(device);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    end_primary(device);
    None
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    // SAFETY: the caller's own argument.
    let result = unsafe { real::cuDevicePrimaryCtxRelease(device) };
    end_if_released(device);
    Some(result)
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    // SAFETY: the caller's own argument.
    let result = unsafe { real::cuDevicePrimaryCtxRelease_v2(device) };
    end_if_released(device);
    Some(result)
}

fn end(context: CUcontext) {
    context::wait_for_peers(context);
    context::retire(context);
    peers::end(context);
    ipc::end(context);
}

fn end_primary(device: CUdevice) {
    context::retire_primary(device);
    peers::end_primary(device);
    ipc::end_primary(device);
}

/// Forgets a device's primary context, if that is gone.
fn end_if_released(device: CUdevice) {
    let known =
        context::has_primary(device) || peers::has_primary(device) || ipc::has_primary(device);
    if known && is_active(device) == Some(false) {
        end_primary(device);
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
