//! The doors of virtual memory.

use std::ffi::{c_int, c_void};
use std::ptr;

use vramalloc_core::Code;

use crate::driver::reserved;
use crate::families::{relief, virtual_memory};
use crate::ipc;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdeviceptr, CudaResult, MemHandle, MemProperties};

pub(crate) unsafe fn cuMemCreate(
    handle: *mut MemHandle,
    size: usize,
    properties: *const MemProperties,
    flags: u64,
) -> Option<CudaResult> {
    if handle.is_null() || properties.is_null() {
        return None;
    }
    // SAFETY: the caller's own arguments, here and below.
    let device = unsafe { (*properties).location.device() };
    // SAFETY: as above.
    let call = || unsafe { real::cuMemCreate(handle, size, properties, flags) };
    // SAFETY: read after the real function has written there.
    let made = || unsafe { *handle };
    Some(virtual_memory::create(device, size, call, made))
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: *mut MemHandle,
    shared: *mut c_void,
    kind: c_int,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let mut call = || unsafe { real::cuMemImportFromShareableHandle(handle, shared, kind) };
    let result = relief::with_room(None, &mut call);
    if result == 0 {
        // SAFETY: the real function has just written there.
        virtual_memory::imported(unsafe { *handle });
    }
    Some(result)
}

pub(crate) unsafe fn cuMemRelease(handle: MemHandle) -> Option<CudaResult> {
    // SAFETY: as above.
    virtual_memory::release(handle, || unsafe { real::cuMemRelease(handle) })
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(
    handle: *mut MemHandle,
    address: *mut c_void,
) -> Option<CudaResult> {
    let result = ipc::range::give_out(address.addr() as u64, 1, |asked| {
        let asked = match usize::try_from(asked) {
            Ok(asked) if asked != address.addr() => ptr::without_provenance_mut(asked),
            _ => address,
        };
        // SAFETY: as above.
        own_call(|| unsafe { real::cuMemRetainAllocationHandle(handle, asked) })
    });
    if result == 0 {
        // SAFETY: the real function has just written there.
        virtual_memory::retained(address.addr() as u64, unsafe { *handle });
    }
    Some(result)
}

pub(crate) unsafe fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: MemHandle,
    flags: u64,
) -> Option<CudaResult> {
    Some(of_the_programs(address, size, || {
        virtual_memory::map(address, size, handle, || {
            // SAFETY: as above.
            unsafe { real::cuMemMap(address, size, offset, handle, flags) }
        })
    }))
}

pub(crate) unsafe fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: *const c_void,
    count: usize,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let mut call = || unsafe { real::cuMemSetAccess(address, size, access, count) };
    Some(of_the_programs(address, size, || {
        relief::retry(None, &mut call)
    }))
}

pub(crate) unsafe fn cuMemUnmap(address: CUdeviceptr, size: usize) -> Option<CudaResult> {
    Some(of_the_programs(address, size, || {
        virtual_memory::unmap(address, size, || {
            // SAFETY: as above.
            unsafe { real::cuMemUnmap(address, size) }
        })
    }))
}

/// What `call` does with addresses that the program has reserved. Those of an arena's
/// memory are to it an allocation, which CUDA refuses there.
fn of_the_programs(
    address: CUdeviceptr,
    size: usize,
    call: impl FnOnce() -> CudaResult,
) -> CudaResult {
    match reserved::touches(address, size as u64) {
        true => Code::INVALID_VALUE.get(),
        false => call(),
    }
}
