//! By how much figures of the arena may rise without it.
//!
//! Cost: one addition for a block that comes, one subtraction and one comparison
//! for a block that goes.

/// A figure of the arena that may rise without it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Figure {
    Blocks,
    Bytes,
    Asked,
}

impl Figure {
    pub(crate) const ALL: [Figure; 3] = [Figure::Blocks, Figure::Bytes, Figure::Asked];
}

/// By how much the arena's figures may rise without it: of blocks that the program
/// holds, of their bytes, and of what was asked for.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Headroom {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) asked: u64,
}

impl Headroom {
    pub(crate) fn of(&self, figure: Figure) -> u64 {
        match figure {
            Figure::Blocks => self.blocks,
            Figure::Bytes => self.bytes,
            Figure::Asked => self.asked,
        }
    }

    pub(crate) fn and(self, other: Headroom) -> Headroom {
        Headroom {
            blocks: self.blocks + other.blocks,
            bytes: self.bytes + other.bytes,
            asked: self.asked + other.asked,
        }
    }

    /// What is left without this, which is no more.
    pub(crate) fn less(&self, other: Headroom) -> Headroom {
        Headroom {
            blocks: self.blocks - other.blocks,
            bytes: self.bytes - other.bytes,
            asked: self.asked - other.asked,
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.blocks | self.bytes | self.asked == 0
    }
}

/// Blocks and their slots in one word, slots in the low half. The highest bit of a
/// half is set while there are too few of it.
#[derive(Copy, Clone, Default)]
pub(super) struct PackedRoom(u64);

const HALF: u32 = 32;
const LOW: u64 = (1 << HALF) - 1;
const TOO_FEW: u64 = 1 << 31 | 1 << 63;
/// More is far beyond what a device has.
const MOST: u64 = 1 << 30;

impl PackedRoom {
    #[inline]
    pub(super) fn of(blocks: u64, slots: u64) -> PackedRoom {
        PackedRoom(blocks << HALF | slots)
    }

    /// The word that it is, for those that keep it in an atomic one: such words add up.
    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn from_word(word: u64) -> PackedRoom {
        PackedRoom(word)
    }

    #[inline]
    pub(super) fn with(self, more: PackedRoom) -> PackedRoom {
        PackedRoom(self.0.wrapping_add(more.0))
    }

    /// Whether there is so much.
    #[inline]
    pub(super) fn has(self, less: PackedRoom) -> bool {
        // What the low half borrows sets its own highest bit too.
        self.without(less).0 & TOO_FEW == 0
    }

    /// What is left without this, of which there is so much.
    #[inline]
    pub(super) fn without(self, less: PackedRoom) -> PackedRoom {
        PackedRoom(self.0.wrapping_sub(less.0))
    }

    pub(super) fn blocks(self) -> u64 {
        self.0 >> HALF
    }

    #[inline]
    pub(super) fn slots(self) -> u64 {
        self.0 & LOW
    }

    /// Whether there is so much that the word may not hold another batch.
    pub(super) fn is_too_much(self) -> bool {
        self.blocks() >= MOST || self.slots() >= MOST
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_as_two_numbers(
            (blocks, slots) in (0..MOST, 0..MOST),
            (fewer, less) in prop_oneof![(0..3_u64, 0..200_u64), (0..MOST, 0..MOST)],
        ) {
            let room = PackedRoom::of(blocks, slots);
            prop_assert_eq!((room.blocks(), room.slots()), (blocks, slots));
            let gone = PackedRoom::of(fewer, less);
            let expected = blocks.checked_sub(fewer).zip(slots.checked_sub(less));
            prop_assert_eq!(room.has(gone), expected.is_some());
            if let Some(expected) = expected {
                let left = room.without(gone);
                prop_assert_eq!((left.blocks(), left.slots()), expected);
                let back = left.with(gone);
                prop_assert_eq!((back.blocks(), back.slots()), (blocks, slots));
            }
        }
    }
}
