//! Everything that an arena counts, as a list of events.
//!
//! Owns the counters. The heap says what happened; what that does to which
//! counter is decided here and nowhere else. Invariant (checked by
//! `validate`): every current value is the sum over the blocks. Cost: a few
//! dozen instructions for a block that is handed out and as many for its free,
//! under the lock that is held anyway.

pub(crate) mod calls;
pub(crate) mod history;
mod metrics;
mod picture;
mod threads;

use crate::address::{Address, Bytes};
use crate::heap::block::{Block, BlockId};
use crate::heap::ranges::Splits;
use crate::heap::{Cut, Joined, LeftChunk, Span};
use crate::ledger::Ledger;
use crate::library::{LibraryBytes, LibraryId};
use crate::stats::{
    Action, ArenaStats, ClassLive, Metric, PauseStats, SIZE_CLASSES, StackId, size_class,
};
use crate::strategy::Pool;

use history::History;
use metrics::{Counter, Metrics};

/// A block, as the events tell of it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BlockInfo {
    pub(crate) address: Address,
    /// As it was handed out.
    pub(crate) size: Bytes,
    /// What the program asked for.
    pub(crate) requested: Bytes,
    /// Of its chunk.
    pub(crate) pool: Pool,
    /// Which library of the program asked for it.
    pub(crate) library: LibraryId,
    /// Of the request that is being served.
    pub(crate) stack: StackId,
}

impl BlockInfo {
    /// Of a block that is in no request.
    pub(crate) fn of(block: &Block, pool: Pool) -> BlockInfo {
        BlockInfo {
            address: block.address,
            size: block.size,
            requested: block.requested,
            pool,
            library: block.library,
            stack: StackId::NONE,
        }
    }
}

/// See the module.
pub(crate) struct Counters {
    metrics: Metrics,
    limbo: Bytes,
    /// Bytes of chunks for small requests without a live block, which `stats.idle` has
    /// too.
    idle_small: Bytes,
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
    /// The newest events.
    pub(crate) history: History,
    /// What call stacks hold, if they are taken.
    pub(crate) ledger: Option<&'static Ledger>,
    /// All other counters; what follows from the above is filled in by
    /// `picture`.
    stats: ArenaStats,
}

impl Counters {
    /// Nothing has happened; blocks of `max_split` and more are oversize.
    pub(crate) fn new(max_split: Option<Bytes>) -> Counters {
        Counters {
            metrics: Metrics::default(),
            limbo: Bytes::ZERO,
            idle_small: Bytes::ZERO,
            live_rose: false,
            reserved_rose: false,
            oversize_allocations: Counter::default(),
            oversize_segments: Counter::default(),
            max_split,
            device_frees: 0,
            retries: 0,
            full_waits: 0,
            rejections: 0,
            history: History::new(0, None),
            ledger: None,
            stats: ArenaStats::default(),
        }
    }

    /// Whether blocks of this size count as oversize.
    pub(crate) fn is_oversize(&self, size: Bytes) -> bool {
        self.max_split.is_some_and(|least| size >= least)
    }

    /// The program got a block.
    #[inline]
    pub(crate) fn handed_out(&mut self, id: BlockId, info: BlockInfo) {
        self.remember(id, &info);
        self.history
            .note(Action::Alloc(info.address), info.requested, info.stack);
        self.got(&info);
    }

    #[inline]
    fn remember(&mut self, id: BlockId, info: &BlockInfo) {
        // Without a ledger no stacks are taken.
        if let Some(ledger) = self.ledger {
            self.history.remember(id, info.stack);
            ledger.took(info.stack, info.requested, info.size);
        }
    }

    /// A block is no longer the program's, as far as call stacks go.
    #[inline]
    pub(crate) fn lost(&self, id: BlockId, requested: Bytes, size: Bytes) {
        if let Some(ledger) = self.ledger {
            ledger.gave(self.history.stack_of(id), requested, size);
        }
    }

    /// The same where nothing is noted of it.
    #[inline]
    fn got(&mut self, info: &BlockInfo) {
        let mut metrics = self.metrics.of(info.pool);
        metrics.raise(Metric::Allocation, 1);
        metrics.raise(Metric::AllocatedBytes, info.size.get());
        metrics.raise(Metric::Active, 1);
        metrics.raise(Metric::ActiveBytes, info.size.get());
        metrics.raise(Metric::RequestedBytes, info.requested.get());
        metrics.update_peak(Metric::Allocation);
        self.live_rose |= metrics.update_peak(Metric::AllocatedBytes);
        if self.is_oversize(info.size) {
            self.oversize_allocations.raise(1);
            self.oversize_allocations.update_peak();
        }
        self.stats.libraries_live.add(info.library, info.size);
        self.count_allocation(info.size, info.requested);
    }

