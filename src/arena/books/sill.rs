//! The sill of a chunk: its first bytes, which no block has.
//!
//! A free that does not come by us, from a runtime that looks past preloaded
//! libraries, reaches the driver. Where a block stands there, and the driver
//! knows the address, the whole chunk goes, under all its other blocks; no
//! other address means anything to the driver, which answers with an error.
//!
//! Owns nothing: a chunk has its sill while its lowest block starts above it.
//! An idle chunk is whole, without a sill, and so is one that is handed out
//! whole: then the driver's free takes one block, and others open the chunk by
//! its address. The sill comes when the chunk is cut for less, and goes when all
//! of it is free again. Invariant: no chunk is larger, or taken, because of a
//! sill (but for the last of 4096 blocks of 512 bytes): a request that lacks
//! just that much gets it before more is taken from the driver. Cost: a comparison for each block that is handed out, and before
//! a chunk is taken a look at the free blocks of one bin.

use crate::address::Bytes;
use crate::arena::block::{Block, BlockId};
use crate::arena::books::{Books, Want};
use crate::arena::chunk::Chunk;
use crate::strategy::Pool;

impl<F: Clone> Books<F> {
    /// The sill that a chunk has.
    pub(in crate::arena) fn sill_of(&self, chunk: &Chunk) -> Bytes {
        let lowest = self.blocks.get(chunk.first);
        lowest.address.offset_from(chunk.address)
    }

    /// The sill below a block, if it is the lowest of its chunk.
    pub(super) fn sill_below(&self, id: BlockId, block: &Block) -> Bytes {
        let chunk = self.chunks.get(block.chunk);
        let chunk = chunk.filter(|chunk| chunk.first == id);
        chunk.map_or(Bytes::ZERO, |chunk| self.sill_of(chunk))
    }

    /// A free block that serves the request with the sill below it, which it
    /// gets.
    #[cold]
    pub(super) fn join_sill(&mut self, want: Want) -> Option<BlockId> {
        let lacking = want.size.saturating_sub(self.sill);
        if self.sill.is_zero() || lacking.is_zero() {
            return None;
        }
        let index = match want.pool {
            Pool::Small => self.indexes.small(),
            Pool::Large => self.indexes.pieces(),
            Pool::Oversize => return None,
        };
        let id = index
            .exactly(&self.blocks, lacking)
            .find(|&id| !self.sill_below(id, self.blocks.get(id)).is_zero())?;
        let (indexes, blocks) = (&mut self.indexes, &mut self.blocks);
        indexes.leave(blocks, id, want.pool);
        let block = blocks.get_mut(id);
        block.address = self.chunks.get(block.chunk)?.address;
        block.size = want.size;
        indexes.enter(blocks, id, want.pool);
        self.tally.sill_joined(want.pool, self.sill);
        Some(id)
    }
}
