//! Memory that can be paused.

use std::ffi::{CStr, c_char, c_int};
use std::mem;

use vramalloc_core::Code;
use vramalloc_core::arena::Contents;
use vramalloc_core::stats::Moved;

use super::memory::{Place, vramalloc_place};
use super::{
    Failure, VRAMALLOC_INVALID_ARGUMENT, VRAMALLOC_INVALID_STATE, answer, given, vramalloc_result,
};
use crate::pools::pause::{self, Tag};
use crate::pools::{places, regions};
use crate::types::CUdevice;

/// What a region's memory holds is the same after a pause.
pub const VRAMALLOC_KEEP: c_int = 0;
/// What a region's memory holds is lost in a pause, which then copies nothing: for
/// what the program can make again.
pub const VRAMALLOC_DROP: c_int = 1;

/// A flag of `vramalloc_resume`: the host memory that held what was paused goes back to
/// the system. Without it, it is kept for the next pause.
pub const VRAMALLOC_DROP_BACKUPS: c_int = 1;

/// What `vramalloc_pause` or `vramalloc_resume` did.
#[repr(C)]
pub struct vramalloc_paused {
    /// Set by the caller to `sizeof(vramalloc_paused)`: no more is written.
    pub struct_size: usize,
    /// Bytes that went to the device, or came from it.
    pub bytes: u64,
    /// Bytes that were copied to the host, or from there.
    pub copied: u64,
    /// Bytes that a pause left where they are, since their addresses would have gone
    /// with them: plain allocations of the driver's.
    pub stays_plain: u64,
    /// The same, since the program has given others a handle of them.
    pub stays_exported: u64,
    /// The same, since the driver refused.
    pub stays_refused: u64,
    /// Whether any of the memory is paused now: also written after an error.
    pub is_paused: c_int,
}

/// Begins a region of the calling thread, inside the one that it is in: device memory
/// that the thread gets from then on, by this API or by CUDA's functions if the library
/// stands in front of them, bears `tag`, until `vramalloc_region_end`. Not so memory of
/// a stream that captures a graph, and page-locked memory of the host.
///
/// `contents` is `VRAMALLOC_KEEP` or `VRAMALLOC_DROP`. Memory of different tags never
/// shares a page of the device. Any thread may free it. Tags are copied, and known
/// until the process ends: use few.
///
/// May be called before CUDA is initialised, during a capture and by any thread; not
/// in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null or empty `tag`, for unknown
/// `contents`, and in more than 16 regions inside each other.
///
/// The caller promises that `tag` ends in zero, if it is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_region_begin(
    tag: *const c_char,
    contents: c_int,
) -> vramalloc_result {
    answer(|| {
        // SAFETY: the caller's promise.
        let tag = unsafe { read(tag) };
        let contents = match contents {
            VRAMALLOC_KEEP => Contents::Keep,
            VRAMALLOC_DROP => Contents::Drop,
            _ => return Err(Failure(VRAMALLOC_INVALID_ARGUMENT)),
        };
        let tag = tag.filter(|tag| !tag.is_empty());
        let is_begun = tag.is_some_and(|tag| regions::begin(tag, contents));
        is_begun
            .then_some(())
            .ok_or(Failure(VRAMALLOC_INVALID_ARGUMENT))
    })
}

/// Ends the calling thread's innermost region. Its memory stays as it is.
///
/// May be called when `vramalloc_region_begin` may.
///
/// Errors: `VRAMALLOC_INVALID_STATE` if the thread is in none.
#[unsafe(no_mangle)]
pub extern "C" fn vramalloc_region_end() -> vramalloc_result {
    answer(|| {
        regions::end()
            .then_some(())
            .ok_or(Failure(VRAMALLOC_INVALID_STATE))
    })
}

/// Gives memory of the device at `place` to the device, while its addresses stay:
/// what bears `tag`; with the tag "" what was asked for in no region; with null all.
/// What live blocks hold is saved on the host, unless their region drops it. Free
/// memory goes too. Other processes, and memory that bears another tag, can use the room.
///
/// It first waits for all work of the process, on all devices. The strategy `mapped` is
/// needed. What cannot go is written to `*paused`, which may be null, by its reason.
/// Until `vramalloc_resume`, blocks can be freed, and requests for memory of this tag
/// fail: here with `VRAMALLOC_INVALID_STATE`, in CUDA's functions with out of memory.
/// Pausing what is paused does nothing and succeeds. A capture that another thread
/// begins meanwhile waits until it is done.
///
/// May be called by any thread; not in a forked child and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a place that is no device or a
/// `struct_size` that is none; 900 while a stream captures a graph; 801 where the strategy
/// in force maps no memory; else CUDA's code, such as 2 where the host has no memory for
/// what is to be saved. After an error nothing has changed, but that contents which a
/// region drops may be gone; only where the driver refuses to undo what was done as well,
/// memory is paused, as `is_paused` says.
///
/// The caller promises that no work uses the memory until it is resumed, not even work
/// of graphs, and that `tag` ends in zero and `paused` may be written to, if they are
/// not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_pause(
    place: vramalloc_place,
    tag: *const c_char,
    paused: *mut vramalloc_paused,
) -> vramalloc_result {
    answer(|| {
        // SAFETY: the caller's promise.
        let tag = unsafe { read(tag) };
        let device = device(place)?;
        // SAFETY: the caller's promise.
        unsafe { told(paused, device, tag, || pause::pause(device, tag)) }
    })
}

