//! The shortest way through the doors that programs use all the time: to a block
//! that the calling thread keeps, or to keep one.
//!
//! It is taken before the guard, so it must be safe whatever the process is doing:
//! nothing here can panic, and nothing is held in the calls of the real functions,
//! which may call the program back. Invariant: where it answers, the long way would
//! have answered the same. Cost: the questions to the driver, for the context, and
//! to the runtime, for its device, where CUDA has several; some 30 instructions besides,
//! and the cache's.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use vramalloc_core::library::LibraryId;
use vramalloc_core::{Address, Bytes};

use crate::driver::devices;
use crate::owners;
use crate::pools::device::{self, DeviceArena, DevicePool};
use crate::process::guard::{Passed, ServingShortly};
use crate::process::shortcut;
use crate::real;
use crate::real::passed;
use crate::types::{CUcontext, CUdeviceptr, CudaResult};

/// As [`memory::cuMemAlloc_v2`](super::memory::cuMemAlloc_v2), for a call that
/// returns to the address `call`; `None` where that has to be asked.
#[inline(always)]
pub(crate) unsafe fn cuMemAlloc_v2(
    address: *mut CUdeviceptr,
    size: usize,
    call: usize,
) -> Option<CudaResult> {
    if !may_be_kept(size) || address.is_null() || !is_open_to(&passed::cuMemAlloc_v2) {
        return None;
    }
    let library = owners::known(call)?;
    let mut context = ptr::null_mut();
    ask_current(&mut context);
    let found = allocate(device::last_pool(context)?, size, library)?;
    // SAFETY: the caller's place for the answer.
    unsafe { *address = found.get() };
    Some(0)
}

/// As [`memory::cuMemFree_v2`](super::memory::cuMemFree_v2); `None` where that has
/// to be asked.
#[inline(always)]
pub(crate) unsafe fn cuMemFree_v2(address: CUdeviceptr) -> Option<CudaResult> {
    (passed::cuMemFree_v2.get() && free(address)).then_some(0)
}

/// As [`runtime::cudaMalloc`](super::runtime::cudaMalloc), for a call that returns
/// to the address `call`; `None` where that has to be asked.
#[inline(always)]
pub(crate) unsafe fn cudaMalloc(
    pointer: *mut *mut c_void,
    size: usize,
    call: usize,
) -> Option<CudaResult> {
    if !may_be_kept(size) || !is_open_to(&passed::cudaMalloc) {
        return None;
    }
    let library = owners::known(call)?;
    let pointer = NonNull::new(pointer)?;
    let mut context = ptr::null_mut();
    ask_current(&mut context);
    let pool = device::last_pool(context)?;
    if !devices::is_sole() && asked_device()? != pool.device() {
        return None;
    }
    let address = usize::try_from(allocate(pool, size, library)?.get()).ok()?;
    // SAFETY: the caller's place for the answer.
    unsafe { pointer.write(ptr::with_exposed_provenance_mut(address)) };
    Some(0)
}

/// As [`runtime::cudaFree`](super::runtime::cudaFree); `None` where that has to be
/// asked.
#[inline(always)]
pub(crate) unsafe fn cudaFree(pointer: *mut c_void) -> Option<CudaResult> {
    (passed::cudaFree.get() && free(pointer.addr() as u64)).then_some(0)
}

/// Whether a request may be served from what a thread keeps: of others nothing is
/// asked here.
#[inline(always)]
fn may_be_kept(size: usize) -> bool {
    DeviceArena::may_be_kept(Bytes::new(size as u64))
}

#[inline(always)]
fn is_open_to(door: &Passed) -> bool {
    shortcut::is_open() && door.get()
}

/// Asks which context is current on this thread; only where the shortcut is open. Where
/// the driver fails the context stays null, which is the handle of no pool.
#[inline(always)]
fn ask_current(context: &mut CUcontext) {
    // SAFETY: writes the answer to the caller's place; it was found before the shortcut
    // was opened.
    unsafe { real::known::cuCtxGetCurrent(context) };
}

/// The runtime's current device, where it says so.
#[inline(always)]
fn asked_device() -> Option<c_int> {
    let mut set: MaybeUninit<c_int> = MaybeUninit::uninit();
    // SAFETY: writes the answer to a local.
    if unsafe { real::known::cudaGetDevice(set.as_mut_ptr()) } != Some(0) {
        return None;
    }
    // SAFETY: the runtime said that it wrote the answer.
    Some(unsafe { set.assume_init() })
}

#[inline(always)]
fn allocate(pool: &DevicePool, size: usize, library: LibraryId) -> Option<Address> {
    let _serving = ServingShortly::begin()?;
    pool.arena().allocate_kept(Bytes::new(size as u64), library)
}

#[inline(always)]
fn free(address: CUdeviceptr) -> bool {
    if !shortcut::is_open() {
        return false;
    }
    let mut context = ptr::null_mut();
    ask_current(&mut context);
    let Some(pool) = device::last_pool(context) else {
        return false;
    };
    let Some(_serving) = ServingShortly::begin() else {
        return false;
    };
    pool.arena().free_kept(Address::new(address))
}
