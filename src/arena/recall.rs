//! What threads keep, called back, and the room that their caches have.
//!
//! Owns which caches are open. Invariant: the arena's figures are what the program
//! holds and the room of all caches together. Cost: a recall takes as long as the
//! frees that it ends.

use crate::address::{Address, Bytes};
use crate::arena::state::ArenaState;
use crate::strategy::Pool;
use crate::thread_cache::{Figure, Held, Kept, OwnCache, Recalled, Uncounted};

const FIGURES: [Figure; 3] = [Figure::Blocks, Figure::Bytes, Figure::Asked];

/// All threads together may keep this part of what is reserved, or so much.
const KEPT_PART: u64 = 32;
const KEPT_LEAST: Bytes = Bytes::mib(64);

/// An arena with less is small, or tiny: what threads keep there has to be somewhere.
const SMALL_ARENA: Bytes = Bytes::mib(256);
const TINY_ARENA: Bytes = Bytes::mib(64);

/// What threads keep there is called back before growth from so much on: with that
/// it may not have to grow.
const SMALL_KEPT: Bytes = Bytes::mib(4);

/// But not where that many times what they keep was handed out again since the arena
/// grew last, if it is not more than a half of all, or than one thread may keep.
const SERVES: u64 = 2;

/// What one thread may keep at the least and at the most, and between these which
/// part of the chunks that small requests are served from.
const CACHE_LEAST: Bytes = Bytes::kib(512);
const CACHE_MOST: Bytes = Bytes::mib(16);
const CACHE_PART: u64 = 32;

impl<F: Clone> ArenaState<F> {
    /// Opens a cache for a thread, which may keep so much there.
    pub(super) fn open_cache(&mut self, most: Bytes) -> Option<OwnCache> {
        if self.retired {
            return None;
        }
        if self.caches.are_all_open() {
            self.recall();
        }
        // The more there are, the less each gets.
        let bound = KEPT_LEAST
            .get()
            .max(self.counters.reserved().get() / KEPT_PART);
        let share = Bytes::new(bound / (self.caches.count() as u64 + 1));
        let most = most.min(share.max(CACHE_LEAST));
        Some(self.caches.open(self.hub.serial(), most))
    }

    /// What a thread may keep, where no option says so.
    pub(super) fn auto_cache(&self) -> Bytes {
        if self.counters.reserved() < SMALL_ARENA {
            return CACHE_MOST;
        }
        let pool = self.counters.reserved_of(self.heap.pool_of_kept());
        Bytes::new(pool.get() / CACHE_PART).clamp(CACHE_LEAST, CACHE_MOST)
    }

    /// Before a block of this size is handed out: where a figure would pass its
    /// peak, takes the room of all caches in it away, so that it is exact.
    pub(super) fn prepare_peak(&mut self, pool: Pool, size: Bytes, request: Bytes) {
        if self.caches.are_closed() {
            return;
        }
        let would = self.counters.would_peak(pool, size, request);
        if would == [false; 3] {
            return;
        }
        let pool = self.heap.pool_of_kept();
        let mut held = self.caches.hold();
        for (figure, would) in FIGURES.into_iter().zip(would) {
            let losing = held.iter_mut().filter(|_| would);
            losing.for_each(|kept| self.counters.lost_room(pool, kept, figure));
        }
    }

    /// Hands out a block that the calling thread keeps, and gives its cache room
    /// for more.
    pub(super) fn take_kept(&mut self, own: OwnCache, request: Bytes) -> Option<Address> {
        let pool = self.heap.pool_of_kept();
        let Uncounted { address, word } = self.hub.take_uncounted(own, request)?;
        self.prepare_peak(pool, word.size(), request);
        self.counters.handed_out_again(pool, word, request);
        if let Some(packing) = &mut self.packing {
            packing.rose(self.counters.live());
        }
        let room = self.counters.grant(pool);
        if !self.hub.grant(own, room) {
            self.counters.ungrant(pool, room);
        }
        Some(address)
    }

    /// Bytes that the program holds.
    pub(super) fn live(&self) -> Bytes {
        self.counters.live().saturating_sub(self.room())
    }

    /// Bytes that the program was ever given, and those of them that it holds
    /// no more.
    pub(super) fn turnover(&mut self) -> (u64, u64) {
        self.recall();
        self.counters.turnover()
    }

    /// Bytes by which the figures are more than what the program holds.
    pub(super) fn room(&self) -> Bytes {
        let held = self.caches.hold();
        Bytes::new(held.iter().map(|kept| kept.room().bytes).sum())
    }

    /// Takes a part of its blocks from a thread's cache.
    pub(super) fn shed_kept(&mut self, own: OwnCache) {
        let ended = self.hub.ended();
        if let Some(mut kept) = own.hold() {
            kept.shed(ended, |block| self.take_back(&block));
        }
        self.counters.was_cached();
    }

    /// Before growth, calls back what threads keep. Not in a small arena where that is
    /// little, or serves them well: it grows rather than that they lose it. Whether it
    /// did.
    pub(super) fn recall_for_growth(&mut self) -> bool {
        let mut held = self.caches.hold();
        let sum = |held: &[Held], of: fn(&Kept) -> u64| held.iter().map(|kept| of(kept)).sum();
        let bytes = Bytes::new(sum(&held, Kept::bytes));
        let blocks: u64 = sum(&held, Kept::blocks);
        // What a thread that has ended keeps serves nobody any more.
        let served: u64 = held.iter_mut().map(|kept| kept.take_served()).sum();
        drop(held);
        let reserved = self.counters.reserved();
        let most = CACHE_MOST.get().max(reserved.get() / 2);
        let serves = served >= SERVES * blocks && bytes.get() <= most;
        let is_little = bytes < SMALL_KEPT;
        let keeps = match reserved {
            reserved if reserved < TINY_ARENA => is_little || serves,
            reserved if reserved < SMALL_ARENA => serves && !is_little,
            _ => false,
        };
        let recalls = !self.caches.are_closed() && !keeps;
        if recalls {
            self.recall();
        }
        recalls
    }

    /// Calls back what threads keep, and closes their caches.
    pub(super) fn recall(&mut self) {
        if self.caches.are_closed() {
            return;
        }
        let (ended, pool) = (self.hub.ended(), self.heap.pool_of_kept());
        for mut kept in self.caches.hold_to_close() {
            for figure in FIGURES {
                self.counters.lost_room(pool, &mut kept, figure);
            }
            self.counters.passed(pool, &kept.activity());
            kept.recall(ended, |block| self.take_back(&block));
        }
        if let Some(packing) = &mut self.packing {
            let _comes_down = packing.fell(self.counters.live());
        }
        self.counters.was_cached();
    }

    /// A block that a thread has kept is free, or waits with those of its epoch.
    fn take_back(&mut self, recalled: &Recalled) {
        let Some((id, block)) = self.heap.take_kept(recalled.address) else {
            return;
        };
        let (pool, is_idle) = self.heap.returned(&block);
        if let Some(chunk) = is_idle {
            self.counters.fell_idle(chunk);
        }
        if recalled.is_reclaimable {
            // It is a piece of a chunk.
            let _ = self.put_back(id, &block, pool);
        } else {
            self.counters.entered_limbo(block.size);
            self.heap.wait(id, block.requested, false);
            self.limbo.push_to(recalled.epoch, id, &block);
        }
    }
}
