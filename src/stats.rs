//! What is counted, as plain values.
//!
//! An arena gives an [`ArenaStats`], a consistent picture taken under its
//! lock; the metered driver below it gives [`DriverCalls`]. A [`Report`] holds
//! both for a whole process and becomes the documented JSON; a
//! [`StatsTarget`](crate::config::StatsTarget) says where that goes. [`Snapshots`] hold every block and the newest events,
//! and an [`OomLog`] the requests that failed.

mod file;
mod host;
mod json;
mod memory;
mod note;
mod oom;
mod process;
mod snapshot;
mod stacks;
mod sum;
mod target;

use crate::address::Bytes;

pub use file::{Own, beside, write_whole};
pub use json::{ArenaReport, PinnedReport, Report, SCHEMA};
pub use memory::{MemoryStats, Metric, PoolStats, Stat};
pub use note::{NOT_SERVED, NOTES_FILE, Note};
pub use oom::{Group, Holdings, OomEvent, OomLog, largest_groups};
pub use process::Process;
pub use snapshot::{
    Action, BlockPicture, BlockState, Event, MOST_BLOCKS, Segment, SegmentKind, Snapshot, Snapshots,
};
pub use stacks::{Frame, StackId, Stacks};
pub use sum::sum_up;
pub use target::There;

/// A quantity with the highest value it has had.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Gauge {
    /// Bytes now.
    pub current: Bytes,
    /// The most there have been.
    pub peak: Bytes,
}

impl Gauge {
    /// Raises the quantity.
    pub fn add(&mut self, bytes: Bytes) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    /// Lowers the quantity, to zero at the least.
    pub fn sub(&mut self, bytes: Bytes) {
        self.current = self.current.saturating_sub(bytes);
    }
}

/// Size classes of the statistics: class `i` holds requests above
/// `512 << (i - 1)` and up to `512 << i` bytes, class 0 those up to 512.
pub const SIZE_CLASSES: usize = 32;

/// The statistics' size class of a request.
#[must_use]
pub const fn size_class(request: Bytes) -> usize {
    let units = request.get().saturating_sub(1) / 512;
    let class = (u64::BITS - units.leading_zeros()) as usize;
    if class < SIZE_CLASSES {
        class
    } else {
        SIZE_CLASSES - 1
    }
}

/// The largest request in a size class.
#[must_use]
pub const fn size_class_limit(class: usize) -> Bytes {
    Bytes::new(512 << class)
}

/// Allocations and frees of one size class.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassCount {
    /// Requests that were served.
    pub allocations: u64,
    /// Blocks that the program freed.
    pub frees: u64,
    /// Bytes that were asked for, before rounding.
    pub requested: u64,
}

/// What the program holds of one size class.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassLive {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes, rounded as they were handed out.
    pub bytes: u64,
}

/// What the memory of the driver was used for at one moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// In blocks that the program held.
    pub live: Bytes,
    /// In free blocks.
    pub cached: Bytes,
    /// In chunks without any live block, what of them was in limbo included.
    pub idle: Bytes,
    /// In blocks that the program had freed and the GPU might still use.
    pub limbo: Bytes,
}

