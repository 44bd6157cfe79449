//! The most that was live and reserved on a device, since that was begun anew.
//!
//! The sum over its arenas: exact where one of them has the memory, and a bound where
//! several have, whose peaks may have been at different times. What an arena had before
//! its context ended stays in the register of the device until it is begun anew.
//! Invariant: of two threads that begin it anew, the second is told of the time since
//! the first. Cost: the lock of each arena on the device.

use std::sync::Arc;

use vramalloc_core::Bytes;
use vramalloc_core::arena::Peak;

use super::{DevicePool, POOLS, all_on};
use crate::driver::context::Context;
use crate::driver::devices::{Device, find};
use crate::types::CUdevice;

/// The most that there was on a device; nothing where nothing was asked for.
pub(crate) fn peak(device: CUdevice, peak: Peak) -> Bytes {
    let Some(device) = find(device) else {
        return Bytes::ZERO;
    };
    let least = device.least_peaks.lock()[peak as usize];
    least.max(sum(device, |pool| pool.arena.peak(peak)))
}

/// Begins it anew with what there is now, and returns what it was.
pub(crate) fn begin_peak(device: CUdevice, peak: Peak) -> Bytes {
    let Some(device) = find(device) else {
        return Bytes::ZERO;
    };
    let mut least = device.least_peaks.lock();
    let before = std::mem::take(&mut least[peak as usize]);
    // Under the lock: who begins next finds all of it begun. Arenas' locks come after it.
    before.max(sum(device, |pool| pool.arena.begin_peak(peak)))
}

/// Says that there was so much of it already.
pub(crate) fn raise_peak(device: CUdevice, peak: Peak, least: Bytes) {
    if let Some(device) = find(device) {
        let known = &mut device.least_peaks.lock()[peak as usize];
        *known = least.max(*known);
    }
}

/// Notes what a device's arenas had, before those of a context there are retired.
pub(super) fn keep_peaks(context: &Arc<Context>) {
    let Some(pool) = POOLS.all().find(|pool| pool.is_of(context)) else {
        return;
    };
    // Under the lock, so that one that is begun anew meanwhile is not undone.
    let mut least = pool.device.least_peaks.lock();
    for of in [Peak::Live, Peak::Reserved] {
        let known = &mut least[of as usize];
        *known = sum(pool.device, |pool| pool.arena.peak(of)).max(*known);
    }
}

fn sum(device: &Device, of: impl Fn(&DevicePool) -> Bytes) -> Bytes {
    let pools = all_on(device.handle).map(of);
    pools.fold(Bytes::ZERO, Bytes::saturating_add)
}