    fn count_allocation(&mut self, size: Bytes, requested: Bytes) {
        let class = size_class(requested);
        let count = &mut self.stats.classes[class];
        count.allocations += 1;
        count.requested = count.requested.saturating_add(requested.get());
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_add(1);
        live.bytes = live.bytes.wrapping_add(size.get());
    }

    /// Before anything changes that was so at the last peak: notes what the program
    /// held then.
    #[inline]
    fn note_peak(&mut self) {
        if std::mem::take(&mut self.live_rose) {
            self.stats.classes_at_peak = self.stats.classes_live;
            self.stats.libraries_at_peak = self.stats.libraries_live;
        }
    }

    /// The program freed a block; `waits`: it goes to limbo.
    #[inline]
    pub(crate) fn free_requested(&mut self, id: BlockId, info: BlockInfo, waits: bool) {
        self.lost(id, info.requested, info.size);
        let action = Action::FreeRequested(info.address);
        self.history.note(action, info.requested, info.stack);
        self.note_peak();
        let mut metrics = self.metrics.of(info.pool);
        metrics.lower(Metric::Allocation, 1);
        metrics.lower(Metric::AllocatedBytes, info.size.get());
        if self.is_oversize(info.size) {
            self.oversize_allocations.lower(1);
        }
        let class = size_class(info.requested);
        self.stats.classes[class].frees += 1;
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_sub(1);
        live.bytes = live.bytes.wrapping_sub(info.size.get());
        self.stats.libraries_live.sub(info.library, info.size);
        if waits {
            self.entered_limbo(info.size);
        }
    }

    /// The driver did not take back a direct allocation that had left so far:
    /// all is as if the program had never freed it. The events alone tell that
    /// it was away.
    pub(crate) fn free_refused(&mut self, id: BlockId, info: BlockInfo, span: Span) {
        self.remember(id, &info);
        let action = Action::SegmentAlloc(span.address);
        self.history.note(action, span.size, info.stack);
        self.history
            .note(Action::Alloc(info.address), info.requested, info.stack);
        let mut metrics = self.metrics.of(info.pool);
        for (metric, by) in [
            (Metric::Allocation, 1),
            (Metric::AllocatedBytes, info.size.get()),
            (Metric::Active, 1),
            (Metric::ActiveBytes, info.size.get()),
            (Metric::RequestedBytes, info.requested.get()),
            (Metric::Segment, 1),
            (Metric::ReservedBytes, span.size.get()),
        ] {
            let is_new = metrics.return_to(metric, by);
            self.live_rose |= is_new && metric == Metric::AllocatedBytes;
        }
        if self.is_oversize(info.size) {
            self.oversize_allocations.return_to(1);
            self.oversize_segments.return_to(1);
        }
        let class = size_class(info.requested);
        self.stats.classes[class].frees -= 1;
        let live = &mut self.stats.classes_live[class];
        live.blocks = live.blocks.wrapping_add(1);
        live.bytes = live.bytes.wrapping_add(info.size.get());
        self.stats.libraries_live.add(info.library, info.size);
        self.device_frees -= 1;
    }

    /// The device is done with a freed block.
    #[inline]
    pub(crate) fn free_completed(&mut self, info: BlockInfo, waited: bool) {
        if waited {
            self.limbo = self.limbo.saturating_sub(info.size);
        }
        let action = Action::FreeCompleted(info.address);
        self.history.note(action, info.requested, info.stack);
        let mut metrics = self.metrics.of(info.pool);
        metrics.fall(Metric::Active, 1);
        metrics.fall(Metric::ActiveBytes, info.size.get());
        metrics.fall(Metric::RequestedBytes, info.requested.get());
    }

    /// A free block was cut for the program.
    #[inline]
    pub(crate) fn cut(&mut self, pool: Pool, cut: &Cut) {
        let mut metrics = self.metrics.of(pool);
        if cut.shared {
            metrics.lower(Metric::InactiveSplitBytes, cut.size.get());
            metrics.lower(Metric::InactiveSplit, u64::from(cut.rest.is_zero()));
        } else if !cut.rest.is_zero() {
            metrics.raise(Metric::InactiveSplitBytes, cut.rest.get());
            metrics.raise(Metric::InactiveSplit, 1);
            metrics.update_peak(Metric::InactiveSplitBytes);
            metrics.update_peak(Metric::InactiveSplit);
        }
    }

