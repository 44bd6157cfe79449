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
//! Cost: an exchange for an allocation, two for a free; 8 KiB for each cache that
//! was ever open, and 16 bytes for each block that it once kept at a time.

mod kept;
mod local;
mod queue;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::page_map::{ArenaId, MOST_CACHEABLE, PageMap, SlotWord};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lock, LockGuard, OnceLock};

pub(crate) use kept::{Activity, Figure, Headroom, Kept, Recalled};
use local::OwnCache;

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
    /// Made when the first is opened.
    caches: OnceLock<Box<[ThreadCache]>>,
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
            serial: local::serial(),
            map,
            owner: SlotWord::of_owner(arena),
            ended: AtomicU64::new(0),
            caches: OnceLock::new(),
        }
    }

    /// The calling thread's cache, if it is open and nobody else has it now.
    #[inline(always)]
    fn own(&self) -> Option<Held<'_>> {
        let own = OwnCache::of(self.serial)?;
        let kept = self.cache(own.index)?.0.try_lock()?;
        (kept.opening() == own.opening).then_some(kept)
    }

    /// The same, also if somebody else has it for a moment.
    fn own_now(&self, own: OwnCache) -> Option<Held<'_>> {
        let kept = self.cache(own.index)?.0.lock();
        (kept.opening() == own.opening).then_some(kept)
    }

    #[inline(always)]
    fn cache(&self, index: usize) -> Option<&ThreadCache> {
        self.caches.get()?.get(index)
    }

    /// A block for a request of up to [`MOST_KEPT`], if the thread keeps one that
    /// the device is done with and has room for one more.
    #[inline(always)]
    pub(crate) fn take(&self, request: Bytes) -> Option<Address> {
        let mut kept = self.own()?;
        let (number, address) = kept.find(request)?;
        let slot = self.map.cacheable(address)?;
        slot.hand_out(kept.take(number, request, slot.word())?);
        Some(address)
    }

    /// The same whatever room there is: the caller counts it. Under the arena's
    /// lock.
    pub(crate) fn take_uncounted(&self, request: Bytes) -> Option<Uncounted> {
        let mut kept = self.own()?;
        let (number, address) = kept.find(request)?;
        let slot = self.map.cacheable(address)?;
        let word = slot.word();
        kept.take_uncounted(number);
        slot.hand_out(word.requested(request));
        Some(Uncounted { address, word })
    }

    /// Gives the thread's cache room; false where it is closed. Under the arena's
    /// lock. A thread whose cache was closed may have the one here for a moment, to
    /// see that it is no longer its own.
    pub(crate) fn grant(&self, room: Headroom) -> bool {
        let own = OwnCache::of(self.serial).and_then(|own| self.own_now(own));
        own.map(|mut kept| kept.grant(room)).is_some()
    }

    /// Whether there is such a block, after another look at which epochs have
    /// ended.
    pub(crate) fn has(&self, request: Bytes) -> bool {
        let Some(mut kept) = self.own() else {
            return false;
        };
        kept.refresh(self);
        kept.find(request).is_some()
    }

    /// Keeps the live block that starts at an address, if it can be kept and
    /// there is room for it; false where the thread does not.
    #[inline(always)]
    pub(crate) fn keep(&self, address: Address) -> bool {
        let keep = || {
            let slot = self.map.cacheable_at(address)?;
            let word = slot.word();
            if !word.is_live_of(self.owner) {
                return None;
            }
            let mut kept = self.own()?;
            (kept.fits(word) && slot.keep(word)).then(|| kept.put(address, word))
        };
        keep().is_some()
    }

    /// Whether a thread may keep the live block that starts at an address.
    pub(crate) fn may_keep(&self, address: Address) -> bool {
        let slot = self.map.cacheable_at(address);
        slot.is_some_and(|slot| slot.word().is_live_of(self.owner))
    }

    /// What the thread's cache says of itself; none where it is closed.
    pub(crate) fn asked<R>(&self, ask: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        self.own().map(|mut kept| ask(&mut kept))
    }

    /// Closes the open batch of the thread's cache, and makes its fence by `seal`,
    /// which says whose epoch covers it. Nothing is held meanwhile: what is freed
    /// there belongs to the next batch.
    pub(crate) fn seal(&self, seal: impl FnOnce() -> Option<u64>) {
        let own = OwnCache::of(self.serial);
        let batch = own.and_then(|own| self.own_now(own)?.close_batch());
        let Some((own, batch)) = own.zip(batch) else {
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

    /// Whether it is worth a cache that the calling thread, which has none that is
    /// open, frees: one more free.
    pub(crate) fn is_worth_a_cache(&self) -> bool {
        let is_open = |own: OwnCache| {
            // Somebody else has it for a moment: that is no reason for another.
            let kept = self.cache(own.index)?.0.try_lock();
            Some(kept.is_none_or(|kept| kept.opening() == own.opening))
        };
        let is_open = OwnCache::of(self.serial).and_then(is_open);
        is_open != Some(true) && local::frees_much()
    }

    /// Opens a closed cache for the calling thread, which may keep up to `most`
    /// bytes there; `opening` is new. Under the arena's lock.
    pub(crate) fn open(&self, index: usize, opening: u64, most: Bytes) {
        let made = || {
            (0..CACHES)
                .map(|_| ThreadCache(Lock::new(Kept::default())))
                .collect()
        };
        if let Some(cache) = self.caches.get_or_init(made).get(index) {
            cache.0.lock().open(opening, most);
            OwnCache {
                hub: self.serial,
                index,
                opening,
            }
            .remember();
        }
    }

    /// Stops the thread of a cache from using it. Under the arena's lock.
    pub(crate) fn hold(&self, index: usize) -> Option<Held<'_>> {
        Some(self.cache(index)?.0.lock())
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

#[cfg(all(test, loom))]
mod loom_tests;