/// Takes the memory from the device again that `vramalloc_pause` gave it, for the same
/// addresses, and copies what blocks held back. So graphs that use them can be launched
/// as they are. Resuming what is not paused does nothing and succeeds.
///
/// `flags` is 0 or `VRAMALLOC_DROP_BACKUPS`. What was done is written to `*resumed`,
/// which may be null.
///
/// May be called when `vramalloc_pause` may.
///
/// Errors: as `vramalloc_pause`, and 2 where the device, or the option `limit`, has not
/// enough memory. After an error the memory is paused as before, but for what the driver
/// refuses to unmap again: that stays on the device, and the next resume finds it there.
///
/// The caller promises that `tag` ends in zero and `resumed` may be written to, if they
/// are not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_resume(
    place: vramalloc_place,
    tag: *const c_char,
    flags: c_int,
    resumed: *mut vramalloc_paused,
) -> vramalloc_result {
    answer(|| {
        if flags & !VRAMALLOC_DROP_BACKUPS != 0 {
            return Err(Failure(VRAMALLOC_INVALID_ARGUMENT));
        }
        // SAFETY: the caller's promise.
        let tag = unsafe { read(tag) };
        let device = device(place)?;
        let drops = flags & VRAMALLOC_DROP_BACKUPS != 0;
        let resume = || pause::resume(device, tag, drops);
        // SAFETY: the caller's promise.
        unsafe { told(resumed, device, tag, resume) }
    })
}

/// A tag, or none.
///
/// # Safety
/// It ends in zero, if it is not null.
unsafe fn read<'a>(tag: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!tag.is_null()).then(|| unsafe { CStr::from_ptr(tag) })
}

/// The device that a place names. One that is named gets no context by that.
fn device(place: vramalloc_place) -> Result<CUdevice, Failure> {
    match Place::read(place)? {
        Place::Device(None) => Ok(places::pool(None)?.device()),
        Place::Device(Some(ordinal)) => Ok(places::device(ordinal)?),
        Place::Pinned | Place::Pageable => Err(Failure(VRAMALLOC_INVALID_ARGUMENT)),
    }
}

/// Does something, and writes what came of it.
///
/// # Safety
/// `answer` may be written to, if it is not null, as far as it says itself.
unsafe fn told(
    answer: *mut vramalloc_paused,
    device: CUdevice,
    tag: Tag<'_>,
    work: impl FnOnce() -> Result<Moved, Code>,
) -> Result<(), Failure> {
    if let Ok(answer) = given(answer) {
        // SAFETY: the caller's promise.
        let size = unsafe { (*answer).struct_size };
        if size < mem::size_of::<vramalloc_paused>() {
            return Err(Failure(VRAMALLOC_INVALID_ARGUMENT));
        }
    }
    let result = work();
    let moved = result.unwrap_or_default();
    if let Ok(answer) = given(answer) {
        // SAFETY: the caller's promise.
        unsafe {
            (*answer).bytes = moved.bytes.get();
            (*answer).copied = moved.copied.get();
            (*answer).stays_plain = moved.stays.plain.get();
            (*answer).stays_exported = moved.stays.exported.get();
            (*answer).stays_refused = moved.stays.refused.get();
            (*answer).is_paused = c_int::from(pause::is_paused(device, tag));
        }
    }
    Ok(result.map(|_| ())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::memory::{VRAMALLOC_PAGEABLE, VRAMALLOC_PINNED};
    use crate::api::{VRAMALLOC_NO_CUDA, VRAMALLOC_SUCCESS};
    use crate::process::guard;
    use std::ptr;

    #[test]
    fn arguments_are_checked() {
        let _turn = guard::turn();
        let bad = VRAMALLOC_INVALID_ARGUMENT;
        // SAFETY: nulls, and texts that end in zero.
        unsafe {
            assert_eq!(vramalloc_region_begin(ptr::null(), VRAMALLOC_KEEP), bad);
            assert_eq!(vramalloc_region_begin(c"".as_ptr(), VRAMALLOC_KEEP), bad);
            assert_eq!(vramalloc_region_begin(c"a".as_ptr(), 2), bad);
            let begun = vramalloc_region_begin(c"a".as_ptr(), VRAMALLOC_DROP);
            assert_eq!(begun, VRAMALLOC_SUCCESS);
            assert_eq!(vramalloc_region_end(), VRAMALLOC_SUCCESS);
            assert_eq!(vramalloc_region_end(), VRAMALLOC_INVALID_STATE);
            for place in [VRAMALLOC_PINNED, VRAMALLOC_PAGEABLE, -9] {
                assert_eq!(vramalloc_pause(place, ptr::null(), ptr::null_mut()), bad);
            }
            let none = vramalloc_pause(0, ptr::null(), ptr::null_mut());
            assert_eq!(none, VRAMALLOC_NO_CUDA);
            let flags = vramalloc_resume(0, ptr::null(), 2, ptr::null_mut());
            assert_eq!(flags, bad);
        }
    }
}
