//! What the page map says of the block that starts at an address.
//!
//! One word, so that a block and whose it is are read at once, and a block
//! changes hands by one exchange of it, whoever else tries the same. Invariant:
//! of two that want to take a block exactly one changes its entry. Cost: none.

use crate::address::Bytes;
use crate::page_map::{ArenaId, SLOT};

const NUMBER_BITS: u32 = 30;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// A thread's cache keeps the block; the program has freed it.
const KEPT: u64 = 1 << NUMBER_BITS;
/// The block is one that a thread's cache may keep.
const FINE: u64 = 1 << (NUMBER_BITS + 1);
const UPPER_SHIFT: u32 = NUMBER_BITS + 2;
const UNITS_BITS: u32 = 11;
const UNITS: u64 = (1 << UNITS_BITS) - 1;
const REST_SHIFT: u32 = UPPER_SHIFT + UNITS_BITS;

/// See the module. Bits: the block's number in its arena plus one (30), kept,
/// fine. Above them, of a fine block: slots minus one (11), and the bytes that
/// the program did not ask for, or had not. Of a direct allocation: the number
/// of its arena plus one; any other block is of the arena that holds its chunk.
/// Zero is no block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry(u64);

impl Entry {
    /// No block.
    pub(crate) const NONE: Entry = Entry(0);

    /// The largest block that a cache may keep: 1 MiB.
    pub(crate) const MOST: Bytes = Bytes::new(1 << (UNITS_BITS + 9));

    pub(super) fn from_word(word: u64) -> Entry {
        Entry(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// A live block of a chunk that no cache may keep.
    pub(crate) fn whole(number: u32) -> Entry {
        // 2^30 records of 48 bytes are 48 GiB of host memory; a number beyond
        // them would not be found again, and its free fail.
        Entry((u64::from(number) + 1) & NUMBER)
    }

    /// A live block of a chunk: `size` bytes, of which the program asked for
    /// `requested`.
    pub(crate) fn live(number: u32, size: Bytes, requested: Bytes) -> Entry {
        let whole = Entry::whole(number);
        let rest = size.get().wrapping_sub(requested.get());
        if size.is_zero() || size > Entry::MOST || rest >= SLOT.get() {
            return whole;
        }
        let units = (size.get() / SLOT.get() - 1) << UPPER_SHIFT;
        Entry(whole.0 | FINE | units | rest << REST_SHIFT)
    }

    /// A live direct allocation.
    pub(super) fn direct_of(arena: ArenaId, number: u32) -> Entry {
        Entry(Entry::whole(number).0 | (u64::from(arena.0) + 1) << UPPER_SHIFT)
    }

    /// The same block in a cache.
    pub(crate) fn kept(self) -> Entry {
        Entry(self.0 | KEPT)
    }

    /// The same block with the program, which asked for all but `rest` bytes,
    /// less than a slot.
    pub(crate) fn live_again(self, rest: u64) -> Entry {
        Entry(self.0 & (NUMBER | FINE | UNITS << UPPER_SHIFT) | rest << REST_SHIFT)
    }

    /// The block's number in its arena, live or kept.
    pub(crate) fn number(self) -> Option<u32> {
        // Masked to 30 bits.
        u32::try_from((self.0 & NUMBER).checked_sub(1)?).ok()
    }

    /// Whose the direct allocation is.
    pub(super) fn direct(self) -> Option<ArenaId> {
        if self.is_fine() {
            return None;
        }
        // 32 bits are left.
        let number = u32::try_from(self.0 >> UPPER_SHIFT).ok()?;
        number.checked_sub(1).map(ArenaId)
    }

    /// Whether it is not another arena's direct allocation.
    pub(crate) fn may_be_of(self, arena: ArenaId) -> bool {
        self.direct().is_none_or(|other| other == arena)
    }

    /// Whether the program holds it, and it is not another arena's.
    pub(crate) fn is_live_in(self, arena: ArenaId) -> bool {
        self.is_live() && self.may_be_of(arena)
    }

    /// Whether the program holds it.
    pub(crate) fn is_live(self) -> bool {
        self.0 & KEPT == 0 && self.0 & NUMBER != 0
    }

    /// Whether a cache has it.
    pub(crate) fn is_kept(self) -> bool {
        self.0 & KEPT != 0
    }

    /// Whether the program holds it and a cache may keep it.
    #[inline]
    pub(crate) fn can_be_kept(self) -> bool {
        self.0 & (FINE | KEPT) == FINE
    }

    /// Whether a cache may keep it.
    pub(crate) fn is_fine(self) -> bool {
        self.0 & FINE != 0
    }

    /// Its slots, of a fine block: 1 to 2048.
    pub(crate) fn units(self) -> usize {
        // Masked to 11 bits.
        usize::try_from(self.0 >> UPPER_SHIFT & UNITS).unwrap_or(0) + 1
    }

    /// Bytes that the program did not ask for, of a fine block.
    pub(crate) fn rest(self) -> u64 {
        self.0 >> REST_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_what_it_is_told() {
        for number in [0, 7, (1 << NUMBER_BITS) - 2] {
            let whole = Entry::whole(number);
            assert_eq!((whole.number(), whole.direct()), (Some(number), None));
            assert!(whole.is_live_in(ArenaId(3)) && !whole.is_fine());
            for arena in [0, (1 << 31) - 1].map(ArenaId) {
                let direct = Entry::direct_of(arena, number);
                assert_eq!(direct.number(), Some(number));
                assert_eq!(direct.direct(), Some(arena));
                assert!(direct.is_live_in(arena) && !direct.is_live_in(ArenaId(3)));
                assert_eq!(Entry::from_word(direct.word()), direct);
            }
        }
        assert_eq!((Entry::NONE.number(), Entry::NONE.direct()), (None, None));
        assert!(!Entry::NONE.is_live() && !Entry::NONE.is_kept());
    }

    #[test]
    fn a_fine_entry_keeps_its_size_and_what_was_asked_for() {
        for (size, requested) in [
            (512, 1),
            (512, 512),
            (4096, 3600),
            (1 << 20, (1 << 20) - 511),
        ] {
            let entry = Entry::live(77, Bytes::new(size), Bytes::new(requested));
            assert!(entry.is_live() && entry.is_fine() && !entry.is_kept());
            assert_eq!((entry.number(), entry.direct()), (Some(77), None));
            assert_eq!(entry.units() as u64 * 512, size);
            assert_eq!(entry.rest(), size - requested);
            let kept = entry.kept();
            assert!(kept.is_kept() && !kept.is_live() && kept.is_fine());
            assert_eq!((kept.number(), kept.units()), (Some(77), entry.units()));
            assert_eq!(kept.rest(), entry.rest());
            assert_eq!(kept.live_again(entry.rest()), entry);
            assert_eq!(kept.live_again(7).rest(), 7);
        }
    }

    #[test]
    fn blocks_that_are_too_large_or_rounded_up_are_not_fine() {
        for (size, requested) in [((1 << 20) + 512, 1 << 20), (4096, 2048), (0, 0)] {
            let entry = Entry::live(3, Bytes::new(size), Bytes::new(requested));
            assert!(entry.is_live() && !entry.is_fine());
            assert_eq!(entry, Entry::whole(3));
        }
    }
}
