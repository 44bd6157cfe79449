//! The door of managed memory. It is freed by the same function as other memory
//! of a device.

use std::ffi::c_uint;

use crate::families::managed;
use crate::real;
use crate::types::{CUdeviceptr, CudaResult};

pub(crate) unsafe fn cuMemAllocManaged(
    address: *mut CUdeviceptr,
    size: usize,
    flags: c_uint,
) -> Option<CudaResult> {
    if address.is_null() || size == 0 {
        return None;
    }
    // SAFETY: the caller's own arguments.
    let call = || unsafe { real::cuMemAllocManaged(address, size, flags) };
    // SAFETY: read after the real function has written there.
    let made = || unsafe { *address };
    Some(managed::allocate(size, call, made))
}
