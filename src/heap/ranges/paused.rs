//! Ranges whose memory a pause takes away, while their blocks and addresses stay.
//!
//! The place of a unit that was taken away is *gone*: blocks lie there as before, and
//! can be freed, but nothing is handed out and no unit moves except by the pause. When
//! the memory comes back, what has become free meanwhile is a hole.
//!
//! Owns nothing of its own. Invariant: places are gone only while the ranges are
//! paused. Cost: a look at each block and each place.

use crate::address::{Address, Bytes};
use crate::heap::block::{Block, ChunkId, State};
use crate::heap::ranges::{Claim, Range, Run, Splits, end, places};
use crate::heap::{Heap, Joined, Span};

/// What a pause takes away.
pub(crate) struct PausePlan {
    /// The units that go.
    pub(crate) runs: Vec<Run>,
    /// What of them blocks lie in that are not free, by address.
    pub(crate) used: Vec<Span>,
    /// Bytes of units that stay, since others may have them mapped.
    pub(crate) exported: Bytes,
}

/// Places that were gone, and are holes since their block is free.
pub(crate) struct Dropped {
    pub(crate) splits: Splits,
    pub(crate) free: Vec<(Bytes, Joined)>,
    pub(crate) bytes: Bytes,
}

/// What spans of two lists have in common; both by address.
pub(crate) fn common(these: &[Span], others: &[Span]) -> Vec<Span> {
    let mut found = Vec::new();
    for this in these {
        let first = others.partition_point(|other| end(*other) <= this.address);
        for other in &others[first..] {
            if other.address >= end(*this) {
                break;
            }
            let address = this.address.max(other.address);
            let size = end(*this).min(end(*other)).offset_from(address);
            found.push(Span { address, size });
        }
    }
    found
}

impl Heap {
    /// Whether nothing is handed out of ranges.
    pub(crate) fn is_paused(&self) -> bool {
        self.ranges.is_paused
    }

    /// Stops all that moves units, and that hands blocks out; false, and nothing done,
    /// where something is under way.
    pub(crate) fn begin_pause(&mut self) -> bool {
        let moves = self.ranges.moving > 0 || self.ranges.all.iter().any(|r| r.claims > 0);
        self.ranges.is_paused |= !moves;
        !moves
    }

    /// Everything is as before the pause.
    pub(crate) fn end_pause(&mut self) {
        debug_assert!(self.ranges.all.iter().all(|range| range.gone == 0));
        self.ranges.is_paused = false;
        let places = self.ranges.all.iter_mut().flat_map(|r| &mut r.places);
        places.flatten().for_each(|place| place.is_unsure = false);
    }

    /// From now on the ranges do not go with their context; what they are.
    pub(crate) fn keep_ranges(&mut self) -> Vec<Span> {
        let ranges = self.ranges.all.iter_mut();
        ranges
            .map(|range| {
                range.claims += 1;
                range.span
            })
            .collect()
    }

    /// They do again.
    pub(crate) fn let_ranges_go(&mut self, kept: &[Span]) {
        let is_kept = |range: &&mut Range| kept.contains(&range.span);
        for range in self.ranges.all.iter_mut().filter(is_kept) {
            range.claims -= 1;
        }
    }

    /// Where in a range blocks lie that are not free, by address.
    fn used_in(&self, range: &Range) -> Vec<Span> {
        let mut used: Vec<Span> = Vec::new();
        let Some(chunk) = self.chunks.get(range.chunk) else {
            return used;
        };
        for (_, block) in self.blocks.walk(chunk.first) {
            if !matches!(block.state, State::Live | State::Limbo | State::Slab) {
                continue;
            }
            match used.last_mut() {
                Some(last) if end(*last) == block.address => {
                    last.size = last.size.saturating_add(block.size);
                }
                _ => used.push(block.span()),
            }
        }
        used
    }

    /// The same in all ranges.
    pub(crate) fn used(&self) -> Vec<Span> {
        let mut ranges: Vec<&Range> = self.ranges.all.iter().collect();
        ranges.sort_by_key(|range| range.span.address);
        ranges.into_iter().flat_map(|r| self.used_in(r)).collect()
    }

    /// What can be taken away.
    pub(crate) fn pause_plan(&self) -> PausePlan {
        let unit = self.ranges.unit;
        let used = self.used();
        let (mut runs, mut exported): (Vec<Run>, usize) = (Vec::new(), 0);
        for range in &self.ranges.all {
            let mut is_exported = vec![false; range.places.len()];
            for (&address, &size) in &range.exported {
                let span = Span { address, size };
                for (at, _) in places(self.units_around(span), unit) {
                    is_exported[range.place(at, unit)] = true;
                }
            }
            runs.extend(range.runs_where(range.span, unit, |number, place| {
                let is_there = !place.is_gone && !place.is_stuck;
                exported += usize::from(is_there && is_exported[number]);
                is_there && !is_exported[number]
            }));
        }
        let mut spans: Vec<Span> = runs.iter().map(|run| self.span_of(run)).collect();
        spans.sort_by_key(|span| span.address);
        PausePlan {
            runs,
            used: common(&used, &spans),
            exported: self.ranges.bytes(exported),
        }
    }

    /// The addresses of a run.
    pub(crate) fn span_of(&self, run: &Run) -> Span {
        Span {
            address: run.at,
            size: self.ranges.bytes(run.units.len()),
        }
    }

    /// The range around an address.
    pub(super) fn range_at(&mut self, at: Address) -> Option<&mut Range> {
        let mut ranges = self.ranges.all.iter_mut();
        ranges.find(|range| range.span.address <= at && at < end(range.span))
    }

