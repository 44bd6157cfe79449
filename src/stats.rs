//! What is counted, as plain values.
//!
//! An arena gives an [`ArenaStats`], a consistent picture taken under its lock;
//! the stage that counts the driver's calls gives [`DriverCalls`]. A [`Report`]
//! holds both for a whole process and becomes the documented JSON; a
//! [`StatsTarget`](crate::config::StatsTarget) says where [`deliver`] writes that.
//! [`Snapshots`] hold every block and the newest events, and an [`OomLog`] the
//! requests that failed.

mod family;
mod file;
mod glance;
mod host;
mod json;
mod lines;
mod memory;
mod note;
mod oom;
mod origin;
mod owners;
mod pause;
mod process;
mod recorded;
mod since;
mod snapshot;
mod stacks;
mod sum;
mod target;

use crate::address::Bytes;
use crate::library::LibraryBytes;

pub use family::{Family, FamilyReport, FamilyStats, ImportReport};
pub use file::{Own, beside, write_whole};
pub use glance::Glance;
pub use json::{ArenaReport, PinnedReport, Report, SCHEMA, record_text};
pub use memory::{MemoryStats, Metric, PoolStats, Stat};
pub use note::{NOT_SERVED, NOTES_FILE, Note};
pub use oom::{Group, Holdings, OomEvent, OomLog, largest_groups};
pub(crate) use origin::Origin;
pub use owners::ElsewhereReport;
pub use pause::{Moved, PauseStats, Pauses, Stays};
pub use process::{Process, executable, rank};
pub use recorded::{RecordedArena, RecordedPlace, RecordingReport};
pub use since::{NewBlocks, new_blocks_json};
pub use snapshot::{
    Action, BlockPicture, BlockState, Event, MOST_BLOCKS, Segment, SegmentKind, Snapshot, Snapshots,
};
pub use stacks::{Frame, Object, StackId, StackReport, StackSums, Stacks};
pub use sum::sum_up;
pub use target::{There, deliver, file_of};

/// A quantity and its peak.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Gauge {
    /// Bytes now.
    pub current: Bytes,
    /// The highest value so far.
    pub peak: Bytes,
}

impl Gauge {
    /// Raises the quantity.
    pub fn add(&mut self, bytes: Bytes) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    /// Lowers the quantity; it stops at zero.
    pub fn sub(&mut self, bytes: Bytes) {
        self.current = self.current.saturating_sub(bytes);
    }
}

/// Size classes of the statistics: class `i` holds requests above
/// `512 << (i - 1)` and up to `512 << i` bytes, class 0 those up to 512.
pub const SIZE_CLASSES: usize = 32;

/// The size class of a request.
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

/// What the program holds in one size class.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassLive {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes, in the sizes that were handed out.
    pub bytes: u64,
}

/// What the reserved memory was used for at one moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// In blocks that the program held.
    pub live: Bytes,
    /// In free blocks.
    pub cached: Bytes,
    /// In chunks without a live block, including those chunks' bytes in limbo.
    pub idle: Bytes,
    /// In blocks that the program had freed while the GPU might still use them.
    pub limbo: Bytes,
}

