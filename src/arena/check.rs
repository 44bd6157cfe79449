//! A check of the state against itself, for tests and debug builds.
//!
//! Cost: looks at every block, so never on a path of a release
//! build; a debug build does it at the end of an allocation and of a free, the
//! more seldom the more blocks there are.

use std::fmt;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::state::ArenaState;
use crate::counters::BlockInfo;
use crate::driver::Driver;
use crate::heap::block::{Block, BlockId, ChunkId, State};
use crate::heap::chunk::Chunk;
use crate::library::LibraryBytes;
use crate::page_map::SlotWord;
use crate::stats::{ClassLive, Metric, SIZE_CLASSES, size_class};
use crate::strategy::Pool;
use crate::thread_cache::{Headroom, Kept};

/// Blocks of up to this size are looked for from their ends.
const SMALL_AROUND: Bytes = Bytes::kib(16);

/// What is wrong with the state, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inconsistency(String);

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Inconsistency {}

/// A step of the program in the arena: at its end a debug build compares the
/// state. (Not under the model checker, for which it would be one more lock.)
pub(super) struct Validation<'a, D: Driver>(&'a Arena<D>);

impl<D: Driver> Arena<D> {
    /// Compares everything that is kept twice; for tests.
    ///
    /// # Errors
    /// The first difference found.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        self.state.lock().validate()
    }

    pub(super) fn step(&self) -> Validation<'_, D> {
        Validation(self)
    }
}

impl<D: Driver> Drop for Validation<'_, D> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && cfg!(not(loom)) && !std::thread::panicking() {
            let state = self.0.state.lock();
            let found = state.is_due().then(|| state.validate());
            debug_assert!(!matches!(found, Some(Err(_))), "{found:?}");
        }
    }
}

macro_rules! ensure {
    ($holds:expr, $($words:tt)*) => {
        if !$holds {
            return Err(Inconsistency(format!($($words)*)));
        }
    };
}

/// What the counters should be.
#[derive(Default)]
struct Sums {
    live: Bytes,
    cached: Bytes,
    limbo: Bytes,
    reserved: Bytes,
    idle: Bytes,
    idle_small: Bytes,
    /// Free blocks by pool.
    free: [u64; 3],
    small: [u64; Metric::COUNT],
    large: [u64; Metric::COUNT],
    oversize_allocations: u64,
    oversize_segments: u64,
    classes: [ClassLive; SIZE_CLASSES],
    libraries: LibraryBytes,
    /// By the number of the block.
    seen: Vec<bool>,
}

impl Sums {
    /// Notes a block; false: it was before.
    fn see(&mut self, id: BlockId) -> bool {
        let at = id.0 as usize;
        if at >= self.seen.len() {
            self.seen.resize(at + 1, false);
        }
        !std::mem::replace(&mut self.seen[at], true)
    }

    fn saw(&self, id: BlockId) -> bool {
        self.seen.get(id.0 as usize) == Some(&true)
    }

    fn add(&mut self, pool: Pool, metric: Metric, by: u64) {
        let sums = match pool {
            Pool::Small => &mut self.small,
            Pool::Large | Pool::Oversize => &mut self.large,
        };
        sums[metric as usize] += by;
    }

    /// Memory that the driver gave in so many pieces.
    fn add_units(&mut self, pool: Pool, size: Bytes, pieces: u64) {
        self.reserved = self.reserved.saturating_add(size);
        self.add(pool, Metric::Segment, pieces);
        self.add(pool, Metric::ReservedBytes, size.get());
    }

    fn add_segment(&mut self, pool: Pool, size: Bytes, oversize: bool) {
        self.add_units(pool, size, 1);
        self.oversize_segments += u64::from(oversize);
    }

    /// What a cache has not told of yet.
    fn add_fewer(&mut self, cache: &Kept) {
        for (size, fewer) in cache.fewer() {
            let class = &mut self.classes[size_class(size)];
            class.blocks = class.blocks.wrapping_add(fewer);
            class.bytes = (class.bytes).wrapping_add(fewer.wrapping_mul(size.get()));
        }
        self.libraries.sub_all(&cache.libraries());
    }