    /// Takes the units of a run into the caller's hands, which unmaps them; how many of
    /// them were slabs.
    pub(crate) fn take_away(&mut self, run: &Run) -> u64 {
        let (unit, span) = (self.ranges.unit, self.span_of(run));
        let slabs = self.slabs_at(span);
        self.ranges.moving += run.units.len();
        if let Some(range) = self.range_at(run.at) {
            for (at, _) in places(span, unit) {
                let number = range.place(at, unit);
                range.places[number]
                    .iter_mut()
                    .for_each(|p| p.is_gone = true);
            }
            range.mapped -= run.units.len();
            range.gone += run.units.len();
        }
        slabs
    }

    /// Units that the caller had in its hands are mapped where others are gone; how many
    /// of them are slabs. `is_new`: who has access to them is to be said.
    pub(crate) fn bring(&mut self, run: &Run, is_new: bool) -> u64 {
        let (unit, span) = (self.ranges.unit, self.span_of(run));
        self.ranges.moving -= run.units.len();
        if let Some(range) = self.range_at(run.at) {
            for ((at, _), &new) in places(span, unit).zip(&run.units) {
                let number = range.place(at, unit);
                if let Some(place) = &mut range.places[number] {
                    place.unit = new;
                    place.is_gone = false;
                    place.is_unsure |= is_new;
                }
            }
            range.mapped += run.units.len();
            range.gone -= run.units.len();
        }
        self.slabs_at(span)
    }

    /// Where units are gone.
    pub(crate) fn gone_runs(&self) -> Vec<Span> {
        let unit = self.ranges.unit;
        let runs = self
            .ranges
            .all
            .iter()
            .flat_map(|range| range.runs_of(range.span, unit, |place| place.is_gone));
        runs.map(|run| self.span_of(&run)).collect()
    }

    /// What was mapped since the pause.
    pub(crate) fn unsure_runs(&self) -> Vec<Span> {
        let unit = self.ranges.unit;
        let runs = (self.ranges.all.iter()).flat_map(|range| {
            range.runs_of(range.span, unit, |place| place.is_unsure && !place.is_gone)
        });
        runs.map(|run| self.span_of(&run)).collect()
    }

    /// Makes holes of the places that are gone and have become free.
    pub(crate) fn drop_gone(&mut self) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        for (id, whole) in self.free_blocks_with_units() {
            let chunk = self.blocks.get(id).chunk;
            let unit = self.ranges.unit;
            let Some(range) = self.range_of(chunk) else {
                continue;
            };
            let gone = range.runs_of(whole, unit, |place| place.is_gone);
            if gone.is_empty() {
                continue;
            }
            let (claim, splits) = self.claim_units(id, whole);
            let units = self.make_holes(&claim);
            dropped.push(Dropped {
                splits,
                free: self.end_claim(&claim),
                bytes: self.ranges.bytes(units),
            });
        }
        dropped
    }

    /// What is gone of a claim of whole units has no unit; how many there were.
    fn make_holes(&mut self, claim: &Claim) -> usize {
        let unit = self.ranges.unit;
        let Some(range) = self.range_mut(claim.chunk) else {
            return 0;
        };
        let mut holes = 0;
        for (at, _) in places(claim.span, unit) {
            let number = range.place(at, unit);
            if range.places[number].is_some_and(|place| place.is_gone) {
                range.places[number] = None;
                holes += 1;
            }
        }
        range.gone -= holes;
        for run in self.mapped_runs(claim) {
            self.stays(claim, &run);
        }
        holes
    }

    /// Whether the unit of a slab is gone.
    pub(super) fn is_gone(&self, slab: ChunkId) -> bool {
        let Some(&block) = self.ranges.slabs.get(&slab) else {
            return false;
        };
        let block = self.blocks.get(block);
        let range = self.range_of(block.chunk);
        range.is_some_and(|range| {
            let number = range.place(block.address, self.ranges.unit);
            range.places[number].is_some_and(|place| place.is_gone)
        })
    }

    /// Whether no memory is behind a block of paused ranges.
    pub(crate) fn has_gone(&self, block: &Block) -> bool {
        let unit = self.ranges.unit;
        let is_gone = |range: &Range, at| {
            let place = range.places[range.place(at, unit)];
            place.is_some_and(|place| place.is_gone)
        };
        self.is_gone(block.chunk)
            || (self.range_of(block.chunk)).is_some_and(|range| {
                let around = self.units_around(block.span());
                places(around, unit).all(|(at, _)| is_gone(range, at))
            })
    }

    /// How many slabs are empty whose unit is gone.
    pub(crate) fn empty_gone_slabs(&self) -> usize {
        if !self.ranges.is_paused {
            return 0;
        }
        let is_empty = |slab: ChunkId| {
            let chunk = self.chunks.get(slab);
            chunk.is_some_and(|chunk| {
                let first = self.blocks.get(chunk.first);
                first.state == State::Free && !first.is_part()
            })
        };
        let slabs = self.ranges.slabs.keys().copied();
        slabs
            .filter(|&slab| is_empty(slab) && self.is_gone(slab))
            .count()
    }

    /// How many slabs lie there.
    fn slabs_at(&self, span: Span) -> u64 {
        let slabs = self.ranges.slabs.values();
        let inside = slabs.filter(|&&block| {
            let at = self.blocks.get(block).address;
            span.address <= at && at < end(span)
        });
        inside.count() as u64
    }

    /// Bytes of units, mapped or not.
    pub(crate) fn in_units(&self) -> Bytes {
        let mapped = self.ranges.all.iter().map(|range| range.mapped).sum();
        let bytes = self.ranges.bytes(mapped);
        bytes.saturating_add(self.ranges.unplaced())
    }

    /// Whether there is any range.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.ranges.all.is_empty()
    }
}
