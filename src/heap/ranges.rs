//! Ranges: reserved addresses whose memory comes and goes in units.
//!
//! A range is a chunk whose blocks tile all of its addresses. Where no unit is
//! mapped the block is a *hole*. Free blocks have memory throughout: they are cut and
//! merged as in any chunk, so a request that the cache serves never comes here.
//! What makes memory for one that it does not serve is a *window* ([`window`]): a
//! stretch of free blocks and holes that is long enough. The units that its holes want
//! come from the driver, or from free blocks elsewhere, of which only whole units can
//! be had: a unit with a live byte stays where it is.
//!
//! The driver is called between two steps here: a stretch is *claimed*, and no other
//! thread sees it until it is free or a hole again.
//!
//! Owns the units and where each is mapped. Invariant: a hole begins and ends at a
//! unit; every other block of a range has memory throughout, but for a claimed one; the
//! page map holds what has memory and is not claimed. A range counts one live block
//! that there is not, so that it is never idle. Cost: to find a window takes a step
//! for each hole and for each free block between two of them; the rest is
//! proportional to the units that move.

mod claims;
mod exported;
mod idle;
pub(crate) mod paused;
mod slabs;
pub(crate) mod window;

use std::collections::BTreeMap;

use crate::address::{Address, Bytes};
use crate::driver::mapping::Unit;
use crate::heap::block::{Block, BlockId, ChunkId, State};
use crate::heap::chunk::Chunk;
use crate::heap::{Cut, Heap, Joined, Span};
use crate::strategy::Pool;

/// A unit that is mapped.
#[derive(Copy, Clone)]
struct MappedUnit {
    unit: Unit,
    /// The page map holds it; else the thread that claimed it has it.
    is_held: bool,
    /// No device has access, and it cannot be unmapped.
    is_stuck: bool,
    /// It was taken away by a pause, and another comes in its stead ([`paused`]).
    is_gone: bool,
    /// It was mapped since the last pause, and who has access is to be said.
    is_unsure: bool,
}

impl MappedUnit {
    fn new(unit: Unit) -> MappedUnit {
        MappedUnit {
            unit,
            is_held: true,
            is_stuck: false,
            is_gone: false,
            is_unsure: false,
        }
    }
}

/// Reserved addresses.
pub(crate) struct Range {
    chunk: ChunkId,
    span: Span,
    /// What is mapped, by the number of the place.
    places: Vec<Option<MappedUnit>>,
    mapped: usize,
    /// How many units a pause took away.
    gone: usize,
    /// Stretches that the driver is called for.
    claims: usize,
    /// The holes, by their addresses.
    holes: BTreeMap<Address, BlockId>,
    /// What others may have mapped as well ([`exported`]).
    exported: BTreeMap<Address, Bytes>,
}

/// See the module.
pub(crate) struct Ranges {
    /// The size of every unit; zero while there is no range.
    unit: Bytes,
    pub(super) all: Vec<Range>,
    /// Units that are mapped nowhere.
    loose: Vec<Unit>,
    /// Units that are mapped nowhere and are in some thread's hands.
    moving: usize,
    /// The slabs, and in which block of a range each lies.
    slabs: BTreeMap<ChunkId, BlockId>,
    /// Nothing is handed out, and no unit moves but by the pause.
    is_paused: bool,
    /// Others may have something mapped as well ([`exported`]).
    has_exports: bool,
}

/// By how much free blocks that share their range became more or fewer.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Splits {
    pub(crate) before: u64,
    pub(crate) before_bytes: Bytes,
    pub(crate) after: u64,
    pub(crate) after_bytes: Bytes,
}

/// A window that was made.
pub(crate) struct Made {
    /// What became free, the request's block last.
    pub(crate) free: Vec<(Bytes, Joined)>,
    /// That block.
    pub(crate) cut: Cut,
}

/// A stretch that the driver is called for.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Claim {
    chunk: ChunkId,
    block: BlockId,
    pub(crate) span: Span,
}

/// Places side by side that want units, or give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) at: Address,
    pub(crate) units: Vec<Unit>,
}

