//! The ends of contexts.
//!
//! A context takes its memory with it, and its handle may come back for the
//! next one. So the arena of a context forgets everything before the real
//! call where that surely ends the context, and right after it where only the
//! driver knows (a primary context is counted). Owns nothing. Cost: none in
//! a process without arenas.

use std::ffi::{c_int, c_uint};

use crate::host_memory::Leftovers;
use crate::symbols::real;
use crate::types::{CUcontext, CUdevice, CudaResult};
use crate::{context, ipc, peers, streams};

pub(crate) unsafe fn cuCtxDestroy(context: CUcontext) -> Option<CudaResult> {
    // SAFETY: the caller's own argument, here and below.
    end(context).unmap_after(|| unsafe { real::cuCtxDestroy(context) })
}

pub(crate) unsafe fn cuCtxDestroy_v2(context: CUcontext) -> Option<CudaResult> {
    // SAFETY: as above.
    end(context).unmap_after(|| unsafe { real::cuCtxDestroy_v2(context) })
}

/// The oldest way to end a context; those of today count no users.
pub(crate) unsafe fn cuCtxDetach(context: CUcontext) -> Option<CudaResult> {
    // SAFETY: as above.
    end(context).unmap_after(|| unsafe { real::cuCtxDetach(context) })
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    // SAFETY: as above.
    end_primary(device).unmap_after(|| unsafe { real::cuDevicePrimaryCtxReset(device) })
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    // SAFETY: as above.
    end_primary(device).unmap_after(|| unsafe { real::cuDevicePrimaryCtxReset_v2(device) })
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    release(device, || unsafe {
        real::cuDevicePrimaryCtxRelease(device)
    })
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    release(device, || unsafe {
        real::cuDevicePrimaryCtxRelease_v2(device)
    })
}

/// Forgets a context before it ends.
fn end(context: CUcontext) -> Leftovers {
    context::wait_for_peers(context);
    peers::end(context);
    streams::forget_ended();
    let left = context::retire(context);
    ipc::end(context);
    left
}

fn end_primary(device: CUdevice) -> Leftovers {
    peers::end_primary(device);
    streams::forget_ended();
    let left = context::retire_primary(device);
    ipc::end_primary(device);
    left
}

/// Releases a device's primary context with the real function `call`, while
/// no fence is being made in it, and forgets it if it is gone then.
fn release(device: CUdevice, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    context::wait_for_peers_of_primary(device);
    let marker = peers::primary(device);
    if let Some(marker) = &marker {
        marker.pause();
    }
    let result = call();
    let known = marker.is_some() || context::has_primary(device) || ipc::has_primary(device);
    if known && is_active(device) == Some(false) {
        end_primary(device).unmap();
    }
    if let Some(marker) = &marker {
        marker.resume();
    }
    Some(result)
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
