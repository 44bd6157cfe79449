//! Room for a call of CUDA's that found no memory while our pools hold some
//! that is idle.
//!
//! The driver is asked first, and nothing is given back as long as it has
//! memory. If it has none, the idle memory of all our pools on the device goes
//! back, and what CUDA's own pools and graphs keep and do not use; then the
//! driver is asked once more, and that answer stands.
//!
//! The driver's own free waits for the device, so it is called only when the
//! device is done: that is waited for, but no longer than `room_wait_ms` in all,
//! since the program might have gone on with the error. While a stream
//! captures, nothing is waited for, and only what is in no limbo goes back.
//! Cost: a comparison where the driver has memory.

use std::time::{Duration, Instant};

use vramalloc_core::{Bytes, Code};

use super::{async_pools, current_device, graphs};
use crate::driver::capture;
use crate::driver::devices::Device;
use crate::pools::device::{self, shortage};
use crate::process;
use crate::process::guard::{self, own_call};
use crate::types::{CUdevice, CudaResult};

/// Makes a call, and once more if it found no memory on a device and some went
/// back there. Without a device, it is the current one.
pub(crate) fn retry(device: Option<CUdevice>, call: &mut dyn FnMut() -> CudaResult) -> CudaResult {
    let result = call();
    if result == Code::OUT_OF_MEMORY.get() && make_room(device) {
        return call();
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

/// Gives idle memory of a device back; whether any went.
#[cold]
fn make_room(device: Option<CUdevice>) -> bool {
    let device = device.or_else(|| current_device().map(|device| device.handle));
    device.is_some_and(|device| !give_back(device).is_zero())
}

/// Gives idle memory of a device back if that makes room for `size` bytes below
/// the limit.
pub(super) fn below_limit(device: &Device, size: Bytes) {
    let limit = device.quota.limit();
    // Bare CUDA would refuse it as well.
    if limit.is_some_and(|limit| size <= limit) {
        give_back(device.handle);
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

fn give_back(device: CUdevice) -> Bytes {
    let (is_on, most) = process::options(|loaded| {
        let families = &loaded.settings.families;
        (families.room, families.room_wait)
    });
    if guard::is_called_back() {
        return Bytes::ZERO;
    }
    if !is_on {
        look(device);
        return Bytes::ZERO;
    }
    let end = Instant::now() + most;
    let left = || end.saturating_duration_since(Instant::now());
    let pools = device::pools_on(device).into_iter();
    let ours = pools.map(|pool| pool.give_room(left));
    let ours = ours.fold(Bytes::ZERO, Bytes::saturating_add);
    ours.saturating_add(trim(device))
}

/// Makes CUDA's own pools and graphs give back what they do not use of a
/// device. Returns how many bytes went.
fn trim(device: CUdevice) -> Bytes {
    if capture::any() {
        look(device);
        return Bytes::ZERO;
    }
    async_pools::trim(device).saturating_add(graphs::trim(device))
}

/// Makes our pools know what else there is on a device: whoever is short there
/// makes CUDA's own pools give back, and counts what the program holds of them.
pub(crate) fn join() {
    shortage::join(shortage::Elsewhere {
        give_back: |device| !trim(device).is_zero(),
        held: super::held,
        look,
    });
}

/// Counts what CUDA's own pools gave back by themselves.
fn look(device: CUdevice) {
    async_pools::read_all(|on| on == device);
}
