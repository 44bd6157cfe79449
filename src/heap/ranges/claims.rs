//! Claims: stretches of a range that the driver is called for.
//!
//! A claim begins with free blocks and holes, and ends with free blocks and holes: with
//! more of the one or the other. Between the two no thread but the one that claimed it
//! touches it.
//!
//! Invariant: what is claimed to be unmapped has left the page map before the driver
//! hears of it. Cost: a step for each block and for each unit of the stretch.

use crate::address::{Address, Bytes};
use crate::driver::mapping::Unit;
use crate::heap::block::{Block, BlockId, State};
use crate::heap::ranges::window::Window;
use crate::heap::ranges::{Claim, Made, MappedUnit, Run, Splits, end, places, whole_units};
use crate::heap::{Heap, Joined, Span};
use crate::strategy::Pool;

impl Heap {
    /// Claims a window.
    pub(crate) fn claim_window(&mut self, window: &Window) -> (Claim, Splits) {
        self.claim(window.first, window.span)
    }

    /// Claims whole units of one free block, for them to be unmapped.
    pub(crate) fn claim_units(&mut self, id: BlockId, span: Span) -> (Claim, Splits) {
        let (claim, splits) = self.claim(id, span);
        self.map.release_chunk(span.address, span.size);
        self.change_places(&claim, span, |place| place.is_held = false);
        (claim, splits)
    }

    /// Claims a stretch, which begins in this block: its free blocks leave the index.
    pub(crate) fn claim(&mut self, first: BlockId, span: Span) -> (Claim, Splits) {
        let chunk = self.blocks.get(first).chunk;
        let pool = Pool::Large;
        let mut splits = Splits::default();
        let note = |splits: &mut Splits, is_part: bool, size: Bytes| {
            splits.before += u64::from(is_part);
            let size = if is_part { size } else { Bytes::ZERO };
            splits.before_bytes = splits.before_bytes.saturating_add(size);
        };
        let keep = |splits: &mut Splits, size: Bytes| {
            splits.after += 1;
            splits.after_bytes = splits.after_bytes.saturating_add(size);
        };
        let mut at = first;
        let mut claimed = BlockId::NONE;
        loop {
            let block = *self.blocks.get(at);
            if block.state == State::Free {
                self.indexes.leave(&mut self.blocks, at, pool);
                note(&mut splits, block.is_part(), block.size);
            } else {
                self.forget_hole(&block);
            }
            let mut own = at;
            let below = span.address.get().saturating_sub(block.address.get());
            if below > 0 {
                own = self.blocks.split(at, Bytes::new(below));
                self.blocks.get_mut(own).state = block.state;
                if block.state == State::Free {
                    self.indexes.enter(&mut self.blocks, at, pool);
                    keep(&mut splits, Bytes::new(below));
                } else {
                    self.note_hole(at);
                }
            }
            let mine = *self.blocks.get(own);
            let block_end = end(mine.span());
            let beyond = block_end.get().saturating_sub(end(span).get());
            if beyond > 0 {
                let size = mine.size.saturating_sub(Bytes::new(beyond));
                let rest = self.blocks.split(own, size);
                self.blocks.get_mut(rest).state = block.state;
                if block.state == State::Free {
                    self.indexes.enter(&mut self.blocks, rest, pool);
                    keep(&mut splits, Bytes::new(beyond));
                } else {
                    self.note_hole(rest);
                }
            }
            self.blocks.get_mut(own).state = State::Claimed;
            if claimed == BlockId::NONE {
                claimed = own;
            } else {
                self.blocks.merge(claimed, own);
            }
            let whole = *self.blocks.get(claimed);
            match whole.next.some() {
                Some(next) if end(whole.span()) < end(span) => at = next,
                _ => break,
            }
        }
        debug_assert_eq!(self.blocks.get(claimed).span(), span);
        if let Some(range) = self.range_mut(chunk) {
            range.claims += 1;
        }
        let block = claimed;
        (Claim { chunk, block, span }, splits)
    }

