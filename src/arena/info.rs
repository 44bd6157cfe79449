//! What the device has, and what a program is told of it.
//!
//! Invariant: what is told as free could be had, in some pieces; total is never
//! more than the limit. Cost: the arena's lock, and what the driver takes to
//! answer.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::driver::{Driver, MemInfo, PAGE};
use crate::error::Code;

impl<D: Driver> Arena<D> {
    /// The device's memory; nothing where the driver does not say.
    pub(super) fn device_total(&self) -> Bytes {
        if let Some(&total) = self.device_total.get() {
            return total;
        }
        match self.driver.mem_info() {
            Ok(info) => *self.device_total.get_or_init(|| info.total),
            Err(_) => Bytes::ZERO,
        }
    }

    /// What a chunk could take now: what the driver has, up to the limit.
    pub(super) fn available(&self) -> Result<Bytes, Code> {
        let free = self.driver.mem_info()?.free;
        Ok(match self.quota.limit() {
            Some(limit) => free.min(limit.saturating_sub(self.quota.reserved())),
            None => free,
        })
    }

    /// Free and total memory as the program should see them: what the driver
    /// has, with what the arena could hand out in whole chunks, and never more
    /// than the limit leaves in whole pages.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn mem_info(&self) -> Result<MemInfo, Code> {
        self.flush();
        if self.strategy.takes_chunks() {
            // What is kept back for waits can be had by nobody.
            self.driver.prepare_to_settle();
        }
        Ok(self.mem_info_with(self.driver.mem_info()?))
    }

    /// As [`Arena::mem_info`], where somebody else has told what the device
    /// has. No call is made to the driver: what the device may still use counts
    /// as used.
    #[must_use]
    pub fn mem_info_with(&self, MemInfo { free, total }: MemInfo) -> MemInfo {
        let ours = {
            let state = self.state.lock();
            let parts = if self.strategy.offers_parts_of_chunks() {
                state.heap.obtainable_parts()
            } else {
                Bytes::ZERO
            };
            state.obtainable().saturating_add(parts)
        };
        let free = free.saturating_add(ours).min(total);
        let reserved = self.quota.reserved();
        match self.quota.limit() {
            None => MemInfo { free, total },
            Some(limit) => MemInfo {
                free: free.min(
                    limit
                        .saturating_sub(reserved)
                        .round_down(PAGE)
                        .saturating_add(ours)
                        .saturating_sub(reserved.saturating_sub(limit)),
                ),
                total: total.min(limit),
            },
        }
    }
}
