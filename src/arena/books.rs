//! The books of an arena: everything that its lock guards.
//!
//! Owns the chunks, the blocks, the free indexes, the limbo and the counters,
//! and writes the page map. Makes no driver call: what is to be given back to
//! the driver is returned to the caller, who has left the lock by then.
//!
//! Invariant (checked by `validate`): the blocks of a chunk tile it; no two
//! free neighbours; a block is in the index of its pool exactly while it is
//! free; the page map shows exactly the live blocks; the gauges are the sums
//! over the blocks. Cost: constant time for each operation, except those that
//! look at all chunks (`take_idle`) or at a whole batch (`end_epochs`).

mod leave;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::arena::chunk::{Chunk, Chunks};
use crate::arena::free_index::FreeIndex;
use crate::arena::limbo::{Limbo, Oldest};
use crate::driver::PAGE;
use crate::error::FreeError;
use crate::page_map::{ArenaId, PageMap};
use crate::stats::{ArenaStats, size_class};
use crate::strategy::Pool;

/// A request on its way through the arena.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Want {
    /// What the program asked for.
    pub(crate) request: Bytes,
    /// The same in whole slots.
    pub(crate) size: Bytes,
    pub(crate) pool: Pool,
}

/// How hard to look for a cached block.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    /// A bounded number of steps.
    Quick,
    /// All blocks that could fit: the alternative is a driver call.
    Thorough,
}

/// What happens to a block that the program frees.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// It goes to limbo. A direct allocation goes back to the driver, whose
    /// own free waits, unless that has to be quiet now.
    AfterFence {
        /// Whether a driver free would disturb a stream capture.
        quiet: bool,
    },
    /// It can be handed out again at once.
    AtOnce,
}

/// What is left to be done after a free.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// Nothing.
    Done,
    /// The block is in limbo.
    Limbo,
    /// The driver is to take this back.
    GiveBack(Region),
}

/// Memory that is no longer in the books and that the driver is to take back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
}

/// A live block and the driver's allocation that it lies in. What the driver
/// says of a base, a size or a handle is said of the allocation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Where the block starts.
    pub block: Address,
    /// The block's size in whole slots.
    pub size: Bytes,
    /// Where the driver's allocation starts.
    pub allocation: Address,
    /// The allocation's size in whole slots.
    pub allocation_size: Bytes,
}

impl Located {
    /// Whether the block is all of its allocation.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.size == self.allocation_size
    }
}

/// See the module.
pub(crate) struct Books<F> {
    arena: ArenaId,
    map: Arc<PageMap>,
    pub(super) blocks: Blocks,
    pub(super) chunks: Chunks,
    pub(super) small: FreeIndex,
    pub(super) large: FreeIndex,
    pub(super) limbo: Limbo<F>,
    pub(super) stats: ArenaStats,
    /// Whether a thread is taking a chunk that nobody else may take.
    pub(crate) growing: bool,
    /// Whether a thread is on the out-of-memory ladder.
    pub(crate) on_ladder: bool,
    /// The context is gone: nothing is handed out any more.
    pub(crate) retired: bool,
}

impl<F: Clone> Books<F> {
    pub(crate) fn new(arena: ArenaId, map: Arc<PageMap>) -> Books<F> {
        Books {
            arena,
            map,
            blocks: Blocks::new(),
            chunks: Chunks::new(),
            small: FreeIndex::new(),
            large: FreeIndex::new(),
            limbo: Limbo::new(),
            stats: ArenaStats::default(),
            growing: false,
            on_ladder: false,
            retired: false,
        }
    }

    pub(super) fn map(&self) -> &PageMap {
        &self.map
    }

    /// Bytes in limbo.
    pub(crate) fn limbo_bytes(&self) -> Bytes {
        self.stats.limbo.current
    }

    /// Bytes that the driver gave.
    pub(crate) fn reserved(&self) -> Bytes {
        self.stats.reserved.current
    }

    /// Bytes in chunks without a live block.
    pub(crate) fn idle(&self) -> Bytes {
        self.stats.idle
    }

    pub(crate) fn limbo(&self) -> &Limbo<F> {
        &self.limbo
    }

    /// The live block around an address; see [`Located`].
    pub(crate) fn locate(&self, address: Address) -> Option<Located> {
        if let Some((_, block)) = self.live_block(address) {
            let chunk = self.chunks.get(block.chunk);
            let (allocation, allocation_size) =
                chunk.map_or((address, block.size), |chunk| (chunk.address, chunk.size));
            return Some(Located {
                block: address,
                size: block.size,
                allocation,
                allocation_size,
            });
        }
        let inside =
            |start: Address, size: Bytes| address >= start && address.offset_from(start) < size;
        let (_, chunk) = self
            .chunks
            .iter()
            .find(|(_, chunk)| inside(chunk.address, chunk.size))?;
        let (_, block) = self
            .blocks
            .walk(chunk.first)
            .find(|(_, block)| inside(block.address, block.size))?;
        (block.state == State::Live).then_some(Located {
            block: block.address,
            size: block.size,
            allocation: chunk.address,
            allocation_size: chunk.size,
        })
    }

