//! What leaves the heap: chunks on their way back to the driver, and everything
//! when the context is gone.
//!
//! Invariant: it is out of the page map before the driver hears of it, since
//! the driver may hand the same addresses out at once. Cost: looks at all
//! chunks, or at all blocks of what leaves.

use crate::address::Bytes;
use crate::heap::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::heap::chunk::{Chunk, Chunks};
use crate::heap::indexes::Indexes;
use crate::heap::{Heap, Span};
use crate::strategy::Pool;

/// A chunk that left, for the driver to take back.
pub(crate) struct LeftChunk {
    pub(crate) span: Span,
    pub(crate) pool: Pool,
    /// What of it was in limbo: the driver's own free waits for the device.
    pub(crate) in_limbo: Vec<Block>,
    /// How many free blocks it had beside others, and their bytes.
    pub(crate) split: u64,
    pub(crate) split_bytes: Bytes,
}

impl Heap {
    /// Takes out the chunks without a live block, with what of them is in limbo:
    /// the driver's own free waits for the device. But a chunk with a block that
    /// was freed from another context stays: the program's free would have
    /// waited for that context too.
    pub(crate) fn take_idle(&mut self) -> Vec<LeftChunk> {
        let stays = |chunk: &Chunk| {
            let mut blocks = self.blocks.walk(chunk.first);
            blocks.any(|(_, block)| block.is_used_elsewhere())
        };
        let chunks = self.chunks.iter();
        let idle: Vec<ChunkId> = chunks
            .filter(|(_, chunk)| chunk.live == 0 && !chunk.kept && !stays(chunk))
            .map(|(id, _)| id)
            .collect();
        self.take_chunks(idle)
    }

    /// Takes out a direct allocation in limbo, unless it was freed from another
    /// context; its record stays until its epoch ends.
    pub(crate) fn take_direct(&mut self, id: BlockId) -> Option<Block> {
        let block = self.blocks.get_mut(id);
        let waits = block.chunk == ChunkId::DIRECT && block.state == State::Limbo;
        if !waits || block.elsewhere {
            return None;
        }
        block.state = State::Gone;
        Some(*block)
    }

    /// Takes out oversize chunks that are free, for `need` bytes: the smallest
    /// that is enough by itself; where none is, the largest, until they are
    /// enough together.
    pub(crate) fn take_oversize(&mut self, need: Bytes) -> Vec<LeftChunk> {
        let oversize = self.indexes.oversize();
        let enough = oversize.smallest(&self.blocks, need);
        let mut free: Vec<BlockId> = match enough {
            Some(id) => vec![id],
            None => oversize.at_least(&self.blocks, Bytes::ZERO).collect(),
        };
        free.sort_by_key(|&id| std::cmp::Reverse(self.blocks.get(id).size));
        let chunks: Vec<ChunkId> = free.iter().map(|&id| self.blocks.get(id).chunk).collect();
        self.take_enough(chunks, need)
    }

    pub(super) fn take_chunks(&mut self, ids: Vec<ChunkId>) -> Vec<LeftChunk> {
        self.take_enough(ids, Bytes::MAX)
    }

    /// Takes out these chunks, one by one, until they are enough.
    pub(super) fn take_enough(
        &mut self,
        ids: impl IntoIterator<Item = ChunkId>,
        need: Bytes,
    ) -> Vec<LeftChunk> {
        let mut left = Vec::new();
        let mut sum = Bytes::ZERO;
        for id in ids {
            if sum >= need {
                break;
            }
            if let Some(chunk) = self.take_chunk(id) {
                sum = sum.saturating_add(chunk.span.size);
                left.push(chunk);
            }
        }
        left
    }

    fn take_chunk(&mut self, id: ChunkId) -> Option<LeftChunk> {
        let chunk = self.chunks.remove(id)?;
        let (address, size, pool) = (chunk.address, chunk.size, chunk.pool);
        let blocks: Vec<(BlockId, Block)> = self
            .blocks
            .walk(chunk.first)
            .map(|(id, block)| (id, *block))
            .collect();
        let mut left = LeftChunk {
            span: Span { address, size },
            pool,
            in_limbo: Vec::new(),
            split: 0,
            split_bytes: Bytes::ZERO,
        };
        for &(id, block) in &blocks {
            if block.state == State::Free {
                if blocks.len() > 1 {
                    left.split += 1;
                    left.split_bytes = left.split_bytes.saturating_add(block.size);
                }
                self.indexes.leave(&mut self.blocks, id, pool);
                self.blocks.remove(id);
            } else {
                self.blocks.get_mut(id).state = State::Gone;
                left.in_limbo.push(block);
            }
        }
        self.map.release_chunk(address, size);
        Some(left)
    }

    /// Forgets everything: the context is gone and its memory with it.
    pub(crate) fn clear(&mut self) {
        for (_, block) in self.blocks.all() {
            if block.state == State::Live && block.chunk == ChunkId::DIRECT {
                self.map.release_direct(block.address);
            } else if block.state == State::Live {
                self.map.clear_block(block.address);
            }
        }
        for (_, chunk) in self.chunks.iter() {
            self.map.release_chunk(chunk.address, chunk.size);
        }
        self.chunks = Chunks::new();
        self.blocks = Blocks::new();
        self.indexes = Indexes::new();
        self.pages.clear();
    }
}
