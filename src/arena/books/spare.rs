//! Spare chunks: those that are one free block. They can go back to the driver
//! before memory is short, the oldest first.
//!
//! Owns the age of every chunk: when it became spare. Invariant: of two spare
//! chunks the one with the smaller stamp has been spare for longer; with a
//! clock the stamps are nanoseconds. Cost: a stamp when a chunk becomes spare,
//! which reads the clock only where idle memory decays; taking chunks looks at
//! all of them.

use std::time::{Duration, Instant};

use crate::address::Bytes;
use crate::arena::block::{BlockId, ChunkId, State};
use crate::arena::books::{Books, Region};
use crate::config::Decay;
use crate::strategy::Pool;

/// What ages are told by.
pub(super) enum Ages {
    /// The order in which chunks became spare.
    Order(u64),
    /// Time, because some of it is too long.
    Clock {
        start: Instant,
        /// For how long a chunk may be spare, in nanoseconds.
        most: u64,
        /// Before this no chunk has been spare for so long.
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

impl<F: Clone> Books<F> {
    /// Notes the age of a chunk that has just become one free block.
    pub(super) fn became_spare(&mut self, id: BlockId) {
        if let Some(chunk) = self.chunks.get_mut(self.blocks.get(id).chunk) {
            chunk.spare_since = self.ages.stamp();
        }
    }

    /// The spare chunks, with since when they are.
    fn spare(&self) -> impl Iterator<Item = (u64, ChunkId)> + '_ {
        let is_spare = |first: BlockId| {
            let first = self.blocks.get(first);
            first.state == State::Free && first.next == BlockId::NONE
        };
        self.chunks
            .iter()
            .filter(move |(_, chunk)| chunk.live == 0 && !chunk.kept && is_spare(chunk.first))
            .map(|(id, chunk)| (chunk.spare_since, id))
    }

    /// Takes all spare chunks out of the books.
    pub(crate) fn take_spare(&mut self) -> Vec<Region> {
        let spare: Vec<ChunkId> = self.spare().map(|(_, id)| id).collect();
        spare
            .into_iter()
            .filter_map(|id| self.take_chunk(id))
            .collect()
    }

    /// Takes so many bytes of spare chunks out of the books, or somewhat more,
    /// the oldest first. Slabs of small requests stay: they are many, and give
    /// little.
    pub(crate) fn take_oldest(&mut self, need: Bytes) -> Vec<Region> {
        let is_slab = |id| {
            let chunk = self.chunks.get(id);
            chunk.is_some_and(|chunk| chunk.pool == Pool::Small)
        };
        let mut spare: Vec<(u64, ChunkId)> = self.spare().filter(|&(_, id)| !is_slab(id)).collect();
        spare.sort_by_key(|&(since, _)| since);
        let mut regions = Vec::new();
        let mut sum = Bytes::ZERO;
        for (_, id) in spare {
            if sum >= need {
                break;
            }
            if let Some(region) = self.take_chunk(id) {
                sum = sum.saturating_add(region.size);
                regions.push(region);
            }
        }
        regions
    }

    /// Takes the chunks out of the books that have been spare for too long.
    pub(crate) fn take_decayed(&mut self) -> Vec<Region> {
        let Ages::Clock { start, most, due } = self.ages else {
            return Vec::new();
        };
        let now = ns(start.elapsed());
        if now < due {
            return Vec::new();
        }
        let mut next = now.saturating_add(most);
        let mut decayed = Vec::new();
        for (since, id) in self.spare() {
            let end = since.saturating_add(most);
            if end <= now {
                decayed.push(id);
            } else {
                next = next.min(end);
            }
        }
        // What becomes spare from now on has all its time before it.
        self.ages = Ages::Clock {
            start,
            most,
            due: next,
        };
        decayed
            .into_iter()
            .filter_map(|id| self.take_chunk(id))
            .collect()
    }
}