    /// A block of a chunk became free.
    #[inline]
    pub(crate) fn joined(&mut self, pool: Pool, size: Bytes, joined: &Joined) {
        let mut metrics = self.metrics.of(pool);
        if joined.shared {
            metrics.raise(Metric::InactiveSplitBytes, size.get());
            metrics.update_peak(Metric::InactiveSplitBytes);
            if joined.neighbours == 0 {
                metrics.raise(Metric::InactiveSplit, 1);
                metrics.update_peak(Metric::InactiveSplit);
            } else {
                // As many vanish as are merged; one is left.
                metrics.lower(Metric::InactiveSplit, joined.neighbours - 1);
            }
        } else {
            let merged = joined.whole.saturating_sub(size);
            metrics.lower(Metric::InactiveSplitBytes, merged.get());
            metrics.lower(Metric::InactiveSplit, joined.neighbours);
        }
    }

    /// Free blocks of a range were claimed, or cut for that.
    pub(crate) fn claimed(&mut self, splits: Splits) {
        let mut metrics = self.metrics.of(Pool::Large);
        metrics.raise(Metric::InactiveSplit, splits.after);
        metrics.raise(Metric::InactiveSplitBytes, splits.after_bytes.get());
        metrics.lower(Metric::InactiveSplit, splits.before);
        metrics.lower(Metric::InactiveSplitBytes, splits.before_bytes.get());
        metrics.update_peak(Metric::InactiveSplit);
        metrics.update_peak(Metric::InactiveSplitBytes);
    }

    /// A claim of a range ended, and these pieces of it are free.
    pub(crate) fn ended_claim(&mut self, free: &[(Bytes, Joined)]) {
        for (size, joined) in free {
            self.joined(Pool::Large, *size, joined);
        }
        self.was_cached();
    }

    /// The driver gave units, which are mapped nowhere.
    pub(crate) fn units_taken(&mut self, units: u64, bytes: Bytes) {
        let mut metrics = self.metrics.of(Pool::Large);
        metrics.raise(Metric::Segment, units);
        metrics.raise(Metric::ReservedBytes, bytes.get());
        metrics.update_peak(Metric::Segment);
        self.reserved_rose |= metrics.update_peak(Metric::ReservedBytes);
        self.stats.idle_low = self.stats.idle;
        self.stats.chunks += units;
    }

    /// They are on their way back.
    pub(crate) fn units_released(&mut self, units: u64, bytes: Bytes) {
        let mut metrics = self.metrics.of(Pool::Large);
        metrics.lower(Metric::Segment, units);
        metrics.lower(Metric::ReservedBytes, bytes.get());
        self.stats.idle_low = self.stats.idle;
        self.stats.chunks = self.stats.chunks.saturating_sub(units);
        self.stats.chunks_released += units;
        self.device_frees += units;
    }

    /// Units were mapped side by side in a range of this pool.
    pub(crate) fn units_placed(&mut self, span: Span, stack: StackId) {
        let action = Action::SegmentMap(span.address);
        self.history.note(action, span.size, stack);
    }

    /// They were unmapped.
    pub(crate) fn units_displaced(&mut self, span: Span) {
        let action = Action::SegmentUnmap(span.address);
        self.history.note(action, span.size, StackId::NONE);
    }

    /// What is counted of pauses.
    pub(crate) fn pause_stats(&mut self) -> &mut PauseStats {
        &mut self.stats.pause
    }

    /// A pause took units away, so many of them from slabs.
    pub(crate) fn units_gone(&mut self, bytes: Bytes, slabs: u64, unit: Bytes) {
        for _ in 0..slabs {
            self.move_unit(Pool::Small, Pool::Large, unit);
        }
        self.stats.pause.paused = self.stats.pause.paused.saturating_add(bytes);
    }

    /// Units are in their places again.
    pub(crate) fn units_back(&mut self, bytes: Bytes, slabs: u64, unit: Bytes) {
        for _ in 0..slabs {
            self.move_unit(Pool::Large, Pool::Small, unit);
        }
        self.units_dropped(bytes);
    }

    /// So much of what is paused is not wanted any more.
    pub(crate) fn units_dropped(&mut self, bytes: Bytes) {
        self.stats.pause.paused = self.stats.pause.paused.saturating_sub(bytes);
    }

    /// A free unit is a slab from now on.
    pub(crate) fn slab_made(&mut self, unit: Bytes) {
        self.move_unit(Pool::Large, Pool::Small, unit);
        self.fell_idle(Pool::Small, unit);
    }

    /// So many slabs, all of them empty, are free units again, in these pieces; so many
    /// of them a pause took away.
    pub(crate) fn slabs_ended(&mut self, unit: Bytes, gone: usize, free: &[(Bytes, Joined)]) {
        for number in 0..free.len() {
            self.left_idle(Pool::Small, unit);
            if number >= gone {
                self.move_unit(Pool::Small, Pool::Large, unit);
            }
        }
        self.ended_claim(free);
    }

