//! The state of an arena: everything that its lock guards.
//!
//! Owns the heap, limbo and the counters, and lets each know of what happened in
//! another. Makes no driver call: what is to be given back to the driver is
//! returned to the caller, who has left the lock by then.
//!
//! Invariant (checked by `check`): the gauges are the sums over the blocks. Cost:
//! that of the heap; ending epochs takes a look at each of their blocks.

use std::sync::Arc;
use std::time::Instant;

use crate::address::{Address, Bytes};
use crate::arena::banks::Slabs;
use crate::arena::fences::Then;
use crate::arena::pause::Backups;
use crate::config::Config;
use crate::counters::{BlockInfo, Counters};
use crate::heap::block::{Block, BlockId, State};
use crate::heap::fit::Search;
use crate::heap::ranges::Remains;
use crate::heap::{Heap, Joined, LeftChunk, Span};
use crate::limbo::Limbo;
use crate::recording::{FenceSeen, Mark};
use crate::stats::{ArenaStats, Snapshot};
use crate::strategy::packing::Packing;
use crate::strategy::{Pool, Sharing};
use crate::thread_cache::{CacheHub, Caches};

/// The number of reclaimable blocks that a free puts back. It is more than the one
/// that the free adds, so that they do not pile up.
const AT_A_TIME: usize = 2;

/// See the module. Away from what is read without its lock.
#[repr(align(128))]
pub(super) struct ArenaState<F> {
    pub(super) heap: Heap,
    pub(super) limbo: Limbo<F>,
    pub(super) counters: Counters,
    pub(super) caches: Caches,
    pub(super) hub: Arc<CacheHub>,
    /// The room of all caches when `room_about` looked last, and when that was.
    pub(super) room_seen: Option<(Bytes, Instant)>,
    /// How tightly chunks are to be packed, where the strategy does.
    pub(super) packing: Option<Packing>,
    pub(super) slabs: Slabs,
    /// What the driver refused to take back.
    pub(super) lost: Bytes,
    /// Whether a thread is taking a chunk that nobody else may take.
    pub(super) growing: bool,
    /// How many threads rely on the memory of a live block: they fill it, or ask for a
    /// handle of it. Nothing is paused meanwhile.
    pub(super) relied_on: u32,
    /// Whether a thread pauses or resumes.
    pub(super) moves: bool,
    /// What a pause has saved, and host memory for the next.
    pub(super) backups: Backups,
    /// What was mapped when the context ended while a thread did: it gives that back.
    pub(super) left: Remains,
    /// The context is gone: nothing is handed out any more.
    pub(super) retired: bool,
    /// What was counted until then, and what it held; gone where that was
    /// forgotten.
    pub(super) ended: Option<Box<ArenaStats>>,
    pub(super) held: Option<Arc<Snapshot>>,
}

impl<F: Clone> ArenaState<F> {
    pub(super) fn new(
        heap: Heap,
        hub: Arc<CacheHub>,
        config: &Config,
        packing: Option<Packing>,
    ) -> ArenaState<F> {
        ArenaState {
            caches: Caches::default(),
            hub,
            room_seen: None,
            heap,
            limbo: Limbo::new(),
            counters: Counters::new(config.splitting.max_split),
            packing,
            slabs: Slabs::default(),
            lost: Bytes::ZERO,
            growing: false,
            relied_on: 0,
            moves: false,
            backups: Backups::default(),
            left: Remains::default(),
            retired: false,
            ended: None,
            held: None,
        }
    }

    /// Bytes that the driver gave, for a strategy that asks whether its first
    /// chunk is still to come: direct allocations are none.
    pub(super) fn held(&self) -> Bytes {
        if !self.counters.holds_chunks() {
            return Bytes::ZERO;
        }
        self.counters.reserved()
    }

    /// Bytes that could go back to the driver, once the device is done with them.
    pub(super) fn obtainable(&self) -> Bytes {
        let units = (self.heap.idle_units()).saturating_add(self.units_in_limbo());
        self.obtainable_but_units().saturating_add(units)
    }

