//! Where an address lies, for what is asked of the driver about it.
//!
//! Owns nothing. Cost: constant where a block starts; anywhere else a search
//! of the page map, whatever number of blocks and chunks there are.

use crate::address::{Address, Bytes};
use crate::heap::Heap;
use crate::heap::block::{Block, BlockId, ChunkId, State};
use crate::library::LibraryId;
use crate::page_map::{SLOT, SlotRef, SlotWord};

/// A live block and the driver's allocation that it lies in. What the driver
/// says of a base, a size or a handle is said of the allocation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Where the block starts.
    pub block: Address,
    /// The block's size in whole slots.
    pub size: Bytes,
    /// What the program asked for.
    pub requested: Bytes,
    /// Where the driver's allocation starts.
    pub allocation: Address,
    /// The allocation's size in whole slots.
    pub allocation_size: Bytes,
    /// Whether the driver made the allocation for the block alone, and gets it
    /// back when that is freed.
    pub is_direct: bool,
    /// Whether its memory is mapped to reserved addresses: then the driver knows of no
    /// allocation, and `allocation` is the block itself.
    pub is_mapped: bool,
}

impl Located {
    /// Whether the block is all of an allocation of the driver's.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.is_mapped && self.size == self.allocation_size
    }
}

/// What the program asked for, and which of its libraries: of a block that threads
/// may keep, its word knows.
fn asked(word: SlotWord, block: &Block) -> (Bytes, LibraryId) {
    if word.is_cacheable() {
        (word.request(), word.library())
    } else {
        (block.requested, block.library)
    }
}

impl Heap {
    /// What the page map says of a block that starts there.
    pub(crate) fn mapped(&self, address: Address) -> Option<SlotWord> {
        self.map.spot(address).map(SlotRef::word)
    }

    /// The live block that starts at this address.
    pub(crate) fn live_block(&self, address: Address) -> Option<(BlockId, Block)> {
        let word = self.map.live(self.arena, address)?;
        self.live_block_of(word, address)
    }

    /// The block that starts at this address, and is live or kept by a thread, of
    /// which this is said.
    pub(super) fn live_block_of(
        &self,
        word: SlotWord,
        address: Address,
    ) -> Option<(BlockId, Block)> {
        let (id, block) = self.blocks.find(word.number()?)?;
        let is_it = block.state == State::Live && block.address == address;
        is_it.then(|| {
            let (requested, library) = asked(word, block);
            (
                id,
                Block {
                    requested,
                    library,
                    ..*block
                },
            )
        })
    }

    /// What the program asked for when it got a block, and which of its libraries.
    pub(crate) fn requested(&self, block: &Block) -> (Bytes, LibraryId) {
        let word = self.mapped(block.address);
        word.filter(|_| block.state == State::Live)
            .map_or((block.requested, block.library), |word| asked(word, block))
    }

    /// Whether a thread keeps a block.
    pub(crate) fn is_kept(&self, block: &Block) -> bool {
        block.state == State::Live && self.mapped(block.address).is_some_and(SlotWord::is_kept)
    }

    /// How much may be written from the start of a live block on: what was
    /// asked for, or the whole block. Of a direct allocation the driver gave
    /// what was asked for and no more.
    pub(crate) fn writable(&self, address: Address, whole: bool) -> Bytes {
        match self.live_block(address) {
            Some((_, block)) if whole && block.chunk != ChunkId::DIRECT => block.size,
            Some((_, block)) => block.requested,
            None => Bytes::ZERO,
        }
    }

    /// The live block around an address; see [`Located`].
    pub(crate) fn locate(&self, address: Address) -> Option<(BlockId, Located)> {
        let around = || self.block_around(address);
        let (id, block) = self.live_block(address).or_else(around)?;
        let chunk = self.chunks.get(block.chunk);
        // The driver knows a direct allocation by what was asked for, not by
        // the pages that it takes.
        let size = match chunk {
            Some(_) => block.size,
            None => block.requested.round_up(SLOT).unwrap_or(block.size),
        };
        let is_mapped = self.is_mapped(block.chunk);
        let (allocation, allocation_size) = chunk
            .filter(|_| !is_mapped)
            .map_or((block.address, size), |chunk| (chunk.address, chunk.size));
        let located = Located {
            block: block.address,
            size,
            requested: block.requested,
            allocation,
            allocation_size,
            is_direct: block.chunk == ChunkId::DIRECT,
            is_mapped,
        };
        Some((id, located))
    }

    /// The live block of a chunk that an address lies in.
    fn block_around(&self, address: Address) -> Option<(BlockId, Block)> {
        let start = self.start_below(address)?;
        let found = self.live_block(start);
        found.filter(|(_, block)| address.offset_from(start) < block.size)
    }

    /// Where the page map has the next block of a chunk start at an address or
    /// below it.
    pub(crate) fn start_below(&self, address: Address) -> Option<Address> {
        self.map.start_below(self.arena, address)
    }
}
