//! What leaves the books: memory on its way back to the driver, and everything
//! when the context is gone.
//!
//! Invariant: it is out of the page map before the driver hears of it, since
//! the driver may hand the same addresses out at once. Cost: looks at all
//! chunks, or at all blocks of what leaves.

use std::sync::Arc;

use crate::address::Bytes;
use crate::arena::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::arena::books::indexes::Indexes;
use crate::arena::books::{Books, Region};
use crate::arena::chunk::{Chunk, Chunks};
use crate::stats::{ArenaStats, Snapshot};

/// Whether the work of another context may still use a freed block, and the
/// driver's free in the arena's own would not wait for it.
fn in_use_elsewhere(block: &Block) -> bool {
    block.state == State::Limbo && block.elsewhere
}

impl<F: Clone> Books<F> {
    /// Takes everything that can go back out of the books: the chunks without
    /// a live block, and the direct allocations in limbo. What of it is in
    /// limbo goes with it: the driver's own free waits for the device. But what
    /// was freed from another context stays until its fence is reached: the
    /// program's free would have waited for that context too.
    pub(crate) fn take_idle(&mut self) -> Vec<Region> {
        self.put_back_over();
        let stays = |chunk: &Chunk| {
            let mut blocks = self.blocks.walk(chunk.first);
            blocks.any(|(_, block)| in_use_elsewhere(block))
        };
        let idle: Vec<ChunkId> = self
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.live == 0 && !chunk.kept && !stays(chunk))
            .map(|(id, _)| id)
            .collect();
        let mut regions: Vec<Region> = idle
            .into_iter()
            .filter_map(|id| self.take_chunk(id))
            .collect();
        for id in self.limbo.blocks() {
            let block = *self.blocks.get(id);
            let is_direct = block.chunk == ChunkId::DIRECT && block.state == State::Limbo;
            if is_direct && !block.elsewhere {
                self.direct_limbo = self.direct_limbo.saturating_sub(block.size);
                self.blocks.get_mut(id).state = State::Gone;
                let region = Region {
                    address: block.address,
                    size: block.size,
                };
                let piece = self.piece(&block);
                self.tally.free_completed(piece);
                self.tally.segment_released(region, piece.pool);
                regions.push(region);
            }
        }
        regions
    }

    /// Whether limbo has what `take_idle` leaves there.
    pub(crate) fn is_used_elsewhere(&self) -> bool {
        let mut blocks = self.limbo.blocks().map(|id| self.blocks.get(id));
        blocks.any(in_use_elsewhere)
    }

    /// Takes oversize chunks that are free out of the books, for `need` bytes:
    /// the smallest that is enough by itself; where none is, the largest, until
    /// they are enough together.
    pub(crate) fn take_oversize(&mut self, need: Bytes) -> Vec<Region> {
        let oversize = self.indexes.oversize();
        let enough = oversize.smallest(&self.blocks, need);
        let mut free: Vec<BlockId> = match enough {
            Some(id) => vec![id],
            None => oversize.at_least(&self.blocks, Bytes::ZERO).collect(),
        };
        free.sort_by_key(|&id| std::cmp::Reverse(self.blocks.get(id).size));
        let mut regions = Vec::new();
        let mut sum = Bytes::ZERO;
        for id in free {
            if sum >= need {
                break;
            }
            let block = *self.blocks.get(id);
            sum = sum.saturating_add(block.size);
            regions.extend(self.take_chunk(block.chunk));
        }
        regions
    }

    pub(super) fn take_chunk(&mut self, id: ChunkId) -> Option<Region> {
        let Chunk {
            address,
            size,
            pool,
            first,
            ..
        } = *self.chunks.get(id)?;
        let blocks: Vec<(BlockId, Block)> = self
            .blocks
            .walk(first)
            .map(|(id, block)| (id, *block))
            .collect();
        let (mut split, mut split_bytes) = (0, Bytes::ZERO);
        for &(id, block) in &blocks {
            if block.state == State::Free {
                if blocks.len() > 1 {
                    split += 1;
                    split_bytes = split_bytes.saturating_add(block.size);
                }
                self.indexes.leave(&mut self.blocks, id, pool);
                self.blocks.remove(id);
            } else {
                self.blocks.get_mut(id).state = State::Gone;
                let piece = self.piece(&block);
                self.tally.free_completed(piece);
            }
        }
        self.chunks.remove(id);
        self.map.release_chunk(address, size);
        let region = Region { address, size };
        self.tally.split_gone(pool, split, split_bytes);
        self.tally.left_idle(size);
        self.tally.segment_released(region, pool);
        self.tally.chunk_released();
        Some(region)
    }

    /// The driver refused to take back what counts for so much. False where it
    /// is gone with its context.
    pub(crate) fn loses(&mut self, given: Bytes) -> bool {
        if !self.retired {
            self.lost = self.lost.saturating_add(given);
        }
        !self.retired
    }

    /// Forgets everything, because the context and its memory are gone, and
    /// returns how many bytes of the limit that were. What was counted until
    /// then stays, in this box, and what it held, in this snapshot.
    pub(crate) fn retire(&mut self, mut stats: Box<ArenaStats>, held: Arc<Snapshot>) -> Bytes {
        if self.retired {
            return Bytes::ZERO;
        }
        self.retired = true;
        *stats = self.picture();
        // Where the host had no memory for a snapshot it does not say.
        let ended_us = held.ended_us;
        stats.ended_us = ended_us.or_else(|| Some(self.tally.history().now_us()));
        self.ended = Some(stats);
        self.held = Some(held);
        self.tally.history_mut().end();
        let mut index = 0;
        while let Some((_, &block)) = self.blocks.find(index) {
            if block.state == State::Live && block.chunk == ChunkId::DIRECT {
                self.map.release_direct(block.address);
            } else if block.state == State::Live {
                self.map.clear_block(block.address);
            }
            index += 1;
        }
        for (_, chunk) in self.chunks.iter() {
            self.map.release_chunk(chunk.address, chunk.size);
        }
        self.chunks = Chunks::new();
        self.blocks = Blocks::new();
        self.indexes = Indexes::new();
        self.limbo.clear();
        self.direct_limbo = Bytes::ZERO;
        if let Some(packing) = &mut self.packing {
            packing.forget();
        }
        let taken = (self.pages.charged(self.tally.reserved())).saturating_add(self.lost);
        self.lost = Bytes::ZERO;
        self.pages.clear();
        self.tally.retired();
        taken
    }
}
