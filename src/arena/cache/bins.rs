//! Kept blocks by exact size.
//!
//! Owns the blocks that one thread keeps of one arena, and what is known of the
//! sizes that it asks for: only those that come back are worth keeping.
//! Invariant: a bin has blocks of one size in the order in which they were
//! freed, so if its first one cannot be handed out yet none can; `blocks` and
//! `bytes` are their sums. Cost: constant, but for what looks at all bins.

use crate::address::{Address, Bytes};
use crate::page_map::{Entry, SLOT};

/// The most slots that a kept block has.
#[allow(clippy::cast_possible_truncation, reason = "2048")]
const UNITS: usize = (Entry::MOST.get() / SLOT.get()) as usize;

const WORDS: usize = UNITS / 64;

/// A size comes back when it is asked for twice within so many requests that
/// no kept block serves.
const WINDOW: u16 = 1024;

/// After so many of them, larger blocks may be worth keeping.
const WIDENS: u16 = 256;

/// A kept block, as its thread remembers it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) address: Address,
    pub(crate) entry: Entry,
    /// The epoch that was open after it was freed.
    pub(crate) epoch: u64,
}

/// Kept blocks, first in, first out. Its length is a power of two, or nothing.
struct Ring {
    places: Vec<Kept>,
    first: usize,
    count: usize,
}

impl Ring {
    const fn new() -> Ring {
        Ring {
            places: Vec::new(),
            first: 0,
            count: 0,
        }
    }

    fn at(&self, number: usize) -> usize {
        self.first.wrapping_add(number) & self.places.len().wrapping_sub(1)
    }

    #[inline]
    fn front(&self) -> Option<Kept> {
        if self.count == 0 {
            return None;
        }
        self.places.get(self.first).copied()
    }

    /// Takes the first out, where there is one.
    #[inline]
    fn pop(&mut self) {
        self.first = self.at(1);
        self.count -= 1;
    }

    #[inline]
    fn push(&mut self, kept: Kept) {
        if self.count == self.places.len() {
            self.grow(kept);
        }
        let at = self.at(self.count);
        if let Some(place) = self.places.get_mut(at) {
            *place = kept;
            self.count += 1;
        }
    }

    #[cold]
    fn grow(&mut self, filler: Kept) {
        self.places.rotate_left(self.first);
        self.first = 0;
        let length = (2 * self.places.len()).max(4);
        self.places.resize(length, filler);
    }

    fn drain_to(&mut self, all: &mut Vec<Kept>) {
        while let Some(kept) = self.front() {
            self.pop();
            all.push(kept);
        }
    }

    fn retain(&mut self, stays: impl Fn(&Kept) -> bool) {
        self.places.rotate_left(self.first);
        self.first = 0;
        let mut count = 0;
        for number in 0..self.count {
            if let Some(&kept) = self.places.get(number)
                && stays(&kept)
                && let Some(place) = self.places.get_mut(count)
            {
                *place = kept;
                count += 1;
            }
        }
        self.count = count;
    }
}

struct Bin {
    size: Bytes,
    blocks: Ring,
    /// How many blocks are worth keeping: as many as were missed.
    worth: u32,
    /// Whether a request was served since `shed` passed by.
    used: bool,
}

/// What is known of a size.
#[derive(Copy, Clone, Default)]
struct Place {
    /// The number of its bin plus one; 0: none yet.
    bin: u16,
    /// How many requests had been missed when one of this size was.
    missed: u16,
}

/// See the module.
pub(super) struct Bins {
    /// By slots minus one.
    places: Box<[Place; UNITS]>,
    bins: Vec<Bin>,
    bytes: Bytes,
    /// Requests that no kept block served; wraps.
    misses: u16,
    /// Larger ones, in slots, are not worth keeping now: they would have to go
    /// before they are asked for.
    largest: usize,
    /// Sizes of which there may be blocks: a bit for each.
    some: [u64; WORDS],
}

impl Bins {
    pub(super) fn new() -> Bins {
        Bins {
            places: Box::new([Place::default(); UNITS]),
            bins: Vec::new(),
            bytes: Bytes::ZERO,
            misses: WINDOW,
            largest: UNITS,
            some: [0; WORDS],
        }
    }

    /// How many bytes are kept.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Takes out the block of so many slots, 1 to [`UNITS`], that was freed
    /// first, if its epoch is over.
    #[inline]
    pub(super) fn pop(&mut self, units: usize, is_over: impl Fn(u64) -> bool) -> Option<Kept> {
        let place = self.places.get(units.wrapping_sub(1))?;
        if let Some(bin) = self.bins.get_mut(usize::from(place.bin).wrapping_sub(1))
            && let Some(kept) = bin.blocks.front()
            && is_over(kept.epoch)
        {
            bin.blocks.pop();
            bin.used = true;
            self.bytes = self.bytes.saturating_sub(bin.size);
            return Some(kept);
        }
        self.missed(units);
        None
    }

