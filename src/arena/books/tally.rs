//! Everything that an arena counts, as a list of events.
//!
//! Owns the counters. The books say what happened; what that does to which
//! counter is decided here and nowhere else. Invariant (checked by
//! `validate`): every current value is the sum over the blocks. Cost: some
//! fifty instructions for a block that is handed out and half as many for its
//! free, under the lock that is held anyway.

use crate::address::{Address, Bytes};
use crate::arena::books::Region;
use crate::stats::{
    ArenaStats, ClassCount, Gauge, MemoryStats, Metric, PoolStats, Stat, size_class,
};
use crate::strategy::Pool;

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
}

/// Why a request failed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Shortage {
    /// The limit stood in the way, not the device's memory.
    pub(crate) at_limit: bool,
    /// All that could go back to the driver had gone.
    pub(crate) tried_to_free: bool,
}

/// Free blocks that share their chunk with another block.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Fragments {
    count: u64,
    bytes: Bytes,
}

impl Fragments {
    /// None.
    pub(crate) const NONE: Fragments = Fragments {
        count: 0,
        bytes: Bytes::ZERO,
    };

    /// One, of this size.
    pub(crate) fn one(size: Bytes) -> Fragments {
        Fragments {
            count: 1,
            bytes: size,
        }
    }

    /// One more.
    pub(crate) fn and(self, size: Bytes) -> Fragments {
        Fragments {
            count: self.count + 1,
            bytes: self.bytes.saturating_add(size),
        }
    }

    /// One of this size, where `there`.
    pub(crate) fn one_if(there: bool, size: Bytes) -> Fragments {
        if there {
            Fragments::one(size)
        } else {
            Fragments::NONE
        }
    }
}

/// A quantity of one pool.
#[derive(Copy, Clone, Default)]
struct Counter {
    current: u64,
    peak: u64,
    /// Sum of all increases.
    total: u64,
}

impl Counter {
    fn raise(&mut self, by: u64) {
        self.current = self.current.wrapping_add(by);
        self.total = self.total.wrapping_add(by);
        self.peak = self.peak.max(self.current);
    }

    fn lower(&mut self, by: u64) {
        self.current = self.current.saturating_sub(by);
    }

    fn stat(self) -> Stat {
        Stat {
            current: self.current,
            peak: self.peak,
            allocated: self.total,
            freed: self.total.saturating_sub(self.current),
        }
    }
}

/// See the module.
pub(crate) struct Tally {
    small: [Counter; Metric::COUNT],
    large: [Counter; Metric::COUNT],
    /// Of both pools together.
    peaks: [u64; Metric::COUNT],
    oversize_allocations: Counter,
    oversize_segments: Counter,
    /// Blocks of this size and more are oversize.
    max_split: Option<Bytes>,
    device_frees: u64,
    retries: u64,
    full_waits: u64,
    rejections: u64,
    /// All other counters; what follows from the above is filled in by
    /// `picture`.
    stats: ArenaStats,
}

impl Tally {
    /// Nothing has happened; blocks of `max_split` and more are oversize.
    pub(crate) fn new(max_split: Option<Bytes>) -> Tally {
        let none = [Counter::default(); Metric::COUNT];
        Tally {
            small: none,
            large: none,
            peaks: [0; Metric::COUNT],
            oversize_allocations: Counter::default(),
            oversize_segments: Counter::default(),
            max_split,
            device_frees: 0,
            retries: 0,
            full_waits: 0,
            rejections: 0,
            stats: ArenaStats::default(),
        }
    }

    fn pool(&mut self, pool: Pool) -> &mut [Counter; Metric::COUNT] {
        match pool {
            Pool::Small => &mut self.small,
            Pool::Large | Pool::Oversize => &mut self.large,
        }
    }

    fn raise(&mut self, pool: Pool, metric: Metric, by: u64) {
        self.pool(pool)[metric as usize].raise(by);
        let current = self.current(metric);
        let peak = &mut self.peaks[metric as usize];
        *peak = (*peak).max(current);
    }

    fn lower(&mut self, pool: Pool, metric: Metric, by: u64) {
        self.pool(pool)[metric as usize].lower(by);
    }

    fn current(&self, metric: Metric) -> u64 {
        let metric = metric as usize;
        self.small[metric]
            .current
            .wrapping_add(self.large[metric].current)
    }

    fn bytes(&self, metric: Metric) -> Bytes {
        Bytes::new(self.current(metric))
    }

    /// Bytes that the program holds.
    pub(crate) fn live(&self) -> Bytes {
        self.bytes(Metric::AllocatedBytes)
    }

    /// Bytes in free blocks.
    pub(crate) fn cached(&self) -> Bytes {
        self.reserved()
            .saturating_sub(self.bytes(Metric::ActiveBytes))
    }

    /// Bytes in limbo.
    pub(crate) fn limbo(&self) -> Bytes {
        self.bytes(Metric::ActiveBytes).saturating_sub(self.live())
    }