    /// The places of a claim that have no unit, in runs.
    pub(crate) fn missing(&self, claim: &Claim) -> Vec<Span> {
        let Some(range) = self.range_of(claim.chunk) else {
            return Vec::new();
        };
        let unit = self.ranges.unit;
        let whole = whole_units(claim.span.address, claim.span.size, unit);
        let mut runs: Vec<Span> = Vec::new();
        for (at, size) in places(whole, unit) {
            if range.places[range.place(at, unit)].is_some() {
                continue;
            }
            match runs.last_mut() {
                Some(run) if end(*run) == at => run.size = run.size.saturating_add(size),
                _ => runs.push(Span { address: at, size }),
            }
        }
        runs
    }

    /// What is mapped in a claim of whole units, in runs.
    pub(crate) fn mapped_runs(&self, claim: &Claim) -> Vec<Run> {
        let range = self.range_of(claim.chunk);
        range.map_or_else(Vec::new, |range| {
            range.runs_of(claim.span, self.ranges.unit, |_| true)
        })
    }

    /// Units that a thread had in its hands are mapped in a claim, and admitted.
    pub(crate) fn placed(&mut self, claim: &Claim, run: Run) {
        let size = self.ranges.bytes(run.units.len());
        self.ranges.moving -= run.units.len();
        self.hold_run(claim, run.at, size);
        let placed = run.units.into_iter().map(MappedUnit::new).map(Some);
        self.set_places(claim, run.at, placed);
    }

    /// The units of a run in a claim were unmapped, and are in the thread's hands.
    pub(crate) fn displaced(&mut self, claim: &Claim, run: &Run) {
        self.ranges.moving += run.units.len();
        self.set_places(claim, run.at, run.units.iter().map(|_| None));
    }

    /// A run in a claim could not be unmapped.
    pub(crate) fn stays(&mut self, claim: &Claim, run: &Run) {
        let size = self.ranges.bytes(run.units.len());
        self.hold_run(claim, run.at, size);
        let address = run.at;
        self.change_places(claim, Span { address, size }, |place| place.is_held = true);
    }

    /// Blocks may reach from one run into the next: only where the range begins, a chunk
    /// does.
    fn hold_run(&self, claim: &Claim, at: Address, size: Bytes) {
        let range = self.range_of(claim.chunk);
        let begins = range.is_some_and(|range| range.span.address == at);
        let held = (self.map).hold_part_of_chunk(self.arena, at, size, begins);
        debug_assert!(held, "{at:?}");
    }

    fn set_places(
        &mut self,
        claim: &Claim,
        at: Address,
        units: impl Iterator<Item = Option<MappedUnit>>,
    ) {
        let size = self.ranges.unit;
        let Some(range) = self.range_mut(claim.chunk) else {
            return;
        };
        let first = range.place(at, size);
        for (place, unit) in range.places[first..].iter_mut().zip(units) {
            range.mapped -= usize::from(place.is_some());
            range.mapped += usize::from(unit.is_some());
            *place = unit;
        }
    }

    /// A unit that a thread had in its hands is mapped in a claim, without access, and
    /// cannot be unmapped: nobody gets it.
    pub(crate) fn stuck(&mut self, claim: &Claim, at: Address, unit: Unit) {
        self.ranges.moving -= 1;
        let place = MappedUnit {
            is_held: false,
            is_stuck: true,
            ..MappedUnit::new(unit)
        };
        self.set_places(claim, at, std::iter::once(Some(place)));
    }

