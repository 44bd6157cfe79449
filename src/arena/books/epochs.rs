//! Epochs of what is in limbo.
//!
//! Owns nothing. Invariant: see `limbo`. Cost: constant for each block that an
//! epoch ends for.

use crate::arena::block::{BlockId, State};
use crate::arena::books::{Books, Region};
use crate::arena::limbo::Oldest;

/// So many of the blocks that are over a free puts back: more than it adds, so
/// that they do not pile up.
const AT_A_TIME: usize = 2;

impl<F: Clone> Books<F> {
    /// Closes the open batch; see `limbo`.
    pub(crate) fn close_epoch(&mut self, fraction: f64) -> Option<u64> {
        self.limbo.close(&mut self.blocks, fraction)
    }

    /// Closes the open batch, if there is one, and returns the number of the
    /// newest epoch; nothing where limbo is empty.
    pub(crate) fn close_last_epoch(&mut self) -> Option<u64> {
        self.put_back_over();
        self.limbo
            .close(&mut self.blocks, 1.0)
            .or_else(|| self.limbo.newest())
    }

    /// Brings the fence of a closed epoch.
    pub(crate) fn set_fence(&mut self, number: u64, fence: F) {
        self.tally.epoch_closed();
        self.limbo.set_fence(number, fence);
    }

    /// Undoes `close_epoch`.
    pub(crate) fn reopen_epoch(&mut self, number: u64) {
        self.limbo.reopen(&self.blocks, number);
    }

    /// The oldest epoch.
    pub(crate) fn oldest_epoch(&self) -> Option<Oldest<F>> {
        self.limbo.oldest()
    }

    /// Makes the blocks of all epochs up to `number`, whose fence was reached,
    /// available; direct allocations among them are appended to `regions`.
    pub(crate) fn end_epochs(&mut self, number: u64, regions: &mut Vec<Region>) {
        self.put_back_over();
        while self.end_oldest(number, regions) {}
        self.tally.was_cached();
    }

    /// The same, but small blocks are only over by that.
    pub(crate) fn pass_epochs(&mut self, number: u64, regions: &mut Vec<Region>) {
        while self.limbo.put_off_oldest(number) || self.end_oldest(number, regions) {}
        self.tally.was_cached();
    }

    fn end_oldest(&mut self, number: u64, regions: &mut Vec<Region>) -> bool {
        let Some(batch) = self.limbo.end_oldest(number) else {
            return false;
        };
        for &id in &batch {
            regions.extend(self.leave_limbo(id));
        }
        self.limbo.recycle(batch);
        true
    }

    /// A block that no longer waits is available, or the driver's. Its chunk
    /// may have gone back meanwhile.
    fn leave_limbo(&mut self, id: BlockId) -> Option<Region> {
        let block = *self.blocks.get(id);
        if block.state == State::Limbo {
            return self.put_back(id, block);
        }
        self.blocks.remove(id);
        None
    }

    /// Makes a few of the blocks that are over available.
    #[inline]
    pub(crate) fn put_back_some(&mut self) {
        if self.limbo.has_over() {
            self.put_back_up_to(AT_A_TIME);
        }
    }

    /// Makes all of them available.
    pub(crate) fn put_back_over(&mut self) {
        if self.limbo.has_over() {
            self.put_back_up_to(usize::MAX);
        }
    }

    fn put_back_up_to(&mut self, most: usize) {
        for _ in 0..most {
            let Some(id) = self.limbo.next_over() else {
                break;
            };
            // No direct allocation is ever put off.
            let _ = self.leave_limbo(id);
        }
        self.tally.was_cached();
    }
}
