//! Page-locked host memory behind the driver's doors. The runtime's functions
//! (`cudaMallocHost`, `cudaHostAlloc`, `cudaFreeHost`) come through here too,
//! so that argument checks, initialisation and the last error stay its own.
//!
//! `cuMemAllocHost` of the first interface has no door, like all of that
//! interface: what it hands out is the driver's own, and its free goes there.

use std::ffi::{c_uint, c_void};

use vramalloc_core::Code;

use crate::pools::device;
use crate::pools::host_memory::{self, Kind};
use crate::process::guard::{Service, own_call, service};
use crate::real;
use crate::types::CudaResult;

pub(crate) unsafe fn cuMemAllocHost_v2(to: *mut *mut c_void, size: usize) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe { host_memory::allocate(to, size, Kind::Plain) }
}

pub(crate) unsafe fn cuMemHostAlloc(
    to: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> Option<CudaResult> {
    let kind = Kind::of_flags(flags)?;
    // SAFETY: the caller's own arguments.
    unsafe { host_memory::allocate(to, size, kind) }
}

pub(crate) unsafe fn cuMemFreeHost(address: *mut c_void) -> Option<CudaResult> {
    host_memory::free_if(address.addr() as u64, device::check_current).answer()
}

/// The program's block has flags of this sort and registered memory has none;
/// freed memory has none either, though the driver still has it.
pub(crate) unsafe fn cuMemHostGetFlags(
    flags: *mut c_uint,
    address: *mut c_void,
) -> Option<CudaResult> {
    let start = address.addr() as u64;
    if service() == Service::Full && host_memory::owns(start) && !host_memory::is_live(start) {
        return Some(Code::INVALID_VALUE.get());
    }
    let stand_in = host_memory::stand_in(address)?;
    // SAFETY: the caller's place for the answer.
    Some(own_call(|| unsafe {
        real::cuMemHostGetFlags(flags, stand_in)
    }))
}

/// Memory that we have registered is not the program's to unregister.
pub(crate) unsafe fn cuMemHostUnregister(address: *mut c_void) -> Option<CudaResult> {
    let stand_in = host_memory::stand_in(address)?;
    // SAFETY: a page that was never registered: the driver refuses it.
    Some(own_call(|| unsafe { real::cuMemHostUnregister(stand_in) }))
}
