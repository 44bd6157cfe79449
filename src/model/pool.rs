//! Memory that is handed out and comes back in the order of streams.
//!
//! Owns the blocks of one pool, live and free. Invariant: the grains are what
//! the pool has reserved; every byte of them lies in one block; two free blocks
//! that touch are merged if they are free from the same moment on, or for the
//! same stream. It grows at its end, by what is missing behind the free block
//! there. Cost: linear in the free blocks per request.

use std::collections::{BTreeMap, BTreeSet};

use crate::family::Amount;
use crate::ids::StreamId;
use crate::order::Mark;
use crate::settings::Nanos;

/// The unit of sizes and addresses in a pool.
const UNIT: u64 = 512;

/// When a block is free that was freed in the order of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The stream of the free.
    pub stream: StreamId,
    /// The free's place in the stream's work.
    pub mark: Mark,
}

#[derive(Clone, Debug)]
struct Free {
    length: u64,
    /// `None`: it is known to be free by now.
    pending: Option<Pending>,
}

/// One pool's memory, as addresses.
#[derive(Debug)]
pub struct Pool {
    grain: u64,
    /// The start of each grain.
    grains: BTreeSet<u64>,
    free: BTreeMap<u64, Free>,
    /// Live blocks: length, and how many bytes were asked for.
    live: BTreeMap<u64, (u64, u64)>,
    reserved: Amount,
    used: Amount,
}

/// The size of the block for a request.
fn rounded(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(UNIT)
}

impl Pool {
    /// A pool that reserves memory in multiples of `grain`.
    #[must_use]
    pub fn new(grain: u64) -> Pool {
        Pool {
            grain,
            grains: BTreeSet::new(),
            free: BTreeMap::new(),
            live: BTreeMap::new(),
            reserved: Amount::default(),
            used: Amount::default(),
        }
    }

    /// Bytes reserved: now, and the most since the last reset.
    #[must_use]
    pub fn reserved(&self) -> (u64, u64) {
        (self.reserved.now, self.reserved.peak)
    }