impl Run {
    /// The first so many units of it, and the rest; none where there are none.
    pub(crate) fn split_at(mut self, count: usize, unit: Bytes) -> (Option<Run>, Option<Run>) {
        let units = self.units.split_off(count.min(self.units.len()));
        let size = Bytes::new(unit.get() * self.units.len() as u64);
        let at = self.at.checked_add(size).unwrap_or(self.at);
        let has_some = |run: &Run| !run.units.is_empty();
        let rest = Run { at, units };
        (Some(self).filter(has_some), Some(rest).filter(has_some))
    }
}

/// Everything that was mapped or held when the context ended, but for what some
/// thread has in its hands.
#[derive(Default)]
pub(crate) struct Remains {
    pub(crate) runs: Vec<Run>,
    pub(crate) loose: Vec<Unit>,
    /// Ranges that nobody works on.
    pub(crate) ranges: Vec<Span>,
}

impl Ranges {
    pub(super) fn new() -> Ranges {
        Ranges {
            unit: Bytes::ZERO,
            all: Vec::new(),
            loose: Vec::new(),
            moving: 0,
            slabs: BTreeMap::new(),
            is_paused: false,
            has_exports: false,
        }
    }

    /// Whether a block of this size is the lower part of a free one, and not the upper:
    /// in ranges it is, but where that would divide a unit and the other would not.
    #[inline(always)]
    pub(crate) fn cuts_low(&self, block: &Block, size: Bytes) -> bool {
        !self.unit.is_zero() && self.cuts_low_in_range(block, size)
    }

    #[cold]
    fn cuts_low_in_range(&self, block: &Block, size: Bytes) -> bool {
        let low = block.address.checked_add(size);
        let high = block.address.checked_add(block.size.saturating_sub(size));
        let is_edge = |at: Option<Address>| at.is_some_and(|at| at.is_aligned(self.unit));
        is_edge(low) || !is_edge(high)
    }

    /// The size of a unit.
    pub(crate) fn unit(&self) -> Bytes {
        self.unit
    }

    /// Bytes of so many units.
    pub(crate) fn bytes(&self, units: usize) -> Bytes {
        Bytes::new(self.unit.get().saturating_mul(units as u64))
    }

    /// Bytes of the units that are mapped nowhere.
    pub(crate) fn unplaced(&self) -> Bytes {
        self.bytes(self.loose.len() + self.moving)
    }

    /// How many units are mapped nowhere.
    pub(crate) fn unplaced_count(&self) -> u64 {
        (self.loose.len() + self.moving) as u64
    }

    /// How many units are mapped nowhere, and nobody's.
    pub(crate) fn loose(&self) -> usize {
        self.loose.len()
    }

    /// Takes up to so many of them.
    pub(crate) fn take_loose(&mut self, most: usize) -> Vec<Unit> {
        let rest = self.loose.len().saturating_sub(most);
        let taken = self.loose.split_off(rest);
        self.moving += taken.len();
        taken
    }

    /// So many units came from the driver, or from their place, into a thread's hands.
    pub(crate) fn hold(&mut self, units: usize) {
        self.moving += units;
    }

    /// So many went from there to the driver.
    pub(crate) fn let_go(&mut self, units: usize) {
        self.moving -= units;
    }

    /// What a thread had in its hands is mapped nowhere.
    pub(crate) fn put_loose(&mut self, units: Vec<Unit>) {
        self.moving -= units.len();
        self.loose.extend(units);
    }
}

