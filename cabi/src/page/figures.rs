//! What the page tells of the devices.

use std::collections::BTreeMap;

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::control::{DeviceFigures, Figures};
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Glance;

use crate::driver::devices;
use crate::pools::device;
use crate::types::CUdevice;

/// The most that was live, reserved, and past the pool, by device.
static PEAKS: SpinMutex<BTreeMap<CUdevice, [Bytes; 3]>, Brief> = SpinMutex::new(BTreeMap::new());

/// What the process has now.
pub(super) fn take(at_ms: u64) -> Figures {
    let pools = device::pools();
    let mut driver_calls = 0;
    let devices = devices::known().into_iter().map(|device| {
        let of_device = pools.iter().filter(|pool| pool.device() == device.handle);
        let sum = of_device.map(|pool| pool.glance()).reduce(Glance::and);
        let sum = sum.unwrap_or_default();
        driver_calls += sum.driver_calls;
        let past = device.families.bytes();
        let [live_peak, reserved_peak, past_peak] = {
            let mut peaks = PEAKS.lock();
            let peaks = peaks.entry(device.handle).or_default();
            // Those of contexts that have ended, too.
            let [live, reserved] = *device.least_peaks.lock();
            let (live, reserved) = (sum.live_peak.max(live), sum.reserved_peak.max(reserved));
            let now = [live, reserved, past];
            for (peak, now) in peaks.iter_mut().zip(now) {
                *peak = now.max(*peak);
            }
            *peaks
        };
        DeviceFigures {
            ordinal: u64::try_from(device.handle).unwrap_or(0),
            uuid: device.uuid,
            name: device.name.as_deref().unwrap_or_default().into(),
            total: device.total,
            live: sum.live,
            live_peak,
            reserved: sum.reserved,
            reserved_peak,
            limit: device.quota.limit(),
            past,
            past_peak,
            paused: sum.paused,
            limbo: Some(sum.limbo),
        }
    });
    let devices = devices.collect();
    Figures {
        at_ms,
        driver_calls,
        devices,
    }
}
