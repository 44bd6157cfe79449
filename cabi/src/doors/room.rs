//! The doors of functions that take some of a device's memory for CUDA's own use:
//! where there is none, idle memory goes back, and they are called once more.

use std::ffi::{c_int, c_uint, c_void};

use crate::families::relief;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CUevent, CUstream, CudaResult, MemHandle};

macro_rules! with_room {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            pub(crate) unsafe fn $name($($argument: $type),*) -> Option<CudaResult> {
                // SAFETY: the caller's own arguments.
                let mut call = || unsafe { real::$name($($argument),*) };
                Some(relief::retry(None, &mut call))
            }
        )*
    };
}

with_room! {
    cuCtxSetLimit(limit: c_int, value: usize);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuGraphicsMapResources(count: c_uint, resources: *mut *mut c_void, stream: CUstream);
    cuGraphicsMapResources_ptsz(count: c_uint, resources: *mut *mut c_void, stream: CUstream);
    cuMulticastBindAddr(
        multicast: MemHandle, offset: usize, address: CUdeviceptr, size: usize, flags: u64,
    );
    cuMulticastBindAddr_v2(
        multicast: MemHandle, device: CUdevice, offset: usize, address: CUdeviceptr, size: usize,
        flags: u64,
    );
    cuMulticastBindMem(
        multicast: MemHandle, offset: usize, memory: MemHandle, from: usize, size: usize,
        flags: u64,
    );
    cuMulticastBindMem_v2(
        multicast: MemHandle, device: CUdevice, offset: usize, memory: MemHandle, from: usize,
        size: usize, flags: u64,
    );
}