    /// Bytes that were asked for in live blocks: now, and the most since the last reset.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        (self.used.now, self.used.peak)
    }

    /// Makes the most that was reserved what is reserved now.
    pub fn reset_reserved(&mut self) {
        self.reserved.peak = self.reserved.now;
    }

    /// Makes the most that was used what is used now.
    pub fn reset_used(&mut self) {
        self.used.peak = self.used.now;
    }

    /// Where it grows: the end of the last of its grains; `None` if it has none.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.grains.last().map(|start| start + self.grain)
    }

    /// How much must be reserved at its end for a request that no free block can
    /// serve.
    #[must_use]
    pub fn growth(&self, size: u64) -> Option<u64> {
        let last = self.free.last_key_value().filter(|(start, free)| {
            free.pending.is_none() && Some(**start + free.length) == self.end()
        });
        let rest = last.map_or(0, |(_, free)| free.length);
        let missing = rounded(size)?.saturating_sub(rest);
        missing.checked_next_multiple_of(self.grain)
    }

    /// How much must be reserved for a request elsewhere.
    #[must_use]
    pub fn growth_elsewhere(&self, size: u64) -> Option<u64> {
        rounded(size)?.checked_next_multiple_of(self.grain)
    }

    /// Takes the smallest free block that is large enough, the lowest of
    /// several, among those that are known to be free and the pending ones that
    /// `usable` accepts. Returns its start, and what it still waits for.
    pub fn take(
        &mut self,
        size: u64,
        usable: impl Fn(&Pending) -> bool,
    ) -> Option<(u64, Option<Pending>)> {
        let length = rounded(size)?;
        let fits = |f: &Free| f.length >= length && f.pending.as_ref().is_none_or(&usable);
        let all = self.free.iter().filter(|(_, f)| fits(f));
        let (&start, _) = all.min_by_key(|&(&start, f)| (f.length, start))?;
        let found = self.free.remove(&start)?;
        if found.length > length {
            let rest = Free {
                length: found.length - length,
                ..found.clone()
            };
            self.free.insert(start + length, rest);
        }
        self.live.insert(start, (length, size));
        self.used.add(size);
        Some((start, found.pending))
    }

    /// Adds newly reserved memory, whole grains, as free.
    pub fn grow(&mut self, start: u64, length: u64) {
        let mut at = start;
        while at < start + length {
            self.grains.insert(at);
            at += self.grain;
        }
        self.reserved.add(length);
        let pending = None;
        self.put(start, Free { length, pending });
    }

    /// Frees the block that begins at `start`, now or when the mark is reached.
    /// Returns false if there is none.
    pub fn give(&mut self, start: u64, pending: Option<Pending>) -> bool {
        let Some((length, asked)) = self.live.remove(&start) else {
            return false;
        };
        self.used.subtract(asked);
        self.put(start, Free { length, pending });
        true
    }

    /// Whether a live block begins at `start`.
    #[must_use]
    pub fn holds(&self, start: u64) -> bool {
        self.live.contains_key(&start)
    }

    /// Whether nothing of it is in use or still to be freed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && self.free.values().all(|f| f.pending.is_none())
    }

    /// The host knows that all work is done up to `now`.
    pub fn settle(&mut self, now: Nanos) {
        let reached = |f: &Free| f.pending.as_ref().is_some_and(|p| p.mark.time() <= now);
        let done: Vec<u64> = (self.free.iter())
            .filter(|(_, f)| reached(f))
            .map(|(&start, _)| start)
            .collect();
        for start in done {
            if let Some(mut free) = self.free.remove(&start) {
                free.pending = None;
                self.put(start, free);
            }
        }
    }

    /// Takes grains out that are free as a whole, the highest first, as long as
    /// `keep` bytes stay reserved.
    pub fn release(&mut self, keep: u64) -> Vec<u64> {
        let mut released = Vec::new();
        let all: Vec<u64> = self.grains.iter().rev().copied().collect();
        for start in all {
            if self.reserved.now < keep.saturating_add(self.grain) {
                break;
            }
            if self.cut(start) {
                self.grains.remove(&start);
                self.reserved.subtract(self.grain);
                released.push(start);
            }
        }
        released
    }

    /// Takes a grain out of the free block that holds all of it, if one does.
    fn cut(&mut self, grain: u64) -> bool {
        let end = grain + self.grain;
        let below = self.free.range(..=grain).next_back();
        let Some((start, free)) = below.map(|(&start, f)| (start, f.clone())) else {
            return false;
        };
        if free.pending.is_some() || start + free.length < end {
            return false;
        }
        self.free.remove(&start);
        for (from, to) in [(start, grain), (end, start + free.length)] {
            if from < to {
                let rest = Free {
                    length: to - from,
                    ..free.clone()
                };
                self.free.insert(from, rest);
            }
        }
        true
    }

    /// Adds a free block and merges it with its neighbours.
    fn put(&mut self, mut start: u64, mut free: Free) {
        let below = self.free.range(..start).next_back();
        let below = below.map(|(&at, f)| (at, f.clone()));
        if let Some((at, before)) = below
            && at + before.length == start
            && alike(&before, &free)
        {
            self.free.remove(&at);
            start = at;
            free = joined(&before, free);
        }
        let end = start + free.length;
        if let Some(after) = self.free.get(&end).cloned()
            && alike(&after, &free)
        {
            self.free.remove(&end);
            free = joined(&after, free);
        }
        self.free.insert(start, free);
    }
}

fn alike(one: &Free, other: &Free) -> bool {
    let stream = |f: &Free| f.pending.as_ref().map(|p| p.stream);
    stream(one) == stream(other)
}

