//! Where the blocks of an arena lie in its segments, and what is free between them.
//!
//! A recording has the sizes that were asked for; a block takes whole slots.

use std::collections::BTreeMap;

use super::books::{Books, Held};

/// Sizes of blocks are multiples of this.
const SLOT: u64 = 512;

/// Memory of a segment, and what lies in it.
pub(super) struct LaidSegment {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) is_mapped: bool,
    /// In the order of their addresses, without a gap.
    pub(super) blocks: Vec<LaidBlock>,
}

/// A block, or what is free between two.
pub(super) struct LaidBlock {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) held: Option<Held>,
}

impl LaidSegment {
    /// The address after its last byte.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// Memory of a segment.
struct Stretch {
    start: u64,
    size: u64,
    is_mapped: bool,
}

/// Where blocks lie whose memory a pause has taken away. They are shown as if it were
/// there: a tool knows no block without a segment.
fn paused(there: &[Stretch], blocks: &BTreeMap<u64, Held>) -> Vec<Stretch> {
    let mut away: Vec<Stretch> = Vec::new();
    for (&start, held) in blocks {
        let below = there.partition_point(|stretch| stretch.start <= start);
        let around = below.checked_sub(1).and_then(|last| there.get(last));
        if around.is_some_and(|around| start - around.start < around.size) {
            continue;
        }
        let size = held.size.max(1).checked_next_multiple_of(SLOT);
        let next = there.get(below).map_or(u64::MAX, |next| next.start);
        let end = start.saturating_add(size.unwrap_or(u64::MAX)).min(next);
        match away.last_mut() {
            Some(last) if last.start.saturating_add(last.size) >= start => {
                last.size = last.size.max(end - last.start);
            }
            _ => away.push(Stretch {
                start,
                size: end - start,
                is_mapped: true,
            }),
        }
    }
    away
}

/// The segments of an arena with their blocks, in the order of their addresses. None is
/// empty, and none reaches beyond the last address.
pub(super) fn segments(books: &Books, arena: u32) -> Vec<LaidSegment> {
    let of = |(number, address): &(u32, u64)| (*number == arena).then_some(*address);
    let blocks = books.blocks.iter();
    let blocks: BTreeMap<u64, Held> = blocks
        .filter_map(|(key, held)| Some((of(key)?, *held)))
        .collect();
    let segments = books.segments.range((arena, 0)..=(arena, u64::MAX));
    let there: Vec<Stretch> = segments
        .map(|(&(_, start), taken)| Stretch {
            start,
            size: taken.size,
            is_mapped: taken.is_mapped,
        })
        .collect();
    let mut all = paused(&there, &blocks);
    all.extend(there);
    all.sort_unstable_by_key(|stretch| stretch.start);
    let laid = all.into_iter().filter_map(|stretch| {
        let Stretch {
            start,
            size,
            is_mapped,
        } = stretch;
        let end = start.checked_add(size).filter(|_| size > 0)?;
        Some(LaidSegment {
            start,
            size,
            is_mapped,
            blocks: filled(&blocks, start, end),
        })
    });
    laid.collect()
}

fn filled(blocks: &BTreeMap<u64, Held>, start: u64, end: u64) -> Vec<LaidBlock> {
    let block = |address: u64, to: u64, held: Option<Held>| LaidBlock {
        address,
        size: to - address,
        held,
    };
    let mut laid = Vec::new();
    let mut at = start;
    let mut inside = blocks.range(start..end).peekable();
    while let Some((&address, &held)) = inside.next() {
        let next = inside.peek().map_or(end, |(next, _)| **next);
        let size = held.size.max(1).checked_next_multiple_of(SLOT);
        let to = address.saturating_add(size.unwrap_or(u64::MAX)).min(next);
        if address > at {
            laid.push(block(at, address, None));
        }
        laid.push(block(address, to, Some(held)));
        at = to;
    }
    if at < end {
        laid.push(block(at, end, None));
    }
    laid
}
