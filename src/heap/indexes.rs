//! The free indexes of an arena: which free blocks there are, by pool.
//!
//! Owns them, and keeps the idle chunks of the large pool, each one block,
//! apart from the pieces: a piece serves a request without spoiling anything,
//! an idle chunk could go back or serve what it was taken for. Invariant: a
//! free block is in exactly one of them. Cost: that of one free index, twice
//! for a search in the large pool.

use crate::address::Bytes;
use crate::heap::banks::Banks;
use crate::heap::block::{BlockId, Blocks};
use crate::heap::free_index::FreeIndex;
use crate::strategy::Pool;

pub(super) struct Indexes {
    pub(super) small: Banks,
    /// Of large chunks in use.
    pub(super) pieces: FreeIndex,
    /// Of the large pool; those of the others are with their pieces.
    pub(super) idle: FreeIndex,
    pub(super) oversize: FreeIndex,
}

impl Indexes {
    pub(super) fn new() -> Indexes {
        Indexes {
            small: Banks::new(),
            pieces: FreeIndex::new(),
            idle: FreeIndex::new(),
            oversize: FreeIndex::new(),
        }
    }

    /// Enters a block that has become free.
    #[inline]
    pub(super) fn enter(&mut self, blocks: &mut Blocks, id: BlockId, pool: Pool) {
        match self.beside_small(blocks, id, pool) {
            Some(index) => index.insert(blocks, id),
            None => self.small.insert(blocks, id),
        }
    }

    /// Takes a block out, as it was entered.
    #[inline]
    pub(super) fn leave(&mut self, blocks: &mut Blocks, id: BlockId, pool: Pool) {
        match self.beside_small(blocks, id, pool) {
            Some(index) => index.remove(blocks, id),
            None => self.small.remove(blocks, id),
        }
    }

    #[inline]
    fn beside_small(&mut self, blocks: &Blocks, id: BlockId, pool: Pool) -> Option<&mut FreeIndex> {
        match pool {
            Pool::Small => None,
            Pool::Large if blocks.get(id).is_part() => Some(&mut self.pieces),
            Pool::Large => Some(&mut self.idle),
            Pool::Oversize => Some(&mut self.oversize),
        }
    }

    /// Blocks of a pool.
    pub(super) fn count(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Small => self.small.count(),
            Pool::Large => self.pieces.count() + self.idle.count(),
            Pool::Oversize => self.oversize.count(),
        }
    }

    /// The size of the largest block. Looks at the whole of each index's
    /// highest list.
    pub(super) fn largest(&self, blocks: &Blocks) -> Bytes {
        [&self.pieces, &self.idle, &self.oversize]
            .into_iter()
            .map(|index| index.largest(blocks))
            .fold(self.small.largest(blocks), Bytes::max)
    }
}