impl Range {
    fn place(&self, at: Address, unit: Bytes) -> usize {
        let number = at.offset_from(self.span.address).get() / unit.get();
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    /// What is mapped in a span, and is as `which` says, in runs.
    fn runs_of(&self, span: Span, unit: Bytes, which: impl Fn(&MappedUnit) -> bool) -> Vec<Run> {
        self.runs_where(span, unit, |_, place| which(place))
    }

    /// The same by the number of the place too.
    fn runs_where(
        &self,
        span: Span,
        unit: Bytes,
        mut which: impl FnMut(usize, &MappedUnit) -> bool,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut is_open = false;
        for (at, _) in places(span, unit) {
            let number = self.place(at, unit);
            let found = self.places[number].filter(|place| which(number, place));
            match (found, runs.last_mut()) {
                (Some(place), Some(run)) if is_open => run.units.push(place.unit),
                (Some(place), _) => runs.push(Run {
                    at,
                    units: vec![place.unit],
                }),
                (None, _) => {}
            }
            is_open = found.is_some();
        }
        runs
    }
}

/// The places of whole units in a span, with their size.
fn places(span: Span, unit: Bytes) -> impl Iterator<Item = (Address, Bytes)> {
    let count = span.size.get().checked_div(unit.get()).unwrap_or(0);
    (0..count).filter_map(move |n| {
        let at = span.address.checked_add(Bytes::new(n * unit.get()))?;
        Some((at, unit))
    })
}

/// The end of a span.
pub(super) fn end(span: Span) -> Address {
    span.address.checked_add(span.size).unwrap_or(span.address)
}

/// The whole units inside a stretch.
pub(super) fn whole_units(start: Address, size: Bytes, unit: Bytes) -> Span {
    let from = start.get().next_multiple_of(unit.get().max(1));
    let to = Bytes::new(start.get().saturating_add(size.get())).round_down(unit);
    Span {
        address: Address::new(from),
        size: to.saturating_sub(Bytes::new(from)),
    }
}

impl Heap {
    /// Enters reserved addresses, all of them a hole. Every unit has this size. False,
    /// and nothing done, where the page map cannot hold them.
    pub(crate) fn insert_range(&mut self, span: Span, unit: Bytes) -> bool {
        // What can be held once can be held again: nobody else has these addresses.
        if !self.map.hold_chunk(self.arena, span.address, span.size) {
            return false;
        }
        self.map.release_chunk(span.address, span.size);
        let chunk = self.chunks.insert(Chunk {
            address: span.address,
            size: span.size,
            pool: Pool::Large,
            first: BlockId::NONE,
            live: 1,
            kept: true,
            empty_since: 0,
        });
        let id = (self.blocks).insert(span.address, span.size, chunk, State::Hole);
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.first = id;
        }
        self.ranges.unit = unit;
        let count = places(span, unit).count();
        self.ranges.all.push(Range {
            chunk,
            span,
            places: vec![None; count],
            mapped: 0,
            gone: 0,
            claims: 0,
            exported: BTreeMap::new(),
            holes: BTreeMap::from([(span.address, id)]),
        });
        true
    }

    fn range_of(&self, chunk: ChunkId) -> Option<&Range> {
        self.ranges.all.iter().find(|range| range.chunk == chunk)
    }

    fn range_mut(&mut self, chunk: ChunkId) -> Option<&mut Range> {
        (self.ranges.all.iter_mut()).find(|range| range.chunk == chunk)
    }

    /// Whether a chunk is a range.
    pub(crate) fn is_range(&self, chunk: ChunkId) -> bool {
        self.range_of(chunk).is_some()
    }

    /// Whether a chunk is a slab of a range.
    pub(crate) fn is_slab(&self, chunk: ChunkId) -> bool {
        self.ranges.slabs.contains_key(&chunk)
    }

    /// Whether the memory of a chunk is mapped.
    pub(crate) fn is_mapped(&self, chunk: ChunkId) -> bool {
        self.is_range(chunk) || self.is_slab(chunk)
    }

    /// Bytes of a stretch of a range that have memory behind them.
    pub(crate) fn mapped_in(&self, chunk: ChunkId, span: Span) -> Bytes {
        let Some(range) = self.range_of(chunk) else {
            return span.size;
        };
        let unit = self.ranges.unit;
        let whole = whole_units(span.address, span.size, unit);
        let holes = places(whole, unit)
            .filter(|&(at, _)| range.places[range.place(at, unit)].is_none())
            .count();
        span.size.saturating_sub(self.ranges.bytes(holes))
    }

