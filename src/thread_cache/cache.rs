//! The caches of an arena.
//!
//! Owns those that are open, and those that were: a thread may look at one that it
//! had, so none is ever freed. What the caches of an arena that is gone had made
//! goes, and they are the next arenas'. A thread gets again a cache that it had, if
//! there is one, since the lock of no other can be biased towards it. Cost: 9 KiB a cache,
//! besides what is in it.

use crate::address::Bytes;
#[cfg(not(loom))]
use crate::sync::Lock;
use crate::sync::{BiasedGuard, BiasedLock, Key};
use crate::thread_cache::CacheHub;
use crate::thread_cache::kept::Kept;
use crate::thread_cache::own::OwnCache;

/// The caches that an arena has at most.
const CACHES: usize = 64;

/// How many closed caches an arena may have beyond those that were open at the same time.
/// With them a new thread gets a cache that no other thread had before, whose lock can be
/// biased towards it. There are few, since a closed cache keeps the memory of its queues.
const SPARE: usize = 4;

/// How many seats there are: threads that take small blocks at the same time are told
/// apart by them, as far as there are no more of these.
pub(crate) const SEATS: u8 = 4;

/// Those of arenas that are gone.
#[cfg(not(loom))]
static LEFT: Lock<Vec<&'static ThreadCache>> = Lock::new(Vec::new());

/// What a thread keeps. Processors fetch lines by pairs.
#[repr(align(128))]
pub(crate) struct ThreadCache(BiasedLock<Kept>);

/// A cache that nobody else uses meanwhile.
pub(crate) type Held = BiasedGuard<Kept>;

/// A cache that its thread has entered by its bias.
pub(crate) type Entered = crate::sync::Entered<Kept>;

/// What a thread enters its cache with.
pub(super) type CacheKey = Key<Kept>;

impl ThreadCache {
    /// One of an arena that is gone, if there is one, or another.
    fn make() -> &'static ThreadCache {
        #[cfg(not(loom))]
        {
            let mut left = LEFT.lock();
            let at = left.iter().position(|cache| cache.0.may_be_biased_here());
            let last = left.len().checked_sub(1);
            if let Some(at) = at.or(last) {
                return left.swap_remove(at);
            }
        }
        Box::leak(Box::new(ThreadCache(BiasedLock::new(Kept::default()))))
    }

    pub(super) fn lock(&'static self) -> &'static BiasedLock<Kept> {
        &self.0
    }

    fn hold(&'static self) -> Held {
        self.0.lock()
    }
}

/// How many other caches are looked at for a thread that finds nothing in its own.
const LOOKS: usize = 4;

/// A cache that is open for a thread.
#[derive(Copy, Clone)]
struct Opened {
    cache: &'static ThreadCache,
    /// The thread's seat, if it has one, also told by its key.
    seat: Option<u8>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Caches {
    open: Vec<Opened>,
    /// Which one is looked at next for another thread, and which one loses room next.
    next: usize,
    loser: usize,
    closed: Vec<&'static ThreadCache>,
    /// How many were open at the same time at most.
    most_open: usize,
}

impl Caches {
    /// Whether none is open.
    pub(crate) fn are_closed(&self) -> bool {
        self.open.is_empty()
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    /// Whether no other can be opened.
    pub(crate) fn are_all_open(&self) -> bool {
        self.open.len() >= CACHES
    }

    /// Opens one for a thread, of this hub, which may keep up to `most` bytes there;
    /// `is_sparing`: see `Kept`; it `has_seat` or not.
    pub(crate) fn open(
        &mut self,
        hub: &CacheHub,
        most: Bytes,
        is_sparing: bool,
        has_seat: bool,
    ) -> OwnCache {
        let seat = has_seat.then(|| self.free_seat());
        let cache = self.take_closed();
        let key = Key::new(&cache.0, seat.map_or(0, |seat| seat + 1));
        let mut kept = cache.hold();
        kept.open(key.number(), hub.owner, most, is_sparing);
        cache.0.invite(false);
        drop(key.stay(kept));
        self.open.push(Opened { cache, seat });
        self.most_open = self.most_open.max(self.open.len());
        OwnCache::new(hub.serial, key)
    }

    /// A closed cache: one that the calling thread can enter without an exchange, as long as
    /// hardly more are made for that than are open at a time. With what was learned in the
    /// one that was closed last.
    fn take_closed(&mut self) -> &'static ThreadCache {
        let may_be_biased = |cache: &&ThreadCache| cache.0.may_be_biased_here();
        let are_all_made = self.open.len() + self.closed.len() >= self.most_open + SPARE;
        let at = self.closed.iter().position(may_be_biased);
        let last = self.closed.len().checked_sub(1);
        let at = at.or(last.filter(|_| are_all_made));
        let latest = last.map(|last| self.closed[last]);
        let cache = at.map_or_else(ThreadCache::make, |at| self.closed.swap_remove(at));
        if let Some(latest) = latest.filter(|latest| !std::ptr::eq(*latest, cache)) {
            latest.hold().exchange_learned(&mut cache.hold());
        }
        cache
    }

