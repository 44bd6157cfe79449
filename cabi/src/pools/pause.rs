//! Pause and resume of a device's memory, by tag or all of it.
//!
//! Each tag of each context is an arena. Those that are meant are paused one after
//! another; where one fails, what this call has paused is resumed, and the other way
//! round. What has no contents to lose comes last in a pause and first in its end, so
//! that a failure costs no contents and few copies.
//!
//! Invariant: one thread at a time pauses or resumes memory of a device, and no capture
//! begins meanwhile. Cost: that of the arenas.

use std::cmp::Reverse;
use std::ffi::CStr;
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::arena::Contents;
use vramalloc_core::patience::Patience;
use vramalloc_core::stats::{Moved, Stays};
use vramalloc_core::{Bytes, Code};

use crate::driver::{capture, devices};
use crate::pools::device::{self, DevicePool};
use crate::process::guard;
use crate::types::CUdevice;

/// How long contexts may be in the way by ending, and how often it is tried meanwhile.
const MOST: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_millis(1);

/// What a tag means: of memory in no region the empty one; without any, all memory.
pub(crate) type Tag<'a> = Option<&'a CStr>;

/// The pools of a device that a tag means; last those whose contents may be lost.
fn meant(device: CUdevice, tag: Tag<'_>) -> Vec<&'static DevicePool> {
    let is_meant = |pool: &DevicePool| {
        let of = pool.tag().unwrap_or(c"");
        tag.is_none_or(|tag| tag == of)
    };
    // Also those whose context may be ending: what is paused there is, if it lives on.
    let mut pools = device::serving_pools();
    pools.retain(|pool| pool.device() == device && is_meant(pool));
    pools.sort_by_key(|pool| may_be_lost(pool));
    pools
}

fn may_be_lost(pool: &DevicePool) -> bool {
    pool.contents() == Contents::Drop
}

/// Whether any memory of it is paused.
pub(crate) fn is_paused(device: CUdevice, tag: Tag<'_>) -> bool {
    meant(device, tag)
        .iter()
        .any(|pool| pool.arena().is_paused())
}

/// Does `work` while no other thread pauses or resumes memory of the device, and no
/// capture begins.
fn alone(device: CUdevice, work: impl FnOnce() -> Result<Moved, Code>) -> Result<Moved, Code> {
    if guard::is_called_back() {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    let Some(device) = devices::find(device) else {
        // It was never used.
        return Ok(Moved::default());
    };
    let mut patience = Patience::new();
    let _turn = loop {
        match device.pausing.turn() {
            Some(turn) => break turn,
            None => patience.pause(),
        }
    };
    capture::hold_off(work).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
}

/// Pauses what the tag means.
///
/// # Errors
/// The error of the first arena that could not be paused. The arenas before it run
/// again, if they can.
pub(crate) fn pause(device: CUdevice, tag: Tag<'_>) -> Result<Moved, Code> {
    undisturbed(|| {
        for pool in meant(device, tag) {
            // Captures are not held off for long then.
            match pool.arena().await_work_before_pause() {
                Ok(()) | Err(Code::INVALID_CONTEXT) => {}
                Err(code) => return Err(code),
            }
        }
        alone(device, || pause_all(&meant(device, tag)))
    })
}

/// Does `work`, and does it again where no capture is what it failed of: while a context
/// ends, whichever it is, the driver is asked for nothing that waits for all of them.
fn undisturbed(work: impl Fn() -> Result<Moved, Code>) -> Result<Moved, Code> {
    let start = Instant::now();
    loop {
        let done = work();
        let is_by_an_end = matches!(done, Err(Code::NOT_READY | Code::CAPTURE_UNSUPPORTED))
            && !(capture::any() || guard::is_called_back());
        if !is_by_an_end || start.elapsed() > MOST {
            return done;
        }
        thread::sleep(NAP);
    }
}

fn pause_all(pools: &[&'static DevicePool]) -> Result<Moved, Code> {
    let mut all = Moved::default();
    let mut paused: Vec<&DevicePool> = Vec::new();
    // Nothing of it can go, whatever the rest can.
    let mut plain = Bytes::ZERO;
    let (mut has_mapped, mut is_refused) = (false, false);
    for pool in pools {
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
                is_refused = true;
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
    if is_refused && !has_mapped {
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
    let resume = || {
        let mut pools = meant(device, tag);
        pools.sort_by_key(|pool| Reverse(may_be_lost(pool)));
        let all = resume_all(&pools)?;
        if drops_backups {
            pools.iter().for_each(|pool| pool.arena().drop_backups());
        }
        Ok(all)
    };
    undisturbed(|| alone(device, resume))
}

fn resume_all(pools: &[&'static DevicePool]) -> Result<Moved, Code> {
    let mut all = Moved::default();
    let mut resumed: Vec<&DevicePool> = Vec::new();
    for pool in pools {
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
    Ok(all)
}