/// What happened in one arena, and its present state.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ArenaStats {
    /// Bytes in blocks that the program holds, in the sizes that were handed
    /// out.
    pub live: Gauge,
    /// Bytes in free blocks of chunks, which could be handed out now.
    pub cached: Gauge,
    /// Bytes that the program freed and the GPU may still use.
    pub limbo: Gauge,
    /// Bytes that the driver gave: live, cached and limbo together, but for what is
    /// paused.
    pub reserved: Gauge,
    /// Requests and frees by size class.
    pub classes: [ClassCount; SIZE_CLASSES],
    /// What the program holds, by size class.
    pub classes_live: [ClassLive; SIZE_CLASSES],
    /// What it held when `live` last reached a new peak.
    pub classes_at_peak: [ClassLive; SIZE_CLASSES],
    /// What each library of the program holds.
    pub libraries_live: LibraryBytes,
    /// What each held when `live` last reached a new peak.
    pub libraries_at_peak: LibraryBytes,
    /// What `reserved` consisted of when it reached its peak.
    pub at_reserved_peak: Parts,
    /// Requests that a cached block served without a driver allocation.
    pub hits: u64,
    /// Of these, by a block that the requesting thread itself had kept.
    pub thread_hits: u64,
    /// Requests that were served by taking a chunk.
    pub misses: u64,
    /// Misses for which enough was cached in their pool, but not in one piece.
    pub fragmented_misses: u64,
    /// Misses for which enough was in limbo.
    pub limbo_misses: u64,
    /// Requests that the strategy or their size sent to the driver.
    pub direct: u64,
    /// Chunks held now.
    pub chunks: u64,
    /// Chunks given back to the driver.
    pub chunks_released: u64,
    /// Epochs: batches of limbo blocks that were closed with a fence.
    pub epochs: u64,
    /// Calls of the program that waited for the device; a call counts once,
    /// however often it waited.
    pub waits: u64,
    /// Nanoseconds that these calls waited, including those in the driver's own
    /// free.
    pub wait_ns: u64,
    /// Nanoseconds that the longest of these calls waited.
    pub longest_wait_ns: u64,
    /// Those of these calls that waited because limbo was over its budget.
    pub budget_waits: u64,
    /// Nanoseconds that they waited for that reason.
    pub budget_wait_ns: u64,
    /// Requests that failed for want of memory.
    pub ooms: u64,
    /// Those that failed on the option `limit`.
    pub limit_ooms: u64,
    /// Those of `limit_ooms` for which the device would have had enough memory,
    /// in whatever pieces, and the cache had not.
    pub raisable_ooms: u64,
    /// The most that was live when one of these requests came, plus the
    /// request, plus what the device's other arenas and the page kept back had.
    pub limit_needed: Bytes,
    /// Those of `ooms` for which enough was cached, but in pieces of chunks in
    /// use.
    pub fragmented_ooms: u64,
    /// The largest request that failed, in the size that would have been handed
    /// out.
    pub largest_oom: Bytes,
    /// Frees of addresses inside our chunks at which no live block starts.
    pub bad_frees: u64,
    /// The largest cached block.
    pub largest_cached: Bytes,
    /// Bytes in chunks without a live block.
    pub idle: Bytes,
    /// The lowest that `idle` has been since memory was last taken from the
    /// driver or given back: what was held without use since then.
    pub idle_low: Bytes,
    /// Its pauses.
    pub pause: Pauses,
    /// These and more quantities as PyTorch counts them, by pool.
    pub memory: MemoryStats,
    /// When it was made, in microseconds since 1970.
    pub made_us: u64,
    /// When its context ended, in microseconds since 1970; all of the above is
    /// as of then. `None` while the context lives.
    pub ended_us: Option<u64>,
}

impl ArenaStats {
    /// The share of the cached bytes that one request could not get in one
    /// piece: 0 if nothing is cached or all of it is one block, near 1 if it is
    /// many small pieces.
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
    /// How many calls.
    pub calls: u64,
    /// How many of them answered with an error.
    pub failures: u64,
    /// Nanoseconds spent in all of them.
    pub ns: u64,
    /// Nanoseconds in the longest.
    pub longest_ns: u64,
    /// Nanoseconds in the shortest; 0 if there was none.
    pub shortest_ns: u64,
}

/// Calls that an arena made to its driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct DriverCalls {
    /// Allocations.
    pub alloc: CallCount,
    /// Frees.
    pub free: CallCount,
    /// Queries of free and total memory.
    pub mem_info: CallCount,
    /// Fences that were made.
    pub fence: CallCount,
    /// Queries of fences.
    pub reached: CallCount,
    /// Waits for the device: for fences, and by the options that fill memory or
    /// wait at every allocation.
    pub wait: CallCount,
    /// Calls about virtual memory.
    pub mapping: MappingCalls,
}

/// Calls about virtual memory: addresses apart from memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct MappingCalls {
    /// Addresses that were reserved.
    pub reserve: CallCount,
    /// Units of memory that were created.
    pub create: CallCount,
    /// Units that were mapped to addresses.
    pub map: CallCount,
    /// Calls that gave devices access to what was mapped.
    pub set_access: CallCount,
    /// Calls that took units away from their addresses.
    pub unmap: CallCount,
    /// Units that were given back.
    pub release: CallCount,
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
