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
//!   holds nothing else meanwhile;
//! * who recalls holds the arena's lock, so that of two recalls one comes first;
//! * a free gives the cache *room*, and an allocation takes some: what the
//!   program holds and the room of all caches together are the arena's figure,
//!   which is never above its peak. So no cache passes the peak unseen. Before
//!   the arena itself would pass it, it takes all room away: then its figure is
//!   what the program holds.
//!
//! Cost: an exchange for an allocation, two for a free; 8 KiB for each arena that
//! ever had a cache, 16 KiB for each cache that was ever open, and 24 bytes for
//! each block that it once kept at a time.

mod kept;
mod queue;
mod room;
mod sizes;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::driver::own_caches::OwnCache;
use crate::page_map::{ArenaId, MOST_CACHEABLE, PageMap, SlotWord};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lock, LockGuard, OnceLock};

pub(crate) use kept::{Activity, Kept, Recalled};
pub(crate) use room::{Figure, Headroom};

/// The largest block that a thread may keep.
pub(crate) const MOST_KEPT: Bytes = MOST_CACHEABLE;

/// The caches that an arena has at most.
pub(crate) const CACHES: usize = 64;

/// The caches of an arena.
pub(crate) struct CacheHub {
    /// No other hub of the process has this number.
    serial: u64,
    map: Arc<PageMap>,
    /// What the words of the arena's live blocks have in common.
    owner: u64,
    /// Epochs below this number have ended.
    ended: AtomicU64,
    /// Made when the first is opened: most arenas of a program with thousands of
    /// contexts never have one.
    caches: OnceLock<Box<[ThreadCache; CACHES]>>,
}

/// What a thread keeps.
#[repr(align(64))]
struct ThreadCache(Lock<Kept>);

/// A block that was handed out and is still to be counted.
pub(crate) struct Uncounted {
    pub(crate) address: Address,
    /// What was said of it while it was kept.
    pub(crate) word: SlotWord,
}

/// A cache that its thread does without meanwhile.
pub(crate) type Held<'a> = LockGuard<'a, Kept>;

impl CacheHub {
    pub(crate) fn new(map: Arc<PageMap>, arena: ArenaId) -> CacheHub {
        CacheHub {
            serial: next_serial(),
            map,
            owner: SlotWord::of_owner(arena),
            ended: AtomicU64::new(0),
            caches: OnceLock::new(),
        }
    }

