//! Room for a call of CUDA's that found no memory while our pools hold some
//! that is idle.
//!
//! The driver is asked first, and nothing is given back as long as it has
//! memory. If it has none, the idle memory of all our pools on the device goes
//! back, and what CUDA's own pools and graphs keep and do not use; then the
//! driver is asked once more. What another thread is giving back meanwhile is
//! waited for, and the driver is asked again.
//!
//! The driver's own free waits for the device, so it is called only when the
//! device is done: that is waited for, but no longer than `room_wait_ms` in all,
//! since the program might have gone on with the error. While a stream
//! captures, nobody can ask whether it is done: empty chunks go back, and what the
//! program freed, and the driver's free waits as long as it takes.
//! Cost: a comparison where the driver has memory.

use std::time::{Duration, Instant};

use vramalloc_core::quota::Landings;
use vramalloc_core::{Bytes, Code};

use super::{async_pools, current_device, departed, graphs};
use crate::driver::devices::{self, Device};
use crate::driver::{capture, reserve};
use crate::pools::device::{self, shortage};
use crate::process;
use crate::process::guard::{self, own_call};
use crate::types::{CUdevice, CudaResult};

/// How often a call is made again: other threads that always come first are not
/// to be told from memory in pieces that are too small.
const LOOKS: u32 = 16;

/// What is done for a call that found no memory on a device, or for a request
/// that its limit has no room for: idle memory goes back, once; and what other
/// threads are giving back, or were asking for, is waited for.
struct Relief {
    device: &'static Device,
    end: Instant,
    is_given: bool,
}

impl Relief {
    /// `None` where nothing is done.
    fn begin(device: &'static Device) -> Option<Relief> {
        let (is_on, most) = process::options(|loaded| {
            let families = &loaded.settings.families;
            (families.room, families.room_wait)
        });
        if guard::is_called_back() {
            return None;
        }
        if !is_on {
            look(device.handle);
            return None;
        }
        Some(Relief {
            device,
            end: Instant::now() + most,
            is_given: false,
        })
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it is worth trying again what failed since `before`.
    fn helps(&mut self, before: Option<Landings>, at_limit: bool) -> bool {
        if !std::mem::replace(&mut self.is_given, true) && !self.give_back().is_zero() {
            return true;
        }
        (self.device.quota).lands(before, at_limit, self.left())
    }

    /// Gives idle memory of the device back; how many bytes went.
    fn give_back(&self) -> Bytes {
        let pools = device::pools_on(self.device.handle).into_iter();
        let ours = pools.map(|pool| pool.give_room(|| self.left()));
        let ours = ours.fold(Bytes::ZERO, Bytes::saturating_add);
        ours.saturating_add(trim(self.device, self.left()))
    }
}

/// Makes a call, and again if it found no memory on a device and some came back
/// there. Without a device, it is the current one.
pub(crate) fn retry(handle: Option<CUdevice>, call: &mut dyn FnMut() -> CudaResult) -> CudaResult {
    let known = handle.and_then(devices::find);
    let mut before = known.map(|device| device.quota.landings());
    let current = || handle.is_none().then(current_device).flatten();
    let mut call = || reserve::asking(|| known.or_else(current), &mut *call);
    let mut result = call();
    if result == Code::OUT_OF_MEMORY.get() {
        let relief = known.or_else(current).and_then(Relief::begin);
        let Some(mut relief) = relief else {
            return result;
        };
        for _ in 0..LOOKS {
            if result != Code::OUT_OF_MEMORY.get() || !relief.helps(before, false) {
                break;
            }
            before = Some(relief.device.quota.landings());
            result = call();
        }
    }
    result
}

/// As [`retry`], for a call during which doors pass everything through.
pub(crate) fn with_room(
    device: Option<CUdevice>,
    call: &mut dyn FnMut() -> CudaResult,
) -> CudaResult {
    retry(device, &mut || own_call(&mut *call))
}

/// Asks the limit of a device for room for `size` bytes, and again if some came
/// back.
pub(super) fn at_limit<T>(
    device: &'static Device,
    size: Bytes,
    mut ask: impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut before = device.quota.landings();
    let mut answer = ask();
    // Bare CUDA would refuse what is larger than the device.
    let may_fit = || device.quota.limit().is_some_and(|limit| size <= limit);
    if answer.is_none() && may_fit() {
        let Some(mut relief) = Relief::begin(device) else {
            // What CUDA's pools gave back by themselves may have been counted by that.
            return ask();
        };
        for _ in 0..LOOKS {
            if answer.is_some() || !relief.helps(Some(before), true) {
                break;
            }
            before = device.quota.landings();
            answer = ask();
        }
        // One stream after the other may get to what it frees.
        while answer.is_none() && departed::await_some(device.handle, relief.left()) {
            answer = ask();
        }
    }
    answer
}

/// How long a request waits for room on a device; `None` where it does not.
pub(super) fn patience(device: &'static Device) -> Option<Duration> {
    Some(Relief::begin(device)?.left())
}

/// Waits until what other threads are asking for is decided: until then some of
/// it may count twice.
pub(super) fn await_others(device: &'static Device) {
    if let Some(relief) = Relief::begin(device) {
        device.quota.lands(None, true, relief.left());
    }
}

/// Gives back what lies idle and needs no wait, where `size` bytes more would
/// pass NVIDIA's soft limit.
pub(super) fn below_soft(device: &Device, size: Bytes) {
    if device.quota.beyond_soft(size).is_zero() || guard::is_called_back() {
        return;
    }
    for pool in device::pools_on(device.handle) {
        pool.give_room(|| Duration::ZERO);
    }
}

/// Makes CUDA's own pools and graphs give back what they do not use of a
/// device, after a wait, of so long at the most, for what pools took beyond the limit.
/// Returns how many bytes went.
fn trim(device: &'static Device, most: Duration) -> Bytes {
    let before = device.quota.reserved();
    if capture::any() {
        look(device.handle);
        return before.saturating_sub(device.quota.reserved());
    }
    departed::look();
    if device.quota.is_beyond_limit() {
        async_pools::await_back(device.handle, most);
    }
    let went = async_pools::trim(device.handle).saturating_add(graphs::trim(device.handle));
    went.max(before.saturating_sub(device.quota.reserved()))
}

/// The same where our own pools are short.
fn give_back_to_ours(handle: CUdevice) -> bool {
    let device = devices::device(handle);
    let left = patience(device).unwrap_or_default();
    !trim(device, left).is_zero() || departed::await_some(handle, left)
}

/// Makes our pools know what else there is on a device: whoever is short there
/// makes CUDA's own pools give back, and counts what the program holds of them.
pub(crate) fn join() {
    shortage::join(shortage::Elsewhere {
        give_back: give_back_to_ours,
        held: super::held,
        look,
    });
}

/// Counts what CUDA's own pools gave back by themselves, and what streams have freed by now.
fn look(device: CUdevice) {
    departed::look();
    async_pools::read_all(|on| on == device);
}
