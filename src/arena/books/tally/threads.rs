//! What threads do with the blocks that they keep, as the counters hear of it.
//!
//! Owns nothing. Invariant: what is heard of late was within the room that was
//! given out, so no peak is missed; see the accounts of the thread caches.
//! Cost: some additions for each size class that a thread used.

use crate::address::Bytes;
use crate::arena::books::Tally;
use crate::arena::cache::{Headroom, Passed};
use crate::stats::Metric;
use crate::strategy::Pool;

impl Tally {
    /// A thread served requests from what it keeps, and kept what was freed.
    /// What is kept is active. `note_peak` comes before.
    pub(crate) fn passed(&mut self, passed: Passed) {
        let mut counters = self.counters.of(self.kept_pool);
        for (metric, up, down) in [
            (Metric::Allocation, passed.allocations, passed.frees),
            (Metric::AllocatedBytes, passed.allocated, passed.freed),
            (Metric::Active, passed.allocations, passed.allocations),
            (Metric::ActiveBytes, passed.allocated, passed.allocated),
        ] {
            counters.raise(metric, up);
            counters.lower(metric, down);
        }
        let requested = passed.allocated.wrapping_sub(passed.rest);
        counters.raise(Metric::RequestedBytes, requested);
        counters.lower(
            Metric::RequestedBytes,
            requested.wrapping_add(passed.shrunk),
        );
        let count = &mut self.stats.classes[passed.class];
        count.allocations = count.allocations.wrapping_add(passed.allocations);
        count.frees = count.frees.wrapping_add(passed.frees);
        count.requested = count.requested.wrapping_add(requested);
        let live = &mut self.stats.classes_live[passed.class];
        live.blocks = (live.blocks.wrapping_add(passed.allocations)).wrapping_sub(passed.frees);
        live.bytes = (live.bytes.wrapping_add(passed.allocated)).wrapping_sub(passed.freed);
        self.stats.hits = self.stats.hits.wrapping_add(passed.allocations);
        self.kept =
            (self.kept.wrapping_add_unsigned(passed.freed)).wrapping_sub_unsigned(passed.allocated);
    }

    /// Threads keep blocks from now on: what they do is heard of later.
    pub(crate) fn is_shared_now(&mut self) {
        self.is_shared = true;
    }

    /// The pool of the blocks that threads keep.
    pub(crate) fn kept_pool(&self) -> Pool {
        self.kept_pool
    }

    /// So much more may threads hold than was heard of.
    pub(crate) fn change_room(&mut self, by: Headroom) {
        self.room = self.room.plus(by);
        // One thread may be short for a moment of what another has.
        self.room_is_out |= by != Headroom::default();
    }

    /// Threads may hold no more than was heard of.
    pub(crate) fn take_all_room(&mut self) {
        self.room = Headroom::default();
        self.room_is_out = false;
    }

    /// Whether threads may hold more than was heard of.
    pub(crate) fn has_given_room(&self) -> bool {
        self.room_is_out
    }

    /// Whether the program may hold more than ever, as far as was heard.
    #[inline]
    pub(crate) fn is_near_peak(&mut self, pool: Pool) -> bool {
        let room = self.room;
        let of_kept = if pool == self.kept_pool {
            room
        } else {
            Headroom::default()
        };
        let counters = self.counters.of(pool);
        let (pool_blocks, blocks) = counters.below_peak(Metric::Allocation);
        let (pool_bytes, bytes) = counters.below_peak(Metric::AllocatedBytes);
        let (of_pool, requested) = counters.below_peak(Metric::RequestedBytes);
        let least = (blocks - room.blocks)
            | (bytes - room.bytes)
            | (pool_blocks - of_kept.pool_blocks)
            | (pool_bytes - of_kept.pool_bytes)
            | (requested - room.requested)
            | (of_pool - of_kept.requested);
        least < 0
    }

    /// How much more threads could be given.
    pub(crate) fn room_left(&mut self) -> Headroom {
        let counters = self.counters.of(self.kept_pool);
        let (pool_blocks, blocks) = counters.below_peak(Metric::Allocation);
        let (pool_bytes, bytes) = counters.below_peak(Metric::AllocatedBytes);
        let (of_pool, of_all) = counters.below_peak(Metric::RequestedBytes);
        let left = Headroom {
            blocks,
            bytes,
            pool_blocks,
            pool_bytes,
            requested: of_pool.min(of_all),
        };
        left.minus(self.room)
    }

    /// Compares what is live with the peaks, when everything was heard of.
    pub(crate) fn settle_live(&mut self) {
        for pool in [Pool::Small, Pool::Large] {
            let mut counters = self.counters.of(pool);
            counters.settle(Metric::Allocation);
            counters.settle(Metric::RequestedBytes);
            self.live_rose |= counters.settle(Metric::AllocatedBytes);
        }
    }

    /// A kept block is in the books again.
    pub(crate) fn no_longer_kept(&mut self, size: Bytes) {
        self.kept = self.kept.wrapping_sub_unsigned(size.get());
    }
}
