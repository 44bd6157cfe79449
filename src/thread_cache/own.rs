//! Which caches are the calling thread's.
//!
//! Owns the names of a few, one for each arena that the thread used last. These are
//! plain data, about which nothing has to be done when the thread ends: the process
//! may be ending in the middle of `malloc`. Invariant: who finds another
//! opening in the cache knows that it is no longer its own. Cost: a comparison
//! where the thread uses one arena.

use std::cell::Cell;

use crate::thread_cache::cache::{CacheKey, Entered, Held, ThreadCache, seat_of};
use crate::thread_cache::kept::Kept;

/// Arenas besides the last one.
const OTHERS: usize = 7;

/// A thread keeps nothing before it has freed so many blocks: one that frees
/// less is not worth a cache. Where all were taken it asks again after so many.
const FIRST_FREES: u32 = 4;
const NEXT_FREES: u32 = 4096;

/// Frees of a thread before it gets another small cache, after one that was of no use.
const SPARING_LEAST: u32 = 256;
/// The same where many were of no use, one after the other.
const SPARING_MOST: u32 = 4096;
/// By how much that grows with each of them.
const SPARING_MORE: u32 = 4;

/// While a thread waits for one, it looks after so many frees whether memory is still
/// scarce.
const SPARING_LOOKS: u32 = 64;
const NEXT_ASKS: i16 = 4096;

/// One that only takes is worth one where others free what it takes; whether they do
/// is looked at each so many requests that the arena itself has to serve.
const ASKS: i16 = 64;

/// After so many caches that it forgot it waits for as many frees: it uses too many arenas
/// at a time.
const MOST_FORGOTTEN: u16 = 16;

/// Whether a thread waits until it gets another small cache.
pub(crate) enum Waits {
    No,
    Yes,
    /// It does, and looks whether memory is scarce still.
    Looks,
}

/// A thread's cache of one arena.
#[derive(Copy, Clone)]
pub(crate) struct OwnCache {
    /// The number of the arena's hub, from 1.
    hub: u64,
    /// What it is entered with, which has the number of the opening that made it the
    /// thread's. None where there is no hub.
    key: Option<CacheKey>,
}

const NONE: OwnCache = OwnCache { hub: 0, key: None };

impl OwnCache {
    pub(super) fn new(hub: u64, key: CacheKey) -> OwnCache {
        let key = Some(key);
        OwnCache { hub, key }
    }

    /// The cache, if it is open for the thread and biased towards it.
    #[inline(always)]
    pub(crate) fn enter(self) -> Option<Entered> {
        self.key?.enter()
    }

    /// The cache, if it is open for the thread and nobody else has it now.
    pub(crate) fn hold(self) -> Option<Held> {
        let key = self.key?;
        let entered = key.enter().map(Held::from);
        entered.or_else(|| as_opened(key, key.lock().try_lock()?))
    }

    /// The cache, if it is open for the thread; waits for who has it for a moment.
    pub(crate) fn hold_now(self) -> Option<Held> {
        let key = self.key?;
        let entered = key.enter().map(Held::from);
        entered.or_else(|| as_opened(key, key.lock().lock()))
    }

    /// The thread's seat.
    pub(crate) fn seat(self) -> Option<u8> {
        seat_of(self.key?.number())
    }

    /// What was freed to it without a fence belongs to this epoch, whose fence is made
    /// next, if it is open for the thread and no small one.
    pub(crate) fn seal(self, epoch: u64) {
        if let Some(mut kept) = self.hold_now().filter(|kept| !kept.is_sparing()) {
            kept.close_batch(epoch);
            if kept.closed_some() {
                self.invite(&kept);
            }
        }
    }

    /// Tells other threads whether the cache, which is held, has blocks for them.
    pub(crate) fn invite(self, kept: &Kept) {
        if let Some(key) = self.key
            && (key.lock().is_inviting() || kept.is_worth_a_look())
        {
            key.lock().invite(kept.has_for_others());
        }
    }

    /// Whether little is to be kept there: see `Kept`.
    pub(crate) fn is_sparing(self) -> bool {
        self.hold_now().is_some_and(|kept| kept.is_sparing())
    }

    /// Whether it is this one, open or closed.
    pub(super) fn is(self, cache: &'static ThreadCache) -> bool {
        (self.key).is_some_and(|key| std::ptr::eq(key.lock(), cache.lock()))
    }

    /// Whether this is the cache, open for the thread.
    pub(crate) fn has(self, kept: &Kept) -> bool {
        self.key.is_some_and(|key| kept.opening() == key.number())
    }

    /// Whether it is open for the thread.
    pub(crate) fn is_open(self) -> bool {
        self.hold_now().is_some()
    }
}

/// A cache that is held, if it is open for the thread.
fn as_opened(key: CacheKey, kept: Held) -> Option<Held> {
    (kept.opening() == key.number()).then(|| key.stay(kept))
}

