//! What leaves the heap: chunks on their way back to the driver, and everything
//! when the context is gone. An *empty* chunk, which is one free block, can go
//! before memory is short, the oldest first.
//!
//! Owns what ages are told by. Invariant: memory is out of the page map before
//! the driver hears of it, since the driver may hand the same addresses out at
//! once; of two empty chunks the one with the smaller stamp has been empty for
//! longer; with a clock the stamps are nanoseconds. Cost: a stamp when a chunk
//! becomes empty, which reads the clock only where idle memory decays; what
//! leaves is looked for among all chunks.

use std::time::{Duration, Instant};

use crate::address::Bytes;
use crate::config::Decay;
use crate::heap::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::heap::chunk::{Chunk, Chunks};
use crate::heap::indexes::Indexes;
use crate::heap::ranges::Remains;
use crate::heap::{Heap, LeftChunk, Span};
use crate::strategy::Pool;

/// What ages are told by.
pub(super) enum Ages {
    /// The order in which chunks became empty.
    Order(u64),
    /// Time, because some of it is too long.
    Clock {
        start: Instant,
        /// For how long a chunk may be empty, in nanoseconds.
        most: u64,
        /// Before this no chunk has been empty for so long.
        due: u64,
    },
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Ages {
    pub(super) fn new(decay: Decay) -> Ages {
        match decay {
            Decay::Never => Ages::Order(0),
            Decay::After(most) => Ages::Clock {
                start: Instant::now(),
                most: ns(most),
                due: 0,
            },
        }
    }

    fn stamp(&mut self) -> u64 {
        match self {
            Ages::Order(last) => {
                *last += 1;
                *last
            }
            Ages::Clock { start, .. } => ns(start.elapsed()),
        }
    }
}

impl Heap {
    /// Takes out the chunks without a live block, with what of them is in limbo:
    /// the driver's own free waits for the device. But a chunk with a block that
    /// was freed from another context stays: the program's free would have
    /// waited for that context too.
    pub(crate) fn take_idle(&mut self) -> Vec<LeftChunk> {
        self.take_idle_if(|_, _| true, Bytes::MAX)
    }

    /// The same of those of which something is in limbo, until they are so many bytes.
    pub(crate) fn take_idle_in_limbo(&mut self, need: Bytes) -> Vec<LeftChunk> {
        let waits = |heap: &Heap, chunk: &Chunk| {
            let mut blocks = heap.blocks.walk(chunk.first);
            blocks.any(|(_, block)| block.state == State::Limbo)
        };
        self.take_idle_if(waits, need)
    }

    fn take_idle_if(
        &mut self,
        is_wanted: impl Fn(&Heap, &Chunk) -> bool,
        need: Bytes,
    ) -> Vec<LeftChunk> {
        let stays = |chunk: &Chunk| {
            let mut blocks = self.blocks.walk(chunk.first);
            blocks.any(|(_, block)| block.is_used_elsewhere())
        };
        let leaves = |chunk: &Chunk| chunk.live == 0 && !chunk.kept && !stays(chunk);
        let chunks = self.chunks.iter();
        let idle: Vec<ChunkId> = chunks
            .filter(|(_, chunk)| leaves(chunk) && is_wanted(self, chunk))
            .map(|(id, _)| id)
            .collect();
        self.take_enough(idle, need)
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
        let oversize = &self.indexes.oversize;
        let enough = oversize.smallest(&self.blocks, need);
        let mut free: Vec<BlockId> = match enough {
            Some(id) => vec![id],
            None => oversize.at_least(&self.blocks, Bytes::ZERO).collect(),
        };
        free.sort_by_key(|&id| std::cmp::Reverse(self.blocks.get(id).size));
        let chunks: Vec<ChunkId> = free.iter().map(|&id| self.blocks.get(id).chunk).collect();
        self.take_enough(chunks, need)
    }

    /// Takes out these chunks, one by one, until they are enough.
    fn take_enough(
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

    /// Forgets everything: the context is gone and its memory with it, but for what
    /// was mapped.
    pub(crate) fn clear(&mut self) -> Remains {
        for (_, block) in self.blocks.all() {
            if block.state == State::Live && block.chunk == ChunkId::DIRECT {
                self.map.release_direct(block.address);
            } else if block.state == State::Live {
                self.map.clear_block(block.address);
            }
        }
        for (id, chunk) in self.chunks.iter() {
            for span in self.held_by(id, chunk) {
                self.map.release_chunk(span.address, span.size);
            }
        }
        self.chunks = Chunks::new();
        self.blocks = Blocks::new();
        self.indexes = Indexes::new();
        self.pages.clear();
        self.take_ranges()
    }

    /// Notes the age of a chunk that has just become one free block.
    pub(super) fn became_empty(&mut self, id: BlockId) {
        if let Some(chunk) = self.chunks.get_mut(self.blocks.get(id).chunk) {
            chunk.empty_since = self.ages.stamp();
        }
    }

    /// The empty chunks, with since when they are.
    fn empty(&self) -> impl Iterator<Item = (u64, ChunkId)> + '_ {
        let is_empty = |first: BlockId| {
            let first = self.blocks.get(first);
            first.state == State::Free && first.next == BlockId::NONE
        };
        self.chunks
            .iter()
            .filter(move |(_, chunk)| chunk.live == 0 && !chunk.kept && is_empty(chunk.first))
            .map(|(id, chunk)| (chunk.empty_since, id))
    }

    /// Takes out all empty chunks.
    pub(crate) fn take_empty(&mut self) -> Vec<LeftChunk> {
        let empty: Vec<ChunkId> = self.empty().map(|(_, id)| id).collect();
        self.take_enough(empty, Bytes::MAX)
    }

    /// Takes out so many bytes of empty chunks, or somewhat more, the oldest
    /// first. Slabs of small requests stay: they are many, and give little.
    pub(crate) fn take_oldest(&mut self, need: Bytes) -> Vec<LeftChunk> {
        let is_slab = |id| {
            let chunk = self.chunks.get(id);
            chunk.is_some_and(|chunk| chunk.pool == Pool::Small)
        };
        let mut empty: Vec<(u64, ChunkId)> = self.empty().filter(|&(_, id)| !is_slab(id)).collect();
        empty.sort_by_key(|&(since, _)| since);
        self.take_enough(empty.into_iter().map(|(_, id)| id), need)
    }

    /// Takes out the chunks that have been empty for too long.
    pub(crate) fn take_decayed(&mut self) -> Vec<LeftChunk> {
        let Ages::Clock { start, most, due } = self.ages else {
            return Vec::new();
        };
        let now = ns(start.elapsed());
        if now < due {
            return Vec::new();
        }
        let mut next = now.saturating_add(most);
        let mut decayed = Vec::new();
        for (since, id) in self.empty() {
            let end = since.saturating_add(most);
            if end <= now {
                decayed.push(id);
            } else {
                next = next.min(end);
            }
        }
        // What becomes empty from now on has all its time before it.
        if let Ages::Clock { due, .. } = &mut self.ages {
            *due = next;
        }
        self.take_enough(decayed, Bytes::MAX)
    }
}