    pub(crate) fn stats_mut(&mut self) -> &mut ArenaStats {
        &mut self.stats
    }

    fn index(&mut self, pool: Pool) -> (&mut FreeIndex, &mut Blocks) {
        match pool {
            Pool::Small => (&mut self.small, &mut self.blocks),
            Pool::Large => (&mut self.large, &mut self.blocks),
        }
    }

    /// Hands out a cached block, if one fits.
    pub(crate) fn take(&mut self, want: Want, search: Search) -> Option<Address> {
        let (index, blocks) = self.index(want.pool);
        let id = match search {
            Search::Quick => index.find(blocks, want.size),
            Search::Thorough => index.find_anywhere(blocks, want.size),
        }?;
        if search == Search::Quick && self.opens_too_early(id, want) {
            return None;
        }
        let address = self.hand_out(id, want);
        self.stats.hits += 1;
        Some(address)
    }

    /// Whether this would cut up an idle chunk while limbo may hold what fits:
    /// a chunk that stays whole can still serve the request that it was taken
    /// for. So an idle chunk is opened as if it had to be taken from the
    /// driver, after a look into limbo; a program that repeats then finds its
    /// chunks as it left them and need not grow again.
    ///
    /// It is worth the look where limbo holds enough for the request, and for
    /// a page; a chunk that fits but for a remainder of less than a page is
    /// the one that was taken for such a request.
    fn opens_too_early(&self, id: BlockId, want: Want) -> bool {
        let block = self.blocks.get(id);
        let fits = want.pool == Pool::Large && block.size.saturating_sub(want.size) < PAGE;
        !fits
            && self.limbo_bytes() >= want.size.max(PAGE)
            && self
                .chunks
                .get(block.chunk)
                .is_some_and(|chunk| chunk.live == 0)
    }

