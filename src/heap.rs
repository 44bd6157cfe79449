//! The memory of an arena, block by block.
//!
//! Owns the chunks, the blocks and the free indexes, and writes the page map.
//! Makes no driver call, counts nothing and knows nothing of fences: each
//! operation says what happened, and its caller counts it. Invariant (checked
//! by the arena): the blocks of a chunk tile it; no two free neighbours; a block
//! is in the index of its pool exactly while it is free; the page map shows
//! exactly the live blocks. Cost: constant time for each operation, except those
//! that look at all chunks.

pub(crate) mod banks;
pub(crate) mod block;
pub(crate) mod chunk;
pub(crate) mod fit;
mod free_index;
mod indexes;
mod leave;
pub(crate) mod locate;
mod pages;
pub(crate) mod ranges;
pub(crate) mod table;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::config::Config;
use crate::library::LibraryId;
use crate::page_map::{ArenaId, PageMap, SlotWord};
use crate::stats::StackId;
use crate::strategy::{Pool, SMALL, most_waste};

use banks::Bank;
use block::{Block, BlockId, Blocks, ChunkId, State};
use chunk::{Chunk, Chunks};
use fit::Fit;
use indexes::Indexes;
use leave::Ages;
use pages::SharedPages;
use ranges::Ranges;

/// Memory that the driver gives or takes back in one call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
}

/// A free block that was cut to size.
pub(crate) struct Cut {
    pub(crate) id: BlockId,
    pub(crate) size: Bytes,
    /// What is left of it.
    pub(crate) rest: Bytes,
    /// It had neighbours in its chunk.
    pub(crate) shared: bool,
}

/// A block of a chunk that became free, with its free neighbours; in no index yet.
pub(crate) struct Joined {
    pub(crate) id: BlockId,
    pub(crate) pool: Pool,
    /// How many free neighbours it was merged with.
    pub(crate) neighbours: u64,
    /// The size of all together.
    pub(crate) whole: Bytes,
    /// There are others in the chunk.
    pub(crate) shared: bool,
}

impl Joined {
    /// Whether it is what a request gets, as it is.
    pub(crate) fn is(&self, fit: Fit) -> bool {
        self.whole == fit.size && self.pool == fit.pool
    }

    /// The same as if it had been entered and cut.
    pub(crate) fn uncut(&self) -> Cut {
        Cut {
            id: self.id,
            size: self.whole,
            rest: Bytes::ZERO,
            shared: self.shared,
        }
    }
}

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

/// See the module.
pub(crate) struct Heap {
    arena: ArenaId,
    map: Arc<PageMap>,
    /// The pool of the chunks whose small blocks threads may keep, if they may.
    pool_of_kept: Option<Pool>,
    /// Changed here alone, but for records whose chunk has left.
    pub(crate) blocks: Blocks,
    pub(crate) chunks: Chunks,
    indexes: Indexes,
    /// What an oversize block may have more than the request is below this.
    most_waste: Bytes,
    ages: Ages,
    /// Where small direct allocations lie.
    pub(crate) pages: SharedPages,
    pub(crate) ranges: Ranges,
}

impl Heap {
    /// One that holds nothing yet; `is_host`: its memory will be the host's.
    pub(crate) fn new(
        arena: ArenaId,
        map: Arc<PageMap>,
        config: &Config,
        is_host: bool,
        pool_of_kept: Option<Pool>,
    ) -> Heap {
        Heap {
            arena,
            map,
            pool_of_kept,
            blocks: Blocks::new(),
            chunks: Chunks::new(),
            indexes: Indexes::new(),
            most_waste: most_waste(&config.splitting),
            ages: Ages::new(config.decay),
            pages: SharedPages::new(is_host),
            ranges: Ranges::new(),
        }
    }

    /// Takes a free block out of its index and cuts it to size, unless it is
    /// oversize; `hand_out` comes next. Of a range what is left may be the upper part
    /// (see `Ranges::cuts_low`); elsewhere it is the lower part: a
    /// chunk's start is handed out last, since the driver knows it, and a free
    /// that reaches it past us would take all of the chunk.
    #[inline(always)]
    pub(crate) fn cut(&mut self, mut id: BlockId, fit: Fit) -> Cut {
        let (indexes, blocks) = (&mut self.indexes, &mut self.blocks);
        indexes.leave(blocks, id, fit.pool);
        let block = blocks.get(id);
        let shared = block.is_part();
        let rest = match fit.pool {
            Pool::Oversize => Bytes::ZERO,
            Pool::Small | Pool::Large => block.size.saturating_sub(fit.size),
        };
        let size = block.size.saturating_sub(rest);
        if fit.pool == Pool::Small && !shared {
            let block = blocks.get_mut(id);
            block.bank = fit.bank.unwrap_or(block.bank);
        }
        if !rest.is_zero() {
            if self.ranges.cuts_low(blocks.get(id), size) && fit.pool == Pool::Large {
                let high = blocks.split(id, size);
                indexes.enter(blocks, high, fit.pool);
            } else {
                let low = id;
                id = blocks.split(low, rest);
                indexes.enter(blocks, low, fit.pool);
            }
        }
        Cut {
            id,
            size,
            rest,
            shared,
        }
    }

