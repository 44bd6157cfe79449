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

/// The flag of page-locked memory that devices see, which all of it has where host
/// and devices share addresses.
const MAPPED: c_uint = 2;

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

/// The program's block has the flags that it was asked for with. The driver may
/// answer otherwise for the memory that the block lies in, and has other flags for
/// registered memory; freed memory has none, though the driver still has it.
pub(crate) unsafe fn cuMemHostGetFlags(
    flags: *mut c_uint,
    address: *mut c_void,
) -> Option<CudaResult> {
    let start = address.addr() as u64;
    let is_ours = service() == Service::Full && host_memory::owns(start);
    let kind = host_memory::kind_of_live(start);
    if is_ours && kind.is_none() {
        return Some(Code::INVALID_VALUE.get());
    }
    let stand_in = host_memory::stand_in(address);
    let asked = kind.filter(|_| is_ours).and_then(Kind::flags);
    if asked.is_none() && stand_in.is_none() {
        return None;
    }
    // SAFETY: the caller's place for the answer.
    let result =
        own_call(|| unsafe { real::cuMemHostGetFlags(flags, stand_in.unwrap_or(address)) });
    if let (0, Some(asked)) = (result, asked) {
        // SAFETY: the real function has just written there.
        unsafe { *flags = asked | (*flags & MAPPED) };
    }
    Some(result)
}

/// The driver itself would have what the program has freed.
pub(crate) unsafe fn cuMemHostRegister_v2(
    host: *mut c_void,
    size: usize,
    flags: c_uint,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let call = || unsafe { real::cuMemHostRegister_v2(host, size, flags) };
    Some(host_memory::with_room(call))
}

/// Memory that we have registered is not the program's to unregister.
pub(crate) unsafe fn cuMemHostUnregister(address: *mut c_void) -> Option<CudaResult> {
    let stand_in = host_memory::stand_in(address)?;
    // SAFETY: a page that was never registered: the driver refuses it.
    Some(own_call(|| unsafe { real::cuMemHostUnregister(stand_in) }))
}
