//! The few blocks that start in a page of one chunk, in the page's own cache
//! line: large blocks need no table.
//!
//! Owns [`PLACES`] slots, and for each the place in the page where its block
//! starts. Invariant: two slots have no place in common; a slot without a place
//! is empty. Only the arena that holds the page changes them, under its lock.
//! Cost: one cache line; all places are compared at once.

use crate::page_map::Slot;
use crate::page_map::slot_word::SlotWord;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many blocks a page tells of without a table.
#[cfg(not(loom))]
pub(super) const PLACES: usize = 4;
#[cfg(loom)]
pub(super) const PLACES: usize = 1;

/// Bits of a place: the slot's number in its page plus one, or 0 for none.
const WIDTH: usize = 16;
/// The lowest bit of each place.
const LOWEST: u64 = u64::MAX / 0xffff;

/// See the module.
pub(super) struct Inline {
    places: AtomicU64,
    slots: [Slot; PLACES],
}

impl Inline {
    pub(super) fn new() -> Inline {
        Inline {
            places: AtomicU64::new(0),
            slots: std::array::from_fn(|_| Slot::new(SlotWord::NONE.word())),
        }
    }

    /// Which one has this place; with 0, which one has none.
    #[inline]
    fn find(places: u64, place: u64) -> Option<usize> {
        // A field that is 0 sets its highest bit, and what it borrows only
        // those of later ones; Mycroft's test, as in `memchr`.
        let differs = places ^ (place * LOWEST);
        let equal = differs.wrapping_sub(LOWEST) & !differs & (LOWEST << (WIDTH - 1));
        let first = equal.trailing_zeros() as usize / WIDTH;
        (first < PLACES).then_some(first)
    }

    /// The slot of the block that starts there, if there is one, and which one
    /// that is.
    #[inline]
    pub(super) fn slot(&self, number: usize) -> Option<(&Slot, usize)> {
        // Acquire: pairs with the Release in `set`.
        let places = self.places.load(Ordering::Acquire);
        let at = Inline::find(places, number as u64 + 1)?;
        Some((self.slots.get(at)?, at))
    }

    /// Enters a block that is not there; false where there is no room.
    #[inline]
    pub(super) fn set(&self, number: usize, entry: SlotWord) -> bool {
        let places = self.places.load(Ordering::Relaxed);
        let Some(free) = Inline::find(places, 0) else {
            return false;
        };
        // Release, both: pair with the Acquire in `slot` and in `SlotRef::entry`.
        self.slots[free].store(entry.word(), Ordering::Release);
        let place = (number as u64 + 1) << (WIDTH * free);
        self.places.store(places | place, Ordering::Release);
        true
    }

    /// Takes out the block of the slot that `slot` has found.
    #[inline]
    pub(super) fn clear(&self, at: usize) {
        // A reader that has found the place finds no block, or one of the same
        // arena that starts elsewhere: so the arena compares.
        let places = self.places.load(Ordering::Relaxed);
        self.slots[at].store(SlotWord::NONE.word(), Ordering::Release);
        let place = 0xffff << (WIDTH * at);
        self.places.store(places & !place, Ordering::Release);
    }

    /// Takes out all of them.
    pub(super) fn clear_all(&self) {
        (0..PLACES).for_each(|at| self.clear(at));
    }

    /// All blocks: where they start, and what is said of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, SlotWord)> {
        let places = self.places.load(Ordering::Relaxed);
        let entries = self.slots.iter().enumerate();
        entries.filter_map(move |(at, slot)| {
            let place = places >> (WIDTH * at) & 0xffff;
            let entry = SlotWord::from_word(slot.load(Ordering::Relaxed));
            Some((usize::try_from(place).ok()?.checked_sub(1)?, entry))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_found_and_no_other() {
        let last = (1 << 12) - 1;
        let inline = Inline::new();
        let numbers = [0, last, 1, 256];
        for number in numbers {
            assert!(inline.slot(number).is_none());
            assert!(inline.set(number, SlotWord::in_chunk(u32::try_from(number).unwrap())));
        }
        assert!(!inline.set(7, SlotWord::in_chunk(7)), "it is full");
        for number in 0..=last {
            let slot = inline.slot(number);
            let found = slot.map(|(slot, _)| slot.load(Ordering::Relaxed));
            let expected = SlotWord::in_chunk(u32::try_from(number).unwrap()).word();
            let is_there = numbers.contains(&number);
            assert_eq!(found, is_there.then_some(expected), "{number}");
        }
        inline.clear(inline.slot(last).unwrap().1);
        assert!(inline.set(2, SlotWord::in_chunk(9)));
        let mut all: Vec<usize> = inline.all().map(|(number, _)| number).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 256]);
        inline.clear_all();
        assert_eq!(inline.all().count(), 0);
    }
}
