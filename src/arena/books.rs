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

mod choose;
mod direct;
mod epochs;
mod indexes;
mod leave;
mod locate;
mod pages;
mod snapshot;
mod spare;
mod tally;

use std::sync::Arc;

use crate::address::{Address, Bytes};
use crate::arena::Glance;
use crate::arena::block::{Block, BlockId, Blocks, ChunkId, State};
use crate::arena::chunk::{Chunk, Chunks};
use crate::arena::limbo::Limbo;
use crate::arena::packing::Packing;
use crate::config::Config;
use crate::error::FreeError;
use crate::page_map::{ArenaId, PageMap};
use crate::stats::{ArenaStats, Snapshot, StackId};
use crate::strategy::{Pool, most_waste};

pub(crate) use direct::Direct;
use direct::pool_of;
use indexes::Indexes;
pub use locate::Located;
use pages::SharedPages;
pub(super) use snapshot::SnapshotSize;
use spare::Ages;
pub(super) use tally::{Piece, Shortage, Tally, Wait};

/// A request on its way through the arena.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Want {
    /// What the program asked for.
    pub(crate) request: Bytes,
    /// The same in whole slots, rounded as the options say.
    pub(crate) size: Bytes,
    pub(crate) pool: Pool,
    /// Where in the program it was made, if that was looked at.
    pub(crate) stack: StackId,
}

impl Want {
    /// The same in the `least` block that serves it: what is rounded beyond
    /// that is for the next request, and no reason to fail this one.
    pub(crate) fn at_the_least(self, least: Bytes) -> Want {
        Want {
            size: least,
            ..self
        }
    }

    /// The same for a piece of any chunk that is not kept whole: what is kept
    /// apart is so for later requests, and no reason to fail this one.
    pub(crate) fn anywhere(self) -> Want {
        Want {
            pool: Pool::Large,
            ..self
        }
    }
}

/// How hard to look for a cached block.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    /// A bounded number of steps.
    Quick,
    /// All blocks that could fit: the alternative is a driver call.
    Thorough,
    /// The same, and any idle chunk may be cut.
    Opening,
}

/// What happens to a block that the program frees.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// It goes to limbo. A direct allocation goes back to the driver, whose
    /// own free waits, unless that has to be quiet now.
    AfterFence {
        /// Whether no driver free may be made: it would disturb a stream
        /// capture, or the driver itself has called.
        quiet: bool,
        /// Whether another context than the arena's is current.
        elsewhere: bool,
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
    /// The driver is to take this back, and may refuse.
    GiveBack(Direct),
}

/// Memory that is no longer in the books and that the driver is to take back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
}

/// See the module.
pub(crate) struct Books<F> {
    arena: ArenaId,
    map: Arc<PageMap>,
    pub(super) blocks: Blocks,
    pub(super) chunks: Chunks,
    pub(super) indexes: Indexes,
    /// How tightly chunks are to be packed, where the strategy does.
    pub(super) packing: Option<Packing>,
    /// What an oversize block may have more than the request is below this.
    most_waste: Bytes,
    ages: Ages,
    pub(super) limbo: Limbo<F>,
    /// Bytes of direct allocations in limbo.
    pub(super) direct_limbo: Bytes,
    /// What the driver refused to take back.
    pub(super) lost: Bytes,
    /// Where small direct allocations lie.
    pub(super) pages: SharedPages,
    pub(super) tally: Tally,
    /// Whether a thread is taking a chunk that nobody else may take.
    pub(crate) growing: bool,
    /// Whether a thread is on the out-of-memory ladder.
    pub(crate) on_ladder: bool,
    /// The context is gone: nothing is handed out any more.
    pub(crate) retired: bool,
    /// What was counted until then, and what it held; gone where that was
    /// forgotten.
    ended: Option<Box<ArenaStats>>,
    pub(super) held: Option<Arc<Snapshot>>,
}

impl<F: Clone> Books<F> {
    pub(crate) fn new(
        arena: ArenaId,
        map: Arc<PageMap>,
        config: &Config,
        packing: Option<Packing>,
    ) -> Books<F> {
        Books {
            arena,
            map,
            blocks: Blocks::new(),
            chunks: Chunks::new(),
            indexes: Indexes::new(),
            packing,
            most_waste: most_waste(&config.splitting),
            ages: Ages::new(config.decay),
            limbo: Limbo::new(),
            direct_limbo: Bytes::ZERO,
            lost: Bytes::ZERO,
            pages: SharedPages::default(),
            tally: Tally::new(config.splitting.max_split),
            growing: false,
            on_ladder: false,
            retired: false,
            ended: None,
            held: None,
        }
    }

