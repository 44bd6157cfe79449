//! Groups of buffers.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use vramalloc_core::group::{Member, pack};
use vramalloc_core::{Bytes, Code};

use super::memory::{Place, vramalloc_place};
use super::{
    Failure, VRAMALLOC_INVALID_ARGUMENT, VRAMALLOC_NOT_OURS, answer, given, number, pointer,
    vramalloc_result,
};
use crate::pools::holdings;
use crate::pools::memory::{OwnBlock, free_anywhere};
use crate::process;

/// A buffer to be allocated as the member of a group.
#[repr(C)]
pub struct vramalloc_member {
    /// Its size in bytes, above 0.
    pub size: usize,
    /// Its name, or null. The part before its first dot is its layer.
    pub name: *const c_char,
    /// The number of its layer, if it has no name.
    pub layer: u64,
}

/// A group, by its number; 0 is none.
pub type vramalloc_group = u64;

/// Allocates memory at `place` for `count` buffers that live and die together,
/// packed into few allocations. Writes their addresses to `addresses`, in the
/// order of `members`, and the group's number to `*group`.
///
/// Members of one layer lie in one allocation. How many layers share one is
/// said by two options, as in Paddle: `fuse_parameter_memory_size` (negative:
/// one; 0: all; else as many as it takes to reach so many MiB) and
/// `fuse_parameter_groups_size` (above 1: an allocation also ends with the
/// layer that makes it more members than this). With a size of 0 members lie in
/// the order of their names. Each starts at a multiple of 256.
///
/// The caller owns the group until `vramalloc_group_free`. A member is not
/// freed by itself, and CUDA's functions refuse it if the library stands before
/// them.
///
/// May be called when `vramalloc_malloc` may.
///
/// Errors: `VRAMALLOC_INVALID_ARGUMENT` for a null argument, no members, one of
/// 0 bytes, or an unknown place; else as `vramalloc_malloc`. After an error
/// `*group` is 0 and nothing is held.
///
/// The caller promises `count` members with names that end in zero, and room
/// for as many addresses and a group, if they are not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_group_malloc(
    members: *const vramalloc_member,
    count: usize,
    place: vramalloc_place,
    addresses: *mut *mut c_void,
    group: *mut vramalloc_group,
) -> vramalloc_result {
    answer(|| {
        let group = given(group)?;
        // SAFETY: the caller's promise.
        unsafe { *group = 0 };
        let addresses = given(addresses)?;
        // SAFETY: as above.
        let members = unsafe { read(members, count) }?;
        let place = Place::read(place)?;
        let config = process::options(|loaded| loaded.settings.groups);
        let packs = pack(&members, config).ok_or(Code::OUT_OF_MEMORY)?;

        let mut starts = Vec::with_capacity(packs.len());
        for pack in &packs {
            let size = usize::try_from(pack.size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
            match place.allocate(size) {
                Ok(start) => starts.push(start),
                Err(failure) => {
                    for start in starts {
                        // The failure to report is the one that came first.
                        let _ = free_anywhere(number(start)?);
                    }
                    return Err(failure);
                }
            }
        }
        for (pack, start) in packs.iter().zip(&starts) {
            for &(member, offset) in &pack.members {
                let address = start.checked_add(offset).ok_or(Code::UNKNOWN)?;
                let address = pointer(address)?;
                // SAFETY: the caller's promise; members are below `count`.
                unsafe { *addresses.add(member) = address };
            }
        }
        let blocks = starts.into_iter().filter_map(OwnBlock::at).collect();
        // SAFETY: as above.
        unsafe { *group = holdings::make_group(blocks) };
        Ok(())
    })
}

/// The members as the caller gave them.
///
/// # Safety
/// There are that many members, whose names end in zero, if they are not null.
unsafe fn read<'a>(
    members: *const vramalloc_member,
    count: usize,
) -> Result<Vec<Member<'a>>, Failure> {
    let bad = Failure(VRAMALLOC_INVALID_ARGUMENT);
    if members.is_null() || count == 0 {
        return Err(bad);
    }
    // SAFETY: the caller's promise.
    let members = unsafe { slice::from_raw_parts(members, count) };
    let read = |member: &vramalloc_member| {
        if member.size == 0 {
            return Err(bad);
        }
        let name = if member.name.is_null() {
            None
        } else {
            // SAFETY: the caller's promise.
            let name = unsafe { CStr::from_ptr(member.name) };
            Some(name.to_str().map_err(|_| bad)?)
        };
        Ok(Member {
            size: Bytes::new(member.size as u64),
            name,
            layer: member.layer,
        })
    };
    members.iter().map(read).collect()
}

