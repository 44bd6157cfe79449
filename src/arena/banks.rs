//! Slabs for the banks of threads: see `heap::banks`.
//!
//! Where a thread's own bank has nothing, its request is served by another one; and then
//! its bank gets a slab more, so that its next requests find something there. No request
//! depends on that or waits for anything else, and it comes to an end: it is tried `MOST`
//! times in an arena. So what other rules bound stays bounded: what is reserved, what waits
//! for the device, the calls of the driver. A thread has a bank while its cache is open,
//! and only where memory was not scarce when that was opened.
//!
//! Owns how often it was tried. Cost: a call of the driver for each slab.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::state::ArenaState;
use crate::driver::{Driver, PAGE};
use crate::heap::banks::Bank;
use crate::heap::block::BlockId;
use crate::stats::StackId;
use crate::strategy::Pool;
use crate::strategy::packing::Packing;

/// How often a slab more is taken for a bank, or looked for: two threads whose caches are
/// full take some ten of them, and four some 25 (`bench-arena threads doublings=7`).
const MOST: u8 = 32;

/// With more than that free, a bank goes on to serve the others: twice what a cache gives
/// back at a time when it is full.
const APART: Bytes = Bytes::mib(8);

/// There are no banks on a smaller device, or up to a smaller limit.
const LEAST_CAPACITY: Bytes = Bytes::gib(4);

/// Slabs that are taken for banks.
pub(super) struct Slabs {
    /// How often more that is tried.
    left: u8,
    /// A bank that lacks one.
    lacking: Option<Bank>,
    /// Bytes of those that the driver gave for this.
    bytes: Bytes,
}

impl Default for Slabs {
    fn default() -> Slabs {
        Slabs {
            left: MOST,
            lacking: None,
            bytes: Bytes::ZERO,
        }
    }
}

impl Slabs {
    /// Bytes of all that the driver ever gave for this.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The bank that lacks one, if it is tried to have one more; that is done next.
    #[inline]
    pub(super) fn lacking(&mut self) -> Option<Bank> {
        let bank = self.lacking.take()?;
        self.left -= 1;
        Some(bank)
    }
}

impl<D: Driver> Arena<D> {
    /// Whether threads have banks: chunks are taken as we think best, and it is known that
    /// there is much more than banks may ever have.
    pub(super) fn has_banks(&self) -> bool {
        let total = self.quota.room.total();
        let is_ours = self.strategy.not_packed().is_none() && self.mapping().is_none();
        is_ours && total < Bytes::MAX && self.up_to_limit(total) >= LEAST_CAPACITY
    }

    /// Takes a slab for a bank, where there is plenty.
    #[cold]
    #[inline(never)]
    pub(super) fn add_slab(&self, bank: Bank) {
        let may = self.driver.may_fence() && !self.holds();
        if !may || self.is_sparing() {
            return;
        }
        if self.state.lock().heap.give_whole(bank) {
            return;
        }
        let Ok(obtained) = self.obtain_chunk(PAGE) else {
            return;
        };
        let (span, asked) = (obtained.span, obtained.asked);
        let is_entered = {
            let mut state = self.state.lock();
            let may = !state.retired && !state.heap.is_paused();
            let id = may.then(|| state.heap.insert_chunk(span, Pool::Small, false));
            let id = id.flatten();
            if let Some(id) = id {
                state.counters.chunk_taken(span, Pool::Small, StackId::NONE);
                state.heap.give(id, bank);
                state.slabs.bytes = state.slabs.bytes.saturating_add(PAGE);
            }
            id.is_some()
        };
        asked.lands();
        if !is_entered {
            // Nothing depends on it.
            let _ = self.give_back(span);
        }
    }
}

impl<F: Clone> ArenaState<F> {
    /// Notes that a bank lacks a slab, where this block of another serves one of its
    /// threads, what is reserved may be more, and hardly anything waits for the device:
    /// that would serve too.
    #[inline(never)]
    pub(super) fn note_bank(&mut self, id: BlockId, bank: Bank) {
        if self.slabs.left == 0 || !self.heap.is_of_little(id, bank, APART) {
            return;
        }
        let (live, more) = (self.live_at_most(), self.counters.reserved());
        let may = |packing: &Packing| {
            let bound = packing.bound(live, Bytes::ZERO);
            !packing.is_on() || more.saturating_add(PAGE) <= bound
        };
        if self.counters.limbo() <= APART && self.packing.as_ref().is_none_or(may) {
            self.slabs.lacking = Some(bank);
        }
    }
}