    /// Whether every unit that a stretch of a chunk touches is mapped.
    pub(crate) fn has_memory(&self, chunk: ChunkId, span: Span) -> bool {
        let Some(range) = self.range_of(chunk) else {
            return true;
        };
        let around = self.units_around(span);
        places(around, self.ranges.unit)
            .all(|(at, _)| range.places[range.place(at, self.ranges.unit)].is_some())
    }

    /// The units that a stretch touches.
    fn units_around(&self, span: Span) -> Span {
        let unit = self.ranges.unit.get().max(1);
        let from = span.address.get() / unit * unit;
        let to = end(span).get().next_multiple_of(unit);
        Span {
            address: Address::new(from),
            size: Bytes::new(to - from),
        }
    }

    /// What the page map holds of a chunk.
    pub(crate) fn held_by(&self, id: ChunkId, chunk: &Chunk) -> Vec<Span> {
        if self.is_slab(id) {
            // Its range holds it.
            return Vec::new();
        }
        let Some(range) = self.range_of(id) else {
            let Chunk { address, size, .. } = *chunk;
            return vec![Span { address, size }];
        };
        let held = range.runs_of(range.span, self.ranges.unit, |place| place.is_held);
        let span = |run: Run| Span {
            address: run.at,
            size: self.ranges.bytes(run.units.len()),
        };
        held.into_iter().map(span).collect()
    }

    /// Bytes that a chunk takes of the device, and in how many pieces the driver gave
    /// them; of a range, what is not in its slabs.
    pub(crate) fn taken_by(&self, id: ChunkId, chunk: &Chunk) -> (Bytes, u64) {
        match self.range_of(id) {
            Some(range) => {
                let units = range.mapped - self.slabs_in(id);
                (self.ranges.bytes(units), units as u64)
            }
            None if self.is_gone(id) => (Bytes::ZERO, 0),
            None => (chunk.size, 1),
        }
    }

    fn change_places(&mut self, claim: &Claim, span: Span, change: impl Fn(&mut MappedUnit)) {
        let unit = self.ranges.unit;
        let Some(range) = self.range_mut(claim.chunk) else {
            return;
        };
        for (at, _) in places(span, unit) {
            let place = range.place(at, unit);
            range.places[place].iter_mut().for_each(&change);
        }
    }

    /// Takes out the ranges in which nothing is mapped and nobody works.
    pub(crate) fn take_empty_ranges(&mut self) -> Vec<Span> {
        let is_empty = |range: &Range| range.mapped + range.gone == 0 && range.claims == 0;
        let (empty, rest) = std::mem::take(&mut self.ranges.all)
            .into_iter()
            .partition(is_empty);
        self.ranges.all = rest;
        let empty: Vec<Range> = empty;
        for range in &empty {
            if let Some(chunk) = self.chunks.remove(range.chunk) {
                self.blocks.remove(chunk.first);
            }
        }
        empty.into_iter().map(|range| range.span).collect()
    }

    /// Everything that is mapped, in runs.
    pub(crate) fn all_mapped(&self) -> Vec<Run> {
        let all = self.ranges.all.iter();
        let is_there = |place: &MappedUnit| !place.is_gone;
        all.flat_map(|range| range.runs_of(range.span, self.ranges.unit, is_there))
            .collect()
    }

    /// Forgets all ranges; what was mapped there, and what of it nobody works on.
    pub(crate) fn take_ranges(&mut self) -> Remains {
        let unit = self.ranges.unit;
        let mut remains = Remains {
            loose: std::mem::take(&mut self.ranges.loose),
            ..Remains::default()
        };
        for range in std::mem::take(&mut self.ranges.all) {
            let held = |place: &MappedUnit| (place.is_held || place.is_stuck) && !place.is_gone;
            let held = range.runs_of(range.span, unit, held);
            remains.runs.extend(held);
            if range.claims == 0 {
                remains.ranges.push(range.span);
            }
        }
        self.ranges.moving = 0;
        self.ranges.slabs.clear();
        self.ranges.is_paused = false;
        remains
    }
}
