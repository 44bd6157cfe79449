//! Everything that an arena counts, as a list of events.
//!
//! Owns the counters. The books say what happened; what that does to which
//! counter is decided here and nowhere else. Invariant (checked by
//! `validate`): every current value is the sum over the blocks. Cost: a few
//! dozen instructions for a block that is handed out and as many for its free,
//! under the lock that is held anyway.

mod counters;
mod picture;

use crate::address::{Address, Bytes};
use crate::arena::books::Region;
use crate::arena::history::History;
use crate::arena::meter::Waited;
use crate::stats::{
    Action, ArenaStats, ClassLive, Metric, Parts, SIZE_CLASSES, StackId, size_class,
};
use crate::strategy::Pool;

use counters::{Counter, Counters};

/// A block, as the events tell of it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) address: Address,
    /// As it was handed out.
    pub(crate) size: Bytes,
    /// What the program asked for.
    pub(crate) requested: Bytes,
    /// Of its chunk.
    pub(crate) pool: Pool,
    /// Of the request that is being served.
    pub(crate) stack: StackId,
}

/// Why a call of the program waits for the device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// More is in limbo than its budget allows.
    Budget,
    /// Memory is short, or the free waits as CUDA's does, or the cache is to
    /// be emptied.
    All,
}

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

/// What falls when the device is done with a freed block.
const FALL_WITH_FENCES: [Metric; 3] = [Metric::Active, Metric::ActiveBytes, Metric::RequestedBytes];

/// See the module.
pub(crate) struct Tally {
    counters: Counters,
    /// Something of `FALL_WITH_FENCES` rose, or limbo did, since it was last
    /// compared with its peak.
    peaks_due: bool,
    /// The program holds more than ever: what it consists of is to be noted
    /// before anything is freed.
    live_rose: bool,
    /// More is reserved than ever: the same, when the request was served.
    reserved_rose: bool,
    oversize_allocations: Counter,
    oversize_segments: Counter,
    /// Blocks of this size and more are oversize.
    max_split: Option<Bytes>,
    device_frees: u64,
    retries: u64,
    full_waits: u64,
    rejections: u64,
    history: History,
    /// All other counters; what follows from the above is filled in by
    /// `picture`.
    stats: ArenaStats,
}

impl Tally {
    /// Nothing has happened; blocks of `max_split` and more are oversize.
    pub(crate) fn new(max_split: Option<Bytes>) -> Tally {
        Tally {
            counters: Counters::default(),
            peaks_due: false,
            live_rose: false,
            reserved_rose: false,
            oversize_allocations: Counter::default(),
            oversize_segments: Counter::default(),
            max_split,
            device_frees: 0,
            retries: 0,
            full_waits: 0,
            rejections: 0,
            history: History::new(0),
            stats: ArenaStats::default(),
        }
    }

    /// The newest events.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The same, to be told more.
    pub(crate) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    /// Whether blocks of this size count as oversize.
    pub(crate) fn is_oversize(&self, size: Bytes) -> bool {
        self.max_split.is_some_and(|least| size >= least)
    }

    /// The program got a block.
    #[inline]
    pub(crate) fn handed_out(&mut self, piece: Piece) {
        let Piece {
            address,
            size,
            requested,
            pool,
            stack,
        } = piece;
        self.history.note(Action::Alloc(address), requested, stack);
        let mut counters = self.counters.of(pool);
        counters.raise(Metric::Allocation, 1);
        counters.raise(Metric::AllocatedBytes, size.get());
        counters.raise(Metric::Active, 1);
        counters.raise(Metric::ActiveBytes, size.get());
        counters.raise(Metric::RequestedBytes, requested.get());
        counters.settle(Metric::Allocation);
        self.live_rose |= counters.settle(Metric::AllocatedBytes);
        self.peaks_due = true;
        if self.is_oversize(size) {
            self.oversize_allocations.raise(1);
            self.oversize_allocations.settle();
        }
        let class = size_class(requested);
        let count = &mut self.stats.classes[class];
        count.allocations += 1;
        count.requested = count.requested.saturating_add(requested.get());
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_add(1);
        live.bytes = live.bytes.wrapping_add(size.get());
    }