    /// Bytes in limbo.
    pub(crate) fn limbo_bytes(&self) -> Bytes {
        self.tally.limbo()
    }

    /// Bytes that the driver gave.
    pub(crate) fn reserved(&self) -> Bytes {
        self.tally.reserved()
    }

    /// How they stand.
    pub(crate) fn glance(&self) -> Glance {
        self.tally.glance()
    }

    /// Whether the program holds a block.
    pub(crate) fn has_live(&self) -> bool {
        !self.tally.live().is_zero()
    }

    /// Bytes that the driver gave, for a strategy that asks whether its first
    /// chunk is still to come: direct allocations are none.
    pub(crate) fn held(&self) -> Bytes {
        if !self.tally.holds_chunks() {
            return Bytes::ZERO;
        }
        self.reserved()
    }

    /// Bytes of all chunks. Looks at each of them.
    pub(crate) fn in_chunks(&self) -> Bytes {
        let chunks = self.chunks.iter();
        chunks.fold(Bytes::ZERO, |sum, (_, chunk)| {
            sum.saturating_add(chunk.size)
        })
    }

    /// Bytes in chunks without a live block.
    pub(crate) fn idle(&self) -> Bytes {
        self.tally.idle()
    }

    /// Bytes that `take_idle` would take.
    pub(crate) fn obtainable(&self) -> Bytes {
        self.idle().saturating_add(self.direct_limbo)
    }

    /// Bytes that are free in chunks in use, or nearly so many.
    pub(super) fn in_pieces(&self) -> Bytes {
        let held = [self.tally.live(), self.limbo_bytes(), self.idle()];
        let not_held = |rest: Bytes, held| rest.saturating_sub(held);
        held.into_iter().fold(self.reserved(), not_held)
    }

    pub(crate) fn limbo(&self) -> &Limbo<F> {
        &self.limbo
    }

