//! Pools that are destroyed and whose last memory is freed, below a limit: the driver has that
//! memory only when the streams get to their frees.
//!
//! Owns what is left of them. Invariant: no driver call is made under the lock. Cost: a fence
//! for each, and a question each time that pools are read.

use spin::mutex::SpinMutex;
use vramalloc_core::families::LastRead;
use vramalloc_core::patience::Brief;

use super::count_nothing;
use crate::driver::devices::Device;
use crate::driver::fence::Fence;
use crate::driver::{capture, contexts};

struct Departed {
    device: &'static Device,
    /// What it had reserved.
    reserved: LastRead,
    /// After all work that may come before the last of its frees.
    fence: Fence,
}

static DEPARTED: SpinMutex<Vec<Departed>, Brief> = SpinMutex::new(Vec::new());

/// A pool is gone, with nothing of it in use. What it had counts until the device is done
/// with what it was given so far, if that is to be found out and there is a limit.
pub(super) fn depart(device: &'static Device, reserved: LastRead) {
    let mark = || Fence::of_all(&contexts::current()?).ok();
    let is_counted = device.quota.limit().is_some() && !reserved.bytes().is_zero();
    let fence = is_counted.then(|| capture::outside(mark).flatten());
    match fence.flatten() {
        Some(fence) if fence.is_reached() == Ok(false) => DEPARTED.lock().push(Departed {
            device,
            reserved,
            fence,
        }),
        _ => count_nothing(device, &reserved),
    }
}

/// Counts no longer what the device is done with.
pub(super) fn look() {
    let all = std::mem::take(&mut *DEPARTED.lock());
    for departed in all {
        let is_reached = || departed.fence.is_reached() != Ok(false);
        if capture::outside(is_reached) == Some(true) {
            count_nothing(departed.device, &departed.reserved);
        } else {
            DEPARTED.lock().push(departed);
        }
    }
}