    /// No other hub of the process has this number.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The thread's cache, if it is open and nobody else has it now.
    #[inline(always)]
    fn own(&self, own: OwnCache) -> Option<Held<'_>> {
        let kept = self.own_place(own)?.0.try_lock()?;
        (kept.opening() == own.opening).then_some(kept)
    }

    /// The same, also if somebody else has it for a moment.
    fn own_now(&self, own: OwnCache) -> Option<Held<'_>> {
        let kept = self.own_place(own)?.0.lock();
        (kept.opening() == own.opening).then_some(kept)
    }

    #[inline(always)]
    fn own_place(&self, own: OwnCache) -> Option<&ThreadCache> {
        Some(&self.caches.get()?[index_of(own.opening)])
    }

    /// A block of just the size of a request of up to [`MOST_KEPT`], if the thread
    /// keeps one that the device is done with and has room for one more.
    #[inline(always)]
    pub(crate) fn take(&self, own: OwnCache, request: Bytes) -> Option<Address> {
        self.own(own)?.take(request)
    }

    /// The same of a block that may be a little larger.
    pub(crate) fn take_near(&self, own: OwnCache, request: Bytes) -> Option<Address> {
        self.own(own)?.take_near(request)
    }

    /// The same whatever room there is: the caller counts it. Under the arena's
    /// lock.
    pub(crate) fn take_uncounted(&self, own: OwnCache, request: Bytes) -> Option<Uncounted> {
        let (address, word) = self.own(own)?.take_uncounted(request)?;
        Some(Uncounted { address, word })
    }

    /// Gives the thread's cache room; false where it is closed. Under the arena's
    /// lock. A thread whose cache was closed may have the one here for a moment, to
    /// see that it is no longer its own.
    pub(crate) fn grant(&self, own: OwnCache, room: Headroom) -> bool {
        self.own_now(own).map(|mut kept| kept.grant(room)).is_some()
    }

    /// Whether there is such a block, after another look at which epochs have
    /// ended.
    pub(crate) fn has(&self, own: OwnCache, request: Bytes) -> bool {
        let Some(mut kept) = self.own(own) else {
            return false;
        };
        kept.refresh(self);
        kept.has(request)
    }

    /// Keeps the live block that starts at an address, if it can be kept and all
    /// is prepared for it; false where the thread does not.
    #[inline(always)]
    pub(crate) fn keep(&self, own: OwnCache, address: Address) -> bool {
        match self.own(own) {
            Some(mut kept) => kept.put(self.owner, address),
            None => false,
        }
    }

    /// The same after preparing for it.
    pub(crate) fn keep_prepared(&self, own: OwnCache, address: Address) -> bool {
        let kept = self.own(own);
        kept.is_some_and(|mut kept| {
            kept.prepare(&self.map, address);
            kept.put(self.owner, address)
        })
    }

    /// Whether a thread may keep the live block that starts at an address.
    pub(crate) fn may_keep(&self, address: Address) -> bool {
        let slot = self.map.cacheable(address);
        slot.is_some_and(|slot| slot.word().is_live_of(self.owner))
    }

    /// What the thread's cache says of itself; none where it is closed.
    pub(crate) fn asked<R>(&self, own: OwnCache, ask: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        self.own(own).map(|mut kept| ask(&mut kept))
    }

    /// Closes the open batch of the thread's cache, and makes its fence by `seal`,
    /// which says whose epoch covers it. Nothing is held meanwhile: what is freed
    /// there belongs to the next batch.
    pub(crate) fn seal(&self, own: OwnCache, seal: impl FnOnce() -> Option<u64>) {
        let batch = self.own_now(own).and_then(|mut kept| kept.close_batch());
        let Some(batch) = batch else {
            return;
        };
        let epoch = seal();
        // It may have been closed meanwhile, and be another thread's now.
        if let Some(epoch) = epoch
            && let Some(mut kept) = self.own_now(own)
        {
            kept.sealed(batch, epoch);
        }
    }

    /// Whether a cache is still open for the thread that had it.
    pub(crate) fn is_open(&self, own: OwnCache) -> bool {
        let Some(place) = self.own_place(own) else {
            return false;
        };
        // Somebody else has it for a moment: that is no reason for another.
        let kept = place.0.try_lock();
        kept.is_none_or(|kept| kept.opening() == own.opening)
    }

    /// Opens a closed cache for a thread, which may keep up to `most` bytes there;
    /// it is the `count`-th that is opened. Under the arena's lock.
    pub(crate) fn open(&self, index: usize, count: u64, most: Bytes) -> OwnCache {
        let opening = opening_of(index, count);
        self.caches.get_or_init(closed_caches)[index]
            .0
            .lock()
            .open(opening, most);
        OwnCache {
            hub: self.serial,
            opening,
        }
    }

    /// Stops the thread of a cache from using it. Under the arena's lock.
    pub(crate) fn hold(&self, index: usize) -> Option<Held<'_>> {
        Some(self.caches.get()?[index].0.lock())
    }

    /// Gives up what the caches have made; none is open, nor will be.
    pub(crate) fn forget(&self) {
        for cache in self
            .caches
            .get()
            .into_iter()
            .flat_map(|caches| caches.iter())
        {
            *cache.0.lock() = Kept::default();
        }
    }

    /// The epoch with this number has ended, and all before it.
    pub(crate) fn ends(&self, number: u64) {
        // Release: pairs with the Acquire below. The device is done with what
        // these epochs hold, and whoever learned that said so here. Another thread
        // may have said so of a later one before.
        self.ended.fetch_max(number + 1, Ordering::Release);
    }

    fn has_ended(&self, number: u64) -> bool {
        number < self.ended.load(Ordering::Acquire)
    }
}

/// The number of the `count`-th opening of a hub's caches, of this one of them.
fn opening_of(index: usize, count: u64) -> u64 {
    count * CACHES as u64 + index as u64
}

/// Which cache that is.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "there are 64")]
fn index_of(opening: u64) -> usize {
    opening as usize % CACHES
}

fn closed_caches() -> Box<[ThreadCache; CACHES]> {
    Box::new(std::array::from_fn(|_| {
        ThreadCache(Lock::new(Kept::default()))
    }))
}

/// A number that no other hub of the process has.
fn next_serial() -> u64 {
    // The checker has no part in this: the numbers only differ.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(all(test, loom))]
mod loom_tests;
