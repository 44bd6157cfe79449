//! What others may have mapped as well: it stays where it is while its block is live.
//!
//! The program names bytes; of them, what it has blocks in is exported, each byte until
//! its block is freed. Who had them may still map them then, as after a free of CUDA's.
//!
//! Owns the exported spans of each range, by address. Invariant: they lie apart. Cost: a
//! search among them at each free while there are any; an export walks the blocks that it
//! names.

use crate::address::Address;
use crate::heap::block::{Block, BlockId, ChunkId, State};
use crate::heap::ranges::end;
use crate::heap::ranges::paused::common;
use crate::heap::{Heap, Span};

impl Heap {
    /// Others may map what lies in these addresses of a range. Addresses behind the range
    /// are not its.
    pub(crate) fn note_exported(&mut self, span: Span) {
        let chunk = self.range_at(span.address).map(|range| range.chunk);
        let Some(first) = chunk.and_then(|chunk| self.block_before(chunk, span.address)) else {
            return;
        };
        let touched = (self.blocks.walk(first))
            .skip_while(|(_, block)| end(block.span()) <= span.address)
            .take_while(|(_, block)| block.address < end(span));
        let parts: Vec<Span> = touched
            .flat_map(|(id, block)| self.held_in(id, block))
            .flat_map(|held| common(&[held], &[span]))
            .filter(|part| !part.size.is_zero())
            .collect();
        for part in parts {
            self.end_exports(part);
            if let Some(range) = self.range_at(part.address) {
                range.exported.insert(part.address, part.size);
                self.ranges.has_exports = true;
            }
        }
    }

    /// What the program has of a block of a range: all, nothing, or blocks of a slab.
    fn held_in(&self, id: BlockId, block: &Block) -> Vec<Span> {
        match block.state {
            State::Live => vec![block.span()],
            State::Slab => {
                let mut slabs = self.ranges.slabs.iter();
                let slab = slabs.find(|(_, lies_in)| **lies_in == id);
                let slab = slab.and_then(|(&slab, _)| self.chunks.get(slab));
                let blocks = slab
                    .into_iter()
                    .flat_map(|slab| self.blocks.walk(slab.first));
                let blocks = blocks.map(|(_, block)| block);
                blocks
                    .filter(|block| block.state == State::Live && !self.is_kept(block))
                    .map(Block::span)
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// A block of a range that begins there or before: the nearest live one, or the first.
    fn block_before(&self, range: ChunkId, at: Address) -> Option<BlockId> {
        let near = self.start_below(at);
        let near = near.and_then(|start| self.live_block(start));
        let near = near.and_then(|(id, block)| match self.ranges.slabs.get(&block.chunk) {
            Some(&slab) => Some(slab),
            None => (block.chunk == range).then_some(id),
        });
        let near = near.filter(|&id| self.blocks.get(id).chunk == range);
        near.or_else(|| Some(self.chunks.get(range)?.first))
    }

    /// Whether a free may end an export.
    #[inline]
    pub(crate) fn has_exports(&self) -> bool {
        self.ranges.has_exports
    }

    /// Nothing of this is exported any more.
    #[cold]
    pub(crate) fn end_exports(&mut self, freed: Span) {
        let Some(range) = self.range_at(freed.address) else {
            return;
        };
        let exported = &mut range.exported;
        // They lie apart: of those that begin before it ends, the last reach into it.
        while let Some((&address, &size)) = exported.range(..end(freed)).next_back() {
            let to = end(Span { address, size });
            if to <= freed.address {
                break;
            }
            exported.remove(&address);
            if to > end(freed) {
                exported.insert(end(freed), to.offset_from(end(freed)));
            }
            if address < freed.address {
                exported.insert(address, freed.address.offset_from(address));
            }
        }
        let mut ranges = self.ranges.all.iter();
        self.ranges.has_exports = ranges.any(|range| !range.exported.is_empty());
    }
}
