//! Which caches are the calling thread's.
//!
//! Owns the numbers of a few, one for each arena that the thread used last. They
//! are plain numbers, which nothing has to be done about when the thread ends: the
//! process may be ending in the middle of `malloc`. Invariant: who finds another
//! opening in the cache knows that it is no longer its own. Cost: a comparison
//! where the thread uses one arena.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Arenas besides the last one.
const OTHERS: usize = 7;

/// A thread keeps nothing before it has freed so many blocks: one that frees
/// less is not worth a cache.
const FIRST_FREES: u32 = 4;

/// Nor after it has forgotten so many caches: it uses too many arenas.
const MOST_FORGOTTEN: u32 = 64;

/// Where a thread's cache is.
#[derive(Copy, Clone)]
pub(super) struct OwnCache {
    /// The number of the hub, from 1.
    pub(super) hub: u64,
    pub(super) index: usize,
    /// Each opening of a cache of the hub has a number.
    pub(super) opening: u64,
}

const NONE: OwnCache = OwnCache {
    hub: 0,
    index: 0,
    opening: 0,
};

thread_local! {
    static LAST: Cell<OwnCache> = const { Cell::new(NONE) };
    static OTHER: Cell<[OwnCache; OTHERS]> = const { Cell::new([NONE; OTHERS]) };
    static FREES: Cell<u32> = const { Cell::new(0) };
    static FORGOTTEN: Cell<u32> = const { Cell::new(0) };
}

/// A number that no other hub of the process has.
pub(super) fn serial() -> u64 {
    // The checker has no part in this: the numbers only differ.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Whether the thread has freed enough for a cache, with this free.
pub(super) fn frees_much() -> bool {
    let frees = FREES.get().saturating_add(1);
    FREES.set(frees);
    frees >= FIRST_FREES && FORGOTTEN.get() < MOST_FORGOTTEN
}

impl OwnCache {
    /// The thread's cache of a hub, if it ever had one.
    #[inline(always)]
    pub(super) fn of(hub: u64) -> Option<OwnCache> {
        let last = LAST.get();
        if last.hub == hub {
            return Some(last);
        }
        OwnCache::before(hub)
    }

    #[cold]
    #[inline(never)]
    fn before(hub: u64) -> Option<OwnCache> {
        let own = OTHER.get().into_iter().find(|own| own.hub == hub)?;
        own.remember();
        Some(own)
    }

    /// It is the last one that the thread used.
    pub(super) fn remember(self) {
        let before = LAST.replace(self);
        if before.hub == self.hub || before.hub == NONE.hub {
            return;
        }
        let mut others = OTHER.get();
        let at = others.iter().position(|own| own.hub == self.hub);
        let at = at.unwrap_or(OTHERS - 1);
        if others[at].hub != NONE.hub && others[at].hub != self.hub {
            FORGOTTEN.set(FORGOTTEN.get().saturating_add(1));
        }
        others.copy_within(..at, 1);
        others[0] = before;
        OTHER.set(others);
    }
}
