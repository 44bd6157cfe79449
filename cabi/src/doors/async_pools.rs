//! The doors of CUDA's memory pools.

use std::cell::Cell;
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
    let call = |to| unsafe { real::cuMemAllocAsync(to, size, stream) };
    // SAFETY: as above.
    unsafe { allocate(address, None, size, stream, call) }
}

pub(crate) unsafe fn cuMemAllocAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = |to| unsafe { real::cuMemAllocAsync_ptsz(to, size, stream) };
    // SAFETY: as above.
    unsafe { allocate(address, None, size, of_thread(stream), call) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = |to| unsafe { real::cuMemAllocFromPoolAsync(to, size, pool, stream) };
    // SAFETY: as above.
    unsafe { allocate(address, Some(pool), size, stream, call) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = |to| unsafe { real::cuMemAllocFromPoolAsync_ptsz(to, size, pool, stream) };
    // SAFETY: as above.
    unsafe { allocate(address, Some(pool), size, of_thread(stream), call) }
}

/// Makes a request by `call`, which writes to the place that it is given. The
/// caller's own is written when the request is served, and only then.
///
/// # Safety
/// `address` is null, or what `call` writes may be written there.
unsafe fn allocate(
    address: *mut CUdeviceptr,
    pool: Option<CUmemoryPool>,
    size: usize,
    stream: CUstream,
    call: impl Fn(*mut CUdeviceptr) -> CudaResult,
) -> Option<CudaResult> {
    if address.is_null() {
        return None;
    }
    let made = Cell::new(0);
    let result = async_pools::allocate(pool, size, stream, || call(made.as_ptr()), &made);
    if result == 0 {
        // SAFETY: the caller's promise.
        unsafe { *address = made.get() };
    }
    Some(result)
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
