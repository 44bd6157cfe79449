//! What a slot of the page map says of the block that starts there.
//!
//! One word, so that a block and whose it is are read at once. Of a small block
//! that threads may keep for themselves it says everything that a free must
//! know: one masked comparison checks it. Cost: none.

use crate::address::Bytes;
use crate::library::{LibraryId, MOST_LIBRARIES};
use crate::page_map::{ArenaId, SLOT};

const ARENA_SHIFT: u32 = 32;

/// Set in a word that says everything of its block.
const CACHEABLE: u64 = 1 << 63;
/// Set in such a word while a thread keeps the block: the program has freed it.
const KEPT: u64 = 1 << 21;
/// Its other parts: where each begins. Those that change with each request are the
/// lowest, where the fewest instructions find them.
const SLOTS_SHIFT: u32 = 56;
const OWNER_SHIFT: u32 = 46;
const NUMBER_SHIFT: u32 = 22;
const LIBRARY_SHIFT: u32 = 16;
/// And how many values it has.
const SLOTS: u64 = 1 << (63 - SLOTS_SHIFT);
const OWNERS: u64 = 1 << (SLOTS_SHIFT - OWNER_SHIFT);
const NUMBERS: u64 = 1 << (OWNER_SHIFT - NUMBER_SHIFT);
const LIBRARIES: u64 = 1 << (21 - LIBRARY_SHIFT);
const REQUESTS: u64 = 1 << LIBRARY_SHIFT;

const _: () = assert!(LIBRARIES == MOST_LIBRARIES as u64);

/// The largest block that a thread may keep.
pub(crate) const MOST_CACHEABLE: Bytes = Bytes::new(SLOTS * SLOT.get());

/// See the module. Of most blocks the low half is the block's number in its
/// arena plus one, and the high half, of a direct allocation, the number of its
/// arena plus one; a block of a chunk is of the arena that holds the chunk. Of a
/// block that threads may keep there are, from the top, a flag, its size in slots
/// less one, its arena, its number plus one, another flag, the library of the program
/// that asked, and the bytes that it asked for less one. Zero is no block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct SlotWord(u64);

impl SlotWord {
    /// No block.
    pub(crate) const NONE: SlotWord = SlotWord(0);

    #[inline]
    pub(crate) fn from_word(word: u64) -> SlotWord {
        SlotWord(word)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// A live block of a chunk.
    pub(crate) fn in_chunk(number: u32) -> SlotWord {
        SlotWord(u64::from(number) + 1)
    }

    /// A live direct allocation.
    pub(super) fn direct_of(arena: ArenaId, number: u32) -> SlotWord {
        SlotWord(SlotWord::in_chunk(number).0 | (u64::from(arena.0) + 1) << ARENA_SHIFT)
    }

    /// A live block of a chunk that threads may keep, of just as many slots as were
    /// asked for. None where it has more, or a number is too large for that.
    pub(crate) fn cacheable(
        arena: ArenaId,
        number: u32,
        size: Bytes,
        request: Bytes,
        library: LibraryId,
    ) -> Option<SlotWord> {
        let number = u64::from(number) + 1;
        let is_exact = size.saturating_sub(request) < SLOT;
        let fits =
            is_exact && size <= MOST_CACHEABLE && number < NUMBERS && u64::from(arena.0) < OWNERS;
        let word = (SlotWord::of_owner(arena) | number << NUMBER_SHIFT)
            | (size.get() / SLOT.get()).wrapping_sub(1) << SLOTS_SHIFT;
        fits.then(|| SlotWord(word).requested(request, library))
    }

    /// What the words of an arena's live blocks that threads may keep have in
    /// common: [`SlotWord::is_live_of`].
    pub(crate) fn of_owner(arena: ArenaId) -> u64 {
        CACHEABLE | u64::from(arena.0) << OWNER_SHIFT
    }

    /// Whether it is a live block that a thread may keep, of the arena whose
    /// words have this in common.
    #[inline]
    pub(crate) fn is_live_of(self, owner: u64) -> bool {
        self.0 & (CACHEABLE | KEPT | (OWNERS - 1) << OWNER_SHIFT) == owner
    }

    /// Whether a thread may keep it, or does.
    #[inline]
    pub(crate) fn is_cacheable(self) -> bool {
        self.0 & CACHEABLE != 0
    }

    /// Whether a thread keeps it.
    #[inline]
    pub(crate) fn is_kept(self) -> bool {
        self.is_cacheable() && self.0 & KEPT != 0
    }

    /// The same block, kept by a thread.
    #[inline]
    pub(crate) fn kept(self) -> SlotWord {
        SlotWord(self.0 | KEPT)
    }

    /// The same block, live, of this library of the program, which asked for so much, at
    /// most [`MOST_CACHEABLE`].
    #[inline]
    pub(crate) fn requested(self, request: Bytes, library: LibraryId) -> SlotWord {
        let library = u64::from(library.number()) << LIBRARY_SHIFT;
        let block = self.0 & !(KEPT | (REQUESTS * LIBRARIES - 1));
        SlotWord(block | request.get().wrapping_sub(1) | library)
    }

    /// The size of a block that threads may keep, in slots less one.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
    pub(crate) fn slots_less_one(self) -> usize {
        (self.0 >> SLOTS_SHIFT & (SLOTS - 1)) as usize
    }

    /// What the program asked for when it got such a block.
    #[inline]
    pub(crate) fn request(self) -> Bytes {
        Bytes::new((self.0 & (REQUESTS - 1)) + 1)
    }

    /// The library that asked for such a block.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "masked to a few bits")]
    pub(crate) fn library(self) -> LibraryId {
        LibraryId::new((self.0 >> LIBRARY_SHIFT & (LIBRARIES - 1)) as u8)
    }

    /// The block's number in its arena.
    #[inline]
    pub(crate) fn number(self) -> Option<u32> {
        let number = if self.is_cacheable() {
            self.0 >> NUMBER_SHIFT & (NUMBERS - 1)
        } else {
            self.0
        };
        low_half(number).checked_sub(1)
    }

    /// Whose the direct allocation is.
    pub(super) fn direct(self) -> Option<ArenaId> {
        let is_direct = !self.is_cacheable();
        let owner = low_half(self.0 >> ARENA_SHIFT).checked_sub(1);
        owner.filter(|_| is_direct).map(ArenaId)
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
            let block = SlotWord::in_chunk(number);
            assert_eq!((block.number(), block.direct()), (Some(number), None));
            assert!(!block.is_cacheable() && !block.is_kept());
            for arena in [0, (1 << 30) - 1].map(ArenaId) {
                let direct = SlotWord::direct_of(arena, number);
                assert_eq!(direct.number(), Some(number));
                assert_eq!(direct.direct(), Some(arena));
                assert!(!direct.is_cacheable() && !direct.is_kept());
                assert_eq!(SlotWord::from_word(direct.word()), direct);
            }
        }
        let none = SlotWord::NONE;
        assert_eq!((none.number(), none.direct()), (None, None));
    }

