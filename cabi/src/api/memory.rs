//! Memory by place.

use std::ffi::{c_int, c_void};
use std::ptr;

use vramalloc_core::{Address, AllocError, Bytes, Code};

use super::{Failure, VRAMALLOC_INVALID_ARGUMENT, answer, given, pointer, vramalloc_result};
use crate::pools::holdings;
use crate::pools::{memory, pageable, places};

/// Where memory lies: the ordinal of a device (0 and up, as CUDA counts them
/// in this process), or one of this library's own places.
pub type vramalloc_place = c_int;

/// The device of the context that is current on the calling thread. If there is
/// none, a shared CUDA runtime in the process is initialised as by a first call
/// of its own, and its device is the place; without such a runtime the result
/// is 201, CUDA's code for no context.
pub const VRAMALLOC_CURRENT_DEVICE: c_int = -1;
/// Host memory that is page-locked, for every context.
pub const VRAMALLOC_PINNED: c_int = -2;
/// Host memory as malloc gives it. CUDA is not needed for it.
pub const VRAMALLOC_PAGEABLE: c_int = -3;

/// Allocates `size` bytes of memory at `place` and writes their address to
/// `*address`.
///
/// The address is a multiple of 512 on a device and for pageable memory, of 256
/// at least for pinned memory; the contents are undefined. On a device the
/// block counts against the option `limit` and can be used by every stream of
/// its context. The caller owns it until `vramalloc_free`. If `size` is 0, null
/// is written.
///
/// Device memory comes from the context that is current on the thread, if that
/// is on the device, else from the device's primary context; what is current
/// does not change. It is pooled if the library was preloaded or the program is
/// linked with it. If it was loaded by dlopen, each call here is one of the
/// driver's.
///
/// May be called before CUDA is initialised, and then initialises it; during a
/// capture, which it does not disturb; by any thread; not in a forked child
/// (not even for pageable memory) and not from a signal handler.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null `address` or an unknown
/// place, `VRAMALLOC_INVALID_STATE` while the memory is paused, `VRAMALLOC_NO_CUDA`,
/// or CUDA's code, such as 2 for out of memory
/// (also for pageable memory, if the system has none). After an error
/// `*address` is null.
///
/// The caller promises that `address`, if it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_malloc(
    size: usize,
    place: vramalloc_place,
    address: *mut *mut c_void,
) -> vramalloc_result {
    answer(|| {
        let address = given(address)?;
        // SAFETY: the caller's promise.
        unsafe { *address = ptr::null_mut() };
        let block = Place::read(place)?.allocate(size)?;
        let memory = pointer(block)?;
        holdings::enter_block(block);
        // SAFETY: the caller's promise.
        unsafe { *address = memory };
        Ok(())
    })
}

/// Frees memory that this library handed out: by `vramalloc_malloc` at any
/// place, or by CUDA's functions if it stands in front of them. The address
/// says which place it is in, whichever device is current. For null it does
/// nothing. If the library stands in front, CUDA's own functions free the
/// memory just as well.
///
/// Work on the device that was submitted before the call may still use
/// the memory: it is handed out again only when all of that is done. The host
/// must not touch host memory after the call, but copies that the device
/// still makes may.
///
/// May be called during a capture and by any thread; not in a forked child
/// and not from a signal handler.
///
/// Errors: `VRAMALLOC_NOT_OURS`, and nothing is changed (also for a member of a
/// group, which is freed with it); or CUDA's code.
///
/// The caller promises that nothing which comes after the call uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_free(address: *mut c_void) -> vramalloc_result {
    answer(|| {
        if address.is_null() {
            return Ok(());
        }
        Ok(memory::free_anywhere(address.addr())?)
    })
}

/// A place, as an argument names it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// This device, or the current one.
    Device(Option<c_int>),
    Pinned,
    Pageable,
}

impl Place {
    pub(super) fn read(place: vramalloc_place) -> Result<Place, Failure> {
        match place {
            VRAMALLOC_CURRENT_DEVICE => Ok(Place::Device(None)),
            VRAMALLOC_PINNED => Ok(Place::Pinned),
            VRAMALLOC_PAGEABLE => Ok(Place::Pageable),
            0.. => Ok(Place::Device(Some(place))),
            _ => Err(Failure(VRAMALLOC_INVALID_ARGUMENT)),
        }
    }

    /// Allocates in this place; address 0 for no bytes.
    pub(super) fn allocate(self, size: usize) -> Result<Address, Failure> {
        let size = Bytes::new(size as u64);
        if size.is_zero() {
            return Ok(Address::new(0));
        }
        Ok(match self {
            Place::Device(device) => places::allocate(device, size)?,
            Place::Pinned => places::allocate_pinned(size)?,
            Place::Pageable => pageable::allocate(size).map_err(|error| match error {
                AllocError::Limit | AllocError::Paused => Code::OUT_OF_MEMORY,
                AllocError::Driver(code) => code,
            })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{VRAMALLOC_NO_CUDA, VRAMALLOC_NOT_OURS, VRAMALLOC_SUCCESS};
    use crate::process::guard;

    fn malloc(size: usize, place: c_int) -> (c_int, *mut c_void) {
        let mut address = ptr::without_provenance_mut(1);
        // SAFETY: writes the answer to a local.
        let result = unsafe { vramalloc_malloc(size, place, &raw mut address) };
        (result, address)
    }

    #[test]
    fn arguments_are_checked() {
        let _turn = guard::turn();
        // SAFETY: null is allowed.
        let result = unsafe { vramalloc_malloc(1, VRAMALLOC_PAGEABLE, ptr::null_mut()) };
        assert_eq!(result, VRAMALLOC_INVALID_ARGUMENT);
        for place in [-4, c_int::MIN] {
            let refused = (VRAMALLOC_INVALID_ARGUMENT, ptr::null_mut());
            assert_eq!(malloc(1, place), refused);
        }
        assert_eq!(malloc(0, 0), (VRAMALLOC_SUCCESS, ptr::null_mut()));
        // SAFETY: null, and an address without memory.
        unsafe {
            assert_eq!(vramalloc_free(ptr::null_mut()), VRAMALLOC_SUCCESS);
            let nobodys = ptr::without_provenance_mut(4096);
            assert_eq!(vramalloc_free(nobodys), VRAMALLOC_NOT_OURS);
        }
    }

    #[test]
    fn without_cuda_there_is_pageable_memory_alone() {
        let _turn = guard::turn();
        let none = (VRAMALLOC_NO_CUDA, ptr::null_mut());
        for place in [0, 7, VRAMALLOC_CURRENT_DEVICE, VRAMALLOC_PINNED] {
            assert_eq!(malloc(1, place), none);
        }
        let (result, address) = malloc(1000, VRAMALLOC_PAGEABLE);
        assert_eq!(result, VRAMALLOC_SUCCESS);
        assert_eq!(address.addr() % 512, 0);
        // SAFETY: a block of 1000 bytes; then no longer used.
        unsafe {
            address.cast::<u8>().write_bytes(7, 1000);
            assert_eq!(vramalloc_free(address.byte_add(512)), VRAMALLOC_NOT_OURS);
            assert_eq!(vramalloc_free(address), VRAMALLOC_SUCCESS);
            assert_eq!(vramalloc_free(address), VRAMALLOC_NOT_OURS);
        }
        let (result, address) = malloc(usize::MAX, VRAMALLOC_PAGEABLE);
        assert_eq!((result, address), (2, ptr::null_mut()));
    }
}