    /// A block is the program's from now on: its address, and the size of its
    /// chunk, if that was idle until now.
    #[inline(always)]
    pub(crate) fn hand_out(
        &mut self,
        id: BlockId,
        request: Bytes,
        library: LibraryId,
    ) -> (Address, Option<Bytes>) {
        self.hand_out_of(self.pool_of_kept, id, request, library)
    }

    /// The same beside a ledger: what it counts by this call stack comes back to the
    /// arena, whatever threads keep.
    #[cold]
    pub(crate) fn hand_out_from(
        &mut self,
        id: BlockId,
        request: Bytes,
        library: LibraryId,
        stack: StackId,
    ) -> (Address, Option<Bytes>) {
        let pool_of_kept = self.pool_of_kept.filter(|_| stack == StackId::LEFT_OUT);
        self.hand_out_of(pool_of_kept, id, request, library)
    }

    #[inline(always)]
    fn hand_out_of(
        &mut self,
        pool_of_kept: Option<Pool>,
        id: BlockId,
        request: Bytes,
        library: LibraryId,
    ) -> (Address, Option<Bytes>) {
        let block = self.blocks.get_mut(id);
        block.state = State::Live;
        block.requested = request;
        block.library = library;
        let Block {
            address,
            size,
            chunk,
            ..
        } = *block;
        let chunk = self.chunks.get_mut(chunk);
        let may_be_kept = (chunk.as_ref()).is_some_and(|chunk| Some(chunk.pool) == pool_of_kept);
        let cacheable = || SlotWord::cacheable(self.arena, id.0, size, request, library);
        let word = may_be_kept.then(cacheable).flatten();
        let word = word.unwrap_or(SlotWord::in_chunk(id.0));
        self.map.set_block(address, word);
        let was_idle = chunk.and_then(|chunk| {
            chunk.live += 1;
            (chunk.live == 1).then_some(chunk.size)
        });
        (address, was_idle)
    }

    /// Takes the live block that starts there out of the page map; `returned`
    /// comes next.
    #[inline(always)]
    pub(crate) fn take_live(&mut self, address: Address) -> Option<(BlockId, Block)> {
        let spot = self.map.spot(address)?;
        let word = spot.live(self.arena)?;
        let (id, block) = self.live_block_of(word, address)?;
        if block.chunk == ChunkId::DIRECT {
            self.map.release_direct(address);
        } else if !spot.take(word) {
            return None;
        }
        Some((id, block))
    }

    /// Takes a block that a thread has kept out of the page map; `returned` comes next.
    pub(crate) fn take_kept(&mut self, address: Address) -> Option<(BlockId, Block)> {
        let spot = self.map.spot(address)?;
        let word = spot.word();
        let (id, block) = self.live_block_of(word, address)?;
        spot.clear();
        Some((id, block))
    }

    /// The pool of the chunks whose small blocks threads may keep.
    pub(crate) fn pool_of_kept(&self) -> Pool {
        self.pool_of_kept.unwrap_or(Pool::Small)
    }

    /// A chunk has one live block less: its pool, and its size, if it is idle from
    /// now on. What becomes of the block is said next, by `wait` or `join`.
    #[inline(always)]
    pub(crate) fn returned(&mut self, block: &Block) -> (Pool, Option<Bytes>) {
        let Some(chunk) = self.chunks.get_mut(block.chunk) else {
            return (self.pool_of(block), None);
        };
        chunk.live -= 1;
        (chunk.pool, (chunk.live == 0).then_some(chunk.size))
    }

    /// A block is in limbo from now on; `elsewhere`: it was freed from another
    /// context than the arena's.
    pub(crate) fn wait(&mut self, id: BlockId, requested: Bytes, elsewhere: bool) {
        let record = self.blocks.get_mut(id);
        record.requested = requested;
        record.state = State::Limbo;
        record.elsewhere = elsewhere;
    }

    /// A block is free: a piece of a chunk merges with its free neighbours, and is
    /// to be entered or handed out next. None for a direct allocation, which is the
    /// driver's.
    #[inline(always)]
    pub(crate) fn join(&mut self, id: BlockId, block: &Block, pool: Pool) -> Option<Joined> {
        if block.chunk == ChunkId::DIRECT {
            self.blocks.remove(id);
            return None;
        }
        Some(self.join_block(id, block, pool))
    }

