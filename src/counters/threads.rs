//! What threads take and free without the arena's lock.
//!
//! Invariant: what caches have room for counts as used, so that no peak is
//! passed unseen. Cost: a step for each size of block when room is taken away.

use crate::address::Bytes;
use crate::counters::{BlockInfo, Counters};
use crate::page_map::SLOT;
use crate::stats::{Metric, size_class};
use crate::strategy::Pool;
use crate::thread_cache::{Activity, Figure, Headroom, Kept};

/// The most that one cache is given without a free.
const MOST_ROOM: Bytes = Bytes::mib(16);

/// The metrics that this is a figure of.
fn metrics_of(figure: Figure) -> &'static [Metric] {
    match figure {
        Figure::Blocks => &[Metric::Allocation, Metric::Active],
        Figure::Bytes => &[Metric::AllocatedBytes, Metric::ActiveBytes],
        Figure::Asked => &[Metric::RequestedBytes],
    }
}

impl Counters {
    /// How much of a block would pass a peak of which the room of caches, of blocks of
    /// the pool `cached`, is a part.
    #[inline]
    pub(crate) fn beyond_peak(&mut self, cached: Pool, info: &BlockInfo) -> Headroom {
        let metrics = self.metrics.of(info.pool);
        let beyond = |figure, more: u64| {
            let below = metrics_of(figure).iter().map(|&metric| {
                if info.pool == cached {
                    metrics.below_peak(metric)
                } else {
                    metrics.below_peak_of_all(metric)
                }
            });
            more.saturating_sub(below.min().unwrap_or(more))
        };
        let bytes = beyond(Figure::Bytes, info.size.get());
        Headroom {
            blocks: beyond(Figure::Blocks, 1),
            bytes: bytes.next_multiple_of(SLOT.get()),
            asked: beyond(Figure::Asked, info.requested.get()),
        }
    }

    /// Counts the blocks that the program holds by class and by library, as far as a
    /// cache is part of that.
    pub(crate) fn count_classes(&mut self, cache: &mut Kept) {
        self.note_peak();
        cache.take_fewer(|size, fewer| {
            let live = &mut self.stats.classes_live[size_class(size)];
            live.blocks = live.blocks.wrapping_sub(fewer);
            live.bytes = (live.bytes).wrapping_sub(fewer.wrapping_mul(size.get()));
        });
        (self.stats.libraries_live).add_all(&cache.take_libraries());
    }

    /// So much happened in a cache of blocks of this pool.
    pub(crate) fn passed(&mut self, pool: Pool, cache: &Activity) {
        self.stats.hits += cache.allocations;
        self.stats.thread_hits += cache.allocations;
        self.stats.epochs += cache.epochs;
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

    /// The program got a block that a thread had kept.
    pub(crate) fn handed_out_again(&mut self, info: &BlockInfo) {
        self.stats.hits += 1;
        self.stats.thread_hits += 1;
        self.got(info);
    }

    /// Headroom for caches of blocks of this pool, that counts as used: all that there is
    /// below the peaks.
    pub(crate) fn grant(&mut self, pool: Pool) -> Headroom {
        let mut all = |figure| self.grant_of(pool, figure, |below| below);
        Headroom {
            blocks: all(Figure::Blocks),
            bytes: all(Figure::Bytes),
            asked: all(Figure::Asked),
        }
    }

    /// The same for one cache, in each figure of which it lacks some: half of that, or what
    /// it lacks, if there is so much.
    pub(crate) fn grant_lacking(&mut self, pool: Pool, lacks: Headroom) -> Headroom {
        let mut some = |figure| match lacks.of(figure) {
            0 => 0,
            lacks => self.grant_of(pool, figure, |below| (below / 2).max(lacks.min(below))),
        };
        Headroom {
            blocks: some(Figure::Blocks),
            bytes: some(Figure::Bytes),
            asked: some(Figure::Asked),
        }
    }

    /// The same in one figure, as `part` says of what there is below its peaks.
    #[inline]
    fn grant_of(&mut self, pool: Pool, figure: Figure, part: impl Fn(u64) -> u64) -> u64 {
        let (unit, most) = match figure {
            Figure::Blocks => (1, MOST_ROOM.get() / SLOT.get()),
            Figure::Bytes => (SLOT.get(), MOST_ROOM.get()),
            Figure::Asked => (1, MOST_ROOM.get()),
        };
        let mut metrics = self.metrics.of(pool);
        let below = metrics_of(figure)
            .iter()
            .map(|&metric| metrics.below_peak(metric));
        let room = part(below.min().unwrap_or(0)).min(most) / unit * unit;
        for &metric in metrics_of(figure) {
            metrics.return_to(metric, room);
        }
        room
    }

    /// Undoes `grant`.
    pub(crate) fn ungrant(&mut self, pool: Pool, room: Headroom) {
        self.note_peak();
        let mut metrics = self.metrics.of(pool);
        for figure in Figure::ALL {
            for &metric in metrics_of(figure) {
                metrics.fall(metric, room.of(figure));
            }
        }
    }

    /// A block that was recalled is in limbo, and counts as every other there.
    pub(crate) fn recalled_to_limbo(&mut self, info: BlockInfo) {
        let mut metrics = self.metrics.of(info.pool);
        metrics.return_to(Metric::Active, 1);
        metrics.return_to(Metric::ActiveBytes, info.size.get());
        metrics.return_to(Metric::RequestedBytes, info.requested.get());
        self.entered_limbo(info.size);
    }

    /// So much more is in limbo.
    pub(crate) fn entered_limbo(&mut self, size: Bytes) {
        self.limbo = self.limbo.saturating_add(size);
        self.stats.limbo.peak = self.stats.limbo.peak.max(self.limbo);
    }
}
