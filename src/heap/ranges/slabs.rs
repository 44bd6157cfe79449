//! Slabs of ranges: units that serve small requests.
//!
//! A slab is a chunk of one unit inside a block of a range. It is made of a free unit,
//! and once it is empty its unit is a free part of the range again: neither calls the
//! driver. So a program whose small blocks and whose large ones are many at different
//! times moves no unit between the two. A slab is made at the start of the
//! highest free block and large blocks are cut from below, so that slabs which stay
//! hardly divide the rest.
//!
//! Owns which block of a range each slab lies in. Invariant: that block is in no index,
//! and has memory throughout; the slab's own blocks tile it. Cost: to make one takes a
//! look at the free blocks that have whole units; to end the empty ones a look at each.

use crate::address::Bytes;
use crate::heap::block::{BlockId, ChunkId, State};
use crate::heap::chunk::Chunk;
use crate::heap::ranges::window::Window;
use crate::heap::ranges::{Claim, Splits};
use crate::heap::{Heap, Joined, Span};
use crate::strategy::Pool;

impl Heap {
    /// Makes a slab of a free unit, if there is one: its one free block.
    pub(crate) fn carve_slab(&mut self) -> Option<(BlockId, Splits)> {
        let blocks = self.blocks_with_units();
        let (id, whole) = blocks.into_iter().max_by_key(|(_, whole)| whole.address)?;
        let span = Span {
            address: whole.address,
            size: self.ranges.unit(),
        };
        let (claim, splits) = self.claim(id, span);
        Some((self.end_as_slab(&claim), splits))
    }

    /// Makes a slab of a claim of one unit, which has memory: its one free block.
    pub(crate) fn end_as_slab(&mut self, claim: &Claim) -> BlockId {
        if let Some(range) = self.range_mut(claim.chunk) {
            range.claims -= 1;
        }
        self.blocks.get_mut(claim.block).state = State::Slab;
        let Span { address, size } = claim.span;
        let slab = self.chunks.insert(Chunk {
            address,
            size,
            pool: Pool::Small,
            first: BlockId::NONE,
            live: 0,
            kept: true,
            empty_since: 0,
        });
        let id = self.blocks.insert(address, size, slab, State::Free);
        if let Some(chunk) = self.chunks.get_mut(slab) {
            chunk.first = id;
        }
        self.indexes.enter(&mut self.blocks, id, Pool::Small);
        self.ranges.slabs.insert(slab, claim.block);
        id
    }

    /// A window of the lowest unit that is missing, for a slab; none where no range
    /// misses one.
    pub(crate) fn unit_window(&self) -> Option<Window> {
        let (at, hole) = self.lowest_hole()?;
        Some(Window::of_unit(hole, at, self.ranges.unit()))
    }

    /// Ends the slabs that are empty: each with what it was joined to.
    pub(crate) fn end_empty_slabs(&mut self) -> Vec<(Bytes, Joined)> {
        let is_empty = |(slab, _): &(&ChunkId, &BlockId)| {
            let first = self
                .chunks
                .get(**slab)
                .map(|chunk| self.blocks.get(chunk.first));
            first.is_some_and(|first| first.state == State::Free && !first.is_part())
        };
        let slabs = self.ranges.slabs.iter().filter(is_empty);
        let empty: Vec<(ChunkId, BlockId)> = slabs.map(|(&slab, &block)| (slab, block)).collect();
        let mut joined = Vec::new();
        for (slab, block) in empty {
            self.ranges.slabs.remove(&slab);
            let Some(chunk) = self.chunks.remove(slab) else {
                continue;
            };
            self.indexes
                .leave(&mut self.blocks, chunk.first, Pool::Small);
            self.blocks.remove(chunk.first);
            joined.push(self.become_free(block));
        }
        joined
    }

    /// How many slabs there are in a range, but for those that a pause took away.
    pub(super) fn slabs_in(&self, range: ChunkId) -> usize {
        let slabs = self.ranges.slabs.iter();
        slabs
            .filter(|&(&slab, &block)| self.blocks.get(block).chunk == range && !self.is_gone(slab))
            .count()
    }
}
