//! The doors by which processes share memory.

use crate::types::{CUdeviceptr, CUipcMemHandle, CudaResult};
use crate::{ipc, real};

pub(crate) unsafe fn cuIpcGetMemHandle(
    handle: *mut CUipcMemHandle,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    if handle.is_null() {
        return None;
    }
    match ipc::export(address)? {
        Ok(found) => {
            // SAFETY: the caller's place for a handle.
            unsafe { *handle = found };
            Some(0)
        }
        Err(result) => Some(result),
    }
}

pub(crate) unsafe fn cuIpcOpenMemHandle(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Option<CudaResult> {
    // SAFETY: the caller's place for the answer, and a place of ours in the
    // closure.
    unsafe {
        open(address, handle, flags, |to, handle| {
            real::cuIpcOpenMemHandle(to, handle, flags)
        })
    }
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        open(address, handle, flags, |to, handle| {
            real::cuIpcOpenMemHandle_v2(to, handle, flags)
        })
    }
}

/// # Safety
/// `address` is null or may be written to.
unsafe fn open(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
    real_open: impl Fn(*mut CUdeviceptr, CUipcMemHandle) -> CudaResult,
) -> Option<CudaResult> {
    if address.is_null() {
        return None;
    }
    match ipc::open(&handle, flags, real_open)? {
        Ok(opened) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *address = opened };
            Some(0)
        }
        Err(result) => Some(result),
    }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Option<CudaResult> {
    ipc::close(address)
}