    /// What caches have room for counts as held, and not as cached.
    fn add_room(&mut self, pool: Pool, room: Headroom) {
        self.cached = self.cached.saturating_sub(Bytes::new(room.bytes));
        self.live = self.live.saturating_add(Bytes::new(room.bytes));
        for metric in [Metric::Allocation, Metric::Active] {
            self.add(pool, metric, room.blocks);
        }
        for metric in [Metric::AllocatedBytes, Metric::ActiveBytes] {
            self.add(pool, metric, room.bytes);
        }
        self.add(pool, Metric::RequestedBytes, room.asked);
    }

    fn add_block(&mut self, block: &Block, info: BlockInfo, oversize: bool, is_kept: bool) {
        match block.state {
            State::Live if is_kept => {
                self.cached = self.cached.saturating_add(info.size);
                return;
            }
            State::Live => {
                self.live = self.live.saturating_add(info.size);
                self.add(info.pool, Metric::Allocation, 1);
                self.add(info.pool, Metric::AllocatedBytes, info.size.get());
                self.oversize_allocations += u64::from(oversize);
                let class = &mut self.classes[size_class(info.requested)];
                class.blocks += 1;
                class.bytes += info.size.get();
                self.libraries.add(info.library, info.size);
            }
            State::Limbo => self.limbo = self.limbo.saturating_add(info.size),
            State::Free => {
                self.cached = self.cached.saturating_add(info.size);
                if block.is_part() {
                    self.add(info.pool, Metric::InactiveSplit, 1);
                    self.add(info.pool, Metric::InactiveSplitBytes, info.size.get());
                }
                self.free[info.pool as usize] += 1;
                return;
            }
            _ => return,
        }
        self.add(info.pool, Metric::Active, 1);
        self.add(info.pool, Metric::ActiveBytes, info.size.get());
        self.add(info.pool, Metric::RequestedBytes, info.requested.get());
    }
}

impl<F: Clone> ArenaState<F> {
    /// Whether the state is to be checked after this step: a few blocks are
    /// looked at per step, on average.
    fn is_due(&self) -> bool {
        let steps = self.counters.steps();
        steps.is_multiple_of(1 + u64::from(self.heap.blocks.used() / 4))
    }

    /// Compares everything that is kept twice.
    ///
    /// # Errors
    /// The first difference found.
    pub(crate) fn validate(&self) -> Result<(), Inconsistency> {
        let mut sums = Sums::default();
        // No thread takes out or puts in what it keeps meanwhile.
        let held = self.caches.hold();
        for (id, chunk) in self.heap.chunks.iter() {
            self.validate_chunk(id, chunk, &mut sums)?;
        }
        // A range's units that are mapped nowhere count with the large ones.
        let unplaced = self.heap.ranges.unplaced();
        sums.add_units(Pool::Large, unplaced, self.heap.ranges.unplaced_count());
        sums.cached = sums.cached.saturating_add(unplaced);
        self.validate_direct(&mut sums)?;
        self.validate_limbo(&sums)?;
        held.iter().for_each(|kept| sums.add_fewer(kept));
        sums.add_room(self.heap.pool_of_kept(), self.room_with(&held));
        self.validate_metrics(&sums)?;
        let stats = self.counters.picture();
        for (name, kept, summed) in [
            ("live", stats.live.current, sums.live),
            ("cached", stats.cached.current, sums.cached),
            ("limbo", stats.limbo.current, sums.limbo),
            ("reserved", stats.reserved.current, sums.reserved),
            ("idle", stats.idle, sums.idle),
            ("idle small", self.counters.idle_small(), sums.idle_small),
        ] {
            ensure!(
                kept == summed,
                "{name} is kept as {kept} and sums up to {summed}"
            );
        }
        for pool in [Pool::Small, Pool::Large, Pool::Oversize] {
            let free = sums.free[pool as usize];
            let held = self.heap.free_count(pool);
            ensure!(held == free, "the index of {pool:?} holds {held}");
        }
        Ok(())
    }

