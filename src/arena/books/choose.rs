//! Which cached block serves a request.
//!
//! Invariant: what is chosen is in the index of the request's pool and holds
//! the request. Cost: that of a search in the free index, see there.

use crate::address::Address;
use crate::arena::block::BlockId;
use crate::arena::books::{Books, Search, Want};
use crate::driver::PAGE;
use crate::strategy::Pool;

impl<F: Clone> Books<F> {
    /// Hands out a cached block, if one fits.
    pub(crate) fn take(&mut self, want: Want, search: Search) -> Option<Address> {
        let id = if want.pool == Pool::Oversize {
            self.whole_block(want)
        } else {
            let (index, blocks) = self.index(want.pool);
            match search {
                Search::Quick => index.find(blocks, want.size),
                Search::Thorough => index.find_anywhere(blocks, want.size),
            }
        }?;
        if search == Search::Quick && self.opens_too_early(id, want) {
            return None;
        }
        let address = self.hand_out(id, want);
        self.tally.hit();
        Some(address)
    }

    /// A block to be handed out whole, if the smallest that fits is not too
    /// large. There are few of them: each is a chunk.
    // Apart, so that the search for all others stays as short as it is.
    #[cold]
    #[inline(never)]
    fn whole_block(&self, want: Want) -> Option<BlockId> {
        let id = self.oversize.smallest(&self.blocks, want.size)?;
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
}
