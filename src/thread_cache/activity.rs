//! What happened in a cache, for the arena's counters.

use crate::address::Bytes;
use crate::stats::{ClassCount, SIZE_CLASSES, size_class};
use crate::thread_cache::sizes::Size;

/// What happened in a cache since it was opened.
#[derive(Copy, Clone, Default)]
pub(crate) struct Activity {
    /// What was handed out, bytes in the sizes of blocks.
    pub(crate) allocations: u64,
    pub(crate) handed_out: u64,
    pub(crate) requested: u64,
    /// Batches that were closed without the arena.
    pub(crate) epochs: u64,
    classes: [ClassCount; SIZE_CLASSES],
}

impl Activity {
    pub(super) fn add(&mut self, size: u64, of: &Size) {
        self.allocations += of.allocations();
        self.handed_out += of.allocations() * size;
        self.requested += of.requested;
        let count = &mut self.classes[size_class(Bytes::new(size))];
        count.allocations += of.allocations();
        count.frees += of.frees();
        count.requested += of.requested;
    }

    /// Adds what happened to the counts by size class.
    pub(crate) fn add_to(&self, counts: &mut [ClassCount; SIZE_CLASSES]) {
        for (more, count) in self.classes.iter().zip(counts) {
            count.allocations += more.allocations;
            count.frees += more.frees;
            count.requested = count.requested.saturating_add(more.requested);
        }
    }
}
