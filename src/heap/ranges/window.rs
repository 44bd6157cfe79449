//! Which stretch of a range is made whole for a request.
//!
//! A window lies in a run of free blocks and holes, and begins or ends where one of
//! them does: what is free already is used as far as it goes. Taken is the one that
//! lacks the fewest units, of several the one at the lowest address: for each unit the
//! driver is called some four times. But the units that free blocks have elsewhere must
//! be enough for it, with those that the driver can give: where memory is short, a
//! window in which little is free may lack more and still be the only one, since it
//! leaves whole units to be taken and uses a part of one that nobody else can use.
//! (Tried on real traces and dropped: a price for each hole, for each end that divides a
//! unit, and for addresses that were never mapped.)
//!
//! Owns nothing. Cost: a step for each hole of the ranges and for each block
//! beside one, and for each of these a step for each block of its run that the window
//! covers.

use crate::address::{Address, Bytes};
use crate::heap::block::{Block, BlockId, State};
use crate::heap::ranges::{Range, end, whole_units};
use crate::heap::{Heap, Span};

/// See the module.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The block in which it begins.
    pub(super) first: BlockId,
    /// In whole units, where it begins or ends in a hole.
    pub(crate) span: Span,
    /// Where the request's block begins: beside what the window begins or ends at.
    pub(crate) at: Address,
    /// How many units it wants.
    pub(crate) missing: usize,
    /// How many it has that could be used elsewhere.
    whole: usize,
}

/// A block of a run.
#[derive(Copy, Clone)]
struct Part {
    id: BlockId,
    span: Span,
    is_hole: bool,
}

impl Window {
    /// The lowest unit of a hole.
    pub(super) fn of_unit(hole: BlockId, at: Address, unit: Bytes) -> Window {
        Window {
            first: hole,
            span: Span {
                address: at,
                size: unit,
            },
            at,
            missing: 1,
            whole: 0,
        }
    }

    /// Of two windows the one with the smaller rank is taken.
    fn rank(&self, units: usize) -> (usize, usize) {
        let beyond = (self.missing + self.whole).saturating_sub(units);
        (beyond, self.missing)
    }
}

impl Heap {
    /// The window for a block of this size; none where no range has the addresses.
    /// It can be made of `units` units, those in free blocks among them, if any can.
    pub(crate) fn window(&self, size: Bytes, units: usize) -> Option<Window> {
        let ranges = self.ranges.all.iter();
        let best = ranges.filter_map(|range| self.window_in(range, size, units));
        best.min_by_key(|window| window.rank(units))
    }

    fn window_in(&self, range: &Range, size: Bytes, units: usize) -> Option<Window> {
        let mut best: Option<Window> = None;
        // Where the last run ended.
        let mut seen = range.span.address;
        for (&at, &hole) in &range.holes {
            if at < seen {
                continue;
            }
            let run = self.run_around(hole);
            seen = run.last().map_or(seen, |part| end(part.span));
            for window in run_windows(&run, size, self.ranges.unit()) {
                if best.is_none_or(|best| window.rank(units) < best.rank(units)) {
                    best = Some(window);
                }
            }
        }
        best
    }

    /// The run whose first hole this is.
    fn run_around(&self, hole: BlockId) -> Vec<Part> {
        let usable = |block: &Block| matches!(block.state, State::Free | State::Hole);
        let below = self.blocks.get(hole).previous.some();
        let first = below.filter(|&id| usable(self.blocks.get(id)));
        let blocks = self.blocks.walk(first.unwrap_or(hole));
        blocks
            .take_while(|(_, block)| usable(block))
            .map(|(id, block)| part(id, block))
            .collect()
    }
}

fn part(id: BlockId, block: &Block) -> Part {
    Part {
        id,
        span: block.span(),
        is_hole: block.state == State::Hole,
    }
}

/// The windows of a run that begin or end where one of its blocks does.
fn run_windows(run: &[Part], size: Bytes, unit: Bytes) -> Vec<Window> {
    let whole = run
        .first()
        .zip(run.last())
        .map_or(Bytes::ZERO, |(first, last)| {
            end(last.span).offset_from(first.span.address)
        });
    let mut windows = Vec::new();
    if whole < size {
        return windows;
    }
    for part in run {
        let (from, to) = (part.span.address, end(part.span));
        let up = from.checked_add(size).map(|to| (from, to));
        let down = to.get().checked_sub(size.get());
        let down = down.map(|from| (Address::new(from), to));
        let sides = [up, down].into_iter().flatten();
        windows.extend(sides.filter_map(|(from, to)| window_of(run, from, to, unit)));
    }
    windows
}

/// The window from one address to another, as its price; none where the run does not
/// have them all.
fn window_of(run: &[Part], from: Address, to: Address, unit: Bytes) -> Option<Window> {
    let at = |address: Address| run.partition_point(|part| end(part.span) <= address);
    let first = at(from);
    let (mut start, mut stop) = (from, to);
    let part = run.get(first).filter(|part| part.span.address <= from)?;
    if part.is_hole {
        start = Address::new(Bytes::new(from.get()).round_down(unit).get());
    }
    let (mut missing, mut whole) = (0, 0);
    for part in &run[first..] {
        if part.span.address >= to {
            break;
        }
        if !part.is_hole {
            let low = part.span.address.max(from);
            let high = end(part.span).min(to);
            whole += whole_units(low, high.offset_from(low), unit).size.get() / unit.get();
            continue;
        }
        let low = part.span.address.max(start);
        let high = end(part.span).min(to);
        let high = Address::new(high.get().next_multiple_of(unit.get()));
        stop = stop.max(high);
        missing += high.offset_from(low).get() / unit.get();
    }
    let last = run.last()?;
    if end(last.span) < stop {
        return None;
    }
    Some(Window {
        first: part.id,
        at: from,
        span: Span {
            address: start,
            size: stop.offset_from(start),
        },
        missing: usize::try_from(missing).ok()?,
        whole: usize::try_from(whole).ok()?,
    })
}
