//! What a slot of the page map says of the block that starts there.
//!
//! One word, so that a block and whose it is are read at once. Cost: none.

use crate::page_map::ArenaId;

const ARENA_SHIFT: u32 = 32;

/// See the module. Low half: the block's number in its arena plus one. High
/// half: of a direct allocation, the number of its arena plus one; a block of a
/// chunk is of the arena that holds the chunk. Zero is no block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    /// No block.
    pub(super) const NONE: Entry = Entry(0);

    pub(super) fn from_word(word: u64) -> Entry {
        Entry(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// A live block of a chunk.
    pub(super) fn in_chunk(number: u32) -> Entry {
        Entry(u64::from(number) + 1)
    }

    /// A live direct allocation.
    pub(super) fn direct_of(arena: ArenaId, number: u32) -> Entry {
        Entry(Entry::in_chunk(number).0 | (u64::from(arena.0) + 1) << ARENA_SHIFT)
    }

    /// The block's number in its arena.
    pub(super) fn number(self) -> Option<u32> {
        low_half(self.0).checked_sub(1)
    }

    /// Whose the direct allocation is.
    pub(super) fn direct(self) -> Option<ArenaId> {
        low_half(self.0 >> ARENA_SHIFT).checked_sub(1).map(ArenaId)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is asked for")]
fn low_half(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_what_it_is_told() {
        for number in [0, 7, u32::MAX - 1] {
            let block = Entry::in_chunk(number);
            assert_eq!((block.number(), block.direct()), (Some(number), None));
            for arena in [0, (1 << 31) - 1].map(ArenaId) {
                let direct = Entry::direct_of(arena, number);
                assert_eq!(direct.number(), Some(number));
                assert_eq!(direct.direct(), Some(arena));
                assert_eq!(Entry::from_word(direct.word()), direct);
            }
        }
        assert_eq!((Entry::NONE.number(), Entry::NONE.direct()), (None, None));
    }
}