    /// The program freed a block; `waits`: it goes to limbo.
    #[inline]
    pub(crate) fn free_requested(&mut self, piece: Piece, waits: bool) {
        let Piece {
            address,
            size,
            requested,
            pool,
            stack,
        } = piece;
        let action = Action::FreeRequested(address);
        self.history.note(action, requested, stack);
        if std::mem::take(&mut self.live_rose) {
            self.stats.classes_at_peak = self.stats.classes_live;
        }
        if !waits {
            // Else what never was in limbo would count there.
            self.settle();
        }
        let mut counters = self.counters.of(pool);
        counters.lower(Metric::Allocation, 1);
        counters.lower(Metric::AllocatedBytes, size.get());
        if self.is_oversize(size) {
            self.oversize_allocations.lower(1);
        }
        let class = size_class(requested);
        self.stats.classes[class].frees += 1;
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_sub(1);
        live.bytes = live.bytes.wrapping_sub(size.get());
        self.peaks_due |= waits;
    }

    /// The driver did not take back a direct allocation that had left so far:
    /// all is as if the program had never freed it. The events alone tell that
    /// it was away.
    pub(crate) fn free_refused(&mut self, piece: Piece, region: Region) {
        let Piece {
            address,
            size,
            requested,
            pool,
            stack,
        } = piece;
        let action = Action::SegmentAlloc(region.address);
        self.history.note(action, region.size, stack);
        self.history.note(Action::Alloc(address), requested, stack);
        let mut counters = self.counters.of(pool);
        for (metric, by) in [
            (Metric::Allocation, 1),
            (Metric::AllocatedBytes, size.get()),
            (Metric::Active, 1),
            (Metric::ActiveBytes, size.get()),
            (Metric::RequestedBytes, requested.get()),
            (Metric::Segment, 1),
            (Metric::ReservedBytes, region.size.get()),
        ] {
            let is_new = counters.return_to(metric, by);
            self.live_rose |= is_new && metric == Metric::AllocatedBytes;
        }
        if self.is_oversize(size) {
            self.oversize_allocations.return_to(1);
            self.oversize_segments.return_to(1);
        }
        let class = size_class(requested);
        self.stats.classes[class].frees -= 1;
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_add(1);
        live.bytes = live.bytes.wrapping_add(size.get());
        self.device_frees -= 1;
    }

    /// The device is done with a freed block.
    #[inline]
    pub(crate) fn free_completed(&mut self, piece: Piece) {
        let action = Action::FreeCompleted(piece.address);
        self.history.note(action, piece.requested, piece.stack);
        self.settle();
        let mut counters = self.counters.of(piece.pool);
        counters.lower(Metric::Active, 1);
        counters.lower(Metric::ActiveBytes, piece.size.get());
        counters.lower(Metric::RequestedBytes, piece.requested.get());
    }

    /// Before anything falls that rose unseen.
    #[inline]
    fn settle(&mut self) {
        if std::mem::take(&mut self.peaks_due) {
            self.counters.settle(&FALL_WITH_FENCES);
            self.stats.limbo.peak = self.stats.limbo.peak.max(self.limbo());
        }
    }

    /// A free block gave `handed` bytes to the program and has `rest` left;
    /// `shared`: it had neighbours in its chunk.
    #[inline]
    pub(crate) fn cut(&mut self, pool: Pool, shared: bool, handed: Bytes, rest: Bytes) {
        let mut counters = self.counters.of(pool);
        if shared {
            counters.lower(Metric::InactiveSplitBytes, handed.get());
            counters.lower(Metric::InactiveSplit, u64::from(rest.is_zero()));
        } else if !rest.is_zero() {
            counters.raise(Metric::InactiveSplitBytes, rest.get());
            counters.raise(Metric::InactiveSplit, 1);
            counters.settle(Metric::InactiveSplitBytes);
            counters.settle(Metric::InactiveSplit);
        }
    }