    /// Nothing could serve a request of so many slots.
    fn missed(&mut self, units: usize) {
        self.misses = self.misses.wrapping_add(1);
        if self.misses.is_multiple_of(WIDENS) {
            self.widen();
        }
        let Some(place) = self.places.get_mut(units.wrapping_sub(1)) else {
            return;
        };
        let before = std::mem::replace(&mut place.missed, self.misses);
        if self.misses.wrapping_sub(before) > WINDOW {
            return;
        }
        if place.bin == 0 {
            self.bins.push(Bin {
                size: SLOT.saturating_mul(units as u64),
                blocks: Ring::new(),
                worth: 0,
                used: true,
            });
            // At most 2048 of them.
            place.bin = u16::try_from(self.bins.len()).unwrap_or(0);
        }
        if let Some(bin) = self.bins.get_mut(usize::from(place.bin).wrapping_sub(1)) {
            bin.worth = bin.worth.saturating_add(1);
        }
    }

    fn bin(&mut self, units: usize) -> Option<&mut Bin> {
        let place = self.places.get(units.wrapping_sub(1))?;
        self.bins.get_mut(usize::from(place.bin).wrapping_sub(1))
    }

    /// Whether one more block of so many slots is worth keeping.
    #[inline]
    pub(super) fn wants(&mut self, units: usize) -> bool {
        units <= self.largest
            && self
                .bin(units)
                .is_some_and(|bin| bin.blocks.count < bin.worth as usize)
    }

    /// Keeps larger blocks again, step by step.
    fn widen(&mut self) {
        self.largest = (self.largest + self.largest / 16 + 1).min(UNITS);
    }

    /// Keeps a block of so many slots, which is wanted.
    #[inline]
    pub(super) fn push(&mut self, units: usize, kept: Kept) {
        if let Some(bin) = self.bin(units) {
            let size = bin.size;
            bin.blocks.push(kept);
            let place = units.wrapping_sub(1);
            if let Some(word) = self.some.get_mut(place / 64) {
                *word |= 1 << (place % 64);
            }
            self.bytes = self.bytes.saturating_add(size);
        }
    }

    /// Takes blocks out until no more than `most` bytes are left: the largest,
    /// and those of sizes that were not asked for since this was done last.
    pub(super) fn shed(&mut self, most: Bytes) -> Vec<Kept> {
        let mut shed = Vec::new();
        for place in self.filled() {
            self.shed_bin(place, most, &mut shed);
        }
        shed
    }

    fn shed_bin(&mut self, place: usize, most: Bytes, shed: &mut Vec<Kept>) {
        let bytes = self.bytes.saturating_sub(most);
        let is_full = !bytes.is_zero();
        let Some(bin) = self.bin(place + 1) else {
            return;
        };
        if std::mem::take(&mut bin.used) && !is_full {
            return;
        }
        // What is not asked for goes as a whole.
        let excess = if is_full { bytes } else { Bytes::MAX };
        let (size, mut gone) = (bin.size, Bytes::ZERO);
        while gone < excess
            && let Some(kept) = bin.blocks.front()
        {
            bin.blocks.pop();
            shed.push(kept);
            gone = gone.saturating_add(size);
        }
        let left = bin.blocks.count;
        bin.worth = u32::try_from(left).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(gone);
        if left > 0 {
            return;
        }
        if is_full {
            self.largest = place.max(1);
        }
        if let Some(word) = self.some.get_mut(place / 64) {
            *word &= !(1 << (place % 64));
        }
    }

    /// Forgets the blocks that the arena has called back.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&Kept) -> bool) {
        self.bytes = Bytes::ZERO;
        for place in self.filled() {
            let Some(bin) = self.bin(place + 1) else {
                continue;
            };
            bin.blocks.retain(&is_kept);
            let bytes = bin.size.saturating_mul(bin.blocks.count as u64);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// Takes all blocks out.
    pub(super) fn drain(&mut self) -> Vec<Kept> {
        let mut all = Vec::new();
        self.bytes = Bytes::ZERO;
        for place in self.filled() {
            if let Some(bin) = self.bin(place + 1) {
                bin.blocks.drain_to(&mut all);
            }
        }
        self.some = [0; WORDS];
        all
    }

    /// The places of all bins that may have blocks, the largest first.
    fn filled(&self) -> impl Iterator<Item = usize> + use<> {
        let some = self.some;
        let words = some.into_iter().enumerate().rev();
        words.flat_map(|(word, bits)| {
            // Most words are empty.
            let places = if bits == 0 { 0..0 } else { 0..64 };
            let is_set = move |bit: &usize| bits >> bit & 1 != 0;
            places.rev().filter(is_set).map(move |bit| word * 64 + bit)
        })
    }
}