    /// Bytes that the driver gave.
    pub(crate) fn reserved(&self) -> Bytes {
        self.bytes(Metric::ReservedBytes)
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

    /// Whether blocks of this size count as oversize.
    pub(crate) fn is_oversize(&self, size: Bytes) -> bool {
        self.max_split.is_some_and(|least| size >= least)
    }

    /// The program got a block.
    pub(crate) fn handed_out(&mut self, piece: Piece) {
        let Piece {
            size,
            requested,
            pool,
            ..
        } = piece;
        self.raise(pool, Metric::Allocation, 1);
        self.raise(pool, Metric::AllocatedBytes, size.get());
        self.raise(pool, Metric::Active, 1);
        self.raise(pool, Metric::ActiveBytes, size.get());
        self.raise(pool, Metric::RequestedBytes, requested.get());
        if self.is_oversize(size) {
            self.oversize_allocations.raise(1);
        }
        let class = &mut self.stats.classes[size_class(requested)];
        class.allocations += 1;
        class.requested = class.requested.saturating_add(requested.get());
    }

    /// The program freed a block.
    pub(crate) fn free_requested(&mut self, piece: Piece) {
        let Piece {
            size,
            requested,
            pool,
            ..
        } = piece;
        self.lower(pool, Metric::Allocation, 1);
        self.lower(pool, Metric::AllocatedBytes, size.get());
        if self.is_oversize(size) {
            self.oversize_allocations.lower(1);
        }
        self.stats.classes[size_class(requested)].frees += 1;
    }

    /// What was just freed waits for the device.
    pub(crate) fn entered_limbo(&mut self) {
        self.stats.limbo.peak = self.stats.limbo.peak.max(self.limbo());
    }

    /// The device is done with a freed block.
    pub(crate) fn free_completed(&mut self, piece: Piece) {
        self.lower(piece.pool, Metric::Active, 1);
        self.lower(piece.pool, Metric::ActiveBytes, piece.size.get());
        self.lower(piece.pool, Metric::RequestedBytes, piece.requested.get());
    }

    /// The free blocks of a chunk in use changed from `before` to `after`.
    pub(crate) fn cut(&mut self, pool: Pool, before: Fragments, after: Fragments) {
        self.change(pool, Metric::InactiveSplit, before.count, after.count);
        self.change(
            pool,
            Metric::InactiveSplitBytes,
            before.bytes.get(),
            after.bytes.get(),
        );
    }

    /// Only the difference counts as an increase or a decrease.
    fn change(&mut self, pool: Pool, metric: Metric, before: u64, after: u64) {
        if after > before {
            self.raise(pool, metric, after - before);
        } else {
            self.lower(pool, metric, before - after);
        }
    }

    /// What is cached may be more than ever.
    pub(crate) fn was_cached(&mut self) {
        self.stats.cached.peak = self.stats.cached.peak.max(self.cached());
    }

    /// The driver gave memory: a chunk or a direct allocation.
    pub(crate) fn segment_taken(&mut self, region: Region, pool: Pool) {
        self.raise(pool, Metric::Segment, 1);
        self.raise(pool, Metric::ReservedBytes, region.size.get());
        if self.is_oversize(region.size) {
            self.oversize_segments.raise(1);
        }
    }

    /// It is on its way back.
    pub(crate) fn segment_released(&mut self, region: Region, pool: Pool) {
        self.lower(pool, Metric::Segment, 1);
        self.lower(pool, Metric::ReservedBytes, region.size.get());
        if self.is_oversize(region.size) {
            self.oversize_segments.lower(1);
        }
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
    }

    /// A cached block served a request.
    pub(crate) fn hit(&mut self) {
        self.stats.hits += 1;
    }

    /// A request had to grow, and did.
    pub(crate) fn missed(&mut self) {
        self.stats.misses += 1;
        self.was_cached();
    }

    /// A request has a driver allocation of its own.
    pub(crate) fn went_direct(&mut self) {
        self.stats.direct += 1;
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
    pub(crate) fn waited(&mut self, ns: u64) {
        self.stats.waits += 1;
        self.stats.wait_ns = self.stats.wait_ns.saturating_add(ns);
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
        self.stats.ooms += 1;
        self.stats.largest_oom = self.stats.largest_oom.max(size);
        self.stats.limit_ooms += u64::from(shortage.at_limit);
        self.rejections += u64::from(!shortage.tried_to_free);
    }

    /// The context is gone, with all that was in it.
    pub(crate) fn retired(&mut self) {
        for metric in Metric::ALL {
            self.small[metric as usize].current = 0;
            self.large[metric as usize].current = 0;
        }
        self.oversize_allocations.current = 0;
        self.oversize_segments.current = 0;
        self.stats.idle = Bytes::ZERO;
        self.stats.chunks = 0;
    }

    /// A copy of the counters.
    pub(crate) fn picture(&self) -> ArenaStats {
        let gauge = |metric| Gauge {
            current: self.bytes(metric),
            peak: Bytes::new(self.peaks[metric as usize]),
        };
        let mut stats = self.stats.clone();
        stats.live = gauge(Metric::AllocatedBytes);
        stats.reserved = gauge(Metric::ReservedBytes);
        stats.limbo.current = self.limbo();
        stats.cached.current = self.cached();
        stats.memory = self.memory();
        stats
    }

    fn memory(&self) -> MemoryStats {
        let (mut all, mut small_pool, mut large_pool) =
            <(PoolStats, PoolStats, PoolStats)>::default();
        for metric in Metric::ALL {
            let small = self.small[metric as usize].stat();
            let large = self.large[metric as usize].stat();
            small_pool[metric] = small;
            large_pool[metric] = large;
            all[metric] = Stat {
                current: small.current.wrapping_add(large.current),
                peak: self.peaks[metric as usize],
                allocated: small.allocated.wrapping_add(large.allocated),
                freed: small.freed.wrapping_add(large.freed),
            };
        }
        MemoryStats {
            all,
            small_pool,
            large_pool,
            oversize_allocations: self.oversize_allocations.stat(),
            oversize_segments: self.oversize_segments.stat(),
            num_alloc_retries: self.retries,
            num_ooms: self.stats.ooms,
            num_sync_all_streams: self.full_waits,
            num_device_alloc: all[Metric::Segment].allocated,
            num_device_free: self.device_frees,
            num_oom_rejections: self.rejections,
            max_split_size: self.max_split,
        }
    }
}
