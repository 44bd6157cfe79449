//! Free blocks by size: two-level segregated fit over external records.
//!
//! Owns the lists that run through the records of free blocks. The first
//! level is the power of two of a size, the second divides it into 32 equal
//! parts; two bitmaps tell which lists have blocks. (Masmano and others, TLSF,
//! 2004; 32 parts because that matched exact best fit on training traces,
//! where 8 parts cost a tenth more memory.)
//!
//! Invariant: a block is in the list of its size exactly while its state is
//! `Free`. Cost: constant for insertion and removal. A search looks at no more
//! than `SCAN` blocks of the list that holds the size itself, and of the next
//! one that has any; the search of last resort looks at the whole of the
//! first.

use crate::address::Bytes;
use crate::heap::block::{Block, BlockId, Blocks};
use crate::heap::fit::Search;

/// Every size is a multiple of this.
const UNIT_SHIFT: u32 = 9;
const PARTS_SHIFT: u32 = 5;
const PARTS: usize = 1 << PARTS_SHIFT;
const POWERS: usize = (u64::BITS - UNIT_SHIFT - PARTS_SHIFT + 1) as usize;

/// Blocks of a list that a search compares: enough to find the exact size
/// that a repeating program asks for, few enough to stay in a microsecond.
const SCAN: usize = 16;

/// The list that holds blocks of this size: power by power, part by part.
#[allow(clippy::cast_possible_truncation, reason = "there are few lists")]
fn bin_of(size: Bytes) -> usize {
    let units = size.get() >> UNIT_SHIFT;
    // Below the highest bit, the next five tell the part; that bit counts for
    // one power more.
    let shift = (units | 1).ilog2().saturating_sub(PARTS_SHIFT);
    ((shift as usize) << PARTS_SHIFT) + (units >> shift) as usize
}

/// The free blocks of one pool of an arena.
pub(crate) struct FreeIndex {
    powers: u64,
    /// By the power, and by the bin; none before the first block.
    parts: Vec<u32>,
    heads: Vec<BlockId>,
    count: u64,
}

impl FreeIndex {
    pub(crate) fn new() -> FreeIndex {
        FreeIndex {
            powers: 0,
            parts: Vec::new(),
            heads: Vec::new(),
            count: 0,
        }
    }

