//! The runtime's memory functions: a short cut past the runtime to the arena.
//!
//! A call that is not plain goes through the real runtime, and from there to
//! the driver's door: no context yet, another device set than the context's,
//! odd arguments. So initialisation, argument checks and the last error stay
//! the runtime's own. The runtime's other memory functions (`cudaMallocPitch`,
//! `cudaFreeAsync` …) have no door here: they always go that way.
//!
//! Cost: as the driver's door, and a query of the runtime's current device.

use std::ffi::{c_int, c_void};
use std::ptr;

use vramalloc_core::page_map::Owner;
use vramalloc_core::{Bytes, Code};

use crate::driver::devices;
use crate::pools::device::{self, Asking, DeviceArena, DevicePool};
use crate::pools::memory::{self, Freed, Refusal};
use crate::process::guard::failing_with;
use crate::real;
use crate::real::reach::{self, Reach};
use crate::types::CudaResult;

/// More than any device has, and an address without memory: arguments with
/// which the real runtime is called when it is to fail.
const TOO_MUCH: usize = 1 << 60;
const NOWHERE: *mut c_void = ptr::without_provenance_mut(1);

pub(crate) unsafe fn cudaMalloc(pointer: *mut *mut c_void, size: usize) -> Option<CudaResult> {
    if pointer.is_null() || size == 0 {
        return None;
    }
    let arena = arena()?;
    let served = memory::allocate(arena, Bytes::new(size as u64), || {
        let mut answer = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        let result = unsafe { real::cudaMalloc(&raw mut answer, size) };
        (result, answer.addr() as u64)
    });
    match served {
        Ok(address) => {
            let address = usize::try_from(address.get()).ok()?;
            // SAFETY: the caller's place for the answer.
            unsafe { *pointer = ptr::with_exposed_provenance_mut(address) };
            Some(0)
        }
        Err(Refusal::Limit | Refusal::Paused) => {
            let mut none = ptr::null_mut();
            // SAFETY: writes the answer to a local.
            Some(fail(Code::OUT_OF_MEMORY, || unsafe {
                real::cudaMalloc(&raw mut none, TOO_MUCH)
            }))
        }
        Err(Refusal::Real(result)) => Some(result),
    }
}

pub(crate) unsafe fn cudaFree(pointer: *mut c_void) -> Option<CudaResult> {
    let address = pointer.addr() as u64;
    let mut owner = device::owner(address);
    if owner != Owner::Foreign && device::check_current().is_err() {
        // The runtime makes its context current on whatever thread calls it,
        // and the next call may be one that needs it.
        // SAFETY: freeing nothing does that and no more.
        let result = unsafe { real::cudaFree(ptr::null_mut()) };
        if result != 0 {
            return Some(result);
        }
        // That took a while.
        owner = device::owner(address);
    }
    match memory::free_of(owner, address) {
        Freed::Foreign => None,
        Freed::Done => Some(0),
        // SAFETY: an address without memory.
        Freed::Refused(code) => Some(fail(code, || unsafe { real::cudaFree(NOWHERE) })),
    }
}

pub(crate) unsafe fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Option<CudaResult> {
    if free.is_null() || total.is_null() {
        return None;
    }
    let info = pool()?.mem_info().ok()?;
    let size = |bytes: Bytes| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
    // SAFETY: the caller's places for the answers.
    unsafe {
        *free = size(info.free);
        *total = size(info.total);
    }
    Some(0)
}

/// The arena that the runtime would allocate in.
fn arena() -> Option<&'static DeviceArena> {
    pool().map(|pool| &**pool.serving_thread().arena())
}

/// The pool of the current context, if it is on the runtime's current device.
/// `None` if look-ups do not reach the driver's doors: we would not hear when
/// memory that is served here ends, is shared or is captured.
#[inline]
fn pool() -> Option<&'static DevicePool> {
    if reach::reach() != Reach::Doors {
        reach::hand_on();
        return None;
    }
    let pool = device::current_pool(Asking::Door)?;
    let mut set: c_int = 0;
    // SAFETY: writes the answer to a local.
    let result = unsafe { real::cudaGetDevice(&raw mut set) };
    if result != 0 || set != pool.device() {
        return None;
    }
    devices::runtime_answered();
    Some(pool)
}

/// Fails with `code`, and has the runtime note that as its own failure: the
/// real function is called with arguments that fail, and its driver call is
/// answered with the code.
fn fail(code: Code, call: impl FnOnce() -> CudaResult) -> CudaResult {
    match failing_with(code, call) {
        0 => code.get(),
        result => result,
    }
}
