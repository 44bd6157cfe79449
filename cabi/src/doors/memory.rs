//! The driver's memory functions. Everything that allocates, with whatever
//! runtime and however that was linked, comes through here.
//!
//! Functions of the first interface (32-bit addresses: `cuMemAlloc`,
//! `cuMemFree`) have no door: what they could hand out does not fit our
//! addresses, and what they hand out is the driver's own.

use vramalloc_core::{Bytes, Code};

use crate::families::{self, async_pools, departed};
use crate::pools::device::{self, Asking};
use crate::pools::lanes;
use crate::pools::memory::{self, Freed, Refusal};
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdeviceptr, CUstream, CudaResult, put};

/// The unit of a pitch: the alignment that devices want of a texture's rows,
/// and what the driver rounds a pitch to.
const PITCH: Bytes = Bytes::new(512);

pub(crate) unsafe fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> Option<CudaResult> {
    if address.is_null() || size == 0 {
        return None;
    }
    let arena = device::pool_for_thread(Asking::Door)?.arena();
    let served = memory::allocate(arena, Bytes::new(size as u64), || {
        let mut answer: CUdeviceptr = 0;
        // SAFETY: writes the answer to a local.
        let result = unsafe { real::cuMemAlloc_v2(&raw mut answer, size) };
        (result, answer)
    });
    match served {
        Ok(found) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *address = found.get() };
            Some(0)
        }
        Err(Refusal::Limit | Refusal::Paused) => Some(Code::OUT_OF_MEMORY.get()),
        Err(Refusal::Real(result)) => Some(result),
    }
}

/// Rows are padded as the driver pads them, and the whole is a request like any
/// other: passed through, it would escape the limit and the statistics.
pub(crate) unsafe fn cuMemAllocPitch_v2(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Option<CudaResult> {
    if pitch.is_null() || width == 0 || !matches!(element, 4 | 8 | 16) {
        return None;
    }
    let padded = Bytes::new(width as u64).round_up(PITCH)?.get();
    let padded = usize::try_from(padded).ok()?;
    // SAFETY: the caller's place for the address; the size is not zero, or
    // the door below asks the real function.
    let result = unsafe { cuMemAlloc_v2(address, padded.checked_mul(height)?) }?;
    if result == 0 {
        // SAFETY: the caller's place for the pitch.
        unsafe { *pitch = padded };
    }
    Some(result)
}

/// Whose the memory is is known without a current context, to the driver too; only
/// where it refuses a free may that be because there is none.
pub(crate) unsafe fn cuMemFree_v2(address: CUdeviceptr) -> Option<CudaResult> {
    let freed = match memory::free(address) {
        Freed::Refused(code) => Freed::Refused(device::check_current().err().unwrap_or(code)),
        freed => freed,
    };
    freed.answer().or_else(|| {
        // SAFETY: the caller's own argument.
        families::free(address, || unsafe { real::cuMemFree_v2(address) })
    })
}

/// Limbo waits for the whole context, so also for the work on `stream`; a block
/// of another stream waits for `stream` besides. A direct allocation of the
/// driver goes back in the order of the stream.
pub(crate) unsafe fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    free_in_order(address, stream, || unsafe {
        real::cuMemFreeAsync(address, stream)
    })
}

pub(crate) unsafe fn cuMemFreeAsync_ptsz(
    address: CUdeviceptr,
    stream: CUstream,
) -> Option<CudaResult> {
    let named = if stream.is_null() {
        lanes::per_thread()
    } else {
        stream
    };
    // SAFETY: the caller's own arguments.
    free_in_order(address, named, || unsafe {
        real::cuMemFreeAsync_ptsz(address, stream)
    })
}

fn free_in_order(
    address: CUdeviceptr,
    stream: CUstream,
    call: impl Fn() -> CudaResult,
) -> Option<CudaResult> {
    let freed = memory::free_by(
        address,
        || lanes::check(stream),
        |pool, address| {
            if pool.is_lane() {
                lanes::record_in(pool, address, stream)?;
            }
            let context = pool.arena().driver().context();
            let counted = |bytes| departed::block(pool.device(), bytes, context, stream);
            pool.free_in_order(address, || context.call_from_here(&call), counted)
        },
    );
    freed.answer().or_else(|| {
        let free = || families::free(address, &call).unwrap_or_else(|| own_call(&call));
        Some(async_pools::free(address, stream, free))
    })
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe {
        mem_info(free, total, |bytes| {
            usize::try_from(bytes).unwrap_or(usize::MAX)
        })
    }
}

/// The first interface, with 32-bit sizes.
pub(crate) unsafe fn cuMemGetInfo(free: *mut u32, total: *mut u32) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    unsafe {
        mem_info(free, total, |bytes| {
            u32::try_from(bytes).unwrap_or(u32::MAX)
        })
    }
}

/// What the current context has, as the program should see it; `None` if the
/// driver has to say what is wrong.
///
/// # Safety
/// Each place is null or may be written to.
unsafe fn mem_info<T>(free: *mut T, total: *mut T, size: fn(u64) -> T) -> Option<CudaResult> {
    if free.is_null() && total.is_null() {
        return None;
    }
    let info = device::current_pool(Asking::Door)?.mem_info().ok()?;
    // SAFETY: the caller's promise.
    unsafe {
        put(free, size(info.free.get()));
        put(total, size(info.total.get()));
    }
    Some(0)
}