    /// The parts of a claim, from its start on: how large each is, and what it becomes.
    fn parts(&self, claim: &Claim) -> Vec<(Bytes, State)> {
        let mut parts: Vec<(Bytes, State)> = Vec::new();
        let mut add = |size: Bytes, state: State| match parts.last_mut() {
            _ if size.is_zero() => {}
            Some((last, same)) if *same == state => *last = last.saturating_add(size),
            _ => parts.push((size, state)),
        };
        let Some(range) = self.range_of(claim.chunk) else {
            return parts;
        };
        let unit = self.ranges.unit;
        let whole = whole_units(claim.span.address, claim.span.size, unit);
        let below = whole.address.offset_from(claim.span.address);
        if whole.size.is_zero() {
            return vec![(claim.span.size, State::Free)];
        }
        add(below, State::Free);
        for (at, size) in places(whole, unit) {
            let state = match range.places[range.place(at, unit)] {
                None => State::Hole,
                Some(place) if place.is_stuck => State::Claimed,
                Some(_) => State::Free,
            };
            add(size, state);
        }
        add(end(claim.span).offset_from(end(whole)), State::Free);
        parts
    }

    /// Ends a claim: what has memory is free again, the rest are holes. Each free piece
    /// is returned with its own size, and as it was joined with its neighbours.
    pub(crate) fn end_claim(&mut self, claim: &Claim) -> Vec<(Bytes, Joined)> {
        if let Some(range) = self.range_mut(claim.chunk) {
            range.claims -= 1;
        }
        let mut free = Vec::new();
        let mut at = claim.block;
        for (size, state) in self.parts(claim) {
            let is_last = self.blocks.get(at).size == size;
            let above = (!is_last).then(|| self.split_claimed(at, size));
            match state {
                State::Free => free.push(self.become_free(at)),
                State::Hole => self.become_hole(at),
                _ => {}
            }
            at = above.unwrap_or(at);
        }
        free
    }

    /// Ends the claim of a window that has memory throughout: the block of this size
    /// from this address on is for the request, and in no index; the rest is free.
    pub(crate) fn end_window(&mut self, claim: &Claim, at: Address, size: Bytes) -> Made {
        if let Some(range) = self.range_mut(claim.chunk) {
            range.claims -= 1;
        }
        let mut free = Vec::new();
        let mut id = claim.block;
        let below = at.offset_from(claim.span.address);
        if !below.is_zero() {
            let above = self.split_claimed(id, below);
            free.push(self.become_free(id));
            id = above;
        }
        if self.blocks.get(id).size > size {
            let above = self.split_claimed(id, size);
            free.push(self.become_free(above));
        }
        self.blocks.get_mut(id).state = State::Free;
        let block = self.blocks.get(id);
        let (pool, shared) = (self.pool_of(block), block.is_part());
        let whole = Joined {
            id,
            pool,
            neighbours: 0,
            whole: size,
            shared,
        };
        let cut = whole.uncut();
        free.push((size, whole));
        Made { free, cut }
    }

    /// Cuts a claimed block; the upper part.
    pub(super) fn split_claimed(&mut self, id: BlockId, size: Bytes) -> BlockId {
        let above = self.blocks.split(id, size);
        self.blocks.get_mut(above).state = State::Claimed;
        above
    }

    pub(super) fn become_free(&mut self, id: BlockId) -> (Bytes, Joined) {
        let block = *self.blocks.get(id);
        let pool = self.pool_of(&block);
        let joined = self.join_block(id, &block, pool);
        self.enter(&joined);
        (block.size, joined)
    }

    fn become_hole(&mut self, mut id: BlockId) {
        let block = *self.blocks.get(id);
        self.blocks.get_mut(id).state = State::Hole;
        for (low, high) in [(id, block.next), (block.previous, id)] {
            let beside = if low == id { high } else { low };
            let is_hole = |id: BlockId| self.blocks.get(id).state == State::Hole;
            if beside.some().is_some_and(is_hole) {
                let beside = *self.blocks.get(beside);
                self.forget_hole(&beside);
                self.blocks.merge(low, high);
                id = low;
            }
        }
        self.note_hole(id);
    }

    fn note_hole(&mut self, id: BlockId) {
        let block = *self.blocks.get(id);
        if let Some(range) = self.range_mut(block.chunk) {
            range.holes.insert(block.address, id);
        }
    }

    fn forget_hole(&mut self, block: &Block) {
        if let Some(range) = self.range_mut(block.chunk) {
            range.holes.remove(&block.address);
        }
    }
}