    /// Enters a block.
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        if self.heads.is_empty() {
            self.parts = vec![0; POWERS];
            self.heads = vec![BlockId::NONE; PARTS * POWERS];
        }
        let block = blocks.get_mut(id);
        let bin = bin_of(block.size);
        let head = std::mem::replace(&mut self.heads[bin], id);
        block.list_previous = BlockId::NONE;
        block.list_next = head;
        if let Some(head) = head.some() {
            blocks.get_mut(head).list_previous = id;
        }
        let (power, part) = (bin / PARTS, bin % PARTS);
        self.powers |= 1 << power;
        self.parts[power] |= 1 << part;
        self.count += 1;
    }

    /// Takes a block out.
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let block = *blocks.get(id);
        if let Some(next) = block.list_next.some() {
            blocks.get_mut(next).list_previous = block.list_previous;
        }
        if let Some(previous) = block.list_previous.some() {
            blocks.get_mut(previous).list_next = block.list_next;
        } else {
            let bin = bin_of(block.size);
            self.heads[bin] = block.list_next;
            if block.list_next == BlockId::NONE {
                let (power, part) = (bin / PARTS, bin % PARTS);
                self.parts[power] &= !(1 << part);
                if self.parts[power] == 0 {
                    self.powers &= !(1 << power);
                }
            }
        }
        self.count -= 1;
    }

    /// A block of at least this size, looked for so hard.
    #[inline(always)]
    pub(crate) fn search(&self, blocks: &Blocks, size: Bytes, search: Search) -> Option<BlockId> {
        match search {
            Search::Quick => self.find(blocks, size),
            Search::Thorough | Search::Opening => self.find_anywhere(blocks, size),
        }
    }

    /// A block of at least this size, as small as a bounded search finds.
    #[inline]
    pub(crate) fn find(&self, blocks: &Blocks, size: Bytes) -> Option<BlockId> {
        let own = bin_of(size);
        let first = self.used_from(own)?;
        self.find_from(blocks, own, first, size)
    }

    /// The same where the first list from its own up that has blocks is known.
    fn find_from(&self, blocks: &Blocks, own: usize, first: usize, size: Bytes) -> Option<BlockId> {
        let found = self.smallest_fit(blocks, first, size, SCAN);
        if found.is_some() || first != own {
            return found;
        }
        self.smallest_fit(blocks, self.used_from(own + 1)?, size, SCAN)
    }

    /// The same, looking at all blocks that could fit: before a driver call,
    /// the length of a list does not matter.
    pub(crate) fn find_anywhere(&self, blocks: &Blocks, size: Bytes) -> Option<BlockId> {
        self.smallest_fit(blocks, bin_of(size), size, usize::MAX)
            .or_else(|| self.find(blocks, size))
    }

    fn smallest_fit(
        &self,
        blocks: &Blocks,
        bin: usize,
        size: Bytes,
        most: usize,
    ) -> Option<BlockId> {
        let (mut smallest, mut best) = (Bytes::MAX, BlockId::NONE);
        for (id, block) in self.list(blocks, bin).take(most) {
            let found = block.size;
            if found == size {
                return Some(id);
            }
            if found > size && found < smallest {
                (smallest, best) = (found, id);
            }
        }
        best.some()
    }

    /// The first list from this one up that has blocks; those of a later one are
    /// larger than any size that belongs into `bin`.
    #[inline]
    fn used_from(&self, bin: usize) -> Option<usize> {
        let (power, part) = (bin / PARTS, bin % PARTS);
        let here = self.parts.get(power)? & (u32::MAX << part);
        if here != 0 {
            return Some(power * PARTS + here.trailing_zeros() as usize);
        }
        // There are fewer powers than bits.
        let power = (self.powers & (u64::MAX << 1 << power)).trailing_zeros() as usize;
        let parts = self.parts.get(power)?;
        Some(power * PARTS + parts.trailing_zeros() as usize)
    }

    fn list<'a>(
        &'a self,
        blocks: &'a Blocks,
        bin: usize,
    ) -> impl Iterator<Item = (BlockId, &'a Block)> {
        let mut at = self.heads.get(bin).copied().and_then(BlockId::some);
        std::iter::from_fn(move || {
            let id = at?;
            let block = blocks.get(id);
            at = block.list_next.some();
            Some((id, block))
        })
    }

    /// The size of the largest free block. Looks at the whole of the highest
    /// list.
    pub(crate) fn largest(&self, blocks: &Blocks) -> Bytes {
        let Some(power) = (u64::BITS - 1).checked_sub(self.powers.leading_zeros()) else {
            return Bytes::ZERO;
        };
        let power = power as usize;
        let part = (u32::BITS - 1 - self.parts[power].leading_zeros()) as usize;
        self.list(blocks, power * PARTS + part)
            .map(|(_, block)| block.size)
            .max()
            .unwrap_or(Bytes::ZERO)
    }

    /// The smallest block of at least this size. Looks at all of them.
    pub(crate) fn smallest(&self, blocks: &Blocks, size: Bytes) -> Option<BlockId> {
        self.at_least(blocks, size)
            .min_by_key(|&id| blocks.get(id).size)
    }

    /// All free blocks of at least this size, in no order.
    pub(crate) fn at_least<'a>(
        &'a self,
        blocks: &'a Blocks,
        size: Bytes,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let mut bin = bin_of(size);
        std::iter::from_fn(move || {
            let here = self.used_from(bin)?;
            bin = here + 1;
            Some(self.list(blocks, here))
        })
        .flatten()
        .filter(move |(_, block)| block.size >= size)
        .map(|(id, _)| id)
    }

    /// Blocks in all lists.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::heap::block::{ChunkId, State};
    use proptest::prelude::*;

    fn filled(sizes: &[u64]) -> (Blocks, FreeIndex) {
        let (mut blocks, mut index) = (Blocks::new(), FreeIndex::new());
        for &units in sizes {
            let id = blocks.insert(
                Address::new(0),
                Bytes::new(units * 512),
                ChunkId(0),
                State::Free,
            );
            index.insert(&mut blocks, id);
        }
        (blocks, index)
    }

    #[test]
    fn an_exact_size_is_preferred() {
        let (blocks, index) = filled(&[4097, 4100, 4099, 9000]);
        let found = index.find(&blocks, Bytes::new(4099 * 512)).unwrap();
        assert_eq!(blocks.get(found).size, Bytes::new(4099 * 512));
    }

    #[test]
    fn the_last_resort_finds_what_a_bounded_search_passes_over() {
        let mut sizes = vec![4100];
        sizes.extend([4097; 100]);
        let (blocks, index) = filled(&sizes);
        let want = Bytes::new(4098 * 512);
        assert_eq!(index.find(&blocks, want), None);
        let found = index.find_anywhere(&blocks, want).unwrap();
        assert_eq!(blocks.get(found).size, Bytes::new(4100 * 512));
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            sizes in prop::collection::vec(prop_oneof![1u64..64, 1u64..1 << 40], 0..12),
            want in prop_oneof![1u64..64, 1u64..1 << 40],
            dropped in 0usize..12,
        ) {
            let (mut blocks, mut index) = filled(&sizes);
            let mut left = sizes.clone();
            if dropped < left.len() {
                index.remove(&mut blocks, BlockId(u32::try_from(dropped).unwrap()));
                left.remove(dropped);
            }
            let smallest = left.iter().copied().filter(|&units| units >= want).min();
            let found = index.find(&blocks, Bytes::new(want * 512)).map(|id| blocks.get(id).size.get() / 512);
            prop_assert_eq!(found, smallest);
            let best = index.smallest(&blocks, Bytes::new(want * 512)).map(|id| blocks.get(id).size.get() / 512);
            prop_assert_eq!(best, smallest);
            let largest = left.iter().copied().max().unwrap_or(0);
            prop_assert_eq!(index.largest(&blocks), Bytes::new(largest * 512));
            let fitting = index.at_least(&blocks, Bytes::new(want * 512)).count();
            prop_assert_eq!(fitting, left.iter().filter(|&&units| units >= want).count());
            prop_assert_eq!(index.count(), left.len() as u64);
        }
    }
}