    fn move_unit(&mut self, from: Pool, to: Pool, unit: Bytes) {
        // The driver neither gave nor got it: in all, as much was taken and given back as before.
        let mut metrics = self.metrics.of(from);
        metrics.pass_on(Metric::Segment, 1);
        metrics.pass_on(Metric::ReservedBytes, unit.get());
        let mut metrics = self.metrics.of(to);
        metrics.raise(Metric::Segment, 1);
        metrics.raise(Metric::ReservedBytes, unit.get());
        metrics.update_peak(Metric::Segment);
        metrics.update_peak(Metric::ReservedBytes);
    }

    /// A chunk left, with what of it was in limbo.
    pub(crate) fn chunk_left(&mut self, chunk: &LeftChunk) {
        for block in &chunk.in_limbo {
            self.free_completed(BlockInfo::of(block, chunk.pool), true);
        }
        let mut metrics = self.metrics.of(chunk.pool);
        metrics.lower(Metric::InactiveSplitBytes, chunk.split_bytes.get());
        metrics.lower(Metric::InactiveSplit, chunk.split);
        self.left_idle(chunk.pool, chunk.span.size);
        self.segment_released(chunk.span, chunk.pool);
        self.stats.chunks = self.stats.chunks.saturating_sub(1);
        self.stats.chunks_released += 1;
    }

    /// Nothing more becomes free in this step.
    pub(crate) fn was_cached(&mut self) {
        self.stats.cached.peak = self.stats.cached.peak.max(self.cached());
    }

    /// The driver gave memory: a chunk or a direct allocation.
    pub(crate) fn segment_taken(&mut self, span: Span, pool: Pool, stack: StackId) {
        let action = Action::SegmentAlloc(span.address);
        self.history.note(action, span.size, stack);
        let mut metrics = self.metrics.of(pool);
        metrics.raise(Metric::Segment, 1);
        metrics.raise(Metric::ReservedBytes, span.size.get());
        metrics.update_peak(Metric::Segment);
        self.reserved_rose |= metrics.update_peak(Metric::ReservedBytes);
        self.stats.idle_low = self.stats.idle;
        if self.is_oversize(span.size) {
            self.oversize_segments.raise(1);
            self.oversize_segments.update_peak();
        }
    }

    /// It is on its way back.
    pub(crate) fn segment_released(&mut self, span: Span, pool: Pool) {
        let action = Action::SegmentFree(span.address);
        self.history.note(action, span.size, StackId::NONE);
        let mut metrics = self.metrics.of(pool);
        metrics.lower(Metric::Segment, 1);
        metrics.lower(Metric::ReservedBytes, span.size.get());
        if self.is_oversize(span.size) {
            self.oversize_segments.lower(1);
        }
        self.stats.idle_low = self.stats.idle;
        self.device_frees += 1;
    }

    /// The segment was a chunk, which is idle.
    pub(crate) fn chunk_taken(&mut self, span: Span, pool: Pool, stack: StackId) {
        self.segment_taken(span, pool, stack);
        self.stats.chunks += 1;
        self.fell_idle(pool, span.size);
    }

    /// A chunk of a pool has no live block any more.
    pub(crate) fn fell_idle(&mut self, pool: Pool, chunk: Bytes) {
        if pool == Pool::Small {
            self.idle_small = self.idle_small.saturating_add(chunk);
        }
        self.stats.idle = self.stats.idle.saturating_add(chunk);
    }

    /// An idle chunk is in use, or leaves.
    #[inline]
    pub(crate) fn left_idle(&mut self, pool: Pool, chunk: Bytes) {
        if pool == Pool::Small {
            self.idle_small = self.idle_small.saturating_sub(chunk);
        }
        self.stats.idle = self.stats.idle.saturating_sub(chunk);
        self.stats.idle_low = self.stats.idle_low.min(self.stats.idle);
    }

    /// The context is gone, with all that was in it.
    pub(crate) fn retired(&mut self) {
        self.note_peak();
        self.stats.classes_live = [ClassLive::default(); SIZE_CLASSES];
        self.stats.libraries_live = LibraryBytes::default();
        self.metrics.clear();
        for counter in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            counter.lower(counter.current);
        }
        self.limbo = Bytes::ZERO;
        self.stats.pause.end();
        self.idle_small = Bytes::ZERO;
        self.stats.idle = Bytes::ZERO;
        self.stats.idle_low = Bytes::ZERO;
        self.stats.chunks = 0;
    }
}
