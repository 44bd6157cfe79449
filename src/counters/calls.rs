//! Calls of the program: how they were served, what they waited, and why they
//! failed.

use crate::address::Bytes;
use crate::counters::Counters;
use crate::driver::program_call::Waited;
use crate::recording::Mark;
use crate::stats::{Action, Metric, Parts, StackId};
use crate::strategy::Pool;

/// Why a request failed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Shortage {
    /// The limit stood in the way, not the device's memory.
    pub(crate) at_limit: bool,
    /// All that could go back to the driver had gone.
    pub(crate) tried_to_free: bool,
    /// What the driver had; zero where it did not say.
    pub(crate) device_free: Bytes,
    /// What the device has; no bound where the driver did not say.
    pub(crate) device_total: Bytes,
    /// What counts towards the limit and is not in this arena.
    pub(crate) elsewhere: Bytes,
    pub(crate) stack: StackId,
}

impl Counters {
    /// A cached block served a request.
    pub(crate) fn hit(&mut self) {
        self.stats.hits += 1;
    }

    /// A request of `size` bytes had to call the driver for memory, by which its pool has
    /// so much more, and was served.
    pub(crate) fn missed(&mut self, pool: Pool, size: Bytes, more: Bytes) {
        self.stats.misses += 1;
        let held = |metric| Bytes::new(self.metrics.current_of(pool, metric));
        let cached = held(Metric::ReservedBytes).saturating_sub(held(Metric::ActiveBytes));
        let before = cached.saturating_add(size).saturating_sub(more);
        self.stats.fragmented_misses += u64::from(before >= size);
        self.stats.limbo_misses += u64::from(self.limbo() >= size);
        self.grew();
    }

    /// A request has a driver allocation of its own.
    pub(crate) fn went_direct(&mut self) {
        self.stats.direct += 1;
        self.grew();
    }

    fn grew(&mut self) {
        self.was_cached();
        if std::mem::take(&mut self.reserved_rose) {
            self.stats.at_reserved_peak = Parts {
                live: self.live(),
                cached: self.cached(),
                idle: self.idle(),
                limbo: self.limbo(),
            };
        }
    }

    /// Something was freed that is not a live block.
    pub(crate) fn bad_free(&mut self) {
        self.stats.bad_frees += 1;
    }

    /// An epoch has its fence.
    pub(crate) fn epoch_closed(&mut self) {
        self.stats.epochs += 1;
    }

    /// A call of the program waited for the device.
    pub(crate) fn waited(&mut self, waited: Waited) {
        let Waited { ns, budget_ns, .. } = waited;
        self.history.mark(|| Mark::Waited { ns, budget_ns });
        let stats = &mut self.stats;
        stats.waits += 1;
        stats.wait_ns = stats.wait_ns.saturating_add(waited.ns);
        stats.longest_wait_ns = stats.longest_wait_ns.max(waited.ns);
        stats.budget_waits += u64::from(waited.for_budget);
        stats.budget_wait_ns = stats.budget_wait_ns.saturating_add(waited.budget_ns);
    }

    /// All of limbo is waited for at once.
    pub(crate) fn waited_for_all(&mut self) {
        self.full_waits += 1;
    }

    /// The driver is asked again, after what could go back to it has.
    pub(crate) fn retried(&mut self) {
        self.retries += 1;
    }

    /// A request of `size` bytes failed for want of memory.
    pub(crate) fn out_of_memory(&mut self, size: Bytes, shortage: Shortage) {
        let Shortage {
            device_free, stack, ..
        } = shortage;
        self.history.note(Action::Oom { device_free }, size, stack);
        self.stats.ooms += 1;
        self.stats.largest_oom = self.stats.largest_oom.max(size);
        self.stats.limit_ooms += u64::from(shortage.at_limit);
        let fragmented = self.cached() >= size;
        self.stats.fragmented_ooms += u64::from(fragmented);
        let needed = self
            .live()
            .saturating_add(size)
            .saturating_add(shortage.elsewhere);
        let by_limit = shortage.at_limit && shortage.tried_to_free && !fragmented;
        if by_limit && needed <= shortage.device_total {
            self.stats.raisable_ooms += 1;
            self.stats.limit_needed = self.stats.limit_needed.max(needed);
        }
        self.rejections += u64::from(!shortage.tried_to_free);
    }
}
