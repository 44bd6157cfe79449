//! What the counters say.
//!
//! Owns nothing. Invariant: a picture is of one moment, since it is taken
//! under the lock of the arena. Cost: a few additions for what the arena asks
//! itself; some hundred for a whole picture.

use crate::address::Bytes;
use crate::counters::Counters;
use crate::stats::{ArenaStats, ClassCount, Gauge, Glance, MemoryStats, Metric};
use crate::strategy::Pool;

impl Counters {
    fn bytes(&self, metric: Metric) -> Bytes {
        Bytes::new(self.metrics.current(metric))
    }

    /// Bytes that the program holds.
    pub(crate) fn live(&self) -> Bytes {
        self.bytes(Metric::AllocatedBytes)
    }

    /// Bytes that the program was ever given, and those of them that it holds
    /// no more.
    pub(crate) fn turnover(&self) -> (u64, u64) {
        let live = self.metrics.both(Metric::AllocatedBytes);
        (live.allocated, live.freed)
    }

    /// Bytes in free blocks.
    pub(crate) fn cached(&self) -> Bytes {
        self.reserved()
            .saturating_add(self.stats.pause.paused)
            .saturating_sub(self.bytes(Metric::ActiveBytes))
    }

    /// Bytes of blocks' memory that a pause has given to the device.
    pub(crate) fn paused(&self) -> Bytes {
        self.stats.pause.paused
    }

    /// Bytes in limbo.
    pub(crate) fn limbo(&self) -> Bytes {
        self.limbo
    }

    /// Bytes that the driver gave.
    pub(crate) fn reserved(&self) -> Bytes {
        self.bytes(Metric::ReservedBytes)
    }

    /// The most that there was of a metric in bytes since
    /// [`begin_peak`](Counters::begin_peak).
    pub(crate) fn peak(&self, metric: Metric) -> Bytes {
        Bytes::new(self.metrics.peak(metric))
    }

    /// Begins this peak anew with what there is; what it was is returned. The peak that
    /// is reported stays.
    pub(crate) fn begin_peak(&mut self, metric: Metric) -> Bytes {
        Bytes::new(self.metrics.begin_peak(metric))
    }

    /// Bytes that the driver gave for one pool.
    pub(crate) fn reserved_of(&self, pool: Pool) -> Bytes {
        Bytes::new(self.metrics.current_of(pool, Metric::ReservedBytes))
    }

    /// Bytes in chunks for small requests without a live block.
    pub(crate) fn idle_small(&self) -> Bytes {
        self.idle_small
    }

    /// Bytes of a pool that the program holds, with the room of caches.
    pub(crate) fn live_of(&self, pool: Pool) -> Bytes {
        Bytes::new(self.metrics.current_of(pool, Metric::AllocatedBytes))
    }

    /// Whether anything that the driver gave is a chunk.
    pub(crate) fn holds_chunks(&self) -> bool {
        self.stats.chunks > 0
    }

    /// Bytes in chunks without a live block.
    pub(crate) fn idle(&self) -> Bytes {
        self.stats.idle
    }

    /// Allocations and frees so far.
    pub(crate) fn steps(&self) -> u64 {
        let steps = |class: &ClassCount| class.allocations + class.frees;
        self.stats.classes.iter().map(steps).sum()
    }

    /// The counters that matter most.
    pub(crate) fn glance(&self) -> Glance {
        let of = |metric| {
            let stat = self.metrics.both(metric);
            (Bytes::new(stat.current), Bytes::new(stat.peak))
        };
        let (live, live_peak) = of(Metric::AllocatedBytes);
        let (reserved, reserved_peak) = of(Metric::ReservedBytes);
        Glance {
            live,
            live_peak,
            reserved,
            reserved_peak,
            paused: self.stats.pause.paused,
            limbo: self.limbo(),
            driver_calls: 0,
        }
    }

    /// A copy of the counters.
    pub(crate) fn picture(&self) -> ArenaStats {
        let memory = self.memory();
        let gauge = |metric| Gauge {
            current: Bytes::new(memory.all[metric].current),
            peak: Bytes::new(memory.all[metric].peak),
        };
        let mut stats = self.stats.clone();
        stats.live = gauge(Metric::AllocatedBytes);
        stats.reserved = gauge(Metric::ReservedBytes);
        stats.limbo.current = self.limbo();
        stats.limbo.peak = stats.limbo.peak.max(stats.limbo.current);
        stats.cached.current = self.cached();
        if self.live_rose {
            stats.classes_at_peak = stats.classes_live;
            stats.libraries_at_peak = stats.libraries_live;
        }
        stats.memory = memory;
        stats.made_us = self.history.made_us();
        stats
    }

    fn memory(&self) -> MemoryStats {
        let mut stats = MemoryStats {
            oversize_allocations: self.oversize_allocations.stat(),
            oversize_segments: self.oversize_segments.stat(),
            num_alloc_retries: self.retries,
            num_ooms: self.stats.ooms,
            num_sync_all_streams: self.full_waits,
            num_device_free: self.device_frees,
            num_oom_rejections: self.rejections,
            max_split_size: self.max_split,
            ..MemoryStats::default()
        };
        self.metrics.write(&mut stats);
        stats.num_device_alloc = stats.all[Metric::Segment].allocated;
        stats
    }
}
