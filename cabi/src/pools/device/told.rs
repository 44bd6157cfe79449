//! What programs are told of a device's memory, by CUDA and by NVML.
//!
//! Idle memory in any arena of a device is given back before a request fails,
//! so it counts as free. Cost: the lock of each arena on the device; for NVML no
//! call to the driver, which a thread without a context must not wait for.

use vramalloc_core::{Bytes, Code, MemInfo};

use super::{DevicePool, pools_on, shortage};
use crate::driver::devices;

impl DevicePool {
    /// Free and total memory of the device as the program should see them.
    pub(crate) fn mem_info(&self) -> Result<MemInfo, Code> {
        if self.device.quota.limit().is_some() {
            shortage::look_elsewhere(self.device());
        }
        let info = self.arena.mem_info()?;
        self.device.tells_free();
        Ok(self.with_idle_elsewhere(info))
    }

    fn with_idle_elsewhere(&self, MemInfo { free, total }: MemInfo) -> MemInfo {
        let elsewhere = pools_on(self.device()).into_iter().map(|pool| {
            let own = pool.arena.id() == self.arena.id();
            let idle = if own { Bytes::ZERO } else { pool.arena.idle() };
            idle.saturating_add(pool.lanes().idle())
        });
        let elsewhere = elsewhere.fold(Bytes::ZERO, Bytes::saturating_add);
        // What is reserved beyond the limit comes out of idle memory first.
        let quota = &self.device.quota;
        let beyond = quota
            .reserved()
            .saturating_sub(quota.limit().unwrap_or(Bytes::MAX));
        let unmet = beyond.saturating_sub(self.arena.idle());
        let free = free
            .saturating_add(elsewhere.saturating_sub(unmet))
            .min(total);
        MemInfo { free, total }
    }
}

/// What the program should be told of the device with this number, of which
/// NVML says `info`; `None` where no limit is in force. A process that has not
/// used the device uses nothing of it.
pub(crate) fn told(uuid: u128, info: MemInfo) -> Option<MemInfo> {
    let MemInfo { free, total } = info;
    let at_most = |most: Bytes, limit| MemInfo {
        free: free.min(most),
        total: total.min(limit),
    };
    let Some(device) = devices::with_uuid(uuid) else {
        let limit = devices::limit_unused(uuid, total)?;
        return Some(at_most(limit, limit));
    };
    let limit = device.quota.limit()?;
    device.tells_free();
    Some(match pools_on(device.handle).first() {
        Some(pool) => pool.with_idle_elsewhere(pool.arena.mem_info_with(info)),
        None => at_most(limit.saturating_sub(device.quota.reserved()), limit),
    })
}
