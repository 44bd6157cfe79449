//! Whose a block is.

use std::ffi::{c_char, c_void};
use std::{mem, ptr};

use vramalloc_core::{Bytes, Code};

use super::memory::vramalloc_place;
use super::{
    Failure, VRAMALLOC_INVALID_ARGUMENT, VRAMALLOC_NOT_OURS, VRAMALLOC_TOO_SMALL, answer, given,
    pointer, vramalloc_result,
};
use crate::pools::device;
use crate::stacks;

/// The number of a block whose request has no call stack: stacks are taken only where
/// the option `stacks` or `oom_report` says so.
pub const VRAMALLOC_NO_STACK: u32 = u32::MAX;

/// A block of a device's memory, and how much there is to say of it.
#[repr(C)]
pub struct vramalloc_block {
    /// Set by the caller to `sizeof(vramalloc_block)`: no more is written.
    pub struct_size: usize,
    /// Where the block begins.
    pub address: *mut c_void,
    /// Its bytes, and those of them that were asked for.
    pub size: usize,
    pub requested: usize,
    /// How many places of machine code its call stack has.
    pub calls: usize,
    /// The length of the text about its places of Python, with the zero.
    pub python: usize,
    /// The device that it is on.
    pub place: vramalloc_place,
    /// The number of its call stack in the statistics ("call_stacks"), or
    /// `VRAMALLOC_NO_STACK`.
    pub stack: u32,
}

/// Says which block of a device's memory `address` lies in, and where it was asked
/// for.
///
/// To `calls` it writes the addresses of the calls in machine code, the innermost
/// first, as `backtrace_symbols` and `dladdr` take them (null where the library is
/// no longer loaded); how many there are to `block->calls`. To `python` it writes a
/// text with a line for each place of Python, the innermost first, as
/// "train.py:41 forward"; its length to `block->python`. Each of the two may be null
/// if it is not wanted.
///
/// Any address in a block is its own; of one that has an allocation of CUDA's for
/// itself, perhaps only the first.
///
/// May be called by any thread, and during a capture; no CUDA function is called.
/// Not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `block` or a `struct_size` that
/// is none; `VRAMALLOC_NOT_OURS` if no block that is held lies there;
/// `VRAMALLOC_TOO_SMALL` if `calls` has no room for `calls_capacity` addresses or
/// `python` none for `python_capacity` bytes: the block is written all the same, and
/// neither of the two.
///
/// The caller promises that `block` has `block->struct_size` bytes, `calls` room for
/// `calls_capacity` addresses, and `python` for `python_capacity` bytes, if they are
/// not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_whose(
    address: *const c_void,
    block: *mut vramalloc_block,
    calls: *mut *mut c_void,
    calls_capacity: usize,
    python: *mut c_char,
    python_capacity: usize,
) -> vramalloc_result {
    answer(|| {
        let block = given(block)?;
        // SAFETY: the caller's promise; a size is the first thing in it.
        let room = unsafe { block.cast::<usize>().read() };
        if room < mem::size_of::<vramalloc_block>() {
            return Err(Failure(VRAMALLOC_INVALID_ARGUMENT));
        }
        let found = device::whose(address.addr() as u64);
        let (ordinal, located, stack) = found.ok_or(Failure(VRAMALLOC_NOT_OURS))?;
        let taken = stacks::taken(stack);
        let (places, text) = taken.map_or_else(Default::default, |taken| {
            let lines = taken.python.iter().map(|line| format!("{line}\n"));
            (taken.calls, lines.collect::<String>())
        });
        let bytes = |bytes: Bytes| usize::try_from(bytes.get()).map_err(|_| Code::UNKNOWN);
        let found = vramalloc_block {
            struct_size: room,
            address: pointer(located.block)?,
            size: bytes(located.size)?,
            requested: bytes(located.requested)?,
            calls: places.len(),
            python: text.len() + 1,
            place: ordinal,
            stack: stack.number().unwrap_or(VRAMALLOC_NO_STACK),
        };
        // SAFETY: the caller's promise; it has room for what we know of it.
        unsafe { block.write(found) };
        let is_short = (!calls.is_null() && calls_capacity < places.len())
            || (!python.is_null() && python_capacity <= text.len());
        if is_short {
            return Err(Failure(VRAMALLOC_TOO_SMALL));
        }
        if !calls.is_null() {
            for (at, &place) in places.iter().enumerate() {
                // SAFETY: the caller's promise, and there is room for all.
                unsafe { calls.add(at).write(ptr::with_exposed_provenance_mut(place)) };
            }
        }
        if !python.is_null() {
            // SAFETY: as above; two buffers do not overlap.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), python, text.len());
                *python.add(text.len()) = 0;
            }
        }
        Ok(())
    })
}