    /// The seat that the fewest threads have.
    fn free_seat(&self) -> u8 {
        let mut taken = [0; SEATS as usize];
        for seat in self.open.iter().filter_map(|open| open.seat) {
            taken[usize::from(seat)] += 1;
        }
        let free = (0..).zip(taken).min_by_key(|(_, count)| *count);
        free.map_or(0, |(seat, _)| seat)
    }

    /// Whether to hold all open ones takes the bias of a lock away from its thread.
    pub(crate) fn are_biased_elsewhere(&self) -> bool {
        self.open
            .iter()
            .any(|open| open.cache.0.is_biased_elsewhere())
    }

    /// Stops the threads of all open ones from using them.
    pub(crate) fn hold(&self) -> Vec<Held> {
        BiasedLock::lock_all(self.open.iter().map(|open| &open.cache.0))
    }

    /// Stops threads from using open caches, one after another, until `wants` says that
    /// these are enough; at last all of them.
    pub(crate) fn hold_while(&mut self, mut wants: impl FnMut(&mut Kept) -> bool) -> Vec<Held> {
        let mut held = Vec::new();
        for _ in 0..self.open.len() {
            self.loser = (self.loser + 1) % self.open.len();
            let mut kept = self.open[self.loser].cache.hold();
            let more = wants(&mut kept);
            held.push(kept);
            if !more {
                break;
            }
        }
        held
    }

    /// Closes those of which `closes` is true, where all are held: returns these and the
    /// others.
    pub(crate) fn close_some(
        &mut self,
        held: Vec<Held>,
        mut closes: impl FnMut(&mut Kept) -> bool,
    ) -> (Vec<Held>, Vec<Held>) {
        let (mut closing, mut staying) = (Vec::new(), Vec::new());
        for (open, mut kept) in std::mem::take(&mut self.open).into_iter().zip(held) {
            if closes(&mut kept) {
                open.cache.0.unbias(&kept);
                self.closed.push(open.cache);
                closing.push(kept);
            } else {
                self.open.push(open);
                staying.push(kept);
            }
        }
        (closing, staying)
    }

    /// Whether `look` says so of one of a few others than a thread's own: the last one
    /// of which it did, and those after that.
    pub(crate) fn look_at_others(
        &mut self,
        own: Option<OwnCache>,
        mut look: impl FnMut(&mut Kept) -> bool,
    ) -> bool {
        let count = self.open.len();
        for _ in 0..count.min(LOOKS) {
            let others = self.open[self.next % count].cache;
            let is_own = own.is_some_and(|own| own.is(others));
            if !is_own
                && others.0.is_inviting()
                && let Some(mut kept) = others.0.try_lock()
                && look(&mut kept)
            {
                return true;
            }
            self.next = (self.next + 1) % count;
        }
        false
    }

    /// Gives up all of them: nothing is kept in any.
    pub(crate) fn forget(&mut self) {
        let open = self.open.drain(..).map(|open| open.cache);
        for cache in self.closed.drain(..).chain(open) {
            let mut kept = cache.hold();
            cache.0.unbias(&kept);
            *kept = Kept::default();
            drop(kept);
            #[cfg(not(loom))]
            LEFT.lock().push(cache);
        }
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The seat of a thread with this opening, if it has one, from 0.
pub(super) fn seat_of(opening: u64) -> Option<u8> {
    CacheKey::tag_of(opening).checked_sub(1)
}