    /// Takes a free block out of its index, cuts it to size and gives it to
    /// the program.
    fn hand_out(&mut self, id: BlockId, want: Want) -> Address {
        let (index, blocks) = self.index(want.pool);
        index.remove(blocks, id);
        if blocks.get(id).size > want.size {
            let rest = blocks.split(id, want.size);
            index.insert(blocks, rest);
        }
        let block = blocks.get_mut(id);
        block.state = State::Live;
        block.requested = want.request;
        let Block {
            address,
            chunk,
            size,
            ..
        } = *block;
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            if chunk.live == 0 {
                self.stats.idle = self.stats.idle.saturating_sub(chunk.size);
            }
            chunk.live += 1;
        }
        self.map.set_block(address, id.0);
        self.stats.cached.sub(size);
        self.count_allocation(want.request, size);
        address
    }

    fn count_allocation(&mut self, request: Bytes, size: Bytes) {
        let class = &mut self.stats.classes[size_class(request)];
        class.allocations += 1;
        class.requested = class.requested.saturating_add(request.get());
        self.stats.live.add(size);
    }

    /// Enters a new chunk and serves the request that it was taken for.
    /// Nothing where the page map cannot hold it.
    pub(crate) fn add_chunk(&mut self, region: Region, want: Want) -> Option<Address> {
        if self.retired || !self.map.hold_chunk(self.arena, region.address, region.size) {
            return None;
        }
        let chunk = Chunk {
            address: region.address,
            size: region.size,
            pool: want.pool,
            first: BlockId::NONE,
            live: 0,
        };
        let chunk = self.chunks.insert(chunk);
        let id = self
            .blocks
            .insert(region.address, region.size, chunk, State::Free);
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.first = id;
        }
        let (index, blocks) = self.index(want.pool);
        index.insert(blocks, id);
        self.stats.chunks += 1;
        self.stats.misses += 1;
        self.stats.reserved.add(region.size);
        self.stats.idle = self.stats.idle.saturating_add(region.size);
        // The peak of what is cached would otherwise count the request itself.
        self.stats.cached.current = self.stats.cached.current.saturating_add(region.size);
        let address = self.hand_out(id, want);
        self.stats.cached.peak = self.stats.cached.peak.max(self.stats.cached.current);
        Some(address)
    }

    /// Enters a driver allocation that is one block. False where the page map
    /// cannot hold it.
    pub(crate) fn add_direct(&mut self, address: Address, request: Bytes, size: Bytes) -> bool {
        let id = self
            .blocks
            .insert(address, size, ChunkId::DIRECT, State::Live);
        if self.retired || !self.map.hold_direct(self.arena, address, id.0) {
            self.blocks.remove(id);
            return false;
        }
        self.blocks.get_mut(id).requested = request;
        self.stats.direct += 1;
        self.stats.reserved.add(size);
        self.count_allocation(request, size);
        true
    }

    /// The live block that starts at this address.
    fn live_block(&self, address: Address) -> Option<(BlockId, Block)> {
        let (id, block) = self.blocks.find(self.map.block(address)?)?;
        (block.state == State::Live && block.address == address).then_some((id, *block))
    }

    /// Takes a block back from the program.
    pub(crate) fn free(&mut self, address: Address, release: Release) -> Result<Freed, FreeError> {
        let Some((id, block)) = self.live_block(address) else {
            self.stats.bad_frees += 1;
            return Err(FreeError::NotLive);
        };
        self.stats.classes[size_class(block.requested)].frees += 1;
        self.stats.live.sub(block.size);
        self.blocks.get_mut(id).requested = Bytes::ZERO;
        if let Some(chunk) = self.chunks.get_mut(block.chunk) {
            chunk.live -= 1;
            if chunk.live == 0 {
                self.stats.idle = self.stats.idle.saturating_add(chunk.size);
            }
            self.map.clear_block(address);
        } else {
            self.map.release_direct(address);
        }
        let waits = match release {
            Release::AtOnce => false,
            Release::AfterFence { quiet } => quiet || block.chunk != ChunkId::DIRECT,
        };
        if !waits {
            return Ok(self.put_back(id).map_or(Freed::Done, Freed::GiveBack));
        }
        self.blocks.get_mut(id).state = State::Limbo;
        self.limbo.push(id, block.size);
        self.stats.limbo.add(block.size);
        Ok(Freed::Limbo)
    }

    /// Makes a block available: a piece of a chunk merges with its free
    /// neighbours, a direct allocation is for the driver.
    fn put_back(&mut self, mut id: BlockId) -> Option<Region> {
        let Block {
            address,
            size,
            chunk,
            ..
        } = *self.blocks.get(id);
        let Some(&mut Chunk { pool, .. }) = self.chunks.get_mut(chunk) else {
            self.blocks.remove(id);
            self.stats.reserved.sub(size);
            return Some(Region { address, size });
        };
        self.stats.cached.add(size);
        self.blocks.get_mut(id).state = State::Free;
        let (index, blocks) = self.index(pool);
        let is_free = |blocks: &Blocks, id: BlockId| {
            id.some().filter(|&id| blocks.get(id).state == State::Free)
        };
        if let Some(next) = is_free(blocks, blocks.get(id).next) {
            index.remove(blocks, next);
            blocks.merge(id, next);
        }
        if let Some(previous) = is_free(blocks, blocks.get(id).previous) {
            index.remove(blocks, previous);
            blocks.merge(previous, id);
            id = previous;
        }
        index.insert(blocks, id);
        None
    }

    /// Closes the open batch; see [`Limbo::close`].
    pub(crate) fn close_epoch(&mut self, fraction: f64) -> Option<u64> {
        self.limbo.close(&self.blocks, fraction)
    }

    /// Closes the open batch, if there is one, and returns the number of the
    /// newest epoch; nothing where limbo is empty.
    pub(crate) fn close_last_epoch(&mut self) -> Option<u64> {
        self.limbo
            .close(&self.blocks, 1.0)
            .or_else(|| self.limbo.newest())
    }

    /// Brings the fence of a closed epoch.
    pub(crate) fn set_fence(&mut self, number: u64, fence: F) {
        self.stats.epochs += 1;
        self.limbo.set_fence(number, fence);
    }

    /// Undoes `close_epoch`.
    pub(crate) fn reopen_epoch(&mut self, number: u64) {
        self.limbo.reopen(&self.blocks, number);
    }

    /// The oldest epoch.
    pub(crate) fn oldest_epoch(&self) -> Option<Oldest<F>> {
        self.limbo.oldest()
    }

    /// Makes the blocks of all epochs up to `number`, whose fence was reached,
    /// available; direct allocations among them are appended to `regions`.
    pub(crate) fn end_epochs(&mut self, number: u64, regions: &mut Vec<Region>) {
        while let Some(batch) = self.limbo.end_oldest(number) {
            for &id in &batch {
                let Block { state, size, .. } = *self.blocks.get(id);
                if state == State::Limbo {
                    self.stats.limbo.sub(size);
                    regions.extend(self.put_back(id));
                } else {
                    self.blocks.remove(id);
                }
            }
            self.limbo.recycle(batch);
        }
    }

    /// Bytes of chunks in use that could be handed out in pieces of a page or
    /// more.
    pub(crate) fn obtainable_parts(&self) -> Bytes {
        let in_use = |block: &&Block| {
            self.chunks
                .get(block.chunk)
                .is_some_and(|chunk| chunk.live > 0)
        };
        self.large
            .at_least(&self.blocks, PAGE)
            .map(|id| self.blocks.get(id))
            .filter(in_use)
            .fold(Bytes::ZERO, |sum, block| {
                sum.saturating_add(block.size.round_down(PAGE))
            })
    }

    /// A copy of the counters, with those that are only worked out on demand.
    pub(crate) fn picture(&self) -> ArenaStats {
        let mut stats = self.stats.clone();
        stats.largest_cached = self
            .small
            .largest(&self.blocks)
            .max(self.large.largest(&self.blocks));
        stats
    }
}
