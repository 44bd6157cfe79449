//! Which whole units no block touches that is in use, or in limbo: what can go elsewhere,
//! and what will.
//!
//! Owns nothing. Cost: one step for each free block that holds a unit.

use crate::address::{Address, Bytes};
use crate::heap::block::{BlockId, State};
use crate::heap::ranges::whole_units;
use crate::heap::{Heap, Span};

impl Heap {
    /// Bytes of the whole units of a block in limbo that lies in a range, unless it was
    /// freed from another context.
    pub(crate) fn units_of_limbo(&self, id: BlockId) -> Bytes {
        let block = self.blocks.get(id);
        let waits = block.state == State::Limbo && !block.elsewhere;
        if self.ranges.is_paused || !waits || !self.is_range(block.chunk) {
            return Bytes::ZERO;
        }
        whole_units(block.address, block.size, self.ranges.unit).size
    }

    /// The free blocks of ranges that have whole units, with these.
    pub(crate) fn blocks_with_units(&self) -> Vec<(BlockId, Span)> {
        if self.ranges.is_paused {
            return Vec::new();
        }
        self.free_blocks_with_units()
    }

    /// The same while they are not to be had.
    pub(super) fn free_blocks_with_units(&self) -> Vec<(BlockId, Span)> {
        let unit = self.ranges.unit;
        if self.ranges.all.is_empty() {
            return Vec::new();
        }
        let indexes = [&self.indexes.pieces, &self.indexes.idle];
        let ids = indexes
            .into_iter()
            .flat_map(|index| index.at_least(&self.blocks, unit));
        ids.filter_map(|id| {
            let block = self.blocks.get(id);
            let whole = whole_units(block.address, block.size, unit);
            let has_some = !whole.size.is_zero() && self.is_range(block.chunk);
            has_some.then_some((id, whole))
        })
        .collect()
    }

    /// The highest whole units of free blocks, up to so many of one block: what lies low
    /// stays together.
    pub(crate) fn idle_part(&self, most: usize) -> Option<(BlockId, Span)> {
        let blocks = self.blocks_with_units();
        let &(id, whole) = blocks.iter().max_by_key(|(_, whole)| whole.address)?;
        let size = whole.size.min(self.ranges.bytes(most));
        let address = (whole.address).checked_add(whole.size.saturating_sub(size))?;
        Some((id, Span { address, size }))
    }

    /// The hole at the lowest addresses, and where it starts.
    pub(super) fn lowest_hole(&self) -> Option<(Address, BlockId)> {
        let ranges = self.ranges.all.iter();
        let first = ranges.filter_map(|range| range.holes.first_key_value());
        first
            .map(|(at, hole)| (*at, *hole))
            .min_by_key(|(at, _)| *at)
    }

    /// The lowest hole, and the highest free units above it that would fill it; none
    /// where what is mapped lies together as far as live blocks let it.
    pub(crate) fn scattered(&self) -> Option<((BlockId, Span), (BlockId, Span))> {
        let unit = self.ranges.unit;
        let (at, hole) = self.lowest_hole()?;
        let blocks = self.blocks_with_units();
        let above = blocks.into_iter().max_by_key(|(_, whole)| whole.address);
        let (id, whole) = above.filter(|(_, whole)| whole.address > at)?;
        let size = self.blocks.get(hole).size.min(whole.size);
        let below = whole.size.saturating_sub(size).round_down(unit);
        let from = Span {
            address: whole.address.checked_add(below)?,
            size,
        };
        let to = Span { address: at, size };
        Some(((hole, to), (id, from)))
    }

    /// Bytes of ranges that could go back to the driver.
    pub(crate) fn idle_units(&self) -> Bytes {
        if self.ranges.is_paused {
            return Bytes::ZERO;
        }
        let loose = self.ranges.bytes(self.ranges.loose.len());
        let blocks = self.blocks_with_units();
        blocks
            .iter()
            .fold(loose, |sum, (_, whole)| sum.saturating_add(whole.size))
    }
}