    /// Where events are counted that happen outside of the books.
    pub(crate) fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// Takes a free block out of its index, cuts it to size, unless it is
    /// oversize, and gives it to the program. What is left is the lower part: a
    /// chunk's start is handed out last, since the driver knows it, and a free
    /// that reaches it past us would take all of the chunk.
    fn hand_out(&mut self, mut id: BlockId, want: Want) -> Address {
        let (indexes, blocks) = (&mut self.indexes, &mut self.blocks);
        indexes.leave(blocks, id, want.pool);
        let block = blocks.get(id);
        let shared = block.is_part();
        let rest = match want.pool {
            Pool::Oversize => Bytes::ZERO,
            Pool::Small | Pool::Large => block.size.saturating_sub(want.size),
        };
        let size = block.size.saturating_sub(rest);
        if !rest.is_zero() {
            let low = id;
            id = blocks.split(low, rest);
            indexes.enter(blocks, low, want.pool);
        }
        let block = blocks.get_mut(id);
        block.state = State::Live;
        block.requested = want.request;
        let Block { address, chunk, .. } = *block;
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            if chunk.live == 0 {
                self.tally.left_idle(chunk.size);
            }
            chunk.live += 1;
        }
        self.map.set_block(address, id.0);
        self.tally.cut(want.pool, shared, size, rest);
        self.tally.history_mut().remember(id, want.stack);
        self.gave(Piece {
            address,
            size,
            requested: want.request,
            pool: want.pool,
            stack: want.stack,
        });
        address
    }

    /// The program got a block.
    #[inline]
    fn gave(&mut self, piece: Piece) {
        self.tally.handed_out(piece);
        if let Some(packing) = &mut self.packing {
            packing.rose(self.tally.live());
        }
    }

    /// What the events tell of a block.
    pub(super) fn piece(&self, block: &Block) -> Piece {
        let chunk = self.chunks.get(block.chunk);
        Piece {
            address: block.address,
            size: block.size,
            requested: block.requested,
            pool: chunk.map_or_else(|| pool_of(block.size), |chunk| chunk.pool),
            stack: StackId::NONE,
        }
    }

    /// Enters a new chunk and serves the request that it was taken for; one
    /// that is `kept` never goes back. Nothing where the page map cannot hold
    /// it.
    pub(crate) fn add_chunk(&mut self, region: Region, want: Want, kept: bool) -> Option<Address> {
        if self.retired || !self.map.hold_chunk(self.arena, region.address, region.size) {
            return None;
        }
        let chunk = Chunk {
            address: region.address,
            size: region.size,
            pool: want.pool,
            first: BlockId::NONE,
            live: 0,
            kept,
            spare_since: 0,
        };
        let chunk = self.chunks.insert(chunk);
        let id = self
            .blocks
            .insert(region.address, region.size, chunk, State::Free);
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.first = id;
        }
        self.indexes.enter(&mut self.blocks, id, want.pool);
        self.tally.segment_taken(region, want.pool, want.stack);
        self.tally.chunk_taken();
        self.tally.fell_idle(region.size);
        let address = self.hand_out(id, want);
        self.tally.missed(want.pool, want.size, region.size);
        Some(address)
    }

    /// Takes the live block that starts there out of the page map.
    fn take_live(&mut self, address: Address) -> Option<(BlockId, Block)> {
        let spot = self.map.spot(address)?;
        let (id, &block) = self.blocks.find(spot.block(self.arena)?)?;
        if block.state != State::Live || block.address != address {
            return None;
        }
        if block.chunk == ChunkId::DIRECT {
            self.map.release_direct(address);
        } else {
            spot.clear();
        }
        Some((id, block))
    }

    /// Takes a block back from the program.
    pub(crate) fn free(&mut self, address: Address, release: Release) -> Result<Freed, FreeError> {
        let Some((id, block)) = self.take_live(address) else {
            self.tally.bad_free();
            return Err(FreeError::NotLive);
        };
        let piece = self.piece(&block);
        if let Some(chunk) = self.chunks.get_mut(block.chunk) {
            chunk.live -= 1;
            if chunk.live == 0 {
                self.tally.fell_idle(chunk.size);
            }
        }
        let (waits, elsewhere) = match release {
            Release::AtOnce => (false, false),
            Release::AfterFence { quiet, elsewhere } => {
                (quiet || block.chunk != ChunkId::DIRECT, elsewhere)
            }
        };
        self.tally.free_requested(piece, waits);
        if let Some(packing) = &mut self.packing {
            packing.fell(self.tally.live());
        }
        if !waits {
            let region = self.put_back(id, block);
            self.tally.was_cached();
            return Ok(region.map_or(Freed::Done, |region| {
                Freed::GiveBack(self.as_it_was(region, id, &block))
            }));
        }
        let record = self.blocks.get_mut(id);
        record.state = State::Limbo;
        record.elsewhere = elsewhere;
        self.limbo.push(id, &block);
        if block.chunk == ChunkId::DIRECT {
            self.direct_limbo = self.direct_limbo.saturating_add(block.size);
        }
        Ok(Freed::Limbo)
    }

    /// Makes a block available: a piece of a chunk merges with its free
    /// neighbours, a direct allocation is for the driver.
    fn put_back(&mut self, mut id: BlockId, block: Block) -> Option<Region> {
        let piece = self.piece(&block);
        let Piece {
            address,
            size,
            pool,
            ..
        } = piece;
        self.tally.free_completed(piece);
        if block.chunk == ChunkId::DIRECT {
            self.blocks.remove(id);
            if block.state == State::Limbo {
                self.direct_limbo = self.direct_limbo.saturating_sub(size);
            }
            let region = Region { address, size };
            self.tally.segment_released(region, pool);
            return Some(region);
        }
        let Block { next, previous, .. } = block;
        let block = self.blocks.get_mut(id);
        block.state = State::Free;
        block.requested = Bytes::ZERO;
        let mut neighbours = 0;
        let (indexes, blocks) = (&mut self.indexes, &mut self.blocks);
        let is_free = |blocks: &Blocks, id: BlockId| {
            id.some().filter(|&id| blocks.get(id).state == State::Free)
        };
        if let Some(next) = is_free(blocks, next) {
            neighbours += 1;
            indexes.leave(blocks, next, pool);
            blocks.merge(id, next);
        }
        if let Some(previous) = is_free(blocks, previous) {
            neighbours += 1;
            indexes.leave(blocks, previous, pool);
            blocks.merge(previous, id);
            id = previous;
        }
        indexes.enter(blocks, id, pool);
        let joined = blocks.get(id);
        let (whole, shared) = (joined.size, joined.is_part());
        self.tally.joined(piece, neighbours, whole, shared);
        if !shared {
            self.became_spare(id);
        }
        None
    }

    /// A copy of the counters, with those that are only worked out on demand.
    pub(crate) fn picture(&mut self) -> ArenaStats {
        if let Some(ended) = &self.ended {
            return (**ended).clone();
        }
        self.put_back_over();
        let mut stats = self.tally.picture();
        stats.largest_cached = self.indexes.largest(&self.blocks);
        stats
    }
}
