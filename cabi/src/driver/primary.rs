//! The primary contexts of devices, as the driver tells of them.

use std::ffi::{c_int, c_uint};
use std::ptr;

use crate::driver::users;
use crate::linker::resolve::MISSING;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice};

/// Whether the primary context of a device exists; none where the driver does
/// not say.
pub(crate) fn is_active(device: CUdevice) -> Option<bool> {
    let mut flags: c_uint = 0;
    let mut active: c_int = 0;
    // SAFETY: places for both answers.
    let state =
        || unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    let result = own_call(state);
    (result == 0).then_some(active != 0)
}

/// Whether a context is its device's primary one. Asks by retaining it, and
/// only while it exists, so that it is not made by the question.
pub(crate) fn is_primary(context: CUcontext, device: CUdevice) -> bool {
    users::ask(device, || {
        if is_active(device) != Some(true) {
            return false;
        }
        let mut primary: CUcontext = ptr::null_mut();
        // SAFETY: a place for the answer.
        if unsafe { real::cuDevicePrimaryCtxRetain(&raw mut primary, device) } != 0 {
            return false;
        }
        release_primary(device);
        primary == context
    })
}

/// Gives back a device's primary context, which was retained just now and is
/// retained elsewhere.
pub(crate) fn release_primary(device: CUdevice) {
    // SAFETY: as above. Drivers before CUDA 11 have the first form alone.
    unsafe {
        if real::cuDevicePrimaryCtxRelease_v2(device) == MISSING {
            real::cuDevicePrimaryCtxRelease(device);
        }
    }
}
