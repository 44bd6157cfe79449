//! The places of the C API: which context a device means, and memory there.
//!
//! A call may name a device of which no context is current, or come before any
//! use of CUDA. Then the device's primary context serves, made if need be, as
//! by the runtime's own first call. Cost: as the driver's door; once, the
//! making of a context.

use std::ffi::c_int;
use std::ptr;

use vramalloc_core::page_map::Owner;
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::primary;
use crate::driver::users::{self, Counted};
use crate::linker::resolve;
use crate::linker::resolve::MISSING;
use crate::pools::device::{self, Asking, DeviceArena, DevicePool};
use crate::pools::host_memory;
use crate::pools::memory::{self, Refusal};
use crate::real;
use crate::types::{CUcontext, CUdevice, CUdeviceptr};

/// Allocates memory of a device.
///
/// # Errors
/// What CUDA returns, for the device's context or for the memory.
pub(crate) fn allocate(device: Option<c_int>, size: Bytes) -> Result<Address, Code> {
    allocate_in(pool(device)?.serving_thread().arena(), size)
}

/// Allocates memory from an arena.
///
/// # Errors
/// What CUDA returns.
pub(crate) fn allocate_in(arena: &DeviceArena, size: Bytes) -> Result<Address, Code> {
    let last = || {
        let mut answer: CUdeviceptr = 0;
        let size = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let context = arena.driver().context();
        // SAFETY: writes the answer to a local.
        let result = context.call(|| unsafe { real::cuMemAlloc_v2(&raw mut answer, size) });
        (result.err().map_or(0, Code::get), answer)
    };
    let served = memory::allocate(arena, size, last);
    let address = served.map_err(|refusal| match refusal {
        Refusal::Limit => Code::OUT_OF_MEMORY,
        Refusal::Paused => Code::ILLEGAL_STATE,
        Refusal::Real(result) => code(result),
    })?;
    if device::owner(address.get()) == Owner::Foreign {
        // It is the driver's, in a subpage of the page map in which another
        // arena has a direct allocation: this API could not free it.
        let context = arena.driver().context();
        // SAFETY: an address that the driver gave just now, known only here.
        let _ = context.call(|| unsafe { real::cuMemFree_v2(address.get()) });
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(address)
}

/// The code of a failed call.
fn code(result: u32) -> Code {
    Code::check(result).err().unwrap_or(Code::UNKNOWN)
}

/// The device of this ordinal, where the driver knows one; no context is made on it.
///
/// # Errors
/// What CUDA returns; [`Code::NOT_SUPPORTED`] if none of it is loaded.
pub(crate) fn device(ordinal: c_int) -> Result<CUdevice, Code> {
    let mut handle: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let mut get = || Code::check(unsafe { real::cuDeviceGet(&raw mut handle, ordinal) });
    if get().is_err() {
        begin_driver()?;
        get()?;
    }
    Ok(handle)
}

/// The pool of a device, or the current one if none is named.
///
/// # Errors
/// What CUDA returns; [`Code::NOT_SUPPORTED`] if none of it is loaded.
pub(crate) fn pool(device: Option<c_int>) -> Result<&'static DevicePool, Code> {
    if let Some(pool) = current_on(device) {
        return Ok(pool);
    }
    let Some(ordinal) = device else {
        begin()?;
        return current_on(None).ok_or(Code::INVALID_CONTEXT);
    };
    let mut handle: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let mut get = || Code::check(unsafe { real::cuDeviceGet(&raw mut handle, ordinal) });
    if get().is_err() {
        begin()?;
        get()?;
    }
    let context = primary(handle)?;
    device::pool_of(context, handle, Asking::Api).ok_or(Code::INVALID_CONTEXT)
}

/// The current context's pool, if it is on the device.
fn current_on(device: Option<c_int>) -> Option<&'static DevicePool> {
    let pool = device::current_pool(Asking::Api)?;
    // The driver's number of a device is its ordinal.
    device
        .is_none_or(|ordinal| pool.device() == ordinal)
        .then_some(pool)
}

/// The device of the context that is current, if one is.
pub(crate) fn current_device() -> Option<CUdevice> {
    device::current_pool(Asking::Api).map(DevicePool::device)
}

/// Initialises CUDA, as any first call of the program would: by the runtime, if
/// one can be called, else by the driver.
fn begin() -> Result<(), Code> {
    // SAFETY: frees nothing. It is not marked as a call of ours: the contexts
    // that it makes are the program's, and the doors below have to see them.
    let begun = unsafe { real::cudaFree(ptr::null_mut()) };
    if begun != MISSING {
        return Code::check(begun);
    }
    begin_driver()
}

/// Initialises the driver alone, which makes no context.
fn begin_driver() -> Result<(), Code> {
    if !resolve::driver_is_loaded() && !resolve::load_driver() {
        return Err(Code::NOT_SUPPORTED);
    }
    // SAFETY: a number.
    Code::check(unsafe { real::cuInit(0) })
}

/// The primary context of a device. If the program has not made it yet it is
/// kept from then on, as the runtime keeps it.
fn primary(device: CUdevice) -> Result<CUcontext, Code> {
    users::ask(device, || {
        let was_there = primary::is_active(device) == Some(true);
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        Code::check(unsafe { real::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
        if was_there {
            primary::release_primary(device);
        } else {
            users::joined(Counted::Primary(device));
        }
        Ok(context)
    })
}

/// Allocates page-locked memory of the host.
///
/// # Errors
/// What CUDA returns.
pub(crate) fn allocate_pinned(size: Bytes) -> Result<Address, Code> {
    host_memory::allocate_portable(any_pool()?, size)
}

/// The pool of any context: for portable memory they are alike.
fn any_pool() -> Result<&'static DevicePool, Code> {
    pool(None).or_else(|_| pool(Some(0)))
}
