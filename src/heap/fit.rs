//! Which cached block serves a request.
//!
//! Invariant: what is chosen is in the index of the request's pool and holds
//! the request. Cost: that of a search in the free index, see there.

use crate::address::Bytes;
use crate::driver::PAGE;
use crate::heap::Heap;
use crate::heap::banks::Bank;
use crate::heap::block::{Block, BlockId, State};
use crate::heap::free_index::FreeIndex;
use crate::strategy::Pool;

/// What a block has to fit.
#[derive(Copy, Clone)]
pub(crate) struct Fit {
    /// What the program asked for.
    pub(crate) request: Bytes,
    /// The same in whole slots, rounded as the options say.
    pub(crate) size: Bytes,
    pub(crate) pool: Pool,
    /// The bank of the thread that asks; none for any.
    pub(crate) bank: Option<Bank>,
}

/// How hard to look for a cached block.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    /// A bounded number of steps.
    Quick,
    /// All blocks that could fit: the alternative is a driver call.
    Thorough,
    /// The same, and any idle chunk may be cut.
    Opening,
}

impl Heap {
    /// The block that serves a request best; `cuts` says whether an idle chunk of this
    /// size may be cut without need.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        fit: Fit,
        search: Search,
        cuts: impl Fn(Bytes) -> bool,
    ) -> Option<BlockId> {
        let find = |index: &FreeIndex| index.search(&self.blocks, fit.size, search);
        match fit.pool {
            Pool::Small => {
                return (self.indexes.small).find(&self.blocks, fit.bank, fit.size, search);
            }
            Pool::Oversize => return self.whole_block(fit.size),
            Pool::Large => {}
        }
        let size = |id: BlockId| self.blocks.get(id).size;
        let opens = |id: &BlockId| search == Search::Opening || cuts(size(*id));
        let piece = find(&self.indexes.pieces);
        let idle = find(&self.indexes.idle).filter(opens);
        match (piece, idle) {
            (Some(piece), Some(idle)) if size(idle) < size(piece) => Some(idle),
            (None, idle) => idle,
            (piece, _) => piece,
        }
    }

    /// A block to be handed out whole, if the smallest that fits is not too
    /// large. There are few of them: each is a chunk.
    // Apart, so that the search for all others stays as short as it is.
    #[cold]
    #[inline(never)]
    fn whole_block(&self, size: Bytes) -> Option<BlockId> {
        let id = self.indexes.oversize.smallest(&self.blocks, size)?;
        let rest = self.blocks.get(id).size.saturating_sub(size);
        (rest < self.most_waste).then_some(id)
    }

    /// Whether a block holds the request and less than a page more; false for a
    /// small request.
    #[inline]
    pub(crate) fn fits_closely(&self, id: BlockId, fit: Fit) -> bool {
        fit.pool != Pool::Small && self.blocks.get(id).size.saturating_sub(fit.size) < PAGE
    }

    /// Whether a block is of an idle chunk.
    #[inline]
    pub(crate) fn is_of_idle(&self, id: BlockId) -> bool {
        let chunk = self.chunks.get(self.blocks.get(id).chunk);
        chunk.is_some_and(|chunk| chunk.live == 0)
    }

    /// Whether some chunk has so much in one piece that is not live. Looks at
    /// every block of the chunks that are large enough.
    pub(crate) fn has_gap(&self, size: Bytes) -> bool {
        let chunks = self.chunks.iter().filter(|(id, _)| !self.is_range(*id));
        let mut chunks = chunks.map(|(_, chunk)| chunk);
        chunks.any(|chunk| {
            let mut gap = Bytes::ZERO;
            let grow = |gap: &mut Bytes, block: &Block| {
                *gap = match block.state {
                    State::Live => Bytes::ZERO,
                    _ => gap.saturating_add(block.size),
                };
                *gap
            };
            let mut blocks = self.blocks.walk(chunk.first);
            chunk.size >= size && blocks.any(|(_, block)| grow(&mut gap, block) >= size)
        })
    }

    /// Bytes of ranges that are not live, wherever they lie. Looks at every block.
    pub(crate) fn not_live_in_ranges(&self) -> Bytes {
        let ranges = self.chunks.iter().filter(|(id, _)| self.is_mapped(*id));
        let blocks = ranges.flat_map(|(_, chunk)| self.blocks.walk(chunk.first));
        let not_live = blocks
            .filter(|(_, block)| matches!(block.state, State::Free | State::Limbo))
            .fold(Bytes::ZERO, |sum, (_, block)| {
                sum.saturating_add(block.size)
            });
        not_live.saturating_add(self.ranges.unplaced())
    }

    /// Bytes of chunks in use that could be handed out in pieces of a page or
    /// more.
    pub(crate) fn obtainable_parts(&self) -> Bytes {
        let in_use = |block: &&Block| {
            self.chunks
                .get(block.chunk)
                .is_some_and(|chunk| chunk.live > 0)
        };
        self.indexes
            .pieces
            .at_least(&self.blocks, PAGE)
            .map(|id| self.blocks.get(id))
            .filter(in_use)
            .fold(Bytes::ZERO, |sum, block| {
                sum.saturating_add(block.size.round_down(PAGE))
            })
    }
}