    /// A block of `size` bytes became free and merged with so many free
    /// neighbours to `whole` bytes; `shared`: there are others in the chunk.
    #[inline]
    pub(crate) fn joined(&mut self, piece: Piece, neighbours: u64, whole: Bytes, shared: bool) {
        let mut counters = self.counters.of(piece.pool);
        if shared {
            counters.raise(Metric::InactiveSplitBytes, piece.size.get());
            counters.settle(Metric::InactiveSplitBytes);
            if neighbours == 0 {
                counters.raise(Metric::InactiveSplit, 1);
                counters.settle(Metric::InactiveSplit);
            } else {
                // As many vanish as are merged; one is left.
                counters.lower(Metric::InactiveSplit, neighbours - 1);
            }
        } else {
            let merged = whole.saturating_sub(piece.size);
            counters.lower(Metric::InactiveSplitBytes, merged.get());
            counters.lower(Metric::InactiveSplit, neighbours);
        }
    }

    /// So many free blocks of a chunk with several blocks leave with it.
    pub(crate) fn split_gone(&mut self, pool: Pool, count: u64, bytes: Bytes) {
        let mut counters = self.counters.of(pool);
        counters.lower(Metric::InactiveSplitBytes, bytes.get());
        counters.lower(Metric::InactiveSplit, count);
    }

    /// Nothing more becomes free in this step.
    pub(crate) fn was_cached(&mut self) {
        self.stats.cached.peak = self.stats.cached.peak.max(self.cached());
    }

    /// The driver gave memory: a chunk or a direct allocation.
    pub(crate) fn segment_taken(&mut self, region: Region, pool: Pool, stack: StackId) {
        let action = Action::SegmentAlloc(region.address);
        self.history.note(action, region.size, stack);
        let mut counters = self.counters.of(pool);
        counters.raise(Metric::Segment, 1);
        counters.raise(Metric::ReservedBytes, region.size.get());
        counters.settle(Metric::Segment);
        self.reserved_rose |= counters.settle(Metric::ReservedBytes);
        self.stats.idle_low = self.stats.idle;
        if self.is_oversize(region.size) {
            self.oversize_segments.raise(1);
            self.oversize_segments.settle();
        }
    }

    /// It is on its way back.
    pub(crate) fn segment_released(&mut self, region: Region, pool: Pool) {
        let action = Action::SegmentFree(region.address);
        self.history.note(action, region.size, StackId::NONE);
        let mut counters = self.counters.of(pool);
        counters.lower(Metric::Segment, 1);
        counters.lower(Metric::ReservedBytes, region.size.get());
        if self.is_oversize(region.size) {
            self.oversize_segments.lower(1);
        }
        self.stats.idle_low = self.stats.idle;
        self.device_frees += 1;
    }

    /// The segment was a chunk.
    pub(crate) fn chunk_taken(&mut self) {
        self.stats.chunks += 1;
    }

    /// The same.
    pub(crate) fn chunk_released(&mut self) {
        self.stats.chunks = self.stats.chunks.saturating_sub(1);
        self.stats.chunks_released += 1;
    }

    /// A chunk has no live block any more.
    pub(crate) fn fell_idle(&mut self, chunk: Bytes) {
        self.stats.idle = self.stats.idle.saturating_add(chunk);
    }

    /// An idle chunk is in use, or leaves.
    pub(crate) fn left_idle(&mut self, chunk: Bytes) {
        self.stats.idle = self.stats.idle.saturating_sub(chunk);
        self.stats.idle_low = self.stats.idle_low.min(self.stats.idle);
    }

    /// A cached block served a request.
    pub(crate) fn hit(&mut self) {
        self.stats.hits += 1;
    }

    /// A request of `size` bytes had to grow by a chunk, and was served.
    pub(crate) fn missed(&mut self, pool: Pool, size: Bytes, chunk: Bytes) {
        self.stats.misses += 1;
        let held = |metric| Bytes::new(self.counters.current_of(pool, metric));
        let cached = held(Metric::ReservedBytes).saturating_sub(held(Metric::ActiveBytes));
        let before = cached.saturating_add(size).saturating_sub(chunk);
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

    /// The context is gone, with all that was in it.
    pub(crate) fn retired(&mut self) {
        self.settle();
        if std::mem::take(&mut self.live_rose) {
            self.stats.classes_at_peak = self.stats.classes_live;
        }
        self.stats.classes_live = [ClassLive::default(); SIZE_CLASSES];
        self.counters.clear();
        for counter in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            counter.lower(counter.current);
        }
        self.stats.idle = Bytes::ZERO;
        self.stats.idle_low = Bytes::ZERO;
        self.stats.chunks = 0;
    }
}
