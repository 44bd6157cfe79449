//! What threads take and free without the arena's lock.
//!
//! Invariant: what caches have room for counts as used, so that no peak is
//! passed unseen. Cost: a step for each size of block when room is taken away.

use crate::address::Bytes;
use crate::counters::Counters;
use crate::page_map::{SLOT, SlotWord};
use crate::stats::{Metric, size_class};
use crate::strategy::Pool;
use crate::thread_cache::{Activity, Figure, Headroom, Kept};

/// The most that one cache is given without a free.
const MOST_ROOM: Bytes = Bytes::mib(16);

impl Counters {
    /// The figures, of this pool, that a block would bring to a new peak.
    #[inline]
    pub(crate) fn would_peak(&mut self, pool: Pool, size: Bytes, request: Bytes) -> [bool; 3] {
        let metrics = self.metrics.of(pool);
        [
            metrics.below_peak(Metric::Allocation) < 1,
            metrics.below_peak(Metric::AllocatedBytes) < size.get(),
            metrics.below_peak(Metric::RequestedBytes) < request.get(),
        ]
    }

    /// A cache of blocks of this pool has no room any more in one of them.
    pub(crate) fn lost_room(&mut self, pool: Pool, cache: &mut Kept, figure: Figure) {
        if figure == Figure::Bytes {
            if std::mem::take(&mut self.live_rose) {
                self.stats.classes_at_peak = self.stats.classes_live;
            }
            for (size, fewer) in cache.fewer() {
                let live = &mut self.stats.classes_live[size_class(size)];
                live.blocks = live.blocks.wrapping_sub(fewer);
                live.bytes = (live.bytes).wrapping_sub(fewer.wrapping_mul(size.get()));
            }
        }
        let room = cache.take_room(figure);
        let metric = match figure {
            Figure::Blocks => Metric::Allocation,
            Figure::Bytes => Metric::AllocatedBytes,
            Figure::Asked => Metric::RequestedBytes,
        };
        self.metrics.of(pool).fall(metric, room);
    }

    /// So much happened in a cache of blocks of this pool.
    pub(crate) fn passed(&mut self, pool: Pool, cache: &Activity) {
        self.stats.hits += cache.allocations;
        self.stats.thread_hits += cache.allocations;
        cache.add_to(&mut self.stats.classes);
        let mut metrics = self.metrics.of(pool);
        for (metric, passed) in [
            (Metric::Allocation, cache.allocations),
            (Metric::AllocatedBytes, cache.handed_out),
            (Metric::Active, cache.allocations),
            (Metric::ActiveBytes, cache.handed_out),
            (Metric::RequestedBytes, cache.requested),
        ] {
            metrics.passed(metric, passed);
        }
    }

    /// The program got a block that a thread had kept; this was said of it then.
    pub(crate) fn handed_out_again(&mut self, pool: Pool, word: SlotWord, requested: Bytes) {
        let size = word.size();
        self.stats.hits += 1;
        self.stats.thread_hits += 1;
        let mut metrics = self.metrics.of(pool);
        metrics.raise(Metric::Allocation, 1);
        metrics.raise(Metric::AllocatedBytes, size.get());
        metrics.passed(Metric::Active, 1);
        metrics.passed(Metric::ActiveBytes, size.get());
        metrics.lower(Metric::RequestedBytes, word.request().get());
        metrics.raise(Metric::RequestedBytes, requested.get());
        metrics.update_peak(Metric::Allocation);
        self.live_rose |= metrics.update_peak(Metric::AllocatedBytes);
        self.count_allocation(size, requested);
    }

    /// Headroom for a cache of blocks of this pool, that counts as used.
    pub(crate) fn grant(&mut self, pool: Pool) -> Headroom {
        let mut metrics = self.metrics.of(pool);
        let mut part = |metric, unit: Bytes| {
            let room =
                (metrics.below_peak(metric) / 2).min(MOST_ROOM.get() / SLOT.get() * unit.get());
            let room = Bytes::new(room).round_down(unit).get();
            metrics.return_to(metric, room);
            room
        };
        let block = Bytes::new(1);
        Headroom {
            blocks: part(Metric::Allocation, block),
            bytes: part(Metric::AllocatedBytes, SLOT),
            asked: part(Metric::RequestedBytes, SLOT),
        }
    }

    /// Undoes `grant`.
    pub(crate) fn ungrant(&mut self, pool: Pool, room: Headroom) {
        let mut metrics = self.metrics.of(pool);
        metrics.lower(Metric::Allocation, room.blocks);
        metrics.lower(Metric::AllocatedBytes, room.bytes);
        metrics.lower(Metric::RequestedBytes, room.asked);
    }

    /// A block that was recalled is in limbo.
    pub(crate) fn entered_limbo(&mut self, size: Bytes) {
        self.limbo = self.limbo.saturating_add(size);
        self.stats.limbo.peak = self.stats.limbo.peak.max(self.limbo);
    }
}