    /// The same while nothing may be unmapped.
    pub(super) fn obtainable_but_units(&self) -> Bytes {
        self.idle().saturating_add(self.limbo.direct())
    }

    /// Whether something waits in limbo whose units could go then.
    pub(super) fn holds_units_in_limbo(&self) -> bool {
        !self.heap.ranges.unit().is_zero() && !self.counters.limbo().is_zero()
    }

    /// Bytes of chunks without a live block that memory is behind.
    pub(super) fn idle(&self) -> Bytes {
        let gone = self.heap.ranges.bytes(self.heap.empty_gone_slabs());
        self.counters.idle().saturating_sub(gone)
    }

    /// Bytes of the whole units of blocks in limbo, but for what was freed from other
    /// contexts.
    fn units_in_limbo(&self) -> Bytes {
        let units = (self.limbo.blocks()).map(|id| self.heap.units_of_limbo(id));
        units.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Bytes that are free in chunks in use, or nearly so many.
    pub(super) fn in_pieces(&self) -> Bytes {
        let counters = &self.counters;
        let held = [counters.live(), counters.limbo(), counters.idle()];
        let not_held = |rest: Bytes, held| rest.saturating_sub(held);
        held.into_iter().fold(counters.reserved(), not_held)
    }

    /// Who is to share a chunk that is taken for a request of this size, which none of those
    /// serves. Small blocks have chunks of their own.
    pub(super) fn sharing(&self, size: Bytes) -> Sharing {
        let counters = &self.counters;
        let idle = counters.idle().saturating_sub(counters.idle_small());
        let held = [counters.live_of(Pool::Large), counters.limbo(), idle];
        let chunks = counters.reserved_of(Pool::Large);
        let pieces = held.into_iter().fold(chunks, Bytes::saturating_sub);
        let sharing = |packing: &Packing| packing.sharing(size, pieces, self.live_at_most());
        self.packing.as_ref().map(sharing).unwrap_or_default()
    }

    /// Whether those, and the rest of the chunk that a request of this size would cut, are so
    /// many that it cuts none without need.
    pub(super) fn wastes_pieces(&self, size: Bytes, rest: Bytes) -> bool {
        let pieces = self.in_pieces().saturating_add(rest);
        let (reserved, live) = (self.counters.reserved(), self.live_at_most());
        let held = live.saturating_add(size);
        let wastes = |packing: &Packing| packing.wastes(size, reserved, pieces, held);
        self.packing.as_ref().is_some_and(wastes)
    }

    /// A block, as the counters know it.
    pub(super) fn info(&self, block: &Block) -> BlockInfo {
        BlockInfo::of(block, self.heap.pool_of(block))
    }

    /// Makes a block available; a direct allocation is for the driver.
    pub(super) fn put_back(&mut self, id: BlockId, block: &Block, pool: Pool) -> Option<Span> {
        let joined = self.join(id, block, pool);
        joined.map(|joined| self.heap.enter(&joined)).err()
    }

    /// As `put_back`, but the block is not yet available: it is to be entered or
    /// handed out next.
    #[inline(always)]
    fn join(&mut self, id: BlockId, block: &Block, pool: Pool) -> Result<Joined, Span> {
        let info = BlockInfo::of(block, pool);
        self.counters
            .free_completed(info, block.state == State::Limbo);
        if let Some(joined) = self.heap.join(id, block, pool) {
            self.counters.joined(info.pool, info.size, &joined);
            return Ok(joined);
        }
        if block.state == State::Limbo {
            self.limbo.direct_left(block.size);
        }
        self.counters.segment_released(block.span(), pool);
        Err(block.span())
    }

    /// Joins a block that no longer waits; a direct allocation is added to `spans`
    /// instead. Its chunk may have gone back meanwhile.
    #[inline(always)]
    fn leave_limbo(&mut self, id: BlockId, spans: &mut Vec<Span>) -> Option<Joined> {
        let block = *self.heap.blocks.get(id);
        if block.state != State::Limbo {
            self.heap.blocks.remove(id);
            return None;
        }
        let joined = self.join(id, &block, self.heap.pool_of(&block));
        joined.map_err(|span| spans.push(span)).ok()
    }

    /// Makes a few of the blocks that are reclaimable available.
    #[inline]
    pub(super) fn put_back_some(&mut self) {
        if self.limbo.has_reclaimable() {
            self.put_back_up_to(AT_A_TIME);
        }
    }

    /// Makes all of them available.
    pub(super) fn put_back_reclaimable(&mut self) {
        if self.limbo.has_reclaimable() {
            self.put_back_up_to(usize::MAX);
        }
    }

    fn put_back_up_to(&mut self, most: usize) {
        for _ in 0..most {
            let Some(id) = self.limbo.next_reclaimable() else {
                break;
            };
            // No direct allocation is ever put off.
            if let Some(joined) = self.leave_limbo(id, &mut Vec::new()) {
                self.heap.enter(&joined);
            }
        }
        self.counters.was_cached();
    }

    /// Makes the blocks of all epochs up to `number`, whose fence was reached, and just made
    /// if it `is_new`, available; the direct allocations among them are returned.
    ///
    /// The last block that comes is not entered before the request was looked at: if
    /// it is just what that asks for, it is handed out as it is.
    pub(super) fn end_epochs(
        &mut self,
        number: u64,
        then: Then<'_>,
        is_new: bool,
        taken: &mut Option<Address>,
    ) -> Vec<Span> {
        if is_new {
            self.counters.epoch_closed();
        }
        let puts_off = matches!(then, Then::PutOff);
        if puts_off {
            self.counters.history.mark(|| Mark::Seen(FenceSeen::InFree));
        }
        self.counters.history.mark(|| Mark::Reached(number));
        if !puts_off {
            self.put_back_reclaimable();
        }
        self.hub.ends(number);
        let mut spans = Vec::new();
        let mut last: Option<Joined> = None;
        while let Some(batch) = self.limbo.end_oldest(number, puts_off) {
            for &id in &batch {
                last.iter().for_each(|joined| self.heap.enter(joined));
                last = self.leave_limbo(id, &mut spans);
            }
            self.limbo.recycle(batch);
        }
        self.counters.was_cached();
        match (last, then) {
            (Some(last), Then::Take(want)) if last.is(want.fit) && !self.heap.is_paused() => {
                self.counters.hit();
                *taken = Some(self.hand_out(&last.uncut(), want));
            }
            (last, then) => {
                last.iter().for_each(|joined| self.heap.enter(joined));
                if let Then::Take(want) = then {
                    *taken = self.take(want, Search::Thorough);
                }
            }
        }
        spans
    }

    /// Takes the chunks out that `choose` takes out of the heap.
    pub(super) fn let_go(&mut self, choose: impl FnOnce(&mut Heap) -> Vec<LeftChunk>) -> Vec<Span> {
        self.recall();
        let left = choose(&mut self.heap);
        left.iter()
            .for_each(|chunk| self.counters.chunk_left(chunk));
        left.iter().map(|chunk| chunk.span).collect()
    }

    /// Takes everything out that can go back: the chunks without a live block,
    /// and the direct allocations in limbo. What of it is in limbo goes with it,
    /// unless it was freed from another context; see [`Heap::take_idle`].
    pub(super) fn take_idle(&mut self) -> Vec<Span> {
        self.recall();
        self.put_back_reclaimable();
        let mut spans = self.let_go(Heap::take_idle);
        let mut bytes = Bytes::ZERO;
        for id in self.limbo.blocks() {
            let Some(block) = self.heap.take_direct(id) else {
                continue;
            };
            bytes = bytes.saturating_add(block.size);
            let info = self.info(&block);
            self.counters.free_completed(info, true);
            self.counters.segment_released(block.span(), info.pool);
            spans.push(block.span());
        }
        self.limbo.direct_left(bytes);
        spans
    }

    /// Whether limbo has what `take_idle` leaves there.
    pub(super) fn is_used_elsewhere(&self) -> bool {
        let mut blocks = self.limbo.blocks().map(|id| self.heap.blocks.get(id));
        blocks.any(Block::is_used_elsewhere)
    }
}