/// What a thread knows of its caches. A driver keeps one for each thread
/// ([`Driver::with_own_caches`](crate::Driver::with_own_caches)); memory of zeros
/// is one that knows nothing.
pub struct OwnCaches {
    last: Cell<OwnCache>,
    others: Cell<[OwnCache; OTHERS]>,
    frees: Cell<u32>,
    waits: Cell<u32>,
    /// Zero before it had a small cache that was looked at.
    sparing_waits: Cell<u32>,
    asks: Cell<i16>,
    forgotten: Cell<u16>,
}

thread_local! {
    static USUAL: OwnCaches = const { OwnCaches::new() };
}

impl Default for OwnCaches {
    fn default() -> OwnCaches {
        OwnCaches::new()
    }
}

impl OwnCaches {
    /// Calls `with` with those of the calling thread, for drivers that keep none.
    #[inline(always)]
    pub(crate) fn with_usual<R>(with: impl FnOnce(&OwnCaches) -> R) -> R {
        USUAL.with(with)
    }

    /// Knows nothing.
    #[must_use]
    pub const fn new() -> OwnCaches {
        OwnCaches {
            last: Cell::new(NONE),
            others: Cell::new([NONE; OTHERS]),
            frees: Cell::new(0),
            waits: Cell::new(0),
            sparing_waits: Cell::new(0),
            asks: Cell::new(0),
            forgotten: Cell::new(0),
        }
    }

    /// Whether the thread has freed enough for a cache, with this free.
    pub(crate) fn frees_much(&self) -> bool {
        let frees = self.frees.get().saturating_add(1);
        self.frees.set(frees);
        frees >= self.waits.get().max(FIRST_FREES)
    }

    /// No cache was left for the thread: it asks again after `NEXT_FREES` more, or so many
    /// requests.
    pub(crate) fn waits(&self) {
        self.frees.set(0);
        self.waits.set(NEXT_FREES);
        self.asks.set(ASKS - NEXT_ASKS);
    }

    /// The thread's small cache was of use, or not: then it gets another such after
    /// `SPARING_LEAST` more frees, each time later, and sooner again after one of use.
    /// How many frees that is.
    pub(crate) fn were_sparing(&self, was_of_use: bool) -> u32 {
        let waits = self.sparing_waits.get();
        let waits = if was_of_use {
            (waits / SPARING_MORE).max(1)
        } else {
            self.frees.set(0);
            (waits * SPARING_MORE).clamp(SPARING_LEAST, SPARING_MOST)
        };
        self.sparing_waits.set(waits);
        waits
    }

    /// Whether the thread gets no small cache yet. One that had none waits as long as
    /// the last that had.
    pub(crate) fn waits_while_sparing(&self, last: u32) -> Waits {
        let frees = self.frees.get();
        let waits = match self.sparing_waits.get() {
            0 => last,
            own => own,
        };
        if frees >= waits {
            Waits::No
        } else if frees.is_multiple_of(SPARING_LOOKS) || frees == FIRST_FREES {
            Waits::Looks
        } else {
            Waits::Yes
        }
    }

    /// Whether it is time for a look if others free what the thread takes, with this
    /// request.
    pub(crate) fn asks_much(&self) -> bool {
        let asks = self.asks.get() + 1;
        let is_time = asks >= ASKS;
        self.asks.set(if is_time { 0 } else { asks });
        is_time
    }

    /// The cache that the thread used last, if it is of this hub.
    #[inline(always)]
    pub(crate) fn last_of(&self, hub: u64) -> Option<OwnCache> {
        let last = self.last.get();
        (last.hub == hub).then_some(last)
    }

    /// The thread's cache of a hub, if it ever had one; it is the last one from now
    /// on.
    pub(crate) fn of(&self, hub: u64) -> Option<OwnCache> {
        let last = self.last_of(hub);
        last.or_else(|| self.before(hub))
    }

    fn before(&self, hub: u64) -> Option<OwnCache> {
        let own = self.others.get().into_iter().find(|own| own.hub == hub)?;
        self.remember(own);
        Some(own)
    }

    /// It keeps something in a cache that it finds no more.
    fn forgets(&self) {
        let forgotten = self.forgotten.get() + 1;
        self.forgotten.set(forgotten % MOST_FORGOTTEN);
        if forgotten == MOST_FORGOTTEN {
            self.waits();
        }
    }

    /// It is the last one that the thread used.
    pub(crate) fn remember(&self, own: OwnCache) {
        let before = self.last.replace(own);
        if before.hub == own.hub || before.hub == NONE.hub {
            return;
        }
        let mut others = self.others.get();
        let at = others.iter().position(|other| other.hub == own.hub);
        let at = at.unwrap_or(OTHERS - 1);
        let forgets = others[at].hub != NONE.hub && others[at].hub != own.hub;
        // Those of arenas that are gone are not open.
        if forgets && others[at].is_open() {
            self.forgets();
        }
        others.copy_within(..at, 1);
        others[0] = before;
        self.others.set(others);
    }
}
