//! Blocks that a thread keeps for its own next requests.
//!
//! A thread that frees a small block keeps it in its *cache* of the block's
//! arena: the block's word in the page map says so, and nobody else may have it.
//! The thread's next request of that size takes it out again. Neither needs the
//! arena's lock.
//!
//! *Batches* keep the reuse rule. What a thread frees belongs to its open batch.
//! The thread closes that batch itself and then makes a fence, as an epoch of
//! the arena: so every free in it came before the fence, in the order of one
//! thread. A block can be handed out when the epoch of its batch, or a later
//! one, has ended.
//!
//! The arena *recalls* its caches before anything may fail or is told: under its
//! lock it takes out every block, with what was counted, and closes the cache.
//! The thread opens another at one of its next frees. So nothing depends on what
//! happens when a thread ends: what it kept is recalled like all else, and its
//! cache is another thread's next.
//!
//! Owns the kept blocks. Invariants:
//! * only the thread of a cache puts blocks in and takes them out, and only
//!   while nobody else holds the cache's lock; it never waits for that lock, and
//!   holds nothing else meanwhile. The lock is biased towards it
//!   ([`vramalloc_lock`]) as long as nobody else wants it often;
//! * who recalls holds the arena's lock, so that of two recalls one comes first;
//! * a free gives the cache *room*, and an allocation takes some: what the
//!   program holds, the room of all caches and what is *common* of it together
//!   are the arena's figure, which is never above its peak. So no cache passes
//!   the peak unseen. Before the arena itself would pass it, it takes room away;
//!   where none is left its figure is what the program holds;
//! * a kept block is nobody's: it may pass from one cache to another, both held,
//!   and no figure changes.
//!
//! Cost: an exchange for a free, of the block's word; 40 KiB for each cache that
//! was ever open, and 16 bytes for each block that it once kept at a time.

mod activity;
mod cache;
mod common;
mod kept;
mod own;
mod queue;
mod room;
mod sizes;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::library::LibraryId;
use crate::page_map::{ArenaId, CacheableSlot, MOST_CACHEABLE, PageMap, SLOT, SlotWord};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub(crate) use activity::Activity;
pub(crate) use cache::{Caches, Entered, Held, SEATS};
use common::CommonRoom;
use kept::BLOCK_PART;
pub(crate) use kept::{Kept, Recalled, WORTH_BYTES};
pub use own::OwnCaches;
pub(crate) use own::{OwnCache, Waits};
pub(crate) use room::{Figure, Headroom};

/// The largest block that a thread may keep.
pub(crate) const MOST_KEPT: Bytes = MOST_CACHEABLE;

/// A cache that may keep less than this keeps nothing.
pub(crate) const LEAST_CACHE: Bytes = Bytes::new(SLOT.get() * BLOCK_PART);

/// What the caches of an arena have in common.
pub(crate) struct CacheHub {
    /// No other hub of the process has this number.
    serial: u64,
    map: Arc<PageMap>,
    /// What the words of the arena's live blocks have in common.
    owner: u64,
    ended: Ended,
    /// Room that is in none of them.
    pub(crate) common: CommonRoom,
    /// After how many frees the thread whose small cache was looked at last gets another.
    /// Threads that do not live long learn from those before them. Relaxed: a guess.
    sparing_waits: AtomicU32,
}

/// It changes with each batch, and what stands beside it is read with each block.
#[repr(align(64))]
struct Ended {
    /// Epochs below this number have ended.
    number: AtomicU64,
    /// Whether what the arena itself was given waits for a fence.
    waiting: AtomicBool,
}

/// What becomes of a block that a thread frees, after a look at its place.
pub(crate) enum TryKeep {
    /// It is kept.
    Kept,
    /// It is not; it may be after something is prepared.
    Unprepared,
    /// No block there is of a kind that threads keep.
    Unkeepable,
}

/// What a cache lacks for a request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    /// It has no block that serves it, and its open batch is not worth a fence.
    Blocks,
    /// It has no block that serves it, and its open batch is worth a fence.
    Fence,
    /// It has a block that serves it, and no room for that.
    Room,
}