    /// PyTorch's metrics, pool by pool.
    fn validate_metrics(&self, sums: &Sums) -> Result<(), Inconsistency> {
        let stats = self.counters.picture();
        ensure!(
            stats.classes_live == sums.classes,
            "size classes are kept as {:?}",
            stats.classes_live
        );
        ensure!(
            stats.libraries_live == sums.libraries,
            "libraries are kept as {:?}",
            stats.libraries_live
        );
        let memory = stats.memory;
        for metric in Metric::ALL {
            let (small, large) = (sums.small[metric as usize], sums.large[metric as usize]);
            for (pool, kept, summed) in [
                ("small", memory.small_pool[metric], small),
                ("large", memory.large_pool[metric], large),
                ("all", memory.all[metric], small + large),
            ] {
                let name = metric.name();
                ensure!(
                    kept.current == summed,
                    "{name} of {pool} is kept as {} and sums up to {summed}",
                    kept.current
                );
                ensure!(
                    kept.peak >= kept.current && kept.allocated - kept.freed == summed,
                    "{name} of {pool} is {kept:?}"
                );
            }
        }
        let oversize = (
            memory.oversize_allocations.current,
            memory.oversize_segments.current,
        );
        ensure!(
            oversize == (sums.oversize_allocations, sums.oversize_segments),
            "oversize blocks and chunks are kept as {oversize:?}"
        );
        Ok(())
    }

    fn validate_chunk(
        &self,
        chunk_id: ChunkId,
        chunk: &Chunk,
        sums: &mut Sums,
    ) -> Result<(), Inconsistency> {
        let mut at = chunk.address;
        let (mut live, mut before, mut was_free) = (0, BlockId::NONE, false);
        for (id, block) in self.heap.blocks.walk(chunk.first) {
            ensure!(block.chunk == chunk_id, "{id:?} is in a foreign chunk");
            let bank = self.heap.blocks.get(chunk.first).bank;
            ensure!(block.bank == bank, "{id:?} is in a bank of its own");
            ensure!(
                chunk.pool != Pool::Oversize || block.size == chunk.size,
                "{chunk_id:?} is oversize and was cut"
            );
            ensure!(
                block.address == at,
                "{id:?} starts at {:?} and not at {at:?}",
                block.address
            );
            ensure!(
                block.previous == before,
                "{id:?} does not know its neighbour below"
            );
            ensure!(sums.see(id), "{id:?} occurs twice");
            let free = block.state == State::Free;
            ensure!(
                !(free && was_free),
                "{id:?} and its neighbour below are both free"
            );
            // Where a slab lies, its first block may start.
            if block.state != State::Slab {
                self.validate_entry(id, block)?;
            }
            self.validate_around(block)?;
            ensure!(
                !matches!(block.state, State::Gone | State::Vacant),
                "{id:?} is {:?} inside a chunk",
                block.state
            );
            let mapped = self.heap.mapped_in(chunk_id, block.span());
            match block.state {
                State::Claimed => sums.cached = sums.cached.saturating_add(mapped),
                State::Hole => ensure!(mapped.is_zero(), "{id:?} is a hole with memory"),
                _ => ensure!(
                    self.heap.has_memory(chunk_id, block.span()),
                    "{id:?} lacks memory"
                ),
            }
            let (requested, library) = self.heap.requested(block);
            let has_none = !matches!(block.state, State::Live | State::Limbo);
            ensure!(
                has_none == requested.is_zero(),
                "{requested} were asked for of {id:?}, which is {:?}",
                block.state
            );
            live += u32::from(block.state == State::Live);
            let info = BlockInfo {
                requested,
                library,
                ..self.info(block)
            };
            let is_oversize = self.counters.is_oversize(block.size);
            sums.add_block(block, info, is_oversize, self.heap.is_kept(block));
            (before, was_free) = (id, free);
            at = at.checked_add(block.size).unwrap_or(Address::new(u64::MAX));
        }
        ensure!(
            at.offset_from(chunk.address) == chunk.size,
            "the blocks of {chunk_id:?} end at {at:?}"
        );
        let is_range = self.heap.is_range(chunk_id);
        ensure!(
            live + u32::from(is_range) == chunk.live,
            "{chunk_id:?} has {live} live blocks and counts {}",
            chunk.live
        );
        if is_range {
            let (size, units) = self.heap.taken_by(chunk_id, chunk);
            sums.add_units(chunk.pool, size, units);
            return Ok(());
        }
        if self.heap.is_slab(chunk_id) {
            let (size, units) = self.heap.taken_by(chunk_id, chunk);
            sums.add_units(chunk.pool, size, units);
        } else {
            sums.add_segment(
                chunk.pool,
                chunk.size,
                self.counters.is_oversize(chunk.size),
            );
        }
        if live == 0 {
            sums.idle = sums.idle.saturating_add(chunk.size);
            if chunk.pool == Pool::Small {
                sums.idle_small = sums.idle_small.saturating_add(chunk.size);
            }
        }
        Ok(())
    }

