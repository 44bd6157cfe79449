//! The doors of functions that take some of a device's memory for CUDA's own use:
//! where there is none, idle memory goes back, and they are called once more.

use std::ffi::{c_int, c_uint, c_void};

use crate::families::relief;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CUevent, CUstream, CudaResult, MemHandle};

fn retry(mut call: impl FnMut() -> CudaResult) -> Option<CudaResult> {
    Some(relief::retry(None, &mut call))
}

doors! {
    retry() cuCtxSetLimit(limit: c_int, value: usize);
    retry() cuEventCreate(event: *mut CUevent, flags: c_uint);
    retry() cuGraphicsMapResources(count: c_uint, resources: *mut *mut c_void, stream: CUstream);
    retry() cuGraphicsMapResources_ptsz(
        count: c_uint, resources: *mut *mut c_void, stream: CUstream,
    );
    retry() cuMulticastBindAddr(
        multicast: MemHandle, offset: usize, address: CUdeviceptr, size: usize, flags: u64,
    );
    retry() cuMulticastBindAddr_v2(
        multicast: MemHandle, device: CUdevice, offset: usize, address: CUdeviceptr, size: usize,
        flags: u64,
    );
    retry() cuMulticastBindMem(
        multicast: MemHandle, offset: usize, memory: MemHandle, from: usize, size: usize,
        flags: u64,
    );
    retry() cuMulticastBindMem_v2(
        multicast: MemHandle, device: CUdevice, offset: usize, memory: MemHandle, from: usize,
        size: usize, flags: u64,
    );
}
