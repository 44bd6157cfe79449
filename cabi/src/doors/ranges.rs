//! The doors by which programs ask for the allocation around an address, give it to
//! others, and say how it is to be treated.

use std::ffi::{c_int, c_void};
use std::ptr;

use vramalloc_core::Code;

use crate::driver::in_step;
use crate::ipc::range::{Around, NOWHERE, around, give_out, mapped_context};
use crate::pools::host_memory;
use crate::real;
use crate::types::{CUdeviceptr, CudaResult, put};

/// Attributes of a pointer, as the driver numbers them.
const CONTEXT: c_int = 1;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
/// Whether calls that copy or set memory wait until that is done, also those that
/// need not (`SYNC_MEMOPS`).
const SYNCHRONOUS: c_int = 6;

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    match around(address) {
        // SAFETY: the caller's places for the answers.
        Around::Freed => Some(unsafe { real::cuMemGetAddressRange_v2(base, size, NOWHERE) }),
        Around::Nothing => None,
        // The program only asks whether anything is there.
        _ if base.is_null() && size.is_null() => None,
        Around::Unsure => Some(Code::NOT_SUPPORTED.get()),
        Around::Block(start, length) => {
            // SAFETY: each is null or the caller's place for an answer.
            unsafe { put_block(base, size, start, length) }
        }
        Around::HostBlock(start, length) => {
            // The driver decides whether it answers for host memory of its own.
            let at = usize::try_from(address).map(ptr::with_exposed_provenance_mut);
            let stand_in = at.ok().and_then(host_memory::stand_in);
            let asked = stand_in.map_or(address, |page| page.addr() as u64);
            // SAFETY: the caller's places for the answers.
            match unsafe { real::cuMemGetAddressRange_v2(base, size, asked) } {
                // SAFETY: as above.
                0 => unsafe { put_block(base, size, start, length) },
                result => Some(result),
            }
        }
    }
}

/// Answers with a block.
///
/// # Safety
/// Each place is null or may be written to.
unsafe fn put_block(
    base: *mut CUdeviceptr,
    size: *mut usize,
    start: u64,
    length: u64,
) -> Option<CudaResult> {
    let length = usize::try_from(length).ok()?;
    // SAFETY: the caller's promise.
    unsafe {
        put(base, start);
        put(size, length);
    }
    Some(0)
}

pub(crate) unsafe fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: CUdeviceptr,
    size: usize,
    kind: c_int,
    flags: u64,
) -> Option<CudaResult> {
    Some(give_out(address, size as u64, |address| {
        // SAFETY: the caller's own arguments, but for the address.
        unsafe { real::cuMemGetHandleForAddressRange(handle, address, size, kind, flags) }
    }))
}

/// The driver synchronises calls about one allocation, but not about mapped memory:
/// for that whole contexts are told to.
pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    if attribute != SYNCHRONOUS || value.is_null() {
        return None;
    }
    mapped_context(address)?;
    // SAFETY: the caller's value, which is a number of 32 bits for this attribute.
    let is_on = unsafe { value.cast::<u32>().read() } != 0;
    // What is more than was asked for does no harm. Where contexts cannot be told the
    // driver says that it does not support this.
    (!is_on || in_step::begin()).then_some(0)
}

pub(crate) unsafe fn cuPointerGetAttribute(
    to: *mut c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    if attribute == CONTEXT {
        let context = mapped_context(address)?;
        // SAFETY: the caller's own arguments.
        let result = unsafe { real::cuPointerGetAttribute(to, attribute, address) };
        if result == 0 {
            // SAFETY: the real function has just written such an answer there.
            unsafe { put(to.cast(), context) };
        }
        return Some(result);
    }
    if !is_range(attribute) {
        return None;
    }
    let around = around(address);
    // SAFETY: the caller's own arguments, but for the address.
    let result = unsafe { real::cuPointerGetAttribute(to, attribute, around.asked(address)) };
    if result != 0 {
        return Some(result);
    }
    Some(correct(&around, |start, size| {
        // SAFETY: the real function has just written this answer there.
        unsafe { write(to, attribute, start, size) };
    }))
}

pub(crate) unsafe fn cuPointerGetAttributes(
    count: u32,
    attributes: *mut c_int,
    to: *mut *mut c_void,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    if attributes.is_null() || to.is_null() {
        return None;
    }
    let asked = |i: usize| {
        // SAFETY: the caller's array has `count` attributes.
        unsafe { *attributes.add(i) }
    };
    let count_of = usize::try_from(count).ok()?;
    let any = |wanted: fn(c_int) -> bool| (0..count_of).any(|i| wanted(asked(i)));
    let context = any(is_context).then(|| mapped_context(address)).flatten();
    if context.is_none() && !any(is_range) {
        return None;
    }
    let around = around(address);
    let address = around.asked(address);
    // SAFETY: the caller's own arguments, but for the address.
    let result = unsafe { real::cuPointerGetAttributes(count, attributes, to, address) };
    if result != 0 {
        return Some(result);
    }
    if let Some(context) = context {
        for i in (0..count_of).filter(|&i| is_context(asked(i))) {
            // SAFETY: the caller's array has `count` places, and the real function
            // has just written its answers there.
            unsafe { put((*to.add(i)).cast(), context) };
        }
    }
    Some(correct(&around, |start, size| {
        for i in (0..count_of).filter(|&i| is_range(asked(i))) {
            // SAFETY: the caller's array has `count` places, and the real
            // function has just written its answers there.
            unsafe { write(*to.add(i), asked(i), start, size) };
        }
    }))
}

fn is_context(attribute: c_int) -> bool {
    attribute == CONTEXT
}

fn is_range(attribute: c_int) -> bool {
    matches!(attribute, RANGE_START | RANGE_SIZE)
}

fn correct(around: &Around, write: impl FnOnce(u64, u64)) -> CudaResult {
    match *around {
        Around::Nothing | Around::Freed => 0,
        Around::Unsure => Code::NOT_SUPPORTED.get(),
        Around::Block(start, size) | Around::HostBlock(start, size) => {
            write(start, size);
            0
        }
    }
}

/// Writes the start or the size, as the attribute asks.
///
/// # Safety
/// `to` is null or a place for the answer to this attribute.
unsafe fn write(to: *mut c_void, attribute: c_int, start: u64, size: u64) {
    let value = if attribute == RANGE_START {
        start
    } else {
        size
    };
    // SAFETY: the caller's promise; both answers are 64 bits wide.
    unsafe { put(to.cast(), value) };
}