    #[test]
    fn a_cacheable_block_tells_all_of_itself() {
        let bounds = |last: u64| [0, u32::try_from(last).unwrap()];
        for (arena, number) in
            [(0, 0), (1, 1)].map(|(a, n)| (ArenaId(bounds(OWNERS - 1)[a]), bounds(NUMBERS - 2)[n]))
        {
            for (slots, request) in [(1, 1), (1, 512), (128, 65025), (128, 65536), (9, 4097)] {
                let (size, request) = (Bytes::new(slots * 512), Bytes::new(request));
                let less_one = usize::try_from(slots - 1).unwrap();
                let [library, other] = [7, 31].map(LibraryId::new);
                let word = SlotWord::cacheable(arena, number, size, request, library).unwrap();
                assert_eq!(word.library(), library);
                let owner = SlotWord::of_owner(arena);
                for word in [word, word.kept().requested(request, other)] {
                    assert!(word.is_cacheable() && !word.is_kept() && word.is_live_of(owner));
                    assert!(!word.is_live_of(SlotWord::of_owner(ArenaId(arena.0 ^ 1))));
                    assert_eq!((word.slots_less_one(), word.request()), (less_one, request));
                    assert_eq!((word.number(), word.direct()), (Some(number), None));
                }
                let kept = word.kept();
                assert!(kept.is_kept() && !kept.is_live_of(owner));
                assert_eq!(
                    (kept.number(), kept.slots_less_one()),
                    (Some(number), less_one)
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_cacheable() {
        let word = |arena: u64, number: u64, size| {
            let [arena, number] = [arena, number].map(|n| u32::try_from(n).unwrap());
            SlotWord::cacheable(ArenaId(arena), number, size, size, LibraryId::UNKNOWN)
        };
        assert_eq!(word(OWNERS, 0, SLOT), None);
        assert_eq!(word(0, NUMBERS - 1, SLOT), None);
        assert_eq!(word(0, 0, Bytes::new(MOST_CACHEABLE.get() + 512)), None);
        let last = ArenaId(u32::try_from(OWNERS - 1).unwrap());
        let word_of = |size: u64, request: u64| {
            let [size, request] = [size, request].map(Bytes::new);
            SlotWord::cacheable(last, 0, size, request, LibraryId::OTHERS)
        };
        assert!(word_of(512, 1).is_some());
        assert_eq!(word_of(1024, 512), None);
        assert!(word(OWNERS - 1, NUMBERS - 2, MOST_CACHEABLE).is_some());
    }
}
