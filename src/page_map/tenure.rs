//! Who holds a page or a subpage of the page map.
//!
//! Invariant: it is held whole by one arena, or shared by any number of users,
//! or neither; all changes go through the one word that says so. Cost: one
//! atomic operation.

use crate::page_map::ArenaId;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Set where one arena holds all of it; below this and the next is the arena's
/// number. Otherwise the word is the number of users.
const WHOLE: u32 = 1 << 31;

/// Set where a chunk of that arena begins.
const BEGINS: u32 = 1 << 30;

/// The word of a page or a subpage.
pub(super) struct Tenure(AtomicU32);

/// Whose a page or a subpage is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// All addresses in it are of this arena.
    Whole(ArenaId),
    /// Nobody's, or of several: what is in it says more.
    Shared,
}

impl Tenure {
    /// Nobody's.
    pub(super) fn new() -> Tenure {
        Tenure(AtomicU32::new(0))
    }

    pub(super) fn holder(&self) -> Holder {
        // Acquire: pairs with the Release in `hold`, so that what the holder
        // wrote before is seen.
        let word = self.0.load(Ordering::Acquire);
        if word & WHOLE == 0 {
            Holder::Shared
        } else {
            Holder::Whole(ArenaId(word & !(WHOLE | BEGINS)))
        }
    }

    /// Whether a chunk begins here; for the arena that holds it.
    pub(super) fn is_begin(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & WHOLE != 0 && word & BEGINS != 0
    }

    /// Whether one arena holds all of it; for that arena.
    pub(super) fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WHOLE != 0
    }

    /// Takes all of it for an arena, whose chunk may begin here; false where
    /// somebody is there.
    pub(super) fn hold(&self, arena: ArenaId, begins: bool) -> bool {
        // Acquire pairs with the Release of `release` and `unshare`: slots that
        // were emptied are seen empty. Release pairs with the Acquire in
        // `holder`.
        let word = WHOLE | if begins { BEGINS } else { 0 } | arena.0;
        (self.0)
            .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives up what `hold` took.
    pub(super) fn release(&self) {
        // Release: whoever holds it next sees empty slots.
        self.0.store(0, Ordering::Release);
    }

    /// Becomes one of its users; false where an arena holds all of it.
    pub(super) fn share(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & WHOLE == 0 {
            // As in `hold`. A page has fewer than 2^16 users.
            let exchange =
                self.0
                    .compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Relaxed);
            match exchange {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Ends what `share` began.
    pub(super) fn unshare(&self) {
        // Release: as in `release`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}