    /// The page map has the blocks that are live, and only these.
    fn validate_entry(&self, id: BlockId, block: &Block) -> Result<(), Inconsistency> {
        let expected = (block.state == State::Live).then_some(id);
        let word = self.heap.mapped(block.address);
        let mapped = word.and_then(SlotWord::number).map(BlockId);
        ensure!(
            mapped == expected,
            "the page map has {mapped:?} at {:?}, not {expected:?}",
            block.address
        );
        Ok(())
    }

    /// The page map finds the start of a live block from its first address and
    /// its last. Of small ones only: the search looks at each slot between.
    fn validate_around(&self, block: &Block) -> Result<(), Inconsistency> {
        if block.state != State::Live || block.size > SMALL_AROUND {
            return Ok(());
        }
        let last = block.size.saturating_sub(Bytes::new(1));
        for end in [Some(block.address), block.address.checked_add(last)] {
            let found = end.and_then(|end| self.heap.start_below(end));
            ensure!(
                found == Some(block.address),
                "the page map has {found:?} below {end:?}, not {:?}",
                block.address
            );
        }
        Ok(())
    }

    fn validate_direct(&self, sums: &mut Sums) -> Result<(), Inconsistency> {
        let mut number = 0;
        let mut used = 0;
        while let Some((id, block)) = self.heap.blocks.find(number) {
            number += 1;
            used += u32::from(block.state != State::Vacant);
            if block.chunk != ChunkId::DIRECT || block.state == State::Vacant {
                continue;
            }
            if block.state == State::Gone {
                continue;
            }
            sums.see(id);
            let (info, oversize) = (self.info(block), self.counters.is_oversize(block.size));
            sums.add_segment(info.pool, block.size, oversize);
            sums.add_block(block, info, oversize, false);
            if block.state == State::Live {
                self.validate_entry(id, block)?;
            }
        }
        ensure!(
            used == self.heap.blocks.used(),
            "{used} records are in use, {} are counted",
            self.heap.blocks.used()
        );
        Ok(())
    }

    fn validate_limbo(&self, sums: &Sums) -> Result<(), Inconsistency> {
        let (mut waiting, mut direct) = (Bytes::ZERO, Bytes::ZERO);
        for id in self.limbo.blocks() {
            let block = self.heap.blocks.get(id);
            match block.state {
                State::Limbo => {
                    waiting = waiting.saturating_add(block.size);
                    if block.chunk == ChunkId::DIRECT {
                        direct = direct.saturating_add(block.size);
                    }
                }
                State::Gone => ensure!(!sums.saw(id), "{id:?} is gone and in a chunk"),
                state => ensure!(false, "{id:?} is in limbo and {state:?}"),
            }
        }
        ensure!(
            waiting == sums.limbo,
            "limbo holds {waiting}, its blocks sum up to {}",
            sums.limbo
        );
        ensure!(
            direct == self.limbo.direct(),
            "direct allocations in limbo are {direct}, {} are counted",
            self.limbo.direct()
        );
        Ok(())
    }
}
