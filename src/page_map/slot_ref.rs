//! The slot of an address, to read and to change what it says.
//!
//! Invariant: whoever holds the lock of a page's arena changes its slots, but for
//! the words of cacheable blocks, which threads change without it. Cost: a load or
//! a store; an exchange where a cacheable block is freed.

use crate::address::Bytes;
use crate::library::LibraryId;
use crate::page_map::slot_word::SlotWord;
use crate::page_map::{ArenaId, Page, Slot};
use crate::sync::atomic::Ordering;

/// The place of an address at which blocks start, for those who look at it
/// more than once.
#[derive(Copy, Clone)]
pub(crate) struct SlotRef<'a> {
    page: &'a Page,
    slot: &'a Slot,
    /// Which slot of the page's own that is, if it is one.
    inline: Option<usize>,
}

impl<'a> SlotRef<'a> {
    #[inline]
    pub(super) fn new(page: &'a Page, slot: &'a Slot, inline: Option<usize>) -> SlotRef<'a> {
        SlotRef { page, slot, inline }
    }

    /// What is said of the block.
    #[inline]
    pub(crate) fn word(self) -> SlotWord {
        // Acquire: pairs with the Release of whoever entered the block. The
        // thread that frees got the pointer from the one that allocated, so it
        // sees at least that store.
        SlotWord::from_word(self.slot.load(Ordering::Acquire))
    }

    /// What is said of the live block of this arena that starts here.
    #[inline]
    pub(crate) fn live(self, arena: ArenaId) -> Option<SlotWord> {
        let word = self.word();
        let own = if word.is_cacheable() {
            word.is_live_of(SlotWord::of_owner(arena))
        } else {
            word.direct().is_none_or(|other| other == arena)
        };
        (own && word != SlotWord::NONE).then_some(word)
    }

    /// Takes out the live block of which this was said; false where another
    /// thread has freed it since.
    #[inline]
    pub(crate) fn take(self, live: SlotWord) -> bool {
        // Without the arena's lock threads change cacheable blocks alone.
        let taken = !live.is_cacheable() || keep(self.slot, live).is_some();
        if taken {
            self.clear();
        }
        taken
    }

    /// Takes out the block of a chunk.
    #[inline]
    pub(crate) fn clear(self) {
        if let Some(at) = self.inline {
            return self.page.inline.clear(at);
        }
        if self.slot.load(Ordering::Relaxed) != SlotWord::NONE.word() {
            self.page.count(-1);
        }
        // Release: pairs with the Acquire in `SlotRef::word`.
        self.slot.store(SlotWord::NONE.word(), Ordering::Release);
    }
}

/// The place of an address at which blocks start that threads may keep: such a
/// block is never among those of which a page tells itself.
///
/// A live block's word is left by an exchange alone, so that of several threads
/// that free it one succeeds. The word of a kept one changes only who has it.
#[derive(Copy, Clone)]
pub(crate) struct CacheableSlot(&'static Slot);

impl CacheableSlot {
    #[inline]
    pub(super) fn new(slot: &'static Slot) -> CacheableSlot {
        CacheableSlot(slot)
    }

    /// One of no map.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn of_test() -> CacheableSlot {
        CacheableSlot(Box::leak(Box::new(Slot::new(0))))
    }

    /// What is said of the block there, whatever it is.
    #[inline]
    pub(crate) fn word(self) -> SlotWord {
        // Acquire: as in `SlotRef::word`.
        SlotWord::from_word(self.0.load(Ordering::Acquire))
    }

    /// What is said of the block there. It may have changed: `keep` looks again.
    #[inline]
    pub(crate) fn word_for_keep(self) -> SlotWord {
        SlotWord::from_word(self.0.load(Ordering::Relaxed))
    }

    /// A thread keeps the live block of which this was said, and still is; none where
    /// that is so no longer.
    #[inline]
    pub(crate) fn keep(self, live: SlotWord) -> Option<SlotWord> {
        keep(self.0, live)
    }

    /// The program gets the block that the calling thread keeps, for this request.
    #[inline]
    pub(crate) fn hand_out(self, request: Bytes, library: LibraryId) {
        // Relaxed: who keeps it has said so here, or got it from who did, by a lock.
        let kept = SlotWord::from_word(self.0.load(Ordering::Relaxed));
        let live = kept.requested(request, library);
        // Release: pairs with the Acquire in `word`.
        self.0.store(live.word(), Ordering::Release);
    }
}

/// See [`CacheableSlot::keep`].
#[inline]
fn keep(slot: &Slot, live: SlotWord) -> Option<SlotWord> {
    // Acquire, on success: pairs with the Release in `hand_out`.
    let exchange = slot.compare_exchange(
        live.word(),
        live.kept().word(),
        Ordering::Acquire,
        Ordering::Relaxed,
    );
    exchange.ok().map(SlotWord::from_word)
}
