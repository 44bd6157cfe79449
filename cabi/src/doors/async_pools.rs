//! The doors of CUDA's memory pools.

use std::ffi::{c_int, c_void};

use vramalloc_core::Bytes;

use crate::families::{async_pools, imports, relief};
use crate::pools::lanes;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdeviceptr, CUmemoryPool, CUstream, CudaResult, MemProperties};

pub(crate) unsafe fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments, here and below.
    let call = || unsafe { real::cuMemAllocAsync(address, size, stream) };
    // SAFETY: read after the real function has written there, here and below.
    let made = || unsafe { *address };
    Some(async_pools::allocate(None, size, stream, call, made))
}

pub(crate) unsafe fn cuMemAllocAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Option<CudaResult> {
    let named = of_thread(stream);
    // SAFETY: as above.
    let call = || unsafe { real::cuMemAllocAsync_ptsz(address, size, stream) };
    // SAFETY: as above.
    let made = || unsafe { *address };
    Some(async_pools::allocate(None, size, named, call, made))
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = || unsafe { real::cuMemAllocFromPoolAsync(address, size, pool, stream) };
    // SAFETY: as above.
    let made = || unsafe { *address };
    Some(async_pools::allocate(Some(pool), size, stream, call, made))
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Option<CudaResult> {
    let named = of_thread(stream);
    // SAFETY: as above.
    let call = || unsafe { real::cuMemAllocFromPoolAsync_ptsz(address, size, pool, stream) };
    // SAFETY: as above.
    let made = || unsafe { *address };
    Some(async_pools::allocate(Some(pool), size, named, call, made))
}

/// What a stream is called elsewhere that a function with `_ptsz` is given.
fn of_thread(stream: CUstream) -> CUstream {
    if stream.is_null() {
        lanes::per_thread()
    } else {
        stream
    }
}

pub(crate) unsafe fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    properties: *const MemProperties,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let result = own_call(|| unsafe { real::cuMemPoolCreate(pool, properties) });
    if result == 0 {
        // SAFETY: the real function has read the one and written the other.
        let (pool, properties) = unsafe { (*pool, *properties) };
        if let Some(device) = properties.location.device() {
            async_pools::made(pool, device);
        }
    }
    Some(result)
}

pub(crate) unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(async_pools::destroy(pool, || unsafe {
        real::cuMemPoolDestroy(pool)
    }))
}

/// A pool of another process: what it has counts there.
pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    shared: *mut c_void,
    kind: c_int,
    flags: u64,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let result =
        own_call(|| unsafe { real::cuMemPoolImportFromShareableHandle(pool, shared, kind, flags) });
    if result == 0 {
        imports::note(imports::Way::Pool, Bytes::ZERO);
    }
    Some(result)
}

/// Memory of such a pool, which another process took.
pub(crate) unsafe fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut c_void,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let mut call = || unsafe { real::cuMemPoolImportPointer(address, pool, data) };
    let result = relief::with_room(None, &mut call);
    if result == 0 {
        imports::note(imports::Way::Pool, Bytes::ZERO);
    }
    Some(result)
}

pub(crate) unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Option<CudaResult> {
    // SAFETY: as above.
    Some(async_pools::trimmed(pool, || unsafe {
        real::cuMemPoolTrimTo(pool, keep)
    }))
}
