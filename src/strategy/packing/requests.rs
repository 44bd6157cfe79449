//! Whether requests come for one size alone.
//!
//! Cost: a comparison for each request that is not small.

use crate::address::Bytes;

/// So many in a row are.
pub(super) const RUN: u32 = 16;

/// The size that was asked for last, and how many requests for it came in a row before.
#[derive(Debug, Default)]
pub(super) struct Requests {
    size: Bytes,
    run: u32,
}

impl Requests {
    #[inline]
    pub(super) fn serves(&mut self, size: Bytes) {
        let goes_on = size == self.size;
        self.run = if goes_on {
            self.run.saturating_add(1)
        } else {
            0
        };
        self.size = size;
    }

    /// Whether they come for this size alone.
    pub(super) fn are_all_for(&self, size: Bytes) -> bool {
        self.run >= RUN && size == self.size
    }
}