/// Writes to `*count` how many allocations a group has.
///
/// May be called when `vramalloc_malloc` may. Errors:
/// `VRAMALLOC_INVALID_ARGUMENT` for a null `count`, `VRAMALLOC_NOT_OURS` if
/// there is no such group.
///
/// The caller promises that `count`, if it is not null, may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_group_allocations(
    group: vramalloc_group,
    count: *mut usize,
) -> vramalloc_result {
    answer(|| {
        let count = given(count)?;
        let allocations = holdings::group_size(group).ok_or(Failure(VRAMALLOC_NOT_OURS))?;
        // SAFETY: the caller's promise.
        unsafe { *count = allocations };
        Ok(())
    })
}

/// Frees all members of a group, as `vramalloc_free` would, and the group. For
/// 0 it does nothing.
///
/// May be called when `vramalloc_free` may. Errors: `VRAMALLOC_NOT_OURS` if
/// there is no such group; or the code of the first free that failed, after all
/// others were tried.
///
/// The caller promises that nothing which comes after the call uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramalloc_group_free(group: vramalloc_group) -> vramalloc_result {
    answer(|| match group {
        0 => Ok(()),
        _ => Ok(holdings::free_group(group)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::memory::{VRAMALLOC_PAGEABLE, vramalloc_free};
    use crate::api::{VRAMALLOC_NO_CUDA, VRAMALLOC_SUCCESS};
    use crate::process::guard;
    use std::ptr;

    fn member(size: usize, name: &'static CStr) -> vramalloc_member {
        vramalloc_member {
            size,
            name: name.as_ptr(),
            layer: 0,
        }
    }

    fn group(
        members: &[vramalloc_member],
        place: vramalloc_place,
    ) -> (vramalloc_result, u64, Vec<usize>) {
        let mut addresses = vec![ptr::null_mut(); members.len()];
        let mut group = 7;
        let at = addresses.as_mut_ptr();
        // SAFETY: members and places for the answers.
        let result = unsafe {
            vramalloc_group_malloc(members.as_ptr(), members.len(), place, at, &raw mut group)
        };
        let addresses = addresses.iter().map(|address| address.addr()).collect();
        (result, group, addresses)
    }

    fn allocations(group: u64) -> (vramalloc_result, usize) {
        let mut count = 0;
        // SAFETY: writes the answer to a local.
        let result = unsafe { vramalloc_group_allocations(group, &raw mut count) };
        (result, count)
    }

    #[test]
    fn a_group_lives_and_dies_as_one() {
        let _turn = guard::turn();
        let members = [member(1000, c"a.w"), member(1, c"b.w"), member(256, c"a.b")];
        let (result, number, at) = group(&members, VRAMALLOC_PAGEABLE);
        assert_eq!(result, VRAMALLOC_SUCCESS);
        // The options say one allocation to a layer.
        assert_eq!(allocations(number), (VRAMALLOC_SUCCESS, 2));
        assert_eq!(at[2] - at[0], 1024);
        for (address, member) in at.iter().zip(&members) {
            let start: *mut u8 = ptr::with_exposed_provenance_mut(*address);
            // SAFETY: all of a member's memory; no member frees alone.
            unsafe {
                start.write_bytes(7, member.size);
                assert_eq!(vramalloc_free(start.cast()), VRAMALLOC_NOT_OURS);
            }
        }
        // SAFETY: nothing uses the memory any more.
        unsafe {
            assert_eq!(vramalloc_group_free(number), VRAMALLOC_SUCCESS);
            assert_eq!(vramalloc_group_free(number), VRAMALLOC_NOT_OURS);
            assert_eq!(vramalloc_group_free(0), VRAMALLOC_SUCCESS);
        }
        assert_eq!(allocations(number), (VRAMALLOC_NOT_OURS, 0));
    }

    #[test]
    fn a_group_that_cannot_be_had_leaves_nothing() {
        let _turn = guard::turn();
        let huge = [member(1000, c"a"), member(usize::MAX / 2, c"b")];
        let (result, number, at) = group(&huge, VRAMALLOC_PAGEABLE);
        assert_eq!((result, number, at), (2, 0, vec![0, 0]));
        let (result, number, _) = group(&[member(1, c"a")], 0);
        assert_eq!((result, number), (VRAMALLOC_NO_CUDA, 0));
        for bad in [&[][..], &[member(0, c"a")], &[member(1, c"\xff")]] {
            let (result, number, _) = group(bad, VRAMALLOC_PAGEABLE);
            assert_eq!((result, number), (VRAMALLOC_INVALID_ARGUMENT, 0));
        }
    }
}
