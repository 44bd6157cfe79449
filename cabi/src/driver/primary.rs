//! Questions to the driver about the primary contexts of devices.

use std::ffi::{c_int, c_uint};
use std::ptr;

use crate::driver::users;
use crate::linker::resolve::MISSING;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice};

/// Whether a device's primary context exists; `None` if the driver does not
/// say.
pub(crate) fn is_active(device: CUdevice) -> Option<bool> {
    let mut flags: c_uint = 0;
    let mut active: c_int = 0;
    // SAFETY: writes both answers to locals.
    let state =
        || unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    let result = own_call(state);
    (result == 0).then_some(active != 0)
}

/// Whether a context is its device's primary one. It is retained to find out,
/// and only while it exists, so that the question does not make it.
pub(crate) fn is_primary(context: CUcontext, device: CUdevice) -> bool {
    users::ask(device, || {
        if is_active(device) != Some(true) {
            return false;
        }
        let mut primary: CUcontext = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        if unsafe { real::cuDevicePrimaryCtxRetain(&raw mut primary, device) } != 0 {
            return false;
        }
        release_primary(device);
        primary == context
    })
}

/// Releases a device's primary context, which was retained just now and is
/// retained elsewhere too.
pub(crate) fn release_primary(device: CUdevice) {
    // SAFETY: undoes that retain. Drivers before CUDA 11 lack `_v2`.
    unsafe {
        if real::cuDevicePrimaryCtxRelease_v2(device) == MISSING {
            real::cuDevicePrimaryCtxRelease(device);
        }
    }
}
