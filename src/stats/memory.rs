//! PyTorch's memory statistics, metric by metric.
//!
//! Owns their names and their meaning for this library: a *segment* is a chunk
//! or a direct allocation; a block in limbo is one whose free was requested and
//! not completed. Invariant: `current` is `allocated - freed`, and `all` is the
//! sum of both pools, except for peaks.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use crate::address::Bytes;

/// One quantity over time, in blocks or in bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The highest value so far.
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
    /// Blocks that the program holds, or freed while the GPU may still use
    /// them.
    Active,
    /// Free blocks that share their chunk with another block, so that the chunk
    /// cannot go back to the driver.
    InactiveSplit,
    /// Bytes of `Allocation`, in the sizes that were handed out.
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
    /// The number of metrics.
    pub const COUNT: usize = 9;

    /// All metrics, counts before bytes.
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

/// What PyTorch's `memory_stats()` would report for an arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryStats {
    /// Both pools.
    pub all: PoolStats,
    /// Chunks for requests up to 1 MiB, and direct allocations up to 1 MiB.
    pub small_pool: PoolStats,
    /// All other chunks and direct allocations.
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
    /// How often all of limbo was waited for at once, because memory was short
    /// or the cache was to be emptied.
    pub num_sync_all_streams: u64,
    /// Chunks and direct allocations taken from the driver.
    pub num_device_alloc: u64,
    /// Chunks and direct allocations given back.
    pub num_device_free: u64,
    /// Requests that failed on the limit without an attempt to free memory.
    pub num_oom_rejections: u64,
    /// Blocks of at least this size are not cut; `None`: all may be.
    pub max_split_size: Option<Bytes>,
}

impl Stat {
    /// The values by PyTorch's names.
    pub(super) fn values(self) -> [(&'static str, u64); 4] {
        [
            ("current", self.current),
            ("peak", self.peak),
            ("allocated", self.allocated),
            ("freed", self.freed),
        ]
    }
}

impl MemoryStats {
    /// Every number under PyTorch's flat key, in PyTorch's order.
    /// `max_split_size` is -1 if there is none.
    #[must_use]
    pub fn flat(&self) -> BTreeMap<String, i64> {
        let mut flat = BTreeMap::new();
        let mut add = |key: String, value: u64| {
            flat.insert(key, i64::try_from(value).unwrap_or(i64::MAX));
        };
        for (pool, stats) in [
            ("all", &self.all),
            ("small_pool", &self.small_pool),
            ("large_pool", &self.large_pool),
        ] {
            for metric in Metric::ALL {
                for (name, value) in stats[metric].values() {
                    add(format!("{}.{pool}.{name}", metric.name()), value);
                }
            }
        }
        for (metric, stat) in [
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ] {
            for (name, value) in stat.values() {
                add(format!("{metric}.{name}"), value);
            }
        }
        for (name, value) in [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_oom_rejections", self.num_oom_rejections),
        ] {
            add(name.to_owned(), value);
        }
        let max_split = self.max_split_size.map(Bytes::get);
        let max_split = max_split.map_or(-1, |size| i64::try_from(size).unwrap_or(i64::MAX));
        flat.insert("max_split_size".to_owned(), max_split);
        flat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_pytorch_is_there() {
        let flat = MemoryStats::default().flat();
        assert_eq!(flat.len(), 9 * 3 * 4 + 2 * 4 + 7);
        assert_eq!(flat.get("max_split_size"), Some(&-1));
        for key in [
            "active.all.allocated",
            "inactive_split_bytes.small_pool.peak",
            "oversize_segments.freed",
            "num_sync_all_streams",
        ] {
            assert_eq!(flat.get(key), Some(&0), "{key}");
        }
    }

    #[test]
    fn values_stand_under_their_own_keys() {
        let mut stats = MemoryStats {
            num_ooms: 7,
            max_split_size: Some(Bytes::mib(20)),
            ..MemoryStats::default()
        };
        stats.large_pool[Metric::RequestedBytes] = Stat {
            current: 1,
            peak: 2,
            allocated: 3,
            freed: u64::MAX,
        };
        let flat = stats.flat();
        for (key, value) in [
            ("requested_bytes.large_pool.current", 1),
            ("requested_bytes.large_pool.peak", 2),
            ("requested_bytes.large_pool.allocated", 3),
            ("requested_bytes.large_pool.freed", i64::MAX),
            ("num_ooms", 7),
            ("max_split_size", 20 << 20),
        ] {
            assert_eq!(flat.get(key), Some(&value), "{key}");
        }
        let zeros = flat.values().filter(|&&value| value == 0).count();
        assert_eq!(zeros, flat.len() - 6);
    }
}
