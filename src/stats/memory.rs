//! PyTorch's memory statistics, metric by metric.
//!
//! Owns their names and their meaning for this library: a *segment* is a chunk
//! or a direct allocation, a block waiting in limbo is one whose free was
//! requested and not completed. Invariant: `current` is `allocated - freed`,
//! and `all` is the sum of both pools, peaks aside. Cost: plain values.

use std::ops::{Index, IndexMut};

use crate::address::Bytes;

/// One quantity over time, in blocks or in bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most there has been.
    pub peak: u64,
    /// Sum of all increases.
    pub allocated: u64,
    /// Sum of all decreases.
    pub freed: u64,
}

/// What is counted for each pool.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Metric {
    /// Blocks that the program holds.
    Allocation,
    /// Chunks and direct allocations.
    Segment,
    /// Blocks that the program holds, or freed and the GPU may still use.
    Active,
    /// Free blocks that share their chunk with another block: the chunk
    /// cannot go back to the driver on their account.
    InactiveSplit,
    /// Bytes of `Allocation`, rounded as they were handed out.
    AllocatedBytes,
    /// Bytes of `Segment`.
    ReservedBytes,
    /// Bytes of `Active`.
    ActiveBytes,
    /// Bytes of `InactiveSplit`.
    InactiveSplitBytes,
    /// Bytes of `Active` as the program asked for them.
    RequestedBytes,
}

impl Metric {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All of them, counts before bytes.
    pub const ALL: [Metric; Metric::COUNT] = [
        Metric::Allocation,
        Metric::Segment,
        Metric::Active,
        Metric::InactiveSplit,
        Metric::AllocatedBytes,
        Metric::ReservedBytes,
        Metric::ActiveBytes,
        Metric::InactiveSplitBytes,
        Metric::RequestedBytes,
    ];

    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Allocation => "allocation",
            Metric::Segment => "segment",
            Metric::Active => "active",
            Metric::InactiveSplit => "inactive_split",
            Metric::AllocatedBytes => "allocated_bytes",
            Metric::ReservedBytes => "reserved_bytes",
            Metric::ActiveBytes => "active_bytes",
            Metric::InactiveSplitBytes => "inactive_split_bytes",
            Metric::RequestedBytes => "requested_bytes",
        }
    }
}

/// Every metric of one pool, or of both together.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolStats([Stat; Metric::COUNT]);

impl Index<Metric> for PoolStats {
    type Output = Stat;

    fn index(&self, metric: Metric) -> &Stat {
        &self.0[metric as usize]
    }
}

impl IndexMut<Metric> for PoolStats {
    fn index_mut(&mut self, metric: Metric) -> &mut Stat {
        &mut self.0[metric as usize]
    }
}

/// What PyTorch's `memory_stats()` would say of an arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryStats {
    /// Both pools.
    pub all: PoolStats,
    /// Chunks for requests up to 1 MiB, and direct allocations up to 1 MiB.
    pub small_pool: PoolStats,
    /// All others.
    pub large_pool: PoolStats,
    /// Blocks that the program holds of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Chunks and direct allocations of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests for which the driver was asked again after everything that
    /// could go back to it had.
    pub num_alloc_retries: u64,
    /// Requests that failed for want of memory.
    pub num_ooms: u64,
    /// Times that all of limbo was waited for at once, because memory was
    /// short or the cache was to be emptied.
    pub num_sync_all_streams: u64,
    /// Chunks and direct allocations taken from the driver.
    pub num_device_alloc: u64,
    /// Chunks and direct allocations given back.
    pub num_device_free: u64,
    /// Requests that failed on the limit without an attempt to free memory.
    pub num_oom_rejections: u64,
    /// Blocks of this size and more are not cut; none: all may be.
    pub max_split_size: Option<Bytes>,
}
