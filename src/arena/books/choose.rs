//! Which cached block serves a request.
//!
//! Invariant: what is chosen is in the index of the request's pool and holds
//! the request. Cost: that of a search in the free index, see there.

use crate::address::{Address, Bytes};
use crate::arena::block::{Block, BlockId, State};
use crate::arena::books::{Books, Search, Want};
use crate::arena::free_index::FreeIndex;
use crate::arena::packing::{Packing, fills};
use crate::driver::PAGE;
use crate::strategy::Pool;

impl<F: Clone> Books<F> {
    /// Hands out a cached block, if one fits.
    pub(crate) fn take(&mut self, want: Want, search: Search) -> Option<Address> {
        if search != Search::Quick {
            self.put_back_over();
        }
        let mut id = self.find(want, search);
        if id.is_none() && self.limbo.has_over() {
            self.put_back_over();
            id = self.find(want, search);
        }
        let id = id?;
        if search == Search::Quick && self.opens_too_early(id, want) {
            return None;
        }
        let address = self.hand_out(id, want);
        self.tally.hit();
        Some(address)
    }

    /// Whether `take` would find one.
    pub(crate) fn has(&self, want: Want, search: Search) -> bool {
        self.find(want, search).is_some()
    }

    /// The block that serves a request best.
    fn find(&self, want: Want, search: Search) -> Option<BlockId> {
        let find = |index: &FreeIndex| match search {
            Search::Quick => index.find(&self.blocks, want.size),
            Search::Thorough | Search::Opening => index.find_anywhere(&self.blocks, want.size),
        };
        match want.pool {
            Pool::Small => return find(self.indexes.small()),
            Pool::Oversize => return self.whole_block(want),
            Pool::Large => {}
        }
        let size = |id: BlockId| self.blocks.get(id).size;
        let opens = |id: &BlockId| {
            search == Search::Opening || !self.keeps_whole() || fills(want.size, size(*id))
        };
        let piece = find(self.indexes.pieces());
        let idle = find(self.indexes.idle()).filter(opens);
        match (piece, idle) {
            (Some(piece), Some(idle)) if size(idle) < size(piece) => Some(idle),
            (None, idle) => idle,
            (piece, _) => piece,
        }
    }

    /// Whether idle chunks are kept for requests of their size.
    fn keeps_whole(&self) -> bool {
        self.packing.as_ref().is_some_and(Packing::is_on)
    }

    /// A block to be handed out whole, if the smallest that fits is not too
    /// large. There are few of them: each is a chunk.
    // Apart, so that the search for all others stays as short as it is.
    #[cold]
    #[inline(never)]
    fn whole_block(&self, want: Want) -> Option<BlockId> {
        let id = self.indexes.oversize().smallest(&self.blocks, want.size)?;
        let rest = self.blocks.get(id).size.saturating_sub(want.size);
        (rest < self.most_waste).then_some(id)
    }

    /// Whether this would cut up an idle chunk while limbo may hold what fits:
    /// a chunk that stays whole can still serve the request that it was taken
    /// for. So an idle chunk is opened as if it had to be taken from the
    /// driver, after a look into limbo; a program that repeats then finds its
    /// chunks as it left them and need not grow again.
    ///
    /// It is worth the look where limbo holds enough for the request, and for
    /// a page; a chunk that fits but for a remainder of less than a page is
    /// the one that was taken for such a request.
    fn opens_too_early(&self, id: BlockId, want: Want) -> bool {
        let block = self.blocks.get(id);
        let fits = want.pool != Pool::Small && block.size.saturating_sub(want.size) < PAGE;
        !fits
            && self.limbo_bytes() >= want.size.max(PAGE)
            && self
                .chunks
                .get(block.chunk)
                .is_some_and(|chunk| chunk.live == 0)
    }

    /// Whether some chunk has so much in one piece that is not live. Looks at
    /// every block of the chunks that are large enough.
    pub(crate) fn has_gap(&self, size: Bytes) -> bool {
        let mut chunks = self.chunks.iter().map(|(_, chunk)| chunk);
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

    /// Bytes of chunks in use that could be handed out in pieces of a page or
    /// more.
    pub(crate) fn obtainable_parts(&self) -> Bytes {
        let in_use = |block: &&Block| {
            self.chunks
                .get(block.chunk)
                .is_some_and(|chunk| chunk.live > 0)
        };
        self.indexes
            .pieces()
            .at_least(&self.blocks, PAGE)
            .map(|id| self.blocks.get(id))
            .filter(in_use)
            .fold(Bytes::ZERO, |sum, block| {
                sum.saturating_add(block.size.round_down(PAGE))
            })
    }
}
