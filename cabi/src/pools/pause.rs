//! Pause and resume of a device's memory, by tag or all of it.
//!
//! Each tag of each context is an arena. Those that are meant are paused one after
//! another; where one fails, what this call has paused is resumed, and the other way
//! round. Cost: that of the arenas.

use std::ffi::CStr;

use vramalloc_core::stats::{Moved, Stays};
use vramalloc_core::{Bytes, Code};

use crate::pools::device::{self, DevicePool};
use crate::types::CUdevice;

/// What a tag means: of memory in no region the empty one; without any, all memory.
pub(crate) type Tag<'a> = Option<&'a CStr>;

/// The pools of a device that a tag means.
fn meant(device: CUdevice, tag: Tag<'_>) -> Vec<&'static DevicePool> {
    let is_meant = |pool: &DevicePool| {
        let of = pool.tag().unwrap_or(c"");
        tag.is_none_or(|tag| tag == of)
    };
    let mut pools = device::pools_on(device);
    pools.retain(|pool| is_meant(pool));
    pools
}

/// Whether any memory of it is paused.
pub(crate) fn is_paused(device: CUdevice, tag: Tag<'_>) -> bool {
    meant(device, tag)
        .iter()
        .any(|pool| pool.arena().is_paused())
}

/// Pauses what the tag means.
///
/// # Errors
/// The error of the first arena that could not be paused. The arenas before it run
/// again, if they can.
pub(crate) fn pause(device: CUdevice, tag: Tag<'_>) -> Result<Moved, Code> {
    let mut all = Moved::default();
    let mut paused: Vec<&DevicePool> = Vec::new();
    // Nothing of it can go, whatever the rest can.
    let (mut plain, mut has_mapped) = (Bytes::ZERO, false);
    for pool in meant(device, tag) {
        plain = plain.saturating_add(pool.lanes().glance().reserved);
        let was_paused = pool.arena().is_paused();
        match pool.arena().pause(pool.contents()) {
            Ok(moved) => {
                has_mapped = true;
                all = all.and(moved);
                if !was_paused {
                    paused.push(pool);
                }
            }
            Err(Code::NOT_SUPPORTED) => {
                plain = plain.saturating_add(pool.arena().glance().reserved);
            }
            // Its context has ended meanwhile.
            Err(Code::INVALID_CONTEXT) if !pool.arena().is_paused() => {}
            Err(code) => {
                for pool in paused {
                    // What cannot run again is paused, and says so.
                    let _failed = pool.arena().resume();
                }
                return Err(code);
            }
        }
    }
    if !has_mapped && !plain.is_zero() {
        return Err(Code::NOT_SUPPORTED);
    }
    let stays = Stays {
        plain,
        ..Stays::default()
    };
    Ok(all.and(Moved {
        stays,
        ..Moved::default()
    }))
}

/// Resumes what the tag means.
///
/// # Errors
/// The error of the first arena that could not be resumed. The arenas before it are
/// paused again, if they can be.
pub(crate) fn resume(device: CUdevice, tag: Tag<'_>, drops_backups: bool) -> Result<Moved, Code> {
    let mut all = Moved::default();
    let mut resumed: Vec<&DevicePool> = Vec::new();
    for pool in meant(device, tag) {
        let was_paused = pool.arena().is_paused();
        match pool.arena().resume() {
            Ok(moved) => {
                all = all.and(moved);
                if was_paused {
                    resumed.push(pool);
                }
            }
            Err(Code::INVALID_CONTEXT) if !pool.arena().is_paused() => {}
            Err(code) => {
                for pool in resumed {
                    let _failed = pool.arena().pause(pool.contents());
                }
                return Err(code);
            }
        }
    }
    if drops_backups {
        for pool in meant(device, tag) {
            pool.arena().drop_backups();
        }
    }
    Ok(all)
}