/// Both blocks as one; it is free when both are. Of one stream's marks the
/// later one covers the earlier.
fn joined(one: &Free, other: Free) -> Free {
    let time = |f: &Free| f.pending.as_ref().map(|p| p.mark.time());
    let later = if time(one) > time(&other) {
        one.pending.clone()
    } else {
        other.pending
    };
    Free {
        length: one.length + other.length,
        pending: later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: u64 = 1 << 25;

    fn pending(stream: u32, time: Nanos) -> Option<Pending> {
        let mark = Mark { time, known: None };
        let stream = StreamId::numbered(stream);
        Some(Pending { stream, mark })
    }

    fn none(_: &Pending) -> bool {
        false
    }

    fn start(taken: Option<(u64, Option<Pending>)>) -> Option<u64> {
        taken.map(|(start, _)| start)
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken_in_units() {
        let mut pool = Pool::new(GRAIN);
        assert_eq!(pool.growth(1), Some(GRAIN));
        assert_eq!(pool.growth(GRAIN + 1), Some(2 * GRAIN));
        assert_eq!(pool.take(1, none), None);
        pool.grow(GRAIN, GRAIN);
        let blocks: Vec<u64> = (0..3)
            .map(|_| start(pool.take(1000, none)).unwrap())
            .collect();
        assert_eq!(blocks, [GRAIN, GRAIN + 1024, GRAIN + 2048]);
        assert_eq!(pool.used(), (3000, 3000), "as it was asked for");
        assert!(pool.give(GRAIN + 1024, None));
        assert!(!pool.give(GRAIN + 1024, None));
        assert_eq!(start(pool.take(512, none)), Some(GRAIN + 1024));
        assert_eq!(start(pool.take(1024, none)), Some(GRAIN + 3072));
        assert_eq!(pool.used(), (3536, 3536));
    }

    /// As measured on an H200.
    #[test]
    fn a_pool_grows_at_its_end_by_what_is_missing() {
        const MIB: u64 = 1 << 20;
        let mut pool = Pool::new(GRAIN);
        assert_eq!(pool.end(), None);
        let mut grown = Vec::new();
        for size in [1, MIB, 31 * MIB, 33 * MIB, 100 * MIB] {
            let (end, before) = (pool.end().unwrap_or(GRAIN), pool.reserved().0);
            if pool.take(size, none).is_none() {
                pool.grow(end, pool.growth(size).unwrap());
                assert!(pool.take(size, none).is_some(), "{size}");
            }
            grown.push((pool.reserved().0 - before) / MIB);
        }
        assert_eq!(grown, [32, 0, 32, 32, 96]);
        assert_eq!(pool.used().0, 165 * MIB + 1);
        assert_eq!(pool.growth_elsewhere(33 * MIB), Some(2 * GRAIN));
        // What is still to be freed is no room.
        let mut pool = Pool::new(GRAIN);
        pool.grow(0, GRAIN);
        let block = start(pool.take(GRAIN, none)).unwrap();
        pool.give(block, pending(1, 5));
        assert_eq!(pool.growth(GRAIN + 1), Some(2 * GRAIN));
        pool.settle(5);
        assert_eq!(pool.growth(GRAIN + 1), Some(GRAIN));
    }

    #[test]
    fn what_a_stream_is_to_free_waits_or_goes_to_those_who_may() {
        let mut pool = Pool::new(GRAIN);
        pool.grow(0, GRAIN);
        let block = start(pool.take(GRAIN, none)).unwrap();
        pool.give(block, pending(1, 50));
        assert_eq!(pool.take(512, none), None);
        let own = |p: &Pending| p.stream == StreamId::numbered(1);
        assert_eq!(pool.take(512, own), Some((0, pending(1, 50))));
        pool.settle(49);
        assert_eq!(pool.take(512, none), None);
        pool.settle(50);
        assert_eq!(pool.take(512, none), Some((512, None)));
        assert!(!pool.is_idle());
    }

    #[test]
    fn neighbours_of_one_stream_merge_and_wait_for_the_later() {
        let mut pool = Pool::new(GRAIN);
        pool.grow(0, GRAIN);
        for _ in 0..4 {
            pool.take(GRAIN / 4, none);
        }
        pool.give(0, pending(1, 30));
        pool.give(GRAIN / 4, pending(1, 20));
        pool.give(GRAIN / 2, pending(2, 20));
        let any = |_: &Pending| true;
        assert_eq!(pool.take(GRAIN / 2 + 1, any), None, "of two streams");
        assert_eq!(pool.take(GRAIN / 2, any), Some((0, pending(1, 30))));
    }

    #[test]
    fn whole_grains_are_released_and_no_more_than_asked() {
        let mut pool = Pool::new(GRAIN);
        pool.grow(0, 3 * GRAIN);
        pool.grow(8 * GRAIN, GRAIN);
        let block = start(pool.take(GRAIN + 1, none)).unwrap();
        assert_eq!(block, 0);
        assert_eq!(pool.release(3 * GRAIN), [8 * GRAIN]);
        assert_eq!(pool.release(0), [2 * GRAIN]);
        assert_eq!(pool.reserved(), (2 * GRAIN, 4 * GRAIN));
        pool.give(block, pending(1, 5));
        assert_eq!(pool.release(0), [0; 0], "the free is not reached");
        pool.settle(5);
        assert_eq!(pool.release(1), [GRAIN]);
        pool.reset_reserved();
        assert_eq!(pool.reserved(), (GRAIN, GRAIN));
        assert!(pool.is_idle());
    }
}