    /// The same for a piece of a chunk.
    #[inline(always)]
    fn join_block(&mut self, mut id: BlockId, block: &Block, pool: Pool) -> Joined {
        let record = self.blocks.get_mut(id);
        record.state = State::Free;
        record.requested = Bytes::ZERO;
        let mut neighbours = 0;
        let (indexes, blocks) = (&mut self.indexes, &mut self.blocks);
        let is_free = |blocks: &Blocks, id: BlockId| {
            id.some().filter(|&id| blocks.get(id).state == State::Free)
        };
        if let Some(next) = is_free(blocks, block.next) {
            neighbours += 1;
            indexes.leave(blocks, next, pool);
            blocks.merge(id, next);
        }
        if let Some(previous) = is_free(blocks, block.previous) {
            neighbours += 1;
            indexes.leave(blocks, previous, pool);
            blocks.merge(previous, id);
            id = previous;
        }
        let joined = blocks.get(id);
        Joined {
            id,
            pool,
            neighbours,
            whole: joined.size,
            shared: joined.is_part(),
        }
    }

    /// Makes a block that was joined available.
    #[inline]
    pub(crate) fn enter(&mut self, joined: &Joined) {
        self.indexes.enter(&mut self.blocks, joined.id, joined.pool);
        if !joined.shared {
            self.became_empty(joined.id);
        }
    }

    /// The pool of a block's chunk; of a direct allocation, the one in which it
    /// is counted.
    pub(crate) fn pool_of(&self, block: &Block) -> Pool {
        match self.chunks.get(block.chunk) {
            Some(chunk) => chunk.pool,
            None if block.size <= SMALL => Pool::Small,
            None => Pool::Large,
        }
    }

    /// Enters a new chunk, and returns its one free block; one that is `kept`
    /// never goes back. None where the page map cannot hold it.
    pub(crate) fn insert_chunk(&mut self, span: Span, pool: Pool, kept: bool) -> Option<BlockId> {
        let Span { address, size } = span;
        if !self.map.hold_chunk(self.arena, address, size) {
            return None;
        }
        let chunk = self.chunks.insert(Chunk {
            address,
            size,
            pool,
            first: BlockId::NONE,
            live: 0,
            kept,
            empty_since: 0,
        });
        let id = self.blocks.insert(address, size, chunk, State::Free);
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.first = id;
        }
        self.indexes.enter(&mut self.blocks, id, pool);
        Some(id)
    }

    /// Enters a driver allocation that is one live block. None where the page
    /// map cannot hold it.
    pub(crate) fn insert_direct(
        &mut self,
        span: Span,
        requested: Bytes,
        library: LibraryId,
    ) -> Option<BlockId> {
        let Span { address, size } = span;
        let id = (self.blocks).insert(address, size, ChunkId::DIRECT, State::Live);
        if !self.map.hold_direct(self.arena, address, id.0) {
            self.blocks.remove(id);
            return None;
        }
        let block = self.blocks.get_mut(id);
        (block.requested, block.library) = (requested, library);
        Some(id)
    }

    /// Bytes of all chunks. Looks at each of them.
    pub(crate) fn in_chunks(&self) -> Bytes {
        let chunks = self.chunks.iter();
        chunks.fold(Bytes::ZERO, |sum, (_, chunk)| {
            sum.saturating_add(chunk.size)
        })
    }

    /// The size of the largest free block.
    pub(crate) fn largest_free(&self) -> Bytes {
        self.indexes.largest(&self.blocks)
    }

    /// Whether a free block is a piece of another bank, and so much is free there at most.
    pub(crate) fn is_of_little(&self, id: BlockId, bank: Bank, most: Bytes) -> bool {
        let block = self.blocks.get(id);
        let is_piece = block.bank != bank && block.is_part();
        is_piece && self.indexes.small.bytes(block.bank) <= most
    }

    /// Gives a bank a small chunk that is whole; whether there is one.
    pub(crate) fn give_whole(&mut self, bank: Bank) -> bool {
        let whole = self.indexes.small.whole(&self.blocks);
        let is_there = whole.is_some();
        whole.iter().for_each(|id| self.give(*id, bank));
        is_there
    }

    /// Gives a bank a free block that is a small chunk.
    pub(crate) fn give(&mut self, id: BlockId, bank: Bank) {
        self.indexes.leave(&mut self.blocks, id, Pool::Small);
        self.blocks.get_mut(id).bank = bank;
        self.indexes.enter(&mut self.blocks, id, Pool::Small);
    }

    /// How many blocks of a pool are in its index.
    pub(crate) fn free_count(&self, pool: Pool) -> u64 {
        self.indexes.count(pool)
    }
}
