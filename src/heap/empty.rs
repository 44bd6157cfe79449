//! Empty chunks: those that are one free block. They can go back to the driver
//! before memory is short, the oldest first.
//!
//! Owns the age of every chunk: when it became empty. Invariant: of two empty
//! chunks the one with the smaller stamp has been empty for longer; with a
//! clock the stamps are nanoseconds. Cost: a stamp when a chunk becomes empty,
//! which reads the clock only where idle memory decays; taking chunks looks at
//! all of them.

use std::time::{Duration, Instant};

use crate::address::Bytes;
use crate::config::Decay;
use crate::heap::Heap;
use crate::heap::block::{BlockId, ChunkId, State};
use crate::heap::leave::LeftChunk;
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
        let empty = self.empty().map(|(_, id)| id).collect();
        self.take_chunks(empty)
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
        self.ages = Ages::Clock {
            start,
            most,
            due: next,
        };
        self.take_chunks(decayed)
    }
}