impl CacheHub {
    pub(crate) fn new(map: Arc<PageMap>, arena: ArenaId) -> CacheHub {
        CacheHub {
            serial: next_serial(),
            map,
            owner: SlotWord::of_owner(arena),
            ended: Ended {
                number: AtomicU64::new(0),
                waiting: AtomicBool::new(false),
            },
            common: CommonRoom::default(),
            sparing_waits: AtomicU32::new(0),
        }
    }

    /// See `OwnCaches::waits_while_sparing`.
    pub(crate) fn sparing_waits(&self) -> u32 {
        self.sparing_waits.load(Ordering::Relaxed)
    }

    pub(crate) fn tell_sparing_waits(&self, frees: u32) {
        self.sparing_waits.store(frees, Ordering::Relaxed);
    }

    /// No other hub of the process has this number.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Hands out a kept block after another look at which epochs have ended, and with
    /// common room where the cache lacks it; or what is missing. This and what follows waits
    /// for who has the cache for a moment.
    pub(crate) fn take_refreshed(
        &self,
        own: OwnCache,
        request: Bytes,
        library: LibraryId,
    ) -> Result<Address, Lacks> {
        let mut kept = own.hold_now().ok_or(Lacks::Blocks)?;
        kept.refresh(self.ended());
        if let Some(address) = kept.take_near(request, library) {
            return Ok(address);
        }
        if kept.lacks(request).is_none() {
            return Err(match kept.is_worth_an_early_fence() {
                true => Lacks::Fence,
                false => Lacks::Blocks,
            });
        }
        if !kept.take_common(&self.common) {
            return Err(Lacks::Room);
        }
        kept.take_near(request, library).ok_or(Lacks::Room)
    }

    /// Leaves room of the thread's cache to others, if there are any, where it has far more
    /// than is common.
    #[inline]
    pub(crate) fn leave_room(&self, own: OwnCache) {
        if self.common.is_shared()
            && let Some(mut kept) = own.hold_now()
        {
            kept.leave_room(&self.common);
        }
    }

    /// Keeps the live block that starts at an address, of which no place was looked at
    /// lately, if it can be kept and there is a place for it.
    pub(crate) fn keep_looked(&self, mut kept: Held, address: Address) -> TryKeep {
        let Some(slot) = kept.look(&self.map, address) else {
            return TryKeep::Unkeepable;
        };
        kept.put(slot, address)
            .map_or(TryKeep::Unprepared, |()| TryKeep::Kept)
    }

    /// The same after making that place.
    pub(crate) fn keep_prepared(&self, own: OwnCache, address: Address) -> bool {
        let (kept, slot) = (own.hold_now(), self.map.cacheable(address));
        let Some((mut kept, slot)) = kept.zip(slot) else {
            return false;
        };
        if !kept.keeps_at(slot) {
            return false;
        }
        kept.prepare(slot, address);
        kept.put(slot, address).is_some()
    }

    /// Where the live block is told of that starts at an address, if threads may keep it.
    pub(crate) fn may_keep(&self, address: Address) -> Option<CacheableSlot> {
        let slot = self.map.cacheable(address)?;
        slot.word().is_live_of(self.owner).then_some(slot)
    }

    /// What the thread's cache says of itself; none where it is closed.
    pub(crate) fn asked<R>(&self, own: OwnCache, ask: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        own.hold_now().map(|mut kept| ask(&mut kept))
    }

    // Relaxed, both: a thread that looks too soon goes to the arena one batch later.
    #[inline(always)]
    pub(crate) fn tell_waiting(&self, is_waiting: bool) {
        self.ended.waiting.store(is_waiting, Ordering::Relaxed);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.ended.waiting.load(Ordering::Relaxed)
    }

    /// The epoch with this number has ended, and all before it. Who says so holds the
    /// arena's lock.
    #[inline]
    pub(crate) fn ends(&self, number: u64) {
        // Another thread may have said so of a later one before, under the lock.
        if self.ended.number.load(Ordering::Relaxed) <= number {
            // Release: pairs with the Acquire below. The device is done with what
            // these epochs hold, and whoever learned that said so here.
            self.ended.number.store(number + 1, Ordering::Release);
        }
    }

    /// Epochs below this number have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.number.load(Ordering::Acquire)
    }
}

/// No hub and no thread's cache has this number.
pub(crate) const NO_HUB: u64 = u64::MAX;

/// A number that no other hub of the process has.
fn next_serial() -> u64 {
    // The checker has no part in this: the numbers only differ.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