/// What happened in one arena, and how it stands.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ArenaStats {
    /// Bytes in blocks that the program holds, rounded as they were handed
    /// out.
    pub live: Gauge,
    /// Bytes in free blocks of chunks that could be handed out now.
    pub cached: Gauge,
    /// Bytes that the program freed and the GPU may still use.
    pub limbo: Gauge,
    /// Bytes that the driver gave: live, cached and limbo together.
    pub reserved: Gauge,
    /// Requests by size class.
    pub classes: [ClassCount; SIZE_CLASSES],
    /// What the program holds, by size class.
    pub classes_live: [ClassLive; SIZE_CLASSES],
    /// What it held when `live` was at its peak, for the last time that it
    /// reached a new one.
    pub classes_at_peak: [ClassLive; SIZE_CLASSES],
    /// What `reserved` consisted of when it reached its peak.
    pub at_reserved_peak: Parts,
    /// Requests that a cached block served without a driver allocation.
    pub hits: u64,
    /// Requests that had to grow, and did.
    pub misses: u64,
    /// Of these, those for which enough was cached in their pool, but not in
    /// one piece.
    pub fragmented_misses: u64,
    /// Of these, those for which enough was in limbo.
    pub limbo_misses: u64,
    /// Requests that went to the driver by strategy or by size.
    pub direct: u64,
    /// Chunks held now.
    pub chunks: u64,
    /// Chunks given back to the driver.
    pub chunks_released: u64,
    /// Batches of limbo blocks that were closed with a fence.
    pub epochs: u64,
    /// Calls of the program that waited for the device, however often each.
    pub waits: u64,
    /// Nanoseconds that they waited, also in the driver's own free.
    pub wait_ns: u64,
    /// What one of them waited at the most.
    pub longest_wait_ns: u64,
    /// Of these calls, those that waited because limbo was over its budget.
    pub budget_waits: u64,
    /// Nanoseconds that they waited for that.
    pub budget_wait_ns: u64,
    /// Requests that failed for want of memory.
    pub ooms: u64,
    /// Of these, those that failed on the option `limit`.
    pub limit_ooms: u64,
    /// Of these, those that the device would have had memory for, in whatever
    /// pieces, and not enough was cached.
    pub raisable_ooms: u64,
    /// The most that was live when such a request came, with the request and
    /// with what the device's other arenas and the page kept back had.
    pub limit_needed: Bytes,
    /// Of them, those for which enough was cached, but in pieces of chunks in
    /// use.
    pub fragmented_ooms: u64,
    /// The largest of them, as it would have been handed out.
    pub largest_oom: Bytes,
    /// Frees of addresses inside our memory where no live block starts.
    pub bad_frees: u64,
    /// The largest cached block.
    pub largest_cached: Bytes,
    /// Bytes in chunks without any live block.
    pub idle: Bytes,
    /// The least that `idle` has been since memory was last taken from the
    /// driver or given back: what was held for nothing since.
    pub idle_low: Bytes,
    /// The same and more as PyTorch counts it, pool by pool.
    pub memory: MemoryStats,
    /// When its context ended, in microseconds since 1970; none while it
    /// serves. All of the above is as it was then.
    pub ended_us: Option<u64>,
}

impl ArenaStats {
    /// The share of the cached bytes that one request could not get in one
    /// piece: 0 where nothing is cached or all of it is one block, near 1
    /// where it is crumbs.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn fragmentation(&self) -> f64 {
        let cached = self.cached.current.get();
        if cached == 0 {
            return 0.0;
        }
        1.0 - self.largest_cached.get() as f64 / cached as f64
    }
}

/// Calls of one kind to the driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct CallCount {
    /// How often it was called.
    pub calls: u64,
    /// How many of these answered with an error.
    pub failures: u64,
    /// Nanoseconds spent inside, all together.
    pub ns: u64,
    /// In the call that took longest.
    pub longest_ns: u64,
    /// In the one that was shortest; 0 where there was none.
    pub shortest_ns: u64,
}

/// Calls that an arena made to its driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct DriverCalls {
    /// Memory taken.
    pub alloc: CallCount,
    /// Memory given back.
    pub free: CallCount,
    /// Questions for free and total memory.
    pub mem_info: CallCount,
    /// Fences made.
    pub fence: CallCount,
    /// Fences asked.
    pub reached: CallCount,
    /// Waits for the device: for fences, and of the options that fill memory
    /// or wait at every allocation.
    pub wait: CallCount,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double_from_512() {
        for (request, class) in [
            (1, 0),
            (512, 0),
            (513, 1),
            (1024, 1),
            (1025, 2),
            (1 << 20, 11),
        ] {
            assert_eq!(size_class(Bytes::new(request)), class, "{request}");
            assert!(Bytes::new(request) <= size_class_limit(class));
        }
        assert_eq!(size_class(Bytes::MAX), SIZE_CLASSES - 1);
    }

    #[test]
    fn a_peak_stays() {
        let mut gauge = Gauge::default();
        gauge.add(Bytes::new(5));
        gauge.sub(Bytes::new(9));
        assert_eq!((gauge.current, gauge.peak), (Bytes::ZERO, Bytes::new(5)));
    }
}
