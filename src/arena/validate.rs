//! A check of the books against themselves, for tests and debug builds.
//!
//! Owns nothing. Cost: looks at every block, so never on a path of a release
//! build; a debug build does it at the end of an allocation and of a free, the
//! more seldom the more blocks there are.

use std::collections::HashSet;
use std::fmt;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::block::{BlockId, ChunkId, State};
use crate::arena::books::Books;
use crate::arena::chunk::Chunk;
use crate::driver::Driver;
use crate::stats::ClassCount;
use crate::strategy::Pool;

/// What is wrong with the books, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inconsistency(String);

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Inconsistency {}

/// A step of the program in the arena: at its end a debug build compares the
/// books. (Not under the model checker, for which it would be one more lock.)
pub(super) struct Step<'a, D: Driver>(&'a Arena<D>);

impl<D: Driver> Arena<D> {
    pub(super) fn step(&self) -> Step<'_, D> {
        Step(self)
    }
}

impl<D: Driver> Drop for Step<'_, D> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && cfg!(not(loom)) && !std::thread::panicking() {
            let books = self.0.books.lock();
            let found = books.is_due().then(|| books.validate());
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

#[derive(Default)]
struct Sums {
    live: Bytes,
    cached: Bytes,
    limbo: Bytes,
    reserved: Bytes,
    idle: Bytes,
    small_free: u64,
    large_free: u64,
    seen: HashSet<u32>,
}

impl<F: Clone> Books<F> {
    /// Whether the books are to be compared after this step: a few blocks are
    /// looked at per step, on average.
    fn is_due(&self) -> bool {
        let steps = |class: &ClassCount| class.allocations + class.frees;
        let steps: u64 = self.stats.classes.iter().map(steps).sum();
        steps.is_multiple_of(1 + u64::from(self.blocks.used() / 16))
    }

    /// Compares everything that is kept twice.
    ///
    /// # Errors
    /// The first difference found.
    pub(crate) fn validate(&self) -> Result<(), Inconsistency> {
        let mut sums = Sums::default();
        for (id, chunk) in self.chunks.iter() {
            self.validate_chunk(id, chunk, &mut sums)?;
        }
        self.validate_direct(&mut sums)?;
        self.validate_limbo(&sums)?;
        let stats = &self.stats;
        for (name, kept, summed) in [
            ("live", stats.live.current, sums.live),
            ("cached", stats.cached.current, sums.cached),
            ("limbo", stats.limbo.current, sums.limbo),
            ("reserved", stats.reserved.current, sums.reserved),
            ("idle", stats.idle, sums.idle),
        ] {
            ensure!(
                kept == summed,
                "{name} is kept as {kept} and sums up to {summed}"
            );
        }
        ensure!(
            self.small.count() == sums.small_free,
            "small index holds {}",
            self.small.count()
        );
        ensure!(
            self.large.count() == sums.large_free,
            "large index holds {}",
            self.large.count()
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
        for (id, block) in self.blocks.walk(chunk.first) {
            ensure!(block.chunk == chunk_id, "{id:?} is in a foreign chunk");
            ensure!(
                block.address == at,
                "{id:?} starts at {:?} and not at {at:?}",
                block.address
            );
            ensure!(
                block.previous == before,
                "{id:?} does not know its neighbour below"
            );
            ensure!(sums.seen.insert(id.0), "{id:?} occurs twice");
            let free = block.state == State::Free;
            ensure!(
                !(free && was_free),
                "{id:?} and its neighbour below are both free"
            );
            self.validate_map(block.address, (block.state == State::Live).then_some(id))?;
            match block.state {
                State::Live => {
                    live += 1;
                    sums.live = sums.live.saturating_add(block.size);
                }
                State::Free => {
                    sums.cached = sums.cached.saturating_add(block.size);
                    match chunk.pool {
                        Pool::Small => sums.small_free += 1,
                        Pool::Large => sums.large_free += 1,
                    }
                }
                State::Limbo => sums.limbo = sums.limbo.saturating_add(block.size),
                State::Gone | State::Vacant => {
                    ensure!(false, "{id:?} is {:?} inside a chunk", block.state)
                }
            }
            (before, was_free) = (id, free);
            at = at.checked_add(block.size).unwrap_or(Address::new(u64::MAX));
        }
        ensure!(
            at.offset_from(chunk.address) == chunk.size,
            "the blocks of {chunk_id:?} end at {at:?}"
        );
        ensure!(
            live == chunk.live,
            "{chunk_id:?} has {live} live blocks and counts {}",
            chunk.live
        );
        sums.reserved = sums.reserved.saturating_add(chunk.size);
        if live == 0 {
            sums.idle = sums.idle.saturating_add(chunk.size);
        }
        Ok(())
    }

    fn validate_map(
        &self,
        address: Address,
        expected: Option<BlockId>,
    ) -> Result<(), Inconsistency> {
        let mapped = self.map().block(address).map(BlockId);
        ensure!(
            mapped == expected,
            "the page map has {mapped:?} at {address:?}, not {expected:?}"
        );
        Ok(())
    }

    fn validate_direct(&self, sums: &mut Sums) -> Result<(), Inconsistency> {
        let mut number = 0;
        let mut used = 0;
        while let Some((id, block)) = self.blocks.find(number) {
            number += 1;
            used += u32::from(block.state != State::Vacant);
            if block.chunk != ChunkId::DIRECT || block.state == State::Vacant {
                continue;
            }
            if block.state == State::Gone {
                continue;
            }
            sums.seen.insert(id.0);
            sums.reserved = sums.reserved.saturating_add(block.size);
            if block.state == State::Live {
                self.validate_map(block.address, Some(id))?;
                sums.live = sums.live.saturating_add(block.size);
            } else {
                sums.limbo = sums.limbo.saturating_add(block.size);
            }
        }
        ensure!(
            used == self.blocks.used(),
            "{used} records are in use, {} are counted",
            self.blocks.used()
        );
        Ok(())
    }

    fn validate_limbo(&self, sums: &Sums) -> Result<(), Inconsistency> {
        let mut waiting = Bytes::ZERO;
        for id in self.limbo.blocks() {
            let block = self.blocks.get(id);
            match block.state {
                State::Limbo => waiting = waiting.saturating_add(block.size),
                State::Gone => ensure!(!sums.seen.contains(&id.0), "{id:?} is gone and in a chunk"),
                state => ensure!(false, "{id:?} is in limbo and {state:?}"),
            }
        }
        ensure!(
            waiting == sums.limbo,
            "limbo holds {waiting}, its blocks sum up to {}",
            sums.limbo
        );
        Ok(())
    }
}
